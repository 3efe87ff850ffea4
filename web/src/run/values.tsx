/** Values of nodes: the first 64 KB at once, the rest on demand, however large they are. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, apiUrl, seg } from "../api/client";
import { Button, ErrorState, JsonView, Loading } from "../ui";
import css from "./run.module.css";
import { bytes } from "./words";

export interface ShownValue {
  visit: number;
  status: string;
  size: number;
  digest: string;
  value: unknown;
  preview: string | null;
}

export interface ValueQuery {
  run: string;
  node: string;
  what: "input" | "output";
  visit?: number | null;
  item?: number | null;
  at?: number | null;
  /** Changes when the value may have changed. */
  version: string;
}

const PART = 65_536;
const pathOf = ({ run, node, what }: ValueQuery): string => `/runs/${seg(run)}/nodes/${seg(node)}/${what}`;
const queryOf = ({ what, visit, item, at }: ValueQuery): Record<string, number | undefined> => ({
  visit: what === "input" ? (visit ?? undefined) : undefined,
  index: item ?? undefined,
  at: at ?? undefined,
});

export function useValue(asked: ValueQuery) {
  const { run, node, what, visit, item, at, version } = asked;
  return useQuery({
    queryKey: ["run", run, "value", node, what, visit, item, at, version],
    queryFn: ({ signal }) => api<ShownValue>("GET", pathOf(asked), { query: queryOf(asked), signal }),
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    gcTime: 60_000,
  });
}

export function ValueView({ asked, none }: { asked: ValueQuery; none: string }) {
  const found = useValue(asked);
  if (found.isPending) return <Loading rows={3} />;
  if (found.error) return <ErrorState error={found.error} what={`this ${asked.what}`} onRetry={() => void found.refetch()} />;
  const shown = found.data;
  if (shown.size === 0) return <p className={css.none}>{none}</p>;
  if (shown.preview !== null) return <LargeValue key={shown.digest} asked={asked} size={shown.size} />;
  return (
    <div className={css.value}>
      <div className={css.valueHead}>
        <span className="soft">{bytes(shown.size)} of JSON</span>
      </div>
      <JsonView value={shown.value} label={asked.what} />
    </div>
  );
}

/** The text of a large value, part by part. */
function LargeValue({ asked, size }: { asked: ValueQuery; size: number }) {
  const [parts, setParts] = useState(1);
  return (
    <div className={css.value}>
      <div className={css.valueHead}>
        <span className="soft">
          {bytes(Math.min(size, parts * PART))} of {bytes(size)} of JSON
        </span>
        <a className={css.quietLink} href={apiUrl(pathOf(asked), queryOf(asked))} onClick={(click) => void download(click, asked, size)}>
          Download
        </a>
      </div>
      <div className={css.largeText} tabIndex={0} aria-label={`the beginning of this ${asked.what}`}>
        {Array.from({ length: parts }, (_, part) => (
          <Part key={part} asked={asked} part={part} size={size} />
        ))}
      </div>
      {parts * PART < size && (
        <Button size="s" onClick={() => setParts(parts + 1)}>
          Show the next {bytes(Math.min(PART, size - parts * PART))}
        </Button>
      )}
    </div>
  );
}

async function fetchPart(asked: ValueQuery, begin: number, end: number, signal?: AbortSignal): Promise<ArrayBuffer> {
  const answer = await api<Response>("GET", pathOf(asked), {
    query: queryOf(asked),
    headers: { Range: `bytes=${begin}-${end - 1}` },
    as: "response",
    ...(signal ? { signal } : {}),
  });
  return answer.arrayBuffer();
}

function Part({ asked, part, size }: { asked: ValueQuery; part: number; size: number }) {
  const { run, node, what, visit, item, at, version } = asked;
  const found = useQuery({
    queryKey: ["run", run, "value", node, what, visit, item, at, version, "part", part],
    queryFn: async ({ signal }) => {
      // A character may be cut: three more bytes complete it, and the part that follows leaves its end out.
      const raw = new Uint8Array(await fetchPart(asked, part * PART, Math.min(size, (part + 1) * PART + 3), signal));
      const isInside = (at: number): boolean => (raw[at]! & 0xc0) === 0x80;
      let begin = 0;
      while (part > 0 && begin < raw.length && isInside(begin)) begin += 1;
      let end = Math.min(PART, raw.length);
      while (end < raw.length && isInside(end)) end += 1;
      return new TextDecoder().decode(raw.subarray(begin, end));
    },
    staleTime: Infinity,
    gcTime: 30_000,
  });
  if (found.error) return <ErrorState error={found.error} what="this part" onRetry={() => void found.refetch()} />;
  return pieces(found.data ?? "…").map((piece, index) => (
    <div key={index} className={css.piece}>
      {piece}
    </div>
  ));
}

const PIECE = 2_000;

/** Blocks that are laid out alone, and only in sight: one long line would keep the page busy for seconds. */
function pieces(text: string): string[] {
  const found: string[] = [];
  for (let begin = 0; begin < text.length; ) {
    let end = Math.min(text.length, begin + PIECE);
    const comma = text.lastIndexOf(",", end - 1);
    if (end < text.length && comma > begin + PIECE / 2) end = comma + 1;
    else if (end < text.length && text.charCodeAt(end) >= 0xdc00 && text.charCodeAt(end) < 0xe000) end += 1;
    found.push(text.slice(begin, end));
    begin = end;
  }
  return found;
}

/** Save the whole value as a file. */
async function download(click: React.MouseEvent, asked: ValueQuery, size: number): Promise<void> {
  click.preventDefault();
  const url = URL.createObjectURL(new Blob([await fetchPart(asked, 0, size)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${asked.node}-${asked.what}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
