"""What is read from a log, in logs of a few events."""

from __future__ import annotations

from tests.chaos.readings import attempts, given_up, growing_tokens, hasty_killers, one_result_each
from tidemill.kernel.events import Error, NodeCancelled, NodeCompleted, NodeFailed, NodeStarted, RunFailed

STARTED = NodeStarted(node="a", visit=1, attempt=1, token=7)
COMPLETED = NodeCompleted(node="a", visit=1, attempt=1, output=b"1")
LOST = NodeFailed(node="a", visit=1, attempt=1, error=Error("worker_lost", ""), retry_at_ms=0, lost=True)
KILLER = NodeFailed(node="a", visit=1, attempt=5, error=Error("worker_killer", ""))


def test_an_attempt_that_was_lost_or_cut_off_counts() -> None:
    assert attempts([LOST]) == {"a/1/-1": 1}
    assert attempts([STARTED, LOST, NodeCancelled(node="a", visit=1)]) == {"a/1/-1": 2}


def test_two_results_of_one_visit() -> None:
    assert list(one_result_each([STARTED, COMPLETED])) == []
    assert list(one_result_each([STARTED, COMPLETED, COMPLETED])) == ["a/1/-1 was completed 2 times"]


def test_a_token_that_does_not_grow() -> None:
    assert list(growing_tokens([STARTED, NodeStarted(node="a", visit=1, attempt=2, token=8)])) == []
    assert list(growing_tokens([STARTED, STARTED])) == ["token 7 of a/1/-1 comes after 7"]


def test_a_node_that_is_given_up_too_early() -> None:
    assert list(hasty_killers([LOST, LOST, LOST, LOST, KILLER])) == []
    assert list(hasty_killers([LOST, LOST, LOST, KILLER])) == ["a/1/-1 is given up after 3 lost workers"]


def test_what_a_run_may_fail_of() -> None:
    def failed(code: str, message: str = "") -> RunFailed:
        return RunFailed(node="a", visit=1, error=Error(code, message))

    assert given_up([LOST, failed("unknown_outcome")]) == "unknown_outcome"
    assert given_up([failed("worker_killer", "5 workers in a row were lost while they ran it")]) == "worker_killer"
    assert given_up([failed("failed")]) == ""
