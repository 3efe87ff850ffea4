"""Bugs that engines of this kind are known for, each as a test that would have caught it.

Only what concerns the kernel; leases, stores and signals have theirs elsewhere.
"""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from tests.kernel.tables import Run, error, loop, rows
from tests.kernel.wording import shown
from tidemill.kernel.commands import Done, Failed, Result
from tidemill.kernel.decide import decide
from tidemill.kernel.events import NodeCompleted, NodeScheduled, NodeStarted
from tidemill.kernel.pen import Decision
from tidemill.kernel.state import encode_state


def completion(node: str, token: int, output: bytes = b"1") -> Result:
    return Result(node=node, visit=1, token=token, outcome=Done(output=output))


def decided(run: Run, command: Result) -> Decision:
    decision = decide(run.flow, run.kernel.state, command, run.kernel.now)
    assert isinstance(decision, Decision)
    return decision


# retry-after-guard: a guard set by the first attempt made the second one a false success with empty outputs


def test_retry_after_guard() -> None:
    run = Run("a > b")
    run.start()
    run.fail("a", retryable=True)
    assert run.done("a", output=b'{"real":1}') == rows(
        "NodeStarted a attempt=2; NodeCompleted a attempt=2 taken=b counter=1; NodeScheduled b; put run b"
    )
    assert run.cell("a").output == b'{"real":1}'


@pytest.mark.parametrize("first", ["fail", "lost", "time_out"])
def test_retry_after_guard_whatever_ended_the_first_attempt(first: str) -> None:
    run = Run("a")
    run.start()
    run.begin("a", token=5)
    if first == "lost":
        run.lost("a")
    elif first == "fail":
        run.fail("a", retryable=True, token=5)
    else:
        run.time_out("a", token=5)
    run.done("a", output=b"2")
    assert (run.status, run.cell("a").output, len(run.of(NodeStarted))) == ("COMPLETED", b"2", 2)


def test_a_retry_can_fire_because_the_error_reaches_it() -> None:
    """The failure was once reported without its error, so nobody could tell that it was retryable."""
    run = Run("a")
    run.start()
    run.fail("a", "flaky", retryable=True)
    assert (run.cell("a").error, run.cell("a").status) == (error("flaky", retryable=True), "QUEUED")


# guard-before-effect: the guard was stored first and the rest in later commands, so a crash between blocked the run


def test_guard_before_effect() -> None:
    """The fence, the output, the edges, the counter and the next job are one decision: all of it or nothing."""
    run = Run("a > b")
    run.start()
    command = completion("a", 5)
    before = encode_state(run.kernel.state)
    lost_in_a_crash = decided(run, command)
    assert encode_state(run.kernel.state) == before, "nothing of a decision that was not committed is left"
    again = decided(run, command)
    assert (again.events, again.work) == (lost_in_a_crash.events, lost_in_a_crash.work)
    assert shown(again, run.kernel.now) == rows(
        "NodeStarted a; NodeCompleted a taken=b counter=1; NodeScheduled b; put run b"
    )


def test_guard_before_effect_when_only_the_reply_was_lost() -> None:
    run = Run("a > b")
    run.start()
    run.done("a", token=5)
    assert run.do(msgspec.structs.replace(completion("a", 5), again=True)) == []
    assert run.jobs == "run b"
    run.done("b")
    assert run.status == "COMPLETED"


# join-twice: the node behind two parents ran once for each of them


@pytest.mark.parametrize("join", ["all", "any", "strict"])
@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_join_twice(join: str, order: tuple[str, ...]) -> None:
    run = Run("a b c > j > k", {"j": {"join": join}})
    run.start()
    run.end(*order)
    run.end("j", "k")
    assert [event.node for event in run.of(NodeScheduled)].count("j") == 1
    assert [event.node for event in run.of(NodeCompleted)].count("j") == 1
    assert (run.status, run.counter) == ("COMPLETED", 0)


def test_join_twice_in_one_decision() -> None:
    run = Run("a b > j")
    run.start()
    gathered = run.together(completion("a", 5), completion("b", 6))
    assert gathered == rows(
        "NodeStarted a; NodeCompleted a taken=j counter=2; NodeStarted b; NodeCompleted b taken=j counter=2;"
        "NodeScheduled j; put run j"
    )


def test_join_twice_by_a_repeated_arrival() -> None:
    """A fan-in counted messages, not dependencies: a repeated message made it fire too early."""
    run = Run("a b > j")
    run.start()
    run.done("a", token=5)
    for token in (5, 6, 7):
        run.do(completion("a", token))
    assert (run.edges("j"), run.nodes("j"), run.counter) == ("a:taken b:undecided", "j=PENDING", 2)


# loop-consume-key: the second pass looked like a repetition of the first, so the counter never reached zero


@pytest.mark.parametrize("passes", [1, 2, 5])
def test_loop_consume_key(passes: int) -> None:
    run = Run("a > b > z", {"b": {"loop": loop(9, "a")}})
    run.start()
    for _ in range(passes - 1):
        run.done("a")
        run.done("b", again=True)
        assert run.counter == 1
    run.end("a", "b", "z")
    assert (run.status, run.counter, run.cell("a").visit) == ("COMPLETED", 0, passes)
    consumed = [(event.node, event.visit) for event in run.of(NodeCompleted)]
    assert len(set(consumed)) == len(consumed) == 2 * passes + 1


def test_loop_consume_key_with_the_same_answer_in_every_pass() -> None:
    run = Run("a", {"a": {"loop": loop(9)}})
    run.start()
    for visit in (1, 2, 3):
        assert run.cell("a").visit == visit
        run.done("a", again=True, output=b'"same"')
    assert run.done("a", again=False, output=b'"same"')[-1] == "RunCompleted"


def test_consume_and_emit_are_one_event_so_zero_is_never_seen_too_early() -> None:
    run = Run("a > b > c")
    run.start()
    run.end("a", "b")
    assert [(event.emitted, event.consumed, event.counter) for event in run.of(NodeCompleted)] == [(1, 1, 1)] * 2


# blob-overwrite: two orchestrators loaded the whole run, changed it and wrote it back over each other


def test_blob_overwrite() -> None:
    """Two completions that gathered are decided on top of each other and committed once."""
    run = Run("a b c > j")
    run.start()
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
    run = Run("a b > j")
    run.start()
    late = decided(run, completion("b", 6))
    assert "NodeScheduled" not in {type(event).__name__ for event in late.events}
    run.done("a", token=5)
    assert run.done("b", token=6)[-2:] == rows("NodeScheduled j; put run j")


def test_a_failed_mark_is_not_lost_beside_a_completion() -> None:
    run = Run("a b > j")
    run.start()
    run.together(completion("a", 5), Result(node="b", visit=1, token=6, outcome=Failed(error=error())))
    assert (run.status, run.nodes()) == ("FAILED", "a=COMPLETED b=FAILED j=FAILED")


# ack-before-requeue: the job was acknowledged first and published again later, and without its delay


def test_ack_before_requeue() -> None:
    run = Run("a")
    run.start()
    decision = decided(run, Result(node="a", visit=1, token=5, outcome=Failed(error=error(retryable=True))))
    assert [type(event).__name__ for event in decision.events] == ["NodeStarted", "NodeFailed"]
    [job] = decision.work.put
    assert (job.key, job.ready_at_ms) == ("run/a/1/-1", run.kernel.now + 1_000)


def test_ack_before_requeue_after_a_lost_worker_a_wait_and_a_pass() -> None:
    run = Run("a", {"a": {"loop": loop(3)}})
    run.start()
    assert run.lost("a")[-1] == "put run a"
    assert run.wait("a", 50)[-1] == "put wake a at=+50"
    assert run.wake("a")[-1] == "put run a"
    assert run.done("a", again=True, called=False)[-1] == "put run a#2"


# lease-released-early: a resumed run was marked as scheduled before anybody had its work


def test_resuming_and_its_work_are_one_decision() -> None:
    run = Run("a b")
    run.start()
    run.pause()
    assert run.resume() == rows("RunResumed; put run a; put run b")


# Exhausted retries vanished into the run's state, and unknown node types were skipped as completed


def test_used_up_attempts_leave_a_dead_letter_also_when_they_are_tolerated() -> None:
    run = Run("a > b", {"a": {"on_error": "continue", "retry": {"max_attempts": 2}}})
    run.start()
    run.fail("a", retryable=True)
    assert "DeadLettered a code=boom attempts=2" in run.fail("a", retryable=True)
