"""Group commit: one writer per process, plus a side connection for other threads and the WAL checkpoints.

An operation is a function of a `Transaction`. Operations that arrive while a transaction is being synced share the next
one; if one of them fails, each is repeated in a transaction of its own. Statements run in the loop's thread, because
they are short and a thread hop costs more. The final sync runs in the loop while the disk is fast and in a thread while
it is slow. An answer is given only after the commit is as durable as the caller asked for.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from tidemill.errors import TidemillError, Unavailable
from tidemill.stores.contract import Stream
from tidemill.stores.sql_files import statements
from tidemill.stores.sqlite.database import (
    Execute,
    FileIdentity,
    connect,
    counters_checksum,
    errors_of,
    refuse_migrated,
    roll_back,
    translate_error,
)

SQL = statements("sqlite")
_COUNTERS, _SET_COUNTERS, _ADD_RECORDS = SQL["counters"], SQL["set_counters"], SQL["add_records"]
_ADD_TERM, _REMOVE_TERM = SQL["add_term"], SQL["remove_term"]

STREAMS, PLACES, TOKENS = range(3)
"""The counters, in the order of their columns."""

T = TypeVar("T")

INLINE_SYNC_MS = 1.0
"""Syncs that take no longer than this (smoothed) run in the loop's thread."""
BUSY_WAIT_MS = 15_000
"""How long to wait for another process to finish its transaction."""
GATHERED_MAX = 64
"""Operations per transaction; each may hold many commits."""


class Transaction:
    """What an operation works with. `learned`, `wake_topics` and `touched` take effect only after the commit."""

    __slots__ = (
        "_counters",
        "_dirty",
        "connection",
        "execute",
        "execute_many",
        "learned",
        "now_ms",
        "records",
        "term_changes",
        "touched",
        "wake_topics",
    )

    def __init__(self, connection: apsw.Connection, execute: Execute, now_ms: int) -> None:
        self.connection, self.execute, self.now_ms = connection, execute, now_ms
        self.execute_many: Execute = connection.executemany
        self._counters: list[int] | None = None
        self._dirty = False
        self.learned: dict[Any, int] = {}
        """Ids of streams and lanes by name, looked up or assigned in this transaction."""
        self.records: list[tuple[int, int, bytes]] = []
        """Records to append; not read within the transaction, so all are written at its end."""
        self.term_changes: dict[tuple[int, int, str], bool] = {}
        """Term index entries to add (True) or remove (False) at the end, likewise."""
        self.wake_topics: set[Any] = set()
        """Topics to notify once the transaction is durable."""
        self.touched: dict[Stream, tuple[int, tuple[bytes, ...]]] = {}
        """New records by stream: the version of the first, and the records."""

    def next(self, counter: int) -> int:
        if self._counters is None:
            ((*counters, found),) = self.execute(_COUNTERS).fetchall()
            if found != counters_checksum(counters):
                # A counter that fell back would issue a fence token twice.
                raise apsw.CorruptError("the counters do not match their checksum")
            self._counters = counters
        self._counters[counter] += 1
        self._dirty = True
        return self._counters[counter]

    def append(self, stream: Stream, first: int, records: tuple[bytes, ...]) -> None:
        """Note new records of a stream for its followers."""
        earlier = self.touched.get(stream)
        self.touched[stream] = (first, records) if earlier is None else (earlier[0], earlier[1] + records)

    def write_records(self) -> None:
        if self.records:
            self.execute_many(_ADD_RECORDS, self.records)
            self.records = []

    def finish(self) -> None:
        """Write the collected records, term entries and counters."""
        self.write_records()
        if self.term_changes:
            # In file order.
            places = sorted(self.term_changes.items())
            removed = [place for place, stands in places if not stands]
            if removed:
                self.execute_many(_REMOVE_TERM, removed)
            self.execute_many(_ADD_TERM, [place for place, stands in places if stands])
        if self._dirty and self._counters is not None:
            self.execute(_SET_COUNTERS, (*self._counters, counters_checksum(self._counters)))


Operation = Callable[[Transaction], T]


class PendingOperation:
    __slots__ = ("durable", "future", "operation", "result", "slow")

    def __init__(self, operation: Operation[Any], durable: bool, slow: bool, future: asyncio.Future[Any]) -> None:
        self.operation, self.durable, self.slow, self.future = operation, durable, slow, future
        self.result: Any = None


class Writer:
    """The write connection of a process, in the loop that opened it."""

    def __init__(
        self,
        connection: apsw.Connection,
        path: str,
        *,
        presence: FileIdentity,
        durability: str,
        schema: int,
        clock: Callable[[], int],
        done: Callable[[Transaction], None],
    ) -> None:
        self._connection, self._path, self._clock, self._done = connection, path, clock, done
        self._execute: Execute = connection.cursor().execute
        self._durability, self._presence = durability, presence
        self._loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._queue: list[PendingOperation] = []
        self._slow_queued = False
        self._active = False
        self._first_in_turn = True
        """No transaction has begun yet in this turn of the loop."""
        self._closed = False
        self._idle: asyncio.Future[None] | None = None
        """Awaited by `close`."""
        self._sync_ms = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tidemill-sync")
        self._synchronous = ""
        self._doubtful = False
        """A sync has failed: it is unknown which part of the WAL is on disk."""
        self._schema = schema
        self._seen = 0
        self.transactions = self.threaded = self.busy = 0

    def submit(self, operation: Operation[T], *, durable: bool, slow: bool = False) -> asyncio.Future[T]:
        """Queue an operation; the future may be done at once.

        `durable`: the result waits for the sync. `slow`: it has a transaction of its own, in a thread.
        """
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append(PendingOperation(operation, durable, slow, future))
        self._slow_queued |= slow
        if not self._active:
            self._active = True
            if self._first_in_turn:
                # The first operation of a loop turn starts at once; later ones wait for the turn's end to be grouped.
                self._first_in_turn = False
                self._loop.call_soon(setattr, self, "_first_in_turn", True)
                self._start()
            else:
                self._loop.call_soon(self._start)
        return future

    async def close(self) -> None:
        self._closed = True
        if self._active:
            self._idle = self._loop.create_future()
            await self._idle
        self._pool.shutdown()
        self._connection.close()

    def others_wrote(self) -> bool:
        """Whether another connection has written since the last call; False while a transaction is active."""
        try:
            changes = self.changes()
        except apsw.Error:
            return True
        if changes is None:
            return False
        seen, self._seen = self._seen, changes
        return seen != changes

    def changes(self) -> int | None:
        """A number that changes with writes of other connections; None while a transaction is active."""
        if self._active or self._closed:
            return None
        found: int = self._execute("PRAGMA data_version").fetchall()[0][0]
        return found

    def _start(self, waited_ms: float = 0.0) -> None:
        # Skip cancelled callers: a claim without a caller would lock its jobs.
        queue = [each for each in self._queue if not each.future.done()]
        count = GATHERED_MAX
        if self._slow_queued:
            slow = next((at for at, each in enumerate(queue) if each.slow), None)
            self._slow_queued = slow is not None
            count = GATHERED_MAX if slow is None else max(1, min(slow, GATHERED_MAX))
        batch, self._queue = queue[:count], queue[count:]
        if not batch:
            self._become_idle()
            return
        try:
            self._begin(any(each.durable for each in batch))
        except apsw.BusyError as error:
            self._wait(batch, waited_ms, error)
        except (apsw.Error, TidemillError) as error:
            self._fail(batch, error)
        else:
            self._write_in_thread(batch[0]) if batch[0].slow else self._write(batch)

    def _begin(self, durable: bool) -> None:
        self._presence.check()
        wanted = "FULL" if durable and self._durability == "full" else "NORMAL"
        if wanted != self._synchronous:
            if not self._synchronous:
                self._execute("PRAGMA journal_mode = WAL")
            self._execute(f"PRAGMA synchronous = {wanted}")
            self._synchronous = wanted
        if self._doubtful:
            # The system may have dropped pages of the failed sync and of earlier unsynced transactions. A checkpoint
            # writes the whole WAL to the file again and restarts it.
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._doubtful = False
        self._execute("BEGIN IMMEDIATE")
        try:
            refuse_migrated(self._execute, self._path, self._schema)
        except BaseException:
            roll_back(self._connection)
            raise

    def _wait(self, batch: list[PendingOperation], waited_ms: float, error: apsw.Error) -> None:
        """Another process is writing: retry soon, with jitter."""
        self.busy += 1
        self._queue[:0] = batch
        if waited_ms > BUSY_WAIT_MS:
            self._queue, stuck = [], self._queue
            self._fail(stuck, error)
            return
        pause_ms = min(0.3 + waited_ms / 8, 5.0) * (0.5 + random.random())
        self._loop.call_later(pause_ms / 1000, self._start, waited_ms + pause_ms)

    def _write(self, batch: list[PendingOperation]) -> None:
        transaction = Transaction(self._connection, self._execute, self._clock())
        try:
            for each in batch:
                each.result = each.operation(transaction)
            transaction.finish()
        except Exception as error:
            roll_back(self._connection)
            self._retry_one_by_one(batch, error)
            return
        durable = self._synchronous == "FULL"
        if durable and self._sync_ms > INLINE_SYNC_MS:
            self.threaded += 1
            commit = self._pool.submit(self._commit)
            commit.add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._synced, batch, transaction, done)
            )
            return
        try:
            took = self._commit()
        except apsw.Error as error:
            self._commit_failed(batch, error)
            return
        self._committed(batch, transaction, took if durable else None)

    def _write_in_thread(self, slow: PendingOperation) -> None:
        transaction = Transaction(self._connection, self._execute, self._clock())

        def write() -> float:
            slow.result = slow.operation(transaction)
            transaction.finish()
            return self._commit()

        self.threaded += 1
        self._pool.submit(write).add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._synced, [slow], transaction, done)
        )

    def _commit(self) -> float:
        begun = time.perf_counter()
        self._execute("COMMIT")
        return (time.perf_counter() - begun) * 1000

    def _synced(self, batch: list[PendingOperation], transaction: Transaction, done: Future[float]) -> None:
        error = done.exception()
        if error is None:
            self._committed(batch, transaction, done.result())
        else:
            self._commit_failed(batch, error)

    def _committed(self, batch: list[PendingOperation], transaction: Transaction, took_ms: float | None) -> None:
        self.transactions += 1
        if took_ms is not None and not batch[0].slow:
            self._sync_ms += 0.1 * (took_ms - self._sync_ms)
        self._done(transaction)
        for each in batch:
            if not each.future.done():
                each.future.set_result(each.result)
        self._next()

    def _commit_failed(self, batch: list[PendingOperation], error: BaseException) -> None:
        """A failed COMMIT may leave its transaction open."""
        self._note_failed_sync(error)
        roll_back(self._connection)
        self._fail(batch, error)

    def _note_failed_sync(self, error: BaseException) -> None:
        self._doubtful |= getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC

    def _retry_one_by_one(self, batch: list[PendingOperation], error: Exception) -> None:
        """Run each operation in its own transaction, so that only the failing ones fail."""
        if len(batch) == 1:
            self._fail(batch, error)
            return
        for at, each in enumerate(batch):
            try:
                self._begin(each.durable)
            except apsw.BusyError:
                # Another process is writing: the rest waits in the queue.
                self._queue[:0] = batch[at:]
                break
            except (apsw.Error, TidemillError) as failure:
                self._set_error(each, failure)
                continue
            transaction = Transaction(self._connection, self._execute, self._clock())
            try:
                each.result = each.operation(transaction)
                transaction.finish()
                self._commit()
            except Exception as failure:
                self._note_failed_sync(failure)
                roll_back(self._connection)
                self._set_error(each, failure)
            else:
                self._done(transaction)
                if not each.future.done():
                    each.future.set_result(each.result)
        self._next()

    def _fail(self, batch: list[PendingOperation], error: BaseException) -> None:
        for each in batch:
            self._set_error(each, error)
        self._next()

    def _set_error(self, waiting: PendingOperation, error: BaseException) -> None:
        if not waiting.future.done():
            shown = translate_error(error, self._path) if isinstance(error, (apsw.Error, UnicodeDecodeError)) else error
            if shown is not error:
                shown.__cause__ = error
            waiting.future.set_exception(shown)

    def _next(self) -> None:
        if self._queue:
            self._loop.call_soon(self._start)
        else:
            self._become_idle()

    def _become_idle(self) -> None:
        self._active = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class SideConnection:
    """A lazily opened write connection for threads other than the loop's (lease renewal), one at a time."""

    def __init__(self, path: Path, clock: Callable[[], int], schema: int, presence: FileIdentity) -> None:
        self._path, self._clock, self._schema, self._presence = path, clock, schema, presence
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None

    def write(self, operation: Operation[T], *, durable: bool) -> tuple[T, Transaction]:
        """Run an operation in its own transaction; the caller notifies what the transaction touched."""
        with self._lock, errors_of(self._path):
            self._presence.check()
            if self._connection is None:
                self._connection = connect(self._path, create=False)
                self._connection.execute("PRAGMA journal_mode = WAL")
            connection = self._connection
            execute = connection.cursor().execute
            execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            execute("BEGIN IMMEDIATE")
            try:
                refuse_migrated(execute, self._path, self._schema)
                tx = Transaction(connection, execute, self._clock())
                result = operation(tx)
                tx.finish()
                execute("COMMIT")
            except BaseException:
                roll_back(connection)
                raise
        return result, tx

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


# Write-ahead log

PAGES_DUE = 3_500
"""WAL pages (of 4 KiB) that trigger a checkpoint; SQLite restarts the WAL once all of it is checkpointed."""
PAGES_PRESSING = 16_000
"""WAL pages from which on commits checkpoint themselves, so that the WAL stays bounded."""
PAGES_MOST = 4 * PAGES_PRESSING
"""WAL pages from which on commits wait for the checkpoint in the thread: a slow disk must not let the WAL fill it."""
PREPARED_BYTES = 4_000 * (4_096 + 24)
"""Preallocated WAL size: slightly more than it reaches before a restart."""
PREPARED_AT_ONCE = 32 * 1024
"""Bytes per preallocating write. Linux caches one call's data in large folios and rescans a whole folio for each small
write into it, so larger calls slow every commit down."""


def prepare(path: Path) -> None:
    """Preallocate the WAL, under the write lock: a sync of overwritten bytes costs half. SQLite ignores the zeros."""
    with suppress(OSError), open(f"{path}-wal", "r+b", buffering=0) as log:
        size, disk = log.seek(0, os.SEEK_END), os.statvfs(path)
        if size < PREPARED_BYTES and disk.f_bavail * disk.f_frsize > 20 * PREPARED_BYTES:
            try:
                starts = range(size, PREPARED_BYTES, PREPARED_AT_ONCE)
                log.writelines(bytes(min(PREPARED_AT_ONCE, PREPARED_BYTES - at)) for at in starts)
                os.fsync(log.fileno())
            except OSError:
                log.truncate(size)


class Checkpoints:
    """Checkpoints the WAL in a thread, so that commits need not wait."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages = self._moved = 0
        """WAL pages now, and at the last checkpoint."""
        self._nearly = False
        """A checkpoint has just moved all but the last few pages."""
        self._task: asyncio.Task[None] | None = None
        self.made = 0

    def note(self, connection: apsw.Connection, database: str, pages: int) -> int:
        """WAL hook after each commit: moves the pages that a checkpoint in the thread has left, so the WAL restarts."""
        self._pages, self._moved = pages, min(self._moved, pages)
        if (self._nearly or pages >= PAGES_PRESSING) and self._task is None:
            self._nearly = False
            # The commit is done: an error here must not look like its failure.
            with suppress(apsw.Error):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        return apsw.SQLITE_OK

    @property
    def due(self) -> bool:
        # Under pressure a commit makes the checkpoint, and needs the thread to be idle.
        return self._task is None and self._pages < PAGES_PRESSING and self._pages - self._moved >= PAGES_DUE

    @property
    def overdue(self) -> bool:
        return self._pages >= PAGES_MOST and self._task is not None

    def begin(self) -> None:
        """Checkpoint in a thread; one that fails is tried again after a later commit."""
        self._moved = self._pages
        self._task = asyncio.ensure_future(asyncio.to_thread(self._move))
        self._task.add_done_callback(self._over)

    def _move(self) -> None:
        connection = connect(self._path, create=False)
        try:
            with suppress(apsw.Error):
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self.made += 1
        finally:
            connection.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._nearly = not task.cancelled() and task.exception() is None

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.gather(asyncio.shield(self._task), return_exceptions=True)
