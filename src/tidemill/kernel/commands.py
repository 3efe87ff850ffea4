"""What may be asked of a run: a closed set of frozen values.

A command is a wish, an event is a fact. Everything that is not pure (time, chance, ids, what a handler
returned, what a condition evaluated to) reaches the kernel inside a command or as `now_ms`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM, Admission, AnyEvent, Error, Payload, Reading, Route
from tidemill.kernel.model import Workflow

OnTimeout = Literal["approve", "reject", "escalate", "fail"]
Verb = Literal["approve", "reject", "changes"]


class Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A repeated command with the same id is recognised and changes nothing."""

    id: str | None = None
    actor: str | None = None


class Start(Command, frozen=True, kw_only=True):
    """Create the run and give every entry node its token."""

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


class Pause(Command, frozen=True, kw_only=True):
    reason: str = ""


class Resume(Command, frozen=True, kw_only=True):
    reason: str = ""


class Cancel(Command, frozen=True, kw_only=True):
    reason: str = ""
    attempt: int = 0
    """Of a child: which attempt of its parent no longer waits for it; a later one has the last word."""
    compensate: bool | None = None
    """Roll back what was completed; None is what the document says."""
    force: bool = False
    """Stop a rollback that is under way; what it has not undone yet stays as it is."""


class DeadlineReached(Command, frozen=True, kw_only=True):
    """The run's deadline timer was claimed."""


class Repair(Command, frozen=True, kw_only=True):
    """The audit compared the store's jobs with the state: these are missing, those have no owner."""

    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    reason: str = ""
    seq: int = 0
    """The version that was compared; when the run has moved on, nothing can be said. 0 is any."""


class ToActivation(Command, frozen=True, kw_only=True):
    """A command to one activation: a node's visit, or one item of a map."""

    node: str
    visit: int
    index: int = NOT_AN_ITEM
    admission: Admission | None = None
    """Of an attempt that has asked `when`: why it lets the visit happen."""


class Done(msgspec.Struct, frozen=True, gc=False):
    """The handler returned a value."""

    output: Payload
    size: int = 0


class Failed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The handler failed, or its inputs or conditions could not be evaluated."""

    error: Error
    retry_after_ms: int | None = None
    unknown_outcome: bool = False
    """Nobody knows whether the effect happened (a time-out): decides for `at_most_once` nodes."""
    reads: tuple[Reading, ...] = ()


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is asked of people: the rendered configuration of a human node."""

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
    """The handler asked to wait for something instead of returning."""

    on: str
    name: str = ""
    for_ms: int | None = None
    until_ms: int | None = None
    """A moment of the store's clock, instead of a time from now."""
    recall: bool = False
    """Call the handler again, with what the wait ended with."""
    approval: Request | None = None
    """For `human`: what is asked of whom."""
    ask: Payload | None = None
    """For `child`: which workflow to start with which inputs."""
    close: str = ""


class SkipRequested(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`when` was false, or the handler chose to skip its visit."""

    reason: str = "when"
    reads: tuple[Reading, ...] = ()


class MapExpanded(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The list of a map is known. An empty one completes at once: then `output` is its `[]`."""

    count: int
    items: Payload
    output: Payload | None = None


Outcome = Done | Failed | WaitRequested | SkipRequested | MapExpanded


class Result(ToActivation, frozen=True, kw_only=True):
    """An attempt ended. `token` is the fence of the lease it ran under."""

    token: int
    outcome: Outcome
    route: Route | None = None
    called: bool = True
    """Whether the handler was called; rendering, expansion and assembly alone are not attempts."""
    worker: str = ""
    started_ms: int = 0
    """When the handler was called, by the store's clock; 0 where the moment of the commit is near enough."""
    duration_ms: int = 0
    waited_ms: int = 0
    chance: float = 0.5
    """A number in [0, 1) for the jitter of a retry."""
    late: bool = False
    """The store said that the lease is lost: the result may only be recorded as discarded."""
    again: bool = False
    """Nobody knows whether this very result was committed already: if it was, nothing is left to say."""


class AttemptStarted(ToActivation, frozen=True, kw_only=True):
    """Record that an attempt has begun: before an at-most-once handler, or when one takes long."""

    token: int
    worker: str = ""
    started_ms: int = 0


class WorkerLost(ToActivation, frozen=True, kw_only=True):
    """The job was claimed again after `times` leases on it had expired."""

    token: int
    times: int = 1


class Checkpoint(ToActivation, frozen=True, kw_only=True):
    """A long handler stores how far it has come."""

    token: int
    value: Payload
    worker: str = ""
    started_ms: int = 0


class TimerFired(ToActivation, frozen=True, kw_only=True):
    """The timer that a visit waits for is due."""


class WaitExpired(ToActivation, frozen=True, kw_only=True):
    """The time-out of a waiting visit is due."""


class RequeueJob(ToActivation, frozen=True, kw_only=True):
    """A worker claimed a job that it must not run (the run is paused, or has moved on): put it back if it is needed."""

    kind: str = "run"


class OutputsRendered(Command, frozen=True, kw_only=True):
    """The run's `outputs` were rendered, or could not be."""

    outcome: Done | Failed


# What the world says to a waiting visit


class Decide(ToActivation, frozen=True, kw_only=True):
    """Somebody decides on an approval. `actor` is the person, `roles` the roles they have at this moment."""

    verb: Verb
    roles: tuple[str, ...] = ()
    comments: str = ""
    form: Payload | None = None


class Delegate(ToActivation, frozen=True, kw_only=True):
    """Somebody who may decide asks another person to do it in their place."""

    to: str
    roles: tuple[str, ...] = ()
    comments: str = ""


class Signal(Command, frozen=True, kw_only=True):
    """Tell the run something; the first node that waits for this name takes it, else it is kept."""

    name: str
    signal: str
    payload: Payload


class ChildBegan(ToActivation, frozen=True, kw_only=True):
    """The child that a visit asked for exists."""

    child: str
    workflow: str
    version: int
    digest: str
    close: str = ""
    attempt: int = 0


class ChildEnded(ToActivation, frozen=True, kw_only=True):
    """A child has ended, or could not be started: then there is no status but an error."""

    child: str
    status: str
    output: Payload | None = None
    error: Error | None = None
    attempt: int = 0
    """Which attempt of the parent the child worked for; 0 is the present one."""
    workflow: str = ""
    version: int = 0
    digest: str = ""


class Delivered(Command, frozen=True, kw_only=True):
    """A message to another run has arrived there: its job is done, nothing follows here."""


# What operators do


class Retry(Command, frozen=True, kw_only=True):
    """Let a FAILED or CANCELLED run go on where it stopped."""

    reason: str = ""
    confirmed_not_done: tuple[str, ...] = ()
    """Nodes with an unknown outcome that are known not to have happened, so that they may run again."""


class Rewind(Command, frozen=True, kw_only=True):
    """Let a node of an unfinished run, and everything behind it, happen anew."""

    node: str
    reason: str = ""
    confirmed_not_done: tuple[str, ...] = ()
    """At-most-once nodes that are under way and known not to have happened."""


class Override(ToActivation, frozen=True, kw_only=True):
    """Settle a visit or item by hand: with a value, or by skipping it. `visit` 0 is the present one."""

    output: Payload | None = None
    """None: skip it."""
    size: int = 0
    next_nodes: tuple[str, ...] | None = None
    """Where a node with a branch goes on; None lets a worker evaluate its conditions over the value."""
    reason: str = ""


class Patch(Command, frozen=True, kw_only=True):
    """Let the run go on under another graph, which was compiled from its own by `patch`."""

    base: str
    """The digest of the workflow that the patch was made against."""
    workflow: Workflow
    patch: Payload
    expected_seq: int = 0
    retry: bool = False
    """On a FAILED or CANCELLED run: let it go on (fix and continue)."""
    confirmed_not_done: tuple[str, ...] = ()
    message: str = ""


class Fork(Command, frozen=True, kw_only=True):
    """Create a run that takes over the first events of another one."""

    run: str
    prefix: tuple[AnyEvent, ...]
    rewind: str = ""
    """Begin anew at this node."""
    undone: tuple[str, ...] = ()
    """What the other run has undone since: such results cannot be shared."""
    patch: Patch | None = None
    inputs: Payload | None = None
    labels: dict[str, str] | None = None
    submitted_by: str = ""
    reason: str = ""


class Rollback(Command, frozen=True, kw_only=True):
    """Undo what a run that has ended did, as far as its nodes have compensators."""

    reason: str = ""


class CompensationResult(ToActivation, frozen=True, kw_only=True):
    """An attempt to undo a visit or item has ended."""

    token: int
    outcome: Done | Failed
    worker: str = ""
    duration_ms: int = 0
    chance: float = 0.5


class CompensationWorkerLost(ToActivation, frozen=True, kw_only=True):
    """The worker that undid a visit or item was lost."""

    token: int
    times: int = 1


class Relabel(Command, frozen=True, kw_only=True):
    """Change what a run can be found by."""

    labels: dict[str, str]
    remove: tuple[str, ...] = ()


class CloseDeadLetter(ToActivation, frozen=True, kw_only=True):
    """Nobody will try this again: take it off the list of dead letters."""

    reason: str = ""


AnyCommand = (
    Start
    | Pause
    | Resume
    | Cancel
    | DeadlineReached
    | Repair
    | Result
    | AttemptStarted
    | WorkerLost
    | Checkpoint
    | TimerFired
    | WaitExpired
    | RequeueJob
    | OutputsRendered
    | Decide
    | Delegate
    | Signal
    | ChildBegan
    | ChildEnded
    | Delivered
    | Retry
    | Rewind
    | Override
    | Patch
    | Fork
    | Rollback
    | CompensationResult
    | CompensationWorkerLost
    | Relabel
    | CloseDeadLetter
)
