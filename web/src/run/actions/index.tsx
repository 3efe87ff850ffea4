/**
 * Acting on a run. `ActionBar` has the buttons and holds the dialogs; any other part of the page opens one with
 * `openAction({ action: "retry" })`, and `StepActions` are those of one step.
 */
import { useEffect, useState, type ComponentType } from "react";
import { useMe } from "../../api/queries";
import { Button, Menu, toast, Tooltip, type IconName, type MenuItem } from "../../ui";
import type { RunModel } from "../model";
import css from "./actions.module.css";
import { Fork } from "./fork";
import { Patch } from "./patch";
import { isUnknown, nextStep, refusalOf, type ActionName, type ActionRequest } from "./rules";
import { Cancel, Outcome, Retry, Rewind, Settle, Signal, Simple, type ActionProps } from "./simple";

export { awaitedSignals, isUnknown, nextStep, refusalOf, type ActionName, type ActionRequest } from "./rules";

const DIALOGS: Record<ActionName, ComponentType<ActionProps>> = {
  retry: Retry,
  rewind: Rewind,
  settle: Settle,
  skip: Settle,
  outcome: Outcome,
  cancel: Cancel,
  pause: Simple,
  resume: Simple,
  rollback: Simple,
  signal: Signal,
  patch: Patch,
  fork: Fork,
};

const WORDS: Record<ActionName, { label: string; icon: IconName; danger?: boolean }> = {
  retry: { label: "Retry", icon: "retry" },
  rewind: { label: "Rewind to here", icon: "undo" },
  settle: { label: "Settle by hand", icon: "check" },
  skip: { label: "Skip", icon: "skip" },
  outcome: { label: "Say what happened", icon: "info" },
  cancel: { label: "Cancel", icon: "stop", danger: true },
  pause: { label: "Pause", icon: "pause" },
  resume: { label: "Resume", icon: "play" },
  rollback: { label: "Roll back", icon: "undo", danger: true },
  signal: { label: "Send a signal", icon: "signal" },
  patch: { label: "Patch", icon: "edit" },
  fork: { label: "Fork", icon: "fork" },
};

const listeners = new Set<(request: ActionRequest) => void>();
/** What was asked for before the bar of the page was there. */
let early: ActionRequest | null = null;

/** Open the dialog of an action of the run on the page. */
export function openAction(request: ActionRequest): void {
  if (listeners.size === 0) early = request;
  for (const each of listeners) each(request);
}

function useMayAll(): (permission: string) => boolean {
  const me = useMe().data;
  return (permission) => me?.permissions.includes(permission) ?? false;
}

/** A button of an action; if it is not possible now, it says why. */
export function ActionButton({ model, request, label, kind, size }: { model: RunModel; request: ActionRequest; label?: string; kind?: "plain" | "primary" | "quiet"; size?: "m" | "s" }) {
  const may = useMayAll();
  const refusal = refusalOf(model, may, request);
  const words = WORDS[request.action];
  const button = (
    <Button
      icon={words.icon}
      kind={kind ?? "plain"}
      size={size ?? "m"}
      aria-disabled={refusal ? true : undefined}
      onClick={() => (refusal ? toast(refusal, { role: "quiet" }) : openAction(request))}
    >
      {label ?? words.label}
    </Button>
  );
  return refusal ? <Tooltip text={refusal}>{button}</Tooltip> : button;
}

export function ActionBar({ model }: { model: RunModel }) {
  const may = useMayAll();
  const [open, setOpen] = useState<ActionRequest | null>(null);
  useEffect(() => {
    listeners.add(setOpen);
    if (early !== null) setOpen(early);
    early = null;
    return () => {
      listeners.delete(setOpen);
    };
  }, []);

  const live = model.run.status === "RUNNING" || model.run.status === "PAUSED";
  const next = nextStep(model);
  const failed = model.why?.first_cause?.node || model.run.failed_node;
  // The editor begins at the step that failed.
  const about = (action: ActionName): ActionRequest => (action === "patch" && failed ? { action, node: failed } : { action });
  const past = model.at !== null;
  const shown: ActionName[] = past ? ["fork"] : live ? [model.run.status === "PAUSED" ? "resume" : "pause", "cancel"] : model.run.status === "COMPLETED" ? ["fork"] : ["retry", "patch", "fork"];
  const rest: ActionName[] = (["retry", "patch", "fork", "signal", "pause", "resume", "cancel", "rollback"] as const).filter((each) => !shown.includes(each));
  // What lets the run continue comes first.
  const lead = !past && next !== null && !shown.includes(next.action) ? next : null;
  const items = rest.map((action): MenuItem => {
    const refusal = refusalOf(model, may, { action });
    const { label, icon, danger } = WORDS[action];
    return { label, icon, danger: danger === true && !refusal, disabled: refusal !== "", ...(refusal ? { hint: refusal } : {}), onSelect: () => setOpen(about(action)) };
  });
  const Dialog = open ? DIALOGS[open.action] : null;
  return (
    <div className={css.bar} role="group" aria-label="Actions">
      {lead && <ActionButton model={model} request={lead} label={lead.label} kind="primary" />}
      {shown.map((action) => (
        <ActionButton key={action} model={model} request={about(action)} kind={next?.action === action ? "primary" : "plain"} label={past ? "Fork from this moment" : action === "patch" && failed ? "Fix and continue" : WORDS[action].label} />
      ))}
      {!past && (live || rest.some((action) => refusalOf(model, may, { action }) === "")) && <Menu trigger={<Button icon="more">More</Button>} items={items} align="end" />}
      {open && Dialog && <Dialog key={`${open.action} ${open.node ?? ""}`} model={model} request={open} onClose={() => setOpen(null)} />}
    </div>
  );
}

/** The actions of one step, for its panel; with `index` of one item of its map. */
export function StepActions({ model, node, index }: { model: RunModel; node: string; index?: number | null }) {
  const may = useMayAll();
  const item = index === null || index === undefined ? {} : { index };
  const unknown = isUnknown(model, node);
  const failed = model.run.nodes[node]?.status === "FAILED" && model.run.status === "FAILED";
  const actions: ActionRequest[] = model.at !== null ? [{ action: "fork", node }] : [
    ...(unknown ? [{ action: "outcome" as const, node }] : []),
    ...(failed ? [{ action: "patch" as const, node }] : []),
    { action: "rewind", node },
    { action: "settle", node, ...item },
    { action: "skip", node, ...item },
    { action: "fork", node },
  ];
  const possible = actions.filter((each) => refusalOf(model, may, each) === "");
  const others = actions.filter((each) => !possible.includes(each));
  const label = (request: ActionRequest) => (request.action === "fork" ? "Fork from here" : request.action === "patch" ? "Fix and continue" : WORDS[request.action].label);
  return (
    <div className={css.bar} role="group" aria-label={`Actions of ${node}`}>
      {possible.map((each) => (
        <ActionButton key={each.action} model={model} request={each} label={label(each)} size="s" kind={each.action === "outcome" ? "primary" : "plain"} />
      ))}
      {others.length > 0 && (
        <Menu
          trigger={
            <Button size="s" kind="quiet" icon="more">
              More
            </Button>
          }
          items={others.map((each): MenuItem => ({ label: label(each), icon: WORDS[each.action].icon, disabled: true, hint: refusalOf(model, may, each), onSelect: () => undefined }))}
        />
      )}
    </div>
  );
}
