"""Retry: a run that failed or was cancelled goes on where it stopped, in the same visits, without losing a token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Retry, Signal, WaitRequested


def reopened(run: OperatorSteps) -> str:
    """What the latest retry opened, as `b*1 c*0`: a node and its tokens."""
    return " ".join(f"{each.node}*{each.tokens}" for each in run.of(ev.RunRetried)[-1].nodes)


def test_what_failed_is_scheduled_again_and_what_completed_stays() -> None:
    run = OperatorSteps("a > b c > d > e").begun()
    run.end("a", "b")
    run.fail("c")
    assert run.nodes() == "a=COMPLETED b=COMPLETED c=FAILED d=FAILED e=FAILED"
    assert run.retry() == rows("RunRetried; DeadLetterClosed c; NodeScheduled c; drop report; put run c")
    assert reopened(run) == "c*1 d*1 e*0"
    assert run.nodes() == "a=COMPLETED b=COMPLETED c=QUEUED d=PENDING e=PENDING"
    assert (run.counter, run.edges("d"), run.letters) == (2, "b:taken c:undecided", "")
    assert run.done("c")[0] == "NodeStarted c attempt=2"
    run.end("d", "e")
    assert run.status == "COMPLETED"


def test_attempts_count_on_and_the_policy_begins_anew() -> None:
    run = OperatorSteps("a", {"a": {"retry": {"max_attempts": 2}}}).begun()
    run.fail("a", retryable=True)
    run.fail("a", retryable=True)
    run.retry()
    assert run.fail("a", retryable=True)[:2] == rows(
        "NodeStarted a attempt=3; NodeFailed a attempt=3 code=boom retry=+1000"
    )
    assert run.act("a").attempt == 3


def test_a_checkpoint_outlives_the_retry() -> None:
    run = OperatorSteps("a").begun()
    run.checkpoint("a", b"7", token=3)
    run.fail("a", token=3)
    run.retry()
    assert run.act("a").checkpoint == b"7"


def test_a_cancelled_run_goes_on_with_everything_that_was_cut_off() -> None:
    run = OperatorSteps("a > c; b > c; c > d").begun()
    run.done("a")
    run.cancel()
    assert run.retry() == rows("RunRetried; NodeScheduled b; drop report; put run b")
    assert reopened(run) == "c*1 b*1 d*0"
    run.end("b", "c", "d")
    assert run.status == "COMPLETED"


def test_what_waited_waits_anew() -> None:
    run = OperatorSteps("a b s", {"s": {"type": "signal"}}).begun()
    run.wait("a")
    run.result("s", WaitRequested(on="signal", name="s"))
    run.fail("b")
    run.retry()
    assert run.jobs == "run a; run b; run s"
    run.result("s", WaitRequested(on="signal", name="s"))
    assert run.do(Signal(name="s", signal="1", payload=b"5"))[1] == "NodeCompleted s attempt=2 counter=2"


def test_a_person_is_asked_again() -> None:
    run = OperatorSteps("h > x; b", {"h": {"type": "human", "config": {"title": "?"}}}).begun()
    run.ask("h")
    run.fail("b")
    assert run.act("h").approval.status == "cancelled"  # type: ignore[union-attr]
    run.retry()
    assert run.act("h").approval is None
    run.ask("h")
    assert len(run.of(ev.ApprovalRequested)) == 2


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        ("all", "a=COMPLETED x=SKIPPED b=COMPLETED c=QUEUED j=PENDING"),
        ("strict", "a=COMPLETED x=SKIPPED b=COMPLETED c=QUEUED j=PENDING"),
        ("any", "a=COMPLETED x=SKIPPED b=COMPLETED c=QUEUED j=QUEUED"),
        ({"quorum": 2}, "a=COMPLETED x=SKIPPED b=COMPLETED c=QUEUED j=PENDING"),
    ],
)
def test_joins_are_recomputed(join: Any, expected: str) -> None:
    """`x` is dead, `b` is taken, `c` is undecided; the join may have fired before the run failed."""
    run = OperatorSteps("a x b c; x b c > j", {"x": {"when": "inputs.no"}, "j": {"join": join}}).begun()
    run.skip("x")
    run.end("a", "b")
    run.fail("c")
    run.retry()
    assert run.nodes() == expected
    assert run.counter == 2
    run.done("c")
    if run.cell("j").status == "QUEUED":
        run.done("j")
    assert run.nodes("j") == ("j=SKIPPED" if join == "strict" else "j=COMPLETED")
    assert run.status == "COMPLETED"


def test_every_taken_edge_of_a_join_that_had_fired_brings_its_token_again() -> None:
    """The second was absorbed the first time; now the visit that consumes it has not begun."""
    run = OperatorSteps("a b > j > z", {"j": {"join": "any"}}).begun()
    run.end("a", "b")
    run.fail("j")
    run.retry()
    assert (reopened(run), run.counter) == ("j*2 z*0", 2)
    run.end("j", "z")
    assert run.status == "COMPLETED"


def test_tokens_that_stood_at_a_half_arrived_join_stand_there_again() -> None:
    run = OperatorSteps("a b c d > j", {"j": {"join": {"quorum": 3}}}).begun()
    run.end("a", "b")
    run.fail("c")
    run.retry()
    assert (reopened(run), run.counter, run.nodes("j")) == ("c*1 d*1 j*2", 4, "j=PENDING")
    assert run.done("d")[2] == "NodeScheduled j"
    run.end("c", "j")
    assert run.status == "COMPLETED"


def looped(passes: int = 5) -> OperatorSteps:
    """A loop over e, x and l, entered behind s and left to z."""
    return OperatorSteps("s > e > x > l > z", {"l": {"loop": loop(passes, back_to="e")}}).begun()


@pytest.mark.parametrize("at", ["e", "x", "l"])
def test_a_failure_in_a_later_pass_goes_on_in_that_pass(at: str) -> None:
    run = looped()
    run.end("s", "e", "x")
    run.done("l", again=True)
    for name in ("e", "x", "l"):
        if name == at:
            run.fail(name)
            run.retry()
        if name != "l":
            run.done(name)
    assert run.cell("l").passes == 1
    assert run.done("l", again=True)[2] == "LoopContinued l entry=e iteration=2 body=e,x,l"
    run.end("e", "x", "l", "z")
    assert (run.status, run.cell("e").visit) == ("COMPLETED", 3)


def test_the_entry_of_a_later_pass_begins_by_the_loops_own_token() -> None:
    run = looped()
    run.end("s", "e", "x")
    run.done("l", again=True)
    run.fail("e")
    run.retry()
    assert reopened(run) == "e*1 x*0 l*0 z*0"
    assert run.nodes("e x") == "e=QUEUED x=PENDING"


def test_late_tokens_from_outside_are_absorbed_by_an_entry_that_was_reopened() -> None:
    run = OperatorSteps("s t > e > l", {"e": {"join": "any"}, "l": {"loop": loop(back_to="e")}}).begun()
    run.end("s", "e")
    run.done("l", again=True)
    run.fail("e")
    run.retry()
    run.done("t")
    assert run.counter == 1
    run.end("e", "l")
    assert run.status == "COMPLETED"


def test_a_looping_node_that_waited_for_its_body_runs_again() -> None:
    run = OperatorSteps("e > x y > l > z", {"l": {"join": "any", "loop": loop(back_to="e")}}).begun()
    run.end("e", "x")
    assert run.done("l", again=True)[1] == "NodeWaiting l on=loop"
    run.fail("y")
    run.retry()
    assert run.nodes() == "e=COMPLETED x=COMPLETED y=QUEUED l=QUEUED z=PENDING"
    assert run.done("l", again=True)[1] == "NodeWaiting l attempt=2 on=loop"
    assert run.done("y")[3] == "LoopContinued l entry=e iteration=1 body=e,x,y,l"


def test_an_error_path_out_of_a_loop_stays_open() -> None:
    run = OperatorSteps(
        "e > x > l > z", {"x": {"on_error": {"route": ["z"]}}, "l": {"loop": loop(back_to="e")}}
    ).begun()
    run.end("e", "x")
    run.fail("l")
    run.retry()
    assert run.edges("z") == "x:undecided l:undecided"
    run.done("l", again=True)
    run.done("e")
    run.fail("x")
    assert run.edges("z") == "x:taken l:dead"


def test_after_its_deadline_a_run_gets_a_fresh_one() -> None:
    run = OperatorSteps("a", limits={"deadline_seconds": 5}).begun()
    run.kernel.now = 7_000
    run.deadline()
    assert run.retry()[-2:] == rows("put deadline at=+5000; put run a")
    assert run.kernel.state.deadline_ms == 12_000


def test_a_deadline_of_the_run_itself_stays_until_it_has_passed() -> None:
    run = OperatorSteps("a")
    run.start(deadline_ms=5_000)
    run.kernel.now = 2_000
    run.cancel()
    assert run.retry()[-2:] == rows("put deadline at=+4000; put run a")
    run.kernel.now = 7_000
    run.deadline()
    assert run.retry()[-1:] == rows("put run a")
    assert run.kernel.state.deadline_ms is None


def test_outputs_that_could_not_be_rendered_are_rendered_again() -> None:
    run = OperatorSteps("a", outputs={"x": 1}).begun()
    run.done("a")
    run.render("template_failed")
    assert run.retry() == rows("RunRetried; drop report; put outputs")
    assert (run.counter, run.of(ev.RunRetried)[-1].renders) == (1, True)
    run.render()
    assert run.status == "COMPLETED"


@pytest.mark.parametrize("limits", [{"max_visits": 2}, {"max_hops": 2}])
def test_a_limit_is_met_again_and_nothing_creeps(limits: dict[str, int]) -> None:
    run = OperatorSteps("a > b > c", limits=limits).begun()
    run.end("a", "b")
    for _ in range(4):
        assert (run.status, run.nodes("c"), run.kernel.state.visits) == ("FAILED", "c=CANCELLED", 2)
        run.retry()


@pytest.mark.parametrize("limits", [{"max_visits": 3}, {"max_hops": 3}])
def test_retries_use_up_neither_visits_nor_hops(limits: dict[str, int]) -> None:
    run = OperatorSteps("a > b > c", limits=limits).begun()
    run.end("a", "b")
    for _ in range(5):
        run.fail("c")
        run.retry()
    assert (run.cell("c").hop, run.kernel.state.visits) == (3, 3)
    run.done("c")
    assert run.status == "COMPLETED"


def test_a_failure_that_was_tolerated_stays() -> None:
    run = OperatorSteps("a > b > c", {"a": {"on_error": "continue"}}).begun()
    run.fail("a")
    run.fail("b")
    run.retry()
    assert (run.nodes(), run.letters) == ("a=FAILED b=QUEUED c=PENDING", "")


def test_what_is_refused() -> None:
    run = OperatorSteps("a", {"a": {"compensator": {"type": "value"}}}).begun()
    assert run.refused(Retry()) == "run_not_ended"
    run.done("a")
    assert run.refused(Retry()) == "run_completed"
    run = OperatorSteps("a > b", {"a": {"compensator": {"type": "value"}}}).begun()
    run.done("a")
    run.fail("b")
    run.rollback()
    assert run.refused(Retry()) == "run_rolled_back"
    run.undone("a")
    assert run.refused(Retry()) == "run_rolled_back"


def test_an_unknown_outcome_runs_again_only_if_somebody_is_sure() -> None:
    run = OperatorSteps("a b", {"a": {"delivery": "at_most_once"}}).begun()
    run.begin("a", token=1)
    run.lost("a")
    assert run.refused(Retry()) == "outcome_unknown"
    assert run.refused(Retry(confirmed_not_done=("b",))) == "outcome_unknown"
    run.retry(confirmed_not_done=("a",))
    assert run.of(ev.RunRetried)[-1].sure == ("a",)
    assert run.jobs == "run a; run b"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_an_attempt_that_was_abandoned_has_an_unknown_outcome_too(end: str) -> None:
    """It was announced and may have happened; nobody will ever report it to this run."""
    run = OperatorSteps("a", {"a": {"delivery": "at_most_once"}}, limits={"deadline_seconds": 9}).begun()
    run.begin("a", token=1)
    getattr(run, end)()
    assert run.refused(Retry()) == "outcome_unknown"
    run.retry(confirmed_not_done=("a",))
    assert "run a" in run.jobs


def test_an_attempt_that_was_never_announced_did_not_happen() -> None:
    run = OperatorSteps("a b", {"a": {"delivery": "at_most_once"}, "b": {"delivery": "at_most_once"}}).begun()
    run.begin("b", token=1)
    run.fail("b", retryable=True, token=1)
    run.cancel()
    run.retry()
    assert run.jobs == "run a; run b"


def test_a_retry_is_done_once_per_command() -> None:
    run = OperatorSteps("a").begun()
    run.fail("a")
    assert run.retry(id="r1")
    run.fail("a")
    assert run.retry(id="r1") == []
    assert run.status == "FAILED"


ONCE: dict[str, Any] = {"delivery": "at_most_once"}


def test_an_item_that_was_abandoned_has_an_unknown_outcome() -> None:
    run = OperatorSteps("m", {"m": {**ONCE, "map": {"over": [1, 2]}}}).begun()
    run.expand("m", 2)
    run.begin("m[1]", token=9)
    run.cancel()
    assert run.refused(Retry()) == "outcome_unknown"


def mapped(count: int = 4, **options: Any) -> OperatorSteps:
    run = OperatorSteps("m > z", {"m": {"map": {"over": [1], **options}}}).begun()
    run.expand("m", count)
    return run


def test_of_a_map_only_what_failed_or_was_cancelled_runs_again() -> None:
    run = mapped()
    run.end("m[0]", "m[2]")
    run.fail("m[1]")
    assert run.retry() == rows(
        """
        RunRetried; DeadLetterClosed m[1]
        NodeScheduled m held; NodeScheduled m[1] until=2; NodeScheduled m[3] until=4
        drop report; put run m[1]; put run m[3]
        """
    )
    assert run.done("m[1]")[0] == "NodeStarted m[1] attempt=2"
    assert run.done("m[3]")[-2:] == rows("NodeScheduled m; put run m")
    run.assemble("m")
    run.done("z")
    assert run.status == "COMPLETED"


def test_the_window_holds_for_what_is_left() -> None:
    run = mapped(6, max_parallel=2)
    run.done("m[0]")
    run.done("m[2]")
    run.fail("m[1]")
    run.retry()
    assert run.jobs == "run m[1]; run m[3]"
    assert run.done("m[1]")[-1] == "put run m[4]"
    assert run.done("m[4]")[-1] == "put run m[5]"
    run.end("m[3]", "m[5]")
    assert run.jobs == "run m"


def test_max_parallel_of_the_run_holds_a_map_that_goes_on() -> None:
    run = OperatorSteps("a m", {"m": {"map": {"over": [1]}}}, limits={"max_parallel": 1}).begun()
    run.done("a")
    run.expand("m", 3)
    run.done("m[0]")
    run.fail("m[1]")
    run.retry()
    assert run.jobs == "run m[1]"
    run.end("m[1]", "m[2]")
    run.assemble("m")
    assert run.status == "COMPLETED"


def test_items_that_were_tolerated_stay_and_count() -> None:
    run = mapped(4, tolerate=1)
    run.fail("m[0]")
    run.fail("m[1]")
    run.retry()
    assert run.jobs == "run m[1]; run m[2]; run m[3]"
    assert run.letters == ""
    run.fail("m[2]")
    assert run.status == "FAILED"
    run.retry()
    run.end("m[1]", "m[2]", "m[3]")
    run.assemble("m")
    run.done("z")
    assert (run.status, run.kernel.state.tolerated) == ("COMPLETED", 1)


def test_a_list_that_could_not_be_made_is_made_again() -> None:
    run = OperatorSteps("m", {"m": {"map": {"over": [1]}}}).begun()
    run.fail("m", called=False)
    assert run.retry()[-1] == "put run m"
    run.expand("m", 1)
    run.done("m[0]")
    run.assemble("m")
    assert run.status == "COMPLETED"


def test_a_list_that_could_not_be_assembled_is_assembled_again() -> None:
    run = mapped(2)
    run.end("m[0]", "m[1]")
    run.fail("m", called=False)
    assert run.retry()[2:] == rows("NodeScheduled m; drop report; put run m")
    run.assemble("m")
    run.done("z")
    assert run.status == "COMPLETED"


def test_an_item_in_back_off_or_waiting_begins_anew() -> None:
    run = mapped(3)
    run.fail("m[0]", retryable=True)
    run.wait("m[1]")
    run.cancel()
    run.retry()
    assert run.jobs == "run m[0]; run m[1]; run m[2]"
