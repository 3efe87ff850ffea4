// Start a run: which workflow and version, its inputs as a form, labels.
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { api, newCommandId, Problem, seg } from "../api/client";
import { documentQuery, useMay, useWorkflows, versionsQuery } from "../api/queries";
import type { StartedRun } from "../api/types";
import { Button, ErrorState, IconButton, Loading, sentence, toast, useTitle } from "../ui";
import { focusInvalid, initialValue, SchemaForm } from "../ui/schema-form";
import css from "./start.module.css";

export default function StartPage() {
  const { workflow = "" } = useParams({ strict: false }) as { workflow?: string };
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const version = search.version ?? "";
  return <Start key={`${workflow} ${version}`} name={workflow} version={version} />;
}

function Start({ name, version }: { name: string; version: string }) {
  const navigate = useNavigate();
  const may = useMay("runs:start");
  useTitle(`Start ${name}`);
  // `@3` is a version, `:stable` a tag, nothing the newest.
  const reference = version === "" ? name : /^[0-9]+$/.test(version) ? `${name}@${version}` : `${name}:${version}`;
  const workflows = useWorkflows("", 200);
  const document_ = useQuery(documentQuery(reference));
  const tags = useQuery<Record<string, number>, Problem>({ queryKey: ["workflow", name, "tags"], queryFn: ({ signal }) => api("GET", `/workflows/${seg(name)}/tags`, { signal }) });
  const versions = useQuery(versionsQuery(name));

  const [inputs, setInputs] = useState<unknown>(undefined);
  const [labels, setLabels] = useState<[string, string][]>([]);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const key = useRef({ text: "", id: "" });
  const said = useRef<HTMLParagraphElement>(null);
  const schema = document_.data?.inputs;
  useEffect(() => {
    if (document_.data) setInputs((before: unknown) => (before === undefined ? (initialValue(document_.data.inputs) ?? {}) : before));
  }, [document_.data]);
  useEffect(() => {
    if (!problem) return;
    if (problem.problems.some((each) => each.path.startsWith("/inputs"))) focusInvalid();
    else said.current?.scrollIntoView({ block: "nearest" });
  }, [problem]);

  const start = async () => {
    setBusy(true);
    setProblem(null);
    const body = { workflow: reference, inputs: inputs ?? {}, labels: Object.fromEntries(labels.filter(([label]) => label.trim()).map(([label, text]) => [label.trim(), text])) };
    // The same request, sent again after a lost answer, starts no second run.
    const text = JSON.stringify(body);
    if (key.current.text !== text) key.current = { text, id: newCommandId() };
    try {
      const started = await api<StartedRun>("POST", "/runs", { body, headers: { "Idempotency-Key": key.current.id } });
      key.current = { text: "", id: "" };
      toast("The run has started");
      await navigate({ to: "/runs/$runId", params: { runId: started.run_id } });
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem({ status: -1, detail: String(error) }));
    } finally {
      setBusy(false);
    }
  };

  const rest = problem?.problems.filter((each) => !each.path.startsWith("/inputs")) ?? [];
  const formProblems = problem?.problems.filter((each) => each.path.startsWith("/inputs")) ?? [];
  const numbers = versions.data ?? [];
  const about = document_.data?.description;
  return (
    <div className={css.scroll}>
      <form
        className={css.page}
        onSubmit={(event) => {
          event.preventDefault();
          void start();
        }}
      >
        <header className={css.section}>
          <h1>Start a run</h1>
          <div className={css.choice}>
            <label>
              <strong>Workflow</strong>
              <select value={name} onChange={(event) => void navigate({ to: "/start/$workflow", params: { workflow: event.target.value } })}>
                {!workflows.data?.items.some((each) => each.name === name) && <option value={name}>{name}</option>}
                {workflows.data?.items.map((each) => (
                  <option key={each.name} value={each.name}>
                    {each.name}
                  </option>
                ))}
              </select>
            </label>
            <label>
              <strong>Version</strong>
              <select value={version} onChange={(event) => void navigate({ to: ".", search: { version: event.target.value || undefined } as never, replace: true })}>
                <option value="">newest{numbers[0] ? ` (${numbers[0].version})` : ""}</option>
                {Object.entries(tags.data ?? {}).map(([tag, to]) => (
                  <option key={tag} value={tag}>
                    {tag} (version {to})
                  </option>
                ))}
                {numbers.map((each) => (
                  <option key={each.version} value={String(each.version)}>
                    {each.version}
                  </option>
                ))}
              </select>
            </label>
          </div>
          {typeof about === "string" && (
            <p className="soft" dir="auto">
              {about}
            </p>
          )}
        </header>
        {document_.isPending ? (
          <Loading rows={4} />
        ) : !document_.data ? (
          <ErrorState error={document_.error} what="this workflow" action={<Link to="/workflows">All workflows</Link>} />
        ) : (
          <>
            <section className={css.section} aria-labelledby="inputs-head">
              <h2 id="inputs-head">Inputs</h2>
              {schema === undefined || schema === null ? <p className="soft">This workflow declares no inputs; what you give is passed as it is.</p> : null}
              {inputs !== undefined && <SchemaForm schema={schema} value={inputs} onChange={setInputs} problems={formProblems} basePath="/inputs" label="Inputs" />}
            </section>
            <section className={css.section} aria-labelledby="labels-head">
              <h2 id="labels-head">Labels</h2>
              <p className="soft">What the run can be found by.</p>
              {labels.map(([label, text], index) => (
                <div key={index} className={css.label}>
                  <input type="text" aria-label={`Label ${index + 1}`} placeholder="name" value={label} onChange={(event) => setLabels(labels.map((each, at) => (at === index ? [event.target.value, text] : each)))} />
                  <input type="text" aria-label={`Value of label ${index + 1}`} placeholder="value" value={text} onChange={(event) => setLabels(labels.map((each, at) => (at === index ? [label, event.target.value] : each)))} />
                  <IconButton icon="close" label={`Remove label ${index + 1}`} onClick={() => setLabels(labels.filter((_, at) => at !== index))} />
                </div>
              ))}
              <div>
                <Button size="s" icon="plus" onClick={() => setLabels([...labels, ["", ""]])}>
                  Add a label
                </Button>
              </div>
            </section>
            {problem && (
              <p className={css.problem} role="alert" ref={said}>
                {formProblems.length > 0 && rest.length === 0
                  ? `The inputs do not fit the schema of ${name}: please look at the marked field${formProblems.length > 1 ? "s" : ""}.`
                  : problem.isOffline
                    ? "The server cannot be reached. Start the run again when it answers: it starts once only."
                    : `${sentence(problem.detail)} ${sentence(problem.hint)}`.trim()}
              </p>
            )}
            <div className={css.bar}>
              <Button kind="primary" type="submit" icon="play" busy={busy} disabled={!may}>
                Start the run
              </Button>
              {!may && <span className="soft">Your key has no permission to start runs (runs:start).</span>}
            </div>
          </>
        )}
      </form>
    </div>
  );
}
