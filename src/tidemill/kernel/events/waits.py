"""Facts about what a run waits for: people who decide, signals, children."""

from __future__ import annotations

from tidemill.kernel.events.values import NOT_AN_ITEM, Error, Event, NodeEvent, Payload

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
