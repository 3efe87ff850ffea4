"""Why a visit went the way it went, in words: what was decided about it, as its log has it.

Conditions are evaluated once, by a worker, and their verdict is recorded with what it was made over. So the log
alone can say why a branch was taken, a loop went on or a node was skipped, whatever the values have become since.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.kernel.events import (
    Ending,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeOverridden,
    NodeSkipped,
    Reading,
    Route,
)


def told(route: Route | None, taken: Sequence[str]) -> str:
    """Say what the conditions of a visit decided; empty where it has none. `taken` are the edges it took."""
    if route is None:
        return ""
    return "; ".join(part for part in (_loop_told(route, taken), route.reason) if part)


def _loop_told(route: Route, taken: Sequence[str]) -> str:
    if route.again is None:
        return ""
    # A pass that is followed by another takes no edges: they are left to the last one.
    goes_on = "the loop has no pass left" if taken else "the loop goes on"
    said = goes_on if route.again else "the loop ended"
    return f"{said}: {route.again_reason}" if route.again_reason else said


def why_of(event: Ending) -> str:
    """Say why a visit ended like that, as far as somebody or something decided it."""
    match event:
        case NodeCompleted():
            return told(event.route, event.taken)
        case NodeSkipped() | NodeCancelled() | NodeOverridden():
            return event.reason
        case NodeFailed():
            return f"{event.error.message} [{event.error.code}]"
        case _:
            return ""


def reads_of(event: Ending) -> tuple[Reading, ...]:
    """List what the decision was made over: names, and the digests of their texts."""
    if isinstance(event, NodeSkipped | NodeFailed):
        return event.reads
    return event.route.reads if isinstance(event, NodeCompleted) and event.route is not None else ()
