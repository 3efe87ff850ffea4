"""Fencing as the log knows it: does the result of a worker count, and is its outcome allowed at this point?

The store's fence keeps a stale worker from committing; this check is repeated from the state alone. Read-only.
"""

from __future__ import annotations

from typing import Literal

from tidemill.kernel.activation import DISPATCHED
from tidemill.kernel.commands import Done, Failed, MapExpanded, Result, SkipRequested, WaitRequested
from tidemill.kernel.decide.edges_and_joins import owns_job
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Node
from tidemill.kernel.state import State, Visit, peek_at

AttemptStatus = Literal["current", "repeated", "run_ended", "visit_ended", "stale", "lease_lost"]

Phase = Literal["call", "expand", "assemble", "route"]


def phase_of(node: Node, visit: Visit, index: int) -> Phase:
    """What the job of an activation does at this point of its visit; only `call` calls the handler."""
    if index == NOT_AN_ITEM and visit.resumed is not None:
        return "call" if visit.recall else "route"
    if node.map is None or index != NOT_AN_ITEM:
        return "call"
    return "expand" if visit.map is None else "assemble"


def attempt_status(state: State, node: str, visit: int, index: int, token: int) -> AttemptStatus:
    """Whether the worker that holds `token` may still report about an activation, and if not, why."""
    latest = state.peek(node)
    act = None if latest.visit != visit else latest if index == NOT_AN_ITEM else peek_at(latest, index)
    if token == (latest.reported_before if visit == latest.visit - 1 else act.reported if act is not None else 0):
        return "repeated"
    if not state.live:
        return "run_ended"
    if act is None or act.status not in DISPATCHED or (act is latest and not owns_job(latest)):
        return "visit_ended"
    return "current" if token > act.token or (act.running and token == act.token) else "stale"


def outcome_allowed(phase: Phase, result: Result) -> bool:
    match result.outcome:
        case Done():
            return phase != "expand"
        case Failed():
            return True
        case MapExpanded():
            return phase == "expand" and result.outcome.count >= 0
        case WaitRequested():
            # Only the kernel starts a wait for a loop's body: it keeps the result that such a wait holds.
            return phase == "call" and result.outcome.on != "loop"
        case SkipRequested():
            return phase in ("call", "expand")
