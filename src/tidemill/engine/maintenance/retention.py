"""Archive and delete runs whose retention has passed.

A run is due at the first midnight (UTC) after its days have passed. Its row has a term for that day, so a sweep reads
the due days only, oldest first. The archive entry is durable and read back before the store deletes the run and its
rows in one step, provided that the run has not changed. A sweep may be killed anywhere or run twice at once: the run is
then in both places, and the next sweep finds the entry and only deletes. A run that cannot be archived stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from math import ceil

import msgspec

from tidemill.blobs.archive import Archive, at_once
from tidemill.blobs.contract import BlobDamaged, BlobMissing, Blobs, digests_in, files_in, missing
from tidemill.engine.attempts.log_store import forget_journals, last_token
from tidemill.engine.catalog import Catalog
from tidemill.engine.corruption import is_newer
from tidemill.engine.index_rows import DAY_MS, RUN, quiet_day
from tidemill.engine.maintenance.archive import (
    INLINE_BYTES_MAX,
    ArchivedRun,
    apart,
    blob_name,
    decode_archived,
    encode_archived,
    header_of,
    name_of,
    needed_blobs,
)
from tidemill.engine.maintenance.blob_gc import referring_texts
from tidemill.engine.maintenance.reindex import all_rows, rows_of
from tidemill.engine.maintenance.schedule import Cursor
from tidemill.engine.run_cache import RunCache
from tidemill.errors import Rejected, TidemillError, Unavailable, rejected
from tidemill.kernel.codec import DAMAGE, decode_event
from tidemill.kernel.events import RunPatched
from tidemill.kernel.model import Retention
from tidemill.kernel.state import State
from tidemill.stores.contract import Row, Store, Stream

LOG = logging.getLogger(__name__)

RESTORED = "restored"
"""Kind of the rows that date a restore: retention counts from then on."""
LOGGED = "spoken"
"""Kind of the rows of deleted runs whose log lines may remain, up to a lease token."""
LOOK_BACK_DAYS = 4_000
RETENTION_EVERY_MS = 60_000
RUNS_PER_SWEEP = 500
DAYS_AT_A_TIME = 50
"""Days processed before the sweep yields to the rest of the process."""
PAGE = 100
PLACES_MAX = 5
"""Names tried for an entry; more damaged ones in a row have a systematic cause."""
GRACE_MS = 3_600_000
"""Every ended run is kept this long: by then no process still caches it (see `run_cache`)."""


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    retired: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    """Runs that were due and stay, each with the reason."""
    failed: tuple[str, ...] = ()
    """Those that could not be archived, and need an operator."""
    more: bool = False
    """Some due days were not processed."""
    dry_run: bool = False


class KeptRun(msgspec.Struct, frozen=True):
    why: str
    failed: bool = False


class RetentionSweep:
    def __init__(
        self,
        *,
        tenant: str,
        store: Store,
        blobs: Blobs,
        catalog: Catalog,
        runs: RunCache,
        archive: Archive,
        days: float | None,
        dry_run: bool = False,
    ) -> None:
        self._tenant, self._store, self._blobs, self._catalog = tenant, store, blobs, catalog
        self._runs, self._archive, self._days, self._dry_run = runs, archive, days, dry_run
        self._terms: list[str] = []
        """Terms still to process, oldest last."""
        self._today = -1
        self._after: str | None = None
        """The cursor within the oldest term."""
        self._last_failed = ""
        """The run at which the last sweep stopped because something did not answer."""
        self.retired = 0

    async def sweep(self) -> SweepResult:
        """Archive and delete a bounded number of due runs; the next sweep continues from there."""
        today = (self._store.now_ms() - GRACE_MS) // DAY_MS
        if today != self._today:
            self._today, self._terms, self._after = today, list(self._due_terms(today)), None
        restored = {row.key: row.sort async for row in all_rows(self._store, self._tenant, RESTORED)}
        if not self._dry_run:
            # A killed sweep may have left the lines of runs that it deleted.
            for row in [row async for row in all_rows(self._store, self._tenant, LOGGED)]:
                await self._forget_lines(row.key, row.sort)
        retired: list[str] = []
        left: dict[str, KeptRun] = {}
        # Every due day is queried, because empty days are cheap and a process that is restarted often would
        # otherwise never reach the others.
        while self._terms and len(retired) + len(left) < RUNS_PER_SWEEP:
            term = self._terms[-1]
            page = await self._store.find(self._tenant, RUN, [term], after=self._after, limit=PAGE)
            for row in page.rows:
                kept = await self._archive_and_delete(Stream(self._tenant, RUN, row.key), restored.get(row.key, 0))
                if kept is not None:
                    left[row.key] = kept
                else:
                    retired.append(row.key)
            self._after = page.after
            if page.after is None:
                self._terms.pop()
                if len(self._terms) % DAYS_AT_A_TIME == 0:
                    await asyncio.sleep(0)
        return SweepResult(
            retired=tuple(retired),
            left=tuple((run_id, kept.why) for run_id, kept in left.items()),
            failed=tuple(run_id for run_id, kept in left.items() if kept.failed),
            more=bool(self._terms),
            dry_run=self._dry_run,
        )

    def _due_terms(self, today: int) -> Iterator[str]:
        """The terms of runs that are due today, newest first."""
        last = None if self._days is None else today - 1 - ceil(self._days)
        for back in range(min(LOOK_BACK_DAYS, today + 1)):
            yield f"retire:{today - back}"
            if last is not None and last - back >= 0:
                yield f"ended:{last - back}"

    async def _archive_and_delete(self, stream: Stream, restored_ms: int) -> KeptRun | None:
        """Archive and delete a run; returns the reason if it stays."""
        try:
            (tail,) = await self._store.load({stream: 0}, snapshots=False)
            if tail.damage:
                return KeptRun(f"its log is damaged: {tail.damage}", failed=True)
            if not tail.version:
                return KeptRun("it has a row but no log; see `tidemill reindex`", failed=True)
            state, rows = await rows_of(self._catalog, tail)
            why = await self._reason_to_stay(stream, state, restored_ms)
            if why or self._dry_run:
                return KeptRun(why) if why else None
            blobs = await self._put_blobs(stream.tenant, tail.records)
            header = header_of(stream.tenant, stream.key, state)
            await self._put_entry(ArchivedRun(header=header, records=tail.records, blobs=blobs))
        except (TidemillError, *DAMAGE) as error:
            lost = isinstance(error, (BlobMissing, BlobDamaged))
            if isinstance(error, Unavailable) and not lost and self._last_failed != stream.key:
                # Probably an outage: the next sweep begins here. If this run fails again, the cause is the run.
                self._last_failed = stream.key
                raise
            # A newer version retires what it has written.
            return KeptRun(str(error), failed=not is_newer(error))
        gone = [Row(kind=kind, key=key, sort=0, deleted=True) for kind, key in (*rows, (RESTORED, stream.key))]
        token = await last_token(self._store, stream.tenant, stream.key)
        if token is not None:
            gone.append(Row(kind=LOGGED, key=stream.key, sort=token))
        if not await self._store.forget(stream, expected=state.seq, rows=gone):
            return KeptRun("it has changed since")
        if token is not None:
            await self._forget_lines(stream.key, token)
        self.retired += 1
        return None

    async def _forget_lines(self, run_id: str, token: int) -> None:
        """Delete the log lines of a deleted run, and then the row that calls for that."""
        await forget_journals(self._store, self._tenant, run_id, up_to=token)
        done = Row(kind=LOGGED, key=run_id, sort=0, deleted=True)
        await self._store.forget(Stream(self._tenant, LOGGED, run_id), rows=[done])

    async def _reason_to_stay(self, stream: Stream, state: State, restored_ms: int) -> str:
        if state.busy:
            return "it has not ended"
        flow = await self._catalog.flow(stream.tenant, state.digest)
        if not is_due(state, flow.workflow.retention, self._days, self._today, restored_ms):
            return "it was restored from the archive" if restored_ms else "it is kept longer"
        if state.parent is not None:
            parent = Stream(stream.tenant, RUN, state.parent[0])
            entry = (await self._runs.refresh([parent])).get(parent)
            if self._runs.damage(parent) is not None or (entry is not None and entry.state.busy):
                return f"its parent {parent.key} has not ended"
        if await self._store.jobs(stream):
            return "it still has messages to deliver"
        return ""

    async def _put_blobs(self, tenant: str, records: Sequence[bytes]) -> dict[str, bytes | None]:
        """Archive all blobs that a run refers to, directly or by a value: small bodies, and None for large ones.

        A value, and a file that a value describes, must exist. An address anywhere else (alone, in a file, in a patch)
        may refer to nothing.
        """
        blobs: dict[str, bytes | None] = {}
        events = [decode_event(record) for record in records]
        values = set(needed_blobs(events))
        plain = [record for record, event in zip(records, events, strict=True) if not isinstance(event, RunPatched)]
        needed = {*values, *files_in(b"\n".join(plain))}
        wanted = sorted(needed | digests_in(b"\n".join(records)))
        for digest in wanted:
            if digest in blobs:
                continue
            info = await self._blobs.stat(tenant, digest)
            if info is None:
                if digest in needed:
                    raise missing(digest)
                continue
            large = False
            if info.size > INLINE_BYTES_MAX:
                # A separate object, unless the archive holds something damaged under its name.
                name, chunks = blob_name(tenant, digest), self._blobs.read(tenant, digest)
                large = await self._archive.put_stream(name, chunks) or await self._has(name, digest)
            body = None if large else await self._blobs.get(tenant, digest)
            async for piece in referring_texts(self._blobs.read(tenant, digest) if body is None else at_once(body)):
                needed.update(files_in(piece) if digest in values else ())
                wanted += sorted(digests_in(piece))
            blobs[digest] = body
        return blobs

    async def _has(self, name: str, digest: str) -> bool:
        seen, chunks = hashlib.sha256(), await self._archive.stream(name)
        if chunks is None:
            return False
        async for chunk in chunks:
            seen.update(chunk)
        return f"sha256:{seen.hexdigest()}" == digest

    async def _put_entry(self, run: ArchivedRun) -> None:
        """Store the entry under the first name that is free or reads back the same; other names are skipped."""
        size = sum(map(len, (*run.records, *filter(None, run.blobs.values()))))
        body = await apart(size, encode_archived, run.header, run.records, run.blobs)
        for again in range(PLACES_MAX):
            name = name_of(run.header, again)
            await self._archive.put(name, body)
            if await self._holds(name, run):
                return
        message = f"the archive does not return what was written to {name_of(run.header)}"
        raise rejected("archive_damaged", message, hint="check the disk or the bucket of the archive")

    async def _holds(self, name: str, run: ArchivedRun) -> bool:
        try:
            body = await self._archive.get(name) or b""
            there = await apart(len(body), decode_archived, name, body)
        except (Rejected, Unavailable) as error:
            LOG.warning("the archive entry is damaged; writing a new one beside it: %s", error)
            return False
        return there.records == run.records and there.blobs == run.blobs


def is_due(state: State, retention: Retention, default_days: float | None, today: int, restored_ms: int = 0) -> bool:
    days = default_days if retention.days is None else retention.days
    if retention.keep or days is None:
        return False
    return max(quiet_day(state), restored_ms // DAY_MS) + 1 + ceil(days) <= today


# The maintenance task


class RetentionTask:
    """Sweeps the tenants of a store, each with a sweep of its own that knows how far it came."""

    def __init__(self, sweep_of: Callable[[str], RetentionSweep]) -> None:
        self._sweep_of, self._sweeps = sweep_of, dict[str, RetentionSweep]()

    async def run(self, tenant: str, cursor: Cursor) -> Cursor:
        sweep = self._sweeps.get(tenant)
        if sweep is None:
            sweep = self._sweeps[tenant] = self._sweep_of(tenant)
        try:
            swept = await sweep.sweep()
        except Unavailable as error:
            LOG.warning("old runs could not be archived; retrying later: %s", error)
            return cursor
        if swept.retired:
            LOG.info("%s old runs were archived", len(swept.retired))
        for run_id, why in swept.left:
            if run_id in swept.failed:
                LOG.error("run %s cannot be archived and stays in the store: %s", run_id, why)
        return cursor
