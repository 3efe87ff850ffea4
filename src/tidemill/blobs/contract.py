"""Blobs protocol, digests, two-phase deletion, spooling.

Values by content: what is too large for a record is stored under the sha256 of its bytes.

A blob never changes and is put before anything refers to it, so a fact never points to a missing blob.
Putting the same bytes twice stores them once per tenant.

A blob that nothing refers to any more is taken away in two steps, and the two states are two *places*: it is moved
from the active place to the grace place, and deleted from there a day later. Whoever puts it meanwhile gets it
back into the active place, and nobody ever deletes from that one; so a writer and the collector cannot hurt each
other, whatever the order in which they act.

A stream set aside on the disk until its end is known, for stores that need the digest before the first byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import IO, Literal, Protocol

import msgspec

from tidemill.errors import Problem, StoreUnusable, Unavailable

BlobState = Literal["active", "grace"]
ACTIVE: BlobState = "active"
GRACE: BlobState = "grace"
STORES = ".stores"
"""Where stores leave their marks. No tenant has a folder of this name, because a dot is never part of one."""
PIECE_BYTES = 1024 * 1024
"""How much of a blob is in memory at a time when it is streamed."""
RENEW_MS = 10 * 60 * 1000
"""A date that is older than this is renewed when the blob is put again. It is well below the age at which a collector
begins to look at a blob, and saves a write for those that are put all the time."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ADDRESS = re.compile(rb"sha256:[0-9a-f]{64}")
DIGEST_LENGTH = 71


class BlobInfo(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is known of a blob without reading it."""

    digest: str
    size: int
    since_ms: int
    """When it came to where it is, by the clock of whoever keeps it."""
    state: BlobState = ACTIVE
    kept: bool = False
    """It is never collected."""


class BlobMissing(StoreUnusable):
    """The bytes behind a digest are not there. Somebody may still bring them back."""


class BlobDamaged(StoreUnusable):
    """The bytes behind a digest are others."""


Listing = list[BlobInfo]


def digest_of(body: bytes) -> str:
    """The address of a blob."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def digests_in(text: bytes) -> set[str]:
    """Every address that stands in a text, whatever it means there."""
    return {found.decode() for found in _ADDRESS.findall(text)}


def is_digest(text: object) -> bool:
    """Whether a text can be the address of a blob."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def hex_of(digest: str) -> str:
    """The digits of a digest. Nothing else becomes part of a path, so no address leads out of its place."""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise missing(digest)
    return found.group(1)


def missing(digest: str) -> BlobMissing:
    """What is said of a blob that is not there."""
    hint = "put the same bytes back, or restore it from a backup"
    return BlobMissing(Problem(code="blob_missing", message=f"blob {digest} is missing", hint=hint))


def damaged(digest: str) -> BlobDamaged:
    """What is said of a blob whose bytes are not those of its digest."""
    hint = "restore it from a backup"
    return BlobDamaged(Problem(code="blob_damaged", message=f"blob {digest} is damaged", hint=hint))


async def whole(chunks: AsyncIterator[bytes]) -> bytes:
    """Everything that a stream brings, in one piece."""
    return b"".join([chunk async for chunk in chunks])


async def verified(digest: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same chunks; raises at the end when together they are not what the digest says."""
    seen = hashlib.sha256()
    async for chunk in chunks:
        seen.update(chunk)
        yield chunk
    if f"sha256:{seen.hexdigest()}" != digest:
        raise damaged(digest)


class Blobs(Protocol):
    """Where blobs are kept. An environment that does not play along is `Unavailable`, in one line that says why."""

    async def open(self) -> None:
        """Make ready; idempotent.

        A folder or bucket that cannot be reached right now is no reason to fail: lists and logs can be read without
        it. The verbs that need the place say so, and work again once it is back.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; idempotent."""
        ...

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        """Store bytes durably and return their digest; idempotent. `keep` exempts them from collection for good.

        Bytes that are there already count as stored now (see `RENEW_MS`), so that a collector leaves them alone until
        the fact that refers to them is written. They are looked at: those that are damaged are replaced.
        """
        ...

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        """The same for bytes that come bit by bit and need not fit into memory; answers digest and size."""
        ...

    async def get(self, tenant: str, digest: str) -> bytes:
        """The bytes behind a digest, verified against it. Raises `Unavailable` when they are missing or damaged."""
        ...

    def read(self, tenant: str, digest: str) -> AsyncIterator[bytes]:
        """The same bit by bit; that they are damaged can only be known at the end, and is raised there."""
        ...

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        """What is known of a blob; None when there is none. One that is in both places is active."""
        ...

    async def tenants(self) -> tuple[str, ...]:
        """Everybody who has blobs here, in order."""
        ...

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        """Blobs with digests behind `after`, at most `limit` digests, in their order.

        One that is in both places is listed twice, active first.
        """
        ...

    async def quarantine(self, tenant: str, digest: str) -> None:
        """From active to grace, from now on; nothing when it is kept or not active."""
        ...

    async def restore(self, tenant: str, digest: str) -> bool:
        """From grace to active; false when it is not in grace, because it is active or because it is gone."""
        ...

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        """Remove it from grace if it came there before that moment and is not kept. What is active is never touched."""
        ...


class ExternalBlobPlace(Protocol):
    """A place for blobs that is no part of a store: it can be mistaken for another one, and several could share it."""

    @property
    def address(self) -> str:
        """What it is called, the same wherever it is called from."""
        ...

    async def tenants(self) -> tuple[str, ...]:
        """As in `Blobs`."""
        ...

    async def read_markers(self) -> dict[str, str]:
        """The marks that stores have left here, each with the words that say whose it is."""
        ...

    def mark_path(self, mark: str) -> str:
        """Where a mark is, for people who want to remove it."""
        ...

    async def write_marker(self, mark: str, words: str) -> None:
        """Leave a mark, durably; idempotent."""
        ...


MEMORY_BYTES_MAX = 8 * PIECE_BYTES
"""What is not longer than this never sees the disk."""


class Spooled:
    """A stream that has ended: what it is called, and its bytes once more from the beginning."""

    def __init__(self, file: IO[bytes], digest: str, size: int) -> None:
        self.file, self.digest, self.size = file, digest, size

    def pieces(self) -> Iterator[bytes]:
        """The bytes, bit by bit."""
        self.file.seek(0)
        while piece := self.file.read(PIECE_BYTES):
            yield piece


@asynccontextmanager
async def spooled(chunks: AsyncIterator[bytes]) -> AsyncIterator[Spooled]:
    """Take in a stream; it is gone when the block is left."""
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX) as file:
        seen, size = hashlib.sha256(), 0
        async for chunk in chunks:
            seen.update(chunk)
            size += len(chunk)
            try:
                await asyncio.to_thread(file.write, chunk)
            except OSError as error:
                raise Unavailable(f"no room to set a stream aside: {error.strerror or error}") from error
        yield Spooled(file, f"sha256:{seen.hexdigest()}", size)
