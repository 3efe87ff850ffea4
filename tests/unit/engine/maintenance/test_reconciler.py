"""The keeper: every unfinished visit has exactly one owner, and what waits for nothing with a name is called stuck."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.maintenance.reconciler import IDLE_AFTER_MS, STUCK_AFTER_MS, Reconciler
from tidemill.engine.pending_commands import PendingCommand
from tidemill.kernel.commands import Done, Result
from tidemill.kernel.events import NodeFailed, RunRepaired
from tidemill.kernel.jobs import JobBody
from tidemill.stores.contract import Claim, Job
from tidemill.testing.faulty_store import Call, bug, following, refuse


def _keeper(process: Process) -> Reconciler:
    assert process.engine.reconciler is not None
    return process.engine.reconciler


def _job(task: JobBody) -> Job:
    return Job(key=task.key, queue="default", body=msgspec.msgpack.encode(task))


@simulated
async def test_a_missing_job_is_put_back_with_an_event_that_says_why(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", "b"))
    await mill.meddle(run_id, drop=("run/a/1/-1",))
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    assert mill.loop.now - 1_000 <= 11
    (repaired,) = await mill.of(run_id, RunRepaired)
    assert (repaired.restored, repaired.dropped) == (("run/a/1/-1",), ())
    assert "1 jobs were missing" in repaired.reason
    assert _keeper(worker).repairs == 1
    assert await mill.of(run_id, NodeFailed) == []


@pytest.mark.parametrize(
    ("nodes", "lost"),
    [
        ([node("s", type="sleep", config={"seconds": 30})], "wake/s/1/-1"),
        (
            [node("s", type="sleep", config={"seconds": 90}, timeout_seconds=40, retry={"max_attempts": 1})],
            "expire/s/1/-1",
        ),
        (
            [
                node(
                    "f",
                    type="fail",
                    config={"attempts": 1, "value": 1, "retryable": True},
                    retry={"backoff_seconds": 30},
                )
            ],
            "run/f/1/-1",
        ),
    ],
)
@simulated
async def test_a_lost_timer_comes_back_for_the_same_moment(
    mill: Cluster, nodes: list[dict[str, object]], lost: str
) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(*nodes))
    await asyncio.sleep(2)
    (before,) = await mill.jobs(run_id)
    assert before.job.key == lost
    await mill.meddle(run_id, drop=(lost,))
    await asyncio.sleep(10)
    (after,) = await mill.jobs(run_id)
    assert (after.job.key, after.job.ready_at_ms) == (lost, before.job.ready_at_ms)
    await worker.end(run_id)
    assert len(await mill.of(run_id, RunRepaired)) == 1


@simulated
async def test_a_lost_deadline_comes_back(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(node("s", type="sleep", config={"seconds": 900}), limits={"deadline_seconds": 60})
    )
    await mill.meddle(run_id, drop=("deadline//0/-1",))
    run = await worker.end(run_id)
    assert run.error is not None and run.error["code"] == "deadline_exceeded"
    assert mill.loop.now - 1_000 == pytest.approx(60, abs=0.5)


@simulated
async def test_a_job_without_an_owner_is_dropped(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, queues=("other",))
    run_id = await worker.start(document(call("a", queue="other", args={"seconds": 40}), call("b", "a", queue="other")))
    await mill.until(lambda: ledger.running == 1)
    await mill.meddle(run_id, jobs=(_job(JobBody("run", "b", 1)), _job(JobBody("run", "a", 9))))
    await asyncio.sleep(20)
    (repaired,) = await mill.of(run_id, RunRepaired)
    assert repaired.dropped == ("run/a/9/-1", "run/b/1/-1")
    assert "2 had no owner" in repaired.reason
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert (ledger.count("a"), ledger.count("b")) == (1, 1)


@simulated
async def test_a_repair_that_comes_too_late_is_none(mill: Cluster) -> None:
    """The run was paused after the audit and before its commit: the finding is old news."""
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a", queue="nobody")))
    await mill.meddle(run_id, drop=("run/a/1/-1",))
    worker = await mill.process(queues=("default",))
    worker.faulty_store.next("commit", following(lambda: client.engine.pause(run_id)))
    await asyncio.sleep(25)
    assert worker.faulty_store.fired["commit"] == 1
    assert await mill.of(run_id, RunRepaired) == []
    await client.engine.resume(run_id)
    assert [view.job.key for view in await mill.jobs(run_id)] == ["run/a/1/-1"]


@simulated
async def test_two_keepers_repair_once(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a", queue="nobody")))
    await mill.meddle(run_id, drop=("run/a/1/-1",))
    for name in ("w1", "w2", "w3"):
        await mill.process(name, queues=("default",))
    await asyncio.sleep(60)
    assert len(await mill.of(run_id, RunRepaired)) == 1


@simulated
async def test_a_paused_run_is_not_repaired(mill: Cluster, ledger: Ledger) -> None:
    """Withdrawn jobs are not missing, a running attempt's job is not surplus, and timers stay."""
    worker = await mill.process(functions={"work": ledger.work}, concurrency=1)
    run_id = await worker.start(
        document(
            call("a", args={"seconds": 45}, priority=9),
            call("b"),
            node("s", type="sleep", config={"seconds": 500}, priority=9),
            node(
                "f", type="fail", config={"attempts": 1, "retryable": True}, retry={"backoff_seconds": 25}, priority=9
            ),
        )
    )
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(1)
    await worker.engine.pause(run_id)
    await asyncio.sleep(100)
    assert await mill.of(run_id, RunRepaired) == []
    assert _keeper(worker).audited > 5
    await worker.engine.resume(run_id)
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert await mill.of(run_id, RunRepaired) == []


@simulated
async def test_healthy_runs_of_every_kind_are_never_repaired(mill: Cluster, ledger: Ledger) -> None:
    workers = [await mill.process(f"w{i}", functions={"work": ledger.work}, audit_every_ms=300) for i in range(2)]
    run = await workers[0].run(
        document(
            call("a", args={"seconds": 3}),
            call("m", "a", args={"seconds": 2}, map={"over": list(range(30)), "max_parallel": 4}),
            node("s", "a", type="sleep", config={"seconds": 7}),
            node("f", "a", type="fail", config={"attempts": 2, "value": 1, "retryable": True}),
            call("l", "m", "s", "f", args={"seconds": 1}, loop={"condition": "iteration < 3", "max_iterations": 9}),
            outputs={"x": "{{ l.output }}"},
            limits={"deadline_seconds": 900, "max_parallel": 6},
        )
    )
    assert run.status == "COMPLETED"
    assert await mill.of(run.run_id, RunRepaired) == []
    assert sum(_keeper(worker).audited for worker in workers) > 50


@simulated
async def test_a_run_that_nobody_serves_is_marked_stuck_within_a_minute_or_so(mill: Cluster) -> None:
    worker = await mill.process("w1", queues=("default",))
    run_id = await worker.start(document(node("a", queue="nobody"), limits={"deadline_seconds": 100_000}))
    await asyncio.sleep(STUCK_AFTER_MS / 1000 - 1)
    assert not (await mill.row(run_id)).stuck
    assert await mill.rows("stuck") == []
    await asyncio.sleep(12)
    row = await mill.row(run_id)
    assert row.stuck and not row.idle
    assert row.waiting_for == ("a worker on queue nobody",)
    assert [found.run_id for found in await mill.rows("stuck")] == [run_id]


@simulated
async def test_a_stuck_run_that_goes_on_is_not_stuck_any_more(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process("w1", queues=("default",))
    run_id = await worker.start(document(call("a", queue="late"), call("b", "a", queue="late", args={"seconds": 50})))
    await asyncio.sleep(90)
    assert (await mill.row(run_id)).stuck
    await mill.process("w2", functions={"work": ledger.work}, queues=("late",))
    await mill.until(lambda: ledger.count("b") == 1)
    row = await mill.row(run_id)
    assert (row.stuck, row.waiting_for) == (False, ())
    assert await mill.rows("stuck") == []
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_who_waits_for_something_with_a_name_is_not_stuck(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, queues=("default",))
    sleeping = await worker.start(document(node("s", type="sleep", config={"seconds": 2_000}), name="sleeping"))
    working = await worker.start(document(call("w", args={"seconds": 2_000}), name="working"))
    backing_off = await worker.start(
        document(
            node(
                "f",
                type="fail",
                config={"attempts": 1, "retryable": True},
                retry={"backoff_seconds": 2_000, "max_backoff_seconds": 2_000},
            ),
            name="backing-off",
        )
    )
    paused = await worker.start(document(node("p", queue="nobody"), name="paused"))
    await worker.engine.pause(paused)
    await asyncio.sleep(200)
    assert await mill.rows("stuck") == []
    assert await mill.rows("idle") == []
    await asyncio.sleep(150)
    idle = {row.run_id: row for row in await mill.rows("idle")}
    assert await mill.rows("stuck") == []
    assert {sleeping, backing_off, paused} <= set(idle)
    assert idle[sleeping].waiting_for == ("timer (s)",)
    assert idle[backing_off].waiting_for == ("retry (f)",)
    assert idle[paused].waiting_for[0].startswith("resume")
    assert mill.now_ms() - idle[sleeping].last_event_ms >= IDLE_AFTER_MS
    assert (await mill.row(working)).status == "RUNNING"


@simulated
async def test_every_live_run_is_looked_at_page_by_page(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    reference = await client.publish(document(node("a", queue="nobody")))
    runs = [await client.start(reference) for _ in range(450)]
    for run_id in runs[::50]:
        await mill.meddle(run_id, drop=("run/a/1/-1",))
    worker = await mill.process(queues=("default",))
    await _keeper(worker).sweep()
    assert _keeper(worker).audited == 450
    assert _keeper(worker).repairs == 9


@simulated
async def test_the_keeper_goes_on_after_an_outage(mill: Cluster) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    await mill.meddle(run, drop=("run/a/1/-1",))
    worker = mill.build("w", audit_every_ms=1_000)
    worker.faulty_store.next("find", refuse, bug)
    await worker.open()
    async with asyncio.timeout(60):
        assert (await client.end(run)).status == "COMPLETED"
    assert worker.faulty_store.fired["find"] == 2


@simulated
async def test_the_audit_says_nothing_about_a_run_that_moves(mill: Cluster) -> None:
    client = await mill.process("c", work=False)
    worker = mill.build("w", audit_every_ms=1_000, queues=("elsewhere",))
    run = await client.start(chain("a", "b"))
    (lease,) = await mill.store.claim(Claim(queues=("default",), limit=9, lease_ms=600_000))
    result = Result(node="a", visit=1, token=lease.token, outcome=Done(output=b"1"))

    async def move() -> None:
        settled = asyncio.Event()
        client.engine.turns.ask(mill.stream(run), PendingCommand(result, lambda ask, answer: settled.set(), ack=lease))
        await settled.wait()

    async def moved_before_the_answer(call: Call) -> Any:
        answer = await call()
        await move()
        return answer

    # The first look at the jobs is whether the run may be loaded at all.
    worker.faulty_store.next("jobs", lambda call: call())
    worker.faulty_store.next("jobs", moved_before_the_answer)
    await worker.open()
    await asyncio.sleep(12)
    assert worker.faulty_store.fired["jobs"] == 2
    assert (await mill.state(run)).peek("b").status == "QUEUED"
    assert worker.engine.reconciler is not None and worker.engine.reconciler.repairs == 0
    assert await mill.of(run, RunRepaired) == []
