"""Agents in real worker processes that are killed a hundred times, each in the middle of its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.killed_agents import killed_processes

KILLS, SHARES = 100, 10


@pytest.mark.parametrize("seed", range(SHARES))
def test_killed_workers_repeat_no_call_that_is_in_the_log(tmp_path: Path, seed: int) -> None:
    killed_processes(tmp_path, 1_000 + seed, KILLS // SHARES)
