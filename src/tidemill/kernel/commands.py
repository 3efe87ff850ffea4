"""What may be asked of a run: a closed set of frozen values.

A command is a wish, an event is a fact. Everything that is not pure (time, chance, ids, what a handler
returned, what a condition evaluated to) reaches the kernel inside a command or as `now_ms`.
"""

from __future__ import annotations

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM, Error, Payload, Route


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


class Pause(Command, frozen=True, kw_only=True):
    reason: str = ""


class Resume(Command, frozen=True, kw_only=True):
    reason: str = ""


class Cancel(Command, frozen=True, kw_only=True):
    reason: str = ""


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


class Done(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The handler returned a value."""

    output: Payload
    size: int = 0


class Failed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The handler failed, or its inputs or conditions could not be evaluated."""

    error: Error
    retry_after_ms: int | None = None
    unknown_outcome: bool = False
    """Nobody knows whether the effect happened (a time-out): decides for `at_most_once` nodes."""


class Waits(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The handler asked to wait for something instead of returning."""

    on: str
    name: str = ""
    for_ms: int | None = None


class Skips(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`when` was false, or the handler chose to skip its visit."""

    reason: str = "when"


class Expands(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The list of a map is known. An empty one completes at once: then `output` is its `[]`."""

    count: int
    items: Payload
    output: Payload | None = None


Outcome = Done | Failed | Waits | Skips | Expands


class Result(ToActivation, frozen=True, kw_only=True):
    """An attempt ended. `token` is the fence of the lease it ran under."""

    token: int
    outcome: Outcome
    route: Route | None = None
    called: bool = True
    """Whether the handler was called; rendering, expansion and assembly alone are not attempts."""
    worker: str = ""
    duration_ms: int = 0
    waited_ms: int = 0
    chance: float = 0.5
    """A number in [0, 1) for the jitter of a retry."""
    late: bool = False
    """The store said that the lease is lost: the result may only be recorded as discarded."""
    again: bool = False
    """Nobody knows whether this very result was committed already: if it was, nothing is left to say."""


class Begin(ToActivation, frozen=True, kw_only=True):
    """Record that an attempt has begun: before an at-most-once handler, or when one takes long."""

    token: int
    worker: str = ""


class Lost(ToActivation, frozen=True, kw_only=True):
    """The job was claimed again after `times` leases on it had expired."""

    token: int
    times: int = 1


class Checkpoint(ToActivation, frozen=True, kw_only=True):
    """A long handler stores how far it has come."""

    token: int
    value: Payload


class Wake(ToActivation, frozen=True, kw_only=True):
    """The timer that a visit waits for is due."""


class Expire(ToActivation, frozen=True, kw_only=True):
    """The time-out of a waiting visit is due."""


class Shelve(ToActivation, frozen=True, kw_only=True):
    """A worker claimed a job that it must not run (the run is paused, or has moved on): put it back if it is needed."""

    kind: str = "run"


class Rendered(Command, frozen=True, kw_only=True):
    """The run's `outputs` were rendered, or could not be."""

    outcome: Done | Failed


AnyCommand = (
    Start
    | Pause
    | Resume
    | Cancel
    | DeadlineReached
    | Repair
    | Result
    | Begin
    | Lost
    | Checkpoint
    | Wake
    | Expire
    | Shelve
    | Rendered
)
