"""Jobs and owners: what the audit restores and drops, and what becomes of a job that nobody may run now."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.tables import Run, rows
from tidemill.kernel.commands import Repair, Shelve
from tidemill.kernel.events import RunRepaired
from tidemill.kernel.jobs import expected_jobs

Json = Any


def test_a_missing_job_is_restored_with_an_event_that_says_why() -> None:
    run = Run("a b")
    run.start()
    del run.kernel.jobs["run/a/1/-1"]
    assert run.do(Repair(missing=("run/a/1/-1",), reason="1 job was missing", actor="keeper")) == rows(
        "RunRepaired restored=run a; put run a"
    )
    [repaired] = run.of(RunRepaired)
    assert (repaired.reason, repaired.actor, run.kernel.state.repairs) == ("1 job was missing", "keeper", 1)


def test_a_job_without_an_owner_is_dropped() -> None:
    run = Run("a > b")
    run.start()
    run.kernel.jobs["run/b/1/-1"] = run.kernel.jobs["run/a/1/-1"]
    assert run.do(Repair(surplus=("run/b/1/-1",))) == rows("RunRepaired dropped=run b; drop run b")


def test_what_the_state_no_longer_agrees_with_is_left_alone() -> None:
    """The audit looked at an older version: a job that is needed stays, one that is not needed is not restored."""
    run = Run("a > b")
    run.start()
    assert run.do(Repair(missing=("run/b/1/-1", "nonsense"), surplus=("run/a/1/-1",))) == []
    assert run.of(RunRepaired) == []


def test_timers_are_restored_at_their_time() -> None:
    run = Run("a b c", {"c": {"timeout_seconds": 2}}, limits={"deadline_seconds": 60})
    run.start()
    run.wait("a", 5_000)
    run.fail("b", retryable=True)
    run.wait("c", 9_000)
    keys = tuple(sorted(run.kernel.jobs))
    run.kernel.jobs.clear()
    assert run.do(Repair(missing=keys))[1:] == rows(
        "put deadline at=+60000; put expire c at=+2000; put run b at=+1000; put wake a at=+5000"
    )


def test_a_repeated_repair_is_recognised_by_its_id() -> None:
    run = Run("a")
    run.start()
    repair = Repair(missing=("run/a/1/-1",), id="r1")
    run.do(repair)
    assert run.do(repair) == []


def test_nothing_is_repaired_in_a_run_that_has_ended() -> None:
    """After the terminal event only discarded results follow; a stray job is dropped without a word."""
    run = Run("a")
    run.start()
    run.done("a")
    before = run.kernel.state.seq
    run.kernel.ask(Repair(missing=("run/a/1/-1",), surplus=("run/a/1/-1",)))
    assert run.kernel.state.seq == before


# Which jobs a state calls for


def test_the_jobs_a_state_calls_for() -> None:
    run = Run("a b c d > e", {"b": {"map": {"over": [1]}}}, limits={"deadline_seconds": 9})
    run.start()
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
    run = Run("a", {"a": {"queue": "gpu", "priority": 9}})
    run.start()
    job = run.kernel.jobs["run/a/1/-1"]
    assert (job.queue, job.priority, job.task.kind, job.task.key) == ("gpu", 9, "run", "run/a/1/-1")


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_a_run_that_has_ended_calls_for_nothing(end: str) -> None:
    run = Run("a b", limits={"deadline_seconds": 9})
    run.start()
    if end == "complete":
        run.end("a", "b")
    else:
        {"fail": lambda: run.fail("a"), "cancel": run.cancel}[end]()
    assert list(expected_jobs(run.flow, run.kernel.state)) == []
    assert run.jobs == ""


# Jobs that a worker must put aside


def shelved(run: Run, kind: str, at: str) -> list[str]:
    return run.do(Shelve(kind=kind, **run.where(at)), run.key(kind, at))


def test_a_job_that_is_still_called_for_is_put_back() -> None:
    run = Run("a b c", {"c": {"timeout_seconds": 2}})
    run.start()
    run.fail("b", retryable=True)
    run.wait("c", 9_000)
    assert shelved(run, "run", "a") == rows("put run a")
    assert shelved(run, "run", "b") == rows("put run b at=+1000")
    assert shelved(run, "expire", "c") == rows("put expire c at=+2000")


def test_a_job_that_has_become_pointless_is_gone() -> None:
    run = Run("a > b", {"a": {"map": {"over": [1]}}})
    run.start()
    run.expand("a", 1)
    assert shelved(run, "run", "a") == []
    assert shelved(run, "run", "b") == []
    assert run.do(Shelve(kind="run", node="a", visit=2)) == []
    assert run.do(Shelve(kind="run", node="a", visit=1, index=9)) == []
    run.cancel()
    assert run.do(Shelve(kind="run", node="a", visit=1, index=0)) == []


def test_a_job_of_a_paused_run_waits_for_the_resume() -> None:
    run = Run("a b")
    run.start()
    run.fail("b", retryable=True)
    run.pause()
    run.kernel.now += 5_000
    assert shelved(run, "run", "b") == []
    assert shelved(run, "run", "a") == []
    assert run.resume() == rows("RunResumed; put run a; put run b at=+-4000")


def test_the_rendering_of_the_outputs_can_be_put_aside() -> None:
    """Its job names no node."""
    run = Run("a", outputs={"o": 1})
    run.start()
    run.done("a")
    assert run.do(Shelve(kind="outputs", node="", visit=0), "outputs//0/-1") == rows("put outputs")


def test_a_repair_of_another_version_is_ignored() -> None:
    run = Run("a b")
    run.start()
    seen = run.kernel.state.seq
    run.begin("a")
    assert run.do(Repair(missing=("run/b/1/-1",), reason="lost", seq=seen)) == []
    assert run.do(Repair(missing=("run/b/1/-1",), reason="lost", seq=seen + 1)) != []
