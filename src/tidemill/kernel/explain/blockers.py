"""What a run can wait for: a closed set of frozen values, one per kind, that encode to JSON as they are.

Moments are milliseconds and nothing is formatted: whoever shows them knows the reader's zone and language. The
sentences name no moment either. In a command line `{run}` stands for the run's id, which the kernel does not know;
it is to be replaced, not formatted, because the rest of the line may hold braces of its own.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM, Error

Kind = Literal[
    "edge", "join", "limit", "items", "worker", "lease", "retry", "timer", "person", "signal", "child", "loop",
    "pause", "outputs", "wait", "missing", "deadline", "rollback",
]  # fmt: skip

Need = Literal["no_worker", "silent", "no_queue", "no_type", "lacking", "value", "later", "lost", "busy"]
"""Why nobody works on a job: nobody is there, or nobody is heard of; nobody serves its queue, nobody knows its type;
all who do lack something that it needs; a large value that it needs cannot be had; it was put aside until later;
whoever had it was lost; or nobody is free."""


class Blocker(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """What every kind says: who waits, since when, until when, and what ends it. No node: the run as a whole."""

    node: str = ""
    visit: int = 0
    index: int = NOT_AN_ITEM
    status: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    root: bool = True
    """Whether this is really live or outside; otherwise it only follows something else that is listed."""
    words: str = ""
    unblock: str = ""
    command: str = ""
    """The line that does it; empty where nobody has to do anything."""

    @property
    def kind(self) -> str:
        """The name of the kind, as it is written in JSON."""
        return str(self.__struct_config__.tag)


class Failure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An error without what only a debugger wants."""

    code: str
    message: str
    type: str = ""
    hint: str = ""
    causes: tuple[str, ...] = ()


def shown(error: Error | None) -> Failure | None:
    """An error as explanations show it."""
    if error is None:
        return None
    return Failure(code=error.code, message=error.message, type=error.type, hint=error.hint, causes=error.causes)


class Undecided(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An inbound edge that is neither taken nor dead."""

    source: str
    status: str
    loop: str = ""
    """Its source has ended, but the loop of this looping node may still come back to it."""


class Origin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is really live at the upper end of undecided edges."""

    node: str
    visit: int
    status: str
    kind: str
    """The kind of its own blocker."""


class Edge(Blocker, frozen=True, kw_only=True, tag="edge"):
    """The one edge that leads to it is undecided."""

    undecided: tuple[Undecided, ...]
    origins: tuple[Origin, ...]
    more_origins: bool = False
    """There may be more than are named."""


class Join(Blocker, frozen=True, kw_only=True, tag="join"):
    """Several edges lead to it, and those that are decided do not settle its join."""

    join: str
    arrived: int
    dead: int
    of: int
    needed: int
    """How many have to be taken before it fires; for `all` as many as can still be."""
    undecided: tuple[Undecided, ...]
    """The first of them."""
    origins: tuple[Origin, ...]
    more_origins: bool = False


class Limit(Blocker, frozen=True, kw_only=True, tag="limit"):
    """It is ready, but `max_parallel` holds it back."""

    position: int
    """Its place in the queue, from 1."""
    max_parallel: int | None
    in_flight: int


class BrokenItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An item of a map whose failure was tolerated."""

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
    """Items that have not been let in yet, by the map's own window or by the run's `max_parallel`."""
    window: int
    listed: int
    broken: tuple[BrokenItem, ...] = ()


class Worker(Blocker, frozen=True, kw_only=True, tag="worker"):
    """A job is there and nobody works on it."""

    queue: str
    type: str = ""
    """The node type a worker has to know; empty where any worker will do."""
    need: Need
    lost: str = ""
    """The owner whose lease has run out."""
    alive: tuple[str, ...] = ()
    """The first of the workers that are there and cannot take it."""
    able_elsewhere: tuple[str, ...] = ()
    """Workers that know the type and do not serve the queue."""
    lacking: Failure | None = None
    """What all of those lack who know the type and serve the queue."""


class Lease(Blocker, frozen=True, kw_only=True, tag="lease"):
    """A worker has it, and `until_ms` is when its lease ends unless it is renewed."""

    owner: str
    phase: str
    """`call` its handler, `expand` or `assemble` its list, `route` (evaluate conditions), or `wake` it."""
    attempt: int
    tries: int
    """Attempts that count against `max_attempts`, this one included: those of lost workers do not."""
    max_attempts: int
    timeout_at_ms: int | None = None
    silent_since_ms: int | None = None
    """When the worker was last heard of, if that is long ago."""


class Retry(Blocker, frozen=True, kw_only=True, tag="retry"):
    """An attempt failed and the next begins at `until_ms`."""

    attempt: int
    tries: int
    max_attempts: int
    error: Failure | None


class Timer(Blocker, frozen=True, kw_only=True, tag="timer"):
    """It sleeps. With `expires` its time-out comes before it would wake."""

    wakes_ms: int | None
    expires: bool = False


class Person(Blocker, frozen=True, kw_only=True, tag="person"):
    """People have to decide."""

    title: str
    approvers: tuple[str, ...]
    """Who may decide, delegations included; empty is anyone."""
    barred: tuple[str, ...]
    """Who may not, whoever was asked: four eyes are required."""
    quorum: int
    voted: tuple[str, ...]
    delegated: tuple[tuple[str, str], ...]
    escalated: bool
    on_timeout: str
    """What happens at `until_ms`: approve, reject, escalate or fail."""
    escalate_to: tuple[str, ...]
    url: str


class Signal(Blocker, frozen=True, kw_only=True, tag="signal"):
    """Somebody has to tell the run something."""

    name: str


class Child(Blocker, frozen=True, kw_only=True, tag="child"):
    """Another run has to end."""

    child: str
    started: bool
    need: Need | Literal[""] = ""
    """Why nobody starts it."""


class Loop(Blocker, frozen=True, kw_only=True, tag="loop"):
    """A looping node has its result and waits for the rest of its body before the next pass."""

    body: tuple[str, ...]
    """The first nodes of the body that are in flight."""
    body_count: int


class Pause(Blocker, frozen=True, kw_only=True, tag="pause"):
    """The run is paused; with a node: this would be dispatched if it were not."""

    reason: str = ""


class Outputs(Blocker, frozen=True, kw_only=True, tag="outputs"):
    """Every visit has ended and the run's outputs are rendered."""

    owner: str = ""
    need: Need | Literal[""] = ""


class Wait(Blocker, frozen=True, kw_only=True, tag="wait"):
    """A handler waits for something of its own; these are its words."""

    on: str
    name: str
    expires_ms: int | None = None


class Missing(Blocker, frozen=True, kw_only=True, tag="missing"):
    """The state calls for a job that the store does not have."""

    job: str
    """Its key; empty when nothing leads to the visit at all."""


class Deadline(Blocker, frozen=True, kw_only=True, tag="deadline"):
    """The run fails at `until_ms`, whatever it waits for then."""


class Rollback(Blocker, frozen=True, kw_only=True, tag="rollback"):
    """What completed is being undone, one step after the other."""

    step: int
    steps: int
    compensator: str
    """Its node type; empty when the node has none any more."""
    attempt: int
    max_attempts: int
    owner: str = ""
    need: Need | Literal["", "retry", "missing"] = ""
    """Why nobody works on the step: as for a job, or it is in back-off, or its job is missing."""
    error: Failure | None = None
    left: tuple[str, ...] = ()
    """What this rollback will not have undone, as node/visit/index: the first of them."""
    left_count: int = 0


AnyBlocker = (
    Edge
    | Join
    | Limit
    | Items
    | Worker
    | Lease
    | Retry
    | Timer
    | Person
    | Signal
    | Child
    | Loop
    | Pause
    | Outputs
    | Wait
    | Missing
    | Deadline
    | Rollback
)
