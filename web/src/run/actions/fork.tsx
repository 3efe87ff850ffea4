// Fork: a new run that shares what this one has done, with other inputs or another document.
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { api, newCommandId, Problem } from "../../api/client";
import { useMay } from "../../api/queries";
import type { StartedRun } from "../../api/types";
import { Loading, toast } from "../../ui";
import { Editor, type PlacedProblem } from "../../ui/editor";
import { SchemaForm } from "../../ui/schema-form";
import { runPath, stateOf, type RunEvent } from "../model";
import css from "./actions.module.css";
import { ActDialog, asProblem, Names } from "./parts";
import { lineOf, useTextDocument } from "./patch";
import type { ActionProps } from "./simple";

/** Nodes behind a node, in the order of the graph. */
function behind(outbound: Map<string, readonly string[]>, node: string): Set<string> {
  const found = new Set<string>([node]);
  const open = [node];
  for (let each = open.pop(); each !== undefined; each = open.pop()) {
    for (const next of outbound.get(each) ?? []) {
      if (!found.has(next)) {
        found.add(next);
        open.push(next);
      }
    }
  }
  return found;
}

export function Fork({ model, request, onClose }: ActionProps) {
  const navigate = useNavigate();
  const mayPatch = useMay("runs:patch");
  // Nothing is left of a run that has succeeded: its fork begins with the first step.
  const whole = model.at === null && model.run.status === "COMPLETED";
  const [node, setNode] = useState(request.node ?? (whole ? (model.graph.entries[0] ?? "") : ""));
  const [atEvent, setAtEvent] = useState(model.at !== null);
  const [inputs, setInputs] = useState<unknown>(undefined);
  const [changesInputs, setChangesInputs] = useState(false);
  const [changesDocument, setChangesDocument] = useState(false);
  const [text, setText] = useState<string | null>(null);
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const key = useMemo(() => newCommandId(), []);
  const document_ = useTextDocument(model.id);
  const created = useQuery<{ items: RunEvent[] }, Problem>({
    queryKey: ["run", model.id, "created"],
    queryFn: ({ signal }) => api<{ items: RunEvent[] }>("GET", `${runPath(model.id)}/events`, { query: { limit: 1 }, signal }),
    staleTime: Infinity,
  });
  const given = created.data?.items[0]?.inputs;
  const value = inputs === undefined ? given : inputs;
  const outbound = useMemo(() => new Map(model.graph.nodes.map((each) => [each.id, each.outbound ?? []])), [model.graph]);
  const begun = model.graph.nodes.filter((each) => stateOf(model, each.id).status !== "PENDING");
  const again = node ? model.graph.nodes.map((each) => each.id).filter((each) => behind(outbound, node).has(each)) : [];
  const kept = begun.filter((each) => stateOf(model, each.id).status === "COMPLETED" && !again.includes(each.id)).length;
  const changed = text !== null && text !== document_.data?.text;

  const fork = async () => {
    setProblem(null);
    const body = {
      ...(node ? { node } : {}),
      ...(atEvent && model.at !== null ? { at: model.at } : {}),
      ...(changesInputs && inputs !== undefined ? { inputs } : {}),
      ...(changesDocument && changed ? { document: text } : {}),
      reason,
    };
    try {
      const started = await api<StartedRun>("POST", `${runPath(model.id)}/fork`, { body, headers: { "Idempotency-Key": `${key}-${digest(JSON.stringify(body))}` } });
      toast("The fork has started");
      onClose();
      await navigate({ to: "/runs/$runId", params: { runId: started.run_id } });
    } catch (error) {
      setProblem(asProblem(error));
      throw error;
    }
  };

  const lines = (problem?.problems ?? []) as PlacedProblem[];
  return (
    <ActDialog
      title="Fork the run"
      description="A new run begins with the results of this one, which stays as it is."
      verb="Fork"
      size={changesDocument ? "l" : "m"}
      onClose={onClose}
      onAct={fork}
    >
      <label className={css.field}>
        <strong>Runs again from</strong>
        <select value={node} onChange={(event) => setNode(event.target.value)}>
          {!whole && <option value="">{model.at === null ? "where this run stands: only what is left" : `where it stood after event ${model.at}: only what was left`}</option>}
          {begun.map((each) => (
            <option key={each.id} value={each.id}>
              {each.id}
            </option>
          ))}
        </select>
      </label>
      {model.at !== null && (
        <label className={css.check}>
          <input type="checkbox" checked={atEvent} onChange={(event) => setAtEvent(event.target.checked)} />
          <span>Share only what had happened up to event {model.at}</span>
        </label>
      )}
      <div className={css.consequence} aria-live="polite">
        <h3>What happens</h3>
        {node ? (
          <>
            <span>
              Runs again: <Names names={again} />
            </span>
            <span>Reuses the recorded results of {kept} other step{kept === 1 ? "" : "s"}; they are not called again.</span>
          </>
        ) : (
          <span>{atEvent ? "Reuses everything that had completed by then; what came later runs again." : "Reuses everything that has completed; only what is left runs."}</span>
        )}
        <span className="soft">The fork has effect keys of its own; people who had not decided are asked again.</span>
      </div>
      <label className={css.check}>
        <input type="checkbox" checked={changesInputs} onChange={(event) => setChangesInputs(event.target.checked)} />
        <span>With other inputs, for everything that still happens</span>
      </label>
      {changesInputs &&
        (created.isPending ? (
          <Loading rows={3} />
        ) : (
          <SchemaForm schema={model.graph.inputs} value={value} onChange={setInputs} problems={problem?.problems ?? []} basePath="/inputs" label="Inputs" />
        ))}
      {mayPatch && (
        <label className={css.check}>
          <input type="checkbox" checked={changesDocument} onChange={(event) => setChangesDocument(event.target.checked)} />
          <span>With another configuration or graph</span>
        </label>
      )}
      {changesDocument &&
        (document_.data ? (
          <Editor
            language="yaml"
            label="Document of the fork"
            value={text ?? document_.data.text}
            onChange={setText}
            problems={lines}
            minHeight={240}
            maxHeight={420}
            {...(lineOf(document_.data.text, node) ? { line: lineOf(document_.data.text, node) ?? 1 } : {})}
          />
        ) : (
          <Loading rows={6} />
        ))}
      <label className={css.field}>
        <span>
          <strong>Reason</strong> <span className="soft">– kept with the fork</span>
        </span>
        <textarea rows={2} value={reason} maxLength={2_000} onChange={(event) => setReason(event.target.value)} />
      </label>
    </ActDialog>
  );
}

/** Tells one request from another, so that only the same one again is the same fork. */
function digest(text: string): string {
  let hash = 5381;
  for (let at = 0; at < text.length; at++) hash = ((hash * 33) ^ text.charCodeAt(at)) >>> 0;
  return hash.toString(36);
}
