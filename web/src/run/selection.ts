/** What is selected on the page of a run; it is kept in the URL, so that every view and every link agree. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useMemo } from "react";

export const VIEWS = ["graph", "timeline", "history", "state"] as const;
export type View = (typeof VIEWS)[number];

export interface RunSearch {
  view?: View;
  /** The selected node. */
  node?: string;
  /** A pass of a loop, from 1; the latest if it is left out. */
  visit?: number;
  /** An item of a map, from 0. */
  item?: number;
  attempt?: number;
  /** Time travel: the run as it was after this event. */
  at?: number;
  /** The event that the history shows. */
  event?: number;
  /** What the history is filtered by. */
  filter?: string;
  /** The tab of the step panel. */
  tab?: string;
}

export interface Selection {
  view: View;
  node: string | null;
  visit: number | null;
  item: number | null;
  attempt: number | null;
  at: number | null;
  event: number | null;
  filter: string;
  tab: string | null;
  /** Change parts of it; another node drops visit, item and attempt, null drops a part. */
  select: (change: Partial<Omit<Selection, "select">>, options?: { replace?: boolean }) => void;
}

function wholeNumber(value: unknown, least: number): number | undefined {
  const number = typeof value === "number" ? value : typeof value === "string" && value !== "" ? Number(value) : NaN;
  return Number.isSafeInteger(number) && number >= least ? number : undefined;
}

function text(value: unknown): string | undefined {
  if (typeof value === "string") return value === "" ? undefined : value;
  // The router reads `node=5` as a number.
  return typeof value === "number" || typeof value === "boolean" ? String(value) : undefined;
}

/** Read the search of a URL; what makes no sense is left out. For the route's `validateSearch`. */
export function readRunSearch(search: Record<string, unknown>): RunSearch {
  const view = VIEWS.find((each) => each === search.view);
  const found: RunSearch = {
    view,
    node: text(search.node),
    visit: wholeNumber(search.visit, 1),
    item: wholeNumber(search.item, 0),
    attempt: wholeNumber(search.attempt, 1),
    at: wholeNumber(search.at, 1),
    event: wholeNumber(search.event, 1),
    filter: text(search.filter),
    tab: text(search.tab),
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}

export function useSelection(): Selection {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const select = useCallback<Selection["select"]>(
    (change, options) => {
      const next = (before: Record<string, unknown>): Record<string, unknown> => {
        const other = "node" in change && change.node !== (text(before.node) ?? null);
        const kept = other ? { ...before, visit: undefined, item: undefined, attempt: undefined } : { ...before };
        for (const [name, value] of Object.entries(change)) {
          kept[name] = value === null || value === "" || (name === "view" && value === "graph") ? undefined : value;
        }
        return kept;
      };
      void navigate({ to: ".", search: next as never, replace: options?.replace ?? false, resetScroll: false });
    },
    [navigate],
  );
  return useMemo(() => {
    const found = readRunSearch(search);
    return {
      view: found.view ?? "graph",
      node: found.node ?? null,
      visit: found.visit ?? null,
      item: found.item ?? null,
      attempt: found.attempt ?? null,
      at: found.at ?? null,
      event: found.event ?? null,
      filter: found.filter ?? "",
      tab: found.tab ?? null,
      select,
    };
  }, [search, select]);
}
