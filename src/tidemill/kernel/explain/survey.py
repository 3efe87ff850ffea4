"""Inputs of an explanation and the one pass over a live run.

The one pass over a live run: what kind of thing each unfinished visit waits for, and in which order to tell it.

Only the kind is found out here, which is cheap. Sentences are made afterwards, for as many as are listed.

What an explanation is made from: the workflow, the state, the store's jobs, the workers, the moment, the bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter

import msgspec

from tidemill.kernel.activation import ENDED, QUEUED_ITEM, Activation, MapState, Wait
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.decide.routing import owns_job
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.blockers import Failure, Kind, Need
from tidemill.kernel.jobs import SYSTEM_QUEUE, JobKind, key_of
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, Visit


class JobFact(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of one of the run's jobs."""

    key: str
    queue: str
    ready_at_ms: int = 0
    owner: str = ""
    lease_expires_at_ms: int | None = None
    """None while nobody holds it."""
    expired: bool = False
    """The store knows the lease to be void, whatever its time says."""
    unread: Failure | None = None
    """Why a large value that it needs cannot be had, where somebody has looked."""


class WorkerCapability(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A live worker that takes on work, and what it can do."""

    name: str
    queues: frozenset[str] | None
    """None is every queue."""
    types: frozenset[str]
    lacks: Mapping[str, Failure] = {}
    """What it had to leave to others in this workflow, as `run/NODE` or `undo/NODE`, for want of something else."""

    def serves(self, queue: str) -> bool:
        """Whether it takes jobs of a queue; those that need no node type are everybody's."""
        return self.queues is None or queue == SYSTEM_QUEUE or queue in self.queues


class Workers(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the live workers can do between them; an empty one says that there is none."""

    queues: frozenset[str] | None = frozenset()
    """Queues that somebody serves; None is every queue."""
    types: frozenset[str] = frozenset()
    """Node types that somebody knows, as `name@major`."""
    each: tuple[WorkerCapability, ...] = ()
    """Who they are, where that is known: a type counts only with somebody who serves the queue too."""
    unresponsive: Mapping[str, int] = {}
    """Those not heard of for long, and when each was last. They may still hold leases that have not run out."""
    unresponsive_but_running: tuple[str, ...] = ()
    """Those of them whose processes are there all the same."""

    @classmethod
    def of(
        cls, each: Sequence[WorkerCapability], silent: Mapping[str, int] | None = None, mute: tuple[str, ...] = ()
    ) -> Workers:
        """The workers that are there, and those that have fallen silent."""
        queues: frozenset[str] | None = frozenset()
        for able in each:
            queues = None if queues is None or able.queues is None else queues | able.queues
        types = frozenset().union(*(able.types for able in each))
        return cls(
            queues=queues, types=types, each=tuple(each), unresponsive=silent or {}, unresponsive_but_running=mute
        )

    def types_on(self, queue: str) -> frozenset[str]:
        """Node types that those know who serve a queue."""
        if not self.each:
            return self.types
        return frozenset().union(*(able.types for able in self.each if able.serves(queue)))

    def elsewhere(self, queue: str, type_: str) -> tuple[str, ...]:
        """Workers that know a type and do not serve the queue."""
        return tuple(able.name for able in self.each if type_ in able.types and not able.serves(queue))


class Bounds(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How much is listed; whatever is beyond is counted."""

    roots: int = 1_000
    followers: int = 200
    items: int = 20
    """Of each map."""
    names: int = 10
    """In any list of nodes, edges or keys."""
    origins: int = 5


class ExplainInput:
    """Everything at hand while one explanation is made."""

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
        """Nobody is there at all."""
        self._types: dict[str, frozenset[str]] = {}
        self._left = frozenset(work for able in (workers.each if workers else ()) for work in able.lacks)

    @property
    def full(self) -> bool:
        """Whether `max_parallel` leaves no slot free, so that it is what holds nodes back."""
        limit = self.flow.limits.max_parallel
        return limit is not None and self.state.in_flight >= limit

    def holds(self, job: JobFact) -> bool:
        """Whether somebody has a lease on the job that has not run out."""
        return job.lease_expires_at_ms is not None and not job.expired and job.lease_expires_at_ms > self.now

    def silent_since_ms(self, job: JobFact) -> int | None:
        """When the holder of a job was last heard of, if that is long ago."""
        return None if self.workers is None else self.workers.unresponsive.get(job.owner)

    def lacking(self, job: JobFact, type_: str) -> Failure | None:
        """What keeps all of those from a job who know its type and serve its queue."""
        work = job.key.rsplit("/", 2)[0]
        if not type_ or self.workers is None or work not in self._left:
            return None
        able = [each for each in self.workers.each if type_ in each.types and each.serves(job.queue)]
        found = [each.lacks.get(work) for each in able]
        return found[0] if found and all(found) else None

    def need(self, job: JobFact, type_: str = "") -> Need:
        """Why nobody works on a job that nobody holds; `type_` is what a worker has to know for it."""
        workers = self.workers
        if workers is not None:
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
        return "lost" if job.lease_expires_at_ms is not None else "busy"

    def _types_on(self, workers: Workers, queue: str) -> frozenset[str]:
        """Asked once per queue, because a run may have many jobs."""
        found = self._types.get(queue)
        if found is None:
            found = self._types[queue] = workers.types_on(queue)
        return found

    @cached_property
    def places(self) -> dict[str, int]:
        """The places of nodes in the queue of those that `max_parallel` holds back, from 1."""
        found: dict[str, int] = {}
        name = self.state.first_held
        while name and name not in found:
            found[name] = len(found) + 1
            name = self.state.peek(name).next_held
        return found


def label(node: str, visit: int, index: int = NOT_AN_ITEM) -> str:
    """An activation as sentences name it."""
    item = f"[{index}]" if index != NOT_AN_ITEM else ""
    return f"{node}{item}" if visit <= 1 else f"{node}{item} (visit {visit})"


STARVED = frozenset({"no_worker", "silent", "no_queue", "no_type", "lacking", "value"})
"""Needs that do not pass by themselves: somebody has to start a worker, or to see to what is missing."""

_RANK = 1 << 32
"""More than there can be places in a queue."""
_ORDER = (
    *("missing", "starved", "person", "signal", "wait", "child", "retry", "worker", "lease", "timer"),
    *("items", "loop", "limit", "pause", "join", "edge"),
)
"""What needs somebody comes before what goes on by itself, and whatever only follows comes last. Starved is a job for
which there is no worker."""
_RANKS = {kind: rank * _RANK for rank, kind in enumerate(_ORDER)} | {"edge": _ORDER.index("join") * _RANK}
_FOLLOWERS_FROM = _RANKS["items"]


class WaitingVisit(msgspec.Struct, frozen=True, gc=False):
    """An activation, and what kind of thing it waits for."""

    rank: int
    kind: Kind
    node: Node
    cell: Visit
    item: int
    """Its index in a map, or NOT_AN_ITEM."""
    act: Activation
    job: JobFact | None

    @property
    def root(self) -> bool:
        """Whether it waits for something that is live or outside, and not only for other nodes."""
        return self.rank < _FOLLOWERS_FROM


def survey(scene: ExplainInput) -> list[WaitingVisit]:
    """Every unfinished visit of a live run, and the first items of its maps: roots first."""
    cases: list[WaitingVisit] = []
    peek = scene.state.peek
    for node in scene.flow.nodes:
        cell = peek(node.id)
        status = cell.status
        if status in ENDED:
            continue
        if status == "PENDING":
            cases.append(_pending(scene, node, cell))
        elif cell.map is not None and status == "RUNNING" and not owns_job(cell):
            cases.extend(_map(scene, node, cell, cell.map))
        else:
            cases.append(_active(scene, node, cell, NOT_AN_ITEM, cell))
    cases.sort(key=attrgetter("rank"))
    return cases


def _pending(scene: ExplainInput, node: Node, cell: Visit) -> WaitingVisit:
    if cell.held and scene.full:
        return _held(scene, node, cell)
    kind: Kind = "missing"
    if not cell.fired and len(node.inbound) > cell.taken + cell.dead:
        kind = "edge" if node.single else "join"
    return WaitingVisit(_RANKS[kind], kind, node, cell, NOT_AN_ITEM, cell, None)


def _held(scene: ExplainInput, node: Node, cell: Visit) -> WaitingVisit:
    """Among themselves, those that a limit holds back keep the order of their queue."""
    rank = _RANKS["limit"] + min(scene.places.get(node.id, 0), _RANK - 1)
    return WaitingVisit(rank, "limit", node, cell, NOT_AN_ITEM, cell, None)


def _active(scene: ExplainInput, node: Node, cell: Visit, index: int, act: Activation) -> WaitingVisit:
    """A visit or item that was dispatched, or that waits."""
    if act.status == "WAITING":
        kind, job = _waiting(scene, node, cell, index, act)
    else:
        job = scene.jobs.get(job_key(node, cell, index, act))
        kind = _dispatched(scene, act, job)
    rank = _RANKS[kind]
    if kind == "worker" and scene.workers is not None and job is not None:
        type_ = node.type if act.status != "WAITING" and phase_of(node, cell, index) == "call" else ""
        rank = _RANKS["starved"] if scene.need(job, type_) in STARVED else rank
    return WaitingVisit(rank, kind, node, cell, index, act, job)


def _dispatched(scene: ExplainInput, act: Activation, job: JobFact | None) -> Kind:
    if job is not None and scene.holds(job):
        return "lease"
    backing_off = act.retry_at_ms is not None and max(act.retry_at_ms, job.ready_at_ms if job else 0) > scene.now
    if backing_off and job is not None:
        return "retry"
    if scene.paused and not backing_off:
        # Its job was withdrawn, or is put aside by whoever claims it.
        return "pause"
    return "missing" if job is None else "worker"


def _waiting(scene: ExplainInput, node: Node, cell: Visit, index: int, act: Activation) -> tuple[Kind, JobFact | None]:
    wait, approval = act.wait, act.approval
    if wait is None:
        return "wait", None
    if approval is not None and approval.status == "pending":
        return "person", None
    match wait.on:
        case "signal":
            return "signal", None
        case "loop" if wait.output is not None and node.loop is not None:
            return "loop", None
        case "child":
            job = scene.jobs.get(job_key(node, cell, index, act))
            return "missing" if job is None and not wait.started else "child", job
        case "timer" if wait.until_ms is not None or wait.expires_ms is not None:
            job = scene.jobs.get(job_key(node, cell, index, act))
            return _timer(scene, job), job
        case _:
            return "wait", None


def job_key(node: Node, cell: Visit, index: int, act: Activation) -> str:
    """The name of the job without which an activation does not go on."""
    wait = act.wait
    if act.status != "WAITING" or wait is None:
        return f"run/{node.id}/{cell.visit}/{index}"
    kind: JobKind = "child" if wait.on == "child" else "expire" if expires_first(wait) else "wake"
    return key_of(kind, node.id, cell.visit, index)


def expires_first(wait: Wait) -> bool:
    """Whether a wait times out before its timer is due: it has a job for the earlier of the two only."""
    return wait.expires_ms is not None and (wait.until_ms is None or wait.expires_ms < wait.until_ms)


def _timer(scene: ExplainInput, job: JobFact | None) -> Kind:
    """A timer that is due is work like any other."""
    if job is None:
        return "missing"
    if scene.holds(job):
        return "lease"
    return "timer" if job.ready_at_ms > scene.now else "worker"


def _map(scene: ExplainInput, node: Node, cell: Visit, items: MapState) -> Iterator[WaitingVisit]:
    if cell.held and scene.full and not items.flying:
        yield _held(scene, node, cell)
        return
    rank = _RANKS["items"] if items.flying else _RANKS["missing"]
    yield WaitingVisit(rank, "items", node, cell, NOT_AN_ITEM, cell, None)
    for index in _some(items, scene.bounds.items):
        yield _active(scene, node, cell, index, items.get(index) or QUEUED_ITEM)


def _some(items: MapState, most: int) -> list[int]:
    """The first unfinished items: those that wait or failed before those that are merely queued or run."""
    stirred: list[int] = []
    plain: list[int] = []
    left, get = items.flying, items.get
    for index in range(items.next):
        if not left or len(stirred) >= most:
            break
        act = get(index) or QUEUED_ITEM
        if act.status in ENDED:
            continue
        left -= 1
        if act.status == "WAITING" or act.error is not None:
            stirred.append(index)
        elif len(plain) < most:
            plain.append(index)
    return [*stirred, *plain][:most]
