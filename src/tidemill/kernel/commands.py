"""Commands: every request to a run, a closed union of frozen values.

Whatever is not pure (time, randomness, ids, results of handlers and conditions) enters the kernel in a command or as
`now_ms`. Commands are never stored; events are.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM, Admission, AnyEvent, Error, Payload, Reading, Route
from tidemill.kernel.model import Workflow
from tidemill.kernel.spending import Budget, Spend

OnTimeout = Literal["approve", "reject", "escalate", "fail"]
Verb = Literal["approve", "reject", "changes"]


class Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Repeating a command with the same id changes nothing."""

    id: str | None = None
    actor: str | None = None


class Start(Command, frozen=True, kw_only=True):
    version: int
    digest: str
    inputs: Payload
    submitted_by: str = ""
    labels: dict[str, str] = {}
    correlation_id: str = ""
    trace: str = ""
    tag_used: str = ""
    parent: tuple[str, str, int, int] | None = None
    close: str = ""
    depth: int = 0
    root: str = ""
    budget: Budget | None = None
    """Of a child run: what it may spend of the budget of its parent."""
    deadline_ms: int | None = None
    """How long this run may take; a tighter limit of its workflow holds all the same."""


class Pause(Command, frozen=True, kw_only=True):
    reason: str = ""


class Resume(Command, frozen=True, kw_only=True):
    reason: str = ""


class Cancel(Command, frozen=True, kw_only=True):
    reason: str = ""
    attempt: int = 0
    """Of a child run: the parent's attempt that no longer waits for it; a later attempt keeps it alive."""
    compensate: bool | None = None
    """Start a rollback; None follows the document."""
    force: bool = False
    """Stop a running rollback."""


class DeadlineReached(Command, frozen=True, kw_only=True):
    """The run's deadline timer was claimed."""


class Repair(Command, frozen=True, kw_only=True):
    """The reconciler compared the store's jobs with the state and found missing and surplus ones."""

    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    reason: str = ""
    seq: int = 0
    """The seq that was compared; ignored if the run has moved on. 0 is any."""


class ToActivation(Command, frozen=True, kw_only=True):
    """A command to one activation: a node's visit, or one item of a map."""

    node: str
    visit: int
    index: int = NOT_AN_ITEM
    admission: Admission | None = None
    """Of an attempt that evaluated `when` as true."""


class Done(msgspec.Struct, frozen=True, gc=False):
    output: Payload
    size: int = 0


class Failed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The handler failed, or its inputs or conditions could not be evaluated."""

    error: Error
    retry_after_ms: int | None = None
    unknown_outcome: bool = False
    """It is unknown whether the effect happened (a time-out); matters for `at_most_once` nodes."""
    reads: tuple[Reading, ...] = ()


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A requested approval: the rendered configuration of a human node."""

    title: str
    description: str = ""
    form: Payload | None = None
    approvers: tuple[str, ...] = ()
    quorum: int = 1
    four_eyes: bool = False
    timeout_ms: int | None = None
    on_timeout: OnTimeout = "fail"
    escalate_to: tuple[str, ...] = ()
    url: str = ""


class WaitRequested(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    on: str
    name: str = ""
    for_ms: int | None = None
    until_ms: int | None = None
    """A time of the store's clock, instead of a duration."""
    recall: bool = False
    """Call the handler again with the result of the wait."""
    approval: Request | None = None
    """For `human`."""
    ask: Payload | None = None
    """For `child`: which workflow to start with which inputs."""
    close: str = ""
    budget: Budget | None = None
    """For `child`: what it may spend on language models; None is all that is left."""
    returns: bool = False
    """For `child`: its failure is the result of the wait."""


class SkipRequested(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`when` was false, or the handler chose to skip its visit."""

    reason: str = "when"
    reads: tuple[Reading, ...] = ()


class MapExpanded(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The list of a map is known. An empty one completes at once with `output`, its `[]`."""

    count: int
    items: Payload
    output: Payload | None = None


Outcome = Done | Failed | WaitRequested | SkipRequested | MapExpanded


class Result(ToActivation, frozen=True, kw_only=True):
    """An attempt ended. `token` is the fence of the lease it ran under."""

    token: int
    outcome: Outcome
    route: Route | None = None
    delay_ms: int = 0
    """Before the next pass of a loop whose delay is a template."""
    called: bool = True
    """Whether the handler was called; rendering, expansion and assembly are not attempts."""
    worker: str = ""
    started_ms: int = 0
    """When the handler was called, by the store's clock; 0 is the time of the commit."""
    duration_ms: int = 0
    waited_ms: int = 0
    blocked_ms: int = 0
    chance: float = 0.5
    """A number in [0, 1) for the jitter of a retry."""
    late: bool = False
    """The store reported the lease as lost: the result can only be discarded."""
    again: bool = False
    """The worker does not know whether this result was committed before; if it was, ignore it."""


class AttemptStarted(ToActivation, frozen=True, kw_only=True):
    """An attempt has started; sent before an at-most-once handler, or during a long one."""

    token: int
    worker: str = ""
    started_ms: int = 0


class WorkerLost(ToActivation, frozen=True, kw_only=True):
    """The job was claimed again after `times` leases on it had expired."""

    token: int
    times: int = 1


class Checkpoint(ToActivation, frozen=True, kw_only=True):
    token: int
    value: Payload
    worker: str = ""
    started_ms: int = 0


class Append(ToActivation, frozen=True, kw_only=True):
    """Add a record to those of the visit; `number` is how many there were, so that a repetition is recognised."""

    token: int
    value: Payload
    number: int
    reserve: Spend | None = None
    """Set this much of the budget of the run aside for a call; refused if nothing is left."""
    spent: Spend | None = None
    """What the call has spent."""
    worker: str = ""
    started_ms: int = 0


class TimerFired(ToActivation, frozen=True, kw_only=True):
    """The timer that a visit waits for is due."""


class WaitExpired(ToActivation, frozen=True, kw_only=True):
    """The time-out of a waiting visit is due."""


class RequeueJob(ToActivation, frozen=True, kw_only=True):
    """A worker claimed a job that must not run now (the run is paused or has moved on)."""

    kind: str = "run"


class OutputsRendered(Command, frozen=True, kw_only=True):
    outcome: Done | Failed


# People, signals, children


class Decide(ToActivation, frozen=True, kw_only=True):
    """A user decides on an approval. `actor` is the user, `roles` are their present roles."""

    verb: Verb
    roles: tuple[str, ...] = ()
    comments: str = ""
    form: Payload | None = None


class Delegate(ToActivation, frozen=True, kw_only=True):
    to: str
    roles: tuple[str, ...] = ()
    comments: str = ""


class Signal(Command, frozen=True, kw_only=True):
    """The node that has waited longest for this name takes the payload, else it is buffered."""

    name: str
    signal: str
    payload: Payload


class ChildBegan(ToActivation, frozen=True, kw_only=True):
    child: str
    workflow: str
    version: int
    digest: str
    close: str = ""
    attempt: int = 0


class ChildEnded(ToActivation, frozen=True, kw_only=True):
    """A child run has ended, or could not be started: then it has an error but no status."""

    child: str
    status: str
    output: Payload | None = None
    error: Error | None = None
    attempt: int = 0
    """The attempt of the parent that the child worked for; 0 is the present one."""
    workflow: str = ""
    version: int = 0
    digest: str = ""
    spent: Spend | None = None


class Delivered(Command, frozen=True, kw_only=True):
    """A message reached its run: its job is done, nothing follows here."""


# Operator actions


class Retry(Command, frozen=True, kw_only=True):
    """Continue a FAILED or CANCELLED run where it stopped."""

    reason: str = ""
    confirmed_not_done: tuple[str, ...] = ()
    """Nodes with an unknown outcome that the operator confirms as not done, so that they may run again."""


class Rewind(Command, frozen=True, kw_only=True):
    """Run a node of an unfinished run, and its descendants, again."""

    node: str
    reason: str = ""
    confirmed_not_done: tuple[str, ...] = ()
    """At-most-once nodes in flight that the operator confirms as not done."""


class Override(ToActivation, frozen=True, kw_only=True):
    """Settle a visit or item with a value, or skip it. `visit` 0 is the latest."""

    output: Payload | None = None
    """None: skip it."""
    size: int = 0
    next_nodes: tuple[str, ...] | None = None
    """Targets of a node with a branch; None: a worker evaluates its conditions over the value."""
    reason: str = ""


class Patch(Command, frozen=True, kw_only=True):
    """Continue the run under `workflow`, compiled from its own document by `patch`."""

    base: str
    """Digest of the workflow that the patch was made against."""
    workflow: Workflow
    patch: Payload
    expected_seq: int = 0
    retry: bool = False
    """Also retry a FAILED or CANCELLED run."""
    confirmed_not_done: tuple[str, ...] = ()
    message: str = ""


class Fork(Command, frozen=True, kw_only=True):
    run: str
    prefix: tuple[AnyEvent, ...]
    rewind: str = ""
    """Rewind the new run to this node."""
    undone: tuple[str, ...] = ()
    """What the other run has compensated since; such results cannot be reused."""
    patch: Patch | None = None
    inputs: Payload | None = None
    labels: dict[str, str] | None = None
    submitted_by: str = ""
    reason: str = ""


class Rollback(Command, frozen=True, kw_only=True):
    reason: str = ""


class CompensationResult(ToActivation, frozen=True, kw_only=True):
    token: int
    outcome: Done | Failed
    worker: str = ""
    duration_ms: int = 0
    chance: float = 0.5
    spent: Spend | None = None


class CompensationWorkerLost(ToActivation, frozen=True, kw_only=True):
    token: int
    times: int = 1


class Relabel(Command, frozen=True, kw_only=True):
    labels: dict[str, str]
    remove: tuple[str, ...] = ()


class CloseDeadLetter(ToActivation, frozen=True, kw_only=True):
    reason: str = ""


AnyCommand = (
    Start | Pause | Resume | Cancel | DeadlineReached | Repair | Result | AttemptStarted | WorkerLost | Checkpoint
    | Append | TimerFired | WaitExpired | RequeueJob | OutputsRendered | Delivered | Relabel | Decide | Delegate
    | Signal | ChildBegan | ChildEnded | Retry | Rewind | Override | Patch | Fork | Rollback | CompensationResult
    | CompensationWorkerLost | CloseDeadLetter
)  # fmt: skip
