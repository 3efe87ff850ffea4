"""Voting, quorum, delegation, escalation, expiry.

People: who may decide on an approval, when it is decided, and what becomes of the visit that waited for it.

A decision is a compare-and-set on the approval as the log knows it. The same decision again is answered like the
first one and writes nothing; a contrary one is refused. Votes are counted over distinct people, whose right to
decide is looked at when they do, never when they were asked. One rejection, or one request for changes, decides.

Moments in words. The kernel reads no clock: `datetime` serves as a calendar only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.activation import Approval
from tidemill.kernel.commands import Decide, Delegate
from tidemill.kernel.decide.builder import AttemptFacts, DecisionBuilder
from tidemill.kernel.decide.visits import fail_for_good, leave_visit
from tidemill.kernel.decide.waits import leave_wait, wait_over
from tidemill.kernel.events import (
    INLINE_BYTES_MAX,
    NOT_AN_ITEM,
    SYSTEM,
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalExpired,
    ApprovalReturned,
    ApprovalVoted,
    BlobRef,
    Error,
    Payload,
)
from tidemill.kernel.jobs import wait_jobs
from tidemill.kernel.model import Node
from tidemill.kernel.state import State, peek_at

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(ms: int) -> str:
    """A moment in milliseconds since 1970 as ISO 8601 in UTC."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


USER, ROLE = "user:", "role:"
EXITS = {"reject": "rejection", "changes": "changes"}
"""The way out that a decision other than an approval takes, where the node names one."""


DELEGATIONS_MAX = 100
"""How often one decision can be passed on."""


def as_user(name: str) -> str:
    """A person as approvals name them. Somebody who is called like a role is still no role."""
    name = name.strip()
    return name if name.startswith(USER) else USER + name


def as_role(name: str) -> str:
    """A role as approvals name it."""
    return name if name.startswith(ROLE) else ROLE + name


# Who may decide


def reject_reason(builder: DecisionBuilder, command: Decide | Delegate) -> Problem | None:
    """Why somebody cannot decide or delegate now. What was decided likewise before is no reason."""
    node, approval = builder.flow.by_id[command.node], _approval(builder.state, command)
    if isinstance(approval, Problem):
        return approval
    if not command.actor:
        return _problem("actor_missing", "nobody is named who decides", "say who you are")
    person = as_user(command.actor)
    if isinstance(command, Delegate) and _passed_to(approval, person) == as_user(command.to):
        return None
    problem = _not_allowed(approval, builder.state, person, command.roles)
    if problem is not None:
        return problem
    if isinstance(command, Delegate):
        return _no_delegation(approval, builder.state, person, command.to)
    if approval.status == "expired":
        return _problem("approval_expired", "the time to decide has passed", "retry the run to ask again")
    if approval.status == "cancelled":
        return _problem("approval_closed", "nobody waits for this decision any more", "see `tidemill approvals list`")
    if isinstance(command.form, BlobRef):
        return _problem("form_too_large", f"the form is longer than {INLINE_BYTES_MAX} bytes", "refer to large values")
    if command.verb == "changes" and not _changeable(builder, node, command.index):
        return _problem(
            "changes_not_possible",
            f"node {node.id} has no changes_path",
            "approve or reject, or give it a changes_path",
        )
    earlier = _earlier(approval, person)
    if earlier and earlier != command.verb:
        who = "you" if approval.status == "pending" else approval.decided_by
        return _problem(
            "decision_conflict",
            f"it was decided otherwise already: {earlier} by {who}",
            "see `tidemill approvals show`",
        )
    return None


def _approval(state: State, command: Decide | Delegate) -> Approval | Problem:
    visit = state.peek(command.node)
    act = peek_at(visit, command.index)
    if command.visit and command.visit < visit.visit:
        return _problem(
            "approval_closed", f"node {command.node} is at visit {visit.visit} by now", "decide on the present visit"
        )
    if act is None or act.approval is None or command.visit > visit.visit:
        return _problem("approval_unknown", f"node {command.node} waits for no decision", "see `approvals list`")
    return act.approval


def _not_allowed(approval: Approval, state: State, person: str, roles: tuple[str, ...]) -> Problem | None:
    if approval.four_eyes and person in _is_involved(approval, state):
        message = f"{person} submitted or patched the run, and four eyes are required"
        return _problem("four_eyes", message, "ask somebody else")
    if not _entitled(approval, person, roles):
        asked = ", ".join(approval.approvers)
        return _problem("approver_not_allowed", f"{person} may not decide this", f"asked were: {asked}")
    return None


def _is_involved(approval: Approval, state: State) -> set[str]:
    """Whose eyes have been on it already: those who asked for the run, forked it or patched it."""
    return {as_user(name) for name in (approval.requester, state.submitted_by, *state.patched_by) if name}


def _entitled(approval: Approval, person: str, roles: tuple[str, ...]) -> bool:
    """Whether somebody may decide: asked themselves or by delegation, and not having passed it on since."""
    if _passed_to(approval, person):
        return False
    return (
        not approval.approvers
        or person in approval.approvers
        or any(as_role(role) in approval.approvers for role in roles)
        or any(to == person for _, to in approval.delegated)
    )


def _passed_to(approval: Approval, person: str) -> str:
    """To whom this person has passed the decision on, unless it came back since."""
    for by, to in reversed(approval.delegated):
        if person in (by, to):
            return to if by == person else ""
    return ""


def _changeable(builder: DecisionBuilder, node: Node, index: int) -> bool:
    """Whether somebody would hear of a request for changes: a path, conditions, or the handler itself."""
    act = peek_at(builder.state.peek(node.id), index)
    recalled = act is not None and act.wait is not None and act.wait.recall
    return recalled or node.routed or (index == NOT_AN_ITEM and "changes" in node.exits)


def _on_behalf_of(approval: Approval, person: str) -> str:
    """Who passed the decision on to this person, if anybody did."""
    return next((by for by, to in reversed(approval.delegated) if to == person), "")


def _earlier(approval: Approval, person: str) -> str:
    """What was decided before, by this person or for good."""
    if approval.status == "decided":
        return approval.decision
    return "approve" if any(vote.by == person for vote in approval.votes) else ""


def _no_delegation(approval: Approval, state: State, person: str, name: str) -> Problem | None:
    to = as_user(name)
    if approval.status != "pending":
        message = f"the approval is {approval.status}, there is nothing to pass on"
        return _problem("approval_closed", message, "see `tidemill approvals list`")
    if len(approval.delegated) >= DELEGATIONS_MAX:
        return _problem("delegation_invalid", f"it was passed on {DELEGATIONS_MAX} times already", "decide it")
    if name.startswith(ROLE) or to == person:
        return _problem("delegation_invalid", "a decision is passed on to another person", "name a user")
    if approval.four_eyes and to in _is_involved(approval, state):
        message = f"{to} submitted or patched the run, and four eyes are required"
        return _problem("four_eyes", message, "ask somebody else")
    if any(vote.by in (person, to) for vote in approval.votes):
        return _problem("delegation_invalid", "one of the two has voted already", "name somebody who has not")
    return None


def _problem(code: str, message: str, hint: str = "") -> Problem:
    return Problem(code=code, message=message, hint=hint)


# Deciding


def apply_decision(builder: DecisionBuilder, node: Node, command: Decide) -> None:
    """Count a vote, and let the visit go on once enough people agree or one does not."""
    approval = _approval(builder.state, command)
    assert isinstance(approval, Approval) and command.actor is not None, "it was not refused"
    person = as_user(command.actor)
    if _earlier(approval, person):
        return
    visit, behalf = builder.state.peek(node.id).visit, _on_behalf_of(approval, person)
    agreed = {vote.by for vote in approval.votes} | {person}
    if command.verb == "approve" and len(agreed) < approval.quorum:
        builder.emit(
            ApprovalVoted(
                at_ms=builder.now,
                actor=builder.actor,
                command=builder.command,
                node=node.id,
                visit=visit,
                index=command.index,
                by=person,
                comments=command.comments,
                form=command.form,
                on_behalf_of=behalf,
            )
        )
        return
    _decide(builder, node, command.index, command.verb, person, command.comments, command.form, behalf)


def _decide(
    builder: DecisionBuilder,
    node: Node,
    index: int,
    verb: str,
    by: str,
    comments: str,
    form: Payload | None,
    behalf: str,
) -> None:
    """Write the decision down and draw its consequence for the visit."""
    visit = builder.state.peek(node.id).visit
    if verb == "changes":
        builder.emit(
            ApprovalReturned(
                at_ms=builder.now,
                actor=builder.actor,
                command=builder.command,
                node=node.id,
                visit=visit,
                index=index,
                by=by,
                comments=comments,
                form=form,
                on_behalf_of=behalf,
            )
        )
    else:
        builder.emit(
            ApprovalDecided(
                at_ms=builder.now,
                actor=builder.actor,
                command=builder.command,
                node=node.id,
                visit=visit,
                index=index,
                decision=verb,
                by=by,
                comments=comments,
                form=form,
                on_behalf_of=behalf,
            )
        )
    builder.cause = builder.state.seq
    _go_on(builder, node, index, verb, _answer(builder, verb, by, comments, form))


def _answer(builder: DecisionBuilder, verb: str, by: str, comments: str, form: Payload | None) -> Payload:
    """The output of the visit."""
    return msgspec.json.encode(
        {
            "decision": verb,
            "comments": comments,
            "decided_by": by,
            "decided_at": iso(builder.now),
            "form": msgspec.Raw(form) if isinstance(form, bytes) else None,
        }
    )


def _go_on(builder: DecisionBuilder, node: Node, index: int, verb: str, answer: Payload) -> None:
    exit_ = EXITS.get(verb, "")
    act = peek_at(builder.state.peek(node.id), index)
    if act is not None and act.wait is not None and act.wait.recall:
        wait_over(builder, node, index, answer)
    elif index == NOT_AN_ITEM and exit_ in node.exits:
        leave_wait(builder, node, index)
        leave_visit(builder, node, exit_, answer, AttemptFacts(cause=builder.cause))
    elif verb == "reject" and (index != NOT_AN_ITEM or node.branch is None):
        leave_wait(builder, node, index)
        fail_for_good(
            builder, node, index, Error("rejected", "the approval was rejected"), AttemptFacts(cause=builder.cause)
        )
    else:
        wait_over(builder, node, index, answer)


def take_delegation(builder: DecisionBuilder, node: Node, command: Delegate) -> None:
    """Let somebody decide in another's place."""
    approval = _approval(builder.state, command)
    assert isinstance(approval, Approval) and command.actor is not None, "it was not refused"
    by, to = as_user(command.actor), as_user(command.to)
    if _passed_to(approval, by) == to:
        return
    builder.emit(
        ApprovalDelegated(
            at_ms=builder.now,
            actor=builder.actor,
            command=builder.command,
            node=node.id,
            visit=builder.state.peek(node.id).visit,
            index=command.index,
            by=by,
            to=to,
            comments=command.comments,
        )
    )


# Nobody decided in time


def timed_out(builder: DecisionBuilder, node: Node, index: int) -> None:
    """The time to decide is over: what the document says for that case happens."""
    visit = builder.state.peek(node.id)
    act = peek_at(visit, index)
    assert act is not None and act.approval is not None, "somebody was asked"
    approval = act.approval
    if approval.on_timeout in ("approve", "reject"):
        _decide(builder, node, index, approval.on_timeout, SYSTEM, "nobody decided in time", None, "")
    elif approval.on_timeout == "escalate" and not approval.escalated:
        _escalate(builder, node, visit.visit, index, approval)
    else:
        builder.emit(
            ApprovalExpired(at_ms=builder.now, cause=builder.cause, node=node.id, visit=visit.visit, index=index)
        )
        builder.cause = builder.state.seq
        leave_wait(builder, node, index)
        error = Error("approval_expired", "nobody decided in time")
        fail_for_good(builder, node, index, error, AttemptFacts(cause=builder.cause))


def _escalate(builder: DecisionBuilder, node: Node, visit: int, index: int, approval: Approval) -> None:
    """Ask others, who have as much time as the first had."""
    expires = None if approval.timeout_ms is None else builder.now + approval.timeout_ms
    builder.emit(
        ApprovalEscalated(
            at_ms=builder.now,
            cause=builder.cause,
            node=node.id,
            visit=visit,
            index=index,
            to=approval.escalate_to,
            expires_ms=expires,
        )
    )
    act = peek_at(builder.state.peek(node.id), index)
    assert act is not None, "it waits"
    for job in wait_jobs(node.id, visit, index, act):
        builder.add_job(job)
