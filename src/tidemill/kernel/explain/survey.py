"""The input of an explanation, and one pass over a live run that finds what each unfinished visit waits for.

The pass only classifies and sorts, which is cheap. `live` and `upstream` build the blockers, for as many visits as are
listed; no sentences here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter

import msgspec

from tidemill.kernel.activation import ENDED, QUEUED_ITEM, Activation, MapState, Wait
from tidemill.kernel.decide.edges_and_joins import body_busy, owns_job
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.decide.retries import set_aside
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.blockers import Failure, Kind, Need
from tidemill.kernel.jobs import SYSTEM_QUEUE, JobKind, key_of
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, Visit


class JobFact(msgspec.Struct, frozen=True, gc=False):
    key: str
    queue: str
    ready_at_ms: int = 0
    owner: str = ""
    lease_expires_at_ms: int | None = None
    """None while no worker holds it."""
    expired: bool = False
    """The store knows the lease to be void, whatever its time says."""
    lost: int = 0
    """How many workers in a row were lost with it."""
    limited: bool = False
    """A concurrency limit holds for it."""
    unread: Failure | None = None
    """Why a large value that the job needs cannot be loaded, where a worker has tried."""

    def is_held(self, now_ms: int) -> bool:
        return self.lease_expires_at_ms is not None and not self.expired and self.lease_expires_at_ms > now_ms


class WorkerCapability(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    queues: frozenset[str] | None
    types: frozenset[str]
    lacks: Mapping[str, Failure] = {}
    """Work of this workflow that it released for lack of something, as `run/NODE` or `undo/NODE`."""

    def serves(self, queue: str) -> bool:
        """Whether it takes jobs of a queue; every worker serves the system queue."""
        return self.queues is None or queue == SYSTEM_QUEUE or queue in self.queues


class Workers(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The live workers together; an empty one says that there is none."""

    queues: frozenset[str] | None = frozenset()
    """Served queues; None is every queue."""
    types: frozenset[str] = frozenset()
    """Known node types, as `name@major`."""
    each: tuple[WorkerCapability, ...] = ()
    """The workers, where they are known: a type counts only on a queue that the same worker serves."""
    unresponsive: Mapping[str, int] = {}
    """Workers with an overdue heartbeat, and the time of the last one. They may still hold valid leases."""
    unresponsive_but_running: tuple[str, ...] = ()
    """Those of them whose process still exists."""

    @classmethod
    def of(
        cls,
        each: Sequence[WorkerCapability],
        unresponsive: Mapping[str, int] | None = None,
        but_running: tuple[str, ...] = (),
    ) -> Workers:
        queues: frozenset[str] | None = frozenset()
        for worker in each:
            queues = None if queues is None or worker.queues is None else queues | worker.queues
        types = frozenset().union(*(worker.types for worker in each))
        return cls(
            queues=queues,
            types=types,
            each=tuple(each),
            unresponsive=unresponsive or {},
            unresponsive_but_running=but_running,
        )

    def elsewhere(self, queue: str, type_: str) -> tuple[str, ...]:
        return tuple(worker.name for worker in self.each if type_ in worker.types and not worker.serves(queue))


class Bounds(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How much is listed; the rest is only counted."""

    roots: int = 1_000
    followers: int = 200
    items: int = 20
    """Of each map."""
    names: int = 10
    """In any list of nodes, edges or keys."""
    origins: int = 5


class ExplainInput:
    def __init__(
        self,
        flow: Workflow,
        state: State,
        jobs: Sequence[JobFact],
        now_ms: int,
        workers: Workers | None,
        bounds: Bounds,
    ) -> None:
        self.flow, self.state, self.now, self.workers, self.bounds = flow, state, now_ms, workers, bounds
        self.jobs = {job.key: job for job in jobs}
        self.paused = state.status == "PAUSED"
        self.idle = workers is not None and workers.queues is not None and not (workers.queues or workers.types)
        """No worker is live."""
        self._types: dict[str, frozenset[str]] = {}
        self._released = frozenset(work for worker in (workers.each if workers else ()) for work in worker.lacks)

    @property
    def full(self) -> bool:
        """Whether `max_parallel` leaves no slot free, so that it is what holds nodes back."""
        limit = self.flow.limits.max_parallel
        return limit is not None and self.state.in_flight >= limit

    def holds(self, job: JobFact) -> bool:
        return job.is_held(self.now)

    def silent_since_ms(self, job: JobFact) -> int | None:
        """Last heartbeat of the holder, if it is overdue."""
        return None if self.workers is None else self.workers.unresponsive.get(job.owner)

    def lacking(self, job: JobFact, type_: str) -> Failure | None:
        """What all workers lack that know the type and serve the queue of a job."""
        work = job.key.rsplit("/", 2)[0]
        if not type_ or self.workers is None or work not in self._released:
            return None
        able = [each for each in self.workers.each if type_ in each.types and each.serves(job.queue)]
        found = [each.lacks.get(work) for each in able]
        return found[0] if found and all(found) else None

    def why_unclaimed(self, job: JobFact, type_: str = "") -> Need:
        """Why no worker runs a job without a lease; `type_` is the node type it needs."""
        workers = self.workers
        if workers is not None:
            if set_aside(job.lost):
                return "killer"
            if self.idle:
                return "silent" if workers.unresponsive_but_running else "no_worker"
            if workers.queues is not None and job.queue != SYSTEM_QUEUE and job.queue not in workers.queues:
                return "no_queue"
            if type_ and type_ not in self._types_on(workers, job.queue):
                return "no_type"
            if self.lacking(job, type_) is not None:
                return "lacking"
        if job.unread is not None:
            return "value"
        if job.ready_at_ms > self.now:
            return "later"
        if job.limited:
            return "limited"
        return "lost" if job.lease_expires_at_ms is not None else "busy"

    def _types_on(self, workers: Workers, queue: str) -> frozenset[str]:
        """Cached per queue, because a run may have many jobs."""
        if queue not in self._types:
            known = (worker.types for worker in workers.each if worker.serves(queue))
            self._types[queue] = frozenset().union(*known) if workers.each else workers.types
        return self._types[queue]

    @cached_property
    def places(self) -> dict[str, int]:
        """Positions from 1 in the queue of nodes that `max_parallel` holds back."""
        found: dict[str, int] = {}
        name = self.state.first_held
        while name and name not in found:
            found[name] = len(found) + 1
            name = self.state.peek(name).next_held
        return found


def left_alone(state: State, jobs: Sequence[JobFact], now_ms: int) -> list[str]:
    """Nodes that a worker has begun and that none runs now: it has handed them back, or was lost."""
    free = {job.key for job in jobs if not job.is_held(now_ms)}
    begun = ((name, visit) for name, visit in state.cells.items() if visit.status == "RUNNING" and visit.map is None)
    return [name for name, visit in begun if f"run/{name}/{visit.visit}/{NOT_AN_ITEM}" in free]


def label(node: str, visit: int, index: int = NOT_AN_ITEM) -> str:
    item = f"[{index}]" if index != NOT_AN_ITEM else ""
    return f"{node}{item}" if visit <= 1 else f"{node}{item} (visit {visit})"


STARVED = frozenset({"no_worker", "silent", "no_queue", "no_type", "lacking", "value", "killer"})
"""Needs that do not pass by themselves: an operator has to start a worker or fix what is missing."""

_RANK = 1 << 32
"""More than the positions in a queue."""
_ORDER = (
    *("missing", "starved", "person", "signal", "wait", "child", "retry", "worker", "lease", "timer"),
    *("items", "loop", "limit", "pause", "join", "edge"),
)
"""What needs a person comes before what continues by itself; what only follows other nodes comes last. `starved` is a
job that no worker can run."""
_RANKS = {kind: rank * _RANK for rank, kind in enumerate(_ORDER)} | {"edge": _ORDER.index("join") * _RANK}
_FOLLOWERS_FROM = _RANKS["items"]


class WaitingVisit(msgspec.Struct, frozen=True, gc=False):
    rank: int
    kind: Kind
    node: Node
    visit: Visit
    item: int
    act: Activation
    job: JobFact | None

    @property
    def label(self) -> str:
        return label(self.node.id, self.visit.visit, self.item)

    @property
    def root(self) -> bool:
        """Whether it waits for something live or external, not only for other nodes."""
        return self.rank < _FOLLOWERS_FROM


def survey(facts: ExplainInput) -> list[WaitingVisit]:
    """Every unfinished visit of a live run and the first items of its maps, roots first."""
    found: list[WaitingVisit] = []
    peek = facts.state.peek
    for node in facts.flow.nodes:
        visit = peek(node.id)
        status = visit.status
        if status in ENDED:
            continue
        if status == "PENDING":
            found.append(_pending(facts, node, visit))
        elif visit.map is not None and status == "RUNNING" and not owns_job(visit):
            found.extend(_map(facts, node, visit, visit.map))
        else:
            found.append(_active(facts, node, visit, NOT_AN_ITEM, visit))
    found.sort(key=attrgetter("rank"))
    return found


def _pending(facts: ExplainInput, node: Node, visit: Visit) -> WaitingVisit:
    if visit.held and facts.full:
        return _held(facts, node, visit)
    kind: Kind = "missing"
    if not visit.fired and len(node.inbound) > visit.taken + visit.dead:
        kind = "edge" if node.single else "join"
    return WaitingVisit(_RANKS[kind], kind, node, visit, NOT_AN_ITEM, visit, None)


def _held(facts: ExplainInput, node: Node, visit: Visit) -> WaitingVisit:
    """Held visits keep the order of their queue."""
    rank = _RANKS["limit"] + min(facts.places.get(node.id, 0), _RANK - 1)
    return WaitingVisit(rank, "limit", node, visit, NOT_AN_ITEM, visit, None)


def _active(facts: ExplainInput, node: Node, visit: Visit, index: int, act: Activation) -> WaitingVisit:
    if act.status == "WAITING":
        kind, job = _waiting(facts, node, visit, index, act)
    else:
        job = facts.jobs.get(job_key(node, visit, index, act))
        kind = _dispatched(facts, act, job)
    rank = _RANKS[kind]
    if kind == "worker" and facts.workers is not None and job is not None:
        type_ = node.type if act.status != "WAITING" and phase_of(node, visit, index) == "call" else ""
        rank = _RANKS["starved"] if facts.why_unclaimed(job, type_) in STARVED else rank
    return WaitingVisit(rank, kind, node, visit, index, act, job)


def _dispatched(facts: ExplainInput, act: Activation, job: JobFact | None) -> Kind:
    if job is not None and facts.holds(job):
        return "lease"
    backing_off = act.retry_at_ms is not None and max(act.retry_at_ms, job.ready_at_ms if job else 0) > facts.now
    if backing_off and job is not None:
        return "retry"
    if facts.paused and not backing_off:
        # Its job was withdrawn, or the worker that claims it puts it aside.
        return "pause"
    return "missing" if job is None else "worker"


def _waiting(facts: ExplainInput, node: Node, visit: Visit, index: int, act: Activation) -> tuple[Kind, JobFact | None]:
    wait, approval = act.wait, act.approval
    if wait is None:
        return "wait", None
    if approval is not None and approval.status == "pending":
        return "person", None
    match wait.on:
        case "signal":
            return "signal", None
        case "loop" if wait.output is not None and node.loop is not None and _waits_for_body(facts, node, wait):
            return "loop", None
        case "child":
            job = facts.jobs.get(job_key(node, visit, index, act))
            return "missing" if job is None and not wait.started else "child", job
        case "timer" | "loop" if wait.until_ms is not None or wait.expires_ms is not None:
            # A due timer is a job like any other.
            job = facts.jobs.get(job_key(node, visit, index, act))
            if job is None or facts.holds(job):
                return "missing" if job is None else "lease", job
            return "timer" if job.ready_at_ms > facts.now else "worker", job
        case _:
            return "wait", None


def _waits_for_body(facts: ExplainInput, node: Node, wait: Wait) -> bool:
    """Whether the next pass waits for the rest of the body, and not only for the delay before it."""
    return wait.until_ms is None or body_busy(facts.flow, facts.state, node)


def job_key(node: Node, visit: Visit, index: int, act: Activation) -> str:
    wait = act.wait
    if act.status != "WAITING" or wait is None:
        return f"run/{node.id}/{visit.visit}/{index}"
    kind: JobKind = "child" if wait.on == "child" else "expire" if expires_first(wait) else "wake"
    return key_of(kind, node.id, visit.visit, index)


def expires_first(wait: Wait) -> bool:
    """Whether a wait times out before its timer is due; it has a job only for the earlier of the two."""
    return wait.expires_ms is not None and (wait.until_ms is None or wait.expires_ms < wait.until_ms)


def _map(facts: ExplainInput, node: Node, visit: Visit, items: MapState) -> Iterator[WaitingVisit]:
    if visit.held and facts.full and not items.flying:
        yield _held(facts, node, visit)
        return
    rank = _RANKS["items"] if items.flying else _RANKS["missing"]
    yield WaitingVisit(rank, "items", node, visit, NOT_AN_ITEM, visit, None)
    for index in _first_items(items, facts.bounds.items):
        yield _active(facts, node, visit, index, items.get(index) or QUEUED_ITEM)


def _first_items(items: MapState, most: int) -> list[int]:
    """The first unfinished items: waiting or failed ones before queued or running ones."""
    notable: list[int] = []
    plain: list[int] = []
    left, get = items.flying, items.get
    for index in range(items.next):
        if not left or len(notable) >= most:
            break
        act = get(index) or QUEUED_ITEM
        if act.status in ENDED:
            continue
        left -= 1
        if act.status == "WAITING" or act.error is not None:
            notable.append(index)
        elif len(plain) < most:
            plain.append(index)
    return [*notable, *plain][:most]
