"""The blob contract: values too large for a record, stored once per tenant under the sha256 of their bytes.

A blob never changes and is put before anything refers to it. An unreferenced blob is removed in two steps: it moves
from *active* to *grace* and is deleted from there a day later. Putting it again moves it back to active, and nothing is
ever deleted from active, so writers and the collector cannot conflict in any order.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import IO, Literal, Protocol, TypeGuard

import msgspec

from tidemill.errors import Problem, StoreUnusable, Unavailable

BlobState = Literal["active", "grace"]
ACTIVE: BlobState = "active"
GRACE: BlobState = "grace"
STORES = ".stores"
"""The folder of the markers of stores. No tenant's folder has a dot in its name."""
PIECE_BYTES = 1024 * 1024
"""Chunk size of streamed blobs."""
RENEW_MS = 10 * 60 * 1000
"""Putting a blob again renews a date that is older than this: well below the age at which the collector considers a
blob, and it saves writes for blobs that are put all the time."""

DIGEST_PREFIX = b"sha256:"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ADDRESS = re.compile(rb"sha256:[0-9a-f]{64}")
DIGEST_LENGTH = 71
MARKED = b'"$blob"'
"""Contained in every text that describes a file. A search for it is the fast check, because nearly no text does."""
_DESCRIBED = re.compile(rb'"\$blob":"(sha256:[0-9a-f]{64})"')
DESCRIBED_LENGTH = len(MARKED) + len(b':""') + DIGEST_LENGTH
"""Length of what `files_in` looks for: a chunked reader overlaps its chunks by this much."""


class BlobInfo(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    digest: str
    size: int
    since_ms: int
    """When it entered its state, by the clock of the blob store."""
    state: BlobState = ACTIVE
    kept: bool = False
    """Never collected."""
    used_by: tuple[str, ...] = ()
    """The first few that refer to it: `run ID` or `workflow NAME`; blob stores do not know."""


class BlobMissing(StoreUnusable):
    """The bytes of a digest are missing; an operator may bring them back."""


class BlobDamaged(StoreUnusable):
    """The bytes do not match their digest."""


Listing = list[BlobInfo]


def digest_of(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()


def digests_in(text: bytes) -> set[str]:
    return {found.decode() for found in _ADDRESS.findall(text)}


def files_in(text: bytes) -> list[str]:
    """The digests of the files that a text describes."""
    return sorted({found.decode() for found in _DESCRIBED.findall(text)})


def is_digest(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def hex_of(digest: str) -> str:
    """The hex digits of a digest. Paths contain nothing else, so no digest leads out of its folder."""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise missing(digest)
    return found.group(1)


def missing(digest: str) -> BlobMissing:
    hint = "put the same bytes back, or restore it from a backup"
    return BlobMissing(Problem(code="blob_missing", message=f"blob {digest} is missing", hint=hint))


def damaged(digest: str) -> BlobDamaged:
    hint = "restore it from a backup"
    return BlobDamaged(Problem(code="blob_damaged", message=f"blob {digest} is damaged", hint=hint))


async def whole(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def verified(digest: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pass chunks through; raises at the end if they do not match the digest."""
    seen = hashlib.sha256()
    async for chunk in chunks:
        seen.update(chunk)
        yield chunk
    if f"sha256:{seen.hexdigest()}" != digest:
        raise damaged(digest)


class Blobs(Protocol):
    """A blob store. Failures of the environment are `Unavailable` with a one-line reason."""

    async def open(self) -> None:
        """Open; idempotent. Does not fail if the folder or bucket is unreachable: the methods that need it do."""

    async def close(self) -> None:
        """Close; idempotent."""

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        """Store bytes durably and return their digest; idempotent. `keep` exempts them from garbage collection.

        An existing blob counts as stored now (see `RENEW_MS`), so that the collector spares it until the event that
        refers to it is written. It is verified, and replaced if damaged.
        """

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        """`put` for a stream that need not fit into memory; returns digest and size."""

    async def get(self, tenant: str, digest: str) -> bytes:
        """The verified bytes of a digest. Raises `Unavailable` if they are missing or damaged."""

    def read(self, tenant: str, digest: str, *, start: int = 0) -> AsyncIterator[bytes]:
        """`get` as a stream; damage is raised at the end.

        From byte `start` on, which is below the size, without reading those before it; a part is not verified.
        """

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        """Metadata of a blob, if it exists. One that is in both states is active."""

    async def tenants(self) -> tuple[str, ...]:
        """The tenants that have blobs, in order."""

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        """At most `limit` digests after `after`, in order. A blob in both states is listed twice, active first."""

    async def quarantine(self, tenant: str, digest: str) -> None:
        """Move from active to grace, unless it is kept or not active."""

    async def restore(self, tenant: str, digest: str) -> bool:
        """Move from grace to active; False if it is not in grace."""

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        """Delete it if it entered grace before that time and is not kept. Never touches active blobs."""


class BlobsInPieces(ABC):
    """What the `Blobs` in databases have in common: a blob is stored in pieces, which need little memory."""

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        digest = digest_of(body)
        pieces = (body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))
        await self._put(tenant, digest, len(body), pieces, keep)
        return digest

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        async with spooled(chunks) as draft:
            await self._put(tenant, draft.digest, draft.size, draft.pieces(), keep)
            return draft.digest, draft.size

    async def get(self, tenant: str, digest: str) -> bytes:
        return await whole(self.read(tenant, digest))

    def read(self, tenant: str, digest: str, *, start: int = 0) -> AsyncIterator[bytes]:
        return verified(digest, self._chunks(tenant, digest)) if not start else self._from(tenant, digest, start)

    async def _from(self, tenant: str, digest: str, start: int) -> AsyncIterator[bytes]:
        first, skipped = divmod(start, PIECE_BYTES)
        async for piece in self._chunks(tenant, digest, first):
            yield piece[skipped:]
            skipped = 0

    @abstractmethod
    async def _put(self, tenant: str, digest: str, size: int, pieces: Iterator[bytes], keep: bool) -> None:
        """Write a blob, or renew one that exists and is sound."""

    @abstractmethod
    def _chunks(self, tenant: str, digest: str, first: int = 0) -> AsyncIterator[bytes]:
        """The pieces of a blob as they are stored, from number `first` on."""


def count_pieces(size: int) -> int:
    return -(-size // PIECE_BYTES)


def blob_info(digest: str, size: int, state: int, since_ms: int, kept: int) -> BlobInfo:
    """A blob as databases store it: 0 is active, 1 is grace."""
    return BlobInfo(digest=digest, size=size, state=GRACE if state else ACTIVE, since_ms=since_ms, kept=bool(kept))


class ExternalBlobPlace(Protocol):
    """A blob location outside the store: a store could be given a wrong one, or several stores could share it."""

    @property
    def address(self) -> str:
        """An absolute URL."""

    async def tenants(self) -> tuple[str, ...]:
        """As in `Blobs`."""

    async def read_markers(self) -> dict[str, str]:
        """The markers that stores have written here, each with its text."""

    def mark_path(self, mark: str) -> str:
        """The path of a marker, for people who want to remove it."""

    async def write_marker(self, mark: str, words: str) -> None:
        """Write a marker durably; idempotent."""


# Spooling, for blob stores that need the digest before the first byte


class Spooled:
    """A stream read to its end, with its digest."""

    def __init__(self, file: IO[bytes], digest: str, size: int) -> None:
        self.file, self.digest, self.size = file, digest, size

    def pieces(self) -> Iterator[bytes]:
        self.file.seek(0)
        while piece := self.file.read(PIECE_BYTES):
            yield piece


@asynccontextmanager
async def spooled(chunks: AsyncIterator[bytes]) -> AsyncIterator[Spooled]:
    """Read a stream into a temporary file, or into memory if it is short, that exists within the block."""
    with tempfile.SpooledTemporaryFile(8 * PIECE_BYTES) as file:
        seen, size = hashlib.sha256(), 0
        async for chunk in chunks:
            seen.update(chunk)
            size += len(chunk)
            try:
                await asyncio.to_thread(file.write, chunk)
            except OSError as error:
                raise Unavailable(f"no room to buffer a stream: {error.strerror or error}") from error
        yield Spooled(file, f"sha256:{seen.hexdigest()}", size)
