// What is decided, on what grounds, what follows, and the buttons that decide it.
import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { Problem, type ProblemItem } from "../api/client";
import { keys } from "../api/queries";
import { Badge, Button, Dialog, Icon, JsonView, sentence, Time, useNow, useTitle } from "../ui";
import { focusInvalid, initialValue, SchemaForm } from "../ui/schema-form";
import css from "./approvals.module.css";
import { afterTimeout, due, leadsTo, PAST, people, person, type HistoryEntry, type Review, type Verb } from "./data";

export interface Answer {
  status: string;
  decision: string | null;
  next_nodes: string[];
}

interface DecideBody {
  decision: Verb;
  comments: string;
  form?: unknown;
}

interface DecisionProps {
  review: Review;
  history: HistoryEntry[];
  reload: () => Promise<Review | undefined>;
  decide: (body: DecideBody) => Promise<Answer>;
  delegate?: (to: string, comments: string) => Promise<unknown>;
  /** Why the caller may decide nothing at all. */
  missing: string;
  /** Of a signed link. */
  link?: ReactNode;
}

interface Note {
  role: "ok" | "bad" | "wait" | "quiet";
  text: ReactNode;
}

export function Decision({ review, history, reload, decide, delegate, missing, link }: DecisionProps) {
  const client = useQueryClient();
  useTitle(review.title || review.node);
  const [form, setForm] = useState<unknown>(() => initialValue(review.form));
  const [comments, setComments] = useState("");
  const [busy, setBusy] = useState<Verb | null>(null);
  const [problems, setProblems] = useState<ProblemItem[]>([]);
  const [note, setNote] = useState<Note | null>(null);
  const [wanting, setWanting] = useState<Verb | null>(null);
  const [delegating, setDelegating] = useState(false);
  const words = useRef<HTMLTextAreaElement>(null);
  const told = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // What came of it is above what was filled in.
    if (note && problems.length === 0) told.current?.scrollIntoView({ block: "center" });
  }, [note, problems]);
  const pending = review.status === "pending";
  const hasForm = review.form !== null && review.form !== undefined;
  const refusal = missing || (review.decider.refusal ? refusalWords(review) : "");
  const open = pending && !refusal;

  const send = async (verb: Verb) => {
    setProblems([]);
    setNote(null);
    if (verb !== "approve" && !comments.trim()) {
      setWanting(verb);
      words.current?.focus();
      return;
    }
    setWanting(null);
    setBusy(verb);
    try {
      const filled = hasForm && (verb === "approve" || Object.keys((form as object) ?? {}).length > 0);
      const answer = await decide({ decision: verb, comments: comments.trim(), ...(filled ? { form: form ?? {} } : {}) });
      setNote(thanks(verb, answer, review));
      await reload();
    } catch (error) {
      const problem = error instanceof Problem ? error : new Problem({ status: -1, detail: String(error) });
      const ofForm = problem.problems.filter((each) => each.path === "/form" || each.path.startsWith("/form/"));
      if (problem.code === "form_invalid" && ofForm.length > 0) {
        setProblems(ofForm);
        focusInvalid();
        setNote({ role: "bad", text: "The form is not complete yet: please look at the marked fields." });
      } else {
        const now = problem.status === 409 || problem.status === 410 || problem.status === 403 ? await reload() : undefined;
        setNote(refused(verb, problem, now ?? review));
      }
    } finally {
      setBusy(null);
      void client.invalidateQueries({ queryKey: keys.approvals });
    }
  };

  return (
    <article className={css.page}>
      {!link && (
        <Link to="/approvals" className="soft">
          ‹ Approvals
        </Link>
      )}
      <header className={css.section}>
        <h1 dir="auto">{review.title || review.node}</h1>
        <Facts review={review} linked={link !== undefined} />
        {link && pending && <p className="soft">{link}</p>}
      </header>
      {note && (
        <div ref={told} className={css.banner} data-role={note.role} role={note.role === "bad" ? "alert" : "status"}>
          <Icon name={note.role === "ok" ? "check" : "info"} />
          <div className={css.bannerText}>{note.text}</div>
        </div>
      )}
      {!pending && !note && <Outcome review={review} />}
      {review.description && (
        <p className={css.description} dir="auto">
          {review.description}
        </p>
      )}
      <Evidence review={review} />
      {pending && <Leads review={review} />}
      {pending && hasForm && (
        <section className={css.section} aria-labelledby="form-head">
          <h2 id="form-head">To fill in</h2>
          <SchemaForm schema={review.form} value={form} onChange={setForm} problems={problems} basePath="/form" disabled={!open} label="Form" />
        </section>
      )}
      {pending && (
        <section className={css.section}>
          <label htmlFor="comments">
            <strong>Comment</strong> <span className="soft">– kept with the decision; needed to reject or to ask for changes</span>
          </label>
          <textarea
            id="comments"
            ref={words}
            className={css.comments}
            value={comments}
            maxLength={2_000}
            disabled={!open}
            aria-invalid={wanting !== null || undefined}
            aria-describedby={wanting ? "comments-problem" : undefined}
            onChange={(event) => {
              setComments(event.target.value);
              if (event.target.value.trim()) setWanting(null);
            }}
          />
          {wanting && (
            <p id="comments-problem" className={css.problem} role="alert">
              {wanting === "reject" ? "Please say why you reject it: the reason goes to the person who asked." : "Please say what has to change."}
            </p>
          )}
        </section>
      )}
      {history.length > 0 && <History entries={history} />}
      {pending && refusal && (
        <div className={css.banner} data-role="wait">
          <Icon name="info" />
          <div className={css.bannerText}>{refusal}</div>
        </div>
      )}
      {pending && (
        <div className={css.decide} role="group" aria-label="Decide">
          <Button kind="primary" icon="check" busy={busy === "approve"} disabled={!open} onClick={() => void send("approve")}>
            Approve
          </Button>
          <Button kind="danger" icon="close" busy={busy === "reject"} disabled={!open} onClick={() => void send("reject")}>
            Reject
          </Button>
          {review.consequences.changes?.possible !== false && (
            <Button icon="undo" busy={busy === "changes"} disabled={!open} onClick={() => void send("changes")}>
              Request changes
            </Button>
          )}
          {delegate && (
            <Button icon="user" disabled={!open} onClick={() => setDelegating(true)}>
              Delegate
            </Button>
          )}
        </div>
      )}
      {delegate && (
        <Delegate
          open={delegating}
          onClose={() => setDelegating(false)}
          delegate={async (to, why) => {
            await delegate(to, why);
            setNote({ role: "ok", text: `${person(to)} may decide now in your place.` });
            await reload();
            void client.invalidateQueries({ queryKey: keys.approvals });
          }}
        />
      )}
    </article>
  );
}

function Facts({ review, linked }: { review: Review; linked: boolean }) {
  const late = due(review.expires_ms, useNow());
  return (
    <div className={css.facts}>
      {review.status === "pending" ? <Badge role="wait">waiting</Badge> : <Badge role={review.decision === "approve" ? "ok" : review.decision === "reject" ? "bad" : "quiet"}>{PAST[review.decision ?? ""] ?? review.status}</Badge>}
      {review.status === "pending" && late && <Badge role={late.late ? "bad" : late.soon ? "wait" : "quiet"}>{late.words}</Badge>}
      {review.escalated && <Badge role="wait">escalated</Badge>}
      <span>
        {review.requester ? `${person(review.requester)} asks` : "asks"} {people(review.approvers)}, <Time ms={review.requested_ms} />
      </span>
      {review.quorum > 1 && (
        <span>
          {review.votes.length} of {review.quorum} agreed
        </span>
      )}
      <span>
        {linked ? (
          review.workflow
        ) : (
          <Link to="/runs/$runId" params={{ runId: review.run_id }} search={{ node: review.node }}>
            {review.workflow}, step {review.node}
          </Link>
        )}
      </span>
      {linked && <span>You decide as {person(review.decider.person)}.</span>}
    </div>
  );
}

function Outcome({ review }: { review: Review }) {
  const said = review.status === "decided" ? null : review.status === "expired" ? "The time to decide has passed." : "The question was withdrawn: the run continued, or ended, without it.";
  return (
    <div className={css.banner} data-role={review.decision === "approve" ? "ok" : review.decision === "reject" ? "bad" : "quiet"}>
      <Icon name={review.decision === "approve" ? "check" : "info"} />
      <div className={css.bannerText}>
        {said ?? (
          <span>
            {person(review.decided_by)} {PAST[review.decision ?? ""] ?? review.decision} it <Time ms={review.decided_ms} />
            {review.on_behalf_of && `, in the place of ${person(review.on_behalf_of)}`}.
          </span>
        )}
        {review.comments && <q dir="auto">{review.comments}</q>}
      </div>
    </div>
  );
}

/** A value as people read it: short ones in a list, others as JSON. */
function Value({ value, label }: { value: unknown; label: string }) {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    const entries = Object.entries(value);
    const plain = entries.length > 0 && entries.length <= 20 && entries.every(([, each]) => typeof each !== "object" || each === null) && entries.every(([, each]) => String(each).length <= 400);
    if (plain) {
      return (
        <dl className={css.pairs}>
          {entries.map(([key, each]) => (
            <Pair key={key} name={key} text={each === null ? "–" : String(each)} />
          ))}
        </dl>
      );
    }
  }
  if (typeof value === "string" || typeof value === "number" || typeof value === "boolean") {
    const text = String(value);
    if (text.length <= 4_000) {
      return (
        <div className={css.value} dir="auto">
          {text}
        </div>
      );
    }
  }
  return <JsonView value={value} label={label} />;
}

function Pair({ name, text }: { name: string; text: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd className={css.value} dir="auto">
        {text}
      </dd>
    </>
  );
}

function Evidence({ review }: { review: Review }) {
  if (review.evidence === null) return null;
  const { inputs, nodes, item } = review.evidence;
  const none = inputs === null || inputs === undefined || (typeof inputs === "object" && Object.keys(inputs).length === 0);
  const entries = Object.entries(nodes);
  if (none && entries.length === 0 && item === undefined) return null;
  return (
    <section className={css.section} aria-labelledby="evidence-head">
      <h2 id="evidence-head">What is known</h2>
      <dl className={css.evidence}>
        {item !== undefined && (
          <div>
            <dt>This item</dt>
            <dd>
              <Value value={item} label="Item" />
            </dd>
          </div>
        )}
        {!none && (
          <div>
            <dt>Inputs of the run</dt>
            <dd>
              <Value value={inputs} label="Inputs" />
            </dd>
          </div>
        )}
        {entries.map(([name, value]) => (
          <div key={name}>
            <dt>Output of {name}</dt>
            <dd>
              <Value value={value} label={`Output of ${name}`} />
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Leads({ review }: { review: Review }) {
  const verbs: [Verb, string][] = [
    ["approve", "Approve"],
    ["reject", "Reject"],
    ["changes", "Request changes"],
  ];
  const known = verbs.filter(([verb]) => review.consequences[verb]?.possible);
  if (known.length === 0) return null;
  const last = afterTimeout(review);
  const left = review.quorum - review.votes.length;
  return (
    <section className={css.section} aria-labelledby="leads-head">
      <h2 id="leads-head">What happens then</h2>
      <dl className={css.leads}>
        {known.map(([verb, name]) => (
          <div key={verb} style={{ display: "contents" }}>
            <dt>{name}</dt>
            <dd className="soft">
              {verb === "approve" && left > 1 ? `Your vote counts; ${left - 1} more ${left === 2 ? "person has" : "people have"} to agree. Then: ` : ""}
              {leadsTo(verb, review.consequences[verb])}
            </dd>
          </div>
        ))}
        {last && (
          <div style={{ display: "contents" }}>
            <dt>Nothing</dt>
            <dd className="soft">{last}</dd>
          </div>
        )}
      </dl>
    </section>
  );
}

const EVENTS: Record<string, string> = {
  ApprovalRequested: "asked",
  ApprovalVoted: "agreed",
  ApprovalDecided: "decided",
  ApprovalReturned: "asked for changes",
  ApprovalDelegated: "delegated it",
  ApprovalEscalated: "it was escalated",
  ApprovalExpired: "the time ran out",
  ApprovalCancelled: "it was withdrawn",
};

function History({ entries }: { entries: HistoryEntry[] }) {
  return (
    <section className={css.section} aria-labelledby="history-head">
      <h2 id="history-head">So far</h2>
      <ol className={css.history}>
        {entries.map((each) => (
          <li key={each.seq} className="soft">
            <Time ms={each.at_ms} /> · {each.by ? `${person(each.by)} ` : ""}
            {each.decision ? PAST[each.decision] : (EVENTS[each.event] ?? each.event)}
            {each.to && ` to ${person(each.to)}`}
            {each.comments && (
              <>
                : <q dir="auto">{each.comments}</q>
              </>
            )}
          </li>
        ))}
      </ol>
    </section>
  );
}

function Delegate({ open, onClose, delegate }: { open: boolean; onClose: () => void; delegate: (to: string, comments: string) => Promise<void> }) {
  const [to, setTo] = useState("");
  const [why, setWhy] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const send = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await delegate(to.trim(), why.trim());
      onClose();
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem({ status: -1, detail: String(error) }));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog
      open={open}
      onOpenChange={(next) => !next && onClose()}
      title="Delegate the decision"
      description="Another person decides in your place. You cannot decide any more, unless it is given back to you."
      size="s"
      footer={
        <>
          <Button onClick={onClose}>Back</Button>
          <Button kind="primary" busy={busy} disabled={!to.trim()} onClick={() => void send()}>
            Delegate
          </Button>
        </>
      }
    >
      <label className={css.section}>
        <strong>Person</strong>
        <input type="text" value={to} autoComplete="off" placeholder="ada" onChange={(event) => setTo(event.target.value)} />
      </label>
      <label className={css.section}>
        <strong>Comment</strong>
        <textarea rows={2} value={why} maxLength={2_000} onChange={(event) => setWhy(event.target.value)} />
      </label>
      {problem && (
        <p className={css.problem} role="alert">
          {sentence(problem.detail)} {sentence(problem.hint)}
        </p>
      )}
    </Dialog>
  );
}

// What is said after a decision

function thanks(verb: Verb, answer: Answer, review: Review): Note {
  if (answer.status === "pending") {
    const left = Math.max(0, review.quorum - review.votes.length - 1);
    return { role: "ok", text: `Your vote counts. ${left} more ${left === 1 ? "person has" : "people have"} to agree.` };
  }
  const next = answer.next_nodes.length > 0 ? ` ${leadsTo(verb, review.consequences[verb])}` : "";
  return { role: "ok", text: `You ${verb === "changes" ? "asked for changes" : (PAST[verb] ?? verb)}${verb === "changes" ? "" : " it"}.${next}` };
}

function refusalWords(review: Review): string {
  const refusal = review.decider.refusal;
  if (refusal === null) return "";
  if (refusal.code === "four_eyes") return "You started or changed this run, and four eyes are required: another person has to decide.";
  const to = review.delegated.findLast((each) => each.by === review.decider.person);
  if (refusal.code === "approver_not_allowed" && to) return `You have delegated this to ${person(to.to)}.`;
  if (refusal.code === "approver_not_allowed") return `You are not asked: ${people(review.approvers)} may decide.`;
  if (refusal.code === "decision_conflict") return "You have voted already.";
  return `${sentence(refusal.message)} ${sentence(refusal.hint)}`.trim();
}

/** A decision that came after another: who decided what, and when. */
function refused(verb: Verb, problem: Problem, review: Review): Note {
  if (problem.isOffline) return { role: "bad", text: "The server cannot be reached. Nothing was decided; press the button again when it is back." };
  if (review.status === "decided" && (problem.status === 409 || problem.status === 410)) {
    const same = review.decision === verb;
    return {
      role: same ? "quiet" : "wait",
      text: (
        <>
          <span>
            {person(review.decided_by)} {PAST[review.decision ?? ""] ?? review.decision} it <Time ms={review.decided_ms} />, before you. Your decision was not needed and was not recorded.
          </span>
          {review.comments && <q dir="auto">{review.comments}</q>}
        </>
      ),
    };
  }
  if (problem.code === "approval_expired" || review.status === "expired") {
    return { role: "wait", text: "The time to decide has passed. Retry the run to ask again." };
  }
  if (problem.status === 410) {
    return { role: "wait", text: "It is too late: the run has continued, or has ended, without this decision." };
  }
  return { role: "bad", text: `${sentence(problem.detail)} ${sentence(problem.hint)}`.trim() };
}
