"""Blockers of dispatched and waiting visits and of the run as a whole.

Activations that own a job: nobody has taken it, somebody works on it, it is in back-off, withdrawn or missing.

Activations that wait for the world: a moment, people, a signal, another run, or whatever a handler asked for.

What concerns the run as a whole: a pause, the rendering of its outputs, its deadline, its rollback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any, Literal, NamedTuple

from tidemill.kernel.activation import Approval
from tidemill.kernel.decide.approvals import as_user
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.blockers import (
    AnyBlocker,
    BrokenItem,
    Child,
    Deadline,
    Failure,
    Items,
    Lease,
    Missing,
    Need,
    Outputs,
    Pause,
    Person,
    Retry,
    Rollback,
    Signal,
    Timer,
    Wait,
    Worker,
    shown,
)
from tidemill.kernel.explain.survey import ExplainInput, JobFact, WaitingVisit, Workers, expires_first, job_key, label
from tidemill.kernel.jobs import key_of
from tidemill.kernel.state import CompletedStep, State

_DOES = {
    "call": "works on",
    "expand": "evaluates the list of",
    "assemble": "puts the results together of",
    "route": "evaluates the conditions of",
    "wake": "wakes",
}
RESUME = "tidemill runs resume {run}"
WORK = "tidemill worker"
_FREE = "a worker becomes free; one more makes it quicker"


def who(case: WaitingVisit) -> str:
    """The activation as sentences name it."""
    return label(case.node.id, case.cell.visit, case.item)


def place_of(case: WaitingVisit, since_ms: int | None, until_ms: int | None = None) -> dict[str, Any]:
    """The fields that say who waits, since when, and until when."""
    return {
        "since_ms": since_ms,
        "until_ms": until_ms,
        "node": case.node.id,
        "visit": case.cell.visit,
        "index": case.item if case.act is not case.cell else NOT_AN_ITEM,
        "status": case.act.status,
        "root": case.root,
    }


def _job(case: WaitingVisit) -> JobFact:
    assert case.job is not None, "its kind was found by looking at its job"
    return case.job


def ready_since(case: WaitingVisit, job: JobFact) -> int:
    """Since when a job could be taken; items do not remember when they were queued, but their jobs do."""
    return max(case.act.since_ms, job.ready_at_ms) or case.cell.since_ms


class Help(NamedTuple):
    """What is said of a job that nobody works on, what helps, and the line that does it."""

    words: str
    unblock: str
    command: str = ""


_SERVE = f"{WORK} --queues {{queue}}"
_NEEDS = {
    "no_worker": Help("no worker is running", "start a worker", WORK),
    "silent": Help(
        "those workers that are running have not been heard of for a while",
        "see what they print: perhaps they cannot write to the store",
        "tidemill workers",
    ),
    "no_queue": Help("no worker on queue {queue}", "start a worker that serves queue {queue}", _SERVE),
    "no_type": Help(
        "no worker knows type {type}", "start a worker on queue {queue} that knows {type}", f"{_SERVE} --app MODULE"
    ),
    "elsewhere": Help(
        "no worker on queue {queue} knows type {type}, but {other} does on other queues",
        "let a worker that knows {type} serve queue {queue}",
        f"{_SERVE} --app MODULE",
    ),
    "lacking": Help(
        "no worker has what it needs: {lacking}", "start a worker on queue {queue} that has it{because}", _SERVE
    ),
    "function_unknown": Help(
        "no worker has what it needs: {lacking}",
        "start a worker on queue {queue} that has it: --app names its module",
        f"{_SERVE} --app MODULE",
    ),
    "value": Help("a value that it needs cannot be had: {lacking}", "{hint}"),
    "later": Help("its job was put aside for a while", "it is taken up again by itself"),
    "lost": Help("its worker was lost; it waits for another on queue {queue}", _FREE),
    "busy": Help("waits for a free worker on queue {queue}", _FREE),
}
"""By need, or by the case of it that has words of its own."""


def start_worker(
    need: Need, queue: str, type_: str, elsewhere: Sequence[str] = (), lacking: Failure | None = None
) -> Help:
    """Say why nobody works on a job; `elsewhere` are workers that know its type on other queues."""
    key: str = need
    if need == "no_type" and elsewhere:
        key = "elsewhere"
    elif need == "lacking" and lacking is not None and lacking.code == "function_unknown":
        key = lacking.code
    hint = "" if lacking is None else lacking.hint
    values = {
        "queue": queue,
        "type": type_,
        "other": elsewhere[0] if elsewhere else "",
        "lacking": "it is not known what" if lacking is None else lacking.message,
        "because": f": {hint}" if hint else "",
        "hint": hint or "see where it is kept",
    }
    return Help(*(text.format_map(values) for text in _NEEDS[key]))


def _who_cannot(need: Need, workers: Workers) -> tuple[str, ...]:
    """Who is there, and yet does not take a job."""
    if need == "silent":
        return workers.unresponsive_but_running
    return tuple(able.name for able in workers.each) if need in ("no_queue", "no_type", "lacking") else ()


def without_worker(scene: ExplainInput, case: WaitingVisit) -> Worker:
    """A job that nobody works on."""
    job = _job(case)
    waits = case.act.status == "WAITING"
    type_ = "" if waits or phase_of(case.node, case.cell, case.item) != "call" else case.node.type
    need = scene.need(job, type_)
    workers, most = scene.workers or Workers(), scene.bounds.names
    elsewhere = workers.elsewhere(job.queue, type_)[:most] if need == "no_type" else ()
    lacking = scene.lacking(job, type_) if need == "lacking" else job.unread if need == "value" else None
    words, unblock, command = start_worker(need, job.queue, type_, elsewhere, lacking)
    # A job that somebody has put aside is not due yet, but it waits since it was put there.
    later = job.ready_at_ms > scene.now
    since_ms = case.act.since_ms or case.cell.since_ms if later else ready_since(case, job)
    return Worker(
        queue=job.queue,
        type=type_,
        need=need,
        lost=job.owner if job.lease_expires_at_ms is not None else "",
        alive=_who_cannot(need, workers)[:most],
        able_elsewhere=elsewhere,
        lacking=lacking,
        words=f"{who(case)} is due to wake: {words}" if waits else f"{who(case)} is queued: {words}",
        unblock=unblock,
        command=command,
        **place_of(case, since_ms, job.ready_at_ms if need == "later" else None),
    )


def holder(scene: ExplainInput, job: JobFact, does: str) -> Help:
    """Say who has a job, and whether that one is still heard of; `does` is what it is busy with."""
    name = f"worker {job.owner or 'without a name'}"
    if scene.silent_since_ms(job) is None:
        unblock = "it ends by itself; if the worker is lost, another takes over when its lease has run out"
        return Help(f"{name} {does}", unblock)
    unblock = "another worker takes over when its lease has run out, unless it is heard of before"
    return Help(f"{name}, which has fallen silent, {does}", unblock)


def leased(scene: ExplainInput, case: WaitingVisit) -> Lease:
    """A worker has it."""
    node, act, job = case.node, case.act, _job(case)
    phase = "wake" if act.status == "WAITING" else phase_of(node, case.cell, case.item)
    attempt = act.attempt if act.running or phase != "call" else act.attempt + 1
    tries = act.failures + (phase == "call")
    timeout = node.timeout_ms if act.running and phase == "call" else None
    told = f"{who(case)}, {_nth(attempt, tries, node.retry.max_attempts)}" if phase == "call" else who(case)
    since_ms = act.since_ms if act.running else ready_since(case, job)
    help_ = holder(scene, job, f"{_DOES[phase]} {told}")
    return Lease(
        owner=job.owner,
        phase=phase,
        attempt=attempt,
        tries=tries,
        max_attempts=node.retry.max_attempts,
        timeout_at_ms=None if timeout is None else act.since_ms + timeout,
        silent_since_ms=scene.silent_since_ms(job),
        words=help_.words,
        unblock=help_.unblock,
        **place_of(case, since_ms, job.lease_expires_at_ms),
    )


def _nth(attempt: int, tries: int, most: int) -> str:
    """Which attempt it is; attempts of lost workers, and those before an operator's retry, are not counted."""
    return f"attempt {attempt} of {most}" if attempt == tries else f"attempt {attempt} (try {tries} of {most})"


def backing_off(scene: ExplainInput, case: WaitingVisit) -> Retry:
    """An attempt failed, and the next one is not due yet; while the run is paused it does not begin then either."""
    act, most = case.act, case.node.retry.max_attempts
    code = "" if act.error is None else f" after {act.error.code}"
    return Retry(
        attempt=act.attempt + 1,
        tries=act.failures + 1,
        max_attempts=most,
        error=shown(act.error),
        words=f"{who(case)} is tried again{code}: {_nth(act.attempt + 1, act.failures + 1, most)}"
        + (", once the run is resumed" if scene.paused else ""),
        unblock="resume the run: it is tried again after that" if scene.paused else "it is tried again by itself",
        command=RESUME if scene.paused else "",
        **place_of(case, act.since_ms or case.cell.since_ms, max(act.retry_at_ms or 0, _job(case).ready_at_ms)),
    )


def withdrawn(scene: ExplainInput, case: WaitingVisit) -> Pause:
    """It would be dispatched if the run were not paused."""
    return Pause(
        reason=scene.state.reason,
        words=f"{who(case)} is ready, but the run is paused",
        unblock="resume the run",
        command=RESUME,
        **place_of(case, case.act.since_ms or case.cell.since_ms),
    )


def missing(_: ExplainInput, case: WaitingVisit) -> Missing:
    """The state calls for a job that is not there."""
    common = place_of(case, case.act.since_ms or case.cell.since_ms or None)
    if case.act.status == "PENDING":
        return Missing(
            job="",
            words=f"nothing that is under way leads to {who(case)}",
            unblock="settle it by hand",
            command=f"tidemill runs override {{run}} {case.node.id} --value VALUE",
            **common,
        )
    key = job_key(case.node, case.cell, case.item, case.act)
    return Missing(
        job=key,
        words=f"{who(case)} calls for a job that the store does not have: {key}",
        unblock="the next audit puts it back; nothing is lost",
        **common,
    )


def items_of(scene: ExplainInput, case: WaitingVisit) -> Items:
    """A map between the evaluation of its list and the assembly of its results."""
    items = case.cell.map
    assert items is not None, "its kind was found by looking at its items"
    counts = {"RUNNING": 0, "WAITING": 0}
    broken: list[BrokenItem] = []
    for index, act in items.known():
        if act.status in counts and index < items.next:
            counts[act.status] += 1
        elif act.status == "FAILED" and len(broken) < scene.bounds.names:
            broken.append(BrokenItem(index=index, attempts=act.attempt, error=shown(act.error)))
    running, waiting = counts["RUNNING"], counts["WAITING"]
    queued, unqueued = items.flying - running - waiting, items.count - items.done - items.flying
    parts = {"queued": queued, "running": running, "waiting": waiting, "not let in yet": unqueued}
    told = [f"{number} {word}" for word, number in parts.items() if number > 0]
    return Items(
        count=items.count,
        done=items.done,
        failed=items.failed,
        queued=queued,
        running=running,
        waiting=waiting,
        unqueued=unqueued,
        window=items.window,
        listed=min(items.flying, scene.bounds.items),
        broken=tuple(broken),
        words=f"{who(case)} has {items.done} of {items.count} items ({', '.join(told)})",
        unblock="it goes on with the ends of its items",
        **place_of(case, case.cell.since_ms),
    )


_THEN = {
    "approve": "it counts as approved",
    "reject": "it counts as rejected",
    "fail": "the visit fails",
}


def _item(case: WaitingVisit) -> str:
    """The option that names an item of a map."""
    return f" --item {case.item}" if case.item != NOT_AN_ITEM else ""


def asleep(_: ExplainInput, case: WaitingVisit) -> Timer:
    """It waits for a moment."""
    wait = case.act.wait
    assert wait is not None, "whoever sleeps has a wait"
    expires = expires_first(wait)
    return Timer(
        wakes_ms=wait.until_ms,
        expires=expires,
        words=f"{who(case)} sleeps" + (", and its time-out comes before it would wake" if expires else ""),
        unblock="it wakes by itself" if not expires else "it times out by itself",
        **place_of(case, wait.since_ms, wait.expires_ms if expires else wait.until_ms),
    )


def undecided(scene: ExplainInput, case: WaitingVisit) -> Person:
    """People have to decide."""
    approval = case.act.approval
    assert approval is not None, "its kind was found by looking at its approval"
    approvers, voted = _entitled(approval), tuple(vote.by for vote in approval.votes)
    then = "fail" if approval.on_timeout == "escalate" and approval.escalated else approval.on_timeout
    told = f"{len(voted)} of {approval.quorum} votes" if approval.quorum > 1 else "no decision"
    expires = case.act.wait.expires_ms if case.act.wait is not None else approval.expires_ms
    asked = ", ".join(approvers[: scene.bounds.names]) or "anyone"
    next_ = _THEN.get(then, f"{', '.join(approval.escalate_to) or 'nobody'} is asked")
    return Person(
        title=approval.title,
        approvers=approvers,
        barred=_barred(approval, scene.state),
        quorum=approval.quorum,
        voted=voted,
        delegated=approval.delegated,
        escalated=approval.escalated,
        on_timeout=then,
        escalate_to=approval.escalate_to,
        url=approval.url,
        words=f"{who(case)} waits for people, with {told} so far: {approval.title}",
        unblock=f"{asked} may decide" + ("" if expires is None else f"; if nobody does in time, {next_}"),
        command=f"tidemill approvals decide {{run}} {case.node.id} approve{_item(case)}",
        **place_of(case, approval.requested_ms, expires),
    )


def _entitled(approval: Approval) -> tuple[str, ...]:
    """Who may decide, after everything that was passed on. Where anyone may, there is nobody to name."""
    if not approval.approvers:
        return ()
    found = dict.fromkeys(approval.approvers)
    for by, to in approval.delegated:
        found.pop(by, None)
        found[to] = None
    return tuple(found)


def _barred(approval: Approval, state: State) -> tuple[str, ...]:
    if not approval.four_eyes:
        return ()
    return tuple(dict.fromkeys(as_user(name) for name in (approval.requester, *state.patched_by) if name))


def listening(_: ExplainInput, case: WaitingVisit) -> Signal:
    """It waits for a signal."""
    wait = case.act.wait
    assert wait is not None, "whoever listens has a wait"
    return Signal(
        name=wait.name,
        words=f"{who(case)} waits for the signal {wait.name}",
        unblock=f"somebody sends the signal {wait.name}",
        command=f"tidemill runs signal {{run}} {quote(wait.name)}",
        **place_of(case, wait.since_ms, wait.expires_ms),
    )


def parent(scene: ExplainInput, case: WaitingVisit) -> Child:
    """It waits for another run."""
    wait, job = case.act.wait, case.job
    assert wait is not None, "whoever has a child has a wait"
    need: Need | Literal[""] = ""
    words, unblock = f"waits for its child run {wait.name}", "the child ends; ask what it waits for itself"
    command = f"tidemill why {quote(wait.name)}"
    if not wait.started and job is not None and not scene.holds(job):
        need = scene.need(job)
        told, unblock, command = start_worker(need, job.queue, "")
        if need == "value" and job.unread is not None:
            told, unblock = job.unread.message, job.unread.hint
        words = f"asked for a child run {wait.name} that nobody has started yet: {told}"
    return Child(
        child=wait.name,
        started=wait.started,
        need=need,
        words=f"{who(case)} {words}",
        unblock=unblock,
        command=command,
        **place_of(case, wait.since_ms, wait.expires_ms),
    )


def waits(_: ExplainInput, case: WaitingVisit) -> Wait:
    """It waits for something that only its handler understands."""
    wait = case.act.wait
    on, name = ("something without a name", "") if wait is None else (wait.on, wait.name)
    told = f"{on} {name}".strip() or "something without a name"
    return Wait(
        on=on,
        name=name,
        expires_ms=None if wait is None else wait.expires_ms,
        words=f"{who(case)} waits for {told}",
        unblock="whatever it waits for happens, or it is settled by hand",
        command=f"tidemill runs override {{run}} {case.node.id} --value VALUE{_item(case)}",
        **place_of(case, None if wait is None else wait.since_ms, None if wait is None else wait.until_ms),
    )


_AUDIT = "the next audit puts it back; nothing is lost"


def of_the_run(scene: ExplainInput) -> Iterator[AnyBlocker]:
    """What holds the whole run up, or is its only business left."""
    state = scene.state
    if scene.paused:
        why = f": {state.reason}" if state.reason else ""
        yield Pause(
            status=state.status,
            reason=state.reason,
            words=f"the run is paused{why}",
            unblock="resume the run",
            command=RESUME,
        )
    if state.rollback == "running":
        yield _rollback(scene)
    if state.live and state.deadline_ms is not None and key_of("deadline") not in scene.jobs:
        yield _lost_job(scene, key_of("deadline"), "its deadline")
    if state.live and state.rendering:
        yield _outputs(scene)


def _lost_job(scene: ExplainInput, key: str, what: str) -> Missing:
    words = f"{what} calls for a job that the store does not have: {key}"
    return Missing(job=key, status=scene.state.status, since_ms=scene.state.last_ms, words=words, unblock=_AUDIT)


def _outputs(scene: ExplainInput) -> Outputs | Missing:
    state, job = scene.state, scene.jobs.get(key_of("outputs"))
    common: dict[str, Any] = {"status": state.status, "since_ms": state.last_ms}
    if job is not None and scene.holds(job):
        told, unblock, _ = holder(scene, job, "renders the outputs of the run")
        return Outputs(owner=job.owner, until_ms=job.lease_expires_at_ms, words=told, unblock=unblock, **common)
    if scene.paused:
        words = "the outputs are still to be rendered, but the run is paused"
        return Outputs(words=words, unblock="resume the run", command=RESUME, root=False, **common)
    if job is None:
        return _lost_job(scene, key_of("outputs"), "the rendering of the outputs")
    need = scene.need(job)
    told, unblock, command = start_worker(need, job.queue, "", lacking=job.unread)
    words = f"the outputs of the run are still to be rendered: {told}"
    return Outputs(need=need, words=words, unblock=unblock, command=command, **common)


def deadline_of(scene: ExplainInput) -> Deadline | None:
    """When the run fails whatever it waits for."""
    state = scene.state
    if not state.live or state.deadline_ms is None:
        return None
    passed = state.deadline_ms <= scene.now
    return Deadline(
        status=state.status,
        since_ms=state.created_ms,
        until_ms=state.deadline_ms,
        root=False,
        words="the deadline has passed and the run is about to fail" if passed else "the run has a deadline",
        unblock="a retry after it has failed gives it a fresh deadline",
    )


def _rollback(scene: ExplainInput) -> Rollback:
    state, most = scene.state, scene.bounds.names
    steps, at = len(state.undo_order), state.undo_at
    undo = state.undo.get(state.undo_order[at]) if at < steps else None
    failed = [
        key for key in state.undo_order[:at] if (gone := state.undo.get(key)) is not None and gone.status != "done"
    ]
    left = (*failed, *state.undo_left)
    common: dict[str, Any] = {
        "step": min(at + 1, steps),
        "steps": steps,
        "left": left[:most],
        "left_count": len(left),
        "status": state.status,
    }
    so_far = f"; {len(left)} will be left as they are" if left else ""
    if undo is None:
        words = f"the run is being rolled back{so_far}"
        return Rollback(compensator="", attempt=0, max_attempts=0, words=words, unblock=_AUDIT, **common)
    return _step(scene, undo, so_far, common)


def _step(scene: ExplainInput, undo: CompletedStep, so_far: str, common: dict[str, Any]) -> Rollback:
    node = scene.flow.by_id.get(undo.node)
    compensator = None if node is None else node.compensator
    job = scene.jobs.get(key_of("undo", undo.node, undo.visit, undo.index))
    type_ = "" if compensator is None else compensator.type
    need, (told, unblock, command) = _state_of_step(scene, undo, job, type_)
    held = job is not None and need == ""
    what = f"step {common['step']} of {common['steps']} undoes {label(undo.node, undo.visit, undo.index)}"
    return Rollback(
        node=undo.node,
        visit=undo.visit,
        index=undo.index,
        since_ms=scene.state.last_ms,
        until_ms=undo.retry_at_ms if need == "retry" else job.lease_expires_at_ms if job is not None and held else None,
        compensator=type_,
        attempt=undo.attempt + 1,
        max_attempts=0 if compensator is None else compensator.retry.max_attempts,
        owner=job.owner if job is not None and held else "",
        need=need,
        error=shown(undo.error),
        words=f"the run is being rolled back: {what} with {type_ or 'nothing'}, {told}{so_far}",
        unblock=unblock,
        command=command,
        **common,
    )


def _state_of_step(
    scene: ExplainInput, undo: CompletedStep, job: JobFact | None, type_: str
) -> tuple[Need | Literal["", "retry", "missing"], Help]:
    """Why nobody works on the step (empty if somebody does), in words, with what helps."""
    if job is None:
        return "missing", Help("but its job is missing", _AUDIT)
    if scene.holds(job):
        return "", holder(scene, job, "works on it")
    if undo.retry_at_ms is not None and max(undo.retry_at_ms, job.ready_at_ms) > scene.now:
        code = "" if undo.error is None else f" after {undo.error.code}"
        return "retry", Help(f"which is tried again{code}", "it is tried again by itself")
    need = scene.need(job, type_)
    elsewhere = scene.workers.elsewhere(job.queue, type_) if scene.workers is not None else ()
    return need, start_worker(need, job.queue, type_, elsewhere, job.unread or scene.lacking(job, type_))
