"""What is written down about an attempt that ended: the facts of its report, and the words of its failure."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM, DeadLettered, Error, NodeFailed, Payload, Reading
from tidemill.kernel.model import Node
from tidemill.kernel.pen import Pen


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What the event of an ended attempt repeats from the command that reported it."""

    token: int = 0
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    cause: int = 0
    reads: tuple[Reading, ...] = ()
    """What a condition was asked over that failed."""


NO_FACTS = Facts()


def failure(pen: Pen, node: Node, index: int, attempt: int, error: Error, facts: Facts) -> NodeFailed:
    """The event of a failed attempt, before anything is said about what follows from it."""
    return NodeFailed(
        at_ms=pen.now,
        cause=facts.cause,
        node=node.id,
        visit=pen.state.peek(node.id).visit,
        index=index,
        counter=pen.state.counter,
        attempt=attempt,
        error=error,
        worker=facts.worker,
        duration_ms=facts.duration_ms,
        waited_ms=facts.waited_ms,
        token=facts.token,
        reads=facts.reads,
    )


def dead_letter(pen: Pen, node: Node, visit: int, index: int, attempts: int, error: Error) -> None:
    """Record a failure that nobody will try again by itself."""
    pen.emit(
        DeadLettered(
            at_ms=pen.now,
            cause=pen.state.seq,
            node=node.id,
            visit=visit,
            index=index,
            attempts=attempts,
            error=error,
        )
    )


def error_envelope(error: Error) -> Payload:
    """What others see as the output of a tolerated failure."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.type:
        body["type"] = error.type
    if error.index != NOT_AN_ITEM:
        body["index"] = error.index
    return msgspec.json.encode({"error": body})
