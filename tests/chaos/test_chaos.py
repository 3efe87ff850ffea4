"""The slice of every change: two thousand runs through forty kills, and clocks that jump; no promise may break."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.campaign import live
from tests.chaos.chaos_run import Disturbance

SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.timeout(600)
def test_two_thousand_runs_survive_forty_kills() -> None:
    chaos_run = live(Disturbance(seed=SEED, runs=2_000, seconds=28, kills=40, stops=12))
    assert chaos_run.kills >= 40 and chaos_run.stops >= 12


@pytest.mark.timeout(600)
def test_clocks_may_jump_by_a_day() -> None:
    chaos_run = live(Disturbance(seed=SEED, runs=300, seconds=5, kills=8, stops=3, jumping_clocks=True))
    assert chaos_run.kills >= 8 and chaos_run.stops >= 3


def test_what_broke_is_kept_with_the_way_to_repeat_it(tmp_path: Path) -> None:
    """A storm in which no run may take a moment to end."""
    with pytest.raises(AssertionError, match="make chaos SEED=5") as broken:
        live(Disturbance(seed=5, runs=4, seconds=0, kills=0, stops=0, workers=0, progress_s=0.1), tmp_path / "kept")
    assert "4 left" in str(broken.value)
    (kept,) = (tmp_path / "kept").iterdir()
    assert str(kept) in str(broken.value)
    assert {"chaos.db", "acks.txt"} <= {file.name for file in kept.iterdir()}
