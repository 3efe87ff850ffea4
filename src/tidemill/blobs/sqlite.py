"""Blobs in the SQLite file of a store, so that one file holds everything.

The state is a column and every method is one transaction, durable once the WAL is synced. A blob is stored in pieces,
so reading and writing need little memory, but one transaction writes all of it and blocks other writers: large blobs
belong in a directory or bucket. The store's migrations create the tables, so the store is opened first.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from tidemill.ambient import wall_clock_ms
from tidemill.blobs.contract import RENEW_MS, BlobInfo, BlobsInPieces, Listing, blob_info, count_pieces, missing
from tidemill.errors import Rejected, StoreUnusable, TidemillError, Unavailable

T = TypeVar("T")

Row = tuple[Any, ...]
Trouble = apsw.Error | UnicodeDecodeError | OSError

_FIND = "SELECT id, size, state, since_ms, kept FROM blobs WHERE tenant = ? AND digest = ?"
_LIST = """SELECT digest, size, state, since_ms, kept FROM blobs
    WHERE tenant = ? AND digest > ? ORDER BY digest LIMIT ?"""
_WAKE = "UPDATE blobs SET state = 0, since_ms = ? WHERE tenant = ? AND digest = ? AND state = 1 RETURNING id"
_RENEW = """UPDATE blobs SET state = 0, since_ms = ?
    WHERE tenant = ? AND digest = ? AND (state = 1 OR since_ms < ?)"""
_KEEP = "UPDATE blobs SET kept = 1 WHERE tenant = ? AND digest = ?"
_ADD = "INSERT INTO blobs (tenant, digest, size, since_ms, kept) VALUES (?, ?, ?, ?, ?) RETURNING id"
_RESIZE = "UPDATE blobs SET size = ? WHERE id = ?"
_ADD_PIECE = "INSERT INTO blob_pieces (blob, number, body) VALUES (?, ?, ?)"
_PIECE = "SELECT body FROM blob_pieces WHERE blob = ? AND number = ?"
_RETIRE = "UPDATE blobs SET state = 1, since_ms = ? WHERE tenant = ? AND digest = ? AND state = 0 AND kept = 0"
_DELETE = """DELETE FROM blobs
    WHERE tenant = ? AND digest = ? AND state = 1 AND kept = 0 AND since_ms < ? RETURNING id"""
_DELETE_PIECES = "DELETE FROM blob_pieces WHERE blob = ?"


class DatabaseBlobs(BlobsInPieces):
    """A `Blobs` in a SQLite file, with its connection in a thread of its own."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[Path], apsw.Connection],
        translate_error: Callable[[Trouble, Path], TidemillError],
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._path, self._connect_to, self._translate_error = path, connect, translate_error
        self._clock = clock or wall_clock_ms
        self._thread: ThreadPoolExecutor | None = None
        self._connection: apsw.Connection | None = None

    async def open(self) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidemill-blobs")
            await self._ask(self._connect)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            connection, self._connection = self._connection, None
            if connection is not None:
                await asyncio.get_running_loop().run_in_executor(thread, connection.close)
            thread.shutdown(wait=False)

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        found = await self._ask(partial(self._row, _FIND, (tenant, digest)))
        return None if found is None else blob_info(digest, *found[1:])

    async def tenants(self) -> tuple[str, ...]:
        rows = await self._ask(partial(self._rows, "SELECT DISTINCT tenant FROM blobs ORDER BY tenant", ()))
        return tuple(str(tenant) for (tenant,) in rows)

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        rows = await self._ask(partial(self._rows, _LIST, (tenant, after or "", limit)))
        return [blob_info(*row) for row in rows]

    async def quarantine(self, tenant: str, digest: str) -> None:
        await self._ask(partial(self._row, _RETIRE, (self._clock(), tenant, digest)))

    async def restore(self, tenant: str, digest: str) -> bool:
        return await self._ask(partial(self._row, _WAKE, (self._clock(), tenant, digest))) is not None

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        return await self._ask(partial(self._delete, tenant, digest, before_ms))

    async def _put(self, tenant: str, digest: str, size: int, pieces: Iterator[bytes], keep: bool) -> None:
        await self._ask(partial(self._write, tenant, digest, size, pieces, keep))

    # In the thread

    async def _ask(self, verb: Callable[[], T]) -> T:
        if self._thread is None:
            raise Unavailable(f"the blobs in {self._path} are closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, verb)
        except (apsw.Error, UnicodeDecodeError, OSError) as error:
            # A refusal becomes `StoreUnusable`, for which work waits: a refusal would fail runs.
            meant = self._translate_error(error, self._path)
            raise StoreUnusable(meant.problems[0]) if isinstance(meant, Rejected) else meant from error

    @property
    def _db(self) -> apsw.Connection:
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        connection = self._connect_to(self._path)
        connection.pragma("synchronous", "FULL")
        self._connection = connection

    def _row(self, statement: str, values: Row) -> Row | None:
        rows = self._rows(statement, values)
        return rows[0] if rows else None

    def _rows(self, statement: str, values: Row) -> Sequence[Row]:
        return self._db.execute(statement, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A write transaction. The connection's own context manager would wait for the lock while holding the GIL."""
        self._row("BEGIN IMMEDIATE", ())
        try:
            yield
            self._row("COMMIT", ())
        except BaseException:
            if self._db.in_transaction:
                self._row("ROLLBACK", ())
            raise

    def _write(self, tenant: str, digest: str, size: int, pieces: Iterator[bytes], keep: bool) -> None:
        with self._writing():
            now_ms = self._clock()
            found = self._row(_FIND, (tenant, digest))
            if found is None:
                found = self._row(_ADD, (tenant, digest, size, now_ms, int(keep)))
                assert found is not None
            else:
                self._row(_RENEW, (now_ms, tenant, digest, now_ms - RENEW_MS))
                if keep:
                    self._row(_KEEP, (tenant, digest))
                if self._is_sound(found[0], found[1], digest):
                    return
                self._row(_DELETE_PIECES, (found[0],))
                self._row(_RESIZE, (size, found[0]))
            for number, piece in enumerate(pieces):
                self._row(_ADD_PIECE, (found[0], number, piece))

    def _is_sound(self, blob: int, size: int, digest: str) -> bool:
        seen = hashlib.sha256()
        for number in range(count_pieces(size)):
            piece = self._row(_PIECE, (blob, number))
            if piece is None:
                return False
            seen.update(piece[0])
        return f"sha256:{seen.hexdigest()}" == digest

    def _delete(self, tenant: str, digest: str, before_ms: int) -> bool:
        with self._writing():
            gone = self._row(_DELETE, (tenant, digest, before_ms))
            if gone is not None:
                self._row(_DELETE_PIECES, gone)
        return gone is not None

    async def _chunks(self, tenant: str, digest: str, first: int = 0) -> AsyncIterator[bytes]:
        found = await self._ask(partial(self._row, _FIND, (tenant, digest)))
        if found is None:
            raise missing(digest)
        blob, size, *_ = found
        for number in range(first, count_pieces(size)):
            piece = await self._ask(partial(self._row, _PIECE, (blob, number)))
            if piece is None:
                raise missing(digest)
            body: bytes = piece[0]
            yield body
