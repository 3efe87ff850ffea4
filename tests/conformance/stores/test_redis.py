"""The Redis store: every law, and beside the memory store, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.stores.differential import DifferentialSuite
from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tests.conformance.stores.test_memory import ManualClock, memory_under_test
from tests.fixtures.servers.redis_server import Server
from tidemill.stores.redis.database import place_at
from tidemill.stores.redis.store import RedisStore


async def redis_under_test(url: str) -> StoreUnderTest:
    clock = ManualClock()
    store = RedisStore(place_at(url), clock=clock)
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
        beside=lambda: RedisStore(place_at(url), clock=clock),
    )


class TestRedisStore(StoreConformance):
    @pytest_asyncio.fixture
    async def sut(self, redis: Server) -> AsyncIterator[StoreUnderTest]:
        sut = await redis_under_test(redis.emptied_store())
        yield sut
        await sut.store.close()


class TestRedisBesideMemory(DifferentialSuite):
    seeds = range(24)

    @pytest.fixture(autouse=True)
    def place(self, redis: Server) -> None:
        self.server = redis

    async def pair(self) -> tuple[StoreUnderTest, StoreUnderTest]:
        return memory_under_test(), await redis_under_test(self.server.emptied_store())
