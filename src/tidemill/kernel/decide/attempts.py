"""Apply what a worker reports about an attempt: start, checkpoint, result, or its loss.

A result becomes a completion, a retry, a wait, a map expansion or a final failure. The store has checked the lease;
the token is checked again here against the log (`fencing`), and only the current attempt counts. Any other result
leaves a ResultDiscarded, or nothing if it repeats what the log already holds.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tidemill.errors import Problem
from tidemill.kernel import commands
from tidemill.kernel.activation import DISPATCHED, Activation
from tidemill.kernel.decide import visits
from tidemill.kernel.decide.builder import AttemptFacts, DecisionBuilder, budget_left, budget_of, problem
from tidemill.kernel.decide.edges_and_joins import route_problem
from tidemill.kernel.decide.fencing import attempt_status, outcome_allowed, phase_of
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX, worker_killer
from tidemill.kernel.decide.waits import begin_wait
from tidemill.kernel.events import (
    NOT_AN_ITEM,
    Error,
    NodeAppended,
    NodeCheckpointed,
    NodeCompleted,
    NodeExpanded,
    NodeStarted,
    ResultDiscarded,
)
from tidemill.kernel.evolve_nodes import started_and_completed
from tidemill.kernel.jobs import run_job, system_job
from tidemill.kernel.model import Node
from tidemill.kernel.spending import BUDGET_RESERVED, NOTHING_SPENT, PRICES, PRICES_HINT, cut, exhausted, is_set_aside
from tidemill.kernel.state import DISCARDS_MAX, LIVE, Visit, peek_at

WORKER_LOST = "worker_lost"
OUTCOME_NAMES = {
    commands.Done: "Done",
    commands.Failed: "Failed",
    commands.WaitRequested: "Waits",
    commands.SkipRequested: "Skips",
    commands.MapExpanded: "Expands",
}
"""What logs call an outcome: stored in ResultDiscarded, so independent of the names of classes."""


def take_result(builder: DecisionBuilder, result: commands.Result) -> None:
    """Apply the outcome of an attempt if it still counts, else discard it."""
    node, visit = builder.flow.by_id[result.node], builder.state.peek(result.node)
    if node.straight and _is_straight(builder, visit, result):
        _complete_straight(builder, node, visit, result)
        return
    status = attempt_status(builder.state, result.node, result.visit, result.index, result.token)
    if status == "repeated" and result.again:
        return
    if status != "current" or result.late:
        _discard(builder, result, "lease_lost" if status == "current" else status)
        return
    phase = phase_of(node, visit, result.index)
    if not outcome_allowed(phase, result):
        message = f"a {OUTCOME_NAMES[type(result.outcome)]} is not an outcome at this point of the visit"
        visits.fail_for_good(
            builder, node, result.index, Error("outcome_not_allowed", message), AttemptFacts(token=result.token)
        )
        return
    called = result.called and phase == "call"
    if called:
        begin(builder, result)
    cause = builder.state.seq if called else 0
    reads = result.outcome.reads if isinstance(result.outcome, commands.Failed) else ()
    facts = AttemptFacts(
        result.token, result.worker, result.duration_ms, result.waited_ms, cause, reads, result.blocked_ms
    )
    match result.outcome:
        case commands.Done() as done:
            _done(builder, node, result, done, facts)
        case commands.Failed() as failed:
            visits.attempt_failed(builder, node, result.index, failed, result.chance, facts)
        case commands.WaitRequested() as wait:
            begin_wait(builder, node, result.index, wait, facts)
        case commands.SkipRequested() if result.index != NOT_AN_ITEM:
            # The list of a map has an entry for every item, so a skipped item completes with null.
            visits.complete_item(builder, node, result.index, b"null", 4, facts, undoable=False)
        case commands.SkipRequested() as skip:
            visits.skip_visit(builder, node, skip.reason, facts, skip.reads)
        case commands.MapExpanded() as expanded:
            _expand(builder, node, result, expanded, facts)


def _is_straight(builder: DecisionBuilder, visit: Visit, result: commands.Result) -> bool:
    """Whether a result ends a queued visit of a straight node: the case of most results.

    What the rules for other results would find is known then: the attempt counts, its handler was called, and all
    edges of the node are taken.
    """
    return (
        type(result.outcome) is commands.Done
        and visit.status == "QUEUED"
        and visit.visit == result.visit
        and result.token > visit.token
        and visit.resumed is None
        and visit.approval is None
        and visit.reserved is None
        and result.called
        and result.route is None
        and result.index == NOT_AN_ITEM
        and not result.late
        and builder.state.status in LIVE
        and builder.flow.limits.max_bytes is None
    )


def _complete_straight(builder: DecisionBuilder, node: Node, visit: Visit, result: commands.Result) -> None:
    """Record start and end of such an attempt, as the rules for other results do, in one step."""
    state, done, name, taken = builder.state, result.outcome, node.id, node.plain
    assert type(done) is commands.Done
    start, emitted, consumed = state.seq + 1, len(taken), visit.tokens
    for target in taken:
        reached = state.peek(target)
        if reached.settled or reached.edges.get(name):
            consumed += 1
        builder.pending_nodes.append((target, start + 1))
    counter = state.counter + emitted - consumed
    renders = not counter and builder.flow.outputs is not None
    if renders:
        emitted, counter = emitted + 1, 1
        builder.add_job(system_job("outputs"))
    started = _started(builder, result, visit)
    completed = NodeCompleted(
        at_ms=builder.now,
        cause=start,
        node=name,
        visit=result.visit,
        taken=taken,
        emitted=emitted,
        consumed=consumed,
        counter=counter,
        attempt=started.attempt,
        output=done.output,
        worker=result.worker,
        duration_ms=result.duration_ms,
        waited_ms=result.waited_ms,
        size=done.size,
        token=result.token,
    )
    if renders or result.blocked_ms or node.compensator is not None:
        completed = replace(
            completed, renders=renders, undoable=node.compensator is not None, blocked_ms=result.blocked_ms
        )
    builder.events += (started, completed)
    started_and_completed(state, started, completed)


Began = commands.Result | commands.AttemptStarted | commands.Checkpoint | commands.Append
"""What says that an attempt has begun."""


def begin(builder: DecisionBuilder, command: Began) -> None:
    """Record the start of the current attempt, once.

    The commit may come long after the handler was called, so `at_ms` is the worker's time, clamped between the time
    the visit was scheduled and now because clocks differ.
    """
    act = peek_at(builder.state.peek(command.node), command.index)
    if act is not None and not act.running:
        builder.emit(_started(builder, command, act))


def _started(builder: DecisionBuilder, command: Began, act: Activation) -> NodeStarted:
    now, called_ms = builder.now, command.started_ms
    return NodeStarted(
        at_ms=min(now, max(called_ms, act.since_ms)) if called_ms else now,
        node=command.node,
        visit=command.visit,
        index=command.index,
        attempt=act.attempt + 1,
        token=command.token,
        worker=command.worker,
        admission=command.admission,
    )


def take_checkpoint(builder: DecisionBuilder, command: commands.Checkpoint) -> None:
    """Store a handler's progress for the attempt after a crash."""
    begin(builder, command)
    act = peek_at(builder.state.peek(command.node), command.index)
    builder.emit(
        NodeCheckpointed(
            at_ms=builder.now,
            node=command.node,
            visit=command.visit,
            index=command.index,
            attempt=act.attempt if act else 1,
            value=command.value,
        )
    )


def refuse_append(builder: DecisionBuilder, command: commands.Append) -> Problem | None:
    """Why a record is not added: the one before it is missing, or no model is asked now."""
    act = peek_at(builder.state.peek(command.node), command.index)
    assert act is not None, "the attempt counts"
    known, repeated = act.appended, act.token == command.token and act.appended == command.number + 1
    if known != command.number and not repeated:
        message = f"record {command.number + 1} of a visit that has {known}"
        return problem("attempt_stale", message, "stop working on it")
    if repeated or command.reserve is None:
        return None
    if builder.state.status == "PAUSED":
        return problem("run_paused", "a paused run asks no model", "resume the run")
    used_up = exhausted(budget_left(builder), command.reserve)
    if not used_up:
        return None
    if used_up == PRICES:
        return problem("price_unknown", "the run has a budget of money, and the model has no `prices`", PRICES_HINT)
    # A call of this visit that was lost counts as spent.
    spent = builder.state.spent + (act.reserved or NOTHING_SPENT)
    if is_set_aside(budget_of(builder), spent, command.reserve, used_up):
        message = f"what the run has left of its budget is set aside for other calls: no {used_up} until they end"
        return problem(BUDGET_RESERVED, message, "set `max_tokens`: so much is set aside for each answer")
    hint = "raise `limits.budget` of the workflow by a patch, and retry the run"
    return problem("budget_exceeded", f"the run has used up its budget: no {used_up} left", hint)


def take_append(builder: DecisionBuilder, command: commands.Append) -> None:
    """Add a record, and settle or set aside what a call of a model spends. A repetition changes nothing."""
    begin(builder, command)
    act = peek_at(builder.state.peek(command.node), command.index)
    assert act is not None, "the attempt counts"
    if act.appended > command.number:
        return
    builder.emit(
        NodeAppended(
            at_ms=builder.now,
            node=command.node,
            visit=command.visit,
            index=command.index,
            attempt=act.attempt,
            value=command.value,
            token=command.token,
            reserved=None if command.reserve is None else cut(command.reserve, budget_left(builder)),
            spent=command.spent,
        )
    )


def take_lost(builder: DecisionBuilder, lost: commands.WorkerLost) -> None:
    """End the attempts whose leases on this job expired, and queue the next one."""
    node = builder.flow.by_id[lost.node]
    if attempt_status(builder.state, lost.node, lost.visit, lost.index, lost.token) != "current":
        return
    for _ in range(min(lost.times, LOST_IN_A_ROW_MAX)):
        act = peek_at(builder.state.peek(node.id), lost.index)
        if act is None or not builder.state.live or act.status not in DISPATCHED:
            return
        _one_lost(builder, node, lost.index, act, AttemptFacts(token=lost.token))
    act = peek_at(builder.state.peek(node.id), lost.index)
    if builder.state.live and act is not None and act.status in DISPATCHED:
        builder.add_job(run_job(node, lost.visit, lost.index))


def _one_lost(builder: DecisionBuilder, node: Node, index: int, act: Activation, facts: AttemptFacts) -> None:
    # NodeStarted is committed before an at-most-once handler is called: without that event it was never called.
    once = node.delivery == "at_most_once"
    called = phase_of(node, builder.state.peek(node.id), index) == "call" and (act.running or not once)
    attempt = act.attempt + 1 if called and not act.running else act.attempt
    if called and node.compensator is not None:
        facts = msgspec.structs.replace(facts, unknown=True)
    if once and called:
        message = "the worker was lost after the attempt had started; its outcome is unknown"
        visits.fail_for_good(builder, node, index, Error("unknown_outcome", message), facts)
    elif (killer := worker_killer(act.lost + 1, "ran it")) is not None:
        visits.fail_for_good(builder, node, index, killer, facts, attempt=attempt)
    else:
        error = Error(WORKER_LOST, "the worker was lost", retryable=True)
        visits.try_again(builder, node, index, attempt, error, builder.now, facts, lost=True)


def _discard(builder: DecisionBuilder, result: commands.Result, reason: str) -> None:
    """Record a result that does not count: at most DISCARDS_MAX per visit, none for visits before the previous."""
    visit = builder.state.peek(result.node)
    recorded = visit.discarded if result.visit == visit.visit else visit.discarded_before
    if recorded >= DISCARDS_MAX or result.visit < visit.visit - 1:
        return
    act = peek_at(visit, result.index)
    builder.emit(
        ResultDiscarded(
            at_ms=builder.now,
            node=result.node,
            visit=result.visit,
            index=result.index,
            attempt=act.attempt if act is not None else 0,
            token=result.token,
            outcome=OUTCOME_NAMES[type(result.outcome)],
            reason=reason,
            worker=result.worker,
        )
    )


def _done(
    builder: DecisionBuilder, node: Node, result: commands.Result, done: commands.Done, facts: AttemptFacts
) -> None:
    counts = result.index != NOT_AN_ITEM or node.map is None
    if counts and (error := visits.bytes_exceeded(builder, done.size)) is not None:
        visits.fail_for_good(builder, node, result.index, error, facts, fatal=True)
    elif result.index != NOT_AN_ITEM:
        visits.complete_item(builder, node, result.index, done.output, done.size, facts)
    elif (wrong := route_problem(node, result.route)) is not None:
        visits.fail_visit(builder, node, Error("route_not_allowed", wrong), facts)
    else:
        # The size of a map's list is not counted again: its items were counted one by one.
        size = 0 if node.map is not None else done.size
        visits.complete_visit(builder, node, done.output, result.route, facts, size, result.delay_ms)


def _expand(
    builder: DecisionBuilder, node: Node, result: commands.Result, expanded: commands.MapExpanded, facts: AttemptFacts
) -> None:
    limit = builder.flow.limits.max_fanout
    if expanded.count > limit:
        message = f"the list has {expanded.count} items, more than max_fanout {limit}"
        visits.fail_visit(builder, node, Error("max_fanout_exceeded", message), facts)
        return
    builder.emit(
        NodeExpanded(
            at_ms=builder.now,
            cause=facts.cause,
            node=node.id,
            visit=result.visit,
            count=expanded.count,
            items=expanded.items,
            window=expanded.count if node.map is None or node.map.max_parallel is None else node.map.max_parallel,
            token=facts.token,
            admission=result.admission,
        )
    )
    builder.cause = builder.state.seq
    if expanded.count == 0:
        done = commands.Done(output=expanded.output if expanded.output is not None else b"[]", size=2)
        _done(builder, node, result, done, AttemptFacts(token=facts.token, cause=builder.cause))
