"""Verify logs, snapshots, blobs, rows, jobs; orphaned rows; job comparison.

The audit of logs: everything that must be true of what a store holds, asked of one run after the other.

A run's records must be readable and obey the laws (the checker is the one that the simulation runs after every
commit), its snapshot must fold to what the log folds to, blobs that events refer to must be there, and jobs and rows
must say what the log says. Nothing is repaired here. One run is in memory at a time, and damage to it never hides
another. A run that moves on meanwhile is only judged by what cannot be wrong at any moment.

What events point to: large values, and the files that are described in values of any size.

Each is read to its end and compared with its digest, a piece at a time, so that a file of any size may be audited. A
large value is looked through for descriptions on the way. What a file holds is its own affair.

Rows without a log: what lists show of runs and workflows that there is no record of.

The audit reads every log, and so never meets a run whose log is gone altogether. Here it goes the other way, from the
rows to the logs, a page at a time. A row leaves a list in the same transaction as its log leaves the store, so one that
is still there after its log was found to be gone has lost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast

import msgspec

from tidemill.blobs.contract import BlobMissing, Blobs
from tidemill.engine.attempts.results import DESCRIBED_LENGTH, files_in
from tidemill.engine.catalog import Catalog
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.index_rows import APPROVAL, DEAD_LETTER, RUN, rows_along
from tidemill.engine.maintenance.reindex import (
    Named,
    agrees,
    all_rows,
    expected_run_row,
    owner_of,
    row_like,
    row_pages,
    rows_beside_run,
)
from tidemill.engine.run_cache import CachedRun
from tidemill.engine.versions import WORKFLOW, Version, read_history
from tidemill.errors import Rejected, StoreUnusable, TidemillError, Unavailable
from tidemill.kernel.codec import DAMAGE, decode_event
from tidemill.kernel.events import AnyEvent, BlobRef, Payload, RunCreated, RunPatched
from tidemill.kernel.evolve import evolve
from tidemill.kernel.jobs import JOB_FORMAT, UNLISTED, expected_jobs, task_of
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import SnapshotFormatUnknown, State, decode_state, encode_state
from tidemill.stores.contract import JobView, Row, Store, Stream, Tail
from tidemill.stores.optional import IndexProblems

DAMAGES = frozenset({"blob_damaged", "store_damaged"})


class BlobProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with something that an event points to, in words that follow the name of the event."""

    code: str
    message: str


def payloads_in(value: Any) -> Iterator[Payload]:
    """Every value in an event, as its text or as the reference to one that is stored apart."""
    if isinstance(value, (bytes, BlobRef)):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from payloads_in(getattr(value, name))
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from payloads_in(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from payloads_in(inner)


def is_damage(error: Exception) -> bool:
    """Whether other bytes were read than were written; an outage, which says nothing about them, is none."""
    return isinstance(error, StoreUnusable) and error.problem.code in DAMAGES


class BlobAuditor:
    """What the events of one run point to; each blob is read once, however often it is pointed to."""

    def __init__(self, blobs: Blobs, tenant: str) -> None:
        self._blobs, self._tenant = blobs, tenant
        self._read: set[str] = set()

    async def faults(self, event: AnyEvent) -> list[BlobProblem]:
        """What an event points to for the first time and is not as it must be."""
        found: list[BlobProblem] = []
        values, files = set[str](), set[str]()
        for payload in payloads_in(event):
            if isinstance(payload, BlobRef):
                values.add(payload.digest)
            elif not isinstance(event, RunPatched):
                # A patch is no value: it may speak of files that nobody has brought yet.
                files.update(files_in(payload))
        for digest in sorted(values - self._read):
            within = await self._look_at(digest, "a value", found)
            files |= set() if isinstance(event, RunPatched) else within
        for digest in sorted(files - self._read):
            await self._look_at(digest, "a file", found)
        return found

    async def _look_at(self, digest: str, what: str, found: list[BlobProblem]) -> set[str]:
        """Read a blob; answers the files that its text describes."""
        self._read.add(digest)
        try:
            return await self._files_within(digest)
        except BlobMissing as error:
            found.append(BlobProblem(code="blob_missing", message=f"refers to {what} that is not there: {error}"))
        except Unavailable as error:
            message = f"refers to {what}: {error}"
            found.append(BlobProblem(code="blob_damaged" if is_damage(error) else "blob_unreadable", message=message))
        return set()

    async def _files_within(self, digest: str) -> set[str]:
        files, rest = set[str](), b""
        chunks = cast(AsyncGenerator[bytes, None], self._blobs.read(self._tenant, digest))
        async with aclosing(chunks):
            async for chunk in chunks:
                # A description may begin in one piece and end in the next.
                text = rest + chunk
                files.update(files_in(text))
                rest = text[1 - DESCRIBED_LENGTH :]
        return files


T = TypeVar("T")

EVENTS_AT_A_TIME = 500
"""Events that are read before others may run: an audit must not hold up a worker."""

KEYS_SHOWN_MAX = 5
LISTS = "the lists"
"""What a finding is about that is about no log."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it must be."""

    run: str
    """The run, `workflow NAME` for one, or `the lists` for what is about none in particular."""
    seq: int
    """The event it was found at; 0 when it is about the run as a whole."""
    code: str
    """What kind of thing it is, or the law that is broken."""
    message: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit came to."""

    runs: int = 0
    workflows: int = 0
    events: int = 0
    moved: int = 0
    """Runs that went on meanwhile, so that nothing was said about their jobs and rows."""
    findings: tuple[Finding, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class RunAudit(msgspec.Struct):
    """The findings of one stream, as they are made."""

    name: str
    events: int = 0
    moved: bool = False
    findings: list[Finding] = []

    def problem(self, code: str, message: str, seq: int = 0) -> None:
        """Write something down."""
        self.findings.append(Finding(run=self.name, seq=seq, code=code, message=message))


class Auditor:
    """Reads one stream at a time. `lists`: whether lists can be read at all, and are to be compared."""

    def __init__(self, store: Store, blobs: Blobs, catalog: Catalog, *, lists: bool = True) -> None:
        self._store, self._blobs, self._catalog, self._lists = store, blobs, catalog, lists

    async def run(self, stream: Stream, *, listed: Callable[[Row], bool] | None = None) -> RunAudit:
        """Audit a run. `listed` may know already that a row is there, which spares looking for it."""
        found = RunAudit(stream.key)
        try:
            await self._run(stream, found, listed)
        except Rejected as refusal:
            # A damaged page of the store: what it holds of this run cannot be read, and others can.
            found.problem("log_unreadable", f"the store cannot read it: {refusal}")
        return found

    async def _run(self, stream: Stream, found: RunAudit, listed: Callable[[Row], bool] | None) -> None:
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        events = await self._events(tail, found)
        if not events or found.findings:
            return
        flows = await self._flows(stream, events, found)
        if flows is None:
            return
        await self._laws(events, flows, found)
        try:
            state, rows = rows_along(stream, events)
        except Exception as error:
            # A log that breaks the laws may well be one that cannot be folded; that must not end the audit.
            found.problem("log_does_not_fold", f"the log cannot be folded: {error!r}")
            return
        flow = flows[state.digest]
        await self._snapshot(stream, events, state, found)
        await self._blobs_there(stream, events, found)
        rows[RUN, stream.key] = expected_run_row(stream, state, flow.workflow)
        doubts = RunAudit(stream.key)
        audit = compare(CachedRun(state, flow), await self._store.jobs(stream))
        if audit.missing and state.busy:
            doubts.problem("job_missing", _few(audit.missing))
        if audit.surplus:
            doubts.problem("job_surplus", _few(audit.surplus))
        if self._lists:
            await self._rows(stream, rows, state, doubts, listed)
        found.moved = not await self._confirmed(stream, state.seq, doubts, found)

    async def workflow(self, stream: Stream) -> RunAudit:
        """Audit a workflow: its records are readable, and every version's content is there."""
        found = RunAudit(f"workflow {stream.key}")
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        found.events = len(tail.records)
        try:
            history = read_history(stream.key, tail)
        except Rejected as refusal:
            found.problem("log_unreadable", refusal.problems[0].message)
            return found
        for version in history.versions:
            await self._version(stream, version, found)
        if tail.version and self._lists:
            row, doubts = history.row(), RunAudit(found.name)
            await self._rows(stream, {(row.kind, row.key): row}, None, doubts)
            await self._confirmed(stream, tail.version, doubts, found)
        return found

    async def _version(self, stream: Stream, version: Version, found: RunAudit) -> None:
        """The catalog reads a compiled form only if it has the digest that it is stored under."""
        try:
            await self._catalog.flow(stream.tenant, version.digest)
            await self._blobs.get(stream.tenant, version.document)
            if version.patch is not None:
                await self._blobs.get(stream.tenant, version.patch)
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
                    found.problem("workflow_missing", f"the workflow that it goes by is not there: {error}", seq)
                except (TidemillError, *DAMAGE) as error:
                    _workflow_unreadable(found, error, f"the workflow that it goes by cannot be read: {error}", seq)
        return None if found.findings else flows

    async def _laws(self, events: list[AnyEvent], flows: dict[str, CompiledWorkflow], found: RunAudit) -> None:
        # A law book of its own, which nobody reads who only asks or works.
        from tidemill.kernel.invariants.checker import LogChecker

        graphs: dict[str, Workflow] = {digest: flow.workflow for digest, flow in flows.items()}
        checker = LogChecker(next(iter(graphs.values())), graphs)
        async for _, event in _paced(events):
            checker.take(event)
        for broken in checker.finish():
            found.problem(broken.law, broken.message, broken.seq)

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

    async def _blobs_there(self, stream: Stream, events: list[AnyEvent], found: RunAudit) -> None:
        evidence = BlobAuditor(self._blobs, stream.tenant)
        async for seq, event in _paced(events):
            for fault in await evidence.faults(event):
                found.problem(fault.code, f"{type(event).__name__} {fault.message}", seq)

    async def _rows(
        self,
        stream: Stream,
        rows: dict[Named, Row],
        state: State | None,
        doubts: RunAudit,
        listed: Callable[[Row], bool] | None = None,
    ) -> None:
        """Compare the rows that a log calls for with those in the lists; damage to the lists is none to the log."""
        try:
            beside = await rows_beside_run(self._store, stream) if stream.kind == RUN else {}
            for name, row in rows.items():
                own = row.kind == stream.kind
                if own and listed is not None and listed(row):
                    continue
                there = await row_like(self._store, stream.tenant, row) if own else beside.get(name)
                if not agrees(there, row, state):
                    what = f"{row.kind} {row.key} in the lists"
                    doubts.problem("row_missing" if there is None else "row_differs", what)
            for kind, key in beside.keys() - rows.keys():
                doubts.problem("row_surplus", f"{kind} {key} in the lists has no ground in the log")
        except Rejected as refusal:
            doubts.problem("lists_unreadable", f"lists that show it: {refusal}")

    async def _confirmed(self, stream: Stream, version: int, doubts: RunAudit, found: RunAudit) -> bool:
        """Take over doubts about jobs and rows, unless the log has moved on since; whether it has not."""
        if doubts.findings:
            (again,) = await self._store.load({stream: version}, snapshots=False)
            if again.version != version:
                return False
        found.findings += doubts.findings
        return True


async def _paced(items: Sequence[T]) -> AsyncIterator[tuple[int, T]]:
    """Items and their numbers, from 1; others run now and then."""
    for number, item in enumerate(items, 1):
        if not number % EVENTS_AT_A_TIME:
            await asyncio.sleep(0)
        yield number, item


def index_findings(flaws: IndexProblems) -> RunAudit:
    """What is wrong with the places of rows, as a finding about no log."""
    found = RunAudit(LISTS)
    if flaws.unreadable:
        found.problem("lists_unreadable", f"what lists are read from is damaged: {flaws.unreadable}")
    if flaws.missing:
        found.problem("places_missing", f"rows that are not in every list they belong to: {flaws.missing:,}")
    if flaws.stray:
        found.problem("places_stray", f"places without their row: {flaws.stray:,}")
    return found


def _workflow_unreadable(found: RunAudit, error: Exception, message: str, seq: int = 0) -> None:
    """Write down why a workflow cannot be read; one whose bytes fit their digest may be of a newer version."""
    found.problem("workflow_damaged" if is_damage(error) else "workflow_unreadable", message, seq)


def _few(keys: tuple[str, ...]) -> str:
    return ", ".join(keys[:KEYS_SHOWN_MAX]) + (" …" if len(keys) > KEYS_SHOWN_MAX else "")


def blobs_in(value: Any) -> Iterator[BlobRef]:
    """Every reference to a blob in an event."""
    return (payload for payload in payloads_in(value) if isinstance(payload, BlobRef))


LOG_MISSING = "log_missing"
KINDS = (WORKFLOW, RUN, APPROVAL, DEAD_LETTER)
END = 2**53
"""Behind the last record of any stream: only its version is asked for."""


async def orphan_rows(store: Store, tenant: str) -> AsyncIterator[tuple[Stream, Row]]:
    """Every row of a tenant whose log is not there, with the stream that it should be in."""
    for kind in KINDS:
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


async def missing_logs(store: Store, tenant: str) -> AsyncIterator[RunAudit]:
    """What the audit has to say of them."""
    async for owner, row in orphan_rows(store, tenant):
        found = RunAudit(f"workflow {owner.key}" if owner.kind == WORKFLOW else owner.key)
        if row.kind == owner.kind:
            found.problem(LOG_MISSING, "the lists show it, and there is no record of it")
        else:
            found.problem("row_surplus", f"{row.kind} {row.key} in the lists has no ground: there is no log")
        yield found


class JobComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a run found."""

    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    moved: bool = False
    """The run changed while it was looked at, so nothing can be said."""


def compare(entry: CachedRun, jobs: list[JobView]) -> JobComparison:
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
    return JobComparison(missing=tuple(sorted(missing)), surplus=tuple(sorted(surplus)))
