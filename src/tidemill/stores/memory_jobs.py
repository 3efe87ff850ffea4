"""The jobs of the memory store: which one is next, and who holds it.

Every job is in exactly one place: its *lane* when it may be claimed, else behind its ready time or the end of
its lease. Heaps are never searched: an item that no longer speaks for its job stays behind and is skipped when
it comes up (`Work.stamp` names the one that does speak), which keeps every step O(log n). Nothing here knows of
records, versions or rows, and nothing here locks: the store does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Literal

import msgspec

from tidemill.stores.bells import EVERY_QUEUE, Bells
from tidemill.stores.contract import Claim, Job, JobView, Lease, Stream, in_family

SWEEP_AT = 1024
"""Stale heap items tolerated beyond the live ones before the heap is rebuilt."""


class Work:
    """A job and where it stands; `token` is 0 while nobody holds it, `stamp` is that of its one valid heap item."""

    __slots__ = ("expired", "expires_at_ms", "job", "order", "owner", "ready_at_ms", "stamp", "stream", "token")

    def __init__(self, stream: Stream, job: Job, order: int, now: int) -> None:
        self.stream = stream
        self.job = job
        self.order = order
        self.ready_at_ms = max(job.ready_at_ms, now)
        self.token = self.expires_at_ms = self.expired = self.stamp = 0
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
        while self.heap and self.heap[0][4].stamp != self.heap[0][3]:
            heappop(self.heap)


_Turn = tuple[int, str, int, int, int]
"""When a lane's best job is due to be claimed: tenant last served, tenant, -priority, ready time, insertion."""
_Listing = tuple[_Turn, int, _Lane]


class Jobs:
    """Every job, in exactly one place: its lane when it may be claimed, else behind its ready time or lease expiry."""

    def __init__(self, bells: Bells) -> None:
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
        work.stamp = 0
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
            if not in_family(request.family, work.stream.key):
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
            self._bells.ring(("cap", cap))

    def _wake_due(self, now: int) -> None:
        later = self._later
        while later and later[0][0] <= now:
            _, stamp, work = heappop(later)
            if work.stamp == stamp:
                self._end_lease(work)
                self._put_ready(work)

    def _put_later(self, work: Work, due: int) -> None:
        item = (due, next(self._ticks), work)
        work.stamp = item[1]
        heappush(self._later, item)
        if len(self._later) > self._sweep_at:
            self._later = [item for item in self._later if item[2].stamp == item[1]]
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
        work.stamp = stamp = next(self._ticks)
        heappush(lane.heap, (-job.priority, work.ready_at_ms, work.order, stamp, work))
        if lane.heap[0][3] == stamp:
            heappush(self._queues.setdefault(job.queue, []), self._list(lane))
        if ring:
            self._ring(job.queue)

    def _ring(self, queue: str) -> None:
        self._bells.ring(queue)
        self._bells.ring(EVERY_QUEUE)

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
