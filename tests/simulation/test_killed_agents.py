"""Agents whose processes die a thousand times in all, at random boundaries."""

from __future__ import annotations

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.killed_agents import killed_anywhere

CRASHES, SHARES = 1_000, 20


@pytest.mark.parametrize("share", range(SHARES))
@simulated
async def test_agents_killed_often_repeat_no_call_that_is_in_the_log(mill: Cluster, share: int) -> None:
    crashes, seed = 0, 10_000 * (share + 1)
    while crashes < CRASHES // SHARES:
        crashes, seed = crashes + await killed_anywhere(mill, seed), seed + 1
