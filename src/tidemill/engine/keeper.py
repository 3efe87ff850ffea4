"""The keeper: proves, again and again, that every unfinished visit is owned by exactly one thing.

Timers and expired leases need no keeper, they are jobs that any worker claims. What remains is doubt: is there
a job for every activation that calls for one, and an activation for every job? The audit compares both for
each live run at one version, and repairs with an event that says why. A run in which nothing happens and that
waits for nothing with a name is marked stuck; one that is merely quiet is listed as idle with what it waits for.
Runs that only wait are many and need little: they are looked at in turn, a bounded number at a time. Of those that have
ended, some have their whole log read again (see `sampling`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.errands import Errands
from tidemill.engine.rows import RUN, RunRow, read_run_row, run_row, run_terms
from tidemill.engine.runs import Entry, Runs
from tidemill.engine.tasks import task_of
from tidemill.engine.turn import Turns
from tidemill.engine.views import named_wait, waiting_for
from tidemill.errors import InternalError, Rejected, TidemillError, Unavailable
from tidemill.kernel.commands import Repair
from tidemill.kernel.jobs import JOB_FORMAT, UNLISTED, expected_jobs
from tidemill.stores.contract import Commit, JobView, Store, Stream

LOG = logging.getLogger(__name__)

STUCK_AFTER_MS = 60_000
IDLE_AFTER_MS = 300_000
AUDIT_EVERY_MS = 10_000
PAGE = 200
WAITING_PER_SWEEP = 200
"""Runs that only wait which are looked at in one sweep: ten thousand of them must not slow down the rest."""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a run found."""

    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    moved: bool = False
    """The run changed while it was looked at, so nothing can be said."""


class Sampling(Protocol):
    """Reads the logs of some runs that have ended, at each sweep."""

    findings: int

    async def look(self) -> None:
        """Audit the next few."""
        ...


class Keeper:
    """Audits the live runs of a store, a page at a time."""

    def __init__(
        self,
        *,
        tenant: str,
        store: Store,
        runs: Runs,
        turns: Turns,
        errands: Errands,
        ambient: Ambient,
        sampling: Sampling,
        every_ms: int = AUDIT_EVERY_MS,
    ) -> None:
        self._tenant, self._store, self._runs, self._turns, self._ambient = tenant, store, runs, turns, ambient
        self._errands, self._sampling, self._every_ms = errands, sampling, every_ms
        self._waiting_after: str | None = None
        """Where the next sweep goes on with the runs that only wait."""
        self._task: asyncio.Task[None] | None = None
        self.repairs = 0
        self.audited = 0

    @property
    def findings(self) -> int:
        """Runs with something wrong in their logs that this keeper has come across."""
        return self._sampling.findings

    def open(self) -> None:
        """Begin to look after the runs."""
        self._task = asyncio.create_task(self._forever(), name="tidemill-keeper")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _forever(self) -> None:
        while True:
            await self._ambient.sleep(self._every_ms)
            try:
                await self.sweep()
            except Unavailable:
                continue
            except Rejected as refusal:
                LOG.warning("the audit was refused and will be repeated: %s", refusal)
            except Exception:
                # A bug must be heard of, but one run's trouble must not leave all the others without a keeper.
                LOG.exception("the audit failed and will be repeated")

    async def sweep(self) -> None:
        """Look at every run once that is at work, and at some of those that only wait."""
        for term in ("active", "rollback:running"):
            after: str | None = None
            while True:
                after = await self._look_through(term, after, PAGE)
                if after is None:
                    break
        self._waiting_after = await self._look_through("waiting", self._waiting_after, WAITING_PER_SWEEP)
        await self._sampling.look()

    async def _look_through(self, term: str, after: str | None, limit: int) -> str | None:
        page = await self._store.find(self._tenant, RUN, [term], after=after, limit=limit)
        for row in page.rows:
            stream, shown = Stream(self._tenant, RUN, row.key), read_run_row(row)
            try:
                await self._look_at(stream, shown)
            except Exception as error:
                if isinstance(error, TidemillError) and not isinstance(error, InternalError):
                    raise
                # A bug that one run brings out must not keep the others from being looked at.
                reason = str(self._turns.report(error))
                if shown.stuck_reason != reason:
                    await self._turns.mark_stuck(stream, reason)
        return page.after

    async def _look_at(self, stream: Stream, shown: RunRow) -> None:
        entry = (await self._runs.refresh([stream])).get(stream)
        if entry is None or not entry.state.busy:
            return
        seq = entry.state.seq
        jobs = await self._store.jobs(stream)
        again = (await self._runs.refresh([stream])).get(stream)
        self.audited += 1
        if again is None or again.state.seq != seq or not again.state.busy:
            return
        found = compare(again, jobs)
        if found.missing or found.surplus:
            self.repairs += 1
            reason = f"{len(found.missing)} jobs were missing, {len(found.surplus)} had no owner"
            repair = Repair(missing=found.missing, surplus=found.surplus, reason=reason, seq=seq)
            await self._turns.command(stream, repair)
        else:
            await self._mark(stream, again, jobs, shown)
            await self._errands.look_after(stream, again)

    async def _mark(self, stream: Stream, entry: Entry, jobs: list[JobView], shown: RunRow) -> None:
        """Bring a row up to date that lags behind, and say in it when nothing has happened for a while, and why."""
        state, workflow, now = entry.state, entry.flow.workflow, self._store.now_ms()
        quiet_ms = now - state.last_ms
        held = any(job.lease_expires_at_ms is not None and job.lease_expires_at_ms > now for job in jobs)
        named = held or named_wait(workflow, state, now)
        reason = shown.stuck_reason if shown.events == state.seq else ""
        stuck = bool(reason) or (quiet_ms >= STUCK_AFTER_MS and not named)
        idle = quiet_ms >= IDLE_AFTER_MS
        waits = waiting_for(workflow, state)
        if not waits and not held:
            waits = tuple(
                sorted({f"a worker on queue {view.job.queue}" for view in jobs if view.job.ready_at_ms <= now})
            )
        if (shown.stuck, shown.idle, shown.events, shown.waiting_for) == (stuck, idle, state.seq, waits):
            return
        row = run_row(
            stream,
            state,
            run_terms(state, retention=workflow.retention, stuck=stuck, idle=idle),
            waiting_for=waits,
            stuck=stuck,
            idle=idle,
            stuck_reason=reason,
        )
        await self._store.commit([Commit(stream=stream, expected=state.seq, rows=(row,))])


def compare(entry: Entry, jobs: list[JobView]) -> Audit:
    """The jobs a state calls for beside those that are there; what a newer version has put there is left alone."""
    expected = {put.key for put in expected_jobs(entry.flow.workflow, entry.state)}
    present = {view.job.key for view in jobs}
    missing = expected - present
    tasks = {view.job.key: task_of(view.job.body) for view in jobs if view.job.key not in expected}
    surplus = {key for key, task in tasks.items() if task.v <= JOB_FORMAT and task.kind not in UNLISTED}
    if entry.state.status == "PAUSED":
        # While a run is paused, a running attempt keeps its job and a back-off that came due was put aside.
        leased = {view.job.key for view in jobs if view.lease_expires_at_ms is not None}
        surplus -= leased
        missing = {key for key in missing if not key.startswith("run/")}
    return Audit(missing=tuple(sorted(missing)), surplus=tuple(sorted(surplus)))
