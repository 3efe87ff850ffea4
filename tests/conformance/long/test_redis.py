"""The Redis store: every law by the server's own clock, and on a cluster of three."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tests.conformance.stores.test_redis import redis_under_test
from tests.fixtures.servers.redis_server import Server
from tidemill.stores.redis.database import place_at
from tidemill.stores.redis.store import RedisStore


class TestRedisStoreInRealTime(StoreConformance):
    """The same laws by the server's clock."""

    @pytest_asyncio.fixture
    async def sut(self, redis: Server) -> AsyncIterator[StoreUnderTest]:
        url = redis.emptied_store()
        store = RedisStore(place_at(url))
        await store.open()

        async def advance(ms: int) -> None:
            await asyncio.sleep(ms / 1000)

        yield StoreUnderTest(store=store, advance=advance, settle_ms=40, beside=lambda: RedisStore(place_at(url)))
        await store.close()


class TestRedisCluster(StoreConformance):
    """Every law on a cluster: a store of one partition lives on one of its nodes."""

    @pytest_asyncio.fixture
    async def sut(self, redis_cluster: list[Server]) -> AsyncIterator[StoreUnderTest]:
        sut = await redis_under_test(emptied(redis_cluster))
        yield sut
        await sut.store.close()


def emptied(nodes: list[Server], **options: object) -> str:
    for node in nodes:
        node.asked("FLUSHALL")
    # Any node tells where the others are.
    return nodes[1].new_store(**options)
