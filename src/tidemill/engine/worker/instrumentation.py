"""Committed events as outcomes and counters, the store's latencies, and gauges read at scrape time.

`Instrumentation` is made only when metrics are wanted; everything that writes to it checks for None first. Nothing here
knows a back-end: `measured` stands in front of any store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.index_rows import APPROVAL, DEAD_LETTER, RUN
from tidemill.engine.pending_commands import PendingCommand
from tidemill.errors import TidemillError
from tidemill.kernel.decide.completion import UPSTREAM_FAILED
from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    CompensationCompleted,
    CompensationFailed,
    Error,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeWaiting,
    ResultDiscarded,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunRetried,
)
from tidemill.kernel.queries import message_of
from tidemill.kernel.state import State
from tidemill.observability.metrics import OTHER_QUEUES, QUEUES_MAX, Gauge, Metrics
from tidemill.stores.contract import (
    Backlog,
    Claim,
    Commit,
    CommitResult,
    Frame,
    IdleCallback,
    JobView,
    Lease,
    Page,
    Row,
    Store,
    Stream,
    Tail,
)
from tidemill.stores.optional import Finding, Index, ProcessLiveness, RepairableIndex, SelfDiagnosis

LOG = logging.getLogger(__name__)

T = TypeVar("T")

GAUGES_EVERY_MS = 5_000
"""How old gauges may be that a scraper gets."""
READ_SECONDS_MAX = 3.0
"""How long a scrape waits for the store; then it gets the gauges of the last one."""
COUNTED_MAX = 10_000
TENANTS_MAX = 100
"""Tenants whose rows are counted; work in queues is that of all."""

_ENDS: Mapping[type, str] = {RunCompleted: "COMPLETED", RunFailed: "FAILED", RunCancelled: "CANCELLED"}
_OUTCOMES: Mapping[type, str] = {
    NodeCompleted: "completed",
    NodeSkipped: "skipped",
    NodeCancelled: "cancelled",
    NodeWaiting: "waiting",
}
_COUNTED: Sequence[tuple[str, str, Sequence[str], Mapping[str, str]]] = (
    ("tidemill_runs_live", RUN, ("status:RUNNING",), {"status": "RUNNING"}),
    ("tidemill_runs_live", RUN, ("status:PAUSED",), {"status": "PAUSED"}),
    ("tidemill_runs_stuck", RUN, ("stuck",), {}),
    ("tidemill_approvals_waiting", APPROVAL, ("status:pending",), {}),
    ("tidemill_dead_letters_open", DEAD_LETTER, ("status:open",), {}),
)
"""Gauges that are numbers of rows: name, kind of the rows, their terms, labels."""


OUTCOME_LOG = logging.getLogger("tidemill.attempts")
"""One record at INFO per visit, item and attempt that ended, written by the process that committed it."""


class OutcomeReport(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt, an item or a visit ended, by a handler, a person, a time-out or a child run.

    Without a node it is the run that failed, by a deadline for example.
    """

    run_id: str
    node: str
    visit: int
    index: int = NOT_AN_ITEM
    attempt: int = 0
    outcome: Literal["completed", "failed", "retrying", "waiting", "skipped", "discarded"]
    worker: str = ""
    """Whose attempt it was; empty if no attempt ended."""
    duration_ms: int = 0
    error: Error | None = None
    retry_at_ms: int | None = None
    tolerated: bool = False
    """The workflow handles the failure."""
    undo: bool = False
    """It is an attempt to undo the node, by its compensator."""


def tell_outcomes(
    run_id: str, after: State, events: Sequence[AnyEvent], listener: Callable[[OutcomeReport], None] | None
) -> None:
    """Log what a commit ended, and tell the listener; call it only if one of them wants to know."""
    if isinstance(events[0], RunCreated):
        # Nothing ends here; a fork repeats the events of its source.
        return
    logs = OUTCOME_LOG.isEnabledFor(logging.INFO)
    failed = [event for event in events if isinstance(event, NodeFailed)]
    handled = {(event.node, event.visit) for event in failed if event.tolerated and event.index == NOT_AN_ITEM}
    for event in events:
        if isinstance(event, RunFailed):
            report = None if any(each.node == event.node for each in failed) else _report_of_end(run_id, event)
        else:
            report = _report_of(run_id, after, event, handled)
        if report is None:
            continue
        if listener is not None:
            listener(report)
        if logs and report.outcome in _LOGGED and not report.undo:
            _log(report, after.workflow)


_LOGGED = ("completed", "failed", "retrying")


def _report_of(
    run_id: str, after: State, event: AnyEvent, handled: Collection[tuple[str, int]]
) -> OutcomeReport | None:
    facts: dict[str, Any] = {}
    match event:
        case NodeCompleted():
            facts = {"outcome": "completed"}
        case CompensationCompleted():
            facts = {"outcome": "completed", "undo": True}
        case NodeFailed() if event.error.code != UPSTREAM_FAILED:
            tolerated = event.tolerated or (event.node, event.visit) in handled
            facts = _failure(event) | {"tolerated": tolerated and event.retry_at_ms is None}
        case CompensationFailed():
            facts = _failure(event) | {"undo": True}
        case NodeWaiting():
            facts = {"outcome": "waiting"}
        case NodeSkipped() if event.token:
            # Without an attempt no edge led to it.
            attempt = after.peek(event.node).attempt
            return OutcomeReport(run_id=run_id, node=event.node, visit=event.visit, attempt=attempt, outcome="skipped")
        case ResultDiscarded():
            facts = {"outcome": "discarded"}
        case _:
            return None
    facts |= {"node": event.node, "visit": event.visit, "index": event.index, "attempt": event.attempt}
    duration_ms = 0 if isinstance(event, ResultDiscarded) else event.duration_ms
    return OutcomeReport(run_id=run_id, worker=event.worker, duration_ms=duration_ms, **facts)


def _failure(event: NodeFailed | CompensationFailed) -> dict[str, Any]:
    outcome = "failed" if event.retry_at_ms is None else "retrying"
    return {"outcome": outcome, "error": event.error, "retry_at_ms": event.retry_at_ms}


def _report_of_end(run_id: str, event: RunFailed) -> OutcomeReport:
    return OutcomeReport(run_id=run_id, node=event.node, visit=event.visit, outcome="failed", error=event.error)


def _log(report: OutcomeReport, workflow: str) -> None:
    error, retried = report.error, report.outcome == "retrying"
    facts: dict[str, Any] = {"status": "COMPLETED" if error is None else "FAILED"}
    said = ""
    if error is not None:
        facts |= {"error_code": error.code, "error_type": error.type, "will_retry": retried}
        facts |= {"error_message": error.message, "error_traceback": error.traceback}
        said = f": {message_of(error)} [{error.code}]" + ("; it will be retried" if retried else "")
    item = None if report.index == NOT_AN_ITEM else report.index
    place = f"node {report.node}" if item is None else f"node {report.node}[{item}]"
    facts |= {"run_id": report.run_id, "workflow": workflow, "node": report.node or None, "visit": report.visit}
    facts |= {"item": item, "attempt": report.attempt, "duration_ms": report.duration_ms}
    words = (report.run_id, f" {place}" if report.node else "", facts["status"].lower())
    counts = (report.attempt, report.duration_ms, said)
    OUTCOME_LOG.info("run %s%s %s, attempt %d, %d ms%s", *words, *counts, extra=facts)


class Instrumentation:
    def __init__(self, metrics: Metrics, store: Store, ambient: Ambient, tenant: str) -> None:
        self.metrics, self._store, self._tenant = metrics, store, tenant
        self._clock_ms = ambient.monotonic_ms
        self._read_ms: float | None = None
        self._reading: asyncio.Task[None] | None = None

    # The turn and the worker

    def committed(self, events: Sequence[AnyEvent]) -> None:
        """Count what a commit wrote; of a fork only its own events, not those that it copied."""
        metrics, first = self.metrics, events[0]
        emitted = consumed = 0
        if isinstance(first, RunCreated):
            metrics.run_started()
            if first.forked_from is not None:
                events = events[first.forked_from[1] :]
            else:
                emitted = first.counter
        for event in events:
            kind = type(event)
            if kind in _OUTCOMES:
                metrics.node(_OUTCOMES[kind])
            elif isinstance(event, NodeFailed):
                self._failed(event)
            elif kind in _ENDS:
                metrics.run_ended(_ENDS[kind])
            elif isinstance(event, ResultDiscarded):
                metrics.late_result()
            elif isinstance(event, RunRetried):
                metrics.retry("operator")
            elif isinstance(event, CompensationFailed) and event.retry_at_ms is not None:
                metrics.retry("compensation")
            emitted += getattr(event, "emitted", 0)
            consumed += getattr(event, "consumed", 0)
        metrics.tokens(emitted, consumed)

    def _failed(self, event: NodeFailed) -> None:
        if event.retry_at_ms is not None:
            self.metrics.node("retrying")
            timeout = event.error.code == "timeout"
            self.metrics.retry("worker_lost" if event.lost else "timeout" if timeout else "error")
        elif event.error.code == UPSTREAM_FAILED:
            self.metrics.node("upstream_failed")
        else:
            self.metrics.node("tolerated" if event.tolerated else "failed")

    def handed_over(self, commands: Sequence[PendingCommand], jobs: int) -> None:
        """Jobs that a commit leased to its worker: their hop began when the last result of the commit was submitted."""
        seconds = (self._clock_ms() - max(pending.asked_ms for pending in commands)) / 1_000
        for _ in range(jobs):
            self.metrics.hop("handover", seconds)

    def claimed(self, leases: Sequence[Lease]) -> None:
        """Jobs of nodes that were claimed: their hop began when they became ready, by the clock of the store."""
        now_ms = self._store.now_ms()
        for lease in leases:
            self.metrics.hop("claim", (now_ms - lease.ready_at_ms) / 1_000)

    def found(self, code: str) -> None:
        """The audit has found a violation."""
        self.metrics.finding(diverged=code.startswith("counter"))

    # Scrapes

    async def text(self) -> bytes:
        """All metrics as Prometheus reads them, with gauges that are at most some seconds old."""
        await self.refresh()
        return self.metrics.render()

    async def refresh(self) -> None:
        """Read the gauges unless they are fresh; concurrent scrapes share one reading, and none waits for long."""
        if self._read_ms is not None and self._clock_ms() - self._read_ms < GAUGES_EVERY_MS:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="tidemill-gauges")
        await asyncio.wait({self._reading}, timeout=READ_SECONDS_MAX)

    async def close(self) -> None:
        """Stop a reading that the store does not answer."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            backlog = await self._store.backlog()
            # Every tenant has maintenance tasks in a queue.
            tenants = dict.fromkeys([self._tenant, *(each.tenant for each in backlog)])
            gauges = list(_queue_gauges(backlog, self._store.now_ms()))
            for name, kind, terms, labels in _COUNTED:
                found = 0
                for tenant in list(tenants)[:TENANTS_MAX]:
                    found += await self._store.count(tenant, kind, terms, at_most=COUNTED_MAX)
                gauges.append(Gauge(name, found, labels))
        except TidemillError as error:
            LOG.warning("gauges could not be read; the scraper gets the previous values: %s", error)
            return
        self.metrics.set_gauges(gauges)
        self._read_ms = self._clock_ms()


def _queue_gauges(backlog: Sequence[Backlog], now_ms: int) -> list[Gauge]:
    """Jobs and ages by queue, those of all tenants together; the smallest queues share one name."""
    sizes: Counter[str] = Counter()
    for each in backlog:
        sizes[each.queue] += each.ready + each.leased + each.later
    named = {queue for queue, _ in sizes.most_common(QUEUES_MAX)}
    jobs: dict[str, Counter[str]] = defaultdict(Counter)
    oldest: dict[str, int] = {}
    for each in backlog:
        queue = each.queue if each.queue in named else OTHER_QUEUES
        jobs[queue].update({"ready": each.ready, "leased": each.leased, "later": each.later})
        if each.oldest_ready_at_ms is not None:
            oldest[queue] = min(oldest.get(queue, now_ms), each.oldest_ready_at_ms)
    states = ("ready", "leased", "later")
    return [
        *(
            Gauge("tidemill_queue_jobs", counts[state], {"queue": queue, "state": state})
            for queue, counts in sorted(jobs.items())
            for state in states
        ),
        *(
            Gauge("tidemill_queue_oldest_seconds", (now_ms - oldest.get(queue, now_ms)) / 1_000, {"queue": queue})
            for queue in sorted(jobs)
        ),
    ]


# The store


class MeasuredStore:
    """A store whose calls are timed; `claim` and `follow` wait for work, so their time says nothing."""

    def __init__(self, inner: Store, metrics: Metrics, ambient: Ambient) -> None:
        self.inner, self._metrics, self._clock_ms = inner, metrics, ambient.monotonic_ms

    async def _timed(self, verb: str, answer: Awaitable[T]) -> T:
        begun = self._clock_ms()
        try:
            return await answer
        finally:
            self._metrics.store_call(verb, (self._clock_ms() - begun) / 1_000)

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    def now_ms(self) -> int:
        return self.inner.now_ms()

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        return await self._timed("commit", self.inner.commit(commits))

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        return await self._timed("load", self.inner.load(after, snapshots=snapshots, limit=limit))

    async def claim(self, request: Claim) -> list[Lease]:
        return await self.inner.claim(request)

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        lost = await self._timed("renew", self.inner.renew(leases, lease_ms))
        if lost:
            self._metrics.fenced(len(lost), "renewal")
        return lost

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        await self._timed("release", self.inner.release(leases, delay_ms=delay_ms))

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        return await self._timed("find", self.inner.find(tenant, kind, terms, after=after, limit=limit))

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        return await self._timed("count", self.inner.count(tenant, kind, terms, at_most=at_most))

    def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        return self.inner.follow(stream, after, on_idle, live=live)

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        await self._timed("publish", self.inner.publish(stream, frames))

    async def jobs(self, stream: Stream) -> list[JobView]:
        return await self._timed("jobs", self.inner.jobs(stream))

    async def backlog(self) -> list[Backlog]:
        return await self._timed("backlog", self.inner.backlog())

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        return await self._timed("streams", self.inner.streams(kind, after=after, limit=limit))

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        return await self._timed("forget", self.inner.forget(stream, expected=expected, rows=rows))


class _WithIndex:
    inner: Any

    @property
    def index(self) -> Index:
        return cast(RepairableIndex, self.inner).index


class _WithLiveness:
    inner: Any

    async def live_processes(self) -> frozenset[str]:
        return await cast(ProcessLiveness, self.inner).live_processes()


class _WithDiagnosis:
    inner: Any

    async def diagnose(self) -> list[Finding]:
        return await cast(SelfDiagnosis, self.inner).diagnose()


def measured(store: Store, metrics: Metrics, ambient: Ambient) -> Store:
    """The store with its calls timed; it offers the same optional capabilities."""
    capabilities = ((RepairableIndex, _WithIndex), (ProcessLiveness, _WithLiveness), (SelfDiagnosis, _WithDiagnosis))
    there: object = store
    offers = [offer for protocol, offer in capabilities if isinstance(there, protocol)]
    return cast(Store, type("MeasuredStore", (MeasuredStore, *offers), {})(store, metrics, ambient))
