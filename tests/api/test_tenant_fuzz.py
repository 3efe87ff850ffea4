"""A thousand requests of one tenant about what another has; the long suite sends ten times as many."""

from __future__ import annotations

from pathlib import Path

from tests.api.tenant_fuzz import fuzz_tenants


async def test_nothing_of_another_tenant_is_told(tmp_path: Path) -> None:
    await fuzz_tenants(tmp_path, requests=1_000, seed=1)
