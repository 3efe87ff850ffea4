// Patch: edit the run's document, see what differs and what that does to the run, apply it, and continue.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { api, newCommandId, Problem } from "../../api/client";
import { refreshRun, useMay } from "../../api/queries";
import type { PatchOutcome } from "../../api/types";
import { Button, Dialog, Loading, toast } from "../../ui";
import { DiffView, Editor, type PlacedProblem } from "../../ui/editor";
import { runPath } from "../model";
import css from "./actions.module.css";
import { asProblem, Reason, Refusal, Unsure, useRehearsal } from "./parts";
import type { ActionProps } from "./simple";

export interface TextDocument {
  document: unknown;
  text: string;
  digest: string;
  workflow: string;
  version: number;
  revision: number;
}

export function useTextDocument(id: string) {
  return useQuery<TextDocument, Problem>({
    queryKey: ["run", id, "document", "text"],
    queryFn: ({ signal }) => api<TextDocument>("GET", `${runPath(id)}/document`, { query: { text: true }, signal }),
    staleTime: Infinity,
    gcTime: 0,
  });
}

/** The line of a document on which a node begins. */
export function lineOf(text: string, node: string | undefined): number | undefined {
  if (!node) return undefined;
  const at = text.split("\n").findIndex((line) => /^\s*(-\s+)?id:\s/.test(line) && line.replace(/^.*?id:\s+/, "").replaceAll(/['"]/g, "").trim() === node);
  return at < 0 ? undefined : at + 1;
}

export function Patch({ model, request, onClose }: ActionProps) {
  const shown = useTextDocument(model.id);
  if (!shown.data) {
    return (
      <Dialog open onOpenChange={(open) => !open && onClose()} title="Patch the run" size="l">
        {shown.error ? <Refusal problem={shown.error} /> : <Loading rows={8} />}
      </Dialog>
    );
  }
  return <PatchEditor model={model} request={request} onClose={onClose} first={shown.data} />;
}

function PatchEditor({ model, request, onClose, first }: ActionProps & { first: TextDocument }) {
  const mayPublish = useMay("workflows:write");
  const [base, setBase] = useState(first);
  const [text, setText] = useState(first.text);
  const [outcome, setOutcome] = useState<PatchOutcome | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const [publish, setPublish] = useState(false);
  const [message, setMessage] = useState("");
  const [sure, setSure] = useState<string[]>([]);
  const command = useMemo(() => newCommandId(), []);
  const ended = model.run.status === "FAILED" || model.run.status === "CANCELLED";
  const reopening = useRehearsal(model, { action: "retry" }, ended && !busy);
  const unsure = ended ? (reopening.data?.unsure ?? []) : [];
  const same = text === base.text;
  const begin = useMemo(() => lineOf(first.text, request.node), [first, request.node]);

  const send = async (dry: boolean, over = base) => {
    setBusy(true);
    setProblem(null);
    const body = { document: text, base_digest: over.digest, retry: ended, did_not_happen: [...new Set(dry ? [...sure, ...unsure] : sure)] };
    try {
      const answer = await api<PatchOutcome>("POST", `${runPath(model.id)}/patch`, { body: dry ? { ...body, dry_run: true } : { ...body, publish, message, command_id: command } });
      if (dry) {
        setOutcome(answer);
        return;
      }
      toast(answer.published ? `Patched, and published as version ${answer.published.version}` : ended ? "Patched: the run continues" : "The run was patched");
      onClose();
      void refreshRun(model.id);
    } catch (error) {
      setProblem(asProblem(error));
      if (!dry) setOutcome(null);
    } finally {
      setBusy(false);
    }
  };

  const reload = async (keep: boolean) => {
    const now = await api<TextDocument>("GET", `${runPath(model.id)}/document`, { query: { text: true } }).catch((error: unknown) => asProblem(error));
    if (now instanceof Problem) {
      setProblem(now);
      return;
    }
    setBase(now);
    setProblem(null);
    setOutcome(null);
    void refreshRun(model.id);
    if (keep) await send(true, now);
    else setText(now.text);
  };

  const placed = (problem?.problems ?? []) as PlacedProblem[];
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Patch this run of ${base.workflow}@${base.version}${base.revision ? `+${base.revision}` : ""}`}
      description="Change steps that have not completed, then continue. Only this run changes."
      size="l"
      footer={
        outcome ? (
          <>
            <Button onClick={() => setOutcome(null)}>Edit further</Button>
            <Button kind="primary" busy={busy} disabled={unsure.some((each) => !sure.includes(each))} onClick={() => void send(false)}>
              {ended ? "Apply and retry" : "Apply"}
            </Button>
          </>
        ) : (
          <>
            <Button onClick={onClose}>Back</Button>
            <Button kind="primary" busy={busy} disabled={same} onClick={() => void send(true)}>
              See what it does
            </Button>
          </>
        )
      }
    >
      <div className={css.steps} aria-label="Steps">
        <span {...(outcome ? {} : { "aria-current": "step" as const })}>1. Edit</span>
        <span {...(outcome ? { "aria-current": "step" as const } : {})}>2. Look at what it does, and apply</span>
      </div>
      {outcome ? (
        <>
          <Verdict outcome={outcome} />
          <DiffView before={base.text} after={text} language="yaml" label="Difference of the documents" maxHeight={300} />
          <Unsure names={unsure} sure={sure} onChange={setSure} />
          {mayPublish && (
            <label className={css.check}>
              <input type="checkbox" checked={publish} onChange={(event) => setPublish(event.target.checked)} />
              <span>Also publish it as a new version of {base.workflow}, for later runs</span>
            </label>
          )}
          <Reason value={message} onChange={setMessage} label="What the patch is about" />
        </>
      ) : (
        <Editor language="yaml" label="Document of the run" value={text} onChange={setText} problems={placed} minHeight={320} maxHeight={520} {...(begin ? { line: begin } : {})} autoFocus />
      )}
      {problem && <PatchRefusal problem={problem} reload={reload} />}
    </Dialog>
  );
}

function PatchRefusal({ problem, reload }: { problem: Problem; reload: (keep: boolean) => Promise<void> }) {
  if (problem.code === "patch_stale") {
    return (
      <div className={css.problem} role="alert">
        <div className={css.problemText}>
          <strong>Another person has patched this run meanwhile.</strong>
          <span className="soft">Nothing of yours was applied. Your text is still here.</span>
          <div className={css.bar}>
            <Button size="s" onClick={() => void reload(true)}>
              Compare mine with the new document
            </Button>
            <Button size="s" onClick={() => void reload(false)}>
              Begin again from the new document
            </Button>
          </div>
        </div>
      </div>
    );
  }
  return (
    <Refusal problem={problem}>
      {problem.code === "run_completed" && <span className="soft">It has succeeded meanwhile.</span>}
      {["patch_finished_node", "patch_join_fired", "patch_items_begun"].includes(problem.code) && <span className="soft">What has happened stays. To change it, close this and fork the run from that step.</span>}
      {problem.problems.some((each) => (each as PlacedProblem).line) && <span className="soft">The lines are marked in the editor.</span>}
    </Refusal>
  );
}

/** Kept, run again, changed, added and removed. */
function Verdict({ outcome }: { outcome: PatchOutcome }) {
  const rows: [string, readonly string[], string][] = [
    ["Kept", outcome.kept, "results that stay"],
    ["Run again", outcome.rerun, ""],
    ["Changed", outcome.changed, ""],
    ["Added", outcome.added, ""],
    ["Removed", outcome.removed, ""],
  ];
  const host = useRef<HTMLDivElement>(null);
  useEffect(() => host.current?.focus(), []);
  return (
    <>
      <div className={css.verdict} ref={host} tabIndex={-1} role="group" aria-label="What the patch does">
        {rows.map(([name, nodes]) => (
          <div key={name}>
            <h3>
              {name} <span className="soft">{nodes.length}</span>
            </h3>
            <ul>
              {nodes.map((each) => (
                <li key={each}>{each}</li>
              ))}
              {nodes.length === 0 && <li className="soft">none</li>}
            </ul>
          </div>
        ))}
      </div>
      {outcome.changed.length + outcome.added.length + outcome.removed.length === 0 && <p className="soft">No step changes by it.</p>}
      {outcome.warnings.map((each, index) => (
        <p key={index} className="soft">
          Warning: {each.message}
        </p>
      ))}
    </>
  );
}

