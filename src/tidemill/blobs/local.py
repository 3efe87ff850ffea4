"""Blobs kept in this process: for the memory store and for tests."""

from __future__ import annotations

from tidemill.blobs.contract import digest_of
from tidemill.errors import Unavailable


class MemoryBlobs:
    """A dict from (tenant, digest) to bytes."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], bytes] = {}

    async def put(self, tenant: str, body: bytes) -> str:
        digest = digest_of(body)
        self._held.setdefault((tenant, digest), body)
        return digest

    async def get(self, tenant: str, digest: str) -> bytes:
        body = self._held.get((tenant, digest))
        if body is None:
            raise Unavailable(f"blob {digest} is missing")
        if digest_of(body) != digest:
            raise Unavailable(f"blob {digest} is damaged")
        return body
