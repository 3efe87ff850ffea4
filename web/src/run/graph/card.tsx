// One box of the graph: a node, a collapsed loop, or a child run.
import { Link } from "@tanstack/react-router";
import { memo, type CSSProperties } from "react";
import { Duration, Icon, StatusIcon, signOf } from "../../ui";
import { isChild, joinWords, signName, typeOf, waitWords, worstItem, type DrawnNode, type Items } from "./data";
import type { DrawnBox } from "./drawing";
import css from "./graph.module.css";
import { boxStatus, type SceneBox } from "./scene";

export interface CardActions {
  select: (box: SceneBox) => void;
  focus: (id: string) => void;
  /** Collapse or open a loop. */
  toggleLoop: (id: string) => void;
  toggleChild: (id: string) => void;
  pick: (loop: string, pass: number | null) => void;
}

interface CardProps {
  drawn: DrawnBox;
  hasRun: boolean;
  selected: boolean;
  /** It is the one that Tab reaches. */
  current: boolean;
  /** A pass of its loop that is shown instead of the latest. */
  pass: number | null;
  actions: CardActions;
}

export const elementId = (id: string): string => `node-${id}`;

export const Card = memo(function Card({ drawn, hasRun, selected, current, pass, actions }: CardProps) {
  const { box } = drawn;
  const { node } = box;
  const status = boxStatus(box);
  const style: CSSProperties = { transform: `translate(${drawn.x}px, ${drawn.y}px)`, width: drawn.width, height: drawn.height };
  const words = box.members ? loopWords(box, hasRun) : stateWords(node);
  const nested = current ? 0 : -1;
  return (
    <div className={css.card} style={style} data-role={status ? signOf(status).role : "none"} data-status={status || "NONE"} data-kind={box.kind} data-open={drawn.open || undefined} data-selected={selected || undefined}>
      <button
        type="button"
        id={elementId(box.id)}
        className={css.main}
        tabIndex={nested}
        aria-pressed={selected}
        title={node.error ? `${node.id}: ${node.error.message}` : node.why ? `${node.id}: ${node.why}` : node.id}
        onClick={() => actions.select(box)}
        onFocus={() => actions.focus(box.id)}
      >
        <span className={css.title}>
          {status ? <StatusIcon status={status} /> : <Icon name={box.members ? "retry" : "workflows"} className={css.plainIcon} />}
          <span className={css.name}>{node.id}</span>
          <span className="visually-hidden">{`, ${typeOf(node)}${words ? `, ${words}` : ""}`}</span>
          <span className={css.type} aria-hidden="true">{box.members ? `loop of ${box.members.length}` : typeOf(node)}</span>
        </span>
        <span className={css.state} aria-hidden="true">{box.members ? <span>{words || "collapsed"}</span> : <State node={node} />}</span>
      </button>
      {box.members ? (
        <div className={css.extra}>
          <button type="button" className={css.small} tabIndex={nested} onClick={() => actions.toggleLoop(box.id)}>
            <Icon name="plus" size={12} /> Show its {box.members.length} nodes
          </button>
        </div>
      ) : (
        <>
          {node.join && (
            <div className={css.extra} title={joinWords(node.join, hasRun)} data-busy={(hasRun && !node.join.settled && node.join.arrived > 0) || undefined}>
              <Icon name="fork" size={12} />
              <span className="truncate">{joinWords(node.join, hasRun)}</span>
            </div>
          )}
          {node.items !== undefined && <Strip node={node} items={node.items} hasRun={hasRun} />}
          {node.loop && (
            <div className={css.extra}>
              {hasRun && node.loop.pass > 1 ? <PassPicker node={node} shown={pass} tabIndex={nested} id={box.id} actions={actions} /> : <span className="truncate">↺ {node.loop.max === null ? "until done" : `up to ${node.loop.max} passes`}</span>}
              {node.loop.body.length > 1 && (
                <button type="button" className={css.small} tabIndex={nested} onClick={() => actions.toggleLoop(box.id)}>
                  Collapse
                </button>
              )}
            </div>
          )}
          {isChild(node) && (
            <div className={css.extra}>
              {node.child === undefined ? (
                <span className="truncate">{hasRun ? "starts a run" : "runs a workflow"}</span>
              ) : (
                <>
                  <button type="button" className={css.small} tabIndex={nested} aria-expanded={drawn.open} onClick={() => actions.toggleChild(box.id)}>
                    <Icon name={drawn.open ? "minus" : "plus"} size={12} /> {drawn.open ? "Hide its steps" : "Show its steps"}
                  </button>
                  <Link className={css.small} tabIndex={nested} to="/runs/$runId" params={{ runId: node.child }}>
                    Open run
                  </Link>
                </>
              )}
            </div>
          )}
        </>
      )}
    </div>
  );
});

/** The second line: word, time, attempts. */
function State({ node }: { node: DrawnNode }) {
  const name = signName(node);
  if (name === "") return <span>{node.join || node.loop || node.items !== undefined ? "" : " "}</span>;
  const parts = [];
  const wait = waitWords(node);
  parts.push(
    <span key="word" className={css.word}>
      {signOf(name).word}
      {wait && ` ${wait}`}
      {node.held && " (held back)"}
    </span>,
  );
  if (node.status === "RUNNING" || node.status === "WAITING" || node.status === "QUEUED") {
    if (node.since_ms !== undefined) parts.push(<Duration key="time" since={node.since_ms} />);
  } else if (node.duration_ms > 0 && node.attempts <= 1) parts.push(<Duration key="time" ms={node.duration_ms} />);
  if (node.attempts > 1 && name !== "RETRYING" && name !== "HANDLED") parts.push(<span key="attempts">{node.status === "RUNNING" || node.status === "QUEUED" ? `attempt ${node.attempts}` : `${node.attempts} attempts`}</span>);
  if (node.visits > 1 && !node.loop) parts.push(<span key="visits">visit {node.visits}</span>);
  return <>{parts.flatMap((part, at) => (at === 0 ? [part] : [<i key={`dot${at}`} aria-hidden="true"> · </i>, part]))}</>;
}

export function stateWords(node: DrawnNode): string {
  const name = signName(node);
  if (name === "") return "";
  const attempts = node.attempts > 1 ? `, attempt ${node.attempts}` : "";
  const items = node.items ? `, ${node.items.done} of ${node.items.count} items done${node.items.failed ? `, ${node.items.failed} failed` : ""}` : "";
  const join = node.join && !node.join.settled ? `, ${joinWords(node.join, true)}` : "";
  return `${signOf(name).word}${node.wait ? ` ${waitWords(node)}` : ""}${attempts}${items}${join}`;
}

function loopWords(box: SceneBox, hasRun: boolean): string {
  const loop = box.node.loop;
  if (!hasRun || loop === undefined) return "";
  return `${signOf(boxStatus(box)).word} · pass ${loop.pass}${loop.max === null ? "" : ` of at most ${loop.max}`}`;
}

const count = (value: number): string => value.toLocaleString();

/** The items of a map: how many stand how, and the worst of them. */
function Strip({ node, items, hasRun }: { node: DrawnNode; items: Items | null; hasRun: boolean }) {
  if (items === null) return <div className={css.extra}><span className="truncate">{hasRun ? "its list is not known yet" : "once per item of a list"}</span></div>;
  const parts: [kind: string, number: number][] = [
    ["failed", items.failed],
    ["done", items.done],
    ["running", items.running ?? 0],
    ["waiting", (items.waiting ?? 0) + (items.retrying ?? 0)],
    ["queued", items.queued ?? 0],
    ["skipped", items.skipped ?? 0],
  ];
  const worst = worstItem(node);
  const words = `${count(items.done)} of ${count(items.count)}${items.failed ? ` · ${count(items.failed)} failed` : ""}`;
  const all = parts.filter(([, number]) => number > 0).map(([kind, number]) => `${count(number)} ${kind}`);
  return (
    <div className={css.extra} title={all.join(", ") || "no items"}>
      <StatusIcon status={worst} size={12} />
      <span className={css.strip} aria-hidden="true">
        {parts.map(([kind, number]) => number > 0 && <span key={kind} data-kind={kind} style={{ flexGrow: number }} />)}
        {items.count > 0 && <span data-kind="rest" style={{ flexGrow: Math.max(0, items.count - parts.reduce((sum, [, number]) => sum + number, 0)) }} />}
      </span>
      <span className="numbers">{words}</span>
    </div>
  );
}

function PassPicker({ node, shown, id, tabIndex, actions }: { node: DrawnNode; shown: number | null; id: string; tabIndex: number; actions: CardActions }) {
  const last = node.loop?.pass ?? 1;
  const pass = shown ?? last;
  const go = (to: number): void => actions.pick(id, to >= last ? null : to);
  return (
    <span className={css.passes} data-past={shown !== null || undefined}>
      <button type="button" tabIndex={tabIndex} aria-label="Earlier pass" disabled={pass <= 1} onClick={() => go(pass - 1)}>
        <Icon name="chevron-left" size={12} />
      </button>
      <span className="numbers">
        pass {pass} of {last}
      </span>
      <button type="button" tabIndex={tabIndex} aria-label="Later pass" disabled={pass >= last} onClick={() => go(pass + 1)}>
        <Icon name="chevron-right" size={12} />
      </button>
    </span>
  );
}
