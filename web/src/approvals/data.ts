// What the API answers about approvals, and how people read it.
import type { ProblemItem } from "../api/client";
import { inWords } from "../ui/time";

export type Verb = "approve" | "reject" | "changes";

export interface ApprovalItem {
  approval_id: string;
  run_id: string;
  workflow: string;
  node: string;
  visit: number;
  index: number | null;
  status: "pending" | "decided" | "expired" | "cancelled";
  title: string;
  description: string;
  approvers: string[];
  quorum: number;
  requested_ms: number;
  requester: string;
  expires_ms: number | null;
  on_timeout: string;
  escalated: boolean;
  url: string;
  decision: string | null;
  decided_by: string | null;
  decided_ms: number | null;
  comments: string;
  /** Names in a list, votes in a review. */
  votes: (string | Vote)[];
}

export interface Vote {
  by: string;
  on_behalf_of: string | null;
  comments: string;
  form: unknown;
}

export interface Consequence {
  next_nodes: string[];
  conditional: boolean;
  fails: boolean;
  possible: boolean;
}

export interface Review extends ApprovalItem {
  form: unknown;
  four_eyes: boolean;
  escalate_to: string[];
  delegated: { by: string; to: string }[];
  on_behalf_of: string | null;
  evidence: { inputs: unknown; nodes: Record<string, unknown>; item?: unknown } | null;
  consequences: Partial<Record<Verb, Consequence>>;
  decider: { person: string; refusal: ProblemItem | null; expires_ms: number | null };
}

export interface HistoryEntry {
  seq: number;
  event: string;
  at_ms: number;
  by?: string;
  to?: string;
  on_behalf_of?: string;
  decision?: string;
  comments?: string;
}

/** "ada" of "user:ada", "the role finance" of "role:finance". */
export function person(name: string | null | undefined): string {
  if (!name) return "someone";
  if (name === "system") return "the time-out";
  if (name.startsWith("role:")) return `the role ${name.slice(5)}`;
  const plain = name.replace(/^user:/, "");
  return plain.startsWith("key:") ? `the key ${plain.slice(4)}` : plain;
}

export function people(names: readonly string[]): string {
  if (names.length === 0) return "anyone";
  const said = names.map(person);
  return said.length === 1 ? (said[0] ?? "") : `${said.slice(0, -1).join(", ")} or ${said.at(-1)}`;
}

export const PAST: Record<string, string> = { approve: "approved", reject: "rejected", changes: "sent back for changes" };

/** What a decision leads to, in words. */
export function leadsTo(verb: Verb, consequence: Consequence | undefined): string {
  if (consequence === undefined) return "";
  if (!consequence.possible) return "This step has no way back for changes.";
  const next = consequence.next_nodes.join(", ");
  if (consequence.fails) return next ? `The step fails, and the run continues with ${next}.` : "The step fails, and the run fails with it.";
  if (!next) return verb === "approve" ? "It is the last step: the run ends." : "The run continues without a further step here.";
  return consequence.conditional ? `Conditions choose the next step: ${next}.` : `The run continues with ${next}.`;
}

const TIMEOUT: Record<string, string> = {
  approve: "Without a decision it counts as approved.",
  reject: "Without a decision it counts as rejected.",
  escalate: "Without a decision others are asked.",
  fail: "Without a decision the step fails.",
};

export function afterTimeout(review: { on_timeout: string; expires_ms: number | null }): string {
  return review.expires_ms === null ? "" : (TIMEOUT[review.on_timeout] ?? "");
}

/** What is due first comes first; then what has no time limit, in its order. */
export const byDue = <T extends { expires_ms: number | null }>(items: readonly T[]): T[] => [...items].sort((one, other) => (one.expires_ms ?? Infinity) - (other.expires_ms ?? Infinity) || 0);

/** "due in 3 hours", "overdue by 5 minutes". */
export function due(expires_ms: number | null, now: number): { words: string; late: boolean; soon: boolean } | null {
  if (expires_ms === null) return null;
  const left = expires_ms - now;
  if (left <= 0) return { words: `overdue by ${inWords(-left)}`, late: true, soon: false };
  return { words: `due in ${inWords(left)}`, late: false, soon: left < 3_600_000 };
}
