"""Tests for guards over operators' acts that no table reaches: each goes red when one check is taken away."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.kernel.acts import Acts
from tests.kernel.tables import flow, loop, rows
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Cancel, Done, Result, Retry, Rollback, Undone

UNDO: dict[str, Any] = {"compensator": {"type": "value", "retry": {"max_attempts": 9, "backoff_seconds": 0}}}
ONCE: dict[str, Any] = {"delivery": "at_most_once"}


# Beginning again


def test_an_item_that_was_abandoned_has_an_unknown_outcome() -> None:
    run = Acts("m", {"m": {**ONCE, "map": {"over": [1, 2]}}}).begun()
    run.expand("m", 2)
    run.begin("m[1]", token=9)
    run.cancel()
    assert run.refused(Retry()) == "outcome_unknown"


def test_letters_of_earlier_passes_are_not_closed_by_a_retry() -> None:
    run = Acts("a > l", {"a": {"on_error": "continue"}, "l": {"loop": loop(back_to="a")}}).begun()
    run.fail("a")
    run.done("l", again=True)
    run.cancel()
    run.retry()
    assert run.letters == "a/1/-1"


def test_a_late_token_of_what_is_settled_by_hand_is_absorbed_by_an_entry_that_is_reopened() -> None:
    run = Acts("s t > e > l", {"e": {"join": "any"}, "l": {"loop": loop(back_to="e")}}).begun()
    run.end("s", "e")
    run.done("l", again=True)
    run.cancel()
    run.override("t")
    assert (run.nodes("t e"), run.counter, run.cell("e").tokens) == ("t=COMPLETED e=QUEUED", 1, 1)


def test_rewinds_use_up_no_hops() -> None:
    run = Acts("a > b", limits={"max_hops": 2}).begun()
    for _ in range(3):
        run.rewind("a")
    run.end("a", "b")
    assert run.status == "COMPLETED"


def test_a_repeated_result_of_a_visit_that_was_taken_back_leaves_nothing() -> None:
    run = Acts("a > b").begun()
    result = Result(node="a", visit=1, token=7, outcome=Done(output=b"1"))
    run.do(result, "run/a/1/-1")
    run.rewind("a")
    assert run.do(msgspec.structs.replace(result, again=True)) == []


# Another graph, another run


def test_a_patch_makes_no_path_shorter() -> None:
    run = Acts("a > b; x", limits={"max_hops": 3}).begun()
    run.end("a", "b")
    run.patch(flow("a > b > c > d; x", limits={"max_hops": 3}))
    run.done("c")
    assert (run.status, run.of(ev.RunFailed)[-1].error.code) == ("FAILED", "max_hops_exceeded")


def test_a_fork_knows_the_signals_that_its_own_log_has() -> None:
    run = Acts("s > t", {name: {"type": "signal", "config": {"name": "paid"}} for name in "st"}).begun()
    run.listen("s")
    run.signal("s1")
    other = run.fork()
    other.listen("t")
    assert other.signal("s1") == []
    assert other.signal("s2")[-1] == "RunCompleted"


# Undoing


def undoing(graph: str, **nodes: Any) -> Acts:
    """A run of nodes that have compensators."""
    return Acts(graph, {node.id: {**UNDO, **nodes.get(node.id, {})} for node in flow(graph).nodes}).begun()


def late(run: Acts, node: str) -> Undone:
    """What a worker says about a step under a lease that is newer than any before."""
    return Undone(node=node, visit=1, token=run.kernel.next_token(), outcome=Done(output=b"1"))


def test_what_was_skipped_by_hand_is_not_undone() -> None:
    run = undoing("a > b")
    run.override("b", None)
    run.done("a")
    assert run.rollback()[1:] == rows("CompensationScheduled a; put undo a")


def test_an_item_that_was_not_needed_is_not_undone() -> None:
    run = undoing("m", m={"map": {"over": [1, 2]}})
    run.expand("m", 2)
    run.skip("m[0]", called=True)
    run.done("m[1]")
    run.assemble("m")
    assert run.rollback()[1:] == rows("CompensationScheduled m[1]; put undo m[1]")
    assert run.undone("m[1]")[-1] == "RollbackFinished"


def test_an_unknown_outcome_that_nobody_could_undo_is_not_named() -> None:
    run = Acts("a > b", {"a": UNDO, "b": ONCE}).begun()
    run.done("a")
    run.begin("b", token=9)
    run.lost("b")
    run.rollback()
    run.undone("a")
    assert run.kernel.state.rollback == "done"


def test_an_item_that_was_under_way_when_the_run_ended_is_named() -> None:
    run = undoing("m", m={"map": {"over": [1, 2]}})
    run.expand("m", 2)
    run.done("m[0]")
    run.begin("m[1]", token=9)
    run.cancel()
    run.rollback()
    run.undone("m[0]")
    assert run.of(ev.RollbackFinished)[-1].left == ("m/1/1",)


def test_a_rollback_that_was_stopped_hears_nothing_more() -> None:
    run = undoing("a > b")
    run.end("a", "b")
    run.rollback()
    run.do(Cancel(force=True))
    assert run.do(late(run, "b")) == []
    assert run.kernel.state.rollback == "partial"


def test_a_step_is_over_only_when_it_is_its_turn() -> None:
    """It had its turn in a rollback that was stopped, but in this one another comes first."""
    run = undoing("a > b")
    run.end("a", "b")
    run.rollback()
    run.undone("b", "broken")
    run.do(Cancel(force=True))
    assert run.do(Rollback())[-1] == "put undo b"
    assert run.do(late(run, "a")) == []
    run.undone("b")
    run.undone("a")
    assert run.kernel.state.rollback == "done"


def test_only_workers_lost_in_a_row_condemn_a_step() -> None:
    run = undoing("a")
    run.done("a")
    run.rollback()
    for _ in range(2):
        run.undo_lost("a", 4)
        run.undone("a", "flaky", retryable=True)
    run.undone("a")
    assert (run.kernel.state.rollback, run.of(ev.CompensationFailed)[-1].retry_at_ms is None) == ("done", False)
