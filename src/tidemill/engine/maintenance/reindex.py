"""Derive index rows from logs, and repair the stored ones.

Rows are derived data; the log is the truth. `rows_of` alone says which rows a run's log calls for; `Indexer` writes
missing and differing rows and removes those that no log supports. It works beside running workers: a row is written
against the version it was derived from, and derived again if the run has moved on, so a run is never unlisted and never
shown older than it was. At its end it marks the blob references as complete, except for runs of versions that wrote
none, as far as those cannot be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.engine.blob_references import (
    BLOB_REFERENCE,
    Completeness,
    Named,
    name_of,
    parts_of,
    read_completeness,
    reference_rows,
    references_in,
    version_references,
    write_completeness,
)
from tidemill.engine.catalog import Catalog
from tidemill.engine.index_rows import (
    APPROVAL,
    AT_END,
    DEAD_LETTER,
    RUN,
    SPENDING,
    is_newer_row,
    read_approval_row,
    read_dead_letter_row,
    read_run_row,
    rows_along,
    run_row,
    run_terms,
    waiting_terms,
)
from tidemill.engine.run_cache import NODES_LOOKED_AT_MAX
from tidemill.engine.versions import WORKFLOW, History, Record, decode_record, read_history, read_workflow_row
from tidemill.engine.views import waiting_for
from tidemill.errors import TidemillError
from tidemill.kernel.codec import DAMAGE, decode_event
from tidemill.kernel.events import AnyEvent, RunCreated
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State
from tidemill.stores.contract import Commit, Committed, Row, Store, Stream, Tail, cursor_at
from tidemill.stores.optional import flaws_of, repair

PAGE = 500
RACES_MAX = 50
"""How often the rows of a moving run are derived again; the run's own commits write its row."""

_READERS: dict[str, Callable[[Row], Any]] = {
    APPROVAL: read_approval_row,
    DEAD_LETTER: read_dead_letter_row,
    WORKFLOW: read_workflow_row,
}


class Reindexed(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and repaired unless it was a dry run."""

    streams: int = 0
    rows: int = 0
    """Rows that the logs call for."""
    missing: int = 0
    different: int = 0
    surplus: int = 0
    misplaced: int = 0
    """Rows missing from a list they belong to, and list entries without their row."""
    anew: bool = False
    """Lists could not be read, so their index was rebuilt, or would be."""
    unreadable: tuple[str, ...] = ()
    """Runs and workflows whose log cannot be read; their rows are left as they are."""
    references_unknown: tuple[str, ...] = ()
    """Those of them that may need blobs that no row names: `blobs gc` refuses until they are repaired or excluded."""
    dry_run: bool = False


Progress = Callable[[int], None]
"""Called with the number of streams processed so far."""


async def rows_of(catalog: Catalog, tail: Tail) -> tuple[State, dict[Named, Row]]:
    """Every row that a run's whole log calls for, and its state; no rows without a log."""
    events = [decode_event(record) for record in tail.records]
    state, rows = rows_along(tail.stream, events)
    if state.seq:
        flow = await catalog.flow(tail.stream.tenant, state.digest)
        rows[RUN, tail.stream.key] = expected_run_row(tail.stream, state, flow.workflow)
        rows |= await expected_references(catalog, tail.stream, events)
    return state, rows


async def expected_references(catalog: Catalog, stream: Stream, events: Sequence[AnyEvent]) -> dict[Named, Row]:
    """The rows of blob references that a run's log calls for."""
    digests = [digest for event in events for digest in references_in(event)]
    for first in events[:1]:
        if isinstance(first, RunCreated):
            content = first.workflow, first.version, first.digest
            digests += [] if await catalog.publishes(stream.tenant, *content) else [first.digest]
    return _named(reference_rows(stream, digests))


def rows_of_workflow(stream: Stream, history: History) -> dict[Named, Row]:
    """Every row that the records of a workflow call for."""
    digests = [digest for version in history.versions for digest in version_references(version)]
    own = (history.row(),) if history.published else ()
    return _named((*own, *reference_rows(stream, digests)))


def _named(rows: Sequence[Row]) -> dict[Named, Row]:
    return {(row.kind, row.key): row for row in rows}


def expected_run_row(stream: Stream, state: State, workflow: Workflow) -> Row:
    """A run's row as the commit that led to this state writes it."""
    quiet = state.live and not state.in_flight and len(workflow.nodes) <= NODES_LOOKED_AT_MAX
    waits = waiting_for(workflow, state) if quiet else ()
    terms = (*run_terms(state, retention=workflow.retention), *waiting_terms(waits))
    return run_row(stream, state, terms, waiting_for=waits)


def _lasting(terms: Sequence[str]) -> set[str]:
    """The terms without what older rows lack: what a run waits for, which the reconciler adds too, and its failure."""
    return {term for term in terms if not term.startswith(("waiting:", "failure:"))}


def agrees(present: Row | None, expected: Row, state: State | None = None, *, whole: bool = False) -> bool:
    """Whether a row matches the log; `whole`: also in what rows of earlier versions lack."""
    # What the reconciler adds to a run's row is not compared, and with work in flight the row may lag behind.
    if present is None or present.sort != expected.sort:
        return False
    if present.body == expected.body and set(present.terms) == set(expected.terms):
        return True
    read = _READERS.get(expected.kind)
    try:
        if is_newer_row(present):
            # The newer version keeps it up to date; nothing of it may be lost.
            return True
        if read is not None:
            return read(present) == read(expected) and set(present.terms) == set(expected.terms)
        return expected.kind == RUN and state is not None and _agrees(present, expected, state, whole)
    except DAMAGE:
        return False


def _agrees(present: Row, expected: Row, state: State, whole: bool) -> bool:
    shown, meant = read_run_row(present), read_run_row(expected)
    assert shown is not None and meant is not None, "a row of a newer version is not compared"
    added = {"stuck": shown.stuck, "idle": shown.idle, "suspect": bool(shown.suspect)}
    terms = {*_lasting(expected.terms), *(name for name, there in added.items() if there)}
    if whole and _failure(present.terms) != _failure(expected.terms):
        return False
    lags = state.in_flight > 0 and shown.events <= meant.events
    mine: dict[str, Any] = {"stuck": False, "idle": False, "suspect": "", "stuck_reason": "", "waiting_for": ()}
    if lags:
        names = ("last_event_ms", "counter", "events", "started_ms", "tolerated", "dead_letters", "late_results")
        mine |= {name: getattr(meant, name) for name in names}
    for later in (AT_END, SPENDING):
        if not whole and not any(getattr(shown, name) for name in later):
            mine |= {name: getattr(meant, name) for name in later}
    same = msgspec.structs.replace(shown, **mine) == msgspec.structs.replace(meant, **mine)
    return same and _lasting(present.terms) == terms


def _failure(terms: Sequence[str]) -> list[str]:
    return [term for term in terms if term.startswith("failure:")]


async def all_streams(store: Store, kind: str) -> AsyncIterator[Stream]:
    after: Stream | None = None
    while page := await store.streams(kind, after=after, limit=PAGE):
        for stream in page:
            yield stream
        after = page[-1]


async def row_pages(store: Store, tenant: str, kind: str, terms: Sequence[str] = ()) -> AsyncIterator[tuple[Row, ...]]:
    """Every row of a kind that has all terms, a page at a time."""
    after: str | None = None
    while True:
        page = await store.find(tenant, kind, terms, after=after, limit=PAGE)
        yield page.rows
        after = page.after
        if after is None:
            return


async def all_rows(store: Store, tenant: str, kind: str, terms: Sequence[str] = ()) -> AsyncIterator[Row]:
    async for rows in row_pages(store, tenant, kind, terms):
        for row in rows:
            yield row


async def row_like(store: Store, tenant: str, expected: Row) -> Row | None:
    """The row with the place and the terms of another, if there is one: the first one below `key + 1`."""
    above = cursor_at((expected.sort, f"{expected.key}\1"))
    page = await store.find(tenant, expected.kind, sorted(_lasting(expected.terms)), after=above, limit=1)
    return next((row for row in page.rows if row.key == expected.key), None)


async def rows_beside(store: Store, stream: Stream) -> dict[Named, Row]:
    """The rows of a run or workflow other than its own."""
    found: dict[Named, Row] = {}
    for kind in (APPROVAL, DEAD_LETTER, BLOB_REFERENCE) if stream.kind == RUN else (BLOB_REFERENCE,):
        async for row in all_rows(store, stream.tenant, kind, [f"{stream.kind}:{stream.key}"]):
            found[kind, row.key] = row
    return found


class Indexer:
    """Repairs the rows of a store; `kinds` are streams of other kinds than runs and workflows."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        *,
        tenant: str,
        kinds: Mapping[str, Callable[[Tail], Sequence[Row]]] = {},
        dry_run: bool = False,
    ) -> None:
        self._store, self._catalog, self._kinds, self._dry_run = store, catalog, kinds, dry_run
        self._tenants = {tenant}
        self._present: dict[str, dict[Named, int]] = {}
        """By tenant, the marks of all rows before the first log was read: stores have no lookup by key."""
        self._tally = {"streams": 0, "rows": 0, "missing": 0, "different": 0, "surplus": 0}
        self._unreadable: list[str] = []
        self._unknown: list[Stream] = []
        """Streams with records that cannot be read, so that not all of their blob references are known."""
        self._blind = False

    async def run(self, on_progress: Progress | None = None) -> Reindexed:
        """Repair the index, then compare the rows of every stream, then remove rows that no stream calls for."""
        flaws = await (flaws_of if self._dry_run else repair)(self._store)
        self._tally["misplaced"] = flaws.missing + flaws.stray
        # A dry run then has nothing to compare with: every row would have to be written.
        self._blind = self._dry_run and bool(flaws.unreadable)
        for kind in (WORKFLOW, RUN, *self._kinds):
            async for stream in all_streams(self._store, kind):
                await self._one(stream)
                self._tally["streams"] += 1
                if on_progress is not None:
                    on_progress(self._tally["streams"])
        for tenant in sorted(self._tenants):
            await self._remove_surplus(tenant)
        anew = bool(flaws.unreadable)
        unknown = [name for tenant in sorted(self._tenants) for name in await self._complete(tenant, anew=anew)]
        return Reindexed(
            **self._tally,
            anew=anew,
            unreadable=tuple(self._unreadable),
            references_unknown=tuple(unknown),
            dry_run=self._dry_run,
        )

    async def _complete(self, tenant: str, *, anew: bool) -> Sequence[str]:
        """Mark the blob references of a tenant as complete; returns the streams for which they are not."""
        before = await read_completeness(self._store, tenant)
        names = [name_of(stream) for stream in self._unknown if stream.tenant == tenant]
        if before is not None and not anew:
            # The others were written with their rows, which damage to a log does not affect.
            names = [name for name in names if name in before.unknown]
        if not self._dry_run:
            await write_completeness(self._store, tenant, Completeness(unknown=tuple(names)))
        return names

    async def _listed(self, tenant: str) -> dict[Named, int]:
        if tenant not in self._present:
            self._tenants.add(tenant)
            rows = self._present[tenant] = {}
            kinds = (RUN, APPROVAL, DEAD_LETTER, WORKFLOW, BLOB_REFERENCE, *self._kinds)
            for kind in () if self._blind else kinds:
                async for row in all_rows(self._store, tenant, kind):
                    rows[kind, row.key] = _mark(row)
        return self._present[tenant]

    async def _one(self, stream: Stream) -> None:
        listed = await self._listed(stream.tenant)
        for _ in range(RACES_MAX):
            try:
                version, state, rows = await self._derived(stream)
            except (TidemillError, *DAMAGE, KeyError):
                self._unreadable.append(stream.key)
                await self._write_references(stream)
                return
            wrong = [row for name, row in rows.items() if listed.get(name) != _mark(row)]
            if not self._blind:
                there = [await row_like(self._store, stream.tenant, row) for row in wrong]
                pairs = zip(wrong, there, strict=True)
                wrong = [row for row, present in pairs if not agrees(present, row, state, whole=True)]
            if await self._write(stream, version, wrong):
                self._tally["rows"] += len(rows)
                for row in wrong:
                    self._tally["different" if (row.kind, row.key) in listed else "missing"] += 1
                for name in rows:
                    listed.pop(name, None)
                return
        # The run's own commits write its row, and those of later references.
        await self._write_references(stream)

    async def _write_references(self, stream: Stream) -> None:
        """Write the blob references of a log as far as it can be read, at whatever version it has now."""
        if stream.kind in self._kinds:
            return
        listed = await self._listed(stream.tenant)
        try:
            (tail,) = await self._store.load({stream: 0}, snapshots=False)
            events, versions, damaged = list[AnyEvent](), list[Record](), bool(tail.damage)
            for record in tail.records:
                try:
                    if stream.kind == WORKFLOW:
                        versions.append(decode_record(record))
                    else:
                        events.append(decode_event(record))
                except (TidemillError, *DAMAGE):
                    damaged = True
            if damaged:
                self._unknown.append(stream)
            rows = rows_of_workflow(stream, History(stream.key, versions))
            rows |= await expected_references(self._catalog, stream, events)
            missing = rows.keys() - listed.keys()
            await self._write(stream, None, [rows[name] for name in missing if name[0] == BLOB_REFERENCE])
        except TidemillError:
            self._unknown.append(stream)

    async def _derived(self, stream: Stream) -> tuple[int, State | None, dict[Named, Row]]:
        (tail,) = await self._store.load({stream: 0}, snapshots=False)
        if tail.damage:
            raise ValueError(tail.damage)
        if stream.kind in self._kinds:
            return tail.version, None, _named(self._kinds[stream.kind](tail))
        if stream.kind == WORKFLOW:
            return tail.version, None, rows_of_workflow(stream, read_history(stream.key, tail))
        return tail.version, *(await rows_of(self._catalog, tail))

    async def _write(self, stream: Stream, version: int | None, rows: list[Row]) -> bool:
        if not rows or self._dry_run:
            return True
        (result,) = await self._store.commit([Commit(stream=stream, expected=version, rows=tuple(rows))])
        return isinstance(result, Committed)

    async def _remove_surplus(self, tenant: str) -> None:
        """Remove rows that no log calls for, unless a log of that name has begun since."""
        left = await self._listed(tenant)
        for kind, key in left:
            owner = owner_of(tenant, kind, key)
            (tail,) = await self._store.load({owner: 0}, snapshots=False)
            try:
                called_for = tail.version and (kind, key) in (await self._derived(owner))[2]
            except (TidemillError, *DAMAGE, KeyError):
                # An unreadable log still supports the rows that were derived from it earlier.
                called_for = True
            if tail.damage or called_for:
                continue
            self._tally["surplus"] += 1
            if not self._dry_run:
                gone = Row(kind=kind, key=key, sort=0, deleted=True)
                await self._store.commit([Commit(stream=owner, expected=tail.version, rows=(gone,))])


def _mark(row: Row) -> int:
    """A short hash of a row: a store may have millions of them."""
    return hash((row.sort, frozenset(row.terms), row.body))


def owner_of(tenant: str, kind: str, key: str) -> Stream:
    """The stream that a row belongs to; rows of approvals and dead letters are named `run/node/visit/index`."""
    if kind in (APPROVAL, DEAD_LETTER):
        return Stream(tenant, RUN, key.rsplit("/", 3)[0])
    return Stream(tenant, *parts_of(key)[:2]) if kind == BLOB_REFERENCE else Stream(tenant, kind, key)
