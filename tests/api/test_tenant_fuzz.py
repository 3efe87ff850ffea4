"""A thousand requests of one tenant about what another has; the long suite sends ten times as many."""

from __future__ import annotations

from pathlib import Path

from tests.api.tenant_fuzz import TenantFuzz, fuzz_tenants
from tests.fixtures.api_world import World, furnished, world_server


async def test_nothing_of_another_tenant_is_told(tmp_path: Path) -> None:
    outcome = await fuzz_tenants(tmp_path, requests=300, seed=1)
    assert outcome.wrong == [] and outcome.sent >= 300


async def test_the_fuzz_sees_what_is_told_and_what_is_changed(tmp_path: Path) -> None:
    """A tenant that asks about itself is told everything."""
    world = (await furnished(tmp_path, "acme"))["acme"]
    asking = World("acme", "", world.key, {}, world.names)
    async with world_server(tmp_path) as server:
        fuzz = TenantFuzz(server, asking, world, seed=1)
        await fuzz.run(200)
    for said in (f"tells {world.canary}", "has changed something", "is not like one that is absent"):
        assert any(said in each for each in fuzz.wrong), said
