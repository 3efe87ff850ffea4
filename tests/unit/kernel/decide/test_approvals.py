"""People decide: what is asked, what a decision makes of the visit that waited for it, and which decision counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import Run, asked, begun, choose, human, loop, rows
from tidemill.errors import Problem
from tidemill.kernel.commands import Delegate, WaitExpired
from tidemill.kernel.decide.approvals import DELEGATIONS_MAX, ask_again, consequences
from tidemill.kernel.events import ApprovalDecided, ApprovalVoted, BlobRef, NodeCompleted, NodeFailed
from tidemill.kernel.model import Branch, Node, Rule

Json = Any


def test_a_question_is_an_event_and_costs_nothing_while_it_waits() -> None:
    run = Run("h > z", {"h": human()})
    run.start(submitted_by="rita")
    assert run.ask("h", "user:ann role:boss", quorum=2, description="12 EUR", form=b"{}", url="u") == rows(
        "NodeStarted h; NodeWaiting h on=human; ApprovalRequested h"
    )
    assert (run.jobs, run.counter, run.kernel.state.in_flight, run.kernel.state.approvals) == ("", 1, 0, 1)
    found = run.approval("h")
    assert (found.status, found.requester, found.approvers) == ("pending", "rita", ("user:ann", "role:boss"))
    assert (found.title, found.description, found.form, found.url) == ("Well?", "12 EUR", b"{}", "u")
    assert (found.quorum, found.requested_ms) == (2, 1_000)


def test_an_approval_takes_the_edges_and_is_the_output() -> None:
    run = asked("h > y z", timeout_ms=5_000)
    run.kernel.now = 1_760_000_000_123
    assert run.approve("h", comments="fine", form=b'{"eur": 12}') == rows(
        "ApprovalDecided h decision=approve by=user:ann; NodeCompleted h taken=y,z counter=2;"
        "NodeScheduled y; NodeScheduled z; drop expire h; put run y; put run z"
    )
    assert run.output("h") == {
        "decision": "approve",
        "comments": "fine",
        "decided_by": "user:ann",
        "decided_at": "2025-10-09T08:53:20.123+00:00",
        "form": {"eur": 12},
    }
    found = run.approval("h")
    assert (found.status, found.decision, found.decided_by) == ("decided", "approve", "user:ann")
    assert (found.comments, found.decided_ms) == ("fine", 1_760_000_000_123)


def test_a_decision_is_somebodys_act() -> None:
    run = asked()
    run.approve("h", id="d1")
    [decided] = run.of(ApprovalDecided)
    assert (decided.actor, decided.command, decided.by) == ("ann", "d1", "user:ann")
    assert run.approve("h", "bob", id="d1") == []
    [completed] = run.of(NodeCompleted)
    assert completed.cause == run.kernel.events.index(decided) + 1


def test_a_form_that_is_too_long_for_the_output_is_refused() -> None:

    run = asked()
    assert run.refused(run.decision("approve", "h", form=BlobRef("sha256:0", 70_000))) == "form_too_large"


def test_a_rejection_takes_its_path_and_no_other() -> None:
    run = asked("h > y; h > r; h > c", node=human("r", "c"))
    assert run.reject("h", comments="no") == rows(
        "ApprovalDecided h decision=reject by=user:ann; NodeCompleted h taken=r dead=y,c counter=1;"
        "NodeScheduled r; NodeSkipped y counter=1; NodeSkipped c counter=1; put run r"
    )
    assert (run.output("h")["decision"], run.output("h")["comments"]) == ("reject", "no")


def test_without_a_path_the_branch_decides_on_a_rejection() -> None:
    run = asked("h > y; h > z", node=human(branch=choose("y", "z")))
    assert run.reject("h") == rows("ApprovalDecided h decision=reject by=user:ann; NodeScheduled h resumed; put run h")
    assert msgspec.json.decode(run.cell("h").resumed or b"")["decision"] == "reject"
    assert run.done("h", "z", called=False)[0] == "NodeCompleted h taken=z dead=y counter=1"


def test_a_path_wins_over_the_branch() -> None:
    run = asked("h > y; h > z; h > r", node=human("r", branch=choose("y", "z")))
    assert run.reject("h")[1] == "NodeCompleted h taken=r dead=y,z counter=1"


@pytest.mark.parametrize("node", [human(), human(loop=loop(3)), human(changes="z")], ids=["plain", "loop", "changes"])
def test_a_rejection_without_path_or_branch_is_a_failure(node: Json) -> None:
    run = asked(node=node)
    assert run.reject("h") == rows(
        "ApprovalDecided h decision=reject by=user:ann; NodeFailed h code=rejected counter=0;"
        "DeadLettered h code=rejected attempts=1; NodeFailed z attempt=0 code=upstream_failed counter=0;"
        "RunFailed node=h code=rejected"
    )


@pytest.mark.parametrize(
    ("graph", "on_error", "ends"),
    [("h > z", "continue", "taken=z"), ("h > z; e", {"route": ["e"]}, "taken=e dead=z")],
    ids=["continue", "route"],
)
def test_a_rejection_that_fails_goes_where_errors_go(graph: str, on_error: Json, ends: str) -> None:
    run = asked(graph, node=human(on_error=on_error))
    assert run.reject("h", comments="too\nmuch")[1] == f"NodeFailed h code=rejected tolerated {ends} counter=1"
    assert run.output("h") == {"error": {"code": "rejected", "message": "rejected by user:ann: too much"}}


def test_changes_take_their_path() -> None:
    run = asked("h > y; h > r; h > c", node=human("r", "c"))
    assert run.changes("h", form=b"[1]") == rows(
        "ApprovalReturned h by=user:ann; NodeCompleted h taken=c dead=y,r counter=1;"
        "NodeScheduled c; NodeSkipped y counter=1; NodeSkipped r counter=1; put run c"
    )
    assert (run.output("h")["decision"], run.output("h")["form"]) == ("changes", [1])
    assert run.approval("h").decision == "changes"


@pytest.mark.parametrize("options", [{"branch": choose("y", "z")}, {"loop": loop(3)}], ids=["branch", "loop"])
def test_without_a_path_the_conditions_decide_on_changes(options: Json) -> None:
    run = asked("h > y; h > z", node=human(**options))
    assert run.changes("h") == rows("ApprovalReturned h by=user:ann; NodeScheduled h resumed; put run h")


def test_changes_that_nobody_would_hear_of_are_refused() -> None:
    run = asked("h > y; h > r", node=human("r"))
    assert run.refused(run.decision("changes", "h")) == "changes_not_possible"
    assert run.approval("h").status == "pending"


def test_a_rejection_may_leave_a_loop() -> None:
    """The looping node is skipped, so the loop is over."""
    run = begun("a > h > d > z; h > r", {"h": human("r"), "d": {"loop": loop(3, "a")}})
    run.done("a")
    run.ask("h")
    run.approve("h")
    assert run.edges("r") == "h:undecided"
    run.done("d", again=True)
    run.done("a")
    run.ask("h")
    assert run.reject("h") == rows(
        "ApprovalDecided h#2 decision=reject by=user:ann; NodeCompleted h#2 taken=r dead=d counter=1;"
        "NodeScheduled r; NodeSkipped d#2 dead=z counter=1; NodeSkipped z counter=1; put run r"
    )
    run.done("r")
    assert run.status == "COMPLETED"


def test_the_same_decision_again_is_the_same_answer() -> None:
    run = asked()
    run.approve("h")
    assert run.approve("h") == run.approve("h", "bob") == []
    assert (run.refused(run.decision("reject", "h")), run.refused(run.decision("reject", "h", "bob"))) == (
        "decision_conflict",
        "decision_conflict",
    )


def test_the_same_decision_with_another_form_is_refused() -> None:
    for quorum in (1, 2):
        run = asked(quorum=quorum)
        assert run.approve("h", form=b'{"a":1,"b":2}') != []
        assert run.approve("h", form=b'{"b":2,"a":1}') == run.approve("h") == []
        assert run.refused(run.decision("approve", "h", form=b'{"a":2}')) == "decision_conflict"


def test_a_decision_for_an_earlier_visit_is_too_late() -> None:
    run = asked("h > z", node=human(loop=loop(3)))
    run.approve("h")
    run.done("h", again=True, called=False)
    assert run.refused(run.decision("approve", "h#1")) == "approval_closed"
    assert run.refused(run.decision("approve", "h#2")) == "approval_unknown"
    run.ask("h")
    assert run.refused(run.decision("approve", "h#1")) == "approval_closed"
    assert run.refused(run.decision("approve", "h#3")) == "approval_unknown"
    assert run.approve("h#2") != []


def test_without_a_visit_the_present_one_is_meant() -> None:
    run = asked()
    command = msgspec.structs.replace(run.decision("approve", "h"), visit=0)
    assert run.do(command)[0] == "ApprovalDecided h decision=approve by=user:ann"


@pytest.mark.parametrize("at", ["z", "h[0]"])
def test_where_nobody_asked_nothing_is_decided(at: str) -> None:
    assert asked().refused(asked().decision("approve", at)) == "approval_unknown"


def test_a_cancel_closes_the_question_and_its_timer() -> None:
    run = asked(timeout_ms=5_000)
    assert run.cancel() == rows("NodeCancelled h counter=0; NodeCancelled z counter=0; RunCancelled; drop expire h")
    assert run.approval("h").status == "cancelled"
    assert run.refused(run.decision("approve", "h")) == "approval_closed"


def test_a_paused_run_takes_decisions_and_dispatches_nothing() -> None:
    run = asked(timeout_ms=5_000)
    run.pause()
    assert run.jobs == "expire h"
    assert run.approve("h") == rows(
        "ApprovalDecided h decision=approve by=user:ann; NodeCompleted h taken=z counter=1; NodeScheduled z;"
        "drop expire h"
    )
    assert run.resume() == rows("RunResumed; put run z")


def test_a_time_out_may_approve() -> None:
    run = asked(timeout_ms=5_000, on_timeout="approve", quorum=3)
    assert run.expire("h") == rows(
        "ApprovalDecided h decision=approve by=system; NodeCompleted h taken=z counter=1; NodeScheduled z;"
        "drop expire h; put run z"
    )
    assert (run.output("h")["decided_by"], run.output("h")["decided_at"]) == ("system", "1970-01-01T00:00:06.000+00:00")
    assert run.approve("h") == []
    assert run.refused(run.decision("reject", "h")) == "decision_conflict"


def test_a_time_out_may_reject() -> None:
    run = asked("h > y; h > r", node=human("r"), timeout_ms=5_000, on_timeout="reject")
    assert run.expire("h")[:2] == rows(
        "ApprovalDecided h decision=reject by=system; NodeCompleted h taken=r dead=y counter=1"
    )


def test_a_time_out_fails_when_nothing_else_is_said() -> None:
    run = asked(timeout_ms=5_000)
    assert run.expire("h") == rows(
        "ApprovalExpired h; NodeFailed h code=approval_expired counter=0;"
        "DeadLettered h code=approval_expired attempts=1; NodeFailed z attempt=0 code=upstream_failed counter=0;"
        "RunFailed node=h code=approval_expired; drop expire h"
    )
    assert (run.approval("h").status, run.refused(run.decision("approve", "h"))) == ("expired", "approval_expired")


def test_an_expiry_is_not_retried_and_may_be_tolerated() -> None:
    run = asked(node=human(on_error="continue", retry={"max_attempts": 5}), timeout_ms=5_000)
    assert run.expire("h")[1] == "NodeFailed h code=approval_expired tolerated taken=z counter=1"
    assert ask_again(run.kernel.state).startswith("rewind")
    run.end("z")
    problem = run.kernel.ask(run.decision("approve", "h"))
    assert isinstance(problem, Problem) and problem.hint.startswith("fork")


def test_an_escalation_asks_others_and_then_expires() -> None:
    run = asked(who="user:ann", timeout_ms=5_000, on_timeout="escalate", escalate_to=("user:boss",))
    assert run.expire("h") == rows("ApprovalEscalated h to=user:boss expires=+5000; put expire h at=+5000")
    assert (run.jobs, run.approval("h").status, run.approval("h").escalated) == ("expire h", "pending", True)
    assert run.refused(run.decision("approve", "h", "ann")) == "approver_not_allowed"
    assert run.expire("h")[:2] == rows("ApprovalExpired h; NodeFailed h code=approval_expired counter=0")


def test_those_who_are_asked_next_may_decide() -> None:
    run = asked(who="user:ann", timeout_ms=5_000, on_timeout="escalate", escalate_to=("user:boss",))
    run.expire("h")
    assert run.approve("h", "boss")[:2] == rows(
        "ApprovalDecided h decision=approve by=user:boss; NodeCompleted h taken=z counter=1"
    )
    assert run.jobs == "run z"


def test_whoever_would_wait_no_longer_than_that_is_woken_after_an_escalation() -> None:
    run = asked(who="user:ann", for_ms=8_000, timeout_ms=5_000, on_timeout="escalate", escalate_to=("user:boss",))
    assert run.expire("h") == rows("ApprovalEscalated h to=user:boss expires=+5000; put wake h at=+3000")
    assert run.wake("h")[0] == "NodeCompleted h taken=z counter=1"
    assert run.approval("h").status == "cancelled"


def test_an_escalation_to_nobody_is_an_expiry_and_asks_not_everybody() -> None:
    run = asked(who="user:ann", timeout_ms=5_000, on_timeout="escalate")
    assert run.expire("h")[0] == "ApprovalExpired h"


def test_a_decision_excludes_the_expiry() -> None:
    run = asked("h > y; h > z", node=human(branch=choose("y", "z")), timeout_ms=5_000)
    run.approve("h")
    run.kernel.now = 99_000
    assert run.do(WaitExpired(**run.where("h"))) == []
    assert run.cell("h").status == "QUEUED"


def test_results_that_meet_in_one_commit_exclude_each_other() -> None:
    run = asked("h > z", timeout_ms=5_000)
    run.kernel.now = 6_000
    expire, approve = WaitExpired(**run.where("h")), run.decision("approve", "h")
    assert run.together(approve, expire)[:2] == rows(
        "ApprovalDecided h decision=approve by=user:ann; NodeCompleted h taken=z counter=1"
    )


def test_a_time_out_of_the_node_holds_for_people_too() -> None:
    run = begun("h > z", {"h": human(timeout_seconds=7)})
    assert run.ask("h", on_timeout="escalate", escalate_to=("user:boss",))[-1] == "put expire h at=+7000"
    assert run.expire("h") == rows("ApprovalEscalated h to=user:boss expires=+7000; put expire h at=+7000")


def items(tolerate: int = 0, count: int = 2, **node: Json) -> Run:
    run = begun("h > z", {"h": human(map={"over": [1], "tolerate": tolerate}, **node)})
    run.expand("h", count)
    for index in range(count):
        run.ask(f"h[{index}]", timeout_ms=5_000)
    return run


def test_every_item_asks_on_its_own() -> None:
    run = items()
    assert run.jobs == "expire h[0]; expire h[1]"
    assert run.refused(run.decision("approve", "h")) == "approval_unknown"
    assert run.approve("h[1]") == rows(
        "ApprovalDecided h[1] decision=approve by=user:ann; NodeCompleted h[1]; drop expire h[1]"
    )
    assert run.approve("h[1]", "bob") == []
    assert run.approve("h[0]")[1:3] == rows("NodeCompleted h[0]; NodeScheduled h")
    assert run.output("h[0]")["decision"] == "approve"
    assert run.assemble("h")[0] == "NodeCompleted h taken=z counter=1"


def test_a_rejected_item_fails_and_may_be_tolerated() -> None:
    run = items(tolerate=1)
    assert run.reject("h[0]") == rows(
        "ApprovalDecided h[0] decision=reject by=user:ann; NodeFailed h[0] code=rejected tolerated; drop expire h[0]"
    )
    assert run.output("h[0]")["error"]["code"] == "rejected"


def test_a_rejected_item_too_many_fails_the_map_and_closes_the_others() -> None:
    run = items()
    assert run.reject("h[0]")[1:4] == rows(
        "NodeFailed h[0] code=rejected; DeadLettered h[0] code=rejected attempts=1; NodeCancelled h[1]"
    )
    assert (run.approval("h[1]").status, run.refused(run.decision("approve", "h[1]"))) == (
        "cancelled",
        "approval_closed",
    )
    failed = run.of(NodeFailed)[1]
    assert (failed.error.code, failed.error.index) == ("rejected", 0)


def test_an_item_knows_no_paths() -> None:
    """A path belongs to the visit, and the visit goes on when all its items have ended."""
    run = begun("h > y; h > r; h > c", {"h": human("r", "c", map={"over": [1]})})
    run.expand("h", 1)
    run.ask("h[0]")
    assert run.refused(run.decision("changes", "h[0]")) == "changes_not_possible"
    assert run.reject("h[0]")[1] == "NodeFailed h[0] code=rejected"


# Who may decide: people and roles as they are at that moment, four eyes, a quorum, and those who pass it on


def refusal(run: Run, by: str, roles: str = "", verb: Any = "approve") -> str:
    return run.refused(run.decision(verb, "h", by, roles))


def no_delegation(run: Run, by: str, to: str, roles: str = "") -> str:
    return run.refused(Delegate(to=to, actor=by, roles=tuple(roles.split()), **run.where("h")))


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
    problem = run.kernel.ask(run.decision("approve", "h", "ann"))
    assert isinstance(problem, Problem)
    assert problem.message == "user:ann has delegated this decision to user:bob"
    assert problem.hint == "user:bob decides, or delegates it back"
    problem = run.kernel.ask(run.decision("approve", "h", "cleo"))
    assert isinstance(problem, Problem)
    assert problem.hint == (
        "asked were: user:ann, role:boss; user:ann has delegated it to user:bob; "
        "decide as one of them, such as --role boss"
    )


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
    run = OperatorSteps("h > z", {"h": human()})
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


BRANCH = Branch(rules=(Rule(condition=True, next_nodes=("x",)),), default=("y",))
ERRORS = {"error_path": ("oops",), "on_error": "route"}


@pytest.mark.parametrize(
    ("fields", "index", "expected"),
    [
        ({}, -1, {"approve": ("z",), "reject": "fails", "changes": None}),
        (
            {"exits": {"rejection": ("r",), "changes": ("c",)}},
            -1,
            {"approve": ("z",), "reject": ("r",), "changes": ("c",)},
        ),
        # An item of a map takes no exits of its own.
        (
            {"exits": {"rejection": ("r",), "changes": ("c",)}},
            3,
            {"approve": ("z",), "reject": "fails", "changes": None},
        ),
        (ERRORS, -1, {"approve": ("z",), "reject": ("oops",), "changes": None}),
        ({"on_error": "continue"}, -1, {"approve": ("z",), "reject": ("z",), "changes": None}),
        (
            {"branch": BRANCH},
            -1,
            {"approve": ("z", "x", "y"), "reject": ("z", "x", "y"), "changes": ("z", "x", "y")},
        ),
    ],
)
def test_the_graph_tells_what_each_decision_leads_to(fields: Json, index: int, expected: Json) -> None:
    found = consequences(Node(id="h", type="human@1", plain=("z",), **fields), index)
    told = {
        verb: None if not each.possible else "fails" if each.fails and not each.next_nodes else each.next_nodes
        for verb, each in found.items()
    }
    assert told == expected
    assert {each.conditional for each in found.values() if each.possible} == {"branch" in fields}


def test_code_that_is_called_with_the_decision_may_go_anywhere() -> None:
    found = consequences(Node(id="h", type="python@1", plain=("z",)), -1, recall=True)
    assert all(each.next_nodes == ("z",) and each.conditional and each.possible for each in found.values())
