"""Checks of a whole deployment: store, workers, work and blobs; each finding says what to do.

Nothing is written. The checks read what is unfinished, at most `RUNS_MAX` runs of a kind, and never the log of every
finished run: a finding says when it rests on a part. The rules are those of `why` and of the reconciler.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from importlib import metadata
from shlex import quote
from typing import TYPE_CHECKING

import msgspec

from tidemill.blobs.contract import GRACE
from tidemill.engine.index_rows import DEAD_LETTER, RUN, SCHEDULE, SUSPECT, read_run_row
from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership, collect
from tidemill.engine.maintenance.verify import compare
from tidemill.engine.run_cache import CachedRun
from tidemill.errors import DiskFull, Problem, Rejected, StoreUnusable, TidemillError, Unavailable
from tidemill.kernel.decide.retries import SET_ASIDE, set_aside
from tidemill.kernel.explain.survey import Bounds, ExplainInput, JobFact, Workers
from tidemill.kernel.jobs import MAINTENANCE_QUEUE, SYSTEM_QUEUE, task_of
from tidemill.stores.contract import Backlog, JobView, Stream
from tidemill.stores.optional import Finding, SelfDiagnosis, Severity, judged
from tidemill.version import __version__

if TYPE_CHECKING:
    from tidemill.engine.services.context import ServiceContext
    from tidemill.engine.services.workers import WorkerService

SEVERITIES: tuple[Severity, ...] = ("ok", "info", "warning", "error")
UNFINISHED = ("active", "rollback:running", "waiting")
RUNS_MAX = 500
"""Unfinished runs looked at, of each of these kinds."""
RUNS_AT_A_TIME = 100
JOBS_MAX = 1_000
"""Waiting jobs looked at, of each run: those of a large map wait for the same."""
BLOBS_MAX, BLOB_BYTES_MAX = 10_000, 256 << 20
"""What is read to find blobs without a reference; larger stores are left to `tidemill blobs gc --dry-run`."""
SKEW_MS_MAX = 2_000
OVERDUE_MS = 60_000
COUNTED_MAX = 10_000
NAMES_MAX = 3
COMMON = ("default", SYSTEM_QUEUE)
REASONS_MAX = 5
NEEDED = ("migrations", "row_security")
"""Findings of a store without which nothing else can be checked."""
EXTRAS = ("jq", "mcp", "metrics", "otel", "postgres", "redis", "s3", "sandbox", "server")
_OF_EXTRA = re.compile(r"""([\w.-]+).*;.*\bextra == ['"]([\w-]+)['"]""", re.ASCII)


def installed_extras() -> list[str]:
    """The extras of which every distribution is installed."""
    try:
        found = [match.groups() for each in metadata.requires("tidemill") or () if (match := _OF_EXTRA.match(each))]
    except metadata.PackageNotFoundError:
        return []
    needs = {name: [needed for needed, extra in found if extra == name] for name in EXTRAS}
    return [name for name, needed in needs.items() if needed and all(map(_is_installed, needed))]


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity
    """The worst of all findings."""
    findings: tuple[Finding, ...]


def diagnosis_of(findings: Sequence[Finding]) -> Diagnosis:
    worst = max((SEVERITIES.index(each.severity) for each in findings), default=0)
    return Diagnosis(severity=SEVERITIES[worst], findings=tuple(findings))


def is_readable(found: Sequence[Finding]) -> bool:
    """Whether the store answered, with a schema and a role by which this version can read it."""
    severities = {each.code: each.severity for each in found}
    return "reachable" in severities and all(severities.get(code, "ok") == "ok" for code in NEEDED)


def refusal(error: TidemillError, group: str = "store") -> Finding:
    """Why something cannot be checked, in the words of any other command."""
    match error:
        case Rejected():
            problem = error.problems[0]
        case StoreUnusable():
            problem = error.problem
        case DiskFull():
            problem = Problem(code="disk_full", message=str(error), hint="free disk space, then check again")
        case Unavailable():
            problem = Problem(code=f"{group}_unavailable", message=str(error), hint="then check again")
        case _:
            return Finding("check_failed", "error", str(error), "please report it", group)
    return Finding(problem.code, "error", problem.message, problem.hint, group)


class Doctor:
    def __init__(
        self, context: ServiceContext, workers: WorkerService, ownership: BlobPlaceOwnership | None = None
    ) -> None:
        self._context, self._workers, self._ownership = context, workers, ownership
        self._store, self._tenant = context.store, context.tenant

    async def check_store(self) -> list[Finding]:
        """The product and the store, which need not be open; why it cannot be used is a finding."""
        extras = installed_extras()
        said = f"Tidemill {__version__}, Python {sys.version.split()[0]}, extras {', '.join(extras) or 'none'}"
        found, began = [Finding("versions", "ok", said)], self._context.ambient.monotonic_ms()
        try:
            told = await self._store.diagnose() if isinstance(self._store, SelfDiagnosis) else []
        except TidemillError as error:
            return [*found, refusal(error)]
        took = self._context.ambient.monotonic_ms() - began
        return [*found, Finding("reachable", "ok", f"the store answered in {took:.0f} ms"), *told]

    async def check_deployment(self) -> list[Finding]:
        """Run every check of an open store; a check that fails is a finding and does not stop the others."""
        checks = {
            self._clock: "store",
            self._registry: "workers",
            self._queues: "work",
            self._runs: "work",
            self._listed: "work",
            self._blobs: "blobs",
        }
        found: list[Finding] = []
        for check, group in checks.items():
            try:
                found += [each async for each in check()]
            except TidemillError as error:
                found.append(refusal(error, group))
        return found

    async def _clock(self) -> AsyncIterator[Finding]:
        ahead_ms = self._context.ambient.now_ms() - self._store.now_ms()
        how = f"{_span(ahead_ms)} {'ahead of' if ahead_ms > 0 else 'behind'}"
        bad = f"the clock of this machine is {how} the store's" if abs(ahead_ms) > SKEW_MS_MAX else ""
        hint = "synchronise both with NTP (`timedatectl`)"
        yield judged("clock_skew", "store", "the clocks of this machine and of the store agree", bad, hint)

    # Workers

    async def _registry(self) -> AsyncIterator[Finding]:
        views, now = await self._workers.find(), self._store.now_ms()
        alive = [view for view in views if view.state in ("alive", "draining")]
        some, none = f"{_counted(len(alive), 'worker')} alive", "" if alive else "no worker is alive"
        yield judged("workers", "workers", some, none, "start one with `tidemill worker`", "info")
        lost = [view for view in views if view not in alive]
        names = _few(
            f"{view.name} (pid {view.pid} on {view.host}, {view.state}, last heartbeat {_span(now - view.beat_ms)} ago)"
            for view in lost
        )
        bad = f"workers stopped sending heartbeats: {names}" if lost else ""
        hint = "check their logs and restart them with `tidemill worker`; they leave the list after an hour"
        yield judged("dead_workers", "workers", "no worker has died in the last hour", bad, hint)
        if others := sorted({view.version for view in alive if view.version not in ("", __version__)}):
            message = f"some workers run version {', '.join(others)}; this is {__version__}"
            yield Finding("worker_versions", "info", message, "upgrade them one after the other", "workers")

    # Work

    async def _queues(self) -> AsyncIterator[Finding]:
        """Queues that no live worker serves, and jobs that wait although one does."""
        workers, now = await self._workers.capabilities(""), self._store.now_ms()
        queues = defaultdict[str, list[Backlog]](list)
        for each in await self._store.backlog():
            if each.queue != MAINTENANCE_QUEUE:
                queues[each.queue].append(each)
        codes = {"unserved_queues": "every queue with work has a live worker", "overdue_jobs": "no job is overdue"}
        for queue, parts in queues.items():
            ready, later = sum(each.ready for each in parts), sum(each.later for each in parts)
            waited_ms = now - min(each.oldest_ready_at_ms or now for each in parts)
            served = any(worker.serves(queue) for worker in workers.each)
            if not served and (ready or later):
                what = f"{_counted(ready, 'job')} ready" if ready else f"{_counted(later, 'timer')} set"
                command = "tidemill worker" + ("" if queue in COMMON else f" --queues {quote(queue)}")
                bad, hint = f"no live worker serves queue {queue}: {what}", f"start one: `{command}`"
                yield Finding("unserved_queues", "error" if ready else "warning", bad, hint, "work")
                codes.pop("unserved_queues", None)
            elif served and waited_ms > OVERDUE_MS:
                bad = f"the oldest of {_counted(ready, 'ready job')} in queue {queue} has waited for {_span(waited_ms)}"
                yield Finding("overdue_jobs", "warning", bad, "start more workers, or raise --concurrency", "work")
                codes.pop("overdue_jobs", None)
        for code, ok in codes.items():
            yield judged(code, "work", ok)

    async def _runs(self) -> AsyncIterator[Finding]:
        scan = _UnfinishedRuns(self._context, self._workers)
        await scan.look()
        stuck, partial = list(scan.stuck), scan.partial
        part = f" (of the first {scan.seen:,} unfinished runs)" if partial else ""
        bad = f"{_counted(len(stuck), 'run')} stuck{part}: {_few(stuck)}" if stuck else ""
        hint = f"`tidemill why {quote(stuck[0])}`; a worker restores missing jobs within seconds" if stuck else ""
        ok = f"no unfinished run is stuck{part or f' ({scan.seen:,} checked)'}"
        yield judged("stuck_runs", "work", ok, bad, hint, "error", partial)
        if scan.unreadable:
            bad, hint = f"runs cannot be read{part}: {_few(scan.unreadable)}", f"verify-log {quote(scan.unreadable[0])}"
            yield Finding("unreadable_runs", "error", bad, f"`tidemill {hint}`", "work", partial)
        for (reason, hint), runs in list(scan.unrunnable.items())[:REASONS_MAX]:
            bad = f"no live worker can run {_counted(len(runs), 'job')}{part}: {reason}"
            hint = hint or f"`tidemill why {quote(runs[0])}`"
            yield Finding("unrunnable_jobs", "error", bad, hint, "work", partial)
        if not scan.unrunnable:
            yield judged("unrunnable_jobs", "work", f"live workers can run every job{part}", partial=partial)

    async def _listed(self) -> AsyncIterator[Finding]:
        """What rows count: dead letters, runs whose logs the audit doubts, and schedules whose last start failed."""
        letters = await self._store.count(self._tenant, DEAD_LETTER, ["status:open"], at_most=COUNTED_MAX)
        more = letters == COUNTED_MAX
        bad = f"{_counted(letters, 'dead letter')} open{' or more' if more else ''}" if letters else ""
        hint = "`tidemill dlq list`, then retry or discard them"
        yield judged("dead_letters", "work", "no dead letter is open", bad, hint, partial=more)
        suspects = await self._store.find(self._tenant, RUN, [SUSPECT], limit=NAMES_MAX + 1)
        if names := [row.key for row in suspects.rows]:
            bad, hint = f"the audit found damaged logs: {_few(names)}", f"`tidemill verify-log {quote(names[0])}`"
            yield Finding("suspect_runs", "error", bad, hint, "work")
        failing = await self._store.find(self._tenant, SCHEDULE, ["failing"], limit=NAMES_MAX + 1)
        if names := [row.key for row in failing.rows]:
            bad, hint = f"schedules cannot start runs: {_few(names)}", f"`tidemill schedules show {quote(names[0])}`"
            yield Finding("failing_schedules", "warning", bad, hint, "work")

    # Blobs

    async def _blobs(self) -> AsyncIterator[Finding]:
        """Blobs without a reference, and references without a blob; only where few blobs are stored."""
        listed = await self._context.blobs.list(self._tenant, limit=BLOBS_MAX + 1)
        if sum(info.size for info in listed) > BLOB_BYTES_MAX or len(listed) > BLOBS_MAX:
            grace = sum(info.state == GRACE for info in listed)
            bad = f"too many blobs to search for orphans; {grace} of {len(listed)} blobs are marked for deletion"
            yield Finding("orphan_blobs", "info", bad, "`tidemill blobs gc --dry-run`", "blobs", True)
            return
        if self._ownership is not None:
            await self._ownership.verify_alone()
        now_ms = self._store.now_ms()
        report = await collect(self._store, self._context.blobs, self._tenant, now_ms=now_ms, dry_run=True)
        orphans = report.retired + report.waiting + report.deleted
        bad = f"nothing refers to {_counted(orphans, 'blob')} of {report.scanned:,}" if orphans else ""
        ok, hint = f"no orphan among {_counted(report.scanned, 'blob')}", "`tidemill blobs gc`, now and a day later"
        yield judged("orphan_blobs", "blobs", ok, bad, hint, "info")
        if report.unreadable:
            bad = f"runs need {_counted(len(report.unreadable), 'blob')} that cannot be read: {report.unreadable[0]}"
            hint = "restore them from a backup, or put the same bytes back (`tidemill blobs put`)"
            yield Finding("missing_blobs", "error", bad, hint, "blobs")


class _UnfinishedRuns:
    """Compares the jobs of unfinished runs with what their states call for and with what live workers can run."""

    def __init__(self, context: ServiceContext, workers: WorkerService) -> None:
        self._context, self._workers = context, workers
        self._able: dict[str, Workers] = {}
        self.seen = 0
        self.partial = False
        self.stuck: dict[str, str] = {}
        """Reasons by run."""
        self.unreadable: list[str] = []
        self.unrunnable: dict[tuple[str, str], list[str]] = {}
        """Runs by the reason why no worker can run a job of theirs, and what to do."""

    async def look(self) -> None:
        store, tenant = self._context.store, self._context.tenant
        marked = await store.find(tenant, RUN, ["stuck"], limit=RUNS_MAX)
        shown = ((row.key, read_run_row(row)) for row in marked.rows)
        self.stuck.update((key, row.stuck_reason) for key, row in shown if row is not None)
        self.partial |= marked.after is not None
        for term in UNFINISHED:
            after, left = None, RUNS_MAX
            while left:
                page = await store.find(tenant, RUN, [term], after=after, limit=min(left, RUNS_AT_A_TIME))
                await self._look_at([Stream(tenant, RUN, row.key) for row in page.rows])
                left, after = left - len(page.rows), page.after
                if after is None:
                    break
            self.partial |= after is not None

    async def _look_at(self, streams: list[Stream]) -> None:
        self.seen += len(streams)
        found = await asyncio.gather(*map(self._context.store.jobs, streams))
        jobs = dict(zip(streams, found, strict=True))
        for stream, views in jobs.items():
            if any(set_aside(view.expired) for view in views):
                # Reading such a run may end this process too.
                self.stuck[stream.key] = SET_ASIDE
        safe = [stream for stream in streams if self.stuck.get(stream.key) != SET_ASIDE]
        entries = await self._context.run_cache.refresh(safe)
        for stream in safe:
            entry = entries.get(stream)
            if entry is None:
                if self._context.run_cache.damage(stream) is not None:
                    self.unreadable.append(stream.key)
            elif entry.state.busy:
                if compare(entry, jobs[stream]).missing and await self._is_confirmed(stream):
                    self.stuck[stream.key] = "jobs are missing"
                await self._look_for_workers(stream, entry, jobs[stream])

    async def _is_confirmed(self, stream: Stream) -> bool:
        """Whether jobs are still missing when they are read between two equal states: the run may have moved on."""
        refresh = self._context.run_cache.refresh
        before = (await refresh([stream])).get(stream)
        seq = None if before is None else before.state.seq
        jobs = await self._context.store.jobs(stream)
        after = (await refresh([stream])).get(stream)
        if after is None or after.state.seq != seq or not after.state.busy:
            return False
        return bool(compare(after, jobs).missing)

    async def _look_for_workers(self, stream: Stream, entry: CachedRun, views: list[JobView]) -> None:
        """Ask of each job that waits for a worker what `why` would say of it."""
        workflow, now = entry.flow.workflow, self._context.store.now_ms()
        # Also those that are not ready: a worker that lacks something releases a job for a while.
        waiting = [view for view in views if view.lease_expires_at_ms is None][:JOBS_MAX]
        if not waiting:
            return
        if entry.digest not in self._able:
            self._able[entry.digest] = await self._workers.capabilities(entry.digest)
        facts = ExplainInput(workflow, entry.state, [], now, self._able[entry.digest], Bounds())
        for view in waiting:
            task = task_of(view.job.body)
            node = workflow.by_id.get(task.node) if task.kind == "run" else None
            type_ = "" if node is None else node.type
            job = JobFact(key=view.job.key, queue=view.job.queue, ready_at_ms=view.job.ready_at_ms)
            match facts.why_unclaimed(job, type_):
                case "no_type":
                    reason = f"none on queue {job.queue} has node type {type_}"
                    hint = "start one that has it: `tidemill worker --app YOUR_CODE`"
                case "lacking" if (lack := facts.lacking(job, type_)) is not None:
                    reason, hint = lack.message, lack.hint
                case _:
                    continue
            self.unrunnable.setdefault((reason, hint), []).append(stream.key)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _few(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - NAMES_MAX
    return ", ".join(every[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _span(ms: int) -> str:
    seconds = abs(ms) / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.0f} h"
