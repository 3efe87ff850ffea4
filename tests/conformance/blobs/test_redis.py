"""Blobs in a Redis database: the laws, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conformance.blobs.laws import BlobLaws, RenewalLaws
from tests.fixtures.servers.redis_server import Server
from tidemill.blobs.redis import RedisBlobs
from tidemill.stores.redis.database import Nodes, place_at
from tidemill.stores.redis.opening import BlobSpaces, enter


@pytest.mark.parametrize("partitions", [1, 3])
class TestRedisBlobs(BlobLaws, RenewalLaws):
    @pytest.fixture
    async def blobs(self, redis: Server, partitions: int) -> AsyncIterator[RedisBlobs]:
        self.server = redis
        place = place_at(redis.emptied_store(partitions=partitions))
        await enter(Nodes(place))
        self.spaces = BlobSpaces(place)
        blobs = RedisBlobs(lambda: self.spaces)
        await blobs.open()
        yield blobs
        await blobs.close()

    def keys(self, pattern: str) -> list[bytes]:
        return list(self.server.client().scan_iter(pattern))

    async def age(self, blobs: RedisBlobs, digest: str, since_ms: int) -> None:
        with self.server.client() as client:
            for key in client.scan_iter("*:blob:blobs"):
                for field, stored in client.hgetall(key).items():
                    if field.endswith(digest.encode()):
                        state, _, size, kept = stored.split()
                        client.hset(key, field, b"%b %d %b %b" % (state, since_ms, size, kept))

    async def spoil(self, blobs: RedisBlobs, digest: str, body: bytes) -> None:
        with self.server.client() as client:
            for key in client.scan_iter(f"*{digest}:*"):
                client.set(key, body)
