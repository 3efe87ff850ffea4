"""Tests for guards over waits that no table reaches: each goes red when one check is taken away."""

from __future__ import annotations

import pytest

from tests.kernel.acts import Acts
from tests.kernel.tables import Run, asked, choose, human, loop, rows
from tidemill.kernel.commands import Cancel, Delegate, Lost, Pause, Relabel, Resume, Waits
from tidemill.kernel.deciding import DELEGATIONS_MAX

AGAIN = {"retry": {"max_attempts": 3, "backoff_seconds": 0}, "timeout_seconds": 5}


# People


def test_four_eyes_of_whoever_forked_the_run() -> None:
    """The question is asked anew in the fork, by whoever forked it."""
    run = Acts("h > z", {"h": human()})
    run.start(submitted_by="rita")
    run.ask("h", four_eyes=True)
    other = run.fork(submitted_by="fred")
    other.ask("h", four_eyes=True)
    assert other.refused(other.decision("approve", "h", "fred")) == "four_eyes"
    assert other.approve("h", "rita") != []


def test_a_role_that_is_called_like_a_person_is_not_that_person() -> None:
    run = asked(who="user:ann")
    assert run.refused(run.decision("approve", "h", "eve", roles="user:ann")) == "approver_not_allowed"


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


def test_a_rejected_item_fails_also_when_its_map_has_a_branch() -> None:
    run = Run("h > z", {"h": human(map={"over": [1], "tolerate": 1}, branch=choose("z"))})
    run.start()
    run.expand("h", 1)
    run.ask("h[0]")
    assert run.reject("h[0]")[1] == "NodeFailed h[0] code=rejected tolerated"


def test_a_way_out_takes_the_time_out_along() -> None:
    run = asked("h > r z", node=human(rejection="r"), timeout_ms=500)
    assert run.jobs == "expire h"
    run.reject("h")
    assert run.jobs == "run r"


# Signals


def test_a_signal_is_not_taken_for_a_command_of_the_same_id() -> None:
    run = Run("s", {"s": {"type": "signal", "config": {"name": "paid"}}})
    run.start()
    run.do(Pause(id="x"))
    run.do(Resume(id="y"))
    run.listen("s")
    assert run.signal("x")[-1] == "RunCompleted"


def waited_before() -> Run:
    """A run whose node `a` has waited for a signal `paid` until its time was over, and is to be tried again."""
    run = Run("a", {"a": AGAIN})
    run.start()
    run.listen("a", "paid")
    run.expire("a")
    return run


def test_who_waits_for_another_signal_by_now_is_passed_over() -> None:
    run = waited_before()
    run.listen("a", "sent")
    assert run.signal("s1", "paid") == rows("SignalReceived paid=s1")
    run.signal("s2", "sent")
    assert run.status == "COMPLETED"


def test_who_waits_for_a_child_of_that_name_by_now_is_passed_over() -> None:
    run = waited_before()
    run.call("a", "paid")
    assert run.signal("s1", "paid") == rows("SignalReceived paid=s1")
    assert run.nodes() == "a=WAITING"


# Children


def test_a_paused_run_starts_no_child() -> None:
    run = Run("a b")
    run.start()
    run.call("a")
    assert run.pause() == rows("RunPaused; withdraw child a; withdraw run b")
    run.resume()
    assert run.jobs == "child a; run b"
    run.begin("b", token=9)
    run.pause()
    run.result("b", Waits(on="child", name="kid2", ask=b"{}"), token=9)
    assert run.jobs == ""
    run.resume()
    assert run.jobs == "child a; child b"


def test_the_end_of_a_child_counts_once_also_while_conditions_are_left() -> None:
    run = Run("a; b", {"a": {"branch": choose("b")}})
    run.start()
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


# Conditions over what a wait ended with


def conditions_left() -> Run:
    run = Run("a; b", {"a": {"branch": choose("b")}})
    run.start()
    run.wait("a")
    run.wake("a")
    return run


def test_who_only_evaluates_conditions_cannot_wait() -> None:
    run = conditions_left()
    assert run.wait("a", called=False)[0] == "NodeFailed a code=outcome_not_allowed counter=0"


def test_a_lost_evaluation_is_no_attempt() -> None:
    run = conditions_left()
    run.lost("a")
    assert run.act("a").attempt == 1
    run.done("a", "b")
    assert run.act("a").attempt == 1


# Workers and labels


def test_a_loss_that_is_told_late_is_no_news() -> None:
    run = Run("a > l", {"l": {"loop": loop(back_to="a")}})
    run.start()
    run.done("a")
    run.done("l", again=True)
    assert run.do(Lost(node="a", visit=1, token=run.kernel.next_token())) == []
    run.begin("a", token=50)
    assert run.do(Lost(node="a", visit=2, token=49)) == []


@pytest.mark.parametrize(
    ("set_", "remove", "labels"),
    [
        ({"b": "2"}, (), {"a": "1", "b": "2"}),
        ({"a": "3"}, (), {"a": "3"}),
        ({"b": "2"}, ("a",), {"b": "2"}),
        ({"a": "3"}, ("a",), {"a": "3"}),
    ],
)
def test_changing_a_label_leaves_the_others(
    set_: dict[str, str], remove: tuple[str, ...], labels: dict[str, str]
) -> None:
    run = Run("a")
    run.start(labels={"a": "1"})
    assert run.do(Relabel(labels=set_, remove=remove)) == rows("RunLabelled")
    assert run.kernel.state.labels == labels
    assert run.do(Relabel(labels=labels)) == []
