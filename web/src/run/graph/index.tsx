// The graph of a run, live, and the graph of a workflow.
import { keepPreviousData, useQueries, useQuery, type QueryKey } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { api, seg } from "../../api/client";
import { Button, Empty, Loading } from "../../ui";
import { firstFailure, hasEnded, undoneNodes, type Graph, type RunModel } from "../model";
import { useRefetch } from "../refetch";
import { useSelection } from "../selection";
import { fromWorkflow, withPass, withRun, withUndone, type DrawnGraph } from "./data";
import { useDrawing, type ChildGraph } from "./drawing";
import { Flow, type FlowProps } from "./flow";
import css from "./graph.module.css";
import { LARGE, type SceneBox } from "./scene";

const fetchGraph = (run: string, query: { at?: number; loop?: string; pass?: number } = {}): Promise<DrawnGraph> => api<DrawnGraph>("GET", `/runs/${seg(run)}/graph`, { query });

const graphKey = (run: string, at: number | null): QueryKey => ["run", run, "graph", at];
const CHILD_EVERY_MS = 2_000;

export function GraphView({ model }: { model: RunModel }) {
  const { id, at, run } = model;
  const selection = useSelection();
  const navigate = useNavigate();
  const key = graphKey(id, at);
  // Details come behind the first drawing: the run itself says how every node stands.
  const [drawn, setDrawn] = useState(false);
  const onDrawn = useCallback(() => setDrawn(true), []);
  const answer = useQuery({
    queryKey: key,
    queryFn: () => fetchGraph(id, at === null ? {} : { at }),
    enabled: drawn,
    staleTime: at === null ? 0 : Infinity,
    placeholderData: keepPreviousData,
  });
  useRefetch(key, run.events, at === null);

  const bare = useMemo(() => fromWorkflow(model.graph), [model.graph]);
  const present = useMemo(() => {
    const known = answer.data;
    // Until the details are there, the states are known already.
    const graph = known === undefined ? withRun(bare, run) : at === null ? withRun(known, run) : known;
    return withUndone(graph, undoneNodes(run));
  }, [answer.data, bare, run, at]);

  // A pass of a loop
  const [pass, setPass] = useState<{ loop: string; number: number } | null>(null);
  const past = useQuery({
    queryKey: ["run", id, "graph", "pass", pass?.loop, pass?.number],
    queryFn: () => fetchGraph(id, { loop: pass?.loop ?? "", pass: pass?.number ?? 1 }),
    enabled: pass !== null,
    staleTime: Infinity,
    gcTime: 60_000,
    placeholderData: keepPreviousData,
  });
  const graph = useMemo(() => (pass !== null && past.data !== undefined ? withPass(present, past.data, pass.loop) : present), [present, past.data, pass]);
  const select = selection.select;
  const visitThen = pass === null || past.isPlaceholderData ? undefined : past.data?.nodes.find((node) => node.id === pass.loop)?.visits;
  useEffect(() => {
    if (pass !== null && visitThen !== undefined) select({ node: pass.loop, visit: visitThen }, { replace: true });
  }, [pass, visitThen, select]);

  // Children
  const [open, setOpen] = useState<readonly { box: string; run: string }[]>([]);
  const answers = useQueries({
    queries: open.map((each) => ({
      queryKey: graphKey(each.run, null),
      queryFn: () => fetchGraph(each.run),
      refetchInterval: (query: { state: { data?: DrawnGraph | undefined } }) => (isOver(query.state.data) ? (false as const) : CHILD_EVERY_MS),
    })),
    combine: (found) => found.map((each) => each.data),
  });
  const children = useMemo(() => {
    const found = new Map<string, ChildGraph>();
    open.forEach((each, number) => {
      const data = answers[number];
      if (data) found.set(each.box, { run: each.run, graph: data });
    });
    return found;
  }, [open, answers]);

  const toggleChild = useCallback((box: string, child: string | undefined) => {
    setOpen((before) => {
      if (before.some((each) => each.box === box)) return before.filter((each) => each.box !== box && !each.box.startsWith(`${box}/`));
      return child === undefined ? before : [...before, { box, run: child }];
    });
  }, []);
  const onSelect = useCallback(
    (box: SceneBox) => {
      if (box.run !== null) void navigate({ to: "/runs/$runId", params: { runId: box.run }, search: { node: box.node.id } as never });
      else select({ node: box.node.id });
    },
    [navigate, select],
  );
  const pick = useCallback(
    (loop: string, number: number | null) => {
      setPass(number === null ? null : { loop, number });
      if (number === null) select({ node: loop, visit: null }, { replace: true });
    },
    [select],
  );

  if (graph.nodes.length === 0) return <Empty title="This workflow has no nodes" />;
  return (
    <Drawn
      graph={graph}
      hasRun
      selected={selection.node}
      start={firstFailure(model)?.node ?? (hasEnded(model.run) ? null : busiest(graph))}
      pass={pass}
      childGraphs={children}
      onSelect={onSelect}
      onClear={() => select({ node: null })}
      onToggleChild={toggleChild}
      onPick={pick}
      onDrawn={onDrawn}
      label={`Graph of ${run.workflow}`}
    />
  );
}

function isOver(graph: DrawnGraph | undefined): boolean {
  const status = (graph as { status?: string } | undefined)?.status;
  return status === "COMPLETED" || status === "FAILED" || status === "CANCELLED";
}

/** Where something happens now. */
function busiest(graph: DrawnGraph): string | null {
  for (const status of ["FAILED", "RUNNING", "WAITING", "QUEUED"]) {
    const found = graph.nodes.find((node) => node.status === status);
    if (found) return found.id;
  }
  return null;
}

/** The graph of a workflow without a run. */
export function WorkflowGraph({ graph, selected = null, onSelect }: { graph: Graph; selected?: string | null; onSelect?: (node: string) => void }) {
  const drawn = useMemo(() => fromWorkflow(graph), [graph]);
  const choose = useCallback((box: SceneBox) => onSelect?.(box.node.id), [onSelect]);
  if (drawn.nodes.length === 0) return <Empty title="This workflow has no nodes" />;
  return <Drawn graph={drawn} hasRun={false} selected={selected} start={null} pass={null} childGraphs={NO_CHILDREN} onSelect={choose} label={`Graph of ${graph.name}`} />;
}

const NO_CHILDREN: ReadonlyMap<string, ChildGraph> = new Map();
const nothing = (): void => undefined;

interface DrawnProps {
  graph: DrawnGraph;
  hasRun: boolean;
  selected: string | null;
  start: string | null;
  pass: FlowProps["pass"];
  childGraphs: ReadonlyMap<string, ChildGraph>;
  onSelect: (box: SceneBox) => void;
  onClear?: () => void;
  onToggleChild?: (box: string, child: string | undefined) => void;
  onPick?: (loop: string, pass: number | null) => void;
  onDrawn?: () => void;
  label: string;
}

function Drawn({ graph, hasRun, selected, start, pass, childGraphs, onSelect, onClear, onToggleChild = nothing, onPick = nothing, onDrawn = nothing, label }: DrawnProps) {
  const large = graph.nodes.length > LARGE;
  // Loops of large graphs are collapsed, others open; these ones are the other way round.
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const loops = graph.nodes.filter((node) => (node.loop?.body.length ?? 0) > 1).map((node) => node.id).join("\n");
  const collapsed = useMemo(() => {
    const ids = loops === "" ? [] : loops.split("\n");
    return new Set([...(large ? ids.filter((id) => !toggled.has(id)) : []), ...[...toggled].filter((id) => !large || !ids.includes(id))]);
  }, [loops, large, toggled]);
  const drawing = useDrawing(graph, collapsed, childGraphs);
  const isDrawn = drawing !== null;
  useEffect(() => {
    if (isDrawn) onDrawn();
  }, [isDrawn, onDrawn]);
  const chosen = useMemo(() => {
    if (selected === null || drawing === null || drawing.byId.has(selected)) return selected;
    return drawing.boxes.find((each) => each.box.run === null && each.box.members?.some((member) => member.id === selected))?.box.id ?? selected;
  }, [selected, drawing]);
  const toggleLoop = useCallback((id: string) => setToggled((before) => {
    const next = new Set(before);
    if (!next.delete(id)) next.add(id);
    return next;
  }), []);
  const latest = useRef(drawing);
  latest.current = drawing;
  const toggleChild = useCallback((id: string) => onToggleChild(id, latest.current?.byId.get(id)?.box.node.child), [onToggleChild]);
  const actions = useMemo(() => ({ select: onSelect, toggleLoop, toggleChild, pick: onPick }), [onSelect, toggleLoop, toggleChild, onPick]);
  if (drawing === null) return <Loading label="Laying out the graph" />;
  return (
    <div className={css.view}>
      <Flow drawing={drawing} hasRun={hasRun} selected={chosen} start={start} pass={pass} actions={actions} label={label} {...(onClear ? { onClear } : {})}>
        {hasRun && <Legend />}
        {pass !== null && (
          <div className={css.note} role="status">
            Pass {pass.number} of {pass.loop}, as it ended.
            <Button size="s" onClick={() => onPick(pass.loop, null)}>
              Show the latest pass
            </Button>
          </div>
        )}
      </Flow>
    </div>
  );
}

function Legend() {
  const line = (fate: string) => (
    <svg width="26" height="8" aria-hidden="true">
      <path className={css.link} data-fate={fate} d="M1 4H18" />
      <path className={css.arrow} data-fate={fate} d="M17 0.5 25 4 17 7.5Z" />
    </svg>
  );
  return (
    <div className={css.legend}>
      <span>{line("taken")} taken</span>
      <span>{line("dead")} not taken</span>
      <span>{line("open")} not decided</span>
    </div>
  );
}
