"""Rollback: compensate completed visits and items in reverse order, one step at a time.

Each step is a job with its own retry policy and time-out. A step that fails for good does not stop the others; the
RollbackFinished event names it, and the rollback is `partial`, never `done`. So it is with an unknown outcome,
until an operator settles it (`operations.override`): the next rollback includes what happened.
"""

from __future__ import annotations

import msgspec

from tidemill.errors import Problem
from tidemill.kernel import events
from tidemill.kernel.activation import items_merged
from tidemill.kernel.commands import CompensationResult, CompensationWorkerLost, Done
from tidemill.kernel.decide.builder import DecisionBuilder
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX, retry_delay_ms, worker_killer
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import key_of, undo_job
from tidemill.kernel.model import Compensator
from tidemill.kernel.state import CompletedStep, State, key_at


def refuse_rollback(builder: DecisionBuilder) -> Problem | None:
    state = builder.state
    if state.live:
        return Problem(code="run_not_ended", message=f"the run is {state.status}", hint="cancel it first")
    if state.rollback == "running":
        hint = "wait until it ends; `tidemill why` shows its progress"
        return Problem(code="rollback_running", message="the run is being rolled back already", hint=hint)
    if state.rollback == "done":
        hint = "everything that could be undone is undone"
        return Problem(code="rollback_done", message="the run was rolled back already", hint=hint)
    unknown, steps = unknown_steps(builder), _steps(state)
    if state.rollback == "none" and not (steps or unknown):
        hint = "only completed nodes with a compensator can be undone"
        return Problem(code="nothing_to_roll_back", message="there is nothing to undo", hint=hint)
    if state.rollback == "partial" and unknown and not steps:
        named = ", ".join(dict.fromkeys(key.rsplit("/", 2)[0] for key in unknown))
        message = f"the outcome of {named} is unknown, and everything else is undone"
        return Problem(code="outcome_unknown", message=message, hint=HOW_TO_SETTLE)
    return None


HOW_TO_SETTLE = (
    "settle it with `tidemill runs override RUN NODE --value VALUE` if it happened, or `--skip` if it did not, "
    "then roll back again"
)


def _steps(state: State) -> int:
    return sum(undo.status != "done" for undo in items_merged(state.undo).values())


def start_rollback(builder: DecisionBuilder, reason: str) -> None:
    """Start a rollback if there are steps to compensate or unknown outcomes to report, or if a partial one can end."""
    unknown, steps = unknown_steps(builder), _steps(builder.state)
    if not (steps or unknown) and builder.state.rollback == "none":
        return
    builder.emit(events.RollbackStarted(steps=steps, unknown=unknown, reason=reason, **builder.command_fields))
    _next_step(builder)


def unknown_steps(builder: DecisionBuilder) -> tuple[str, ...]:
    """Activations of nodes with a compensator whose outcome is unknown."""
    nodes = builder.flow.by_id
    names = ((key, key.split("/")[0]) for key in builder.state.unknown)
    return tuple(key for key, name in names if name in nodes and nodes[name].compensator is not None)


def _next_step(builder: DecisionBuilder) -> None:
    """Schedule the next step, or finish. Steps without a compensator (a patch removed it) fail at once."""
    state = builder.state
    while state.undo_at < len(state.undo_order):
        undo = state.undo.get(state.undo_order[state.undo_at])
        assert undo is not None, "the order was made from what is to be undone"
        builder.emit(
            events.CompensationScheduled(
                at_ms=builder.now, cause=state.seq, node=undo.node, visit=undo.visit, index=undo.index, of=undo.seq
            )
        )
        if compensator_of(builder, undo) is not None:
            _put_again(builder, undo)
            return
        gone = Error("compensator_missing", f"node {undo.node} has no compensator any more")
        builder.emit(_failure(builder, undo, gone, undo.attempt))
    finish_rollback(builder)


def compensator_of(builder: DecisionBuilder, undo: CompletedStep) -> Compensator | None:
    node = builder.flow.by_id.get(undo.node)
    return None if node is None else node.compensator


def finish_rollback(builder: DecisionBuilder, *, by_hand: bool = False) -> None:
    state = builder.state
    keys = [key for key in state.undo_order if (undo := state.undo.get(key)) is not None and undo.status != "done"]
    left = (*keys, *state.undo_left)
    builder.emit(
        events.RollbackFinished(
            at_ms=builder.now,
            cause=0 if by_hand else state.seq,
            actor=builder.actor if by_hand else None,
            command=builder.command if by_hand else None,
            status="partial" if left else "done",
            left=left,
        )
    )


def stop_rollback(builder: DecisionBuilder) -> None:
    """Stop at an operator's request; steps not yet compensated stay as they are."""
    state = builder.state
    if state.undo_at < len(state.undo_order):
        undo = state.undo.get(state.undo_order[state.undo_at])
        if undo is not None:
            builder.remove_job(key_of("undo", undo.node, undo.visit, undo.index))
    finish_rollback(builder, by_hand=True)


def current(state: State, node: str, visit: int, index: int, token: int) -> CompletedStep | None:
    """The step that a worker with this token compensates, if its result still counts."""
    undo = state.undo.get(key_at(node, visit, index))
    if state.rollback != "running" or undo is None or undo.status != "scheduled" or token <= undo.token:
        return None
    return undo if state.undo_order[state.undo_at] == key_at(node, visit, index) else None


def take_compensation_result(builder: DecisionBuilder, command: CompensationResult) -> None:
    undo = current(builder.state, command.node, command.visit, command.index, command.token)
    if undo is None:
        return
    if isinstance(command.outcome, Done):
        builder.emit(
            events.CompensationCompleted(
                at_ms=builder.now,
                node=undo.node,
                visit=undo.visit,
                index=undo.index,
                attempt=undo.attempt + 1,
                output=command.outcome.output,
                worker=command.worker,
                duration_ms=command.duration_ms,
                token=command.token,
                spent=command.spent,
            )
        )
        _next_step(builder)
        return
    failed, compensator = command.outcome, compensator_of(builder, undo)
    event = msgspec.structs.replace(
        _failure(builder, undo, failed.error, undo.attempt + 1, command.token),
        worker=command.worker,
        duration_ms=command.duration_ms,
        spent=command.spent,
    )
    if compensator is None or not failed.error.retryable or undo.failures + 1 >= compensator.retry.max_attempts:
        builder.emit(event)
        _next_step(builder)
        return
    delay = retry_delay_ms(compensator.retry, undo.failures + 1, failed.retry_after_ms, command.chance)
    builder.emit(msgspec.structs.replace(event, retry_at_ms=builder.now + delay))
    _put_again(builder, undo)


def _failure(
    builder: DecisionBuilder, undo: CompletedStep, error: Error, attempt: int, token: int = 0
) -> events.CompensationFailed:
    """The event of a failed compensation attempt that is not retried."""
    return events.CompensationFailed(
        at_ms=builder.now, node=undo.node, visit=undo.visit, index=undo.index, attempt=attempt, error=error, token=token
    )


def _put_again(builder: DecisionBuilder, undo: CompletedStep) -> None:
    waiting = builder.state.undo.get(key_at(undo.node, undo.visit, undo.index))
    assert waiting is not None
    builder.add_job(undo_job(builder.flow, waiting))


def take_compensation_lost(builder: DecisionBuilder, command: CompensationWorkerLost) -> None:
    """Retry a compensation whose workers were lost, at most LOST_IN_A_ROW_MAX times."""
    for _ in range(min(command.times, LOST_IN_A_ROW_MAX)):
        undo = current(builder.state, command.node, command.visit, command.index, command.token)
        if undo is None:
            return
        killer = worker_killer(undo.lost + 1, "undid it")
        if killer is not None:
            builder.emit(_failure(builder, undo, killer, undo.attempt + 1, command.token))
            _next_step(builder)
            return
        lost = Error("worker_lost", "the worker was lost", retryable=True)
        event = _failure(builder, undo, lost, undo.attempt + 1)
        builder.emit(msgspec.structs.replace(event, retry_at_ms=builder.now, lost=True))
    undo = current(builder.state, command.node, command.visit, command.index, command.token)
    if undo is not None:
        builder.add_job(undo_job(builder.flow, undo))
