"""How a visit waits without costing anything, and what follows when its wait is over.

What it waits for has a name: a timer, a person, a signal, a child, or a word of the handler's own. However the
wait ends, its timers go with it in the same commit.
"""

from __future__ import annotations

from tidemill.kernel.commands import Failed, Request, Waits
from tidemill.kernel.endings import drop_wait
from tidemill.kernel.events import NOT_AN_ITEM, ApprovalRequested, Error, NodeWaiting, Payload
from tidemill.kernel.jobs import wait_jobs
from tidemill.kernel.model import Node
from tidemill.kernel.outcomes import attempt_failed, bytes_exceeded, complete_item, fail_for_good
from tidemill.kernel.pen import Pen
from tidemill.kernel.reports import Facts
from tidemill.kernel.state import Buffered, peek_at
from tidemill.kernel.visits import complete_visit, resume


def begin_wait(pen: Pen, node: Node, index: int, waits: Waits, facts: Facts) -> None:
    """The handler asked to wait. A signal that has arrived before ends the wait in the same breath."""
    cell = pen.state.peek(node.id)
    act = peek_at(cell, index)
    assert act is not None, "the result's standing was checked"
    kept = _buffered(pen, waits.name) if waits.on == "signal" else None
    pen.emit(
        NodeWaiting(
            at_ms=pen.now,
            cause=facts.cause,
            node=node.id,
            visit=cell.visit,
            index=index,
            attempt=act.attempt,
            on=waits.on,
            name=waits.name,
            until_ms=waits.until_ms if waits.for_ms is None else pen.now + waits.for_ms,
            expires_ms=_expiry(pen, node, waits, facts),
            worker=facts.worker,
            duration_ms=facts.duration_ms,
            token=facts.token,
            recall=waits.recall,
            ask=waits.ask,
            close=waits.close,
            signal="" if kept is None else kept.signal,
        )
    )
    pen.cause = pen.state.seq
    if kept is not None:
        wait_over(pen, node, index, kept.payload)
        return
    if waits.approval is not None:
        _request(pen, node, index, waits.approval)
    waiting = peek_at(pen.state.peek(node.id), index)
    assert waiting is not None
    for job in wait_jobs(node.id, cell.visit, index, waiting):
        pen.put(job)


def _expiry(pen: Pen, node: Node, waits: Waits, facts: Facts) -> int | None:
    """When the wait has taken too long: people have a time-out of their own, everybody else the attempt's."""
    if waits.approval is not None and waits.approval.timeout_ms is not None:
        return pen.now + waits.approval.timeout_ms
    return None if node.timeout_ms is None else pen.now + max(0, node.timeout_ms - facts.duration_ms)


def _buffered(pen: Pen, name: str) -> Buffered | None:
    return next((kept for kept in pen.state.signals if kept.name == name), None)


def _request(pen: Pen, node: Node, index: int, asked: Request) -> None:
    act = peek_at(pen.state.peek(node.id), index)
    expires = act.wait.expires_ms if act is not None and act.wait is not None else None
    # Nobody to escalate to must not come to mean everybody.
    on_timeout = "fail" if asked.on_timeout == "escalate" and not asked.escalate_to else asked.on_timeout
    pen.emit(
        ApprovalRequested(
            at_ms=pen.now,
            cause=pen.cause,
            node=node.id,
            visit=pen.state.peek(node.id).visit,
            index=index,
            title=asked.title,
            description=asked.description,
            form=asked.form,
            approvers=asked.approvers,
            quorum=asked.quorum,
            four_eyes=asked.four_eyes,
            requester=pen.state.submitted_by,
            timeout_ms=asked.timeout_ms if asked.timeout_ms is not None else node.timeout_ms,
            expires_ms=expires,
            on_timeout=on_timeout,
            escalate_to=asked.escalate_to,
            url=asked.url,
        )
    )


def leave_wait(pen: Pen, node: Node, index: int, *, close: bool = False) -> None:
    """Remove the timers of a wait that ends now. `close`: nobody waits for its child any more."""
    cell = pen.state.peek(node.id)
    act = peek_at(cell, index)
    if act is not None and act.wait is not None:
        drop_wait(pen, node.id, cell.visit, index, act, close=close)


def wait_over(pen: Pen, node: Node, index: int, output: Payload) -> None:
    """A wait ended well: complete the visit, unless a worker has to look at it first."""
    act = peek_at(pen.state.peek(node.id), index)
    leave_wait(pen, node, index)
    facts, size = Facts(cause=pen.cause), _size(output)
    if act is not None and act.wait is not None and act.wait.recall:
        resume(pen, node, index, output, recall=True)
    elif (error := bytes_exceeded(pen, size)) is not None:
        fail_for_good(pen, node, index, error, facts, fatal=True)
    elif index != NOT_AN_ITEM:
        complete_item(pen, node, index, output, size, facts)
    elif node.routed:
        resume(pen, node, index, output, recall=False)
    else:
        complete_visit(pen, node, output, None, facts, size)


def _size(payload: Payload) -> int:
    return len(payload) if isinstance(payload, bytes) else payload.size


def wait_expired(pen: Pen, node: Node, index: int, chance: float = 0.5) -> None:
    """A wait took longer than the attempt may: that is a time-out, and retryable."""
    leave_wait(pen, node, index, close=True)
    error = Error("timeout", f"no end of the wait within {node.timeout_ms} ms", retryable=True)
    attempt_failed(pen, node, index, Failed(error=error, unknown_outcome=True), chance, Facts(cause=pen.cause))
