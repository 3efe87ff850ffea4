"""Blobs by content: put before anything refers to them, once per tenant, and checked when they are read."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from tidemill.blobs.contract import Blobs, digest_of
from tidemill.blobs.local import MemoryBlobs
from tidemill.errors import Unavailable


async def test_what_was_put_can_be_got() -> None:
    blobs: Blobs = MemoryBlobs()
    for body in (b"", b"x", bytes(range(256)) * 1_000):
        digest = await blobs.put("acme", body)
        assert digest == "sha256:" + hashlib.sha256(body).hexdigest() == digest_of(body)
        assert await blobs.get("acme", digest) == body


async def test_equal_bytes_are_stored_once() -> None:
    blobs = MemoryBlobs()
    digests = await asyncio.gather(*(blobs.put("acme", b"same") for _ in range(10)))
    assert len(set(digests)) == 1
    assert len(blobs._held) == 1


async def test_a_tenant_does_not_see_another_s_blobs() -> None:
    blobs = MemoryBlobs()
    digest = await blobs.put("acme", b"secret")
    with pytest.raises(Unavailable):
        await blobs.get("rival", digest)
    assert await blobs.put("rival", b"secret") == digest
    assert await blobs.get("rival", digest) == b"secret"


async def test_missing_and_damaged_blobs_are_the_environment_s_fault() -> None:
    blobs = MemoryBlobs()
    with pytest.raises(Unavailable, match="missing"):
        await blobs.get("acme", digest_of(b"never put"))
    digest = await blobs.put("acme", b"whole")
    blobs._held["acme", digest] = b"damaged"
    with pytest.raises(Unavailable, match="damaged"):
        await blobs.get("acme", digest)


async def test_a_blob_never_changes() -> None:
    blobs = MemoryBlobs()
    body = bytearray(b"mutable")
    digest = await blobs.put("acme", bytes(body))
    body[0] = 0
    assert await blobs.get("acme", digest) == b"mutable"
