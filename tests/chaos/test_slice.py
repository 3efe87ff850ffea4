"""The slice of every change: a short storm on each server, which is killed, also while it recovers, and cut off."""

from __future__ import annotations

import os

import pytest

from tests.chaos.campaign import live
from tests.chaos.chaos_run import Disturbance
from tests.chaos.stores import SERVED

SEED = int(os.environ.get("CHAOS_SEED", "1"))
CARDS = ("kill", "cut", "kill_server_twice", "stop_long", "cut_all")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", SERVED)
def test_a_server_and_a_worker_are_killed(store: str) -> None:
    storm = Disturbance(
        seed=SEED, store=store, runs=50, seconds=4, kills=0, stops=0, workers=2, cards=CARDS, pause_s=(0.1, 0.6)
    )
    chaos_run = live(storm)
    assert chaos_run.kills == 3 and chaos_run.stops == 1
    assert chaos_run.fired["SIGKILL server, recovering"] == chaos_run.fired["connections cut, all at once"] == 1
    assert len(chaos_run.progress_s) == 1
