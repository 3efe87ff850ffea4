/** Every event of a run: only the pages in sight are loaded, and the server filters. */
import { useInfiniteQuery, useQueries } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { api } from "../api/client";
import { absolute, Button, Copy, Empty, ErrorState, JsonView, Loading, useShortcut } from "../ui";
import { runPath, type RunEvent, type RunModel } from "./model";
import css from "./run.module.css";
import { clock, EventSign, useEvent } from "./scrub";
import { useSelection } from "./selection";
import { eventWords, placeWords } from "./words";

const PAGE = 100;
const ROW = 30;

const KINDS: Record<string, { label: string; types: string[] }> = {
  failures: { label: "Failures", types: ["NodeFailed", "RunFailed", "DeadLettered", "CompensationFailed", "ResultDiscarded"] },
  ends: { label: "Ends of steps", types: ["NodeCompleted", "NodeFailed", "NodeSkipped", "NodeCancelled", "NodeOverridden"] },
  people: {
    label: "People and signals",
    types: ["ApprovalRequested", "ApprovalVoted", "ApprovalDelegated", "ApprovalReturned", "ApprovalDecided", "ApprovalEscalated", "ApprovalExpired", "SignalReceived", "NodeOverridden"],
  },
  run: {
    label: "The run as a whole",
    types: ["RunCreated", "RunPaused", "RunResumed", "RunCompleted", "RunFailed", "RunCancelled", "RunRetried", "RunRewound", "RunPatched", "RunForked", "RunLabelled", "RunRepaired", "RollbackStarted", "RollbackFinished"],
  },
};

interface Filter {
  kind: string;
  node: string;
  text: string;
}

/** `kind:failures node:charge some text` */
function readFilter(text: string): Filter {
  const found: Filter = { kind: "", node: "", text: "" };
  const rest: string[] = [];
  for (const word of text.split(" ")) {
    if (word.startsWith("kind:") && KINDS[word.slice(5)]) found.kind = word.slice(5);
    else if (word.startsWith("node:")) found.node = word.slice(5);
    else rest.push(word);
  }
  return { ...found, text: rest.join(" ").trim() };
}

const writeFilter = ({ kind, node, text }: Filter): string => [kind && `kind:${kind}`, node && `node:${node}`, text].filter(Boolean).join(" ");

export function HistoryView({ model }: { model: RunModel }) {
  const { filter, node, select } = useSelection();
  const wanted = readFilter(filter);
  const [typed, setTyped] = useState(wanted.text);
  const input = useRef<HTMLInputElement>(null);
  useShortcut("/", "Search the history", () => input.current?.focus(), "Run");
  const set = (change: Partial<Filter>): void => select({ filter: writeFilter({ ...wanted, ...change }) }, { replace: true });
  useEffect(() => {
    if (typed.trim() === wanted.text) return;
    const timer = setTimeout(() => set({ text: typed.trim() }), 300);
    return () => clearTimeout(timer);
  });
  return (
    <div className={css.history}>
      <div className={css.filterBar}>
        <input ref={input} type="search" placeholder="Search in events" aria-label="Search in events" maxLength={200} value={typed} onChange={(change) => setTyped(change.target.value)} />
        <select aria-label="Which events" value={wanted.kind} onChange={(change) => set({ kind: change.target.value })}>
          <option value="">All events</option>
          {Object.entries(KINDS).map(([id, { label }]) => (
            <option key={id} value={id}>
              {label}
            </option>
          ))}
        </select>
        {node !== null && wanted.node !== node && (
          <Button size="s" onClick={() => set({ node })}>
            Only <span dir="auto">{node}</span>
          </Button>
        )}
        {wanted.node && (
          <Button size="s" icon="close" onClick={() => set({ node: "" })}>
            Only <span dir="auto">{wanted.node}</span>
          </Button>
        )}
      </div>
      {filter ? <Filtered model={model} filter={wanted} onClear={() => { setTyped(""); select({ filter: "" }, { replace: true }); }} /> : <Everything model={model} />}
    </div>
  );
}

type Rows = { count: number; get: (index: number) => RunEvent | null; onRange: (first: number, last: number) => void };

function Everything({ model }: { model: RunModel }) {
  const total = model.at ?? model.total;
  const { event } = useSelection();
  const start = event === null ? 0 : Math.floor((Math.min(event, total) - 1) / PAGE);
  const [[first, last], setRange] = useState<[number, number]>([start, start]);
  const pages = useQueries({
    queries: Array.from({ length: last - first + 1 }, (_, each) => {
      const page = first + each;
      // The last page grows; it is asked for again when it has.
      const known = Math.min(total - page * PAGE, PAGE);
      return {
        queryKey: ["run-events", model.id, page, known],
        queryFn: ({ signal }: { signal: AbortSignal }) => api<{ items: RunEvent[] }>("GET", `${runPath(model.id)}/events`, { query: { after: page * PAGE, limit: PAGE, brief: true }, signal }),
        staleTime: Infinity,
        gcTime: 60_000,
        placeholderData: (before: { items: RunEvent[] } | undefined) => (before?.items[0]?.seq === page * PAGE + 1 ? before : undefined),
      };
    }),
  });
  const problem = pages.find((page) => page.error)?.error;
  if (problem && pages.every((page) => page.data === undefined)) return <ErrorState error={problem} what="the history" />;
  const rows: Rows = {
    count: total,
    get: (index) => pages[Math.floor(index / PAGE) - first]?.data?.items[index % PAGE] ?? null,
    onRange: (from, to) => {
      const [low, high] = [Math.floor(from / PAGE), Math.floor(to / PAGE)];
      if (low !== first || high !== last) setRange([low, high]);
    },
  };
  return <EventList model={model} rows={rows} indexOf={(seq) => seq - 1} />;
}

function Filtered({ model, filter, onClear }: { model: RunModel; filter: Filter; onClear: () => void }) {
  const found = useInfiniteQuery({
    queryKey: ["run", model.id, "find-events", filter, model.total],
    queryFn: ({ pageParam, signal }) =>
      api<{ items: RunEvent[]; next: string | null }>("GET", `${runPath(model.id)}/events`, {
        query: { after: pageParam, limit: PAGE, brief: true, node: filter.node, type: KINDS[filter.kind]?.types, contains: filter.text },
        signal,
      }),
    initialPageParam: "0",
    getNextPageParam: (page) => page.next,
    placeholderData: (before) => before,
  });
  const events = useMemo(() => found.data?.pages.flatMap((page) => page.items) ?? [], [found.data]);
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = found;
  if (found.isPending) return <Loading />;
  if (found.error) return <ErrorState error={found.error} what="the history" onRetry={() => void found.refetch()} />;
  if (events.length === 0) {
    return (
      <Empty title="No event like this" action={<Button onClick={onClear}>Show all events</Button>}>
        None of the {model.total.toLocaleString()} events matches.
      </Empty>
    );
  }
  const rows: Rows = {
    count: events.length,
    get: (index) => events[index] ?? null,
    onRange: (_, to) => {
      if (hasNextPage && !isFetchingNextPage && to > events.length - 40) void fetchNextPage();
    },
  };
  return (
    <>
      <p className={css.found} role="status">
        {events.length.toLocaleString()}
        {hasNextPage ? " or more" : ""} of {model.total.toLocaleString()} events
      </p>
      <EventList model={model} rows={rows} indexOf={(seq) => events.findIndex((each) => each.seq === seq)} />
    </>
  );
}

function EventList({ model, rows, indexOf }: { model: RunModel; rows: Rows; indexOf: (seq: number) => number }) {
  const { event: opened, node: selected, select } = useSelection();
  const list = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: rows.count, getScrollElement: () => list.current, estimateSize: () => ROW, overscan: 8 });
  const items = virtual.getVirtualItems();
  const [first, last] = [items[0]?.index ?? 0, items.at(-1)?.index ?? 0];
  useEffect(() => rows.onRange(first, last));
  const place = opened === null ? -1 : indexOf(opened);
  useEffect(() => {
    if (place >= 0) virtual.scrollToIndex(place, { align: "auto" });
  }, [place]);
  const move = (step: number): void => {
    const next = Math.max(0, Math.min(rows.count - 1, place + step));
    const seq = rows.get(next)?.seq ?? (indexOf(next + 1) === next ? next + 1 : null);
    if (seq !== null) select({ event: seq }, { replace: true });
  };
  useShortcut("j", "Next event", () => move(1), "Run");
  useShortcut("k", "Previous event", () => move(-1), "Run");
  return (
    <div className={css.historyBody}>
      <div ref={list} className={css.eventList} tabIndex={0} role="list" aria-label="Events">
        <div className={css.eventSpace} style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const event = rows.get(item.index);
            return (
              <div key={item.key} role="listitem" aria-setsize={rows.count} aria-posinset={item.index + 1} className={css.eventRow} style={{ transform: `translateY(${item.start}px)` }}>
                {event === null ? (
                  <span className={css.eventWaiting}>#{item.index + 1}</span>
                ) : (
                  <EventRow event={event} opened={event.seq === opened} ofNode={selected !== null && event.node === selected} onOpen={() => select({ event: event.seq === opened ? null : event.seq })} />
                )}
              </div>
            );
          })}
        </div>
      </div>
      {opened !== null && <EventDetail model={model} seq={opened} />}
    </div>
  );
}

function EventRow({ event, opened, ofNode, onOpen }: { event: RunEvent; opened: boolean; ofNode: boolean; onOpen: () => void }) {
  return (
    <button type="button" className={css.eventButton} aria-expanded={opened} data-of-node={ofNode || undefined} onClick={onOpen}>
      <span className={`${css.seq} numbers`}>{event.seq}</span>
      <EventSign event={event} />
      <span className={`${css.eventTime} numbers`} title={absolute(event.at_ms)}>
        {clock(event.at_ms)}
      </span>
      <span className={`${css.eventNode} truncate`} dir="auto">
        {placeWords(event)}
      </span>
      <span className={`${css.eventWords} truncate`} dir="auto">
        {eventWords(event) || event.type}
      </span>
      {event.actor && (
        <span className={`${css.eventActor} truncate`} dir="auto">
          {event.actor}
        </span>
      )}
    </button>
  );
}

function EventDetail({ model, seq }: { model: RunModel; seq: number }) {
  const { select } = useSelection();
  const found = useEvent(model.id, seq, false);
  const event = found.data;
  const cause = useEvent(model.id, event?.cause ?? null, true).data;
  if (found.isPending) return <section className={css.eventDetail} aria-label={`Event ${seq}`}><Loading rows={3} /></section>;
  return (
    <section className={css.eventDetail} aria-label={`Event ${seq}`}>
      {event == null ? (
        <p className={css.none}>The run has no event #{seq}.</p>
      ) : (
        <>
          <div className={css.eventHead}>
            <h3>
              #{event.seq} {event.type}
            </h3>
            <Copy text={location.href}>Copy link</Copy>
            <Button size="s" icon="clock" onClick={() => select({ at: event.seq, view: "state", event: null })}>
              State after it
            </Button>
            <Button size="s" icon="close" kind="quiet" onClick={() => select({ event: null })}>
              Close
            </Button>
          </div>
          <p dir="auto">
            <span className="soft">{absolute(event.at_ms)}</span>
            {event.actor && <> · by {event.actor}</>}
          </p>
          {event.cause !== undefined && event.cause > 0 && (
            <p dir="auto">
              Because of{" "}
              <button type="button" className={css.linkButton} onClick={() => select({ event: event.cause! })}>
                #{event.cause}
                {cause && ` ${placeWords(cause)} ${eventWords(cause)}`}
              </button>
            </p>
          )}
          {event.node && model.run.nodes[event.node] && (
            <p>
              <button type="button" className={css.linkButton} onClick={() => select({ node: event.node!, visit: event.visit ?? null, item: event.index ?? null, attempt: event.attempt ?? null })}>
                Show the step <span dir="auto">{placeWords(event)}</span>
              </button>
            </p>
          )}
          {event.child && (
            <p>
              <Link to="/runs/$runId" params={{ runId: event.child }}>
                Open the child run
              </Link>
            </p>
          )}
          <JsonView value={event} label={`Event ${seq} as JSON`} />
        </>
      )}
    </section>
  );
}
