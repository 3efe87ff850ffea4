"""Maintenance as leased jobs: once for the fleet, for every tenant, and by another worker when one dies."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.operator import pass_days
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.maintenance.schedule import (
    MAINTENANCE,
    POSTPONED_MS,
    Cursor,
    MaintenanceSchedule,
    MaintenanceTask,
)
from tidemill.engine.worker.registry import WORKER
from tidemill.errors import Rejected, Unavailable, rejected
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX
from tidemill.kernel.events import RunRepaired
from tidemill.stores.contract import Commit, Stream


class Sweeps:
    """A task that notes who runs it, and counts in its cursor."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def task(self, worker: str, every_ms: int = 10_000, takes_ms: float = 0, mill: Any = None) -> MaintenanceTask:
        async def run(tenant: str, cursor: Cursor) -> Cursor:
            turn = cursor.get("turn", 0) + 1
            self.seen.append((worker, tenant, turn))
            if takes_ms:
                await asyncio.sleep(takes_ms / 1000)
            return {"turn": turn}

        return MaintenanceTask("count", every_ms, run)

    def add(self, process: Any, **options: Any) -> None:
        schedule = process.engine.schedule
        assert isinstance(schedule, MaintenanceSchedule)
        schedule._tasks["count"] = self.task(process.name, **options)


async def _drop(mill: Cluster, stream: Stream) -> None:
    lost = tuple(view.job.key for view in await mill.store.jobs(stream))
    assert lost
    await mill.store.commit([Commit(stream=stream, expected=None, drop=lost)])


async def _fleet(mill: Cluster, sweeps: Sweeps, size: int, **options: Any) -> list[Any]:
    workers = [mill.build(f"w{number}") for number in range(size)]
    for worker in workers:
        sweeps.add(worker, **options)
        await worker.open()
    return workers


@simulated
async def test_a_fleet_does_each_task_once_per_interval_and_goes_on_from_its_cursor(mill: Cluster) -> None:
    sweeps = Sweeps()
    await _fleet(mill, sweeps, 5)
    await asyncio.sleep(105)
    assert 9 <= len(sweeps.seen) <= 11
    assert [turn for _, _, turn in sweeps.seen] == list(range(1, len(sweeps.seen) + 1))


@simulated
async def test_another_worker_repeats_the_task_of_one_that_died(mill: Cluster) -> None:
    sweeps = Sweeps()
    workers = await _fleet(mill, sweeps, 2, takes_ms=5_000)
    await mill.until(lambda: bool(sweeps.seen))
    ((first, _, _),) = sweeps.seen
    next(worker for worker in workers if worker.name == first).kill()
    await mill.until(lambda: len(sweeps.seen) == 2)
    (second, _, turn) = sweeps.seen[1]
    assert second != first and turn == 1


@simulated
async def test_a_task_with_which_many_workers_were_lost_is_postponed_and_not_given_up(mill: Cluster) -> None:
    """They may have died of something else, and nobody else does it."""
    sweeps = Sweeps()
    for number in range(LOST_IN_A_ROW_MAX + 1):
        worker = mill.build(f"w{number}")
        sweeps.add(worker, takes_ms=5_000)
        await worker.open()
        await mill.until(lambda number=number: len(sweeps.seen) > number)  # type: ignore[misc]
        worker.kill()
    lost = len(sweeps.seen)
    await _fleet(mill, sweeps, 1)
    took_s = await mill.until(lambda: len(sweeps.seen) > lost + 2, within_s=3 * POSTPONED_MS / 1000)
    assert took_s > POSTPONED_MS / 1000, "it may be what kills them"


@simulated
async def test_a_draining_worker_leaves_its_task_to_another_at_once(mill: Cluster) -> None:
    sweeps = Sweeps()
    workers = await _fleet(mill, sweeps, 2, takes_ms=600_000)
    await mill.until(lambda: bool(sweeps.seen))
    leaving = next(worker for worker in workers if worker.name == sweeps.seen[0][0])
    before = mill.loop.time()
    await leaving.engine.close()
    await mill.until(lambda: len(sweeps.seen) == 2)
    assert mill.loop.time() - before < 5
    assert sweeps.seen[1][0] != leaving.name


@simulated
async def test_a_long_task_rests_in_proportion(mill: Cluster) -> None:
    sweeps = Sweeps()
    await _fleet(mill, sweeps, 1, every_ms=1_000, takes_ms=10_000)
    await asyncio.sleep(340)
    assert len(sweeps.seen) in (3, 4)


@simulated
async def test_a_failing_task_is_logged_and_repeated(mill: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    worker = mill.build("w")
    calls = Counter[str]()

    async def refused(tenant: str, cursor: Cursor) -> Cursor:
        calls["refused"] += 1
        raise rejected("some_code", "not today")

    async def broken(tenant: str, cursor: Cursor) -> Cursor:
        calls["broken"] += 1
        raise ZeroDivisionError

    async def unavailable(tenant: str, cursor: Cursor) -> Cursor:
        calls["unavailable"] += 1
        raise Unavailable("gone")

    assert worker.engine.schedule is not None
    for task in (refused, broken, unavailable):
        worker.engine.schedule._tasks[task.__name__] = MaintenanceTask(task.__name__, 5_000, task)
    await worker.open()
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(30)
    assert min(calls["refused"], calls["broken"], calls["unavailable"]) >= 4
    said = [record.getMessage() for record in caplog.records]
    assert any("the maintenance task refused was refused" in text and "not today" in text for text in said)
    assert any("the maintenance task broken failed" in text for text in said)


@simulated
async def test_the_runs_of_a_tenant_without_a_worker_are_repaired(mill: Cluster) -> None:
    """A worker serves the jobs of every tenant, so it also repairs their runs."""
    client = mill.build("c", work=False, tenant="acme")
    await client.open()
    run_id = await client.start(chain("a", "b"))
    stream = Stream("acme", "run", run_id)
    await _drop(mill, stream)
    await mill.process("w1")
    async with asyncio.timeout(120):
        run = await client.end(run_id)
    assert run.status == "COMPLETED"
    repairs = [event for event in await client.engine.events(run_id) if event["type"] == RunRepaired.__name__]
    assert len(repairs) == 1


@simulated
async def test_a_task_that_a_worker_does_not_know_waits_for_one_that_does(mill: Cluster) -> None:
    await mill.process("w1")
    sweeps = Sweeps()
    other = mill.build("w2")
    sweeps.add(other)
    await other.open()
    async with asyncio.timeout(600):
        await mill.until(lambda: len(sweeps.seen) == 3)
    assert {worker for worker, _, _ in sweeps.seen} == {"w2"}


@simulated
async def test_lost_tasks_are_inserted_again(mill: Cluster) -> None:
    sweeps = Sweeps()
    await _fleet(mill, sweeps, 1)
    await mill.until(lambda: bool(sweeps.seen))
    tasks = Stream(mill.stream("x").tenant, MAINTENANCE, "tasks")
    await _drop(mill, tasks)
    before = len(sweeps.seen)
    await asyncio.sleep(120)
    assert len(sweeps.seen) > before + 2


@simulated
async def test_a_worker_for_one_run_maintains_by_itself(mill: Cluster) -> None:
    worker = await mill.process("w1", only="mine", audit_every_ms=1_000)
    reference = await worker.publish(document(node("a"), node("b", "a")))
    await worker.engine.start(reference, key="mine")
    await asyncio.sleep(5)
    assert (await worker.end("mine")).status == "COMPLETED"
    assert worker.engine.reconciler is not None
    tasks = Stream(mill.stream("x").tenant, MAINTENANCE, "tasks")
    assert await mill.store.jobs(tasks) == []


@simulated
async def test_a_worker_reads_few_rows_however_many_workers_there_are(mill: Cluster) -> None:
    workers = [await mill.process(f"w{number}") for number in range(20)]
    read = Counter[str]()
    original = workers[0].faulty_store.find

    async def find(tenant: str, kind: str, *terms: Any, limit: int = 50, **options: Any) -> Any:
        page = await original(tenant, kind, *terms, limit=limit, **options)
        read[kind] += len(page.rows)
        return page

    workers[0].faulty_store.find = find  # type: ignore[method-assign]
    await asyncio.sleep(50)
    # About ten heartbeats, and perhaps a task that looks at all.
    assert 0 < read[WORKER] <= 3 * 12 + 20


@simulated
async def test_blobs_that_nothing_refers_to_are_collected_for_every_tenant(mill: Cluster) -> None:
    mill.blobs._clock = lambda: mill.store._clock()
    engine = (await mill.process("client", work=False)).engine
    acme = mill.build("acme", work=False, tenant="acme")
    await acme.open()
    for owner in (engine, acme.engine):
        await owner.publish(document(node("a"), name="some"))
    lost = (await acme.engine.put_blob(b"nothing refers to it"))["$blob"]
    kept = (await acme.engine.put_blob(b"kept", keep=True))["$blob"]
    for _ in range(3):
        pass_days(mill, 1.1)
        await engine.blobs.maintain("acme", {})
    with pytest.raises(Rejected):
        await acme.engine.blob(lost)
    assert (await acme.engine.blob(kept)).digest == kept


@simulated
async def test_a_worker_whose_slots_are_taken_does_maintenance_too(mill: Cluster, ledger: Ledger) -> None:
    worker = mill.build("w", functions={"work": ledger.work}, concurrency=1)
    sweeps = Sweeps()
    sweeps.add(worker, every_ms=5_000)
    await worker.open()
    run_id = await worker.start(document(call("a", args={"seconds": 300}), name="long"))
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(100)
    assert ledger.running == 1 and len(sweeps.seen) >= 8
    assert (await worker.end(run_id)).status == "COMPLETED"
