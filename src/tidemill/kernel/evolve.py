"""Folding: how each fact changes the state. Pure bookkeeping, no rule is decided here.

`evolve` needs nothing but the state and the event: no workflow, no clock (`at_ms` is only remembered, never
compared). Whatever a rule decided (which edges are taken, which nodes a loop resets) is written in the event,
so a log folds to the same state under any later version of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    BlobRef,
    DeadLettered,
    Ending,
    LoopContinued,
    NodeCancelled,
    NodeCheckpointed,
    NodeCompleted,
    NodeExpanded,
    NodeFailed,
    NodeScheduled,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    ResultDiscarded,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunPaused,
    RunRepaired,
    RunResumed,
)
from tidemill.kernel.state import (
    DISPATCHED,
    Activation,
    Cell,
    MapState,
    NodeStatus,
    Past,
    State,
    Wait,
    edit_at,
)


def evolve(state: State, event: AnyEvent) -> State:
    """Apply one fact to a state that the caller owns, and return it."""
    state.seq += 1
    state.last_ms = event.at_ms
    command = event.command
    if command is not None and command not in state.commands:
        # Commands with an id are few, and a draft shares the dict with the state it was drawn from.
        state.commands = {**state.commands, command: state.seq}
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
    state.created_ms, state.deadline_ms = event.at_ms, event.deadline_at_ms
    state.counter = event.counter
    state.blobs += type(event.inputs) is BlobRef
    for node in event.entries:
        state.edit(node).tokens = 1


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
    state.counter -= event.consumed
    state.first_held = state.last_held = ""


def _node_scheduled(state: State, event: NodeScheduled) -> None:
    cell = state.edit(event.node)
    if event.index != NOT_AN_ITEM:
        _items_queued(state, cell, event)
        return
    if not cell.fired:
        cell.fired = cell.settled = True
        cell.hop = event.hop
        state.visits += 1
    cell.since_ms = event.at_ms
    if event.resumed is not None:
        cell.resumed, cell.wait = event.resumed, None
        state.blobs += type(event.resumed) is BlobRef
    if event.held:
        cell.status = "PENDING"
        _hold(state, event.node, cell)
        return
    if cell.held:
        _unhold(state, event.node, cell)
    cell.status = "QUEUED"
    state.in_flight += 1


def _items_queued(state: State, cell: Cell, event: NodeScheduled) -> None:
    items = cell.map
    assert items is not None, "items are queued after NodeExpanded"
    state.in_flight += event.until - items.next
    state.items += event.until - items.next
    items.next = event.until
    if not items.room:
        _unhold(state, event.node, cell)


def _hold(state: State, node: str, cell: Cell) -> None:
    """Put a node at the end of the queue of those that a limit holds back."""
    cell.held, cell.behind = True, ""
    if state.last_held:
        state.edit(state.last_held).behind = node
    else:
        state.first_held = node
    state.last_held = node


def _unhold(state: State, node: str, cell: Cell) -> None:
    """Take a node out of that queue, of which it is the head unless a map fails that still waits for slots."""
    before = ""
    walk = state.first_held
    while walk != node:
        before, walk = walk, state.peek(walk).behind
    if before:
        state.edit(before).behind = cell.behind
    else:
        state.first_held = cell.behind
    if state.last_held == node:
        state.last_held = before
    cell.held, cell.behind = False, ""


def _node_started(state: State, event: NodeStarted) -> None:
    if state.started_ms is None:
        state.started_ms = event.at_ms
    cell = state.edit(event.node)
    act = edit_at(cell, event.index)
    act.status, act.running = "RUNNING", True
    act.attempt, act.token, act.since_ms = event.attempt, event.token, event.at_ms
    act.retry_at_ms = None
    if cell.map is not None and event.attempt > cell.map.attempts:
        cell.map.attempts = cell.attempt = event.attempt


def _node_checkpointed(state: State, event: NodeCheckpointed) -> None:
    edit_at(state.edit(event.node), event.index).checkpoint = event.value
    state.blobs += type(event.value) is BlobRef


def _node_expanded(state: State, event: NodeExpanded) -> None:
    cell = state.edit(event.node)
    cell.map = MapState(count=event.count, items=event.items, window=event.window)
    cell.token = cell.reported = event.token
    cell.lost = 0
    state.blobs += type(event.items) is BlobRef
    state.in_flight -= 1
    cell.status, cell.since_ms = "RUNNING", event.at_ms
    if event.count:
        _hold(state, event.node, cell)


def _node_waiting(state: State, event: NodeWaiting) -> None:
    cell = state.edit(event.node)
    act = edit_at(cell, event.index)
    if _counted(cell, act):
        state.in_flight -= 1
    act.status, act.running, act.since_ms = "WAITING", False, event.at_ms
    act.token = act.reported = event.token
    act.duration_ms += event.duration_ms
    act.lost = 0
    act.wait = Wait(
        on=event.on,
        name=event.name,
        since_ms=event.at_ms,
        until_ms=event.until_ms,
        expires_ms=event.expires_ms,
        output=event.output,
        route=event.route,
    )


def _node_completed(state: State, event: NodeCompleted) -> None:
    cell = state.edit(event.node)
    act = edit_at(cell, event.index)
    state.size += event.size
    state.blobs += type(event.output) is BlobRef
    act.output, act.error, act.lost = event.output, None, 0
    act.duration_ms += event.duration_ms
    _note_token(act, event.token)
    _over(state, cell, act, event, "COMPLETED")


def _note_token(act: Activation, token: int) -> None:
    """Remember the fence under which an end was reported; ends that nobody reported have none."""
    if token:
        act.token = act.reported = token


def _node_failed(state: State, event: NodeFailed) -> None:
    cell = state.edit(event.node)
    act = edit_at(cell, event.index)
    act.error = event.error
    act.attempt = event.attempt
    if cell.map is not None and event.attempt > cell.map.attempts:
        cell.map.attempts = cell.attempt = event.attempt
    _note_token(act, event.token)
    act.duration_ms += event.duration_ms
    if event.lost:
        act.lost += 1
    else:
        act.lost, act.failures = 0, act.failures + 1
    if event.retry_at_ms is not None:
        if act.status not in DISPATCHED:
            state.in_flight += 1
        act.status, act.running, act.wait = "QUEUED", False, None
        # After a lost worker there is no back-off: the job is simply queued again.
        act.retry_at_ms, act.since_ms = None if event.lost else event.retry_at_ms, event.at_ms
        return
    act.output = event.output
    if event.tolerated:
        state.tolerated += 1
        if act is cell:
            cell.tolerated = True
    _over(state, cell, act, event, "FAILED")


def _node_skipped(state: State, event: NodeSkipped) -> None:
    cell = state.edit(event.node)
    cell.settled, cell.why = True, event.reason
    _note_token(cell, event.token)
    _over(state, cell, cell, event, "SKIPPED")


def _node_cancelled(state: State, event: NodeCancelled) -> None:
    cell = state.edit(event.node)
    act = edit_at(cell, event.index)
    if act is cell:
        cell.settled, cell.why = True, event.reason
    _over(state, cell, act, event, "CANCELLED")


def _counted(cell: Cell, act: Activation) -> bool:
    """Whether an activation owns a job: a map between expansion and assembly leaves that to its items."""
    return act.status in DISPATCHED and not (act is cell and cell.map is not None and act.status == "RUNNING")


def _over(state: State, cell: Cell, act: Activation, event: Ending, status: NodeStatus) -> None:
    """End a visit or an item: settle its edges and tokens, and free what it held."""
    if _counted(cell, act):
        state.in_flight -= 1
    act.status, act.running, act.wait, act.retry_at_ms = status, False, None, None
    act.since_ms, act.ended_seq = event.at_ms, state.seq
    if act is not cell:
        items = cell.map
        assert items is not None, "only a map has items"
        items.done += 1
        items.failed += status == "FAILED"
        if items.room and not cell.held:
            _hold(state, event.node, cell)
        return
    if cell.held and cell.map is not None:
        _unhold(state, event.node, cell)
    cell.held = False
    cell.tokens, cell.went, cell.resumed = 0, event.taken, None
    state.counter += event.emitted - event.consumed
    node, hop = event.node, cell.hop
    for target in event.taken:
        _arrive(state, node, target, True, hop)
    for target in event.dead:
        _arrive(state, node, target, False, hop)
    for source, target in event.dead_escapes:
        _arrive(state, source, target, False, 0)
    state.rendering = state.rendering or event.renders


def _arrive(state: State, source: str, target: str, taken: bool, hop: int) -> None:
    """Decide an inbound edge. Deciding it again changes nothing, and a settled join absorbs its token."""
    cell = state.edit(target)
    if cell.edges.get(source) is not None:
        return
    cell.edges[source] = taken
    if not taken:
        cell.dead += 1
        return
    cell.taken += 1
    if not cell.settled:
        cell.tokens += 1
        if hop > cell.hop:
            cell.hop = hop


def _loop_continued(state: State, event: LoopContinued) -> None:
    """Give every node of the body its next visit; what had ended is remembered for those who look back."""
    for node in event.body:
        old = state.edit(node) if node == event.entry else state.peek(node)
        state.items -= 0 if old.map is None else old.map.next
        past = dict(old.past) if old.past else {}
        past[event.node] = Past(old.visit, old.status, old.output)
        fresh = Cell(visit=old.visit + 1, past=past, reported_before=old.reported, discarded_before=old.discarded)
        if node == event.entry:
            # The join of the entry belongs to the loop around this one: it stays as it was, settled.
            fresh.edges, fresh.taken, fresh.dead, fresh.settled = old.edges, old.taken, old.dead, True
            fresh.tokens, fresh.hop = 1, event.hop
        if node == event.node:
            fresh.passes = event.iteration
        state.cells[node] = fresh


def _result_discarded(state: State, event: ResultDiscarded) -> None:
    state.discarded += 1
    cell = state.edit(event.node)
    if event.visit == cell.visit:
        cell.discarded += 1
    else:
        cell.discarded_before += 1


def _dead_lettered(state: State, event: DeadLettered) -> None:
    state.dead_letters += 1


_FOLDS: dict[type, Callable[[State, Any], None]] = {
    RunCreated: _run_created,
    RunPaused: _run_paused,
    RunResumed: _run_resumed,
    RunRepaired: _run_repaired,
    RunCompleted: _run_completed,
    RunFailed: _run_failed,
    RunCancelled: _run_cancelled,
    NodeScheduled: _node_scheduled,
    NodeStarted: _node_started,
    NodeCheckpointed: _node_checkpointed,
    NodeExpanded: _node_expanded,
    NodeWaiting: _node_waiting,
    NodeCompleted: _node_completed,
    NodeFailed: _node_failed,
    NodeSkipped: _node_skipped,
    NodeCancelled: _node_cancelled,
    LoopContinued: _loop_continued,
    ResultDiscarded: _result_discarded,
    DeadLettered: _dead_lettered,
}
"""One fold per event type; a test compares the keys with the union of all events."""
