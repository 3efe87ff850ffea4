"""The runs that this process knows: states by stream, brought up to date from the tail.

A cached state is never wrong, only old: a decision over it commits against its version and fails if another process
was faster. The cache is bounded. Ended runs leave it, and so do runs that were not used for a while: they may have
ended elsewhere and been deleted, and another run may have taken the name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from tidemill.engine.attempts.rendering import Lists
from tidemill.engine.blob_references import committed_references
from tidemill.engine.catalog import Catalog
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.corruption import corrupt_stream, require_intact
from tidemill.engine.index_rows import IndexedFacts, indexed_facts, rows_beside, run_row, run_terms, waiting_terms
from tidemill.engine.views import waiting_for
from tidemill.errors import TidemillError
from tidemill.kernel.codec import SnapshotFormatUnknown, decode_event, decode_state, encode_state
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.fencing import attempt_status
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent, NodeFailed
from tidemill.kernel.evolve import evolve
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.state import State, adopt
from tidemill.stores.contract import Lease, Row, Snapshot, Store, Stream, Tail

LOG = logging.getLogger(__name__)

WARNED_MAX = 1_000
STARTED_MAX = 10_000
CACHED_RUNS_MAX = 4_096
KNOWN_FOR_MS = 600_000
"""How long a cached run counts as current without news: less than the hour that every ended run is kept."""
SNAPSHOT_TAIL_MIN = 500
ROW_LAG_MS = 1_000
"""How long the row of an active run may lag behind its log."""
NODES_LOOKED_AT_MAX = 1_000
"""In larger runs the reconciler finds what they wait for, off the commit path."""


class CachedRun:
    __slots__ = (
        "digest", "flow", "indexed_facts", "map_inputs", "row_ms", "seen_ms", "since_snapshot", "state", "terms",
    )  # fmt: skip

    def __init__(self, state: State, flow: CompiledWorkflow, since_snapshot: int = 0) -> None:
        self.state = state
        self.flow = flow
        self.digest = state.digest
        """Of the workflow that `flow` is: a patch may have moved the state on to another one."""
        self.since_snapshot = since_snapshot
        """Events since the newest snapshot."""
        self.map_inputs: Lists = {}
        self.terms: tuple[str, ...] = ()
        self.indexed_facts: IndexedFacts | None = None
        """The facts that `terms` were derived from."""
        self.row_ms = 0
        """When this process last wrote the run's row."""
        self.seen_ms = 0
        """When the store last reported the run as active, by the store's clock."""

    def apply_committed(self, decision: Decision, expected: int, flows: Sequence[CompiledWorkflow] = ()) -> None:
        """Make a durable decision the state, unless a reload has applied its events, and later ones, already."""
        if self.state.seq == expected:
            state = self.state = adopt(decision.after)
            self.since_snapshot += len(decision.events)
            for flow in flows:
                if flow.workflow.digest == state.digest:
                    self.switch_workflow(flow)
            self.digest = self.digest or state.digest

    def snapshot(self) -> Snapshot | None:
        """The state before this commit, once folding the tail costs more than storing it."""
        state = self.state
        if self.since_snapshot <= (len(state.cells) + state.items) // 4:
            return None
        return Snapshot(version=state.seq, body=encode_state(state))

    def rows_of(self, stream: Stream, decision: Decision, records: Sequence[bytes]) -> tuple[Row, ...]:
        """The run's index rows that a decision writes, where they change.

        The row is written when the run's terms change, when nothing is in flight but a retry that is not due, after
        that, or when it has not been written for a while. In between, the row of a busy run may lag behind its log;
        its `events` says by how much, and the reconciler updates it if no commit follows.
        """
        before, after = self.state, decision.after
        others = committed_references(stream, decision.events, records)
        if after.approvals or after.letters or before.letters:
            others += rows_beside(stream, before, after, decision.events)
        facts, backs_off = self.indexed_facts, after.in_flight == 1 and any(map(_backs_off, decision.events))
        if facts is not None and after.in_flight and not backs_off and after.last_ms - self.row_ms < ROW_LAG_MS:
            # Compared one by one, because every commit of a busy run does this.
            status, busy, rollback, labels, _ = facts
            if status == after.status and busy and rollback == after.rollback and labels is after.labels:
                return others
        found_by, flow = indexed_facts(after), self.flow.workflow
        self.row_ms = 0 if backs_off else after.last_ms
        if facts != found_by:
            self.terms, self.indexed_facts = run_terms(after, retention=flow.retention), found_by
        quiet = (backs_off or not after.in_flight) and after.live and len(flow.nodes) <= NODES_LOOKED_AT_MAX
        waits = waiting_for(flow, after) if quiet else ()
        terms = (*self.terms, *waiting_terms(waits)) if waits else self.terms
        return (run_row(stream, after, terms, waiting_for=waits), *others)

    def switch_workflow(self, flow: CompiledWorkflow) -> None:
        self.flow, self.digest = flow, self.state.digest
        self.map_inputs.clear()


def _backs_off(event: AnyEvent) -> bool:
    """Whether a visit failed and is retried later."""
    return type(event) is NodeFailed and event.retry_at_ms is not None and event.index == NOT_AN_ITEM


class RunCache:
    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store, self._catalog = store, catalog
        self._entries: OrderedDict[Stream, CachedRun] = OrderedDict()
        self._now_ms = store.now_ms()
        """When the last batch of work began: precise enough for expiry after minutes."""
        self._damaged: dict[Stream, TidemillError] = {}
        """Runs that cannot be read: damaged, or written by a newer version, or their workflow is."""
        self._warned: dict[str, None] = {}
        self._started: set[Stream] = set()
        """Runs that callers of this process have started, until there are too many to know."""

    def note_started(self, *streams: Stream) -> None:
        """A caller of this process starts runs."""
        if len(self._started) <= STARTED_MAX:
            self._started.update(streams)

    def was_started_here(self, root: Stream) -> bool:
        """Whether a caller of this process has started a run, or may have, after too many starts to know."""
        return root in self._started or len(self._started) > STARTED_MAX

    def get(self, stream: Stream) -> CachedRun | None:
        return self._entries.get(stream)

    def forget_unseen(self) -> int:
        """Drop runs that were not used for long, before a batch of work begins; returns the time.

        The time is that of the store's clock: timers are judged by it, so they are set by it too. A worker's own clock
        may be wrong by a day.
        """
        now_ms = self._now_ms = self._store.now_ms()
        while self._entries:
            stream, entry = next(iter(self._entries.items()))
            if abs(now_ms - entry.seen_ms) <= KNOWN_FOR_MS:
                break
            del self._entries[stream]
        return now_ms

    def forget(self, stream: Stream) -> None:
        """Reload a run from the store on next use."""
        self._entries.pop(stream, None)

    def damage(self, stream: Stream) -> TidemillError | None:
        """Why the last attempt to read a run failed."""
        return self._damaged.get(stream)

    def warn_once(self, stream: Stream, why: TidemillError) -> None:
        """Log that jobs of a run cannot be done; once per reason, however many runs have it."""
        if str(why) not in self._warned:
            LOG.warning("run %s cannot be read; it waits, and so do runs that need it: %s", stream.key, why)
            self._warned[str(why)] = None
            if len(self._warned) > WARNED_MAX:
                del self._warned[next(iter(self._warned))]

    def put(self, stream: Stream, entry: CachedRun) -> None:
        """Cache a run after a commit; a run that has ended is dropped."""
        entries, state = self._entries, entry.state
        if not state.busy or entry.digest != state.digest:
            entries.pop(stream, None)
            return
        entry.seen_ms = self._now_ms
        present = entries.get(stream)
        if present is not entry and (present is None or present.state.seq < state.seq):
            entries[stream] = entry
            if len(entries) > CACHED_RUNS_MAX:
                entries.popitem(last=False)
        entries.move_to_end(stream)

    async def refresh(self, streams: Iterable[Stream]) -> dict[Stream, CachedRun]:
        """Bring runs up to date with the store, in one call; unknown and unreadable runs are left out."""
        self.forget_unseen()
        # A run that ends during the load leaves the cache, but its state is still needed here.
        known = {stream: self.get(stream) for stream in streams}
        after = {stream: 0 if entry is None else entry.state.seq for stream, entry in known.items()}
        found: dict[Stream, CachedRun] = {}
        again: list[Stream] = []
        for tail in await self._store.load(after):
            before = self._damaged.pop(tail.stream, None)
            if tail.version == 0 and after[tail.stream] and not tail.damage:
                # It ended in another process and was deleted since.
                self._entries.pop(tail.stream, None)
                continue
            try:
                entry = await self._absorb(tail, self._entries.get(tail.stream) or known[tail.stream])
            except TidemillError as error:
                # An unreadable run must not block the others.
                self._entries.pop(tail.stream, None)
                self._damaged[tail.stream] = error
                continue
            except Exception as error:
                # The snapshot or the cached state is unusable; fold the whole log instead.
                self._entries.pop(tail.stream, None)
                again.append(tail.stream)
                if not isinstance(error, SnapshotFormatUnknown):
                    LOG.warning("run %s is folded from its first event: %r", tail.stream.key, error)
                continue
            if before is not None:
                self._warned.pop(str(before), None)
            if entry is not None:
                found[tail.stream] = entry
        return found if not again else found | await self._fold_from_start(again)

    async def _fold_from_start(self, streams: Iterable[Stream]) -> dict[Stream, CachedRun]:
        """Fold runs from their first event; those that cannot be folded are damaged."""
        found: dict[Stream, CachedRun] = {}
        for tail in await self._store.load(dict.fromkeys(streams, 0), snapshots=False):
            try:
                entry = await self._absorb(tail, None)
            except TidemillError as error:
                self._damaged[tail.stream] = error
            except Exception as error:
                self._damaged[tail.stream] = corrupt_stream(tail.stream, f"they cannot be folded: {error!r}")
            else:
                if entry is not None:
                    found[tail.stream] = entry
        return found

    async def _absorb(self, tail: Tail, entry: CachedRun | None) -> CachedRun | None:
        if require_intact(tail).version == 0:
            return entry
        if entry is not None and tail.stream in self._entries:
            entry.seen_ms = self._store.now_ms()
            self._entries.move_to_end(tail.stream)
        if entry is None or (tail.snapshot is not None and entry.state.seq < tail.after):
            state = State() if tail.snapshot is None else decode_state(tail.snapshot)
            _fold(state, tail)
            entry = CachedRun(state, await self._catalog.flow(tail.stream.tenant, state.digest), len(tail.records))
            self.put(tail.stream, entry)
            return entry
        fresh = _fold(entry.state, tail)
        if fresh:
            # Another process has moved the run on, and may have written its row.
            entry.since_snapshot += fresh
            entry.indexed_facts = None
        if entry.digest != entry.state.digest:
            entry.switch_workflow(await self._catalog.flow(tail.stream.tenant, entry.state.digest))
        if not entry.state.busy:
            self._entries.pop(tail.stream, None)
        return entry


def _fold(state: State, tail: Tail) -> int:
    """Apply the records that a state does not have yet, and skip the others."""
    first = tail.version - len(tail.records)
    fresh = tail.records[state.seq - first :] if state.seq >= first else ()
    for record in fresh:
        evolve(state, decode_event(record))
    return len(fresh)


def seen_by(entry: CachedRun | None, task: JobBody, lease: Lease) -> bool:
    """Whether a cached state is recent enough to do a job: it includes the event that called for it."""
    if entry is None or not task.seq or entry.state.seq < task.seq:
        return False
    if task.kind != "run":
        return task.kind != "outputs"
    return attempt_status(entry.state, task.node, task.visit, task.index, lease.token) == "current"


class EndWaiters:
    """Callers that a commit of this process tells the end of their run."""

    def __init__(self) -> None:
        self._waiting: dict[Stream, list[asyncio.Future[CachedRun | None]]] = {}

    def __contains__(self, stream: Stream) -> bool:
        return stream in self._waiting

    async def wait(self, stream: Stream, seconds: float) -> CachedRun | None:
        """The answer to this run's waiters; None if there was none in `seconds`."""
        future: asyncio.Future[CachedRun | None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(stream, [])
        waiters.append(future)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return None
        finally:
            if not future.done() or future.cancelled():
                waiters.remove(future)
                if not waiters and self._waiting.get(stream) is waiters:
                    del self._waiting[stream]

    def answer(self, stream: Stream, ended: CachedRun | None) -> None:
        for future in self._waiting.pop(stream):
            if not future.done():
                future.set_result(ended)
