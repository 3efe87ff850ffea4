// Routes, and the shell around them.
import { QueryClientProvider } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, redirect, RouterProvider } from "@tanstack/react-router";
import { BASE } from "./api/client";
import { fetchMe, keys, prefetchRun, queryClient, runListQuery } from "./api/queries";
import { Shell } from "./shell/shell";
import { Button, Empty, ErrorState, Loading, TooltipProvider } from "./ui";

const root = createRootRoute({ component: Shell });

/** The search of an address as it is: pages read what they know and keep the rest. */
const anySearch = (search: Record<string, unknown>): Record<string, unknown> => search;

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/runs", replace: true });
  },
});
const signIn = createRoute({ getParentRoute: () => root, path: "/sign-in", validateSearch: anySearch, component: lazyRouteComponent(() => import("./shell/sign-in")) });
const runs = createRoute({
  getParentRoute: () => root,
  path: "/runs",
  validateSearch: anySearch,
  // The rows are asked for while the code of their page is still on its way.
  loaderDeps: ({ search }: { search: Record<string, unknown> }) => ({ q: search.q }),
  loader: ({ deps: { q }, cause }) => {
    if (cause === "enter") void queryClient.prefetchInfiniteQuery(runListQuery(typeof q === "string" ? q : ""));
  },
  component: lazyRouteComponent(() => import("./runs")),
});
const run = createRoute({
  getParentRoute: () => root,
  path: "/runs/$runId",
  validateSearch: anySearch,
  loader: ({ params, cause }) => {
    if (cause === "enter") prefetchRun(params.runId);
  },
  component: lazyRouteComponent(() => import("./run")),
});
const startWhat = createRoute({
  getParentRoute: () => root,
  path: "/start",
  beforeLoad: () => {
    throw redirect({ to: "/workflows", replace: true });
  },
});
const start = createRoute({ getParentRoute: () => root, path: "/start/$workflow", validateSearch: anySearch, component: lazyRouteComponent(() => import("./start")) });
const approvals = createRoute({ getParentRoute: () => root, path: "/approvals", validateSearch: anySearch, component: lazyRouteComponent(() => import("./approvals")) });
const approval = createRoute({ getParentRoute: () => root, path: "/approvals/$id", validateSearch: anySearch, component: lazyRouteComponent(() => import("./approvals/item")) });
const decide = createRoute({ getParentRoute: () => root, path: "/decide/$token", validateSearch: anySearch, component: lazyRouteComponent(() => import("./approvals/decide")) });
const workflows = createRoute({ getParentRoute: () => root, path: "/workflows", validateSearch: anySearch, component: lazyRouteComponent(() => import("./workflows")) });
const workflow = createRoute({ getParentRoute: () => root, path: "/workflows/$name", validateSearch: anySearch, component: lazyRouteComponent(() => import("./workflows/workflow")) });
const workers = createRoute({ getParentRoute: () => root, path: "/workers", validateSearch: anySearch, component: lazyRouteComponent(() => import("./fleet")) });
const deadLetters = createRoute({ getParentRoute: () => root, path: "/dead-letters", validateSearch: anySearch, component: lazyRouteComponent(() => import("./dead-letters")) });

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

/** A page that could not be shown: the others still can. */
function Broken({ error, reset }: { error: unknown; reset: () => void }) {
  // After an update of the server the files of the page that is open are gone.
  const outdated = error instanceof TypeError && /dynamically imported module|importing a module script|preload/i.test(error.message);
  if (!outdated) return <ErrorState error={error} onRetry={reset} />;
  return (
    <Empty
      icon="retry"
      title="This page was updated"
      action={
        <Button kind="primary" onClick={() => location.reload()}>
          Load it anew
        </Button>
      }
    >
      The server has a newer version of the page, or cannot be reached.
    </Empty>
  );
}

if (!location.pathname.startsWith(`${BASE}sign-in`)) void queryClient.prefetchQuery({ queryKey: keys.me, queryFn: fetchMe });

export function App() {
  return (
    <QueryClientProvider client={queryClient}>
      <TooltipProvider delayDuration={400}>
        <RouterProvider router={router} />
      </TooltipProvider>
    </QueryClientProvider>
  );
}
