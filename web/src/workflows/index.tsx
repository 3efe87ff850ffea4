// The published workflows, the one that changed last first.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useRef } from "react";
import { api } from "../api/client";
import { countsQuery, useMay } from "../api/queries";
import type { Page, RunSummary, WorkflowRow } from "../api/types";
import { Badge, Empty, ErrorState, Loading, StatusIcon, Table, Time, useShortcut, useTitle, type Column } from "../ui";
import page from "../ui/page.module.css";
import css from "./workflows.module.css";

export default function WorkflowsPage() {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const filter = typeof search.q === "string" ? search.q : "";
  const navigate = useNavigate();
  const mayStart = useMay("runs:start");
  useTitle("Workflows");
  const input = useRef<HTMLInputElement>(null);
  useShortcut("/", "Find a workflow", () => input.current?.focus(), "Workflows");
  const found = useInfiniteQuery({
    queryKey: ["workflows", "list"],
    queryFn: ({ pageParam, signal }) => api<Page<WorkflowRow>>("GET", "/workflows", { query: { limit: 200, after: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (last: Page<WorkflowRow>) => last.next,
  });
  const running = useQuery({ ...countsQuery("live"), refetchInterval: 10_000 });
  const failed = useQuery({ ...countsQuery("status:failed started>-24h"), refetchInterval: 30_000 });
  const all = useMemo(() => found.data?.pages.flatMap((each) => each.items) ?? [], [found.data]);
  const wanted = filter.toLowerCase();
  const rows = all.filter((row) => `${row.name} ${row.description} ${Object.keys(row.tags).join(" ")}`.toLowerCase().includes(wanted));
  const columns: Column<WorkflowRow>[] = [
    {
      id: "name",
      label: "Workflow",
      width: "minmax(180px, 3fr)",
      cell: (row) => (
        <span className={css.name}>
          <Link to="/workflows/$name" params={{ name: row.name }} className="truncate" title={row.name} tabIndex={-1}>
            <bdi>{row.name}</bdi>
          </Link>
          {row.description && (
            <span className={`${css.description} truncate`} title={row.description}>
              <bdi>{row.description}</bdi>
            </span>
          )}
        </span>
      ),
    },
    { id: "version", label: "Version", width: "72px", align: "end", wide: true, cell: (row) => `@${row.version}` },
    { id: "tags", label: "Tags", width: "minmax(100px, 1fr)", wide: true, cell: (row) => <Tags row={row} /> },
    {
      id: "live",
      label: "Not ended",
      width: "80px",
      align: "end",
      cell: (row) => <Count query={`workflow:${row.name} live`} status="RUNNING" of={running.data} name={row.name} />,
    },
    {
      id: "failed",
      label: "Failed, 24 h",
      width: "88px",
      align: "end",
      wide: true,
      cell: (row) => <Count query={`workflow:${row.name} status:failed started>-24h`} status="FAILED" of={failed.data} name={row.name} />,
    },
    { id: "updated", label: "Changed", width: "88px", align: "end", wide: true, cell: (row) => <Time ms={row.updated_ms} /> },
    {
      id: "start",
      label: <span className="visually-hidden">Start</span>,
      width: "64px",
      align: "end",
      cell: (row) =>
        mayStart && (
          <Link to="/start/$workflow" params={{ workflow: row.name }} className={css.start} aria-label={`Start ${row.name}`}>
            Start
          </Link>
        ),
    },
  ];
  return (
    <div className={page.page}>
      <header className={page.head}>
        <h1>Workflows</h1>
        <span className={page.spring} />
        <input
          ref={input}
          type="search"
          className={css.filter}
          placeholder="Find by name, description or tag"
          aria-label="Find workflows"
          value={filter}
          onChange={(event) => void navigate({ to: "/workflows", search: { q: event.target.value || undefined }, replace: true })}
        />
      </header>
      {found.error ? (
        <ErrorState error={found.error} what="the workflows" />
      ) : found.isPending ? (
        <Loading rows={8} />
      ) : all.length === 0 ? (
        <Empty title="No workflow is published yet" icon="workflows">
          <p>
            Publish one with <code>tidemill publish hello.yaml</code>.
          </p>
        </Empty>
      ) : (
        <Table
          label="Workflows"
          columns={columns}
          rows={rows}
          rowKey={(row) => row.name}
          rowHeight={48}
          onOpen={(row) => void navigate({ to: "/workflows/$name", params: { name: row.name } })}
          onEnd={() => found.hasNextPage && !found.isFetching && void found.fetchNextPage()}
          empty={<Empty title="No workflow matches" icon="search" />}
        />
      )}
    </div>
  );
}

function Count({ of, name, query, status }: { of: RunSummary | undefined; name: string; query: string; status: string }) {
  const count = of?.facets.workflow[name] ?? 0;
  if (!count) return <span className="soft">–</span>;
  return (
    <Link to="/runs" search={{ q: query }} className={css.count}>
      <StatusIcon status={status} size={14} />
      {count.toLocaleString()}
      {of?.complete ? "" : "+"}
    </Link>
  );
}

/** Tags with the versions that they point to; with percentages where several share one. */
export function Tags({ row }: { row: Pick<WorkflowRow, "tags" | "weights"> }) {
  return (
    <span className={css.tags}>
      {Object.entries(row.tags)
        .filter(([tag]) => tag !== "latest")
        .map(([tag, version]) => {
          const shared = Object.entries(row.weights[tag] ?? {});
          const points = shared.length ? shared.map(([number, percent]) => `@${number} ${percent} %`).join(", ") : `@${version}`;
          return (
            <Badge key={tag} title={`${tag}: ${points}`}>
              <b className={css.tag}>{tag}</b> {points}
            </Badge>
          );
        })}
    </span>
  );
}
