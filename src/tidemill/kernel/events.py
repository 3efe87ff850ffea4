"""Everything that can have happened (closed union; one file, sections run / node / wait / operator).

Facts about what operators did to a run: reopened, rewound, changed, branched off, undid or labelled it.

Whatever a rule decided is written down here (which visits begin again and how many tokens they hold), so that
folding needs neither the workflow nor the rules of the day.

What facts are made of: values as they are stored, errors, routes, and the fields that every event has.

Everything is positional, so a new field is appended with a default and never inserted.

Facts about a visit of a node, or about one item of a map.

Facts about a run as a whole: how it began, how it ended, and what was done to it from outside.

Facts about what a run waits for: people who decide, signals, children.

The facts of a run: one closed set, tagged and versioned.

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


Reading = tuple[str, str]
"""A value that a decision was made over: its name, and the digest of its text."""


class Route(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a worker found when it evaluated a node's conditions; recorded, never evaluated again."""

    again: bool | None = None
    """The loop's condition: True for one more pass. None on a node without a loop."""
    branch: tuple[str, ...] | None = None
    """Targets the branch chose; None when no branch was evaluated."""
    rule: int = -1
    """Which rule of the branch matched; -1 is the default."""
    reason: str = ""
    """Why the branch went this way."""
    again_reason: str = ""
    """Why the loop goes on or ends."""
    reads: tuple[Reading, ...] = ()


class Admission(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How `when` was decided, once and for the whole visit, where it was true."""

    reason: str
    reads: tuple[Reading, ...] = ()


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


class RunCreated(Event, frozen=True, array_like=True, kw_only=True, tag="RunCreated"):
    workflow: str
    version: int
    digest: str
    inputs: Payload
    entries: tuple[str, ...]
    """Each entry node is given one start token by this event."""
    counter: int
    submitted_by: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    correlation_id: str = ""
    trace: str = ""
    tag_used: str = ""
    deadline_at_ms: int | None = None
    parent: tuple[str, str, int, int] | None = None
    forked_from: tuple[str, int] | None = None
    close: str = ""
    """Of a child: what becomes of it when its parent no longer waits for it, `cancel` or `abandon`."""
    depth: int = 0
    """How many parents there are above a child."""


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
    unread: tuple[str, ...] = ()
    """Names of signals that nobody took."""


class RunFailed(Event, frozen=True, array_like=True, kw_only=True, tag="RunFailed"):
    node: str
    """The first failing node; empty when the run as a whole failed (deadline, outputs)."""
    visit: int
    error: Error
    consumed: int = 0
    counter: int = 0
    unread: tuple[str, ...] = ()


class RunCancelled(Event, frozen=True, array_like=True, kw_only=True, tag="RunCancelled"):
    reason: str = ""
    consumed: int = 0
    counter: int = 0
    unread: tuple[str, ...] = ()


RunEvents = RunCreated | RunPaused | RunResumed | RunRepaired | RunCompleted | RunFailed | RunCancelled


SYSTEM = "system"
"""Who decided when a time-out did."""


# Approvals


class ApprovalEvent(NodeEvent, frozen=True, array_like=True, kw_only=True):
    """A fact about the approval that an activation waits for; there is one per (node, visit, index)."""


class ApprovalRequested(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalRequested"):
    title: str
    description: str = ""
    form: Payload | None = None
    """The JSON Schema of what is to be filled in."""
    approvers: tuple[str, ...] = ()
    """`user:…` and `role:…`; empty is anyone."""
    quorum: int = 1
    four_eyes: bool = False
    """Whoever submitted the run, or patched it, may not decide."""
    requester: str = ""
    timeout_ms: int | None = None
    expires_ms: int | None = None
    on_timeout: str = "fail"
    escalate_to: tuple[str, ...] = ()
    url: str = ""


class ApprovalVoted(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalVoted"):
    """An approval that is not yet enough: more people have to agree."""

    by: str
    comments: str = ""
    form: Payload | None = None
    on_behalf_of: str = ""


class ApprovalDelegated(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalDelegated"):
    by: str
    to: str
    comments: str = ""


class ApprovalReturned(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalReturned"):
    """Changes were requested: neither approved nor rejected."""

    by: str
    comments: str = ""
    form: Payload | None = None
    on_behalf_of: str = ""


class ApprovalDecided(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalDecided"):
    decision: str
    """`approve` or `reject`."""
    by: str
    comments: str = ""
    form: Payload | None = None
    on_behalf_of: str = ""


class ApprovalEscalated(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalEscalated"):
    to: tuple[str, ...]
    expires_ms: int | None = None


class ApprovalExpired(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalExpired"):
    pass


# Signals


class SignalReceived(Event, frozen=True, array_like=True, kw_only=True, tag="SignalReceived"):
    """Somebody told the run something. Without a node it is kept until a node asks for it."""

    name: str
    signal: str
    """Its id: a second one with the same id changes nothing."""
    payload: Payload
    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM


# Children


class ChildStarted(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="ChildStarted"):
    child: str
    workflow: str
    version: int
    digest: str


class ChildFinished(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="ChildFinished"):
    child: str
    status: str
    error: Error | None = None


ApprovalEvents = (
    ApprovalRequested
    | ApprovalVoted
    | ApprovalDelegated
    | ApprovalReturned
    | ApprovalDecided
    | ApprovalEscalated
    | ApprovalExpired
)
WaitEvents = ApprovalEvents | SignalReceived | ChildStarted | ChildFinished


AnyEvent = RunEvents | NodeEvents | WaitEvents | ActEvents

__all__ = [
    "INLINE_BYTES_MAX", "NOT_AN_ITEM", "SYSTEM", "ActEvents", "Admission", "AnyEvent", "ApprovalDecided",
    "ApprovalDelegated", "ApprovalEscalated", "ApprovalEvent", "ApprovalEvents", "ApprovalExpired", "ApprovalRequested",
    "ApprovalReturned", "ApprovalVoted", "BlobRef", "ChildFinished", "ChildStarted", "CompensationCompleted",
    "CompensationFailed", "CompensationScheduled", "DeadLetterClosed", "DeadLettered", "Ending", "Error", "Event",
    "Join", "LoopContinued", "NodeCancelled", "NodeCheckpointed", "NodeCompleted", "NodeEvent", "NodeEvents",
    "NodeExpanded", "NodeFailed", "NodeOverridden", "NodeScheduled", "NodeSkipped", "NodeStarted", "NodeWaiting",
    "Payload", "Reading", "Reopened", "ResultDiscarded", "RollbackFinished", "RollbackStarted", "Route", "RunCancelled",
    "RunCompleted", "RunCreated", "RunEvents", "RunFailed", "RunForked", "RunLabelled", "RunPatched", "RunPaused",
    "RunRepaired", "RunResumed", "RunRetried", "RunRewound", "SignalReceived", "WaitEvents",
]  # fmt: skip
