/** What an agent said and did: turns, calls of tools, tokens and cost, and the words as they come. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, seg } from "../api/client";
import { Badge, Duration, ErrorState, JsonView, Loading, money, Status, Time } from "../ui";
import { hasEnded, runPath, stateOf, type RunModel } from "./model";
import { useParts } from "./output";
import css from "./run.module.css";
import { useSelection } from "./selection";
import { snippet } from "./words";

interface Call {
  name: string;
  arguments: unknown;
  status: "pending" | "running" | "waiting" | "done" | "failed";
  result: unknown;
  error: string;
  unknown_outcome: boolean;
  preview: unknown;
  child: string;
  waits_for: string;
  seq: number;
  duration_ms: number;
}

interface FailedCall {
  code: string;
  message: string;
  model: string;
}

interface Turn {
  number: number;
  seq: number;
  at_ms: number;
  model: string;
  provider: string;
  notes: string[];
  failed: FailedCall[];
  text: string;
  refusal: string;
  calls: Call[];
  usage: Record<string, number> | null;
  cost: number | null;
  duration_ms: number;
  finish_reason: string;
}

interface Answer {
  status: string;
  error: { code: string; message: string } | null;
  prompt: string;
  memory: [string, string][];
  turns: Turn[];
  open_notes: string[];
  open_failures: FailedCall[];
  lost_calls: number;
  usage: Record<string, number>;
  cost: number | null;
  calls: number;
  tool_calls: number;
  duration_ms: number;
  next_nodes: string[];
  reason: string;
}

const count = (value: number | undefined): string => (value ?? 0).toLocaleString();
const tokenText = (value: unknown): string => {
  if (typeof value === "string") return value;
  if (typeof value === "object" && value !== null) {
    const { text, delta } = value as { text?: unknown; delta?: unknown };
    if (typeof text === "string") return text;
    if (typeof delta === "string") return delta;
  }
  return "";
};

export default function Transcript({ model, node, visit, item }: { model: RunModel; node: string; visit: number; item: number | null }) {
  const state = stateOf(model, node);
  const working = !hasEnded(model.run) && model.at === null && (state.status === "RUNNING" || state.status === "WAITING" || state.status === "QUEUED");
  const found = useQuery({
    queryKey: ["run", model.id, "transcript", node, visit, item, working ? model.total : state.status],
    queryFn: ({ signal }) => api<Answer>("GET", `${runPath(model.id)}/nodes/${seg(node)}/transcript`, { query: { visit, index: item ?? undefined }, signal }),
    placeholderData: keepPreviousData,
  });
  const parts = useParts({ model, node, visit, item }, working, tokenText);
  if (found.isPending) return <Loading />;
  if (found.error) return <ErrorState error={found.error} what="this transcript" onRetry={() => void found.refetch()} />;
  const told = found.data;
  const seen = model.at === null ? told.turns : told.turns.filter((turn) => turn.seq <= model.at!);
  return (
    <div className={css.transcript}>
      <Totals told={told} />
      {told.memory.map(([role, text], index) => (
        <Said key={`memory${index}`} who={`${role}, remembered`} text={text} />
      ))}
      {told.prompt && <Said who="prompt" text={told.prompt} />}
      {seen.map((turn) => (
        <TurnView key={turn.seq} turn={turn} />
      ))}
      {told.open_failures.map((each, index) => (
        <FailedLine key={index} failed={each} />
      ))}
      {told.open_notes.map((each, index) => (
        <Said key={`note${index}`} who="engine" text={each} />
      ))}
      {working && (
        <section className={css.turn} aria-label="The turn under way" aria-busy="true">
          <div className={css.turnHead}>
            <Status status={state.status} word={state.status === "WAITING" ? "waits" : "thinking…"} />
          </div>
          {parts.text && (
            <p className={css.turnText} dir="auto">
              {parts.text}
            </p>
          )}
        </section>
      )}
      {told.next_nodes.length > 0 && (
        <p dir="auto">
          Chose <b>{told.next_nodes.join(", ")}</b>
          {told.reason && `: ${told.reason}`}
        </p>
      )}
      {told.error && (
        <p className={css.errorText} dir="auto">
          <b>{told.error.code}</b> {told.error.message}
        </p>
      )}
    </div>
  );
}

function Totals({ told }: { told: Answer }) {
  const { input_tokens, output_tokens, cached_tokens } = told.usage;
  return (
    <dl className={css.totals}>
      <Total name="turns" value={count(told.turns.length)} />
      <Total name="tool calls" value={count(told.tool_calls)} />
      <Total name="tokens in" value={count(input_tokens)} />
      <Total name="cached" value={cached_tokens ? `${count(cached_tokens)} (${Math.round((100 * cached_tokens) / Math.max(1, input_tokens ?? 0))} %)` : "0"} />
      <Total name="tokens out" value={count(output_tokens)} />
      {told.cost !== null && <Total name="cost" value={money(told.cost)} />}
      {told.lost_calls > 0 && <Total name="lost calls" value={count(told.lost_calls)} />}
    </dl>
  );
}

function Total({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd className="numbers">{value}</dd>
    </div>
  );
}

function Said({ who, text }: { who: string; text: string }) {
  return (
    <section className={css.said}>
      <h3>{who}</h3>
      <p className={css.turnText} dir="auto">
        {text}
      </p>
    </section>
  );
}

function FailedLine({ failed }: { failed: FailedCall }) {
  return (
    <p className={css.warn} dir="auto">
      A call of {failed.model || "the model"} failed: {failed.message} [{failed.code}]
    </p>
  );
}

function TurnView({ turn }: { turn: Turn }) {
  const { select } = useSelection();
  const { usage } = turn;
  return (
    <section className={css.turn} aria-label={`Turn ${turn.number}`}>
      {turn.failed.map((each, index) => (
        <FailedLine key={index} failed={each} />
      ))}
      {turn.notes.map((each, index) => (
        <Said key={index} who="engine" text={each} />
      ))}
      <div className={css.turnHead}>
        <h3>Turn {turn.number}</h3>
        <span className="soft">{turn.model}</span>
        <Duration ms={turn.duration_ms} className="soft" />
        <Time ms={turn.at_ms} className="soft" />
        {usage && (
          <span className="soft numbers">
            {count(usage.input_tokens)} in{usage.cached_tokens ? ` (${count(usage.cached_tokens)} cached)` : ""}, {count(usage.output_tokens)} out
          </span>
        )}
        {turn.cost !== null && <span className="soft numbers">{money(turn.cost)}</span>}
        <button type="button" className={css.linkButton} onClick={() => select({ view: "history", event: turn.seq })}>
          #{turn.seq}
        </button>
      </div>
      {turn.text && (
        <p className={css.turnText} dir="auto">
          {turn.text}
        </p>
      )}
      {turn.refusal && (
        <p className={css.warn} dir="auto">
          Refused: {turn.refusal}
        </p>
      )}
      {turn.calls.map((call, index) => (
        <CallView key={index} call={call} />
      ))}
    </section>
  );
}

const CALL_STATUS: Record<Call["status"], string> = { pending: "PENDING", running: "RUNNING", waiting: "WAITING", done: "COMPLETED", failed: "FAILED" };

function CallView({ call }: { call: Call }) {
  return (
    <details className={css.call} open={call.status === "failed"}>
      <summary>
        <Status status={CALL_STATUS[call.status]} word={call.name} />
        <span className="truncate mono soft" dir="auto">
          {snippet(call.arguments, 120)}
        </span>
        {call.duration_ms > 0 && <Duration ms={call.duration_ms} className="soft" />}
        {call.unknown_outcome && <Badge role="bad">unknown outcome</Badge>}
      </summary>
      <h3>Arguments</h3>
      <JsonView value={call.arguments} label={`Arguments of ${call.name}`} />
      {call.waits_for && <p className="soft">waits for {call.waits_for}</p>}
      {call.error && (
        <p className={css.errorText} dir="auto">
          {call.error}
        </p>
      )}
      {(call.status === "done" || call.status === "failed") && (
        <>
          <h3>Result</h3>
          <JsonView value={call.preview ?? call.result} label={`Result of ${call.name}`} />
        </>
      )}
      {call.child && (
        <p>
          <Link to="/runs/$runId" params={{ runId: call.child }}>
            Open the child run
          </Link>
        </p>
      )}
    </details>
  );
}
