"""What a run can wait for: one frozen struct per kind, encoded to JSON as it is.

Field names, tags and kinds are public output. Moments are milliseconds and sentences contain none, because only the
front end knows the reader's time zone. In `command` the front end replaces `{run}` by the run's id with `replace`, not
`format`: the line may contain other braces.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM, Error

Kind = Literal[
    "edge", "join", "limit", "items", "worker", "lease", "retry", "timer", "person", "signal", "child", "loop",
    "pause", "outputs", "wait", "missing", "deadline", "rollback",
]  # fmt: skip

Need = Literal[
    "no_worker", "silent", "no_queue", "no_type", "lacking", "value", "later", "lost", "busy", "killer", "limited",
]  # fmt: skip
"""Why no worker runs a job: none is live, or live ones do not respond; none serves its queue or knows its type; all
that do lack a requirement; a large value cannot be loaded; it was put aside; its worker was lost; all are busy;
all that took it were lost; or a concurrency limit may hold it back."""


class Blocker(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """Fields of every kind: what waits, since when, until when, and what ends it. No node: the run as a whole."""

    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM
    status: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    root: bool = True
    """Whether it waits for something live or external, not only for another listed node."""
    words: str = ""
    unblock: str = ""
    command: str = ""
    """The command that ends the wait; empty where no action is needed."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class Failure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An error, without what only the engine needs of it."""

    code: str
    message: str
    type: str = ""
    hint: str = ""
    causes: tuple[str, ...] = ()
    traceback: str = ""


def shown(error: Error | None) -> Failure | None:
    if error is None:
        return None
    return Failure(
        code=error.code,
        message=error.message,
        type=error.type,
        hint=error.hint,
        causes=error.causes,
        traceback=error.traceback,
    )


class Undecided(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An inbound edge that is neither taken nor dead."""

    source: str
    status: str
    loop: str = ""
    """The looping node that may still repeat the source, although the source has ended."""


class Origin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A live node at the upper end of undecided edges."""

    node: str
    visit: int
    status: str
    kind: str
    """The kind of its own blocker."""


class Edge(Blocker, frozen=True, kw_only=True, tag="edge"):
    """Its only inbound edge is undecided."""

    undecided: tuple[Undecided, ...]
    origins: tuple[Origin, ...]
    more_origins: bool = False
    """There are more than are listed."""


class Join(Blocker, frozen=True, kw_only=True, tag="join"):
    """Several edges lead to it, and the decided ones do not settle its join."""

    join: str
    arrived: int
    dead: int
    of: int
    needed: int
    """Taken edges needed before it fires; for `all` as many as can still be taken."""
    undecided: tuple[Undecided, ...]
    origins: tuple[Origin, ...]
    more_origins: bool = False


class Limit(Blocker, frozen=True, kw_only=True, tag="limit"):
    """It is ready, but `max_parallel` holds it back."""

    position: int
    """Its place in the queue, from 1."""
    max_parallel: int | None
    in_flight: int


class BrokenItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    index: int
    attempts: int
    error: Failure | None


class Items(Blocker, frozen=True, kw_only=True, tag="items"):
    """A map waits for its items, the first of which are listed as blockers of their own."""

    count: int
    done: int
    failed: int
    queued: int
    running: int
    waiting: int
    unqueued: int
    """Items not queued yet, because of the map's window or the run's `max_parallel`."""
    window: int
    listed: int
    broken: tuple[BrokenItem, ...] = ()


class Worker(Blocker, frozen=True, kw_only=True, tag="worker"):
    queue: str
    type: str = ""
    """The node type a worker must know; empty where any worker will do."""
    need: Need
    lost: str = ""
    """The owner whose lease has run out."""
    alive: tuple[str, ...] = ()
    """Live workers that cannot take it: the first of them."""
    able_elsewhere: tuple[str, ...] = ()
    """Workers that know the type and do not serve the queue."""
    lacking: Failure | None = None
    """What all workers lack that know the type and serve the queue."""


class Lease(Blocker, frozen=True, kw_only=True, tag="lease"):
    """A worker holds the job; `until_ms` is when its lease ends unless it is renewed."""

    owner: str
    phase: str
    """`call` the handler, `expand` or `assemble` a map, `route` (evaluate conditions), or `wake`."""
    attempt: int
    tries: int
    """Attempts that count against `max_attempts`, this one included: lost workers do not count."""
    max_attempts: int
    timeout_at_ms: int | None = None
    silent_since_ms: int | None = None
    """Last heartbeat of the worker, if it is overdue."""


class Retry(Blocker, frozen=True, kw_only=True, tag="retry"):
    """An attempt failed and the next begins at `until_ms`."""

    attempt: int
    tries: int
    max_attempts: int
    error: Failure | None


class Timer(Blocker, frozen=True, kw_only=True, tag="timer"):
    """It sleeps. With `expires` its time-out comes first."""

    wakes_ms: int | None
    expires: bool = False


class Person(Blocker, frozen=True, kw_only=True, tag="person"):
    title: str
    approvers: tuple[str, ...]
    """Users and roles that may decide, delegations included; empty is anyone."""
    barred: tuple[str, ...]
    """Users excluded by four eyes."""
    quorum: int
    voted: tuple[str, ...]
    delegated: tuple[tuple[str, str], ...]
    escalated: bool
    on_timeout: str
    """What happens at `until_ms`: approve, reject, escalate or fail."""
    escalate_to: tuple[str, ...]
    url: str


class Signal(Blocker, frozen=True, kw_only=True, tag="signal"):
    name: str


class Child(Blocker, frozen=True, kw_only=True, tag="child"):
    child: str
    started: bool
    need: Need | Literal[""] = ""
    """Why no worker starts it."""


class Loop(Blocker, frozen=True, kw_only=True, tag="loop"):
    """A looping node has its result and waits for the rest of its body before the next pass."""

    body: tuple[str, ...]
    """The first nodes of the body that are in flight."""
    body_count: int


class Pause(Blocker, frozen=True, kw_only=True, tag="pause"):
    """The run is paused; with a node: the visit would be dispatched otherwise."""

    reason: str = ""


class Outputs(Blocker, frozen=True, kw_only=True, tag="outputs"):
    """Every visit has ended; the run's outputs are being rendered."""

    owner: str = ""
    need: Need | Literal[""] = ""


class Wait(Blocker, frozen=True, kw_only=True, tag="wait"):
    """A handler waits for something of its own, in the handler's words."""

    on: str
    name: str
    expires_ms: int | None = None


class Missing(Blocker, frozen=True, kw_only=True, tag="missing"):
    """The state needs a job that the store does not have."""

    job: str
    """Its key; empty when nothing leads to the visit."""


class Deadline(Blocker, frozen=True, kw_only=True, tag="deadline"):
    """The run fails at `until_ms`, whatever it waits for then."""


class Rollback(Blocker, frozen=True, kw_only=True, tag="rollback"):
    """Completed steps are being compensated, one after the other."""

    step: int
    steps: int
    compensator: str
    """Its node type; empty when a patch removed it."""
    attempt: int
    max_attempts: int
    owner: str = ""
    need: Need | Literal["", "retry", "missing"] = ""
    """Why no worker runs the step: as for a job, or it is in back-off, or its job is missing."""
    error: Failure | None = None
    left: tuple[str, ...] = ()
    """What this rollback leaves undone, as node/visit/index: the first of them."""
    left_count: int = 0


AnyBlocker = (
    Edge | Join | Limit | Items | Worker | Lease | Retry | Timer | Person | Signal | Child | Loop | Pause | Outputs
    | Wait | Missing | Deadline | Rollback
)  # fmt: skip
