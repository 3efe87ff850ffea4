"""The reference store (streams, jobs, rows).

The reference store: one process's memory in plain dictionaries, and the specification of all the others.

The order of a commit is written here and nowhere else; which job is next lives in `memory_jobs`, how rows are
found in `memory_rows`. Nothing is durable and nothing is shared between processes: both are the business of the
other stores.

No verb suspends except `follow` and a `claim` that may wait, so the hot path needs no turn of the loop. A lock
makes each verb safe to call from another thread's loop, because leases are renewed from a thread of their own.

The jobs of the memory store: which one is next, and who holds it.

Every job is in exactly one place: its *lane* when it may be claimed, else behind its ready time or the end of
its lease. Heaps are never searched: an item that no longer speaks for its job stays behind and is skipped when
it comes up (`Work.stamp` names the one that does speak), which keeps every step O(log n). Nothing here knows of
records, versions or rows, and nothing here locks: the store does.

The index rows of the memory store: written at every step of a run, looked at now and then.

So writing is what must be cheap. A row that only changes its body moves nowhere, and a term is kept in order
only when somebody walks along it.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left, insort
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
    place_of,
)
from tidemill.stores.wakeups import EVERY_QUEUE, Waiter, Waiters

SWEEP_AT = 1024
"""Stale heap items tolerated beyond the live ones before the heap is rebuilt."""


class Work:
    """A job and where it stands; `token` is 0 while nobody holds it, `stamp` is that of its one valid heap item."""

    __slots__ = ("expired", "expires_at_ms", "generation", "job", "order", "owner", "ready_at_ms", "stream", "token")

    def __init__(self, stream: Stream, job: Job, order: int, now: int) -> None:
        self.stream = stream
        self.job = job
        self.order = order
        self.ready_at_ms = max(job.ready_at_ms, now)
        self.token = self.expires_at_ms = self.expired = self.generation = 0
        self.owner = ""

    def standing(self, now: int) -> Literal["ready", "leased", "later"]:
        """What the backlog counts it as; an expired lease is work to be done again."""
        if self.token and self.expires_at_ms > now:
            return "leased"
        return "later" if self.ready_at_ms > now else "ready"

    def view(self) -> JobView:
        job = msgspec.structs.replace(self.job, ready_at_ms=self.ready_at_ms)
        if not self.token:
            return JobView(job=job, token=0)
        return JobView(job=job, token=self.token, lease_expires_at_ms=self.expires_at_ms, owner=self.owner)


class _Lane:
    """The ready jobs of one tenant in one queue under the same caps: what blocks one of them blocks them all."""

    __slots__ = ("heap", "listed", "name")

    def __init__(self, name: tuple[str, str, tuple[str, ...]]) -> None:
        self.name = name
        self.heap: list[tuple[int, int, int, int, Work]] = []
        self.listed = 0

    def drop_stale(self) -> None:
        while self.heap and self.heap[0][4].generation != self.heap[0][3]:
            heappop(self.heap)


_Turn = tuple[int, str, int, int, int]
"""When a lane's best job is due to be claimed: tenant last served, tenant, -priority, ready time, insertion."""
_Listing = tuple[_Turn, int, _Lane]


class Jobs:
    """Every job, in exactly one place: its lane when it may be claimed, else behind its ready time or lease expiry."""

    def __init__(self, bells: Waiters) -> None:
        self._bells = bells
        self._ticks = count(1)
        self._token = 0
        self._lanes: dict[tuple[str, str, tuple[str, ...]], _Lane] = {}
        self._queues: dict[str, list[_Listing]] = {}
        self._later: list[tuple[int, int, Work]] = []
        self._sweep_at = SWEEP_AT
        self._served: dict[str, int] = {}
        self._live: dict[str, set[Work]] = {}

    def new(self, stream: Stream, job: Job, now: int) -> Work:
        """Make a job that has no place yet; `put` or `lease` gives it one."""
        return Work(stream, job, next(self._ticks), now)

    def put(self, work: Work, now: int) -> None:
        """Place a job that nobody holds."""
        if work.ready_at_ms > now:
            self._put_later(work, work.ready_at_ms)
        else:
            self._put_ready(work)

    def lease(self, work: Work, now: int, lease_ms: int, owner: str) -> Lease:
        """Hand a job over under a new token. A token it still has is that of a holder who let the lease expire."""
        if work.token:
            work.expired += 1
        self._token += 1
        work.token = self._token
        work.owner = owner
        work.expires_at_ms = 0
        self.prolong(work, now + lease_ms)
        return Lease(
            stream=work.stream,
            key=work.job.key,
            token=work.token,
            body=work.job.body,
            queue=work.job.queue,
            priority=work.job.priority,
            expires_at_ms=work.expires_at_ms,
            expired=work.expired,
            ready_at_ms=work.ready_at_ms,
        )

    def prolong(self, work: Work, until: int) -> None:
        """Let a lease live until then, at least; it may have expired as long as nobody took it over."""
        work.expires_at_ms = max(work.expires_at_ms, until)
        for cap in work.job.caps:
            self._live.setdefault(cap, set()).add(work)
        self._put_later(work, work.expires_at_ms)

    def release(self, work: Work, now: int, delay_ms: int) -> None:
        """Take a job back from its holder; without a delay it keeps its place in the line."""
        self._end_lease(work)
        work.token = 0
        if delay_ms > 0:
            work.ready_at_ms = now + delay_ms
        self.put(work, now)

    def remove(self, work: Work) -> None:
        """Make whatever heap item speaks for the job stale."""
        work.generation = 0
        self._end_lease(work)

    def take(self, request: Claim, now: int) -> list[Lease]:
        """Lease the jobs whose turn it is. A lane over a cap is set aside, since leases only grow during a claim."""
        self._wake_due(now)
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
            self._put_ready(work, ring=False)
        return leases

    def next_due_ms(self) -> int | None:
        """When something may become ready by the clock alone; early is harmless, late would not be."""
        return self._later[0][0] if self._later else None

    def _full(self, caps: tuple[str, ...], bounds: Mapping[str, int]) -> bool:
        return any(cap in bounds and len(self._live.get(cap, ())) >= bounds[cap] for cap in caps)

    def _end_lease(self, work: Work) -> None:
        for cap in work.job.caps:
            live = self._live.get(cap)
            if live is not None:
                live.discard(work)
                if not live:
                    del self._live[cap]
            self._bells.notify(("cap", cap))

    def _wake_due(self, now: int) -> None:
        later = self._later
        while later and later[0][0] <= now:
            _, stamp, work = heappop(later)
            if work.generation == stamp:
                self._end_lease(work)
                self._put_ready(work)

    def _put_later(self, work: Work, due: int) -> None:
        item = (due, next(self._ticks), work)
        work.generation = item[1]
        heappush(self._later, item)
        if len(self._later) > self._sweep_at:
            self._later = [item for item in self._later if item[2].generation == item[1]]
            heapify(self._later)
            self._sweep_at = 2 * len(self._later) + SWEEP_AT
        if self._later[0] is item:
            self._ring(work.job.queue)

    def _put_ready(self, work: Work, ring: bool = True) -> None:
        job = work.job
        name = (job.queue, work.stream.tenant, job.caps)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
        work.generation = stamp = next(self._ticks)
        heappush(lane.heap, (-job.priority, work.ready_at_ms, work.order, stamp, work))
        if lane.heap[0][3] == stamp:
            heappush(self._queues.setdefault(job.queue, []), self._list(lane))
        if ring:
            self._ring(job.queue)

    def _ring(self, queue: str) -> None:
        self._bells.notify(queue)
        self._bells.notify(EVERY_QUEUE)

    def _turn(self, lane: _Lane) -> _Turn:
        tenant, best = lane.name[1], lane.heap[0]
        return (self._served.get(tenant, 0), tenant, best[0], best[1], best[2])

    def _list(self, lane: _Lane) -> _Listing:
        lane.listed = next(self._ticks)
        return (self._turn(lane), lane.listed, lane)

    def _next(self, queues: Sequence[str]) -> _Listing | None:
        if len(queues) == 1:
            return self._best(queues[0])
        return min(
            (best for queue in queues or list(self._queues) if (best := self._best(queue)) is not None), default=None
        )

    def _best(self, queue: str) -> _Listing | None:
        """The lane whose turn it is in a queue. Turns only move back while listed: one that did is listed anew."""
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


DEAD_PLACES_MAX = 1024
"""Dead places tolerated in an order beyond its living ones before it is rebuilt."""


class Order:
    """Rows of one term, sorted when somebody looks: writing costs O(1), and the dead are swept in bulk."""

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
        self._dead.add(place)
        if len(self._dead) > len(self) + DEAD_PLACES_MAX:
            self._sorted = sorted({*self._sorted, *self._fresh} - self._dead)
            self._fresh, self._dead = [], set()

    def downward(self, below: Place | None) -> Iterator[Place]:
        self._settle()
        end = len(self._sorted) if below is None else bisect_left(self._sorted, below)
        for index in range(end - 1, -1, -1):
            if self._sorted[index] not in self._dead:
                yield self._sorted[index]

    def _settle(self) -> None:
        if len(self._fresh) * 64 < len(self._sorted):
            for place in self._fresh:
                insort(self._sorted, place)
        else:
            self._sorted.extend(self._fresh)
            self._sorted.sort()
        self._fresh = []


class Table:
    """The rows of one kind of one tenant, and an order per term; None stands for the term every row has."""

    __slots__ = ("_orders", "_rows")

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._orders: dict[str | None, Order] = {}

    def write(self, row: Row) -> None:
        """Replace or remove a row, touching only the orders in which it moves."""
        old = self._rows.get(row.key)
        if old is not None and old.terms is row.terms and old.sort == row.sort and not row.deleted:
            # By far the most common write: a run went on and can still be found by the same terms.
            self._rows[row.key] = row
            return
        self._rows.pop(row.key, None)
        if not row.deleted:
            self._rows[row.key] = row
        before, after = _terms(old), _terms(None if row.deleted else row)
        if old is not None and old.sort == row.sort:
            before, after = before - after, after - before
        if old is not None:
            self._leave(before, (old.sort, old.key))
        self._enter(after, (row.sort, row.key))

    def _enter(self, terms: Set[str | None], place: Place) -> None:
        for term in terms:
            order = self._orders.get(term)
            if order is None:
                order = self._orders[term] = Order()
            order.add(place)

    def _leave(self, terms: Set[str | None], place: Place) -> None:
        for term in terms:
            order = self._orders[term]
            order.discard(place)
            if not order:
                del self._orders[term]

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


def _terms(row: Row | None) -> Set[str | None]:
    return frozenset() if row is None else {None, *row.terms}


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
        self._bells = Waiters()
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
        self.notify_all()

    def now_ms(self) -> int:
        return self._clock()

    def notify_all(self) -> None:
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
            self._bells.notify(commit.stream)
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
                bell = self._bells.add(topics)
            await self._rest(bell, topics, (until if due is None else min(due, until)) - now)

    async def _rest(self, bell: Waiter, topics: Sequence[Hashable], ms: float | None) -> None:
        timer = None
        if ms is not None and self._sleep is not None:
            timer = asyncio.ensure_future(self._sleep(ms))
            timer.add_done_callback(lambda _: bell.notify())
        try:
            await bell.future
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                self._bells.remove(bell, topics)

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
        self, stream: Stream, after: int, breath: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        """Records are read from the stream itself, so only live frames need a queue, and it may overflow."""
        ring: deque[tuple[int, bytes]] = deque(maxlen=LIVE_FRAMES_MAX if live else 0)
        with self._lock:
            self._live.setdefault(stream, []).append(ring)
        try:
            while not self._closed:
                with self._lock:
                    frame = self._next_frame(stream, after, ring)
                    bell = self._bells.add([stream]) if frame is None else None
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

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        with self._lock:
            log = self._logs.get(stream)
            version = 0 if log is None else len(log.records)
            for ring in self._live.get(stream, ()):
                ring.extend((version, body) for body in frames)
            self._bells.notify(stream)

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
