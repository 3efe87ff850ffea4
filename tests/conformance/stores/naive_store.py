"""A second store model, so simple that it is right by looking: flat lists, linear scans, no index of anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill.stores import contract as c


@dataclass(eq=False)
class Task:
    stream: c.Stream
    job: c.Job
    ready_at: int
    token: int | None = None
    expires_at: int = 0
    owner: str = ""
    expired: int = 0

    def alive(self, now: int) -> bool:
        return self.token is not None and self.expires_at > now


class NaiveStore:
    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.records: list[tuple[c.Stream, bytes]] = []
        self.snapshots: list[tuple[c.Stream, c.Snapshot]] = []
        self.tasks: list[Task] = []
        self.rows: list[tuple[str, c.Row]] = []
        self.served: list[str] = []
        self.tokens = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def now_ms(self) -> int:
        return self.clock()

    def log(self, stream: c.Stream) -> list[bytes]:
        return [body for name, body in self.records if name == stream]

    def task(self, stream: c.Stream, key: str) -> Task | None:
        return next((task for task in self.tasks if task.stream == stream and task.job.key == key), None)

    def held(self, stream: c.Stream, key: str, token: int) -> Task | None:
        task = self.task(stream, key)
        return task if task is not None and task.token is not None and task.token == token else None

    def idle(self, stream: c.Stream, key: str) -> bool:
        task = self.task(stream, key)
        return task is None or (task.token is None and task.expired == 0)

    async def commit(self, commits: Sequence[c.Commit]) -> list[c.CommitResult]:
        for commit in commits:
            if commit.expected is None and (commit.records or commit.snapshot):
                raise ValueError("expected is missing")
            if commit.snapshot and commit.snapshot.version > (commit.expected or 0) + len(commit.records):
                raise ValueError("snapshot is too new")
        return [self.apply(commit) for commit in commits]

    def apply(self, commit: c.Commit) -> c.CommitResult:
        stream = commit.stream
        lost: list[str] = []
        fine = [(key, self.held(stream, key, token) is not None) for key, token in commit.acks]
        for key, token in commit.holds:
            fine.append((key, self.held(stream, key, token) is not None if token else self.idle(stream, key)))
        for key, is_fine in fine:
            if not is_fine and key not in lost:
                lost.append(key)
        if lost:
            return c.LeasesLost(keys=tuple(lost))
        version = len(self.log(stream))
        if commit.expected not in (None, version):
            return c.VersionConflict(version=version)
        self.records += [(stream, body) for body in commit.records]
        if commit.snapshot is not None:
            self.snapshots.append((stream, commit.snapshot))
        unheld = [key for key in commit.withdraw if (task := self.task(stream, key)) and task.token is None]
        gone = [key for key, _ in commit.acks] + list(commit.drop) + unheld
        self.tasks = [task for task in self.tasks if task.stream != stream or task.job.key not in gone]
        fresh = []
        for job in commit.jobs:
            if self.task(stream, job.key) is None:
                fresh.append(Task(stream, job, max(job.ready_at_ms, self.clock())))
                self.tasks.append(fresh[-1])
        for row in commit.rows:
            self.write(stream.tenant, row)
        wanted = [task for key in dict.fromkeys(commit.keep) for task in fresh if task.job.key == key]
        ready = [task for task in wanted if task.ready_at <= self.clock()]
        kept = tuple(self.grant(task, commit.keep_lease_ms, commit.keep_owner) for task in ready)
        return c.Committed(version=version + len(commit.records), kept=kept)

    def write(self, tenant: str, row: c.Row) -> None:
        self.rows = [pair for pair in self.rows if (pair[0], pair[1].kind, pair[1].key) != (tenant, row.kind, row.key)]
        if not row.deleted:
            self.rows.append((tenant, row))

    def grant(self, task: Task, lease_ms: int, owner: str) -> c.Lease:
        self.tokens += 1
        task.expired += task.token is not None
        task.token, task.expires_at, task.owner = self.tokens, self.clock() + lease_ms, owner
        fields: dict[str, Any] = {name: getattr(task.job, name) for name in ("key", "body", "queue", "priority")}
        fields |= {"expires_at_ms": task.expires_at, "expired": task.expired, "ready_at_ms": task.ready_at}
        return c.Lease(stream=task.stream, token=task.token, **fields)

    async def load(
        self, after: Mapping[c.Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[c.Tail]:
        tails = []
        for stream, given in after.items():
            start, body = given, None
            for name, snapshot in self.snapshots:
                if snapshots and name == stream and snapshot.version > start:
                    start, body = snapshot.version, snapshot.body
            log = self.log(stream)
            records = tuple(log[start:][:limit])
            tails.append(c.Tail(stream=stream, version=len(log), after=start, records=records, snapshot=body))
        return tails

    async def claim(self, request: c.Claim) -> list[c.Lease]:
        leases: list[c.Lease] = []
        while len(leases) < request.most and (free := [task for task in self.tasks if self.fits(task, request)]):
            best = min(free, key=self.turn)
            leases.append(self.grant(best, request.lease_ms, request.owner))
            self.served.append(best.stream.tenant)
        return leases

    def fits(self, task: Task, request: c.Claim) -> bool:
        now = self.clock()
        alive = [cap for other in self.tasks if other.alive(now) for cap in other.job.caps]
        bounds = {cap: c.cap_bound(cap, request.caps) for cap in task.job.caps}
        room = all(bound is None or alive.count(cap) < bound for cap, bound in bounds.items())
        named = not request.queues or task.job.queue in request.queues
        root = request.run_tree
        kin = not root or f"{task.stream.key}.".startswith(f"{root}.")
        return named and kin and task.ready_at <= now and not task.alive(now) and room

    def turn(self, task: Task) -> tuple[int, str, int, int, int]:
        tenant = task.stream.tenant
        last = max((place for place, name in enumerate(self.served) if name == tenant), default=-1)
        return (last, tenant, -task.job.priority, task.ready_at, self.tasks.index(task))

    async def renew(self, leases: Sequence[c.Lease], lease_ms: int) -> list[c.Lease]:
        for lease in leases:
            if task := self.held(lease.stream, lease.key, lease.token):
                task.expires_at = max(task.expires_at, self.clock() + lease_ms)
        return [lease for lease in leases if not self.held(lease.stream, lease.key, lease.token)]

    async def release(self, leases: Sequence[c.Lease], *, delay_ms: int = 0) -> None:
        for lease in leases:
            if task := self.held(lease.stream, lease.key, lease.token):
                task.token = None
                task.ready_at = self.clock() + delay_ms if delay_ms > 0 else task.ready_at

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> c.Page:
        fits = [row for name, row in self.rows if name == tenant and row.kind == kind and set(terms) <= set(row.terms)]
        fits.sort(key=lambda row: (row.sort, row.key), reverse=True)
        if after is not None:
            sort, key = after.split("|", 1)
            fits = [row for row in fits if (row.sort, row.key) < (int(sort), key)]
        page = tuple(fits[:limit])
        return c.Page(rows=page, after=f"{page[-1].sort}|{page[-1].key}" if len(fits) > limit else None)

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        return len((await self.find(tenant, kind, terms, limit=at_most)).rows)

    async def follow(
        self, stream: c.Stream, after: int, on_idle: c.IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[c.Frame]:
        while True:
            for version, body in list(enumerate(self.log(stream), 1))[after:]:
                yield c.Frame(version=version, body=body)
                after = version
            await asyncio.sleep(0)

    async def publish(self, stream: c.Stream, frames: Sequence[bytes]) -> None: ...

    async def jobs(self, stream: c.Stream) -> list[c.JobView]:
        views = []
        for task in sorted((task for task in self.tasks if task.stream == stream), key=lambda task: task.job.key):
            job = msgspec.structs.replace(task.job, ready_at_ms=task.ready_at)
            views.append(c.JobView(job=job, token=0, expired=task.expired))
            if task.token is not None:
                expires_at = task.expires_at
                views[-1] = c.JobView(
                    job=job,
                    token=task.token,
                    lease_expires_at_ms=expires_at,
                    owner=task.owner,
                    expired=task.expired,
                )
        return views

    async def backlog(self) -> list[c.Backlog]:
        now, lines = self.clock(), []
        for tenant, queue in sorted({(task.stream.tenant, task.job.queue) for task in self.tasks}):
            mine = [task for task in self.tasks if (task.stream.tenant, task.job.queue) == (tenant, queue)]
            idle = [task for task in mine if not task.alive(now)]
            since = [task.ready_at for task in idle if task.ready_at <= now]
            counts = {"ready": len(since), "leased": len(mine) - len(idle), "later": len(idle) - len(since)}
            oldest = min(since, default=None)
            lines.append(c.Backlog(tenant=tenant, queue=queue, oldest_ready_at_ms=oldest, **counts))
        return lines

    async def streams(self, kind: str, *, after: c.Stream | None = None, limit: int = 1_000) -> list[c.Stream]:
        found = {stream for stream, _ in self.records if stream.kind == kind}
        return [stream for stream in sorted(found) if after is None or stream > after][:limit]

    async def forget(self, stream: c.Stream, *, expected: int | None = None, rows: Sequence[c.Row] = ()) -> bool:
        version = sum(1 for pair in self.records if pair[0] == stream)
        if expected is not None and expected != version:
            return False
        self.records = [pair for pair in self.records if pair[0] != stream]
        self.snapshots = [pair for pair in self.snapshots if pair[0] != stream]
        self.tasks = [task for task in self.tasks if task.stream != stream]
        for row in rows:
            self.write(stream.tenant, row)
        return True
