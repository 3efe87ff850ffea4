"""Blobs in memory: the laws, and what only memory does."""

from __future__ import annotations

import pytest

from tests.conformance.blobs.laws import TENANT, BlobLaws, RenewalLaws
from tidemill.blobs.memory import MemoryBlobs
from tidemill.errors import Unavailable


class TestMemoryBlobs(BlobLaws, RenewalLaws):
    @pytest.fixture
    def blobs(self) -> MemoryBlobs:
        return MemoryBlobs()

    async def age(self, blobs: MemoryBlobs, digest: str, since_ms: int) -> None:
        blobs._states[TENANT, digest] = ("active", since_ms)

    async def spoil(self, blobs: MemoryBlobs, digest: str, body: bytes) -> None:
        blobs._held[TENANT, digest] = body


async def test_damaged_bytes_are_not_handed_out() -> None:
    blobs = MemoryBlobs()
    digest = await blobs.put(TENANT, b"whole")
    blobs._held[TENANT, digest] = b"damaged"
    with pytest.raises(Unavailable, match="damaged"):
        await blobs.get(TENANT, digest)


async def test_no_verb_suspends() -> None:
    """The hot path of an engine on the memory store needs no turn of the loop."""
    put = MemoryBlobs().put(TENANT, b"body")
    with pytest.raises(StopIteration):
        put.send(None)


async def test_a_blob_never_changes() -> None:
    blobs = MemoryBlobs()
    body = bytearray(b"mutable")
    digest = await blobs.put(TENANT, bytes(body))
    body[0] = 0
    assert await blobs.get(TENANT, digest) == b"mutable"


async def test_a_damaged_blob_is_not_handed_out() -> None:
    blobs = MemoryBlobs()
    digest = await blobs.put("t", b"good")
    blobs._held["t", digest] = b"evil"
    with pytest.raises(Unavailable, match="damaged"):
        await blobs.get("t", digest)


async def test_a_blob_belongs_to_its_tenant() -> None:
    blobs = MemoryBlobs()
    digest = await blobs.put("t", b"secret")
    with pytest.raises(Unavailable, match="missing"):
        await blobs.get("other", digest)
