"""Takes due schedules: the handler of their jobs, and the maintenance task that restores lost ones.

The worker that claims the job of a schedule starts the runs that are due, then settles the job in the commit that
records them and inserts the next one. A run's key is made of the schedule and the due time, so whichever process dies
and however many workers repeat it, one due time starts at most one run; the job stays until the commit, so none is
lost. Due times are judged by the store's clock. A start that is refused is recorded and does not stop the schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tidemill.engine.corruption import is_newer
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN, SCHEDULE
from tidemill.engine.maintenance.reindex import all_rows
from tidemill.engine.maintenance.schedule import Cursor, MaintenanceTask
from tidemill.engine.services.context import ServiceContext
from tidemill.errors import Problem, Rejected, Unavailable
from tidemill.kernel.decide.retries import SET_ASIDE, set_aside
from tidemill.stores.contract import Commit, Lease, VersionConflict
from tidemill.triggers.schedules import (
    Schedule,
    ScheduleFired,
    load_schedule,
    next_commit,
    offset_ms,
    schedule_job,
    schedule_rows,
    stream_of,
)
from tidemill.triggers.service import RACES_MAX, start_run
from tidemill.triggers.times import latest, upcoming, utc_text

LOG = logging.getLogger(__name__)

CATCH_UP_MAX = 100
"""The most runs that one schedule starts at once after an outage."""
LATE_MS = 60_000
"""With `catch_up: none`, a time that a worker gets to later than this starts no run."""
RESTORE_EVERY_MS = 60_000


def serve_schedules(engine: Engine) -> None:
    """Let an engine's maintenance know schedules, and its worker take them."""
    engine.context.stream_kinds[SCHEDULE] = schedule_rows
    scheduler = Scheduler(engine.context)
    if engine.worker is not None:
        engine.worker.job_handlers["fire"] = scheduler.fire
    if engine.schedule is not None:
        engine.schedule.add(MaintenanceTask("schedules", RESTORE_EVERY_MS, scheduler.restore))


class _Due(NamedTuple):
    times: Sequence[int]
    """What is due, oldest first."""
    next_ms: int | None


class Scheduler:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def fire(self, lease: Lease) -> None:
        """Start what is due, and settle the job with the commit that records it. Raises `Unavailable`."""
        stream, acks = lease.stream, ((lease.key, lease.token),)
        context = replace(self._context, tenant=stream.tenant)
        for _ in range(RACES_MAX):
            version, schedule = await load_schedule(context.store, stream)
            if schedule is None or schedule.status != "active":
                await context.store.commit([Commit(stream, None, acks=acks)])
                return
            # The store gave out the job, so it is due even if this estimate of its clock is behind.
            now_ms = max(context.store.now_ms(), lease.ready_at_ms)
            due = _due(schedule, now_ms - offset_ms(stream, schedule))
            record = await self._fired(context, schedule, due, now_ms, lease.expired)
            (result,) = await context.store.commit([next_commit(stream, version, schedule, record, acks=acks)])
            if not isinstance(result, VersionConflict):
                return
        raise Unavailable(f"schedule {stream.key} is being changed by too many callers at once")

    async def _fired(
        self, context: ServiceContext, schedule: Schedule, due: _Due, now_ms: int, lost: int
    ) -> ScheduleFired:
        """Start the runs that the policies of the schedule ask for; what to record of it."""
        runs, failed, error = list[tuple[int, str]](), 0, None
        for at_ms in _caught_up(schedule, due.times, now_ms):
            key = run_key(schedule.name, at_ms)
            if set_aside(lost):
                failed += 1
                error = Problem(code="worker_killer", message=SET_ASIDE, hint="see the logs of the workers")
            elif schedule.overlap == "allow" or not await self._is_live(context, schedule, key):
                try:
                    runs.append((at_ms, await start_run(context, schedule, at_ms, key=key)))
                except Rejected as refusal:
                    if is_newer(refusal):
                        raise
                    failed, error = failed + 1, refusal.problems[0]
                    LOG.warning("schedule %s could not start a run: %s", schedule.name, error)
        return ScheduleFired(
            at_ms=now_ms,
            cursor_ms=due.times[-1] if due.times else schedule.cursor_ms,
            next_ms=due.next_ms,
            runs=tuple(runs),
            skipped=len(due.times) - len(runs) - failed,
            error=error,
        )

    async def _is_live(self, context: ServiceContext, schedule: Schedule, key: str) -> bool:
        """Whether another run of the schedule is live; one with this key was started by a worker that died."""
        terms = [f"label:{SCHEDULE}={schedule.name}", "live"]
        page = await context.store.find(context.tenant, RUN, terms, limit=2)
        return any(row.key != key for row in page.rows)

    async def restore(self, tenant: str, cursor: Cursor) -> Cursor:
        """Insert the job of every active schedule that has lost it."""
        store = self._context.store
        async for row in all_rows(store, tenant, SCHEDULE, ["status:active"]):
            stream = stream_of(tenant, row.key)
            if not await store.jobs(stream):
                version, schedule = await load_schedule(store, stream)
                if schedule is not None and schedule.status == "active":
                    # Nothing happens if the schedule has moved on meanwhile.
                    await store.commit([Commit(stream, version, jobs=(schedule_job(stream, schedule),))])
        return cursor


def run_key(name: str, at_ms: int) -> str:
    """The key of the one run that a due time starts."""
    return f"schedule-{name}-{utc_text(at_ms).replace('-', '').replace(':', '')}"


def _due(schedule: Schedule, now_ms: int) -> _Due:
    times = upcoming(schedule, schedule.cursor_ms)
    first = next(times, None)
    if first is None or first > now_ms:
        return _Due((), first)
    second = next(times, None)
    if second is None or second > now_ms:
        return _Due((first,), second)
    return _Due(latest(schedule, schedule.cursor_ms, now_ms, CATCH_UP_MAX), next(upcoming(schedule, now_ms), None))


def _caught_up(schedule: Schedule, times: Sequence[int], now_ms: int) -> Sequence[int]:
    """The due times that start a run, when some were missed."""
    match schedule.catch_up:
        case "all":
            return times
        case "skip":
            return times[-1:]
        case "none":
            late_ms = LATE_MS + schedule.jitter_ms
            return [at_ms for at_ms in times[-1:] if now_ms - at_ms <= late_ms]
