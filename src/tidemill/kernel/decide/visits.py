"""Life of a visit: ready → dispatched → completed/skipped/failed, retry, loops, map windows, settle.

The life of a visit, from the join that fires to the edges it leaves behind.

Each function writes the facts of one step with the pen. Whatever ends a visit asks `balance` first,
so edges, tokens and the counter are settled in the same event as the result; `settle` then draws the
consequences, one node after the other, until nothing follows any more.

How an activation goes on when an attempt or a wait of it has ended: an item's end, a retry, or failure for good.

Shared by those who hear of attempts and those who hear of waits; what an end means for the visit's edges and
tokens is in `visits.py`.
"""

from __future__ import annotations

import msgspec

from tidemill.kernel.activation import ENDED, MapState
from tidemill.kernel.commands import Failed
from tidemill.kernel.decide.builder import (
    NO_FACTS,
    AttemptFacts,
    DecisionBuilder,
    dead_letter,
    error_envelope,
    failure,
    retry_delay_ms,
)
from tidemill.kernel.decide.completion import cancel_items, complete_run, fail_run
from tidemill.kernel.decide.routing import (
    body_busy,
    decide_edges,
    join_verdict,
    on_completion,
    on_exhaustion,
    on_tolerated_failure,
)
from tidemill.kernel.events import (
    NOT_AN_ITEM,
    Error,
    LoopContinued,
    NodeCompleted,
    NodeScheduled,
    NodeSkipped,
    NodeWaiting,
    Payload,
    Reading,
    Route,
)
from tidemill.kernel.jobs import run_job, system_job
from tidemill.kernel.model import Node
from tidemill.kernel.state import Visit, peek_at


def settle(pen: DecisionBuilder) -> None:
    """Draw every consequence of the edges decided so far, then fill free slots, then see if the run is over."""
    agenda, state, nodes = pen.pending_nodes, pen.state, pen.flow.by_id
    while agenda or pen.loops:
        if not agenda:
            _look_at_loop(pen, pen.loops.pop())
            continue
        name, pen.cause = agenda.popleft()
        cell = state.peek(name)
        if cell.settled or not state.live:
            continue
        node = nodes[name]
        verdict = join_verdict(node, cell)
        if verdict == "fire":
            make_ready(pen, node, cell)
        elif verdict == "skip":
            skip_visit(pen, node, "no inbound edge was taken" if not cell.taken else f"join {node.join}", NO_FACTS)
    if not state.live:
        return
    if state.first_held:
        fill_slots(pen)
    if state.counter == 0:
        complete_run(pen)


def make_ready(pen: DecisionBuilder, node: Node, cell: Visit) -> None:
    """A visit may begin: dispatch it, hold it back, or find that the run has reached a limit."""
    state, limits = pen.state, pen.flow.limits
    hop = cell.hop + 1
    if state.visits >= limits.max_visits:
        error = Error("max_visits_exceeded", f"more than {limits.max_visits} visits")
        fail_run(pen, node.id, cell.visit, error, spread=False)
    elif limits.max_hops is not None and hop > limits.max_hops:
        error = Error("max_hops_exceeded", f"a path of more than {limits.max_hops} hops")
        fail_run(pen, node.id, cell.visit, error, spread=False)
    elif limits.max_parallel is not None and (state.first_held or state.in_flight >= limits.max_parallel):
        _schedule(pen, node, cell, hop, held=True)
    elif cell.map is not None and cell.map.done < cell.map.count:
        # After a retry the list is known: only its items are queued, as many as the window admits.
        _schedule(pen, node, cell, hop, held=True)
    else:
        dispatch(pen, node, cell, hop)


def dispatch(pen: DecisionBuilder, node: Node, cell: Visit, hop: int) -> None:
    """Queue an activation of the node itself."""
    _schedule(pen, node, cell, hop)
    pen.add_job(run_job(node, cell.visit))


def _schedule(pen: DecisionBuilder, node: Node, cell: Visit, hop: int, *, held: bool = False) -> None:
    pen.emit(NodeScheduled(at_ms=pen.now, cause=pen.cause, node=node.id, visit=cell.visit, hop=hop, held=held))


def resume(pen: DecisionBuilder, node: Node, index: int, value: Payload, *, recall: bool) -> None:
    """A wait is over, but a worker is needed once more: for the conditions, or because the handler asked for it.

    It has begun, so no limit holds it back: it may exceed `max_parallel` until something else ends.
    """
    cell = pen.state.peek(node.id)
    pen.emit(
        NodeScheduled(
            at_ms=pen.now,
            cause=pen.cause,
            node=node.id,
            visit=cell.visit,
            index=index,
            hop=cell.hop,
            resumed=value,
            recall=recall,
        )
    )
    pen.add_job(run_job(node, cell.visit, index))


def fill_slots(pen: DecisionBuilder) -> None:
    """Dispatch what a limit held back, oldest first: single visits, and as many items as a map's window admits."""
    state, limit = pen.state, pen.flow.limits.max_parallel
    pen.cause = state.seq
    name = state.first_held
    while name and (limit is None or state.in_flight < limit):
        cell = state.peek(name)
        following, node = cell.next_held, pen.flow.by_id[name]
        if cell.map is None or cell.map.done == cell.map.count:
            dispatch(pen, node, cell, cell.hop)
        else:
            _queue_items(pen, node, cell, limit)
        name = following


def _queue_items(pen: DecisionBuilder, node: Node, cell: Visit, limit: int | None) -> None:
    """Queue the next items; after a retry they may lie in several stretches between those that had ended."""
    while True:
        items = pen.state.peek(node.id).map
        assert items is not None, "only a map has items"
        room = items.room if limit is None else min(items.room, limit - pen.state.in_flight)
        if room <= 0:
            return
        first = items.next
        until = _end_of_stretch(items, first, first + room)
        pen.emit(
            NodeScheduled(
                at_ms=pen.now, cause=pen.cause, node=node.id, visit=cell.visit, index=first, until=until, hop=cell.hop
            )
        )
        for index in range(first, until):
            pen.add_job(run_job(node, cell.visit, index))


def _end_of_stretch(items: MapState, first: int, last: int) -> int:
    for index in range(first, last):
        known = items.get(index)
        if known is not None and known.status in ENDED:
            return index
    return last


def complete_visit(
    pen: DecisionBuilder, node: Node, output: Payload, route: Route | None, facts: AttemptFacts, size: int = 0
) -> None:
    """A visit has its result: one more pass, out of the loop, or simply on."""
    loop = node.loop
    if loop is None or route is None or not route.again:
        _complete(pen, node, on_completion(node, route), output, route, facts, size)
        return
    cell = pen.state.peek(node.id)
    if loop.max_iterations is not None and cell.passes + 1 >= loop.max_iterations:
        if loop.timeout_path:
            _complete(pen, node, on_exhaustion(node), output, route, facts, size)
        else:
            message = f"the condition still held after {loop.max_iterations} passes"
            fail_visit(pen, node, Error("loop_exhausted", message), facts)
    elif body_busy(pen.flow, pen.state, node):
        _wait_for_body(pen, node, cell, output, route, facts)
    else:
        _continue_loop(pen, node, output, route, facts, size)


def _complete(
    pen: DecisionBuilder,
    node: Node,
    taken: tuple[str, ...] | None,
    output: Payload,
    route: Route | None,
    facts: AttemptFacts,
    size: int,
) -> None:
    cell = pen.state.peek(node.id)
    end = balance(pen, node, cell, taken)
    # By far the most frequent event. What is rarely needed is filled in afterwards: a call with more than 15
    # keywords costs several times as much as one with fewer.
    event = NodeCompleted(
        at_ms=pen.now,
        cause=facts.cause,
        node=node.id,
        visit=cell.visit,
        taken=end.taken,
        emitted=end.emitted,
        consumed=end.consumed,
        counter=end.counter,
        attempt=cell.attempt,
        output=output,
        worker=facts.worker,
        duration_ms=facts.duration_ms,
        waited_ms=facts.waited_ms,
        size=size,
        token=facts.token,
    )
    undoable = node.compensator is not None and node.map is None
    if end.dead or end.dead_escapes or end.renders or route is not None or undoable:
        event = msgspec.structs.replace(
            event, dead=end.dead, dead_escapes=end.dead_escapes, renders=end.renders, route=route, undoable=undoable
        )
    pen.emit(event)
    follow(pen, node, end)


def leave_visit(pen: DecisionBuilder, node: Node, exit_: str, output: Payload, facts: AttemptFacts) -> None:
    """A wait ended with a choice of its own: its way out is taken, all other edges are dead."""
    targets = node.exits[exit_]
    taken = tuple(target for target in node.outbound if target in targets)
    _complete(pen, node, taken, output, None, facts, 0)


def _wait_for_body(
    pen: DecisionBuilder, node: Node, cell: Visit, output: Payload, route: Route, facts: AttemptFacts
) -> None:
    pen.emit(
        NodeWaiting(
            at_ms=pen.now,
            cause=facts.cause,
            node=node.id,
            visit=cell.visit,
            attempt=cell.attempt,
            on="loop",
            output=output,
            route=route,
            worker=facts.worker,
            duration_ms=facts.duration_ms,
            token=facts.token,
        )
    )


def _look_at_loop(pen: DecisionBuilder, name: str) -> None:
    """A visit of a waiting loop's body has ended: go on with the next pass if it was the last one in flight."""
    cell, node = pen.state.peek(name), pen.flow.by_id[name]
    wait = cell.wait
    if not pen.state.live or wait is None or wait.on != "loop" or body_busy(pen.flow, pen.state, node):
        return
    assert wait.output is not None and wait.route is not None, "a looping visit waits with its result in hand"
    size = len(wait.output) if isinstance(wait.output, bytes) else wait.output.size
    _continue_loop(pen, node, wait.output, wait.route, AttemptFacts(cause=pen.state.seq, token=cell.token), size)


def _continue_loop(
    pen: DecisionBuilder, node: Node, output: Payload, route: Route, facts: AttemptFacts, size: int
) -> None:
    """End the pass and begin the next: the event that ends the visit emits the loop's own token."""
    loop, cell = node.loop, pen.state.peek(node.id)
    assert loop is not None
    hop, iteration = cell.hop, cell.passes + 1
    _complete(pen, node, None, output, route, facts, size)
    pen.emit(
        LoopContinued(
            at_ms=pen.now,
            cause=pen.state.seq,
            node=node.id,
            entry=loop.back_to,
            iteration=iteration,
            body=loop.body,
            hop=hop,
        )
    )
    pen.cause = pen.state.seq
    make_ready(pen, pen.flow.by_id[loop.back_to], pen.state.peek(loop.back_to))


def skip_visit(
    pen: DecisionBuilder, node: Node, reason: str, facts: AttemptFacts, reads: tuple[Reading, ...] = ()
) -> None:
    """The visit does not happen: all its edges are dead."""
    cell = pen.state.peek(node.id)
    end = balance(pen, node, cell, ())
    pen.emit(
        NodeSkipped(
            at_ms=pen.now,
            cause=facts.cause or pen.cause,
            node=node.id,
            visit=cell.visit,
            dead=end.dead,
            dead_escapes=end.dead_escapes,
            emitted=end.emitted,
            consumed=end.consumed,
            counter=end.counter,
            renders=end.renders,
            reason=reason,
            token=facts.token,
            reads=reads,
        )
    )
    follow(pen, node, end)


def fail_visit(
    pen: DecisionBuilder,
    node: Node,
    error: Error,
    facts: AttemptFacts,
    *,
    attempt: int | None = None,
    fatal: bool = False,
) -> None:
    """The visit has failed for good: a dead letter, and then what `on_error` says (`fatal`: the run fails)."""
    cell = pen.state.peek(node.id)
    attempts = cell.attempt if attempt is None else attempt
    tolerated = node.on_error != "fail" and not fatal
    # A failure that ends the run decides no edges: its descendants fail with it instead of being skipped.
    end = (
        balance(pen, node, cell, on_tolerated_failure(node))
        if tolerated
        else Balance((), (), (), 0, cell.tokens, pen.state.counter - cell.tokens, False)
    )
    failed = failure(pen, node, NOT_AN_ITEM, attempts, error, facts)
    pen.emit(
        msgspec.structs.replace(
            failed,
            taken=end.taken,
            dead=end.dead,
            dead_escapes=end.dead_escapes,
            emitted=end.emitted,
            consumed=end.consumed,
            counter=end.counter,
            renders=end.renders,
            tolerated=tolerated,
            output=error_envelope(error) if tolerated else None,
        )
    )
    dead_letter(pen, node, cell.visit, NOT_AN_ITEM, attempts, error)
    if tolerated:
        follow(pen, node, end)
    else:
        fail_run(pen, node.id, cell.visit, error)


def item_over(pen: DecisionBuilder, node: Node) -> None:
    """An item of a map has ended: after the last one a worker assembles the list, in the slot that became free."""
    cell = pen.state.peek(node.id)
    assert cell.map is not None
    if cell.map.done == cell.map.count:
        pen.cause = pen.state.seq
        dispatch(pen, node, cell, cell.hop)


class Balance(msgspec.Struct, frozen=True, gc=False):
    """What the end of a visit does to edges and tokens."""

    taken: tuple[str, ...]
    dead: tuple[str, ...]
    dead_escapes: tuple[tuple[str, str], ...]
    emitted: int
    consumed: int
    counter: int
    renders: bool


def balance(pen: DecisionBuilder, node: Node, cell: Visit, taken: tuple[str, ...] | None) -> Balance:
    """Settle a visit's account. `taken` None: its loop goes on, so no edge is decided and one token is emitted."""
    state = pen.state
    if taken is None:
        return Balance((), (), (), 1, cell.tokens, state.counter + 1 - cell.tokens, False)
    edges = decide_edges(pen.flow, state, node, taken)
    emitted = len(taken)
    consumed = cell.tokens + edges.absorbed
    counter = state.counter + emitted - consumed
    renders = counter == 0 and pen.flow.outputs is not None
    if renders:
        emitted, counter = emitted + 1, 1
    return Balance(taken, edges.dead, edges.dead_escapes, emitted, consumed, counter, renders)


def follow(pen: DecisionBuilder, node: Node, end: Balance) -> None:
    """Put on the agenda whatever the end of a visit may have consequences for."""
    state, agenda = pen.state, pen.pending_nodes
    seq = state.seq
    for target in end.taken:
        agenda.append((target, seq))
    for target in end.dead:
        agenda.append((target, seq))
    for _, target in end.dead_escapes:
        agenda.append((target, seq))
    for looping in node.loops:
        if looping != node.id and state.peek(looping).wait is not None:
            pen.loops.append(looping)
    if end.renders:
        pen.add_job(system_job("outputs"))


def complete_item(
    pen: DecisionBuilder,
    node: Node,
    index: int,
    output: Payload,
    size: int,
    facts: AttemptFacts,
    *,
    undoable: bool = True,
) -> None:
    """An item of a map has its value."""
    cell = pen.state.peek(node.id)
    act = peek_at(cell, index)
    pen.emit(
        NodeCompleted(
            at_ms=pen.now,
            cause=facts.cause,
            node=node.id,
            visit=cell.visit,
            index=index,
            counter=pen.state.counter,
            attempt=act.attempt if act is not None else 0,
            output=output,
            worker=facts.worker,
            duration_ms=facts.duration_ms,
            waited_ms=facts.waited_ms,
            size=size,
            token=facts.token,
            undoable=undoable and node.compensator is not None,
        )
    )
    item_over(pen, node)


def bytes_exceeded(pen: DecisionBuilder, size: int) -> Error | None:
    """Why the run cannot have an output of this size, which fails it whatever the node tolerates."""
    limit = pen.flow.limits.max_bytes
    if limit is None or pen.state.size + size <= limit:
        return None
    return Error("max_bytes_exceeded", f"the outputs of the run exceed {limit} bytes")


def attempt_failed(
    pen: DecisionBuilder, node: Node, index: int, failed: Failed, chance: float, facts: AttemptFacts
) -> None:
    """An attempt failed: try again if that may help and may be, else give up."""
    act = peek_at(pen.state.peek(node.id), index)
    assert act is not None, "the result's standing was checked"
    error = failed.error
    if failed.unknown_outcome and node.delivery == "at_most_once":
        fail_for_good(pen, node, index, Error("unknown_outcome", error.message, causes=(error.code,)), facts)
    elif error.retryable and act.failures + 1 < node.retry.max_attempts:
        delay = retry_delay_ms(node.retry, act.failures + 1, failed.retry_after_ms, chance)
        try_again(pen, node, index, act.attempt, error, pen.now + delay, facts)
    else:
        fail_for_good(pen, node, index, error, facts)


def try_again(
    pen: DecisionBuilder,
    node: Node,
    index: int,
    attempt: int,
    error: Error,
    at_ms: int,
    facts: AttemptFacts,
    *,
    lost: bool = False,
) -> None:
    """Queue the activation once more, now or after a while."""
    failed = failure(pen, node, index, attempt, error, facts)
    pen.emit(msgspec.structs.replace(failed, retry_at_ms=at_ms, lost=lost))
    if not lost:
        pen.add_job(run_job(node, failed.visit, index, at_ms))


def fail_for_good(
    pen: DecisionBuilder,
    node: Node,
    index: int,
    error: Error,
    facts: AttemptFacts,
    *,
    attempt: int | None = None,
    fatal: bool = False,
) -> None:
    """No more attempts. An item is tolerated or fails its map; a visit goes to its `on_error`."""
    cell = pen.state.peek(node.id)
    if index == NOT_AN_ITEM:
        fail_visit(pen, node, error, facts, attempt=attempt, fatal=fatal)
        return
    assert node.map is not None and cell.map is not None
    act = peek_at(cell, index)
    attempts = attempt if attempt is not None else (act.attempt if act is not None else 0)
    tolerated = cell.map.failed < node.map.tolerate and not fatal
    failed = failure(pen, node, index, attempts, error, facts)
    envelope = error_envelope(error) if tolerated else None
    pen.emit(msgspec.structs.replace(failed, tolerated=tolerated, output=envelope))
    dead_letter(pen, node, cell.visit, index, attempts, error)
    if tolerated:
        item_over(pen, node)
    else:
        _fail_map(pen, node, index, error, fatal)


def _fail_map(pen: DecisionBuilder, node: Node, index: int, error: Error, fatal: bool) -> None:
    """One failure too many: the rest of the items is cancelled and the visit fails with the item's error."""
    pen.cause = pen.state.seq
    cancel_items(pen, node, f"item {index} failed")
    item_error = Error(
        error.code, f"item {index}: {error.message}", error.type, hint=error.hint, causes=error.causes, index=index
    )
    fail_visit(pen, node, item_error, AttemptFacts(cause=pen.cause), fatal=fatal)
