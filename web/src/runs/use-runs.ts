// What the list of runs shows: pages of rows that change in place, and what is counted of all matches.
import { useInfiniteQuery, useQuery, useQueryClient, type InfiniteData } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { api, Problem } from "../api/client";
import { runListQuery } from "../api/queries";
import { useTenantStream, type LiveState, type TenantChange } from "../api/live";
import type { Page, RunRow, RunSummary } from "../api/types";
import { merged, NOTHING_UNSHOWN, takeIn, type Unshown } from "./rows";

const GATHER_MS = 60;
const BUCKETS = 60;
const SUMMARY_EVERY_MS = 4_000;
const STAYS_AFTER_MS = 120;

type Pages = InfiniteData<Page<RunRow>, string | null>;

export interface RunList {
  rows: RunRow[];
  error: Problem | null;
  isLoading: boolean;
  hasMore: boolean;
  isLoadingMore: boolean;
  loadMore: () => void;
  unshown: Unshown;
  /** Show what was kept aside. */
  showNew: () => void;
  reload: () => void;
  live: LiveState;
}

/** The runs that a query finds. `mayMove` says whether the reader minds rows that move. */
export function useRunList(query: string, mayMove: () => boolean, onChange: () => void): RunList {
  const client = useQueryClient();
  const asked = useMemo(() => runListQuery(query), [query]);
  const key = asked.queryKey;
  const [unshown, setUnshown] = useState(NOTHING_UNSHOWN);
  const found = useInfiniteQuery<Page<RunRow>, Problem, Pages, readonly string[], string | null>({
    ...asked,
    getNextPageParam: (page) => page.next,
    refetchOnWindowFocus: false,
  });
  const rows = useMemo(() => found.data?.pages.flatMap((page) => page.items) ?? [], [found.data]);
  useEffect(() => setUnshown(NOTHING_UNSHOWN), [query]);

  const put = useCallback(
    (change: (rows: RunRow[]) => RunRow[]) => {
      client.setQueryData<Pages>(key, (before) => {
        if (!before) return before;
        const items = change(before.pages.flatMap((page) => page.items));
        return { pages: [{ items, next: before.pages.at(-1)?.next ?? null }], pageParams: [null] };
      });
    },
    [client, key],
  );
  const reload = useCallback(() => {
    setUnshown(NOTHING_UNSHOWN);
    client.setQueryData<Pages>(key, (before) => before && { pages: before.pages.slice(0, 1), pageParams: before.pageParams.slice(0, 1) });
    void client.invalidateQueries({ queryKey: key });
    onChange();
  }, [client, key, onChange]);

  // Changes are gathered: a burst of them is one rendering.
  const gathered = useRef<TenantChange[]>([]);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const state = useRef({ unshown, query, mayMove, put, onChange });
  useEffect(() => {
    state.current = { unshown, query, mayMove, put, onChange };
  });
  const flush = useCallback(() => {
    timer.current = undefined;
    const { unshown: before, query: asked, mayMove: free, put: replace, onChange: changed } = state.current;
    const changes = gathered.current;
    gathered.current = [];
    const data = client.getQueryData<Pages>(["runs", asked, "list"]);
    if (!data || changes.length === 0) return;
    const shown = new Map(data.pages.flatMap((page) => page.items).map((row) => [row.run_id, row]));
    const last = data.pages.at(-1);
    const from = last?.next ? (last.items.at(-1)?.created_ms ?? 0) : 0;
    const taken = takeIn(changes, (id) => shown.has(id), from, asked, Date.now(), before);
    const move = free() && !taken.unshown.unsure;
    const fresh = Object.keys(taken.unshown.fresh).length > 0;
    if (taken.updates.size > 0 || (move && fresh)) {
      replace((rows) => {
        const updated = rows.map((row) => taken.updates.get(row.run_id) ?? row);
        return move && fresh ? merged(updated, { ...taken.unshown, left: {} }) : updated;
      });
    }
    const kept = move ? { ...taken.unshown, fresh: {} } : taken.unshown;
    state.current.unshown = kept;
    setUnshown(kept);
    changed();
  }, [client]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const live = useTenantStream(
    "",
    (change) => {
      gathered.current.push(change);
      timer.current ??= setTimeout(flush, GATHER_MS);
    },
    () => (mayMove() ? reload() : setUnshown((before) => ({ ...before, unsure: true }))),
  );

  return {
    rows,
    error: found.error,
    isLoading: found.isPending,
    hasMore: found.hasNextPage,
    isLoadingMore: found.isFetchingNextPage,
    loadMore: () => {
      if (found.hasNextPage && !found.isFetching) void found.fetchNextPage();
    },
    unshown,
    showNew: () => {
      if (unshown.unsure) reload();
      else put((before) => merged(before, unshown));
      setUnshown(NOTHING_UNSHOWN);
    },
    reload,
    live,
  };
}

interface Timed {
  summary: RunSummary;
  tookMs: number;
}

/** Facets, histogram and failures of a query. `touch` asks for them again soon, at a pace that the server can bear. */
export function useRunSummary(query: string, enabled: boolean): { data: RunSummary | undefined; touch: () => void } {
  const found = useQuery<Timed, Problem>({
    queryKey: ["runs", query, "summary"],
    queryFn: async ({ signal }) => {
      const began = performance.now();
      const summary = await api<RunSummary>("GET", "/runs/summary", { query: { query, buckets: BUCKETS }, signal });
      return { summary, tookMs: performance.now() - began };
    },
    enabled,
    placeholderData: (before) => before,
    refetchOnWindowFocus: false,
  });
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), [query]);
  const { refetch, dataUpdatedAt } = found;
  const pause = Math.max(SUMMARY_EVERY_MS, 20 * (found.data?.tookMs ?? 0));
  const touch = useCallback(() => {
    if (timer.current !== undefined || !enabled) return;
    timer.current = setTimeout(
      () => {
        timer.current = undefined;
        void refetch();
      },
      Math.max(300, dataUpdatedAt + pause - Date.now()),
    );
  }, [refetch, dataUpdatedAt, pause, enabled]);
  return { data: found.data?.summary, touch };
}

/** Whether the reader stays with a query whose rows are there: counting is dear, and must not delay the next list. */
export function useStays(query: string, isRead: boolean): boolean {
  const [kept, setKept] = useState<string | null>(null);
  useEffect(() => {
    if (!isRead) return;
    const timer = setTimeout(() => setKept(query), STAYS_AFTER_MS);
    return () => clearTimeout(timer);
  }, [query, isRead]);
  return isRead && kept === query;
}
