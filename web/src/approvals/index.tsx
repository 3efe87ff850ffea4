// The inbox: what people are asked, and what waits for the caller.
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useEffect, useRef } from "react";
import { api, type Problem } from "../api/client";
import { useTenantStream } from "../api/live";
import { keys, useMay, useMe } from "../api/queries";
import type { Page } from "../api/types";
import { Badge, Button, Empty, ErrorState, Facet, Loading, Tabs, Time, useNow, useShortcut, useTitle } from "../ui";
import css from "./approvals.module.css";
import { byDue, due, PAST, people, person, type ApprovalItem } from "./data";

const TABS = [
  { id: "mine", label: "Mine" },
  { id: "roles", label: "My roles" },
  { id: "all", label: "All" },
];
const SOON_SECONDS = 86_400;
/** News of a second are one request. */
const GATHER_MS = 1_000;
const EVERY_MS = { live: 60_000, alone: 5_000 };

const EMPTY: Record<string, [string, string]> = {
  mine: ["Nothing waits for you", "What asks you, one of your roles, or anyone appears here by itself."],
  roles: ["Nothing waits for your roles", "What asks one of your roles appears here by itself."],
  all: ["Nothing waits for people", "A step of type human asks people; its questions appear here."],
};

export default function ApprovalsPage() {
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const navigate = useNavigate();
  const me = useMe();
  useTitle("Approvals");
  const tab = TABS.some((each) => each.id === search.tab) ? (search.tab ?? "mine") : "mine";
  const done = search.status === "decided";
  const when = search.when === "due" || search.when === "overdue" ? search.when : "";
  const change = (next: Record<string, string | undefined>) => void navigate({ to: ".", search: { ...search, ...next } as never, replace: true });

  const live = useNews();
  const list = useInfiniteQuery<Page<ApprovalItem>, Problem>({
    queryKey: [...keys.approvals, "list", tab, done, when],
    queryFn: ({ pageParam, signal }) =>
      api<Page<ApprovalItem>>("GET", "/approvals", {
        query: {
          mine: tab === "mine" ? true : undefined,
          my_roles: tab === "roles" ? true : undefined,
          status: done ? "decided" : undefined,
          due: when === "due" ? SOON_SECONDS : undefined,
          overdue: when === "overdue" ? true : undefined,
          after: pageParam as string | null,
          limit: 50,
        },
        signal,
      }),
    initialPageParam: null,
    getNextPageParam: (page) => page.next,
    refetchInterval: live ? EVERY_MS.live : EVERY_MS.alone,
  });
  const loaded = list.data?.pages.flatMap((page) => page.items) ?? [];
  const rows = done ? loaded : byDue(loaded);

  const host = useRef<HTMLUListElement>(null);
  const move = (by: number) => {
    const links = [...(host.current?.querySelectorAll("a") ?? [])];
    const at = links.findIndex((each) => each === document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
  };
  useShortcut("j", "Next approval", () => move(1), "Approvals");
  useShortcut("k", "Previous approval", () => move(-1), "Approvals");

  const [title, text] = EMPTY[tab] ?? ["Nothing here", ""];
  return (
    <div className={css.scroll}>
      <div className={css.page}>
        <h1>Approvals</h1>
        <Tabs tabs={TABS} value={tab} onChange={(id) => change({ tab: id === "mine" ? undefined : id })} label="Whose approvals">
          <div className={css.page} style={{ padding: "12px 0", gap: 12 }}>
            <div className={css.bar}>
              <Facet label="Waiting" active={!done} onToggle={() => change({ status: undefined })} />
              <Facet label="Decided" active={done} onToggle={() => change({ status: "decided", when: undefined })} />
              {!done && <Facet label="Due within a day" active={when === "due"} onToggle={() => change({ when: when === "due" ? undefined : "due" })} />}
              {!done && <Facet label="Overdue" active={when === "overdue"} onToggle={() => change({ when: when === "overdue" ? undefined : "overdue" })} />}
            </div>
            {list.isPending ? (
              <Loading rows={5} />
            ) : list.error && rows.length === 0 ? (
              <ErrorState error={list.error} what="the approvals" onRetry={() => void list.refetch()} />
            ) : rows.length === 0 && !list.hasNextPage ? (
              <Empty
                title={done ? "Nothing was decided yet" : when ? "Nothing is due" : title}
                icon="approvals"
                action={tab !== "all" && <Button onClick={() => change({ tab: "all" })}>Show all</Button>}
              >
                {when ? "There is nothing with this time limit." : text}
                {tab === "roles" && me.data && ` Your roles: ${me.data.roles.join(", ") || "none"}.`}
              </Empty>
            ) : (
              <ul className={css.list} ref={host}>
                {rows.map((row) => (
                  <li key={row.approval_id}>
                    <Row row={row} />
                  </li>
                ))}
              </ul>
            )}
            {list.hasNextPage && (
              <div>
                <Button busy={list.isFetchingNextPage} onClick={() => void list.fetchNextPage()}>
                  Show more
                </Button>
              </div>
            )}
          </div>
        </Tabs>
      </div>
    </div>
  );
}

/** Asks again when a run begins or ends to wait for people. False where there is no stream of runs to follow. */
function useNews(): boolean {
  const client = useQueryClient();
  const may = useMay("runs:read");
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const soon = useCallback(() => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      void client.invalidateQueries({ queryKey: keys.approvals });
    }, GATHER_MS);
  }, [client]);
  useEffect(
    () => () => {
      clearTimeout(timer.current);
      timer.current = undefined;
    },
    [],
  );
  const state = useTenantStream(
    may ? "" : null,
    ({ run }) => {
      const lists = client.getQueriesData<{ pages?: Page<ApprovalItem>[] }>({ queryKey: [...keys.approvals, "list"] });
      const listed = () => lists.some(([, data]) => data?.pages?.some((page) => page.items.some((item) => item.run_id === run.run_id)));
      if (run.waiting_for.some((each) => each.startsWith("human")) || listed()) soon();
    },
    soon,
  );
  return may && state === "live";
}

function Row({ row }: { row: ApprovalItem }) {
  const late = due(row.expires_ms, useNow());
  return (
    <Link to="/approvals/$id" params={{ id: row.approval_id }} className={css.row}>
      <span className={css.rowTitle} dir="auto">
        {row.title || row.node}
      </span>
      {row.status === "pending" ? (
        late && <Badge role={late.late ? "bad" : late.soon ? "wait" : "quiet"}>{late.words}</Badge>
      ) : (
        <Badge role={row.decision === "approve" ? "ok" : row.decision === "reject" ? "bad" : "quiet"}>{PAST[row.decision ?? ""] ?? row.status}</Badge>
      )}
      <span className={css.rowAbout}>
        {row.workflow} · {row.node}
        {(row.index ?? -1) >= 0 && ` item ${row.index}`} ·{" "}
        {row.status === "decided" ? (
          <>
            {person(row.decided_by)}, <Time ms={row.decided_ms} />
          </>
        ) : (
          <>
            asks {people(row.approvers)}
            {row.quorum > 1 && `, ${row.votes.length} of ${row.quorum} agreed`}, <Time ms={row.requested_ms} />
          </>
        )}
        {row.escalated && " · escalated"}
      </span>
    </Link>
  );
}
