"""Retries: when, how late, how often; lost workers, which are not counted; deliveries at most once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.tables import Run, begun, rows
from tidemill.kernel.decide.builder import LOST_IN_A_ROW_MAX, retry_delay_ms
from tidemill.kernel.events import NodeFailed, NodeStarted
from tidemill.kernel.model import Retry

Json = Any


def one(**options: Json) -> Run:
    return begun("a > z", {"a": options})


# How late


BACK_OFF = """
failures  delay
1         1000
2         2000
3         4000
6         32000
7         60000
8         60000
500       60000
"""


@pytest.mark.parametrize("row", BACK_OFF.strip().splitlines()[1:])
def test_the_default_back_off_doubles_up_to_a_minute(row: str) -> None:
    failures, delay = map(int, row.split())
    assert retry_delay_ms(Retry(), failures, None, 0.5) == delay


@pytest.mark.parametrize(
    ("retry", "failures", "delay"),
    [
        (Retry(backoff_ms=0), 5, 0),
        (Retry(backoff_ms=100, multiplier=1.0), 9, 100),
        (Retry(backoff_ms=100, multiplier=3.0), 3, 900),
        (Retry(backoff_ms=100, multiplier=1000.0), 1_000_000, 60_000),
        (Retry(backoff_ms=90_000), 1, 60_000),
        (Retry(backoff_ms=10, multiplier=1.5, max_backoff_ms=20), 2, 15),
    ],
)
def test_the_back_off_follows_its_policy(retry: Retry, failures: int, delay: int) -> None:
    assert retry_delay_ms(retry, failures, None, 0.5) == delay


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 900), (0.25, 950), (0.5, 1000), (0.75, 1050), (0.999999, 1099)])
def test_jitter_spreads_the_delay_evenly_around_it(chance: float, delay: int) -> None:
    assert retry_delay_ms(Retry(), 1, None, chance) == delay


@given(
    st.integers(1, 1_000_000),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1),
    st.floats(1, 1_000),
    st.integers(0, 10**6),
)
def test_jitter_has_bounds(failures: int, chance: float, jitter: float, multiplier: float, backoff_ms: int) -> None:
    retry = Retry(jitter=jitter, multiplier=multiplier, backoff_ms=backoff_ms)
    exact = retry_delay_ms(msgspec.structs.replace(retry, jitter=0.0), failures, None, chance)
    assert exact <= retry.max_backoff_ms
    assert exact * (1 - jitter) - 1 <= retry_delay_ms(retry, failures, None, chance) <= (exact + 1) * (1 + jitter)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.999])
def test_without_jitter_chance_changes_nothing(chance: float) -> None:
    assert retry_delay_ms(Retry(jitter=0.0), 1, None, chance) == 1000


@pytest.mark.parametrize(("asked", "delay"), [(0, 0), (5, 5), (120_000, 120_000), (-7, 0)])
def test_retry_after_wins_over_the_computed_delay(asked: int, delay: int) -> None:
    """Also over the longest back-off, and without jitter."""
    assert retry_delay_ms(Retry(), 3, asked, 0.0) == delay
    run = one()
    assert run.fail("a", retryable=True, retry_after_ms=asked)[1] == f"NodeFailed a code=boom retry=+{delay}"


# How often


def test_a_retryable_failure_is_tried_again_until_the_attempts_are_used_up() -> None:
    run = one()
    assert run.fail("a", retryable=True) == rows(
        "NodeStarted a; NodeFailed a code=boom retry=+1000; put run a at=+1000"
    )
    assert (run.cell("a").status, run.cell("a").retry_at_ms) == ("QUEUED", run.kernel.now + 1000)
    assert run.fail("a", retryable=True) == rows(
        "NodeStarted a attempt=2; NodeFailed a attempt=2 code=boom retry=+2000; put run a at=+2000"
    )
    assert run.fail("a", retryable=True) == rows(
        "NodeStarted a attempt=3; NodeFailed a attempt=3 code=boom counter=0; DeadLettered a code=boom attempts=3;"
        "NodeFailed z attempt=0 code=upstream_failed counter=0; RunFailed node=a code=boom"
    )


def test_the_retry_job_is_in_the_same_decision_as_the_failure() -> None:
    """Nothing can be lost between an acknowledgement and a new entry in the queue."""
    run = one()
    before = len(run.kernel.events)
    shown = run.fail("a", retryable=True)
    assert (len(run.kernel.events) - before, shown[-1]) == (2, "put run a at=+1000")


@pytest.mark.parametrize("attempts", [1, 2, 7])
def test_max_attempts_counts_the_first(attempts: int) -> None:
    run = one(retry={"max_attempts": attempts})
    for _ in range(attempts):
        assert run.status == "RUNNING"
        run.fail("a", retryable=True)
    assert (run.status, len(run.of(NodeStarted))) == ("FAILED", attempts)


def test_a_failure_that_is_not_retryable_is_not_retried() -> None:
    assert one().fail("a")[1] == "NodeFailed a code=boom counter=0"


@pytest.mark.parametrize("called", [True, False])
@pytest.mark.parametrize("code", ["template_failed", "condition_failed", "config_invalid"])
def test_errors_of_the_document_are_never_retried(code: str, called: bool) -> None:
    run = one()
    shown = run.fail("a", code, called=called)
    attempt = "" if called else "attempt=0 "
    assert f"NodeFailed a {attempt}code={code} counter=0" in shown
    assert run.cell("a").attempt == int(called)


def test_a_success_after_retries_counts_all_attempts() -> None:
    run = one()
    run.fail("a", retryable=True)
    run.fail("a", retryable=True)
    assert run.done("a") == rows(
        "NodeStarted a attempt=3; NodeCompleted a attempt=3 taken=z counter=1; NodeScheduled z; put run z"
    )
    assert run.cell("a").error is None


def test_a_retry_keeps_its_token_its_slot_and_its_visit() -> None:
    run = begun("a b", limits={"max_parallel": 1})
    run.fail("a", retryable=True)
    assert (run.counter, run.jobs, run.kernel.state.in_flight, run.cell("a").visit) == (2, "run a", 1, 1)


def test_attempts_start_anew_with_every_visit() -> None:
    run = one(loop={"condition": "inputs.again", "max_iterations": 3}, retry={"max_attempts": 2})
    run.fail("a", retryable=True)
    run.done("a", again=True)
    assert run.fail("a", retryable=True) == rows(
        "NodeStarted a#2; NodeFailed a#2 code=boom retry=+1000; put run a#2 at=+1000"
    )


def test_a_time_out_is_retryable() -> None:
    run = one(timeout_seconds=5)
    assert run.time_out("a")[1] == "NodeFailed a code=timeout retry=+1000"
    run.time_out("a")
    assert "NodeFailed a attempt=3 code=timeout counter=0" in run.time_out("a")


def test_a_node_that_calls_its_own_failure_worker_lost_fails_like_any_other() -> None:
    """`kind` of node type `fail` is free: it must not be taken for a lost worker, which is never counted."""
    run = one()
    shown = run.fail("a", "worker_lost", retryable=True)
    assert shown[-1] == "put run a at=+1000"
    run.fail("a", "worker_lost", retryable=True)
    run.fail("a", "worker_lost", retryable=True)
    assert run.status == "FAILED"


# Lost workers


def test_a_lost_worker_is_an_attempt_that_does_not_count() -> None:
    run = one(retry={"max_attempts": 1})
    assert run.lost("a") == rows("NodeFailed a code=worker_lost retry=+0; put run a")
    assert (run.cell("a").attempt, run.cell("a").failures, run.cell("a").lost) == (1, 0, 1)
    assert run.done("a")[:2] == rows("NodeStarted a attempt=2; NodeCompleted a attempt=2 taken=z counter=1")


def test_a_lost_worker_whose_start_was_recorded_ends_that_attempt() -> None:
    run = one()
    assert run.begin("a") == rows("NodeStarted a")
    assert run.lost("a") == rows("NodeFailed a code=worker_lost retry=+0; put run a")
    assert run.done("a")[0] == "NodeStarted a attempt=2"


def test_five_lost_in_a_row_fail_the_visit() -> None:
    run = one()
    for number in range(1, LOST_IN_A_ROW_MAX):
        attempt = f" attempt={number}" if number > 1 else ""
        assert run.lost("a") == rows(f"NodeFailed a{attempt} code=worker_lost retry=+0; put run a")
    assert run.lost("a") == rows(
        "NodeFailed a attempt=5 code=worker_killer counter=0; DeadLettered a code=worker_killer attempts=5;"
        "NodeFailed z attempt=0 code=upstream_failed counter=0; RunFailed node=a code=worker_killer"
    )


def test_leases_that_expired_one_after_the_other_are_reported_at_once() -> None:
    run = one(on_error="continue")
    assert run.lost("a", times=2) == rows(
        "NodeFailed a code=worker_lost retry=+0; NodeFailed a attempt=2 code=worker_lost retry=+0; put run a"
    )
    shown = run.lost("a", times=99)
    assert shown[2:4] == rows(
        "NodeFailed a attempt=5 code=worker_killer tolerated taken=z counter=1;"
        "DeadLettered a code=worker_killer attempts=5"
    )
    assert run.jobs == "run z"


@pytest.mark.parametrize("between", ["failure", "wait"])
def test_any_reported_outcome_ends_the_row(between: str) -> None:
    run = one(retry={"max_attempts": 9}, timeout_seconds=0.5)
    run.lost("a", times=4)
    if between == "failure":
        run.fail("a", retryable=True)
    else:
        run.wait("a")
        assert run.cell("a").lost == 0
        run.expire("a")
    run.lost("a", times=4)
    assert (run.status, run.cell("a").lost) == ("RUNNING", 4)


def test_lost_workers_and_failures_are_counted_apart() -> None:
    run = one(retry={"max_attempts": 2})
    run.lost("a", times=3)
    assert run.fail("a", retryable=True)[1] == "NodeFailed a attempt=4 code=boom retry=+1000"
    run.lost("a")
    assert "NodeFailed a attempt=6 code=boom counter=0" in run.fail("a", retryable=True)


def test_a_loss_that_is_old_news_changes_nothing() -> None:
    run = one()
    run.done("a")
    assert run.lost("a") == []
    run.done("z")
    assert run.lost("z") == []


# At most once


def test_at_most_once_a_loss_before_the_start_is_tried_again() -> None:
    """NodeStarted is committed before the handler is called: without it nothing can have happened."""
    run = one(delivery="at_most_once")
    assert run.lost("a") == rows("NodeFailed a attempt=0 code=worker_lost retry=+0; put run a")
    assert run.cell("a").attempt == 0


def test_at_most_once_a_loss_after_the_start_is_an_unknown_outcome() -> None:
    run = one(delivery="at_most_once")
    run.begin("a")
    assert run.lost("a")[:2] == rows(
        "NodeFailed a code=unknown_outcome counter=0; DeadLettered a code=unknown_outcome attempts=1"
    )
    assert run.status == "FAILED"


def test_at_most_once_a_time_out_is_an_unknown_outcome() -> None:
    run = one(delivery="at_most_once")
    run.begin("a", token=5)
    assert run.time_out("a", token=5)[0] == "NodeFailed a code=unknown_outcome counter=0"
    [failed] = [event for event in run.of(NodeFailed) if event.node == "a"]
    assert failed.error.causes == ("timeout",)


def test_at_most_once_a_reported_failure_is_retried_because_its_outcome_is_known() -> None:
    run = one(delivery="at_most_once")
    run.begin("a", token=5)
    assert run.fail("a", retryable=True, token=5) == rows("NodeFailed a code=boom retry=+1000; put run a at=+1000")
    run.begin("a", token=6)
    assert run.done("a", token=6)[0] == "NodeCompleted a attempt=2 taken=z counter=1"


def test_at_least_once_a_time_out_with_unknown_outcome_is_just_a_time_out() -> None:
    assert one().time_out("a")[1] == "NodeFailed a code=timeout retry=+1000"


def test_at_most_once_goes_for_every_item_of_a_map() -> None:
    run = one(delivery="at_most_once", map={"over": [1], "tolerate": 1})
    assert run.lost("a") == rows("NodeFailed a attempt=0 code=worker_lost retry=+0; put run a")
    run.expand("a", 2)
    run.begin("a[0]")
    assert run.lost("a[0]")[0] == "NodeFailed a[0] code=unknown_outcome tolerated"
    assert run.lost("a[1]")[0] == "NodeFailed a[1] attempt=0 code=worker_lost retry=+0"


@pytest.mark.parametrize("first", ["fail", "lost", "time_out"])
def test_retry_after_guard_whatever_ended_the_first_attempt(first: str) -> None:
    run = begun("a")
    run.begin("a", token=5)
    if first == "lost":
        run.lost("a")
    elif first == "fail":
        run.fail("a", retryable=True, token=5)
    else:
        run.time_out("a", token=5)
    run.done("a", output=b"2")
    assert (run.status, run.cell("a").output, len(run.of(NodeStarted))) == ("COMPLETED", b"2", 2)
