"""Check that every live run has exactly the jobs its state calls for; audit of ended runs by sampling.

Differences at one version are repaired with an event that says why. A run without progress that waits for nothing with
a name is marked stuck; a quiet one is listed as idle. Runs that only wait are checked in turn, a bounded number per
sweep. The sampler audits all failed runs and one in a hundred of the others per round; a finding is reported once, and
its run is marked `suspect` and audited in every round until it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

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
    waiting_terms,
)
from tidemill.engine.maintenance.reindex import row_like
from tidemill.engine.maintenance.schedule import Cursor
from tidemill.engine.maintenance.verify import LOG_MISSING, Auditor, Finding, compare
from tidemill.engine.run_cache import CachedRun, RunCache
from tidemill.engine.turn import TurnLoop
from tidemill.engine.views import named_wait, waiting_for
from tidemill.errors import InternalError, TidemillError
from tidemill.kernel.commands import Repair
from tidemill.kernel.decide.retries import SET_ASIDE, set_aside
from tidemill.stores.contract import Commit, JobView, Row, Store, Stream

LOG = logging.getLogger(__name__)

STUCK_AFTER_MS = 60_000
IDLE_AFTER_MS = 300_000
PAGE = 200
RUNS_AT_A_TIME = 50
"""Runs whose states are in memory together."""
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
        sampling: AuditSampler,
    ) -> None:
        self._tenant, self._store, self._runs, self._turns = tenant, store, runs, turns
        self._messenger, self.sampling = messenger, sampling
        self.repairs = 0
        self.audited = 0

    @property
    def findings(self) -> int:
        return self.sampling.findings

    async def sweep(self, tenant: str | None = None, cursor: Cursor | None = None) -> Cursor:
        """Check every active run of a tenant once, and some of the waiting ones, from where the last sweep ended."""
        tenant, waiting_after = tenant or self._tenant, (cursor or {}).get("waiting")
        for term in ("active", "rollback:running"):
            after: str | None = None
            while after := await self._scan(tenant, term, after, PAGE):
                pass
        return {"waiting": await self._scan(tenant, "waiting", waiting_after, WAITING_PER_SWEEP)}

    async def _scan(self, tenant: str, term: str, after: str | None, limit: int) -> str | None:
        page = await self._store.find(tenant, RUN, [term], after=after, limit=limit)
        for start in range(0, len(page.rows), RUNS_AT_A_TIME):
            rows = {Stream(tenant, RUN, row.key): row for row in page.rows[start : start + RUNS_AT_A_TIME]}
            shown = {stream: read_run_row(row) for stream, row in rows.items()}
            # A newer version looks after the rows that it wrote.
            await self._reconcile({stream: row for stream, row in shown.items() if row is not None}, rows)
        return page.after

    async def _reconcile(self, shown: Mapping[Stream, RunRow], rows: Mapping[Stream, Row]) -> None:
        """Check some runs, with one call of each kind for all of them."""
        jobs = await self._jobs_of(shown)
        for stream in [stream for stream in shown if self._is_set_aside(stream, jobs[stream])]:
            await self._leave_alone(stream, rows[stream], shown[stream])
            del jobs[stream]
        before = await self._runs.refresh(jobs)
        versions = {stream: entry.state.seq for stream, entry in before.items() if entry.state.busy}
        jobs = await self._jobs_of(versions)
        again = await self._runs.refresh(versions)
        for stream, version in versions.items():
            self.audited += 1
            entry = again.get(stream)
            if entry is None or entry.state.seq != version or not entry.state.busy:
                continue
            try:
                await self._reconcile_run(stream, entry, jobs[stream], shown[stream], rows[stream].terms)
            except Exception as error:
                if isinstance(error, TidemillError) and not isinstance(error, InternalError):
                    raise
                # A bug in the check of one run must not stop the others.
                reason = str(self._turns.report(error))
                if shown[stream].stuck_reason != reason:
                    await self._turns.mark_stuck(stream, reason)

    async def _jobs_of(self, streams: Iterable[Stream]) -> dict[Stream, list[JobView]]:
        streams = list(streams)
        return dict(zip(streams, await asyncio.gather(*map(self._store.jobs, streams)), strict=True))

    async def _reconcile_run(
        self, stream: Stream, entry: CachedRun, jobs: list[JobView], shown: RunRow, terms: Sequence[str]
    ) -> None:
        found = compare(entry, jobs)
        if found.newer:
            # A worker of the newer version takes these jobs, and does the repair.
            await self._mark(stream, entry, jobs, shown, terms, newer=True)
        elif found.missing or found.surplus:
            self.repairs += 1
            reason = f"{len(found.missing)} jobs were missing, {len(found.surplus)} had no owner"
            repair = Repair(missing=found.missing, surplus=found.surplus, reason=reason, seq=entry.state.seq)
            await self._turns.command(stream, repair)
        else:
            await self._apply_limits(stream, entry, jobs)
            await self._mark(stream, entry, jobs, shown, terms)
            await self._messenger.look_after(stream, entry)

    async def _apply_limits(self, stream: Stream, entry: CachedRun, views: Sequence[JobView]) -> None:
        """Put queued jobs under the concurrency limits as they are now: some may have been changed or lifted since."""
        limits = self._turns.limits
        queued = tuple(view.job for view in views if not view.token and not view.expired)
        if limits is None or not (limits.limits or any(job.caps for job in queued)):
            return
        limited = limits.apply(queued, stream, entry.flow.workflow, entry.state)
        changed = tuple(job for job, before in zip(limited, queued, strict=True) if job != before)
        if changed:
            keys = tuple(job.key for job in changed)
            await self._store.commit([Commit(stream=stream, expected=entry.state.seq, withdraw=keys, jobs=changed)])

    def _is_set_aside(self, stream: Stream, jobs: Sequence[JobView]) -> bool:
        """Whether loading a run may end this process; one that it knows already is harmless."""
        return self._runs.get(stream) is None and any(set_aside(view.expired) for view in jobs)

    async def _leave_alone(self, stream: Stream, row: Row, shown: RunRow) -> None:
        """Mark a run that no worker survives, without loading it."""
        if shown.stuck_reason != SET_ASIDE:
            await self._store.commit([Commit(stream=stream, expected=None, rows=(marked_stuck(row, SET_ASIDE),))])

    async def _mark(
        self,
        stream: Stream,
        entry: CachedRun,
        jobs: list[JobView],
        shown: RunRow,
        present: Sequence[str],
        *,
        newer: bool = False,
    ) -> None:
        """Update a row that lags behind, and mark in it, with the reason, that nothing has happened for a while.

        `present` are the terms of the row. A run that waits for a worker of a `newer` version is not stuck.
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
        waiting = waiting_terms(waits)
        same = (shown.stuck, shown.idle, shown.events, shown.waiting_for) == (stuck, idle, state.seq, waits)
        if same and set(waiting).issubset(present):
            return
        terms = (*run_terms(state, retention=workflow.retention, stuck=stuck, idle=idle), *waiting)
        row = run_row(stream, state, terms, waiting_for=waits, stuck=stuck, idle=idle, stuck_reason=reason)
        await self._store.commit([Commit(stream=stream, expected=state.seq, rows=(row,))])


# The sample of ended runs

ONE_IN = {SUSPECT: 1, "status:FAILED": 1, "status:CANCELLED": 100, "status:COMPLETED": 100}
AUDITS_MAX = 10
"""Logs read per call."""
EVENTS_MAX = 20_000
"""Longer logs are left to `verify-log`: they would block the worker."""
REST_FACTOR = 100
"""The sampler uses less than a hundredth of one worker's time."""
UNSURE = frozenset({"blob_unreadable", "workflow_unreadable", "job_missing", "job_surplus", "lists_unreadable"})
"""Findings that may be an outage rather than damage, or jobs that the reconciler or their next claimer puts right."""
SUSPECTS_MAX = 10_000
"""Runs remembered as reported."""


class AuditSampler:
    """Walks through the ended runs of a tenant, round after round. A finished walk restarts with the newest runs."""

    def __init__(self, *, tenant: str, store: Store, auditor: Auditor) -> None:
        self._tenant, self._store, self._auditor = tenant, store, auditor
        self._reported: dict[Stream, None] = {}
        self.audited = 0
        self.findings = 0
        self.on_finding: Callable[[str], None] | None = None
        """Called with the code of every finding, once per run."""

    async def audit_next(self, tenant: str | None = None, cursor: Cursor | None = None) -> Cursor:
        """Audit the next few runs; the cursor has, for each term, the round and the place in it."""
        known = cursor or {}
        return {term: await self._walk(tenant or self._tenant, term, *known.get(term, (0, None))) for term in ONE_IN}

    async def _walk(self, tenant: str, term: str, turn: int, after: str | None) -> tuple[int, str | None]:
        page = await self._store.find(tenant, RUN, [term], after=after, limit=PAGE)
        chosen = [row for row in page.rows if zlib.crc32(f"{turn}/{row.key}".encode()) % ONE_IN[term] == 0]
        for row in chosen[:AUDITS_MAX]:
            await self._audit(Stream(tenant, RUN, row.key), row)
        if len(chosen) > AUDITS_MAX:
            # A page's cursor is behind its last row: query again, only as far as this call came.
            until = page.rows.index(chosen[AUDITS_MAX - 1]) + 1
            page = await self._store.find(tenant, RUN, [term], after=after, limit=until)
        return turn + (page.after is None), page.after

    async def _audit(self, stream: Stream, row: Row) -> None:
        shown = read_run_row(row)
        if shown is None or shown.events > EVENTS_MAX:
            return
        self.audited += 1
        found = await self._auditor.run(stream, listed=lambda expected: expected.key == row.key)
        if found.newer or found.events not in (0, shown.events):
            # A newer version judges it; or the row or a replica lags behind: this is not the version that was listed.
            return
        if not found.events and not found.findings:
            # It was deleted since it was listed, unless it is still listed.
            if await row_like(self._store, stream.tenant, row) is not None:
                missing = Finding(run=row.key, seq=0, code=LOG_MISSING, message="there is no record of it")
                self._report_once(stream, missing, "")
            return
        sure = [finding for finding in found.findings if finding.code not in UNSURE]
        if sure and self._report_once(stream, sure[0], f" {row.key}"):
            await self._mark(stream, row, sure[0].code, found.events or None)
        elif shown.suspect and not found.findings:
            self._reported.pop(stream, None)
            await self._mark(stream, row, "", found.events)

    async def _mark(self, stream: Stream, row: Row, code: str, version: int | None) -> None:
        await self._store.commit([Commit(stream=stream, expected=version, rows=(marked_suspect(row, code),))])

    def _report_once(self, stream: Stream, finding: Finding, which: str) -> bool:
        """Log the finding, and the command that shows more, once per run."""
        if stream in self._reported:
            return False
        self._reported[stream] = None
        while len(self._reported) > SUSPECTS_MAX:
            self._reported.pop(next(iter(self._reported)))
        self.findings += 1
        if self.on_finding is not None:
            self.on_finding(finding.code)
        text = "the log of run %s violates an invariant: %s at event %s (%s); run `tidemill verify-log%s`"
        LOG.error(text, finding.run, finding.code, finding.seq, finding.message, which)
        return True
