"""Life of a visit: ready, dispatched, completed, skipped or failed; with retries, loops, map windows and `settle`.

Whatever ends a visit calls `balance` first, so that its event settles edges, tokens and the counter together with the
result. `follow` queues the affected joins, and `settle` processes them until nothing follows any more.
"""

from __future__ import annotations

import msgspec

from tidemill.kernel import events
from tidemill.kernel.activation import ENDED
from tidemill.kernel.commands import Failed
from tidemill.kernel.decide import edges_and_joins
from tidemill.kernel.decide.builder import NO_FACTS, AttemptFacts, DecisionBuilder, dead_letter, error_envelope, failure
from tidemill.kernel.decide.completion import cancel_items, complete_run, fail_run
from tidemill.kernel.decide.retries import retry_delay_ms
from tidemill.kernel.events import NOT_AN_ITEM, Error, Payload, Reading, Route
from tidemill.kernel.jobs import run_job, system_job
from tidemill.kernel.model import Node
from tidemill.kernel.queries import NOT_TAKEN
from tidemill.kernel.state import LIVE, Visit, peek_at

LOOK_AGAIN_MS = 1_000


def settle(builder: DecisionBuilder) -> None:
    """Process all joins affected so far, then fill free slots, then complete the run if nothing is in flight."""
    pending, state, nodes = builder.pending_nodes, builder.state, builder.flow.by_id
    while pending or builder.loops:
        if not pending:
            _check_loop(builder, builder.loops.pop())
            continue
        name, builder.cause = pending.popleft()
        visit = state.peek(name)
        if visit.settled or state.status not in LIVE:
            continue
        node = nodes[name]
        # With all edges taken every kind of join fires.
        full = visit.taken == len(node.inbound)
        verdict = "fire" if full else edges_and_joins.join_verdict(node, visit)
        if verdict == "fire":
            make_ready(builder, node, visit)
        elif verdict == "skip":
            skip_visit(builder, node, NOT_TAKEN if not visit.taken else f"join {node.join}", NO_FACTS)
    if state.status not in LIVE:
        return
    if state.first_held:
        fill_slots(builder)
    if state.counter == 0:
        complete_run(builder)


def make_ready(builder: DecisionBuilder, node: Node, visit: Visit) -> None:
    """Dispatch a visit whose join fired, hold it back, or fail the run at a limit."""
    state, limits = builder.state, builder.flow.limits
    hop = visit.hop + 1
    if state.visits >= limits.max_visits:
        error = Error("max_visits_exceeded", f"more than {limits.max_visits} visits")
        fail_run(builder, node.id, visit.visit, error, spread=False)
    elif limits.max_hops is not None and hop > limits.max_hops:
        error = Error("max_hops_exceeded", f"a path of more than {limits.max_hops} hops")
        fail_run(builder, node.id, visit.visit, error, spread=False)
    elif limits.max_parallel is not None and (state.first_held or state.in_flight >= limits.max_parallel):
        _hold_back(builder, node, visit, hop)
    elif visit.map is not None and visit.map.done < visit.map.count:
        # A retried map has its list: `fill_slots` queues as many items as the window admits.
        _hold_back(builder, node, visit, hop)
    else:
        dispatch(builder, node, visit, hop)


def dispatch(builder: DecisionBuilder, node: Node, visit: Visit, hop: int) -> None:
    """Queue the visit itself, as opposed to items."""
    builder.emit(events.NodeScheduled(at_ms=builder.now, cause=builder.cause, node=node.id, visit=visit.visit, hop=hop))
    builder.add_job(run_job(node, visit.visit))


def _hold_back(builder: DecisionBuilder, node: Node, visit: Visit, hop: int) -> None:
    builder.emit(
        events.NodeScheduled(
            at_ms=builder.now, cause=builder.cause, node=node.id, visit=visit.visit, hop=hop, held=True
        )
    )


def resume(builder: DecisionBuilder, node: Node, index: int, value: Payload, *, recall: bool) -> None:
    """Queue a visit after its wait, for its conditions or its handler (`recall`); no limit holds it back."""
    visit, fields = builder.state.peek(node.id), builder.node_fields(node.id, index)
    builder.emit(events.NodeScheduled(hop=visit.hop, resumed=value, recall=recall, **fields))
    builder.add_job(run_job(node, visit.visit, index))


def fill_slots(builder: DecisionBuilder) -> None:
    """Dispatch held nodes, oldest first: single visits, and as many items as a map's window admits."""
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
    """Queue the next items; after a retry, ended items may split them into several ranges."""
    while True:
        items = builder.state.peek(node.id).map
        assert items is not None, "only a map has items"
        room = items.room if limit is None else min(items.room, limit - builder.state.in_flight)
        if room <= 0:
            return
        first = items.next
        ended = (n for n in range(first, first + room) if (item := items.get(n)) is not None and item.status in ENDED)
        until = next(ended, first + room)
        builder.emit(events.NodeScheduled(until=until, hop=visit.hop, **builder.node_fields(node.id, first)))
        for index in range(first, until):
            builder.add_job(run_job(node, visit.visit, index))


def complete_visit(
    builder: DecisionBuilder,
    node: Node,
    output: Payload,
    route: Route | None,
    facts: AttemptFacts,
    size: int = 0,
    delay_ms: int = 0,
) -> None:
    """Apply the result of a visit: complete it, or decide about another pass of its loop.

    `delay_ms` is what the worker made of the loop's delay if that is a template.
    """
    loop = node.loop
    if loop is None or route is None or not route.again:
        _complete(builder, node, edges_and_joins.on_completion(node, route), output, route, facts, size)
        return
    visit, delay_ms = builder.state.peek(node.id), delay_ms if loop.delay else loop.delay_ms
    if loop.max_iterations is not None and visit.passes + 1 >= loop.max_iterations:
        if loop.timeout_path:
            _complete(builder, node, edges_and_joins.on_exhaustion(node), output, route, facts, size)
        else:
            message = f"the loop is not done after {loop.max_iterations} passes, which are all that it has"
            hint = "name a node in `timeout_path`, in Python `with tidemill.on_exhausted(…):`; or raise max_iterations"
            fail_visit(builder, node, Error("loop_exhausted", message, hint=hint), facts)
    elif delay_ms or edges_and_joins.body_busy(builder.flow, builder.state, node):
        until_ms = builder.now + delay_ms if delay_ms else None
        builder.emit(
            events.NodeWaiting(
                at_ms=builder.now,
                cause=facts.cause,
                node=node.id,
                visit=visit.visit,
                attempt=visit.attempt,
                on="loop",
                until_ms=until_ms,
                output=output,
                route=route,
                worker=facts.worker,
                duration_ms=facts.duration_ms,
                token=facts.token,
            )
        )
        if until_ms is not None:
            builder.add_job(system_job("wake", until_ms, node.id, visit.visit))
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
    # A frequent event. Rare fields are filled in afterwards because a call with more than 15 keywords
    # costs several times as much.
    event = events.NodeCompleted(
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
    if end.dead or end.dead_escapes or end.renders or route is not None or undoable or facts.blocked_ms:
        event = msgspec.structs.replace(
            event,
            dead=end.dead,
            dead_escapes=end.dead_escapes,
            renders=end.renders,
            route=route,
            undoable=undoable,
            blocked_ms=facts.blocked_ms,
        )
    builder.emit(event)
    follow(builder, node, end)


def leave_visit(builder: DecisionBuilder, node: Node, exit_: str, output: Payload, facts: AttemptFacts) -> None:
    """Complete a visit by a named exit of its wait; all other edges are dead."""
    targets = node.exits[exit_]
    taken = tuple(target for target in node.outbound if target in targets)
    _complete(builder, node, taken, output, None, facts, 0)


def _check_loop(builder: DecisionBuilder, name: str) -> None:
    """Start the next pass of a loop that waits for its body alone, once no visit of it is in flight any more."""
    visit, node = builder.state.peek(name), builder.flow.by_id[name]
    wait = visit.wait
    if (
        not builder.state.live
        or wait is None
        or wait.on != "loop"
        or wait.until_ms is not None
        or edges_and_joins.body_busy(builder.flow, builder.state, node)
    ):
        return
    _next_pass(builder, node, visit)


def _next_pass(builder: DecisionBuilder, node: Node, visit: Visit) -> None:
    wait = visit.wait
    assert wait is not None
    assert wait.output is not None and wait.route is not None, "a looping visit waits with its result in hand"
    facts = AttemptFacts(cause=builder.state.seq, token=visit.token)
    _continue_loop(builder, node, wait.output, wait.route, facts, payload_size(wait.output))


def delay_over(builder: DecisionBuilder, node: Node) -> None:
    """Start the next pass when the delay before it is over; while the body is busy, the timer looks again."""
    visit = builder.state.peek(node.id)
    if edges_and_joins.body_busy(builder.flow, builder.state, node):
        builder.add_job(system_job("wake", builder.now + LOOK_AGAIN_MS, node.id, visit.visit))
    else:
        _next_pass(builder, node, visit)


def _continue_loop(
    builder: DecisionBuilder, node: Node, output: Payload, route: Route, facts: AttemptFacts, size: int
) -> None:
    """End the pass and start the next; the event that ends the visit emits the token of the next pass."""
    loop, visit = node.loop, builder.state.peek(node.id)
    assert loop is not None
    hop, iteration = visit.hop, visit.passes + 1
    _complete(builder, node, None, output, route, facts, size)
    builder.emit(
        events.LoopContinued(
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
    """End a visit as SKIPPED: all its edges are dead."""
    visit = builder.state.peek(node.id)
    end = balance(builder, node, visit, ())
    builder.emit(
        events.NodeSkipped(
            at_ms=builder.now,
            cause=facts.cause or builder.cause,
            node=node.id,
            visit=visit.visit,
            reason=reason,
            token=facts.token,
            reads=reads,
            **msgspec.structs.asdict(end),
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
    """End a visit as FAILED and apply `on_error` (`fatal`: fail the run); without that it is a dead letter, too."""
    visit = builder.state.peek(node.id)
    attempts = visit.attempt if attempt is None else attempt
    tolerated = node.on_error != "fail" and not fatal
    # A failure that ends the run decides no edges, so that descendants fail instead of being skipped.
    end = (
        balance(builder, node, visit, edges_and_joins.on_tolerated_failure(node))
        if tolerated
        else Balance((), (), (), 0, visit.tokens, builder.state.counter - visit.tokens, False)
    )
    failed = failure(builder, node, NOT_AN_ITEM, attempts, error, facts)
    output = error_envelope(error) if tolerated else None
    builder.emit(msgspec.structs.replace(failed, tolerated=tolerated, output=output, **msgspec.structs.asdict(end)))
    if tolerated:
        # The workflow handles it, so no operator has to.
        follow(builder, node, end)
    else:
        if error.index == NOT_AN_ITEM:
            # The letter of a map that an item failed is the item's.
            dead_letter(builder, node, visit.visit, NOT_AN_ITEM, attempts, error)
        fail_run(builder, node.id, visit.visit, error)


def item_over(builder: DecisionBuilder, node: Node) -> None:
    """After the last item of a map has ended, queue the visit so that a worker assembles the list."""
    visit = builder.state.peek(node.id)
    assert visit.map is not None
    if visit.map.done == visit.map.count:
        builder.cause = builder.state.seq
        dispatch(builder, node, visit, visit.hop)


class Balance(msgspec.Struct, frozen=True, gc=False):
    taken: tuple[str, ...]
    dead: tuple[str, ...]
    dead_escapes: tuple[tuple[str, str], ...]
    emitted: int
    consumed: int
    counter: int
    renders: bool


def balance(builder: DecisionBuilder, node: Node, visit: Visit, taken: tuple[str, ...] | None) -> Balance:
    """Compute edges and tokens of an ending visit. `taken` None: its loop continues, with one token and no edges."""
    state = builder.state
    if taken is None:
        return Balance((), (), (), 1, visit.tokens, state.counter + 1 - visit.tokens, False)
    flow, emitted = builder.flow, len(taken)
    dead = () if emitted == len(node.outbound) else edges_and_joins.dead_edges(flow, state, node, taken)
    escapes = () if node.loop is None else edges_and_joins.dead_escapes(flow, state, node)
    consumed = visit.tokens + edges_and_joins.absorbed_tokens(state, node, taken)
    counter = state.counter + emitted - consumed
    renders = counter == 0 and flow.outputs is not None
    if renders:
        emitted, counter = emitted + 1, 1
    return Balance(taken, dead, escapes, emitted, consumed, counter, renders)


def follow(builder: DecisionBuilder, node: Node, end: Balance) -> None:
    state, pending = builder.state, builder.pending_nodes
    seq = state.seq
    for target in end.taken:
        pending.append((target, seq))
    for target in end.dead:
        pending.append((target, seq))
    for _, target in end.dead_escapes:
        pending.append((target, seq))
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
    visit = builder.state.peek(node.id)
    act = peek_at(visit, index)
    builder.emit(
        events.NodeCompleted(
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
            blocked_ms=facts.blocked_ms,
        )
    )
    item_over(builder, node)


def payload_size(payload: Payload) -> int:
    return len(payload) if isinstance(payload, bytes) else payload.size


def bytes_exceeded(builder: DecisionBuilder, size: int) -> Error | None:
    """The error if an output of this size exceeds `max_bytes`; it is fatal whatever the node tolerates."""
    limit = builder.flow.limits.max_bytes
    if limit is None or builder.state.size + size <= limit:
        return None
    return Error("max_bytes_exceeded", f"the outputs of the run exceed {limit} bytes")


def attempt_failed(
    builder: DecisionBuilder, node: Node, index: int, failed: Failed, chance: float, facts: AttemptFacts
) -> None:
    """Retry a failed attempt if the error and the policy allow it, else fail the activation."""
    act = peek_at(builder.state.peek(node.id), index)
    assert act is not None, "the attempt's status was checked"
    error = failed.error
    if failed.unknown_outcome and node.compensator is not None:
        facts = msgspec.structs.replace(facts, unknown=True)
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
    """Fail an activation for good. A visit follows its `on_error`; an item is tolerated or fails its map.

    Only what neither `tolerate` nor `on_error` handles is a dead letter.
    """
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
    if tolerated:
        item_over(builder, node)
        return
    if node.on_error == "fail" or fatal:
        dead_letter(builder, node, visit.visit, index, attempts, error)
    # Cancel the remaining items of a map and fail its visit with the item's error.
    builder.cause = builder.state.seq
    cancel_items(builder, node, f"item {index} failed")
    item_error = Error(
        error.code,
        f"item {index}: {error.message}",
        error.type,
        hint=error.hint,
        causes=error.causes,
        traceback=error.traceback,
        index=index,
    )
    fail_visit(builder, node, item_error, AttemptFacts(cause=builder.cause), fatal=fatal)
