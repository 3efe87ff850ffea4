/** What the run does, since when, what it waits for and what unblocks it, in words. */
import { Link } from "@tanstack/react-router";
import { lazy, Suspense, useState, type ReactNode } from "react";
import { absolute, Badge, Button, Copy, Duration, Icon, Menu, Spent, Status, Time, copyText, runStatusName, toast, tokenWords } from "../ui";
import { errorName, hasEnded, type Blocker, type Explanation, type RunModel } from "./model";
import css from "./run.module.css";
import { useSelection } from "./selection";
import { commandsFor, placeWords, sentence, stepSentence } from "./words";

const ActionBar = lazy(() => import("./actions").then((module) => ({ default: module.ActionBar })));

export function RunHeader({ model }: { model: RunModel }) {
  const { run } = model;
  const short = run.run_id.length > 18 ? `${run.run_id.slice(0, 8)}…${run.run_id.slice(-4)}` : run.run_id;
  const labels = Object.entries(run.labels);
  return (
    <header className={css.header}>
      <div className={css.titleRow}>
        <nav aria-label="Breadcrumb" className={css.crumbs}>
          <Link to="/runs">Runs</Link>
          <span aria-hidden="true">/</span>
          <Link to="/workflows/$name" params={{ name: run.workflow }} search={{ version: String(run.version) } as never}>
            <h1 dir="auto">{run.workflow}</h1>
          </Link>
          <Badge>
            version {run.version}
            {run.revision > 0 && `, patched ${run.revision === 1 ? "once" : `${run.revision} times`}`}
          </Badge>
          <Status status={runStatusName({ ...run, idle: isIdle(model) })} pill />
        </nav>
        <Live model={model} />
        <CopyAs run={run.run_id} node={null} />
      </div>
      <dl className={css.facts}>
        <Fact name="Run">
          <code title={run.run_id}>{short}</code>
          <Copy text={run.run_id} label="Copy the id of the run" />
        </Fact>
        <Fact name="Started">
          <Time ms={run.created_ms} />
          {run.submitted_by && (
            <>
              {" "}
              by <span dir="auto">{run.submitted_by}</span>
            </>
          )}
        </Fact>
        <Fact name={run.ended_ms === null && model.at === null ? "So far" : "Took"}>
          <Duration {...(run.ended_ms !== null ? { ms: run.ended_ms - run.created_ms } : model.at !== null ? { ms: run.last_event_ms - run.created_ms } : { since: run.created_ms })} />
        </Fact>
        {run.spent && run.spent.calls > 0 && (
          <Fact name="Agents spent">
            <Spent spent={run.spent} />
            {run.spent.cost > 0 && <span className="soft numbers">· {tokenWords(run.spent)}</span>}
          </Fact>
        )}
        {run.parent && (
          <Fact name="Child of">
            <Link to="/runs/$runId" params={{ runId: run.parent }}>
              {run.parent.slice(0, 8)}…
            </Link>
          </Fact>
        )}
        {run.forked_from && (
          <Fact name="Fork of">
            <Link to="/runs/$runId" params={{ runId: run.forked_from[0] }} search={{ at: run.forked_from[1] } as never}>
              {run.forked_from[0].slice(0, 8)}… at #{run.forked_from[1]}
            </Link>
          </Fact>
        )}
        {labels.map(([name, value]) => (
          <div key={name} className={css.label}>
            <dt dir="auto">{name}</dt>
            <dd dir="auto">{value}</dd>
          </div>
        ))}
      </dl>
      <div className={css.answer}>
        <Why model={model} />
        <Suspense fallback={null}>
          <ActionBar model={model} />
        </Suspense>
      </div>
    </header>
  );
}

function isIdle(model: RunModel): boolean {
  return !Object.values(model.run.nodes).some((node) => node.status === "RUNNING");
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div className={css.fact}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

const LIVE_WORDS = {
  live: ["Live", "What happens is shown as it happens"],
  reconnecting: ["Reconnecting…", "The connection broke; the page connects again by itself"],
  offline: ["Offline", "The server does not answer; the page tries again by itself and continues behind the last event"],
  ended: ["Ended", "Nothing more happens by itself"],
} as const;

function Live({ model }: { model: RunModel }) {
  const state = hasEnded(model.run) && model.live === "live" ? "ended" : model.live;
  const [word, title] = LIVE_WORDS[state];
  return (
    <span className={css.live} data-state={state} title={`${title}. Event #${model.total}.`} role="status">
      <span className={css.dot} aria-hidden="true" />
      {word}
      {(state === "offline" || state === "reconnecting") && <span className="soft"> at event #{model.total}</span>}
    </span>
  );
}

/** Copy what asks for this outside of the page. */
export function CopyAs({ run, node }: { run: string; node: string | null }) {
  const copy = (what: "curl" | "python" | "cli") => () => {
    copyText(commandsFor(run, node)[what]).then(
      () => toast("Copied"),
      () => toast("The browser did not copy", { role: "bad" }),
    );
  };
  return (
    <Menu
      align="end"
      trigger={
        <Button size="s" kind="quiet" icon="copy">
          Copy as
        </Button>
      }
      items={[
        { label: "curl", onSelect: copy("curl") },
        { label: "Python", onSelect: copy("python") },
        { label: "Command line", onSelect: copy("cli") },
      ]}
    />
  );
}

function Why({ model }: { model: RunModel }) {
  const { why, run, at } = model;
  if (at !== null) {
    return (
      <p className={css.headline}>
        As it was after event #{at}, <time title={absolute(run.last_event_ms)}>{new Date(run.last_event_ms).toLocaleString()}</time>
      </p>
    );
  }
  if (why === null) return <p className={css.headline}>…</p>;
  if (why.first_cause) return <Failed model={model} />;
  const live = run.ended_ms === null;
  const roots = why.blockers.filter((each) => each.root);
  const shown = live ? (roots.length > 0 ? roots : why.blockers) : why.blockers;
  return (
    <div className={css.why}>
      {(shown.length === 0 || !live || why.stuck || why.newer) && (
        <p className={css.headline} dir="auto">
          {run.status === "COMPLETED" ? "The run succeeded" : sentence(why.headline)}
          {why.since_ms !== null && !live && (
            <span className="soft">
              {" "}
              · <Time ms={why.since_ms} />
            </span>
          )}
        </p>
      )}
      {shown[0] && live && <Blockers model={model} first={shown[0]} others={[...shown.slice(1), ...why.blockers.filter((each) => !shown.includes(each))]} more={why.more_roots + why.more_followers} />}
      {why.deadline?.until_ms != null && live && (
        <p className="soft">
          The run fails <Time ms={why.deadline.until_ms} ahead /> if it has not ended by then.
        </p>
      )}
      {!live && why.unblock && <p className="soft">{sentence(why.unblock)}.</p>}
      {why.failures_tolerated > 0 && (
        <p className={css.warn} dir="auto">
          {toleratedWords(why)}
        </p>
      )}
      {why.warnings.map((each) => (
        <p key={each} className={css.warn} dir="auto">
          {sentence(each)}
        </p>
      ))}
    </div>
  );
}

/** What the run does or waits for first. The rest is folded, so that the page keeps its place while steps begin and end. */
function Blockers({ model, first, others, more }: { model: RunModel; first: Blocker; others: Blocker[]; more: number }) {
  const [open, setOpen] = useState(false);
  const count = others.length + more;
  return (
    <ul className={css.blockers}>
      <BlockerLine model={model} blocker={first}>
        {count > 0 && (
          <button type="button" className={`${css.linkButton} ${css.more}`} aria-expanded={open} onClick={() => setOpen(!open)}>
            <Icon name={open ? "chevron-down" : "chevron-right"} />
            {count.toLocaleString()} more
          </button>
        )}
      </BlockerLine>
      {open && others.slice(0, OTHERS_MAX).map((each, index) => <BlockerLine key={index} model={model} blocker={each} />)}
    </ul>
  );
}

const OTHERS_MAX = 50;

/** What something waits for, since when, until when, and what ends it. */
function BlockerLine({ model, blocker, children }: { model: RunModel; blocker: Blocker; children?: ReactNode }) {
  const { select } = useSelection();
  return (
    <li className={css.blocker}>
      <span className={css.headline} dir="auto">
        {blockerWords(blocker)}
      </span>
      {blocker.error && (
        <span className={css.errorText} dir="auto">
          <b>{errorName(blocker.error)}</b> {blocker.error.message}
        </span>
      )}
      <span className={css.blockerFacts}>
        {blocker.since_ms !== null && (
          <span>
            for <Duration since={blocker.since_ms} />
          </span>
        )}
        {blocker.until_ms !== null && blocker.kind !== "lease" && (
          <span>
            {UNTIL[blocker.kind] ?? "until"} <Time ms={blocker.until_ms} ahead={blocker.kind !== "person"} />
          </span>
        )}
        {blocker.unblock && !endsItself(blocker) && <span className={css.unblock}>{sentence(blocker.unblock)}</span>}
        {blocker.kind === "person" && (
          <Link to="/approvals/$id" params={{ id: activationId(model.id, blocker) }} className={css.decide}>
            Decide
          </Link>
        )}
        {blocker.child && blocker.started && (
          <Link to="/runs/$runId" params={{ runId: blocker.child }}>
            Open the child run
          </Link>
        )}
        {blocker.node && (
          <button type="button" className={css.linkButton} onClick={() => select({ node: blocker.node, item: blocker.index >= 0 ? blocker.index : null })}>
            Show <span dir="auto">{blocker.node}</span>
          </button>
        )}
        {children}
      </span>
    </li>
  );
}

/** "The run tolerated a failure of text-message." */
function toleratedWords({ failures_tolerated: failures, tolerated: { count, names } }: Explanation): string {
  const of = names.length > 0 ? ` of ${names.slice(0, 5).join(", ")}${count > 5 ? ", …" : ""}` : "";
  return `The run tolerated ${failures === 1 ? "a failure" : `${failures.toLocaleString()} failures`}${of}.`;
}

/** What ends by itself, or has a link of its own. */
const SELF_ENDING = new Set(["lease", "person", "child"]);
const endsItself = ({ kind, until_ms, command }: Blocker): boolean => SELF_ENDING.has(kind) || (until_ms !== null && command === "");

/** What is waited for, beginning with whom. */
function blockerWords(blocker: Blocker): string {
  const { kind, node, words } = blocker;
  const place = placeWords({ node, ...(blocker.visit > 0 ? { visit: blocker.visit } : {}), ...(blocker.index >= 0 ? { index: blocker.index } : {}) });
  if (kind === "person" && blocker.title) {
    const who = (blocker.approvers ?? []).map((each) => (each.startsWith("role:") ? `someone with the role ${each.slice(5)}` : each.replace(/^user:/, ""))).join(" or ");
    const votes = (blocker.quorum ?? 1) > 1 ? ` (${blocker.voted?.length ?? 0} of ${blocker.quorum} have agreed)` : "";
    return `Waiting for ${who || "a person"} to decide: ${blocker.title}${votes}`;
  }
  if (kind === "lease" && blocker.attempt) return `Running ${place}, attempt ${blocker.attempt}${blocker.max_attempts ? ` of ${blocker.max_attempts}` : ""}, on ${blocker.owner ?? "a worker"}`;
  return node ? stepSentence(node, words) : sentence(words);
}

/** The id of the approval of an activation, as the API makes it. */
function activationId(run: string, { node, visit, index }: Blocker): string {
  const raw = new TextEncoder().encode(`${run}/${node}/${visit}/${index}`);
  return btoa(String.fromCharCode(...raw)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

const UNTIL: Record<string, string> = { retry: "next attempt", timer: "wakes", person: "due", lease: "lease ends" };

function Failed({ model }: { model: RunModel }) {
  const { select } = useSelection();
  const why = model.why!;
  const cause = why.first_cause!;
  const { error } = cause;
  const consequences = why.chain.filter((link) => link.what === "failed_with" || link.what === "cancelled");
  return (
    <div className={css.failed}>
      <p className={css.headline}>
        <Icon name="warning" />
        {cause.node ? (
          <>
            Failed first at{" "}
            <button type="button" className={css.stepLink} onClick={() => select({ node: cause.node, item: cause.index >= 0 ? cause.index : null, tab: null })}>
              <span dir="auto">{cause.node}</span>
            </button>
            {cause.index >= 0 && `, item ${cause.index}`}
            {cause.visit > 1 && `, pass ${cause.visit}`}
          </>
        ) : (
          "The run failed as a whole"
        )}
        <span className="soft">
          {cause.attempts > 1 && ` after ${cause.attempts} attempts`}
          {cause.at_ms !== null && (
            <>
              {" · "}
              <Time ms={cause.at_ms} />
            </>
          )}
        </span>
      </p>
      <p className={css.errorText} dir="auto">
        <b>{errorName(error)}</b> {error.message}
      </p>
      {error.hint && (
        <p className={css.hint} dir="auto">
          {sentence(error.hint)}
        </p>
      )}
      {consequences.map((link) => (
        <p key={link.what} className="soft" dir="auto">
          {sentence(link.words)}
          {link.nodes.names.length > 0 && `: ${link.nodes.names.slice(0, 5).join(", ")}${link.nodes.count > 5 ? "…" : ""}`}
        </p>
      ))}
      {why.rollback !== "none" && <p dir="auto">{sentence(why.headline.split("; ").at(-1) ?? "")}</p>}
      {why.left_error && (
        <p className={css.errorText} dir="auto">
          {why.left_error.message}
        </p>
      )}
      {why.unblock && <p className={css.next}>{sentence(why.unblock)}.</p>}
    </div>
  );
}
