"""What an explanation is made from: the workflow, the state, the store's jobs, the workers, the moment, the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.blockers import Failure, Need
from tidemill.kernel.jobs import SYSTEM_QUEUE
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State


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


class Able(msgspec.Struct, frozen=True, gc=False, kw_only=True):
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
    each: tuple[Able, ...] = ()
    """Who they are, where that is known: a type counts only with somebody who serves the queue too."""
    silent: Mapping[str, int] = {}
    """Those not heard of for long, and when each was last. They may still hold leases that have not run out."""
    mute: tuple[str, ...] = ()
    """Those of them whose processes are there all the same."""

    @classmethod
    def of(cls, each: Sequence[Able], silent: Mapping[str, int] | None = None, mute: tuple[str, ...] = ()) -> Workers:
        """The workers that are there, and those that have fallen silent."""
        queues: frozenset[str] | None = frozenset()
        for able in each:
            queues = None if queues is None or able.queues is None else queues | able.queues
        types = frozenset().union(*(able.types for able in each))
        return cls(queues=queues, types=types, each=tuple(each), silent=silent or {}, mute=mute)

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


class Scene:
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
        return None if self.workers is None else self.workers.silent.get(job.owner)

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
                return "silent" if workers.mute else "no_worker"
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
            name = self.state.peek(name).behind
        return found


def label(node: str, visit: int, index: int = NOT_AN_ITEM) -> str:
    """An activation as sentences name it."""
    item = f"[{index}]" if index != NOT_AN_ITEM else ""
    return f"{node}{item}" if visit <= 1 else f"{node}{item} (visit {visit})"
