"""Waiting without a worker: timers, expiry, conditions after a wait, and checkpoints on the way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.tables import Run, begun, choose, loop, rows
from tidemill.kernel.commands import TimerFired, WaitExpired, WaitRequested
from tidemill.kernel.events import NodeCompleted, NodeWaiting

Json = Any


def one(graph: str = "a > z", **options: Json) -> Run:
    return begun(graph, {"a": options})


def test_a_timer_wakes_and_completes_the_visit_in_the_same_turn() -> None:
    run = one()
    assert run.wait("a", 5_000) == rows("NodeStarted a; NodeWaiting a on=timer until=+5000; put wake a at=+5000")
    assert (run.cell("a").status, run.counter, run.kernel.state.in_flight) == ("WAITING", 1, 0)
    assert run.wake("a") == rows("NodeCompleted a taken=z counter=1; NodeScheduled z; drop wake a; put run z")
    assert run.cell("a").output == b"null"


@pytest.mark.parametrize(("wait", "timer", "kind"), [(5_000, TimerFired, "wake"), (None, WaitExpired, "expire")])
def test_a_timer_that_is_claimed_before_its_time_is_put_back(wait: int | None, timer: type, kind: str) -> None:
    """The clock of the process that decides may be behind that of the store."""
    run = one(**({} if wait else {"timeout_seconds": 5}))
    run.wait("a", wait)
    run.kernel.now += 4_999
    assert run.do(timer(**run.where("a")), run.key(kind, "a")) == rows(f"put {kind} a at=+1")
    run.kernel.now += 1
    assert run.do(timer(**run.where("a")), run.key(kind, "a")) != []
    assert run.cell("a").status != "WAITING"


def test_a_timer_of_zero_is_a_timer() -> None:
    run = one()
    assert run.wait("a", 0)[-1] == "put wake a at=+0"
    assert run.wake("a")[0] == "NodeCompleted a taken=z counter=1"


def test_waiting_for_something_with_a_name_has_no_timer() -> None:
    run = one()
    assert run.wait("a", None, on="signal") == rows("NodeStarted a; NodeWaiting a on=signal")
    assert run.jobs == ""
    assert run.wake("a") == []


def test_the_time_out_of_an_attempt_includes_its_waiting() -> None:
    run = one(timeout_seconds=3)
    assert run.wait("a", None, on="signal", duration_ms=400) == rows(
        "NodeStarted a; NodeWaiting a on=signal expires=+2600; put expire a at=+2600"
    )


@pytest.mark.parametrize(
    ("for_ms", "timeout", "job"),
    [(2_000, 3, "put wake a at=+2000"), (3_000, 3, "put wake a at=+3000"), (4_000, 3, "put expire a at=+3000")],
    ids=["the timer is first", "at the same moment", "the time-out is first"],
)
def test_a_wait_has_one_timer_whichever_comes_first(for_ms: int, timeout: int, job: str) -> None:
    assert one(timeout_seconds=timeout).wait("a", for_ms)[-1] == job


def test_a_wait_that_expires_is_a_time_out_and_is_retried() -> None:
    run = one(timeout_seconds=3)
    run.wait("a", 10_000)
    assert run.expire("a") == rows(
        "NodeFailed a code=timeout retry=+1000; drop wake a; drop expire a; put run a at=+1000"
    )
    assert run.wait("a", 10_000) == rows(
        "NodeStarted a attempt=2; NodeWaiting a attempt=2 on=timer until=+10000 expires=+3000; put expire a at=+3000"
    )
    run.expire("a")
    run.wait("a", 10_000)
    assert run.expire("a")[:2] == rows(
        "NodeFailed a attempt=3 code=timeout counter=0; DeadLettered a code=timeout attempts=3"
    )


def test_a_wait_that_expires_at_most_once_is_an_unknown_outcome() -> None:
    run = one(timeout_seconds=3, delivery="at_most_once")
    run.begin("a", token=5)
    run.wait("a", 10_000, token=5)
    assert run.expire("a")[0] == "NodeFailed a code=unknown_outcome counter=0"


@pytest.mark.parametrize("options", [{"branch": choose("b", "c")}, {"loop": loop(3)}], ids=["branch", "loop"])
def test_a_wait_with_conditions_is_queued_once_more(options: Json) -> None:
    """A worker evaluates them; the handler is not called again, so it is no attempt."""
    run = one("a; b; c", **options)
    run.wait("a")
    assert run.wake("a") == rows("NodeScheduled a resumed; drop wake a; put run a")
    assert (run.cell("a").status, run.cell("a").resumed, run.cell("a").attempt) == ("QUEUED", b"null", 1)
    shown = run.done("a", "b" if "branch" in options else None, called=False)
    assert shown[0].startswith("NodeCompleted a")
    assert (run.cell("a").attempt, run.cell("a").resumed) == (1, None)


def test_a_wait_with_conditions_that_fail_is_not_retried() -> None:
    run = one("a; b", branch=choose("b"))
    run.wait("a")
    run.wake("a")
    assert run.fail("a", "condition_failed", called=False)[0] == "NodeFailed a code=condition_failed counter=0"


def test_a_lost_evaluation_after_a_wait_is_done_again_and_is_no_attempt() -> None:
    run = one("a; b", branch=choose("b"), delivery="at_most_once")
    run.begin("a", token=5)
    run.wait("a", token=5)
    run.wake("a")
    assert run.lost("a") == rows("NodeFailed a code=worker_lost retry=+0; put run a")
    assert run.done("a", "b", called=False)[0] == "NodeCompleted a taken=b counter=1"


def test_a_wait_that_ends_may_exceed_the_slots() -> None:
    """It has begun, so no limit holds it back."""
    run = begun("a c; b", {"a": {"branch": choose("b")}}, limits={"max_parallel": 1})
    run.wait("a")
    assert run.jobs == "run c; wake a"
    assert run.wake("a")[-1] == "put run a"
    assert run.kernel.state.in_flight == 2


def test_waiting_frees_a_slot() -> None:
    run = begun("a b", limits={"max_parallel": 1})
    assert run.wait("a")[-2:] == rows("put wake a at=+1000; put run b")


def test_a_timer_counts_only_while_its_visit_waits_for_it() -> None:
    run = one("a > z", loop=loop(3))
    assert run.wake("a") == run.expire("a") == []
    run.wait("a")
    run.wake("a")
    assert run.wake("a") == run.expire("a") == []
    run.done("a", again=True, called=False)
    run.wait("a")
    assert run.do(TimerFired(node="a", visit=1)) == []
    assert run.do(TimerFired(node="a", visit=3)) == []
    assert run.do(TimerFired(node="a", visit=2, index=0)) == []
    assert run.cell("a").status == "WAITING"


def test_an_expiry_ends_only_a_wait_that_can_expire() -> None:
    """A looping visit that waits for its body has no time-out any more: its attempt has ended."""
    run = begun("a > b c > d", {"d": {"join": "any", "loop": loop(3, "a"), "timeout_seconds": 5}})
    run.end("a", "b")
    run.done("d", again=True)
    assert run.expire("d") == []
    assert run.cell("d").status == "WAITING"


def test_items_of_a_map_wait_on_their_own() -> None:
    run = one(map={"over": [1]}, timeout_seconds=3)
    run.expand("a", 2)
    assert run.wait("a[0]", 500)[-1] == "put wake a[0] at=+500"
    assert run.wait("a[1]", 9_000)[-1] == "put expire a[1] at=+3000"
    assert run.wake("a[0]") == rows("NodeCompleted a[0]; drop wake a[0]; drop expire a[0]")
    assert run.expire("a[1]") == rows(
        "NodeFailed a[1] code=timeout retry=+1000; drop wake a[1]; drop expire a[1]; put run a[1] at=+1000"
    )


def test_a_wait_is_recorded_with_its_name_and_moment() -> None:
    run = one()
    run.kernel.now = 7_000
    run.result("a", WaitRequested(on="signal", name="paid"), worker="w1", duration_ms=12)
    [waiting] = run.of(NodeWaiting)
    assert (waiting.on, waiting.name, waiting.at_ms, waiting.worker) == ("signal", "paid", 7_000, "w1")
    wait = run.cell("a").wait
    assert wait is not None and (wait.on, wait.name, wait.since_ms) == ("signal", "paid", 7_000)


# Checkpoints


def test_a_checkpoint_is_kept_for_the_attempt_after_a_crash() -> None:
    run = one()
    assert run.checkpoint("a", b"1", token=5) == rows("NodeStarted a; NodeCheckpointed a value=b'1'")
    assert run.checkpoint("a", b"2", token=5) == rows("NodeCheckpointed a value=b'2'")
    run.lost("a")
    assert run.cell("a").checkpoint == b"2"
    run.done("a")
    assert run.cell("a").attempt == 2


def test_a_checkpoint_belongs_to_its_visit_and_item() -> None:
    run = one(map={"over": [1]}, loop=loop(3))
    run.expand("a", 2)
    run.checkpoint("a[1]", b"7", token=5)
    assert (run.act("a[0]").checkpoint, run.act("a[1]").checkpoint) == (None, b"7")
    run.done("a[0]", token=6)
    run.done("a[1]", token=5)
    run.assemble("a", again=True)
    assert run.cell("a").checkpoint is None


def test_a_checkpoint_changes_neither_token_nor_job() -> None:
    run = one()
    before = (run.counter, run.jobs)
    run.checkpoint("a", b"1", token=5)
    assert (run.counter, run.jobs) == before
    run.done("a", token=5)
    assert [event.attempt for event in run.of(NodeCompleted)] == [1]
