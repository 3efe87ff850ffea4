// Live streams: Server-Sent Events over fetch, so that a refusal can be read. Callers that follow the same thing share one
// connection. A hidden page has none, and continues behind the last id when it is seen again.
import { useEffect, useRef, useState } from "react";
import { apiUrl, isReached, onReach, type Problem, problemOf, seg, setReached, type QueryValue } from "./client";
import { keys, queryClient } from "./queries";
import type { RunEvent, RunRow } from "./types";

export type LiveState = "live" | "reconnecting" | "offline";

/** The server is silent for 15 seconds at most. */
const SILENT_MS = 45_000;
const BACKOFF_MS = [0, 500, 1_000, 2_000, 4_000, 8_000, 15_000];
/** Failed attempts after which the page says that it is offline. */
const OFFLINE_AFTER = 3;
/** How long a hidden page keeps its connection. */
const HIDDEN_MS = 10_000;

interface Frame {
  event: string;
  id: string;
  data: string;
}

interface Subscriber {
  frame: (frame: Frame) => void;
  state: (state: LiveState) => void;
  /** The last id it has seen. */
  seen: string;
  logs: boolean;
}

/** Splits a stream into frames. */
class FrameReader {
  private rest = "";
  private event = "";
  private id = "";
  private data: string[] = [];

  push(text: string, onFrame: (frame: Frame) => void): void {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    for (const each of lines) {
      const line = each.endsWith("\r") ? each.slice(0, -1) : each;
      if (line === "") {
        // An id alone says where to continue.
        if (this.data.length > 0) onFrame({ event: this.event, id: this.id, data: this.data.join("\n") });
        else if (this.id) onFrame({ event: "id", id: this.id, data: "" });
        this.event = this.id = "";
        this.data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
      if (name === "data") this.data.push(value);
      else if (name === "event") this.event = value;
      else if (name === "id") this.id = value;
    }
  }
}

const isLater = (id: string, seen: string): boolean => {
  // Events of a run have numbers; other ids only follow each other.
  const [a, b] = [Number(id), Number(seen || "0")];
  return Number.isFinite(a) && Number.isFinite(b) ? a > b : id !== seen;
};

class Connection {
  private readonly subscribers = new Set<Subscriber>();
  private abort: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private hiding: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  private state: LiveState = "live";
  private last = "";
  private withLogs = false;
  private over = false;
  private readonly deaf: () => void;

  constructor(
    private readonly key: string,
    private readonly path: string,
    private readonly query: Record<string, QueryValue>,
  ) {
    document.addEventListener("visibilitychange", this.onVisibility);
    window.addEventListener("online", this.onOnline);
    // The first subscriber that reaches the server spares the others their pause.
    this.deaf = onReach(() => isReached() && this.abort === null && this.onOnline());
  }

  add(subscriber: Subscriber): void {
    this.subscribers.add(subscriber);
    subscriber.state(this.state);
    const wantsLogs = subscriber.logs && !this.withLogs;
    const wantsMore = this.last !== "" && subscriber.seen !== "" && isLater(this.last, subscriber.seen);
    if (!this.abort || wantsLogs || wantsMore || this.over) {
      // Every subscriber gets what is new to it, from the earliest place on.
      if (wantsMore || this.last === "") this.last = subscriber.seen;
      this.restart();
    }
  }

  /** A subscriber knows by other means that there is more than the stream had told at its end. */
  knows(seq: string): void {
    if (this.over && isLater(seq, this.last)) {
      this.last = seq;
      this.restart();
    }
  }

  remove(subscriber: Subscriber): void {
    this.subscribers.delete(subscriber);
    if (this.subscribers.size > 0) return;
    this.close();
    document.removeEventListener("visibilitychange", this.onVisibility);
    window.removeEventListener("online", this.onOnline);
    this.deaf();
    connections.delete(this.key);
  }

  private readonly onVisibility = (): void => {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.close(), HIDDEN_MS);
    else if (!this.abort && !this.over) this.restart();
  };

  private readonly onOnline = (): void => {
    if (this.state !== "live") this.restart();
  };

  private say(state: LiveState): void {
    if (state === this.state) return;
    this.state = state;
    for (const each of this.subscribers) each.state(state);
  }

  private close(): void {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    this.abort?.abort();
    this.abort = null;
  }

  private restart(): void {
    this.close();
    this.over = false;
    this.failures = 0;
    // Effects of one render are gathered into one request.
    this.timer = setTimeout(() => void this.connect(), 0);
  }

  private later(least = 0): void {
    this.close();
    this.failures += 1;
    this.say(this.failures >= OFFLINE_AFTER ? "offline" : "reconnecting");
    if (document.hidden) return;
    const wait = Math.max(least, BACKOFF_MS[Math.min(this.failures, BACKOFF_MS.length - 1)] ?? 15_000);
    this.timer = setTimeout(() => void this.connect(), wait * (0.75 + Math.random() * 0.5));
  }

  private watch(): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.later(), SILENT_MS);
  }

  private async connect(): Promise<void> {
    const abort = (this.abort = new AbortController());
    this.withLogs = [...this.subscribers].some((each) => each.logs);
    const query = { ...this.query, after: this.last, logs: this.withLogs || undefined };
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    this.watch();
    try {
      const answer = await fetch(apiUrl(this.path, query), { headers, credentials: "same-origin", cache: "no-store", signal: abort.signal });
      setReached(true);
      if (!answer.ok || !answer.body) return this.refused(await problemOf(answer));
      this.failures = 0;
      this.say("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const frames = new FrameReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || abort.signal.aborted) break;
        this.watch();
        frames.push(value, (frame) => this.receive(frame, abort));
      }
    } catch {
      if (abort.signal.aborted) return;
      setReached(navigator.onLine && this.failures === 0);
    }
    if (!abort.signal.aborted && !this.over) this.later();
  }

  private refused(problem: Problem): void {
    if (problem.isUnauthenticated) void queryClient.invalidateQueries({ queryKey: keys.me });
    if (problem.status === 429 || problem.status >= 500) return this.later((problem.retryAfter ?? 1) * 1_000);
    // It would be refused again.
    this.close();
    this.over = true;
    this.say("offline");
  }

  private receive(frame: Frame, abort: AbortController): void {
    if (abort.signal.aborted) return;
    if (frame.id) this.last = frame.id;
    if (frame.event === "id") return;
    if (frame.event === "resume") {
      const after = (JSON.parse(frame.data) as { after?: string | number }).after;
      if (after !== undefined && after !== null && after !== "") this.last = String(after);
      return;
    }
    if (frame.event === "end") {
      this.over = true;
      clearTimeout(this.watchdog);
    }
    for (const each of this.subscribers) {
      if (frame.event === "log" && !each.logs) continue;
      if (frame.id) {
        if (!isLater(frame.id, each.seen)) continue;
        each.seen = frame.id;
      }
      each.frame(frame);
    }
  }
}

const connections = new Map<string, Connection>();

function subscribe(path: string, query: Record<string, QueryValue>, subscriber: Subscriber): [Connection, () => void] {
  const key = apiUrl(path, query);
  let found = connections.get(key);
  if (!found) connections.set(key, (found = new Connection(key, path, query)));
  const connection = found;
  connection.add(subscriber);
  return [connection, () => connection.remove(subscriber)];
}

/** A part of a result, or progress: not recorded, never repeated. */
export type LiveFrame = Record<string, unknown> & { type: string; node?: string };
export type LogFrame = Record<string, unknown> & { node: string; text: string };

export interface RunStreamOptions<E = RunEvent> {
  /** The last event that is known already. */
  after?: number;
  onEvent?: (event: E) => void;
  onLive?: (frame: LiveFrame) => void;
  /** Lines that handlers log from now on; asks the server for them. */
  onLog?: (line: LogFrame) => void;
  onEnd?: (end: { status: string; events: number }) => void;
}

/** Follow a run; null follows nothing. */
export function useRunStream<E = RunEvent>(id: string | null, options: RunStreamOptions<E>): LiveState {
  const [state, setState] = useState<LiveState>("live");
  const latest = useRef(options);
  const connection = useRef<Connection | null>(null);
  useEffect(() => {
    latest.current = options;
  });
  const logs = options.onLog !== undefined;
  useEffect(() => {
    if (id === null) return;
    const frame = (each: Frame): void => {
      const now = latest.current;
      const data: unknown = JSON.parse(each.data);
      if (each.event === "") now.onEvent?.(data as E);
      else if (each.event === "live") now.onLive?.(data as LiveFrame);
      else if (each.event === "log") now.onLog?.(data as LogFrame);
      else if (each.event === "end") now.onEnd?.(data as { status: string; events: number });
    };
    const [found, leave] = subscribe(`/runs/${seg(id)}/stream`, {}, { frame, state: setState, seen: String(latest.current.after ?? 0), logs });
    connection.current = found;
    return () => {
      connection.current = null;
      leave();
    };
  }, [id, logs]);
  const { after } = options;
  useEffect(() => {
    if (after !== undefined) connection.current?.knows(String(after));
  }, [after]);
  return state;
}

export interface TenantChange {
  change: "started" | "changed" | "ended";
  run: RunRow;
}

/** Follow the changes of runs that a query finds; null follows nothing. `onReset`: read the list again. */
export function useTenantStream(query: string | null, onChange: (change: TenantChange) => void, onReset?: () => void): LiveState {
  const [state, setState] = useState<LiveState>("live");
  const latest = useRef({ onChange, onReset });
  useEffect(() => {
    latest.current = { onChange, onReset };
  });
  useEffect(() => {
    if (query === null) return;
    const frame = (each: Frame): void => {
      if (each.event === "reset") latest.current.onReset?.();
      else if (each.event === "") latest.current.onChange(JSON.parse(each.data) as TenantChange);
    };
    return subscribe("/stream", { query }, { frame, state: setState, seen: "", logs: false })[1];
  }, [query]);
  return state;
}
