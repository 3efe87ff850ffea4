"""The bounds of a run: visits, hops, bytes and slots; what is held back, in which order, and what fails the run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.tables import Run, begun, loop, rows
from tidemill.kernel.events import NodeScheduled, RunFailed

Json = Any


def test_the_visit_beyond_max_visits_is_not_dispatched() -> None:
    run = begun("a > b > c", limits={"max_visits": 2})
    run.done("a")
    assert run.done("b") == rows(
        "NodeStarted b; NodeCompleted b taken=c counter=1; NodeCancelled c counter=0;"
        "RunFailed node=c code=max_visits_exceeded"
    )
    assert run.kernel.state.visits == 2


def test_skipped_nodes_are_no_visits() -> None:
    run = begun("a > b > c; a > d", {"b": {"when": "inputs.go"}}, limits={"max_visits": 3})
    run.done("a")
    run.skip("b")
    run.done("d")
    assert (run.status, run.kernel.state.visits) == ("COMPLETED", 3)


def test_every_pass_of_a_loop_is_a_visit_and_a_retry_is_none() -> None:
    run = begun("a", {"a": {"loop": loop(9)}}, limits={"max_visits": 2})
    run.fail("a", retryable=True)
    run.done("a", again=True)
    shown = run.done("a", again=True)
    assert shown[-3:] == rows(
        "LoopContinued a entry=a iteration=2 body=a; NodeCancelled a#3 counter=0;"
        "RunFailed node=a#3 code=max_visits_exceeded"
    )


def test_items_of_a_map_are_no_visits() -> None:
    run = begun("a", {"a": {"map": {"over": [1]}}}, limits={"max_visits": 1})
    run.expand("a", 3)
    for index in range(3):
        run.done(f"a[{index}]")
    run.assemble("a")
    assert run.status == "COMPLETED"


def test_too_many_entries_for_the_limit() -> None:
    run = begun("a b c", limits={"max_visits": 2})
    assert (run.status, run.counter, run.jobs) == ("FAILED", 0, "")


@pytest.mark.parametrize("limit", [{"max_visits": 2}, {"max_hops": 1}])
def test_a_limit_met_in_the_middle_of_a_fan_leaves_no_job_behind(limit: Json) -> None:
    """`b` was made ready by the same decision that met the limit at `c`."""
    run = begun("a > b c > d", limits=limit)
    run.done("a")
    assert (run.status, run.counter, run.jobs) == ("FAILED", 0, "")


def test_a_limit_cancels_every_unfinished_visit() -> None:
    """Nobody's failure: the nodes below the visit that was one too many are cancelled like all others."""
    run = begun("a > b > c; x", limits={"max_visits": 2})
    run.done("a")
    assert (run.status, run.nodes("b c x")) == ("FAILED", "b=CANCELLED c=CANCELLED x=CANCELLED")


def test_a_hop_is_one_more_than_the_highest_that_arrived() -> None:
    run = begun("a > b > c; a > c")
    run.end("a", "b", "c")
    assert [event.hop for event in run.of(NodeScheduled)] == [1, 2, 3]


def test_hops_go_on_through_the_passes_of_a_loop() -> None:
    run = begun("a > b", {"b": {"loop": loop(3, "a")}}, limits={"max_hops": 4})
    run.done("a")
    run.done("b", again=True)
    run.done("a")
    assert [event.hop for event in run.of(NodeScheduled)] == [1, 2, 3, 4]
    assert run.done("b", again=True)[-1] == "RunFailed node=a#3 code=max_hops_exceeded"


def test_outputs_of_the_run_are_counted_in_bytes() -> None:
    run = begun("a > b > c", limits={"max_bytes": 100})
    run.done("a", size=60)
    run.done("b", size=40)
    assert run.kernel.state.size == 100
    assert run.done("c", size=1)[1:] == rows(
        "NodeFailed c code=max_bytes_exceeded counter=0; DeadLettered c code=max_bytes_exceeded attempts=1;"
        "RunFailed node=c code=max_bytes_exceeded"
    )


def test_no_on_error_tolerates_a_limit_of_the_run() -> None:
    run = begun("a > b", {"a": {"on_error": "continue"}}, limits={"max_bytes": 10})
    run.done("a", size=11)
    [failed] = run.of(RunFailed)
    assert (failed.node, failed.error.code, run.nodes()) == ("a", "max_bytes_exceeded", "a=FAILED b=FAILED")


def test_an_item_that_exceeds_the_bytes_fails_the_run_also_when_items_are_tolerated() -> None:
    run = begun("a", {"a": {"map": {"over": [1], "tolerate": 5}}}, limits={"max_bytes": 10})
    run.expand("a", 3)
    run.done("a[0]", size=10)
    assert run.done("a[1]", size=1)[-1] == "drop run a[2]"
    assert (run.status, run.counter) == ("FAILED", 0)


def test_ready_nodes_beyond_max_parallel_stay_pending_and_go_first_come_first_served() -> None:
    run = Run("a b c d", limits={"max_parallel": 2})
    assert run.start() == rows(
        "RunCreated entries=a,b,c,d counter=4; NodeScheduled a; NodeScheduled b; NodeScheduled c held;"
        "NodeScheduled d held; put run a; put run b"
    )
    assert run.nodes() == "a=QUEUED b=QUEUED c=PENDING d=PENDING"
    assert (run.cell("c").held, run.cell("d").held) == (True, True)
    assert run.done("b")[-2:] == rows("NodeScheduled c; put run c")
    assert run.done("c")[-2:] == rows("NodeScheduled d; put run d")
    assert not run.cell("d").held


def test_whoever_becomes_ready_later_queues_behind_those_who_wait() -> None:
    run = begun("a > x; b c", limits={"max_parallel": 1})
    assert run.done("a") == rows(
        "NodeStarted a; NodeCompleted a taken=x counter=3; NodeScheduled x held; NodeScheduled b; put run b"
    )
    assert run.done("b")[-1] == "put run c"
    assert run.done("c")[-1] == "put run x"


@pytest.mark.parametrize("end", ["fail", "skip", "wait"])
def test_every_end_of_an_attempt_frees_its_slot(end: str) -> None:
    run = begun("a b", {"a": {"on_error": "continue"}}, limits={"max_parallel": 1})
    getattr(run, end)("a")
    assert "run b" in run.jobs


def test_a_wait_that_expires_takes_a_slot_again_at_once() -> None:
    run = begun("a b c", {"a": {"timeout_seconds": 1}}, limits={"max_parallel": 1})
    run.wait("a", 5_000)
    assert run.expire("a")[-1] == "put run a at=+1000"
    assert run.kernel.state.in_flight == 2
    run.done("b")
    assert (run.jobs, run.nodes("c")) == ("run a", "c=PENDING")
    assert run.done("a")[-1] == "put run c"


def test_a_map_waits_for_slots_in_the_queue_and_leaves_it_when_it_fails() -> None:
    run = begun("a b c", {"a": {"map": {"over": [1]}, "on_error": "continue"}}, limits={"max_parallel": 2})
    run.expand("a", 4)
    run.done("b")
    assert run.jobs == "run a[0]; run c"
    assert run.fail("a[0]")[-1] == "NodeFailed a code=boom tolerated counter=1"
    assert run.kernel.state.first_held == ""
    run.done("c")
    assert run.status == "COMPLETED"


def test_two_maps_share_the_slots_in_the_order_of_the_queue() -> None:
    wide: Json = {"map": {"over": [1], "max_parallel": 2}}
    run = begun("a b", {"a": wide, "b": wide}, limits={"max_parallel": 3})
    run.expand("a", 5)
    assert run.jobs == "run a[0]; run a[1]; run b"
    run.expand("b", 5)
    assert run.jobs == "run a[0]; run a[1]; run b[0]"
    run.done("a[0]")
    assert run.jobs == "run a[1]; run b[0]; run b[1]"
    run.done("b[0]")
    assert run.kernel.state.in_flight == 3
