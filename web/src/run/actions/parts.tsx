// Parts that all dialogs of actions share: consequences, reason, refusals.
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { api, Problem } from "../../api/client";
import { Button, Dialog, Icon, Loading, sentence } from "../../ui";
import { runPath, type RunModel } from "../model";
import css from "./actions.module.css";
import type { Rehearsal } from "./rules";

export function asProblem(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem({ status: -1, detail: error instanceof Error ? error.message : String(error) });
}

export function Refusal({ problem, children }: { problem: Problem; children?: ReactNode }) {
  return (
    <div className={css.problem} role="alert">
      <Icon name="warning" />
      <div className={css.problemText}>
        <span>{sentence(problem.detail)}</span>
        {problem.hint && <span className="soft">{sentence(problem.hint)}</span>}
        {problem.problems.length > 1 && (
          <ul>
            {problem.problems.slice(0, 12).map((each, index) => (
              <li key={index}>
                {each.path && <code>{each.path}</code>} {each.message}
                {each.hint && <span className="soft"> – {each.hint}</span>}
              </li>
            ))}
          </ul>
        )}
        {children}
      </div>
    </div>
  );
}

const SHOWN_MAX = 12;

export function Names({ names }: { names: readonly string[] }) {
  return (
    <span className={css.names}>
      {names.slice(0, SHOWN_MAX).map((each, index) => (
        <span key={each}>
          {index > 0 && ", "}
          <code>{each}</code>
        </span>
      ))}
      {names.length > SHOWN_MAX && ` and ${names.length - SHOWN_MAX} more`}
    </span>
  );
}

/** What an action would do now, asked of the server again whenever the run has moved. */
export function useRehearsal(model: RunModel, body: { action: string; [field: string]: unknown }, enabled = true) {
  return useQuery<Rehearsal, Problem>({
    queryKey: ["run", model.id, "rehearsal", body, model.run.events],
    queryFn: ({ signal }) => api<Rehearsal>("POST", `${runPath(model.id)}/rehearse`, { body, signal }),
    enabled,
    retry: false,
    staleTime: 0,
    gcTime: 0,
    placeholderData: (before) => before,
  });
}

/** "book, then pay" of undone keys `node/visit/index`. */
const undoneNames = (keys: readonly string[]): string[] => keys.map((key) => {
  const parts = key.split("/");
  const index = parts.at(-1);
  const name = parts.slice(0, -2).join("/");
  return index === "-1" ? name : `${name}[${index}]`;
});

const BECOMES: Record<string, string> = { RUNNING: "The run continues.", PAUSED: "The run pauses.", FAILED: "The run fails.", CANCELLED: "The run ends as cancelled.", COMPLETED: "The run ends as succeeded." };

export function Consequence({ rehearsal, model, children }: { rehearsal: ReturnType<typeof useRehearsal>; model: RunModel; children?: ReactNode }) {
  if (rehearsal.isPending) return <Loading rows={2} label="Asking what would happen" />;
  if (!rehearsal.data) {
    if (rehearsal.error.isForbidden || rehearsal.error.isOffline) return <Refusal problem={rehearsal.error} />;
    return (
      <div className={css.consequence} data-role="bad" role="alert">
        <h3>The run would refuse this now</h3>
        <span>{sentence(rehearsal.error.detail)}</span>
        {rehearsal.error.hint && <span className="soft">{sentence(rehearsal.error.hint)}</span>}
      </div>
    );
  }
  const { cancelled, skipped, undone, status, events, event_count } = rehearsal.data;
  // What is reached only to be skipped does not run.
  const again = rehearsal.data.again.filter((each) => !skipped.includes(each));
  const kept = model.graph.nodes.filter((each) => model.run.nodes[each.id]?.status === "COMPLETED" && !again.includes(each.id)).length;
  return (
    <div className={css.consequence} aria-live="polite">
      <h3>What happens</h3>
      {children}
      {cancelled.length > 0 && (
        <span>
          Stops: <Names names={cancelled} />
        </span>
      )}
      {again.length > 0 && (
        <span>
          Runs: <Names names={again} />
          {kept > 0 && `; the results of ${kept} other step${kept === 1 ? "" : "s"} stay`}
        </span>
      )}
      {skipped.length > 0 && (
        <span>
          Skips: <Names names={skipped} />
        </span>
      )}
      {undone.length > 0 && (
        <span>
          Undoes, in this order: <Names names={undoneNames(undone)} />
        </span>
      )}
      {status !== model.run.status && <span>{BECOMES[status] ?? status}</span>}
      <span className="soft">
        Records <code>{events[0]}</code>
        {event_count > 1 && ` and ${event_count - 1} more event${event_count === 2 ? "" : "s"}`}, with your name.
      </span>
    </div>
  );
}

/** "It did not happen" for each step whose outcome is unknown. */
export function Unsure({ names, sure, onChange }: { names: readonly string[]; sure: readonly string[]; onChange: (sure: string[]) => void }) {
  if (names.length === 0) return null;
  return (
    <div className={css.consequence}>
      <h3>It is not known whether these happened. Look at the receiver first.</h3>
      {names.map((each) => (
        <label key={each} className={css.check}>
          <input type="checkbox" checked={sure.includes(each)} onChange={(event) => onChange(event.target.checked ? [...sure, each] : sure.filter((name) => name !== each))} />
          <span>
            I am sure that <code>{each}</code> did not happen: run it again
          </span>
        </label>
      ))}
    </div>
  );
}

export function Reason({ value, onChange, label = "Reason" }: { value: string; onChange: (value: string) => void; label?: string }) {
  return (
    <label className={css.field}>
      <span>
        <strong>{label}</strong> <span className="soft">– kept with the run</span>
      </span>
      <textarea rows={2} value={value} maxLength={2_000} onChange={(event) => onChange(event.target.value)} />
    </label>
  );
}

export interface ActDialogProps {
  title: ReactNode;
  description: ReactNode;
  verb: string;
  danger?: boolean;
  disabled?: boolean;
  onClose: () => void;
  onAct: () => Promise<void>;
  children: ReactNode;
  size?: "s" | "m" | "l";
  /** More to do about a refusal. */
  onProblem?: (problem: Problem) => ReactNode;
}

/** A dialog that does one thing when its last button is pressed. */
export function ActDialog({ title, description, verb, danger, disabled, onClose, onAct, children, size = "m", onProblem }: ActDialogProps) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const act = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await onAct();
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={title}
      description={description}
      size={size}
      footer={
        <>
          <Button onClick={onClose}>Back</Button>
          <Button kind={danger ? "danger" : "primary"} busy={busy} disabled={disabled} onClick={() => void act()}>
            {verb}
          </Button>
        </>
      }
    >
      {children}
      {problem && <Refusal problem={problem}>{onProblem?.(problem)}</Refusal>}
    </Dialog>
  );
}
