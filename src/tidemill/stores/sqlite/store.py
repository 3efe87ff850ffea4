"""A store in one SQLite file, shared by all processes of a machine.

Writes go through the one `Writer` of this process and reads through a connection of their own; both run in the loop
that opened the store. Calls from other threads (lease renewal) use a side connection. Commits of this process notify
its waiters at once; while a task waits, commits of other processes are detected by polling SQLite's change counter.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from tidemill.ambient import wall_clock_ms
from tidemill.errors import TidemillError, Unavailable
from tidemill.stores.contract import (
    Backlog,
    Claim,
    Commit,
    CommitResult,
    Frame,
    IdleCallback,
    JobView,
    Lease,
    Page,
    Row,
    Statement,
    Stream,
    Tail,
    check,
)
from tidemill.stores.followers import Followers
from tidemill.stores.optional import Finding
from tidemill.stores.sqlite import rows as sql_rows
from tidemill.stores.sqlite.database import (
    PRESENCE_MS,
    Execute,
    FileIdentity,
    check_place,
    connect,
    connect_to_read,
    diagnose,
    errors_of,
    fetch_one,
    migrate,
    newest_known,
    refuse_migrated,
    require_file,
    resolve_path,
    translate_error,
)
from tidemill.stores.sqlite.followers import ChangePoller, FrameReceiver, FrameSender
from tidemill.stores.sqlite.jobs import Jobs, Lane, backlog, next_due_ms
from tidemill.stores.sqlite.liveness import ProcessLocks, this_process
from tidemill.stores.sqlite.rows import SqliteTermIndex
from tidemill.stores.sqlite.streams import SQL, Streams, numbered, streams_of, tail_of
from tidemill.stores.sqlite.writer import Checkpoints, Operation, SideConnection, Transaction, Writer, prepare
from tidemill.stores.wakeups import CAPS, EVERY_QUEUE, Waiters

T = TypeVar("T")

HOLDER_CHECK_MS = 200.0
"""How often claims look for dead holders."""


class SqliteStore:
    """A `Store` in a file. `clock` gives the store's time in ms; a test that moves it calls `notify_all`.

    A `read_only` one neither creates nor migrates nor changes the file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Literal["full", "relaxed"] = "full",
        clock: Callable[[], int] | None = None,
        presence_ms: float = PRESENCE_MS,
        read_only: bool = False,
    ) -> None:
        self._read_only = read_only
        self.path, self.durability, self._presence_ms = resolve_path(path), durability, presence_ms
        self._clock = clock or wall_clock_ms
        self._waiters, self._waiters_lock = Waiters(), threading.Lock()
        self._jobs = Jobs()
        self._holders = ProcessLocks(self.path)
        self._streams = Streams(self._jobs, self._holders)
        self._entering = asyncio.Lock()
        self._returning: set[asyncio.Future[None]] = set()
        self._holders_checked_at = 0.0
        self._others: tuple[int, ...] = ()
        """The other holders of leases, as last read."""
        self._poller = ChangePoller(self._poll_changes)
        self._receiver = FrameReceiver(self.path, self._deliver_live)
        self._sender = FrameSender(self.path, self._receiver.names)
        self._writer: Writer | None = None
        self._followers = Followers(
            self,
            self._waiters,
            self._waiters_lock,
            sleep=self._poller.notified,
            is_open=lambda: self._writer is not None,
            # Live frames published before the loaded records have arrived by then and come first.
            on_loaded=self._receiver.drain,
        )
        self.index = SqliteTermIndex(self.path, self._write)

    # Opening and closing

    async def open(self) -> None:
        if self._writer is not None:
            return
        check_place(self.path)
        if self._read_only:
            require_file(self.path)
        connect_to = connect_to_read if self._read_only else connect
        connection = connect_to(self.path)
        try:
            if not self._read_only:
                migrate(connection, self.path)
            self._reader = connect_to(self.path)
            self._read = self._reader.cursor().execute
            with errors_of(self.path):
                self._read("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        # The loop must not block: the writer retries by itself.
        connection.set_busy_handler(None)
        self._checkpoints = Checkpoints(self.path)
        connection.set_wal_hook(self._checkpoints.note)
        self._schema, presence = newest_known(), FileIdentity(self.path, self._presence_ms)
        self._side = SideConnection(self.path, self._clock, self._schema, presence)
        self._writer = Writer(
            connection,
            str(self.path),
            presence=presence,
            durability=self.durability,
            schema=self._schema,
            clock=self._clock,
            done=self._committed,
        )

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self.notify_all()
        self._receiver.close()
        self._sender.close()
        await asyncio.gather(*self._returning, return_exceptions=True)
        if self._jobs.holder:
            holder, self._jobs.holder = self._jobs.holder, 0
            with suppress(TidemillError):
                await writer.submit(lambda tx: self._void_holder(tx, holder), durable=False)
            self._holders.leave(holder)
        await writer.close()
        await self._checkpoints.wait()
        self._reader.close()
        self._side.close()
        self._streams.forget_all()

    async def diagnose(self) -> list[Finding]:
        try:
            return await asyncio.to_thread(diagnose, self.path, self.durability)
        except OSError as error:
            raise translate_error(error, self.path) from error

    def now_ms(self) -> int:
        return self._clock()

    def notify_all(self) -> None:
        with self._waiters_lock:
            self._waiters.notify_all()

    # Writing

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        for commit in commits:
            check(commit)
        if not self._jobs.holder and any(commit.keep for commit in commits):
            await self._enter()
        apply = self._streams.apply
        write = partial(self._write, lambda tx: [apply(tx, commit) for commit in commits], durable=True)
        if any(commit.statements for commit in commits):
            return await self._streams.statements.paced(partial(write, slow=True))
        return await write()

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        return await self._write(lambda tx: self._streams.forget(tx, stream, expected, rows), durable=True)

    async def dry_run(self, statement: Statement) -> Statement:
        return await self._streams.statements.dry_run_in_turn(statement, partial(self._write, durable=False, slow=True))

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        return await self._write(lambda tx: self._jobs.renew(tx, numbered(tx, leases), lease_ms), durable=False)

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        await self._write(lambda tx: self._jobs.release(tx, numbered(tx, leases), delay_ms), durable=False)

    async def _write(self, operation: Operation[T], *, durable: bool, slow: bool = False) -> T:
        writer = self._writer
        if writer is None:
            raise Unavailable("the store is closed")
        if threading.get_ident() == writer.thread:
            if self._checkpoints.overdue:
                await self._checkpoints.wait()
            return await writer.submit(operation, durable=durable, slow=slow)
        result, tx = self._side.write(operation, durable=durable and self.durability == "full")
        self._notify(tx)
        return result

    def _committed(self, tx: Transaction) -> None:
        """Cache the ids that a transaction learned and notify its topics."""
        for name, number in tx.learned.items():
            if isinstance(name, Lane):
                self._jobs.learn(name, number)
            else:
                self._streams.ids[name] = number
        if len(self._streams.ids) > 100_000:
            self._streams.ids.clear()
        self._notify(tx)
        if self._checkpoints.due:
            self._checkpoints.begin()

    def _notify(self, tx: Transaction) -> None:
        for stream, (first, records) in tx.touched.items():
            self._followers.committed(stream, first, records)
        with self._waiters_lock:
            if CAPS in tx.wake_topics:
                # Claims that are still blocked say so again.
                self._jobs.blocked_by_cap = False
            for topic in (*tx.wake_topics, *tx.touched):
                self._waiters.notify(topic)

    # Holders of leases

    async def _enter(self) -> None:
        """Register this process as a holder of leases, with a lock that ends with it."""
        tried: list[int] = []

        def give_up() -> None:
            while tried:
                self._holders.leave(tried.pop())

        def enter(tx: Transaction) -> int:
            # The operation is repeated when its transaction was rolled back.
            give_up()
            prepare(self.path)
            number = int(tx.execute(SQL["add_holder"], (this_process(), tx.now_ms)).fetchall()[0][0])
            self._holders.enter(number)
            tried.append(number)
            return number

        async with self._entering:
            if not self._jobs.holder:
                try:
                    self._jobs.holder = await self._write(enter, durable=False)
                except BaseException:
                    give_up()
                    raise

    def _void_holder(self, tx: Transaction, holder: int) -> None:
        """Void the leases of a holder and remove it; they count as expired, not released."""
        tx.execute(SQL["void"], (tx.now_ms, holder))
        tx.execute(SQL["remove_holder"], (holder,))
        tx.wake_topics |= {EVERY_QUEUE, CAPS}

    def _void_dead_holders(self, tx: Transaction) -> None:
        """Void the leases of dead holders, at most once per `HOLDER_CHECK_MS`."""
        now = time.monotonic() * 1000
        if now - self._holders_checked_at < HOLDER_CHECK_MS:
            return
        self._holders_checked_at = now
        holders = tx.execute(SQL["holders"]).fetchall()
        self._others = tuple(holder for holder, _ in holders if holder != self._jobs.holder)
        for holder, _ in holders:
            if self._holders.is_dead(holder):
                self._void_holder(tx, holder)
                self._holders.sweep(holder)

    # Claiming

    async def claim(self, request: Claim) -> list[Lease]:
        if not self._jobs.holder:
            await self._enter()
        until = self._clock() + request.wait_ms
        topics: list[Hashable] = [*(request.queues or (EVERY_QUEUE,)), CAPS]
        while (writer := self._writer) is not None:
            with self._waiters_lock:
                waiter = self._waiters.add(topics)
            try:
                leases, now = await self._claim_in_all_lanes(writer, request), self._clock()
                if leases is None or leases or now >= until:
                    return leases or []
                with errors_of(self.path):
                    due = next_due_ms(self._read)
                # After the clock was set back `left` can exceed the requested wait.
                left = (until if due is None else min(due, until)) - now
                await self._poller.wait(waiter, min(left, request.wait_ms))
            finally:
                with self._waiters_lock:
                    self._waiters.remove(waiter, topics)
        return []

    async def _claim_in_all_lanes(self, writer: Writer, request: Claim) -> list[Lease] | None:
        """Claim; looks at a bounded number of lanes per transaction, so that other writes come in between."""
        from_start = self._jobs.lane_cursor == 0
        leases = await self._claim_or_release(writer, request)
        while leases == [] and not (from_start and self._jobs.lane_cursor == 0):
            from_start = from_start or self._jobs.lane_cursor == 0
            leases = await self._claim_or_release(writer, request)
        return leases

    async def _claim_or_release(self, writer: Writer, request: Claim) -> list[Lease] | None:
        """Claim; None without room. Releases the jobs if the caller is cancelled before the claim is done."""

        def claim_now(tx: Transaction) -> list[Lease] | None:
            self._void_dead_holders(tx)
            # Without room the claim must not wait: no notification would follow for jobs that are already ready.
            return self._jobs.claim(tx, request) if request.most > 0 else None

        claim = writer.submit(claim_now, durable=False)
        if not claim.done():
            try:
                await asyncio.shield(claim)
            except asyncio.CancelledError:
                claim.add_done_callback(self._release_unclaimed)
                raise
        return claim.result()

    def _release_unclaimed(self, claim: asyncio.Future[list[Lease] | None]) -> None:
        if not claim.cancelled() and claim.exception() is None and self._writer is not None:
            task = asyncio.ensure_future(self.release(claim.result() or []))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    def _poll_changes(self) -> bool | None:
        """Notify all if another process has written, and say whether it has; None when the store is closed.

        A process that dies sends no notification, so the poller looks for it, and its leases wake the claims.
        """
        if self._writer is None:
            return None
        changed = self._writer.others_wrote()
        if changed:
            # Another process may have become a holder.
            self._holders_checked_at = 0.0
            self._followers.others_wrote()
            self.notify_all()
        elif any(map(self._holders.is_dead, self._others)):
            with self._waiters_lock:
                # Every claim waits for this topic.
                self._waiters.notify(CAPS)
        return changed

    # Reading

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        if self._writer is None:
            raise Unavailable("the store is closed")
        with errors_of(self.path):
            quiet = self._streams.quiet(self._read, after, self._writer.changes())
        if quiet is not None:
            return quiet
        with self._view() as execute:
            return [tail_of(execute, stream, version, snapshots, limit) for stream, version in after.items()]

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        with self._view() as execute:
            return sql_rows.find(execute, tenant, kind, terms, after, limit)

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        with self._view() as execute:
            return sql_rows.count(execute, tenant, kind, terms, at_most)

    async def jobs(self, stream: Stream) -> list[JobView]:
        with self._view() as execute:
            found = fetch_one(execute(SQL["stream"], (stream.kind, stream.tenant, stream.key)))
            return [] if found is None else self._jobs.views(execute, stream, found[0], self._holders.is_dead)

    async def live_processes(self) -> frozenset[str]:
        with self._view() as execute:
            return self._holders.present(execute(SQL["holders"]).fetchall())

    async def backlog(self) -> list[Backlog]:
        with self._view() as execute:
            return backlog(execute, self._clock())

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        with self._view() as execute:
            return streams_of(execute, kind, after, limit)

    @contextmanager
    def _view(self) -> Iterator[Execute]:
        """Read one snapshot of the file: a commit between two statements would look like damage."""
        if self._writer is None:
            raise Unavailable("the store is closed")
        with errors_of(self.path):
            self._read("BEGIN")
            try:
                refuse_migrated(self._read, self.path, self._schema)
                yield self._read
            finally:
                if self._reader.in_transaction:
                    self._read("ROLLBACK")

    # Following

    async def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        try:
            if live:
                self._receiver.listen(stream)
            async with aclosing(self._followers.follow(stream, after, on_idle, live=live)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            if live:
                self._receiver.leave(stream)

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        listeners = self._sender.listeners(stream)
        if listeners or self._followers.has_live(stream):
            # No stream reaches this version: only its version is read.
            (tail,) = await self.load({stream: 1 << 62}, snapshots=False)
            self._deliver_live(stream, tail.version, *frames)
            await self._sender.send(listeners, tail.version, frames)

    def _deliver_live(self, stream: Stream, version: int, *frames: bytes) -> None:
        self._followers.published(stream, version, frames)
        with self._waiters_lock:
            self._waiters.notify(stream)
