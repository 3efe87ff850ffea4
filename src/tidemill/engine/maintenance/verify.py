"""Audit what a store holds: logs, snapshots, blobs, jobs and rows. Repairs nothing.

Records must be readable and obey the invariants (the simulation runs the same checker), the snapshot must fold to the
same state, referenced blobs must match their digests, and jobs and rows must agree with the log. One run is in memory
at a time, blobs are read in chunks, and damage to one run never hides another. A run that moves on meanwhile is judged
only by what must hold at any moment. A row and its log are deleted in one transaction, so a row that still exists after
its log was found to be missing is orphaned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

import msgspec

from tidemill.blobs.contract import DESCRIBED_LENGTH, BlobMissing, Blobs, files_in
from tidemill.engine.blob_references import (
    BLOB_REFERENCE,
    Named,
    marker_damaged,
    name_of,
    read_completeness,
    version_references,
)
from tidemill.engine.catalog import Catalog
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.corruption import is_newer
from tidemill.engine.index_rows import APPROVAL, DEAD_LETTER, RUN, rows_along
from tidemill.engine.maintenance.reindex import (
    agrees,
    all_rows,
    expected_references,
    expected_run_row,
    owner_of,
    row_like,
    row_pages,
    rows_beside,
    rows_of_workflow,
)
from tidemill.engine.run_cache import CachedRun
from tidemill.engine.versions import WORKFLOW, Version, read_history
from tidemill.errors import Rejected, StoreUnusable, TidemillError, Unavailable
from tidemill.kernel.codec import DAMAGE, SnapshotFormatUnknown, decode_event, decode_state, encode_state
from tidemill.kernel.events import AnyEvent, BlobRef, RunCreated, RunPatched
from tidemill.kernel.evolve import evolve
from tidemill.kernel.jobs import JOB_FORMAT, UNLISTED, expected_jobs, task_of
from tidemill.kernel.model import Workflow
from tidemill.kernel.queries import payloads_in
from tidemill.kernel.state import State
from tidemill.stores.contract import JobView, Row, Store, Stream, Tail
from tidemill.stores.optional import IndexProblems

# Blobs that events refer to

DAMAGES = frozenset({"blob_damaged", "store_damaged"})


class BlobProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with a referenced blob; the message follows the name of the event."""

    code: str
    message: str


def is_damage(error: Exception) -> bool:
    """Whether the bytes read differ from the bytes written; an outage is no damage."""
    return isinstance(error, StoreUnusable) and error.problem.code in DAMAGES


class BlobAuditor:
    """Checks the blobs that the events of one run refer to; reads each blob once."""

    def __init__(self, blobs: Blobs, tenant: str) -> None:
        self._blobs, self._tenant = blobs, tenant
        self._read: set[str] = set()

    async def faults(self, event: AnyEvent) -> list[BlobProblem]:
        """The problems of the blobs that an event is the first to refer to."""
        found: list[BlobProblem] = []
        values, files = set[str](), set[str]()
        for payload in payloads_in(event):
            if isinstance(payload, BlobRef):
                values.add(payload.digest)
            elif not isinstance(event, RunPatched):
                # A patch is not a value: it may describe files that are not stored yet.
                files.update(files_in(payload))
        for digest in sorted(values - self._read):
            within = await self._look_at(digest, "a value", found)
            files |= set() if isinstance(event, RunPatched) else within
        for digest in sorted(files - self._read):
            await self._look_at(digest, "a file", found)
        return found

    async def _look_at(self, digest: str, what: str, found: list[BlobProblem]) -> set[str]:
        """Read a blob; returns the files that its text describes."""
        self._read.add(digest)
        files, rest = set[str](), b""
        chunks = cast(AsyncGenerator[bytes, None], self._blobs.read(self._tenant, digest))
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    # A description may span two chunks.
                    text = rest + chunk
                    files.update(files_in(text))
                    rest = text[1 - DESCRIBED_LENGTH :]
            return files
        except BlobMissing as error:
            found.append(BlobProblem(code="blob_missing", message=f"refers to {what} that is missing: {error}"))
        except Unavailable as error:
            message = f"refers to {what}: {error}"
            found.append(BlobProblem(code="blob_damaged" if is_damage(error) else "blob_unreadable", message=message))
        return set()


# Audit of runs and workflows

T = TypeVar("T")
Listed = Callable[[Row], bool] | None

EVENTS_AT_A_TIME = 500
"""Events read before yielding: an audit must not block a worker."""

KEYS_SHOWN_MAX = 5
LISTS = "the lists"
"""The subject of a finding that concerns no log."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    """The run, `workflow NAME`, or `the lists`."""
    seq: int
    """The event it was found at; 0 when it concerns the whole run."""
    code: str
    """The kind of problem, or the broken invariant."""
    message: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    runs: int = 0
    workflows: int = 0
    events: int = 0
    moved: int = 0
    """Runs that moved on meanwhile, whose jobs and rows were not judged."""
    newer: int = 0
    """Runs and workflows that a newer version has written to, which this one cannot judge."""
    findings: tuple[Finding, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.findings


class RunAudit(msgspec.Struct):
    name: str
    events: int = 0
    moved: bool = False
    newer: bool = False
    """A newer version has written something of it, so this one cannot judge it."""
    findings: list[Finding] = []

    def problem(self, code: str, message: str, seq: int = 0) -> None:
        self.findings.append(Finding(run=self.name, seq=seq, code=code, message=message))


class Auditor:
    """Audits one stream at a time. `lists`: whether index rows can be read and are to be compared."""

    def __init__(self, store: Store, blobs: Blobs, catalog: Catalog, *, lists: bool = True) -> None:
        self._store, self._blobs, self._catalog, self._lists = store, blobs, catalog, lists

    async def run(self, stream: Stream, *, listed: Listed = None) -> RunAudit:
        """Audit a run. `listed` may confirm a row from memory, which saves the lookup."""
        found = RunAudit(stream.key)
        try:
            await self._run(stream, found, listed)
        except Rejected as refusal:
            # A damaged page of the store affects this run; others can still be read.
            found.problem("log_unreadable", f"the store cannot read it: {refusal}")
        return found

    async def _run(self, stream: Stream, found: RunAudit, listed: Listed) -> None:
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        events = await self._events(tail, found)
        if not events or found.findings or found.newer:
            return
        flows = await self._flows(stream, events, found)
        if flows is None:
            return
        # Imported here, because only audits need the checker.
        from tidemill.kernel.invariants.checker import LogChecker

        graphs: dict[str, Workflow] = {digest: flow.workflow for digest, flow in flows.items()}
        checker = LogChecker(next(iter(graphs.values())), graphs)
        async for _, event in _paced(events):
            checker.take(event)
        for broken in checker.finish():
            found.problem(broken.law, broken.message, broken.seq)
        try:
            state, rows = rows_along(stream, events)
        except Exception as error:
            # A log that breaks the invariants may not fold; that must not end the audit.
            found.problem("log_does_not_fold", f"the log cannot be folded: {error!r}")
            return
        flow = flows[state.digest]
        await self._snapshot(stream, events, state, found)
        blobs = BlobAuditor(self._blobs, stream.tenant)
        async for seq, event in _paced(events):
            for problem in await blobs.faults(event):
                found.problem(problem.code, f"{type(event).__name__} {problem.message}", seq)
        rows[RUN, stream.key] = expected_run_row(stream, state, flow.workflow)
        rows |= await expected_references(self._catalog, stream, events)
        doubts = RunAudit(stream.key)
        audit = compare(CachedRun(state, flow), await self._store.jobs(stream))
        # The newer version knows which jobs there should be.
        found.newer = bool(audit.newer)
        if audit.missing and state.busy and not audit.newer:
            doubts.problem("job_missing", _few(audit.missing))
        if audit.surplus and not audit.newer:
            doubts.problem("job_surplus", _few(audit.surplus))
        if self._lists:
            await self._rows(stream, rows, state, doubts, listed)
        found.moved = not await self._confirmed(stream, state.seq, doubts, found)

    async def workflow(self, stream: Stream) -> RunAudit:
        """Audit a workflow: its records are readable, and every version's content exists."""
        found = RunAudit(f"workflow {stream.key}")
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        found.events = len(tail.records)
        try:
            history = read_history(stream.key, tail)
        except Rejected as refusal:
            found.newer = is_newer(refusal)
            if not found.newer:
                found.problem("log_unreadable", refusal.problems[0].message)
            return found
        for version in history.versions:
            await self._version(stream, version, found)
        if tail.version and self._lists:
            doubts = RunAudit(found.name)
            await self._rows(stream, rows_of_workflow(stream, history), None, doubts)
            await self._confirmed(stream, tail.version, doubts, found)
        return found

    async def other(self, stream: Stream, rows_called_for: Callable[[Tail], Sequence[Row]]) -> RunAudit:
        """Audit a stream of another kind: its records are readable, and its rows agree with them."""
        found = RunAudit(f"{stream.kind} {stream.key}")
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        found.events = len(tail.records)
        try:
            rows = rows_called_for(tail)
        except Rejected as refusal:
            found.newer = is_newer(refusal)
            if not found.newer:
                found.problem("log_unreadable", refusal.problems[0].message)
            return found
        if tail.version and self._lists:
            doubts = RunAudit(found.name)
            await self._rows(stream, {(row.kind, row.key): row for row in rows}, None, doubts)
            await self._confirmed(stream, tail.version, doubts, found)
        return found

    async def _version(self, stream: Stream, version: Version, found: RunAudit) -> None:
        """The catalog checks a compiled form against the digest that it is stored under."""
        try:
            await self._catalog.flow(stream.tenant, version.digest)
            for digest in version_references(version)[1:]:
                await self._blobs.get(stream.tenant, digest)
        except (TidemillError, *DAMAGE) as error:
            _workflow_unreadable(found, error, f"version {version.version}: {error}")

    async def _events(self, tail: Tail, found: RunAudit) -> list[AnyEvent]:
        found.events = tail.version
        if tail.damage:
            found.problem("log_unreadable", tail.damage)
            return []
        events: list[AnyEvent] = []
        async for seq, record in _paced(tail.records):
            try:
                events.append(decode_event(record))
            except Rejected as refusal:
                found.newer = is_newer(refusal)
                if not found.newer:
                    found.problem("log_unreadable", refusal.problems[0].message, seq)
                break
        return events

    async def _flows(
        self, stream: Stream, events: list[AnyEvent], found: RunAudit
    ) -> dict[str, CompiledWorkflow] | None:
        """The workflow that the run was started with, and those it was patched to, by digest."""
        if not isinstance(events[0], RunCreated):
            found.problem("log_headless", "the log does not begin with RunCreated", 1)
            return None
        flows: dict[str, CompiledWorkflow] = {}
        for seq, event in enumerate(events, 1):
            if isinstance(event, (RunCreated, RunPatched)) and event.digest not in flows:
                try:
                    flows[event.digest] = await self._catalog.flow(stream.tenant, event.digest)
                except BlobMissing as error:
                    found.problem("workflow_missing", f"its workflow is missing: {error}", seq)
                except (TidemillError, *DAMAGE) as error:
                    _workflow_unreadable(found, error, f"its workflow cannot be read: {error}", seq)
        return None if found.findings or found.newer else flows

    async def _snapshot(self, stream: Stream, events: list[AnyEvent], state: State, found: RunAudit) -> None:
        (short,) = await self._store.load({stream: 0})
        if short.snapshot is None or short.after > len(events):
            return
        try:
            folded = decode_state(short.snapshot)
            for event in events[short.after :]:
                evolve(folded, event)
            same = encode_state(folded) == encode_state(state)
        except SnapshotFormatUnknown:
            return
        except Exception as error:
            found.problem("snapshot_unreadable", f"the snapshot cannot be read: {error!r}", short.after)
            return
        if not same:
            found.problem("snapshot_differs", "folding the snapshot differs from folding the log", short.after)

    async def _rows(
        self, stream: Stream, rows: dict[Named, Row], state: State | None, doubts: RunAudit, listed: Listed = None
    ) -> None:
        """Compare the rows that a log calls for with the existing ones; damage to lists is no damage to the log."""
        try:
            beside = await rows_beside(self._store, stream)
            absent = {name for name in rows.keys() - beside.keys() if name[0] == BLOB_REFERENCE}
            if absent and await read_completeness(self._store, stream.tenant) is None:
                # Written by an earlier version, and not reindexed since: collection refuses that store.
                rows = {name: row for name, row in rows.items() if name not in absent}
            for name, row in rows.items():
                own = row.kind == stream.kind
                if own and listed is not None and listed(row):
                    continue
                there = await row_like(self._store, stream.tenant, row) if own else beside.get(name)
                if not agrees(there, row, state):
                    what = f"{row.kind} {row.key} in the lists"
                    doubts.problem("row_missing" if there is None else "row_differs", what)
            for kind, key in beside.keys() - rows.keys():
                doubts.problem("row_surplus", f"{kind} {key} in the lists is not in the log")
        except Rejected as refusal:
            doubts.problem("lists_unreadable", f"lists that show it: {refusal}")

    async def _confirmed(self, stream: Stream, version: int, doubts: RunAudit, found: RunAudit) -> bool:
        """Adopt doubts about jobs and rows if the log has not moved on since; returns whether it has not."""
        if doubts.findings:
            (again,) = await self._store.load({stream: version}, snapshots=False)
            if again.version != version:
                return False
        found.findings += doubts.findings
        return True


async def _paced(items: Sequence[T]) -> AsyncIterator[tuple[int, T]]:
    """Items and their numbers, from 1; yields to other tasks now and then."""
    for number, item in enumerate(items, 1):
        if not number % EVENTS_AT_A_TIME:
            await asyncio.sleep(0)
        yield number, item


def index_findings(flaws: IndexProblems) -> RunAudit:
    """Misplaced index rows, as a finding that concerns no log."""
    found = RunAudit(LISTS)
    if flaws.unreadable:
        found.problem("lists_unreadable", f"the index of the lists is damaged: {flaws.unreadable}")
    if flaws.missing:
        found.problem("places_missing", f"rows missing from some of their lists: {flaws.missing:,}")
    if flaws.stray:
        found.problem("places_stray", f"list entries without a row: {flaws.stray:,}")
    return found


def _workflow_unreadable(found: RunAudit, error: Exception, message: str, seq: int = 0) -> None:
    """Record why a workflow cannot be read; what a newer version has compiled is not a finding."""
    if is_newer(error):
        found.newer = True
        return
    found.problem("workflow_damaged" if is_damage(error) else "workflow_unreadable", message, seq)


def _few(keys: tuple[str, ...]) -> str:
    return ", ".join(keys[:KEYS_SHOWN_MAX]) + (" …" if len(keys) > KEYS_SHOWN_MAX else "")


# Rows without a log

LOG_MISSING = "log_missing"
KINDS = (WORKFLOW, RUN, APPROVAL, DEAD_LETTER, BLOB_REFERENCE)
END = 2**53
"""Behind the last record of any stream: loads only its version."""


async def orphan_rows(store: Store, tenant: str, others: Iterable[str] = ()) -> AsyncIterator[tuple[Stream, Row]]:
    """Every row of a tenant whose log does not exist, with the stream that it should be in."""
    for kind in (*KINDS, *others):
        gone = set[Stream]()
        async for rows in row_pages(store, tenant, kind):
            owners = {owner_of(tenant, kind, row.key): END for row in rows}
            tails = await store.load(owners, snapshots=False) if owners else []
            gone.update(tail.stream for tail in tails if not tail.version and not tail.damage)
        if not gone:
            continue
        async for row in all_rows(store, tenant, kind):
            owner = owner_of(tenant, kind, row.key)
            if owner in gone:
                yield owner, row


async def missing_logs(store: Store, tenant: str, others: Iterable[str] = ()) -> AsyncIterator[RunAudit]:
    if await marker_damaged(store, tenant):
        found = RunAudit(LISTS)
        found.problem("lists_unreadable", "the record that all needed blobs are listed is damaged")
        yield found
    async for owner, row in orphan_rows(store, tenant, others):
        found = RunAudit(name_of(owner))
        if row.kind == owner.kind:
            found.problem(LOG_MISSING, "the lists show it, but it has no record")
        else:
            found.problem("row_surplus", f"{row.kind} {row.key} in the lists has no log")
        yield found


# Jobs


class JobComparison(msgspec.Struct, frozen=True, kw_only=True):
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()
    """Jobs that a newer version has written. It knows what they stand for, and so which jobs are missing."""
    moved: bool = False
    """The run changed during the comparison, so it says nothing."""


def compare(entry: CachedRun, jobs: list[JobView]) -> JobComparison:
    """Compare the jobs a state calls for with the existing ones; jobs of a newer version are listed apart."""
    expected = {put.key for put in expected_jobs(entry.flow.workflow, entry.state)}
    present = {view.job.key for view in jobs}
    missing = expected - present
    tasks = {view.job.key: task_of(view.job.body) for view in jobs}
    newer = {key for key, task in tasks.items() if task.v > JOB_FORMAT}
    surplus = {key for key, task in tasks.items() if key not in expected and task.kind not in UNLISTED} - newer
    if entry.state.status == "PAUSED":
        # In a paused run, a running attempt keeps its job and a due back-off was requeued.
        leased = {view.job.key for view in jobs if view.lease_expires_at_ms is not None}
        surplus -= leased
        missing = {key for key in missing if not key.startswith("run/")}
    return JobComparison(missing=tuple(sorted(missing)), surplus=tuple(sorted(surplus)), newer=tuple(sorted(newer)))
