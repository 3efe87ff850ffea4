"""Folds of node, approval, signal and child events. `evolve` says which fold serves which event.

Pure bookkeeping: no rule is decided here. Every fold edits the visit that `state.edit` returns, never a shared one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.kernel import events
from tidemill.kernel.activation import DISPATCHED, ENDED, Activation, MapState, NodeStatus, Wait, closed, folded
from tidemill.kernel.events import NOT_AN_ITEM, BlobRef
from tidemill.kernel.spending import NOTHING_SPENT, Spend, as_spend
from tidemill.kernel.state import (
    Buffered,
    CompletedStep,
    DeadLetter,
    PreviousPass,
    State,
    Visit,
    edit_at,
    key_at,
    notes,
    peek_at,
)

SIGNAL_ID = "signal:"
"""Prefix of signal ids in `State.commands`, where they are remembered like command ids."""


def approval_changed(state: State, event: events.ApprovalEvents) -> None:
    """Apply an approval event; an escalation also moves the time-out of the wait."""
    act = edit_at(state.edit(event.node), event.index)
    act.approval = folded(act.approval, event)
    if isinstance(event, events.ApprovalRequested):
        state.approvals += 1
        state.blobs += type(event.form) is BlobRef
    elif isinstance(event, events.ApprovalEscalated) and act.wait is not None:
        act.wait = msgspec.structs.replace(act.wait, expires_ms=event.expires_ms)


def signal_awaited(state: State, event: events.NodeWaiting) -> None:
    """Add the activation to the queue for its signal, or take the buffered signal the event names."""
    if event.signal:
        state.signals = tuple(kept for kept in state.signals if kept.signal != event.signal)
        return
    at, waiting = (event.node, event.visit, event.index), state.listening.get(event.name, ())
    if event.attempt > 1:
        # An earlier attempt waited too: this one goes to the end of the queue.
        waiting = tuple(each for each in waiting if each != at)
    first = next((n for n, each in enumerate(waiting) if listens(state, event.name, each)), len(waiting))
    notes(state, "listening")[event.name] = (*waiting[first:], at)


def listens(state: State, name: str, at: tuple[str, int, int]) -> bool:
    """Whether an activation in the queue for a signal still waits for it."""
    node, visit, index = at
    latest = state.peek(node)
    act = peek_at(latest, index) if latest.visit == visit else None
    return act is not None and act.wait is not None and act.wait.on == "signal" and act.wait.name == name


def signal_received(state: State, event: events.SignalReceived) -> None:
    """Remember the signal's id, and buffer its payload unless a node took it."""
    notes(state, "commands")[SIGNAL_ID + event.signal] = state.seq
    state.blobs += type(event.payload) is BlobRef
    waiting = state.listening.get(event.name, ())
    if event.node:
        taker = (event.node, event.visit, event.index)
        notes(state, "listening")[event.name] = waiting[waiting.index(taker) + 1 :] if taker in waiting else waiting
    else:
        if waiting:
            notes(state, "listening")[event.name] = ()
        state.signals = (*state.signals, Buffered(event.name, event.signal, event.payload, state.seq))


def child_started(state: State, event: events.ChildStarted) -> None:
    act = edit_at(state.edit(event.node), event.index)
    if act.wait is not None:
        act.wait = msgspec.structs.replace(act.wait, started=True)


def child_finished(state: State, event: events.ChildFinished) -> None:
    """Count what the child has spent; the next event ends the wait."""
    act = edit_at(state.edit(event.node), event.index)
    if event.spent is not None or act.reserved is not None:
        settle_spending(state, act, NOTHING_SPENT if event.spent is None else event.spent)
    if event.spent is not None:
        act.child_spent = event.spent
        state.spent_by_children += event.spent


UNKNOWN_OUTCOME = "unknown_outcome"
"""Error code of an attempt that may or may not have happened."""


def node_scheduled(state: State, event: events.NodeScheduled) -> None:
    visit = state.edit(event.node)
    if event.resumed is None:
        if event.index != NOT_AN_ITEM:
            _items_queued(state, visit, event)
            return
    else:
        # Queue a visit whose wait is over, to evaluate conditions over the result or to call the handler again.
        act = edit_at(visit, event.index)
        act.resumed, act.recall, act.wait = event.resumed, event.recall, None
        act.status, act.since_ms = "QUEUED", event.at_ms
        if act.approval is not None:
            act.approval = closed(act.approval)
        state.blobs += type(event.resumed) is BlobRef
        state.in_flight += 1
        return
    if not visit.fired:
        visit.fired = visit.settled = True
        visit.hop = event.hop
        state.visits += 1
    visit.since_ms = event.at_ms
    if event.held:
        visit.status = "PENDING"
        hold(state, event.node, visit)
        return
    if visit.held:
        unhold(state, event.node, visit)
    visit.status = "QUEUED"
    state.in_flight += 1


def _items_queued(state: State, visit: Visit, event: events.NodeScheduled) -> None:
    items = visit.map
    assert items is not None, "items are queued after NodeExpanded"
    flying = event.until - event.index
    state.in_flight += flying
    state.items += event.until - items.next
    items.flying += flying
    items.next = event.until
    if visit.status == "PENDING":
        # A retried map: some of its items have earlier attempts.
        visit.status = "RUNNING"
    for index in range(event.index, event.until):
        if items.get(index) is not None:
            edit_at(visit, index).status = "QUEUED"
    pass_over_ended(state, items)
    if not items.room and visit.held:
        unhold(state, event.node, visit)


def pass_over_ended(state: State, items: MapState) -> None:
    """Advance `next` past items that have ended; only a retry leaves such items there."""
    first = items.next
    while items.next < items.count and (known := items.get(items.next)) is not None and known.status in ENDED:
        items.next += 1
    state.items += items.next - first


def hold(state: State, node: str, visit: Visit) -> None:
    visit.held, visit.next_held = True, ""
    if state.last_held:
        state.edit(state.last_held).next_held = node
    else:
        state.first_held = node
    state.last_held = node


def unhold(state: State, node: str, visit: Visit) -> None:
    """Remove a node from that queue. It is the head, unless a map fails while it waits for slots."""
    before = ""
    walk = state.first_held
    while walk != node:
        before, walk = walk, state.peek(walk).next_held
    if before:
        state.edit(before).next_held = visit.next_held
    else:
        state.first_held = visit.next_held
    if state.last_held == node:
        state.last_held = before
    visit.held, visit.next_held = False, ""


def node_started(state: State, event: events.NodeStarted) -> None:
    if state.started_ms is None:
        state.started_ms = event.at_ms
    visit = state.edit(event.node)
    act = edit_at(visit, event.index)
    act.status, act.running = "RUNNING", True
    act.attempt, act.token, act.since_ms = event.attempt, event.token, event.at_ms
    act.retry_at_ms = None
    if visit.map is not None and event.attempt > visit.map.attempts:
        visit.map.attempts = visit.attempt = event.attempt


def node_checkpointed(state: State, event: events.NodeCheckpointed) -> None:
    edit_at(state.edit(event.node), event.index).checkpoint = event.value
    state.blobs += type(event.value) is BlobRef


def node_appended(state: State, event: events.NodeAppended) -> None:
    act = edit_at(state.edit(event.node), event.index)
    if not act.appended:
        act.appended_from = state.seq
    act.appended += 1
    act.token = max(act.token, event.token)
    # The record holds what the wait gave. It is progress, so the workers lost before it do not count any more.
    act.resumed, act.recall, act.child_spent, act.lost = None, False, None, 0
    state.blobs += type(event.value) is BlobRef
    if event.spent is not None:
        settle_spending(state, act, event.spent)
    if event.reserved is not None:
        reserve(state, act, event.reserved)


def reserve(state: State, act: Activation, amount: Spend) -> None:
    """Set an amount of the budget aside; one that was never settled counts as spent."""
    lapse(state, act)
    act.reserved = amount
    state.reserved += amount


def settle_spending(state: State, act: Activation, spent: Spend) -> None:
    """Count what was spent instead of what was set aside for it."""
    if act.reserved is not None:
        state.reserved -= act.reserved
        act.reserved = None
    state.spent += spent


def lapse(state: State, act: Activation) -> None:
    """Count what is set aside as spent: what became of it is unknown."""
    if act.reserved is not None:
        settle_spending(state, act, act.reserved)


def lapse_all(state: State, visit: Visit) -> None:
    """Do so for a visit that is given up, and for its items. The visit is not written."""
    if state.reserved == NOTHING_SPENT:
        return
    items: Iterable[Activation] = () if visit.map is None else (item for _, item in visit.map.known())
    for act in (visit, *items):
        if act.reserved is not None:
            state.reserved -= act.reserved
            state.spent += act.reserved


def node_expanded(state: State, event: events.NodeExpanded) -> None:
    visit = state.edit(event.node)
    visit.map = MapState(count=event.count, items=event.items, window=event.window)
    visit.token = visit.reported = event.token
    visit.lost = 0
    state.blobs += type(event.items) is BlobRef
    state.in_flight -= 1
    visit.status, visit.since_ms = "RUNNING", event.at_ms
    if event.count:
        hold(state, event.node, visit)


def node_waiting(state: State, event: events.NodeWaiting) -> None:
    visit = state.edit(event.node)
    act = edit_at(visit, event.index)
    if counted(visit, act):
        state.in_flight -= 1
    act.status, act.running, act.since_ms = "WAITING", False, event.at_ms
    act.token = act.reported = event.token
    act.duration_ms += event.duration_ms
    state.work_ms += event.duration_ms
    act.lost, act.resumed, act.recall = 0, None, False
    act.wait = Wait(
        on=event.on,
        name=event.name,
        since_ms=event.at_ms,
        until_ms=event.until_ms,
        expires_ms=event.expires_ms,
        output=event.output,
        route=event.route,
        recall=event.recall,
        ask=event.ask,
        close=event.close,
        budget=event.budget,
        returns=event.returns,
    )
    if event.budget is not None:
        reserve(state, act, as_spend(event.budget))
    state.blobs += type(event.ask) is BlobRef
    if event.on == "signal":
        signal_awaited(state, event)


def node_completed(state: State, event: events.NodeCompleted) -> None:
    visit = state.edit(event.node)
    act = edit_at(visit, event.index)
    state.size += event.size
    state.blobs += type(event.output) is BlobRef
    act.output, act.error, act.lost = event.output, None, 0
    act.duration_ms += event.duration_ms
    state.work_ms += event.duration_ms
    note_token(act, event.token)
    if event.undoable:
        undoable(state, event)
    if event.route is not None:
        visit.left_by_exit = bool(event.route.again)
    elif act is visit and act.approval is not None:
        visit.left_by_exit = act.approval.decision in ("reject", "changes")
    over(state, visit, act, event, "COMPLETED")
    if act is not visit and visit.map is not None:
        visit.map.settle(event.index)


def started_and_completed(state: State, started: events.NodeStarted, completed: events.NodeCompleted) -> None:
    """Apply both events of a queued visit that is no map and was not suspended: most begin and end in one commit.

    The same as the two folds above, one after the other; a test compares them.
    """
    visit, duration_ms = state.edit(completed.node), completed.duration_ms
    state.seq += 2
    if state.started_ms is None:
        state.started_ms = started.at_ms
    state.last_ms = visit.since_ms = completed.at_ms
    state.size += completed.size
    state.work_ms += duration_ms
    state.in_flight -= 1
    state.counter += completed.emitted - completed.consumed
    state.emitted += completed.emitted
    output = visit.output = completed.output
    if type(output) is BlobRef:
        state.blobs += 1
    visit.status, visit.attempt, visit.ended_seq = "COMPLETED", started.attempt, state.seq
    visit.token = visit.reported = completed.token
    visit.duration_ms += duration_ms
    visit.error = visit.retry_at_ms = visit.wait = visit.child_spent = None
    visit.lost = visit.tokens = 0
    visit.edges_taken = completed.taken
    if completed.undoable:
        undoable(state, completed)
    for target in completed.taken:
        arrive(state, completed.node, target, True, visit.hop)
    if completed.renders:
        state.rendering = True


def undoable(state: State, event: events.NodeEvent) -> None:
    key = key_at(event.node, event.visit, event.index)
    notes(state, "undo")[key] = CompletedStep(event.node, event.visit, event.index, state.seq)
    if state.unknown:
        # A rollback undoes it now, whichever of its attempts it was.
        state.unknown = tuple([each for each in state.unknown if each != key])


def unknown(state: State, event: events.NodeEvent) -> None:
    key = key_at(event.node, event.visit, event.index)
    if key not in state.unknown:
        state.unknown = (*state.unknown, key)


def note_token(act: Activation, token: int) -> None:
    """Remember the fence of the worker's report; an end without a report has no token."""
    if token:
        act.token = act.reported = token


def node_failed(state: State, event: events.NodeFailed) -> None:
    visit = state.edit(event.node)
    act = edit_at(visit, event.index)
    act.error = event.error
    act.attempt = event.attempt
    if visit.map is not None and event.attempt > visit.map.attempts:
        visit.map.attempts = visit.attempt = event.attempt
    note_token(act, event.token)
    act.duration_ms += event.duration_ms
    state.work_ms += event.duration_ms
    if event.unknown:
        unknown(state, event)
    if event.lost:
        act.lost += 1
    else:
        act.lost, act.failures = 0, act.failures + 1
    if event.retry_at_ms is not None:
        if act.status not in DISPATCHED:
            state.in_flight += 1
        act.status, act.running, act.wait = "QUEUED", False, None
        # A lost worker causes no back-off: the job is queued again at once.
        act.retry_at_ms, act.since_ms = None if event.lost else event.retry_at_ms, event.at_ms
        return
    act.output = event.output
    if event.error.code == UNKNOWN_OUTCOME and event.error.index == NOT_AN_ITEM:
        unknown(state, event)
    if event.tolerated:
        state.tolerated += 1
        if act is visit:
            visit.tolerated = True
    over(state, visit, act, event, "FAILED")


def node_skipped(state: State, event: events.NodeSkipped) -> None:
    visit = state.edit(event.node)
    visit.settled, visit.why = True, event.reason
    note_token(visit, event.token)
    over(state, visit, visit, event, "SKIPPED")


def node_cancelled(state: State, event: events.NodeCancelled) -> None:
    visit = state.edit(event.node)
    act = edit_at(visit, event.index)
    if act is visit:
        visit.settled, visit.why = True, event.reason
    if event.unknown:
        unknown(state, event)
    over(state, visit, act, event, "CANCELLED")


def counted(visit: Visit, act: Activation) -> bool:
    """Whether an activation owns a job; between expansion and assembly only the items of a map do."""
    return act.status in DISPATCHED and not (act is visit and visit.map is not None and act.status == "RUNNING")


def over(state: State, visit: Visit, act: Activation, event: events.Ending, status: NodeStatus) -> None:
    """End a visit or an item: settle its edges and tokens, and release its slot."""
    if counted(visit, act):
        state.in_flight -= 1
    was = act.status
    act.status, act.running, act.wait, act.retry_at_ms = status, False, None, None
    act.since_ms, act.ended_seq = event.at_ms, state.seq
    if act.reserved is not None:
        lapse(state, act)
    act.resumed, act.recall, act.child_spent = None, False, None
    if act.approval is not None:
        act.approval = closed(act.approval)
    if act is not visit:
        items = visit.map
        assert items is not None, "only a map has items"
        items.flying -= was != "PENDING"
        items.done += 1
        items.failed += status == "FAILED"
        if items.room and visit.fired and not visit.held:
            # Not for an item overridden before its map is ready again: the map is held when it is made ready.
            hold(state, event.node, visit)
        return
    if visit.held and visit.map is not None:
        unhold(state, event.node, visit)
    visit.held = False
    visit.tokens, visit.edges_taken = 0, event.taken
    state.counter += event.emitted - event.consumed
    state.emitted += event.emitted
    node, hop = event.node, visit.hop
    for target in event.taken:
        arrive(state, node, target, True, hop)
    for target in event.dead:
        arrive(state, node, target, False, hop)
    for source, target in event.dead_escapes:
        arrive(state, source, target, False, 0)
    state.rendering = state.rendering or event.renders


def arrive(state: State, source: str, target: str, taken: bool, hop: int) -> None:
    """Decide an inbound edge, once; a settled join absorbs its token."""
    visit = state.edit(target)
    if visit.edges.get(source) is not None:
        return
    visit.edges[source] = taken
    if not taken:
        visit.dead += 1
        return
    visit.taken += 1
    if not visit.settled:
        visit.tokens += 1
        if hop > visit.hop:
            visit.hop = hop


def loop_continued(state: State, event: events.LoopContinued) -> None:
    """Give every node of the body its next visit; `past` keeps the previous result for readers."""
    for node in event.body:
        old = state.edit(node) if node == event.entry else state.peek(node)
        state.items -= 0 if old.map is None else old.map.next
        past = dict(old.past) if old.past else {}
        past[event.node] = PreviousPass(old.visit, old.status, old.output)
        fresh = Visit(visit=old.visit + 1, past=past, reported_before=old.reported, discarded_before=old.discarded)
        if node == event.entry:
            # The join of the entry belongs to the surrounding loop: it stays settled.
            fresh.edges, fresh.taken, fresh.dead, fresh.settled = old.edges, old.taken, old.dead, True
            fresh.tokens, fresh.hop, fresh.has_start_token = 1, event.hop, True
        if node == event.node:
            fresh.passes = event.iteration
        state.cells[node] = fresh


def result_discarded(state: State, event: events.ResultDiscarded) -> None:
    state.discarded += 1
    visit = state.edit(event.node)
    if event.visit == visit.visit:
        visit.discarded += 1
    else:
        visit.discarded_before += 1


def dead_lettered(state: State, event: events.DeadLettered) -> None:
    state.dead_letters += 1
    key = key_at(event.node, event.visit, event.index)
    notes(state, "letters")[key] = DeadLetter(state.seq, event.at_ms, event.attempts, event.error)
