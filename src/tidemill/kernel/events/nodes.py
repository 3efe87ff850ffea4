"""Facts about a visit of a node, or about one item of a map."""

from __future__ import annotations

from tidemill.kernel.events.values import (
    NOT_AN_ITEM,
    Admission,
    Ending,
    Error,
    Event,
    NodeEvent,
    Payload,
    Reading,
    Route,
)


class NodeScheduled(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeScheduled"):
    """The activation is ready. `held`: not dispatched yet, because of `max_parallel`."""

    until: int = NOT_AN_ITEM
    """For items of a map: the end (exclusive) of the range index…until that was queued."""
    held: bool = False
    hop: int = 0
    resumed: Payload | None = None
    """What a wait ended with, when conditions still have to be evaluated over it."""
    recall: bool = False
    """The handler asked to be called again with what the wait ended with."""


class NodeStarted(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeStarted"):
    attempt: int
    token: int
    """The fence of the lease under which the attempt runs; grows with every attempt."""
    worker: str = ""
    admission: Admission | None = None
    """On the first attempt of a visit with a `when`: why it happens."""


class NodeCheckpointed(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeCheckpointed"):
    attempt: int
    value: Payload


class NodeExpanded(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeExpanded"):
    """A map's list is known: `count` items, whose values are in `items`, `window` of them at a time."""

    count: int
    items: Payload
    window: int
    token: int = 0
    admission: Admission | None = None
    """Why the visit happens, if it has a `when`."""


class NodeWaiting(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeWaiting"):
    """The visit waits without costing anything. `on` names what for: timer, loop, human, signal, child."""

    attempt: int
    on: str
    name: str = ""
    until_ms: int | None = None
    expires_ms: int | None = None
    output: Payload | None = None
    """For `loop`: the result of the pass, kept until the rest of the body has ended."""
    route: Route | None = None
    worker: str = ""
    duration_ms: int = 0
    token: int = 0
    recall: bool = False
    """When the wait is over, the handler is called again with what it ended with."""
    ask: Payload | None = None
    """For `child`: which workflow to start with which inputs."""
    close: str = ""
    """For `child`: what becomes of it when nobody waits for it any more, `cancel` or `abandon`."""
    signal: str = ""
    """For `signal`: the one that had arrived before and is taken now."""


class NodeCompleted(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeCompleted"):
    attempt: int
    output: Payload
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    route: Route | None = None
    size: int = 0
    token: int = 0
    undoable: bool = False
    """A rollback would have to undo this: the node has a compensator."""


class NodeFailed(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeFailed"):
    """An attempt failed. With `retry_at_ms` it is tried again then; without, the visit or item is over."""

    attempt: int
    error: Error
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    retry_at_ms: int | None = None
    tolerated: bool = False
    output: Payload | None = None
    """The error envelope, where others may read it."""
    token: int = 0
    lost: bool = False
    """The worker was lost: tried again without using up the retry policy."""
    reads: tuple[Reading, ...] = ()
    """What the condition was asked over that could not be decided."""


class NodeSkipped(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeSkipped"):
    reason: str = ""
    token: int = 0
    reads: tuple[Reading, ...] = ()
    """What `when` was decided over."""


class NodeCancelled(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeCancelled"):
    reason: str = ""
    unknown: bool = False
    """It may have been under way: nobody knows whether there is something that a rollback would have to undo."""


class LoopContinued(Event, frozen=True, array_like=True, kw_only=True, tag="LoopContinued"):
    """Another pass: every node of `body` is PENDING again with the next visit number."""

    node: str
    entry: str
    iteration: int
    """The number of the pass that begins, counted from 0."""
    body: tuple[str, ...]
    hop: int = 0


class ResultDiscarded(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="ResultDiscarded"):
    """A result came too late, twice, or from an attempt that no longer counts."""

    attempt: int
    token: int
    outcome: str
    reason: str
    worker: str = ""


class DeadLettered(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="DeadLettered"):
    attempts: int
    error: Error


NodeEvents = (
    NodeScheduled
    | NodeStarted
    | NodeCheckpointed
    | NodeExpanded
    | NodeWaiting
    | NodeCompleted
    | NodeFailed
    | NodeSkipped
    | NodeCancelled
    | LoopContinued
    | ResultDiscarded
    | DeadLettered
)
