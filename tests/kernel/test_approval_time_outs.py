"""Nobody decides in time, or the decision comes too late; and the questions that the items of a map ask."""

from __future__ import annotations

from typing import Any

from tests.kernel.tables import Run, asked, choose, human, rows
from tidemill.kernel.commands import Expire
from tidemill.kernel.events import NodeFailed

Json = Any


# Nobody decides in time


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


def test_votes_count_on_after_an_escalation() -> None:
    run = asked(who="user:ann", quorum=2, timeout_ms=5_000, on_timeout="escalate", escalate_to=("user:boss",))
    run.approve("h", "ann")
    run.expire("h")
    assert run.approve("h", "boss")[0] == "ApprovalDecided h decision=approve by=user:boss"


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
    assert run.do(Expire(**run.where("h"))) == []
    assert run.cell("h").status == "QUEUED"


def test_results_that_meet_in_one_commit_exclude_each_other() -> None:
    run = asked("h > z", timeout_ms=5_000)
    run.kernel.now = 6_000
    expire, approve = Expire(**run.where("h")), run.decision("approve", "h")
    assert run.together(approve, expire)[:2] == rows(
        "ApprovalDecided h decision=approve by=user:ann; NodeCompleted h taken=z counter=1"
    )


def test_a_time_out_of_the_node_holds_for_people_too() -> None:
    run = Run("h > z", {"h": human(timeout_seconds=7)})
    run.start()
    assert run.ask("h", on_timeout="escalate", escalate_to=("user:boss",))[-1] == "put expire h at=+7000"
    assert run.expire("h") == rows("ApprovalEscalated h to=user:boss expires=+7000; put expire h at=+7000")


# Items of a map


def items(tolerate: int = 0, count: int = 2, **node: Json) -> Run:
    run = Run("h > z", {"h": human(map={"over": [1], "tolerate": tolerate}, **node)})
    run.start()
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
        "ApprovalDecided h[0] decision=reject by=user:ann; NodeFailed h[0] code=rejected tolerated;"
        "DeadLettered h[0] code=rejected attempts=1; drop expire h[0]"
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
    run = Run("h > y; h > r; h > c", {"h": human("r", "c", map={"over": [1]})})
    run.start()
    run.expand("h", 1)
    run.ask("h[0]")
    assert run.refused(run.decision("changes", "h[0]")) == "changes_not_possible"
    assert run.reject("h[0]")[1] == "NodeFailed h[0] code=rejected"


def test_an_item_that_expires_fails() -> None:
    run = items(tolerate=1)
    assert run.expire("h[1]")[:2] == rows("ApprovalExpired h[1]; NodeFailed h[1] code=approval_expired tolerated")
