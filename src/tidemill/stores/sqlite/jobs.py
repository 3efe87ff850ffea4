"""Jobs in SQL: insertion, claiming, leases, and the backlog.

A ready job is in its lane; any other job waits until `due_ms`, its ready time or the end of its lease. A lane is the
combination of queue, tenant, caps and priority, so a claim compares only the heads of the lanes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from tidemill.stores.contract import Backlog, Claim, Commit, Job, JobView, Lease, Stream, is_full
from tidemill.stores.sql_files import statements
from tidemill.stores.sqlite.database import Damaged, Execute, checksum, fetch_one, place_in, verify
from tidemill.stores.sqlite.writer import PLACES, TOKENS, Transaction
from tidemill.stores.wakeups import CAPS, EVERY_QUEUE

LOG = logging.getLogger(__name__)

SQL = statements("sqlite")
_ADD_JOB, _REMOVE_JOB, _LEASE = SQL["add_job"], SQL["remove_job"], SQL["lease"]

LATER, READY, HELD = 0, 1, 2

_pack = msgspec.msgpack.Encoder().encode
_caps = msgspec.msgpack.Decoder(tuple[str, ...]).decode

LANES_AT_A_TIME = 2_000
"""Lanes that a claim examines in one transaction; if there are more, the next claim continues from there."""
LINE_MIN = 4

Turn = tuple[int, int, int, int]
"""A lane by its first job: -priority, ready time, insertion, id."""


class Lane(NamedTuple):
    queue: str
    tenant: str
    caps: tuple[str, ...]
    priority: int


class LaneHead(msgspec.Struct, frozen=True, gc=False):
    ready_at_ms: int
    place: int
    number: int
    key: str
    token: int
    expired: int
    body: bytes
    kind: str
    tenant: str
    stream: str


class Line:
    """The next jobs of a lane, read a few at a time: those that were leased are no longer in it."""

    def __init__(self, number: int, size: int, run_tree: str) -> None:
        self.number, self.size, self.run_tree = number, size, run_tree
        self.heads: list[LaneHead] = []
        """In reverse order."""
        self._is_over = False

    def first(self, execute: Execute) -> LaneHead | None:
        if not self.heads and not self._is_over:
            if self.run_tree:
                rows = execute(SQL["line_of_family"], (self.number, self.size, self.run_tree)).fetchall()
            else:
                rows = execute(SQL["line"], (self.number, self.size)).fetchall()
            self.heads = [LaneHead(*row) for row in rows][::-1]
            self._is_over = len(rows) < self.size
        return self.heads[-1] if self.heads else None


class Jobs:
    """Job operations, and a cache of lanes, which never change."""

    def __init__(self) -> None:
        self.holder = 0
        """The id under which this process holds leases."""
        self.numbers: dict[tuple[str, str, tuple[str, ...], int], int] = {}
        self._lanes: dict[int, Lane] = {}
        self.lane_cursor = 0
        """Where the next claim begins, if the last one did not look at all lanes with ready jobs."""
        self.blocked_by_cap = False
        """A claim of this process has left a job because of a cap, and waits for the end of a lease."""

    # In a commit

    def remove(self, tx: Transaction, number: int, commit: Commit) -> None:
        execute = tx.execute
        for key, _ in commit.acks:
            execute(_REMOVE_JOB, (number, key))
        for key in commit.drop:
            execute(_REMOVE_JOB, (number, key))
        for key in commit.withdraw:
            execute(SQL["withdraw_job"], (number, key))
        if self.blocked_by_cap:
            tx.wake_topics.add(CAPS)

    def insert(self, tx: Transaction, number: int, commit: Commit) -> tuple[Lease, ...]:
        """Add the jobs whose key is free; lease those that the committer keeps, in its order."""
        now, stream = tx.now_ms, commit.stream
        until = now + commit.keep_lease_ms
        tokens = {key: tx.next(TOKENS) for key in dict.fromkeys(commit.keep)}
        kept: list[Lease] = []
        for job in commit.jobs:
            key, ready_at, token = job.key, job.ready_at_ms, 0
            if ready_at > now:
                state, due, holder, owner = LATER, ready_at, 0, ""
            else:
                ready_at, token = now, tokens.get(key, 0)
                mine = (HELD, until, self.holder, commit.keep_owner)
                state, due, holder, owner = mine if token else (READY, now, 0, "")
            # A plain tuple equals the Lane and is cheaper to make.
            named = (job.queue, stream.tenant, job.caps, job.priority)
            lane = self.numbers.get(named) or self.lane(tx, Lane(*named))
            body = checksum(job.body, place_in(stream, key))
            tx.execute(_ADD_JOB, (number, key, lane, ready_at, tx.next(PLACES), state, due, token, holder, owner, body))
            if not tx.connection.changes():
                continue
            if token:
                kept.append(Lease(stream, key, token, job.body, job.queue, job.priority, until, 0, ready_at))
            else:
                tx.wake_topics.add(job.queue)
                tx.wake_topics.add(EVERY_QUEUE)
        if len(kept) > 1:
            kept.sort(key=attrgetter("token"))
        return tuple(kept)

    def lane(self, tx: Transaction, lane: Lane) -> int:
        """The id of a lane, created if it is new."""
        number = self.numbers.get(lane) or tx.learned.get(lane)
        if number is None:
            caps = checksum(_pack(lane.caps), _named(lane.queue, lane.tenant, lane.priority))
            called = (lane.queue, lane.tenant, caps, lane.priority)
            row = fetch_one(tx.execute(SQL["lane"], called))
            if row is None:
                tx.execute(SQL["add_lane"], called)
                number = tx.connection.last_insert_rowid()
            else:
                number = row[0]
            tx.learned[lane] = number
        return number

    def called(self, execute: Execute, number: int) -> Lane:
        """The lane with an id; raises `Damaged` if there is none."""
        lane = self._lanes.get(number)
        if lane is None:
            row = fetch_one(execute(SQL["lane_called"], (number,)))
            if row is None:
                raise Damaged(f"there is no lane {number}")
            queue, tenant, caps, priority = row
            whole = _caps(verify(caps, _named(queue, tenant, priority), f"lane {number}"))
            return Lane(queue, tenant, whole, priority)
        return lane

    def learn(self, lane: Lane, number: int) -> None:
        """Cache a committed lane; the id of a rolled-back lane is reused."""
        self.numbers[lane] = number
        self._lanes[number] = lane

    def _looked_up(self, tx: Transaction, number: int) -> Lane:
        """The lane with an id, cached once the transaction is committed."""
        lane = self.called(tx.execute, number)
        if number not in self._lanes:
            tx.learned[lane] = number
        return lane

    # Claiming

    def claim(self, tx: Transaction, request: Claim) -> list[Lease]:
        """Lease the next jobs. A damaged job is dropped: the reconciler puts it back from its run's log."""
        try:
            return self._claim(tx, request)
        except (TypeError, ValueError):
            # A flipped bit may turn a number into text, which cannot be compared, or make text undecodable.
            dropped = self._drop(tx, "drop_misshapen_jobs", ())
            for number, key, name in tx.execute(SQL["jobs_as_bytes"]).fetchall():
                try:
                    f"{str(key, 'utf-8')}{str(name, 'utf-8')}"
                except (TypeError, ValueError):
                    dropped += self._drop(tx, "remove_job_by_bytes", (number, key))
            if not dropped:
                raise
            return self._claim(tx, request)

    def _claim(self, tx: Transaction, request: Claim) -> list[Lease]:
        execute, now = tx.execute, tx.now_ms
        execute(SQL["fall_due"], (now,))
        tenants, count, capped = self._open_lanes(tx, request)
        most = request.most
        if not tenants or most <= 0:
            return []
        served = dict(execute(SQL["served"]).fetchall())
        alive = self._alive(tx) if capped else Counter[str]()
        lines: dict[int, Line] = {}
        leases: list[Lease] = []
        turns = [(served.get(tenant, 0), tenant) for tenant in tenants]
        heapify(turns)
        while turns and len(leases) < most:
            _, tenant = heappop(turns)
            lanes = tenants[tenant]
            while lanes:
                turn = heappop(lanes)
                number, lane = turn[-1], self._looked_up(tx, turn[-1])
                if is_full(lane.caps, request.caps, alive):
                    self.blocked_by_cap = True
                    continue
                line = lines.get(number)
                if line is None:
                    size = most if count == 1 else max(LINE_MIN, 2 * most // count)
                    line = lines[number] = Line(number, size, request.run_tree)
                head = line.first(execute)
                if head is not None and turn[1:3] == (head.ready_at_ms, head.place):
                    line.heads.pop()
                    lease = self._lease(tx, head, lane, request)
                    following = line.first(execute)
                else:
                    # The first job of the lane belongs to another run tree.
                    lease, following = None, head
                if following is not None:
                    heappush(lanes, (-lane.priority, following.ready_at_ms, following.place, number))
                if lease is not None:
                    leases.append(lease)
                    alive.update(lane.caps)
                    served[tenant] = lease.token
                    heappush(turns, (lease.token, tenant))
                    break
        for tenant in {lease.stream.tenant for lease in leases}:
            execute(SQL["serve"], (tenant, served[tenant]))
        return leases

    def _open_lanes(self, tx: Transaction, request: Claim) -> tuple[dict[str, list[Turn]], int, bool]:
        """The next lanes with ready jobs, as a heap per tenant; how many they are, and whether some have caps."""
        wanted = frozenset(request.queues)
        rows = tx.execute(SQL["lanes_in_line"], (self.lane_cursor, LANES_AT_A_TIME)).fetchall()
        self.lane_cursor = rows[-1][0] if len(rows) == LANES_AT_A_TIME else 0
        tenants: dict[str, list[Turn]] = {}
        count, capped = 0, False
        for number, ready_at_ms, place in rows:
            try:
                lane = self._looked_up(tx, number)
            except (Damaged, TypeError, ValueError):
                self.numbers = {named: known for named, known in self.numbers.items() if known != number}
                self._drop(tx, "drop_jobs_in_line", (number,))
                continue
            if not wanted or lane.queue in wanted:
                tenants.setdefault(lane.tenant, []).append((-lane.priority, ready_at_ms, place, number))
                count += 1
                capped = capped or bool(lane.caps)
        for lanes in tenants.values():
            heapify(lanes)
        return tenants, count, capped

    def _drop(self, tx: Transaction, statement: str, values: tuple[int | str | bytes, ...]) -> int:
        """Remove damaged jobs; returns how many."""
        tx.execute(SQL[statement], values)
        dropped = tx.connection.changes()
        if dropped:
            LOG.warning("%d damaged jobs were dropped; the reconciler restores them", dropped)
        return dropped

    def _alive(self, tx: Transaction) -> Counter[str]:
        """The number of live leases per cap."""
        alive: Counter[str] = Counter()
        for number, count in tx.execute(SQL["leases_alive"], (tx.now_ms,)).fetchall():
            with suppress(Damaged, TypeError, ValueError):
                for cap in self._looked_up(tx, number).caps:
                    alive[cap] += count
        return alive

    def _lease(self, tx: Transaction, head: LaneHead, lane: Lane, request: Claim) -> Lease | None:
        """Lease a job. A token that it still has belongs to a lease that expired."""
        stream = Stream(head.tenant, head.kind, head.stream)
        try:
            body = verify(head.body, place_in(stream, head.key), "it")
        except Damaged:
            self._drop(tx, "remove_job", (head.number, head.key))
            return None
        token, expired = tx.next(TOKENS), head.expired + (head.token != 0)
        until = tx.now_ms + request.lease_ms
        tx.execute(_LEASE, (until, token, expired, self.holder, request.owner, head.number, head.key))
        return Lease(stream, head.key, token, body, lane.queue, lane.priority, until, expired, head.ready_at_ms)

    # Leases

    def renew(self, tx: Transaction, leases: Iterable[tuple[int | None, Lease]], lease_ms: int) -> list[Lease]:
        """Prolong leases; returns the lost ones."""
        lost, until = [], tx.now_ms + lease_ms
        for number, lease in leases:
            if number is not None and lease.token:
                tx.execute(SQL["prolong"], (until, number, lease.key, lease.token))
                if tx.connection.changes():
                    continue
            lost.append(lease)
        return lost

    def release(self, tx: Transaction, leases: Iterable[tuple[int | None, Lease]], delay_ms: int) -> None:
        """Release jobs; without a delay each keeps its place in its lane."""
        now = tx.now_ms
        for number, lease in leases:
            held = fetch_one(tx.execute(SQL["held"], (number, lease.key, lease.token)))
            if held is not None and lease.token:
                ready_at = now + delay_ms if delay_ms > 0 else held[0]
                state = LATER if ready_at > now else READY
                tx.execute(SQL["release"], (ready_at, ready_at, state, number, lease.key))
                tx.wake_topics |= {lease.queue, EVERY_QUEUE, CAPS}

    # Reading

    def views(self, execute: Execute, stream: Stream, number: int, is_dead: Callable[[int], bool]) -> list[JobView]:
        """Every job of a stream; a damaged one has an empty body."""
        found = execute(SQL["jobs_of"], (number,)).fetchall()
        gone = {holder for holder in {row[-1] for row in found if row[-1]} if is_dead(holder)}
        return [self._view(execute, stream, gone, row) for row in found]

    def _view(self, execute: Execute, stream: Stream, gone: Collection[int], row: tuple[Any, ...]) -> JobView:
        key, lane, stored, ready_at_ms, token, due_ms, owner, expired, holder = row
        try:
            queue, _, caps, priority = self.called(execute, lane)
            body = verify(stored, place_in(stream, key), "it")
        except (Damaged, TypeError, ValueError):
            queue, caps, priority, body = "", (), 0, b""
        job = Job(key=key, queue=queue, body=body, ready_at_ms=ready_at_ms, priority=priority, caps=caps)
        if not token:
            return JobView(job=job, token=0, expired=expired)
        void = holder in gone
        return JobView(job=job, token=token, lease_expires_at_ms=due_ms, owner=owner, void=void, expired=expired)


def _named(queue: str, tenant: str, priority: int) -> bytes:
    return _pack((queue, tenant, priority))


def backlog(execute: Execute, now: int) -> list[Backlog]:
    return [
        Backlog(tenant=tenant, queue=queue, ready=ready, leased=leased, later=later, oldest_ready_at_ms=oldest)
        for tenant, queue, ready, leased, later, oldest in execute(SQL["backlog"], (now,)).fetchall()
    ]


def next_due_ms(execute: Execute) -> int | None:
    """The next time at which a job may become ready by the clock alone."""
    return min((due for due in execute(SQL["next_due"]).fetchall()[0] if due is not None), default=None)
