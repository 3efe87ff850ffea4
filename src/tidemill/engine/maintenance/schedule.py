"""Maintenance as leased jobs: the worker that claims a task runs it for the whole fleet. The engine lists the tasks.

Each task of a tenant is one job in the maintenance queue. The worker that claims it runs the task, and the commit that
settles the job inserts it again, due one interval later, with the cursor at which the next worker continues. A task
rests in proportion to what it took. If the worker dies, its lease expires and another worker repeats the task; after
too many in a row it waits for some minutes, in case it is what kills them.
Workers insert the jobs of their own tenant again every minute, in case they are lost; an engine without a worker
inserts those of its tenant when it starts its first run. A worker that serves one run only claims no maintenance: it
runs the tasks itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from tidemill.ambient import Ambient
from tidemill.errors import Rejected, TidemillError, Unavailable
from tidemill.kernel.decide.retries import SET_ASIDE, set_aside
from tidemill.kernel.jobs import MAINTENANCE_QUEUE, system_job, task_of
from tidemill.stores.contract import Commit, Job, Lease, Row, Store, Stream

LOG = logging.getLogger(__name__)

MAINTENANCE = "maintenance"
"""Kind of the stream of a tenant's tasks, and of the rows with their cursors."""
PRIORITY = 9
RECONCILE = "reconcile"
RECONCILE_EVERY_MS = 10_000
INSERT_EVERY_MS = 60_000
POSTPONED_MS = 600_000
"""How long a task waits after too many workers in a row were lost with it."""

Cursor = dict[str, Any]
"""Where a task continues: what it needs of its last run, as JSON."""

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(dict[str, Any]).decode


class TaskResult(NamedTuple):
    cursor: Cursor
    """Where the task continues."""
    rows: tuple[Row, ...] = ()
    """Written with the cursor, in the commit that settles the job: all of it, or nothing if the lease was lost."""
    more: bool = False
    """There is more to do than it did, so the task does not wait for its interval."""


class MaintenanceTask(NamedTuple):
    name: str
    every_ms: int
    run: Callable[[str, Cursor], Awaitable[Cursor | TaskResult]]
    """Called with the tenant and the last cursor; returns the next one."""
    rest_factor: int = 10
    """The task rests this many times as long as it took."""


class MaintenanceSchedule:
    def __init__(
        self, *, tenant: str, store: Store, ambient: Ambient, tasks: Sequence[MaintenanceTask], leased: bool = True
    ) -> None:
        self._tenant, self._store, self._ambient, self._leased = tenant, store, ambient, leased
        self._tasks = {task.name: task for task in tasks}
        self._loops: list[asyncio.Task[None]] = []
        self.claim_when_full: Callable[[], Awaitable[None]] | None = None
        """Makes a worker whose slots are all taken claim a task, too."""

    def add(self, task: MaintenanceTask) -> None:
        """Add a task of a floor above the engine, before it is opened."""
        self._tasks[task.name] = task

    def open(self) -> None:
        if self._leased:
            loops = [self._keep_inserted(), self._claim_when_full()]
        else:
            loops = [self._run_locally(task) for task in self._tasks.values()]
        self._loops = [asyncio.create_task(loop, name="tidemill-maintenance") for loop in loops]

    async def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    def handle(self, lease: Lease) -> Awaitable[None] | None:
        """Run the task of a job; None for one of a newer version. Raises `Unavailable`."""
        if task_of(lease.body).node not in self._tasks:
            return None
        return self.postpone(lease) if set_aside(lease.expired) else self.run(lease)

    async def run(self, lease: Lease) -> None:
        """Run the task of a job, and insert the job again in the commit that settles it. Raises `Unavailable`."""
        task, tenant = self._tasks[task_of(lease.body).node], lease.stream.tenant
        began = self._ambient.monotonic_ms()
        before = await read_cursor(self._store, tenant, task.name)
        result = await self._run_task(task, tenant, before)
        due_ms = self._store.now_ms() + self._pause_ms(task, began, more=result.more)
        row = Row(kind=MAINTENANCE, key=task.name, sort=0, body=_ENCODE(result.cursor))
        # A tenant that no worker belongs to begins with one task.
        jobs = (_job(task.name, due_ms), *(self._jobs() if tenant != self._tenant else ()))
        commit = Commit(
            stream=lease.stream,
            expected=None,
            acks=((lease.key, lease.token),),
            jobs=jobs,
            rows=(*result.rows, *(() if result.cursor == before else (row,))),
        )
        await self._store.commit([commit])

    async def postpone(self, lease: Lease) -> None:
        """Insert the job again, due later: workers ignore a job with which too many of them were lost."""
        name = task_of(lease.body).node
        LOG.error("the maintenance task %s is postponed: %s", name, SET_ASIDE)
        job = _job(name, self._store.now_ms() + POSTPONED_MS)
        commit = Commit(stream=lease.stream, expected=None, acks=((lease.key, lease.token),), jobs=(job,))
        await self._store.commit([commit])

    async def _run_task(self, task: MaintenanceTask, tenant: str, cursor: Cursor) -> TaskResult:
        try:
            result = await task.run(tenant, cursor)
            return result if isinstance(result, TaskResult) else TaskResult(result)
        except Unavailable:
            raise
        except Rejected as refusal:
            LOG.warning("the maintenance task %s was refused and will be retried: %s", task.name, refusal)
        except Exception:
            # A bug is logged, and must not stop the other tasks.
            LOG.exception("the maintenance task %s failed and will be retried", task.name)
        return TaskResult(cursor)

    async def _run_locally(self, task: MaintenanceTask) -> None:
        cursor: Cursor = {}
        pause_ms = task.every_ms
        while True:
            await self._ambient.sleep(pause_ms)
            began = self._ambient.monotonic_ms()
            with suppress(Unavailable):
                cursor = (await self._run_task(task, self._tenant, cursor)).cursor
            pause_ms = self._pause_ms(task, began)

    def _pause_ms(self, task: MaintenanceTask, began: float, *, more: bool = False) -> int:
        return max(0 if more else task.every_ms, int(task.rest_factor * (self._ambient.monotonic_ms() - began)))

    async def _keep_inserted(self) -> None:
        while True:
            await self.insert()
            await self._ambient.sleep(INSERT_EVERY_MS)

    async def _claim_when_full(self) -> None:
        while self.claim_when_full is not None:
            await self._ambient.sleep(RECONCILE_EVERY_MS)
            with suppress(TidemillError):
                await self.claim_when_full()

    async def insert(self) -> None:
        """Insert the jobs of this tenant's tasks, unless they exist."""
        with suppress(TidemillError):
            await self._store.commit([Commit(_stream(self._tenant), None, jobs=self._jobs())])

    def _jobs(self) -> tuple[Job, ...]:
        now_ms = self._store.now_ms()
        return tuple(_job(task.name, now_ms + task.every_ms) for task in self._tasks.values())


async def read_cursor(store: Store, tenant: str, name: str) -> Cursor:
    """Where a task of a tenant continues."""
    page = await store.find(tenant, MAINTENANCE, limit=100)
    with suppress(msgspec.MsgspecError):
        return next((_DECODE(row.body) for row in page.rows if row.key == name), {})
    return {}


async def insert_first(store: Store, tenant: str) -> None:
    """Insert the first task of a tenant unless it exists; the worker that claims it inserts the others."""
    with suppress(TidemillError):
        job = _job(RECONCILE, store.now_ms() + RECONCILE_EVERY_MS)
        await store.commit([Commit(_stream(tenant), None, jobs=(job,))])


def _stream(tenant: str) -> Stream:
    return Stream(tenant, MAINTENANCE, "tasks")


def _job(name: str, ready_at_ms: int) -> Job:
    spec = system_job("maintain", ready_at_ms, name)
    return Job(spec.key, MAINTENANCE_QUEUE, _ENCODE(spec.task), ready_at_ms, PRIORITY)
