"""Approvals: who may decide, voting and quorum, delegation, escalation and expiry.

A decision is a compare-and-set on the approval in the log: repeating it succeeds without an event, contradicting it is
refused. Votes count distinct people; their right to decide is checked when they vote. A single rejection or request
for changes decides. The kernel reads no clock: `datetime` only formats timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tidemill.errors import Problem
from tidemill.kernel import events
from tidemill.kernel.activation import Approval
from tidemill.kernel.commands import Decide, Delegate
from tidemill.kernel.decide.builder import AttemptFacts, DecisionBuilder, problem
from tidemill.kernel.decide.visits import fail_for_good, leave_visit
from tidemill.kernel.decide.waits import leave_wait, wait_over
from tidemill.kernel.events import INLINE_BYTES_MAX, NOT_AN_ITEM, SYSTEM, BlobRef, Error, Payload
from tidemill.kernel.jobs import wait_jobs
from tidemill.kernel.model import Node
from tidemill.kernel.state import State, peek_at

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


USER, ROLE = "user:", "role:"
EXITS = {"reject": "rejection", "changes": "changes"}
"""The exit that a decision other than an approval takes, if the node has it."""

COMMENTS_SHOWN_MAX = 300
"""Characters of the comments of a rejection that the error quotes; the decision has all of them."""
DELEGATIONS_MAX = 100
"""Delegations per approval."""


def as_user(name: str) -> str:
    """A user with the prefix that approvals use. A user named like a role is still a user."""
    name = name.strip()
    return name if name.startswith(USER) else USER + name


def as_role(name: str) -> str:
    return name if name.startswith(ROLE) else ROLE + name


def ask_again(state: State) -> str:
    """What to do about an approval that has expired: the run may have gone another way."""
    if state.status == "FAILED":
        return "retry the run to ask again"
    return "rewind the run to ask again" if state.live else "fork the run before this node to ask again"


def reject_reason(builder: DecisionBuilder, command: Decide | Delegate) -> Problem | None:
    """Why a decision or delegation is refused; repeating an earlier one is not."""
    node, approval = builder.flow.by_id[command.node], _approval(builder.state, command)
    if isinstance(approval, Problem):
        return approval
    if not command.actor:
        return problem("actor_missing", "the decision names no person", "pass the name of the person")
    user = as_user(command.actor)
    if isinstance(command, Delegate) and delegated_to(approval, user) == as_user(command.to):
        return None
    if user in _excluded(approval, builder.state):
        return _four_eyes(user)
    if not is_entitled(approval, user, command.roles):
        return _not_allowed(approval, user)
    if isinstance(command, Delegate):
        return _refuse_delegation(approval, builder.state, user, command.to)
    if approval.status == "expired":
        return problem("approval_expired", "the time to decide has passed", ask_again(builder.state))
    if approval.status == "cancelled":
        return problem("approval_closed", "the approval is closed", "see `tidemill approvals list`")
    if isinstance(command.form, BlobRef):
        return problem("form_too_large", f"the form is longer than {INLINE_BYTES_MAX} bytes", "refer to large values")
    # A request for changes needs an exit, conditions, or a handler that is called again.
    act = peek_at(builder.state.peek(node.id), command.index)
    recalled = act is not None and act.wait is not None and act.wait.recall
    can_return = recalled or node.routed or (command.index == NOT_AN_ITEM and "changes" in node.exits)
    if command.verb == "changes" and not can_return:
        hint = "approve or reject, or give it a changes_path"
        return problem("changes_not_possible", f"node {node.id} has no changes_path", hint)
    earlier = _earlier(approval, user)
    is_open = approval.status == "pending"
    who = "you" if is_open else approval.decided_by
    if earlier and earlier != command.verb:
        message = f"it was already decided: {earlier} by {who}"
        return problem("decision_conflict", message, "see `tidemill approvals show`")
    given = next((vote.form for vote in reversed(approval.votes) if not is_open or vote.by == user), None)
    if earlier and command.form is not None and not _is_same_form(command.form, given):
        message = f"it was already decided with another form: {earlier} by {who}"
        return problem("decision_conflict", message, "leave out the form to repeat the decision")
    return None


def _is_same_form(form: bytes, other: Payload | None) -> bool:
    return isinstance(other, bytes) and bool(msgspec.json.decode(form) == msgspec.json.decode(other))


def _approval(state: State, command: Decide | Delegate) -> Approval | Problem:
    visit = state.peek(command.node)
    act = peek_at(visit, command.index)
    if command.visit and command.visit < visit.visit:
        message = f"node {command.node} is already at visit {visit.visit}"
        return problem("approval_closed", message, "decide on the present visit")
    if act is None or act.approval is None or command.visit > visit.visit:
        return problem("approval_unknown", f"node {command.node} is not waiting for a decision", "see `approvals list`")
    return act.approval


def _excluded(approval: Approval, state: State) -> set[str]:
    """Users who may not decide under four eyes: they submitted, forked or patched the run."""
    names = (approval.requester, state.submitted_by, *state.patched_by) if approval.four_eyes else ()
    return {as_user(name) for name in names if name}


def _four_eyes(user: str) -> Problem:
    message = f"{user} submitted or patched the run, and four eyes are required"
    return problem("four_eyes", message, "ask another person")


def _not_allowed(approval: Approval, user: str) -> Problem:
    if to := delegated_to(approval, user):
        message = f"{user} has delegated this decision to {to}"
        return problem("approver_not_allowed", message, f"{to} decides, or delegates it back")
    delegated = (f"{by} has delegated it to {to}" for by, to in approval.delegated)
    asked = "; ".join((", ".join(approval.approvers), *delegated))
    hint = f"asked were: {asked}; decide as one of them, such as {' '.join(who_words(entitled(approval)))}"
    return problem("approver_not_allowed", f"{user} may not decide this", hint)


def is_entitled(approval: Approval, user: str, roles: tuple[str, ...]) -> bool:
    """Whether a user may decide: asked directly or by delegation, and not delegated since."""
    if delegated_to(approval, user):
        return False
    return (
        not approval.approvers
        or user in approval.approvers
        or any(as_role(role) in approval.approvers for role in roles)
        or any(to == user for _, to in approval.delegated)
    )


def entitled(approval: Approval) -> tuple[str, ...]:
    """Who may decide after all delegations; empty where anyone may."""
    if not approval.approvers:
        return ()
    found = dict.fromkeys(approval.approvers)
    for by, to in approval.delegated:
        found.pop(by, None)
        found[to] = None
    return tuple(found)


def who_words(asked: Iterable[str], barred: str = "") -> tuple[str, ...]:
    """Options of a command that decides as one of those who are asked: with their role, else as a person.

    A person who is barred decides as none of them: another one is named, or asked for.
    """
    others = [each for each in asked if each != barred]
    role = next((each.removeprefix(ROLE) for each in others if each.startswith(ROLE)), "")
    if not role and others:
        return "--as", others[0].removeprefix(USER)
    return (("--as", "PERSON") if barred else ()) + (("--role", role) if role else ())


def delegated_to(approval: Approval, user: str) -> str:
    """To whom this user has delegated the decision, unless it was delegated back."""
    for by, to in reversed(approval.delegated):
        if user in (by, to):
            return to if by == user else ""
    return ""


def _earlier(approval: Approval, user: str) -> str:
    """The earlier decision: the final one, or this user's vote."""
    if approval.status == "decided":
        return approval.decision
    return "approve" if any(vote.by == user for vote in approval.votes) else ""


def _refuse_delegation(approval: Approval, state: State, user: str, name: str) -> Problem | None:
    to = as_user(name)
    if approval.status != "pending":
        message = f"the approval is {approval.status}, so it cannot be delegated"
        return problem("approval_closed", message, "see `tidemill approvals list`")
    if len(approval.delegated) >= DELEGATIONS_MAX:
        return problem("delegation_invalid", f"it was already delegated {DELEGATIONS_MAX} times", "decide it")
    if name.startswith(ROLE) or to == user:
        return problem("delegation_invalid", "a decision is delegated to another person", "name a user")
    if to in _excluded(approval, state):
        return _four_eyes(to)
    if any(vote.by in (user, to) for vote in approval.votes):
        return problem("delegation_invalid", "one of the two has voted already", "name a person who has not")
    return None


def apply_decision(builder: DecisionBuilder, command: Decide) -> None:
    """Count a vote; end the wait once the quorum is reached or one approver disagrees."""
    approval = _approval(builder.state, command)
    assert isinstance(approval, Approval) and command.actor is not None, "it was not refused"
    node, user = builder.flow.by_id[command.node], as_user(command.actor)
    if _earlier(approval, user):
        return
    # The user who delegated the decision to this one, or an empty string.
    # The user who delegated the decision to this one, or an empty string.
    behalf = next((by for by, to in reversed(approval.delegated) if to == user), "")
    answer = _answer(builder, node, command.index, user, command.comments, command.form, behalf)
    agreed = {vote.by for vote in approval.votes} | {user}
    if command.verb == "approve" and len(agreed) < approval.quorum:
        builder.emit(events.ApprovalVoted(**answer))
    else:
        _decide(builder, node, command.verb, answer)


def _answer(
    builder: DecisionBuilder, node: Node, index: int, by: str, comments: str, form: Payload | None, behalf: str
) -> dict[str, Any]:
    """The fields that votes and decisions have in common."""
    return {
        **builder.command_fields,
        "node": node.id,
        "visit": builder.state.peek(node.id).visit,
        "index": index,
        "by": by,
        "comments": comments,
        "form": form,
        "on_behalf_of": behalf,
    }


def _decide(builder: DecisionBuilder, node: Node, verb: str, answer: dict[str, Any]) -> None:
    changes = verb == "changes"
    builder.emit(events.ApprovalReturned(**answer) if changes else events.ApprovalDecided(decision=verb, **answer))
    builder.cause = builder.state.seq
    output = msgspec.json.encode(
        {
            "decision": verb,
            "comments": answer["comments"],
            "decided_by": answer["by"],
            "decided_at": iso(builder.now),
            "form": msgspec.Raw(answer["form"]) if isinstance(answer["form"], bytes) else None,
        }
    )
    index, exit_ = answer["index"], EXITS.get(verb, "")
    act = peek_at(builder.state.peek(node.id), index)
    if act is not None and act.wait is not None and act.wait.recall:
        wait_over(builder, node, index, output)
    elif index == NOT_AN_ITEM and exit_ in node.exits:
        leave_wait(builder, node, index)
        leave_visit(builder, node, exit_, output, AttemptFacts(cause=builder.cause))
    elif verb == "reject" and (index != NOT_AN_ITEM or node.branch is None):
        leave_wait(builder, node, index)
        comments = " ".join(answer["comments"].split())[:COMMENTS_SHOWN_MAX]
        error = Error("rejected", f"rejected by {answer['by']}" + (f": {comments}" if comments else ""))
        fail_for_good(builder, node, index, error, AttemptFacts(cause=builder.cause))
    else:
        wait_over(builder, node, index, output)


def take_delegation(builder: DecisionBuilder, command: Delegate) -> None:
    approval = _approval(builder.state, command)
    assert isinstance(approval, Approval) and command.actor is not None, "it was not refused"
    by, to = as_user(command.actor), as_user(command.to)
    if delegated_to(approval, by) == to:
        return
    builder.emit(
        events.ApprovalDelegated(
            **builder.command_fields,
            node=command.node,
            visit=builder.state.peek(command.node).visit,
            index=command.index,
            by=by,
            to=to,
            comments=command.comments,
        )
    )


def timed_out(builder: DecisionBuilder, node: Node, index: int) -> None:
    """Apply `on_timeout`: decide, escalate or expire."""
    visit = builder.state.peek(node.id)
    act = peek_at(visit, index)
    assert act is not None and act.approval is not None, "a person was asked"
    approval = act.approval
    if approval.on_timeout in ("approve", "reject"):
        answer = _answer(builder, node, index, SYSTEM, "no decision came in time", None, "")
        _decide(builder, node, approval.on_timeout, answer)
    elif approval.on_timeout == "escalate" and not approval.escalated:
        # The next approvers are asked with the same time-out.
        expires = None if approval.timeout_ms is None else builder.now + approval.timeout_ms
        fields = builder.node_fields(node.id, index)
        builder.emit(events.ApprovalEscalated(to=approval.escalate_to, expires_ms=expires, **fields))
        act = peek_at(builder.state.peek(node.id), index)
        assert act is not None, "it waits"
        for job in wait_jobs(node.id, visit.visit, index, act):
            builder.add_job(job)
    else:
        builder.emit(events.ApprovalExpired(**builder.node_fields(node.id, index)))
        builder.cause = builder.state.seq
        leave_wait(builder, node, index)
        error = Error("approval_expired", "no decision came in time")
        fail_for_good(builder, node, index, error, AttemptFacts(cause=builder.cause))


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision leads to, as far as the graph tells."""

    next_nodes: tuple[str, ...] = ()
    conditional: bool = False
    """Conditions, or the node's own code, choose among these nodes after the decision."""
    fails: bool = False
    """The node fails by it; without next nodes the run fails, too."""
    possible: bool = True


def consequences(node: Node, index: int, *, recall: bool = False) -> dict[str, Consequence]:
    """What each decision on a node leads to, by verb. `recall`: the node's code is called with the decision."""
    loop, branch = node.loop, node.branch
    targets = list(node.plain)
    if branch is not None:
        targets += [name for rule in branch.rules for name in rule.next_nodes] + [*branch.available, *branch.default]
    if loop is not None:
        targets += [loop.back_to, *loop.break_path, *loop.timeout_path]
    onward = Consequence(next_nodes=tuple(dict.fromkeys(targets)), conditional=node.routed or recall)
    found = {"approve": onward, "reject": onward, "changes": onward}
    if recall:
        return found
    for verb, exit_ in EXITS.items():
        if index == NOT_AN_ITEM and exit_ in node.exits:
            found[verb] = Consequence(next_nodes=node.exits[exit_])
        elif verb == "reject" and (index != NOT_AN_ITEM or branch is None):
            after = {"route": node.error_path, "continue": node.plain}.get(node.on_error, ())
            found[verb] = Consequence(next_nodes=after, fails=True)
        elif verb == "changes" and not node.routed:
            found[verb] = Consequence(possible=False)
    return found
