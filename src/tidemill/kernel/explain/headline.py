"""The one sentence that comes first: what the run is doing or waiting for, or how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.kernel.explain.blockers import AnyBlocker
from tidemill.kernel.explain.ended import Cause
from tidemill.kernel.explain.scene import label
from tidemill.kernel.state import State

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
