"""Start and end waits: timers, signals and child runs; approvals are in `approvals`.

A waiting activation holds no worker. However its wait ends, its timers are removed in the same commit. A signal goes
to the node that has waited longest, or is buffered; a child run's outputs or failure become those of the visit.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidemill.errors import Problem
from tidemill.kernel import events
from tidemill.kernel.activation import Activation
from tidemill.kernel.commands import ChildBegan, ChildEnded, Failed, Request, Signal, WaitRequested
from tidemill.kernel.decide import visits
from tidemill.kernel.decide.builder import AttemptFacts, DecisionBuilder, budget_left
from tidemill.kernel.decide.completion import ABANDON, drop_wait
from tidemill.kernel.events import NOT_AN_ITEM, Error, Payload
from tidemill.kernel.evolve_nodes import listens
from tidemill.kernel.jobs import close_job, wait_jobs
from tidemill.kernel.model import Node
from tidemill.kernel.queries import message_of
from tidemill.kernel.spending import NO_BUDGET, Budget, share_of
from tidemill.kernel.state import peek_at

SIGNALS_MAX = 1_000
"""Signals that a run buffers for nodes that do not wait for them yet."""

AGAIN = "again:"
"""Prefix under which a child run records later attempts of its parent in `State.commands`."""
COMPLETED = "COMPLETED"
CAUSES_MAX = 8
CHILD_FAILED = "child_failed"
FAILURE = "$child_failed"
"""The key of a child's failure as the result of a wait."""
NULL = b"null"


def begin_wait(builder: DecisionBuilder, node: Node, index: int, request: WaitRequested, facts: AttemptFacts) -> None:
    """Start a wait that the handler requested; a buffered signal ends it in the same decision."""
    visit = builder.state.peek(node.id)
    act = peek_at(visit, index)
    assert act is not None, "the attempt's status was checked"
    signals = builder.state.signals if request.on == "signal" else ()
    kept = next((signal for signal in signals if signal.name == request.name), None)
    # An approval may have its own time-out, otherwise the attempt's remaining time counts.
    timeout = None if node.timeout_ms is None else max(0, node.timeout_ms - facts.duration_ms)
    if request.approval is not None and request.approval.timeout_ms is not None:
        timeout = request.approval.timeout_ms
    builder.emit(
        events.NodeWaiting(
            at_ms=builder.now,
            cause=facts.cause,
            node=node.id,
            visit=visit.visit,
            index=index,
            attempt=act.attempt,
            on=request.on,
            name=request.name,
            until_ms=request.until_ms if request.for_ms is None else builder.now + request.for_ms,
            expires_ms=None if timeout is None else builder.now + timeout,
            worker=facts.worker,
            duration_ms=facts.duration_ms,
            token=facts.token,
            recall=request.recall,
            ask=request.ask,
            close=request.close,
            returns=request.returns,
            signal="" if kept is None else kept.signal,
            budget=_child_budget(builder, request),
        )
    )
    builder.cause = builder.state.seq
    if kept is not None:
        wait_over(builder, node, index, kept.payload)
        return
    if request.approval is not None:
        _request(builder, node, index, request.approval)
    waiting = peek_at(builder.state.peek(node.id), index)
    assert waiting is not None
    for job in wait_jobs(node.id, visit.visit, index, waiting):
        builder.add_job(job)


def _child_budget(builder: DecisionBuilder, request: WaitRequested) -> Budget | None:
    """What a child run gets of the budget of this one: what was asked for, or all that is left; None means no limit."""
    if request.on != "child":
        return None
    share = share_of(request.budget, budget_left(builder))
    return None if share == NO_BUDGET else share


def _request(builder: DecisionBuilder, node: Node, index: int, asked: Request) -> None:
    act = peek_at(builder.state.peek(node.id), index)
    expires = act.wait.expires_ms if act is not None and act.wait is not None else None
    # An empty list of approvers means any user, so an escalation without approvers must fail instead.
    on_timeout = "fail" if asked.on_timeout == "escalate" and not asked.escalate_to else asked.on_timeout
    timeout = asked.timeout_ms if asked.timeout_ms is not None else node.timeout_ms
    decided = {"timeout_ms": timeout, "expires_ms": expires, "on_timeout": on_timeout}
    fields = msgspec.structs.asdict(asked) | decided | builder.node_fields(node.id, index)
    builder.emit(events.ApprovalRequested(requester=builder.state.submitted_by, **fields))


def leave_wait(builder: DecisionBuilder, node: Node, index: int, *, close: bool = False) -> None:
    """Remove the timers of a wait that ends now. `close`: also ask its child run to close."""
    visit = builder.state.peek(node.id)
    act = peek_at(visit, index)
    if act is not None and act.wait is not None:
        drop_wait(builder, node.id, visit.visit, index, act, close=close)


def wait_over(builder: DecisionBuilder, node: Node, index: int, output: Payload) -> None:
    """End a wait with its result: complete the activation, or queue it if a worker is needed first."""
    act = peek_at(builder.state.peek(node.id), index)
    leave_wait(builder, node, index)
    facts, size = AttemptFacts(cause=builder.cause), visits.payload_size(output)
    if act is not None and act.wait is not None and act.wait.recall:
        visits.resume(builder, node, index, output, recall=True)
    elif (error := visits.bytes_exceeded(builder, size)) is not None:
        visits.fail_for_good(builder, node, index, error, facts, fatal=True)
    elif index != NOT_AN_ITEM:
        visits.complete_item(builder, node, index, output, size, facts)
    elif node.routed:
        visits.resume(builder, node, index, output, recall=False)
    else:
        visits.complete_visit(builder, node, output, None, facts, size)


def wait_expired(builder: DecisionBuilder, node: Node, index: int, chance: float = 0.5) -> None:
    """Fail the attempt with a retryable time-out."""
    leave_wait(builder, node, index, close=True)
    error = Error("timeout", f"the wait did not end within {node.timeout_ms} ms", retryable=True)
    visits.attempt_failed(
        builder, node, index, Failed(error=error, unknown_outcome=True), chance, AttemptFacts(cause=builder.cause)
    )


def refuse_signal(builder: DecisionBuilder, signal: Signal) -> Problem | None:
    """Why a signal is refused. Its name must be in the document, or a handler must have waited for it."""
    state = builder.state
    if not state.live:
        return Problem(code="run_ended", message=f"the run is {state.status}", hint="start a new run, or fork this one")
    known = builder.flow.signals
    if known is not None and signal.name not in known and state.listening.get(signal.name) is None:
        hint = f"signals: {', '.join(sorted(known)) or 'none'}"
        return Problem(code="signal_unknown", message=f"no node is waiting for a signal {signal.name}", hint=hint)
    if len(state.signals) >= SIGNALS_MAX and _taker(builder, signal.name) is None:
        message = f"the run keeps {SIGNALS_MAX} signals that no node has taken"
        return Problem(code="signals_full", message=message, hint="wait until nodes have taken some")
    return None


def take_signal(builder: DecisionBuilder, signal: Signal) -> None:
    taker = _taker(builder, signal.name)
    node, visit, index = taker or ("", 0, NOT_AN_ITEM)
    builder.emit(
        events.SignalReceived(
            **builder.command_fields,
            name=signal.name,
            signal=signal.signal,
            payload=signal.payload,
            node=node,
            visit=visit,
            index=index,
        )
    )
    if taker is not None:
        builder.cause = builder.state.seq
        wait_over(builder, builder.flow.by_id[node], index, signal.payload)


def _taker(builder: DecisionBuilder, name: str) -> tuple[str, int, int] | None:
    """The activation that has waited longest for a signal; skips those that no longer wait."""
    waiting: tuple[tuple[str, int, int], ...] = builder.state.listening.get(name, ())
    return next((at for at in waiting if listens(builder.state, name, at)), None)


def _waiting_for(builder: DecisionBuilder, message: ChildBegan | ChildEnded) -> Activation | None:
    visit = builder.state.peek(message.node)
    act = peek_at(visit, message.index) if visit.visit == message.visit else None
    if not builder.state.live or act is None or act.wait is None:
        return None
    if isinstance(message, ChildEnded) and message.status != COMPLETED and 0 < message.attempt < act.attempt:
        # The child failed for an earlier attempt; the present attempt has requested it again.
        return None
    return act if act.wait.on == "child" and act.wait.name == message.child else None


def served(commands: Mapping[str, int]) -> int:
    """The latest attempt of the parent that requested this child run."""
    return max((int(name.removeprefix(AGAIN)) for name in commands if name.startswith(AGAIN)), default=1)


def child_began(builder: DecisionBuilder, message: ChildBegan) -> None:
    """Record that the child run exists, or close it if no activation waits for it any more."""
    act = _waiting_for(builder, message)
    if act is None:
        if message.close != ABANDON:
            builder.add_job(close_job(message.node, message.visit, message.index, message.attempt, message.child))
    else:
        _record_start(builder, act, message)


def _record_start(builder: DecisionBuilder, act: Activation, message: ChildBegan | ChildEnded) -> None:
    """Record once that the child run exists; its end may be reported before its start."""
    if act.wait is None or act.wait.started or not message.digest:
        return
    builder.emit(
        events.ChildStarted(
            at_ms=builder.now,
            node=message.node,
            visit=message.visit,
            index=message.index,
            child=message.child,
            workflow=message.workflow,
            version=message.version,
            digest=message.digest,
        )
    )


def child_ended(builder: DecisionBuilder, message: ChildEnded) -> None:
    act = _waiting_for(builder, message)
    if act is None:
        return
    node = builder.flow.by_id[message.node]
    _record_start(builder, act, message)
    builder.emit(
        events.ChildFinished(
            at_ms=builder.now,
            node=message.node,
            visit=message.visit,
            index=message.index,
            child=message.child,
            status=message.status,
            error=message.error,
            spent=message.spent,
        )
    )
    builder.cause = builder.state.seq
    if message.status == COMPLETED:
        wait_over(builder, node, message.index, NULL if message.output is None else message.output)
        return
    error = _child_error(message)
    if act.wait is not None and act.wait.recall and act.wait.returns:
        wait_over(builder, node, message.index, _failure(message, error))
        return
    leave_wait(builder, node, message.index)
    visits.fail_for_good(builder, node, message.index, error, AttemptFacts(cause=builder.cause))


def _failure(message: ChildEnded, error: Error) -> bytes:
    """The result of a wait for a child that failed, where the handler asked for it."""
    words = {"code": error.causes[0] if error.causes else error.code, "message": error.message, "hint": error.hint}
    return msgspec.json.encode({FAILURE: {"child": message.child, "status": message.status, **words}})


def _child_error(message: ChildEnded) -> Error:
    error = message.error
    if error is None:
        return Error(CHILD_FAILED, f"child {message.child} is {message.status}")
    # A child that failed because of its own child already names it: the message stays short at any depth.
    causes = tuple(dict.fromkeys((error.code, *error.causes)))[:CAUSES_MAX]
    text = error.message if error.code == CHILD_FAILED else f"child {message.child}: {message_of(error)}"
    return Error(CHILD_FAILED, text, error.type, hint=error.hint, causes=causes, traceback=error.traceback)
