"""Folding: how each fact changes the state. Pure bookkeeping, no rule is decided here.

`evolve` needs nothing but the state and the event: no workflow, no clock (`at_ms` is only remembered, never
compared). Whatever a rule decided (which edges are taken, which nodes a loop resets) is written in the event,
so a log folds to the same state under any later version of the rules. Facts about runs are folded here, those
about visits, waits and operators' acts in the files of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidemill.kernel import events as facts
from tidemill.kernel import fold_acts, fold_visits, fold_waits
from tidemill.kernel.events import (
    AnyEvent,
    BlobRef,
    NodeStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunPaused,
    RunRepaired,
    RunResumed,
)
from tidemill.kernel.state import State, notes


def evolve(state: State, event: AnyEvent) -> State:
    """Apply one fact to a state that the caller owns, and return it."""
    state.seq += 1
    if type(event) is not NodeStarted:
        # It carries the moment of the call, and may be written long after.
        state.last_ms = event.at_ms
    command = event.command
    if command is not None and state.commands.get(command) is None:
        notes(state, "commands")[command] = state.seq
    _FOLDS[type(event)](state, event)
    return state


def replay(events: Iterable[AnyEvent], until: int | None = None) -> State:
    """The state after the first `until` events (all by default): time travel calls nothing but `evolve`."""
    state = State()
    for event in events:
        if until is not None and state.seq >= until:
            break
        evolve(state, event)
    return state


def _run_created(state: State, event: RunCreated) -> None:
    state.status = "RUNNING"
    state.workflow, state.version, state.digest = event.workflow, event.version, event.digest
    state.inputs, state.labels, state.submitted_by = event.inputs, event.labels, event.submitted_by
    state.correlation_id, state.trace, state.tag_used = event.correlation_id, event.trace, event.tag_used
    state.parent, state.forked_from = event.parent, event.forked_from
    state.close, state.depth = event.close, event.depth
    state.created_ms, state.deadline_ms = event.at_ms, event.deadline_at_ms
    state.counter = event.counter
    state.blobs += type(event.inputs) is BlobRef
    for node in event.entries:
        cell = state.edit(node)
        cell.tokens, cell.own = 1, True


def _run_paused(state: State, event: RunPaused) -> None:
    state.status, state.reason = "PAUSED", event.reason


def _run_resumed(state: State, event: RunResumed) -> None:
    state.status, state.reason = "RUNNING", ""


def _run_repaired(state: State, event: RunRepaired) -> None:
    state.repairs += 1


def _run_completed(state: State, event: RunCompleted) -> None:
    state.outputs = event.outputs
    _run_ended(state, event, "COMPLETED")


def _run_failed(state: State, event: RunFailed) -> None:
    state.error, state.failed_node = event.error, event.node
    _run_ended(state, event, "FAILED")


def _run_cancelled(state: State, event: RunCancelled) -> None:
    state.reason = event.reason
    _run_ended(state, event, "CANCELLED")


def _run_ended(state: State, event: RunCompleted | RunFailed | RunCancelled, status: Any) -> None:
    state.status, state.ended_ms, state.rendering = status, event.at_ms, False
    state.ended_seq = state.seq
    state.counter -= event.consumed
    state.first_held = state.last_held = ""


_FOLDS: dict[type, Callable[[State, Any], None]] = {
    RunCreated: _run_created,
    RunPaused: _run_paused,
    RunResumed: _run_resumed,
    RunRepaired: _run_repaired,
    RunCompleted: _run_completed,
    RunFailed: _run_failed,
    RunCancelled: _run_cancelled,
    facts.NodeScheduled: fold_visits.node_scheduled,
    facts.NodeStarted: fold_visits.node_started,
    facts.NodeCheckpointed: fold_visits.node_checkpointed,
    facts.NodeExpanded: fold_visits.node_expanded,
    facts.NodeWaiting: fold_visits.node_waiting,
    facts.NodeCompleted: fold_visits.node_completed,
    facts.NodeFailed: fold_visits.node_failed,
    facts.NodeSkipped: fold_visits.node_skipped,
    facts.NodeCancelled: fold_visits.node_cancelled,
    facts.LoopContinued: fold_visits.loop_continued,
    facts.ResultDiscarded: fold_visits.result_discarded,
    facts.DeadLettered: fold_visits.dead_lettered,
    facts.ApprovalRequested: fold_waits.approval_changed,
    facts.ApprovalVoted: fold_waits.approval_changed,
    facts.ApprovalDelegated: fold_waits.approval_changed,
    facts.ApprovalReturned: fold_waits.approval_changed,
    facts.ApprovalDecided: fold_waits.approval_changed,
    facts.ApprovalEscalated: fold_waits.approval_changed,
    facts.ApprovalExpired: fold_waits.approval_changed,
    facts.SignalReceived: fold_waits.signal_received,
    facts.ChildStarted: fold_waits.child_started,
    facts.ChildFinished: fold_waits.child_finished,
    facts.RunRetried: fold_acts.run_retried,
    facts.RunRewound: fold_acts.run_rewound,
    facts.RunPatched: fold_acts.run_patched,
    facts.RunForked: fold_acts.run_forked,
    facts.RunLabelled: fold_acts.run_labelled,
    facts.NodeOverridden: fold_acts.node_overridden,
    facts.DeadLetterClosed: fold_acts.dead_letter_closed,
    facts.RollbackStarted: fold_acts.rollback_started,
    facts.RollbackFinished: fold_acts.rollback_finished,
    facts.CompensationScheduled: fold_acts.compensation_scheduled,
    facts.CompensationCompleted: fold_acts.compensation_completed,
    facts.CompensationFailed: fold_acts.compensation_failed,
}
"""One fold per event type; a test compares the keys with the union of all events."""
