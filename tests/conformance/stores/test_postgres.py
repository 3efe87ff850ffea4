"""The PostgreSQL store: every law, and beside the memory store, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.stores.differential import DifferentialSuite
from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tests.conformance.stores.test_memory import ManualClock, memory_under_test
from tests.fixtures.servers.postgres_server import Server
from tidemill.stores.postgres.database import place_at
from tidemill.stores.postgres.store import PostgresStore


async def postgres_under_test(url: str) -> StoreUnderTest:
    clock = ManualClock()
    store = PostgresStore(place_at(url), clock=clock)
    await store.open()

    async def advance(ms: int) -> None:
        clock.now += ms
        store.notify_all()
        await asyncio.sleep(0.005)

    return StoreUnderTest(
        store=store,
        advance=advance,
        exact_times=True,
        settle_ms=40,
        beside=lambda: PostgresStore(place_at(url), clock=clock),
    )


class TestPostgresStore(StoreConformance):
    @pytest_asyncio.fixture
    async def sut(self, postgres: Server) -> AsyncIterator[StoreUnderTest]:
        url = postgres.emptied_store()
        sut = await postgres_under_test(url)
        yield sut
        await sut.store.close()


class TestPostgresBesideMemory(DifferentialSuite):
    seeds = range(24)

    @pytest.fixture(autouse=True)
    def place(self, postgres: Server) -> None:
        self.server = postgres

    async def pair(self) -> tuple[StoreUnderTest, StoreUnderTest]:
        return memory_under_test(), await postgres_under_test(self.server.emptied_store())
