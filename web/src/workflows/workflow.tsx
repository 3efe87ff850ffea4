// One workflow: the graph and document of a version, all versions with their runs, and the tags.
import { useQueries, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useState, type ReactNode } from "react";
import { api, seg, type Problem } from "../api/client";
import { countsQuery, documentQuery, documentTextQuery, useMay, useWorkflow, versionsQuery } from "../api/queries";
import type { RunSummary, WorkflowRow } from "../api/types";
import type { Graph } from "../run/model";
import { Badge, Button, Copy, Empty, ErrorState, Icon, Loading, signOf, Tabs, Time, useTitle } from "../ui";
import { Editor } from "../ui/editor";
import page from "../ui/page.module.css";
import { Tags } from "./index";
import css from "./workflows.module.css";

const WorkflowGraph = lazy(() => import("../run/graph").then((module) => ({ default: module.WorkflowGraph })));
const VERSIONS_COUNTED = 20;

type Tagging = Pick<WorkflowRow, "tags" | "weights">;

export default function WorkflowPage() {
  const { name = "" } = useParams({ strict: false }) as { name?: string };
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const asked = /^[0-9]{1,9}$/.test(String(search.version ?? "")) ? Number(search.version) : null;
  const view = ["document", "versions"].find((each) => each === search.view) ?? "graph";
  const node = typeof search.node === "string" ? search.node : null;
  const navigate = useNavigate();
  const mayStart = useMay("runs:start");
  const set = (change: Record<string, string | undefined>) =>
    void navigate({ to: "/workflows/$name", params: { name }, search: (before: Record<string, unknown>) => ({ ...before, ...change }) });
  const reference = asked === null ? name : `${name}@${asked}`;
  const shown = useWorkflow(reference);
  useTitle(reference);
  if (shown.error) {
    return <ErrorState error={shown.error} what={`the workflow ${reference}`} action={<Link to="/workflows">All workflows</Link>} />;
  }
  if (!shown.data) return <Loading rows={10} />;
  const version = shown.data;
  const latest = version.tags.latest ?? version.version;
  return (
    <div className={page.page}>
      <header className={page.head}>
        <h1>
          <bdi>{name}</bdi>
          <span className="soft">{`@${version.version}`}</span>
        </h1>
        {version.version !== latest ? <Badge role="wait">{`not the latest: @${latest}`}</Badge> : <Badge role="accent">latest</Badge>}
        <Tags row={version} />
        <Copy text={reference} label="Copy the reference" />
        <span className={page.spring} />
        <Link to="/runs" search={{ q: `workflow:${reference}` }}>
          Its runs
        </Link>
        {mayStart && (
          <Link to="/start/$workflow" params={{ workflow: name }} search={asked === null ? {} : { version: String(asked) }} className={page.primary}>
            <Icon name="play" /> Start a run
          </Link>
        )}
      </header>
      {version.description && (
        <p className={css.about} dir="auto">
          {version.description}
        </p>
      )}
      <p className={css.about}>
        Published <Time ms={version.at_ms} />
        {version.author && (
          <>
            {" by "}
            <bdi>{version.author}</bdi>
          </>
        )}
        {version.message && (
          <>
            {": "}
            <bdi>{version.message}</bdi>
          </>
        )}
      </p>
      <Tabs
        label="Views of the workflow"
        className={css.tabs}
        value={view}
        onChange={(id) => set({ view: id === "graph" ? undefined : id })}
        tabs={[
          { id: "graph", label: "Graph" },
          { id: "document", label: "Document" },
          { id: "versions", label: "Versions and runs" },
        ]}
      >
        {view === "graph" && <GraphOf reference={reference} node={node} onSelect={(id) => set({ node: id })} />}
        {view === "document" && <DocumentOf reference={reference} />}
        {view === "versions" && <Versions name={name} current={version.version} row={version} />}
      </Tabs>
    </div>
  );
}

function GraphOf({ reference, node, onSelect }: { reference: string; node: string | null; onSelect: (node: string) => void }) {
  const graph = useQuery<Graph, Problem>({
    queryKey: ["workflow", reference, "graph"],
    queryFn: ({ signal }) => api("GET", `/workflows/${seg(reference)}/graph`, { signal }),
    staleTime: 60_000,
  });
  if (graph.error) return <ErrorState error={graph.error} what="the graph" />;
  if (!graph.data) return <Loading />;
  return (
    <div className={css.graph}>
      <Suspense fallback={<Loading />}>
        <WorkflowGraph graph={graph.data} selected={node} onSelect={onSelect} />
      </Suspense>
    </div>
  );
}

function DocumentOf({ reference }: { reference: string }) {
  const [asJson, setAsJson] = useState(false);
  const yaml = useQuery({ ...documentTextQuery(reference), staleTime: 60_000, enabled: !asJson });
  const json = useQuery({ ...documentQuery(reference), staleTime: 60_000, enabled: asJson, select: (found) => JSON.stringify(found, null, 2) });
  const document = asJson ? json : yaml;
  if (document.error) return <ErrorState error={document.error} what="the document" />;
  if (document.data === undefined) return <Loading rows={12} />;
  return (
    <div className={page.section}>
      <div className={css.documentHead}>
        <p className="soft">The document in its normal form</p>
        <Button kind="quiet" size="s" onClick={() => setAsJson(!asJson)}>
          {asJson ? "Show as YAML" : "Show as JSON"}
        </Button>
        <Copy text={document.data}>Copy</Copy>
      </div>
      <Editor key={asJson ? "json" : "yaml"} value={document.data} language={asJson ? "json" : "yaml"} readOnly label={`Document of ${reference}`} maxHeight="calc(100vh - 240px)" />
    </div>
  );
}

const ORDER = ["COMPLETED", "RUNNING", "PAUSED", "CANCELLED", "FAILED"];

function Versions({ name, current, row }: { name: string; current: number; row: Tagging }) {
  const found = useQuery(versionsQuery(name));
  const counted = found.data?.slice(0, VERSIONS_COUNTED) ?? [];
  const summaries = useQueries({
    queries: counted.map((each) => ({ ...countsQuery(`workflow:${name}@${each.version}`), staleTime: 10_000 })),
  });
  if (found.error) return <ErrorState error={found.error} what="the versions" />;
  if (!found.data) return <Loading />;
  if (found.data.length === 0) return <Empty title="There is no version" />;
  return (
    <div className={`${page.section} ${page.wide}`}>
      <table className={page.plain}>
        <thead>
          <tr>
            <th>Version</th>
            <th>Tags</th>
            <th>Runs</th>
            <th>Published</th>
            <th>Why</th>
          </tr>
        </thead>
        <tbody>
          {found.data.map((each, at) => (
            <tr key={each.version} className={each.version === current ? css.current : undefined}>
              <td>
                <Link to="/workflows/$name" params={{ name }} search={{ version: String(each.version) }}>{`@${each.version}`}</Link>
              </td>
              <td>
                <TagsOf row={row} version={each.version} />
              </td>
              <td>{at < VERSIONS_COUNTED && <RunsOf name={name} version={each.version} summary={summaries[at]?.data} />}</td>
              <td>
                <Time ms={each.at_ms} />
                {each.author && (
                  <span className="soft">
                    {" by "}
                    <bdi>{each.author}</bdi>
                  </span>
                )}
              </td>
              <td dir="auto">{each.message || <span className="soft">–</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function TagsOf({ row, version }: { row: Tagging; version: number }) {
  const found: ReactNode[] = [];
  for (const [tag, target] of Object.entries(row.tags)) {
    const share = row.weights[tag]?.[String(version)];
    if (share !== undefined) found.push(<Badge key={tag} role="wait">{`${tag} ${share} %`}</Badge>);
    else if (!row.weights[tag] && target === version) found.push(<Badge key={tag}>{tag}</Badge>);
  }
  return found.length ? <span className={page.chips}>{found}</span> : <span className="soft">–</span>;
}

function RunsOf({ name, version, summary }: { name: string; version: number; summary: RunSummary | undefined }) {
  if (!summary) return <span className="soft">…</span>;
  if (summary.counted === 0) return <span className="soft">none</span>;
  const { status } = summary.facets;
  const shown = ORDER.filter((each) => status[each]);
  const words = shown.map((each) => `${status[each]!.toLocaleString()} ${signOf(each).word}`).join(", ");
  return (
    <>
      <Link to="/runs" search={{ q: `workflow:${name}@${version}` }} className={css.counted}>
        {summary.counted.toLocaleString()}
        {summary.complete ? "" : "+"}
      </Link>
      <span className="soft">{` · ${words}`}</span>
      <div className={css.bar} aria-hidden="true">
        {shown.map((each) => (
          <span key={each} data-role={signOf(each).role} style={{ flexGrow: status[each] }} />
        ))}
      </div>
    </>
  );
}
