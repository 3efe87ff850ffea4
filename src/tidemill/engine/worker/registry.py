"""The index row of each worker, which it rewrites every few seconds.

A row that was not written for a while is that of a dead worker; maintenance removes it after an hour. Rows only
inform: the lease decides whether a job may be taken over. So an outage does no harm; the row is merely older.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.attempts.runtime import MissingCapabilities, MissingCapability
from tidemill.engine.maintenance.schedule import Cursor
from tidemill.engine.offered_types import CONFIRM_MS, forget_unoffered_types, offer_types
from tidemill.engine.services.concurrency import KnownLimits
from tidemill.engine.worker.held_jobs import HeldJob
from tidemill.engine.worker.leases import WorkerOptions
from tidemill.engine.worker.watchdog import Blockage
from tidemill.engine.worker.worker import Worker
from tidemill.errors import Rejected, TidemillError, Unavailable
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Commit, Row, Store, Stream

LOG = logging.getLogger(__name__)

WORKER = "worker"
WORKER_FORMAT = 1
HELD_SHOWN_MAX = 20
FORGET_AFTER_MS = 3_600_000
FORGET_EVERY_MS = 60_000
NEWS_MS = 1_000
"""Jobs held longer than this are shown before the next regular write."""
LEAVE_MS_MAX = 2_000
"""How long a stopping worker waits for its row to be removed; a row left behind is that of a dead worker."""
ROWS_MAX = 1_000
"""Limit of workers read at once."""
OTHERS_READ = 3
"""Rows that a worker reads to find out whether it is alone: the cost of a fleet is linear in its workers."""

State = Literal["alive", "draining", "silent", "dead"]
"""A silent worker has not written for too long, but its process exists: perhaps it cannot write."""


class Held(msgspec.Struct, frozen=True, gc=False, array_like=True):
    run_id: str
    kind: str
    node: str
    visit: int
    index: int
    since_ms: int


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A worker as it last described itself. Stored by position: new fields are appended with a default."""

    name: str
    host: str
    pid: int
    version: str
    """Of Tidemill."""
    started_ms: int
    beat_ms: int
    """When the row was last written, by the store's clock, like all times here."""
    dead_after_ms: int
    queues: tuple[str, ...]
    """The queues it serves; empty means all."""
    types: tuple[str, ...]
    """Node types that it can run, as `name@major`."""
    concurrency: int
    v: int = WORKER_FORMAT
    draining: bool = False
    holding: int = 0
    """How many jobs it holds."""
    held: tuple[Held, ...] = ()
    """The first of them."""
    finished: int = 0
    """How many jobs it has finished since it started."""
    lacks: tuple[MissingCapability, ...] = ()
    """What it recently had to leave to others, because it lacks a capability."""
    blocked: Blockage | None = None
    """The last time that something blocked its loop."""

    def state(self, now_ms: int) -> State:
        if now_ms - self.beat_ms > self.dead_after_ms:
            return "dead"
        return "draining" if self.draining else "alive"


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(WorkerRow).decode


class Registry:
    def __init__(
        self,
        *,
        tenant: str,
        store: Store,
        ambient: Ambient,
        worker: Worker,
        options: WorkerOptions,
        types: Iterable[str],
        missing: MissingCapabilities,
        limits: KnownLimits,
        offers: Sequence[NodeType] = (),
    ) -> None:
        self._store, self._ambient, self._worker, self.options = store, ambient, worker, options
        self._stream = Stream(tenant, WORKER, options.name)
        self._types, self._missing, self._limits = tuple(sorted(types)), missing, limits
        # A worker for one run does not stay.
        self._offers = () if options.only else tuple(offers)
        self._offers_due_ms = 0
        self._started_ms = 0
        self._loop: asyncio.Task[None] | None = None
        self._pause: asyncio.Task[None] | None = None
        self._unreachable = ""
        """The last reported reason why the store does not answer."""
        self.on_reach: Callable[[TidemillError | None], None] | None = None
        """Called with the reason when the store stops answering, and with None when it answers again."""

    def open(self) -> None:
        self._started_ms = self._store.now_ms()
        self._loop = asyncio.create_task(self._forever(), name="tidemill-registry")

    async def check(self) -> None:
        """Raise `Rejected` when the store refuses writes of this worker: it could not settle any job."""
        await self._store.commit([Commit(stream=self._stream, expected=None, rows=(self._index_row(),))])

    @property
    def is_open(self) -> bool:
        return self._loop is not None

    def announce(self) -> None:
        """Write the row now, because other processes need its change."""
        if self._pause is not None:
            self._pause.cancel()

    async def close(self) -> None:
        """Remove the row, so that the worker does not count as dead."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        for task in filter(None, (loop, self._pause)):
            task.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        gone = Row(kind=WORKER, key=self._stream.key, sort=self._started_ms, deleted=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_MS_MAX / 1000):
                await self._commit((gone,))

    def row(self) -> WorkerRow:
        options, jobs = self.options, self._worker.held_jobs
        copied = ("name", "host", "pid", "version", "dead_after_ms", "queues", "concurrency")
        return WorkerRow(
            **{name: getattr(options, name) for name in copied},
            started_ms=self._started_ms,
            beat_ms=self._store.now_ms(),
            types=self._types,
            draining=self._worker.draining,
            holding=len(jobs),
            held=tuple(_held(job, options.lease_ms) for job in islice(jobs, HELD_SHOWN_MAX)),
            finished=self._worker.finished,
            lacks=self._missing.known(self._store.now_ms()),
            blocked=self._worker.watchdog.last,
        )

    async def _forever(self) -> None:
        while True:
            held, missing = self._held_tokens(), self._missing.known(self._store.now_ms())
            await self._write()
            await self._offer_types()
            await self._find_others()
            with suppress(TidemillError):
                await self._limits.refresh()
            self._pause = asyncio.create_task(self._until_outdated(held, missing), name="tidemill-beat")
            await asyncio.wait({self._pause})

    async def _until_outdated(self, written: frozenset[int], missing: tuple[MissingCapability, ...]) -> None:
        """Wait until the next write is due or the row is outdated; jobs shorter than `NEWS_MS` do not outdate it."""
        due, before = self._ambient.monotonic_ms() + self.options.beat_ms, written
        while (left_ms := due - self._ambient.monotonic_ms()) > 0:
            await self._ambient.sleep(min(left_ms, NEWS_MS))
            held = self._held_tokens()
            lasting, idle = held & before, not held | before
            if lasting - written or (written and idle) or set(self._missing.known(self._store.now_ms())) - set(missing):
                return
            before = held

    def _held_tokens(self) -> frozenset[int]:
        return frozenset(job.lease.token for job in self._worker.held_jobs)

    async def _write(self) -> None:
        """Write the row. A store that takes longer than `dead_after_ms` is reported as unreachable."""

        def report_late() -> None:
            if not self._unreachable:
                self._report_reach(Unavailable(f"it has sent no heartbeat for {self.options.dead_after_ms / 1000:g} s"))

        late = asyncio.get_running_loop().call_later(self.options.dead_after_ms / 1000, report_late)
        try:
            reason = await self._commit((self._index_row(),))
        finally:
            late.cancel()
        self._report_reach(reason)

    async def _offer_types(self) -> None:
        """Describe the types to processes that lack them: when it starts, then once a day."""
        if not self._offers or self._store.now_ms() < self._offers_due_ms:
            return
        try:
            await offer_types(self._store, self._stream.tenant, self._offers, self.options.image)
            self._offers_due_ms = self._store.now_ms() + CONFIRM_MS
        except TidemillError:
            # `_write` reports what is wrong with the store; the next write tries again.
            return
        except Exception:
            LOG.exception("the worker could not publish its node types; retrying")

    def _index_row(self) -> Row:
        queues = self.options.queues or ("*",)
        terms = (*(f"queue:{queue}" for queue in queues), *(f"type:{each}" for each in self._types))
        return Row(kind=WORKER, key=self._stream.key, sort=self._started_ms, terms=terms, body=_ENCODE(self.row()))

    async def _commit(self, rows: tuple[Row, ...]) -> TidemillError | None:
        """Write rows; returns why the store could not be reached."""
        try:
            await self._store.commit([Commit(stream=self._stream, expected=None, rows=rows)])
        except Rejected:
            # The store answers with a refusal; the claim loop gets the same one and reports it.
            return None
        except TidemillError as error:
            return error
        except Exception:
            # A bug is logged; a worker without a current row must continue.
            LOG.exception("the worker could not write its heartbeat; retrying")
        return None

    def _report_reach(self, reason: TidemillError | None) -> None:
        """Report a change of reachability; the same reason is reported once."""
        text = "" if reason is None else str(reason) or type(reason).__name__
        if text != self._unreachable and self.on_reach is not None:
            self.on_reach(reason)
        self._unreachable = text

    async def _find_others(self) -> None:
        """Find out whether this is the only live worker: then it may keep more of its jobs."""
        try:
            page = await self._store.find(self._stream.tenant, WORKER, limit=OTHERS_READ)
        except TidemillError:
            self._worker.handover.is_only_worker = False
            return
        except Exception:
            LOG.exception("the worker could not check the other workers; retrying")
            return
        now = self._store.now_ms()
        others = [row for row in _decoded(page.rows) if row.name != self.options.name and row.state(now) == "alive"]
        self._worker.handover.is_only_worker = page.after is None and not others

    async def forget_dead(self, tenant: str, cursor: Cursor) -> Cursor:
        """Remove the rows of workers that died long ago, and of types that none has; a maintenance task."""
        rows, now = await registered(self._store, tenant), self._store.now_ms()
        old = [row for row in rows if row.state(now) == "dead" and now - row.beat_ms > FORGET_AFTER_MS]
        if old:
            gone = tuple(Row(kind=WORKER, key=row.name, sort=row.started_ms, deleted=True) for row in old)
            await self._store.commit([Commit(stream=Stream(tenant, WORKER, "dead"), expected=None, rows=gone)])
        await forget_unoffered_types(self._store, tenant, now)
        return cursor


async def registered(store: Store, tenant: str) -> list[WorkerRow]:
    """Every worker that has a row, latest first; rows of an unknown format are left out."""
    return _decoded((await store.find(tenant, WORKER, limit=ROWS_MAX)).rows)


def _decoded(rows: Iterable[Row]) -> list[WorkerRow]:
    found: list[WorkerRow] = []
    for row in rows:
        with suppress(msgspec.MsgspecError):
            found.append(_DECODE(row.body))
    return [row for row in found if row.v <= WORKER_FORMAT]


def _held(job: HeldJob, lease_ms: int) -> Held:
    lease, task = job.lease, job.task
    # The lease began one lease time before its first expiry, by the store's clock.
    return Held(lease.stream.key, task.kind, task.node, task.visit, task.index, lease.expires_at_ms - lease_ms)
