/** The panel of a step: how it ended and why, what it was given and returned, its attempts, logs and stream. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { lazy, Suspense, useMemo, useState } from "react";
import { api, seg } from "../api/client";
import { Badge, Button, Copy, Duration, IconButton, Loading, Status, Tabs, Time } from "../ui";
import { CopyAs } from "./header";
import { blockerOf, errorName, firstFailure, hasEnded, nodeOf, runPath, signOfNode, stateOf, UPSTREAM_FAILED, typeName, undoneNodes, type NodeState, type RunError, type RunEvent, type RunModel } from "./model";
import { Logs, Stream } from "./output";
import css from "./run.module.css";
import { useSelection } from "./selection";
import { ValueView } from "./values";
import { sentence, stepSentence } from "./words";

const Transcript = lazy(() => import("./transcript"));
const StepActions = lazy(() => import("./actions").then((module) => ({ default: module.StepActions })));

const EVENTS = 1_000;

export interface Attempt {
  number: number;
  visit: number;
  worker: string;
  begun_ms: number | null;
  ended_ms: number | null;
  duration_ms: number | null;
  outcome: "running" | "completed" | "failed" | "waiting" | "lost" | "cancelled";
  error: RunError | null;
  retry_at_ms: number | null;
}

interface Place {
  attempts: Attempt[];
  /** The event that ended it. */
  ended: number | null;
  child: string | null;
}

/** Attempts of a visit or item, from its events. */
export function placeOf(events: readonly RunEvent[], index: number | null): Place {
  const attempts: Attempt[] = [];
  let ended: number | null = null;
  let child: string | null = null;
  for (const event of events) {
    if ((event.index ?? null) !== index) continue;
    const number = event.attempt ?? attempts.length;
    let attempt = attempts.find((each) => each.number === number);
    if (event.type === "ChildStarted") child = event.child ?? null;
    if (attempt === undefined && event.attempt !== undefined && event.attempt > 0 && /^Node(Started|Failed|Completed|Waiting)$/.test(event.type)) {
      attempt = { number, visit: event.visit ?? 1, worker: "", begun_ms: null, ended_ms: null, duration_ms: null, outcome: "running", error: null, retry_at_ms: null };
      attempts.push(attempt);
    }
    if (event.type === "NodeCompleted" || event.type === "NodeSkipped" || event.type === "NodeOverridden" || (event.type === "NodeFailed" && event.retry_at_ms === undefined)) ended = event.seq;
    if (event.type === "NodeCancelled") ended = event.seq;
    if (attempt === undefined) continue;
    if (event.worker) attempt.worker = event.worker;
    if (event.duration_ms !== undefined) attempt.duration_ms = event.duration_ms;
    if (event.type === "NodeStarted") {
      attempt.begun_ms = event.at_ms;
      attempt.outcome = "running";
    } else if (event.type === "NodeFailed") {
      attempt.outcome = event.lost ? "lost" : "failed";
      attempt.error = event.error ?? null;
      attempt.retry_at_ms = event.retry_at_ms ?? null;
      attempt.ended_ms = event.at_ms;
    } else if (event.type === "NodeCompleted") {
      attempt.outcome = "completed";
      attempt.ended_ms = event.at_ms;
    } else if (event.type === "NodeWaiting") {
      attempt.outcome = "waiting";
      attempt.ended_ms = event.at_ms;
    } else if (event.type === "NodeCancelled") {
      attempt.outcome = "cancelled";
      attempt.ended_ms = event.at_ms;
    }
  }
  return { attempts, ended, child };
}

const OUTCOME_STATUS: Record<Attempt["outcome"], string> = { running: "RUNNING", completed: "COMPLETED", failed: "FAILED", waiting: "WAITING", lost: "STUCK", cancelled: "CANCELLED" };
const OUTCOME_WORDS: Record<Attempt["outcome"], string> = { running: "running", completed: "succeeded", failed: "failed", waiting: "waits", lost: "its worker was lost", cancelled: "cancelled" };

/** Changes when something about a node has. */
const versionOf = (state: NodeState): string => [state.status, state.visits, state.attempts, state.items?.done, state.items?.failed].join("/");

export function StepPanel({ model, node }: { model: RunModel; node: string }) {
  const selection = useSelection();
  const { select, item, attempt } = selection;
  const known = nodeOf(model, node);
  const state = stateOf(model, node);
  const visit = Math.min(selection.visit ?? state.visits, state.visits);
  const isLatest = visit === state.visits;
  const version = isLatest ? versionOf(state) : "past";
  const events = useQuery({
    queryKey: ["run", model.id, "node-events", node, visit, item, model.at, version],
    queryFn: async ({ signal }) => {
      const page = await api<{ items: RunEvent[] }>("GET", `${runPath(model.id)}/events`, {
        query: { node, visit, index: item ?? undefined, limit: EVENTS, brief: true, type: item === null ? undefined : ITEM_TYPES },
        signal,
      });
      return model.at === null ? page.items : page.items.filter((each) => each.seq <= model.at!);
    },
    placeholderData: keepPreviousData,
    staleTime: Infinity,
  });
  const place = useMemo(() => placeOf(events.data ?? [], item), [events.data, item]);
  const isAgent = known !== undefined && typeName(known) === "agent";
  const failing = place.attempts.findLast((each) => each.error !== null && (attempt === null || each.number === attempt));
  const error = item === null && isLatest && attempt === null ? (state.error ?? failing?.error ?? null) : (failing?.error ?? null);
  const status = item === null && isLatest ? (undoneNodes(model.run).has(node) ? "ROLLED_BACK" : signOfNode(state)) : place.attempts.at(-1) ? OUTCOME_STATUS[place.attempts.at(-1)!.outcome] : state.status;
  const showsError = error !== null && (status === "FAILED" || status === "HANDLED" || status === "NEVER_BEGAN" || status === "QUEUED" || status === "RUNNING" || attempt !== null);
  const tabs = [
    { id: "overview", label: error === null ? "Overview" : "Error" },
    ...(isAgent ? [{ id: "transcript", label: "Transcript" }] : []),
    { id: "input", label: "Input" },
    { id: "output", label: "Output" },
    { id: "logs", label: "Logs" },
    ...(hasEnded(model.run) || model.at !== null || isAgent ? [] : [{ id: "stream", label: "Stream" }]),
  ];
  const wanted = selection.tab ?? (isAgent && error === null ? "transcript" : "overview");
  const tab = tabs.some((each) => each.id === wanted) ? wanted : "overview";
  const outputAt = isLatest ? model.at : (place.ended ?? model.at);
  return (
    <aside className={css.panel} aria-label={`Step ${node}`}>
      <header className={css.panelHead}>
        <div className={css.panelTitle}>
          <h2 className="truncate" dir="auto" title={node}>
            {node}
          </h2>
          <IconButton icon="close" size="s" label="Close the step" keys="Escape" onClick={() => select({ node: null })} />
        </div>
        <div className={css.panelFacts}>
          <Status status={status} pill />
          <span className="soft">{known?.type.replace(/@1$/, "")}</span>
          {state.since_ms !== undefined && state.status === "RUNNING" && (
            <span className="soft">
              for <Duration since={state.since_ms} />
            </span>
          )}
          {known?.delivery === "at_most_once" && <Badge title="It is never started twice; if its worker is lost, its outcome is unknown">at most once</Badge>}
          {known?.compensator && <Badge title={`Undone by ${known.compensator.type}`}>can be undone</Badge>}
        </div>
        <Passes state={state} visit={visit} onVisit={(next) => select({ visit: next === state.visits ? null : next, attempt: null })} />
        {state.items && <Items model={model} node={node} state={state} />}
        {isLatest && (
          <Suspense fallback={null}>
            <StepActions model={model} node={node} index={item} />
          </Suspense>
        )}
      </header>
      <Tabs className={css.panelTabs} label="About the step" tabs={tabs} value={tab} onChange={(next) => select({ tab: next }, { replace: true })}>
        <div className={css.panelBody}>
          {tab === "overview" && (
            <>
              {showsError && (error.code === UPSTREAM_FAILED ? <FailedWith model={model} message={error.message} /> : <ErrorBlock error={error} />)}
              <Waits model={model} node={node} latest={isLatest} />
              {place.child && (
                <p>
                  <Link to="/runs/$runId" params={{ runId: place.child }}>
                    Open the child run
                  </Link>
                </p>
              )}
              <Attempts attempts={place.attempts} chosen={attempt} loading={events.isPending} onChoose={(number) => select({ attempt: number === attempt ? null : number }, { replace: true })} />
              <Identity model={model} node={node} visit={visit} item={item} />
            </>
          )}
          {tab === "input" && <ValueView asked={{ run: model.id, node, what: "input", visit, item, at: model.at, version: `${place.attempts.length}` }} none="It was given nothing yet: no attempt has begun." />}
          {tab === "output" && <ValueView asked={{ run: model.id, node, what: "output", visit, item, at: outputAt, version }} none={status === "NEVER_BEGAN" ? "It returned nothing: it never began." : status === "FAILED" ? "It returned nothing: it failed." : "It has returned nothing yet."} />}
          {tab === "logs" && <Logs model={model} node={node} visit={visit} item={item} attempt={attempt} version={version} />}
          {tab === "stream" && <Stream model={model} node={node} visit={visit} item={item} />}
          {tab === "transcript" && (
            <Suspense fallback={<Loading />}>
              <Transcript model={model} node={node} visit={visit} item={item} />
            </Suspense>
          )}
        </div>
      </Tabs>
    </aside>
  );
}

const ITEM_TYPES = ["NodeStarted", "NodeWaiting", "NodeCompleted", "NodeFailed", "NodeSkipped", "NodeCancelled", "NodeOverridden", "ChildStarted"];

function Waits({ model, node, latest }: { model: RunModel; node: string; latest: boolean }) {
  const blocker = latest ? blockerOf(model, node) : undefined;
  const told = useQuery({
    queryKey: ["run", model.id, "why", node],
    queryFn: ({ signal }) => api<{ headline: string }>("GET", `${runPath(model.id)}/why/${seg(node)}`, { signal }),
    enabled: model.at === null && latest && blocker === undefined,
  });
  if (blocker) {
    return (
      <div className={css.waits}>
        <p dir="auto">{stepSentence(node, blocker.words)}</p>
        {blocker.until_ms !== null && (
          <p className="soft">
            until <Time ms={blocker.until_ms} />
          </p>
        )}
        {blocker.unblock && <p className="soft">{sentence(blocker.unblock)}</p>}
      </div>
    );
  }
  if (model.at !== null || !latest || !told.data || stateOf(model, node).status === "FAILED") return null;
  return <p dir="auto">{stepSentence(node, told.data.headline)}</p>;
}

/** It never began: what failed first is elsewhere. */
function FailedWith({ model, message }: { model: RunModel; message: string }) {
  const { select } = useSelection();
  const first = firstFailure(model);
  return (
    <section className={css.waits}>
      <p dir="auto">It never began: {message}.</p>
      {first && (
        <button type="button" className={css.linkButton} onClick={() => select({ node: first.node, item: first.item, tab: null })}>
          Show what failed first: <b dir="auto">{first.node}</b>
        </button>
      )}
    </section>
  );
}

/** What went wrong: the message, what to do, the causes, and where in the code. */
export function ErrorBlock({ error }: { error: RunError }) {
  return (
    <section className={css.error} aria-label="Error">
      <p className={css.errorText} dir="auto">
        <b>{errorName(error)}</b> {error.message}
      </p>
      {error.hint && (
        <p className={css.hint} dir="auto">
          {sentence(error.hint)}
        </p>
      )}
      {error.causes && error.causes.length > 0 && (
        <>
          <h3>Caused by</h3>
          <ol className={css.causes}>
            {error.causes.map((each, index) => (
              <li key={index} dir="auto">
                {each}
              </li>
            ))}
          </ol>
        </>
      )}
      {error.traceback && (
        <details open className={css.traceback}>
          <summary>Traceback</summary>
          <Copy text={error.traceback}>Copy</Copy>
          <pre tabIndex={0} aria-label="Traceback">
            {error.traceback}
          </pre>
        </details>
      )}
    </section>
  );
}

function Passes({ state, visit, onVisit }: { state: NodeState; visit: number; onVisit: (visit: number) => void }) {
  if (state.visits <= 1) return null;
  return (
    <div className={css.picker}>
      <span className="soft">Pass</span>
      <IconButton icon="chevron-left" size="s" label="The pass before" disabled={visit <= 1} onClick={() => onVisit(visit - 1)} />
      <select aria-label="Pass" value={visit} onChange={(change) => onVisit(Number(change.target.value))}>
        {Array.from({ length: Math.min(state.visits, 500) }, (_, index) => state.visits - index).map((number) => (
          <option key={number} value={number}>
            {number} of {state.visits}
          </option>
        ))}
      </select>
      <IconButton icon="chevron-right" size="s" label="The next pass" disabled={visit >= state.visits} onClick={() => onVisit(visit + 1)} />
    </div>
  );
}

interface Item {
  index: number;
  status: string;
  attempts: number;
  error: RunError | null;
}

function Items({ model, node, state }: { model: RunModel; node: string; state: NodeState }) {
  const { item, select } = useSelection();
  const { count, done, failed } = state.items!;
  const [typed, setTyped] = useState("");
  const broken = useQuery({
    queryKey: ["run", model.id, "items", node, model.at, failed],
    queryFn: ({ signal }) => api<{ items: Item[] }>("GET", `${runPath(model.id)}/nodes/${seg(node)}/items`, { query: { status: "FAILED", limit: 20, at: model.at ?? undefined }, signal }),
    enabled: failed > 0,
    staleTime: Infinity,
  });
  const choose = (index: number | null): void => select({ item: index, attempt: null });
  return (
    <div className={css.items}>
      <div className={css.picker}>
        <span className="soft">
          {done.toLocaleString()} of {count.toLocaleString()} items done{failed > 0 && `, ${failed.toLocaleString()} failed`}
        </span>
        <form
          className={css.picker}
          onSubmit={(submit) => {
            submit.preventDefault();
            const number = Number(typed);
            if (typed !== "" && Number.isInteger(number) && number >= 0 && number < count) choose(number);
          }}
        >
          <input type="number" min={0} max={count - 1} placeholder={item === null ? "item" : String(item)} aria-label="Item" value={typed} onChange={(change) => setTyped(change.target.value)} />
          <Button size="s" type="submit">
            Show item
          </Button>
        </form>
        {item !== null && (
          <Button size="s" kind="quiet" onClick={() => choose(null)}>
            The whole map
          </Button>
        )}
      </div>
      {item !== null && <p>Item {item}</p>}
      {broken.data && broken.data.items.length > 0 && (
        <ul className={css.brokenItems} aria-label="Failed items">
          {broken.data.items.map((each) => (
            <li key={each.index}>
              <button type="button" aria-pressed={each.index === item} className={css.chip} title={each.error?.message} onClick={() => choose(each.index)}>
                <Status status="FAILED" word={`item ${each.index}`} />
              </button>
            </li>
          ))}
          {failed > broken.data.items.length && <li className="soft">and more</li>}
        </ul>
      )}
    </div>
  );
}

function Attempts({ attempts, chosen, loading, onChoose }: { attempts: Attempt[]; chosen: number | null; loading: boolean; onChoose: (number: number) => void }) {
  if (loading) return <Loading rows={2} />;
  if (attempts.length === 0) return <p className={css.none}>No attempt has begun.</p>;
  return (
    <section>
      <h3>{attempts.length === 1 ? "One attempt" : `${attempts.length} attempts`}</h3>
      <ol className={css.attempts}>
        {attempts.map((each) => (
          <li key={each.number}>
            <button type="button" className={css.attempt} aria-pressed={each.number === chosen} onClick={() => onChoose(each.number)}>
              <span className={css.attemptHead}>
                <b>{each.number}</b>
                <Status status={OUTCOME_STATUS[each.outcome]} word={OUTCOME_WORDS[each.outcome]} />
                {each.begun_ms !== null && <Duration ms={each.duration_ms ?? (each.ended_ms !== null ? each.ended_ms - each.begun_ms : null)} {...(each.outcome === "running" ? { since: each.begun_ms } : {})} />}
                {each.begun_ms !== null && <Time ms={each.begun_ms} className="soft" />}
              </span>
              {each.worker && (
                <span className="soft truncate">
                  on <code>{each.worker}</code>
                </span>
              )}
              {each.error && (
                <span className={css.attemptError} dir="auto">
                  {each.error.message}
                </span>
              )}
              {each.retry_at_ms !== null && (
                <span className="soft">
                  tried again <Time ms={each.retry_at_ms} />
                </span>
              )}
            </button>
          </li>
        ))}
      </ol>
    </section>
  );
}

function Identity({ model, node, visit, item }: { model: RunModel; node: string; visit: number; item: number | null }) {
  const key = `${model.id}/${node}/${visit}/${item ?? -1}`;
  const known = nodeOf(model, node);
  return (
    <section className={css.identity}>
      <dl>
        <div>
          <dt title="Equal for every attempt: receivers can deduplicate by it">Effect key</dt>
          <dd>
            <code className="truncate" title={key}>
              {key}
            </code>
            <Copy text={key} label="Copy the effect key" />
          </dd>
        </div>
        <div>
          <dt>Queue</dt>
          <dd>{known?.queue ?? "default"}</dd>
        </div>
        <div>
          <dt>Attempts allowed</dt>
          <dd>{known?.retry?.max_attempts ?? 3}</dd>
        </div>
      </dl>
      <CopyAs run={model.id} node={node} />
    </section>
  );
}
