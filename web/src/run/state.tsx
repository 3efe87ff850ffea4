/** The values of a run at a moment: what it was started with, and what each node had returned by then. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, useState } from "react";
import { JsonView, Loading, Status } from "../ui";
import { signOfNode, stateOf, type GraphNode, type RunModel } from "./model";
import css from "./run.module.css";
import { useEvent } from "./scrub";
import { useSelection } from "./selection";
import { useValue } from "./values";
import { bytes, snippet } from "./words";

const ROW = 36;

export function StateView({ model }: { model: RunModel }) {
  const { node: selected, select } = useSelection();
  const [all, setAll] = useState(false);
  const list = useRef<HTMLDivElement>(null);
  const nodes = useMemo(
    () => (all ? model.graph.nodes : model.graph.nodes.filter((node) => stateOf(model, node.id).status !== "PENDING")),
    [model, all],
  );
  // A virtual list reads the place of its rows while it renders.
  const rows = useVirtualizer({ count: nodes.length, getScrollElement: () => list.current, estimateSize: () => ROW, overscan: 6 });
  const hidden = model.graph.nodes.length - nodes.length;
  return (
    <div className={css.state} ref={list} tabIndex={0} aria-label="Values">
      <Inputs model={model} />
      <h3 className={css.stateTitle}>
        {model.at === null ? "What the steps have returned" : `What the steps had returned after event #${model.at}`}
        {(hidden > 0 || all) && (
          <button type="button" className={css.linkButton} onClick={() => setAll(!all)}>
            {all ? "Leave out what was not reached" : `Show ${hidden} that ${hidden === 1 ? "was" : "were"} not reached`}
          </button>
        )}
      </h3>
      {nodes.length === 0 && <p className={css.none}>No step has begun yet.</p>}
      <div className={css.stateRows} role="list" style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((row) => {
          const node = nodes[row.index];
          return (
            node && (
              <div key={node.id} role="listitem" className={css.stateRow} data-selected={node.id === selected || undefined} style={{ transform: `translateY(${row.start}px)` }}>
                <StateRow model={model} node={node} onOpen={() => select({ node: node.id, tab: "output" })} />
              </div>
            )
          );
        })}
      </div>
    </div>
  );
}

function StateRow({ model, node, onOpen }: { model: RunModel; node: GraphNode; onOpen: () => void }) {
  const state = stateOf(model, node.id);
  const ended = state.status === "COMPLETED" || state.status === "FAILED";
  return (
    <button type="button" className={css.stateButton} onClick={onOpen}>
      <span className={css.stateName}>
        <b className="truncate" dir="auto">
          {node.id}
        </b>
      </span>
      <Status status={signOfNode(state)} />
      <span className={`${css.stateValue} truncate mono`} dir="ltr">
        {ended ? <Returned model={model} node={node.id} version={`${state.status}/${state.visits}/${state.attempts}`} error={state.error?.message} /> : (state.error?.message ?? "")}
      </span>
      <span className={`${css.stateVisits} soft`}>{state.visits > 1 ? `pass ${state.visits}` : state.items ? `${state.items.done} of ${state.items.count} items` : ""}</span>
    </button>
  );
}

function Returned({ model, node, version, error }: { model: RunModel; node: string; version: string; error: string | undefined }) {
  const found = useValue({ run: model.id, node, what: "output", at: model.at, version });
  if (found.data === undefined) return found.error ? "cannot be shown" : "…";
  const { size, value, preview } = found.data;
  if (size === 0) return error ?? "nothing";
  return preview === null ? snippet(value, 200) : `${bytes(size)}: ${preview.slice(0, 160)}…`;
}

function Inputs({ model }: { model: RunModel }) {
  const created = useEvent(model.id, 1, false);
  if (created.isPending) return <Loading rows={2} />;
  const inputs = created.data?.inputs;
  return (
    <section className={css.inputs}>
      <h3 className={css.stateTitle}>What the run was started with</h3>
      {inputs === undefined || inputs === null ? <p className={css.none}>Nothing.</p> : <JsonView value={inputs} label="Inputs of the run" />}
    </section>
  );
}
