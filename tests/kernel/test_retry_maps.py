"""Retry of maps: only items that failed or were cancelled run again, in their window, and the list is put together."""

from __future__ import annotations

from typing import Any

from tests.kernel.acts import Acts
from tests.kernel.tables import rows


def mapped(count: int = 4, **options: Any) -> Acts:
    run = Acts("m > z", {"m": {"map": {"over": [1], **options}}}).begun()
    run.expand("m", count)
    return run


def test_of_a_map_only_what_failed_or_was_cancelled_runs_again() -> None:
    run = mapped()
    run.end("m[0]", "m[2]")
    run.fail("m[1]")
    assert run.retry() == rows(
        """
        RunRetried; DeadLetterClosed m[1]; DeadLetterClosed m
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
    run = Acts("a m", {"m": {"map": {"over": [1]}}}, limits={"max_parallel": 1}).begun()
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
    assert run.letters == "m/1/0"
    run.fail("m[2]")
    assert run.status == "FAILED"
    run.retry()
    run.end("m[1]", "m[2]", "m[3]")
    run.assemble("m")
    run.done("z")
    assert (run.status, run.kernel.state.tolerated) == ("COMPLETED", 1)


def test_a_list_that_could_not_be_made_is_made_again() -> None:
    run = Acts("m", {"m": {"map": {"over": [1]}}}).begun()
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
