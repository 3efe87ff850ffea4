/** Events of a run in words, and the commands that ask for what the page shows. */
import { API } from "../api/client";
import type { RunEvent } from "./model";

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

/** A value in a few words. */
export function snippet(value: unknown, most = 90): string {
  if (isRecord(value) && typeof value.preview === "string" && typeof value.bytes === "number") return cut(value.preview, most);
  if (isRecord(value) && typeof value.digest === "string" && typeof value.size === "number") return `${bytes(value.size)} of JSON`;
  const text = JSON.stringify(value);
  return text === undefined ? "" : cut(text, most);
}

/** At most so many characters; emoji are not cut in half. */
export function cut(text: string, most: number): string {
  if (text.length <= most) return text;
  const end = text.charCodeAt(most - 1) >= 0xd800 && text.charCodeAt(most - 1) < 0xdc00 ? most - 1 : most;
  return `${text.slice(0, end)}…`;
}

export function bytes(size: number): string {
  if (size < 1_000) return `${size} bytes`;
  return size < 1_000_000 ? `${(size / 1_000).toFixed(size < 10_000 ? 1 : 0)} KB` : `${(size / 1_000_000).toFixed(1)} MB`;
}

/** "charge", "charge, pass 2", "charge, item 3". */
export function placeWords(event: Pick<RunEvent, "node" | "visit" | "index">): string {
  const parts = [event.node ?? ""];
  if (event.visit !== undefined && event.visit > 1) parts.push(`pass ${event.visit}`);
  if (event.index !== undefined) parts.push(`item ${event.index}`);
  return parts.filter(Boolean).join(", ");
}

const because = (event: RunEvent): string => (event.reason ? `: ${event.reason}` : "");
const failure = (event: RunEvent): string => {
  const { error } = event;
  if (error === undefined) return "";
  const named = error.code === "exception" && error.type ? `${error.type}: ` : "";
  return `${named}${cut(error.message, 200)}`;
};
const went = (event: RunEvent): string => (event.taken?.length ? `; continues with ${event.taken.join(", ")}` : "");
const onWhat: Record<string, string> = { timer: "a time", human: "a decision", signal: "a signal", child: "a child run", loop: "the rest of its pass" };

const WORDS: Record<string, (event: RunEvent) => string> = {
  RunCreated: (event) => `${String(event.submitted_by || "a client")} started ${String(event.workflow)}@${String(event.version)} with ${snippet(event.inputs)}`,
  RunPaused: (event) => `the run was paused${because(event)}`,
  RunResumed: (event) => `the run was resumed${because(event)}`,
  RunCompleted: (event) => (event.outputs === undefined ? "the run succeeded" : `the run succeeded with ${snippet(event.outputs)}`),
  RunFailed: (event) => `the run failed${event.node ? ` at ${event.node}` : ""}: ${failure(event)}`,
  RunCancelled: (event) => `the run was cancelled${because(event)}`,
  RunRetried: (event) => `the run continues where it stopped${because(event)}`,
  RunRewound: (event) => `${event.node} and what follows it run again${because(event)}`,
  RunPatched: (event) => `the run was patched${event.message ? `: ${String(event.message)}` : ""}`,
  RunForked: (event) => `forked from ${String(event.run)} at event #${String(event.at)}${because(event)}`,
  RunLabelled: (event) => `labels are now ${snippet(event.labels)}`,
  RunRepaired: (event) => `lost work was restored${because(event)}`,
  NodeScheduled: (event) => (event.until !== undefined ? (event.until - 1 > (event.index ?? 0) ? `items ${event.index ?? 0} to ${event.until - 1} are ready` : `item ${event.index ?? 0} is ready`) : event.held ? "ready, held back by max_parallel" : "ready for a worker"),
  NodeStarted: (event) => `attempt ${event.attempt} began${event.worker ? ` on ${event.worker}` : ""}`,
  NodeCheckpointed: (event) => `checkpoint ${snippet(event.value)}`,
  NodeAppended: (event) => `recorded ${snippet(event.value)}`,
  NodeExpanded: (event) => `${event.count} items to do`,
  NodeWaiting: (event) => `waits for ${onWhat[event.on ?? ""] ?? event.on ?? "something"}${event.name ? ` “${String(event.name)}”` : ""}`,
  NodeCompleted: (event) => `returned ${snippet(event.output)}${went(event)}`,
  NodeFailed: (event) =>
    `attempt ${event.attempt} failed: ${failure(event)}${event.retry_at_ms !== undefined ? "; the engine retries it" : event.tolerated ? "; the run continues" : ""}${went(event)}`,
  NodeSkipped: (event) => `skipped${because(event)}`,
  NodeCancelled: (event) => `cancelled${because(event)}`,
  NodeOverridden: (event) => `settled by hand as ${String(event.status ?? "").toLowerCase()}${because(event)}`,
  LoopContinued: (event) => `pass ${Number(event.iteration ?? 0) + 1} begins`,
  ResultDiscarded: (event) => `a late result was discarded${because(event)}`,
  DeadLettered: (event) => `gave up after ${String(event.attempts)} attempts: ${failure(event)}`,
  DeadLetterClosed: (event) => `the dead letter was ${String(event.status)}${because(event)}`,
  ApprovalRequested: (event) => `asks for a decision: ${String(event.title)}`,
  ApprovalVoted: (event) => `${String(event.by)} agreed`,
  ApprovalDelegated: (event) => `${String(event.by)} lets ${String(event.to)} decide`,
  ApprovalReturned: (event) => `${String(event.by)} asked for changes`,
  ApprovalDecided: (event) => `${String(event.by)} decided: ${String(event.decision)}`,
  ApprovalEscalated: (event) => `escalated to ${snippet(event.to)}`,
  ApprovalExpired: () => "the time to decide passed",
  SignalReceived: (event) => `signal ${String(event.name)} came with ${snippet(event.payload)}`,
  ChildStarted: (event) => `child run of ${String(event.workflow)} began`,
  ChildFinished: (event) => `the child run ended: ${String(event.status ?? "").toLowerCase()}`,
  RollbackStarted: (event) => `rollback of ${String(event.steps)} steps began${because(event)}`,
  RollbackFinished: (event) => (event.status === "done" ? "everything was undone" : "the rollback left something undone"),
  CompensationScheduled: () => "is to be undone",
  CompensationCompleted: () => "was undone",
  CompensationFailed: (event) => `could not be undone: ${failure(event)}`,
};

export function eventWords(event: RunEvent): string {
  return WORDS[event.type]?.(event) ?? event.reason ?? "";
}

/** The role of an event's colour and sign. */
export function eventStatus(event: RunEvent): string {
  switch (event.type) {
    case "RunFailed":
    case "DeadLettered":
    case "CompensationFailed":
      return "FAILED";
    case "NodeFailed":
      return event.retry_at_ms !== undefined ? "RETRYING" : event.tolerated ? "HANDLED" : "FAILED";
    case "RunCompleted":
    case "NodeCompleted":
      return "COMPLETED";
    case "NodeStarted":
      return "RUNNING";
    case "NodeWaiting":
    case "ApprovalRequested":
      return "WAITING";
    case "NodeScheduled":
    case "NodeExpanded":
    case "LoopContinued":
      return "QUEUED";
    case "NodeSkipped":
      return "SKIPPED";
    case "NodeCancelled":
    case "RunCancelled":
      return "CANCELLED";
    case "RunPaused":
      return "PAUSED";
    case "CompensationCompleted":
    case "RollbackFinished":
    case "RollbackStarted":
      return "ROLLED_BACK";
    default:
      return "NEW";
  }
}

/** The first letter large. */
export const sentence = (text: string): string => (text === "" ? "" : text[0]!.toLocaleUpperCase() + text.slice(1));

/** A sentence about a step, whose name keeps its letters. */
export const stepSentence = (node: string, text: string): string => (text.startsWith(node) ? text : sentence(text));

/** A text as one word of a POSIX shell. */
export const shellWord = (text: string): string => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

export interface Commands {
  curl: string;
  python: string;
  cli: string;
}

const server = (): string => new URL(API, location.origin).href.replace(/\/api\/v1$/, "");

/** How to ask for a run or one of its nodes outside of the page. */
export function commandsFor(run: string, node: string | null): Commands {
  const at = `${new URL(API, location.origin).href}/runs/${encodeURIComponent(run)}`;
  const path = node === null ? at : `${at}/nodes/${encodeURIComponent(node)}/output`;
  const shown = `client.show(${JSON.stringify(run)})`;
  return {
    curl: `curl -H "Authorization: Bearer $TIDEMILL_KEY" ${shellWord(path)}`,
    python: `import tidemill\n\nwith tidemill.connect(${JSON.stringify(server())}) as client:\n    print(${node === null ? shown : `${shown}.nodes[${JSON.stringify(node)}]`})\n`,
    cli: `tidemill why ${shellWord(run)}${node === null ? "" : ` ${shellWord(node)}`} --server ${shellWord(server())}`,
  };
}
