"""Group commit, sync in loop or thread, side connection, WAL checkpoints.

The one writer of a process: whatever has gathered is written in one transaction (group commit).

An operation is a function of a `Transaction`. Operations that arrive while a transaction is on its way to the
disk share the next one. If one of them fails, each is done again by itself, so that nobody pays for another's
trouble. The statements run in the loop's own thread, because they are short and a thread hop costs more than
they do. What may take long is the sync at the end: it runs here when the disk has been quick lately and in a
thread when it has not, so that neither a chain of steps nor the rest of the process waits needlessly.

A second way to write, for threads that may wait: leases are renewed from one, whatever the loop is busy with.

The write-ahead log: made long beforehand, and moved into the file in a thread, so that commits need not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from tidemill.stores.sqlite.database import FileIdentity, connect, errors_of, refuse_migrated, seal_of, translate_error

SQL = statements("sqlite")
_COUNTERS, _SET_COUNTERS, _ADD_RECORDS = SQL["counters"], SQL["set_counters"], SQL["add_records"]
_ADD_TERM, _REMOVE_TERM = SQL["add_term"], SQL["remove_term"]
_CHANGES = "PRAGMA data_version"

STREAMS, PLACES, TOKENS = range(3)
"""The counters, in the order of their columns."""

T = TypeVar("T")

INLINE_SYNC_MS = 1.0
"""Up to this (smoothed) duration a sync is made in the loop's own thread."""
SMOOTHING = 0.1
BUSY_WAIT_MS = 15_000
"""How long to wait for another process to finish its transaction."""
GATHERED_MAX = 64
"""Operations of one transaction; each may hold many commits."""


class Transaction:
    """What an operation works with; what it learns and whom it must wake counts only once it is committed."""

    __slots__ = (
        "_counters",
        "_dirty",
        "connection",
        "execute",
        "execute_many",
        "learned",
        "now_ms",
        "places",
        "records",
        "rings",
        "touched",
    )

    def __init__(self, connection: apsw.Connection, execute: Callable[..., Any], now_ms: int) -> None:
        self.connection, self.execute, self.now_ms = connection, execute, now_ms
        self.execute_many: Callable[..., Any] = connection.executemany
        self._counters: list[int] | None = None
        self._dirty = False
        self.learned: dict[Any, int] = {}
        """Numbers of streams and lanes by name, which this transaction looked up or gave out."""
        self.records: list[tuple[int, int, bytes]] = []
        """What is appended to streams; nobody reads it in this transaction, so it is written at its end in one go."""
        self.places: dict[tuple[int, int, str], bool] = {}
        """Where rows stand from now on, by term, and where not any more; nobody looks along terms in here either."""
        self.rings: set[Any] = set()
        """Bells to ring once it is durable."""
        self.touched: dict[Stream, tuple[int, tuple[bytes, ...]]] = {}
        """Streams that have new records: the number of the first, and the records."""

    def next(self, counter: int) -> int:
        """The next number of a counter; what was given out and not used is never given out again."""
        if self._counters is None:
            ((*counters, found),) = self.execute(_COUNTERS).fetchall()
            if found != seal_of(counters):
                # One that fell back would give out numbers twice, and a fence token must never be.
                raise apsw.CorruptError("the counters do not match their checksum")
            self._counters = counters
        self._counters[counter] += 1
        self._dirty = True
        return self._counters[counter]

    def append(self, stream: Stream, first: int, records: tuple[bytes, ...]) -> None:
        """Remember new records of a stream for those who follow it."""
        earlier = self.touched.get(stream)
        self.touched[stream] = (first, records) if earlier is None else (earlier[0], earlier[1] + records)

    def write_records(self) -> None:
        """Append to the streams what has gathered."""
        if self.records:
            self.execute_many(_ADD_RECORDS, self.records)
            self.records = []

    def finish(self) -> None:
        """Write what has gathered, and the counters."""
        self.write_records()
        if self.places:
            # In the order in which they lie in the file.
            places = sorted(self.places.items())
            self.execute_many(_REMOVE_TERM, [place for place, stands in places if not stands])
            self.execute_many(_ADD_TERM, [place for place, stands in places if stands])
        if self._dirty and self._counters is not None:
            self.execute(_SET_COUNTERS, (*self._counters, seal_of(self._counters)))


Operation = Callable[[Transaction], T]


class Waiting:
    """An operation and whoever waits for it."""

    __slots__ = ("durable", "future", "operation", "result")

    def __init__(self, operation: Operation[Any], durable: bool, future: asyncio.Future[Any]) -> None:
        self.operation, self.durable, self.future = operation, durable, future
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
        self._execute: Callable[..., Any] = connection.cursor().execute
        self._durability, self._presence = durability, presence
        self._loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._queue: list[Waiting] = []
        self._active = False
        self._alone = True
        """Nobody has begun a transaction in this turn of the loop."""
        self._closed = False
        self._idle: asyncio.Future[None] | None = None
        """Whoever closes it waits for this."""
        self._sync_ms = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tidemill-sync")
        self._synchronous = ""
        self._doubtful = False
        """A sync has failed, so nobody knows what of the log is on the disk."""
        self._schema = schema
        self._seen = 0
        self.transactions = self.threaded = self.busy = 0

    def submit(self, operation: Operation[T], *, durable: bool) -> asyncio.Future[T]:
        """Have an operation written. `durable`: the answer waits for the disk. It may be there at once."""
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append(Waiting(operation, durable, future))
        if not self._active:
            self._active = True
            if self._alone:
                # The first one in a turn of the loop need not wait for company; whoever comes after it in the same
                # turn does, because there may be more of them.
                self._alone = False
                self._loop.call_soon(self._turn)
                self._start()
            else:
                self._loop.call_soon(self._start)
        return future

    def _turn(self) -> None:
        self._alone = True

    async def close(self) -> None:
        """Write what has gathered and let go of the connection."""
        self._closed = True
        if self._active:
            self._idle = self._loop.create_future()
            await self._idle
        self._pool.shutdown()
        self._connection.close()

    def others_wrote(self) -> bool:
        """Whether another connection has changed the file since this was last asked; while it is at work, nobody knows.

        SQLite counts what others did for each connection, and here is the one by which this process writes.
        """
        try:
            changes = self.changes()
        except apsw.Error:
            return True
        if changes is None:
            return False
        seen, self._seen = self._seen, changes
        return seen != changes

    def changes(self) -> int | None:
        """A number that differs once another connection has changed the file; None while this one is at work."""
        if self._active or self._closed:
            return None
        found: int = self._execute(_CHANGES).fetchall()[0][0]
        return found

    def _start(self, waited_ms: float = 0.0) -> None:
        # Whoever has gone away meanwhile wants nothing any more: a claim for nobody would lock jobs up.
        queue = [each for each in self._queue if not each.future.done()]
        batch, self._queue = queue[:GATHERED_MAX], queue[GATHERED_MAX:]
        if not batch:
            self._rest()
            return
        try:
            self._begin(any(each.durable for each in batch))
        except apsw.BusyError as error:
            self._wait(batch, waited_ms, error)
        except (apsw.Error, TidemillError) as error:
            self._fail(batch, error)
        else:
            self._write(batch)

    def _begin(self, durable: bool) -> None:
        self._presence.check()
        wanted = "FULL" if durable and self._durability == "full" else "NORMAL"
        if wanted != self._synchronous:
            if not self._synchronous:
                self._execute("PRAGMA journal_mode = WAL")
            self._execute(f"PRAGMA synchronous = {wanted}")
            self._synchronous = wanted
        if self._doubtful:
            # The system may have dropped what a failed sync should have written, also of earlier transactions that
            # nobody synced. So the log is moved into the file, which writes it all again, and begun anew.
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self._doubtful = False
        self._execute("BEGIN IMMEDIATE")
        try:
            refuse_migrated(self._execute, self._path, self._schema)
        except BaseException:
            self._roll_back()
            raise

    def _wait(self, batch: list[Waiting], waited_ms: float, error: apsw.Error) -> None:
        """Another process writes: look again soon, at moments that differ from its own."""
        self.busy += 1
        self._queue[:0] = batch
        if waited_ms > BUSY_WAIT_MS:
            self._queue, stuck = [], self._queue
            self._fail(stuck, error)
            return
        pause_ms = min(0.3 + waited_ms / 8, 5.0) * (0.5 + random.random())
        self._loop.call_later(pause_ms / 1000, self._start, waited_ms + pause_ms)

    def _write(self, batch: list[Waiting]) -> None:
        transaction = Transaction(self._connection, self._execute, self._clock())
        try:
            for each in batch:
                each.result = each.operation(transaction)
            transaction.finish()
        except Exception as error:
            self._roll_back()
            self._apart(batch, error)
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
            self._undo(batch, error)
            return
        self._committed(batch, transaction, took if durable else None)

    def _commit(self) -> float:
        begun = time.perf_counter()
        self._execute("COMMIT")
        return (time.perf_counter() - begun) * 1000

    def _synced(self, batch: list[Waiting], transaction: Transaction, done: Future[float]) -> None:
        error = done.exception()
        if error is None:
            self._committed(batch, transaction, done.result())
        elif isinstance(error, apsw.Error):
            self._undo(batch, error)
        else:
            self._fail(batch, error)

    def _committed(self, batch: list[Waiting], transaction: Transaction, took_ms: float | None) -> None:
        self.transactions += 1
        if took_ms is not None:
            self._sync_ms += SMOOTHING * (took_ms - self._sync_ms)
        self._done(transaction)
        for each in batch:
            if not each.future.done():
                each.future.set_result(each.result)
        self._next()

    def _undo(self, batch: list[Waiting], error: apsw.Error) -> None:
        """A commit that failed may have left its transaction open."""
        self._doubt(error)
        self._roll_back()
        self._fail(batch, error)

    def _doubt(self, error: BaseException) -> None:
        self._doubtful |= getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC

    def _roll_back(self) -> None:
        """Leave no transaction open; SQLite may have ended it already, with the error that led here."""
        if self._connection.in_transaction:
            with suppress(apsw.Error):
                self._execute("ROLLBACK")

    def _apart(self, batch: list[Waiting], error: Exception) -> None:
        """One operation of several failed: do each by itself, so that only those fail that would anyway."""
        if len(batch) == 1:
            self._fail(batch, error)
            return
        for at, each in enumerate(batch):
            try:
                self._begin(each.durable)
            except apsw.BusyError:
                # Another process has come in between; the rest waits for it like everybody.
                self._queue[:0] = batch[at:]
                break
            except (apsw.Error, TidemillError) as failure:
                self._settle(each, failure)
                continue
            transaction = Transaction(self._connection, self._execute, self._clock())
            try:
                each.result = each.operation(transaction)
                transaction.finish()
                self._commit()
            except Exception as failure:
                self._doubt(failure)
                self._roll_back()
                self._settle(each, failure)
            else:
                self._done(transaction)
                if not each.future.done():
                    each.future.set_result(each.result)
        self._next()

    def _fail(self, batch: list[Waiting], error: BaseException) -> None:
        for each in batch:
            self._settle(each, error)
        self._next()

    def _settle(self, waiting: Waiting, error: BaseException) -> None:
        if not waiting.future.done():
            shown = translate_error(error, self._path) if isinstance(error, (apsw.Error, UnicodeDecodeError)) else error
            if shown is not error:
                shown.__cause__ = error
            waiting.future.set_exception(shown)

    def _next(self) -> None:
        if self._queue:
            self._loop.call_soon(self._start)
        else:
            self._rest()

    def _rest(self) -> None:
        self._active = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class SideConnection:
    """A connection of its own, made when it is first needed; threads use it one after the other."""

    def __init__(self, path: Path, clock: Callable[[], int], schema: int, presence: FileIdentity) -> None:
        self._path, self._clock, self._schema, self._presence = path, clock, schema, presence
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None

    def write(self, operation: Operation[T], *, durable: bool) -> tuple[T, Transaction]:
        """Do an operation in a transaction of its own; answers its result, and whom it must wake."""
        with self._lock, errors_of(self._path):
            self._presence.check()
            connection = self._connected()
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
                if connection.in_transaction:
                    with suppress(apsw.Error):
                        execute("ROLLBACK")
                raise
        return result, tx

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> apsw.Connection:
        if self._connection is None:
            self._connection = connect(self._path, create=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
        return self._connection


PAGES_DUE = 3_500
"""Pages in the log (of 4 KiB) from which on it is moved; SQLite begins it anew when all of it is."""
PAGES_PRESSING = 16_000
"""Pages from which on commits wait until it has been moved, so that the log cannot grow without bound."""
PREPARED_BYTES = 4_000 * (4_096 + 24)
"""How long the log is made beforehand: a bit longer than it becomes before it is begun anew."""
PREPARED_AT_ONCE = 32 * 1024
"""How much of it is written by one call. Linux keeps what came by one call in large pieces, and looks at a whole piece
again for every few bytes that are written into it: beyond this, each commit pays for that."""
ROOM_TIMES = 20
"""How many times as much must be free for that."""


def prepare(path: Path) -> None:
    """Make the log as long as it will become, to be called by whoever holds the write lock.

    A sync of bytes that overwrite others costs half of one that also makes the file longer. What is written here is
    nothing to SQLite: a frame counts only with the right checksum. A disk with little room is left alone.
    """
    with contextlib.suppress(OSError), open(f"{path}-wal", "r+b", buffering=0) as log:
        size, disk = log.seek(0, os.SEEK_END), os.statvfs(path)
        if size < PREPARED_BYTES and disk.f_bavail * disk.f_frsize > ROOM_TIMES * PREPARED_BYTES:
            try:
                starts = range(size, PREPARED_BYTES, PREPARED_AT_ONCE)
                log.writelines(bytes(min(PREPARED_AT_ONCE, PREPARED_BYTES - at)) for at in starts)
                os.fsync(log.fileno())
            except OSError:
                log.truncate(size)


class Checkpoints:
    """The log of one process's connections."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages = self._moved = 0
        """How long the log is, and how long it was when it was last moved."""
        self._nearly = False
        """All but the last few pages were moved a moment ago."""
        self._task: asyncio.Task[None] | None = None
        self.made = 0

    def note(self, connection: apsw.Connection, database: str, pages: int) -> int:
        """Hear how long the log is after a commit.

        Under steady load somebody always writes while the log is moved in the thread. So the rest, which is little, is
        moved here, and the log is begun anew.
        """
        self._pages, self._moved = pages, min(self._moved, pages)
        if (self._nearly or pages >= PAGES_PRESSING) and self._task is None:
            self._nearly = False
            # What happens here is not the commit's: that is done, and must not look as if it had failed.
            with contextlib.suppress(apsw.Error):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        return apsw.SQLITE_OK

    @property
    def due(self) -> bool:
        # Once it presses, nothing more is moved beside the commits: one of them must find it idle.
        return self._task is None and self._pages < PAGES_PRESSING and self._pages - self._moved >= PAGES_DUE

    def begin(self) -> None:
        """Move it in a thread; a log that cannot be moved now is tried again after a later commit."""
        self._moved = self._pages
        self._task = asyncio.ensure_future(asyncio.to_thread(self._move))
        self._task.add_done_callback(self._over)

    def _move(self) -> None:
        connection = connect(self._path, create=False)
        try:
            with contextlib.suppress(apsw.Error):
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self.made += 1
        finally:
            connection.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._nearly = not task.cancelled() and task.exception() is None

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
