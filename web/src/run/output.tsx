/** What a step says while it works: lines that it logs, and parts of its result. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import { api } from "../api/client";
import { useRunStream, type LiveFrame as Shown, type LogFrame } from "../api/live";
import { absolute, Button, ErrorState, Loading } from "../ui";
import { hasEnded, runPath, type LiveFrame, type LogLine, type RunModel } from "./model";
import css from "./run.module.css";
import { cut } from "./words";

const LINES_SHOWN = 300;
const LINES_KEPT = 10_000;
const STREAM_CHARACTERS = 65_536;

interface Place {
  model: RunModel;
  node: string;
  visit: number;
  item: number | null;
}

const isAt = (frame: { node?: unknown; visit?: unknown; index?: unknown }, { node, visit, item }: Place): boolean =>
  frame.node === node && frame.visit === visit && (item === null || frame.index === item);

/** Keeps the end in sight while it is in sight. */
function Following({ label, count, children }: { label: string; count: number; children: ReactNode }) {
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [count]);
  return (
    <div
      ref={box}
      className={css.lines}
      tabIndex={0}
      role="log"
      aria-live="off"
      aria-label={label}
      onScroll={(scroll) => {
        const at = scroll.currentTarget;
        follows.current = at.scrollHeight - at.scrollTop - at.clientHeight < 24;
      }}
    >
      {children}
    </div>
  );
}

export function Logs({ attempt, version, ...place }: Place & { attempt: number | null; version: string }) {
  const { model, node, visit, item } = place;
  const live = !hasEnded(model.run) && model.at === null;
  const [fresh, setFresh] = useState<LogLine[]>([]);
  const [shown, setShown] = useState(LINES_SHOWN);
  const stored = useQuery({
    queryKey: ["run", model.id, "logs", node, visit, item, attempt, version],
    queryFn: async ({ signal }) => {
      const page = await api<{ items: LogLine[] }>("GET", `${runPath(model.id)}/logs`, { query: { node, visit, index: item ?? undefined, attempt: attempt ?? undefined, limit: LINES_KEPT }, signal });
      return page.items;
    },
    placeholderData: keepPreviousData,
    refetchOnWindowFocus: false,
  });
  const onLog = (line: LogFrame): void => {
    if (isAt(line, place) && (attempt === null || line.attempt === attempt)) setFresh((before) => [...before.slice(-LINES_KEPT), line as unknown as LogLine]);
  };
  useRunStream(live ? model.id : null, { after: model.total, onLog });
  if (stored.isPending) return <Loading rows={4} />;
  if (stored.error) {
    // Before the first attempt there is nothing to show.
    if (stored.error instanceof Error && "code" in stored.error && stored.error.code === "attempt_unknown") return <p className={css.none}>Nothing was logged yet.</p>;
    return <ErrorState error={stored.error} what="the logs" onRetry={() => void stored.refetch()} />;
  }
  const keyOf = (line: LogLine): string => `${line.at_ms}/${line.attempt}/${line.index}/${line.source}/${line.text}`;
  const known = new Set(stored.data.slice(-2_000).map(keyOf));
  const lines = [...stored.data, ...fresh.filter((line) => !known.has(keyOf(line)))];
  if (lines.length === 0) return <p className={css.none}>{live ? "Nothing was logged yet. Lines appear here about a second after they are written." : "It logged nothing."}</p>;
  const hidden = Math.max(0, lines.length - shown);
  return (
    <>
      {hidden > 0 && (
        <Button size="s" onClick={() => setShown(shown + 1_000)}>
          Show earlier lines ({hidden.toLocaleString()})
        </Button>
      )}
      <Following label="Logs" count={lines.length}>
        {lines.slice(hidden).map((line, index) => (
          <div key={hidden + index} className={css.line} data-source={line.source}>
            <span className={css.lineTime} title={absolute(line.at_ms)}>
              {new Date(line.at_ms).toLocaleTimeString()}
            </span>
            <span className={css.lineSource}>{line.source}</span>
            <span className={css.lineText} dir="auto">
              {cut(line.text, 20_000)}
            </span>
          </div>
        ))}
      </Following>
    </>
  );
}

/** Parts of a result as they come; nothing of it is kept. What the step records ends the text before it. */
export function useParts(place: Place, enabled: boolean, textOf: (value: unknown) => string): { text: string; progress: LiveFrame | null } {
  const [text, setText] = useState("");
  const [progress, setProgress] = useState<LiveFrame | null>(null);
  const waiting = useRef("");
  const frame = useRef(0);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  const onLive = (shown: Shown): void => {
    if (!isAt(shown, place)) return;
    const part = shown as unknown as LiveFrame;
    if (part.type === "NodeProgressed") return setProgress(part);
    waiting.current += textOf(part.value);
    // Hundreds of parts a second are shown once per frame.
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      const more = waiting.current;
      waiting.current = "";
      setText((before) => (before + more).slice(-STREAM_CHARACTERS));
    });
  };
  const onEvent = (event: { type: string; node?: unknown }): void => {
    if (event.type !== "NodeAppended" || event.node !== place.node) return;
    waiting.current = "";
    setText("");
  };
  useRunStream(enabled ? place.model.id : null, { after: place.model.total, onLive, onEvent });
  return { text, progress };
}

export const partText = (value: unknown): string => (typeof value === "string" ? value : `${JSON.stringify(value)}\n`);

export function Stream(place: Place) {
  const live = !hasEnded(place.model.run) && place.model.at === null;
  const { text, progress } = useParts(place, live, partText);
  return (
    <>
      {progress && (
        <div className={css.progress}>
          {typeof progress.fraction === "number" && <progress value={progress.fraction} max={1} aria-label="Progress" />}
          <span dir="auto">
            {typeof progress.fraction === "number" && `${Math.round(progress.fraction * 100)} % `}
            {progress.message}
          </span>
        </div>
      )}
      {text === "" ? (
        <p className={css.none}>Nothing has been streamed since you opened this. Parts appear here as they come; only the whole result is kept.</p>
      ) : (
        <Following label="Stream" count={text.length}>
          <pre className={css.streamText}>{text}</pre>
        </Following>
      )}
    </>
  );
}
