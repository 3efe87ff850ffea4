"""Blobs in this process's memory: for the memory store and for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from tidemill.ambient import wall_clock_ms
from tidemill.blobs.contract import (
    ACTIVE,
    GRACE,
    RENEW_MS,
    BlobInfo,
    BlobState,
    Listing,
    damaged,
    digest_of,
    missing,
    whole,
)

Place = tuple[str, str]
"""A tenant and a digest."""


class MemoryBlobs:
    """A `Blobs` in a dict. No method suspends."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or wall_clock_ms
        self._held: dict[Place, bytes] = {}
        self._states: dict[Place, tuple[BlobState, int]] = {}
        self._kept: set[Place] = set()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Blobs stay for the next `open`."""

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        digest = digest_of(body)
        place = (tenant, digest)
        if keep:
            self._kept.add(place)
        self._held[place] = body
        now_ms = self._clock()
        state, since_ms = self._states.get(place, (GRACE, 0))
        if state == GRACE or since_ms < now_ms - RENEW_MS:
            self._states[place] = (ACTIVE, now_ms)
        return digest

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        body = await whole(chunks)
        return await self.put(tenant, body, keep=keep), len(body)

    async def get(self, tenant: str, digest: str) -> bytes:
        body = self._held.get((tenant, digest))
        if body is None:
            raise missing(digest)
        if digest_of(body) != digest:
            raise damaged(digest)
        return body

    async def read(self, tenant: str, digest: str, *, start: int = 0) -> AsyncIterator[bytes]:
        yield (await self.get(tenant, digest))[start:]

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        place = (tenant, digest)
        body = self._held.get(place)
        if body is None:
            return None
        state, since_ms = self._states.get(place, (ACTIVE, 0))
        return BlobInfo(digest=digest, size=len(body), since_ms=since_ms, state=state, kept=place in self._kept)

    async def tenants(self) -> tuple[str, ...]:
        return tuple(sorted({tenant for tenant, _ in self._held}))

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        digests = sorted(digest for owner, digest in self._held if owner == tenant and digest > (after or ""))
        found = [await self.stat(tenant, digest) for digest in digests[:limit]]
        return [info for info in found if info is not None]

    async def quarantine(self, tenant: str, digest: str) -> None:
        place = (tenant, digest)
        if place not in self._kept and self._states.get(place, (GRACE, 0))[0] == ACTIVE:
            self._states[place] = (GRACE, self._clock())

    async def restore(self, tenant: str, digest: str) -> bool:
        if self._states.get((tenant, digest), (ACTIVE, 0))[0] != GRACE:
            return False
        self._states[tenant, digest] = (ACTIVE, self._clock())
        return True

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        place = (tenant, digest)
        state, since_ms = self._states.get(place, (ACTIVE, 0))
        if state != GRACE or since_ms >= before_ms or place in self._kept:
            return False
        del self._held[place], self._states[place]
        return True
