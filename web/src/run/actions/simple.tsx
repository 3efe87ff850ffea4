// Dialogs of actions that are one request: retry, rewind, settle, skip, unknown outcome, cancel, pause, resume, signal, rollback.
import { useMemo, useState } from "react";
import { api, newCommandId, Problem } from "../../api/client";
import { refreshRun } from "../../api/queries";
import { toast } from "../../ui";
import { Editor } from "../../ui/editor";
import { nodeOf, runPath, stateOf, type RunModel } from "../model";
import css from "./actions.module.css";
import { ActDialog, Consequence, Names, Reason, Unsure, useRehearsal } from "./parts";
import { awaitedSignals, type ActionRequest } from "./rules";

export interface ActionProps {
  model: RunModel;
  request: ActionRequest;
  onClose: () => void;
}

/** Send an action once, and tell what it did; and whether it is under way. */
function useAct(model: RunModel, onClose: () => void) {
  const command = useMemo(() => newCommandId(), []);
  const [acting, setActing] = useState(false);
  const act = async (path: string, body: Record<string, unknown>, said: string) => {
    setActing(true);
    try {
      await api("POST", `${runPath(model.id)}/${path}`, { body: path === "signal" ? { ...body, signal_id: command } : { ...body, command_id: command } });
    } catch (error) {
      setActing(false);
      throw error;
    }
    toast(said);
    onClose();
    void refreshRun(model.id);
  };
  return [act, acting] as const;
}

export function Retry({ model, onClose }: ActionProps) {
  const [act, acting] = useAct(model, onClose);
  const [reason, setReason] = useState("");
  const [sure, setSure] = useState<string[]>([]);
  const rehearsal = useRehearsal(model, { action: "retry" }, !acting);
  const unsure = rehearsal.data?.unsure ?? [];
  return (
    <ActDialog
      title="Retry the run"
      description="Failed and cancelled steps run again where they stopped; what completed stays."
      verb="Retry"
      disabled={!rehearsal.data || unsure.some((each) => !sure.includes(each))}
      onClose={onClose}
      onAct={() => act("retry", { reason, did_not_happen: sure }, "The run continues")}
    >
      <Consequence rehearsal={rehearsal} model={model} />
      <Unsure names={unsure} sure={sure} onChange={setSure} />
      <Reason value={reason} onChange={setReason} />
    </ActDialog>
  );
}

export function Rewind({ model, request, onClose }: ActionProps) {
  const [act, acting] = useAct(model, onClose);
  const node = request.node ?? "";
  const [reason, setReason] = useState("");
  const [sure, setSure] = useState<string[]>([]);
  const rehearsal = useRehearsal(model, { action: "rewind", node }, !acting);
  const unsure = rehearsal.data?.unsure ?? [];
  return (
    <ActDialog
      title={`Rewind the run to ${node}`}
      description="This step and everything behind it run again, with new effect keys: effects outside happen again, too."
      verb="Rewind"
      danger
      disabled={!rehearsal.data || unsure.some((each) => !sure.includes(each))}
      onClose={onClose}
      onAct={() => act("rewind", { node, reason, did_not_happen: sure }, `The run continues from ${node}`)}
    >
      <Consequence rehearsal={rehearsal} model={model} />
      <Unsure names={unsure} sure={sure} onChange={setSure} />
      <Reason value={reason} onChange={setReason} />
    </ActDialog>
  );
}

function readJson(text: string): { value: unknown } | { wrong: string } {
  try {
    return { value: text.trim() === "" ? null : (JSON.parse(text) as unknown) };
  } catch (error) {
    return { wrong: error instanceof Error ? error.message : String(error) };
  }
}

function JsonField({ label, help, value, onChange }: { label: string; help: string; value: string; onChange: (text: string) => void }) {
  const read = readJson(value);
  return (
    <div className={css.field}>
      <span>
        <strong>{label}</strong> <span className="soft">– {help}</span>
      </span>
      <Editor language="json" label={label} value={value} onChange={onChange} minHeight={80} maxHeight={260} />
      {"wrong" in read && <span className={css.bad}>This is not JSON yet: {read.wrong}</span>}
    </div>
  );
}

export function Settle({ model, request, onClose }: ActionProps) {
  const [act, acting] = useAct(model, onClose);
  const node = request.node ?? "";
  const skip = request.action === "skip";
  const known = nodeOf(model, node);
  const routed = known?.branch !== undefined || known?.loop !== undefined;
  const [text, setText] = useState("");
  const [next, setNext] = useState<string[] | null>(null);
  const [reason, setReason] = useState("");
  const read = readJson(text);
  const given = { node, ...(request.index === undefined ? {} : { index: request.index }), ...(next === null ? {} : { next_nodes: next }) };
  const rehearsal = useRehearsal(model, { action: "override", skip, ...given }, !acting);
  const place = request.index === undefined ? node : `${node}, item ${request.index}`;
  return (
    <ActDialog
      title={skip ? `Skip ${place}` : `Settle ${place} by hand`}
      description={skip ? "The step does not run; steps that only it leads to are skipped, too." : "The step counts as completed with the value that you give. Its code is not called."}
      verb={skip ? "Skip" : "Settle"}
      disabled={!rehearsal.data || (!skip && "wrong" in read)}
      onClose={onClose}
      onAct={() => {
        if (!skip && "wrong" in read) throw new Problem({ status: -1, detail: "The value is not JSON." });
        const visit = request.index === undefined ? { visit: stateOf(model, node).visits } : {};
        return act("override", { ...given, ...visit, reason, ...(skip ? { skip: true } : { value: "value" in read ? read.value : null }) }, skip ? `${place} is skipped` : `${place} is settled`);
      }}
    >
      {!skip && <JsonField label="Output" help="JSON; steps behind it read this value; empty is null" value={text} onChange={setText} />}
      {!skip && routed && known?.outbound && known.outbound.length > 0 && (
        <div className={css.field}>
          <strong>Next steps</strong>
          <label className={css.check}>
            <input type="radio" name="route" checked={next === null} onChange={() => setNext(null)} />
            <span>Its conditions decide, over the value</span>
          </label>
          <label className={css.check}>
            <input type="radio" name="route" checked={next !== null} onChange={() => setNext([])} />
            <span>I choose</span>
          </label>
          {next !== null &&
            known.outbound.map((each) => (
              <label key={each} className={css.check}>
                <input type="checkbox" checked={next.includes(each)} onChange={(event) => setNext(event.target.checked ? [...next, each] : next.filter((name) => name !== each))} />
                <code>{each}</code>
              </label>
            ))}
        </div>
      )}
      <Consequence rehearsal={rehearsal} model={model}>
        {!skip && request.index === undefined && known?.outbound && known.outbound.length > 0 && (
          <span>
            {routed && next === null ? "Conditions choose the next steps: " : "Continues with: "}
            <Names names={next ?? known.outbound} />
          </span>
        )}
      </Consequence>
      <Reason value={reason} onChange={setReason} />
    </ActDialog>
  );
}

export function Outcome({ model, request, onClose }: ActionProps) {
  const [act, acting] = useAct(model, onClose);
  const node = request.node ?? "";
  const [happened, setHappened] = useState<boolean | null>(null);
  const [text, setText] = useState("");
  const [reason, setReason] = useState("");
  const read = readJson(text);
  const body = happened ? { action: "override", node } : { action: "retry", did_not_happen: [node] };
  const rehearsal = useRehearsal(model, body, happened !== null && !acting);
  return (
    <ActDialog
      title={`Did ${node} happen?`}
      description="The call was made at most once, and it is not known whether it arrived. Look at the receiver, then say it here."
      verb={happened ? "Settle with its result" : "Run it again"}
      disabled={happened === null || !rehearsal.data || (happened && "wrong" in read)}
      onClose={onClose}
      onAct={() =>
        happened
          ? act("override", { node, value: "value" in read ? read.value : null, reason }, `${node} is settled`)
          : act("retry", { did_not_happen: [node], reason }, "The run continues")
      }
    >
      <div className={css.field} role="radiogroup" aria-label="Did it happen?">
        <label className={css.check}>
          <input type="radio" name="happened" checked={happened === true} onChange={() => setHappened(true)} />
          <span>It happened: it must not run again</span>
        </label>
        <label className={css.check}>
          <input type="radio" name="happened" checked={happened === false} onChange={() => setHappened(false)} />
          <span>It did not happen: run it again</span>
        </label>
      </div>
      {happened && <JsonField label="Its result" help="JSON, as the step would have returned it" value={text} onChange={setText} />}
      {happened !== null && <Consequence rehearsal={rehearsal} model={model} />}
      <Reason value={reason} onChange={setReason} />
    </ActDialog>
  );
}

export function Cancel({ model, onClose }: ActionProps) {
  const [act, acting] = useAct(model, onClose);
  const [reason, setReason] = useState("");
  const rolling = model.run.rollback.status === "running";
  const undoable = model.graph.nodes.some((each) => each.compensator);
  const [undo, setUndo] = useState<boolean | null>(null);
  const body = rolling ? { force: true } : { compensate: undo };
  const rehearsal = useRehearsal(model, { action: "cancel", ...body }, !acting);
  return (
    <ActDialog
      title={rolling ? "Stop the rollback" : "Cancel the run"}
      description={rolling ? "What is not undone yet stays as it is." : "Steps that run are told to stop; what they answer later is discarded. A cancelled run can be retried."}
      verb={rolling ? "Stop the rollback" : "Cancel the run"}
      danger
      disabled={!rehearsal.data}
      onClose={onClose}
      onAct={() => act("cancel", { ...body, reason }, rolling ? "The rollback was stopped" : "The run was cancelled")}
    >
      {undoable && !rolling && (
        <label className={css.field}>
          <strong>What was done already</strong>
          <select value={undo === null ? "" : String(undo)} onChange={(event) => setUndo(event.target.value === "" ? null : event.target.value === "true")}>
            <option value="">as the document says</option>
            <option value="true">undo it, backwards</option>
            <option value="false">leave it</option>
          </select>
        </label>
      )}
      <Consequence rehearsal={rehearsal} model={model} />
      <Reason value={reason} onChange={setReason} />
    </ActDialog>
  );
}

const SIMPLE = {
  pause: { title: "Pause the run", text: "Nothing more begins until it is resumed. What runs may finish.", verb: "Pause", said: "The run is paused", danger: false },
  resume: { title: "Resume the run", text: "The run continues where it was paused.", verb: "Resume", said: "The run continues", danger: false },
  rollback: { title: "Roll the run back", text: "The compensators of completed steps are called, the last one first. The run cannot be retried afterwards.", verb: "Roll back", said: "The rollback has begun", danger: true },
};

export function Simple({ model, request, onClose }: ActionProps) {
  const [act, acting] = useAct(model, onClose);
  const [reason, setReason] = useState("");
  const action = request.action as keyof typeof SIMPLE;
  const words = SIMPLE[action];
  const rehearsal = useRehearsal(model, { action }, !acting);
  return (
    <ActDialog title={words.title} description={words.text} verb={words.verb} danger={words.danger} disabled={!rehearsal.data} onClose={onClose} onAct={() => act(action, { reason }, words.said)}>
      <Consequence rehearsal={rehearsal} model={model} />
      <Reason value={reason} onChange={setReason} />
    </ActDialog>
  );
}

export function Signal({ model, request, onClose }: ActionProps) {
  const [act] = useAct(model, onClose);
  const awaited = awaitedSignals(model);
  const [name, setName] = useState(request.name ?? awaited[0] ?? "");
  const [text, setText] = useState("");
  const read = readJson(text);
  const waiting = model.why?.blockers.find((each) => each.kind === "signal" && each.name === name);
  return (
    <ActDialog
      title="Send a signal"
      description="The first step that waits for this name takes it; else the run keeps it for a step that will."
      verb="Send"
      disabled={!name.trim() || "wrong" in read}
      onClose={onClose}
      onAct={() => act("signal", { name: name.trim(), payload: "value" in read ? read.value : null }, `The signal ${name.trim()} was sent`)}
    >
      <label className={css.field}>
        <strong>Name</strong>
        <input type="text" list="signals" value={name} autoComplete="off" onChange={(event) => setName(event.target.value)} />
        <datalist id="signals">
          {awaited.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      </label>
      <JsonField label="Payload" help="JSON; it becomes the output of the step; empty is null" value={text} onChange={setText} />
      <div className={css.consequence} aria-live="polite">
        <h3>What happens</h3>
        <span>{waiting ? `${waiting.node} takes it and continues.` : "No step waits for this name now: the run keeps it."}</span>
      </div>
    </ActDialog>
  );
}
