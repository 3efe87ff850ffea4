"""Blockers of dispatched and waiting visits, and of the run as a whole (pause, outputs, deadline, rollback).

Hides which sentence, remedy and command belong to which situation. Visits that wait for other visits are in
`upstream`. All texts are public output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any, Literal, NamedTuple

from msgspec import json

from tidemill.kernel.activation import Approval
from tidemill.kernel.decide.approvals import as_user, entitled
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.decide.retries import SET_ASIDE
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain import blockers
from tidemill.kernel.explain.blockers import AnyBlocker, Failure, Need, shown
from tidemill.kernel.explain.survey import ExplainInput, JobFact, WaitingVisit, Workers, expires_first, job_key, label
from tidemill.kernel.jobs import key_of
from tidemill.kernel.model import Node
from tidemill.kernel.state import CompletedStep

_DOES = {
    "call": "works on",
    "expand": "evaluates the list of",
    "assemble": "puts the results together of",
    "route": "evaluates the conditions of",
    "wake": "wakes",
}
RESUME = "tidemill runs resume {run}"
WORK = "tidemill worker"
_AUDIT = "the reconciler restores it; nothing is lost"
_FREE = "a worker becomes free; start another to speed it up"


def common_fields(case: WaitingVisit, since_ms: int | None, until_ms: int | None = None) -> dict[str, Any]:
    return {
        "since_ms": since_ms,
        "until_ms": until_ms,
        "node": case.node.id,
        "visit": case.visit.visit,
        "index": case.item if case.act is not case.visit else NOT_AN_ITEM,
        "status": case.act.status,
        "root": case.root,
    }


def _job(case: WaitingVisit) -> JobFact:
    assert case.job is not None, "kinds that read the job have one"
    return case.job


def ready_since(case: WaitingVisit, job: JobFact) -> int:
    """Since when a worker could take the job; items do not record when they were queued, but their jobs do."""
    return max(case.act.since_ms, job.ready_at_ms) or case.visit.since_ms


class Help(NamedTuple):
    """Why a job waits, what helps, and the command for it."""

    words: str
    unblock: str
    command: str = ""


_SERVE = f"{WORK} --queues {{queue}}"
_NEEDS = {
    "no_worker": Help("no worker is running", "start a worker", WORK),
    "silent": Help(
        "all workers have stopped sending heartbeats",
        "check their output: perhaps they cannot write to the store",
        "tidemill workers",
    ),
    "no_queue": Help("no worker on queue {queue}", "start a worker that serves queue {queue}", _SERVE),
    "no_type": Help(
        "no worker has type {type}", "start a worker on queue {queue} that has {type}", f"{_SERVE} --app MODULE"
    ),
    "elsewhere": Help(
        "no worker on queue {queue} has type {type}, but {other} does on other queues",
        "let a worker that has {type} serve queue {queue}",
        f"{_SERVE} --app MODULE",
    ),
    "lacking": Help(
        "no worker has what it needs: {lacking}", "start a worker on queue {queue} that has it{because}", _SERVE
    ),
    "function_unknown": Help(
        "no worker has what it needs: {lacking}",
        "start a worker on queue {queue} that has it: --app names its module; a worker finds modules in its folder",
        f"{_SERVE} --app MODULE",
    ),
    "import_not_allowed": Help(
        "no worker has what it needs: {lacking}",
        "start a worker on queue {queue} that has it{because}",
        f"{_SERVE} --allow-import MODULE",
    ),
    "value": Help("a value that it needs is not available: {lacking}", "{hint}"),
    "later": Help("its job was postponed", "a worker retries it automatically"),
    "killer": Help(
        f"it is set aside: {SET_ASIDE}", "find out what kills them, then pause and resume the run to try it again"
    ),
    "lost": Help("its worker was lost; it is waiting for another on queue {queue}", _FREE),
    "limited": Help(
        "waiting for a free worker on queue {queue}, or for a free slot under a concurrency limit",
        "nothing, or raise the limit",
        "tidemill concurrency",
    ),
    "busy": Help("waiting for a free worker on queue {queue}", _FREE),
}
"""By need, or by a special case of it."""


def start_worker(
    need: Need, queue: str, type_: str, elsewhere: Sequence[str] = (), lacking: Failure | None = None
) -> Help:
    """Texts for a job that no worker runs; `elsewhere` are workers that know its type on other queues."""
    key: str = need
    if need == "no_type" and elsewhere:
        key = "elsewhere"
    elif need == "lacking" and lacking is not None and lacking.code in _NEEDS:
        key = lacking.code
    hint = "" if lacking is None else lacking.hint
    values = {
        "queue": queue,
        "type": type_,
        "other": elsewhere[0] if elsewhere else "",
        "lacking": "the cause is unknown" if lacking is None else lacking.message,
        "because": f": {hint}" if hint else "",
        "hint": hint or "check where it is stored",
    }
    return Help(*(text.format_map(values) for text in _NEEDS[key]))


_CODE = re.compile(r"( --(app|allow-import) MODULE)?$")


def _with_code(command: str, node: Node) -> str:
    """The command that starts a worker, with the option that the function of a `python` node needs."""
    function = node.config.get("function") if isinstance(node.config, dict) else None
    if not isinstance(function, str) or "{" in function or not node.type.startswith("python@"):
        return command
    module, colon, _ = function.partition(":")
    option = f" --allow-import {quote(module)}" if colon else " --app FILE.py"
    return _CODE.sub(lambda _: option, command, count=1) if command.partition(" --")[0] == WORK else command


def unclaimed(facts: ExplainInput, case: WaitingVisit) -> blockers.Worker:
    job = _job(case)
    waits = case.act.status == "WAITING"
    type_ = "" if waits or phase_of(case.node, case.visit, case.item) != "call" else case.node.type
    need = facts.why_unclaimed(job, type_)
    workers, limit = facts.workers or Workers(), facts.bounds.names
    elsewhere = workers.elsewhere(job.queue, type_)[:limit] if need == "no_type" else ()
    lacking = facts.lacking(job, type_) if need == "lacking" else job.unread if need == "value" else None
    words, unblock, command = start_worker(need, job.queue, type_, elsewhere, lacking)
    command = _with_code(command, case.node)
    unable: tuple[str, ...] = workers.unresponsive_but_running if need == "silent" else ()
    if need in ("no_queue", "no_type", "lacking"):
        unable = tuple(worker.name for worker in workers.each)
    # A job that a worker put aside is not due yet, but it has been waiting since then.
    later = job.ready_at_ms > facts.now
    since_ms = case.act.since_ms or case.visit.since_ms if later else ready_since(case, job)
    return blockers.Worker(
        queue=job.queue,
        type=type_,
        need=need,
        lost=job.owner if job.lease_expires_at_ms is not None else "",
        alive=unable[:limit],
        able_elsewhere=elsewhere,
        lacking=lacking,
        words=f"{case.label} is due to wake up: {words}" if waits else f"{case.label} is queued: {words}",
        unblock=unblock,
        command=command,
        **common_fields(case, since_ms, job.ready_at_ms if need == "later" else None),
    )


def holder(facts: ExplainInput, job: JobFact, does: str) -> Help:
    """Texts for a leased job, which depend on whether its worker still responds; `does` names the activity."""
    name = f"worker {job.owner or 'without a name'}"
    if facts.silent_since_ms(job) is None:
        unblock = "wait for it to end; if the worker is lost, another takes over when its lease expires"
        return Help(f"{name} {does}", unblock)
    unblock = "another worker takes over when its lease expires, unless its heartbeats resume"
    return Help(f"{name}, which has stopped sending heartbeats, {does}", unblock)


def leased(facts: ExplainInput, case: WaitingVisit) -> blockers.Lease:
    node, act, job = case.node, case.act, _job(case)
    phase = "wake" if act.status == "WAITING" else phase_of(node, case.visit, case.item)
    attempt = act.attempt if act.running or phase != "call" else act.attempt + 1
    tries = act.failures + (phase == "call")
    timeout = node.timeout_ms if act.running and phase == "call" else None
    text = f"{case.label}, {_attempt_text(attempt, tries, node.retry.max_attempts)}" if phase == "call" else case.label
    since_ms = act.since_ms if act.running else ready_since(case, job)
    help_ = holder(facts, job, f"{_DOES[phase]} {text}")
    return blockers.Lease(
        owner=job.owner,
        phase=phase,
        attempt=attempt,
        tries=tries,
        max_attempts=node.retry.max_attempts,
        timeout_at_ms=None if timeout is None else act.since_ms + timeout,
        silent_since_ms=facts.silent_since_ms(job),
        words=help_.words,
        unblock=help_.unblock,
        **common_fields(case, since_ms, job.lease_expires_at_ms),
    )


def _attempt_text(attempt: int, tries: int, limit: int) -> str:
    """The attempt's number; attempts of lost workers and those before an operator's retry do not count as tries."""
    return f"attempt {attempt} of {limit}" if attempt == tries else f"attempt {attempt} (try {tries} of {limit})"


def backing_off(facts: ExplainInput, case: WaitingVisit) -> blockers.Retry:
    """An attempt failed and the next is not due yet; a paused run does not begin it then either."""
    act, limit = case.act, case.node.retry.max_attempts
    code = "" if act.error is None else f" after {act.error.code}"
    return blockers.Retry(
        attempt=act.attempt + 1,
        tries=act.failures + 1,
        max_attempts=limit,
        error=shown(act.error),
        words=f"{case.label} is retried{code}: {_attempt_text(act.attempt + 1, act.failures + 1, limit)}"
        + (", once the run is resumed" if facts.paused else ""),
        unblock="resume the run: it is retried after that" if facts.paused else "a worker retries it automatically",
        command=RESUME if facts.paused else "",
        **common_fields(case, act.since_ms or case.visit.since_ms, max(act.retry_at_ms or 0, _job(case).ready_at_ms)),
    )


def paused(facts: ExplainInput, case: WaitingVisit) -> blockers.Pause:
    return blockers.Pause(
        reason=facts.state.reason,
        words=f"{case.label} is ready, but the run is paused",
        unblock="resume the run",
        command=RESUME,
        **common_fields(case, case.act.since_ms or case.visit.since_ms),
    )


def missing(_: ExplainInput, case: WaitingVisit) -> blockers.Missing:
    common = common_fields(case, case.act.since_ms or case.visit.since_ms or None)
    if case.act.status == "PENDING":
        return blockers.Missing(
            job="",
            words=f"no active node leads to {case.label}",
            unblock="settle it manually",
            command=f"tidemill runs override {{run}} {case.node.id} --value VALUE",
            **common,
        )
    key = job_key(case.node, case.visit, case.item, case.act)
    return blockers.Missing(
        job=key, words=f"{case.label} needs a job that the store does not have: {key}", unblock=_AUDIT, **common
    )


def items_of(facts: ExplainInput, case: WaitingVisit) -> blockers.Items:
    items = case.visit.map
    assert items is not None, "only expanded maps are classified as items"
    counts = {"RUNNING": 0, "WAITING": 0}
    broken: list[blockers.BrokenItem] = []
    for index, act in items.known():
        if act.status in counts and index < items.next:
            counts[act.status] += 1
        elif act.status == "FAILED" and len(broken) < facts.bounds.names:
            broken.append(blockers.BrokenItem(index=index, attempts=act.attempt, error=shown(act.error)))
    running, waiting = counts["RUNNING"], counts["WAITING"]
    queued, unqueued = items.flying - running - waiting, items.count - items.done - items.flying
    parts = {"queued": queued, "running": running, "waiting": waiting, "not started yet": unqueued}
    counted = [f"{number} {word}" for word, number in parts.items() if number > 0]
    return blockers.Items(
        count=items.count,
        done=items.done,
        failed=items.failed,
        queued=queued,
        running=running,
        waiting=waiting,
        unqueued=unqueued,
        window=items.window,
        listed=min(items.flying, facts.bounds.items),
        broken=tuple(broken),
        words=f"{case.label} has {items.done} of {items.count} items ({', '.join(counted)})",
        unblock="it continues as its items end",
        **common_fields(case, case.visit.since_ms),
    )


_THEN = {"approve": "it counts as approved", "reject": "it counts as rejected", "fail": "the visit fails"}


def _item_option(case: WaitingVisit) -> str:
    return f" --item {case.item}" if case.item != NOT_AN_ITEM else ""


def timer(_: ExplainInput, case: WaitingVisit) -> blockers.Timer:
    wait = case.act.wait
    assert wait is not None, "a timer has a wait"
    expires = expires_first(wait)
    sleeps = "sleeps" if wait.on != "loop" else "has its result; the next pass of its loop begins after a delay"
    return blockers.Timer(
        wakes_ms=wait.until_ms,
        expires=expires,
        words=f"{case.label} {sleeps}" + (", and its time-out comes first" if expires else ""),
        unblock="it wakes up automatically" if not expires else "it times out automatically",
        **common_fields(case, wait.since_ms, wait.expires_ms if expires else wait.until_ms),
    )


def approval_of(facts: ExplainInput, case: WaitingVisit) -> blockers.Person:
    approval = case.act.approval
    assert approval is not None, "only pending approvals are classified as person"
    approvers, voted = entitled(approval), tuple(vote.by for vote in approval.votes)
    involved = (approval.requester, *facts.state.patched_by) if approval.four_eyes else ()
    then = "fail" if approval.on_timeout == "escalate" and approval.escalated else approval.on_timeout
    text = f"{len(voted)} of {approval.quorum} votes" if approval.quorum > 1 else "no decision"
    expires = case.act.wait.expires_ms if case.act.wait is not None else approval.expires_ms
    asked = ", ".join(approvers[: facts.bounds.names]) or "anyone"
    then_text = _THEN.get(then, f"{', '.join(approval.escalate_to) or 'no one'} is asked")
    return blockers.Person(
        title=approval.title,
        approvers=approvers,
        barred=tuple(dict.fromkeys(as_user(name) for name in involved if name)),
        quorum=approval.quorum,
        voted=voted,
        delegated=approval.delegated,
        escalated=approval.escalated,
        on_timeout=then,
        escalate_to=approval.escalate_to,
        url=approval.url,
        words=f"{case.label} is waiting for people, with {text} so far: {approval.title}",
        unblock=f"{asked} may decide" + ("" if expires is None else f"; without a decision in time, {then_text}"),
        command=f"tidemill approvals decide {{run}} {case.node.id} approve{_item_option(case)}{_form_option(approval)}",
        **common_fields(case, approval.requested_ms, expires),
    )


def _form_option(approval: Approval) -> str:
    form = approval.form
    return "".join(f" {quote(word)}" for word in form_words(json.decode(form) if isinstance(form, bytes) else None))


def form_words(form: Any) -> tuple[str, ...]:
    """The options of a decision that fills in this form: a placeholder for each required field without default."""
    required = form.get("required", ()) if isinstance(form, dict) else ()
    fields = form.get("properties", {}) if required else {}
    open_ = [name for name in required if not (isinstance(fields.get(name), dict) and "default" in fields[name])]
    return tuple(word for name in open_ for word in ("--form", f"{name}=VALUE"))


def signal(_: ExplainInput, case: WaitingVisit) -> blockers.Signal:
    wait = case.act.wait
    assert wait is not None, "a signal has a wait"
    return blockers.Signal(
        name=wait.name,
        words=f"{case.label} is waiting for the signal {wait.name}",
        unblock=f"send the signal {wait.name}",
        command=f"tidemill runs signal {{run}} {quote(wait.name)}",
        **common_fields(case, wait.since_ms, wait.expires_ms),
    )


def child_run(facts: ExplainInput, case: WaitingVisit) -> blockers.Child:
    wait, job = case.act.wait, case.job
    assert wait is not None, "a child run has a wait"
    need: Need | Literal[""] = ""
    words, unblock = f"is waiting for its child run {wait.name}", "the child run ends; ask why it is waiting"
    command = f"tidemill why {quote(wait.name)}"
    if not wait.started and job is not None and not facts.holds(job):
        need = facts.why_unclaimed(job)
        text, unblock, command = start_worker(need, job.queue, "")
        if need == "value" and job.unread is not None:
            text, unblock = job.unread.message, job.unread.hint
        words = f"requested a child run {wait.name} that no worker has started yet: {text}"
    return blockers.Child(
        child=wait.name,
        started=wait.started,
        need=need,
        words=f"{case.label} {words}",
        unblock=unblock,
        command=command,
        **common_fields(case, wait.since_ms, wait.expires_ms),
    )


def waits(_: ExplainInput, case: WaitingVisit) -> blockers.Wait:
    wait = case.act.wait
    on, name = ("something unnamed", "") if wait is None else (wait.on, wait.name)
    text = f"{on} {name}".strip() or "something unnamed"
    return blockers.Wait(
        on=on,
        name=name,
        expires_ms=None if wait is None else wait.expires_ms,
        words=f"{case.label} is waiting for {text}",
        unblock="wait for it to happen, or settle the node manually",
        command=f"tidemill runs override {{run}} {case.node.id} --value VALUE{_item_option(case)}",
        **common_fields(case, None if wait is None else wait.since_ms, None if wait is None else wait.until_ms),
    )


def run_blockers(facts: ExplainInput) -> Iterator[AnyBlocker]:
    """What blocks the run as a whole, or is its only remaining work."""
    state = facts.state
    if facts.paused:
        why = f": {state.reason}" if state.reason else ""
        yield blockers.Pause(
            status=state.status,
            reason=state.reason,
            words=f"the run is paused{why}",
            unblock="resume the run",
            command=RESUME,
        )
    if state.rollback == "running":
        yield _rollback(facts)
    if state.live and state.deadline_ms is not None and key_of("deadline") not in facts.jobs:
        yield _lost_job(facts, key_of("deadline"), "its deadline")
    if state.live and state.rendering:
        yield _outputs(facts)


def _lost_job(facts: ExplainInput, key: str, what: str) -> blockers.Missing:
    words = f"{what} needs a job that the store does not have: {key}"
    return blockers.Missing(
        job=key, status=facts.state.status, since_ms=facts.state.last_ms, words=words, unblock=_AUDIT
    )


def _outputs(facts: ExplainInput) -> blockers.Outputs | blockers.Missing:
    state, job = facts.state, facts.jobs.get(key_of("outputs"))
    common: dict[str, Any] = {"status": state.status, "since_ms": state.last_ms}
    if job is not None and facts.holds(job):
        text, unblock, _ = holder(facts, job, "renders the outputs of the run")
        return blockers.Outputs(
            owner=job.owner, until_ms=job.lease_expires_at_ms, words=text, unblock=unblock, **common
        )
    if facts.paused:
        words = "the outputs are not rendered yet, but the run is paused"
        return blockers.Outputs(words=words, unblock="resume the run", command=RESUME, root=False, **common)
    if job is None:
        return _lost_job(facts, key_of("outputs"), "the rendering of the outputs")
    need = facts.why_unclaimed(job)
    text, unblock, command = start_worker(need, job.queue, "", lacking=job.unread)
    words = f"the outputs of the run are not rendered yet: {text}"
    return blockers.Outputs(need=need, words=words, unblock=unblock, command=command, **common)


def deadline_of(facts: ExplainInput) -> blockers.Deadline | None:
    state = facts.state
    if not state.live or state.deadline_ms is None:
        return None
    passed = state.deadline_ms <= facts.now
    return blockers.Deadline(
        status=state.status,
        since_ms=state.created_ms,
        until_ms=state.deadline_ms,
        root=False,
        words="the deadline has passed; the run is about to fail" if passed else "the run has a deadline",
        unblock="retrying the failed run gives it a new deadline",
    )


def _rollback(facts: ExplainInput) -> blockers.Rollback:
    state, limit = facts.state, facts.bounds.names
    steps, at = len(state.undo_order), state.undo_at
    undo = state.undo.get(state.undo_order[at]) if at < steps else None
    failed = [
        key for key in state.undo_order[:at] if (gone := state.undo.get(key)) is not None and gone.status != "done"
    ]
    left = (*failed, *state.undo_left)
    common: dict[str, Any] = {
        "step": min(at + 1, steps),
        "steps": steps,
        "left": left[:limit],
        "left_count": len(left),
        "status": state.status,
    }
    so_far = f"; {len(left)} cannot be undone" if left else ""
    if undo is None:
        words = f"the run is being rolled back{so_far}"
        return blockers.Rollback(compensator="", attempt=0, max_attempts=0, words=words, unblock=_AUDIT, **common)
    return _step(facts, undo, so_far, common)


def _step(facts: ExplainInput, undo: CompletedStep, so_far: str, common: dict[str, Any]) -> blockers.Rollback:
    node = facts.flow.by_id.get(undo.node)
    compensator = None if node is None else node.compensator
    job = facts.jobs.get(key_of("undo", undo.node, undo.visit, undo.index))
    type_ = "" if compensator is None else compensator.type
    need, (text, unblock, command) = _why_step_waits(facts, undo, job, type_)
    held = job is not None and need == ""
    what = f"step {common['step']} of {common['steps']} undoes {label(undo.node, undo.visit, undo.index)}"
    return blockers.Rollback(
        node=undo.node,
        visit=undo.visit,
        index=undo.index,
        since_ms=facts.state.last_ms,
        until_ms=undo.retry_at_ms if need == "retry" else job.lease_expires_at_ms if job is not None and held else None,
        compensator=type_,
        attempt=undo.attempt + 1,
        max_attempts=0 if compensator is None else compensator.retry.max_attempts,
        owner=job.owner if job is not None and held else "",
        need=need,
        error=shown(undo.error),
        words=f"the run is being rolled back: {what} with {type_ or 'nothing'}, {text}{so_far}",
        unblock=unblock,
        command=command,
        **common,
    )


def _why_step_waits(
    facts: ExplainInput, undo: CompletedStep, job: JobFact | None, type_: str
) -> tuple[Need | Literal["", "retry", "missing"], Help]:
    """Why no worker runs the step (empty if one does), and the texts."""
    if job is None:
        return "missing", Help("but its job is missing", _AUDIT)
    if facts.holds(job):
        return "", holder(facts, job, "works on it")
    if undo.retry_at_ms is not None and max(undo.retry_at_ms, job.ready_at_ms) > facts.now:
        code = "" if undo.error is None else f" after {undo.error.code}"
        return "retry", Help(f"which is retried{code}", "a worker retries it automatically")
    need = facts.why_unclaimed(job, type_)
    elsewhere = facts.workers.elsewhere(job.queue, type_) if facts.workers is not None else ()
    return need, start_worker(need, job.queue, type_, elsewhere, job.unread or facts.lacking(job, type_))
