"""Records that attempts append: numbers, repetitions, progress, and the budget of the run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.tables import Run, begun
from tidemill.errors import Rejected
from tidemill.kernel.codec import encode_state
from tidemill.kernel.commands import Append, Retry, WaitRequested
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX
from tidemill.kernel.events import ChildFinished, NodeAppended, NodeStarted, NodeWaiting
from tidemill.kernel.evolve import replay
from tidemill.kernel.spending import NOTHING_SPENT, Budget, Spend

Json = Any
CALL = Spend(1, 100, 0)


def one(graph: str = "a > z", **top: Json) -> Run:
    return begun(graph, {}, **top)


def append(run: Run, at: str, number: int, token: int, **amounts: Spend | None) -> Append:
    return Append(token=token, value=b"{}", number=number, **amounts, **run.where(at))


def test_the_first_record_begins_the_attempt_and_the_state_keeps_only_a_count() -> None:
    run = one()
    run.append("a", b'{"t":"begin"}', 0, token=5)
    run.append("a", b'{"t":"reply"}', 1, token=5)
    assert [type(event) for event in run.kernel.events[2:]] == [NodeStarted, NodeAppended, NodeAppended]
    act = run.act("a")
    assert (act.appended, run.kernel.events[act.appended_from - 1].value) == (2, b'{"t":"begin"}')
    assert b"begin" not in encode_state(run.kernel.state)
    assert encode_state(replay(run.kernel.events)) == encode_state(run.kernel.state)


def test_a_repetition_of_the_last_record_changes_nothing() -> None:
    run = one()
    run.append("a", b"1", 0, token=5)
    assert run.append("a", b"1", 0, token=5) == []
    assert len(run.of(NodeAppended)) == 1


def test_a_worker_that_does_not_know_all_records_is_told_to_stop() -> None:
    """Another worker went on with the visit; what this one has is not the same record."""
    run = one()
    run.append("a", b"1", 0, token=5)
    assert run.refused(append(run, "a", 0, 6)) == "attempt_stale"
    run.append("a", b"2", 1, token=6)
    assert run.refused(append(run, "a", 2, 5)) == "attempt_stale", "an older lease"
    assert run.refused(append(run, "a", 7, 6)) == "attempt_stale", "a gap"


def test_a_record_is_progress_so_lost_workers_count_from_it() -> None:
    run = one()
    for number in range(3 * LOST_IN_A_ROW_MAX):
        run.append("a", b"1", number, token=run.kernel.next_token())
        run.lost("a")
    assert run.nodes("a") == "a=QUEUED"
    assert run.act("a").appended == 3 * LOST_IN_A_ROW_MAX


def test_a_record_uses_up_the_result_of_a_wait() -> None:
    run = one()
    run.result("a", WaitRequested(on="signal", name="paid", recall=True))
    run.signal("s1", payload=b"7")
    assert run.act("a").resumed == b"7"
    run.append("a", b'{"got":7}', 0, token=run.kernel.next_token())
    assert (run.act("a").resumed, run.act("a").recall) == (None, False)
    run.lost("a")
    run.done("a")
    assert run.nodes("a") == "a=COMPLETED"


def test_records_stay_with_the_visit_when_the_run_is_retried() -> None:
    run = one()
    run.append("a", b"1", 0, token=5)
    run.fail("a")
    assert run.status == "FAILED"
    run.do(Retry())
    assert run.act("a").appended == 1
    run.append("a", b"2", 1, token=run.kernel.next_token())


def test_an_ended_visit_takes_no_records() -> None:
    run = one()
    run.done("a", token=5)
    assert run.refused(append(run, "a", 0, 5)) == "attempt_stale"


# The budget of the run


def budgeted(graph: str = "a b > z", **budget: Json) -> Run:
    return one(graph, limits={"budget": budget})


def test_what_is_set_aside_is_settled_by_what_was_spent() -> None:
    run = budgeted(tokens=1_000)
    run.append("a", b"1", 0, token=5, reserve=Spend(1, 300, 0))
    assert (run.kernel.state.reserved, run.kernel.state.spent) == (Spend(1, 300, 0), NOTHING_SPENT)
    run.append("a", b"2", 1, token=5, spent=Spend(1, 120, 0))
    assert (run.kernel.state.reserved, run.kernel.state.spent) == (NOTHING_SPENT, Spend(1, 120, 0))


def test_a_reservation_is_cut_to_what_is_left_and_refused_when_nothing_is() -> None:
    run = budgeted(tokens=1_000)
    run.append("a", b"1", 0, token=5, reserve=Spend(1, 900, 0))
    run.append("b", b"1", 0, token=6, reserve=Spend(1, 900, 0))
    assert run.act("b").reserved == Spend(1, 100, 0)
    run.append("a", b"2", 1, token=5, spent=Spend(1, 900, 0))
    assert run.refused(append(run, "a", 2, 5, reserve=CALL)) == "budget_reserved", "b may give some back"
    run.append("b", b"2", 1, token=6, spent=Spend(1, 100, 0))
    assert run.refused(append(run, "a", 2, 5, reserve=CALL)) == "budget_exceeded"
    run.append("a", b"2", 2, token=5)
    assert run.act("a").appended == 3, "a record without a call is still taken"


def test_calls_at_the_same_time_never_share_what_is_left() -> None:
    """Decided in one commit, as for many agents of a map."""
    run = begun("m > z", {"m": {"map": {"over": list(range(10))}}}, limits={"budget": {"calls": 4}})
    run.expand("m", 10)
    taken = []
    for index in range(10):
        command = append(run, f"m[{index}]", 0, run.kernel.next_token(), reserve=CALL)
        taken.append(run.kernel.ask(command))
    refused = [answer for answer in taken if getattr(answer, "code", "") == "budget_exceeded"]
    assert len(refused) == 6 and run.kernel.state.reserved == Spend(4, 400, 0)


def test_a_call_that_was_lost_counts_as_spent() -> None:
    run = budgeted(calls=2)
    run.append("a", b"1", 0, token=5, reserve=CALL)
    run.lost("a")
    run.append("a", b"2", 1, token=run.kernel.next_token(), reserve=CALL)
    assert (run.kernel.state.spent, run.kernel.state.reserved) == (CALL, CALL)
    run.lost("a")
    assert run.refused(append(run, "a", 2, run.kernel.next_token(), reserve=CALL)) == "budget_exceeded"


@pytest.mark.parametrize("end", ["done", "fail"])
def test_a_visit_that_ends_leaves_nothing_set_aside(end: str) -> None:
    run = budgeted(calls=5)
    run.append("a", b"1", 0, token=5, reserve=CALL)
    getattr(run, end)("a")
    assert run.kernel.state.reserved == NOTHING_SPENT and run.kernel.state.spent == CALL


def test_a_child_run_gets_a_part_of_the_budget_and_reports_what_it_spent() -> None:
    run = budgeted("a > z", calls=10, tokens=1_000)
    run.result("a", WaitRequested(on="child", name="kid", ask=b"{}", budget=Budget(3, None, None)))
    (waiting,) = run.of(NodeWaiting)
    assert waiting.budget == Budget(3, 1_000, None)
    assert run.kernel.state.reserved == Spend(3, 1_000, 0)
    run.child_began("a")
    run.child_ended("a", spent=Spend(2, 150, 0))
    (ended,) = run.of(ChildFinished)
    assert ended.spent == Spend(2, 150, 0)
    assert (run.kernel.state.reserved, run.kernel.state.spent) == (NOTHING_SPENT, Spend(2, 150, 0))


def test_a_run_is_bound_by_the_part_that_its_parent_gave_it() -> None:
    run = one(limits={"budget": {"calls": 50}})
    run = Run(run.flow)
    run.start(parent=("p", "a", 1, -1), budget=Budget(1, None, None))
    run.append("a", b"1", 0, token=5, reserve=CALL)
    run.append("a", b"2", 1, token=5, spent=CALL)
    assert run.refused(append(run, "a", 2, 5, reserve=CALL)) == "budget_exceeded"


def test_without_a_budget_nothing_is_refused_and_children_get_none() -> None:
    run = one()
    run.append("a", b"1", 0, token=5, reserve=Spend(1, 10**12, 10**12), spent=None)
    run.append("a", b"2", 1, token=5, spent=Spend(1, 10**12, 10**12))
    run.append("a", b"3", 2, token=5, reserve=CALL)
    run.result("a", WaitRequested(on="child", name="kid", ask=b"{}"), token=5)
    (waiting,) = run.of(NodeWaiting)
    assert waiting.budget is None


def test_an_unreadable_budget_is_refused_when_it_is_published() -> None:
    with pytest.raises(Rejected) as refused:
        one(limits={"budget": {"calls": 0, "tokens": -1, "money": 0, "euro": 3}})
    codes = {(problem.code, problem.path) for problem in refused.value.problems}
    places = ("calls", "tokens", "money")
    assert codes >= {("out_of_range", f"/limits/budget/{name}") for name in places}
    assert ("unknown_key", "/limits/budget/euro") in codes
