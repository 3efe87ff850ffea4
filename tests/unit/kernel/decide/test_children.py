"""Children: runs that a visit waits for, what is told to them and by them; and handlers that are called again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fixtures.kernel.tables import Run, begun, choose, error, loop, rows
from tidemill.kernel.commands import Cancel, ChildBegan, ChildEnded, Override, Relabel, Rewind, WaitRequested
from tidemill.kernel.events import (
    ChildFinished,
    ChildStarted,
    Error,
    NodeFailed,
    NodeScheduled,
    NodeStarted,
    NodeWaiting,
)

Json = Any

CALLS: Json = {"type": "workflow", "config": {"workflow": "w"}}


def calling(graph: str = "c > z", close: str = "cancel", began: bool = True, **options: Json) -> Run:
    """A run whose node `c` waits for the child `kid`."""
    run = begun(graph, {"c": {**CALLS, **options}})
    run.call("c", close=close)
    if began:
        run.child_began("c", close=close)
    return run


def test_a_visit_asks_for_a_child_with_a_message() -> None:
    run = begun("c > z", {"c": CALLS})
    assert run.call("c", close="cancel") == rows("NodeStarted c; NodeWaiting c on=child; put child c")
    [waiting] = run.of(NodeWaiting)
    assert (waiting.name, waiting.ask, waiting.close) == ("kid", b"{}", "cancel")
    assert run.child_began("c") == rows("ChildStarted c child=kid")
    assert (run.jobs, run.counter) == ("", 1)
    [started] = run.of(ChildStarted)
    assert (started.workflow, started.version, started.digest) == ("w", 1, "sha256:1")


def test_the_same_news_twice_is_no_news() -> None:
    run = calling()
    assert run.child_began("c") == []


def test_what_a_child_returns_is_the_output_of_the_visit() -> None:
    run = calling()
    assert run.child_ended("c", output=b'{"x":1}') == rows(
        "ChildFinished c child=kid status=COMPLETED; NodeCompleted c taken=z counter=1; NodeScheduled z;"
        "drop child c; put run z"
    )
    assert run.output("c") == {"x": 1}


@pytest.mark.parametrize(
    ("status", "told", "message", "causes"),
    [
        ("FAILED", Error("boom", "it broke", causes=("deep",)), "child kid: it broke", ("boom", "deep")),
        ("CANCELLED", None, "child kid is CANCELLED", ()),
        ("", error("workflow_unknown"), "child kid: workflow_unknown happened", ("workflow_unknown",)),
    ],
    ids=["failed", "cancelled", "could not be started"],
)
def test_a_childs_failure_is_the_visits(status: str, told: Error | None, message: str, causes: Json) -> None:
    run = calling(began=bool(status), retry={"max_attempts": 5})
    assert run.child_ended("c", status, error=told)[1:4] == rows(
        "NodeFailed c code=child_failed counter=0; DeadLettered c code=child_failed attempts=1;"
        "NodeFailed z attempt=0 code=upstream_failed counter=0"
    )
    failed = run.of(NodeFailed)[0].error
    assert (failed.message, failed.causes, failed.retryable) == (message, causes, False)
    assert run.of(ChildFinished)[0].error == told
    assert run.jobs == ""


def test_a_childs_failure_may_be_tolerated() -> None:
    run = calling(on_error="continue")
    assert run.child_ended("c", "FAILED", error=error())[1] == (
        "NodeFailed c code=child_failed tolerated taken=z counter=1"
    )
    assert run.output("c")["error"]["code"] == "child_failed"


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED"])
def test_only_the_first_end_of_a_child_counts(status: str) -> None:
    run = calling()
    run.child_ended("c", output=b"1")
    assert run.child_ended("c", status, error=error()) == []
    assert run.output("c") == 1
    run.done("z")
    assert (run.status, run.child_ended("c", status)) == ("COMPLETED", [])


def test_the_end_of_another_child_does_not_matter() -> None:
    run = calling()
    assert run.child_ended("c", child="stranger") == []
    assert run.do(ChildEnded(child="kid", status="COMPLETED", node="c", visit=2)) == []
    assert run.do(ChildEnded(child="kid", status="COMPLETED", node="c", visit=1, index=0)) == []
    assert run.do(ChildEnded(child="kid", status="COMPLETED", node="z", visit=1)) == []
    assert run.cell("c").status == "WAITING"


def test_who_waits_for_something_else_is_not_disturbed() -> None:
    run = begun("c", {"c": CALLS})
    run.listen("c", "kid")
    assert run.child_ended("c") == []


def test_each_item_and_each_pass_has_a_child_of_its_own() -> None:
    run = begun("c > z", {"c": {**CALLS, "map": {"over": [1]}, "loop": loop(3)}})
    run.expand("c", 2)
    assert run.call("c[1]", "kid1")[-1] == "put child c[1]"
    run.call("c[0]", "kid0")
    run.child_began("c[1]", "kid1")
    run.child_began("c[0]", "kid0")
    assert run.child_ended("c[1]", child="kid1", output=b"1")[:2] == rows(
        "ChildFinished c[1] child=kid1 status=COMPLETED; NodeCompleted c[1]"
    )
    run.child_ended("c[0]", child="kid0", output=b"0")
    run.assemble("c", again=True)
    run.expand("c", 1)
    run.call("c[0]", "kid2")
    assert run.do(ChildEnded(child="kid0", status="FAILED", node="c", visit=1, index=0)) == []
    assert run.jobs == "child c#2[0]"


def test_a_child_may_be_faster_than_the_news_of_its_start() -> None:
    run = calling(began=False)
    assert run.child_ended("c", output=b"1", workflow="w", version=1, digest="sha256:1")[:3] == rows(
        "ChildStarted c child=kid; ChildFinished c child=kid status=COMPLETED; NodeCompleted c taken=z counter=1"
    )
    assert run.jobs == "run z"


def test_a_cancel_is_told_to_the_child() -> None:
    run = calling()
    assert run.cancel() == rows(
        "NodeCancelled c counter=0; NodeCancelled z counter=0; RunCancelled; drop child c; put close c"
    )


def test_a_child_that_may_live_on_is_told_nothing() -> None:
    run = calling(close="abandon")
    assert run.cancel()[-1] == "drop child c"
    assert run.jobs == ""


def test_a_failed_item_is_told_to_the_children_of_the_others() -> None:
    run = begun("c > z", {"c": {**CALLS, "map": {"over": [1]}}})
    run.expand("c", 3)
    run.call("c[0]", "kid0")
    run.call("c[2]", "kid2", close="abandon")
    run.fail("c[1]")
    assert run.jobs == "close c[0]"


def test_a_time_out_is_told_to_the_child_and_a_retry_asks_again() -> None:
    run = calling(timeout_seconds=5)
    assert run.expire("c") == rows(
        "NodeFailed c code=timeout retry=+1000; drop expire c; drop child c; put close c; put run c at=+1000"
    )
    assert run.child_ended("c", "CANCELLED") == []
    assert run.call("c")[1:] == rows(
        "NodeWaiting c attempt=2 on=child expires=+5000; put expire c at=+5000; put child c"
    )
    assert run.child_began("c") == rows("ChildStarted c child=kid")


@pytest.mark.parametrize("output", [b"1", None], ids=["value", "skip"])
def test_an_override_is_told_to_the_child(output: bytes | None) -> None:
    run = calling()
    run.kernel.do(Override(output=output, **run.where("c")))
    assert "close c" in run.jobs


def test_a_rewind_is_told_to_the_child() -> None:
    run = calling()
    run.kernel.do(Rewind(node="c"))
    assert run.jobs == "close c; run c#2"


def test_a_child_that_began_too_late_is_told_so() -> None:
    run = calling(began=False)
    run.cancel()
    assert run.jobs == "close c"
    run.kernel.jobs.clear()
    assert run.child_began("c") == rows("put close c")
    assert run.child_began("c", close="abandon") == []


def test_a_child_of_an_earlier_visit_is_told_so_too() -> None:
    run = calling(loop=loop(3), began=False)
    run.kernel.do(ChildEnded(child="kid", status="COMPLETED", output=b"1", **run.where("c")))
    run.kernel.do(Rewind(node="c"))
    began = ChildBegan(child="kid", workflow="w", version=1, digest="", node="c", visit=1)
    assert [put.key for put in run.kernel.do(began).work.put] == ["close/c/1/-1"]


PARENT: Json = {"parent": ("run-0", "c", 1, -1), "close": "cancel", "depth": 1}


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "rendered"])
def test_the_end_of_a_child_is_reported(end: str) -> None:
    run = Run("a > z", **({"outputs": {"x": 1}} if end == "rendered" else {}))
    run.start(**PARENT)
    assert (run.kernel.state.parent, run.kernel.state.close, run.kernel.state.depth) == (PARENT["parent"], "cancel", 1)
    if end == "failed":
        assert run.fail("a")[-1] == "put report"
    elif end == "cancelled":
        assert run.cancel()[-1] == "put report"
    else:
        run.end("a", "z")
        if end == "rendered":
            assert run.render()[-1] == "put report"
    assert run.jobs == "report"


def test_who_has_no_parent_reports_to_nobody() -> None:
    run = begun("a")
    run.end("a")
    assert run.jobs == ""


def recalled(**options: Json) -> Run:
    run = begun("a > z", {"a": options})
    run.result("a", WaitRequested(on="timer", for_ms=1_000, recall=True))
    return run


def test_a_handler_that_asked_for_it_is_called_again() -> None:
    run = recalled()
    assert run.wake("a") == rows("NodeScheduled a recalled; drop wake a; put run a")
    assert (run.cell("a").resumed, run.cell("a").recall) == (b"null", True)
    assert run.done("a") == rows(
        "NodeStarted a attempt=2; NodeCompleted a attempt=2 taken=z counter=1; NodeScheduled z; put run z"
    )
    assert (run.cell("a").resumed, run.cell("a").recall) == (None, False)


def test_it_may_wait_again_and_again() -> None:
    run = recalled()
    run.wake("a")
    assert run.listen("a", recall=True) == rows("NodeStarted a attempt=2; NodeWaiting a attempt=2 on=signal")
    assert run.cell("a").resumed is None
    assert run.signal("s1")[1] == "NodeScheduled a recalled"
    assert run.cell("a").resumed == b"1"
    assert run.call("a")[-1] == "put child a"
    assert [event.attempt for event in run.of(NodeStarted)] == [1, 2, 3]


def test_a_failure_of_the_second_call_keeps_what_the_wait_ended_with() -> None:
    run = recalled()
    run.wake("a")
    assert run.fail("a", retryable=True)[1] == "NodeFailed a attempt=2 code=boom retry=+1000"
    assert (run.cell("a").resumed, run.cell("a").recall) == (b"null", True)
    run.lost("a")
    assert (run.cell("a").resumed, run.cell("a").recall) == (b"null", True)
    assert run.done("a")[1] == "NodeCompleted a attempt=4 taken=z counter=1"


def test_an_item_is_called_again_too() -> None:
    run = begun("a > z", {"a": {"map": {"over": [1]}}})
    run.expand("a", 2)
    run.listen("a[1]", recall=True)
    assert run.signal("s1") == rows("SignalReceived paid=s1 taker=a[1]; NodeScheduled a[1] recalled; put run a[1]")
    assert (run.act("a[1]").resumed, run.act("a[1]").recall, run.kernel.state.in_flight) == (b"1", True, 2)
    assert run.fail("a[1]", retryable=True)[1] == "NodeFailed a[1] attempt=2 code=boom retry=+1000"
    assert (run.act("a[1]").resumed, run.act("a[1]").recall) == (b"1", True)
    assert run.done("a[1]") == rows("NodeStarted a[1] attempt=3; NodeCompleted a[1] attempt=3")
    assert run.act("a[1]").resumed is None


@pytest.mark.parametrize("verb", ["approve", "reject", "changes"])
def test_a_handler_that_asked_people_hears_what_they_decided(verb: Any) -> None:
    """It is not a node that people decide about: what a rejection means is the handler's business."""
    run = begun("a > z")
    run.ask("a", recall=True)
    assert run.do(run.decision(verb, "a"))[1] == "NodeScheduled a recalled"
    assert f'"decision":"{verb}"'.encode() in (run.cell("a").resumed or b"")
    run.ask("a", recall=True)
    assert run.approval("a").status == "pending"
    assert run.do(run.decision(verb, "a"))[1] == "NodeScheduled a recalled"


def test_a_decision_that_was_taken_does_not_hold_up_a_later_time_out() -> None:
    run = begun("a > z", {"a": {"timeout_seconds": 5}})
    run.ask("a", recall=True)
    run.approve("a")
    run.listen("a")
    assert run.expire("a")[0] == "NodeFailed a attempt=2 code=timeout retry=+1000"


def test_who_does_not_wait_for_people_any_longer_takes_no_decision() -> None:
    run = begun("a > z")
    run.ask("a", recall=True, for_ms=1_000)
    assert run.wake("a") == rows("NodeScheduled a recalled; drop wake a; put run a")
    assert run.approval("a").status == "cancelled"
    assert run.refused(run.decision("approve", "a")) == "approval_closed"
    assert run.done("a")[1] == "NodeCompleted a attempt=2 taken=z counter=1"


def test_a_paused_run_starts_no_child() -> None:
    run = begun("a b")
    run.call("a")
    assert run.pause() == rows("RunPaused; withdraw child a; withdraw run b")
    run.resume()
    assert run.jobs == "child a; run b"
    run.begin("b", token=9)
    run.pause()
    run.result("b", WaitRequested(on="child", name="kid2", ask=b"{}"), token=9)
    assert run.jobs == ""
    run.resume()
    assert run.jobs == "child a; child b"


def test_the_end_of_a_child_counts_once_also_while_conditions_are_left() -> None:
    run = begun("a; b", {"a": {"branch": choose("b")}})
    run.call("a")
    run.child_began("a")
    run.child_ended("a")
    assert run.nodes("a") == "a=QUEUED"
    assert run.child_ended("a") == []


def test_a_child_that_a_later_attempt_has_asked_for_is_not_closed_for_an_earlier_one() -> None:
    run = Run("a")
    run.start(parent=("mum", "c", 1, -1))
    run.do(Relabel(id="again:2", labels={}))
    assert run.do(Cancel(attempt=1)) == []
    assert run.do(Cancel(attempt=2)) != []


@pytest.mark.parametrize(
    ("status", "told", "code"),
    [("FAILED", Error("boom", "it broke"), "boom"), ("CANCELLED", None, "child_failed")],
    ids=["failed", "cancelled"],
)
def test_a_handler_may_get_the_failure_of_its_child(status: str, told: Error | None, code: str) -> None:
    run = begun("c > z", {"c": CALLS})
    run.call("c", close="cancel", recall=True, returns=True)
    run.child_began("c")
    assert run.child_ended("c", status, error=told)[1:] == rows("NodeScheduled c recalled; drop child c; put run c")
    resumed = run.of(NodeScheduled)[-1].resumed
    failed = msgspec.json.decode(resumed)["$child_failed"]
    assert (failed["child"], failed["status"], failed["code"]) == ("kid", status, code)


def test_the_error_of_a_parent_has_the_traceback_of_its_child() -> None:
    run = begun("c", {"c": CALLS})
    run.call("c", close="cancel")
    run.child_began("c")
    run.child_ended("c", "FAILED", error=Error("exception", "'x'", "KeyError", traceback="at inv.py"))
    failed = run.of(NodeFailed)[0].error
    assert (failed.message, failed.traceback) == ("child kid: KeyError: 'x'", "at inv.py")


def test_a_failure_returns_only_to_a_handler_that_is_called_again() -> None:
    run = begun("c > z", {"c": CALLS})
    run.call("c", close="cancel", returns=True)
    run.child_began("c")
    run.child_ended("c", "FAILED", error=error("boom"))
    assert run.of(NodeFailed)[0].error.code == "child_failed"
