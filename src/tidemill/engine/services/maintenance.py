"""Maintenance of a whole store: audit its logs, rebuild its rows, archive its old runs, restore one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tidemill.blobs.archive import Archive, at_once
from tidemill.blobs.contract import BlobDamaged, verified
from tidemill.engine.blob_references import mark_new_tenant
from tidemill.engine.index_rows import RUN
from tidemill.engine.maintenance.archive import ArchiveEntry, ArchivePage, ArchiveReader, blob_name
from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
from tidemill.engine.maintenance.reindex import Indexer, Reindexed, all_rows, all_streams, rows_of
from tidemill.engine.maintenance.retention import RESTORED, RetentionSweep, SweepResult
from tidemill.engine.maintenance.verify import Auditor, AuditReport, Finding, RunAudit, index_findings, missing_logs
from tidemill.engine.services.context import AnyRun, ServiceContext, run_ids_of
from tidemill.engine.services.workers import WorkerService
from tidemill.engine.validation import check_limit
from tidemill.engine.versions import WORKFLOW
from tidemill.errors import rejected
from tidemill.stores.contract import Commit, Committed, Row, Stream, Tail
from tidemill.stores.optional import IndexProblems, flaws_of

if TYPE_CHECKING:
    from tidemill.engine.maintenance.doctor import Diagnosis, Doctor

FINDINGS_MAX = 10_000
"""Findings kept of an audit; a store with more of them is not understood by reading on."""
SWEEPS_MAX = 100_000

Progress = Callable[[int, int], None]
"""Called with the number of runs and events read so far."""


class MaintenanceService:
    def __init__(
        self,
        context: ServiceContext,
        archive: Archive | None,
        retention_days: float | None,
        workers: WorkerService,
        ownership: BlobPlaceOwnership | None = None,
    ) -> None:
        self._context, self._archive, self._retention_days = context, archive, retention_days
        self._workers, self._ownership = workers, ownership

    # Diagnosis

    async def diagnose(self) -> Diagnosis:
        """Check the store, its settings, workers, unfinished work and blobs; writes nothing.

        `tidemill.diagnose(url)` also checks a store that cannot be opened.
        """
        from tidemill.engine.maintenance.doctor import diagnosis_of

        doctor = self.doctor()
        return diagnosis_of([*await doctor.check_store(), *await doctor.check_deployment()])

    def doctor(self) -> Doctor:
        # Imported here, because most processes never need it.
        from tidemill.engine.maintenance.doctor import Doctor

        return Doctor(self._context, self._workers, self._ownership)

    # Audit

    async def verify_log(
        self,
        run_ids: AnyRun | Sequence[AnyRun] = (),
        *,
        sample: float = 100.0,
        on_finding: Callable[[Finding], None] | None = None,
        on_progress: Progress | None = None,
    ) -> AuditReport:
        """Check the logs of these runs, or of the whole store, and report every violation.

        `sample` is a percentage of the runs of the store. Workers may keep running, and nothing is changed.
        """
        if not 0 < sample <= 100:
            message, hint = f"a sample is more than 0 and at most 100 percent, not {sample:g}", "leave it out for all"
            raise rejected("sample_invalid", message, path="/sample", hint=hint)
        tally, findings = {"runs": 0, "workflows": 0, "events": 0, "moved": 0, "newer": 0}, list[Finding]()

        async for kind, found in self._audited(run_ids_of(run_ids), sample):
            if kind in tally:
                tally[kind] += 1
            tally["events"] += found.events
            tally["moved"] += found.moved
            tally["newer"] += found.newer
            findings += found.findings[: FINDINGS_MAX - len(findings)]
            if on_finding is not None:
                for finding in found.findings:
                    on_finding(finding)
            if on_progress is not None:
                on_progress(tally["runs"], tally["events"])
        return AuditReport(**tally, findings=tuple(findings))

    async def _audited(self, run_ids: Sequence[str], sample: float) -> AsyncIterator[tuple[str, RunAudit]]:
        auditor = Auditor(self._context.store, self._context.blobs, self._context.catalog)
        for run_id in run_ids:
            stream = self._context.stream(run_id)
            (tail,) = await self._context.store.load({stream: 0}, snapshots=False)
            if not tail.version and not tail.damage:
                raise rejected("run_unknown", f"there is no run {run_id}", hint="see `tidemill runs list`")
            yield "runs", await auditor.run(stream)
        if run_ids:
            return
        flaws = await flaws_of(self._context.store) if sample == 100 else IndexProblems()
        if not flaws.sound:
            yield "lists", index_findings(flaws)
        readable = not flaws.unreadable
        auditor = Auditor(self._context.store, self._context.blobs, self._context.catalog, lists=readable)
        async for stream in all_streams(self._context.store, WORKFLOW):
            yield "workflows", await auditor.workflow(stream)
        for kind, rows_called_for in self._context.stream_kinds.items():
            async for stream in all_streams(self._context.store, kind):
                yield kind, await auditor.other(stream, rows_called_for)
        marks: set[int] | None = None
        if sample == 100 and readable:
            # A few bytes for every row of a run, so that most rows need not be looked for one by one.
            tenant = self._context.tenant
            marks = {_mark(tenant, row) async for row in all_rows(self._context.store, tenant, RUN)}
        async for stream in all_streams(self._context.store, RUN):
            if sample == 100 or crc32(stream.key.encode()) % 10_000 < sample * 100:
                listed = None if marks is None else lambda row, tenant=stream.tenant: _mark(tenant, row) in marks
                yield "runs", await auditor.run(stream, listed=listed)
        if sample == 100 and readable:
            async for found in missing_logs(self._context.store, self._context.tenant, self._context.stream_kinds):
                yield "lists", found

    # Rows

    async def reindex(self, *, dry_run: bool = False, on_progress: Callable[[int], None] | None = None) -> Reindexed:
        """Rebuild every row from the logs, also while workers run; with `dry_run` only say what would change."""
        context = self._context
        indexer = Indexer(
            context.store, context.catalog, tenant=context.tenant, kinds=context.stream_kinds, dry_run=dry_run
        )
        return await indexer.run(on_progress)

    # Retention

    def retention_sweep(self, tenant: str | None = None, *, dry_run: bool = False) -> RetentionSweep:
        """What sweeps old runs of a tenant into the archive."""
        return RetentionSweep(
            tenant=tenant or self._context.tenant,
            store=self._context.store,
            blobs=self._context.blobs,
            catalog=self._context.catalog,
            runs=self._context.run_cache,
            archive=self._open_archive(),
            days=self._retention_days,
            dry_run=dry_run,
        )

    async def archive_sweep(self, *, dry_run: bool = False) -> SweepResult:
        """Archive every run whose retention time is over; with `dry_run` only say which."""
        sweep = self.retention_sweep(dry_run=dry_run)
        retired, left, failed = list[str](), list[tuple[str, str]](), list[str]()
        for _ in range(SWEEPS_MAX):
            swept = await sweep.sweep()
            retired += swept.retired
            left += swept.left
            failed += swept.failed
            if not swept.more:
                break
        return SweepResult(retired=tuple(retired), left=tuple(left), failed=tuple(failed), dry_run=dry_run)

    async def archive_list(self, *, workflow: str | None = None, limit: int = 50) -> ArchivePage:
        """Archived runs, the latest months first, and the names of entries that cannot be read."""
        check_limit(limit)
        return await ArchiveReader(self._open_archive(), self._context.tenant).page(workflow, limit)

    async def archive_show(self, run_id: str) -> tuple[ArchiveEntry, list[dict[str, Any]]]:
        """An archived run with its events: the newest of this id, or that of this entry."""
        listed, found = await ArchiveReader(self._open_archive(), self._context.tenant).read(run_id)
        return listed, found.events()

    async def archive_restore(self, run_id: str) -> ArchiveEntry:
        """Restore an archived run, byte for byte; it is kept as long as after its end.

        The newest of this id, or the one of this entry. The archive keeps its copy. Refused when a run of this id is
        there; nothing has changed then.
        """
        archive = self._open_archive()
        listed, found = await ArchiveReader(archive, self._context.tenant).read(run_id)
        stream = self._context.stream(listed.run_id)
        await self._refuse_present(stream)
        for digest, inline in found.blobs.items():
            body = await archive.stream(blob_name(self._context.tenant, digest)) if inline is None else at_once(inline)
            if body is None or not await self._brought_back(digest, body):
                message = f"the archive has lost {digest}, which run {listed.run_id} needs"
                raise rejected("archive_damaged", message, hint="restore the archive from a backup")
        tail = Tail(stream=stream, version=len(found.records), after=0, records=found.records)
        _, rows = await rows_of(self._context.catalog, tail)
        await mark_new_tenant(self._context.store, self._context.tenant)
        mark = Row(kind=RESTORED, key=listed.run_id, sort=self._context.store.now_ms())
        commit = Commit(stream=stream, expected=0, records=found.records, rows=(*rows.values(), mark))
        (result,) = await self._context.store.commit([commit])
        if not isinstance(result, Committed):
            await self._refuse_present(stream)
        return listed

    async def _brought_back(self, digest: str, body: AsyncIterator[bytes]) -> bool:
        """Store what the archive has of a blob; false, and nothing is stored, when it is something else."""
        try:
            await self._context.blobs.put_stream(self._context.tenant, verified(digest, body))
        except BlobDamaged:
            return False
        return True

    def _open_archive(self) -> Archive:
        if self._archive is None:
            hint = "name one with --archive or TIDEMILL_ARCHIVE: a directory, or s3://bucket/prefix"
            raise rejected("archive_unknown", "there is no archive for this store", hint=hint)
        return self._archive

    async def _refuse_present(self, stream: Stream) -> None:
        (tail,) = await self._context.store.load({stream: 0}, snapshots=False)
        if tail.version or tail.damage:
            raise rejected("run_exists", f"run {stream.key} is in the store already", hint="nothing was changed")


def _mark(tenant: str, row: Row) -> int:
    return hash((tenant, row.kind, row.key, row.sort, frozenset(row.terms), row.body))
