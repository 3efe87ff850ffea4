"""The laws of the log over random documents, outcomes and orders; each is stated here in a few lines of its own."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.kernel_walks import Walk, prefixes, random_flow
from tidemill.kernel import events as ev
from tidemill.kernel.activation import Activation
from tidemill.kernel.codec import decode_event, decode_state, encode_event, encode_state
from tidemill.kernel.evolve import evolve, replay
from tidemill.kernel.model import Workflow
from tidemill.kernel.queries import tokens
from tidemill.kernel.state import State

TERMINAL = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
UPSTREAM = "upstream_failed"


@st.composite
def walks(draw: st.DrawFn, meddle: bool | None = None) -> Walk:
    """A finished run of a random document."""
    workflow = random_flow(draw(st.integers(0, 100_000)), draw(st.integers(1, 12)))
    order = draw(st.lists(st.integers(0, 999), max_size=80))
    trouble = draw(st.sampled_from((0.0, 0.05, 0.2)))
    walk = Walk(workflow, draw(st.integers(0, 9)), trouble, order)
    return walk.run(draw(st.booleans()) if meddle is None else meddle)


def ends_visit(event: ev.AnyEvent) -> bool:
    return isinstance(event, ev.Ending) and not (isinstance(event, ev.NodeFailed) and event.retry_at_ms is not None)


@settings(max_examples=90)
@given(walks())
def test_the_log_begins_with_its_creation_and_ends_with_one_end(walk: Walk) -> None:
    events = walk.kernel.events
    assert [number for number, event in enumerate(events) if isinstance(event, ev.RunCreated)] == [0]
    ends = [number for number, event in enumerate(events) if isinstance(event, TERMINAL)]
    assert len(ends) == 1
    assert all(isinstance(event, ev.ResultDiscarded) for event in events[ends[0] + 1 :])
    assert [replay(events, until=number).seq for number in range(len(events) + 1)][-1] == len(events)


@settings(max_examples=90)
@given(walks())
def test_the_counter_is_the_sum_over_the_events_at_every_prefix(walk: Walk) -> None:
    total, state = 0, State()
    for event in walk.kernel.events:
        if isinstance(event, ev.RunCreated):
            total = len(event.entries)
        elif isinstance(event, ev.Ending):
            total += event.emitted - event.consumed
            assert event.counter == total
        elif isinstance(event, TERMINAL):
            total -= event.consumed
            assert event.counter == total == 0
        evolve(state, event)
        assert state.counter == total >= 0
    assert total == 0


@settings(max_examples=90)
@given(walks())
def test_the_tokens_are_the_counter_at_every_prefix(walk: Walk) -> None:
    """A loop's own token is on its way between the end of a pass and ev.LoopContinued, which follows at once."""
    events, state = walk.kernel.events, State()
    for event, following in zip(events, [*events[1:], None], strict=True):
        evolve(state, event)
        on_its_way = isinstance(following, ev.LoopContinued)
        assert len(list(tokens(walk.flow, state))) == state.counter - on_its_way


@settings(max_examples=90)
@given(st.integers(0, 100_000), st.lists(st.integers(0, 999), max_size=80), st.booleans())
def test_the_store_holds_exactly_the_jobs_that_the_state_calls_for(seed: int, order: list[int], meddle: bool) -> None:
    """Checked after every step, a limit that is met in the middle of one included."""
    walk = Walk(random_flow(seed, 1 + seed % 12), seed, 0.05, order, audit=True).run(meddle)
    assert walk.kernel.jobs == {}


@settings(max_examples=90)
@given(walks())
def test_there_is_one_outcome_for_each_node_visit_and_index(walk: Walk) -> None:
    outcomes = Counter(
        (event.node, event.visit, event.index)
        for event in walk.kernel.events
        if isinstance(event, ev.NodeEvent) and ends_visit(event)
    )
    assert set(outcomes.values()) <= {1}
    last = {node.id: walk.kernel.state.peek(node.id).visit for node in walk.flow.nodes}
    if walk.kernel.state.status != "COMPLETED":
        assert all(outcomes[name, visit, ev.NOT_AN_ITEM] == 1 for name, visit in last.items())


@settings(max_examples=90)
@given(walks())
def test_a_join_fires_or_is_skipped_once_per_visit(walk: Walk) -> None:
    fired: set[tuple[str, int]] = set()
    skipped: Counter[tuple[str, int]] = Counter()
    for event in walk.kernel.events:
        if isinstance(event, ev.NodeScheduled) and event.index == ev.NOT_AN_ITEM:
            fired.add((event.node, event.visit))
        elif isinstance(event, ev.NodeSkipped):
            skipped[event.node, event.visit] += 1
            by_join = (event.node, event.visit) not in fired
            assert by_join or event.reason == "when", "what fired is skipped only by its own `when`"
    assert set(skipped.values()) <= {1}
    assert len(fired) == walk.kernel.state.visits


@settings(max_examples=90)
@given(walks())
def test_attempts_count_one_two_three_and_fences_grow(walk: Walk) -> None:
    attempts: dict[tuple[str, int, int], int] = defaultdict(int)
    fences: dict[tuple[str, int, int], int] = defaultdict(int)
    for event in walk.kernel.events:
        if isinstance(event, ev.NodeStarted):
            key = (event.node, event.visit, event.index)
            assert event.attempt == attempts[key] + 1
            assert event.token > fences[key]
            attempts[key], fences[key] = event.attempt, event.token
        elif isinstance(event, ev.NodeFailed) and event.error.code in ("worker_lost", "worker_killer"):
            key = (event.node, event.visit, event.index)
            assert event.attempt - attempts[key] in (0, 1) or walk.flow.by_id[event.node].map is not None
            attempts[key] = max(attempts[key], event.attempt)


@settings(max_examples=90)
@given(walks())
def test_no_attempt_starts_after_the_end(walk: Walk) -> None:
    over = False
    for event in walk.kernel.events:
        assert not (over and isinstance(event, ev.NodeStarted | ev.NodeScheduled))
        over = over or isinstance(event, TERMINAL)
    assert over


@settings(max_examples=90)
@given(walks())
def test_folding_a_snapshot_is_folding_from_the_start_at_every_prefix(walk: Walk) -> None:
    events = walk.kernel.events
    whole = encode_state(replay(events))
    assert whole == encode_state(walk.kernel.state)
    for length in prefixes(events, most=25):
        snapshot = encode_state(replay(events, until=length))
        resumed = decode_state(snapshot)
        assert encode_state(resumed) == snapshot
        for event in events[length:]:
            evolve(resumed, decode_event(encode_event(event)))
        assert encode_state(resumed) == whole


@settings(max_examples=90)
@given(walks(), st.randoms(use_true_random=False))
def test_folding_does_not_depend_on_recorded_times(walk: Walk, rng: random.Random) -> None:
    """Times may go backwards or stand still: they are remembered, never compared."""
    scrambled = [msgspec.structs.replace(event, at_ms=rng.randrange(-5, 10)) for event in walk.kernel.events]
    assert timeless(replay(scrambled)) == timeless(replay(walk.kernel.events))


def timeless(state: State) -> bytes:
    """A state without the moments it remembers."""
    state.created_ms = state.last_ms = 0
    state.started_ms = state.ended_ms = None
    state.letters = {key: msgspec.structs.replace(letter, at_ms=0) for key, letter in state.letters.items()}
    for cell in state.cells.values():
        activations: list[Activation] = [cell]
        if cell.map is not None:
            cell.map.by_index = {index: cell.map.edit(index) for index, _ in list(cell.map.known())}
            activations += cell.map.by_index.values()  # type: ignore[arg-type]
        for activation in activations:
            activation.since_ms = 0
            if activation.wait is not None:
                activation.wait = msgspec.structs.replace(activation.wait, since_ms=0)
    return encode_state(state)


def orders(seed: int, size: int, script: int, trouble: float, many: int = 3) -> list[Walk]:
    """The same document and script, worked off in different orders."""
    workflow = random_flow(seed, size)
    found = []
    for number in range(many):
        rng = random.Random(number)
        found.append(Walk(workflow, script, trouble, [rng.randrange(1_000) for _ in range(600)]).run())
    return found


def order_matters(workflow: Workflow) -> bool:
    """The hop of an `any` or quorum join is that of who came first, so `max_hops` may depend on the order."""
    return workflow.limits.max_hops is not None and any(node.join in ("any", "quorum") for node in workflow.nodes)


@settings(max_examples=90)
@given(st.integers(0, 100_000), st.integers(1, 12), st.integers(0, 9), st.sampled_from((0.0, 0.03, 0.1)))
def test_the_end_does_not_depend_on_the_order_of_completions(seed: int, size: int, script: int, trouble: float) -> None:
    first, *others = orders(seed, size, script, trouble)
    if order_matters(first.flow):
        return
    for other in others:
        assert other.kernel.state.status == first.kernel.state.status
        if first.kernel.state.status == "COMPLETED":
            assert final(other) == final(first)
        mine, theirs = by_themselves(first), by_themselves(other)
        assert {key: mine[key] for key in mine if key in theirs} == {key: theirs[key] for key in theirs if key in mine}


def final(walk: Walk) -> dict[str, Any]:
    """The final state, without what is a matter of order: fences, seqs, hops, and how far a failed map came."""
    state = walk.kernel.state
    found: dict[str, Any] = {"run": (state.status, state.counter, state.visits, state.outputs)}
    for node in walk.flow.nodes:
        cell = state.peek(node.id)
        failed_map = node.map is not None and cell.status == "FAILED"
        result = None if failed_map else (cell.attempt, cell.output, cell.failures)
        edges = dict(sorted(cell.edges.items()))
        found[node.id] = (cell.status, cell.visit, result, edges, cell.edges_taken, cell.tolerated, cell.passes)
    if not any(node.map for node in walk.flow.nodes):
        found["tolerated"] = (state.tolerated, state.dead_letters)
    return found


def by_themselves(walk: Walk) -> dict[tuple[str, int], str]:
    """Visits that were not ended by the run, and how."""
    found = {}
    for event in walk.kernel.events:
        if isinstance(event, ev.NodeCompleted | ev.NodeSkipped | ev.NodeFailed) and event.index == ev.NOT_AN_ITEM:
            by_run = isinstance(event, ev.NodeFailed) and (
                event.error.code == UPSTREAM or event.retry_at_ms is not None
            )
            if not by_run:
                found[event.node, event.visit] = type(event).__name__
    return found


def test_the_walks_reach_everything() -> None:
    """A law over runs in which nothing happens would prove nothing."""
    seen: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for seed in range(500):
        rng = random.Random(seed)
        order = [rng.randrange(1_000) for _ in range(100)]
        walk = Walk(random_flow(seed, rng.randint(2, 12)), seed, rng.choice((0.0, 0.05, 0.2)), order).run(seed % 2 == 1)
        seen.update(type(event).__name__ for event in walk.kernel.events)
        ends[walk.kernel.state.status] += 1
    assert min(ends[status] for status in ("COMPLETED", "FAILED", "CANCELLED")) >= 5
    common = (
        ev.NodeCancelled,
        ev.LoopContinued,
        ev.NodeScheduled,
        ev.NodeStarted,
        ev.NodeCompleted,
        ev.NodeFailed,
        ev.NodeSkipped,
    )
    assert all(seen[kind.__name__] > 100 for kind in common)
    assert min(seen[name] for name in ("NodeExpanded", "NodeWaiting", "RunPaused", "ResultDiscarded")) > 10
