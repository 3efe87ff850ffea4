"""Explain(workflow, state, jobs, workers); headline.

Why a run is where it is: what every unfinished visit waits for, and what a failed run died of.

A pure function of the workflow, the state, and what the store and the workers are known to hold, so that it can be
asked of any moment of any log. It is told in data; front ends draw it. The pass over the run only finds out kinds
(`survey`), and sentences are made for no more than the bounds allow, so its cost is that of one look at every node.

The one sentence that comes first: what the run is doing or waiting for, or how it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from tidemill.kernel.explain import live, upstream
from tidemill.kernel.explain.blockers import AnyBlocker, Deadline, Failure, shown
from tidemill.kernel.explain.ended import (
    Cause,
    Link,
    Sample,
    chain_of,
    first_cause,
    not_undone,
    outcome_counts,
    unread,
    way_on,
)
from tidemill.kernel.explain.live import deadline_of, of_the_run
from tidemill.kernel.explain.survey import Bounds, ExplainInput, JobFact, WaitingVisit, Workers, label, survey
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import RollbackStatus, RunStatus, State

_NOUNS = {
    "worker": ("waits for a worker", "wait for workers"),
    "lease": ("is being worked on", "are being worked on"),
    "retry": ("waits for its next attempt", "wait for their next attempts"),
    "timer": ("sleeps", "sleep"),
    "person": ("waits for people", "wait for people"),
    "signal": ("waits for a signal", "wait for signals"),
    "child": ("waits for a child run", "wait for child runs"),
    "wait": ("waits for something else", "wait for something else"),
    "missing": ("lacks its job", "lack their jobs"),
    "outputs": ("rendering is left", "renderings are left"),
}
"""Of the kinds that can be a root, after a number."""

_LEFT_MAX = 3
"""Names in a sentence of what a rollback left undone; the others are in the list."""


def of_live(state: State, blockers: Sequence[AnyBlocker], counts: Mapping[str, int]) -> str:
    """What a live run does or waits for: the first thing in its own words, the others by their numbers."""
    if not blockers:
        return f"the run is {state.status} and waits for nothing that is known"
    first = blockers[0]
    others = {kind: counts.get(kind, 0) - (kind == first.kind) for kind in _NOUNS}
    told = [f"{number} {_NOUNS[kind][number > 1]}" for kind, number in others.items() if number]
    return f"{first.words}; besides, {', '.join(told)}" if told else first.words


def of_ended(state: State, cause: Cause | None, blockers: Sequence[AnyBlocker]) -> str:
    """How a run ended, and what became of its rollback."""
    match state.status:
        case "FAILED":
            words = _failed(cause)
        case "CANCELLED":
            words = f"the run was cancelled: {state.reason}" if state.reason else "the run was cancelled"
        case "COMPLETED":
            tolerated = f", tolerated failures: {state.tolerated}" if state.tolerated else ""
            unread = f", signals that were never read: {len(state.signals)}" if state.signals else ""
            words = f"the run completed{tolerated}{unread}"
        case _:
            return "there is no such run"
    return words + _rollback(state, blockers)


def _failed(cause: Cause | None) -> str:
    if cause is None:
        return "the run failed"
    where = f" at {label(cause.node, cause.visit, cause.index)}" if cause.node else ""
    return f"the run failed{where} with {cause.error.code}: {cause.error.message}"


def _rollback(state: State, blockers: Sequence[AnyBlocker]) -> str:
    if state.rollback == "running" and blockers:
        return f"; {blockers[0].words}"
    if state.rollback == "done":
        return "; what it had done was undone"
    if state.rollback != "partial":
        return ""
    more = " and more" if len(state.undo_left) > _LEFT_MAX else ""
    return f"; its rollback left something undone: {', '.join(map(_step, state.undo_left[:_LEFT_MAX]))}{more}"


def _step(key: str) -> str:
    node, visit, index = key.rsplit("/", 2)
    return label(node, int(visit), int(index))


__all__ = [
    "BOUNDS",
    "AnyBlocker",
    "Bounds",
    "Cause",
    "Explanation",
    "Failure",
    "JobFact",
    "Link",
    "Sample",
    "Workers",
    "explain",
]

BOUNDS = Bounds()

Telling = Callable[[ExplainInput, WaitingVisit], AnyBlocker]


class Explanation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a run is where it is."""

    status: RunStatus
    headline: str
    stuck: str = ""
    """Why a worker gave up on it for the time being. What it waits for otherwise is said all the same."""
    since_ms: int | None
    """Since when that is so, as far as it is known."""
    blockers: tuple[AnyBlocker, ...] = ()
    """Roots first: what is really live or outside. Whatever only waits for other nodes comes after them."""
    counts: dict[str, int] = {}
    """Blockers by kind, also of those that are not listed; of a map's items only those that would be."""
    more_roots: int = 0
    more_followers: int = 0
    deadline: Deadline | None = None
    first_cause: Cause | None = None
    """Of a FAILED run."""
    chain: tuple[Link, ...] = ()
    """From the innermost cause outwards."""
    reason: str = ""
    """Why it was paused or cancelled, in the words of whoever did it."""
    failures_tolerated: int = 0
    tolerated: Sample = Sample()
    unread: dict[str, int] = {}
    """Signals that nobody has taken, by name."""
    dead_letters: int = 0
    rollback: RollbackStatus = "none"
    left: Sample = Sample()
    """What a rollback could not undo, as node/visit/index."""
    left_error: Failure | None = None
    """Why the first of them could not be undone, where its compensator was tried."""
    unblock: str = ""
    """What lets a run go on that has ended; for others each blocker says it."""
    command: str = ""


def explain(
    workflow: Workflow,
    state: State,
    jobs: Sequence[JobFact],
    now_ms: int,
    *,
    workers: Workers | None = None,
    bounds: Bounds = BOUNDS,
) -> Explanation:
    """Say what a run waits for, or how it ended. Total: there is no state it does not answer for.

    `jobs` are those of the run, read at about the same moment as the state; `workers` None is when nobody knows.
    """
    scene = ExplainInput(workflow, state, jobs, now_ms, workers, bounds)
    return _live(scene) if state.live else _ended(scene)


def _live(scene: ExplainInput) -> Explanation:
    state, bounds = scene.state, scene.bounds
    whole, cases = list(of_the_run(scene)), survey(scene)
    first = next((place for place, case in enumerate(cases) if not case.root), len(cases))
    roots, followers = cases[:first], cases[first:]
    above = upstream.Upstream(scene, cases)
    listed = [*roots[: bounds.roots], *followers[: bounds.followers]]
    edges: Telling = partial(upstream.behind_edges, above)
    telling: dict[str, Telling] = {
        **_TELLING,
        "edge": edges,
        "join": edges,
        "loop": partial(upstream.behind_body, above),
    }
    told = [*whole, *(telling[case.kind](scene, case) for case in listed)]
    told.sort(key=lambda blocker: not blocker.root)
    counts = dict(Counter([*(each.kind for each in whole), *(case.kind for case in cases)]))
    return Explanation(
        status=state.status,
        headline=of_live(state, told, counts),
        since_ms=told[0].since_ms if told else state.last_ms,
        blockers=tuple(told),
        counts=counts,
        more_roots=max(0, len(roots) - bounds.roots),
        more_followers=max(0, len(followers) - bounds.followers),
        deadline=deadline_of(scene),
        reason=state.reason,
        failures_tolerated=state.tolerated,
        unread=unread(state),
        dead_letters=state.dead_letters,
    )


def _ended(scene: ExplainInput) -> Explanation:
    state, most = scene.state, scene.bounds.names
    told, cause, found = tuple(of_the_run(scene)), first_cause(scene), outcome_counts(scene)
    unblock, command = way_on(state, found)
    undo = not_undone(state)
    return Explanation(
        status=state.status,
        headline=of_ended(state, cause, told),
        since_ms=state.ended_ms,
        blockers=told,
        counts=dict(Counter(each.kind for each in told)),
        first_cause=cause,
        chain=() if cause is None else chain_of(cause, found, state.peek(cause.node)),
        reason=state.reason,
        failures_tolerated=state.tolerated,
        tolerated=found.tolerated,
        unread=unread(state),
        dead_letters=state.dead_letters,
        rollback=state.rollback,
        left=Sample(count=len(state.undo_left), names=state.undo_left[:most]),
        left_error=None if undo is None else shown(undo.error),
        unblock=unblock,
        command=command,
    )


_TELLING: dict[str, Telling] = {
    "worker": live.without_worker,
    "lease": live.leased,
    "retry": live.backing_off,
    "pause": live.withdrawn,
    "missing": live.missing,
    "items": live.items_of,
    "timer": live.asleep,
    "person": live.undecided,
    "signal": live.listening,
    "child": live.parent,
    "wait": live.waits,
    "limit": upstream.behind_limit,
}
"""How each kind is told. Those that follow other nodes are added for every explanation: they share one search."""
