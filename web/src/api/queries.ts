// Queries and hooks that several pages share. One key has one kind of answer: what two pages ask for is asked here.
import { QueryCache, QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, Problem, seg, setCsrfToken } from "./client";
import type { Explanation, RunAnswer } from "../run/model";
import type { Me, Page, RunRow, RunSummary, Version, WorkflowRow } from "./types";

export const queryClient: QueryClient = new QueryClient({
  queryCache: new QueryCache({
    onError: (error, query) => {
      // A session that is over is noticed by the first query that asks; the shell shows it.
      const isMe = query.queryKey[0] === keys.me[0];
      if (error instanceof Problem && error.isUnauthenticated && !isMe) void queryClient.invalidateQueries({ queryKey: keys.me });
    },
  }),
  defaultOptions: {
    queries: {
      // The server may be on this machine: whether there is a network says nothing.
      networkMode: "always",
      staleTime: 5_000,
      refetchOnWindowFocus: true,
      // What was refused stays refused; what was not answered is asked again.
      retry: (count, error) => (error instanceof Problem ? (error.isOffline || error.status >= 500 || error.status === 429) && count < 2 : false),
      retryDelay: (attempt, error) => (error instanceof Problem && error.retryAfter ? error.retryAfter * 1000 : Math.min(500 * 2 ** attempt, 5_000)),
    },
    mutations: { retry: false, networkMode: "always" },
  },
});

export const keys = {
  me: ["me"] as const,
  workflows: (query: string) => ["workflows", query] as const,
  workflow: (reference: string) => ["workflow", reference] as const,
  approvals: ["approvals"] as const,
};

/** Who uses the page. `data.permissions` says what to offer. */
export function useMe(): UseQueryResult<Me, Problem> {
  return useQuery<Me, Problem>({ queryKey: keys.me, queryFn: fetchMe, staleTime: 60_000 });
}

export async function fetchMe(): Promise<Me> {
  const me = await api<Me>("GET", "/me");
  setCsrfToken(me.csrf_token);
  return me;
}

/** Whether the caller has a permission (`runs:act`); false until it is known. */
export function useMay(permission: string): boolean {
  return useMe().data?.permissions.includes(permission) ?? false;
}

/** The run with its compiled graph, as of an event if `at` is given. */
export const runQuery = (id: string, at: number | null) => ({
  queryKey: ["run", id, "model", at] as const,
  queryFn: () => api<RunAnswer>("GET", `/runs/${seg(id)}`, { query: { graph: true, values: false, at } }),
});

/** What a run waits for, or why it failed. */
export const whyQuery = (id: string) => ({
  queryKey: ["run", id, "why"] as const,
  queryFn: () => api<Explanation>("GET", `/runs/${seg(id)}/why`),
});

/** Ask for what the page of a run needs first, while its code is still on its way. */
export function prefetchRun(id: string): void {
  void queryClient.prefetchQuery(runQuery(id, null));
  void queryClient.prefetchQuery(whyQuery(id));
}

/** As many rows as a large screen shows; further pages have more. */
const FIRST_ROWS = 50;
const MORE_ROWS = 100;

/** The runs that a query finds, newest first, page by page. */
export const runListQuery = (query: string) => ({
  queryKey: ["runs", query, "list"] as const,
  queryFn: ({ pageParam, signal }: { pageParam: string | null; signal: AbortSignal }) =>
    api<Page<RunRow>>("GET", "/runs", { query: { query, limit: pageParam === null ? FIRST_ROWS : MORE_ROWS, after: pageParam }, signal }),
  initialPageParam: null as string | null,
});

export function useWorkflows(query = "", limit = 100, enabled = true): UseQueryResult<Page<WorkflowRow>, Problem> {
  return useQuery<Page<WorkflowRow>, Problem>({
    queryKey: [...keys.workflows(query), limit],
    queryFn: ({ signal }) => api<Page<WorkflowRow>>("GET", "/workflows", { query: { query, limit }, signal }),
    staleTime: 30_000,
    enabled,
  });
}

/** A version by `name`, `name@3` or `name@tag`. */
export function useWorkflow(reference: string): UseQueryResult<Version & { tags: Record<string, number>; weights: Record<string, Record<string, number>> }, Problem> {
  return useQuery<Version & { tags: Record<string, number>; weights: Record<string, Record<string, number>> }, Problem>({
    queryKey: keys.workflow(reference),
    queryFn: ({ signal }) => api("GET", `/workflows/${seg(reference)}`, { signal }),
  });
}

/** The document of a version, as `useWorkflow` names it. */
export const documentQuery = (reference: string) => ({
  queryKey: [...keys.workflow(reference), "document"] as const,
  queryFn: ({ signal }: { signal: AbortSignal }) => api<Record<string, unknown>>("GET", `/workflows/${seg(reference)}/document`, { signal }),
});

/** The same as YAML. */
export const documentTextQuery = (reference: string) => ({
  queryKey: [...keys.workflow(reference), "document", "yaml"] as const,
  queryFn: ({ signal }: { signal: AbortSignal }) => api<string>("GET", `/workflows/${seg(reference)}/document`, { query: { format: "yaml" }, as: "text", signal }),
});

/** All versions of a workflow, the newest first. */
export const versionsQuery = (name: string) => ({
  queryKey: [...keys.workflow(name), "versions"] as const,
  queryFn: async ({ signal }: { signal: AbortSignal }) => {
    const all: Version[] = [];
    let after: string | null = null;
    do {
      const answer: Page<Version> = await api("GET", `/workflows/${seg(name)}/versions`, { query: { limit: 200, after }, signal });
      all.push(...answer.items);
      after = answer.next;
    } while (after);
    return all.reverse();
  },
});

/** How many of the runs that a query finds have which status, workflow and so on. */
export const countsQuery = (query: string) => ({
  queryKey: ["runs", query, "counts"] as const,
  queryFn: ({ signal }: { signal: AbortSignal }) => api<RunSummary>("GET", "/runs/summary", { query: { query, buckets: 1 }, signal }),
});

/** Forget what is known of a run, so that what is on screen is asked again. */
export function refreshRun(id: string): Promise<void> {
  return queryClient.invalidateQueries({ queryKey: ["run", id] });
}
