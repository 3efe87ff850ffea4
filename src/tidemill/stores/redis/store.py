"""A store in a Redis or Valkey database, shared by the processes of many machines.

The store is cut into partitions, each in one hash slot: a run, its children, their jobs and rows are in one. Commits
that gather while a call is under way are written by the next one; all run in the loop that opened the store, and calls
from other threads (lease renewal) use a side connection. The store's clock is the server's: `now_ms` is an estimate
that is never ahead of it.

With several partitions these hold within each of them, not across all: the order in which tenants take turns, and that
the commits of one call are one transaction. Caps hold across all of them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from secrets import token_hex

from msgspec.structs import replace

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
    StatementRefused,
    Stream,
    Tail,
    cap_bound,
    check,
)
from tidemill.stores.followers import Followers
from tidemill.stores.optional import Finding
from tidemill.stores.redis import jobs as stored_jobs
from tidemill.stores.redis import rows as stored_rows
from tidemill.stores.redis.database import Argument, Nodes, Place
from tidemill.stores.redis.followers import LOOK_EVERY_MS, Hints
from tidemill.stores.redis.opening import SideConnection, enter, missing_store, recorded, settings_report
from tidemill.stores.redis.scripts import Head, Partition, Session, partition_of, root_of, script
from tidemill.stores.redis.streams import Applied, Asked, forget, load, streams_of
from tidemill.stores.wakeups import CAPS, EVERY_QUEUE, GatheredCalls, ServerClock, Waiters, rest

LOG = logging.getLogger(__name__)

CODES = {"version": "server_version", "maxmemory-policy": "maxmemory_policy"}
CAPS_LOCK_MS = 5_000
"""After this a claim under caps whose process is gone stops no other."""


class _Part:
    """A partition with what is under way in it."""

    def __init__(self, store: RedisStore, partition: Partition) -> None:
        self.partition = partition
        self.writing, self.claiming = Session(partition), Session(partition)

        self.commits = GatheredCalls(partial(store._apply, self))
        self.loads = GatheredCalls(partial(load, partition, store.id), at_once=2)

    async def close(self) -> None:
        await self.commits.close()
        await self.loads.close()
        async with self.claiming.turn, self.writing.turn:
            await self.claiming.close()
            await self.writing.close()
            await self.partition.close()


class RedisStore:
    """A `Store` in a database. `clock` replaces the server's time in tests; who moves it calls `notify_all`."""

    in_server = True

    def __init__(self, place: Place, *, clock: Callable[[], int] | None = None, read_only: bool = False) -> None:
        self.place, self._read_only = place, read_only
        self.id = ""
        self._test_clock = clock
        self._clock = ServerClock()
        self._waiters, self._waiters_lock = Waiters(), threading.Lock()
        self._followers = Followers(
            self,
            self._waiters,
            self._waiters_lock,
            sleep=lambda waiter: rest(waiter, LOOK_EVERY_MS),
            is_open=lambda: bool(self._parts),
        )
        self._returning: set[asyncio.Future[None]] = set()
        self._parts: list[_Part] = []
        self._next_part = 0
        self._thread = 0

    @property
    def address(self) -> str:
        return f"{self.place.name}, prefix {self.place.prefix}"

    # Opening and closing

    async def open(self) -> None:
        if self._parts:
            return
        self._nodes = nodes = Nodes(self.place)
        entered = await recorded(self.place) if self._read_only else await enter(nodes)
        if entered is None:
            raise missing_store(self.place)
        self.id = entered.store
        self._clock.observe(entered.now_ms)
        self._thread = threading.get_ident()
        self._hints = Hints(nodes, self.notify_all, self._records_arrived, self._deliver_live)
        self._side = SideConnection(nodes)
        self._parts = [_Part(self, Partition(nodes, number)) for number in range(entered.partitions)]

    async def close(self) -> None:
        parts, self._parts = self._parts, []
        if not parts:
            return
        self.notify_all()
        await asyncio.gather(*self._returning, return_exceptions=True)
        await self._hints.close()
        for part in parts:
            await part.close()
        self._side.close()

    async def diagnose(self) -> list[Finding]:
        """The settings of the servers that decide what survives."""
        return [
            Finding(
                CODES.get(setting.name, setting.name),
                setting.severity,
                f"{setting.name} is {setting.value}{': ' if setting.meaning else ''}{setting.meaning}",
                setting.what_to_do,
                "store",
            )
            for setting in await settings_report(self.place)
        ]

    def now_ms(self) -> int:
        return self._clock.now_ms() if self._test_clock is None else self._test_clock()

    def notify_all(self) -> None:
        with self._waiters_lock:
            self._waiters.notify_all()

    def _opened(self) -> list[_Part]:
        if not self._parts:
            raise Unavailable("the store is closed")
        return self._parts

    @property
    def _partitions(self) -> list[Partition]:
        return [part.partition for part in self._opened()]

    def _part(self, tenant: str, key: str) -> _Part:
        return _part_of(self._opened(), tenant, key)

    @property
    def _head(self) -> Head:
        """A server takes its own clock unless a test gives another."""
        now: Argument = "" if self._test_clock is None else self._test_clock()
        hints = self._hints
        # On a cluster a server knows only its own subscribers.
        alone = hints.hears_itself and len(self._parts) == 1
        return self.id, now, hints.channels, hints.process + "+" if alone else hints.process

    # Writing

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        for commit in commits:
            check(commit)
        parts = self._opened()
        if not commits:
            return []
        for commit in commits:
            if commit.statements:
                return [await self._commit_or_refuse(each) for each in commits]
        if len(parts) == 1:
            return await parts[0].commits.submit(commits)
        return await self._commit_in_parts(commits)

    async def _commit_or_refuse(self, commit: Commit) -> CommitResult:
        if commit.statements:
            return StatementRefused(statement=commit.statements[0], message="this store has no statements")
        return (await self.commit([commit]))[0]

    async def _commit_in_parts(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """One call per partition. Rows of other partitions than the commit's are written after it."""
        by_part: dict[_Part, list[int]] = {}
        own: list[Commit] = []
        strangers: list[tuple[int, Row]] = []
        for number, commit in enumerate(commits):
            part = self._part(commit.stream.tenant, commit.stream.key)
            by_part.setdefault(part, []).append(number)
            foreign = [row for row in commit.rows if self._part(commit.stream.tenant, row.key) is not part]
            if foreign:
                strangers += [(number, row) for row in foreign]
                commit = replace(commit, rows=tuple(row for row in commit.rows if row not in foreign))
            own.append(commit)
        answers = await asyncio.gather(
            *(part.commits.submit([own[number] for number in numbers]) for part, numbers in by_part.items())
        )
        results: dict[int, CommitResult] = {}
        for numbers, answer in zip(by_part.values(), answers, strict=True):
            results.update(zip(numbers, answer, strict=True))
        for number, row in strangers:
            if isinstance(results[number], Committed):
                await self._write_stranger(commits[number].stream.tenant, row)
        return [results[number] for number in range(len(commits))]

    async def _write_stranger(self, tenant: str, row: Row) -> None:
        home = Stream(tenant, row.kind, row.key)
        await self._part(tenant, row.key).commits.submit([Commit(home, None, rows=(row,))])

    async def _apply(self, part: _Part, calls: list[Sequence[Commit]]) -> list[list[CommitResult]]:
        """Apply the commits gathered for a partition in one call, and notify waiting tasks."""
        commits = calls[0] if len(calls) == 1 else [commit for call in calls for commit in call]
        applied = Applied(part.partition, commits)
        async with part.writing.turn:
            results = await applied.send(part.writing, self._head)
        self._clock.observe(applied.now_ms)
        self._committed(commits, results, applied.freed)
        if len(calls) == 1:
            return [results]
        answers, start = [], 0
        for call in calls:
            answers.append(results[start : start + len(call)])
            start += len(call)
        return answers

    def _committed(self, commits: Sequence[Commit], results: Sequence[CommitResult], freed: bool) -> None:
        """Notify waiting tasks of this process; the script has notified other processes."""
        topics: list[Hashable] = [CAPS] if freed else []
        for commit, result in zip(commits, results, strict=True):
            if not isinstance(result, Committed):
                continue
            if commit.records:
                topics.append(commit.stream)
                self._followers.committed(commit.stream, result.version - len(commit.records) + 1, commit.records)
            if len(result.kept) < len(commit.jobs):
                topics.append(EVERY_QUEUE)
                topics += {job.queue for job in commit.jobs}
        self._notify(topics)

    def _notify(self, topics: Iterable[Hashable]) -> None:
        with self._waiters_lock:
            for topic in topics:
                self._waiters.notify(topic)

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        part = self._part(stream.tenant, stream.key)
        own = [row for row in rows if self._part(stream.tenant, row.key) is part]
        # A caller who is cancelled does not stop it.
        writing = asyncio.ensure_future(forget(part.writing, self._head, stream, expected, own))
        done = await asyncio.shield(writing)
        if done:
            for row in rows:
                if row not in own:
                    await self._write_stranger(stream.tenant, row)
            self._notify([CAPS])
        return done

    # Leases

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        lost: list[Lease] = []
        for part, own in _by_part(self._opened(), leases).items():
            if threading.get_ident() == self._thread:
                lost += await stored_jobs.renew(part.partition, self._head, own, lease_ms)
            else:
                called = stored_jobs.lease_call(part.partition, self._head, own, lease_ms)
                _, *numbers = self._side.run(part.partition, "renew", *called)
                lost += [own[number - 1] for number in numbers]
        if len(self._parts) > 1:
            names = {id(lease) for lease in lost}
            return [lease for lease in leases if id(lease) in names]
        return lost

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        await self._release(self._opened(), leases, delay_ms)

    async def _release(self, parts: list[_Part], leases: Sequence[Lease], delay_ms: int) -> None:
        for part, own in _by_part(parts, leases).items():
            await stored_jobs.release(part.partition, self._head, own, delay_ms)
        if leases:
            self._notify([*{lease.queue for lease in leases}, EVERY_QUEUE, CAPS])

    # Claiming

    async def claim(self, request: Claim) -> list[Lease]:
        until = self.now_ms() + request.wait_ms
        topics: list[Hashable] = [*(request.queues or (EVERY_QUEUE,)), CAPS]
        while self._parts and self._nodes.warnings:
            # Only workers claim.
            LOG.warning("%s", self._nodes.warnings.popitem()[0])
        if request.wait_ms and self._parts:
            self._hints.listen()
        while self._parts:
            with self._waiters_lock:
                waiter = self._waiters.add(topics)
            try:
                claimed = await self._claim_or_release(request)
                now = self.now_ms()
                if claimed.leases or now >= until or request.most <= 0:
                    return claimed.leases
                due = claimed.next_due_ms
                left = (until if due is None else min(due, until)) - now
                # After the clock was set back `left` can exceed the requested wait.
                await rest(waiter, min(left, request.wait_ms, LOOK_EVERY_MS))
            except Unavailable:
                if self._parts:
                    raise
                # The store was closed while it looked for jobs.
            finally:
                with self._waiters_lock:
                    self._waiters.remove(waiter, topics)
        return []

    async def _claim_or_release(self, request: Claim) -> stored_jobs.Claimed:
        """Claim; releases the jobs if the caller is cancelled before the claim is done."""
        task = asyncio.ensure_future(self._claim(request))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            returning = asyncio.ensure_future(self._release_unclaimed(task, self._parts))
            self._returning.add(returning)
            returning.add_done_callback(self._returning.discard)
            raise

    async def _claim(self, request: Claim) -> stored_jobs.Claimed:
        """Ask one partition after the other, beginning with another one each time."""
        parts = self._parts
        self._next_part += 1
        order = [parts[(self._next_part + number) % len(parts)] for number in range(len(parts))]
        if len(parts) > 1:
            async with self._caps_locked(parts[0].partition):
                return await self._claim_from(order, request, bounded=True)
        return await self._claim_from(order, request, bounded=False)

    async def _claim_from(self, parts: list[_Part], request: Claim, *, bounded: bool) -> stored_jobs.Claimed:
        leases: list[Lease] = []
        due: int | None = None
        live: dict[_Part, dict[str, int]] = {}
        if bounded:
            for part in parts:
                # Expired leases do not count.
                await stored_jobs.claim(part.claiming, self._head, request, 0, {}, False)
                live[part] = await stored_jobs.live_leases(part.partition)
        for part in parts:
            most = min(request.most, request.limit - len(leases))
            if most <= 0:
                break
            elsewhere = Counter[str]()
            for other, leased in live.items():
                if other is not part:
                    elsewhere.update(leased)
            known = {cap: cap_bound(cap, request.caps) for cap in (*request.caps, *elsewhere)}
            bounds = {cap: bound - elsewhere[cap] for cap, bound in known.items() if bound is not None}
            waits = request.wait_ms > 0 and not leases
            claimed = await stored_jobs.claim(part.claiming, self._head, request, most, bounds, waits)
            self._clock.observe(claimed.now_ms)
            leases += claimed.leases
            if bounded and claimed.leases:
                live[part] = await stored_jobs.live_leases(part.partition)
            if claimed.next_due_ms is not None:
                due = claimed.next_due_ms if due is None else min(due, claimed.next_due_ms)
        return stored_jobs.Claimed(leases, 0, due)

    @asynccontextmanager
    async def _caps_locked(self, partition: Partition) -> AsyncIterator[None]:
        """One claim under caps at a time, of all processes: the leases of all partitions count."""
        key, holder = partition.tag + b"caps-lock", token_hex(9)
        while True:
            if await partition.reads.call("SET", key, holder, "NX", "PX", CAPS_LOCK_MS):
                break
            await asyncio.sleep(0.003)
        try:
            yield
        finally:
            await partition.reads.run(script("unlock"), (key,), (holder,))

    async def _release_unclaimed(self, task: asyncio.Future[stored_jobs.Claimed], parts: list[_Part]) -> None:
        # Without the server the leases expire.
        with suppress(TidemillError):
            claimed = await task
            await self._release(parts, claimed.leases, 0)

    # Reading

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        if len(after) == 1 and snapshots and limit is None:
            (asked,) = after.items()
            return [await self._part(asked[0].tenant, asked[0].key).loads.submit(asked)]
        by_part: dict[_Part, list[Asked]] = {}
        for stream, version in after.items():
            by_part.setdefault(self._part(stream.tenant, stream.key), []).append((stream, version))
        if snapshots and limit is None:
            tails = await asyncio.gather(*(part.loads.submit(asked) for part, own in by_part.items() for asked in own))
        else:
            tails = [
                tail
                for part, own in by_part.items()
                for tail in await load(part.partition, self.id, own, snapshots=snapshots, limit=limit)
            ]
        if len(by_part) < 2:
            return tails
        found = {tail.stream: tail for tail in tails}
        return [found[stream] for stream in after]

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        return await stored_rows.find(self._partitions, self.id, tenant, kind, terms, after, limit)

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        return await stored_rows.count(self._partitions, self.id, tenant, kind, terms, at_most)

    async def jobs(self, stream: Stream) -> list[JobView]:
        return await stored_jobs.views(self._part(stream.tenant, stream.key).partition, self.id, stream)

    async def backlog(self) -> list[Backlog]:
        return await stored_jobs.backlog(self._partitions, self.now_ms())

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        return await streams_of(self._partitions, kind, after, limit)

    # Following

    async def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        if not self._parts:
            return
        hints = self._hints
        hints.follow(stream)
        try:
            async with aclosing(self._followers.follow(stream, after, on_idle, live=live)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            hints.unfollow(stream)

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        version = await self._hints.publish(self._part(stream.tenant, stream.key).partition, stream, frames)
        if self._followers.has_live(stream):
            self._deliver_live(stream, version, frames)

    def _records_arrived(self, stream: Stream | None) -> None:
        """Another process has written to a stream; None: there may be anything."""
        if stream is None:
            self._followers.others_wrote()
            self.notify_all()
        else:
            self._followers.others_wrote_to(stream)
            self._notify([stream])

    def _deliver_live(self, stream: Stream, version: int, frames: Sequence[bytes]) -> None:
        self._followers.published(stream, version, frames)
        self._notify([stream])


def _part_of(parts: list[_Part], tenant: str, key: str) -> _Part:
    return parts[partition_of(tenant, root_of(key), len(parts)) if len(parts) > 1 else 0]


def _by_part(parts: list[_Part], leases: Sequence[Lease]) -> dict[_Part, list[Lease]]:
    found: dict[_Part, list[Lease]] = {}
    for lease in leases:
        found.setdefault(_part_of(parts, lease.stream.tenant, lease.stream.key), []).append(lease)
    return found
