// Which actions a run allows now, and if not, why. The server decides; this is what the page offers.
import { stateOf, type RunModel } from "../model";

export type ActionName = "retry" | "rewind" | "settle" | "skip" | "outcome" | "cancel" | "pause" | "resume" | "signal" | "rollback" | "patch" | "fork";

export interface ActionRequest {
  action: ActionName;
  node?: string;
  /** An item of a map. */
  index?: number;
  /** The name of a signal. */
  name?: string;
}

/** What an action would do; see `POST /runs/{id}/rehearse`. */
export interface Rehearsal {
  seq: number;
  status: string;
  again: string[];
  cancelled: string[];
  skipped: string[];
  undone: string[];
  unsure: string[];
  events: string[];
  event_count: number;
}

export const NEEDS: Record<ActionName, string> = {
  retry: "runs:act",
  rewind: "runs:act",
  settle: "runs:act",
  skip: "runs:act",
  outcome: "runs:act",
  cancel: "runs:act",
  pause: "runs:act",
  resume: "runs:act",
  signal: "runs:act",
  rollback: "runs:act",
  patch: "runs:patch",
  fork: "runs:start",
};

const isLive = (model: RunModel): boolean => model.run.status === "RUNNING" || model.run.status === "PAUSED";

const ENDED_WORDS: Record<string, string> = { COMPLETED: "The run has succeeded.", FAILED: "The run has failed.", CANCELLED: "The run was cancelled." };

/** Why an action is not possible now; empty if it is. */
export function refusalOf(model: RunModel, may: (permission: string) => boolean, { action, node }: ActionRequest): string {
  if (!may(NEEDS[action])) return `Your key has no permission for it (${NEEDS[action]}).`;
  const { run } = model;
  if (model.at !== null && action !== "fork") return "This is the past: go back to now to act.";
  const ended = ENDED_WORDS[run.status] ?? "The run has ended.";
  const rolled = run.rollback.status !== "none" ? "The run was rolled back: fork it, or start a new one." : "";
  const live = isLive(model);
  switch (action) {
    case "fork":
      return node !== undefined && stateOf(model, node).status === "PENDING" ? "The step has not begun: there is nothing to run again." : "";
    case "pause":
      return run.status === "PAUSED" ? "The run is paused already." : live ? "" : ended;
    case "resume":
      return run.status === "PAUSED" ? "" : live ? "The run is not paused." : ended;
    case "cancel":
      return live || run.rollback.status === "running" ? "" : ended;
    case "signal":
      return live ? "" : ended;
    case "retry":
      if (run.status === "COMPLETED") return "The run has succeeded: fork it to run a part again.";
      return live ? "The run has not ended: rewind it to a step instead." : rolled;
    case "rollback":
      if (live) return "The run has not ended: cancel it first.";
      if (run.rollback.status === "running") return "The run is being rolled back already.";
      if (run.rollback.status === "done") return "The run was rolled back already.";
      return model.graph.nodes.some((each) => each.compensator) ? "" : "No step of this workflow has a compensator: nothing can be undone.";
    case "patch":
      return run.status === "COMPLETED" ? "The run has succeeded: fork it with another document instead." : live ? "" : rolled;
    case "rewind":
      if (!live) return run.status === "COMPLETED" ? "The run has ended: fork it from this step." : "The run has ended: retry it, or fork it from this step.";
      return node !== undefined && stateOf(model, node).status === "PENDING" ? "The step has not begun." : "";
    case "outcome":
      return live || rolled ? rolled || "The run has not ended." : "";
    case "settle":
    case "skip": {
      if (run.status === "COMPLETED") return "The run has succeeded: fork it from this step.";
      if (!live && rolled) return rolled;
      const status = node === undefined ? "PENDING" : stateOf(model, node).status;
      if (status === "QUEUED" || status === "RUNNING") return `The step is ${status === "QUEUED" ? "queued" : "running"}: let it end, or cancel the run.`;
      if (status === "COMPLETED" || status === "SKIPPED") return `The step has ${status === "COMPLETED" ? "its result" : "been skipped"}: ${live ? "rewind the run to it" : "fork the run from it"}.`;
      return "";
    }
  }
}

/** Whether it is not known if the effect of a step happened. */
export function isUnknown(model: RunModel, node: string): boolean {
  return stateOf(model, node).error?.code === "unknown_outcome";
}

/** Signals that the run waits for. */
export function awaitedSignals(model: RunModel): string[] {
  const names = model.why?.blockers.filter((each) => each.kind === "signal").map((each) => each.name ?? "") ?? [];
  return [...new Set(names.filter(Boolean))];
}

/** The one next step of a run, if there is one; the header shows it. */
export function nextStep(model: RunModel): (ActionRequest & { label: string }) | null {
  const { run, why } = model;
  if (run.status === "PAUSED") return { action: "resume", label: "Resume" };
  if (run.status === "FAILED" && run.rollback.status === "none") {
    const node = why?.first_cause?.node || run.failed_node || "";
    if (node && isUnknown(model, node)) return { action: "outcome", node, label: "Say what happened" };
    return { action: "retry", label: "Retry" };
  }
  if (run.rollback.status === "done" || run.rollback.status === "partial") return { action: "fork", label: "Fork" };
  if (run.status === "CANCELLED" && run.rollback.status === "none") return { action: "retry", label: "Retry" };
  const [signal] = awaitedSignals(model);
  if (run.status === "RUNNING" && signal) return { action: "signal", name: signal, label: "Send the signal" };
  return null;
}
