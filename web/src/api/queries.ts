// Query keys and hooks that several pages share.
import { QueryCache, QueryClient, useInfiniteQuery, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, Problem, seg, setCsrfToken } from "./client";
import type { Explanation, GraphDocument, Me, NodeHistory, Page, RunDocument, RunRow, RunView, Version, WorkflowRow } from "./types";

export const queryClient: QueryClient = new QueryClient({
  queryCache: new QueryCache({
    onError: (error, query) => {
      // A session that is over is noticed by whoever asks first; the shell shows it.
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
  runs: (query: string) => ["runs", query] as const,
  run: (id: string, at?: number | null) => ["run", id, "view", at ?? null] as const,
  why: (id: string) => ["run", id, "why"] as const,
  nodeWhy: (id: string, node: string) => ["run", id, "why", node] as const,
  document: (id: string) => ["run", id, "document"] as const,
  graph: (id: string, at?: number | null) => ["run", id, "graph", at ?? null] as const,
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

export function useRun(id: string, at?: number | null): UseQueryResult<RunView, Problem> {
  return useQuery<RunView, Problem>({
    queryKey: keys.run(id, at),
    queryFn: ({ signal }) => api<RunView>("GET", `/runs/${seg(id)}`, { query: { at }, signal }),
    placeholderData: (before) => (before?.run_id === id ? before : undefined),
  });
}

export function useWhy(id: string): UseQueryResult<Explanation, Problem> {
  return useQuery<Explanation, Problem>({
    queryKey: keys.why(id),
    queryFn: ({ signal }) => api<Explanation>("GET", `/runs/${seg(id)}/why`, { signal }),
  });
}

export function useNodeWhy(id: string, node: string | null | undefined): UseQueryResult<NodeHistory, Problem> {
  return useQuery<NodeHistory, Problem>({
    queryKey: keys.nodeWhy(id, node ?? ""),
    queryFn: ({ signal }) => api<NodeHistory>("GET", `/runs/${seg(id)}/why/${seg(node ?? "")}`, { signal }),
    enabled: !!node,
  });
}

export function useDocument(id: string): UseQueryResult<RunDocument, Problem> {
  return useQuery<RunDocument, Problem>({
    queryKey: keys.document(id),
    queryFn: ({ signal }) => api<RunDocument>("GET", `/runs/${seg(id)}/document`, { signal }),
  });
}

/** Nodes and edges with statuses, as of an event if `at` is given. */
export function useRunGraph(id: string, at?: number | null): UseQueryResult<GraphDocument, Problem> {
  return useQuery<GraphDocument, Problem>({
    queryKey: keys.graph(id, at),
    queryFn: ({ signal }) => api<GraphDocument>("GET", `/runs/${seg(id)}/graph`, { query: { at }, signal }),
    placeholderData: (before) => before,
  });
}

export function useWorkflows(query = "", limit = 100): UseQueryResult<Page<WorkflowRow>, Problem> {
  return useQuery<Page<WorkflowRow>, Problem>({
    queryKey: [...keys.workflows(query), limit],
    queryFn: ({ signal }) => api<Page<WorkflowRow>>("GET", "/workflows", { query: { query, limit }, signal }),
    staleTime: 30_000,
  });
}

/** A version by `name`, `name@3` or `name@tag`. */
export function useWorkflow(reference: string): UseQueryResult<Version & { tags: Record<string, number>; weights: Record<string, Record<string, number>> }, Problem> {
  return useQuery<Version & { tags: Record<string, number>; weights: Record<string, Record<string, number>> }, Problem>({
    queryKey: keys.workflow(reference),
    queryFn: ({ signal }) => api("GET", `/workflows/${seg(reference)}`, { signal }),
  });
}

/** Runs that a query finds, page by page. */
export function useRuns(query: string, limit = 50) {
  return useInfiniteQuery({
    queryKey: [...keys.runs(query), limit],
    queryFn: ({ pageParam, signal }) => api<Page<RunRow>>("GET", "/runs", { query: { query, limit, after: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page: Page<RunRow>) => page.next,
  });
}

/** Forget what is known of a run, so that what is on screen is asked again. */
export function refreshRun(id: string): Promise<void> {
  return queryClient.invalidateQueries({ queryKey: ["run", id] });
}
