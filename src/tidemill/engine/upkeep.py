"""Verbs that look after a store as a whole: audit its logs, rebuild its rows, retire its old runs, bring one back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from zlib import crc32

import msgspec

from tidemill.blobs.archives import Archive
from tidemill.engine.archiving import (
    Archived,
    Header,
    blob_name,
    decode_archived,
    decode_header,
    folder,
    short_name,
)
from tidemill.engine.auditing import Auditor, Finding, Found, Verdict
from tidemill.engine.desk import LIMIT_HINT, Desk
from tidemill.engine.indexing import Indexer, Reindexed, all_rows, all_streams, rows_of
from tidemill.engine.retiring import RESTORED, Retirer, Swept
from tidemill.engine.rows import RUN
from tidemill.engine.versions import WORKFLOW
from tidemill.errors import Rejected, rejected
from tidemill.kernel.model import RETENTION_DAYS
from tidemill.stores.contract import Commit, Committed, Row, Stream, Tail

FINDINGS_MAX = 10_000
"""Findings kept of an audit; a store with more of them is not understood by reading on."""
SWEEPS_MAX = 100_000
PAGE = 200

Progress = Callable[[int, int], None]
"""Told how many runs and events were read so far."""


class ArchivePage(msgspec.Struct, frozen=True, kw_only=True):
    """Archived runs, the latest months first."""

    runs: tuple[Header, ...]
    more: bool = False
    damaged: tuple[str, ...] = ()
    """Names of entries that cannot be read."""


class Upkeep(Desk):
    """Verbs for whoever is responsible for the store."""

    _archive: Archive | None = None
    _retention_days: float | None = RETENTION_DAYS

    # Audit

    async def verify_log(
        self,
        run_ids: Sequence[str] = (),
        *,
        sample: float = 100.0,
        on_finding: Callable[[Finding], None] | None = None,
        on_progress: Progress | None = None,
    ) -> Verdict:
        """Read logs again and tell everything that is not as it must be: of these runs, or of the whole store.

        `sample` is a percentage of the runs of the store. It works beside running workers, and changes nothing.
        """
        if not 0 < sample <= 100:
            message, hint = f"a sample is more than 0 and at most 100 percent, not {sample:g}", "leave it out for all"
            raise rejected("sample_invalid", message, path="/sample", hint=hint)
        auditor = Auditor(self._store, self._blobs, self.catalog)
        tally, findings = {"runs": 0, "workflows": 0, "events": 0, "moved": 0}, list[Finding]()

        async for kind, found in self._audited(auditor, run_ids, sample):
            tally[kind] += 1
            tally["events"] += found.events
            tally["moved"] += found.moved
            findings += found.findings[: FINDINGS_MAX - len(findings)]
            if on_finding is not None:
                for finding in found.findings:
                    on_finding(finding)
            if on_progress is not None:
                on_progress(tally["runs"], tally["events"])
        return Verdict(**tally, findings=tuple(findings))

    async def _audited(
        self, auditor: Auditor, run_ids: Sequence[str], sample: float
    ) -> AsyncIterator[tuple[str, Found]]:
        for run_id in run_ids:
            stream = self._stream(run_id)
            await self._known_run(stream)
            yield "runs", await auditor.run(stream)
        if run_ids:
            return
        async for stream in all_streams(self._store, WORKFLOW):
            yield "workflows", await auditor.workflow(stream)
        marks = await self._marks() if sample == 100 else None
        async for stream in all_streams(self._store, RUN):
            if sample == 100 or crc32(stream.key.encode()) % 10_000 < sample * 100:
                listed = None if marks is None else lambda row, tenant=stream.tenant: _mark(tenant, row) in marks
                yield "runs", await auditor.run(stream, listed=listed)

    async def _known_run(self, stream: Stream) -> Tail:
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        if not tail.version and not tail.damage:
            raise rejected("run_unknown", f"there is no run {stream.key}", hint="see `tidemill runs list`")
        return tail

    async def _marks(self) -> set[int]:
        """A few bytes for every row of a run, so that most rows need not be looked for one by one."""
        return {_mark(self._tenant, row) async for row in all_rows(self._store, self._tenant, RUN)}

    # Rows

    async def reindex(self, *, dry_run: bool = False, on_progress: Callable[[int], None] | None = None) -> Reindexed:
        """Rebuild every row from the logs, also while workers run; with `dry_run` only say what would change."""
        indexer = Indexer(self._store, self.catalog, tenant=self._tenant, dry_run=dry_run)
        return await indexer.run(on_progress)

    # Retention

    def retirer(self, *, dry_run: bool = False) -> Retirer:
        """What sweeps old runs of this tenant into the archive."""
        return Retirer(
            tenant=self._tenant,
            store=self._store,
            blobs=self._blobs,
            catalog=self.catalog,
            runs=self.runs,
            archive=self._open_archive(),
            days=self._retention_days,
            dry_run=dry_run,
        )

    async def archive_sweep(self, *, dry_run: bool = False) -> Swept:
        """Retire every run that is due now; with `dry_run` only say which."""
        retirer = self.retirer(dry_run=dry_run)
        retired: list[str] = []
        left: list[tuple[str, str]] = []
        for _ in range(SWEEPS_MAX):
            swept = await retirer.sweep()
            retired += swept.retired
            left += swept.left
            if not swept.more:
                break
        return Swept(retired=tuple(retired), left=tuple(left), dry_run=dry_run)

    async def archive_list(self, *, workflow: str | None = None, limit: int = 50) -> ArchivePage:
        """Archived runs, the latest months first."""
        if limit < 1:
            raise rejected("limit_invalid", f"a page has at least one row, not {limit}", path="/limit", hint=LIMIT_HINT)
        archive, found, damaged, more = self._open_archive(), list[Header](), list[str](), False
        async for name in self._entries(archive, workflow):
            more = len(found) + len(damaged) == limit
            if more:
                break
            try:
                found.append(decode_header(name, await archive.get(name) or b""))
            except Rejected:
                damaged.append(name)
        return ArchivePage(runs=tuple(found), more=more, damaged=tuple(damaged))

    async def archive_show(self, run_id: str) -> tuple[Header, list[dict[str, Any]]]:
        """An archived run as it was when it was retired, with its events."""
        found = await self._archived(run_id)
        return found.header, found.events()

    async def archive_restore(self, run_id: str) -> Header:
        """Put an archived run back as it was, byte for byte. It is kept from now on as long as after its end.

        The archive keeps its copy. Refused when a run of this id is there; nothing has changed then.
        """
        archive, stream = self._open_archive(), self._stream(run_id)
        found = await self._archived(run_id)
        await self._refuse_present(stream)
        for digest, inline in found.blobs.items():
            body = inline if inline is not None else await archive.get(blob_name(self._tenant, digest))
            if body is None or await self._blobs.put(self._tenant, body) != digest:
                message = f"the archive has lost {digest}, which run {run_id} needs"
                raise rejected("archive_damaged", message, hint="restore the archive from a backup")
        tail = Tail(stream=stream, version=len(found.records), after=0, records=found.records)
        _, rows = await rows_of(self.catalog, tail)
        mark = Row(kind=RESTORED, key=run_id, sort=self._store.now_ms())
        commit = Commit(stream=stream, expected=0, records=found.records, rows=(*rows.values(), mark))
        (result,) = await self._store.commit([commit])
        if not isinstance(result, Committed):
            await self._refuse_present(stream)
        return found.header

    def _open_archive(self) -> Archive:
        if self._archive is None:
            hint = "name one with --archive or TIDEMILL_ARCHIVE: a directory, or s3://bucket/prefix"
            raise rejected("archive_unknown", "there is no archive for this store", hint=hint)
        return self._archive

    async def _refuse_present(self, stream: Stream) -> None:
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        if tail.version or tail.damage:
            raise rejected("run_exists", f"run {stream.key} is in the store already", hint="nothing was changed")

    async def _archived(self, run_id: str) -> Archived:
        """The newest archived version of a run."""
        archive, newest = self._open_archive(), ""
        async for group in self._groups(archive):
            names = await archive.names(f"{group}{short_name(run_id)}.")
            newest = max((newest, *names), key=lambda name: int(name.split(".")[-3]) if name else 0)
        body = await archive.get(newest) if newest else None
        if body is None:
            raise rejected("archived_run_unknown", f"run {run_id} is not archived", hint="see `tidemill archive list`")
        return decode_archived(newest, body)

    async def _entries(self, archive: Archive, workflow: str | None) -> AsyncIterator[str]:
        """Names of archived runs, the latest months first."""
        groups = [group async for group in self._groups(archive)]
        for group in sorted(groups, key=lambda group: group.split("/")[-3:-1], reverse=True):
            if workflow is not None and group.split("/")[-2] != workflow:
                continue
            after = ""
            while names := await archive.names(group, after=after, limit=PAGE):
                for name in names:
                    yield name
                after = names[-1]

    async def _groups(self, archive: Archive) -> AsyncIterator[str]:
        """The folders of the archive, one for each month and workflow, found by leaping from one to the next."""
        root = after = folder(self._tenant)
        while names := await archive.names(root, after=after, limit=1):
            group = names[0].rpartition("/")[0] + "/"
            yield group
            # The sign behind `/`: everything in this folder stands before it.
            after = group[:-1] + "0"


def _mark(tenant: str, row: Row) -> int:
    return hash((tenant, row.kind, row.key, row.sort, frozenset(row.terms), row.body))
