"""The facts of a run: one closed set, tagged and versioned.

An event is written once and read for ever, so its bytes are a promise: fields are positional, new ones are
appended with a default, and anything else is a new format `v` with an upcast in `codec.py`. The run and the
seq are not stored inside: they are the stream's name and the record's place in it. Values (outputs, inputs)
travel as JSON text or as a reference to a blob, never as decoded objects, so folding a log decodes nothing.
"""

from __future__ import annotations

import msgspec

INLINE_BYTES_MAX = 65_536
"""Values longer than this are stored by content and referenced."""

NOT_AN_ITEM = -1
"""The `index` of an activation that is not an item of a map."""


class BlobRef(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A value stored by content outside the log."""

    digest: str
    size: int
    media_type: str = "application/json"
    name: str = ""


Payload = bytes | BlobRef
"""A JSON value: its text, or where its text is."""


class Error(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Why a visit or attempt failed; always serialisable, whatever the exception held."""

    code: str
    message: str
    type: str = ""
    retryable: bool = False
    hint: str = ""
    causes: tuple[str, ...] = ()
    traceback: str = ""
    index: int = NOT_AN_ITEM
    """The failing item, when a map failed because of one."""


class Route(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a worker found when it evaluated a node's conditions; recorded, never evaluated again."""

    again: bool | None = None
    """The loop's condition: True for one more pass. None on a node without a loop."""
    branch: tuple[str, ...] | None = None
    """Targets the branch chose; None when no branch was evaluated."""
    rule: int = -1
    """Which rule of the branch matched; -1 is the default."""
    reason: str = ""


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True, kw_only=True):
    """What every fact carries. `cause` is the seq that led to it, 0 when somebody outside did."""

    v: int = 1
    at_ms: int = 0
    cause: int = 0
    actor: str | None = None
    command: str | None = None


class NodeEvent(Event, frozen=True, array_like=True, kw_only=True):
    """A fact about one activation of a node."""

    node: str
    visit: int
    index: int = NOT_AN_ITEM


class Ending(NodeEvent, frozen=True, array_like=True, kw_only=True):
    """A fact that may end a visit: it decides edges, consumes tokens and emits others, all at once.

    `counter` is the run's token count after this fact. An edge listed in `dead_escapes` belongs to another
    node of a loop that is over. An attempt that is tried again and an item of a map decide no edges.
    """

    taken: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    dead_escapes: tuple[tuple[str, str], ...] = ()
    emitted: int = 0
    consumed: int = 0
    counter: int = 0
    renders: bool = False
    """This was the last visit: the one token left stands for the rendering of the run's outputs."""


# Runs


class RunCreated(Event, frozen=True, array_like=True, kw_only=True, tag="RunCreated"):
    workflow: str
    version: int
    digest: str
    inputs: Payload
    entries: tuple[str, ...]
    """Each entry node is given one start token by this event."""
    counter: int
    submitted_by: str = ""
    labels: dict[str, str] = {}
    correlation_id: str = ""
    trace: str = ""
    tag_used: str = ""
    deadline_at_ms: int | None = None
    parent: tuple[str, str, int, int] | None = None
    forked_from: tuple[str, int] | None = None


class RunPaused(Event, frozen=True, array_like=True, kw_only=True, tag="RunPaused"):
    reason: str = ""


class RunResumed(Event, frozen=True, array_like=True, kw_only=True, tag="RunResumed"):
    reason: str = ""


class RunRepaired(Event, frozen=True, array_like=True, kw_only=True, tag="RunRepaired"):
    """The audit found work without an owner, or an owner without work, and put it right."""

    reason: str
    restored: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class RunCompleted(Event, frozen=True, array_like=True, kw_only=True, tag="RunCompleted"):
    outputs: Payload | None = None
    """None: the run declares no outputs and returns those of its terminal nodes."""
    consumed: int = 0
    counter: int = 0
    tolerated: int = 0


class RunFailed(Event, frozen=True, array_like=True, kw_only=True, tag="RunFailed"):
    node: str
    """The first failing node; empty when the run as a whole failed (deadline, outputs)."""
    visit: int
    error: Error
    consumed: int = 0
    counter: int = 0


class RunCancelled(Event, frozen=True, array_like=True, kw_only=True, tag="RunCancelled"):
    reason: str = ""
    consumed: int = 0
    counter: int = 0


# Nodes


class NodeScheduled(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeScheduled"):
    """The activation is ready. `held`: not dispatched yet, because of `max_parallel`."""

    until: int = NOT_AN_ITEM
    """For items of a map: the end (exclusive) of the range index…until that was queued."""
    held: bool = False
    hop: int = 0
    resumed: Payload | None = None
    """What a wait ended with, when conditions still have to be evaluated over it."""


class NodeStarted(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeStarted"):
    attempt: int
    token: int
    """The fence of the lease under which the attempt runs; grows with every attempt."""
    worker: str = ""


class NodeCheckpointed(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeCheckpointed"):
    attempt: int
    value: Payload


class NodeExpanded(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeExpanded"):
    """A map's list is known: `count` items, whose values are in `items`, `window` of them at a time."""

    count: int
    items: Payload
    window: int
    token: int = 0


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


class NodeCompleted(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeCompleted"):
    attempt: int
    output: Payload
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    route: Route | None = None
    size: int = 0
    token: int = 0


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


class NodeSkipped(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeSkipped"):
    reason: str = ""
    token: int = 0


class NodeCancelled(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeCancelled"):
    reason: str = ""


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
RunEvents = RunCreated | RunPaused | RunResumed | RunRepaired | RunCompleted | RunFailed | RunCancelled
AnyEvent = RunEvents | NodeEvents
