"""Workers of the store: their list, and what `why` needs to know about them and their jobs.

A worker counts as dead when it has sent no heartbeat for long. Where the store can check whether its process exists, it
is dead as soon as the process is gone, and only silent while it exists: perhaps it cannot write its heartbeat.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from tidemill.engine.offered_types import offered_types
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.worker.registry import Held, Registry, State, WorkerRow, registered
from tidemill.engine.worker.watchdog import Blockage
from tidemill.kernel.explain.blockers import Failure
from tidemill.kernel.explain.survey import JobFact, WorkerCapability, Workers
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Backlog, JobView, Stream, cap_bound
from tidemill.stores.optional import ProcessLiveness
from tidemill.version import __version__


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as lists show it; times are those of the store's clock."""

    name: str
    state: State
    host: str
    pid: int
    version: str
    started_ms: int
    beat_ms: int
    """The time of its last heartbeat."""
    queues: tuple[str, ...]
    """Which queues it serves; none named means all of them."""
    types: tuple[str, ...]
    """Node types that it can run, as `name@major`."""
    concurrency: int
    holding: int
    held: tuple[Held, ...]
    """The first of the jobs it holds."""
    finished: int
    lacks: tuple[str, ...]
    """What it recently had to leave to others, and why."""
    blocked: Blockage | None = None
    """The last time that something blocked its event loop, and what did."""


class NodeTypeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node type, and who has it."""

    node_type: NodeType
    here: bool
    """This process has it; otherwise it is described by a worker."""
    workers: int
    """Live workers that can run it."""
    last_seen_ms: int | None
    """When a worker last had it, by the store's clock; None if none is known."""
    image: str = ""
    """The container image of the worker that described it, where it has said so."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a tenant in one queue."""

    queue: str
    ready: int
    """Jobs that a worker may claim now."""
    leased: int
    """Jobs that workers hold."""
    later: int
    """Timers and retries that are not due yet."""
    oldest_ms: int | None
    """How long the oldest ready job has been waiting; None if none is ready."""


class WorkerService:
    def __init__(self, context: ServiceContext) -> None:
        self._context, self.tenant = context, context.tenant
        self.registry: Registry | None = None
        """Of this process's own worker, if it has one."""

    async def find(self) -> list[WorkerView]:
        """Every known worker, most recently started first; a dead one is forgotten after an hour."""
        return [_view(row, state) for row, state in await self._states()]

    async def _states(self) -> list[tuple[WorkerRow, State]]:
        """Every worker and its state. This process's own is included even before the store knows it."""
        rows = await self._registered()
        there = await self._context.store.live_processes() if isinstance(self._context.store, ProcessLiveness) else None
        now, mine = self._context.store.now_ms(), None if self.registry is None else self.registry.row().name
        return [(row, row.state(now) if row.name == mine else _state(row, now, there)) for row in rows]

    async def _registered(self) -> list[WorkerRow]:
        """All rows, with this process's worker as it is now, also before it has written its own."""
        rows = await registered(self._context.store, self._context.tenant)
        if self.registry is None or not self.registry.is_open:
            return rows
        mine = self.registry.row()
        return [mine, *(row for row in rows if row.name != mine.name)]

    async def another_may_have(self, root: Stream, *, retryable: bool) -> bool:
        """Whether another worker may have what a run needs and this process lacks: one that is there, or may come.

        A run that a caller of this process has started is not left to workers that may come, unless this is a standing
        worker. What is `retryable` may pass by itself: it is tried again here if no other worker is alive.
        """
        if self.registry is None or self.registry.options.only:
            return False
        own = not self.registry.options.standing and self._context.run_cache.was_started_here(root)
        if not own and not retryable:
            return True
        mine = self.registry.row().name
        return any(state == "alive" and row.name != mine for row, state in await self._states())

    async def node_types(self) -> list[NodeTypeView]:
        """The node types of this process and those that workers offer, by name and major version."""
        rows = {row.type.key: row for row in await offered_types(self._context.store, self._context.tenant)}
        alive, seen = Counter[str](), {key: row.offered_ms for key, row in rows.items()}
        for worker, state in await self._states():
            alive.update(worker.types if state == "alive" else ())
            seen.update({key: max(worker.beat_ms, seen.get(key, 0)) for key in worker.types})
        own = self._context.catalog.node_types.own_types
        types = {**{key: row.type for key, row in rows.items()}, **own}
        return [
            NodeTypeView(
                node_type=type_,
                here=key in own,
                workers=alive[key],
                last_seen_ms=seen.get(key),
                image=rows[key].image if key in rows else "",
            )
            for key, type_ in sorted(types.items(), key=lambda each: (each[1].name, each[1].major))
        ]

    async def newer_version(self) -> str:
        """The newest version of a worker that is known, if it is newer than this process; dead ones count."""
        newest = max((row.version for row in await self._registered()), key=_ordered, default="")
        return newest if _ordered(newest) > _ordered(__version__) else ""

    async def capabilities(self, digest: str) -> Workers:
        """What all workers that claim jobs now can run together, for runs of one document."""
        states = await self._states()
        silent = {row.name: row.beat_ms for row, state in states if state in ("silent", "dead")}
        unresponsive = tuple(row.name for row, state in states if state == "silent")
        able = [
            WorkerCapability(
                name=row.name,
                queues=frozenset(row.queues) if row.queues else None,
                types=frozenset(row.types),
                lacks={
                    missing.work: Failure(code=missing.code, message=missing.message, hint=missing.hint)
                    for missing in row.lacks
                    if missing.digest == digest
                },
            )
            for row, state in states
            if state == "alive"
        ]
        return Workers.of(able, silent, unresponsive)


class QueueService:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def find(self, backlog: Sequence[Backlog] | None = None) -> list[QueueView]:
        """The work of this tenant by queue: how much is ready, at work and due later, and how old the oldest is.

        `backlog` is a recent backlog of all tenants; without it, the store is asked.
        """
        now = self._context.store.now_ms()
        known = await self._context.store.backlog() if backlog is None else backlog
        return [
            QueueView(
                queue=each.queue,
                ready=each.ready,
                leased=each.leased,
                later=each.later,
                oldest_ms=None if each.oldest_ready_at_ms is None else max(0, now - each.oldest_ready_at_ms),
            )
            for each in known
            if each.tenant == self._context.tenant
        ]


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,9}", version)))


def _state(row: WorkerRow, now_ms: int, there: frozenset[str] | None) -> State:
    """The state of another worker, by its row and, where the store knows, by the processes that are `there`."""
    state = row.state(now_ms)
    if there is None or row.pid == 0:
        return state
    if f"{row.host}/{row.pid}" not in there:
        return "dead"
    return "silent" if state == "dead" else state


def _view(row: WorkerRow, state: State) -> WorkerView:
    lacks = tuple(dict.fromkeys(missing.message for missing in row.lacks))
    fields = {name: getattr(row, name) for name in WorkerView.__struct_fields__ if name not in ("state", "lacks")}
    return WorkerView(state=state, lacks=lacks, **fields)


def job_fact(view: JobView) -> JobFact:
    """What the store tells of a job."""
    return JobFact(
        key=view.job.key,
        queue=view.job.queue,
        ready_at_ms=view.job.ready_at_ms,
        owner=view.owner,
        lease_expires_at_ms=view.lease_expires_at_ms,
        expired=view.void,
        lost=view.expired,
        limited=any(cap_bound(cap, {}) is not None for cap in view.job.caps),
    )
