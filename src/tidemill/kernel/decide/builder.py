"""DecisionBuilder collects the events and job changes of one decision.

`emit` applies each event to a draft of the state at once, so later rules of the decision see earlier ones. Ending a
visit only decides its edges; the joins they affect are queued in `pending_nodes` and processed by `visits.settle`.
Also here: the fields of an ended attempt that several rules write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Any

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent, DeadLettered, Error, NodeFailed, Payload, Reading
from tidemill.kernel.evolve import evolve
from tidemill.kernel.jobs import DISPATCHING, JobSpec
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.spending import Budget, left_of, stricter
from tidemill.kernel.state import State, draft_of


def problem(code: str, message: str, hint: str = "") -> Problem:
    return Problem(code=code, message=message, hint=hint)


class Work(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Job changes that the store makes in the commit of the events."""

    put: tuple[JobSpec, ...] = ()
    drop: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    """Jobs that must be idle in the commit: the decision says that no worker has called their handlers."""


class Decision(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The events that follow from a command, in order, and the job changes that belong to them."""

    events: tuple[AnyEvent, ...]
    work: Work
    after: State
    """The state after these events: a draft, from which the caller derives the index rows of the same commit."""


class DecisionBuilder:
    __slots__ = (
        *("_drops", "_idle", "_puts", "_withdrawn", "actor", "cause", "claimed", "command"),
        *("events", "flow", "loops", "now", "pending_nodes", "state"),
    )

    def __init__(self, flow: Workflow, state: State, now_ms: int, claimed: Container[str] = ()) -> None:
        self.flow = flow
        self.claimed = claimed
        """Keys of jobs that are known not to be idle: a worker may have called their handlers."""
        self.state = draft_of(state)
        self.now = now_ms
        self.events: list[AnyEvent] = []
        self._puts: dict[str, JobSpec] = {}
        self._drops: list[str] = []
        self._withdrawn: list[str] = []
        self._idle: list[str] = []
        self.pending_nodes: deque[tuple[str, int]] = deque()
        """Nodes whose inbound edges changed, each with the seq of the event that changed them."""
        self.loops: list[str] = []
        """Looping nodes that wait for their body, checked once `pending_nodes` is empty."""
        self.actor: str | None = None
        self.command: str | None = None
        self.cause = 0

    @property
    def command_fields(self) -> dict[str, Any]:
        """Fields of an event that records the command itself."""
        return {"at_ms": self.now, "actor": self.actor, "command": self.command}

    def node_fields(self, node: str, index: int = NOT_AN_ITEM) -> dict[str, Any]:
        """Fields of an event about a node's latest visit that follows from `cause`."""
        visit = self.state.peek(node).visit
        return {"at_ms": self.now, "cause": self.cause, "node": node, "visit": visit, "index": index}

    def emit(self, event: AnyEvent) -> None:
        """Append an event and apply it to the draft."""
        self.events.append(event)
        evolve(self.state, event)

    def add_job(self, job: JobSpec) -> None:
        """Insert a job. A paused run dispatches nothing; resuming adds every job that the state needs."""
        if self.state.status != "PAUSED" or job.task.kind not in DISPATCHING or job.ready_at_ms:
            self._puts[job.key] = job

    def remove_job(self, key: str) -> None:
        """Remove a job. The store removes before it inserts, so a job added by this decision is dropped here."""
        self._puts.pop(key, None)
        self._drops.append(key)

    def withdraw_job(self, key: str) -> None:
        """Remove a job unless a worker holds it."""
        self._puts.pop(key, None)
        self._withdrawn.append(key)

    def is_idle(self, key: str) -> bool:
        """Whether no worker can have called the handler of a job; if so, the commit requires it."""
        if key in self.claimed:
            return False
        self._idle.append(key)
        return True

    def decision(self) -> Decision:
        work = Work(
            put=tuple(self._puts.values()),
            drop=tuple(self._drops),
            withdraw=tuple(self._withdrawn),
            idle=tuple(self._idle),
        )
        return Decision(events=tuple(self.events), work=work, after=self.state)


def budget_of(builder: DecisionBuilder) -> Budget:
    """What the run may spend on language models."""
    return stricter(builder.flow.limits.budget, builder.state.budget)


def budget_left(builder: DecisionBuilder) -> Budget:
    """What the run may still spend on language models, without what is set aside."""
    return left_of(budget_of(builder), builder.state.spent + builder.state.reserved)


class AttemptFacts(msgspec.Struct, frozen=True, gc=False):
    """Fields that the event of an ended attempt copies from the worker's report."""

    token: int = 0
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    cause: int = 0
    reads: tuple[Reading, ...] = ()
    """What a failed condition had read."""
    blocked_ms: int = 0
    unknown: bool = False


NO_FACTS = AttemptFacts()


def failure(
    builder: DecisionBuilder, node: Node, index: int, attempt: int, error: Error, facts: AttemptFacts
) -> NodeFailed:
    """The event of a failed attempt, without its consequences."""
    return NodeFailed(
        at_ms=builder.now,
        cause=facts.cause,
        node=node.id,
        visit=builder.state.peek(node.id).visit,
        index=index,
        counter=builder.state.counter,
        attempt=attempt,
        error=error,
        worker=facts.worker,
        duration_ms=facts.duration_ms,
        waited_ms=facts.waited_ms,
        token=facts.token,
        reads=facts.reads,
        blocked_ms=facts.blocked_ms,
        unknown=facts.unknown,
    )


def dead_letter(builder: DecisionBuilder, node: Node, visit: int, index: int, attempts: int, error: Error) -> None:
    """Record a failure that is not retried automatically."""
    builder.emit(
        DeadLettered(
            at_ms=builder.now,
            cause=builder.state.seq,
            node=node.id,
            visit=visit,
            index=index,
            attempts=attempts,
            error=error,
        )
    )


def error_envelope(error: Error) -> Payload:
    """The output that readers see of a tolerated failure."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.type:
        body["type"] = error.type
    if error.index != NOT_AN_ITEM:
        body["index"] = error.index
    return msgspec.json.encode({"error": body})
