"""Override: a visit or an item is settled by hand, with a value or by skipping it, and the run goes on from there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import agent, choose, loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Decide, Override, Signal, WaitRequested

# Not begun yet


def test_a_node_whose_join_has_not_fired_is_settled_and_absorbs_what_comes_later() -> None:
    run = OperatorSteps("a > b > c").begun()
    assert run.override("b") == rows("NodeOverridden b; NodeScheduled c; put run c")
    assert (run.counter, run.act("b").output) == (2, b"9")
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a taken=b counter=1")
    run.done("c")
    assert (run.status, run.nodes()) == ("COMPLETED", "a=COMPLETED b=COMPLETED c=COMPLETED")


def test_tokens_that_stood_at_it_are_consumed() -> None:
    run = OperatorSteps("a b > j > z").begun()
    run.done("a")
    run.override("j")
    event = run.of(ev.NodeOverridden)[-1]
    assert (event.emitted, event.consumed, event.counter) == (1, 1, 2)
    run.end("b", "z")
    assert run.status == "COMPLETED"


def test_a_skip_kills_its_edges() -> None:
    run = OperatorSteps("a > b > c").begun()
    assert run.override("b", None)[1] == "NodeSkipped c counter=1"
    run.done("a")
    assert (run.status, run.nodes("b c")) == ("COMPLETED", "b=SKIPPED c=SKIPPED")


def test_a_held_node_leaves_the_queue() -> None:
    run = OperatorSteps("a b c d", limits={"max_parallel": 1}).begun()
    run.override("c")
    run.override("b")
    run.done("a")
    assert run.jobs == "run d"
    run.done("d")
    assert run.status == "COMPLETED"


def test_while_paused_nothing_is_dispatched() -> None:
    run = OperatorSteps("a > b > c").begun()
    run.pause()
    assert run.override("b") == rows("NodeOverridden b; NodeScheduled c")
    assert run.resume() == rows("RunResumed; put run a; put run c")


def test_a_timer_goes_with_its_wait() -> None:
    run = OperatorSteps("a > b").begun()
    run.wait("a")
    assert run.override("a") == rows("NodeOverridden a; NodeScheduled b; drop wake a; put run b")


def test_a_signal_that_comes_later_finds_another_taker() -> None:
    run = OperatorSteps("s t", {"s": {"type": "signal", "config": {"name": "go"}}, "t": {"type": "signal"}}).begun()
    for name in "st":
        run.result(name, WaitRequested(on="signal", name="go"))
    run.override("s")
    run.do(Signal(name="go", signal="1", payload=b"5"))
    assert (run.status, run.act("s").output, run.act("t").output) == ("COMPLETED", b"9", b"5")


def test_a_child_that_nobody_waits_for_is_told() -> None:
    run = OperatorSteps("c > z", {"c": {"type": "workflow", "config": {"workflow": "x"}}}).begun()
    run.call("c")
    assert run.override("c")[-4:] == rows("NodeScheduled z; drop child c; put close c; put run z")
    run = OperatorSteps("c > z", {"c": {"type": "workflow", "config": {"workflow": "x"}}}).begun()
    run.call("c", close="abandon")
    assert run.override("c")[-2:] == rows("drop child c; put run z")


def human(**options: Any) -> OperatorSteps:
    run = OperatorSteps("h > x y", {"h": {"type": "human", "config": {"title": "?"}, **options}}).begun()
    run.ask("h", timeout_ms=5_000)
    return run


def test_an_approval_is_closed() -> None:
    run = human()
    assert "drop expire h" in run.override("h")
    assert run.act("h").approval.status == "cancelled"  # type: ignore[union-attr]


def test_an_approval_is_closed_also_when_conditions_are_still_to_be_evaluated() -> None:
    """Somebody who decides later must not begin the visit a second time."""
    run = human(branch=choose("x", default="y"))
    assert run.override("h") == rows("NodeOverridden h; drop expire h; put run h")
    assert run.act("h").approval.status == "cancelled"  # type: ignore[union-attr]
    decide = Decide(node="h", visit=1, verb="approve", actor="user:ann")
    assert run.refused(decide) == "approval_closed"
    run.done("h", "x", called=False)
    assert run.nodes("x y") == "x=QUEUED y=SKIPPED"


def test_a_worker_evaluates_the_conditions_unless_the_way_is_given() -> None:
    run = OperatorSteps("a > b > x y", {"b": {"branch": choose("x", default="y")}}).begun()
    assert run.override("b") == rows("NodeOverridden b; put run b")
    assert (run.nodes("b x"), run.counter, run.cell("b").tokens) == ("b=QUEUED x=PENDING", 2, 1)
    assert run.done("b", "x", called=False)[0] == "NodeCompleted b attempt=0 taken=x dead=y counter=2"
    run.end("a", "x")
    assert run.status == "COMPLETED"


def test_what_is_queued_by_hand_holds_a_token_of_its_own() -> None:
    """No edge has reached it; without a token the run would be over before its conditions are evaluated."""
    run = OperatorSteps("a > b > x", {"b": {"branch": choose("x")}}).begun()
    run.override("b")
    run.done("a")
    assert (run.status, run.counter) == ("RUNNING", 1)
    run.done("b", "x", called=False)
    run.done("x")
    assert run.status == "COMPLETED"


def test_what_is_queued_by_hand_is_retried_with_the_rest_when_its_conditions_fail() -> None:
    run = OperatorSteps("a > b > x", {"b": {"branch": choose("x")}}).begun()
    run.override("b")
    run.fail("b", "condition_failed", called=False)
    run.retry()
    assert (run.nodes(), run.counter) == ("a=QUEUED b=PENDING x=PENDING", 1)
    run.done("a")
    run.done("b", "x")
    run.done("x")
    assert run.status == "COMPLETED"


@pytest.mark.parametrize("branch", [choose("x", default="y"), agent("x y")])
def test_the_way_can_be_given(branch: Any) -> None:
    run = OperatorSteps("b > x y", {"b": {"branch": branch}}, limits={"max_parallel": 1}).begun()
    run.fail("b")
    assert run.override("b", next_nodes=("y",)) == rows(
        """
        RunRetried; DeadLetterClosed b; NodeOverridden b; NodeScheduled y; NodeSkipped x counter=1
        drop report; put run y
        """
    )


def test_a_value_for_a_looping_node_may_leave_the_loop_or_go_on_with_it() -> None:
    run = OperatorSteps("e > l > z", {"l": {"loop": loop(back_to="e")}}).begun()
    run.done("e")
    run.fail("l")
    run.override("l", next_nodes=())
    assert run.nodes() == "e=COMPLETED l=COMPLETED z=QUEUED"
    run = OperatorSteps("e > l > z", {"l": {"loop": loop(back_to="e")}}).begun()
    run.done("e")
    run.fail("l")
    run.override("l")
    assert "LoopContinued l entry=e iteration=1 body=e,l" in run.done("l", again=True, called=False)
    run.end("e", "l", "z")
    assert run.status == "COMPLETED"


def test_a_loop_does_not_overtake_the_tokens_that_stand_at_its_entry() -> None:
    """The entry waits for `b`; a looping node settled by hand waits with its next pass until that is over."""
    run = OperatorSteps("a b > e > l > z", {"l": {"loop": loop(back_to="e")}}).begun()
    run.done("a")
    run.override("l")
    assert run.done("l", again=True, called=False) == rows("NodeWaiting l attempt=0 on=loop")
    run.done("b")
    assert run.done("e")[3] == "LoopContinued l entry=e iteration=1 body=e,l"
    run.end("e", "l", "z")
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_a_failed_node_is_settled_and_everything_else_that_was_cut_off_goes_on() -> None:
    run = OperatorSteps("a > b > c; d").begun()
    run.done("a")
    run.fail("b")
    assert run.override("b", reason="by phone", actor="ann") == rows(
        """
        RunRetried; DeadLetterClosed b; NodeOverridden b; NodeScheduled d; NodeScheduled c
        drop report; put run d; put run c
        """
    )
    event = run.of(ev.NodeOverridden)[-1]
    assert (event.actor, event.reason, event.status) == ("ann", "by phone", "COMPLETED")
    run.end("d", "c")
    assert run.status == "COMPLETED"


def test_the_last_word_can_complete_the_run() -> None:
    run = OperatorSteps("a").begun()
    run.fail("a")
    assert run.override("a")[-2:] == rows("RunCompleted; drop report")
    run = OperatorSteps("a", outputs={"x": 1}).begun()
    run.fail("a")
    assert run.override("a")[-1] == "put outputs"
    run.render()
    assert run.status == "COMPLETED"


def test_a_cancelled_node_of_a_cancelled_run() -> None:
    run = OperatorSteps("a b > c").begun()
    run.cancel()
    run.override("a", None)
    assert run.nodes() == "a=SKIPPED b=QUEUED c=PENDING"


def test_an_unknown_outcome_is_settled_but_others_are_still_in_question() -> None:
    once = {"delivery": "at_most_once"}
    run = OperatorSteps("a b", {"a": once, "b": once}).begun()
    run.begin("a", token=1)
    run.begin("b", token=2)
    run.lost("a")
    assert run.refused(run.overriding("a")) == "outcome_unknown"
    run = OperatorSteps("a > b", {"a": once}).begun()
    run.begin("a", token=1)
    run.lost("a")
    run.override("a")
    assert run.nodes() == "a=COMPLETED b=QUEUED"


def mapped(count: int = 3, graph: str = "m > z", **options: Any) -> OperatorSteps:
    run = OperatorSteps(graph, {"m": {"map": {"over": [1], **options}}}).begun()
    run.expand("m", count)
    return run


def test_an_item_that_waits_is_settled() -> None:
    run = mapped(2)
    run.wait("m[0]")
    run.done("m[1]")
    assert run.override("m[0]") == rows("NodeOverridden m[0]; NodeScheduled m; drop wake m[0]; put run m")


def test_a_failed_item_is_settled_and_the_others_run_again() -> None:
    run = mapped(3, max_parallel=1)
    run.fail("m[0]")
    assert run.override("m[0]")[2:] == rows(
        "NodeOverridden m[0]; NodeScheduled m held; NodeScheduled m[1] until=2; drop report; put run m[1]"
    )
    run.end("m[1]", "m[2]")
    run.assemble("m")
    run.done("z")
    assert run.status == "COMPLETED"


def test_the_only_item_left_is_settled_and_the_list_is_assembled() -> None:
    run = mapped(2)
    run.done("m[0]")
    run.fail("m[1]")
    assert run.override("m[1]", None)[-3:] == rows("NodeScheduled m; drop report; put run m")
    assert run.act("m[1]").output == b"null"


def test_a_map_that_failed_is_settled_as_a_whole() -> None:
    run = mapped(2)
    run.done("m[0]")
    run.fail("m[1]")
    run.override("m", b"[1,2]")
    assert (run.nodes(), run.act("m").output) == ("m=COMPLETED z=QUEUED", b"[1,2]")


def test_items_of_a_map_that_is_over_are_over() -> None:
    run = OperatorSteps("m > z", {"m": {"map": {"over": [1]}, "on_error": "continue"}}).begun()
    run.expand("m", 2)
    run.fail("m[0]")
    assert run.nodes() == "m=FAILED z=QUEUED"
    for at in ("m[0]", "m[1]"):
        assert run.refused(run.overriding(at)) == "node_ended"
    run.fail("z")
    assert run.refused(run.overriding("m[0]")) == "node_ended"


def test_what_is_refused() -> None:
    run = OperatorSteps("a > b > c > x; d", {"b": {"on_error": "continue"}, "c": {"branch": choose("x")}}).begun()
    assert run.refused(run.overriding("a")) == "node_live"
    assert run.refused(Override(node="b", visit=2, output=b"1")) == "visit_over"
    assert run.refused(Override(node="b", visit=1, index=0, output=b"1")) == "item_unknown"
    assert run.refused(Override(node="nobody", visit=1, output=b"1")) == "node_unknown"
    assert run.refused(run.overriding("b", next_nodes=("c",))) == "route_not_allowed"
    assert run.refused(run.overriding("c", next_nodes=("a",))) == "route_not_allowed"
    assert run.refused(run.overriding("c", None, next_nodes=("x",))) == "route_not_allowed"
    run.begin("a", token=9)
    assert run.refused(run.overriding("a")) == "node_live"
    run.done("a", token=9)
    assert run.refused(run.overriding("a")) == "node_ended"
    run.fail("b")
    assert run.refused(run.overriding("b")) == "node_ended"
    run.done("d")
    run.done("c", "x")
    run.done("x")
    assert run.refused(run.overriding("b")) == "run_completed"


def test_items_that_are_worked_on_or_were_never_queued_are_refused() -> None:
    run = mapped(3, max_parallel=1)
    assert run.refused(run.overriding("m[0]")) == "node_live"
    assert run.refused(run.overriding("m[1]")) == "item_unknown"
    assert run.refused(run.overriding("m")) == "node_live"


def test_a_looping_node_that_has_its_result_is_refused() -> None:
    run = OperatorSteps("e > x y > l", {"l": {"join": "any", "loop": loop(back_to="e")}}).begun()
    run.end("e", "x")
    run.done("l", again=True)
    assert run.refused(run.overriding("l")) == "node_live"


def test_a_run_that_was_rolled_back_is_refused() -> None:
    run = OperatorSteps("a > b", {"a": {"compensator": {"type": "value"}}}).begun()
    run.done("a")
    run.fail("b")
    run.rollback()
    assert run.refused(run.overriding("b")) == "run_rolled_back"


def test_an_override_is_done_once_per_command() -> None:
    run = OperatorSteps("a > b").begun()
    run.fail("a")
    run.override("a", id="o1")
    run.fail("b")
    assert run.override("a", id="o1") == []


def test_what_was_settled_by_hand_can_be_undone() -> None:
    run = OperatorSteps("a > b", {"a": {"compensator": {"type": "value"}}}).begun()
    run.wait("a")
    run.override("a")
    run.cancel()
    assert run.rollback() == rows("RollbackStarted; CompensationScheduled a; put undo a")
