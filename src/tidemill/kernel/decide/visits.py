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


def settle(builder: DecisionBuilder) -> None:
    """Draw every consequence of the edges decided so far, then fill free slots, then see if the run is over."""
    agenda, state, nodes = builder.pending_nodes, builder.state, builder.flow.by_id
    while agenda or builder.loops:
        if not agenda:
            _look_at_loop(builder, builder.loops.pop())
            continue
        name, builder.cause = agenda.popleft()
        visit = state.peek(name)
        if visit.settled or not state.live:
            continue
        node = nodes[name]
        verdict = join_verdict(node, visit)
        if verdict == "fire":
            make_ready(builder, node, visit)
        elif verdict == "skip":
            skip_visit(builder, node, "no inbound edge was taken" if not visit.taken else f"join {node.join}", NO_FACTS)
    if not state.live:
        return
    if state.first_held:
        fill_slots(builder)
    if state.counter == 0:
        complete_run(builder)


def make_ready(builder: DecisionBuilder, node: Node, visit: Visit) -> None:
    """A visit may begin: dispatch it, hold it back, or find that the run has reached a limit."""
    state, limits = builder.state, builder.flow.limits
    hop = visit.hop + 1
    if state.visits >= limits.max_visits:
        error = Error("max_visits_exceeded", f"more than {limits.max_visits} visits")
        fail_run(builder, node.id, visit.visit, error, spread=False)
    elif limits.max_hops is not None and hop > limits.max_hops:
        error = Error("max_hops_exceeded", f"a path of more than {limits.max_hops} hops")
        fail_run(builder, node.id, visit.visit, error, spread=False)
    elif limits.max_parallel is not None and (state.first_held or state.in_flight >= limits.max_parallel):
        _schedule(builder, node, visit, hop, held=True)
    elif visit.map is not None and visit.map.done < visit.map.count:
        # After a retry the list is known: only its items are queued, as many as the window admits.
        _schedule(builder, node, visit, hop, held=True)
    else:
        dispatch(builder, node, visit, hop)


def dispatch(builder: DecisionBuilder, node: Node, visit: Visit, hop: int) -> None:
    """Queue an activation of the node itself."""
    _schedule(builder, node, visit, hop)
    builder.add_job(run_job(node, visit.visit))


def _schedule(builder: DecisionBuilder, node: Node, visit: Visit, hop: int, *, held: bool = False) -> None:
    builder.emit(
        NodeScheduled(at_ms=builder.now, cause=builder.cause, node=node.id, visit=visit.visit, hop=hop, held=held)
    )


def resume(builder: DecisionBuilder, node: Node, index: int, value: Payload, *, recall: bool) -> None:
    """A wait is over, but a worker is needed once more: for the conditions, or because the handler asked for it.

    It has begun, so no limit holds it back: it may exceed `max_parallel` until something else ends.
    """
    visit = builder.state.peek(node.id)
    builder.emit(
        NodeScheduled(
            at_ms=builder.now,
            cause=builder.cause,
            node=node.id,
            visit=visit.visit,
            index=index,
            hop=visit.hop,
            resumed=value,
            recall=recall,
        )
    )
    builder.add_job(run_job(node, visit.visit, index))


def fill_slots(builder: DecisionBuilder) -> None:
    """Dispatch what a limit held back, oldest first: single visits, and as many items as a map's window admits."""
    state, limit = builder.state, builder.flow.limits.max_parallel
    builder.cause = state.seq
    name = state.first_held
    while name and (limit is None or state.in_flight < limit):
        visit = state.peek(name)
        following, node = visit.next_held, builder.flow.by_id[name]
        if visit.map is None or visit.map.done == visit.map.count:
            dispatch(builder, node, visit, visit.hop)
        else:
            _queue_items(builder, node, visit, limit)
        name = following


def _queue_items(builder: DecisionBuilder, node: Node, visit: Visit, limit: int | None) -> None:
    """Queue the next items; after a retry they may lie in several stretches between those that had ended."""
    while True:
        items = builder.state.peek(node.id).map
        assert items is not None, "only a map has items"
        room = items.room if limit is None else min(items.room, limit - builder.state.in_flight)
        if room <= 0:
            return
        first = items.next
        until = _end_of_stretch(items, first, first + room)
        builder.emit(
            NodeScheduled(
                at_ms=builder.now,
                cause=builder.cause,
                node=node.id,
                visit=visit.visit,
                index=first,
                until=until,
                hop=visit.hop,
            )
        )
        for index in range(first, until):
            builder.add_job(run_job(node, visit.visit, index))


def _end_of_stretch(items: MapState, first: int, last: int) -> int:
    for index in range(first, last):
        known = items.get(index)
        if known is not None and known.status in ENDED:
            return index
    return last


def complete_visit(
    builder: DecisionBuilder, node: Node, output: Payload, route: Route | None, facts: AttemptFacts, size: int = 0
) -> None:
    """A visit has its result: one more pass, out of the loop, or simply on."""
    loop = node.loop
    if loop is None or route is None or not route.again:
        _complete(builder, node, on_completion(node, route), output, route, facts, size)
        return
    visit = builder.state.peek(node.id)
    if loop.max_iterations is not None and visit.passes + 1 >= loop.max_iterations:
        if loop.timeout_path:
            _complete(builder, node, on_exhaustion(node), output, route, facts, size)
        else:
            message = f"the condition still held after {loop.max_iterations} passes"
            fail_visit(builder, node, Error("loop_exhausted", message), facts)
    elif body_busy(builder.flow, builder.state, node):
        _wait_for_body(builder, node, visit, output, route, facts)
    else:
        _continue_loop(builder, node, output, route, facts, size)


def _complete(
    builder: DecisionBuilder,
    node: Node,
    taken: tuple[str, ...] | None,
    output: Payload,
    route: Route | None,
    facts: AttemptFacts,
    size: int,
) -> None:
    visit = builder.state.peek(node.id)
    end = balance(builder, node, visit, taken)
    # By far the most frequent event. What is rarely needed is filled in afterwards: a call with more than 15
    # keywords costs several times as much as one with fewer.
    event = NodeCompleted(
        at_ms=builder.now,
        cause=facts.cause,
        node=node.id,
        visit=visit.visit,
        taken=end.taken,
        emitted=end.emitted,
        consumed=end.consumed,
        counter=end.counter,
        attempt=visit.attempt,
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
    builder.emit(event)
    follow(builder, node, end)


def leave_visit(builder: DecisionBuilder, node: Node, exit_: str, output: Payload, facts: AttemptFacts) -> None:
    """A wait ended with a choice of its own: its way out is taken, all other edges are dead."""
    targets = node.exits[exit_]
    taken = tuple(target for target in node.outbound if target in targets)
    _complete(builder, node, taken, output, None, facts, 0)


def _wait_for_body(
    builder: DecisionBuilder, node: Node, visit: Visit, output: Payload, route: Route, facts: AttemptFacts
) -> None:
    builder.emit(
        NodeWaiting(
            at_ms=builder.now,
            cause=facts.cause,
            node=node.id,
            visit=visit.visit,
            attempt=visit.attempt,
            on="loop",
            output=output,
            route=route,
            worker=facts.worker,
            duration_ms=facts.duration_ms,
            token=facts.token,
        )
    )


def _look_at_loop(builder: DecisionBuilder, name: str) -> None:
    """A visit of a waiting loop's body has ended: go on with the next pass if it was the last one in flight."""
    visit, node = builder.state.peek(name), builder.flow.by_id[name]
    wait = visit.wait
    if not builder.state.live or wait is None or wait.on != "loop" or body_busy(builder.flow, builder.state, node):
        return
    assert wait.output is not None and wait.route is not None, "a looping visit waits with its result in hand"
    size = len(wait.output) if isinstance(wait.output, bytes) else wait.output.size
    _continue_loop(
        builder, node, wait.output, wait.route, AttemptFacts(cause=builder.state.seq, token=visit.token), size
    )


def _continue_loop(
    builder: DecisionBuilder, node: Node, output: Payload, route: Route, facts: AttemptFacts, size: int
) -> None:
    """End the pass and begin the next: the event that ends the visit emits the loop's own token."""
    loop, visit = node.loop, builder.state.peek(node.id)
    assert loop is not None
    hop, iteration = visit.hop, visit.passes + 1
    _complete(builder, node, None, output, route, facts, size)
    builder.emit(
        LoopContinued(
            at_ms=builder.now,
            cause=builder.state.seq,
            node=node.id,
            entry=loop.back_to,
            iteration=iteration,
            body=loop.body,
            hop=hop,
        )
    )
    builder.cause = builder.state.seq
    make_ready(builder, builder.flow.by_id[loop.back_to], builder.state.peek(loop.back_to))


def skip_visit(
    builder: DecisionBuilder, node: Node, reason: str, facts: AttemptFacts, reads: tuple[Reading, ...] = ()
) -> None:
    """The visit does not happen: all its edges are dead."""
    visit = builder.state.peek(node.id)
    end = balance(builder, node, visit, ())
    builder.emit(
        NodeSkipped(
            at_ms=builder.now,
            cause=facts.cause or builder.cause,
            node=node.id,
            visit=visit.visit,
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
    follow(builder, node, end)


def fail_visit(
    builder: DecisionBuilder,
    node: Node,
    error: Error,
    facts: AttemptFacts,
    *,
    attempt: int | None = None,
    fatal: bool = False,
) -> None:
    """The visit has failed for good: a dead letter, and then what `on_error` says (`fatal`: the run fails)."""
    visit = builder.state.peek(node.id)
    attempts = visit.attempt if attempt is None else attempt
    tolerated = node.on_error != "fail" and not fatal
    # A failure that ends the run decides no edges: its descendants fail with it instead of being skipped.
    end = (
        balance(builder, node, visit, on_tolerated_failure(node))
        if tolerated
        else Balance((), (), (), 0, visit.tokens, builder.state.counter - visit.tokens, False)
    )
    failed = failure(builder, node, NOT_AN_ITEM, attempts, error, facts)
    builder.emit(
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
    dead_letter(builder, node, visit.visit, NOT_AN_ITEM, attempts, error)
    if tolerated:
        follow(builder, node, end)
    else:
        fail_run(builder, node.id, visit.visit, error)


def item_over(builder: DecisionBuilder, node: Node) -> None:
    """An item of a map has ended: after the last one a worker assembles the list, in the slot that became free."""
    visit = builder.state.peek(node.id)
    assert visit.map is not None
    if visit.map.done == visit.map.count:
        builder.cause = builder.state.seq
        dispatch(builder, node, visit, visit.hop)


class Balance(msgspec.Struct, frozen=True, gc=False):
    """What the end of a visit does to edges and tokens."""

    taken: tuple[str, ...]
    dead: tuple[str, ...]
    dead_escapes: tuple[tuple[str, str], ...]
    emitted: int
    consumed: int
    counter: int
    renders: bool


def balance(builder: DecisionBuilder, node: Node, visit: Visit, taken: tuple[str, ...] | None) -> Balance:
    """Settle a visit's account. `taken` None: its loop goes on, so no edge is decided and one token is emitted."""
    state = builder.state
    if taken is None:
        return Balance((), (), (), 1, visit.tokens, state.counter + 1 - visit.tokens, False)
    edges = decide_edges(builder.flow, state, node, taken)
    emitted = len(taken)
    consumed = visit.tokens + edges.absorbed
    counter = state.counter + emitted - consumed
    renders = counter == 0 and builder.flow.outputs is not None
    if renders:
        emitted, counter = emitted + 1, 1
    return Balance(taken, edges.dead, edges.dead_escapes, emitted, consumed, counter, renders)


def follow(builder: DecisionBuilder, node: Node, end: Balance) -> None:
    """Put on the agenda whatever the end of a visit may have consequences for."""
    state, agenda = builder.state, builder.pending_nodes
    seq = state.seq
    for target in end.taken:
        agenda.append((target, seq))
    for target in end.dead:
        agenda.append((target, seq))
    for _, target in end.dead_escapes:
        agenda.append((target, seq))
    for looping in node.loops:
        if looping != node.id and state.peek(looping).wait is not None:
            builder.loops.append(looping)
    if end.renders:
        builder.add_job(system_job("outputs"))


def complete_item(
    builder: DecisionBuilder,
    node: Node,
    index: int,
    output: Payload,
    size: int,
    facts: AttemptFacts,
    *,
    undoable: bool = True,
) -> None:
    """An item of a map has its value."""
    visit = builder.state.peek(node.id)
    act = peek_at(visit, index)
    builder.emit(
        NodeCompleted(
            at_ms=builder.now,
            cause=facts.cause,
            node=node.id,
            visit=visit.visit,
            index=index,
            counter=builder.state.counter,
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
    item_over(builder, node)


def bytes_exceeded(builder: DecisionBuilder, size: int) -> Error | None:
    """Why the run cannot have an output of this size, which fails it whatever the node tolerates."""
    limit = builder.flow.limits.max_bytes
    if limit is None or builder.state.size + size <= limit:
        return None
    return Error("max_bytes_exceeded", f"the outputs of the run exceed {limit} bytes")


def attempt_failed(
    builder: DecisionBuilder, node: Node, index: int, failed: Failed, chance: float, facts: AttemptFacts
) -> None:
    """An attempt failed: try again if that may help and may be, else give up."""
    act = peek_at(builder.state.peek(node.id), index)
    assert act is not None, "the result's standing was checked"
    error = failed.error
    if failed.unknown_outcome and node.delivery == "at_most_once":
        fail_for_good(builder, node, index, Error("unknown_outcome", error.message, causes=(error.code,)), facts)
    elif error.retryable and act.failures + 1 < node.retry.max_attempts:
        delay = retry_delay_ms(node.retry, act.failures + 1, failed.retry_after_ms, chance)
        try_again(builder, node, index, act.attempt, error, builder.now + delay, facts)
    else:
        fail_for_good(builder, node, index, error, facts)


def try_again(
    builder: DecisionBuilder,
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
    failed = failure(builder, node, index, attempt, error, facts)
    builder.emit(msgspec.structs.replace(failed, retry_at_ms=at_ms, lost=lost))
    if not lost:
        builder.add_job(run_job(node, failed.visit, index, at_ms))


def fail_for_good(
    builder: DecisionBuilder,
    node: Node,
    index: int,
    error: Error,
    facts: AttemptFacts,
    *,
    attempt: int | None = None,
    fatal: bool = False,
) -> None:
    """No more attempts. An item is tolerated or fails its map; a visit goes to its `on_error`."""
    visit = builder.state.peek(node.id)
    if index == NOT_AN_ITEM:
        fail_visit(builder, node, error, facts, attempt=attempt, fatal=fatal)
        return
    assert node.map is not None and visit.map is not None
    act = peek_at(visit, index)
    attempts = attempt if attempt is not None else (act.attempt if act is not None else 0)
    tolerated = visit.map.failed < node.map.tolerate and not fatal
    failed = failure(builder, node, index, attempts, error, facts)
    envelope = error_envelope(error) if tolerated else None
    builder.emit(msgspec.structs.replace(failed, tolerated=tolerated, output=envelope))
    dead_letter(builder, node, visit.visit, index, attempts, error)
    if tolerated:
        item_over(builder, node)
    else:
        _fail_map(builder, node, index, error, fatal)


def _fail_map(builder: DecisionBuilder, node: Node, index: int, error: Error, fatal: bool) -> None:
    """One failure too many: the rest of the items is cancelled and the visit fails with the item's error."""
    builder.cause = builder.state.seq
    cancel_items(builder, node, f"item {index} failed")
    item_error = Error(
        error.code, f"item {index}: {error.message}", error.type, hint=error.hint, causes=error.causes, index=index
    )
    fail_visit(builder, node, item_error, AttemptFacts(cause=builder.cause), fatal=fatal)
