// Routes, and the shell around them.
import { QueryClientProvider } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, redirect, RouterProvider } from "@tanstack/react-router";
import { useEffect, type ComponentType } from "react";
import { api, BASE, isReached, offline, useReached } from "./api/client";
import { fetchMe, keys, prefetchRun, queryClient, runListQuery } from "./api/queries";
import { Shell } from "./shell/shell";
import { Button, Empty, ErrorState, Loading, TooltipProvider, whenIdle } from "./ui";

const root = createRootRoute({ component: Shell });

type Module = { default: ComponentType };
const PAGES_AFTER_MS = 3_000;
const loaders: (() => Promise<Module>)[] = [];

/** A page whose code is loaded when it is opened, or before that while there is nothing else to do. */
function page(load: () => Promise<Module>) {
  loaders.push(load);
  return lazyRouteComponent(async () => {
    try {
      return await load();
    } catch (error) {
      // The router would reload the document for this error, and lose it if the server is away.
      await api("GET", "/me").catch(() => undefined);
      if (isReached()) throw error;
      return { default: Away };
    }
  });
}

/** The code of all pages: they open while the server is away, too. */
function loadPages(): void {
  const [next] = loaders.splice(0, 1);
  if (next) whenIdle(() => void next().then(loadPages, () => undefined), 10_000);
}

/** The search of an address as it is: pages read what they know and keep the rest. */
const anySearch = (search: Record<string, unknown>): Record<string, unknown> => search;

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/runs", replace: true });
  },
});
const signIn = createRoute({ getParentRoute: () => root, path: "/sign-in", validateSearch: anySearch, component: page(() => import("./shell/sign-in")) });
const runs = createRoute({
  getParentRoute: () => root,
  path: "/runs",
  validateSearch: anySearch,
  // The rows are asked for while the code of their page is still on its way.
  loaderDeps: ({ search }: { search: Record<string, unknown> }) => ({ q: search.q }),
  loader: ({ deps: { q }, cause }) => {
    if (cause === "enter") void queryClient.prefetchInfiniteQuery(runListQuery(typeof q === "string" ? q : ""));
  },
  component: page(() => import("./runs")),
});
const run = createRoute({
  getParentRoute: () => root,
  path: "/runs/$runId",
  validateSearch: anySearch,
  loader: ({ params, cause }) => {
    if (cause === "enter") prefetchRun(params.runId);
  },
  component: page(() => import("./run")),
});
const startWhat = createRoute({
  getParentRoute: () => root,
  path: "/start",
  beforeLoad: () => {
    throw redirect({ to: "/workflows", replace: true });
  },
});
const start = createRoute({ getParentRoute: () => root, path: "/start/$workflow", validateSearch: anySearch, component: page(() => import("./start")) });
const approvals = createRoute({ getParentRoute: () => root, path: "/approvals", validateSearch: anySearch, component: page(() => import("./approvals")) });
const approval = createRoute({ getParentRoute: () => root, path: "/approvals/$id", validateSearch: anySearch, component: page(() => import("./approvals/item")) });
const decide = createRoute({ getParentRoute: () => root, path: "/decide/$token", validateSearch: anySearch, component: page(() => import("./approvals/decide")) });
const workflows = createRoute({ getParentRoute: () => root, path: "/workflows", validateSearch: anySearch, component: page(() => import("./workflows")) });
const workflow = createRoute({ getParentRoute: () => root, path: "/workflows/$name", validateSearch: anySearch, component: page(() => import("./workflows/workflow")) });
const workers = createRoute({ getParentRoute: () => root, path: "/workers", validateSearch: anySearch, component: page(() => import("./fleet")) });
const deadLetters = createRoute({ getParentRoute: () => root, path: "/dead-letters", validateSearch: anySearch, component: page(() => import("./dead-letters")) });

const router = createRouter({
  routeTree: root.addChildren([home, signIn, runs, run, startWhat, start, approvals, approval, decide, workflows, workflow, workers, deadLetters]),
  basepath: BASE,
  defaultPreload: "intent",
  defaultPreloadStaleTime: 0,
  defaultPendingMs: 150,
  // What has come is shown: no least time for the sign that it is awaited.
  defaultPendingMinMs: 0,
  defaultPendingComponent: () => <Loading />,
  defaultErrorComponent: ({ error, reset }) => <Broken error={error} reset={reset} />,
  defaultNotFoundComponent: () => (
    <Empty icon="search" title="There is no such page" action={<Button onClick={() => void router.navigate({ to: "/runs" })}>All runs</Button>} />
  ),
  // Search values are plain texts: `?q=status:failed&at=12`, not JSON.
  parseSearch: (text) => Object.fromEntries(new URLSearchParams(text)),
  stringifySearch: (search) => {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(search)) {
      if (value !== undefined && value !== null && value !== "") params.set(name, String(value));
    }
    const text = params.toString();
    return text ? `?${text}` : "";
  },
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}

/** A page whose code the server did not give: it comes when the server is back. */
function Away() {
  const reached = useReached();
  useEffect(() => {
    if (reached) location.reload();
  }, [reached]);
  return <ErrorState error={offline()} onRetry={() => void api("GET", "/me").catch(() => undefined)} />;
}

/** A page that could not be shown: the others still can. */
function Broken({ error, reset }: { error: unknown; reset: () => void }) {
  // After an update of the server the files of the page that is open are gone.
  const outdated = error instanceof TypeError && /dynamically imported module|importing a module script|preload/i.test(error.message);
  if (outdated && !isReached()) return <Away />;
  if (!outdated) return <ErrorState error={error} onRetry={reset} />;
  return (
    <Empty
      icon="retry"
      title="This page was updated"
      action={
        <Button kind="primary" onClick={() => location.reload()}>
          Reload
        </Button>
      }
    >
      The server has a newer version of the page.
    </Empty>
  );
}

if (!location.pathname.startsWith(`${BASE}sign-in`)) void queryClient.prefetchQuery({ queryKey: keys.me, queryFn: fetchMe });

export function App() {
  useEffect(() => {
    const timer = setTimeout(loadPages, PAGES_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <QueryClientProvider client={queryClient}>
      <TooltipProvider delayDuration={400}>
        <RouterProvider router={router} />
      </TooltipProvider>
    </QueryClientProvider>
  );
}
