"""Random walks with operators in the way: whatever they do at any moment, the run ends and no token is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.model.operator_walks import Act, Branched, OperatedWalk, Steady, interrupt, override, patch, retry, rewind
from tidemill.kernel import events as ev
from tidemill.kernel.decide.fork import shared_prefix
from tidemill.kernel.evolve import replay

BATCH = 250
FORKS = 120
CUTS_MAX = 40
MANY_PATCHES = (patch, patch, patch, retry, rewind, override, interrupt)
MANY_REWINDS = (rewind, rewind, rewind, retry, interrupt)
MANY_OVERRIDES = (override, override, override, retry, interrupt)
MANY_RETRIES = (retry, retry, retry, override, interrupt)


@pytest.mark.parametrize(
    ("acts", "batch"),
    [(MANY_PATCHES, batch) for batch in range(8)]
    + [(acts, batch) for acts in (MANY_REWINDS, MANY_OVERRIDES, MANY_RETRIES) for batch in range(4)],
)
def test_whatever_operators_do_the_run_ends_without_losing_a_token(acts: tuple[Act, ...], batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        walk = OperatedWalk(seed, acts).run()
        assert walk.kernel.state.counter == 0, f"seed {seed}"


def outcome(walk: Any) -> Any:
    """How a run came out: the status, and for a completed one every node's way."""
    state = walk.kernel.state
    if state.status != "COMPLETED":
        return state.status
    cells = {node.id: state.peek(node.id) for node in walk.flow.nodes}
    # Of a map that failed, which item failed first is a matter of order.
    outputs = {name: cell.output for name, cell in cells.items() if cell.status == "COMPLETED"}
    return outputs, {name: (cell.status, cell.visit, cell.edges_taken) for name, cell in cells.items()}


def cuts(events: list[ev.AnyEvent], rng: random.Random) -> list[int]:
    """Every place before the end of a short log, and some of a long one."""
    until = shared_prefix(events, rewinds=True)
    places = range(1, until + 1)
    return list(places) if until <= CUTS_MAX else sorted(rng.sample(places, CUTS_MAX))


def empty(event: ev.AnyEvent) -> bool:
    """An empty list is routed by whoever expands it, or by whoever assembles it in a fork."""
    return isinstance(event, ev.NodeExpanded) and not event.count


@pytest.mark.parametrize("batch", range(4))
def test_a_fork_at_any_event_comes_out_like_the_run_itself(batch: int) -> None:
    for seed in range(batch * FORKS // 4, (batch + 1) * FORKS // 4):
        walk = OperatedWalk(seed, ())
        walk.left, walk.script = 0, Steady(walk.flow, seed, walk.script.trouble)
        walk.run()
        for until in cuts(walk.kernel.events, walk.rng):
            other = Branched(walk, walk.flow, until, seed).run()
            assert empty(walk.kernel.events[until - 1]) or outcome(other) == outcome(walk), f"seed {seed} at {until}"


@pytest.mark.parametrize("batch", range(4))
def test_whatever_was_done_to_a_run_its_forks_end(batch: int) -> None:
    for seed in range(batch * FORKS // 4, (batch + 1) * FORKS // 4):
        walk = OperatedWalk(seed, (patch, retry, rewind, override, interrupt)).run()
        for until in cuts(walk.kernel.events, walk.rng)[::3]:
            graph = walk.flows[replay(walk.kernel.events[:until]).digest]
            other = Branched(walk, graph, until, seed).run()
            assert other.kernel.state.counter == 0, f"seed {seed} at {until}"


def test_whatever_happened_a_rollback_comes_to_an_end() -> None:
    for seed in range(150):
        walk = OperatedWalk(seed, (retry, rewind, override, interrupt), undoes=True).run()
        walk.roll_back()
        assert walk.kernel.state.rollback in ("none", "done", "partial"), f"seed {seed}"


def test_what_a_rollback_leaves_as_unknown_can_be_settled_and_undone() -> None:
    settled = 0
    for seed in range(250):
        walk = OperatedWalk(seed, (interrupt, retry), undoes=True).run()
        walk.roll_back()
        if walk.kernel.state.rollback != "partial":
            continue
        walk.settle()
        settled += walk.done.count("settle")
        assert not [key for key in walk.kernel.state.unknown if key in walk.kernel.state.undo_left], f"seed {seed}"
        for _ in range(100):
            if walk.kernel.state.rollback == "done":
                break
            walk.roll_back()
        assert walk.kernel.state.rollback == "done", f"seed {seed}"
        walk.kernel.check_fold()
    assert settled > 20
