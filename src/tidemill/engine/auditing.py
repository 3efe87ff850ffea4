"""The audit of logs: everything that must be true of what a store holds, asked of one run after the other.

A run's records must be readable and obey the laws (the checker is the one that the simulation runs after every
commit), its snapshot must fold to what the log folds to, blobs that events refer to must be there, and jobs and rows
must say what the log says. Nothing is repaired here. One run is in memory at a time, and damage to it never hides
another. A run that moves on meanwhile is only judged by what cannot be wrong at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from tidemill.blobs.contract import BlobMissing, Blobs
from tidemill.engine.catalog import Catalog
from tidemill.engine.evidence import Evidence, is_damage, payloads_in
from tidemill.engine.indexing import Named, agrees, expected_run_row, row_like, rows_beside_run
from tidemill.engine.keeper import compare
from tidemill.engine.programs import Flow
from tidemill.engine.rows import RUN, rows_along
from tidemill.engine.runs import Entry
from tidemill.engine.versions import Version, read_history
from tidemill.errors import Rejected, TidemillError
from tidemill.kernel.codec import DAMAGE, decode_event
from tidemill.kernel.events import AnyEvent, BlobRef, RunCreated, RunPatched
from tidemill.kernel.evolve import evolve
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import SnapshotFormatUnknown, State, decode_state, encode_state
from tidemill.stores.contract import Row, Store, Stream, Tail
from tidemill.stores.mending import Flaws

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


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
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


class Found(msgspec.Struct):
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

    async def run(self, stream: Stream, *, listed: Callable[[Row], bool] | None = None) -> Found:
        """Audit a run. `listed` may know already that a row is there, which spares looking for it."""
        found = Found(stream.key)
        try:
            await self._run(stream, found, listed)
        except Rejected as refusal:
            # A damaged page of the store: what it holds of this run cannot be read, and others can.
            found.problem("log_unreadable", f"the store cannot read it: {refusal}")
        return found

    async def _run(self, stream: Stream, found: Found, listed: Callable[[Row], bool] | None) -> None:
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
        doubts = Found(stream.key)
        audit = compare(Entry(state, flow), await self._store.jobs(stream))
        if audit.missing and state.busy:
            doubts.problem("job_missing", _few(audit.missing))
        if audit.surplus:
            doubts.problem("job_surplus", _few(audit.surplus))
        if self._lists:
            await self._rows(stream, rows, state, doubts, listed)
        found.moved = not await self._confirmed(stream, state.seq, doubts, found)

    async def workflow(self, stream: Stream) -> Found:
        """Audit a workflow: its records are readable, and every version's content is there."""
        found = Found(f"workflow {stream.key}")
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
            row, doubts = history.row(), Found(found.name)
            await self._rows(stream, {(row.kind, row.key): row}, None, doubts)
            await self._confirmed(stream, tail.version, doubts, found)
        return found

    async def _version(self, stream: Stream, version: Version, found: Found) -> None:
        """The catalog reads a compiled form only if it has the digest that it is stored under."""
        try:
            await self._catalog.flow(stream.tenant, version.digest)
            await self._blobs.get(stream.tenant, version.document)
            if version.patch is not None:
                await self._blobs.get(stream.tenant, version.patch)
        except (TidemillError, *DAMAGE) as error:
            _workflow_unreadable(found, error, f"version {version.version}: {error}")

    async def _events(self, tail: Tail, found: Found) -> list[AnyEvent]:
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

    async def _flows(self, stream: Stream, events: list[AnyEvent], found: Found) -> dict[str, Flow] | None:
        """The workflow that the run was started with, and those it was patched to, by digest."""
        if not isinstance(events[0], RunCreated):
            found.problem("log_headless", "the log does not begin with RunCreated", 1)
            return None
        flows: dict[str, Flow] = {}
        for seq, event in enumerate(events, 1):
            if isinstance(event, (RunCreated, RunPatched)) and event.digest not in flows:
                try:
                    flows[event.digest] = await self._catalog.flow(stream.tenant, event.digest)
                except BlobMissing as error:
                    found.problem("workflow_missing", f"the workflow that it goes by is not there: {error}", seq)
                except (TidemillError, *DAMAGE) as error:
                    _workflow_unreadable(found, error, f"the workflow that it goes by cannot be read: {error}", seq)
        return None if found.findings else flows

    async def _laws(self, events: list[AnyEvent], flows: dict[str, Flow], found: Found) -> None:
        # A law book of its own, which nobody reads who only asks or works.
        from tidemill.kernel.laws import LogChecker

        graphs: dict[str, Workflow] = {digest: flow.workflow for digest, flow in flows.items()}
        checker = LogChecker(next(iter(graphs.values())), graphs)
        async for _, event in _paced(events):
            checker.take(event)
        for broken in checker.finish():
            found.problem(broken.law, broken.message, broken.seq)

    async def _snapshot(self, stream: Stream, events: list[AnyEvent], state: State, found: Found) -> None:
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

    async def _blobs_there(self, stream: Stream, events: list[AnyEvent], found: Found) -> None:
        evidence = Evidence(self._blobs, stream.tenant)
        async for seq, event in _paced(events):
            for fault in await evidence.faults(event):
                found.problem(fault.code, f"{type(event).__name__} {fault.message}", seq)

    async def _rows(
        self,
        stream: Stream,
        rows: dict[Named, Row],
        state: State | None,
        doubts: Found,
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

    async def _confirmed(self, stream: Stream, version: int, doubts: Found, found: Found) -> bool:
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


def of_lists(flaws: Flaws) -> Found:
    """What is wrong with the places of rows, as a finding about no log."""
    found = Found(LISTS)
    if flaws.unreadable:
        found.problem("lists_unreadable", f"what lists are read from is damaged: {flaws.unreadable}")
    if flaws.missing:
        found.problem("places_missing", f"rows that are not in every list they belong to: {flaws.missing:,}")
    if flaws.stray:
        found.problem("places_stray", f"places without their row: {flaws.stray:,}")
    return found


def _workflow_unreadable(found: Found, error: Exception, message: str, seq: int = 0) -> None:
    """Write down why a workflow cannot be read; one whose bytes fit their digest may be of a newer version."""
    found.problem("workflow_damaged" if is_damage(error) else "workflow_unreadable", message, seq)


def _few(keys: tuple[str, ...]) -> str:
    return ", ".join(keys[:KEYS_SHOWN_MAX]) + (" …" if len(keys) > KEYS_SHOWN_MAX else "")


def blobs_in(value: Any) -> Iterator[BlobRef]:
    """Every reference to a blob in an event."""
    return (payload for payload in payloads_in(value) if isinstance(payload, BlobRef))
