"""What an attempt's end means for its activation: a result, a retry, a wait, or a failure for good.

The fence is checked here a second time, after the store's: a result counts only for the attempt that the log
knows as the current one. A result that does not count leaves a ResultDiscarded, or nothing when it repeats
what is already written.
"""

from __future__ import annotations

from tidemill.kernel.activation import DISPATCHED, Activation
from tidemill.kernel.commands import (
    AttemptStarted,
    Checkpoint,
    Done,
    Failed,
    MapExpanded,
    Result,
    SkipRequested,
    WaitRequested,
    WorkerLost,
)
from tidemill.kernel.decide.builder import LOST_IN_A_ROW_MAX, AttemptFacts, DecisionBuilder
from tidemill.kernel.decide.fencing import attempt_status, outcome_allowed, phase_of
from tidemill.kernel.decide.routing import route_problem
from tidemill.kernel.decide.visits import (
    attempt_failed,
    complete_item,
    complete_visit,
    fail_for_good,
    fail_visit,
    skip_visit,
    try_again,
)
from tidemill.kernel.decide.waits import begin_wait
from tidemill.kernel.events import NOT_AN_ITEM, Error, NodeCheckpointed, NodeExpanded, NodeStarted, ResultDiscarded
from tidemill.kernel.jobs import run_job
from tidemill.kernel.model import Node
from tidemill.kernel.state import DISCARDS_MAX, peek_at

WORKER_LOST = "worker_lost"


def take_result(pen: DecisionBuilder, node: Node, result: Result) -> None:
    """Record what an attempt came to, if it still counts."""
    status = attempt_status(pen.state, result.node, result.visit, result.index, result.token)
    if status == "repeated" and result.again:
        return
    if status != "current" or result.late:
        _discard(pen, result, "lease_lost" if status == "current" else status)
        return
    phase = phase_of(node, pen.state.peek(node.id), result.index)
    if not outcome_allowed(phase, result):
        message = f"a {type(result.outcome).__name__} is no outcome at this point of the visit"
        fail_for_good(pen, node, result.index, Error("outcome_not_allowed", message), AttemptFacts(token=result.token))
        return
    called = result.called and phase == "call"
    if called:
        begin(pen, result)
    cause = pen.state.seq if called else 0
    reads = result.outcome.reads if isinstance(result.outcome, Failed) else ()
    facts = AttemptFacts(result.token, result.worker, result.duration_ms, result.waited_ms, cause, reads)
    match result.outcome:
        case Done() as done:
            _done(pen, node, result, done, facts)
        case Failed() as failed:
            attempt_failed(pen, node, result.index, failed, result.chance, facts)
        case WaitRequested() as waits:
            begin_wait(pen, node, result.index, waits, facts)
        case SkipRequested() if result.index != NOT_AN_ITEM:
            # The list has an entry for every item, also for one that was not needed.
            complete_item(pen, node, result.index, b"null", 4, facts, undoable=False)
        case SkipRequested() as skips:
            skip_visit(pen, node, skips.reason, facts, skips.reads)
        case MapExpanded() as expands:
            _expands(pen, node, result, expands, facts)


def begin(pen: DecisionBuilder, command: Result | AttemptStarted | Checkpoint) -> None:
    """Record that the current attempt has started, unless the log knows.

    The event may be written long after the handler was called, so its moment is the worker's: not before the visit was
    scheduled and not after the commit, should clocks differ.
    """
    act = peek_at(pen.state.peek(command.node), command.index)
    if act is None or act.running:
        return
    pen.emit(
        NodeStarted(
            at_ms=min(pen.now, max(command.started_ms, act.since_ms)) if command.started_ms else pen.now,
            node=command.node,
            visit=command.visit,
            index=command.index,
            attempt=act.attempt + 1,
            token=command.token,
            worker=command.worker,
            admission=command.admission,
        )
    )


def take_begin(pen: DecisionBuilder, command: AttemptStarted) -> None:
    """Record the start of an attempt before its end: at-most-once nodes and long handlers."""
    begin(pen, command)


def take_checkpoint(pen: DecisionBuilder, command: Checkpoint) -> None:
    """Keep how far a long handler has come, for the attempt after a crash."""
    begin(pen, command)
    act = peek_at(pen.state.peek(command.node), command.index)
    pen.emit(
        NodeCheckpointed(
            at_ms=pen.now,
            node=command.node,
            visit=command.visit,
            index=command.index,
            attempt=act.attempt if act else 1,
            value=command.value,
        )
    )


def take_lost(pen: DecisionBuilder, node: Node, lost: WorkerLost) -> None:
    """Earlier leases on the job expired: their attempts are over, whatever their workers did."""
    for _ in range(min(lost.times, LOST_IN_A_ROW_MAX)):
        cell = pen.state.peek(node.id)
        act = peek_at(cell, lost.index)
        if act is None or not pen.state.live or act.status not in DISPATCHED:
            return
        _one_lost(pen, node, lost.index, act, AttemptFacts(token=lost.token))
    act = peek_at(pen.state.peek(node.id), lost.index)
    if pen.state.live and act is not None and act.status in DISPATCHED:
        pen.add_job(run_job(node, lost.visit, lost.index))


def _one_lost(pen: DecisionBuilder, node: Node, index: int, act: Activation, facts: AttemptFacts) -> None:
    # NodeStarted is committed before an at-most-once handler is called: without it, it never was.
    once = node.delivery == "at_most_once"
    called = phase_of(node, pen.state.peek(node.id), index) == "call" and (act.running or not once)
    attempt = act.attempt + 1 if called and not act.running else act.attempt
    if once and called:
        message = "the worker was lost after the attempt had started; nobody knows what it did"
        fail_for_good(pen, node, index, Error("unknown_outcome", message), facts)
    elif act.lost + 1 >= LOST_IN_A_ROW_MAX:
        message = f"{LOST_IN_A_ROW_MAX} workers in a row were lost while they ran it"
        fail_for_good(pen, node, index, Error("worker_killer", message), facts, attempt=attempt)
    else:
        error = Error(WORKER_LOST, "the worker was lost", retryable=True)
        try_again(pen, node, index, attempt, error, pen.now, facts, lost=True)


def _discard(pen: DecisionBuilder, result: Result, reason: str) -> None:
    """Record that a result did not count, a bounded number of times; older visits are beyond recording."""
    cell = pen.state.peek(result.node)
    recorded = cell.discarded if result.visit == cell.visit else cell.discarded_before
    if recorded >= DISCARDS_MAX or result.visit < cell.visit - 1:
        return
    act = peek_at(pen.state.peek(result.node), result.index)
    pen.emit(
        ResultDiscarded(
            at_ms=pen.now,
            node=result.node,
            visit=result.visit,
            index=result.index,
            attempt=act.attempt if act is not None else 0,
            token=result.token,
            outcome=type(result.outcome).__name__,
            reason=reason,
            worker=result.worker,
        )
    )


def _done(pen: DecisionBuilder, node: Node, result: Result, done: Done, facts: AttemptFacts) -> None:
    limit = pen.flow.limits.max_bytes
    counts = result.index != NOT_AN_ITEM or node.map is None
    if limit is not None and counts and pen.state.size + done.size > limit:
        message = f"the outputs of the run exceed {limit} bytes"
        fail_for_good(pen, node, result.index, Error("max_bytes_exceeded", message), facts, fatal=True)
    elif result.index != NOT_AN_ITEM:
        complete_item(pen, node, result.index, done.output, done.size, facts)
    elif (problem := route_problem(node, result.route)) is not None:
        fail_visit(pen, node, Error("route_not_allowed", problem), facts)
    else:
        # The items of a map were counted one by one: the list they make up is not counted again.
        complete_visit(pen, node, done.output, result.route, facts, 0 if node.map is not None else done.size)


def _expands(pen: DecisionBuilder, node: Node, result: Result, expands: MapExpanded, facts: AttemptFacts) -> None:
    limit = pen.flow.limits.max_fanout
    if expands.count > limit:
        message = f"the list has {expands.count} items, more than max_fanout {limit}"
        fail_visit(pen, node, Error("max_fanout_exceeded", message), facts)
        return
    pen.emit(
        NodeExpanded(
            at_ms=pen.now,
            cause=facts.cause,
            node=node.id,
            visit=result.visit,
            count=expands.count,
            items=expands.items,
            window=expands.count if node.map is None or node.map.max_parallel is None else node.map.max_parallel,
            token=facts.token,
            admission=result.admission,
        )
    )
    pen.cause = pen.state.seq
    if expands.count == 0:
        done = Done(output=expands.output if expands.output is not None else b"[]", size=2)
        _done(pen, node, result, done, AttemptFacts(token=facts.token, cause=pen.cause))
