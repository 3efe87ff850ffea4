/** Rows of the list of runs: what they say in words, and how a live change meets a list that is being read. */
import type { TenantChange } from "../api/live";
import type { RunRow } from "../api/types";
import { conditions, type Condition } from "./query";

export type { RunRow };

export const isLive = (row: RunRow): boolean => row.status === "RUNNING" || row.status === "PAUSED";

/** The status to show: a run that only waits says so, and so does one that is being undone. */
export function shownStatus(row: RunRow): string {
  if (row.rollback === "running") return "ROLLING_BACK";
  if (row.rollback === "done" || row.rollback === "partial") return "ROLLED_BACK";
  if (row.stuck) return "STUCK";
  if (row.status === "RUNNING" && row.waiting_for.length > 0) return "WAITING";
  return row.status;
}

const WAITS: Record<string, (name: string, node: string) => string> = {
  human: (_, node) => `an approval at ${node}`,
  timer: (_, node) => `a timer at ${node}`,
  signal: (name, node) => (name ? `the signal ${name} at ${node}` : `a signal at ${node}`),
  child: (_, node) => `a child run at ${node}`,
  retry: (_, node) => `the next attempt of ${node}`,
  limit: (_, node) => `a free place for ${node}`,
  resume: () => "a person to resume it",
};

/** `human (approve)` as a person would say it; what is not known stays as it is. */
export function waitingWords(entry: string): string {
  const found = /^(\w+)(?: (?!\()(.*?))?(?: \((.*)\))?$/s.exec(entry);
  const words = found && WAITS[found[1]!];
  return words ? words(found[2] ?? "", found[3] ?? "a step") : entry;
}

/** What a row waits for, or how it failed, in one line. */
export function note(row: RunRow): { kind: "wait" | "error" | "warning"; text: string; more: number } | null {
  if (row.status === "FAILED") {
    const text = row.error_message || row.error_code || "It failed";
    return { kind: "error", text: row.failed_node ? `${row.failed_node}: ${text}` : text, more: 0 };
  }
  if (row.stuck) return { kind: "warning", text: row.stuck_reason || "Stuck: no progress, and no reason known", more: 0 };
  if (row.suspect) return { kind: "warning", text: `The audit found: ${row.suspect}`, more: 0 };
  const first = row.waiting_for[0];
  if (isLive(row) && first !== undefined) {
    return { kind: "wait", text: waitingWords(first), more: row.waiting_for.length - 1 };
  }
  if (row.rollback === "partial") return { kind: "warning", text: "Undone in part", more: 0 };
  return null;
}

// Whether a row meets a query

const AGO = /^-?([0-9]{1,9}(?:\.[0-9]{1,6})?)(s|m|min|h|d|w)$/;
const UNIT_MS: Record<string, number> = { s: 1e3, m: 6e4, min: 6e4, h: 36e5, d: 864e5, w: 6048e5 };

export function momentMs(text: string, nowMs: number): number | null {
  const span = AGO.exec(text);
  if (span) return nowMs - Number(span[1]) * UNIT_MS[span[2]!]!;
  const zoned = /T.*(?:Z|[+-][0-9:]{2,})$/.test(text) || !text.includes("T") ? text : `${text}Z`;
  const at = Date.parse(zoned);
  return Number.isNaN(at) ? null : at;
}

/** Whether a row meets a query; null where a row alone does not tell. */
export function meets(query: string, row: RunRow, nowMs: number): boolean | null {
  let sure = true;
  for (const condition of conditions(query)) {
    const met = meetsOne(condition, row, nowMs);
    if (met === false) return false;
    if (met === null) sure = false;
  }
  return sure ? true : null;
}

function meetsOne({ key, value }: Condition, row: RunRow, nowMs: number): boolean | null {
  if (key.startsWith("label.")) return row.labels[key.slice("label.".length)] === value;
  switch (key) {
    case "status":
      return row.status.toLowerCase() === value.toLowerCase();
    case "workflow":
      return value === (value.includes("@") ? `${row.workflow}@${row.version}` : row.workflow);
    case "by":
      return row.submitted_by === value;
    case "parent":
      return row.parent === value;
    case "forked_from":
      return row.forked_from === value;
    case "rollback":
      return row.rollback === value;
    case "failure":
      return row.failure === value;
    case "live":
      return isLive(row);
    case "active":
      return isLive(row) && row.waiting_for.length === 0;
    case "waiting": {
      const kind = value.toLowerCase() === "approval" ? "human" : value.toLowerCase();
      return isLive(row) && row.waiting_for.some((each) => kind === "" || each.split(" ")[0] === kind);
    }
    case "stuck":
      return row.stuck;
    case "idle":
      return row.idle;
    case "suspect":
      return row.suspect !== "";
    case "started>":
    case "started<": {
      const at = momentMs(value, nowMs);
      if (at === null) return null;
      return key === "started>" ? row.created_ms >= at : row.created_ms < at;
    }
    default:
      return null;
  }
}

// Live changes

/** What has changed since the list was read, and is not shown yet. */
export interface Unshown {
  /** Newer runs that meet the query. */
  fresh: Record<string, RunRow>;
  /** Shown runs that no longer meet it. */
  left: Record<string, true>;
  /** Something may have changed that a row alone does not tell. */
  unsure: boolean;
}

export const NOTHING_UNSHOWN: Unshown = { fresh: {}, left: {}, unsure: false };

/**
 * Take changes in: rows that are shown change in their place, others are kept aside until the reader asks for them.
 * Runs older than `loadedFromMs` come with a later page.
 */
export function takeIn(
  changes: readonly TenantChange[],
  isShown: (runId: string) => boolean,
  loadedFromMs: number,
  query: string,
  nowMs: number,
  before: Unshown,
): { updates: Map<string, RunRow>; unshown: Unshown } {
  const updates = new Map<string, RunRow>();
  const fresh = { ...before.fresh };
  const left = { ...before.left };
  let unsure = before.unsure;
  for (const { run } of changes) {
    const met = meets(query, run, nowMs);
    if (isShown(run.run_id)) {
      updates.set(run.run_id, run);
      if (met === false) left[run.run_id] = true;
      else delete left[run.run_id];
    } else if (met === false || run.created_ms < loadedFromMs) {
      delete fresh[run.run_id];
    } else if (met === null) {
      unsure = true;
    } else {
      fresh[run.run_id] = run;
    }
  }
  return { updates, unshown: { fresh, left, unsure } };
}

/** Rows with what was kept aside, newest first. */
export function merged(rows: readonly RunRow[], unshown: Unshown): RunRow[] {
  const fresh = Object.values(unshown.fresh).filter((row) => !rows.some((each) => each.run_id === row.run_id));
  const kept = rows.filter((row) => !(row.run_id in unshown.left));
  return [...fresh, ...kept].sort((a, b) => b.created_ms - a.created_ms || (a.run_id < b.run_id ? 1 : -1));
}
