"""An approval as the log knows it: what was asked of whom, who has voted, and how it came out.

The value and its fold live apart from the rest of the state because two readers need them: the state itself, and
the row under which people find what waits for them, which is written from the events of one commit.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.kernel.events import (
    AnyEvent,
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalReturned,
    ApprovalVoted,
    Payload,
)

ApprovalStatus = Literal["pending", "decided", "expired", "cancelled"]


class Vote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One person's approval."""

    by: str
    on_behalf_of: str
    comments: str
    form: Payload | None


class Approval(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Everything that is known of one approval."""

    title: str
    description: str
    form: Payload | None
    approvers: tuple[str, ...]
    quorum: int
    four_eyes: bool
    requester: str
    timeout_ms: int | None
    expires_ms: int | None
    on_timeout: str
    escalate_to: tuple[str, ...]
    url: str
    requested_ms: int
    status: ApprovalStatus = "pending"
    votes: tuple[Vote, ...] = ()
    delegated: tuple[tuple[str, str], ...] = ()
    """(who, to whom), oldest first."""
    escalated: bool = False
    decision: str = ""
    """`approve`, `reject` or `changes`, once it is decided."""
    decided_by: str = ""
    on_behalf_of: str = ""
    comments: str = ""
    decided_ms: int | None = None


def requested(event: ApprovalRequested) -> Approval:
    """The approval that an event asks for."""
    return Approval(
        title=event.title,
        description=event.description,
        form=event.form,
        approvers=event.approvers,
        quorum=event.quorum,
        four_eyes=event.four_eyes,
        requester=event.requester,
        timeout_ms=event.timeout_ms,
        expires_ms=event.expires_ms,
        on_timeout=event.on_timeout,
        escalate_to=event.escalate_to,
        url=event.url,
        requested_ms=event.at_ms,
    )


def folded(approval: Approval | None, event: AnyEvent) -> Approval | None:
    """The approval after one of its own events; any other event leaves it as it is."""
    if isinstance(event, ApprovalRequested):
        return requested(event)
    if approval is None:
        return None
    replace = msgspec.structs.replace
    match event:
        case ApprovalVoted():
            return replace(approval, votes=(*approval.votes, _vote(event)))
        case ApprovalDelegated():
            return replace(approval, delegated=(*approval.delegated, (event.by, event.to)))
        case ApprovalEscalated():
            # Others are asked now; whom the first had passed it on to is no longer of interest.
            return replace(approval, approvers=event.to, delegated=(), expires_ms=event.expires_ms, escalated=True)
        case ApprovalDecided() | ApprovalReturned():
            return replace(
                approval,
                status="decided",
                votes=(*approval.votes, _vote(event)),
                decision=event.decision if isinstance(event, ApprovalDecided) else "changes",
                decided_by=event.by,
                on_behalf_of=event.on_behalf_of,
                comments=event.comments,
                decided_ms=event.at_ms,
            )
        case ApprovalExpired():
            return replace(approval, status="expired", decided_ms=event.at_ms)
        case _:
            return approval


def _vote(event: ApprovalVoted | ApprovalDecided | ApprovalReturned) -> Vote:
    return Vote(event.by, event.on_behalf_of, event.comments, event.form)


def closed(approval: Approval) -> Approval:
    """The approval after its wait has ended for another reason than a decision."""
    return msgspec.structs.replace(approval, status="cancelled") if approval.status == "pending" else approval
