"""Fold events into the state: `evolve`, `replay`, and the folds of run and operator events.

A fold needs only the state and the event: no workflow, no clock, no rule. Every decision (edges taken, visits reset)
is recorded in the event, so a log gives the same state under any later version of the rules. Folds of node,
approval, signal and child events are in `evolve_nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from tidemill.kernel import events, evolve_nodes
from tidemill.kernel.activation import Activation, closed, items_merged
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent, BlobRef, NodeStarted
from tidemill.kernel.evolve_nodes import SIGNAL_ID, hold, lapse_all, over, pass_over_ended, undoable, unhold
from tidemill.kernel.spending import NOTHING_SPENT
from tidemill.kernel.state import State, Visit, edit_at, key_at, notes


def evolve(state: State, event: AnyEvent) -> State:
    """Apply one event to a state that the caller owns, and return that state."""
    state.seq += 1
    if type(event) is not NodeStarted:
        # NodeStarted carries the time of the handler call, which may be long before the commit.
        state.last_ms = event.at_ms
    command = event.command
    if command is not None and state.commands.get(command) is None:
        notes(state, "commands")[command] = state.seq
    _FOLDS[type(event)](state, event)
    return state


def replay(events: Iterable[AnyEvent], until: int | None = None) -> State:
    state = State()
    for event in events:
        if until is not None and state.seq >= until:
            break
        evolve(state, event)
    return state


def _run_created(state: State, event: events.RunCreated) -> None:
    state.status = "RUNNING"
    state.workflow, state.version, state.digest = event.workflow, event.version, event.digest
    state.inputs, state.labels, state.submitted_by = event.inputs, event.labels, event.submitted_by
    state.correlation_id, state.trace, state.tag_used = event.correlation_id, event.trace, event.tag_used
    state.parent, state.forked_from = event.parent, event.forked_from
    state.close, state.depth, state.root, state.budget = event.close, event.depth, event.root, event.budget
    state.created_ms, state.deadline_ms = event.at_ms, event.deadline_at_ms
    state.counter = state.emitted = event.counter
    state.blobs += type(event.inputs) is BlobRef
    for node in event.entries:
        visit = state.edit(node)
        visit.tokens, visit.has_start_token = 1, True


def _run_paused(state: State, event: events.RunPaused) -> None:
    state.status, state.reason = "PAUSED", event.reason


def _run_resumed(state: State, event: events.RunResumed) -> None:
    state.status, state.reason = "RUNNING", ""


def _run_repaired(state: State, event: events.RunRepaired) -> None:
    state.repairs += 1


def _run_ended(state: State, event: events.RunCompleted | events.RunFailed | events.RunCancelled) -> None:
    if isinstance(event, events.RunCompleted):
        state.status, state.outputs = "COMPLETED", event.outputs
    elif isinstance(event, events.RunFailed):
        state.status, state.error, state.failed_node = "FAILED", event.error, event.node
    else:
        state.status, state.reason = "CANCELLED", event.reason
    state.ended_ms, state.rendering = event.at_ms, False
    state.ended_seq = state.seq
    state.counter -= event.consumed
    state.first_held = state.last_held = ""


def run_retried(state: State, event: events.RunRetried) -> None:
    for reopened in event.nodes:
        visit = state.edit(reopened.node)
        if visit.fired:
            # It will be made ready, and counted, again.
            visit.hop -= 1
            state.visits -= 1
        _reset(visit)
        visit.tokens, visit.fired, visit.edges_taken, visit.tolerated = reopened.tokens, False, None, False
        visit.settled = visit.has_start_token
        visit.why, visit.held, visit.next_held = "", False, ""
        if visit.map is not None:
            _reopen_items(state, visit)
    if state.unknown:
        state.unknown = tuple(key for key in state.unknown if not _is_settled(state, key, event.sure))
    state.status, state.ended_ms, state.reason = "RUNNING", None, ""
    state.error, state.failed_node, state.outputs = None, "", None
    state.rendering, state.counter, state.deadline_ms = event.renders, event.counter, event.deadline_at_ms
    state.emitted += event.emitted


def _is_settled(state: State, key: str, sure: tuple[str, ...]) -> bool:
    """Whether the operator knows that it did not happen. A later attempt settles an unknown outcome by completing."""
    node, visit, _ = key.rsplit("/", 2)
    return node in sure and state.peek(node).visit == int(visit)


def _reset(act: Activation) -> None:
    """Forget how an activation ended; its attempt number and last checkpoint stay."""
    act.status, act.running, act.failures, act.lost = "PENDING", False, 0, 0
    act.retry_at_ms = act.wait = act.output = act.error = act.resumed = act.approval = act.child_spent = None
    act.recall, act.ended_seq = False, 0


def _reopen_items(state: State, visit: Visit) -> None:
    """Keep items that completed and tolerated failures; all others will be queued again."""
    items = visit.map
    assert items is not None
    items.by_index = dict(items_merged(items.by_index))
    state.items -= items.next
    items.next = items.flying = items.done = items.failed = 0
    for index, item in list(items.known()):
        if item.status == "COMPLETED" or (item.status == "FAILED" and item.output is not None):
            items.done += 1
            items.failed += item.status == "FAILED"
        else:
            # Copied because the base state of a draft may hold the same item.
            own = items.by_index[index] = item.__copy__()  # type: ignore[attr-defined]
            _reset(own)
    pass_over_ended(state, items)


def run_rewound(state: State, event: events.RunRewound) -> None:
    reset = {reopened.node for reopened in event.nodes}
    # Remove nodes from the queue of held nodes.
    staying: list[str] = []
    name = state.first_held
    while name:
        if name not in reset:
            staying.append(name)
        name = state.peek(name).next_held
    state.first_held = state.last_held = ""
    for name in staying:
        hold(state, name, state.edit(name))
    for source, target in event.undecided:
        visit = state.edit(target)
        visit.edges = {known: taken for known, taken in items_merged(visit.edges).items() if known != source}
        visit.dead -= 1
    for reopened in event.nodes:
        old = state.peek(reopened.node)
        lapse_all(state, old)
        state.cells[reopened.node] = _next_visit(state, old, reopened, reset, event)
    state.counter, state.rendering = event.counter, False
    state.emitted += event.emitted


def _next_visit(
    state: State, old: Visit, reopened: events.Reopened, reset: set[str], event: events.RunRewound
) -> Visit:
    """A node's next visit; edges from nodes that are not reset stay decided, only the target keeps a start token."""
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


def _unknown_settled(state: State, event: events.NodeOverridden) -> None:
    """Record what became of a step that a rollback could not undo; the run stays as it ended."""
    visit = state.edit(event.node)
    state.size += event.size
    if event.undoable:
        undoable(state, event)
    items = visit.map
    if event.visit != visit.visit or (event.index != NOT_AN_ITEM and (items is None or event.index >= items.count)):
        # An earlier visit, or an item of a list that a patch has taken away.
        return
    act = edit_at(visit, event.index)
    if act is visit:
        visit.why = event.reason if event.status == "SKIPPED" else ""
    elif items is not None:
        items.failed -= act.status == "FAILED"
    act.status = "COMPLETED" if event.status == "COMPLETED" else "SKIPPED"
    act.output, act.error, act.since_ms, act.ended_seq = event.output, None, event.at_ms, state.seq


def node_overridden(state: State, event: events.NodeOverridden) -> None:
    if state.unknown:
        settled = key_at(event.node, event.visit, event.index)
        state.unknown = tuple(key for key in state.unknown if key != settled)
    state.blobs += type(event.output) is BlobRef
    if not state.live:
        _unknown_settled(state, event)
        return
    visit = state.edit(event.node)
    act = edit_at(visit, event.index)
    if event.index == NOT_AN_ITEM:
        if visit.held and visit.map is None:
            unhold(state, event.node, visit)
        visit.settled = True
        visit.why = event.reason if event.status == "SKIPPED" else ""
    act.error = None
    if event.status == "QUEUED":
        visit.status, visit.wait, visit.resumed, visit.since_ms = "QUEUED", None, event.output, event.at_ms
        if visit.approval is not None:
            visit.approval = closed(visit.approval)
        if not visit.fired:
            visit.fired = True
            visit.hop += 1
            state.visits += 1
        visit.tokens += event.emitted
        state.emitted += event.emitted
        state.counter += event.emitted
        state.in_flight += 1
        return
    act.output = event.output
    state.size += event.size
    if event.undoable:
        undoable(state, event)
    status: Literal["COMPLETED", "SKIPPED"] = "COMPLETED" if event.status == "COMPLETED" else "SKIPPED"
    over(state, visit, act, event, status)
    if visit.map is not None and event.index != NOT_AN_ITEM:
        pass_over_ended(state, visit.map)


def run_patched(state: State, event: events.RunPatched) -> None:
    state.digest, state.revision = event.digest, event.revision
    state.emitted += event.emitted
    state.counter, state.deadline_ms = event.counter, event.deadline_at_ms
    state.blobs += type(event.patch) is BlobRef
    if event.actor is not None and event.actor not in state.patched_by:
        state.patched_by = (*state.patched_by, event.actor)
    state.rendering = state.rendering and not event.emitted
    for name in event.removed:
        # Remove a node; a later node of the same name continues its visit numbers.
        old = state.edit(name)
        lapse_all(state, old)
        if old.held:
            unhold(state, name, old)
        state.items -= 0 if old.map is None else old.map.next
        state.cells[name] = Visit(visit=old.visit + (old.fired or old.attempt > 0))
    for join in event.joins:
        visit = state.edit(join.node)
        visit.edges = dict(join.edges)
        visit.taken = sum(visit.edges.values())
        visit.dead = len(visit.edges) - visit.taken
        visit.tokens, visit.has_start_token = join.tokens, join.own
        if not join.own:
            visit.hop = max((state.peek(source).hop for source, went in join.edges if went), default=0) + visit.fired
    for name in event.relisted:
        visit = state.edit(name)
        state.items -= 0 if visit.map is None else visit.map.next
        visit.map = None


def run_forked(state: State, event: events.RunForked) -> None:
    """Drop what belongs to the other run: leases, dead letters, commands, compensations. Nothing runs here yet."""
    state.forked_from, state.deadline_ms = (event.run, event.at), event.deadline_at_ms
    state.created_ms, state.started_ms = event.at_ms, None
    state.status = "RUNNING" if state.status == "PAUSED" else state.status
    # Signals sent to the other run before the fork count as received here too.
    state.commands = {name: seq for name, seq in items_merged(state.commands).items() if name.startswith(SIGNAL_ID)}
    if event.command is not None:
        notes(state, "commands")[event.command] = state.seq
    state.letters, state.undo, state.listening = {}, {}, dict(items_merged(state.listening))
    state.dead_letters = state.discarded = state.undo_at = 0
    state.work_ms = state.emitted = 0
    # The other run has paid for its calls, and its parent is not the parent of this one.
    state.spent = state.reserved = state.spent_by_children = NOTHING_SPENT
    state.budget = None
    state.rollback, state.undo_order, state.undo_left, state.unknown = "none", (), (), ()
    for name in [*(state.behind or ()), *state.cells]:
        visit = state.edit(name)
        _detach(state, visit, visit)
        visit.reported_before = visit.discarded_before = 0
        if visit.map is not None:
            items = visit.map
            items.by_index = {index: item.__copy__() for index, item in items.known()}  # type: ignore[attr-defined]
            for index in list(items.by_index):
                _detach(state, visit, items.edit(index))
                items.settle(index)


def _detach(state: State, visit: Visit, act: Activation) -> None:
    act.token = act.reported = act.discarded = act.lost = 0
    act.reserved = act.child_spent = None
    between = act is visit and visit.map is not None
    if act.status == "RUNNING" and not between:
        act.status, act.running = "QUEUED", False
    if act.wait is not None and act.wait.on in ("child", "human"):
        # A child run and an approval belong to the run that requested them: request them again.
        act.status, act.wait, act.approval = "QUEUED", None, None
        state.in_flight += 1


def run_labelled(state: State, event: events.RunLabelled) -> None:
    state.labels = event.labels


def dead_letter_closed(state: State, event: events.DeadLetterClosed) -> None:
    key = key_at(event.node, event.visit, event.index)
    letter = state.letters.get(key)
    assert letter is not None, "only what was written is closed"
    notes(state, "letters")[key] = msgspec.structs.replace(letter, open=False)
    state.dead_letters -= 1


def rollback_started(state: State, event: events.RollbackStarted) -> None:
    open_ = [(undo.seq, key) for key, undo in items_merged(state.undo).items() if undo.status != "done"]
    state.rollback, state.undo_at, state.undo_left = "running", 0, event.unknown
    state.undo_order = tuple(key for _, key in sorted(open_, reverse=True))


def rollback_finished(state: State, event: events.RollbackFinished) -> None:
    state.rollback = "done" if event.status == "done" else "partial"
    state.undo_left = event.left


def compensation_scheduled(state: State, event: events.CompensationScheduled) -> None:
    key = key_at(event.node, event.visit, event.index)
    undo = state.undo.get(key)
    assert undo is not None, "only what completed is undone"
    notes(state, "undo")[key] = msgspec.structs.replace(undo, status="scheduled", failures=0, lost=0, retry_at_ms=None)


def compensation_completed(state: State, event: events.CompensationCompleted) -> None:
    _record_compensation(state, event, status="done", error=None, lost=0)
    state.undo_at += 1


def compensation_failed(state: State, event: events.CompensationFailed) -> None:
    key = key_at(event.node, event.visit, event.index)
    undo = state.undo.get(key)
    assert undo is not None
    if event.lost:
        _record_compensation(state, event, error=event.error, lost=undo.lost + 1, retry_at_ms=None)
        return
    again = event.retry_at_ms is not None
    _record_compensation(
        state,
        event,
        status="scheduled" if again else "failed",
        error=event.error,
        failures=undo.failures + 1,
        retry_at_ms=event.retry_at_ms,
        lost=0,
    )
    state.undo_at += not again


def _record_compensation(
    state: State, event: events.CompensationCompleted | events.CompensationFailed, **changes: object
) -> None:
    key = key_at(event.node, event.visit, event.index)
    undo = state.undo.get(key)
    assert undo is not None
    notes(state, "undo")[key] = msgspec.structs.replace(
        undo, attempt=event.attempt, token=max(undo.token, event.token), **changes
    )
    state.work_ms += event.duration_ms
    if event.spent is not None:
        state.spent += event.spent


_FOLDS: dict[type, Callable[[State, Any], None]] = {
    events.RunCreated: _run_created,
    events.RunPaused: _run_paused,
    events.RunResumed: _run_resumed,
    events.RunRepaired: _run_repaired,
    events.RunCompleted: _run_ended,
    events.RunFailed: _run_ended,
    events.RunCancelled: _run_ended,
    events.NodeScheduled: evolve_nodes.node_scheduled,
    events.NodeStarted: evolve_nodes.node_started,
    events.NodeCheckpointed: evolve_nodes.node_checkpointed,
    events.NodeAppended: evolve_nodes.node_appended,
    events.NodeExpanded: evolve_nodes.node_expanded,
    events.NodeWaiting: evolve_nodes.node_waiting,
    events.NodeCompleted: evolve_nodes.node_completed,
    events.NodeFailed: evolve_nodes.node_failed,
    events.NodeSkipped: evolve_nodes.node_skipped,
    events.NodeCancelled: evolve_nodes.node_cancelled,
    events.LoopContinued: evolve_nodes.loop_continued,
    events.ResultDiscarded: evolve_nodes.result_discarded,
    events.DeadLettered: evolve_nodes.dead_lettered,
    events.ApprovalRequested: evolve_nodes.approval_changed,
    events.ApprovalVoted: evolve_nodes.approval_changed,
    events.ApprovalDelegated: evolve_nodes.approval_changed,
    events.ApprovalReturned: evolve_nodes.approval_changed,
    events.ApprovalDecided: evolve_nodes.approval_changed,
    events.ApprovalEscalated: evolve_nodes.approval_changed,
    events.ApprovalExpired: evolve_nodes.approval_changed,
    events.SignalReceived: evolve_nodes.signal_received,
    events.ChildStarted: evolve_nodes.child_started,
    events.ChildFinished: evolve_nodes.child_finished,
    events.RunRetried: run_retried,
    events.RunRewound: run_rewound,
    events.RunPatched: run_patched,
    events.RunForked: run_forked,
    events.RunLabelled: run_labelled,
    events.NodeOverridden: node_overridden,
    events.DeadLetterClosed: dead_letter_closed,
    events.RollbackStarted: rollback_started,
    events.RollbackFinished: rollback_finished,
    events.CompensationScheduled: compensation_scheduled,
    events.CompensationCompleted: compensation_completed,
    events.CompensationFailed: compensation_failed,
}
"""One fold per event type; a test compares the keys with `AnyEvent`."""
