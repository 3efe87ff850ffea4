"""Facts about what operators did to a run: reopened, rewound, changed, branched off, undid or labelled it.

Whatever a rule decided is written down here (which visits begin again and how many tokens they hold), so that
folding needs neither the workflow nor the rules of the day.
"""

from __future__ import annotations

import msgspec

from tidemill.kernel.events.values import Ending, Error, Event, NodeEvent, Payload


class Reopened(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A visit that is to be made (again), and the tokens that stand at it."""

    node: str
    visit: int
    tokens: int = 0


class Join(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How the inbound edges of a visit that has not begun stand under a changed graph."""

    node: str
    edges: tuple[tuple[str, bool], ...]
    tokens: int
    own: bool = False
    """It holds a start token, which no edge brought."""


class RunRetried(Event, frozen=True, array_like=True, kw_only=True, tag="RunRetried"):
    """A FAILED or CANCELLED run goes on: what failed or was cancelled is PENDING again, in the same visit."""

    nodes: tuple[Reopened, ...]
    emitted: int
    counter: int
    renders: bool = False
    """All visits had ended; the run's outputs are rendered once more."""
    deadline_at_ms: int | None = None
    reason: str = ""
    sure: tuple[str, ...] = ()
    """Nodes whose outcome was unknown and of which the operator says that it did not happen."""


class RunRewound(Event, frozen=True, array_like=True, kw_only=True, tag="RunRewound"):
    """A node and everything behind it is to happen anew, with the next visit number."""

    node: str
    nodes: tuple[Reopened, ...]
    emitted: int
    consumed: int
    counter: int
    restarted: tuple[str, ...] = ()
    """Looping nodes whose loop begins anew, from pass 0."""
    reason: str = ""
    undecided: tuple[tuple[str, str], ...] = ()
    """Edges (from, to) that had died with the end of a loop which now goes on."""


class RunPatched(Event, frozen=True, array_like=True, kw_only=True, tag="RunPatched"):
    """The run goes on under another graph."""

    base: str
    digest: str
    revision: int
    """How many patches this run has had: it runs `name@version+revision` now."""
    patch: Payload
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    relisted: tuple[str, ...] = ()
    """Maps whose list is evaluated anew."""
    emitted: int = 0
    consumed: int = 0
    counter: int = 0
    deadline_at_ms: int | None = None
    message: str = ""


class RunForked(Event, frozen=True, array_like=True, kw_only=True, tag="RunForked"):
    """Everything before this was taken over from another run; what was under way there begins anew here."""

    run: str
    at: int
    """The seq of the last event that is shared."""
    deadline_at_ms: int | None = None
    reason: str = ""


class RunLabelled(Event, frozen=True, array_like=True, kw_only=True, tag="RunLabelled"):
    labels: dict[str, str]
    """All labels that the run has from now on."""


class NodeOverridden(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeOverridden"):
    """A visit or item was settled by hand. QUEUED: the value stands, a worker still evaluates the conditions."""

    status: str
    output: Payload | None = None
    reason: str = ""
    size: int = 0
    undoable: bool = False


class DeadLetterClosed(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="DeadLetterClosed"):
    status: str
    """`reprocessed` or `discarded`."""
    reason: str = ""


class RollbackStarted(Event, frozen=True, array_like=True, kw_only=True, tag="RollbackStarted"):
    steps: int
    unknown: tuple[str, ...] = ()
    """Activations nobody knows the outcome of: a rollback cannot undo them, and says so."""
    reason: str = ""


class RollbackFinished(Event, frozen=True, array_like=True, kw_only=True, tag="RollbackFinished"):
    status: str
    """`done`, or `partial` when something is left."""
    left: tuple[str, ...] = ()
    """Activations that were not undone, as node/visit/index."""


class CompensationScheduled(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="CompensationScheduled"):
    of: int
    """The seq at which the visit or item had completed."""


class CompensationCompleted(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="CompensationCompleted"):
    attempt: int
    output: Payload | None = None
    worker: str = ""
    duration_ms: int = 0
    token: int = 0


class CompensationFailed(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="CompensationFailed"):
    """An attempt to undo failed. Without `retry_at_ms` it is given up, and the rollback will be partial."""

    attempt: int
    error: Error
    retry_at_ms: int | None = None
    worker: str = ""
    duration_ms: int = 0
    token: int = 0
    lost: bool = False


ActEvents = (
    RunRetried
    | RunRewound
    | RunPatched
    | RunForked
    | RunLabelled
    | NodeOverridden
    | DeadLetterClosed
    | RollbackStarted
    | RollbackFinished
    | CompensationScheduled
    | CompensationCompleted
    | CompensationFailed
)
