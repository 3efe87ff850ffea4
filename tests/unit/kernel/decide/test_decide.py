"""Commands to a run: start, pause, resume, cancel, deadline, command ids, labels, repairs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.tables import Run, begun, error, rows
from tidemill.kernel.commands import (
    AnyCommand,
    AttemptStarted,
    Cancel,
    DeadlineReached,
    Done,
    Failed,
    Pause,
    Relabel,
    Repair,
    RequeueJob,
    Result,
    Resume,
    Start,
)
from tidemill.kernel.decide.decide import decide_all
from tidemill.kernel.events import RunCreated, RunPaused, RunRepaired
from tidemill.kernel.jobs import expected_jobs

Json = Any

START = Start(version=1, digest="sha256:0", inputs=b"{}")


def test_a_start_creates_the_run_and_gives_each_entry_its_token() -> None:
    run = Run("a b > c", limits={"deadline_seconds": 60})
    assert run.start() == rows(
        "RunCreated entries=a,b counter=2; NodeScheduled a; NodeScheduled b; put deadline at=+60000;"
        "put run a; put run b"
    )


def test_a_start_keeps_what_it_was_given() -> None:
    run = Run("a")
    given: Json = {
        "submitted_by": "user:ann",
        "labels": {"customer": "acme"},
        "correlation_id": "c-1",
        "trace": "00-1",
        "tag_used": "stable",
        "parent": ("p", "n", 2, -1),
    }
    run.do(Start(version=3, digest="sha256:1", inputs=b'{"x":1}', id="s1", actor="user:bob", **given))
    state = run.kernel.state
    assert {name: getattr(state, name) for name in given} == given
    assert (state.version, state.digest, state.inputs, state.workflow) == (3, "sha256:1", b'{"x":1}', "table")
    [created] = run.of(RunCreated)
    assert (created.actor, created.command) == ("user:bob", "s1")


def test_a_run_is_started_once() -> None:
    run = begun("a")
    assert run.refused(START) == "run_exists"


@pytest.mark.parametrize("command", [Pause(), Resume(), Cancel(), DeadlineReached()])
def test_what_was_never_started_can_be_told_nothing(command: Any) -> None:
    assert Run("a").refused(command) == "run_unknown"


def test_a_cancel_ends_everything_and_drops_the_jobs() -> None:
    run = begun("a b c > d", {"b": {"map": {"over": [1]}}}, limits={"deadline_seconds": 60})
    run.expand("b", 2)
    run.wait("c")
    run.done("b[0]")
    assert run.cancel("not needed") == rows(
        "NodeCancelled a counter=2; NodeCancelled b[1]; NodeCancelled b counter=1; NodeCancelled c counter=0;"
        "NodeCancelled d counter=0; RunCancelled; drop run a; drop run b[1]; drop wake c; drop deadline"
    )
    assert (run.status, run.counter, run.jobs, run.kernel.state.reason) == ("CANCELLED", 0, "", "not needed")


def test_cancelling_twice_is_once() -> None:
    run = begun("a")
    run.cancel()
    assert run.cancel() == []
    assert run.refused(Pause()) == "run_ended"


@pytest.mark.parametrize("end", ["done", "fail"])
def test_a_run_that_has_ended_by_itself_cannot_be_cancelled(end: str) -> None:
    run = begun("a")
    getattr(run, end)("a")
    assert [run.refused(each) for each in (Cancel(), Pause(), Resume())] == ["run_ended"] * 3
    assert run.do(DeadlineReached()) == []


def test_a_pause_withdraws_queued_jobs_and_resume_puts_them_back() -> None:
    run = begun("a b")
    assert run.pause() == rows("RunPaused; withdraw run a; withdraw run b")
    assert (run.status, run.jobs, run.counter) == ("PAUSED", "", 2)
    assert run.resume() == rows("RunResumed; put run a; put run b")


def test_results_of_running_attempts_are_taken_while_paused() -> None:
    run = begun("a > b")
    run.begin("a", token=5)
    run.pause()
    assert run.done("a", token=5) == rows("NodeCompleted a taken=b counter=1; NodeScheduled b")
    assert (run.cell("b").status, run.jobs) == ("QUEUED", "")
    assert run.resume() == rows("RunResumed; put run b")


def test_timers_and_back_offs_stay_while_paused() -> None:
    run = begun("a b c", limits={"deadline_seconds": 60})
    run.fail("a", retryable=True)
    run.wait("b")
    assert run.pause() == rows("RunPaused; withdraw run c")
    assert run.jobs == "deadline; run a; wake b"
    assert run.wake("b") == rows("NodeCompleted b counter=2; drop wake b")


def test_a_failure_while_paused_leaves_its_back_off_in_the_store() -> None:
    run = begun("a")
    run.begin("a", token=5)
    run.pause()
    assert run.fail("a", retryable=True, token=5) == rows("NodeFailed a code=boom retry=+1000; put run a at=+1000")
    assert run.resume() == rows("RunResumed; put run a at=+1000")


def test_a_job_that_is_queued_again_after_a_lost_worker_is_withdrawn_too() -> None:
    """It is no back-off: it waits for a worker like any other."""
    run = begun("a")
    run.lost("a")
    assert run.pause() == rows("RunPaused; withdraw run a")
    assert run.resume()[:1] == ["RunResumed"]
    assert run.jobs == "run a"


def test_a_run_may_complete_or_fail_while_paused() -> None:
    for end in ("done", "fail"):
        run = begun("a")
        run.pause()
        getattr(run, end)("a")
        assert run.status == {"done": "COMPLETED", "fail": "FAILED"}[end]
        assert run.refused(Resume()) == "run_ended"


def test_the_outputs_wait_for_the_resume() -> None:
    run = begun("a", outputs={"x": 1})
    run.pause()
    assert run.done("a") == rows("NodeStarted a; NodeCompleted a counter=1 renders")
    assert run.resume() == rows("RunResumed; put outputs")
    assert run.pause() == rows("RunPaused; withdraw outputs")


def test_items_of_a_map_are_withdrawn_and_put_back() -> None:
    run = begun("a", {"a": {"map": {"over": [1], "max_parallel": 2}}})
    run.expand("a", 3)
    run.begin("a[0]", token=5)
    assert run.pause() == rows("RunPaused; withdraw run a[0]; withdraw run a[1]")
    assert run.done("a[0]", token=5) == rows("NodeCompleted a[0]; NodeScheduled a[2] until=3")
    assert run.resume() == rows("RunResumed; put run a[1]; put run a[2]")


def test_a_pause_that_is_committed_with_a_completion_leaves_no_job_behind() -> None:
    """The store withdraws before it inserts, so what the completion put must not be there any more."""
    run = begun("a > b")
    run.together(Result(node="a", visit=1, token=5, outcome=Done(output=b"1")), Pause())
    assert (run.status, run.nodes("b"), run.jobs) == ("PAUSED", "b=QUEUED", "")


def test_pausing_or_resuming_twice_is_once() -> None:
    run = begun("a")
    assert run.resume() == []
    run.pause()
    assert run.pause() == []
    run.resume()
    assert run.resume() == []


def test_a_paused_run_can_be_cancelled_and_meets_its_deadline() -> None:
    run = begun("a")
    run.pause()
    assert run.cancel() == rows("NodeCancelled a counter=0; RunCancelled; drop run a")
    run = begun("a", limits={"deadline_seconds": 5})
    run.pause()
    assert run.deadline()[1] == "RunFailed code=deadline_exceeded"


def test_at_its_deadline_a_run_fails_and_every_unfinished_node_is_cancelled() -> None:
    run = begun("a > b > c; d", limits={"deadline_seconds": 5})
    run.done("a")
    assert run.deadline() == rows(
        "NodeCancelled b counter=1; NodeCancelled c counter=1; NodeCancelled d counter=0;"
        "RunFailed code=deadline_exceeded; drop run b; drop run d; drop deadline"
    )
    assert run.nodes() == "a=COMPLETED b=CANCELLED c=CANCELLED d=CANCELLED"


def test_the_deadline_is_counted_from_the_start_and_dropped_at_the_end() -> None:
    run = Run("a", limits={"deadline_seconds": 5})
    run.kernel.now = 10_000
    run.start()
    assert run.kernel.state.deadline_ms == 15_000
    assert run.done("a")[-1] == "drop deadline"


@pytest.mark.parametrize(("limit", "asked", "at"), [(None, 3_000, 3_000), (5, 3_000, 3_000), (5, 9_000, 5_000)])
def test_a_run_may_be_started_with_a_tighter_deadline(limit: int | None, asked: int, at: int) -> None:
    run = Run("a", limits={} if limit is None else {"deadline_seconds": limit})
    assert f"put deadline at=+{at}" in run.start(deadline_ms=asked)
    assert run.kernel.state.deadline_ms == run.kernel.now + at
    assert run.deadline()[1] == "RunFailed code=deadline_exceeded"


def test_a_deadline_while_the_outputs_are_rendered() -> None:
    run = begun("a", outputs={"x": 1}, limits={"deadline_seconds": 5})
    run.done("a")
    assert run.deadline() == rows("RunFailed code=deadline_exceeded; drop deadline; drop outputs")


@pytest.mark.parametrize("command", [Pause(id="x"), Cancel(id="x")])
def test_a_command_is_carried_out_once_per_id(command: Any) -> None:
    run = begun("a")
    assert run.do(command) != []
    assert run.do(command) == []
    assert list(run.kernel.state.commands) == ["x"]


def test_a_repeated_pause_does_not_undo_a_later_resume() -> None:
    run = begun("a")
    run.do(Pause(id="p1"))
    run.do(Resume(id="r1"))
    assert run.do(Pause(id="p1")) == []
    assert run.status == "RUNNING"
    assert run.do(Pause(id="p2"))[0] == "RunPaused"
    assert [event.command for event in run.of(RunPaused)] == ["p1", "p2"]


def test_a_repeated_start_is_recognised_by_its_id() -> None:
    run = Run("a")
    run.do(Start(version=1, digest="sha256:0", inputs=b"{}", id="s1"))
    assert run.do(Start(version=1, digest="sha256:0", inputs=b"{}", id="s1")) == []
    assert run.refused(START) == "run_exists"


def test_a_command_with_a_known_id_is_answered_also_when_it_no_longer_fits() -> None:
    """The first answer got lost and the run has ended since: repeating the request is still safe."""
    run = begun("a")
    run.do(Pause(id="p1"))
    run.done("a")
    assert run.do(Pause(id="p1")) == []


@pytest.mark.parametrize("end", ["complete", "fail", "cancel", "deadline"])
def test_nothing_changes_a_run_that_has_ended(end: str) -> None:
    run = begun("a b", limits={"deadline_seconds": 9})
    run.begin("b", token=50)
    if end == "complete":
        run.done("b", token=50)
        run.done("a")
    else:
        {"fail": lambda: run.fail("a"), "cancel": run.cancel, "deadline": run.deadline}[end]()
    status, before = run.status, run.nodes()
    for outcome in (Done(output=b"2"), Failed(error=error("late", retryable=True))):
        run.do(Result(node="b", visit=1, token=99, outcome=outcome))
    run.wake("b")
    run.expire("b")
    run.lost("b")
    run.do(DeadlineReached())
    assert (run.status, run.nodes(), run.counter, run.jobs) == (status, before, 0, "")
    assert run.kernel.state.discarded == 2


def test_a_refused_command_writes_nothing_beside_others() -> None:
    run = begun("a > b")
    run.begin("a", token=5)
    commands: list[AnyCommand] = [
        AttemptStarted(node="a", visit=1, token=3),
        AttemptStarted(node="b", visit=1, token=6),
        Pause(),
    ]
    decision, problems = decide_all(run.flow, run.kernel.state, commands, 2_000)
    assert [problem and problem.code for problem in problems] == ["attempt_stale", "attempt_stale", None]
    assert [type(event) for event in decision.events] == [RunPaused]


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


def test_a_missing_job_is_restored_with_an_event_that_says_why() -> None:
    run = begun("a b")
    del run.kernel.jobs["run/a/1/-1"]
    assert run.do(Repair(missing=("run/a/1/-1",), reason="1 job was missing", actor="keeper")) == rows(
        "RunRepaired restored=run a; put run a"
    )
    [repaired] = run.of(RunRepaired)
    assert (repaired.reason, repaired.actor, run.kernel.state.repairs) == ("1 job was missing", "keeper", 1)


def test_a_job_without_an_owner_is_dropped() -> None:
    run = begun("a > b")
    run.kernel.jobs["run/b/1/-1"] = run.kernel.jobs["run/a/1/-1"]
    assert run.do(Repair(surplus=("run/b/1/-1",))) == rows("RunRepaired dropped=run b; drop run b")


def test_what_the_state_no_longer_agrees_with_is_left_alone() -> None:
    """The audit looked at an older version: a job that is needed stays, one that is not needed is not restored."""
    run = begun("a > b")
    assert run.do(Repair(missing=("run/b/1/-1", "nonsense"), surplus=("run/a/1/-1",))) == []
    assert run.of(RunRepaired) == []


def test_timers_are_restored_at_their_time() -> None:
    run = begun("a b c", {"c": {"timeout_seconds": 2}}, limits={"deadline_seconds": 60})
    run.wait("a", 5_000)
    run.fail("b", retryable=True)
    run.wait("c", 9_000)
    keys = tuple(sorted(run.kernel.jobs))
    run.kernel.jobs.clear()
    assert run.do(Repair(missing=keys))[1:] == rows(
        "put deadline at=+60000; put expire c at=+2000; put run b at=+1000; put wake a at=+5000"
    )


def test_nothing_is_repaired_in_a_run_that_has_ended() -> None:
    """After the terminal event only discarded results follow; a stray job is dropped without a word."""
    run = begun("a")
    run.done("a")
    before = run.kernel.state.seq
    run.kernel.ask(Repair(missing=("run/a/1/-1",), surplus=("run/a/1/-1",)))
    assert run.kernel.state.seq == before


def test_the_jobs_a_state_calls_for() -> None:
    run = begun("a b c d > e", {"b": {"map": {"over": [1]}}}, limits={"deadline_seconds": 9})
    run.begin("a")
    run.expand("b", 2)
    run.wait("c")
    run.fail("d", retryable=True)
    put = {job.key: job.ready_at_ms for job in expected_jobs(run.flow, run.kernel.state)}
    now = run.kernel.now
    assert put == {
        "deadline//0/-1": now + 9_000,
        "run/a/1/-1": 0,
        "run/b/1/0": 0,
        "run/b/1/1": 0,
        "wake/c/1/-1": now + 1_000,
        "run/d/1/-1": now + 1_000,
    }


def test_a_job_knows_its_queue_and_priority() -> None:
    run = begun("a", {"a": {"queue": "gpu", "priority": 9}})
    job = run.kernel.jobs["run/a/1/-1"]
    assert (job.queue, job.priority, job.task.kind, job.task.key) == ("gpu", 9, "run", "run/a/1/-1")


def shelved(run: Run, kind: str, at: str) -> list[str]:
    return run.do(RequeueJob(kind=kind, **run.where(at)), run.key(kind, at))


def test_a_job_that_is_still_called_for_is_put_back() -> None:
    run = begun("a b c", {"c": {"timeout_seconds": 2}})
    run.fail("b", retryable=True)
    run.wait("c", 9_000)
    assert shelved(run, "run", "a") == rows("put run a")
    assert shelved(run, "run", "b") == rows("put run b at=+1000")
    assert shelved(run, "expire", "c") == rows("put expire c at=+2000")


def test_a_job_that_has_become_pointless_is_gone() -> None:
    run = begun("a > b", {"a": {"map": {"over": [1]}}})
    run.expand("a", 1)
    assert shelved(run, "run", "a") == []
    assert shelved(run, "run", "b") == []
    assert run.do(RequeueJob(kind="run", node="a", visit=2)) == []
    assert run.do(RequeueJob(kind="run", node="a", visit=1, index=9)) == []
    run.cancel()
    assert run.do(RequeueJob(kind="run", node="a", visit=1, index=0)) == []


def test_a_job_of_a_paused_run_waits_for_the_resume() -> None:
    run = begun("a b")
    run.fail("b", retryable=True)
    run.pause()
    run.kernel.now += 5_000
    assert shelved(run, "run", "b") == []
    assert shelved(run, "run", "a") == []
    assert run.resume() == rows("RunResumed; put run a; put run b at=+-4000")


def test_the_rendering_of_the_outputs_can_be_put_aside() -> None:
    """Its job names no node."""
    run = begun("a", outputs={"o": 1})
    run.done("a")
    assert run.do(RequeueJob(kind="outputs", node="", visit=0), "outputs//0/-1") == rows("put outputs")


def test_a_repair_of_another_version_is_ignored() -> None:
    run = begun("a b")
    seen = run.kernel.state.seq
    run.begin("a")
    assert run.do(Repair(missing=("run/b/1/-1",), reason="lost", seq=seen)) == []
    assert run.do(Repair(missing=("run/b/1/-1",), reason="lost", seq=seen + 1)) != []
