"""`decide` is total: whatever it is asked, it answers; and it never changes the state it is given."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.kernel_walks import Walk, random_flow
from tests.model.lockstep import play_seed
from tests.model.random_commands import ALL_KINDS, RandomCommands
from tidemill.errors import Problem
from tidemill.kernel.codec import encode_state
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.decide import decide, decide_all
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.state import State


def somewhere(seed: int, steps: int, rng: random.Random) -> Walk:
    """A run in the middle of things."""
    walk = Walk(random_flow(seed, rng.randint(1, 8)), seed, 0.1, [rng.randrange(1_000) for _ in range(100)])
    walk.check(walk.kernel.start().events)
    for _ in range(steps):
        if walk.kernel.state.live:
            walk.step()
    return walk


def _waiting(walk: Walk) -> list[JobBody]:
    """Activations that wait, which need not have a job."""
    cells = walk.kernel.state.cells.items()
    return [JobBody("wake", name, cell.visit) for name, cell in cells if cell.wait is not None]


def test_every_type_of_command_can_be_made() -> None:
    assert set(RandomCommands(random_flow(1, 3), random.Random(0)).kinds) == set(ALL_KINDS)


@pytest.mark.parametrize("kind", ALL_KINDS)
@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), steps=st.integers(0, 30))
def test_any_command_is_answered_and_changes_nothing_by_itself(kind: type, seed: int, steps: int) -> None:
    rng = random.Random(seed)
    walk = somewhere(seed, steps, rng)
    garbage = RandomCommands(walk.flow, rng)
    garbage.targets = _waiting(walk)
    before = encode_state(walk.kernel.state)
    for _ in range(10):
        answer = decide(walk.flow, walk.kernel.state, garbage.command(kind), rng.choice((0, 1_000, -1, 10**15)))
        assert isinstance(answer, Decision | Problem)
        assert encode_state(walk.kernel.state) == before


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_run_that_does_not_exist_can_be_asked_anything(kind: type) -> None:
    workflow = random_flow(3, 4)
    garbage = RandomCommands(workflow, random.Random(1))
    garbage.prefix = tuple(Walk(workflow, 3).run().kernel.events)
    begins = {"Start": (Decision,), "Fork": (Decision, Problem)}.get(kind.__name__, (Problem,))
    for _ in range(50):
        state = State()
        answer = decide(workflow, state, garbage.command(kind), 0)
        assert isinstance(answer, begins)
        assert encode_state(state) == encode_state(State())


@settings(max_examples=120)
@given(st.integers(0, 1_000_000))
def test_a_run_survives_a_storm_of_nonsense(seed: int) -> None:
    """Each piece is folded, so that the next meets whatever the ones before have made of the state."""
    rng = random.Random(seed)
    walk = somewhere(seed, rng.randrange(6), rng)
    garbage = RandomCommands(walk.flow, rng)
    garbage.token = walk.kernel.token
    for _ in range(40):
        garbage.targets = [*(put.task for put in walk.kernel.jobs.values()), *_waiting(walk)]
        command = garbage.result() if rng.random() < 0.5 else garbage.command()
        answer = walk.kernel.ask(command)
        assert isinstance(answer, Decision | Problem)
    walk.kernel.check_fold()


@settings(max_examples=100)
@given(st.integers(0, 1_000_000))
def test_a_refused_command_leaves_no_trace_and_does_not_touch_the_others(seed: int) -> None:
    rng = random.Random(seed)
    walk = somewhere(seed, rng.randrange(10), rng)
    garbage = RandomCommands(walk.flow, rng)
    commands = [garbage.command() for _ in range(6)]
    decision, problems = decide_all(walk.flow, walk.kernel.state, commands, 5_000)
    accepted = [command for command, problem in zip(commands, problems, strict=True) if problem is None]
    alone, none = decide_all(walk.flow, walk.kernel.state, accepted, 5_000)
    assert (alone.events, alone.work) == (decision.events, decision.work)
    assert none == [None] * len(accepted)


@settings(max_examples=40)
@given(st.integers(0, 1_000_000))
def test_deciding_twice_gives_the_same(seed: int) -> None:
    rng = random.Random(seed)
    walk = somewhere(seed, rng.randrange(10), rng)
    command = RandomCommands(walk.flow, rng).command()
    one = decide(walk.flow, walk.kernel.state, command, 5_000)
    other = decide(walk.flow, walk.kernel.state, command, 5_000)
    if isinstance(one, Decision):
        assert isinstance(other, Decision)
        assert (one.events, one.work) == (other.events, other.work)
    else:
        assert one == other


BATCHES = 16


SEEDS_PER_BATCH = 125


@pytest.mark.parametrize("batch", range(BATCHES))
def test_kernel_and_reference_agree(batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        try:
            pair = play_seed(seed)
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}: {error} (replay: python -c 'from tests.model.lockstep import *; play_seed({seed})')"
            ) from error
        seen.update(type(event).__name__ for event in pair.kernel.events)
    assert {"NodeCompleted", "NodeSkipped", "NodeFailed", "LoopContinued", "NodeExpanded", "NodeWaiting"} <= set(seen)
