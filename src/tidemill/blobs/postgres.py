"""Blobs in the PostgreSQL database of a store, so that one database holds everything.

The state is a column and every method is one transaction. A blob is stored in pieces, so reading and writing need
little memory. The store's migrations create the tables, so the store is opened first; the clock is the server's.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from tidemill.blobs.contract import RENEW_MS, BlobInfo, BlobsInPieces, Listing, blob_info, count_pieces, missing
from tidemill.errors import Rejected, StoreUnusable, Unavailable

Rows = list[tuple[Any, ...]]
Fetch = Callable[..., Awaitable[Rows]]

_FIND = "SELECT id, size, state, since_ms, kept FROM blobs WHERE tenant = %s AND digest = %s"
_LIST = """SELECT digest, size, state, since_ms, kept FROM blobs
    WHERE tenant = %s AND digest > %s ORDER BY digest LIMIT %s"""
_TENANTS = "SELECT DISTINCT tenant FROM blobs ORDER BY tenant"
_RESTORE = """UPDATE blobs SET state = 0, since_ms = clock_ms(NULL)
    WHERE tenant = %s AND digest = %s AND state = 1 RETURNING id"""
_RENEW = f"""UPDATE blobs SET since_ms = CASE WHEN state = 1 OR since_ms < clock_ms(NULL) - {RENEW_MS}
        THEN clock_ms(NULL) ELSE since_ms END, state = 0, kept = greatest(kept, %s)
    WHERE tenant = %s AND digest = %s RETURNING id, size"""
_ADD = """INSERT INTO blobs (tenant, digest, size, since_ms, kept) VALUES (%s, %s, %s, clock_ms(NULL), %s)
    ON CONFLICT DO NOTHING RETURNING id"""
_RESIZE = "UPDATE blobs SET size = %s WHERE id = %s"
_ADD_PIECE = "INSERT INTO blob_pieces (blob, number, tenant, body) VALUES (%s, %s, %s, %s)"
_PIECE = "SELECT body FROM blob_pieces WHERE blob = %s AND number = %s"
_DELETE_PIECES = "DELETE FROM blob_pieces WHERE blob = %s"
_QUARANTINE = """UPDATE blobs SET state = 1, since_ms = clock_ms(NULL)
    WHERE tenant = %s AND digest = %s AND state = 0 AND kept = 0"""
_DELETE = """DELETE FROM blobs
    WHERE tenant = %s AND digest = %s AND state = 1 AND kept = 0 AND since_ms < %s RETURNING id"""


class Connections(Protocol):
    """A few connections to the database, replaced after a cut."""

    def transaction(self, *, tenant: str | None = None) -> AbstractAsyncContextManager[Fetch]: ...

    async def fetch(self, statement: str, values: Any = (), *, tenant: str | None = None) -> Rows: ...

    async def close(self) -> None: ...


class PostgresBlobs(BlobsInPieces):
    """A `Blobs` in a database."""

    def __init__(self, connect: Callable[[], Connections]) -> None:
        self._connect = connect
        self._connections: Connections | None = None

    async def open(self) -> None:
        if self._connections is None:
            self._connections = self._connect()

    async def close(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    async def _put(self, tenant: str, digest: str, size: int, pieces: Iterator[bytes], keep: bool) -> None:
        with _for_operators():
            async with self._opened().transaction(tenant=tenant) as fetch:
                added = await fetch(_ADD, (tenant, digest, size, int(keep)))
                if added:
                    ((blob,),) = added
                else:
                    ((blob, stored),) = await fetch(_RENEW, (int(keep), tenant, digest))
                    if await _is_sound(fetch, blob, stored, digest):
                        return
                    await fetch(_DELETE_PIECES, (blob,))
                    await fetch(_RESIZE, (size, blob))
                for number, piece in enumerate(pieces):
                    await fetch(_ADD_PIECE, (blob, number, tenant, piece))

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        found = await self._fetch(tenant, _FIND, tenant, digest)
        return blob_info(digest, *found[0][1:]) if found else None

    async def tenants(self) -> tuple[str, ...]:
        return tuple(str(tenant) for (tenant,) in await self._fetch(None, _TENANTS))

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        return [blob_info(*row) for row in await self._fetch(tenant, _LIST, tenant, after or "", limit)]

    async def quarantine(self, tenant: str, digest: str) -> None:
        await self._fetch(tenant, _QUARANTINE, tenant, digest)

    async def restore(self, tenant: str, digest: str) -> bool:
        return bool(await self._fetch(tenant, _RESTORE, tenant, digest))

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        return bool(await self._fetch(tenant, _DELETE, tenant, digest, before_ms))

    def _opened(self) -> Connections:
        if self._connections is None:
            raise Unavailable("the blobs in the database are closed")
        return self._connections

    async def _fetch(self, tenant: str | None, statement: str, *values: object) -> Rows:
        with _for_operators():
            return await self._opened().fetch(statement, values, tenant=tenant)

    async def _chunks(self, tenant: str, digest: str, first: int = 0) -> AsyncIterator[bytes]:
        found = await self._fetch(tenant, _FIND, tenant, digest)
        if not found:
            raise missing(digest)
        blob, size, *_ = found[0]
        for number in range(first, count_pieces(size)):
            piece = await self._fetch(tenant, _PIECE, blob, number)
            if not piece:
                raise missing(digest)
            body: bytes = piece[0][0]
            yield body


class _for_operators:  # noqa: N801 - it is used like a function.
    """A refusal of the database becomes `StoreUnusable`, for which work waits: a refusal would fail runs."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Rejected):
            raise StoreUnusable(error.problems[0]) from error


async def _is_sound(fetch: Fetch, blob: int, size: int, digest: str) -> bool:
    seen = hashlib.sha256()
    for number in range(count_pieces(size)):
        piece = await fetch(_PIECE, (blob, number))
        if not piece:
            return False
        seen.update(piece[0][0])
    return f"sha256:{seen.hexdigest()}" == digest
