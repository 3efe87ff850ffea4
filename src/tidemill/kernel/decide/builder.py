"""DecisionBuilder (was Pen), Decision; attempt facts, retry delay.

The pen a decision is written with: events folded into a draft as they are written, and the work they call for.

A rule that needs to know what an earlier rule of the same decision did just looks at `pen.state`. Ending a
visit only decides its edges; what follows from them (joins that fire, nodes that are skipped) waits on the
agenda until all of them are decided.

How long to wait before something is tried again, and how often a lost worker is forgiven.

What is written down about an attempt that ended: the facts of its report, and the words of its failure.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from tidemill.kernel.commands import AnyCommand
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent, DeadLettered, Error, NodeFailed, Payload, Reading
from tidemill.kernel.evolve import evolve
from tidemill.kernel.jobs import DISPATCHING, JobSpec
from tidemill.kernel.model import Node, Retry, Workflow
from tidemill.kernel.state import State, draft_of

LOST_IN_A_ROW_MAX = 5


def retry_delay_ms(retry: Retry, failures: int, retry_after_ms: int | None, chance: float) -> int:
    """How long to wait after the n-th failure: what the peer asked for, else exponential with jitter."""
    if retry_after_ms is not None:
        return max(0, retry_after_ms)
    # The exponent is bounded so that a long series of failures cannot overflow a float.
    delay = min(retry.max_backoff_ms, retry.backoff_ms * retry.multiplier ** min(failures - 1, 64))
    return max(0, min(retry.max_backoff_ms, int(delay * (1 + retry.jitter * (2 * chance - 1)))))


class Work(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the store has to do with jobs, in the commit that writes the events."""

    put: tuple[JobSpec, ...] = ()
    drop: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The facts that follow from a command, in order, and the work that follows from the facts."""

    events: tuple[AnyEvent, ...]
    work: Work
    after: State
    """The state that these facts lead to: a draft, for whoever describes the run in the same commit."""


class DecisionBuilder:
    """Everything one decision needs at hand."""

    __slots__ = (
        "_drops",
        "_puts",
        "_withdrawn",
        "actor",
        "cause",
        "command",
        "events",
        "flow",
        "loops",
        "now",
        "pending_nodes",
        "state",
    )  # fmt: skip

    def __init__(self, flow: Workflow, state: State, now_ms: int) -> None:
        self.flow = flow
        self.state = draft_of(state)
        self.now = now_ms
        self.events: list[AnyEvent] = []
        self._puts: dict[str, JobSpec] = {}
        self._drops: list[str] = []
        self._withdrawn: list[str] = []
        self.pending_nodes: deque[tuple[str, int]] = deque()
        """Nodes whose inbound edges changed, each with the seq of the event that changed them."""
        self.loops: list[str] = []
        """Looping nodes that wait for their body, to be looked at once the agenda is empty."""
        self.actor: str | None = None
        self.command: str | None = None
        self.cause = 0

    def begin_command(self, command: AnyCommand) -> None:
        """Begin with the next command."""
        self.actor, self.command, self.cause = command.actor, command.id, 0

    def emit(self, event: AnyEvent) -> None:
        """Write a fact down and let the draft know it."""
        self.events.append(event)
        evolve(self.state, event)

    def add_job(self, job: JobSpec) -> None:
        """Ask for a job. A paused run dispatches nothing; resuming asks for everything the state calls for."""
        if self.state.status != "PAUSED" or job.task.kind not in DISPATCHING or job.ready_at_ms:
            self._puts[job.key] = job

    def remove_job(self, key: str) -> None:
        """Ask for a job's removal. The store removes before it inserts, so one asked for just now is taken back."""
        self._puts.pop(key, None)
        self._drops.append(key)

    def withdraw_job(self, key: str) -> None:
        """Ask for the removal of a job that nobody works on."""
        self._puts.pop(key, None)
        self._withdrawn.append(key)

    def decision(self) -> Decision:
        """What was written."""
        return Decision(
            events=tuple(self.events),
            work=Work(put=tuple(self._puts.values()), drop=tuple(self._drops), withdraw=tuple(self._withdrawn)),
            after=self.state,
        )


class AttemptFacts(msgspec.Struct, frozen=True, gc=False):
    """What the event of an ended attempt repeats from the command that reported it."""

    token: int = 0
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    cause: int = 0
    reads: tuple[Reading, ...] = ()
    """What a condition was asked over that failed."""


NO_FACTS = AttemptFacts()


def failure(
    pen: DecisionBuilder, node: Node, index: int, attempt: int, error: Error, facts: AttemptFacts
) -> NodeFailed:
    """The event of a failed attempt, before anything is said about what follows from it."""
    return NodeFailed(
        at_ms=pen.now,
        cause=facts.cause,
        node=node.id,
        visit=pen.state.peek(node.id).visit,
        index=index,
        counter=pen.state.counter,
        attempt=attempt,
        error=error,
        worker=facts.worker,
        duration_ms=facts.duration_ms,
        waited_ms=facts.waited_ms,
        token=facts.token,
        reads=facts.reads,
    )


def dead_letter(pen: DecisionBuilder, node: Node, visit: int, index: int, attempts: int, error: Error) -> None:
    """Record a failure that nobody will try again by itself."""
    pen.emit(
        DeadLettered(
            at_ms=pen.now,
            cause=pen.state.seq,
            node=node.id,
            visit=visit,
            index=index,
            attempts=attempts,
            error=error,
        )
    )


def error_envelope(error: Error) -> Payload:
    """What others see as the output of a tolerated failure."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.type:
        body["type"] = error.type
    if error.index != NOT_AN_ITEM:
        body["index"] = error.index
    return msgspec.json.encode({"error": body})
