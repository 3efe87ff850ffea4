"""Jobs in SQL: how they are inserted, claimed, renewed and counted.

The server chooses jobs in the order of the contract and skips those that another claim has locked. Caps are counted
from leases, so claims with caps take turns; a claim without them needs one call.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg

from tidemill.stores.contract import Backlog, Claim, Commit, Job, JobView, Lease, Stream, is_full
from tidemill.stores.postgres.database import CALL_SECONDS, SQL, Bigints, Byteas, Readers, Rows, Texts
from tidemill.stores.postgres.writer import Head, Session

LANES_AT_A_TIME = 2_000
"""Lanes that one claim examines; if there are more, the next claim continues from there."""
LANES_MAX = 100_000
"""Lanes that are cached."""


CONTENDED, CAPS_COUNT = 1, 2
"""Why a claim answers nothing: others were about to take what there was; caps must be counted first."""


class Lane(NamedTuple):
    queue: str
    tenant: str
    caps: tuple[str, ...]
    priority: int


class Claimed(msgspec.Struct, frozen=True):
    leases: list[Lease]
    now_ms: int
    next_due_ms: int | None = None
    contended: bool = False
    """Others were about to take what there was."""


Numbers = dict[tuple[str, str, tuple[str, ...], int], int]
"""The numbers of lanes, by their fields."""


def job_arrays() -> tuple[Any, ...]:
    return (*(Bigints(), Texts(), Texts(), Bigints(), Bigints(), Bigints(), Bigints(), Bigints(), Byteas()),)


def add_jobs(
    arrays: tuple[Any, ...],
    placed: dict[int, tuple[int, Job]],
    number: int,
    commit: Commit,
    first: int,
    numbers: Numbers,
) -> None:
    """Add the jobs of a commit: those to keep come first, in their order, because they get tokens in that order."""
    jobs = {job.key: (place, job) for place, job in reversed(list(enumerate(commit.jobs, first)))}
    keep = [key for key in dict.fromkeys(commit.keep) if key in jobs]
    tenant = commit.stream.tenant
    commits, tenants, keys, lanes, capped, ready, places, kept, bodies = arrays
    ordered = [(key, 1) for key in keep]
    ordered += [(key, 0) for key in reversed(jobs) if key not in keep]
    for key, stays in ordered:
        place, job = jobs[key]
        commits.append(number)
        tenants.append(tenant)
        keys.append(key)
        lanes.append(numbers[job.queue, tenant, job.caps, job.priority])
        capped.append(1 if job.caps else 0)
        ready.append(job.ready_at_ms)
        places.append(place)
        kept.append(stays)
        bodies.append(job.body)
        if stays:
            placed[place] = number, job


class Jobs:
    """Job operations, and a cache of lanes, which never change."""

    def __init__(self, readers: Readers, clock: Callable[[], int | None]) -> None:
        self._readers, self._clock = readers, clock
        self.numbers: Numbers = {}
        """Replaced when it has grown too large: who has read a number keeps the dictionary that has it."""
        self._lanes: dict[int, Lane] = {}
        self.lane_cursor = 0
        """Where the next claim begins, if the last one did not look at all lanes with ready jobs."""
        self._viewed: list[tuple[Stream, asyncio.Future[list[JobView]]]] = []
        self._viewing: set[asyncio.Task[None]] = set()

    # In a commit

    async def learn_lanes(self, commits: Iterable[Commit]) -> None:
        """Know the numbers of the lanes of commits; lanes are made if they are new."""
        if len(self.numbers) > LANES_MAX:
            self.numbers, self._lanes = {}, {}
        while unknown := self._unknown(commits):
            for tenant in sorted({lane.tenant for lane in unknown}):
                await self._learn(tenant, sorted(lane for lane in unknown if lane.tenant == tenant))

    def _unknown(self, commits: Iterable[Commit]) -> set[Lane]:
        unknown = set[Lane]()
        for commit in commits:
            for job in commit.jobs:
                lane = (job.queue, commit.stream.tenant, job.caps, job.priority)
                if lane not in self.numbers:
                    unknown.add(Lane(*lane))
        return unknown

    async def _learn(self, tenant: str, lanes: Sequence[Lane]) -> None:
        called = {
            "tenant": tenant,
            "queues": Texts([lane.queue for lane in lanes]),
            "caps": Texts([msgspec.json.encode(lane.caps).decode() for lane in lanes]),
            "priorities": Bigints([lane.priority for lane in lanes]),
        }
        found = await self._readers.fetch(SQL["lanes"], called, tenant=tenant)
        while len(found) < len(lanes):
            await self._readers.fetch(SQL["add_lanes"], called, tenant=tenant)
            found = await self._readers.fetch(SQL["lanes"], called, tenant=tenant)
        for place, number in found:
            self.numbers[lanes[place - 1]] = number
            self._lanes[number] = lanes[place - 1]

    # Claiming

    async def claim(self, session: Session, request: Claim) -> Claimed:
        """Lease the next jobs. After a cut the tokens are unknown, so the jobs are released."""
        async with session.turn:
            before: list[int] = []

            async def run(head: Head) -> Claimed:
                if before:
                    await session.link.fetch(SQL["give_back"], (head[0], head[2]))
                before.append(head[2])
                most = request.most
                if most <= 0:
                    return Claimed([], 0)
                values = (*head, self._clock(), Texts(request.queues), most, request.lease_ms, request.owner)
                window = (self.lane_cursor, LANES_AT_A_TIME)
                caps = Texts(request.caps), Bigints(request.caps.values())
                rows = await session.link.fetch(SQL["claim"], (*values, request.run_tree, *caps, *window))
                _, now, _, self.lane_cursor, why, due, *_ = rows.pop()
                if why == CAPS_COUNT:
                    return await self._claim_capped(session, head, request, most, window)
                return Claimed(await self._leases(rows, request, now), now, due, why == CONTENDED)

            return await session.call(run)

    async def _claim_capped(
        self, session: Session, head: Head, request: Claim, most: int, window: tuple[int, int]
    ) -> Claimed:
        """Claim under caps: one such claim at a time, in a transaction, until nothing more fits."""
        caps, bounds = Texts(request.caps), Bigints(request.caps.values())
        queues, leases, contended = Texts(request.queues), list[Lease](), False
        connection, fetch = await session.link.connect(), session.link.fetch
        async with asyncio.timeout(CALL_SECONDS), connection.transaction():
            await fetch(SQL["one_capped_claim"])
            ((now, _),) = await fetch(SQL["expire"], (self._clock(),))
            while len(leases) < most:
                asked = (now, queues, most - len(leases), caps, bounds, request.run_tree, *window)
                offered = await fetch(SQL["next_jobs"], asked)
                live = Counter(dict(await fetch(SQL["live_caps"], (now,)))) if offered else Counter[str]()
                fitting = await self._fitting(offered, request, live)
                if not fitting:
                    break
                streams, keys = Bigints([each[0] for each in fitting]), Texts([each[1] for each in fitting])
                wanted = (*head, now, streams, keys, len(fitting), request.lease_ms, request.owner)
                rows = await fetch(SQL["lease"], wanted)
                leases += await self._leases(rows, request, now)
                if len(rows) < len(fitting):
                    contended = not leases
                    break
            due = None if leases else (await fetch(SQL["next_due"], (now, queues)))[0][0]
        return Claimed(leases, now, due, contended)

    async def _fitting(self, offered: Rows, request: Claim, live: Counter[str]) -> Rows:
        """The jobs up to the first that the caps of those before it leave no room for."""
        await self._know({row[2] for row in offered})
        fitting: Rows = []
        for row in offered:
            caps = self._lanes[row[2]].caps
            if is_full(caps, request.caps, live):
                break
            live.update(caps)
            fitting.append(row)
        return fitting

    async def _know(self, numbers: Iterable[int]) -> None:
        unknown = [number for number in numbers if number not in self._lanes]
        if unknown:
            for number, queue, tenant, caps, priority in await self._readers.fetch(
                SQL["lanes_called"], (Bigints(unknown),)
            ):
                self._lanes[number] = Lane(queue, tenant, tuple(caps), priority)

    async def _leases(self, rows: Rows, request: Claim, now: int) -> list[Lease]:
        await self._know({row[3] for row in rows})
        until = now + request.lease_ms
        leases = []
        for name, token, body, lane, expired, ready_at, tenant, kind, key in rows:
            queue, _, _, priority = self._lanes[lane]
            stream = Stream(tenant, kind, key)
            leases.append(Lease(stream, name, token, body, queue, priority, until, expired, ready_at))
        return leases

    # Leases

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        rows = await self._readers.fetch(SQL["renew"], renewal(leases, self._clock()) | {"lease": lease_ms})
        return lost_of(leases, rows)

    async def release(self, leases: Sequence[Lease], delay_ms: int) -> None:
        await self._readers.fetch(SQL["release"], renewal(leases, self._clock()) | {"delay": delay_ms})

    # Reading

    async def views(self, stream: Stream) -> list[JobView]:
        """The jobs of a stream. Calls that arrive together share one call of the server."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[JobView]] = loop.create_future()
        self._viewed.append((stream, found))
        if len(self._viewed) == 1:
            task = loop.create_task(self._view_gathered(), name="tidemill-views")
            self._viewing.add(task)
            task.add_done_callback(self._viewing.discard)
        return await found

    async def _view_gathered(self) -> None:
        gathered, self._viewed = self._viewed, []
        # With row security a transaction sees one tenant.
        for tenant in dict.fromkeys(stream.tenant for stream, _ in gathered):
            own = [(stream, future) for stream, future in gathered if stream.tenant == tenant]
            values = {
                "tenants": Texts([tenant] * len(own)),
                "kinds": Texts([stream.kind for stream, _ in own]),
                "keys": Texts([stream.key for stream, _ in own]),
            }
            views: dict[int, list[JobView]] = {}
            try:
                for number, *row in await self._readers.fetch(SQL["jobs_of"], values, tenant=tenant):
                    views.setdefault(number, []).append(_view(row))
            except Exception as error:
                for _, future in own:
                    if not future.done():
                        future.set_exception(error)
                continue
            for number, (_, future) in enumerate(own, 1):
                if not future.done():
                    future.set_result(views.get(number, []))

    async def backlog(self) -> list[Backlog]:
        rows = await self._readers.fetch(SQL["backlog"], (self._clock(),))
        return [
            Backlog(tenant=tenant, queue=queue, ready=ready, leased=leased, later=later, oldest_ready_at_ms=oldest)
            for tenant, queue, ready, leased, later, oldest in rows
        ]


def renewal(leases: Sequence[Lease], now: int | None) -> dict[str, Any]:
    """Leases as the arrays of a call, in the order in which commits lock them."""
    ordered = sorted(leases, key=_locked_by)
    return {
        "now": now,
        "tenants": Texts([lease.stream.tenant for lease in ordered]),
        "kinds": Texts([lease.stream.kind for lease in ordered]),
        "streams": Texts([lease.stream.key for lease in ordered]),
        "keys": Texts([lease.key for lease in ordered]),
        "tokens": Bigints([lease.token for lease in ordered]),
    }


def lost_of(leases: Sequence[Lease], renewed: Rows) -> list[Lease]:
    ordered = sorted(leases, key=_locked_by)
    held = Counter(id(ordered[number - 1]) for (number,) in renewed)
    return [lease for lease in leases if id(lease) not in held]


def _locked_by(lease: Lease) -> tuple[str, str, str, str]:
    return lease.stream.kind, lease.stream.tenant, lease.stream.key, lease.key


def _view(row: Sequence[Any]) -> JobView:
    key, queue, body, ready_at_ms, priority, caps, token, due_ms, owner, expired = row
    job = Job(key=key, queue=queue, body=body, ready_at_ms=ready_at_ms, priority=priority, caps=tuple(caps))
    if not token:
        return JobView(job=job, token=0, expired=expired)
    return JobView(job=job, token=token, lease_expires_at_ms=due_ms, owner=owner, expired=expired)


class SideConnection:
    """A lazily opened connection for threads other than the loop's (lease renewal), one call at a time."""

    def __init__(self, arguments: dict[str, Any], setup: Any) -> None:
        self._arguments, self._setup = arguments, setup
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    def fetch(self, statement: str, values: dict[str, Any]) -> Rows:
        """Execute a statement that may be repeated; a cut connection is replaced once."""
        with self._lock:
            for attempt in range(2):
                try:
                    if self._connection is None or self._connection.closed:
                        self._connection = psycopg.Connection.connect(**self._arguments)
                        self._connection.execute(self._setup, prepare=False)
                        # A renewal that a crash of the server undoes only ends earlier.
                        self._connection.execute("SET synchronous_commit = off")
                    cursor = self._connection.cursor(binary=True)
                    cursor.execute(statement.encode(), values, prepare=True)
                    return cursor.fetchall()
                except psycopg.OperationalError:
                    self._drop()
                    if attempt:
                        raise
        return []

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
