"""The reference store: one process's memory in plain dictionaries. It specifies the behaviour of all other stores.

The order of a commit is defined by `MemoryStore._commit`. Nothing is durable or shared between processes. No method
suspends except `follow` and a `claim` that waits, so the hot path needs no loop turn; a lock makes every method safe to
call from other threads (lease renewal).
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from itertools import count, islice
from typing import Literal

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.stores.contract import (
    Backlog,
    Claim,
    Commit,
    CommitResult,
    Committed,
    Frame,
    IdleCallback,
    Job,
    JobView,
    Lease,
    LeasesLost,
    Page,
    Place,
    Row,
    Snapshot,
    StatementRefused,
    Stream,
    Tail,
    VersionConflict,
    check,
    cursor_after,
    in_run_tree,
    is_full,
    place_of,
)
from tidemill.stores.optional import Finding
from tidemill.stores.wakeups import CAPS, EVERY_QUEUE, Waiter, Waiters

# Jobs

SWEEP_AT = 1024
"""Stale heap items, or removed places of an order, tolerated beyond the live ones before it is rebuilt."""


class Work:
    """A job and its state; `token` is 0 while it is not leased, `generation` is that of its one valid heap item."""

    __slots__ = ("expired", "expires_at_ms", "generation", "job", "order", "owner", "ready_at_ms", "stream", "token")

    def __init__(self, stream: Stream, job: Job, order: int, now: int) -> None:
        self.stream, self.job, self.order = stream, job, order
        self.ready_at_ms = max(now, job.ready_at_ms)
        self.token = self.expires_at_ms = self.expired = self.generation = 0
        self.owner = ""

    def state(self, now: int) -> Literal["ready", "leased", "later"]:
        """As the backlog counts it; an expired lease is ready again."""
        if self.token and self.expires_at_ms > now:
            return "leased"
        return "later" if self.ready_at_ms > now else "ready"

    def view(self) -> JobView:
        job = msgspec.structs.replace(self.job, ready_at_ms=self.ready_at_ms)
        if not self.token:
            return JobView(job=job, token=0, expired=self.expired)
        until = self.expires_at_ms
        return JobView(job=job, token=self.token, lease_expires_at_ms=until, owner=self.owner, expired=self.expired)


class _Lane:
    """The ready jobs of one tenant in one queue under the same caps: a cap blocks all of them or none."""

    __slots__ = ("heap", "listed", "name")

    def __init__(self, name: tuple[str, str, tuple[str, ...]]) -> None:
        self.name = name
        self.heap: list[tuple[int, int, int, int, Work]] = []
        self.listed = 0

    def drop_stale(self) -> None:
        while self.heap and self.heap[0][4].generation != self.heap[0][3]:
            heappop(self.heap)


_Turn = tuple[int, str, int, int, int]
"""The claim order of a lane's best job: tenant last served, tenant, -priority, ready time, insertion."""
_Listing = tuple[_Turn, int, _Lane]


class Jobs:
    """All jobs: leased, in a lane if ready, else in `_later`. A heap item without its job's generation is stale."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._ticks = count(1)
        self._token = 0
        self._lanes: dict[tuple[str, str, tuple[str, ...]], _Lane] = {}
        self._queues: dict[str, list[_Listing]] = {}
        self._later: list[tuple[int, int, Work]] = []
        self._sweep_at = SWEEP_AT
        self._leased: dict[Work, None] = {}
        self._first_expiry: int | None = None
        """No lease expires before; None: there are none."""
        self._served: dict[str, int] = {}
        self._live: dict[str, set[Work]] = {}

    def new(self, stream: Stream, job: Job, now: int) -> Work:
        return Work(stream, job, next(self._ticks), now)

    def put(self, work: Work, now: int) -> None:
        """Place a job that is not leased."""
        if work.ready_at_ms > now:
            self._put_later(work)
        else:
            self._put_ready(work)

    def lease(self, work: Work, now: int, lease_ms: int, owner: str) -> Lease:
        """Lease a job under a new token. A token that it still has belongs to a lease that expired."""
        if work.token:
            work.expired += 1
        job, until, token = work.job, now + lease_ms, self._token + 1
        self._token = work.token = token
        work.owner, work.expires_at_ms = owner, 0
        self.prolong(work, until)
        return Lease(
            work.stream, job.key, token, job.body, job.queue, job.priority, until, work.expired, work.ready_at_ms
        )

    def prolong(self, work: Work, until: int) -> None:
        """Extend a lease to `until`, never shortening it; an expired lease that was not taken over counts."""
        until = work.expires_at_ms = max(work.expires_at_ms, until)
        work.generation = 0
        self._leased[work] = None
        for cap in work.job.caps:
            self._live.setdefault(cap, set()).add(work)
        if self._first_expiry is None or until < self._first_expiry:
            self._first_expiry = until
            self._notify(work.job.queue)

    def release(self, work: Work, now: int, delay_ms: int) -> None:
        """End the lease of a job; without a delay it keeps its place in the lane."""
        self._end_lease(work)
        work.token = 0
        if delay_ms > 0:
            work.ready_at_ms = now + delay_ms
        self.put(work, now)

    def remove(self, work: Work) -> None:
        """Remove a job by making its heap item stale."""
        work.generation = 0
        self._end_lease(work)

    def take(self, request: Claim, now: int) -> list[Lease]:
        """Lease the next jobs. A lane over a cap is skipped for the whole claim, since leases only grow during it."""
        while self._later and self._later[0][0] <= now:
            _, stamp, work = heappop(self._later)
            if work.generation == stamp:
                self._put_ready(work)
        if self._first_expiry is not None and self._first_expiry <= now:
            for work in [work for work in self._leased if work.expires_at_ms <= now]:
                self._end_lease(work)
                self._put_ready(work)
            self._first_expiry = min((work.expires_at_ms for work in self._leased), default=None)
        leases: list[Lease] = []
        aside: list[_Listing] = []
        strangers: list[Work] = []
        most = request.most
        while len(leases) < most and (best := self._next(request.queues)) is not None:
            lane = best[2]
            queue, tenant, caps = lane.name
            if caps and self._full(caps, request.caps):
                aside.append(heappop(self._queues[queue]))
                continue
            work = heappop(lane.heap)[4]
            if not in_run_tree(request.run_tree, work.stream.key):
                strangers.append(work)
                continue
            lease = self.lease(work, now, request.lease_ms, request.owner)
            self._served[tenant] = lease.token
            leases.append(lease)
        for listing in aside:
            heappush(self._queues[listing[2].name[0]], listing)
        for work in strangers:
            self._put_ready(work, notify=False)
        return leases

    def next_due_ms(self) -> int | None:
        """The next time at which a job may become ready by the clock alone; never too late."""
        moments = (self._first_expiry, self._later[0][0] if self._later else None)
        return min((moment for moment in moments if moment is not None), default=None)

    def _full(self, caps: tuple[str, ...], bounds: Mapping[str, int]) -> bool:
        return is_full(caps, bounds, {cap: len(self._live.get(cap, ())) for cap in caps})

    def _end_lease(self, work: Work) -> None:
        self._leased.pop(work, None)
        for cap in work.job.caps:
            live = self._live.get(cap, set())
            live.discard(work)
            if not live:
                self._live.pop(cap, None)
            self._waiters.notify(CAPS)

    def _put_later(self, work: Work) -> None:
        later, stamp = self._later, next(self._ticks)
        item = (work.ready_at_ms, stamp, work)
        work.generation = stamp
        heappush(later, item)
        if len(later) > self._sweep_at:
            later = self._later = [item for item in later if item[2].generation == item[1]]
            heapify(later)
            self._sweep_at = 2 * len(later) + SWEEP_AT
        if later[0] is item:
            self._notify(work.job.queue)

    def _put_ready(self, work: Work, notify: bool = True) -> None:
        job = work.job
        name = (job.queue, work.stream.tenant, job.caps)
        lane = self._lanes.get(name) or self._lanes.setdefault(name, _Lane(name))
        work.generation = stamp = next(self._ticks)
        heappush(lane.heap, (-job.priority, work.ready_at_ms, work.order, stamp, work))
        if lane.heap[0][3] == stamp:
            heappush(self._queues.setdefault(job.queue, []), self._list(lane))
        if notify:
            self._notify(job.queue)

    def _notify(self, queue: str) -> None:
        self._waiters.notify(queue)
        self._waiters.notify(EVERY_QUEUE)

    def _turn(self, lane: _Lane) -> _Turn:
        tenant, best = lane.name[1], lane.heap[0]
        return (self._served.get(tenant, 0), tenant, best[0], best[1], best[2])

    def _list(self, lane: _Lane) -> _Listing:
        lane.listed = next(self._ticks)
        return (self._turn(lane), lane.listed, lane)

    def _next(self, queues: Sequence[str]) -> _Listing | None:
        bests = (self._best(queue) for queue in queues or list(self._queues))
        return min((best for best in bests if best is not None), default=None)

    def _best(self, queue: str) -> _Listing | None:
        """The next lane of a queue. The order of a listed lane only moves back: then it is listed again."""
        heap = self._queues.get(queue, [])
        while heap:
            turn, stamp, lane = heap[0]
            lane.drop_stale()
            if stamp != lane.listed:
                heappop(heap)
            elif not lane.heap:
                heappop(heap)
                del self._lanes[lane.name]
            elif turn == self._turn(lane):
                return heap[0]
            else:
                heapreplace(heap, self._list(lane))
        return None


# Rows


class Order:
    """The places of one term, sorted on read: writing costs O(1), and removed places are swept in bulk."""

    __slots__ = ("_dead", "_fresh", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[Place] = []
        self._fresh: list[Place] = []
        self._dead: set[Place] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._fresh) - len(self._dead)

    def add(self, place: Place) -> None:
        if place in self._dead:
            self._dead.remove(place)
        else:
            self._fresh.append(place)

    def discard(self, place: Place) -> None:
        dead = self._dead
        dead.add(place)
        if len(dead) > SWEEP_AT and len(dead) > len(self) + SWEEP_AT:
            self._sorted = sorted({*self._sorted, *self._fresh} - dead)
            self._fresh, self._dead = [], set()

    def downward(self, below: Place | None) -> Iterator[Place]:
        # Python's sort merges the sorted part with few new places in linear time.
        self._sorted.extend(self._fresh)
        self._sorted.sort()
        self._fresh = []
        end = len(self._sorted) if below is None else bisect_left(self._sorted, below)
        for index in range(end - 1, -1, -1):
            if self._sorted[index] not in self._dead:
                yield self._sorted[index]


class Table:
    """The rows of one kind of one tenant, and an order per term; None is the term that every row has."""

    __slots__ = ("_orders", "_rows")

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._orders: dict[str | None, Order] = {}

    def write(self, row: Row) -> None:
        """Replace or remove a row, touching only the orders that change."""
        key, orders = row.key, self._orders
        old, terms = self._rows.pop(key, None), _terms(row)
        if not row.deleted:
            self._rows[key] = row
        if old is not None:
            before = _terms(old)
            if old.sort == row.sort:
                # Most often: a step of a run that leaves its terms unchanged.
                before, terms = before - terms, terms - before
            for term in before:
                order = orders[term]
                order.discard((old.sort, key))
                if not order:
                    del orders[term]
        place = (row.sort, key)
        for term in terms:
            entered = orders.get(term)
            if entered is None:
                entered = orders[term] = Order()
            entered.add(place)

    def walk(self, terms: Sequence[str], below: Place | None = None) -> Iterator[Row]:
        """Rows that have all terms, newest first, along the shortest of their orders."""
        orders = [self._orders.get(term) for term in terms or (None,)]
        found = [order for order in orders if order is not None]
        if len(found) == len(orders):
            wanted = set(terms)
            for _, key in min(found, key=len).downward(below):
                if wanted.issubset(self._rows[key].terms):
                    yield self._rows[key]

    def count(self, terms: Sequence[str], at_most: int) -> int:
        """How many rows have all terms; a single order knows its own length."""
        if len(terms) <= 1:
            order = self._orders.get(terms[0] if terms else None)
            return 0 if order is None else min(len(order), at_most)
        return sum(1 for _ in islice(self.walk(terms), at_most))


def _terms(row: Row) -> Set[str | None]:
    return frozenset() if row.deleted else {None, *row.terms}


# The store

LIVE_FRAMES_MAX = 256
"""Live frames kept per follower; older ones are dropped."""


class _Log:
    """One stream; its version is the number of its records."""

    __slots__ = ("jobs", "records", "snapshot")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.snapshot: Snapshot | None = None
        self.jobs: dict[str, Work] = {}

    def held(self, key: str, token: int) -> Work | None:
        """The job, if it is leased with this token, whatever the clock says."""
        work = self.jobs.get(key)
        return work if work is not None and token and work.token == token else None

    def idle(self, key: str) -> bool:
        """Whether a job is not leased, and no holder of it is presumed dead; one that does not exist is idle."""
        work = self.jobs.get(key)
        return work is None or not (work.token or work.expired)


class MemoryStore:
    """A `Store` without durability. `clock` gives the store's time in milliseconds.

    With an injected clock a waiting claim sleeps by `sleep` (in milliseconds, such as `Ambient.sleep`); without `sleep`
    it waits until the owner of the clock calls `notify_all`.
    """

    def __init__(
        self, clock: Callable[[], int] | None = None, sleep: Callable[[float], Awaitable[None]] | None = None
    ) -> None:
        self._clock = clock or wall_clock_ms
        self._sleep = sleep or ((lambda ms: asyncio.sleep(ms / 1000)) if clock is None else None)
        self._lock = threading.Lock()
        self._waiters = Waiters()
        self._jobs = Jobs(self._waiters)
        self._logs: dict[Stream, _Log] = {}
        self._tables: dict[tuple[str, str], Table] = {}
        self._live: dict[Stream, list[deque[tuple[int, bytes]]]] = {}
        self._closed = False

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        """End all waits; committed data is still there when the store is opened again."""
        self._closed = True
        self.notify_all()

    async def diagnose(self) -> list[Finding]:
        return [
            Finding(
                "durability", "info", "an in-memory store is lost when its process ends", "use sqlite:/// or a server"
            )
        ]

    def now_ms(self) -> int:
        return self._clock()

    def notify_all(self) -> None:
        """Wake every waiting claim and follower, because an injected clock has moved."""
        with self._lock:
            self._waiters.notify_all()

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        for commit in commits:
            check(commit)
        with self._lock:
            now = self._clock()
            return [self._commit(commit, now) for commit in commits]

    def _commit(self, commit: Commit, now: int) -> CommitResult:
        """Apply or refuse a commit; everything that can refuse comes before the first change."""
        stream, expected, records = commit.stream, commit.expected, commit.records
        known = self._logs.get(stream)
        log = _Log() if known is None else known
        lost: list[str] = []
        for key, token in commit.acks:
            if log.held(key, token) is None:
                lost.append(key)
        for key, token in commit.holds:
            if log.held(key, token) is None if token else not log.idle(key):
                lost.append(key)
        if lost:
            return LeasesLost(keys=tuple(dict.fromkeys(lost)))
        if expected is not None and expected != len(log.records):
            return VersionConflict(version=len(log.records))
        if commit.statements:
            return StatementRefused(statement=commit.statements[0], message="this store has no statements")
        if records:
            log.records += records
            self._waiters.notify(stream)
        if commit.snapshot is not None and (log.snapshot is None or log.snapshot.version < commit.snapshot.version):
            log.snapshot = commit.snapshot
        for key, _ in commit.acks:
            self._remove(log, key)
        if commit.drop or commit.withdraw:
            unheld = [key for key in commit.withdraw if key in log.jobs and not log.jobs[key].token]
            for key in (*commit.drop, *unheld):
                self._remove(log, key)
        kept = self._insert(log, commit, now) if commit.jobs else ()
        for row in commit.rows:
            self._table(stream.tenant, row.kind).write(row)
        if known is None or not log.records:
            self._file(stream, log)
        return Committed(version=len(log.records), kept=kept)

    def _remove(self, log: _Log, key: str) -> None:
        work = log.jobs.pop(key, None)
        if work is not None:
            self._jobs.remove(work)

    def _insert(self, log: _Log, commit: Commit, now: int) -> tuple[Lease, ...]:
        """Insert jobs, lease those that the committer keeps, and queue the others."""
        inserted: dict[str, Work] = {}
        for job in commit.jobs:
            key = job.key
            if key not in log.jobs:
                inserted[key] = log.jobs[key] = self._jobs.new(commit.stream, job, now)
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
        return self._tables.get((tenant, kind)) or self._tables.setdefault((tenant, kind), Table())

    def _file(self, stream: Stream, log: _Log) -> None:
        """Keep a stream only while it holds something, so that unused names cost nothing."""
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
        until = self._clock() + request.wait_ms
        topics: list[Hashable] = [*(request.queues or (EVERY_QUEUE,)), CAPS]
        while True:
            with self._lock:
                now = self._clock()
                leases = self._jobs.take(request, now)
                if leases or now >= until or self._closed or request.most <= 0:
                    return leases
                due = self._jobs.next_due_ms()
                waiter = self._waiters.add(topics)
            await self._rest(waiter, topics, (until if due is None else min(due, until)) - now)

    async def _rest(self, waiter: Waiter, topics: Sequence[Hashable], ms: float | None) -> None:
        timer = None
        if ms is not None and self._sleep is not None:
            timer = asyncio.ensure_future(self._sleep(ms))
            timer.add_done_callback(lambda _: waiter.notify())
        try:
            await waiter.future
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                self._waiters.remove(waiter, topics)

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
        return Page(rows=rows[:limit], after=cursor_after(rows[limit - 1]))

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        with self._lock:
            table = self._tables.get((tenant, kind)) or Table()
            return table.count(terms, at_most)

    async def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        """Records are read from the stream; only live frames need a queue, which may overflow."""
        frames: deque[tuple[int, bytes]] = deque(maxlen=LIVE_FRAMES_MAX if live else 0)
        with self._lock:
            self._live.setdefault(stream, []).append(frames)
        try:
            while not self._closed:
                with self._lock:
                    frame = self._next_frame(stream, after, frames)
                    waiter = self._waiters.add([stream]) if frame is None else None
                if frame is not None:
                    after = max(after, frame.version)
                    yield frame
                elif waiter is not None:
                    await self._rest(waiter, [stream], None)
                    if on_idle is not None:
                        await on_idle()
        finally:
            with self._lock:
                self._live[stream] = [other for other in self._live[stream] if other is not frames]
                if not self._live[stream]:
                    del self._live[stream]

    def _next_frame(self, stream: Stream, after: int, frames: deque[tuple[int, bytes]]) -> Frame | None:
        """A live frame follows the records that were committed when it was published."""
        log = self._logs.get(stream)
        version = 0 if log is None else len(log.records)
        if log is not None and after < version and (not frames or after < frames[0][0]):
            return Frame(version=after + 1, body=log.records[after])
        return Frame(version=0, body=frames.popleft()[1]) if frames else None

    async def publish(self, stream: Stream, bodies: Sequence[bytes]) -> None:
        with self._lock:
            log = self._logs.get(stream)
            version = 0 if log is None else len(log.records)
            for frames in self._live.get(stream, ()):
                frames.extend((version, body) for body in bodies)
            self._waiters.notify(stream)

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
                state = work.state(now)
                counts.setdefault(where, Counter(ready=0, leased=0, later=0))[state] += 1
                if state == "ready":
                    oldest[where] = min(oldest.get(where, now), work.ready_at_ms)
        return [
            Backlog(tenant=tenant, queue=queue, oldest_ready_at_ms=oldest.get((tenant, queue)), **states)
            for (tenant, queue), states in sorted(counts.items())
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


class SharedMemoryStore(MemoryStore):
    """A named memory store: it lives as long as the process, however often it is opened and closed."""

    async def close(self) -> None:
        """Stay open for the others."""
