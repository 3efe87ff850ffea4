"""The one pass over a live run: what kind of thing each unfinished visit waits for, and in which order to tell it.

Only the kind is found out here, which is cheap. Sentences are made afterwards, for as many as are listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import msgspec

from tidemill.kernel.activation import ENDED, QUEUED_ITEM, Activation, Wait
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.blockers import Kind
from tidemill.kernel.explain.scene import JobFact, Scene
from tidemill.kernel.items import MapState
from tidemill.kernel.jobs import JobKind, key_of
from tidemill.kernel.model import Node
from tidemill.kernel.routing import owns_job
from tidemill.kernel.standing import phase_of
from tidemill.kernel.state import Cell

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


class Case(msgspec.Struct, frozen=True, gc=False):
    """An activation, and what kind of thing it waits for."""

    rank: int
    kind: Kind
    node: Node
    cell: Cell
    item: int
    """Its index in a map, or NOT_AN_ITEM."""
    act: Activation
    job: JobFact | None

    @property
    def root(self) -> bool:
        """Whether it waits for something that is live or outside, and not only for other nodes."""
        return self.rank < _FOLLOWERS_FROM


def survey(scene: Scene) -> list[Case]:
    """Every unfinished visit of a live run, and the first items of its maps: roots first."""
    cases: list[Case] = []
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


def _pending(scene: Scene, node: Node, cell: Cell) -> Case:
    if cell.held and scene.full:
        return _held(scene, node, cell)
    kind: Kind = "missing"
    if not cell.fired and len(node.inbound) > cell.taken + cell.dead:
        kind = "edge" if node.single else "join"
    return Case(_RANKS[kind], kind, node, cell, NOT_AN_ITEM, cell, None)


def _held(scene: Scene, node: Node, cell: Cell) -> Case:
    """Among themselves, those that a limit holds back keep the order of their queue."""
    rank = _RANKS["limit"] + min(scene.places.get(node.id, 0), _RANK - 1)
    return Case(rank, "limit", node, cell, NOT_AN_ITEM, cell, None)


def _active(scene: Scene, node: Node, cell: Cell, index: int, act: Activation) -> Case:
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
    return Case(rank, kind, node, cell, index, act, job)


def _dispatched(scene: Scene, act: Activation, job: JobFact | None) -> Kind:
    if job is not None and scene.holds(job):
        return "lease"
    backing_off = act.retry_at_ms is not None and max(act.retry_at_ms, job.ready_at_ms if job else 0) > scene.now
    if backing_off and job is not None:
        return "retry"
    if scene.paused and not backing_off:
        # Its job was withdrawn, or is put aside by whoever claims it.
        return "pause"
    return "missing" if job is None else "worker"


def _waiting(scene: Scene, node: Node, cell: Cell, index: int, act: Activation) -> tuple[Kind, JobFact | None]:
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


def job_key(node: Node, cell: Cell, index: int, act: Activation) -> str:
    """The name of the job without which an activation does not go on."""
    wait = act.wait
    if act.status != "WAITING" or wait is None:
        return f"run/{node.id}/{cell.visit}/{index}"
    kind: JobKind = "child" if wait.on == "child" else "expire" if expires_first(wait) else "wake"
    return key_of(kind, node.id, cell.visit, index)


def expires_first(wait: Wait) -> bool:
    """Whether a wait times out before its timer is due: it has a job for the earlier of the two only."""
    return wait.expires_ms is not None and (wait.until_ms is None or wait.expires_ms < wait.until_ms)


def _timer(scene: Scene, job: JobFact | None) -> Kind:
    """A timer that is due is work like any other."""
    if job is None:
        return "missing"
    if scene.holds(job):
        return "lease"
    return "timer" if job.ready_at_ms > scene.now else "worker"


def _map(scene: Scene, node: Node, cell: Cell, items: MapState) -> Iterator[Case]:
    if cell.held and scene.full and not items.flying:
        yield _held(scene, node, cell)
        return
    rank = _RANKS["items"] if items.flying else _RANKS["missing"]
    yield Case(rank, "items", node, cell, NOT_AN_ITEM, cell, None)
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
