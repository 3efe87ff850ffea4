// Failures that nothing handles any more: look at one, retry its run, or take it off the list.
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useId, useMemo, useState } from "react";
import { api, newCommandId, seg, type Problem } from "../api/client";
import { useMay } from "../api/queries";
import type { DeadLetterRow, ErrorView, Page, Reprocessed } from "../api/types";
import { Badge, Button, Dialog, Empty, ErrorState, Icon, JsonView, Loading, Table, Tabs, Time, toast, useTitle, type Column } from "../ui";
import page from "../ui/page.module.css";
import { Refusals } from "../runs/bulk";
import css from "./dead-letters.module.css";

type Letter = DeadLetterRow & { dead_letter_id: string };
type ShownLetter = Omit<Letter, "code" | "message" | "index"> & { error: ErrorView | null; input: unknown; index: number | null };

const STATUSES = ["open", "reprocessed", "discarded"] as const;
const runs = (count: number) => `${count.toLocaleString()} ${count === 1 ? "run" : "runs"}`;

export default function DeadLettersPage() {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const status = STATUSES.find((each) => each === search.status) ?? "open";
  const filter = typeof search.q === "string" ? search.q : "";
  const id = typeof search.id === "string" ? search.id : null;
  const navigate = useNavigate();
  const mayWrite = useMay("dead_letters:write");
  useTitle("Dead letters");
  const set = (change: Record<string, string | undefined>) =>
    void navigate({ to: "/dead-letters", search: (before: Record<string, unknown>) => ({ ...before, ...change }) });
  const query = `status:${status} ${filter}`.trim();
  const found = useInfiniteQuery<Page<Letter>, Problem, { pages: Page<Letter>[] }, readonly string[], string | null>({
    queryKey: ["dead-letters", "list", query],
    queryFn: ({ pageParam, signal }) => api("GET", "/dead-letters", { query: { query, limit: 100, after: pageParam }, signal }),
    initialPageParam: null,
    getNextPageParam: (last) => last.next,
    refetchInterval: (state) => ((state.state.data?.pages.length ?? 0) > 1 ? false : 10_000),
  });
  const rows = useMemo(() => found.data?.pages.flatMap((each) => each.items) ?? [], [found.data]);
  const [reprocessing, setReprocessing] = useState<Filter | null>(null);
  const asked = readFilter(filter);
  return (
    <div className={page.page}>
      <header className={page.head}>
        <h1>Dead letters</h1>
        <span className="soft">Failures that are not retried by themselves.</span>
        <span className={page.spring} />
        {mayWrite && status === "open" && asked && rows.length > 0 && (
          <Button icon="retry" onClick={() => setReprocessing(asked)}>
            Reprocess all of these
          </Button>
        )}
      </header>
      <Tabs
        label="Which dead letters"
        className={css.tabs}
        tabs={STATUSES.map((each) => ({ id: each, label: each[0]!.toUpperCase() + each.slice(1) }))}
        value={status}
        onChange={(next) => set({ status: next === "open" ? undefined : next, id: undefined })}
      >
        {filter && (
          <p className={css.filter}>
            {filter.split(" ").map((term) => (
              <Badge key={term} role="accent">
                <bdi>{term}</bdi>
                <button
                  type="button"
                  aria-label={`Without ${term}`}
                  onClick={() =>
                    set({
                      q:
                        filter
                          .split(" ")
                          .filter((each) => each !== term)
                          .join(" ") || undefined,
                    })
                  }
                >
                  <Icon name="close" size={12} />
                </button>
              </Badge>
            ))}
          </p>
        )}
        {found.error ? (
          <ErrorState
            error={found.error}
            what="the dead letters"
            action={filter && <Button onClick={() => set({ q: undefined })}>Without the filter</Button>}
          />
        ) : found.isPending ? (
          <Loading rows={8} />
        ) : rows.length === 0 ? (
          <Empty title={status === "open" ? "No open dead letters" : `None was ${status}`} icon="check">
            {status === "open" && "Every failure is handled, retried or settled."}
          </Empty>
        ) : (
          <Table
            label="Dead letters"
            columns={columns((term) => set({ q: [...new Set([...filter.split(" ").filter(Boolean), term])].join(" ") }))}
            rows={rows}
            rowKey={(row) => row.dead_letter_id}
            rowHeight={52}
            onOpen={(row) => set({ id: row.dead_letter_id })}
            onEnd={() => found.hasNextPage && !found.isFetching && void found.fetchNextPage()}
          />
        )}
      </Tabs>
      {id && <LetterDialog id={id} mayWrite={mayWrite} onClose={() => set({ id: undefined })} onReprocess={(like) => (set({ id: undefined }), setReprocessing(like))} />}
      {reprocessing && <ReprocessDialog filter={reprocessing} onClose={() => setReprocessing(null)} />}
    </div>
  );
}

function columns(add: (term: string) => void): Column<Letter>[] {
  const filtering = (term: string, text: string) => (
    <button type="button" className={css.pick} tabIndex={-1} title={`Only ${term}`} onClick={() => add(term)}>
      <bdi className="truncate">{text}</bdi>
    </button>
  );
  return [
    {
      id: "what",
      label: "Failure",
      width: "minmax(130px, 3fr)",
      cell: (row) => (
        <span className={css.what}>
          <span className={css.message} title={row.message}>
            <bdi>{row.message || row.code}</bdi>
          </span>
          <code className="soft truncate">{row.code}</code>
        </span>
      ),
    },
    {
      id: "node",
      label: "Step",
      width: "minmax(90px, 1fr)",
      cell: (row) => filtering(`node:${row.node}`, row.index >= 0 ? `${row.node} #${row.index}` : row.node),
    },
    {
      id: "workflow",
      label: "Workflow",
      width: "minmax(100px, 1fr)",
      wide: true,
      cell: (row) => filtering(`workflow:${row.workflow}`, row.workflow),
    },
    {
      id: "run",
      label: "Run",
      width: "112px",
      wide: true,
      cell: (row) => (
        <Link
          to="/runs/$runId"
          params={{ runId: row.run_id }}
          search={{ node: row.node }}
          className="mono truncate"
          title={row.run_id}
          tabIndex={-1}
        >
          {row.run_id.length > 16 ? `…${row.run_id.slice(-10)}` : row.run_id}
        </Link>
      ),
    },
    { id: "attempts", label: "Attempts", width: "72px", align: "end", wide: true, cell: (row) => row.attempts },
    { id: "at", label: "When", width: "88px", align: "end", cell: (row) => <Time ms={row.at_ms} /> },
  ];
}

interface Filter {
  run_id?: string;
  node?: string;
  workflow?: string;
  code?: string;
}

/** The filter as the API takes it for reprocessing; null if it says nothing, or what cannot be said there. */
function readFilter(text: string): Filter | null {
  const found: Filter = {};
  for (const term of text.split(" ").filter(Boolean)) {
    const [, key, value] = /^(run|node|workflow|code):(.+)$/.exec(term) ?? [];
    if (!key || !value) return null;
    found[key === "run" ? "run_id" : (key as keyof Filter)] = value;
  }
  return Object.keys(found).length ? found : null;
}

function LetterDialog({
  id,
  mayWrite,
  onClose,
  onReprocess,
}: {
  id: string;
  mayWrite: boolean;
  onClose: () => void;
  onReprocess: (filter: Filter) => void;
}) {
  const client = useQueryClient();
  const field = useId();
  const [discarding, setDiscarding] = useState(false);
  const [reason, setReason] = useState("");
  const [commandId] = useState(newCommandId);
  const letter = useQuery<ShownLetter, Problem>({
    queryKey: ["dead-letters", "item", id],
    queryFn: ({ signal }) => api("GET", `/dead-letters/${seg(id)}`, { signal }),
  });
  const discard = useMutation<unknown, Problem>({
    mutationFn: () => api("POST", `/dead-letters/${seg(id)}/discard`, { body: { reason, command_id: commandId } }),
    onSuccess: () => {
      toast("The dead letter is off the list");
      void client.invalidateQueries({ queryKey: ["dead-letters"] });
      onClose();
    },
  });
  const shown = letter.data;
  const isOpen = shown?.status === "open";
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={shown ? <bdi>{`${shown.node} of ${shown.workflow}`}</bdi> : "Dead letter"}
      size="l"
      footer={
        shown &&
        mayWrite &&
        isOpen &&
        (discarding ? (
          <>
            <Button onClick={() => setDiscarding(false)}>Back</Button>
            <Button kind="danger" busy={discard.isPending} disabled={!reason.trim()} onClick={() => discard.mutate()}>
              Discard it
            </Button>
          </>
        ) : (
          <>
            <Button kind="danger" onClick={() => setDiscarding(true)}>
              Discard…
            </Button>
            <Button
              icon="retry"
              onClick={() =>
                onReprocess({ workflow: shown.workflow, node: shown.node, ...(shown.error ? { code: shown.error.code } : {}) })
              }
            >
              Reprocess all like this
            </Button>
            <Button kind="primary" icon="retry" onClick={() => onReprocess({ run_id: shown.run_id, node: shown.node })}>
              Reprocess
            </Button>
          </>
        ))
      }
    >
      {letter.error ? (
        <ErrorState error={letter.error} what="this dead letter" />
      ) : !shown ? (
        <Loading />
      ) : discarding ? (
        <div className={page.form}>
          <p>The failure stays in the run, which stays as it is. Only the letter is taken off the list.</p>
          <label htmlFor={field}>
            Reason (needed)
            <textarea id={field} rows={3} value={reason} maxLength={2000} onChange={(event) => setReason(event.target.value)} />
          </label>
          {discard.error && (
            <p className={page.wrong} role="alert">
              {discard.error.detail} {discard.error.hint}
            </p>
          )}
        </div>
      ) : (
        <div className={css.letter}>
          <p className={css.error} dir="auto">
            {shown.error?.message ?? "No error was kept."}
          </p>
          {shown.error?.hint && <p dir="auto">{shown.error.hint}</p>}
          <dl className={css.facts}>
            <dt>Code</dt>
            <dd>
              <code>{shown.error?.code ?? "–"}</code>
            </dd>
            <dt>Run</dt>
            <dd>
              <Link to="/runs/$runId" params={{ runId: shown.run_id }} search={{ node: shown.node }} className="mono">
                {shown.run_id}
              </Link>
            </dd>
            <dt>When</dt>
            <dd>
              <Time ms={shown.at_ms} />, {`after ${shown.attempts} ${shown.attempts === 1 ? "attempt" : "attempts"}`}
            </dd>
            {!isOpen && (
              <>
                <dt>{shown.status}</dt>
                <dd>
                  <Time ms={shown.closed_ms} /> {shown.closed_by && <bdi>{`by ${shown.closed_by}`}</bdi>}{" "}
                  {shown.reason && <bdi>{`: ${shown.reason}`}</bdi>}
                </dd>
              </>
            )}
          </dl>
          <h3>What the step was given</h3>
          {shown.input === null ? <p className="soft">It cannot be rendered again.</p> : <JsonView value={shown.input} />}
          {shown.error?.traceback && (
            <details>
              <summary>Traceback</summary>
              <pre className={css.traceback}>{shown.error.traceback}</pre>
            </details>
          )}
        </div>
      )}
    </Dialog>
  );
}

/** Counts first; then retries exactly the runs of that filter. */
function ReprocessDialog({ filter, onClose }: { filter: Filter; onClose: () => void }) {
  const client = useQueryClient();
  const field = useId();
  const [reason, setReason] = useState("");
  const dry = useQuery<Reprocessed, Problem>({
    queryKey: ["dead-letters", "dry", filter],
    queryFn: ({ signal }) => api("POST", "/dead-letters/reprocess", { body: { ...filter, dry_run: true }, signal }),
    gcTime: 0,
    refetchOnWindowFocus: false,
  });
  const doing = useMutation<Reprocessed, Problem>({
    mutationFn: () => api("POST", "/dead-letters/reprocess", { body: { ...filter, reason } }),
    onSuccess: (answer) => {
      void client.invalidateQueries({ queryKey: ["dead-letters", "list"] });
      void client.invalidateQueries({ queryKey: ["dead-letters", "item"] });
      if (!answer.runs.some((run) => run.result === "refused")) {
        toast(`${runs(answer.runs.length)} ${answer.runs.length === 1 ? "continues" : "continue"}`);
        onClose();
      }
    },
  });
  const outcome = doing.data ?? dry.data;
  const refused = outcome?.runs.filter((run) => run.result === "refused") ?? [];
  const able = (outcome?.runs.length ?? 0) - refused.length;
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={doing.data ? `Reprocessed ${runs(able)}` : !outcome ? "Reprocess" : able ? `Reprocess ${runs(able)}` : "Nothing can be reprocessed"}
      description="The failed steps run again with what they were given, and their runs continue."
      footer={
        doing.data ? (
          <Button kind="primary" onClick={onClose}>
            Close
          </Button>
        ) : (
          <>
            <Button onClick={onClose}>Back</Button>
            <Button kind="primary" icon="retry" disabled={able === 0} busy={doing.isPending} onClick={() => doing.mutate()}>
              {able ? `Reprocess ${runs(able)}` : "Reprocess"}
            </Button>
          </>
        )
      }
    >
      <p className={css.filter}>
        {Object.entries(filter).map(([key, value]) => (
          <Badge key={key}>
            <bdi>{`${key === "run_id" ? "run" : key}:${value}`}</bdi>
          </Badge>
        ))}
      </p>
      {dry.error ? (
        <ErrorState error={dry.error} what="the count" onRetry={() => void dry.refetch()} />
      ) : !outcome ? (
        <Loading rows={2} label="Counting" />
      ) : (
        <div role="status">
          <p>{`${outcome.matched.toLocaleString()} ${outcome.matched === 1 ? "letter" : "letters"} of ${runs(outcome.runs.length)}.`}</p>
          {outcome.more && <p>There are more: do it again for the rest.</p>}
          {refused.length > 0 && <Refusals answer={{ count: outcome.runs.length, runs: outcome.runs }} future={!doing.data} />}
          {able === 0 && <p className="soft">Discard the letter, or open its run and fork it from the step.</p>}
        </div>
      )}
      {outcome && !doing.data && able > 0 && (
        <div className={page.form}>
          <label htmlFor={field}>
            Reason
            <textarea id={field} rows={2} value={reason} maxLength={2000} onChange={(event) => setReason(event.target.value)} />
          </label>
        </div>
      )}
      {doing.error && <ErrorState error={doing.error} what="it" />}
    </Dialog>
  );
}
