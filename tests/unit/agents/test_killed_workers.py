"""Agents whose workers die; `tests/e2e/processes` and `tests/simulation` kill many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.killed_agents import killed_anywhere, killed_processes

KILLS, SHARES = 20, 2


@pytest.mark.parametrize("seed", range(20))
@simulated
async def test_killed_anywhere_it_repeats_no_call_that_is_in_the_log(mill: Cluster, seed: int) -> None:
    await killed_anywhere(mill, seed)


@pytest.mark.parametrize("seed", range(SHARES))
def test_killed_workers_repeat_no_call_that_is_in_the_log(tmp_path: Path, seed: int) -> None:
    killed_processes(tmp_path, seed, KILLS // SHARES)
