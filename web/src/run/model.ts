/**
 * What the views of a run share: the run as the API answers it, with the compiled graph, what it waits for, and its
 * events. All views get one `RunModel`; what is selected is in the URL (`selection.ts`).
 */
import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, useCallback, useContext, useEffect, useMemo, useRef, useState } from "react";

import { Problem } from "../api/client";
import { useRunStream } from "../api/live";
import { runQuery, whyQuery } from "../api/queries";
import type { Spending } from "../ui";

// What the API answers

export type RunStatus = "RUNNING" | "PAUSED" | "COMPLETED" | "FAILED" | "CANCELLED";
export type NodeStatus =
  | "PENDING"
  | "QUEUED"
  | "RUNNING"
  | "WAITING"
  | "COMPLETED"
  | "FAILED"
  | "SKIPPED"
  | "CANCELLED";

/** An error of a node or run. Every text in it is untrusted. */
export interface RunError {
  code: string;
  message: string;
  type?: string;
  hint?: string;
  causes?: string[];
  traceback?: string;
  /** The item because of which a map failed. */
  index?: number;
}

/** What an error is called: its code, or the class of an exception. */
export const errorName = ({ code, type }: RunError): string => (code === "exception" ? type || code : code);

/** The latest visit of a node. Outputs are not part of it: `nodes/{node}/output` has them. */
export interface NodeState {
  status: NodeStatus;
  /** The number of the latest visit; 1 also before it begins. */
  visits: number;
  /** The number of the latest attempt; 0 before the first. */
  attempts: number;
  /** Why it failed, or why its latest attempt did. */
  error: RunError | null;
  /** Of a map. */
  items?: { count: number; done: number; failed: number };
  /** Since when it runs. */
  since_ms?: number;
  /** It failed, and the run went on. */
  tolerated?: boolean;
}

/** A node of the compiled graph; fields with their default are left out. */
export interface GraphNode {
  id: string;
  /** Name and major version, as `http@1`. */
  type: string;
  config?: unknown;
  when?: unknown;
  join?: "all" | "strict" | "any" | "quorum";
  quorum?: number;
  branch?: { kind?: string; rules?: { condition: unknown; next_nodes: string[] }[]; available?: string[]; default?: string[] };
  /** On the looping node, the last of the body. */
  loop?: { back_to: string; body?: string[]; max_iterations: number | null; condition: unknown; delay_ms?: number };
  map?: { over: unknown; max_parallel?: number; tolerate?: number };
  on_error?: "fail" | "continue" | "route";
  error_path?: string[];
  exits?: Record<string, string[]>;
  delivery?: "at_least_once" | "at_most_once";
  queue?: string;
  retry?: { max_attempts?: number };
  timeout_ms?: number;
  compensator?: { type: string; config?: unknown };
  inbound?: string[];
  outbound?: string[];
  /** Looping nodes of the loops around it, innermost first. */
  loops?: string[];
}

export interface GraphEdge {
  from: string;
  to: string;
  label: string;
  /** `loop` leads back to the beginning of a loop's body. */
  kind: "edge" | "loop";
  /** null while the node has not ended, and for ways back. */
  taken: boolean | null;
}

export interface Graph {
  name: string;
  nodes: GraphNode[];
  entries: string[];
  terminals: string[];
  description?: string;
  inputs?: unknown;
}

export interface Run {
  run_id: string;
  workflow: string;
  version: number;
  revision: number;
  status: RunStatus;
  error: RunError | null;
  counter: number;
  /** How many events it has: the seq of the last one. */
  events: number;
  rollback: { status: "none" | "running" | "done" | "partial"; undone: string[]; left: string[] };
  failed_node: string | null;
  waiting_for: string[];
  created_ms: number;
  ended_ms: number | null;
  last_event_ms: number;
  submitted_by: string;
  labels: Record<string, string>;
  parent: string | null;
  forked_from: [string, number] | null;
  /** What agents have spent. */
  spent?: Spending;
  nodes: Record<string, NodeState>;
  stuck?: string;
  warnings?: string[];
}

/** What something waits for; further fields depend on the kind. */
export interface Blocker {
  kind: string;
  node: string;
  visit: number;
  index: number;
  status: string;
  since_ms: number | null;
  until_ms: number | null;
  root: boolean;
  words: string;
  unblock: string;
  command: string;
  // join
  join?: string;
  arrived?: number;
  dead?: number;
  of?: number;
  needed?: number;
  undecided?: { source: string; status: string; loop: string }[];
  // items
  count?: number;
  done?: number;
  failed?: number;
  queued?: number;
  running?: number;
  waiting?: number;
  unqueued?: number;
  // lease, worker
  owner?: string;
  attempt?: number;
  max_attempts?: number;
  queue?: string;
  need?: string;
  // retry
  error?: RunError | null;
  // person
  title?: string;
  approvers?: string[];
  quorum?: number;
  voted?: string[];
  on_timeout?: string;
  url?: string;
  // signal, wait
  name?: string;
  on?: string;
  // child
  child?: string;
  started?: boolean;
  reason?: string;
}

export interface Sample {
  count: number;
  names: string[];
}

export interface Explanation {
  status: RunStatus;
  headline: string;
  stuck: string;
  newer: string;
  since_ms: number | null;
  blockers: Blocker[];
  counts: Record<string, number>;
  more_roots: number;
  more_followers: number;
  deadline: Blocker | null;
  first_cause: {
    node: string;
    visit: number;
    index: number;
    attempts: number;
    at_ms: number | null;
    error: RunError;
  } | null;
  chain: { what: string; words: string; nodes: Sample }[];
  reason: string;
  failures_tolerated: number;
  tolerated: Sample;
  unread: Record<string, number>;
  dead_letters: number;
  rollback: string;
  left: Sample;
  left_error: RunError | null;
  warnings: string[];
  unblock: string;
  command: string;
}

/** An event of a run; defaults are left out, and further fields depend on the type. */
export interface RunEvent {
  seq: number;
  type: string;
  at_ms: number;
  /** The event that led to it; left out if the cause is outside of the run. */
  cause?: number;
  actor?: string;
  node?: string;
  visit?: number;
  /** The item of a map; left out where there is none. */
  index?: number;
  attempt?: number;
  worker?: string;
  duration_ms?: number;
  waited_ms?: number;
  retry_at_ms?: number;
  error?: RunError;
  taken?: string[];
  dead?: string[];
  reason?: string;
  status?: string;
  /** `NodeWaiting`: timer, loop, human, signal, child, or a handler's own word. */
  on?: string;
  until_ms?: number;
  /** `NodeScheduled` of items: the end (exclusive) of the queued range. */
  until?: number;
  held?: boolean;
  tolerated?: boolean;
  lost?: boolean;
  count?: number;
  child?: string;
  [field: string]: unknown;
}

/** What is shown meanwhile and never recorded. */
export interface LiveFrame {
  type: "NodeStreamed" | "NodeProgressed";
  node: string;
  visit: number;
  index: number;
  attempt: number;
  number?: number;
  value?: unknown;
  fraction?: number | null;
  message?: string;
}

export interface LogLine {
  node: string;
  visit: number;
  index: number;
  attempt: number;
  at_ms: number;
  source: string;
  text: string;
}

// The model

export type LiveState = "live" | "reconnecting" | "offline" | "ended";

export interface RunModel {
  id: string;
  run: Run;
  graph: Graph;
  edges: GraphEdge[];
  /** By node: milliseconds of work in its latest visit, and the edges it took when that ended. */
  traces: Record<string, [number, string[] | null]>;
  /** What it waits for, or why it failed. null in the past, and until it is known. */
  why: Explanation | null;
  /** The event after which the run is shown; null is now. */
  at: number | null;
  /** How many events the run has now; `run.events` is that of the moment that is shown. */
  total: number;
  live: LiveState;
}

/** Nothing more happens by itself. */
export function hasEnded(run: Run): boolean {
  return run.ended_ms !== null && run.rollback.status !== "running";
}

export function nodeOf(model: RunModel, id: string): GraphNode | undefined {
  return model.graph.nodes.find((node) => node.id === id);
}

export const UNVISITED: NodeState = { status: "PENDING", visits: 1, attempts: 0, error: null };

export function stateOf(model: RunModel, id: string): NodeState {
  return model.run.nodes[id] ?? UNVISITED;
}

/** `http` of `http@1`. */
export function typeName(node: GraphNode): string {
  return node.type.split("@")[0] ?? node.type;
}

/** Nodes whose latest effect was undone. */
export function undoneNodes(run: Run): Set<string> {
  return new Set(run.rollback.undone.map((key) => key.split("/").slice(0, -2).join("/")));
}

/** What the present visit of a node waits for, if it is among what was listed. */
export function blockerOf(model: RunModel, id: string): Blocker | undefined {
  return model.why?.blockers.find((each) => each.node === id);
}

/** The step that failed first, for a run that failed. */
export function firstFailure(model: RunModel): { node: string; item: number | null } | null {
  const cause = model.why?.first_cause;
  if (cause?.node) return { node: cause.node, item: cause.index >= 0 ? cause.index : null };
  const node = model.run.failed_node;
  return node ? { node, item: null } : null;
}

/** The code of steps that never began, because another one had failed. */
export const UPSTREAM_FAILED = "upstream_failed";

/** The sign of a step: those that never began or whose failure was tolerated do not look like the one that failed. */
export function signOfNode(state: NodeState): string {
  if (state.status !== "FAILED") return state.status;
  return state.tolerated ? "HANDLED" : state.error?.code === UPSTREAM_FAILED ? "NEVER_BEGAN" : "FAILED";
}

/** The words a person reads for a status. */
export const STATUS_WORDS: Record<NodeStatus, string> = {
  PENDING: "not reached",
  QUEUED: "queued",
  RUNNING: "running",
  WAITING: "waiting",
  COMPLETED: "succeeded",
  FAILED: "failed",
  SKIPPED: "skipped",
  CANCELLED: "cancelled",
};

export const runPath = (id: string): string => `/runs/${encodeURIComponent(id)}`;

export interface RunAnswer extends Run {
  graph: Graph;
  edges: GraphEdge[];
  traces: Record<string, [number, string[] | null]>;
}

export interface ModelState {
  model: RunModel | null;
  problem: Problem | null;
  loading: boolean;
  refresh: () => void;
}

const REFRESH_MS = 250;
/** A refresh may take this share of the time at most, so that a large graph does not keep the page busy. */
const REFRESH_SHARE = 0.2;

/** Events whose effect on the run is more than the status of one node. */
const STATUS_AFTER: Record<string, NodeStatus> = {
  NodeScheduled: "QUEUED",
  NodeStarted: "RUNNING",
  NodeWaiting: "WAITING",
  NodeCompleted: "COMPLETED",
  NodeSkipped: "SKIPPED",
  NodeCancelled: "CANCELLED",
};

/** The run after an event of one node: shown at once, and put right by the next refresh. */
export function patched(run: RunAnswer, event: RunEvent): RunAnswer {
  if (event.seq <= run.events) return run;
  const next = { ...run, events: event.seq, last_event_ms: event.at_ms };
  const before = event.node === undefined ? undefined : run.nodes[event.node];
  if (event.node === undefined || before === undefined) return next;
  const now = { ...before, visits: event.visit ?? before.visits };
  if (event.index !== undefined) {
    if (before.items === undefined) return next;
    const over = event.type === "NodeCompleted" || event.type === "NodeSkipped";
    const broken = event.type === "NodeFailed" && event.retry_at_ms === undefined;
    if (over || broken) {
      const { count, done, failed } = before.items;
      now.items = { count, done: Math.min(count, done + 1), failed: failed + (broken ? 1 : 0) };
    }
  } else if (event.type === "NodeFailed") {
    now.status = event.retry_at_ms === undefined ? "FAILED" : "QUEUED";
    now.error = event.error ?? null;
    now.tolerated = event.tolerated;
  } else {
    now.status = STATUS_AFTER[event.type] ?? before.status;
    if (event.attempt !== undefined) now.attempts = event.attempt;
    if (event.type === "NodeStarted") now.since_ms = event.at_ms;
    if (event.type === "NodeCompleted") now.error = null;
    if (event.type === "NodeExpanded" && event.count !== undefined) {
      now.items = { count: event.count, done: 0, failed: 0 };
    }
  }
  next.nodes = { ...run.nodes, [event.node]: now };
  return next;
}

/** The run, kept up to date by its stream; with `at` the run as it was after that event. */
export function useRunModel(id: string, at: number | null): ModelState {
  const client = useQueryClient();
  // The route has asked already; a refusal is not asked for twice.
  const now = useQuery({ ...runQuery(id, null), retryOnMount: false });
  const why = useQuery({ ...whyQuery(id), retryOnMount: false });
  const past = useQuery({
    ...runQuery(id, at),
    enabled: at !== null,
    placeholderData: keepPreviousData,
    staleTime: Infinity,
    gcTime: 30_000,
  });

  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const [ended, setEnded] = useState(false);
  const took = useRef(0);
  const refresh = useCallback(() => {
    if (timer.current !== null) return;
    timer.current = setTimeout(
      async () => {
        const begun = performance.now();
        await Promise.all([
          client.invalidateQueries({ queryKey: runQuery(id, null).queryKey, exact: true }),
          client.invalidateQueries({ queryKey: whyQuery(id).queryKey }),
        ]);
        took.current = performance.now() - begun;
        timer.current = null;
      },
      Math.max(REFRESH_MS, took.current / REFRESH_SHARE),
    );
  }, [client, id]);
  useEffect(
    () => () => {
      if (timer.current !== null) clearTimeout(timer.current);
      timer.current = null;
    },
    [refresh],
  );

  const known = now.data;
  const onEvent = useCallback(
    (event: RunEvent) => {
      client.setQueryData<RunAnswer>(runQuery(id, null).queryKey, (run) => run && patched(run, event));
      refresh();
    },
    [client, id, refresh],
  );
  const stream = useRunStream(known === undefined ? null : id, {
    after: known?.events ?? 0,
    onEvent,
    onEnd: ({ events }) => {
      setEnded(true);
      if (known === undefined || !hasEnded(known) || known.events < events || why.data?.status !== known.status) refresh();
    },
  });

  const shown = at === null ? known : past.data;
  const over = known !== undefined && hasEnded(known) && ended;
  const live: LiveState = over ? "ended" : stream;
  const parts = useMemo(() => {
    if (shown === undefined) return null;
    const { graph, edges, traces, ...run } = shown;
    return { graph, edges, traces, run };
  }, [shown]);
  const model = useMemo<RunModel | null>(() => {
    if (shown === undefined || parts === null) return null;
    const { graph, edges, traces, run } = parts;
    return { id, run, graph, edges, traces, why: at === null ? (why.data ?? null) : null, at, total: known?.events ?? shown.events, live };
  }, [id, shown, parts, known?.events, why.data, at, live]);
  const error = (at === null ? now.error : past.error) ?? (model === null ? now.error : null);
  return {
    model,
    problem: error instanceof Problem ? error : error ? new Problem({ status: 0, code: "unexpected", detail: String(error) }) : null,
    loading: now.isPending || (at !== null && past.isPending),
    refresh,
  };
}

const ModelContext = createContext<RunModel | null>(null);
export const ModelProvider = ModelContext.Provider;

/** The run of the page. */
export function useModel(): RunModel {
  const model = useContext(ModelContext);
  if (model === null) throw new Error("useModel is called outside of the page of a run");
  return model;
}
