"""Which results count: fences, repetitions, late comers; and the refusals that tell a worker to stop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.kernel.tables import Run, begun, error, loop, rows
from tests.model.operator_walks import OperatedWalk, interrupt, override, patch, retry, rewind
from tidemill.kernel.codec import encode_state
from tidemill.kernel.commands import (
    AttemptStarted,
    Checkpoint,
    Done,
    Failed,
    MapExpanded,
    Result,
    SkipRequested,
    WaitRequested,
)
from tidemill.kernel.decide import attempts
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.decide import decide
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX, retry_delay_ms
from tidemill.kernel.events import NodeCompleted, NodeFailed, NodeStarted, ResultDiscarded
from tidemill.kernel.model import Retry
from tidemill.kernel.state import DISCARDS_MAX

Json = Any

DONE = Done(output=b"1")


def one(graph: str = "a > z", **options: Json) -> Run:
    return begun(graph, {"a": options})


OUTCOMES = [DONE, Failed(error=error(retryable=True)), WaitRequested(on="timer", for_ms=5), SkipRequested()]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_a_result_that_is_written_already_leaves_nothing(outcome: Any) -> None:
    run = one()
    run.result("a", outcome, token=5)
    assert run.do(Result(node="a", visit=1, token=5, outcome=outcome, again=True)) == []
    assert run.of(ResultDiscarded) == []


def test_a_second_result_of_the_same_attempt_is_discarded() -> None:
    """Nobody was unsure about the first one, so this is another result, whatever it says."""
    run = one()
    run.done("a", token=5)
    assert run.do(Result(node="a", visit=1, token=5, outcome=Failed(error=error()))) == rows(
        "ResultDiscarded a outcome=Failed reason=repeated"
    )


def test_a_repeated_expansion_leaves_nothing() -> None:
    run = one(map={"over": [1]})
    run.expand("a", 2, token=5)
    assert (
        run.do(Result(node="a", visit=1, token=5, called=False, again=True, outcome=MapExpanded(count=2, items=b"[]")))
        == []
    )
    run.done("a[0]", token=6)
    assert run.do(Result(node="a", visit=1, index=0, token=6, outcome=DONE, again=True)) == []


def test_a_repeated_result_leaves_nothing_also_after_the_run_has_ended() -> None:
    run = one("a")
    run.done("a", token=5)
    assert run.status == "COMPLETED"
    assert run.do(Result(node="a", visit=1, token=5, outcome=DONE, again=True)) == []


def test_a_repeated_result_leaves_nothing_also_when_it_made_the_loop_go_on() -> None:
    run = one("a", loop=loop(3))
    run.done("a", again=True, token=5)
    assert run.do(Result(node="a", visit=1, token=5, outcome=DONE, again=True)) == []


def test_the_first_result_committed_wins() -> None:
    """Also when the second says something else."""
    run = one()
    run.done("a", token=5, output=b"1")
    assert run.do(Result(node="a", visit=1, token=6, outcome=Done(output=b"2"))) == rows(
        "ResultDiscarded a outcome=Done reason=visit_ended"
    )
    assert run.cell("a").output == b"1"


def test_a_result_under_an_older_lease_is_stale() -> None:
    run = one()
    run.begin("a", token=7)
    assert run.do(Result(node="a", visit=1, token=6, outcome=DONE)) == rows(
        "ResultDiscarded a outcome=Done reason=stale"
    )
    assert run.done("a", token=7)[0] == "NodeCompleted a taken=z counter=1"


def test_a_result_whose_lease_the_store_calls_lost_is_discarded() -> None:
    run = one()
    assert run.do(Result(node="a", visit=1, token=5, outcome=DONE, late=True)) == rows(
        "ResultDiscarded a outcome=Done reason=lease_lost"
    )
    assert run.cell("a").status == "QUEUED"
    assert run.done("a")[0] == "NodeStarted a"


@pytest.mark.parametrize("begun", [False, True], ids=["no start in the log", "its start in the log"])
def test_after_a_lost_worker_its_own_result_no_longer_counts(begun: bool) -> None:
    """Somebody took the job over under fence 6, so fence 5 is history, whether or not its start was written."""
    run = one()
    if begun:
        run.begin("a", token=5)
    run.kernel.token = 5
    run.lost("a")
    before = run.jobs
    run.do(Result(node="a", visit=1, token=5, outcome=DONE))
    assert (len(run.of(ResultDiscarded)), run.nodes("a"), run.jobs) == (1, "a=QUEUED", before)


@pytest.mark.parametrize("end", ["cancel", "fail", "deadline"])
def test_the_result_of_an_attempt_that_was_cancelled_while_it_ran_is_discarded(end: str) -> None:
    """Its start is in the log, its end was the cancellation: this result is news, and it came too late."""
    run = begun("a b", limits={"deadline_seconds": 9})
    run.begin("a", token=5)
    {"cancel": run.cancel, "fail": lambda: run.fail("b"), "deadline": run.deadline}[end]()
    assert run.do(Result(node="a", visit=1, token=5, outcome=DONE)) == rows(
        "ResultDiscarded a outcome=Done reason=run_ended"
    )


def test_a_result_for_a_visit_or_item_that_does_not_exist_is_discarded() -> None:
    run = one(map={"over": [1]})
    run.expand("a", 2)
    for visit, index in ((1, 2), (1, -2), (1, 10**9), (2, 0), (0, 0), (7, -1)):
        at = f"a{'' if visit == 1 else f'#{visit}'}{f'[{index}]' if index != -1 else ''}"
        assert run.do(Result(node="a", visit=visit, index=index, token=9, outcome=DONE)) == rows(
            f"ResultDiscarded {at} outcome=Done reason=visit_ended"
        )


def test_a_result_for_a_node_that_is_not_ready_or_waits_is_discarded() -> None:
    run = one()
    assert run.done("z") == rows("ResultDiscarded z outcome=Done reason=visit_ended")
    run.wait("a")
    assert run.done("a") == rows("ResultDiscarded a outcome=Done reason=visit_ended")


def test_at_most_ten_discarded_results_are_kept_per_visit() -> None:
    run = one("a", loop=loop(9))
    run.done("a", again=True)
    for number in range(DISCARDS_MAX + 5):
        run.do(Result(node="a", visit=1, token=100 + number, outcome=DONE))
    assert len(run.of(ResultDiscarded)) == run.kernel.state.discarded == DISCARDS_MAX


def test_ten_per_visit_also_when_the_node_has_moved_on() -> None:
    """Results of visit 1 stay results of visit 1, however many passes have begun since."""
    run = one("a", loop=loop(9))
    for _ in range(3):
        run.done("a", again=True)
        for _ in range(DISCARDS_MAX):
            run.do(Result(node="a", visit=1, token=run.kernel.next_token(), outcome=DONE))
    of_first = [event for event in run.of(ResultDiscarded) if event.visit == 1]
    assert len(of_first) == DISCARDS_MAX


def test_a_discarded_result_says_who_and_what() -> None:
    run = one()
    run.done("a")
    run.do(Result(node="a", visit=1, token=99, outcome=Failed(error=error()), worker="w7"))
    [discarded] = run.of(ResultDiscarded)
    assert (discarded.worker, discarded.outcome, discarded.token, discarded.attempt) == ("w7", "Failed", 99, 1)


@pytest.mark.parametrize("kind", [AttemptStarted, Checkpoint])
@pytest.mark.parametrize("why", ["stale", "visit_ended", "run_ended", "repeated", "no such item"])
def test_a_worker_is_told_to_stop(kind: Any, why: str) -> None:
    run = one()
    at: Json = {"node": "a", "visit": 1, "token": 5}
    if why == "stale":
        run.begin("a", token=6)
    elif why == "visit_ended":
        run.done("a", token=9)
    elif why == "run_ended":
        run.cancel()
    elif why == "repeated":
        run.fail("a", retryable=True, token=5)
    else:
        at["index"] = 3
    more = {"value": b"1"} if kind is Checkpoint else {}
    assert run.refused(kind(**at, **more)) == "attempt_stale"


def test_a_start_is_recorded_once() -> None:
    run = one()
    assert run.begin("a", token=5) == rows("NodeStarted a")
    assert run.begin("a", token=5) == []
    assert run.done("a", token=5)[0] == "NodeCompleted a taken=z counter=1"
    assert len(run.of(NodeStarted)) == 1


@pytest.mark.parametrize(("started", "at"), [(0, 9_000), (4_000, 4_000), (10, 1_000), (99_000, 9_000)])
def test_a_start_carries_the_moment_of_the_call_within_the_visit(started: int, at: int) -> None:
    run = one()
    run.kernel.now = 9_000
    run.do(AttemptStarted(node="a", visit=1, token=5, started_ms=started))
    assert [event.at_ms for event in run.of(NodeStarted)] == [at]
    assert run.kernel.state.peek("a").since_ms == at
    assert run.kernel.state.last_ms == 1_000
    run.done("a", token=5)
    assert run.kernel.state.last_ms == 9_000


def test_nobody_begins_an_at_most_once_attempt_under_another_lease() -> None:
    run = one(delivery="at_most_once")
    run.begin("a", token=5)
    assert run.refused(AttemptStarted(node="a", visit=1, token=6)) == "attempt_stale"


def test_what_calls_no_handler_cannot_begin() -> None:
    """Expansion, assembly and the conditions after a wait are no attempts, however long they take."""
    run = one(map={"over": [1]})
    assert run.refused(AttemptStarted(node="a", visit=1, token=5)) == "attempt_stale"
    run.expand("a", 1)
    run.done("a[0]")
    assert run.refused(AttemptStarted(node="a", visit=1, token=9)) == "attempt_stale"
    run = one(loop=loop(3))
    run.wait("a")
    run.wake("a")
    assert run.refused(AttemptStarted(node="a", visit=1, token=9)) == "attempt_stale"


@pytest.mark.parametrize("kind", [AttemptStarted, Checkpoint, Result])
def test_an_unknown_node_is_refused(kind: Any) -> None:
    more: Json = {AttemptStarted: {}, Checkpoint: {"value": b"1"}, Result: {"outcome": DONE}}[kind]
    assert one().refused(kind(node="nobody", visit=1, token=1, **more)) == "node_unknown"


def test_a_completion_holds_what_happened() -> None:
    run = one()
    run.done("a", token=5, worker="w1", duration_ms=120, waited_ms=30, size=1)
    [completed] = run.of(NodeCompleted)
    facts = (completed.worker, completed.duration_ms, completed.waited_ms, completed.attempt, completed.token)
    assert facts == ("w1", 120, 30, 1, 5)
    assert (completed.emitted, completed.consumed, completed.counter, completed.size) == (1, 1, 1, 1)
    assert run.kernel.events[completed.cause - 1] == run.of(NodeStarted)[0]


def test_an_outcome_that_does_not_fit_the_activation_is_not_taken() -> None:
    """A list for a node without a map: nothing of it may reach the state."""
    run = one()
    run.kernel.ask(Result(node="a", visit=1, token=5, called=False, outcome=MapExpanded(count=2, items=b"[]")))
    assert run.cell("a").map is None
    run = one(map={"over": [1]})
    run.expand("a", 2)
    run.kernel.ask(Result(node="a", visit=1, index=0, token=9, outcome=MapExpanded(count=2, items=b"[]")))
    items = run.cell("a").map
    assert items is not None and items.next == 2


def completion(node: str, token: int, output: bytes = b"1") -> Result:
    return Result(node=node, visit=1, token=token, outcome=Done(output=output))


def decided(run: Run, command: Result) -> Decision:
    decision = decide(run.flow, run.kernel.state, command, run.kernel.now)
    assert isinstance(decision, Decision)
    return decision


def test_blob_overwrite() -> None:
    """Two completions that gathered are decided on top of each other and committed once."""
    run = begun("a b c > j")
    gathered = run.together(completion("a", 5, b"10"), completion("b", 6, b"20"))
    assert gathered == rows(
        "NodeStarted a; NodeCompleted a taken=j counter=3; NodeStarted b; NodeCompleted b taken=j counter=3"
    )
    assert (run.edges("j"), run.cell("a").output, run.cell("b").output) == (
        "a:taken b:taken c:undecided",
        b"10",
        b"20",
    )


def test_blob_overwrite_by_two_who_decided_from_the_same_version() -> None:
    """Whoever loses the race decides again from the winner's state; neither result is lost."""
    run = begun("a b > j")
    late = decided(run, completion("b", 6))
    assert "NodeScheduled" not in {type(event).__name__ for event in late.events}
    run.done("a", token=5)
    assert run.done("b", token=6)[-2:] == rows("NodeScheduled j; put run j")


@pytest.mark.parametrize(
    ("retry", "failures", "delay"),
    [
        *(
            (Retry(), failures, delay)
            for failures, delay in ((1, 1000), (2, 2000), (3, 4000), (6, 32_000), (7, 60_000))
        ),
        (Retry(), 500, 60_000),
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


@pytest.mark.parametrize(("asked", "delay"), [(0, 0), (5, 5), (120_000, 120_000), (-7, 0)])
def test_retry_after_wins_over_the_computed_delay(asked: int, delay: int) -> None:
    """Also over the longest back-off, and without jitter."""
    assert retry_delay_ms(Retry(), 3, asked, 0.0) == delay
    run = one()
    assert run.fail("a", retryable=True, retry_after_ms=asked)[1] == f"NodeFailed a code=boom retry=+{delay}"


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


def test_a_retry_keeps_its_token_its_slot_and_its_visit() -> None:
    run = begun("a b", limits={"max_parallel": 1})
    run.fail("a", retryable=True)
    assert (run.counter, run.jobs, run.kernel.state.in_flight, run.cell("a").visit) == (2, "run a", 1, 1)


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
    assert shown[2] == "NodeFailed a attempt=5 code=worker_killer tolerated taken=z counter=1"
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


def test_at_most_once_goes_for_every_item_of_a_map() -> None:
    run = one(delivery="at_most_once", map={"over": [1], "tolerate": 1})
    assert run.lost("a") == rows("NodeFailed a attempt=0 code=worker_lost retry=+0; put run a")
    run.expand("a", 2)
    run.begin("a[0]")
    assert run.lost("a[0]")[0] == "NodeFailed a[0] code=unknown_outcome tolerated"
    assert run.lost("a[1]")[0] == "NodeFailed a[1] attempt=0 code=worker_lost retry=+0"


ACTS = (retry, rewind, interrupt, override, patch)


@pytest.mark.parametrize("seed", range(80))
def test_the_straight_way_decides_what_the_rules_for_other_results_decide(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over random documents, with operators and late results in the way."""
    straight = OperatedWalk(seed, ACTS, undoes=seed % 2 == 0).run(meddle=True).kernel
    monkeypatch.setattr(attempts, "_is_straight", lambda *_: False)
    other = OperatedWalk(seed, ACTS, undoes=seed % 2 == 0).run(meddle=True).kernel
    assert straight.events == other.events
    assert encode_state(straight.state) == encode_state(other.state)
    assert straight.jobs == other.jobs


def test_the_plain_end_of_a_visit_takes_the_straight_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    complete = attempts._complete_straight

    def noted(builder: Any, node: Any, visit: Any, result: Result) -> None:
        taken.append(node.id)
        complete(builder, node, visit, result)

    monkeypatch.setattr(attempts, "_complete_straight", noted)
    run = begun("a > b c > d")
    for name in "abcd":
        run.done(name)
    assert list(dict.fromkeys(taken)) == ["a", "b", "c", "d"]
    assert run.status == "COMPLETED"
