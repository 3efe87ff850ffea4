"""Ten thousand episodes of a hostile model: no route, patch, tool, address, fan-out or start that was not granted."""

from __future__ import annotations

import pytest

from tests.fixtures.agent_tools import workbench
from tests.fixtures.hostile_model import play
from tests.fixtures.servers.web import redirect, reply, web
from tests.unit.agents.test_hostile_model import CALLED, not_listed, tools, wipe

EPISODES = 10_000
SHARES = 20


@pytest.mark.parametrize("share", range(SHARES))
async def test_many_episodes_of_a_hostile_model(share: int) -> None:
    CALLED.clear()
    routes = {"/open/redirect": redirect("/admin"), "/admin": reply(b"[]")}
    async with web(routes) as served, workbench(*tools(served.url("")), functions=[wipe, not_listed]) as bench:
        calls = [await play(bench, served, 1_000_000 + seed) for seed in range(share, EPISODES, SHARES)]
        assert len(calls) == EPISODES // SHARES
