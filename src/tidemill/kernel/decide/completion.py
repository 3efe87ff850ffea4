"""How a run ends: complete, failed or cancelled. Ending a run ends every unfinished visit with it.

The counter of every terminal run is zero, because each visit that is ended here consumes the tokens it had,
parked ones included. Whoever waits for the run's end (a parent, a rollback) is served by the same commit.
"""

from __future__ import annotations

from tidemill.kernel.activation import DISPATCHED, ENDED, Activation
from tidemill.kernel.decide.builder import DecisionBuilder
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.decide.rollback import start_rollback
from tidemill.kernel.decide.routing import descendants, owns_job
from tidemill.kernel.events import NOT_AN_ITEM, Error, NodeCancelled, NodeFailed, RunCancelled, RunCompleted, RunFailed
from tidemill.kernel.jobs import close_job, key_of, system_job
from tidemill.kernel.model import Node
from tidemill.kernel.state import Visit, peek_at

UPSTREAM_FAILED = "upstream_failed"
ABANDON = "abandon"
"""The close policy of a child that may live on without its parent."""


def complete_run(pen: DecisionBuilder) -> None:
    """Nothing is in flight any more and there are no outputs to render."""
    _close(pen)
    pen.emit(RunCompleted(at_ms=pen.now, cause=pen.state.seq, tolerated=pen.state.tolerated, unread=unread(pen)))
    after_end(pen)


def fail_run(pen: DecisionBuilder, node: str, visit: int, error: Error, *, spread: bool = True) -> None:
    """End the run as FAILED; `node` is the first failing node, empty when the run failed as a whole.

    `spread` off: the node itself has not failed (a limit kept it from beginning), so nothing failed with it.
    """
    cause = pen.state.seq
    _end_visits(pen, f"the run failed: {error.code}", descendants(pen.flow, node) if node and spread else set(), node)
    _close(pen)
    left = pen.state.counter
    pen.emit(
        RunFailed(
            at_ms=pen.now,
            cause=cause,
            node=node,
            visit=visit,
            error=error,
            consumed=left,
            counter=0,
            unread=unread(pen),
        )
    )
    after_end(pen, compensate=pen.flow.compensate == "automatic")


def cancel_run(pen: DecisionBuilder, reason: str, *, compensate: bool | None = None) -> None:
    """End the run as CANCELLED; `compensate` None is what the document says."""
    _end_visits(pen, reason or "the run was cancelled", set(), "")
    _close(pen)
    left = pen.state.counter
    pen.emit(
        RunCancelled(
            at_ms=pen.now,
            actor=pen.actor,
            command=pen.command,
            reason=reason,
            consumed=left,
            counter=0,
            unread=unread(pen),
        )
    )
    after_end(pen, compensate=pen.flow.compensate == "automatic" if compensate is None else compensate)


def unread(pen: DecisionBuilder) -> tuple[str, ...]:
    """Names of signals that nobody took."""
    return tuple(dict.fromkeys(signal.name for signal in pen.state.signals))


def after_end(pen: DecisionBuilder, *, compensate: bool = False) -> None:
    """The run has ended: tell its parent, and undo what it did if that was asked for."""
    if pen.state.parent is not None:
        pen.add_job(system_job("report"))
    if compensate:
        start_rollback(pen, "automatic")


def _close(pen: DecisionBuilder) -> None:
    """Nothing follows any more, and no timer of the run has anything left to do."""
    pen.pending_nodes.clear()
    pen.loops.clear()
    if pen.state.deadline_ms is not None:
        pen.remove_job(key_of("deadline"))
    if pen.state.rendering:
        pen.remove_job(key_of("outputs"))


def end_visit(pen: DecisionBuilder, node: Node, reason: str) -> None:
    """Cancel one visit that is in flight, with its items, timers and jobs."""
    cell = pen.state.peek(node.id)
    _drop_jobs(pen, node, cell)
    cancel_items(pen, node, reason)
    _cancel(pen, node, pen.state.peek(node.id), reason)


def _end_visits(pen: DecisionBuilder, reason: str, downstream: set[str], source: str) -> None:
    """End every unfinished visit: PENDING ones below the failure have failed with it, the rest is cancelled."""
    state = pen.state
    pen.cause = state.seq
    for node in pen.flow.nodes:
        cell = state.peek(node.id)
        if cell.status in ENDED:
            continue
        _drop_jobs(pen, node, cell)
        cancel_items(pen, node, reason)
        if cell.status == "PENDING" and node.id in downstream:
            _fail_with(pen, node, cell, source)
        else:
            _cancel(pen, node, cell, reason)


def _fail_with(pen: DecisionBuilder, node: Node, cell: Visit, source: str) -> None:
    pen.emit(
        NodeFailed(
            at_ms=pen.now,
            cause=pen.cause,
            node=node.id,
            visit=cell.visit,
            attempt=cell.attempt,
            error=Error(UPSTREAM_FAILED, f"node {source} failed"),
            consumed=cell.tokens,
            counter=pen.state.counter - cell.tokens,
        )
    )


def _cancel(pen: DecisionBuilder, node: Node, cell: Visit, reason: str) -> None:
    pen.emit(
        NodeCancelled(
            at_ms=pen.now,
            cause=pen.cause,
            node=node.id,
            visit=cell.visit,
            reason=reason,
            consumed=cell.tokens,
            counter=pen.state.counter - cell.tokens,
            unknown=_under_way(node, cell, NOT_AN_ITEM, cell),
        )
    )


def _under_way(node: Node, cell: Visit, index: int, act: Activation) -> bool:
    """Whether a worker may be doing this right now, and a rollback would have to undo it.

    Nobody can tell a job that waits in the queue from one in a worker's hands; only an at-most-once attempt is
    announced before it begins.
    """
    if node.compensator is None or act.status not in DISPATCHED or act.retry_at_ms is not None:
        return False
    return phase_of(node, cell, index) == "call" and (act.running or node.delivery != "at_most_once")


def _drop_jobs(pen: DecisionBuilder, node: Node, cell: Visit) -> None:
    if owns_job(cell):
        pen.remove_job(key_of("run", node.id, cell.visit))
    elif cell.status == "WAITING":
        drop_wait(pen, node.id, cell.visit, NOT_AN_ITEM, cell, close=True)


def drop_wait(pen: DecisionBuilder, node: str, visit: int, index: int, act: Activation, *, close: bool) -> None:
    """Remove the timers of a wait that ends. `close`: nobody waits for its child any more, and it is told so."""
    wait = act.wait
    if wait is None:
        return
    if wait.until_ms is not None:
        pen.remove_job(key_of("wake", node, visit, index))
    if wait.expires_ms is not None:
        pen.remove_job(key_of("expire", node, visit, index))
    if wait.on == "child":
        pen.remove_job(key_of("child", node, visit, index))
        if close and wait.close != ABANDON:
            pen.add_job(close_job(node, visit, index, act.attempt))


def cancel_items(pen: DecisionBuilder, node: Node, reason: str) -> None:
    """End every item of a map that was queued and has not ended; those that never were do not happen at all."""
    queued = pen.state.peek(node.id).map
    for index in range(queued.next if queued is not None else 0):
        cell = pen.state.peek(node.id)
        item = peek_at(cell, index)
        if item is None or item.status in ENDED:
            continue
        if item.status in DISPATCHED:
            pen.remove_job(key_of("run", node.id, cell.visit, index))
        else:
            drop_wait(pen, node.id, cell.visit, index, item, close=True)
        pen.emit(
            NodeCancelled(
                at_ms=pen.now,
                cause=pen.cause,
                node=node.id,
                visit=cell.visit,
                index=index,
                reason=reason,
                counter=pen.state.counter,
                unknown=_under_way(node, cell, index, item),
            )
        )
