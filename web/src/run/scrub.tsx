/** Time travel: the run as it was after any of its events. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api } from "../api/client";
import { absolute, Button, Icon, IconButton, StatusIcon, useShortcut } from "../ui";
import { runPath, type RunEvent, type RunModel } from "./model";
import css from "./run.module.css";
import { useSelection } from "./selection";
import { eventStatus, eventWords, placeWords, sentence } from "./words";

const SETTLE_MS = 120;

/** One event, with its values cut short or whole. */
export function useEvent(run: string, seq: number | null, brief: boolean) {
  return useQuery({
    queryKey: ["event", run, seq, brief],
    queryFn: async ({ signal }) => {
      const page = await api<{ items: RunEvent[] }>("GET", `${runPath(run)}/events`, { query: { after: (seq ?? 1) - 1, limit: 1, brief: brief || undefined }, signal });
      return page.items[0] ?? null;
    },
    enabled: seq !== null,
    staleTime: Infinity,
  });
}

/** The sign of an event; nothing in the past moves. */
export function EventSign({ event }: { event: RunEvent }) {
  if (event.type === "NodeStarted" || event.type === "RunCreated") return <Icon name="play" className={css.began} />;
  return <StatusIcon status={eventStatus(event)} />;
}

/** The time of day with milliseconds. */
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false });
export const clock = (ms: number): string => CLOCK.format(ms);

export function ScrubBar({ model }: { model: RunModel }) {
  const { at, select } = useSelection();
  const { total } = model;
  const place = at ?? total;
  const [dragged, setDragged] = useState<number | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const now = Math.min(dragged ?? place, total);
  const go = (seq: number): void => {
    const next = Math.max(1, Math.min(total, seq));
    setDragged(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      setDragged(null);
      select({ at: next === total && at === null ? null : next }, { replace: true });
    }, SETTLE_MS);
  };
  const back = (): void => {
    clearTimeout(timer.current);
    setDragged(null);
    select({ at: null }, { replace: true });
  };
  useShortcut("[", "One event back", () => go(now - 1), "Run");
  useShortcut("]", "One event on", () => go(now + 1), "Run");
  useShortcut("n", "Back to now", back, "Run");
  const event = useEvent(model.id, now, true);
  const shown = event.data;
  return (
    <section className={css.scrub} aria-label="Time travel" data-past={at !== null || undefined}>
      <div className={css.scrubRow}>
        <IconButton icon="chevron-left" size="s" label="One event back" keys="[" disabled={now <= 1} onClick={() => go(now - 1)} />
        <input
          type="range"
          className={css.range}
          min={1}
          max={Math.max(1, total)}
          value={now}
          aria-label="Event"
          aria-valuetext={shown ? `Event ${now} of ${total}: ${placeWords(shown)} ${eventWords(shown)}` : `Event ${now} of ${total}`}
          onChange={(change) => go(change.target.valueAsNumber)}
        />
        <IconButton icon="chevron-right" size="s" label="One event on" keys="]" disabled={now >= total} onClick={() => go(now + 1)} />
        <span className={`${css.scrubPlace} numbers`}>
          #{now.toLocaleString()} of {total.toLocaleString()}
        </span>
        <Button size="s" kind={at === null ? "quiet" : "primary"} disabled={at === null} onClick={back}>
          {at === null ? "This is now" : "Back to now"}
        </Button>
      </div>
      <p className={css.scrubWords} aria-hidden="true">
        {shown && (
          <>
            <EventSign event={shown} />
            <span className={css.scrubTime} title={absolute(shown.at_ms)}>
              {clock(shown.at_ms)}
            </span>
            {shown.node && <b dir="auto">{placeWords(shown)}</b>}
            <span className="truncate" dir="auto">
              {shown.node ? eventWords(shown) : sentence(eventWords(shown))}
            </span>
          </>
        )}
      </p>
    </section>
  );
}
