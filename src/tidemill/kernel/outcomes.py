"""How an activation goes on when an attempt or a wait of it has ended: an item's end, a retry, or failure for good.

Shared by those who hear of attempts and those who hear of waits; what an end means for the visit's edges and
tokens is in `visits.py`.
"""

from __future__ import annotations

import msgspec

from tidemill.kernel.commands import Failed
from tidemill.kernel.delays import retry_delay_ms
from tidemill.kernel.endings import cancel_items
from tidemill.kernel.events import NOT_AN_ITEM, Error, NodeCompleted, Payload
from tidemill.kernel.jobs import run_job
from tidemill.kernel.model import Node
from tidemill.kernel.pen import Pen
from tidemill.kernel.reports import Facts, dead_letter, error_envelope, failure
from tidemill.kernel.state import peek_at
from tidemill.kernel.visits import fail_visit, item_over


def complete_item(
    pen: Pen, node: Node, index: int, output: Payload, size: int, facts: Facts, *, undoable: bool = True
) -> None:
    """An item of a map has its value."""
    cell = pen.state.peek(node.id)
    act = peek_at(cell, index)
    pen.emit(
        NodeCompleted(
            at_ms=pen.now,
            cause=facts.cause,
            node=node.id,
            visit=cell.visit,
            index=index,
            counter=pen.state.counter,
            attempt=act.attempt if act is not None else 0,
            output=output,
            worker=facts.worker,
            duration_ms=facts.duration_ms,
            waited_ms=facts.waited_ms,
            size=size,
            token=facts.token,
            undoable=undoable and node.compensator is not None,
        )
    )
    item_over(pen, node)


def bytes_exceeded(pen: Pen, size: int) -> Error | None:
    """Why the run cannot have an output of this size, which fails it whatever the node tolerates."""
    limit = pen.flow.limits.max_bytes
    if limit is None or pen.state.size + size <= limit:
        return None
    return Error("max_bytes_exceeded", f"the outputs of the run exceed {limit} bytes")


def attempt_failed(pen: Pen, node: Node, index: int, failed: Failed, chance: float, facts: Facts) -> None:
    """An attempt failed: try again if that may help and may be, else give up."""
    act = peek_at(pen.state.peek(node.id), index)
    assert act is not None, "the result's standing was checked"
    error = failed.error
    if failed.unknown_outcome and node.delivery == "at_most_once":
        fail_for_good(pen, node, index, Error("unknown_outcome", error.message, causes=(error.code,)), facts)
    elif error.retryable and act.failures + 1 < node.retry.max_attempts:
        delay = retry_delay_ms(node.retry, act.failures + 1, failed.retry_after_ms, chance)
        try_again(pen, node, index, act.attempt, error, pen.now + delay, facts)
    else:
        fail_for_good(pen, node, index, error, facts)


def try_again(
    pen: Pen, node: Node, index: int, attempt: int, error: Error, at_ms: int, facts: Facts, *, lost: bool = False
) -> None:
    """Queue the activation once more, now or after a while."""
    failed = failure(pen, node, index, attempt, error, facts)
    pen.emit(msgspec.structs.replace(failed, retry_at_ms=at_ms, lost=lost))
    if not lost:
        pen.put(run_job(node, failed.visit, index, at_ms))


def fail_for_good(
    pen: Pen, node: Node, index: int, error: Error, facts: Facts, *, attempt: int | None = None, fatal: bool = False
) -> None:
    """No more attempts. An item is tolerated or fails its map; a visit goes to its `on_error`."""
    cell = pen.state.peek(node.id)
    if index == NOT_AN_ITEM:
        fail_visit(pen, node, error, facts, attempt=attempt, fatal=fatal)
        return
    assert node.map is not None and cell.map is not None
    act = peek_at(cell, index)
    attempts = attempt if attempt is not None else (act.attempt if act is not None else 0)
    tolerated = cell.map.failed < node.map.tolerate and not fatal
    failed = failure(pen, node, index, attempts, error, facts)
    envelope = error_envelope(error) if tolerated else None
    pen.emit(msgspec.structs.replace(failed, tolerated=tolerated, output=envelope))
    dead_letter(pen, node, cell.visit, index, attempts, error)
    if tolerated:
        item_over(pen, node)
    else:
        _fail_map(pen, node, index, error, fatal)


def _fail_map(pen: Pen, node: Node, index: int, error: Error, fatal: bool) -> None:
    """One failure too many: the rest of the items is cancelled and the visit fails with the item's error."""
    pen.cause = pen.state.seq
    cancel_items(pen, node, f"item {index} failed")
    item_error = Error(
        error.code, f"item {index}: {error.message}", error.type, hint=error.hint, causes=error.causes, index=index
    )
    fail_visit(pen, node, item_error, Facts(cause=pen.cause), fatal=fatal)
