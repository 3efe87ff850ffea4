// The list of runs. Everything that is chosen is in the address: `?q=` the query, `?show=failures` the groups.
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { api } from "../api/client";
import { useMay, useWorkflows } from "../api/queries";
import type { RunRow } from "../api/types";
import {
  Badge,
  Button,
  Duration,
  Empty,
  ErrorState,
  Icon,
  Loading,
  Menu,
  Spent,
  Status,
  Table,
  Tabs,
  Time,
  toast,
  useShortcut,
  useTitle,
  whenIdle,
  type Column,
} from "../ui";
import { ACTS, BulkDialog, type BulkAction, type BulkTarget } from "./bulk";
import { conditions, has, NOTHING_KNOWN, toggled, withoutCondition, type Known } from "./query";
import { QueryBar } from "./query-bar";
import { isLive, note, shownStatus } from "./rows";
import css from "./runs.module.css";
import { Facets, Failures, Histogram } from "./summary";
import { useRunList, useRunSummary, useStays } from "./use-runs";

const NARROW = window.matchMedia("(max-width: 720px)");
const MID = window.matchMedia("(max-width: 1500px)");
const SMALL = window.matchMedia("(max-width: 1080px)");

function useMedia(media: MediaQueryList): boolean {
  return useSyncExternalStore(
    (listener) => {
      media.addEventListener("change", listener);
      return () => media.removeEventListener("change", listener);
    },
    () => media.matches,
  );
}

export default function RunsPage() {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const query = typeof search.q === "string" ? search.q : "";
  const showsFailures = search.show === "failures";
  const showsFilters = search.filters === "on" || (search.filters !== "off" && !NARROW.matches);
  const navigate = useNavigate();
  const narrow = useMedia(NARROW);
  const mid = useMedia(MID);
  const small = useMedia(SMALL);
  const mayAct = useMay("runs:act");
  const mayStart = useMay("runs:start");
  useTitle(query ? `${query} · Runs` : "Runs");

  const set = useCallback(
    (change: Record<string, string | undefined>) =>
      void navigate({ to: "/runs", search: (before: Record<string, unknown>) => ({ ...before, ...change }) }),
    [navigate],
  );
  const onQuery = useCallback((q: string) => set({ q: q || undefined }), [set]);

  // Rows may move while the reader is at the top and does nothing with them.
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const listBox = useRef<HTMLDivElement>(null);
  const mayMove = useCallback(() => {
    const grid = listBox.current?.querySelector("[role=grid]");
    if (!grid) return true;
    return grid.scrollTop < 4 && !grid.matches(":hover") && !grid.matches(":focus-within") && !grid.querySelector("[aria-selected=true]");
  }, []);
  const touchRef = useRef(() => {});
  const onChange = useCallback(() => touchRef.current(), []);
  const list = useRunList(query, mayMove, onChange);
  const isRead = !list.isLoading && list.error === null;
  const stays = useStays(query, isRead);
  const summary = useRunSummary(query, stays);
  touchRef.current = summary.touch;
  useEffect(() => setSelected(new Set()), [query]);
  useEffect(() => {
    if (!isRead) return;
    // Most people open a run next: its code comes while nothing else is to do.
    return whenIdle(() => void import("../run").then(({ startWorker }) => startWorker(), () => undefined), 5_000);
  }, [isRead]);

  // The other values of a field that is asked for have counts, too: after those of the query itself.
  const counts = stays && summary.data !== undefined;
  const otherStatuses = useRunSummary(withoutCondition(query, "status"), counts && has(query, "status"));
  const otherWorkflows = useRunSummary(withoutCondition(query, "workflow"), counts && has(query, "workflow"));
  // What completions need is asked for once the reader writes a query.
  const [writes, setWrites] = useState(false);
  const all = useRunSummary("", counts && writes && query !== "");
  const catalog = useWorkflows("", 100, writes);
  const known = useMemo<Known>(() => {
    const here = summary.data ?? all.data;
    const everywhere = all.data ?? summary.data;
    if (!here || !everywhere) return NOTHING_KNOWN;
    const names = Object.fromEntries((catalog.data?.items ?? []).map((each) => [each.name, 0]));
    return {
      statuses: everywhere.facets.status,
      workflows: { ...names, ...everywhere.facets.workflow },
      versions: everywhere.facets.version,
      labels: { ...everywhere.facets.labels, ...here.facets.labels },
      failures: here.failures.groups.filter((each) => each.failure),
      people: [...new Set(list.rows.map((row) => row.submitted_by).filter(Boolean))],
    };
  }, [summary.data, all.data, catalog.data, list.rows]);

  const [bulk, setBulk] = useState<BulkTarget | null>(null);
  const actOn = (action: BulkAction) => setBulk({ action, runIds: [...selected], about: undefined });
  const actOnAll = (action: BulkAction) => setBulk({ action, query, about: query });
  const open = useCallback((row: RunRow) => void navigate({ to: "/runs/$runId", params: { runId: row.run_id } }), [navigate]);
  useShortcut("f", "Failed runs only", () => onQuery(toggled(query, "status", "failed")), "Runs");
  useShortcut("Escape", "Clear the selection", () => setSelected(new Set()), "Runs");

  const spends = list.rows.some((row) => row.model_calls > 0);
  const columns = useMemo(() => {
    // Where room is short, labels are left to the filters beside the list.
    const hidden = [...(small || (mid && showsFilters) ? ["id", "labels"] : mid ? ["id"] : []), ...(spends ? [] : ["spent"])];
    return narrow ? [CARD] : COLUMNS.filter((each) => !hidden.includes(each.id));
  }, [narrow, mid, small, spends, showsFilters]);
  const failures = summary.data?.failures;
  const counted = summary.data ? `${summary.data.counted.toLocaleString()}${summary.data.complete ? "" : "+"}` : undefined;
  const fresh = Object.keys(list.unshown.fresh).length;
  const left = Object.keys(list.unshown.left).length;

  return (
    <div className={css.page}>
      <header className={css.head}>
        <h1>Runs</h1>
        <span className={css.live} data-state={list.live} role="status">
          {list.live === "live" ? "Live" : list.live === "reconnecting" ? "Reconnecting…" : "Offline: not live"}
        </span>
        <span className={css.spring} />
        {mayStart && (
          <Link to="/workflows" className={css.start}>
            <Icon name="play" /> Start a run
          </Link>
        )}
      </header>
      <div className={css.tools} onFocus={() => setWrites(true)}>
        <Button
          icon="filter"
          aria-expanded={showsFilters}
          aria-controls="run-filters"
          onClick={() => set({ filters: showsFilters ? "off" : "on" })}
        >
          Filters
        </Button>
        <QueryBar value={query} onSubmit={onQuery} known={known} problem={list.error?.status === 422 ? list.error : null} />
      </div>
      <div className={css.body}>
        {showsFilters && (
          <aside id="run-filters" className={css.side} aria-label="Filters">
            <Facets
              summary={summary.data}
              statuses={(has(query, "status") ? otherStatuses.data : summary.data)?.facets.status}
              workflows={(has(query, "workflow") ? otherWorkflows.data : summary.data)?.facets.workflow ?? {}}
              query={query}
              onQuery={onQuery}
            />
          </aside>
        )}
        <div className={css.main}>
          {summary.data && isRead && <Histogram summary={summary.data} query={query} onQuery={onQuery} />}
          <Tabs
            label="What is shown"
            className={css.tabs}
            tabs={[
              { id: "runs", label: "Runs", ...(counted ? { count: counted } : {}) },
              { id: "failures", label: "Failure groups", ...(failures ? { count: failures.groups.length } : {}) },
            ]}
            value={showsFailures ? "failures" : "runs"}
            onChange={(id) => set({ show: id === "failures" ? "failures" : undefined })}
            end={mayAct && query && isRead && list.rows.length > 0 && <ActOnAll counted={counted} onAct={actOnAll} />}
          >
            {list.error && list.error.status !== 422 ? (
              <ErrorState error={list.error} what="the list of runs" onRetry={list.reload} />
            ) : list.error ? (
              <Empty title="The query is not understood" icon="search" action={<Button onClick={() => onQuery("")}>Show all runs</Button>}>
                The message below the query says what to change.
              </Empty>
            ) : list.isLoading ? (
              <Loading rows={12} label="Loading runs" />
            ) : showsFailures ? (
              summary.data ? (
                <Failures
                  summary={summary.data}
                  query={query}
                  mayAct={mayAct}
                  onQuery={(q) => set({ q, show: undefined })}
                  onRetry={(group) =>
                    setBulk({
                      action: "retry",
                      query: `${withoutCondition(query, "failure")} failure:${group.failure}`.trim(),
                      about: `${group.node || group.workflow}: ${group.message}`,
                    })
                  }
                />
              ) : (
                <Loading />
              )
            ) : (
              <div className={css.list} ref={listBox}>
                {(fresh > 0 || left > 0 || list.unshown.unsure) && (
                  <div className={css.news} role="status">
                    <Button
                      kind="primary"
                      size="s"
                      icon="chevron-up"
                      onClick={() => {
                        list.showNew();
                        listBox.current?.querySelector("[role=grid]")?.scrollTo({ top: 0 });
                      }}
                    >
                      {news(fresh, left)}
                    </Button>
                  </div>
                )}
                {list.rows.length === 0 ? (
                  <NoRuns query={query} onQuery={onQuery} />
                ) : (
                  <Table
                    label="Runs"
                    columns={columns}
                    rows={list.rows}
                    rowKey={runKey}
                    onOpen={open}
                    {...(mayAct ? { selected, onSelect: setSelected } : {})}
                    onEnd={list.loadMore}
                    rowHeight={narrow ? 68 : 36}
                    footer={list.isLoadingMore ? "Loading more" : list.hasMore ? "" : list.rows.length > 20 ? "These are all." : ""}
                  />
                )}
                {selected.size > 0 && <Chosen count={selected.size} onAct={actOn} onClear={() => setSelected(new Set())} />}
              </div>
            )}
          </Tabs>
        </div>
      </div>
      {bulk && (
        <BulkDialog
          target={bulk}
          onClose={() => setBulk(null)}
          onDone={() => {
            setSelected(new Set());
            list.reload();
          }}
        />
      )}
    </div>
  );
}

const runKey = (row: RunRow) => row.run_id;

function news(fresh: number, left: number): string {
  const parts = [];
  if (fresh) parts.push(`${fresh.toLocaleString()} new ${fresh === 1 ? "run" : "runs"}`);
  if (left) parts.push(`${left.toLocaleString()} no longer ${left === 1 ? "matches" : "match"}`);
  return parts.length ? `${parts.join(", ")} – show` : "There may be new runs – show";
}

function ActOnAll({ counted, onAct }: { counted: string | undefined; onAct: (action: BulkAction) => void }) {
  return (
    <span className={css.end}>
      <Menu
        align="end"
        trigger={
          <Button size="s">
            {counted ? `Act on all ${counted}` : "Act on all"} <Icon name="chevron-down" />
          </Button>
        }
        items={(Object.keys(ACTS) as BulkAction[]).map((action) => ({
          label: `${ACTS[action].word}…`,
          icon: ACTS[action].icon,
          ...(ACTS[action].danger ? { danger: true } : {}),
          onSelect: () => onAct(action),
        }))}
      />
    </span>
  );
}

function Chosen({ count, onAct, onClear }: { count: number; onAct: (action: BulkAction) => void; onClear: () => void }) {
  return (
    <div className={css.chosen} role="toolbar" aria-label="Selected runs">
      <strong>{`${count.toLocaleString()} selected`}</strong>
      {(Object.keys(ACTS) as BulkAction[]).map((action) => (
        <Button
          key={action}
          size="s"
          icon={ACTS[action].icon}
          kind={ACTS[action].danger ? "danger" : "plain"}
          onClick={() =>
            count > 1000 ? toast("At most 1,000 runs at a time: act on all by a query instead", { role: "bad" }) : onAct(action)
          }
        >
          {ACTS[action].word}
        </Button>
      ))}
      <Button size="s" kind="quiet" onClick={onClear}>
        Clear
      </Button>
    </div>
  );
}

/** Nothing was found: says which condition is to blame. */
function NoRuns({ query, onQuery }: { query: string; onQuery: (query: string) => void }) {
  const without = useQuery({
    queryKey: ["runs", query, "without"],
    enabled: query !== "",
    queryFn: ({ signal }) =>
      Promise.all(
        conditions(query)
          .slice(0, 6)
          .map(async (each) => {
            const rest = withoutCondition(query, each.key, each.value);
            const { count } = await api<{ count: number }>("GET", "/runs/count", { query: { query: rest, at_most: 1_000 }, signal });
            return { text: each.text, rest, count };
          }),
      ),
  });
  if (!query) {
    return (
      <Empty title="No runs yet" icon="runs" action={<Link to="/workflows">Choose a workflow to start</Link>}>
        Runs appear here as soon as they start.
      </Empty>
    );
  }
  return (
    <Empty title="No run matches" icon="search" action={<Button onClick={() => onQuery("")}>Show all runs</Button>}>
      {without.data?.some((each) => each.count > 0) && (
        <ul className={css.without}>
          {without.data
            .filter((each) => each.count > 0)
            .map((each) => (
              <li key={each.text}>
                Without <code dir="auto">{each.text}</code>:{" "}
                <Button kind="quiet" size="s" onClick={() => onQuery(each.rest)}>
                  {`${each.count >= 1_000 ? "1,000+" : each.count} ${each.count === 1 ? "run" : "runs"}`}
                </Button>
              </li>
            ))}
        </ul>
      )}
    </Empty>
  );
}

// Columns

function Labels({ row }: { row: RunRow }) {
  return (
    <span className={css.labels}>
      {Object.entries(row.labels).map(([key, value]) => (
        <span key={key} className={css.label} title={`${key}=${value}`}>
          <bdi className={css.labelKey}>{key}</bdi>
          <bdi>{value}</bdi>
        </span>
      ))}
    </span>
  );
}

function Took({ row }: { row: RunRow }) {
  const began = row.started_ms ?? row.created_ms;
  return row.ended_ms !== null ? (
    <Duration ms={row.ended_ms - began} />
  ) : isLive(row) ? (
    <Duration since={began} />
  ) : (
    <Duration ms={row.last_event_ms - began} />
  );
}

/** What the agents of a run have spent; known when it has ended. */
function Cost({ row }: { row: RunRow }) {
  return <Spent spent={{ calls: row.model_calls, tokens: row.model_tokens, cached_tokens: row.cached_tokens, cost: row.model_cost }} />;
}

function Note({ row }: { row: RunRow }) {
  const said = note(row);
  if (!said) return row.tolerated > 0 ? <span className="soft">{row.tolerated === 1 ? "tolerated a failure" : `tolerated ${row.tolerated.toLocaleString()} failures`}</span> : null;
  return (
    <span className={css.note} data-kind={said.kind} title={said.text}>
      {said.kind === "wait" && "for "}
      <bdi>{said.text}</bdi>
      {said.more > 0 && ` and ${said.more} more`}
    </span>
  );
}

function Name({ row }: { row: RunRow }) {
  return (
    <Link to="/runs/$runId" params={{ runId: row.run_id }} className={css.name} title={`${row.workflow}@${row.version}`} tabIndex={-1}>
      <bdi className="truncate">{row.workflow}</bdi>
      <span className={css.version}>@{row.version}</span>
      {row.revision > 0 && <Badge role="accent">patched</Badge>}
    </Link>
  );
}

/** The end of an id tells runs apart; its beginning is a time. */
const shortId = (id: string) => (/^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(id) ? `…${id.slice(-10)}` : id);

const COLUMNS: Column<RunRow>[] = [
  { id: "status", label: "Status", width: "108px", cell: (row) => <Status status={shownStatus(row)} className={css.status} /> },
  { id: "workflow", label: "Workflow", width: "minmax(150px, 1.2fr)", cell: (row) => <Name row={row} /> },
  {
    id: "id",
    label: "Run",
    width: "112px",
    cell: (row) => (
      <span className="mono soft" title={row.run_id}>
        {shortId(row.run_id)}
      </span>
    ),
  },
  { id: "note", label: "Waiting for, or error", width: "minmax(140px, 2fr)", cell: (row) => <Note row={row} /> },
  { id: "labels", label: "Labels", width: "minmax(100px, 1.3fr)", cell: (row) => <Labels row={row} /> },
  { id: "started", label: "Started", width: "80px", align: "end", cell: (row) => <Time ms={row.created_ms} /> },
  { id: "duration", label: "Duration", width: "88px", align: "end", cell: (row) => <Took row={row} /> },
  { id: "spent", label: "Spent", width: "80px", align: "end", cell: (row) => <Cost row={row} /> },
];

const CARD: Column<RunRow> = {
  id: "run",
  label: "Run",
  cell: (row) => (
    <div className={css.card}>
      <div>
        <Status status={shownStatus(row)} />
        <span className={css.spring} />
        <span className="soft">
          <Time ms={row.created_ms} /> · <Took row={row} />
          {row.model_calls > 0 && " · "}
          <Cost row={row} />
        </span>
      </div>
      <Name row={row} />
      <Note row={row} />
    </div>
  ),
};
