"""Activations that own a job: nobody has taken it, somebody works on it, it is in back-off, withdrawn or missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.blockers import (
    BrokenItem,
    Failure,
    Items,
    Lease,
    Missing,
    Need,
    Pause,
    Retry,
    Worker,
    shown,
)
from tidemill.kernel.explain.scene import JobFact, Scene, Workers, label
from tidemill.kernel.explain.survey import Case, job_key
from tidemill.kernel.standing import phase_of

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


def who(case: Case) -> str:
    """The activation as sentences name it."""
    return label(case.node.id, case.cell.visit, case.item)


def place_of(case: Case, since_ms: int | None, until_ms: int | None = None) -> dict[str, Any]:
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


def _job(case: Case) -> JobFact:
    assert case.job is not None, "its kind was found by looking at its job"
    return case.job


def ready_since(case: Case, job: JobFact) -> int:
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
        return workers.mute
    return tuple(able.name for able in workers.each) if need in ("no_queue", "no_type", "lacking") else ()


def without_worker(scene: Scene, case: Case) -> Worker:
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


def holder(scene: Scene, job: JobFact, does: str) -> Help:
    """Say who has a job, and whether that one is still heard of; `does` is what it is busy with."""
    name = f"worker {job.owner or 'without a name'}"
    if scene.silent_since_ms(job) is None:
        unblock = "it ends by itself; if the worker is lost, another takes over when its lease has run out"
        return Help(f"{name} {does}", unblock)
    unblock = "another worker takes over when its lease has run out, unless it is heard of before"
    return Help(f"{name}, which has fallen silent, {does}", unblock)


def leased(scene: Scene, case: Case) -> Lease:
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


def backing_off(scene: Scene, case: Case) -> Retry:
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


def withdrawn(scene: Scene, case: Case) -> Pause:
    """It would be dispatched if the run were not paused."""
    return Pause(
        reason=scene.state.reason,
        words=f"{who(case)} is ready, but the run is paused",
        unblock="resume the run",
        command=RESUME,
        **place_of(case, case.act.since_ms or case.cell.since_ms),
    )


def missing(_: Scene, case: Case) -> Missing:
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


def items_of(scene: Scene, case: Case) -> Items:
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
