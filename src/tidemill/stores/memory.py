"""The reference store: one process's memory in plain dictionaries, and the specification of all the others.

The order of a commit is written here and nowhere else; which job is next lives in `memory_jobs`, how rows are
found in `memory_rows`. Nothing is durable and nothing is shared between processes: both are the business of the
other stores.

No verb suspends except `follow` and a `claim` that may wait, so the hot path needs no turn of the loop. A lock
makes each verb safe to call from another thread's loop, because leases are renewed from a thread of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice

from tidemill.ambient import wall_clock_ms
from tidemill.stores.bells import EVERY_QUEUE, Bell, Bells
from tidemill.stores.contract import (
    Backlog,
    Breath,
    Claim,
    Commit,
    CommitResult,
    Committed,
    Frame,
    JobView,
    Lease,
    LeasesLost,
    Page,
    Row,
    Snapshot,
    StatementRefused,
    Stream,
    Tail,
    VersionConflict,
    check,
)
from tidemill.stores.cursors import cursor_after, place_of
from tidemill.stores.memory_jobs import Jobs, Work
from tidemill.stores.memory_rows import Table

LIVE_FRAMES_MAX = 256
"""Live frames kept for a follower that does not read; older ones are dropped."""


class _Log:
    """One stream. Its version is the number of its records."""

    __slots__ = ("jobs", "records", "snapshot")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.snapshot: Snapshot | None = None
        self.jobs: dict[str, Work] = {}

    def held(self, key: str, token: int) -> Work | None:
        """The job, if this token is the fence it stands behind; the clock has no say."""
        work = self.jobs.get(key)
        return work if work is not None and token and work.token == token else None


class MemoryStore:
    """A `Store` without durability.

    `clock` answers the store's now in milliseconds. Under an injected clock a waiting claim sleeps by `sleep`
    (milliseconds, such as `Ambient.sleep`); without one it waits until whoever moves the clock calls `poke`.
    """

    def __init__(
        self,
        clock: Callable[[], int] | None = None,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._clock = clock or wall_clock_ms
        self._sleep = sleep or (_real_sleep if clock is None else None)
        self._lock = threading.Lock()
        self._bells = Bells()
        self._jobs = Jobs(self._bells)
        self._logs: dict[Stream, _Log] = {}
        self._tables: dict[tuple[str, str], Table] = {}
        self._live: dict[Stream, list[deque[tuple[int, bytes]]]] = {}
        self._closed = False

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        """Send everybody who waits home; what was committed is still there when the store is opened again."""
        self._closed = True
        self.poke()

    def now_ms(self) -> int:
        return self._clock()

    def poke(self) -> None:
        """Let everybody who waits look again, because an injected clock has moved."""
        with self._lock:
            self._bells.ring_all()

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        for commit in commits:
            check(commit)
        with self._lock:
            now = self._clock()
            return [self._commit(commit, now) for commit in commits]

    def _commit(self, commit: Commit, now: int) -> CommitResult:
        """Refuse, or apply; everything that can refuse comes before the first change."""
        log = self._logs.get(commit.stream) or _Log()
        lost = [key for key, token in commit.acks + commit.holds if log.held(key, token) is None]
        if lost:
            return LeasesLost(keys=tuple(dict.fromkeys(lost)))
        if commit.expected is not None and commit.expected != len(log.records):
            return VersionConflict(version=len(log.records))
        if commit.statements:
            return StatementRefused(statement=commit.statements[0], message="this store has no statements")
        if commit.records:
            log.records.extend(commit.records)
            self._bells.ring(commit.stream)
        if commit.snapshot is not None and (log.snapshot is None or log.snapshot.version < commit.snapshot.version):
            log.snapshot = commit.snapshot
        self._remove(log, commit)
        inserted = self._insert(log, commit, now)
        for row in commit.rows:
            self._table(commit.stream.tenant, row.kind).write(row)
        kept = self._keep(inserted, commit, now)
        self._file(commit.stream, log)
        return Committed(version=len(log.records), kept=kept)

    def _remove(self, log: _Log, commit: Commit) -> None:
        keys = [key for key, _ in commit.acks]
        if commit.drop or commit.withdraw:
            keys += commit.drop
            keys += [key for key in commit.withdraw if key in log.jobs and not log.jobs[key].token]
        for key in keys:
            work = log.jobs.pop(key, None)
            if work is not None:
                self._jobs.remove(work)

    def _insert(self, log: _Log, commit: Commit, now: int) -> dict[str, Work]:
        inserted: dict[str, Work] = {}
        for job in commit.jobs:
            if job.key not in log.jobs:
                inserted[job.key] = log.jobs[job.key] = self._jobs.new(commit.stream, job, now)
        return inserted

    def _keep(self, inserted: dict[str, Work], commit: Commit, now: int) -> tuple[Lease, ...]:
        """Lease what the committer keeps of the new jobs, and put the others where all can see them."""
        kept = []
        for key in commit.keep:
            work = inserted.get(key)
            if work is not None and work.ready_at_ms <= now:
                kept.append(self._jobs.lease(work, now, commit.keep_lease_ms, commit.keep_owner))
                del inserted[key]
        for work in inserted.values():
            self._jobs.put(work, now)
        return tuple(kept)

    def _table(self, tenant: str, kind: str) -> Table:
        table = self._tables.get((tenant, kind))
        if table is None:
            table = self._tables[tenant, kind] = Table()
        return table

    def _file(self, stream: Stream, log: _Log) -> None:
        """Keep a stream as long as there is something in it, so that names used once cost nothing."""
        if log.records or log.jobs or log.snapshot is not None:
            self._logs[stream] = log
        else:
            self._logs.pop(stream, None)

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        with self._lock:
            return [self._tail(stream, version, snapshots, limit) for stream, version in after.items()]

    def _tail(self, stream: Stream, after: int, snapshots: bool, limit: int | None) -> Tail:
        log = self._logs.get(stream) or _Log()
        body = None
        if snapshots and log.snapshot is not None and log.snapshot.version > after:
            after, body = log.snapshot.version, log.snapshot.body
        records = tuple(log.records[after : None if limit is None else after + limit])
        return Tail(stream=stream, version=len(log.records), after=after, records=records, snapshot=body)

    async def claim(self, request: Claim) -> list[Lease]:
        with self._lock:
            now = self._clock()
            leases = self._jobs.take(request, now)
        if leases or request.wait_ms <= 0 or request.most <= 0:
            return leases
        return await self._claim_within(request, now + request.wait_ms)

    async def _claim_within(self, request: Claim, until: int) -> list[Lease]:
        """Sleep until a queue or a cap rings, something falls due, or time is up; look again each time."""
        topics: list[Hashable] = [*(request.queues or (EVERY_QUEUE,)), *(("cap", cap) for cap in request.caps)]
        while True:
            with self._lock:
                now = self._clock()
                leases = self._jobs.take(request, now)
                if leases or now >= until or self._closed or request.most <= 0:
                    return leases
                due = self._jobs.next_due_ms()
                bell = self._bells.hang(topics)
            await self._rest(bell, topics, (until if due is None else min(due, until)) - now)

    async def _rest(self, bell: Bell, topics: Sequence[Hashable], ms: float | None) -> None:
        timer = None
        if ms is not None and self._sleep is not None:
            timer = asyncio.ensure_future(self._sleep(ms))
            timer.add_done_callback(lambda _: bell.ring())
        try:
            await bell.future
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                self._bells.take_down(bell, topics)

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        lost = []
        with self._lock:
            until = self._clock() + lease_ms
            for lease in leases:
                work = self._held(lease)
                if work is None:
                    lost.append(lease)
                else:
                    self._jobs.prolong(work, until)
        return lost

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        with self._lock:
            now = self._clock()
            for lease in leases:
                work = self._held(lease)
                if work is not None:
                    self._jobs.release(work, now, delay_ms)

    def _held(self, lease: Lease) -> Work | None:
        log = self._logs.get(lease.stream)
        return None if log is None else log.held(lease.key, lease.token)

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        below = None if after is None else place_of(after)
        limit = max(limit, 1)
        with self._lock:
            table = self._tables.get((tenant, kind)) or Table()
            rows = tuple(islice(table.walk(terms, below), limit + 1))
        if len(rows) <= limit:
            return Page(rows=rows)
        last = rows[limit - 1]
        return Page(rows=rows[:limit], after=cursor_after(last))

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        with self._lock:
            table = self._tables.get((tenant, kind)) or Table()
            return table.count(terms, at_most)

    async def follow(
        self, stream: Stream, after: int, breath: Breath | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        """Records are read from the stream itself, so only live frames need a queue, and it may overflow."""
        ring: deque[tuple[int, bytes]] = deque(maxlen=LIVE_FRAMES_MAX if live else 0)
        with self._lock:
            self._live.setdefault(stream, []).append(ring)
        try:
            while not self._closed:
                with self._lock:
                    frame = self._next_frame(stream, after, ring)
                    bell = self._bells.hang([stream]) if frame is None else None
                if frame is not None:
                    after = max(after, frame.version)
                    yield frame
                elif bell is not None:
                    await self._rest(bell, [stream], None)
                    if breath is not None:
                        await breath()
        finally:
            with self._lock:
                self._live[stream] = [other for other in self._live[stream] if other is not ring]
                if not self._live[stream]:
                    del self._live[stream]

    def _next_frame(self, stream: Stream, after: int, ring: deque[tuple[int, bytes]]) -> Frame | None:
        """A live frame stands behind the records that were there when it was told."""
        log = self._logs.get(stream)
        version = 0 if log is None else len(log.records)
        if log is not None and after < version and (not ring or after < ring[0][0]):
            return Frame(version=after + 1, body=log.records[after])
        return Frame(version=0, body=ring.popleft()[1]) if ring else None

    async def tell(self, stream: Stream, frames: Sequence[bytes]) -> None:
        with self._lock:
            log = self._logs.get(stream)
            version = 0 if log is None else len(log.records)
            for ring in self._live.get(stream, ()):
                ring.extend((version, body) for body in frames)
            self._bells.ring(stream)

    async def jobs(self, stream: Stream) -> list[JobView]:
        with self._lock:
            log = self._logs.get(stream) or _Log()
            return [log.jobs[key].view() for key in sorted(log.jobs)]

    async def backlog(self) -> list[Backlog]:
        counts: dict[tuple[str, str], Counter[str]] = {}
        oldest: dict[tuple[str, str], int] = {}
        with self._lock:
            now = self._clock()
            for work in (work for log in self._logs.values() for work in log.jobs.values()):
                where = (work.stream.tenant, work.job.queue)
                standing = work.standing(now)
                counts.setdefault(where, Counter())[standing] += 1
                if standing == "ready":
                    oldest[where] = min(oldest.get(where, now), work.ready_at_ms)
        return [
            Backlog(
                tenant=where[0],
                queue=where[1],
                ready=number["ready"],
                leased=number["leased"],
                later=number["later"],
                oldest_ready_at_ms=oldest.get(where),
            )
            for where, number in sorted(counts.items())
        ]

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        with self._lock:
            found = (stream for stream, log in self._logs.items() if stream.kind == kind and log.records)
            return nsmallest(limit, (stream for stream in found if after is None or stream > after))

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        with self._lock:
            log = self._logs.get(stream) or _Log()
            if expected is not None and expected != len(log.records):
                return False
            self._logs.pop(stream, None)
            for work in log.jobs.values():
                self._jobs.remove(work)
            for row in rows:
                self._table(stream.tenant, row.kind).write(row)
            return True


async def _real_sleep(ms: float) -> None:
    await asyncio.sleep(ms / 1000)


class SharedMemoryStore(MemoryStore):
    """A store in memory with a name: it lives as long as the process, whoever opens and closes it."""

    async def close(self) -> None:
        """Stay open for the others."""
