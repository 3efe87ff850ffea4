// Times in words, with the exact time on hover. One clock ticks for the whole page.
import { useSyncExternalStore } from "react";

let now = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
const listeners = new Set<() => void>();

function tick(): void {
  if (document.hidden) return;
  now = Date.now();
  for (const each of listeners) each();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  if (timer === undefined) {
    now = Date.now();
    timer = setInterval(tick, 1_000);
    document.addEventListener("visibilitychange", tick);
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
      document.removeEventListener("visibilitychange", tick);
    }
  };
}

/** What `now` is, rounded so that a component renders only when its words change. */
function useWords(words: (now: number) => string): string {
  return useSyncExternalStore(subscribe, () => words(now));
}

/** The ticking clock, in whole seconds; rendering follows it once a second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => Math.floor(now / 1_000) * 1_000);
}

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const ABSOLUTE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const ZONE = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });

/** "3 min ago", "in 2 h". */
export function relative(ms: number, at: number = Date.now()): string {
  const delta = at - ms;
  const size = Math.abs(delta);
  // The clock of the page ticks once a second: what has just begun may be ahead of it.
  if (size < 5 * SECOND) return delta > -2 * SECOND ? "just now" : "in a moment";
  const words =
    size < MINUTE ? `${Math.round(size / (5 * SECOND)) * 5} s` : size < HOUR ? `${Math.floor(size / MINUTE)} min` : size < DAY ? `${Math.floor(size / HOUR)} h` : `${Math.floor(size / DAY)} d`;
  return delta >= 0 ? `${words} ago` : `in ${words}`;
}

/** The exact time in the zone of the browser and in UTC. */
export function absolute(ms: number): string {
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  const zone = ZONE.formatToParts(date).find((part) => part.type === "timeZoneName")?.value ?? "";
  return `${ABSOLUTE.format(date)} ${zone} · ${date.toISOString().replace("T", " ").replace("Z", " UTC")}`;
}

/** "820 ms", "4.2 s", "3 min 5 s", "2 h 10 min". */
export function duration(ms: number): string {
  const size = Math.max(0, ms);
  if (size < SECOND) return `${Math.round(size)} ms`;
  if (size < 10 * SECOND) return `${(Math.floor(size / 100) / 10).toFixed(1)} s`;
  if (size < MINUTE) return `${Math.floor(size / SECOND)} s`;
  const two = (big: number, bigName: string, small: number, smallName: string) => {
    const whole = Math.floor(size / big);
    const rest = Math.floor((size % big) / small);
    return rest ? `${whole} ${bigName} ${rest} ${smallName}` : `${whole} ${bigName}`;
  };
  if (size < HOUR) return two(MINUTE, "min", SECOND, "s");
  if (size < DAY) return two(HOUR, "h", MINUTE, "min");
  return two(DAY, "d", HOUR, "h");
}

/** As `duration`, in whole seconds: the clock ticks once a second. */
const elapsed = (ms: number): string => (ms < 10 * SECOND ? `${Math.max(0, Math.floor(ms / SECOND))} s` : duration(ms));

/** "3 minutes", for sentences: "overdue by 3 minutes". */
export function inWords(ms: number): string {
  const size = Math.max(0, ms);
  const [count, unit] =
    size < MINUTE ? [Math.max(1, Math.floor(size / SECOND)), "second"] : size < HOUR ? [Math.floor(size / MINUTE), "minute"] : size < DAY ? [Math.floor(size / HOUR), "hour"] : [Math.floor(size / DAY), "day"];
  return `${count} ${unit}${count === 1 ? "" : "s"}`;
}

/** When something was, or is to be: `ahead` is never said to be past. */
export function Time({ ms, ahead, className }: { ms: number | null | undefined; ahead?: boolean; className?: string }) {
  const words = useWords((at) => (ms == null ? "" : ahead && ms < at + 2 * SECOND ? "now" : relative(ms, at)));
  if (ms == null) return <span className={className}>–</span>;
  const date = new Date(ms);
  return (
    <time className={className} dateTime={Number.isNaN(date.getTime()) ? undefined : date.toISOString()} title={absolute(ms)}>
      {words}
    </time>
  );
}

/** How long something took, or takes since `since`. */
export function Duration({ ms, since, className }: { ms?: number | null; since?: number | null; className?: string }) {
  const words = useWords((at) => (ms != null ? duration(ms) : since != null ? elapsed(at - since) : "–"));
  return (
    <span className={`numbers ${className ?? ""}`} title={ms != null ? `${ms.toLocaleString()} ms` : since != null ? `since ${absolute(since)}` : undefined}>
      {words}
    </span>
  );
}
