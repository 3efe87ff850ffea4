"""What may have acted when its visit was cancelled: by the log, or by its job, which the commit looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.kernel.operator_steps import OperatorSteps
from tests.fixtures.kernel.tables import choose, flow
from tests.unit.kernel.decide.test_rollback import UNDO, left, undoing
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Cancel, Done, Failed, Result, Rollback, WaitRequested
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.decide import decide_all

JOB = "run/a/1/-1"
FLAKY: Any = {"retry": {"max_attempts": 3}}


def asked(run: OperatorSteps, *claimed: str) -> tuple[list[str], list[str]]:
    """What a cancel now says: the activations whose outcome is unknown, and the jobs that must be idle for that."""
    state = run.kernel.state
    decision, _ = decide_all(run.flow, state, [Cancel()], run.kernel.now, claimed)
    return unknown(decision), list(decision.work.idle)


def unknown(decision: Decision) -> list[str]:
    ended = [event for event in decision.events if isinstance(event, ev.NodeCancelled) and event.unknown]
    return [f"{event.node}/{event.visit}/{event.index}" for event in ended]


def queued(run: OperatorSteps) -> None:
    """Nothing has happened since it was queued."""


def begun(run: OperatorSteps) -> None:
    run.begin("a", token=5)


def lost(run: OperatorSteps) -> None:
    run.lost("a")


def lost_then_failed(run: OperatorSteps) -> None:
    run.lost("a")
    run.fail("a", retryable=True)


def failed(run: OperatorSteps) -> None:
    run.fail("a", retryable=True)


def waiting(run: OperatorSteps) -> None:
    run.wait("a")


SITUATIONS: list[tuple[Callable[[OperatorSteps], None], dict[str, Any], tuple[bool, bool], tuple[bool, bool]]] = [
    # What happened to `a`, its options; is its outcome unknown and must its job be idle: if nobody has it, if somebody.
    (queued, {}, (False, True), (True, False)),
    (begun, {}, (True, False), (True, False)),
    # What was lost is unknown already.
    (lost, {}, (False, True), (True, False)),
    (failed, {}, (False, True), (True, False)),
    (lost_then_failed, {}, (False, True), (True, False)),
    (waiting, {}, (False, False), (False, False)),
    (queued, {"delivery": "at_most_once"}, (False, False), (False, False)),
    (begun, {"delivery": "at_most_once"}, (True, False), (True, False)),
    (queued, {"compensator": None}, (False, False), (False, False)),
    (begun, {"compensator": None}, (False, False), (False, False)),
    (queued, {"map": {"over": [1]}}, (False, False), (False, False)),
]


@pytest.mark.parametrize(("happened", "options", "free", "taken"), SITUATIONS)
def test_a_step_is_unknown_only_if_a_worker_may_have_called_its_handler(
    happened: Callable[[OperatorSteps], None],
    options: dict[str, Any],
    free: tuple[bool, bool],
    taken: tuple[bool, bool],
) -> None:
    given = {name: value for name, value in {**UNDO, **FLAKY, **options}.items() if value is not None}
    run = OperatorSteps("a > b", {"a": given}).begun()
    happened(run)
    for claimed, (says_unknown, needs_idle) in (((), free), ((JOB,), taken)):
        assert asked(run, *claimed) == (["a/1/-1"] * says_unknown, [JOB] * needs_idle)


def test_a_handler_that_waited_and_is_called_again_is_judged_by_its_job() -> None:
    run = undoing("a > b", "a")
    run.result("a", WaitRequested(on="timer", for_ms=1_000, recall=True))
    run.wake("a")
    assert (asked(run), asked(run, JOB)) == (([], [JOB]), (["a/1/-1"], []))


def test_conditions_over_the_result_of_a_wait_call_no_handler() -> None:
    run = undoing("a > b", "a", {"a": {"branch": choose("b")}})
    run.wait("a")
    run.wake("a")
    assert asked(run) == asked(run, JOB) == ([], [])


def test_an_attempt_that_failed_in_the_same_commit_has_nobody_at_it() -> None:
    run = undoing("a > b", "a", {"a": FLAKY})
    again = Failed(error=ev.Error("flaky", "try again", retryable=True))
    result = Result(node="a", visit=1, token=7, outcome=again)
    decision, _ = decide_all(run.flow, run.kernel.state, [result, Cancel()], run.kernel.now, (JOB,))
    assert (unknown(decision), decision.work.idle) == ([], ())


def test_a_result_that_comes_too_late_has_happened() -> None:
    """The cancel is decided before it, and it is discarded: the lease that it settles says who was at it."""
    run = undoing("a > b", "a")
    result = Result(node="a", visit=1, token=7, outcome=Done(output=b"1"))
    decision, _ = decide_all(run.flow, run.kernel.state, [Cancel(), result], run.kernel.now, (JOB,))
    assert unknown(decision) == ["a/1/-1"]
    assert [type(event) for event in decision.events][-1] is ev.ResultDiscarded


def by_a_sibling(run: OperatorSteps) -> None:
    run.fail("z")


def by_a_deadline(run: OperatorSteps) -> None:
    run.deadline()


def by_an_operator(run: OperatorSteps) -> None:
    run.cancel()


def by_too_many_visits(run: OperatorSteps) -> None:
    run.done("z")


def by_a_rewind(run: OperatorSteps) -> None:
    run.rewind("s")


ENDS = [by_a_sibling, by_a_deadline, by_an_operator, by_too_many_visits, by_a_rewind]


@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_visit_looks_at_its_job(end: Callable[[OperatorSteps], None]) -> None:
    for taken in (False, True):
        limits = {"max_visits": 3 if end is by_too_many_visits else 100, "deadline_seconds": 60}
        run = undoing("s > a z > b", "a", limits=limits)
        run.done("s")
        if end is by_too_many_visits:
            run = undoing("s > a z; z > b", "a", limits=limits)
            run.done("s")
        if taken:
            run.claim("a")
        end(run)
        cancelled = [event for event in run.of(ev.NodeCancelled) if event.node == "a"]
        assert [event.unknown for event in cancelled] == [taken]


@pytest.mark.parametrize("end", ["item", "cancel"])
def test_items_are_judged_one_by_one(end: str) -> None:
    run = undoing("m > z", "m", {"m": {"map": {"over": [1]}}})
    run.expand("m", 5)
    run.done("m[0]")
    run.begin("m[1]", token=50)
    run.claim("m[2]")
    if end == "cancel":
        run.cancel()
    else:
        run.fail("m[3]")
    run.rollback()
    run.undone("m[0]")
    assert left(run) == "m/1/1 m/1/2"


# A retry


def cut_off() -> OperatorSteps:
    """A run that was cancelled while a worker had its step, and goes on."""
    run = undoing("a > b", "a")
    run.claim("a")
    run.cancel()
    run.retry()
    return run


def test_an_unknown_outcome_survives_a_retry_that_nobody_takes_up() -> None:
    """The first attempt may have acted, although nobody has begun the second."""
    run = cut_off()
    run.cancel()
    run.rollback()
    assert (run.kernel.state.rollback, left(run)) == ("partial", "a/1/-1")


def test_it_is_named_once_if_the_second_attempt_is_cut_off_too() -> None:
    run = cut_off()
    run.claim("a")
    run.cancel()
    run.rollback()
    assert left(run) == "a/1/-1"


def test_an_attempt_that_completes_settles_what_was_before_it() -> None:
    run = cut_off()
    run.end("a", "b")
    run.rollback()
    run.undone("a")
    assert (run.kernel.state.rollback, left(run)) == ("done", "")


def test_an_operator_who_is_sure_settles_it() -> None:
    run = undoing("a > b", "a")
    run.claim("a")
    run.cancel()
    run.retry(confirmed_not_done=("a",))
    run.cancel()
    assert run.refused(Rollback()) == "nothing_to_roll_back"


def test_it_stays_unknown_while_its_node_is_held_back_or_fails_with_others() -> None:
    graph, nodes = "a; b > c; a > c", {"c": {**UNDO, "join": "any"}}
    run = OperatorSteps(graph, nodes).begun()
    run.done("a")
    run.claim("c")
    run.fail("b")
    run.patch(flow(graph, nodes, limits={"max_parallel": 1}), retry=True)
    assert run.kernel.state.peek("c").held
    run.fail("b")
    assert [event.error.code for event in run.of(ev.NodeFailed)] == ["boom", "boom", "upstream_failed"]
    run.rollback()
    assert left(run) == "c/1/-1"


def test_an_item_of_a_list_that_a_patch_replaced_can_only_be_said_to_be_over() -> None:
    run = undoing("m > z", "m", {"m": {"map": {"over": [1]}}})
    run.expand("m", 3)
    run.claim("m[2]")
    run.cancel()
    run.patch(flow("m > z", {"m": {**UNDO, "map": {"over": [1, 2]}}}), retry=True)
    run.cancel()
    run.rollback()
    assert left(run) == "m/1/2"
    assert run.refused(run.overriding("m[2]")) == "item_unknown"
    run.override("m[2]", None)
    run.rollback()
    assert run.kernel.state.rollback == "done"
