"""Periodic check that every live run has exactly the jobs its state calls for; audit of ended runs by sampling.

Differences at one version are repaired with an event that says why. A run without progress that waits for nothing with
a name is marked stuck; a quiet one is listed as idle. Runs that only wait are checked in turn, a bounded number per
sweep. The sampler audits all failed runs and one in a hundred of the others per round, in less than a hundredth of the
process's time; a finding is reported once, and its run is marked `suspect` and audited in every round until it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import zlib

from tidemill.ambient import Ambient
from tidemill.engine.children import ChildRunMessenger
from tidemill.engine.index_rows import (
    RUN,
    SUSPECT,
    RunRow,
    marked_stuck,
    marked_suspect,
    read_run_row,
    run_row,
    run_terms,
)
from tidemill.engine.maintenance.reindex import row_like
from tidemill.engine.maintenance.verify import LOG_MISSING, Auditor, Finding, compare
from tidemill.engine.run_cache import CachedRun, RunCache
from tidemill.engine.turn import TurnLoop
from tidemill.engine.views import named_wait, waiting_for
from tidemill.errors import InternalError, Rejected, TidemillError, Unavailable
from tidemill.kernel.commands import Repair
from tidemill.kernel.decide.retries import SET_ASIDE, set_aside
from tidemill.stores.contract import Commit, JobView, Row, Store, Stream

LOG = logging.getLogger(__name__)

STUCK_AFTER_MS = 60_000
IDLE_AFTER_MS = 300_000
AUDIT_EVERY_MS = 10_000
PAGE = 200
NEWER_WORKER = "a worker of a newer version"
WAITING_PER_SWEEP = 200
"""Waiting runs checked per sweep: ten thousand of them must not delay the others."""


class Reconciler:
    def __init__(
        self,
        *,
        tenant: str,
        store: Store,
        runs: RunCache,
        turns: TurnLoop,
        messenger: ChildRunMessenger,
        ambient: Ambient,
        sampling: AuditSampler,
        every_ms: int = AUDIT_EVERY_MS,
    ) -> None:
        self._tenant, self._store, self._runs, self._turns, self._ambient = tenant, store, runs, turns, ambient
        self._messenger, self._sampling, self._every_ms = messenger, sampling, every_ms
        self._waiting_after: str | None = None
        """Where the next sweep continues with the waiting runs."""
        self._task: asyncio.Task[None] | None = None
        self.repairs = 0
        self.audited = 0

    @property
    def findings(self) -> int:
        return self._sampling.findings

    def open(self) -> None:
        self._task = asyncio.create_task(self._forever(), name="tidemill-keeper")

    async def close(self) -> None:
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
                # A bug is logged, and must not stop the reconciler.
                LOG.exception("the audit failed and will be repeated")

    async def sweep(self) -> None:
        """Check every active run once, and some of the waiting ones."""
        for term in ("active", "rollback:running"):
            after: str | None = None
            while after := await self._scan(term, after, PAGE):
                pass
        self._waiting_after = await self._scan("waiting", self._waiting_after, WAITING_PER_SWEEP)
        await self._sampling.audit_next()

    async def _scan(self, term: str, after: str | None, limit: int) -> str | None:
        page = await self._store.find(self._tenant, RUN, [term], after=after, limit=limit)
        for row in page.rows:
            stream, shown = Stream(self._tenant, RUN, row.key), read_run_row(row)
            if shown is None:
                continue
            try:
                if await self._is_set_aside(stream):
                    await self._leave_alone(stream, row, shown)
                else:
                    await self._reconcile_run(stream, shown)
            except Exception as error:
                if isinstance(error, TidemillError) and not isinstance(error, InternalError):
                    raise
                # A bug in the check of one run must not stop the others.
                reason = str(self._turns.report(error))
                if shown.stuck_reason != reason:
                    await self._turns.mark_stuck(stream, reason)
        return page.after

    async def _reconcile_run(self, stream: Stream, shown: RunRow) -> None:
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
        if found.newer:
            # A worker of the newer version takes these jobs, and does the repair.
            await self._mark(stream, again, jobs, shown, newer=True)
        elif found.missing or found.surplus:
            self.repairs += 1
            reason = f"{len(found.missing)} jobs were missing, {len(found.surplus)} had no owner"
            repair = Repair(missing=found.missing, surplus=found.surplus, reason=reason, seq=seq)
            await self._turns.command(stream, repair)
        else:
            await self._mark(stream, again, jobs, shown)
            await self._messenger.look_after(stream, again)

    async def _is_set_aside(self, stream: Stream) -> bool:
        """Whether loading a run may end this process; one that it knows already is harmless."""
        known = self._runs.get(stream) is not None
        return not known and any(set_aside(view.expired) for view in await self._store.jobs(stream))

    async def _leave_alone(self, stream: Stream, row: Row, shown: RunRow) -> None:
        """Mark a run that no worker survives, without loading it."""
        if shown.stuck_reason != SET_ASIDE:
            await self._store.commit([Commit(stream=stream, expected=None, rows=(marked_stuck(row, SET_ASIDE),))])

    async def _mark(
        self, stream: Stream, entry: CachedRun, jobs: list[JobView], shown: RunRow, *, newer: bool = False
    ) -> None:
        """Update a row that lags behind, and mark in it, with the reason, that nothing has happened for a while.

        A run that waits for a worker of a `newer` version is not stuck.
        """
        state, workflow, now = entry.state, entry.flow.workflow, self._store.now_ms()
        quiet_ms = now - state.last_ms
        held = any(job.lease_expires_at_ms is not None and job.lease_expires_at_ms > now for job in jobs)
        named = held or newer or named_wait(workflow, state, now)
        reason = shown.stuck_reason if shown.events == state.seq else ""
        stuck = bool(reason) or (quiet_ms >= STUCK_AFTER_MS and not named)
        idle = quiet_ms >= IDLE_AFTER_MS
        waits = waiting_for(workflow, state)
        if newer:
            waits = (*waits, NEWER_WORKER)
        elif not waits and not held:
            queues = {view.job.queue for view in jobs if view.job.ready_at_ms <= now}
            waits = tuple(f"a worker on queue {queue}" for queue in sorted(queues))
        if (shown.stuck, shown.idle, shown.events, shown.waiting_for) == (stuck, idle, state.seq, waits):
            return
        terms = run_terms(state, retention=workflow.retention, stuck=stuck, idle=idle)
        row = run_row(stream, state, terms, waiting_for=waits, stuck=stuck, idle=idle, stuck_reason=reason)
        await self._store.commit([Commit(stream=stream, expected=state.seq, rows=(row,))])


# The sample of ended runs

ONE_IN = {SUSPECT: 1, "status:FAILED": 1, "status:CANCELLED": 100, "status:COMPLETED": 100}
AUDITS_MAX = 10
"""Logs read per call."""
EVENTS_MAX = 20_000
"""Longer logs are left to `verify-log`: they would block the worker."""
REST_FACTOR = 100
UNSURE = frozenset({"blob_unreadable", "workflow_unreadable", "job_surplus", "lists_unreadable"})
"""Findings that may be an outage rather than damage, or a job that its next claimer discards."""
SUSPECTS_MAX = 10_000
"""Runs remembered as reported."""


class AuditSampler:
    """Walks through the ended runs of a tenant, round after round."""

    def __init__(self, *, tenant: str, store: Store, auditor: Auditor, ambient: Ambient) -> None:
        self._tenant, self._store, self._auditor, self._ambient = tenant, store, auditor, ambient
        self._cursors: dict[str, str | None] = dict.fromkeys(ONE_IN)
        """Where each walk continues; a finished walk restarts with the newest runs."""
        self._round = dict.fromkeys(ONE_IN, 0)
        self._pause_until_ms = 0.0
        self._reported: dict[str, None] = {}
        self.audited = 0
        self.findings = 0

    async def audit_next(self) -> None:
        """Audit the next few runs, unless the last call is too recent for what it cost."""
        began = self._ambient.monotonic_ms()
        if began < self._pause_until_ms:
            return
        for term in ONE_IN:
            await self._walk(term)
        ended = self._ambient.monotonic_ms()
        self._pause_until_ms = ended + REST_FACTOR * (ended - began)

    async def _walk(self, term: str) -> None:
        page = await self._store.find(self._tenant, RUN, [term], after=self._cursors[term], limit=PAGE)
        turn, one_in = self._round[term], ONE_IN[term]
        chosen = [row for row in page.rows if zlib.crc32(f"{turn}/{row.key}".encode()) % one_in == 0]
        for row in chosen[:AUDITS_MAX]:
            await self._audit(row)
        if len(chosen) > AUDITS_MAX:
            # A page's cursor is behind its last row: query again, only as far as this call came.
            until = page.rows.index(chosen[AUDITS_MAX - 1]) + 1
            page = await self._store.find(self._tenant, RUN, [term], after=self._cursors[term], limit=until)
        self._cursors[term] = page.after
        self._round[term] += page.after is None

    async def _audit(self, row: Row) -> None:
        shown = read_run_row(row)
        if shown is None or shown.events > EVENTS_MAX:
            return
        self.audited += 1
        stream = Stream(self._tenant, RUN, row.key)
        found = await self._auditor.run(stream, listed=lambda expected: expected.key == row.key)
        if found.newer or found.events not in (0, shown.events):
            # A newer version judges it; or the row or a replica lags behind: this is not the version that was listed.
            return
        if not found.events and not found.findings:
            # It was deleted since it was listed, unless it is still listed.
            if await row_like(self._store, self._tenant, row) is not None:
                self._report_once(Finding(run=row.key, seq=0, code=LOG_MISSING, message="there is no record of it"), "")
            return
        sure = [finding for finding in found.findings if finding.code not in UNSURE]
        if sure and self._report_once(sure[0], f" {row.key}"):
            await self._mark(stream, row, sure[0].code, found.events or None)
        elif shown.suspect and not found.findings:
            self._reported.pop(row.key, None)
            await self._mark(stream, row, "", found.events)

    async def _mark(self, stream: Stream, row: Row, code: str, version: int | None) -> None:
        await self._store.commit([Commit(stream=stream, expected=version, rows=(marked_suspect(row, code),))])

    def _report_once(self, finding: Finding, which: str) -> bool:
        """Log the finding, and the command that tells more, once per run."""
        if finding.run in self._reported:
            return False
        self._reported[finding.run] = None
        while len(self._reported) > SUSPECTS_MAX:
            self._reported.pop(next(iter(self._reported)))
        self.findings += 1
        text = "the log of run %s violates an invariant: %s at event %s (%s); see `tidemill verify-log%s`"
        LOG.error(text, finding.run, finding.code, finding.seq, finding.message, which)
        return True
