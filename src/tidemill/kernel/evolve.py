"""Evolve, replay; folds of run and operator events.

Folding: how each fact changes the state. Pure bookkeeping, no rule is decided here.

`evolve` needs nothing but the state and the event: no workflow, no clock (`at_ms` is only remembered, never
compared). Whatever a rule decided (which edges are taken, which nodes a loop resets) is written in the event,
so a log folds to the same state under any later version of the rules. Facts about runs are folded here, those
about visits, waits and operators' acts in the files of their names.

How facts about operators' acts change the state: visits that begin again, another graph, a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from tidemill.kernel import events as facts
from tidemill.kernel import evolve_nodes
from tidemill.kernel.activation import Activation, closed, items_merged
from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    BlobRef,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    DeadLetterClosed,
    Join,
    NodeOverridden,
    NodeStarted,
    Reopened,
    RollbackFinished,
    RollbackStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunForked,
    RunLabelled,
    RunPatched,
    RunPaused,
    RunRepaired,
    RunResumed,
    RunRetried,
    RunRewound,
)
from tidemill.kernel.evolve_nodes import SIGNAL_ID, hold, over, pass_over_ended, undoable, unhold
from tidemill.kernel.state import State, Visit, edit_at, key_at, notes

# Beginning again


def run_retried(state: State, event: RunRetried) -> None:
    for reopened in event.nodes:
        cell = state.edit(reopened.node)
        if cell.fired:
            # It will be made ready, and counted, once more.
            cell.hop -= 1
            state.visits -= 1
        _reset(cell)
        cell.tokens, cell.fired, cell.edges_taken, cell.tolerated = reopened.tokens, False, None, False
        cell.settled = cell.has_start_token
        cell.why, cell.held, cell.next_held = "", False, ""
        if cell.map is not None:
            _reopen_items(state, cell)
    if state.unknown:
        state.unknown = tuple(key for key in state.unknown if not _is_settled(state, key, event.sure))
    state.status, state.ended_ms, state.reason = "RUNNING", None, ""
    state.error, state.failed_node, state.outputs = None, "", None
    state.rendering, state.counter, state.deadline_ms = event.renders, event.counter, event.deadline_at_ms


def _is_settled(state: State, key: str, sure: tuple[str, ...]) -> bool:
    """Whether an activation whose outcome was unknown is to be made again, or is known not to have happened."""
    node, visit, index = key.rsplit("/", 2)
    cell = state.peek(node)
    act = cell if index == "-1" or cell.map is None else cell.map.get(int(index))
    return cell.visit == int(visit) and act is not None and (act.status == "PENDING" or node in sure)


def _reset(act: Activation) -> None:
    """Forget how an activation ended; its attempts count on, and its last checkpoint stays."""
    act.status, act.running, act.failures, act.lost = "PENDING", False, 0, 0
    act.retry_at_ms = act.wait = act.output = act.error = act.resumed = act.approval = None
    act.recall, act.ended_seq = False, 0


def _reopen_items(state: State, cell: Visit) -> None:
    """Keep the items that completed, and failures that were tolerated; all others are still to be queued."""
    items = cell.map
    assert items is not None
    items.by_index = dict(items_merged(items.by_index))
    state.items -= items.next
    items.next = items.flying = items.done = items.failed = 0
    for index, item in list(items.known()):
        if item.status == "COMPLETED" or (item.status == "FAILED" and item.output is not None):
            items.done += 1
            items.failed += item.status == "FAILED"
        else:
            # Copied, because a state that this one was drawn from may hold the same item.
            own = items.by_index[index] = item.__copy__()  # type: ignore[attr-defined]
            _reset(own)
    pass_over_ended(state, items)


def run_rewound(state: State, event: RunRewound) -> None:
    reset = {reopened.node for reopened in event.nodes}
    _leave_queue(state, reset)
    for source, target in event.undecided:
        cell = state.edit(target)
        cell.edges = {known: taken for known, taken in items_merged(cell.edges).items() if known != source}
        cell.dead -= 1
    for reopened in event.nodes:
        state.cells[reopened.node] = _next_visit(state, reopened, reset, event)
    state.counter, state.rendering = event.counter, False


def _next_visit(state: State, reopened: Reopened, reset: set[str], event: RunRewound) -> Visit:
    """The cell of a node's next visit: edges from nodes that stay as they are stay decided.

    Only the node that the run was rewound to can still hold the token of a start or of a pass.
    """
    old = state.peek(reopened.node)
    own = old.has_start_token and reopened.node == event.node
    state.items -= 0 if old.map is None else old.map.next
    edges = {source: taken for source, taken in items_merged(old.edges).items() if source not in reset}
    taken = sum(edges.values())
    return Visit(
        visit=reopened.visit,
        edges=edges,
        taken=taken,
        dead=len(edges) - taken,
        tokens=reopened.tokens,
        has_start_token=own,
        settled=own,
        hop=old.hop - old.fired if own else max((state.peek(s).hop for s, went in edges.items() if went), default=0),
        passes=0 if reopened.node in event.restarted else old.passes,
        past=old.past,
        reported_before=old.reported,
        discarded_before=old.discarded,
    )


def _leave_queue(state: State, leaving: set[str]) -> None:
    """Take nodes out of the queue of those that a limit holds back."""
    staying: list[str] = []
    name = state.first_held
    while name:
        if name not in leaving:
            staying.append(name)
        name = state.peek(name).next_held
    state.first_held = state.last_held = ""
    for name in staying:
        hold(state, name, state.edit(name))


def node_overridden(state: State, event: NodeOverridden) -> None:
    cell = state.edit(event.node)
    act = edit_at(cell, event.index)
    state.blobs += type(event.output) is BlobRef
    if event.index == NOT_AN_ITEM:
        if cell.held and cell.map is None:
            unhold(state, event.node, cell)
        cell.settled = True
        cell.why = event.reason if event.status == "SKIPPED" else ""
    act.error = None
    if state.unknown:
        settled = key_at(event.node, event.visit, event.index)
        state.unknown = tuple(key for key in state.unknown if key != settled)
    if event.status == "QUEUED":
        _queued_by_hand(state, cell, event)
        return
    act.output = event.output
    state.size += event.size
    if event.undoable:
        undoable(state, event)
    status: Literal["COMPLETED", "SKIPPED"] = "COMPLETED" if event.status == "COMPLETED" else "SKIPPED"
    over(state, cell, act, event, status)
    if cell.map is not None and event.index != NOT_AN_ITEM:
        pass_over_ended(state, cell.map)


def _queued_by_hand(state: State, cell: Visit, event: NodeOverridden) -> None:
    cell.status, cell.wait, cell.resumed, cell.since_ms = "QUEUED", None, event.output, event.at_ms
    if cell.approval is not None:
        cell.approval = closed(cell.approval)
    if not cell.fired:
        cell.fired = True
        cell.hop += 1
        state.visits += 1
    cell.tokens += event.emitted
    state.counter += event.emitted
    state.in_flight += 1


# Another graph, another run


def run_patched(state: State, event: RunPatched) -> None:
    state.digest, state.revision = event.digest, event.revision
    state.counter, state.deadline_ms = event.counter, event.deadline_at_ms
    state.blobs += type(event.patch) is BlobRef
    if event.actor is not None and event.actor not in state.patched_by:
        state.patched_by = (*state.patched_by, event.actor)
    state.rendering = state.rendering and not event.emitted
    for name in event.removed:
        _forget(state, name)
    for join in event.joins:
        _rejoin(state, join)
    for name in event.relisted:
        cell = state.edit(name)
        state.items -= 0 if cell.map is None else cell.map.next
        cell.map = None


def _forget(state: State, name: str) -> None:
    """A node that is removed; should one of its name come back, its visits are counted on."""
    old = state.edit(name)
    if old.held:
        unhold(state, name, old)
    state.items -= 0 if old.map is None else old.map.next
    state.cells[name] = Visit(visit=old.visit + (old.fired or old.attempt > 0))


def _rejoin(state: State, join: Join) -> None:
    cell = state.edit(join.node)
    cell.edges = dict(join.edges)
    cell.taken = sum(cell.edges.values())
    cell.dead = len(cell.edges) - cell.taken
    cell.tokens, cell.has_start_token = join.tokens, join.own
    if not join.own:
        cell.hop = max((state.peek(source).hop for source, went in join.edges if went), default=0) + cell.fired


def run_forked(state: State, event: RunForked) -> None:
    """Leases, letters, commands and what is to be undone belong to the other run; nothing runs here yet."""
    state.forked_from, state.deadline_ms = (event.run, event.at), event.deadline_at_ms
    state.created_ms, state.started_ms = event.at_ms, None
    state.status = "RUNNING" if state.status == "PAUSED" else state.status
    # A signal that was sent to the other run before the fork has been received here, too.
    state.commands = {name: seq for name, seq in items_merged(state.commands).items() if name.startswith(SIGNAL_ID)}
    if event.command is not None:
        notes(state, "commands")[event.command] = state.seq
    state.letters, state.undo, state.listening = {}, {}, dict(items_merged(state.listening))
    state.dead_letters = state.discarded = state.undo_at = 0
    state.rollback, state.undo_order, state.undo_left, state.unknown = "none", (), (), ()
    for name in [*(state.behind or ()), *state.cells]:
        cell = state.edit(name)
        _detach(state, cell, cell)
        cell.reported_before = cell.discarded_before = 0
        if cell.map is not None:
            items = cell.map
            items.by_index = {index: item.__copy__() for index, item in items.known()}  # type: ignore[attr-defined]
            for index in list(items.by_index):
                _detach(state, cell, items.edit(index))
                items.settle(index)


def _detach(state: State, cell: Visit, act: Activation) -> None:
    act.token = act.reported = act.discarded = act.lost = 0
    between = act is cell and cell.map is not None
    if act.status == "RUNNING" and not between:
        act.status, act.running = "QUEUED", False
    if act.wait is not None and act.wait.on in ("child", "human"):
        # A child belongs to the run that asked for it, and people have to know what they decide on: ask again.
        act.status, act.wait, act.approval = "QUEUED", None, None
        state.in_flight += 1


def run_labelled(state: State, event: RunLabelled) -> None:
    state.labels = event.labels


def dead_letter_closed(state: State, event: DeadLetterClosed) -> None:
    key = key_at(event.node, event.visit, event.index)
    letter = state.letters.get(key)
    assert letter is not None, "only what was written is closed"
    notes(state, "letters")[key] = msgspec.structs.replace(letter, open=False)
    state.dead_letters -= 1


# Undoing


def rollback_started(state: State, event: RollbackStarted) -> None:
    open_ = [(undo.seq, key) for key, undo in items_merged(state.undo).items() if undo.status != "done"]
    state.rollback, state.undo_at, state.undo_left = "running", 0, event.unknown
    state.undo_order = tuple(key for _, key in sorted(open_, reverse=True))


def rollback_finished(state: State, event: RollbackFinished) -> None:
    state.rollback = "done" if event.status == "done" else "partial"
    state.undo_left = event.left


def compensation_scheduled(state: State, event: CompensationScheduled) -> None:
    key = key_at(event.node, event.visit, event.index)
    undo = state.undo.get(key)
    assert undo is not None, "only what completed is undone"
    notes(state, "undo")[key] = msgspec.structs.replace(undo, status="scheduled", failures=0, lost=0, retry_at_ms=None)


def compensation_completed(state: State, event: CompensationCompleted) -> None:
    _undone(state, event, status="done", error=None, lost=0)
    state.undo_at += 1


def compensation_failed(state: State, event: CompensationFailed) -> None:
    key = key_at(event.node, event.visit, event.index)
    undo = state.undo.get(key)
    assert undo is not None
    if event.lost:
        _undone(state, event, error=event.error, lost=undo.lost + 1, retry_at_ms=None)
        return
    again = event.retry_at_ms is not None
    _undone(
        state,
        event,
        status="scheduled" if again else "failed",
        error=event.error,
        failures=undo.failures + 1,
        retry_at_ms=event.retry_at_ms,
        lost=0,
    )
    state.undo_at += not again


def _undone(state: State, event: CompensationCompleted | CompensationFailed, **changes: object) -> None:
    key = key_at(event.node, event.visit, event.index)
    undo = state.undo.get(key)
    assert undo is not None
    notes(state, "undo")[key] = msgspec.structs.replace(
        undo, attempt=event.attempt, token=max(undo.token, event.token), **changes
    )


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
        cell.tokens, cell.has_start_token = 1, True


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
    facts.NodeScheduled: evolve_nodes.node_scheduled,
    facts.NodeStarted: evolve_nodes.node_started,
    facts.NodeCheckpointed: evolve_nodes.node_checkpointed,
    facts.NodeExpanded: evolve_nodes.node_expanded,
    facts.NodeWaiting: evolve_nodes.node_waiting,
    facts.NodeCompleted: evolve_nodes.node_completed,
    facts.NodeFailed: evolve_nodes.node_failed,
    facts.NodeSkipped: evolve_nodes.node_skipped,
    facts.NodeCancelled: evolve_nodes.node_cancelled,
    facts.LoopContinued: evolve_nodes.loop_continued,
    facts.ResultDiscarded: evolve_nodes.result_discarded,
    facts.DeadLettered: evolve_nodes.dead_lettered,
    facts.ApprovalRequested: evolve_nodes.approval_changed,
    facts.ApprovalVoted: evolve_nodes.approval_changed,
    facts.ApprovalDelegated: evolve_nodes.approval_changed,
    facts.ApprovalReturned: evolve_nodes.approval_changed,
    facts.ApprovalDecided: evolve_nodes.approval_changed,
    facts.ApprovalEscalated: evolve_nodes.approval_changed,
    facts.ApprovalExpired: evolve_nodes.approval_changed,
    facts.SignalReceived: evolve_nodes.signal_received,
    facts.ChildStarted: evolve_nodes.child_started,
    facts.ChildFinished: evolve_nodes.child_finished,
    facts.RunRetried: run_retried,
    facts.RunRewound: run_rewound,
    facts.RunPatched: run_patched,
    facts.RunForked: run_forked,
    facts.RunLabelled: run_labelled,
    facts.NodeOverridden: node_overridden,
    facts.DeadLetterClosed: dead_letter_closed,
    facts.RollbackStarted: rollback_started,
    facts.RollbackFinished: rollback_finished,
    facts.CompensationScheduled: compensation_scheduled,
    facts.CompensationCompleted: compensation_completed,
    facts.CompensationFailed: compensation_failed,
}
"""One fold per event type; a test compares the keys with the union of all events."""
