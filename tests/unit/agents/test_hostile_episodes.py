"""Random episodes of a hostile model; `tests/attacks/test_hostile_agents.py` plays many more."""

from __future__ import annotations

import pytest

from tests.fixtures.agent_tools import workbench
from tests.fixtures.hostile_model import play
from tests.fixtures.servers.web import redirect, reply, web
from tests.unit.agents.test_hostile_model import CALLED, not_listed, tools, wipe

EPISODES = 300
SHARES = 6


@pytest.mark.parametrize("share", range(SHARES))
async def test_episodes_of_a_hostile_model(share: int) -> None:
    CALLED.clear()
    routes = {"/open/redirect": redirect("/admin"), "/admin": reply(b"[]")}
    async with web(routes) as served, workbench(*tools(served.url("")), functions=[wipe, not_listed]) as bench:
        calls = [await play(bench, served, seed) for seed in range(share, EPISODES, SHARES)]
        assert len(calls) == EPISODES // SHARES and min(calls) >= 3
