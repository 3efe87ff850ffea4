// Names for the generated types, and what the OpenAPI document leaves open.
import type { components } from "./schema";

type S = components["schemas"];

export interface Page<T> {
  items: T[];
  next: string | null;
}

export type RunStatus = "NEW" | "RUNNING" | "PAUSED" | "COMPLETED" | "FAILED" | "CANCELLED";
export type NodeStatus = "PENDING" | "QUEUED" | "RUNNING" | "WAITING" | "COMPLETED" | "FAILED" | "SKIPPED" | "CANCELLED";

/** An error as people and programs see it. */
export interface ErrorView {
  code: string;
  message: string;
  type?: string;
  hint?: string;
  causes?: unknown[];
  traceback?: string;
  index?: number;
}

export interface NodeView {
  status: NodeStatus;
  visits: number;
  attempts: number;
  output: unknown;
  error: ErrorView | null;
  items?: { count: number; done: number; failed: number };
  since_ms?: number;
  output_missing?: string;
}

export interface RunView extends Omit<Required<S["RunView"]>, "status" | "error" | "nodes" | "rollback" | "forked_from"> {
  status: RunStatus;
  error: ErrorView | null;
  nodes: Record<string, NodeView>;
  rollback: { status: "none" | "running" | "done" | "partial"; undone: string[]; left: string[] };
  forked_from: [string, number] | null;
}

/** A recorded event; its further fields depend on its type. */
export interface RunEvent {
  seq: number;
  type: string;
  at_ms: number;
  [field: string]: unknown;
}

/** `GET /runs/{id}/graph`. */
export interface GraphDocument {
  run_id?: string;
  status?: RunStatus;
  nodes: GraphNode[];
  edges: GraphEdge[];
}

export interface GraphNode {
  id: string;
  type: string;
  status?: NodeStatus;
  [field: string]: unknown;
}

export interface GraphEdge {
  from: string;
  to: string;
  taken?: boolean | null;
  [field: string]: unknown;
}

export type Me = S["Me"];
export type RunRow = Omit<S["RunRow"], "status"> & { status: RunStatus };
export type RunSummary = S["RunSummary"];
export type RunFacets = S["RunFacets"];
export type FailureGroup = S["FailureGroup"];
export type Explanation = S["Explanation"];
export type Blocker = Explanation["blockers"][number];
export type NodeHistory = S["NodeHistory"];
export type PathStep = S["PathStep"];
export type LogLine = S["LogLine"];
export type RunDocument = S["RunDocument"];
export type ShownOutput = S["ShownOutput"];
export type PatchOutcome = S["PatchOutcome"];
export type StartedRun = S["StartedRun"];
export type BulkAnswer = S["BulkAnswer"];
export type Validation = S["Validation"];
export type WorkflowRow = S["WorkflowRow"];
export type Version = S["Version"];
export type Tagged = S["Tagged"];
export type ApprovalRow = S["ApprovalRow"];
export type ApprovalReview = S["ApprovalReview"];
export type ApprovalView = S["ApprovalView"];
export type Decided = S["Decided"];
export type DeadLetterRow = S["DeadLetterRow"];
export type Reprocessed = S["Reprocessed"];
export type WorkerView = S["WorkerView"];
export type QueueView = S["QueueView"];
export type { components, paths } from "./schema";
