/** The graph of a run or of a workflow as the drawing needs it: nodes with their state, and edges with their fate. */
import type { Graph, GraphEdge, GraphNode, NodeStatus, Run } from "../model";

export interface JoinState {
  kind: "all" | "strict" | "any" | "quorum";
  /** How many edges must be taken. */
  needs: number;
  of: number;
  arrived: number;
  skipped: number;
  settled: boolean;
  waits_for: string[];
}

export interface Items {
  count: number;
  done: number;
  failed: number;
  running?: number;
  waiting?: number;
  retrying?: number;
  skipped?: number;
  queued?: number;
}

export interface LoopState {
  /** The present pass, from 1. */
  pass: number;
  max: number | null;
  back_to: string;
  body: string[];
}

export interface DrawnNode {
  id: string;
  type: string;
  /** null where there is no run. */
  status: NodeStatus | null;
  visits: number;
  attempts: number;
  duration_ms: number;
  since_ms?: number;
  held?: boolean;
  why?: string;
  tolerated?: boolean;
  retry_at_ms?: number;
  error?: { code: string; message: string };
  wait?: { on: string; name: string; until_ms: number | null; expires_ms: number | null };
  join?: JoinState;
  loop?: LoopState;
  /** Of a map; null before its list is known. */
  items?: Items | null;
  /** The run that it started. */
  child?: string;
  /** A rollback has undone it. */
  undone?: boolean;
}

export interface DrawnGraph {
  /** Up to which event it tells; 0 where there is no run. */
  seq: number;
  nodes: DrawnNode[];
  edges: GraphEdge[];
}

export const typeOf = (node: { type: string }): string => node.type.split("@")[0] ?? node.type;
export const isChild = (node: DrawnNode): boolean => typeOf(node) === "workflow" && node.items === undefined;

/** The structure of a compiled workflow, without states. */
export function fromWorkflow(graph: Graph): DrawnGraph {
  return { seq: 0, nodes: graph.nodes.map(bare), edges: graph.nodes.flatMap(edgesOf) };
}

function bare(node: GraphNode): DrawnNode {
  const drawn: DrawnNode = { id: node.id, type: node.type, status: null, visits: 1, attempts: 0, duration_ms: 0 };
  const inbound = node.inbound ?? [];
  if (inbound.length > 1) {
    const kind = node.join ?? "all";
    const needs = kind === "any" ? 1 : kind === "quorum" ? (node.quorum ?? 1) : inbound.length;
    drawn.join = { kind, needs, of: inbound.length, arrived: 0, skipped: 0, settled: false, waits_for: [] };
  }
  if (node.loop) drawn.loop = { pass: 1, max: node.loop.max_iterations, back_to: node.loop.back_to, body: node.loop.body ?? [node.id] };
  if (node.map) drawn.items = null;
  return drawn;
}

/** Every edge of a node once, with all words that rules give it. */
export function edgesOf(node: GraphNode): GraphEdge[] {
  const words = new Map<string, Set<string>>();
  const say = (label: string, targets: readonly string[] | undefined): void => {
    for (const target of targets ?? []) words.set(target, (words.get(target) ?? new Set()).add(label));
  };
  for (const rule of node.branch?.rules ?? []) say(`if ${conditionText(rule.condition)}`, rule.next_nodes);
  say("if chosen", node.branch?.available);
  say("otherwise", node.branch?.default);
  const loop = node.loop as { break_path?: string[]; timeout_path?: string[]; back_to: string } | undefined;
  say("when done", loop?.break_path);
  say("when passes are used up", loop?.timeout_path);
  say("on error", node.error_path);
  for (const [name, targets] of Object.entries(node.exits ?? {})) say(`on ${name.replace(/_path$/, "")}`, targets);
  const plain = new Set((node as { plain?: string[] }).plain ?? []);
  const edges: GraphEdge[] = (node.outbound ?? []).map((to) => ({
    from: node.id,
    to,
    label: plain.has(to) ? "" : [...(words.get(to) ?? [])].join(", or "),
    kind: "edge",
    taken: null,
  }));
  if (loop) edges.push({ from: node.id, to: loop.back_to, label: "again", kind: "loop", taken: null });
  return edges;
}

export function conditionText(condition: unknown): string {
  if (typeof condition === "string") return condition;
  if (typeof condition === "object" && condition !== null) {
    const { type, expression, operator, conditions, ...rest } = condition as Record<string, unknown>;
    if (type === "cel" && typeof expression === "string") return expression;
    if (type === "composite" && Array.isArray(conditions)) {
      const parts = conditions.map((part) => `(${conditionText(part)})`);
      return operator === "NOT" ? `not ${parts[0] ?? ""}` : parts.join(` ${String(operator).toLowerCase()} `);
    }
    if (typeof type === "string") return `${type} ${JSON.stringify({ ...rest, ...(operator === undefined ? {} : { operator }) })}`;
  }
  return JSON.stringify(condition) ?? "";
}

/** The items of a map as they are counted now: those that have ended since are no longer under way. */
function itemsNow(before: Items, now: Pick<Items, "count" | "done" | "failed">): Items {
  const skipped = before.skipped ?? 0;
  let ended = Math.max(0, now.done - before.done - before.failed - skipped);
  const left = (number = 0): number => {
    const gone = Math.min(number, ended);
    ended -= gone;
    return number - gone;
  };
  const running = left(before.running);
  return { ...before, count: now.count, failed: now.failed, done: now.done - now.failed - skipped, running, retrying: left(before.retrying), waiting: left(before.waiting), queued: left(before.queued) };
}

/** The graph with what the stream has told since. */
export function withRun(graph: DrawnGraph, run: Pick<Run, "events" | "last_event_ms" | "nodes">): DrawnGraph {
  if (graph.seq >= run.events) return graph;
  const nodes = graph.nodes.map((node) => {
    const now = run.nodes[node.id];
    if (now === undefined) return node;
    const items = node.items && now.items ? itemsNow(node.items, now.items) : node.items === null && now.items ? now.items : node.items;
    if (node.status === now.status && node.visits === now.visits && node.attempts === now.attempts && items === node.items) return node;
    const next: DrawnNode = { ...node, status: now.status, visits: now.visits, attempts: now.attempts };
    if (items !== undefined) next.items = items;
    if (node.status !== now.status) {
      next.since_ms = now.since_ms ?? (graph.seq ? run.last_event_ms : undefined);
      delete next.wait;
      delete next.retry_at_ms;
    }
    if (now.error) next.error = now.error;
    return next;
  });
  return { ...graph, seq: run.events, nodes };
}

/** The graph in which a rollback has undone these nodes. */
export function withUndone(graph: DrawnGraph, undone: ReadonlySet<string>): DrawnGraph {
  if (undone.size === 0) return graph;
  return { ...graph, nodes: graph.nodes.map((node) => (undone.has(node.id) ? { ...node, undone: true } : node)) };
}

/** The graph in which the body of a loop stands as it did when a pass ended. */
export function withPass(graph: DrawnGraph, past: DrawnGraph, loop: string): DrawnGraph {
  const present = graph.nodes.find((node) => node.id === loop)?.loop;
  if (present === undefined) return graph;
  const body = new Set(present.body);
  const then = new Map(past.nodes.map((node) => [node.id, node]));
  const fate = new Map(past.edges.map((edge) => [`${edge.from}\n${edge.to}`, edge.taken]));
  return {
    ...graph,
    nodes: graph.nodes.map((node) => {
      const before = body.has(node.id) ? then.get(node.id) : undefined;
      if (before === undefined) return node;
      return before.loop && node.loop && node.id === loop ? { ...before, loop: { ...node.loop } } : before;
    }),
    edges: graph.edges.map((edge) => (body.has(edge.from) && body.has(edge.to) ? { ...edge, taken: fate.get(`${edge.from}\n${edge.to}`) ?? null } : edge)),
  };
}

/** How a node stands, as one name of a status sign. */
export function signName(node: DrawnNode): string {
  if (node.status === null) return "";
  if (node.undone) return "ROLLED_BACK";
  if (node.status === "QUEUED" && node.retry_at_ms !== undefined) return "RETRYING";
  if (node.status === "FAILED" && node.tolerated) return "HANDLED";
  if (node.status === "FAILED" && node.error?.code === "upstream_failed") return "NEVER_BEGAN";
  return node.status;
}

const SEVERITY = ["FAILED", "RETRYING", "HANDLED", "ROLLED_BACK", "RUNNING", "QUEUED", "WAITING", "CANCELLED", "NEVER_BEGAN", "PENDING", "COMPLETED", "SKIPPED"];

/** The status that matters most among many. */
export function worst(names: Iterable<string>): string {
  let found = SEVERITY.length;
  for (const name of names) {
    const at = SEVERITY.indexOf(name);
    if (at >= 0 && at < found) found = at;
  }
  return SEVERITY[found] ?? "";
}

/** The worst status among the items of a map. */
export function worstItem(node: DrawnNode): string {
  const items = node.items;
  if (!items) return signName(node);
  return worst([
    items.failed > 0 ? "FAILED" : "",
    (items.retrying ?? 0) > 0 ? "RETRYING" : "",
    (items.running ?? 0) > 0 ? "RUNNING" : "",
    (items.waiting ?? 0) > 0 ? "WAITING" : "",
    signName(node),
  ].filter(Boolean));
}

/** "2 of 3 arrived, waiting for C". */
export function joinWords(join: JoinState, hasRun: boolean): string {
  const rule = join.kind === "any" ? `any of ${join.of}` : join.kind === "quorum" ? `${join.needs} of ${join.of}` : join.kind === "strict" ? `all ${join.of}, none skipped` : `all ${join.of}`;
  if (!hasRun || (join.arrived === 0 && join.skipped === 0 && !join.settled)) return `waits for ${rule}`;
  const skipped = join.skipped > 0 ? `, ${join.skipped} not taken` : "";
  const arrived = `${join.arrived} of ${join.of} arrived${skipped}`;
  if (join.settled || join.waits_for.length === 0) return arrived;
  const [first, second] = join.waits_for;
  const rest = join.of - join.arrived - join.skipped;
  const names = rest === 1 ? first : rest === 2 && second !== undefined ? `${first} and ${second}` : `${first} and ${rest - 1} more`;
  return `${arrived}, waiting for ${names}`;
}

/** What a waiting node waits for, in a few words. */
export function waitWords(node: DrawnNode): string {
  if (node.wait === undefined) return "";
  switch (node.wait.on) {
    case "human":
      return "for a decision";
    case "signal":
      return `for signal ${node.wait.name}`;
    case "timer":
      return "for a time";
    case "child":
      return "for its run";
    case "loop":
      return "for the next pass";
    default:
      return `for ${node.wait.on}`;
  }
}
