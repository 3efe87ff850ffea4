"""The attacks of `tests/api` at length: more requests, more kills, and another tenant asked about in every way.

`API_ATTACKS=3 make test SUITE=api-attacks` sends three times as much of everything.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.api.conformance import conformance
from tests.api.killed_server import Campaign
from tests.api.tenant_fuzz import fuzz_tenants
from tests.fixtures.api_server import sqlite_url
from tests.fixtures.api_world import furnished
from tests.fixtures.serve_process import serving
from tests.fixtures.servers import postgres_server

TIMES = int(os.environ.get("API_ATTACKS", "1"))
REQUESTS = 2_000 if TIMES == 1 else 10_000
"""Of two tenants about each other, in one go."""


def test_no_request_ends_in_a_server_error_and_answers_are_as_declared(tmp_path: Path) -> None:
    worlds = asyncio.run(furnished(tmp_path, "default", "acme"))
    with conformance(tmp_path, worlds["default"], examples=10 * TIMES) as checked:
        checked.check()
    assert not checked.wrong, "\n\n".join(checked.wrong)


@pytest.mark.parametrize("seed", range(1, 1 + TIMES))
async def test_nothing_of_another_tenant_is_told(tmp_path: Path, seed: int) -> None:
    outcome = await fuzz_tenants(tmp_path, requests=REQUESTS, seed=seed)
    assert outcome.wrong == [] and outcome.sent >= REQUESTS


@pytest.mark.parametrize("seed", range(TIMES))
async def test_a_server_that_is_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    with serving(tmp_path, sqlite_url(tmp_path)) as server:
        await Campaign(server, orders=60, kills=4, seed=seed).run()


async def test_a_server_on_postgresql_that_is_killed_again_and_again(tmp_path: Path) -> None:
    with postgres_server.given_or_running() as database:
        store = database.new_store()
        try:
            with serving(tmp_path, store) as server:
                await Campaign(server, orders=60, kills=4, seed=7).run()
        finally:
            database.drop(store)
