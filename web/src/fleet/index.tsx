// Who works, what is queued, and how much may run at a time.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState, type FormEvent } from "react";
import { api, seg, type Problem } from "../api/client";
import { useMay } from "../api/queries";
import type { components, Page, QueueView, WorkerView } from "../api/types";
import { Badge, Button, Dialog, Duration, Empty, ErrorState, Loading, Status, Time, toast, useTitle } from "../ui";
import page from "../ui/page.module.css";
import css from "./fleet.module.css";

type Limit = components["schemas"]["ConcurrencyLimit"];

const EVERY_MS = 3_000;

function usePage<T>(name: string) {
  return useQuery<Page<T>, Problem>({
    queryKey: ["fleet", name],
    queryFn: ({ signal }) => api("GET", `/${name}`, { signal }),
    refetchInterval: EVERY_MS,
  });
}

export default function WorkersPage() {
  useTitle("Workers and queues");
  const workers = usePage<WorkerView>("workers");
  const queues = usePage<QueueView>("queues");
  const limits = usePage<Limit>("concurrency");
  const alive = workers.data?.items.filter((each) => each.state === "alive").length ?? 0;
  return (
    <div className={`${page.page} ${page.scrolls}`}>
      <header className={page.head}>
        <h1>Workers and queues</h1>
        {workers.data && <span className="soft">{`${alive} of ${workers.data.items.length} alive`}</span>}
      </header>
      <section className={page.section}>
        <h2>Queues</h2>
        {queues.error && !queues.data ? (
          <ErrorState error={queues.error} what="the queues" />
        ) : !queues.data ? (
          <Loading rows={3} />
        ) : queues.data.items.length === 0 ? (
          <p className="soft">Nothing is queued.</p>
        ) : (
          <div className={page.wide}>
            <table className={page.plain}>
              <thead>
                <tr>
                  <th>Queue</th>
                  <th className={page.number}>Ready</th>
                  <th className={page.number}>In hand</th>
                  <th className={page.number}>Later</th>
                  <th className={page.number}>Oldest waits</th>
                </tr>
              </thead>
              <tbody>
                {queues.data.items.map((queue) => (
                  <tr key={queue.queue}>
                    <td>
                      <bdi>{queue.queue}</bdi>
                    </td>
                    <td className={page.number}>{queue.ready.toLocaleString()}</td>
                    <td className={page.number}>{queue.leased.toLocaleString()}</td>
                    <td className={page.number}>{queue.later.toLocaleString()}</td>
                    <td className={page.number}>
                      {queue.oldest_ms === null ? <span className="soft">–</span> : <Duration ms={queue.oldest_ms} />}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <p className={`soft ${css.words}`}>
          Ready: a worker may take it now. In hand: a worker has it. Later: timers and retries that are not due.
        </p>
      </section>
      <section className={page.section}>
        <h2>Workers</h2>
        {workers.error && !workers.data ? (
          <ErrorState error={workers.error} what="the workers" />
        ) : !workers.data ? (
          <Loading rows={4} />
        ) : workers.data.items.length === 0 ? (
          <Empty title="No worker is known" icon="workers">
            <p>
              Runs wait until one starts: <code>tidemill worker</code>.
            </p>
          </Empty>
        ) : (
          <ul className={css.workers}>
            {workers.data.items.map((worker) => (
              <Worker key={worker.name} worker={worker} />
            ))}
          </ul>
        )}
      </section>
      <Limits found={limits} />
    </div>
  );
}

const STATES = { alive: "RUNNING", draining: "PAUSED", silent: "WAITING", dead: "CANCELLED" } as const;

function Worker({ worker }: { worker: WorkerView }) {
  const used = worker.concurrency ? Math.min(100, (worker.holding / worker.concurrency) * 100) : 0;
  return (
    <li className={css.worker} data-state={worker.state}>
      <div className={css.row}>
        <strong className="truncate" title={worker.name}>
          <bdi>{worker.name}</bdi>
        </strong>
        <Status status={worker.state === "alive" ? "COMPLETED" : STATES[worker.state]} word={worker.state} />
        <span className={page.spring} />
        <span className="soft">
          seen <Time ms={worker.beat_ms} />
        </span>
      </div>
      <div className={css.row}>
        <span className={css.meter} aria-hidden="true">
          <span style={{ width: `${used}%` }} />
        </span>
        <span className="numbers">{`${worker.holding} of ${worker.concurrency} places taken`}</span>
        <span className="soft">
          {`${worker.finished.toLocaleString()} finished · version ${worker.version} · started `}
          <Time ms={worker.started_ms} />
          {` · ${worker.queues.length ? `queues ${worker.queues.join(", ")}` : "all queues"}`}
        </span>
      </div>
      {worker.lacks.map((each) => (
        <p key={each} className={css.lacks} dir="auto">
          {`Left to others: ${each}`}
        </p>
      ))}
      {worker.blocked && (
        <p className={css.lacks}>
          {"Blocked for "}
          <Duration ms={worker.blocked.ms} />
          {worker.blocked.run_id && (
            <>
              {" by "}
              <Link to="/runs/$runId" params={{ runId: worker.blocked.run_id }} search={{ node: worker.blocked.node }}>
                <bdi>{worker.blocked.node || worker.blocked.run_id}</bdi>
              </Link>
            </>
          )}{" "}
          <Time ms={worker.blocked.at_ms} />
        </p>
      )}
      {worker.held.length > 0 && (
        <ul className={page.chips} aria-label="In its hands">
          {worker.held.map((each) => (
            <li key={`${each.run_id}/${each.node}/${each.visit}/${each.index}`}>
              <Link to="/runs/$runId" params={{ runId: each.run_id }} search={each.node ? { node: each.node } : {}}>
                <Badge role="busy">
                  <bdi>{each.node || each.kind}</bdi>
                </Badge>
              </Link>
            </li>
          ))}
          {worker.holding > worker.held.length && <li className="soft">{`and ${worker.holding - worker.held.length} more`}</li>}
        </ul>
      )}
      <details>
        <summary>{`${worker.types.length} node types`}</summary>
        <p className="mono soft">{worker.types.join(" ")}</p>
      </details>
    </li>
  );
}

function Limits({ found }: { found: ReturnType<typeof usePage<Limit>> }) {
  const mayWrite = useMay("fleet:write");
  const client = useQueryClient();
  const [editing, setEditing] = useState<Limit | null>(null);
  const remove = useMutation<unknown, Problem, string>({
    mutationFn: (name) => api("DELETE", `/concurrency/${seg(name)}`),
    onSuccess: (_, name) => {
      toast(`The limit of ${name} is lifted`);
      void client.invalidateQueries({ queryKey: ["fleet", "concurrency"] });
    },
    onError: (problem) => toast(problem),
  });
  return (
    <section className={page.section}>
      <h2>Limits</h2>
      <p className="soft">How many nodes of a queue, type, workflow or value of a label run at a time, in the whole fleet.</p>
      {found.error && !found.data ? (
        <ErrorState error={found.error} what="the limits" />
      ) : !found.data ? (
        <Loading rows={2} />
      ) : (
        <>
          {found.data.items.length === 0 ? (
            <p>No limit is set.</p>
          ) : (
            <table className={`${page.plain} ${css.limits}`}>
              <thead>
                <tr>
                  <th>Of</th>
                  <th className={page.number}>At a time</th>
                  <th>
                    <span className="visually-hidden">Change</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {found.data.items.map((each) => (
                  <tr key={each.name}>
                    <td>
                      <bdi>{each.name}</bdi>
                    </td>
                    <td className={page.number}>{each.limit === 0 ? "none: held back" : each.limit.toLocaleString()}</td>
                    <td className={page.number}>
                      {mayWrite && (
                        <>
                          <Button size="s" kind="quiet" icon="edit" onClick={() => setEditing(each)}>
                            Change
                          </Button>
                          <Button
                            size="s"
                            kind="quiet"
                            icon="close"
                            busy={remove.isPending && remove.variables === each.name}
                            onClick={() => remove.mutate(each.name)}
                          >
                            Lift
                          </Button>
                        </>
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
          {mayWrite && (
            <p className={css.words}>
              <Button size="s" icon="plus" onClick={() => setEditing({ name: "", limit: 4 })}>
                Set a limit
              </Button>
            </p>
          )}
        </>
      )}
      {editing && <LimitDialog limit={editing} onClose={() => setEditing(null)} />}
    </section>
  );
}

function LimitDialog({ limit, onClose }: { limit: Limit; onClose: () => void }) {
  const [name, setName] = useState(limit.name);
  const [most, setMost] = useState(String(limit.limit));
  const client = useQueryClient();
  const set = useMutation<unknown, Problem>({
    mutationFn: () => api("PUT", `/concurrency/${seg(name.trim())}`, { body: { limit: Number(most) } }),
    onSuccess: () => {
      toast(`At most ${most} of ${name.trim()} run at a time`);
      void client.invalidateQueries({ queryKey: ["fleet", "concurrency"] });
      onClose();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (name.trim()) set.mutate();
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={limit.name ? `Limit of ${limit.name}` : "Set a limit"}
      description="Nodes that run now are not stopped; more begin only below the limit. 0 holds everything back."
      size="s"
      footer={
        <>
          <Button onClick={onClose}>Back</Button>
          <Button kind="primary" type="submit" form="limit" busy={set.isPending} disabled={!name.trim() || most === ""}>
            Set the limit
          </Button>
        </>
      }
    >
      <form id="limit" className={page.form} onSubmit={submit}>
        <label>
          Of what
          <input
            type="text"
            value={name}
            readOnly={limit.name !== ""}
            placeholder="queue:default, type:http, workflow:billing, label:customer=acme"
            onChange={(event) => setName(event.target.value)}
          />
        </label>
        <label>
          At a time
          <input type="number" min={0} max={1_000_000} value={most} onChange={(event) => setMost(event.target.value)} />
        </label>
        {set.error && (
          <p className={page.wrong} role="alert">
            {set.error.detail} {set.error.hint}
          </p>
        )}
      </form>
    </Dialog>
  );
}
