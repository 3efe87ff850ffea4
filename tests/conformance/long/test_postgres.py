"""The PostgreSQL store: every law by the server's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from tests.conformance.stores.harness import LONG_MS, job
from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tests.fixtures.servers.postgres_server import Server
from tidemill.stores.contract import Claim, Commit, Stream
from tidemill.stores.postgres.database import place_at
from tidemill.stores.postgres.store import PostgresStore


class TestPostgresStoreInRealTime(StoreConformance):
    """The same laws by the server's clock."""

    @pytest_asyncio.fixture
    async def sut(self, postgres: Server) -> AsyncIterator[StoreUnderTest]:
        url = postgres.emptied_store()
        store = PostgresStore(place_at(url))
        await store.open()
        # The first calls of a connection take longer than the shortest lease of a test.
        warm = Stream("warm", "run", "up")
        await store.commit([Commit(warm, 0, jobs=(job(), job("b")), keep=("b",))])
        await store.release(await store.claim(Claim(queues=("q",), limit=1, lease_ms=LONG_MS)))
        await store.forget(warm)

        async def advance(ms: int) -> None:
            await asyncio.sleep(ms / 1000)

        yield StoreUnderTest(store=store, advance=advance, settle_ms=40, beside=lambda: PostgresStore(place_at(url)))
        await store.close()
