/** The page of a run: what it does in words, four views over one selection, and the panel of the selected step. */
import { useParams } from "@tanstack/react-router";
import { lazy, Suspense, useEffect, useRef, type ReactNode } from "react";
import { Button, Empty, ErrorState, Loading, runStatusName, signOf, Tabs, useShortcut, useTitle, whenIdle } from "../ui";
import { GraphView } from "./graph";
import { startWorker } from "./graph/drawing";
import { RunHeader } from "./header";
import { firstFailure, ModelProvider, useRunModel, type RunModel } from "./model";
import css from "./run.module.css";
import { ScrubBar } from "./scrub";
import { useSelection, VIEWS, type View } from "./selection";
import { StepPanel } from "./step";
import { sentence } from "./words";

const TimelineView = lazy(() => import("./timeline").then((module) => ({ default: module.TimelineView })));
const HistoryView = lazy(() => import("./history").then((module) => ({ default: module.HistoryView })));
const StateView = lazy(() => import("./state").then((module) => ({ default: module.StateView })));

/** The code of what is one click away: it opens while the server is away, too. */
function loadViews(): void {
  void Promise.all([import("./timeline"), import("./history"), import("./state"), import("./transcript"), import("./actions")]).catch(() => undefined);
}

const TABS: { id: View; label: string; keys: string }[] = [
  { id: "graph", label: "Graph", keys: "1" },
  { id: "timeline", label: "Timeline", keys: "2" },
  { id: "history", label: "History", keys: "3" },
  { id: "state", label: "State", keys: "4" },
];

export { startWorker };

export default function RunPage() {
  const { runId } = useParams({ strict: false });
  return runId === undefined ? null : <Page key={runId} id={runId} />;
}

function Page({ id }: { id: string }) {
  const { at } = useSelection();
  const { model, problem, loading, refresh } = useRunModel(id, at);
  useEffect(() => void startWorker(), []);
  const isKnown = model !== null;
  useEffect(() => (isKnown ? whenIdle(loadViews, 5_000) : undefined), [isKnown]);
  useTitle(model === null ? "Run" : `${model.run.workflow} ${signOf(runStatusName(model.run)).word}`);
  if (problem?.isNotFound) return <ErrorState error={problem} what="this run" />;
  if (at !== null && problem?.code === "event_unknown") return <NoSuchEvent at={at} said={problem.detail} />;
  if (model === null) {
    if (problem) return <ErrorState error={problem} what="this run" onRetry={refresh} />;
    return loading ? <Loading label="Loading the run" /> : null;
  }
  return (
    <ModelProvider value={model}>
      <Shown model={model} problem={problem && (problem.isOffline ? null : <ErrorState error={problem} what="this moment of the run" onRetry={refresh} />)} />
    </ModelProvider>
  );
}

function NoSuchEvent({ at, said }: { at: number; said: string }) {
  const { select } = useSelection();
  return (
    <Empty title={`There is no event #${at}`} icon="clock" action={<Button kind="primary" onClick={() => select({ at: null })}>Show the run as it is now</Button>}>
      {sentence(said)}.
    </Empty>
  );
}

/** A failed run is opened at the step that failed first. */
function useFailureFirst(model: RunModel): void {
  const { node, at, event, select } = useSelection();
  const done = useRef(false);
  const failed = model.run.status === "FAILED" && model.why !== null ? firstFailure(model) : null;
  useEffect(() => {
    if (done.current || at !== null || event !== null) return;
    if (node !== null) {
      done.current = true;
    } else if (failed !== null) {
      done.current = true;
      select({ node: failed.node, item: failed.item }, { replace: true });
    }
  }, [failed, node, at, event, select]);
}

function Shown({ model, problem }: { model: RunModel; problem: ReactNode }) {
  const selection = useSelection();
  const { view, node, select } = selection;
  useFailureFirst(model);
  for (const tab of TABS) {
    // The number of tabs does not change, so the order of hooks does not either.
    // eslint-disable-next-line react-hooks/rules-of-hooks
    useShortcut(tab.keys, `Show the ${tab.label.toLowerCase()}`, () => select({ view: tab.id }), "Run");
  }
  useShortcut("Escape", "Close the step", () => select({ node: null }), "Run");
  const isKnown = node !== null && model.run.nodes[node] !== undefined;
  return (
    <div className={css.page}>
      <RunHeader model={model} />
      <div className={css.body} data-panel={node !== null || undefined}>
        <Tabs
          className={css.views}
          label="Views of the run"
          tabs={TABS.map((tab) => (tab.id === "history" ? { ...tab, count: model.total.toLocaleString() } : tab))}
          value={view}
          onChange={(id) => select({ view: VIEWS.find((each) => each === id) ?? "graph" })}
        >
          {(view === "state" || selection.at !== null) && <ScrubBar model={model} />}
          <div className={css.view}>
            {problem ?? (
              <Suspense fallback={<Loading />}>
                {view === "graph" && <GraphView model={model} />}
                {view === "timeline" && <TimelineView model={model} />}
                {view === "history" && <HistoryView model={model} />}
                {view === "state" && <StateView model={model} />}
              </Suspense>
            )}
          </div>
        </Tabs>
        {node !== null && isKnown && <StepPanel key={node} model={model} node={node} />}
        {node !== null && !isKnown && (
          <aside className={css.panel} aria-label="Step">
            <div className={css.panelBody}>
              <p>
                The run has no step <b dir="auto">{node}</b>
                {model.at !== null && " at this moment"}.
              </p>
              <button type="button" className={css.linkButton} onClick={() => select({ node: null })}>
                Close
              </button>
            </div>
          </aside>
        )}
      </div>
    </div>
  );
}
