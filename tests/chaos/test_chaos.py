"""Two thousand runs through forty kills, clocks that jump, servers that are killed; no promise may break."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.campaign import live
from tests.chaos.chaos_run import HAPPENINGS, Disturbance
from tests.chaos.stores import SERVED, STORES

SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.timeout(600)
def test_two_thousand_runs_survive_forty_kills() -> None:
    chaos_run = live(Disturbance(seed=SEED, runs=2_000, seconds=28, kills=40, stops=12))
    assert chaos_run.kills >= 40 and chaos_run.stops >= 12


@pytest.mark.timeout(600)
def test_clocks_may_jump_by_a_day() -> None:
    chaos_run = live(Disturbance(seed=SEED, runs=300, seconds=5, kills=8, stops=3, jumping_clocks=True))
    assert chaos_run.kills >= 8 and chaos_run.stops >= 3


DECK = {
    "kill": 4,
    "kill_young": 2,
    "kill_all": 1,
    "kill_stopped": 1,
    "kill_draining": 1,
    "stop_short": 1,
    "stop_long": 3,
    "drain": 1,
    "kill_server": 3,
    "kill_server_twice": 2,
    "kill_backend": 1,
    "tear_log": 2,
    "stop_server": 1,
    "cut_all": 2,
    "cut": 5,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", SERVED)
def test_a_server_is_killed_again_and_again(store: str) -> None:
    known = {*HAPPENINGS, *STORES[store].happenings}
    cards = [name for name, count in DECK.items() for _ in range(count) if name in known]
    random.Random(SEED).shuffle(cards)
    # The client is there for as long as it has runs to start.
    cards.insert(3, "kill_client")
    chaos_run = live(Disturbance(seed=SEED, store=store, runs=600, seconds=40, kills=0, stops=0, cards=tuple(cards)))
    assert chaos_run.fired["SIGKILL server"] == 5 and chaos_run.fired["SIGKILL server, recovering"] == 2
    assert chaos_run.fired["connections cut amid a call"] and chaos_run.fired["SIGKILL client"] == 1
    assert len(chaos_run.progress_s) >= 5


def test_what_broke_is_kept_with_the_way_to_repeat_it(tmp_path: Path) -> None:
    """A storm in which no run may take a moment to end."""
    with pytest.raises(AssertionError, match="make chaos SEED=5") as broken:
        live(Disturbance(seed=5, runs=4, seconds=0, kills=0, stops=0, workers=0, progress_s=0.1), tmp_path / "kept")
    assert "4 left" in str(broken.value)
    (kept,) = (tmp_path / "kept").iterdir()
    assert str(kept) in str(broken.value)
    assert {"chaos.db", "acks.txt"} <= {file.name for file in kept.iterdir()}
