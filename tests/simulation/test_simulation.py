"""The simulator's slice for every change: 800 seeds that break no law, and the proof that faults fired."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.simulation.campaign import REPLAY, Tally, kept_seeds, play
from tests.simulation.faults import FAULTS
from tests.simulation.operators import ACTS
from tests.simulation.world import live
from tidemill.kernel.events import AnyEvent

BATCHES = 8
SEEDS_PER_BATCH = 100

EVENTS = tuple(kind.__name__ for kind in get_args(AnyEvent))
"""Every event type the engine can produce."""

ACTS_SEEN = sorted({"patch" if name == "fix" else name for name in ACTS})
"""What people do, under the names it is counted by."""


def complaints(tally: Tally) -> str:
    """What to print when laws were broken: each seed with the command that replays it."""
    return "\n".join(f"seed {seed}: {why} (replay: {REPLAY.format(seed=seed)})" for seed, why in tally.failures.items())


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_seed_breaks_a_law(batch: int) -> None:
    tally = play(range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH))
    assert tally.seeds == SEEDS_PER_BATCH
    assert not tally.failures, complaints(tally)
    # A batch in which hardly anything went wrong proves nothing.
    assert sum(tally.fired.values()) > 500
    assert len([name for name in FAULTS if tally.fired[name]]) >= 20, tally.fired
    assert len([name for name in EVENTS if tally.events[name]]) >= 35, tally.events
    # Jobs that a cancel found idle, and jobs that it did not.
    assert tally.behaved["jobs.idle"] >= 10 and tally.behaved["jobs.not_idle"] >= 3, tally.behaved
    acts = [name for name in ACTS_SEEN if tally.behaved[f"act.{name}"]]
    assert len(acts) >= 10, tally.behaved


@pytest.mark.parametrize("seed", kept_seeds())
def test_seeds_that_once_failed(seed: int) -> None:
    tally = play([seed])
    assert not tally.failures, complaints(tally)


def test_a_world_is_a_function_of_its_seed() -> None:
    """A failing seed is worth nothing if replaying it does something else."""
    for seed in (7, 1649, 2019):
        first, second = live(seed), live(seed)
        assert (first.events, first.fired, first.loop.now) == (second.events, second.fired, second.loop.now)
