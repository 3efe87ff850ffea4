"""Rollback: what completed is undone backwards, one step after the other, and what is left is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import flow, loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Cancel, CompensationResult, Done, RequeueJob, Rollback

UNDO = {"compensator": {"type": "value"}}
ONCE: dict[str, Any] = {"delivery": "at_most_once", **UNDO}


def undoing(graph: str, names: str, nodes: dict[str, Any] | None = None, **top: Any) -> OperatorSteps:
    """A run whose named nodes have compensators."""
    given = {name: dict(options) for name, options in (nodes or {}).items()}
    for name in names.split():
        given[name] = {**UNDO, **given.get(name, {})}
    return OperatorSteps(graph, given, **top).begun()


def left(run: OperatorSteps) -> str:
    return " ".join(run.of(ev.RollbackFinished)[-1].left)


def undone(run: OperatorSteps) -> str:
    """What was undone, in order."""
    return " ".join(f"{each.node}/{each.visit}/{each.index}" for each in run.of(ev.CompensationCompleted))


def test_what_completed_is_undone_backwards() -> None:
    run = undoing("a > b c > d", "a b c")
    run.end("a", "c", "b")
    run.fail("d")
    assert run.rollback(actor="ann", reason="wrong") == rows("RollbackStarted; CompensationScheduled b; put undo b")
    assert run.undone("b") == rows("CompensationCompleted b; CompensationScheduled c; put undo c")
    run.undone("c")
    assert run.undone("a") == rows("CompensationCompleted a; RollbackFinished")
    assert (run.kernel.state.rollback, run.status, left(run), run.jobs) == ("done", "FAILED", "", "")
    started = run.of(ev.RollbackStarted)[0]
    assert (started.actor, started.reason, started.steps) == ("ann", "wrong", 3)


def test_a_completed_run_can_be_rolled_back() -> None:
    run = undoing("a > b", "a b")
    run.end("a", "b")
    run.rollback()
    run.undone("b")
    run.undone("a")
    assert (run.status, run.kernel.state.rollback) == ("COMPLETED", "done")


def test_a_map_is_undone_item_by_item() -> None:
    run = undoing("m > z", "m", {"m": {"map": {"over": [1], "tolerate": 1}}})
    run.expand("m", 3)
    run.end("m[2]", "m[0]")
    run.fail("m[1]")
    run.assemble("m")
    run.fail("z")
    run.rollback()
    run.undone("m[0]")
    run.undone("m[2]")
    assert (undone(run), left(run)) == ("m/1/0 m/1/2", "")


def test_every_pass_and_every_visit_is_undone() -> None:
    run = undoing("a > l > z", "a l", {"l": {"loop": loop(4, back_to="a")}})
    run.done("a")
    run.done("l", again=True)
    run.end("a", "l")
    run.rewind("a")
    run.cancel()
    run.rollback()
    for at in ("l#2", "a#2", "l#1", "a#1"):
        run.undone(at)
    assert undone(run) == "l/2/-1 a/2/-1 l/1/-1 a/1/-1"


def test_items_that_stay_through_a_retry_are_undone_once() -> None:
    run = undoing("m", "m", {"m": {"map": {"over": [1]}}})
    run.expand("m", 2)
    run.done("m[0]")
    run.fail("m[1]")
    run.retry()
    run.done("m[1]")
    run.cancel()
    run.rollback()
    run.undone("m[1]")
    run.undone("m[0]")
    assert undone(run) == "m/1/1 m/1/0"


def test_what_was_skipped_or_failed_is_not_undone() -> None:
    run = undoing("a > b c > d", "a b c d", {"b": {"when": "inputs.x"}, "c": {"on_error": "continue"}})
    run.done("a")
    run.skip("b")
    run.fail("c")
    run.done("d")
    run.rollback()
    run.undone("d")
    run.undone("a")
    assert (undone(run), left(run)) == ("d/1/-1 a/1/-1", "")


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_what_was_under_way_when_the_run_ended_is_named(delivery: str) -> None:
    """A worker has its job; an at-most-once attempt is announced before it begins."""
    run = undoing("a > b c", "a b c", {"b": {"delivery": delivery}})
    run.done("a")
    run.claim("b")
    if delivery == "at_most_once":
        run.begin("b")
    run.fail("c")
    run.rollback()
    run.undone("a")
    assert (run.kernel.state.rollback, left(run)) == ("partial", "b/1/-1")


def test_an_at_most_once_node_that_was_not_announced_was_not_under_way() -> None:
    run = undoing("a > b c", "a b c", {"b": {"delivery": "at_most_once"}})
    run.done("a")
    run.claim("b")
    run.fail("c")
    run.rollback()
    run.undone("a")
    assert (run.kernel.state.rollback, left(run)) == ("done", "")


def test_a_step_is_tried_again_after_a_while() -> None:
    run = undoing("a", "", {"a": {"compensator": {"type": "value", "retry": {"max_attempts": 3}}}})
    run.done("a")
    run.rollback()
    assert run.undone("a", "flaky", retryable=True) == rows("CompensationFailed a; put undo a at=+1000")
    assert run.undone("a", "flaky", retryable=True)[-1] == "put undo a at=+2000"
    run.undone("a")
    assert [each.attempt for each in run.of(ev.CompensationFailed)] == [1, 2]
    assert (run.of(ev.CompensationCompleted)[0].attempt, run.kernel.state.rollback) == (3, "done")


@pytest.mark.parametrize("retryable", [True, False])
def test_a_step_that_is_given_up_does_not_stop_the_others(retryable: bool) -> None:
    options = {"compensator": {"type": "value", "retry": {"max_attempts": 1}}}
    run = undoing("a > b > c", "a c", {"b": options})
    run.end("a", "b", "c")
    run.rollback()
    run.undone("c")
    assert run.undone("b", "gone", retryable=retryable) == rows(
        "CompensationFailed b; CompensationScheduled a; put undo a"
    )
    run.undone("a")
    assert (run.kernel.state.rollback, left(run), run.kernel.state.undo_left) == ("partial", "b/1/-1", ("b/1/-1",))


def test_lost_workers_are_not_counted_but_five_in_a_row_are_enough() -> None:
    run = undoing("a", "a")
    run.done("a")
    run.rollback()
    assert run.undo_lost("a", times=4)[-1] == "put undo a"
    assert run.undone("a", "flaky", retryable=True)[-1] == "put undo a at=+1000"
    run.undo_lost("a", times=4)
    run.undo_lost("a")
    assert (run.kernel.state.rollback, left(run)) == ("partial", "a/1/-1")
    assert run.of(ev.CompensationFailed)[-1].error.code == "worker_killer"


def test_a_result_that_no_longer_counts_changes_nothing() -> None:
    run = undoing("a > b", "a b")
    run.end("a", "b")
    old = CompensationResult(node="b", visit=1, token=run.kernel.next_token(), outcome=Done(output=b"1"))
    run.rollback()
    run.undone("b", "flaky", retryable=True)
    assert run.do(old) == []
    assert run.undone("a") == rows("")  # not its turn yet
    run.kernel.jobs.clear()
    run.do(RequeueJob(node="b", visit=1, kind="undo"))
    run.undone("b")
    late = CompensationResult(node="b", visit=1, token=run.kernel.next_token(), outcome=Done(output=b"1"))
    assert run.do(late) == []


def test_a_failure_rolls_back_when_the_document_says_so() -> None:
    run = undoing("a > b", "a", on_failure={"compensate": "automatic"})
    run.done("a")
    assert run.fail("b")[-4:] == rows(
        "RunFailed node=b code=boom; RollbackStarted; CompensationScheduled a; put undo a"
    )


def test_a_cancel_rolls_back_when_asked_or_when_the_document_says_so() -> None:
    for compensate, document, rolls in ((None, "automatic", True), (False, "automatic", False), (True, "manual", True)):
        run = undoing("a > b", "a", on_failure={"compensate": document})
        run.done("a")
        run.do(Cancel(compensate=compensate))
        assert (run.kernel.state.rollback == "running") is rolls


def test_a_deadline_and_failed_outputs_roll_back_too() -> None:
    automatic = {"compensate": "automatic"}
    run = undoing("a > b", "a", on_failure=automatic, limits={"deadline_seconds": 5})
    run.done("a")
    run.deadline()
    assert run.jobs == "undo a"
    run = undoing("a", "a", on_failure=automatic, outputs={"x": 1})
    run.done("a")
    run.render("template_failed")
    assert run.jobs == "undo a"


def test_nothing_to_undo_is_no_rollback() -> None:
    run = OperatorSteps("a", on_failure={"compensate": "automatic"}).begun()
    run.fail("a")
    assert run.kernel.state.rollback == "none"


def test_an_unknown_outcome_is_named_and_never_a_green_tick() -> None:
    run = OperatorSteps("a > b", {"a": UNDO, "b": ONCE}, on_failure={"compensate": "automatic"}).begun()
    run.done("a")
    run.begin("b", token=5)
    run.lost("b")
    run.undone("a")
    assert (run.kernel.state.rollback, left(run)) == ("partial", "b/1/-1")


def test_it_is_named_also_when_there_is_nothing_else() -> None:
    run = OperatorSteps("b", {"b": ONCE}).begun()
    run.begin("b", token=5)
    run.lost("b")
    assert run.rollback() == rows("RollbackStarted; RollbackFinished")
    assert left(run) == "b/1/-1"
    assert run.refused(Rollback()) == "outcome_unknown"


def test_a_failed_step_whose_attempt_may_have_acted_is_named() -> None:
    """Its worker was lost, or it took too long: then it may have done what nothing undoes."""
    run = undoing("a > b", "a b", {"b": {"retry": {"max_attempts": 2}}}, on_failure={"compensate": "automatic"})
    run.done("a")
    run.lost("b")
    run.fail("b")
    run.undone("a")
    assert [each.unknown for each in run.of(ev.NodeFailed)] == [True, False]
    assert (run.status, run.kernel.state.rollback, left(run)) == ("FAILED", "partial", "b/1/-1")
    run.override("b", None)
    run.rollback()
    assert run.kernel.state.rollback == "done"


def test_a_step_that_took_too_long_may_have_acted() -> None:
    run = undoing("a > b", "a b", {"b": {"retry": {"max_attempts": 1}}}, on_failure={"compensate": "automatic"})
    run.done("a")
    run.time_out("b")
    run.undone("a")
    assert (run.kernel.state.rollback, left(run)) == ("partial", "b/1/-1")


def test_five_lost_workers_may_have_acted() -> None:
    run = undoing("a > b", "a b", on_failure={"compensate": "automatic"})
    run.done("a")
    run.lost("b", times=5)
    run.undone("a")
    assert (run.kernel.state.rollback, left(run)) == ("partial", "b/1/-1")


def test_an_attempt_that_is_made_up_for_is_not_named() -> None:
    run = undoing("a > b", "a", on_failure={"compensate": "automatic"})
    run.lost("a")
    run.done("a")
    run.fail("b")
    run.undone("a")
    assert (run.kernel.state.rollback, left(run), run.kernel.state.unknown) == ("done", "", ())


def unsure(**more: Any) -> OperatorSteps:
    """A run that failed at `b` with an unknown outcome and was rolled back as far as possible."""
    run = OperatorSteps("a > b > c", {"a": UNDO, "b": ONCE, "c": UNDO}, **more).begun()
    run.done("a")
    run.begin("b", token=5)
    run.lost("b")
    run.rollback()
    run.undone("a")
    return run


def test_what_happened_after_all_is_undone_by_the_next_rollback() -> None:
    run = unsure()
    assert run.refused(Rollback()) == "outcome_unknown"
    assert run.override("b", b"7", actor="ann", reason="the bank says so") == rows(
        "NodeOverridden b; DeadLetterClosed b"
    )
    assert (run.status, run.kernel.state.rollback, run.letters, run.jobs) == ("FAILED", "partial", "", "")
    settled = run.of(ev.NodeOverridden)[0]
    assert (settled.status, settled.undoable, settled.counter, settled.reason) == (
        "COMPLETED",
        True,
        0,
        "the bank says so",
    )
    assert run.kernel.state.peek("b").output == b"7"
    assert run.rollback() == rows("RollbackStarted; CompensationScheduled b; put undo b")
    run.undone("b")
    assert (run.kernel.state.rollback, left(run), undone(run)) == ("done", "", "a/1/-1 b/1/-1")


def test_what_did_not_happen_is_left_out_of_the_next_rollback() -> None:
    run = unsure()
    assert run.override("b", None) == rows("NodeOverridden b; DeadLetterClosed b")
    assert (run.of(ev.NodeOverridden)[0].status, run.kernel.state.peek("b").status) == ("SKIPPED", "SKIPPED")
    assert run.rollback() == rows("RollbackStarted; RollbackFinished")
    assert (run.kernel.state.rollback, left(run), run.status) == ("done", "", "FAILED")


def test_after_a_rollback_only_an_unknown_outcome_is_settled() -> None:
    run = unsure()
    for node in "a", "c":
        assert run.refused(run.overriding(node)) == "run_rolled_back"
    assert run.refused(run.overriding("b", next_nodes=("c",))) == "route_not_allowed"
    run.override("b")
    assert run.refused(run.overriding("b")) == "run_rolled_back"
    run.rollback()
    run.undone("b")
    assert run.refused(run.overriding("b")) == "run_rolled_back"


def test_an_item_that_was_under_way_is_settled_too() -> None:
    run = undoing("m > z", "m", {"m": {"map": {"over": [1]}}})
    run.expand("m", 3)
    run.done("m[0]")
    run.claim("m[2]")
    run.fail("m[1]")
    run.rollback()
    run.undone("m[0]")
    assert left(run) == "m/1/2"
    assert run.override("m[2]") == rows("NodeOverridden m[2]")
    run.rollback()
    run.undone("m[2]")
    assert (run.kernel.state.rollback, run.status) == ("done", "FAILED")


def test_an_earlier_pass_can_only_be_said_to_be_over() -> None:
    """What it saw is not known any more, so its compensator cannot be called."""
    nodes = {"t": {**ONCE, "on_error": "continue"}, "l": {"loop": loop(back_to="t")}}
    run = OperatorSteps("t > l", nodes).begun()
    run.begin("t", token=50)
    run.lost("t")
    run.done("l", again=True)
    run.end("t", "l")
    run.rollback()
    run.undone("t#2")
    assert run.refused(run.overriding("t#1")) == "visit_over"
    run.override("t#1", None)
    assert run.kernel.state.peek("t").status == "COMPLETED"
    run.rollback()
    assert run.kernel.state.rollback == "done"


def test_an_item_and_a_tolerated_visit_are_named_too() -> None:
    nodes = {"m": {**ONCE, "map": {"over": [1], "tolerate": 1}}, "t": {**ONCE, "on_error": "continue"}}
    run = OperatorSteps("m > t > z", nodes).begun()
    run.expand("m", 2)
    run.done("m[1]")
    run.begin("m[0]", token=50)
    run.lost("m[0]")
    run.assemble("m")
    run.begin("t", token=60)
    run.lost("t")
    run.cancel()
    run.rollback()
    run.undone("m[1]")
    assert sorted(left(run).split()) == ["m/1/0", "t/1/-1"]


def test_an_earlier_pass_is_named_too() -> None:
    nodes = {"t": {**ONCE, "on_error": "continue"}, "l": {"loop": loop(back_to="t")}}
    run = OperatorSteps("t > l", nodes).begun()
    run.begin("t", token=50)
    run.lost("t")
    run.done("l", again=True)
    run.end("t", "l")
    run.rollback()
    run.undone("t#2")
    assert left(run) == "t/1/-1"


def test_what_somebody_was_sure_about_is_not_named() -> None:
    run = OperatorSteps("b > c", {"b": ONCE}).begun()
    run.begin("b", token=5)
    run.lost("b")
    run.retry(confirmed_not_done=("b",))
    run.done("b")
    run.fail("c")
    run.rollback()
    run.undone("b")
    assert (run.kernel.state.rollback, left(run)) == ("done", "")


def test_a_partial_rollback_can_go_on_with_what_is_left() -> None:
    run = undoing("a > b > c", "a b c")
    run.end("a", "b", "c")
    run.rollback()
    run.undone("c")
    run.undone("b", "gone")
    run.undone("a")
    assert run.rollback() == rows("RollbackStarted; CompensationScheduled b; put undo b")
    run.undone("b")
    assert (run.kernel.state.rollback, left(run)) == ("done", "")
    assert [each.attempt for each in run.of(ev.CompensationCompleted) if each.node == "b"] == [2]
    assert run.refused(Rollback()) == "rollback_done"


def test_a_rollback_that_was_stopped_goes_on_at_once() -> None:
    run = undoing("a > b", "a b")
    run.end("a", "b")
    run.rollback()
    run.undone("b", "flaky", retryable=True)
    assert run.refused(Cancel()) == "rollback_running"
    assert run.do(Cancel(force=True)) == rows("RollbackFinished; drop undo b")
    assert (run.kernel.state.rollback, left(run), run.status) == ("partial", "b/1/-1 a/1/-1", "COMPLETED")
    assert run.rollback()[-1] == "put undo b"
    run.undone("b")
    run.undone("a")
    assert run.kernel.state.rollback == "done"


def test_what_is_refused() -> None:
    run = undoing("a > b", "a")
    assert run.refused(Rollback()) == "run_not_ended"
    run.pause()
    assert run.refused(Rollback()) == "run_not_ended"
    run.resume()
    run.end("a", "b")
    run.rollback(id="r1")
    assert run.rollback(id="r1") == []
    assert run.refused(Rollback()) == "rollback_running"
    run = OperatorSteps("a").begun()
    run.done("a")
    assert run.refused(Rollback()) == "nothing_to_roll_back"


def test_a_compensator_that_a_patch_took_away_is_missed_and_named() -> None:
    run = undoing("a > x > b > c", "a b")
    run.end("a", "x", "b")
    run.rewind("x")
    run.patch(flow("a > x > b > c", {"a": UNDO}))
    run.cancel()
    assert run.rollback() == rows(
        """
        RollbackStarted; CompensationScheduled b; CompensationFailed b
        CompensationScheduled a; put undo a
        """
    )
    run.undone("a")
    assert (run.kernel.state.rollback, left(run)) == ("partial", "b/1/-1")
    assert run.of(ev.CompensationFailed)[0].error.code == "compensator_missing"
    run.rollback()
    assert left(run) == "b/1/-1"


def test_a_node_that_a_patch_took_away_is_missed_and_named() -> None:
    run = undoing("a > b; c", "a b c")
    run.end("a")
    run.claim("b")
    run.rewind("a")
    run.end("c")
    run.cancel()
    run.patch(flow("b; c", {"b": UNDO, "c": UNDO}), retry=True)
    run.done("b")
    run.rollback()
    run.undone("b")
    run.undone("c")
    assert left(run) == "a/1/-1 b/1/-1"


def late(run: OperatorSteps, node: str) -> CompensationResult:
    """A worker's report about a step, under a lease that is newer than any before."""
    return CompensationResult(node=node, visit=1, token=run.kernel.next_token(), outcome=Done(output=b"1"))


def test_a_rollback_that_was_stopped_hears_nothing_more() -> None:
    run = undoing("a > b", "a b")
    run.end("a", "b")
    run.rollback()
    run.do(Cancel(force=True))
    assert run.do(late(run, "b")) == []
    assert run.kernel.state.rollback == "partial"


def test_a_step_is_over_only_when_it_is_its_turn() -> None:
    """It had its turn in a rollback that was stopped, but in this one another comes first."""
    run = undoing("a > b", "a b")
    run.end("a", "b")
    run.rollback()
    run.undone("b", "broken")
    run.do(Cancel(force=True))
    assert run.do(Rollback())[-1] == "put undo b"
    assert run.do(late(run, "a")) == []
    run.undone("b")
    run.undone("a")
    assert run.kernel.state.rollback == "done"
