"""The events of a run: one closed, tagged and versioned union.

The bytes of an event are stored for ever. Fields are positional: append new ones with a default, never insert or
reorder; any other change needs a new format `v` and an upcast in `codec`. A version without the field, or without the
event type, leaves the run to newer workers (`forbid_unknown_fields`). The run id and the seq are not stored in the
event. Payloads stay JSON text or a blob reference, so that folding a log decodes nothing. Everything a rule
decided (edges, tokens, visits that start again) is recorded, so that folding needs neither workflow nor rules.
"""

from __future__ import annotations

import msgspec

from tidemill.kernel.spending import Budget, Spend

INLINE_BYTES_MAX = 65_536
"""Longer values are stored as blobs and referenced."""

NOT_AN_ITEM = -1
"""The `index` of an activation that is not an item of a map."""


class BlobRef(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A value stored outside the log, addressed by its content."""

    digest: str
    size: int
    media_type: str = "application/json"
    name: str = ""


Payload = bytes | BlobRef
"""A JSON value: its text, or a reference to its text."""


class Error(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Why a visit or attempt failed; always serialisable."""

    code: str
    message: str
    type: str = ""
    retryable: bool = False
    hint: str = ""
    causes: tuple[str, ...] = ()
    traceback: str = ""
    index: int = NOT_AN_ITEM
    """The item because of which a map failed."""


Reading = tuple[str, str]
"""A value that a condition read: its name, and the digest of its text."""


class Route(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The result of a node's conditions, evaluated once by a worker."""

    again: bool | None = None
    """The loop's condition: True for one more pass. None on a node without a loop."""
    branch: tuple[str, ...] | None = None
    """Targets that the branch chose; None if no branch was evaluated."""
    rule: int = -1
    """Index of the rule that matched; -1 is the default."""
    reason: str = ""
    """Why the branch chose these targets."""
    again_reason: str = ""
    """Why the loop continues or ends."""
    reads: tuple[Reading, ...] = ()


class Admission(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Why `when` was true; decided once per visit."""

    reason: str
    reads: tuple[Reading, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, kw_only=True):
    """`cause` is the seq of the event that led to this one, 0 for a cause outside the run."""

    v: int = 1
    at_ms: int = 0
    cause: int = 0
    actor: str | None = None
    command: str | None = None


class NodeEvent(Event, frozen=True, array_like=True, kw_only=True):
    """An event of one activation."""

    node: str
    visit: int
    index: int = NOT_AN_ITEM


class Ending(NodeEvent, frozen=True, array_like=True, kw_only=True):
    """An event that may end a visit: it decides edges, consumes tokens and emits others, all at once.

    `counter` is the run's token count after the event. Edges in `dead_escapes` leave other nodes of a loop that has
    ended. An attempt that will be retried and an item of a map decide no edges.
    """

    taken: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    dead_escapes: tuple[tuple[str, str], ...] = ()
    emitted: int = 0
    consumed: int = 0
    counter: int = 0
    renders: bool = False
    """This was the last visit: one token is left for the rendering of the run's outputs."""


# Operator actions


class Reopened(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A visit that starts again, and the tokens it holds."""

    node: str
    visit: int
    tokens: int = 0


class Join(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Inbound edges of a visit that has not started, under a patched graph."""

    node: str
    edges: tuple[tuple[str, bool], ...]
    tokens: int
    own: bool = False
    """It holds a start token."""


class RunRetried(Event, frozen=True, array_like=True, kw_only=True, tag="RunRetried"):
    """A FAILED or CANCELLED run continues: failed and cancelled visits are PENDING again, with the same number."""

    nodes: tuple[Reopened, ...]
    emitted: int
    counter: int
    renders: bool = False
    """All visits had ended: only the run's outputs are rendered again."""
    deadline_at_ms: int | None = None
    reason: str = ""
    sure: tuple[str, ...] = ()
    """Nodes with an unknown outcome that the operator confirmed as not done."""


class RunRewound(Event, frozen=True, array_like=True, kw_only=True, tag="RunRewound"):
    """A node and its descendants run again, with the next visit number."""

    node: str
    nodes: tuple[Reopened, ...]
    emitted: int
    consumed: int
    counter: int
    restarted: tuple[str, ...] = ()
    """Looping nodes whose loop restarts at pass 0."""
    reason: str = ""
    undecided: tuple[tuple[str, str], ...] = ()
    """Edges (from, to) that are undecided again because their loop continues."""


class RunPatched(Event, frozen=True, array_like=True, kw_only=True, tag="RunPatched"):
    base: str
    digest: str
    revision: int
    """Number of patches so far; the run now runs `name@version+revision`."""
    patch: Payload
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    joins: tuple[Join, ...] = ()
    relisted: tuple[str, ...] = ()
    """Maps whose list is evaluated again."""
    emitted: int = 0
    consumed: int = 0
    counter: int = 0
    deadline_at_ms: int | None = None
    message: str = ""


class RunForked(Event, frozen=True, array_like=True, kw_only=True, tag="RunForked"):
    """All earlier events were copied from another run; what was in flight there starts again here."""

    run: str
    at: int
    """The seq of the last copied event."""
    deadline_at_ms: int | None = None
    reason: str = ""


class RunLabelled(Event, frozen=True, array_like=True, kw_only=True, tag="RunLabelled"):
    labels: dict[str, str]
    """All labels of the run from now on."""


class NodeOverridden(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeOverridden"):
    """An operator settled a visit or item. QUEUED: a worker still evaluates the conditions over the value."""

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
    """Activations with an unknown outcome, which the rollback cannot undo."""
    reason: str = ""


class RollbackFinished(Event, frozen=True, array_like=True, kw_only=True, tag="RollbackFinished"):
    status: str
    """`done` or `partial`."""
    left: tuple[str, ...] = ()
    """Activations not undone, as node/visit/index."""


class CompensationScheduled(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="CompensationScheduled"):
    of: int
    """The seq at which the visit or item completed."""


class CompensationCompleted(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="CompensationCompleted"):
    attempt: int
    output: Payload | None = None
    worker: str = ""
    duration_ms: int = 0
    token: int = 0
    spent: Spend | None = None
    """What its calls of models have cost."""


class CompensationFailed(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="CompensationFailed"):
    """A compensation attempt failed. Without `retry_at_ms` it was the last, and the rollback is partial."""

    attempt: int
    error: Error
    retry_at_ms: int | None = None
    worker: str = ""
    duration_ms: int = 0
    token: int = 0
    lost: bool = False
    spent: Spend | None = None


ActEvents = (
    RunRetried | RunRewound | RunPatched | RunForked | RunLabelled | NodeOverridden | DeadLetterClosed
    | RollbackStarted | RollbackFinished | CompensationScheduled | CompensationCompleted | CompensationFailed
)  # fmt: skip


# Visits and items


class NodeScheduled(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeScheduled"):
    """The activation is ready; `held`: not dispatched yet because of `max_parallel`."""

    until: int = NOT_AN_ITEM
    """For items of a map: the end (exclusive) of the queued range, which starts at `index`."""
    held: bool = False
    hop: int = 0
    resumed: Payload | None = None
    """Result of a wait, over which a worker still has to evaluate conditions."""
    recall: bool = False
    """The handler asked to be called again with the result of the wait."""


class NodeStarted(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeStarted"):
    attempt: int
    token: int
    """Fence of the attempt's lease; grows with every attempt."""
    worker: str = ""
    admission: Admission | None = None
    """On the first attempt of a visit with a `when`."""


class NodeCheckpointed(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeCheckpointed"):
    attempt: int
    value: Payload


class NodeAppended(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeAppended"):
    """The attempt added a record to those of its visit; only the log keeps it. It uses up the result of a wait."""

    attempt: int
    value: Payload
    token: int = 0
    """Fence of the lease under which the record was added."""
    reserved: Spend | None = None
    """What the next model call may spend, reserved from the budget of the run."""
    spent: Spend | None = None
    """What the last call has spent; it settles the reservation."""


class NodeExpanded(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeExpanded"):
    """A map's list is known: `count` items with the values `items`, at most `window` in flight."""

    count: int
    items: Payload
    window: int
    token: int = 0
    admission: Admission | None = None


class NodeWaiting(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="NodeWaiting"):
    """The activation waits and holds no worker. `on`: timer, loop, human, signal, child, or a handler's own word."""

    attempt: int
    on: str
    name: str = ""
    until_ms: int | None = None
    expires_ms: int | None = None
    output: Payload | None = None
    """For `loop`: the result of the pass, until the rest of the body has ended."""
    route: Route | None = None
    worker: str = ""
    duration_ms: int = 0
    token: int = 0
    recall: bool = False
    """After the wait, call the handler again with its result."""
    ask: Payload | None = None
    """For `child`: which workflow to start with which inputs."""
    close: str = ""
    """For `child`: what happens to it when the parent no longer waits, `cancel` or `abandon`."""
    signal: str = ""
    """For `signal`: the id of the buffered signal that is taken."""
    returns: bool = False
    """For `child`: its failure is the result of the wait."""
    budget: Budget | None = None
    """For `child`: what it may spend of the budget of this run."""


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
    """The node has a compensator."""
    blocked_ms: int = 0
    """How long the attempt blocked the worker's loop, if it was noticed."""


class NodeFailed(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeFailed"):
    """An attempt failed; without `retry_at_ms` it was the last of its visit or item."""

    attempt: int
    error: Error
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    retry_at_ms: int | None = None
    tolerated: bool = False
    output: Payload | None = None
    """The error envelope of a tolerated failure."""
    token: int = 0
    lost: bool = False
    """The worker was lost: the retry does not count for the retry policy."""
    reads: tuple[Reading, ...] = ()
    """What the failed condition had read."""
    blocked_ms: int = 0
    """As in `NodeCompleted`."""
    unknown: bool = False
    """The node has a compensator, and the attempt may have done what a rollback has to undo."""


class NodeSkipped(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeSkipped"):
    reason: str = ""
    token: int = 0
    reads: tuple[Reading, ...] = ()
    """What `when` had read."""


class NodeCancelled(Ending, frozen=True, array_like=True, kw_only=True, tag="NodeCancelled"):
    reason: str = ""
    unknown: bool = False
    """A worker may have called its handler, so it is unknown whether a rollback has to undo it."""


class LoopContinued(Event, frozen=True, array_like=True, kw_only=True, tag="LoopContinued"):
    """Another pass: every node of `body` is PENDING with the next visit number."""

    node: str
    entry: str
    iteration: int
    """Number of the pass that begins, from 0."""
    body: tuple[str, ...]
    hop: int = 0


class ResultDiscarded(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="ResultDiscarded"):
    """A result came too late, twice, or from an attempt that does not count."""

    attempt: int
    token: int
    outcome: str
    reason: str
    worker: str = ""


class DeadLettered(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="DeadLettered"):
    attempts: int
    error: Error


NodeEvents = (
    NodeScheduled | NodeStarted | NodeCheckpointed | NodeAppended | NodeExpanded | NodeWaiting | NodeCompleted
    | NodeFailed | NodeSkipped | NodeCancelled | LoopContinued | ResultDiscarded | DeadLettered
)  # fmt: skip


# A run as a whole


class RunCreated(Event, frozen=True, array_like=True, kw_only=True, tag="RunCreated"):
    workflow: str
    version: int
    digest: str
    inputs: Payload
    entries: tuple[str, ...]
    """Each entry node gets one start token."""
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
    """Of a child run: what happens when its parent no longer waits for it, `cancel` or `abandon`."""
    depth: int = 0
    """Number of ancestors of a child run."""
    root: str = ""
    """The run above a child run that has no parent; empty for a root, and for children of earlier versions."""
    budget: Budget | None = None
    """Of a child run: what its parent allows it to spend on language models."""


class RunPaused(Event, frozen=True, array_like=True, kw_only=True, tag="RunPaused"):
    reason: str = ""


class RunResumed(Event, frozen=True, array_like=True, kw_only=True, tag="RunResumed"):
    reason: str = ""


class RunRepaired(Event, frozen=True, array_like=True, kw_only=True, tag="RunRepaired"):
    """The reconciler restored missing jobs and removed surplus ones."""

    reason: str
    restored: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class RunCompleted(Event, frozen=True, array_like=True, kw_only=True, tag="RunCompleted"):
    outputs: Payload | None = None
    """None: the workflow declares no outputs; those of the terminal nodes count."""
    consumed: int = 0
    counter: int = 0
    tolerated: int = 0
    unread: tuple[str, ...] = ()
    """Names of signals that no node took."""


class RunFailed(Event, frozen=True, array_like=True, kw_only=True, tag="RunFailed"):
    node: str
    """The first failing node; empty if the run failed as a whole (deadline, outputs)."""
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


# People, signals, children

SYSTEM = "system"
"""`by` of a decision that a time-out made."""


class ApprovalEvent(NodeEvent, frozen=True, array_like=True, kw_only=True):
    """An event of the approval that an activation waits for; one approval per (node, visit, index)."""


class ApprovalRequested(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalRequested"):
    title: str
    description: str = ""
    form: Payload | None = None
    """JSON Schema of the form."""
    approvers: tuple[str, ...] = ()
    """`user:…` and `role:…`; empty: any user."""
    quorum: int = 1
    four_eyes: bool = False
    """Users who submitted or patched the run may not decide."""
    requester: str = ""
    timeout_ms: int | None = None
    expires_ms: int | None = None
    on_timeout: str = "fail"
    escalate_to: tuple[str, ...] = ()
    url: str = ""


class ApprovalVoted(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalVoted"):
    """An approving vote below the quorum."""

    by: str
    comments: str = ""
    form: Payload | None = None
    on_behalf_of: str = ""


class ApprovalDelegated(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalDelegated"):
    by: str
    to: str
    comments: str = ""


class ApprovalReturned(ApprovalEvent, frozen=True, array_like=True, kw_only=True, tag="ApprovalReturned"):
    """An approver requested changes."""

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


class SignalReceived(Event, frozen=True, array_like=True, kw_only=True, tag="SignalReceived"):
    """A signal reached the run. Without a node it is buffered until a node waits for it."""

    name: str
    signal: str
    """Its id; a repetition changes nothing."""
    payload: Payload
    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM


class ChildStarted(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="ChildStarted"):
    child: str
    workflow: str
    version: int
    digest: str


class ChildFinished(NodeEvent, frozen=True, array_like=True, kw_only=True, tag="ChildFinished"):
    child: str
    status: str
    error: Error | None = None
    spent: Spend | None = None
    """What the child run has spent on language models."""


ApprovalEvents = (
    ApprovalRequested | ApprovalVoted | ApprovalDelegated | ApprovalReturned | ApprovalDecided | ApprovalEscalated
    | ApprovalExpired
)  # fmt: skip
WaitEvents = ApprovalEvents | SignalReceived | ChildStarted | ChildFinished


AnyEvent = RunEvents | NodeEvents | WaitEvents | ActEvents
