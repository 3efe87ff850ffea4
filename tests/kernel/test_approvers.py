"""Who may decide: people and roles as they are at that moment, four eyes, a quorum, and those who pass it on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.acts import Acts
from tests.kernel.tables import Run, asked, begun, human, rows
from tidemill.kernel.commands import Delegate
from tidemill.kernel.decide.approvals import DELEGATIONS_MAX
from tidemill.kernel.events import ApprovalDecided, ApprovalVoted

Json = Any


def refusal(run: Run, by: str, roles: str = "", verb: Any = "approve") -> str:
    return run.refused(run.decision(verb, "h", by, roles))


def no_delegation(run: Run, by: str, to: str, roles: str = "") -> str:
    return run.refused(Delegate(to=to, actor=by, roles=tuple(roles.split()), **run.where("h")))


# People and roles


@pytest.mark.parametrize(
    ("who", "by", "roles"),
    [
        ("", "anyone", ""),
        ("user:ann", "ann", ""),
        ("user:ann", "user:ann", ""),
        ("role:boss", "eve", "boss"),
        ("role:boss", "eve", "clerk role:boss"),
        ("user:ann role:boss", "eve", "boss"),
    ],
)
def test_those_who_were_asked_may_decide(who: str, by: str, roles: str) -> None:
    assert asked(who=who).approve("h", by, roles)[0].startswith("ApprovalDecided h decision=approve by=user:")


@pytest.mark.parametrize(
    ("who", "by", "roles"),
    [
        ("user:ann", "eve", ""),
        ("user:ann", "eve", "ann"),
        ("role:boss", "eve", ""),
        ("role:boss", "eve", "clerk"),
        ("role:boss", "boss", ""),
        ("role:boss", "role:boss", ""),
        ("user:ann", "Ann", ""),
    ],
)
@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_nobody_else_may(who: str, by: str, roles: str, verb: str) -> None:
    run = asked(who=who)
    assert refusal(run, by, roles, verb) == "approver_not_allowed"
    assert run.approval("h").status == "pending"


@pytest.mark.parametrize("by", [None, ""])
def test_somebody_has_to_be_named(by: Any) -> None:
    run = asked()
    assert refusal(run, by) == "actor_missing"


def test_a_stranger_does_not_learn_how_it_was_decided() -> None:
    run = asked(who="user:ann")
    run.approve("h", "ann")
    assert refusal(run, "eve") == refusal(run, "eve", verb="reject") == "approver_not_allowed"


# A quorum


def test_votes_are_counted_over_distinct_people() -> None:
    run = asked(quorum=3, timeout_ms=5_000)
    assert run.approve("h", "ann", comments="ok", form=b"1") == rows("ApprovalVoted h by=user:ann")
    assert run.approve("h", "ann") == run.approve("h", "user:ann") == []
    assert run.approve("h", "bob") == rows("ApprovalVoted h by=user:bob")
    assert (run.jobs, run.counter) == ("expire h", 1)
    assert run.approve("h", "cleo")[:2] == rows(
        "ApprovalDecided h decision=approve by=user:cleo; NodeCompleted h taken=z counter=1"
    )
    assert [vote.by for vote in run.approval("h").votes] == ["user:ann", "user:bob", "user:cleo"]
    voted = run.of(ApprovalVoted)[0]
    assert (voted.actor, voted.comments, voted.form) == ("ann", "ok", b"1")


def test_a_vote_cannot_be_taken_back() -> None:
    run = asked(quorum=2)
    run.approve("h", "ann")
    assert refusal(run, "ann", verb="reject") == "decision_conflict"


@pytest.mark.parametrize("verb", ["reject", "changes"])
def test_one_who_does_not_agree_decides(verb: Any) -> None:
    run = asked("h > y; h > r; h > c", node=human("r", "c"), quorum=3)
    run.approve("h", "ann")
    path = "r" if verb == "reject" else "c"
    assert f"taken={path}" in run.do(run.decision(verb, "h", "bob"))[1]
    assert refusal(run, "ann") == refusal(run, "cleo") == "decision_conflict"


def test_a_role_is_looked_at_when_its_holder_decides() -> None:
    """Whoever had the role when they voted has voted; whoever has lost it since may not vote."""
    run = asked(who="role:boss", quorum=2)
    run.approve("h", "ann", "boss")
    assert refusal(run, "bob", "") == "approver_not_allowed"
    assert run.approve("h", "bob", "boss")[0] == "ApprovalDecided h decision=approve by=user:bob"


# Four eyes


@pytest.mark.parametrize("by", ["rita", "user:rita"])
def test_who_submitted_the_run_may_not_decide(by: str) -> None:
    run = asked(who="user:rita user:ann", four_eyes=True)
    assert refusal(run, by) == refusal(run, by, verb="reject") == "four_eyes"
    assert run.approve("h", "ann") != []


def test_without_four_eyes_two_are_enough() -> None:
    assert asked(who="user:rita").approve("h", "rita") != []


def test_who_patched_the_run_may_not_decide() -> None:
    run = asked(four_eyes=True)
    run.kernel.state.patched_by = ("user:paul", "pia")
    assert refusal(run, "paul") == refusal(run, "pia") == "four_eyes"
    assert no_delegation(run, "ann", "paul") == "four_eyes"


def test_nobody_in_particular_submitted_it() -> None:
    run = begun("h", {"h": human()})
    run.ask("h", four_eyes=True)
    assert run.approve("h", "ann") != []


# Delegation


def test_who_is_asked_by_another_decides_in_their_place() -> None:
    run = asked(who="user:ann")
    assert run.delegate("h", "ann", "bob") == rows("ApprovalDelegated h by=user:ann to=user:bob")
    assert run.approval("h").delegated == (("user:ann", "user:bob"),)
    assert run.approve("h", "bob")[0] == "ApprovalDecided h decision=approve by=user:bob for=user:ann"
    assert (run.output("h")["decided_by"], run.approval("h").on_behalf_of) == ("user:bob", "user:ann")


def test_who_passes_it_on_has_given_it_away() -> None:
    run = asked(who="user:ann role:boss")
    run.delegate("h", "ann", "bob")
    assert refusal(run, "ann") == refusal(run, "ann", "boss") == "approver_not_allowed"
    assert no_delegation(run, "ann", "cleo") == "approver_not_allowed"


def test_it_can_be_passed_on_and_back() -> None:
    run = asked(who="user:ann")
    run.delegate("h", "ann", "bob")
    run.delegate("h", "bob", "cleo")
    assert refusal(run, "bob") == "approver_not_allowed"
    run.delegate("h", "cleo", "ann")
    assert refusal(run, "cleo") == "approver_not_allowed"
    run.delegate("h", "ann", "bob")
    assert len(run.approval("h").delegated) == 4
    assert run.approve("h", "bob")[0] == "ApprovalDecided h decision=approve by=user:bob for=user:ann"


def test_the_same_delegation_again_is_the_same_answer() -> None:
    run = asked(who="user:ann")
    run.delegate("h", "ann", "bob")
    assert run.delegate("h", "ann", "user:bob") == []
    run.delegate("h", "bob", "cleo")
    assert run.delegate("h", "ann", "bob") == run.delegate("h", "bob", "cleo") == []


def test_a_role_can_be_passed_on_by_its_holder_alone() -> None:
    run = asked(who="role:boss")
    assert no_delegation(run, "ann", "bob", "clerk") == "approver_not_allowed"
    assert run.delegate("h", "ann", "bob", "boss") == rows("ApprovalDelegated h by=user:ann to=user:bob")
    assert refusal(run, "ann", "boss") == "approver_not_allowed"
    assert run.approve("h", "cleo", "boss") != []


@pytest.mark.parametrize(
    ("by", "to", "code"),
    [
        ("ann", "ann", "delegation_invalid"),
        ("ann", "user:ann", "delegation_invalid"),
        ("ann", "role:boss", "delegation_invalid"),
        ("ann", "rita", "four_eyes"),
        ("rita", "ann", "four_eyes"),
        ("eve", "bob", "approver_not_allowed"),
        ("", "bob", "actor_missing"),
    ],
)
def test_not_everything_is_a_delegation(by: str, to: str, code: str) -> None:
    run = asked(who="user:ann user:rita", four_eyes=True)
    assert no_delegation(run, by, to) == code


def test_a_vote_is_not_passed_on_and_nobody_votes_twice() -> None:
    run = asked(who="user:ann user:bob user:cleo", quorum=3)
    run.approve("h", "ann")
    assert no_delegation(run, "ann", "dora") == "delegation_invalid"
    assert no_delegation(run, "bob", "ann") == "delegation_invalid"
    run.delegate("h", "bob", "cleo")
    assert run.approve("h", "cleo") == rows("ApprovalVoted h by=user:cleo for=user:bob")
    assert run.approve("h", "cleo") == []


def test_what_is_decided_is_not_passed_on() -> None:
    run = asked(who="user:ann")
    run.approve("h", "ann")
    assert no_delegation(run, "ann", "bob") == "approval_closed"
    assert len(run.of(ApprovalDecided)) == 1


def test_an_escalation_ends_what_was_passed_on() -> None:
    run = asked(who="user:ann", timeout_ms=5_000, on_timeout="escalate", escalate_to=("user:boss",))
    run.delegate("h", "ann", "bob")
    run.expire("h")
    assert refusal(run, "bob") == "approver_not_allowed"
    assert run.approve("h", "boss")[0] == "ApprovalDecided h decision=approve by=user:boss"


def test_items_are_passed_on_one_by_one() -> None:
    run = begun("h", {"h": human(map={"over": [1]})})
    run.expand("h", 2)
    run.ask("h[0]", "user:ann")
    run.ask("h[1]", "user:ann")
    assert run.delegate("h[1]", "ann", "bob") == rows("ApprovalDelegated h[1] by=user:ann to=user:bob")
    assert run.approve("h[0]", "ann")[0] == "ApprovalDecided h[0] decision=approve by=user:ann"
    assert run.refused(run.decision("approve", "h[1]", "ann")) == "approver_not_allowed"


def test_four_eyes_of_whoever_forked_the_run() -> None:
    """The question is asked anew in the fork, by whoever forked it."""
    run = Acts("h > z", {"h": human()})
    run.start(submitted_by="rita")
    run.ask("h", four_eyes=True)
    other = run.fork(submitted_by="fred")
    other.ask("h", four_eyes=True)
    assert other.refused(other.decision("approve", "h", "fred")) == "four_eyes"
    assert other.approve("h", "rita") != []


def test_white_space_makes_nobody_another_person() -> None:
    run = asked(who="user:ann user:bob", quorum=2)
    run.approve("h", "ann")
    assert run.approve("h", " ann ") == []


def test_a_decision_is_passed_on_a_bounded_number_of_times() -> None:
    run = asked(who="user:ann")
    pair = ["ann", "bob"]
    for number in range(DELEGATIONS_MAX):
        run.delegate("h", pair[number % 2], pair[1 - number % 2])
    assert run.refused(Delegate(node="h", visit=1, to="bob", actor="ann")) == "delegation_invalid"
    assert run.approve("h", "ann") != []
