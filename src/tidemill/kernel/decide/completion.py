"""End a run: completed, failed or cancelled, with every unfinished visit, item, timer and job in it.

The counter of every ended run is zero: each visit ended here consumes the tokens it holds. The commit that ends the
run also reports to the parent run and starts an automatic rollback.
"""

from __future__ import annotations

from tidemill.kernel.activation import DISPATCHED, ENDED, Activation
from tidemill.kernel.decide.builder import DecisionBuilder
from tidemill.kernel.decide.edges_and_joins import descendants, owns_job
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.decide.rollback import start_rollback
from tidemill.kernel.events import NOT_AN_ITEM, Error, NodeCancelled, NodeFailed, RunCancelled, RunCompleted, RunFailed
from tidemill.kernel.jobs import close_job, key_of, system_job
from tidemill.kernel.model import Node
from tidemill.kernel.state import Visit, peek_at

UPSTREAM_FAILED = "upstream_failed"
ABANDON = "abandon"
"""The close policy of a child run that may continue without its parent."""


def complete_run(builder: DecisionBuilder) -> None:
    """End the run as COMPLETED; nothing is in flight and there are no outputs to render."""
    _close(builder)
    builder.emit(
        RunCompleted(
            at_ms=builder.now, cause=builder.state.seq, tolerated=builder.state.tolerated, unread=unread(builder)
        )
    )
    after_end(builder)


def fail_run(builder: DecisionBuilder, node: str, visit: int, error: Error, *, spread: bool = True) -> None:
    """End the run as FAILED, because of `node` or as a whole. `spread` off: descendants are cancelled, not failed."""
    cause = builder.state.seq
    downstream = descendants(builder.flow, node) if node and spread else set()
    _end_visits(builder, f"the run failed: {error.code}", downstream, node)
    _close(builder)
    builder.emit(
        RunFailed(
            at_ms=builder.now,
            cause=cause,
            node=node,
            visit=visit,
            error=error,
            consumed=builder.state.counter,
            counter=0,
            unread=unread(builder),
        )
    )
    after_end(builder, compensate=builder.flow.compensate == "automatic")


def cancel_run(builder: DecisionBuilder, reason: str, *, compensate: bool | None = None) -> None:
    """End the run as CANCELLED; `compensate` None follows the document."""
    _end_visits(builder, reason or "the run was cancelled", set(), "")
    _close(builder)
    consumed = builder.state.counter
    builder.emit(
        RunCancelled(reason=reason, consumed=consumed, counter=0, unread=unread(builder), **builder.command_fields)
    )
    after_end(builder, compensate=builder.flow.compensate == "automatic" if compensate is None else compensate)


def unread(builder: DecisionBuilder) -> tuple[str, ...]:
    signals = builder.state.signals
    return tuple(dict.fromkeys(signal.name for signal in signals)) if signals else ()


def after_end(builder: DecisionBuilder, *, compensate: bool = False) -> None:
    """Report the end to the parent, and start the rollback if asked to."""
    if builder.state.parent is not None:
        builder.add_job(system_job("report"))
    if compensate:
        start_rollback(builder, "automatic")


def _close(builder: DecisionBuilder) -> None:
    """Discard pending consequences and the timers of the run."""
    builder.pending_nodes.clear()
    builder.loops.clear()
    if builder.state.deadline_ms is not None:
        builder.remove_job(key_of("deadline"))
    if builder.state.rendering:
        builder.remove_job(key_of("outputs"))


def end_visit(builder: DecisionBuilder, node: Node, reason: str) -> None:
    """Cancel one visit that is in flight, with its items, timers and jobs."""
    visit = builder.state.peek(node.id)
    _drop_jobs(builder, node, visit)
    cancel_items(builder, node, reason)
    _cancel(builder, node, builder.state.peek(node.id), reason)


def _end_visits(builder: DecisionBuilder, reason: str, downstream: set[str], source: str) -> None:
    """End every unfinished visit: PENDING descendants of the failed node fail, all others are cancelled."""
    state = builder.state
    builder.cause = state.seq
    for node in builder.flow.nodes:
        visit = state.peek(node.id)
        if visit.status in ENDED:
            continue
        _drop_jobs(builder, node, visit)
        cancel_items(builder, node, reason)
        if visit.status == "PENDING" and node.id in downstream:
            builder.emit(
                NodeFailed(
                    attempt=visit.attempt,
                    error=Error(UPSTREAM_FAILED, f"node {source} failed"),
                    consumed=visit.tokens,
                    counter=state.counter - visit.tokens,
                    **builder.node_fields(node.id),
                )
            )
        else:
            _cancel(builder, node, visit, reason)


def _cancel(builder: DecisionBuilder, node: Node, visit: Visit, reason: str) -> None:
    builder.emit(
        NodeCancelled(
            reason=reason,
            consumed=visit.tokens,
            counter=builder.state.counter - visit.tokens,
            unknown=_under_way(builder, node, visit, NOT_AN_ITEM, visit),
            **builder.node_fields(node.id),
        )
    )


def _under_way(builder: DecisionBuilder, node: Node, visit: Visit, index: int, act: Activation) -> bool:
    """Whether a worker may have called the handler of this, with an effect that a rollback would have to undo.

    The log says so if the attempt is recorded as started; one before it that was lost is unknown already. Else it
    depends on the job: if the commit finds that it is not idle, the turn decides again.
    """
    if node.compensator is None or act.status not in DISPATCHED or phase_of(node, visit, index) != "call":
        return False
    if act.running or node.delivery == "at_most_once":
        return act.running
    if act.retry_at_ms is not None and _retried_now(builder, node.id, visit.visit, index):
        # The lease of the attempt that failed is settled by the same commit.
        return False
    return not builder.is_idle(key_of("run", node.id, visit.visit, index))


def _retried_now(builder: DecisionBuilder, node: str, visit: int, index: int) -> bool:
    """Whether the retry of an activation is part of this decision, so that no worker can have its job."""
    failed = (event for event in builder.events if type(event) is NodeFailed and event.retry_at_ms is not None)
    return any((event.node, event.visit, event.index) == (node, visit, index) for event in failed)


def _drop_jobs(builder: DecisionBuilder, node: Node, visit: Visit) -> None:
    if owns_job(visit):
        builder.remove_job(key_of("run", node.id, visit.visit))
    elif visit.status == "WAITING":
        drop_wait(builder, node.id, visit.visit, NOT_AN_ITEM, visit, close=True)


def drop_wait(builder: DecisionBuilder, node: str, visit: int, index: int, act: Activation, *, close: bool) -> None:
    """Remove the timers of a wait that ends. `close`: also ask its child run to close."""
    wait = act.wait
    if wait is None:
        return
    if wait.until_ms is not None:
        builder.remove_job(key_of("wake", node, visit, index))
    if wait.expires_ms is not None:
        builder.remove_job(key_of("expire", node, visit, index))
    if wait.on == "child":
        builder.remove_job(key_of("child", node, visit, index))
        if close and wait.close != ABANDON:
            builder.add_job(close_job(node, visit, index, act.attempt, wait.name))


def cancel_items(builder: DecisionBuilder, node: Node, reason: str) -> None:
    """Cancel every queued item of a map that has not ended; items that were never queued get no event."""
    queued = builder.state.peek(node.id).map
    for index in range(queued.next if queued is not None else 0):
        visit = builder.state.peek(node.id)
        item = peek_at(visit, index)
        if item is None or item.status in ENDED:
            continue
        if item.status in DISPATCHED:
            builder.remove_job(key_of("run", node.id, visit.visit, index))
        else:
            drop_wait(builder, node.id, visit.visit, index, item, close=True)
        unknown, fields = _under_way(builder, node, visit, index, item), builder.node_fields(node.id, index)
        builder.emit(NodeCancelled(reason=reason, counter=builder.state.counter, unknown=unknown, **fields))
