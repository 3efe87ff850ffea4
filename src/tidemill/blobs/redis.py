"""Blobs in the Redis database of a store, so that one database holds everything. They live in its memory.

A blob is stored in pieces under names made of its digest, so writing one twice writes the same. It becomes active
before its pieces are written: nothing is deleted from active, so no collector takes pieces that are being written. One
whose writer was killed lacks pieces, nothing refers to it, and putting it again completes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Protocol

from tidemill.blobs.contract import RENEW_MS, BlobInfo, BlobsInPieces, Listing, blob_info, count_pieces, missing
from tidemill.errors import Unavailable

Argument = bytes | str | int


class KeySpace(Protocol):
    """One of the parts of a database, in which keys may be used together."""

    def key(self, name: bytes) -> bytes: ...

    async def call(self, *command: Argument) -> Any:
        """Send a command that may be repeated."""

    async def run(self, script: str, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Any: ...


class KeySpaces(Protocol):
    async def every(self) -> Sequence[KeySpace]: ...

    async def of(self, name: str) -> KeySpace:
        """The part for a name, always the same."""

    async def close(self) -> None: ...


class RedisBlobs(BlobsInPieces):
    """A `Blobs` in a database."""

    def __init__(self, connect: Callable[[], KeySpaces]) -> None:
        self._connect = connect
        self._spaces: KeySpaces | None = None

    async def open(self) -> None:
        if self._spaces is None:
            self._spaces = self._connect()

    async def close(self) -> None:
        spaces, self._spaces = self._spaces, None
        if spaces is not None:
            await spaces.close()

    async def _put(self, tenant: str, digest: str, size: int, pieces: Iterator[bytes], keep: bool) -> None:
        space = await self._opened().of(digest)
        field = _field(tenant, digest)
        arguments = (field, size, int(keep), RENEW_MS)
        before = await space.run("blob_put", (space.key(b"blobs"), space.key(b"index")), arguments)
        if before == size and await _is_sound(space, field, size, digest):
            return
        for number, piece in enumerate(pieces):
            await space.call("SET", _piece(space, field, number), piece)

    async def _chunks(self, tenant: str, digest: str, first: int = 0) -> AsyncIterator[bytes]:
        space, field = await self._opened().of(digest), _field(tenant, digest)
        found = await space.call("HGET", space.key(b"blobs"), field)
        if found is None:
            raise missing(digest)
        for number in range(first, count_pieces(_info(digest, found).size)):
            piece: bytes | None = await space.call("GET", _piece(space, field, number))
            if piece is None:
                raise missing(digest)
            yield piece

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        space = await self._opened().of(digest)
        found = await space.call("HGET", space.key(b"blobs"), _field(tenant, digest))
        return None if found is None else _info(digest, found)

    async def tenants(self) -> tuple[str, ...]:
        names: set[bytes] = set()
        for space in await self._opened().every():
            start = b"-"
            while found := await space.call("ZRANGEBYLEX", space.key(b"index"), start, "+", "LIMIT", 0, 1):
                name = found[0][: found[0].index(b"\0")]
                names.add(name)
                start = b"(" + name + b"\x01"
        return tuple(sorted(name.decode() for name in names))

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        start = b"(" + _field(tenant, after or "")
        infos: Listing = []
        for space in await self._opened().every():
            to = b"(" + tenant.encode() + b"\x01"
            fields = await space.call("ZRANGEBYLEX", space.key(b"index"), start, to, "LIMIT", 0, limit)
            if fields:
                found = await space.call("HMGET", space.key(b"blobs"), *fields)
                names = (field.partition(b"\0")[2].decode() for field in fields)
                infos += [_info(name, each) for name, each in zip(names, found, strict=True) if each is not None]
        return sorted(infos, key=lambda info: info.digest)[:limit]

    async def quarantine(self, tenant: str, digest: str) -> None:
        await self._move(tenant, digest, 0, 1)

    async def restore(self, tenant: str, digest: str) -> bool:
        return await self._move(tenant, digest, 1, 0)

    async def _move(self, tenant: str, digest: str, before: int, after: int) -> bool:
        space = await self._opened().of(digest)
        return bool(await space.run("blob_move", (space.key(b"blobs"),), (_field(tenant, digest), before, after)))

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        info = await self.stat(tenant, digest)
        if info is None:
            return False
        space, field = await self._opened().of(digest), _field(tenant, digest)
        pieces = (_piece(space, field, number) for number in range(count_pieces(info.size)))
        keys = (space.key(b"blobs"), space.key(b"index"), *pieces)
        return bool(await space.run("blob_delete", keys, (field, before_ms)))

    def _opened(self) -> KeySpaces:
        if self._spaces is None:
            raise Unavailable("the blobs in the database are closed")
        return self._spaces


async def _is_sound(space: KeySpace, field: bytes, size: int, digest: str) -> bool:
    seen = hashlib.sha256()
    for number in range(count_pieces(size)):
        piece = await space.call("GET", _piece(space, field, number))
        if piece is None:
            return False
        seen.update(piece)
    return f"sha256:{seen.hexdigest()}" == digest


def _field(tenant: str, digest: str) -> bytes:
    return tenant.encode() + b"\0" + digest.encode()


def _piece(space: KeySpace, field: bytes, number: int) -> bytes:
    return space.key(b"b:" + field + b":%d" % number)


def _info(digest: str, stored: bytes) -> BlobInfo:
    state, since, size, kept = (int(part) for part in stored.split())
    return blob_info(digest, size, state, since, kept)
