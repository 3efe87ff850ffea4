"""The attempts at one visit of a node, or at one item of a map: where they stand, and what they came to."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.kernel.approval import Approval
from tidemill.kernel.events import Error, Payload, Route

NodeStatus = Literal["PENDING", "QUEUED", "RUNNING", "WAITING", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED"]

ENDED: frozenset[str] = frozenset({"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"})
"""Statuses of a visit or item that is over."""
DISPATCHED: frozenset[str] = frozenset({"QUEUED", "RUNNING"})
"""Statuses that own a job in the store and count against `max_parallel`."""


class Wait(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a WAITING visit waits for, and since when."""

    on: str
    name: str
    since_ms: int
    until_ms: int | None = None
    expires_ms: int | None = None
    output: Payload | None = None
    route: Route | None = None
    recall: bool = False
    ask: Payload | None = None
    close: str = ""
    started: bool = False
    """For `child`: it is known to exist."""


class Activation(msgspec.Struct, array_like=True, gc=False):
    """The attempts at one visit of a node, or at one item of a map."""

    status: NodeStatus = "PENDING"
    attempt: int = 0
    """Attempts made so far, which is also the number of the running one."""
    running: bool = False
    """NodeStarted was recorded for the current attempt and its end was not."""
    failures: int = 0
    """Attempts that used up the retry policy; lost workers do not."""
    lost: int = 0
    """Lost workers in a row."""
    token: int = 0
    """Highest fence seen; a result with a lower one is stale."""
    reported: int = 0
    """The fence of the attempt whose end was recorded last; a result with the same one is a repetition."""
    retry_at_ms: int | None = None
    wait: Wait | None = None
    output: Payload | None = None
    error: Error | None = None
    checkpoint: Payload | None = None
    since_ms: int = 0
    """When it got its present status."""
    ended_seq: int = 0
    duration_ms: int = 0
    discarded: int = 0
    resumed: Payload | None = None
    """What a wait ended with, while conditions over it are still to be evaluated, or the handler to be called."""
    recall: bool = False
    """The handler is called again with `resumed`."""
    approval: Approval | None = None


QUEUED_ITEM = Activation(status="QUEUED")
"""An item that has been queued and nothing else. Shared: never written."""
