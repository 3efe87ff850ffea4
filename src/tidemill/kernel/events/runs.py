"""Facts about a run as a whole: how it began, how it ended, and what was done to it from outside."""

from __future__ import annotations

import msgspec

from tidemill.kernel.events.values import Error, Event, Payload


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
