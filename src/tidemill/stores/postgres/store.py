"""A store in a PostgreSQL database, shared by the processes of many machines.

One connection of a process commits everything that has gathered, in one call; claims go through a session of their own,
reads through a few connections; all run in the loop that opened the store. Calls from other threads (lease renewal) use
a side connection.
The store's clock is the server's: `now_ms` is an estimate that is never ahead of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial

import psycopg

from tidemill.errors import TidemillError, Unavailable
from tidemill.stores.contract import (
    Backlog,
    Claim,
    Commit,
    CommitResult,
    Committed,
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
from tidemill.stores.postgres import rows as sql_rows
from tidemill.stores.postgres.database import (
    SQL,
    Link,
    Place,
    Readers,
    check_role,
    connection_arguments,
    diagnose,
    migrate,
    setup_of,
    translate_error,
)
from tidemill.stores.postgres.jobs import Claimed, Jobs, SideConnection, lost_of, renewal
from tidemill.stores.postgres.notifications import LOOK_EVERY_MS, Hint, Hints, digest_of
from tidemill.stores.postgres.streams import LOADS_AT_ONCE, Wave, forget_values, load, load_together, streams_of, waves
from tidemill.stores.postgres.transactional import Statements
from tidemill.stores.postgres.writer import Head, Session
from tidemill.stores.wakeups import CAPS, EVERY_QUEUE, GatheredCalls, ServerClock, Waiters, rest

CONTENDED_MS = 3.0
GATHERED_MAX = 64
"""Calls per transaction; each may hold many commits."""


class PostgresStore:
    """A `Store` in a database. `clock` replaces the server's time in tests; who moves it calls `notify_all`."""

    in_server = True

    def __init__(self, place: Place, *, clock: Callable[[], int] | None = None) -> None:
        self.place = place
        self._test_clock = clock
        self._clock = ServerClock()
        self._waiters, self._waiters_lock = Waiters(), threading.Lock()
        self._followers = Followers(
            self,
            self._waiters,
            self._waiters_lock,
            sleep=lambda waiter: rest(waiter, LOOK_EVERY_MS),
            is_open=lambda: self._commits is not None,
        )
        self._followed: dict[str, Stream] = {}
        self._returning: set[asyncio.Future[None]] = set()
        self._commits: GatheredCalls[Sequence[Commit], list[CommitResult]] | None = None
        """None while the store is closed."""
        self._thread = 0

    @property
    def address(self) -> str:
        return f"{self.place.name}, schema {self.place.schema}"

    # Opening and closing

    async def open(self) -> None:
        if self._commits is not None:
            return
        link = Link(self.place, opened=False)
        try:
            if not (self.place.row_security or self.place.read_only):
                await migrate(link)
            await check_role(link)
            ((now,),) = await link.fetch(SQL["clock"])
        except psycopg.Error as error:
            raise translate_error(error, self.place) from error
        finally:
            await link.drop()
        self._clock.observe(now)
        self._thread = threading.get_ident()
        self._readers = Readers(self.place)
        self._loads = GatheredCalls(partial(load_together, self._readers), at_once=LOADS_AT_ONCE)
        self._jobs = Jobs(self._readers, self._asked_time)
        self._claims = Session(self.place)
        self._hints = Hints(self.place, self._readers, self._hinted, self._frame_arrived)
        self._side = SideConnection(connection_arguments(self.place), setup_of(self.place))
        self._statements = Statements(self.place, self._readers, Session(self.place))
        self._writing = Session(self.place)
        self._commits = GatheredCalls(self._apply_together, most=GATHERED_MAX)

    async def close(self) -> None:
        commits, self._commits = self._commits, None
        if commits is None:
            return
        self.notify_all()
        await asyncio.gather(*self._returning, return_exceptions=True)
        await self._hints.close()
        await commits.close()
        await self._loads.close()
        await self._statements.close()
        async with self._writing.turn, self._claims.turn:
            await self._writing.close()
            await self._claims.close()
        await self._readers.close()
        self._side.close()

    async def diagnose(self) -> list[Finding]:
        return await diagnose(self.place)

    def now_ms(self) -> int:
        return self._clock.now_ms() if self._test_clock is None else self._test_clock()

    def _asked_time(self) -> int | None:
        """The time that statements use: None for the server's own clock, or the time of a test."""
        return None if self._test_clock is None else self._test_clock()

    def notify_all(self) -> None:
        with self._waiters_lock:
            self._waiters.notify_all()

    def _opened(self) -> GatheredCalls[Sequence[Commit], list[CommitResult]]:
        if self._commits is None:
            raise Unavailable("the store is closed")
        return self._commits

    # Writing

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        for commit in commits:
            check(commit)
        gathered = self._opened()
        if not commits:
            return []
        for commit in commits:
            if commit.statements:
                return [await self._commit_alone(each) for each in commits]
        return await gathered.submit(commits)

    async def _commit_alone(self, commit: Commit) -> CommitResult:
        """Commit in a transaction of its own, because a statement may take long."""
        if not commit.statements:
            return (await self._opened().submit([commit]))[0]
        await self._jobs.learn_lanes([commit])
        wave = Wave([commit], self._jobs.numbers)
        result = await asyncio.shield(asyncio.ensure_future(self._statements.commit(commit, wave, self._asked_time())))
        self._committed([commit], [result], wave.freed)
        return result

    async def dry_run(self, statement: Statement) -> Statement:
        self._opened()
        try:
            return await self._statements.dry_run(statement)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise translate_error(error, self.place) from error

    async def _apply_together(self, calls: list[Sequence[Commit]]) -> list[list[CommitResult]]:
        """Apply what has gathered in one transaction."""
        if len(calls) == 1:
            return [await self._apply(calls[0])]
        results = iter(await self._apply([commit for call in calls for commit in call]))
        return [[next(results) for _ in call] for call in calls]

    async def _apply(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Apply commits in one transaction, and notify waiting tasks."""
        await self._jobs.learn_lanes(commits)
        parts = [Wave(part, self._jobs.numbers) for part in waves(commits, by_tenant=self.place.row_security)]
        in_one_call = len(parts) == 1 and not self.place.row_security

        async def run(head: Head) -> Sequence[str | bytes]:
            link, now = self._writing.link, self._asked_time()
            if in_one_call:
                return [await parts[0].apply(link, (*head, now))]
            connection, answers = await link.connect(), list[str]()
            async with connection.transaction():
                for part in parts:
                    if self.place.row_security:
                        await connection.execute("SELECT set_config('tidemill.tenant', %s, true)", (part.tenant,))
                    answers += [row[0] for row in await link.fetch(SQL["apply"], (*head, now, *part.values))]
            return answers

        async with self._writing.turn:
            answers = await self._writing.call(run, lambda answer: answer.split("\n"))
        results: list[CommitResult] = []
        for part, answer in zip(parts, answers, strict=True):
            results += part.results(answer)
            self._clock.observe(part.now_ms)
        self._committed(commits, results, any(part.freed for part in parts))
        return results

    def _committed(self, commits: Sequence[Commit], results: Sequence[CommitResult], freed: bool) -> None:
        """Notify who waits in this process, and send a hint to the others."""
        queues: set[str] = set()
        streams: list[Stream] = []
        for commit, result in zip(commits, results, strict=True):
            if not isinstance(result, Committed):
                continue
            if commit.records:
                streams.append(commit.stream)
                self._followers.committed(commit.stream, result.version - len(commit.records) + 1, commit.records)
            if len(result.kept) < len(commit.jobs):
                kept = {lease.key for lease in result.kept}
                queues |= {job.queue for job in commit.jobs if job.key not in kept}
        self._notify([*queues, *streams, *((EVERY_QUEUE,) if queues else ()), *((CAPS,) if freed else ())])
        self._hints.send(queues, streams, caps=freed)

    def _notify(self, topics: Iterable[Hashable]) -> None:
        with self._waiters_lock:
            for topic in topics:
                self._waiters.notify(topic)

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        values = forget_values(stream, expected, rows)

        async def run(head: Head) -> str:
            ((answer,),) = await self._writing.link.fetch(SQL["forget"], (*head, *values))
            return str(answer)

        async def in_turn() -> str:
            async with self._writing.turn:
                return await self._writing.call(run, lambda answer: answer)

        self._opened()
        # A caller who is cancelled does not stop it.
        done = await asyncio.shield(asyncio.ensure_future(in_turn())) == "true"
        if done:
            self._notify([CAPS])
            self._hints.send(caps=True)
        return done

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        self._opened()
        if not leases:
            return []
        if threading.get_ident() == self._thread:
            return await self._jobs.renew(leases, lease_ms)
        values = renewal(leases, self._asked_time()) | {"lease": lease_ms}
        try:
            return lost_of(leases, self._side.fetch(SQL["renew"], values))
        except (psycopg.Error, OSError) as error:
            raise translate_error(error, self.place) from error

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        self._opened()
        if not leases:
            return
        await self._jobs.release(leases, delay_ms)
        queues = {lease.queue for lease in leases}
        self._notify([*queues, EVERY_QUEUE, CAPS])
        self._hints.send(queues, caps=True)

    # Claiming

    async def claim(self, request: Claim) -> list[Lease]:
        until = self.now_ms() + request.wait_ms
        topics: list[Hashable] = [*(request.queues or (EVERY_QUEUE,)), CAPS]
        if request.wait_ms and self._commits is not None:
            self._hints.listen()
        while self._commits is not None:
            with self._waiters_lock:
                waiter = self._waiters.add(topics)
            try:
                claimed = await self._claim_in_all_lanes(request)
                now = self.now_ms()
                if claimed.leases or now >= until or request.most <= 0:
                    return claimed.leases
                due = claimed.next_due_ms
                left = (until if due is None else min(due, until)) - now
                most = CONTENDED_MS if claimed.contended else LOOK_EVERY_MS
                # After the clock was set back `left` can exceed the requested wait.
                await rest(waiter, min(left, request.wait_ms, most))
            finally:
                with self._waiters_lock:
                    self._waiters.remove(waiter, topics)
        return []

    async def _claim_in_all_lanes(self, request: Claim) -> Claimed:
        """Claim; a call looks at a bounded number of lanes."""
        from_start = self._jobs.lane_cursor == 0
        claimed = await self._claim_or_release(request)
        while not claimed.leases and request.most > 0 and not (from_start and self._jobs.lane_cursor == 0):
            from_start = from_start or self._jobs.lane_cursor == 0
            claimed = await self._claim_or_release(request)
        return claimed

    async def _claim_or_release(self, request: Claim) -> Claimed:
        """Claim; releases the jobs if the caller is cancelled before the claim is done."""
        task = asyncio.ensure_future(self._jobs.claim(self._claims, request))
        try:
            claimed = await asyncio.shield(task)
        except asyncio.CancelledError:
            returning = asyncio.ensure_future(self._release_unclaimed(task))
            self._returning.add(returning)
            returning.add_done_callback(self._returning.discard)
            raise
        if claimed.now_ms:
            self._clock.observe(claimed.now_ms)
        return claimed

    async def _release_unclaimed(self, task: asyncio.Future[Claimed]) -> None:
        # Without the server the leases expire.
        with suppress(TidemillError):
            claimed = await task
            if claimed.leases:
                await self._jobs.release(claimed.leases, 0)
                self._notify([*{lease.queue for lease in claimed.leases}, EVERY_QUEUE])

    def _hinted(self, hint: Hint | None) -> None:
        """Another process has written something; None: there may be anything."""
        if hint is None or hint.streams is None:
            self._followers.others_wrote()
            self.notify_all()
            return
        streams = [self._followed[name] for name in hint.streams if name in self._followed]
        for stream in streams:
            self._followers.others_wrote_to(stream)
        queues = hint.queues
        self._notify([*queues, *streams, *((EVERY_QUEUE,) if queues else ()), *((CAPS,) if hint.caps else ())])

    # Reading

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        self._opened()
        if not after:
            return []
        if self.place.row_security:
            # A transaction sees one tenant.
            tails: dict[Stream, Tail] = {}
            for tenant in dict.fromkeys(stream.tenant for stream in after):
                own = [(stream, version) for stream, version in after.items() if stream.tenant == tenant]
                tails |= {tail.stream: tail for tail in await load(self._readers, own, snapshots, limit)}
            return [tails[stream] for stream in after]
        if snapshots and limit is None:
            return await self._loads.submit(after)
        return await load(self._readers, list(after.items()), snapshots, limit)

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        self._opened()
        return await sql_rows.find(self._readers, tenant, kind, terms, after, limit)

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        self._opened()
        return await sql_rows.count(self._readers, tenant, kind, terms, at_most)

    async def jobs(self, stream: Stream) -> list[JobView]:
        self._opened()
        return await self._jobs.views(stream)

    async def backlog(self) -> list[Backlog]:
        self._opened()
        return await self._jobs.backlog()

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        self._opened()
        return await streams_of(self._readers, kind, after, limit)

    # Following

    async def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        name = digest_of(stream)
        self._followed[name] = stream
        try:
            if self._commits is not None:
                self._hints.listen()
            async with aclosing(self._followers.follow(stream, after, on_idle, live=live)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            if not self._followers.has(stream):
                self._followed.pop(name, None)

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        self._opened()
        if self._followers.has_live(stream):
            ((version,),) = await self._readers.fetch(
                SQL["version"], (stream.kind, stream.tenant, stream.key), tenant=stream.tenant
            ) or ((0,),)
            self._deliver_live(stream, version, frames)
        await self._hints.publish(stream, frames)

    def _frame_arrived(self, name: str, version: int, body: bytes) -> None:
        stream = self._followed.get(name)
        if stream is not None:
            self._deliver_live(stream, version, [body])

    def _deliver_live(self, stream: Stream, version: int, frames: Sequence[bytes]) -> None:
        self._followers.published(stream, version, frames)
        self._notify([stream])
