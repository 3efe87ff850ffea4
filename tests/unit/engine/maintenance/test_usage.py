"""Usage: what runs took, by day and workflow. Every run counts once, whatever happens to the task that counts."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta

import pytest

from tests.fixtures.approvers import code_of
from tests.fixtures.cluster import TENANT, Cluster, Process, dying_after, dying_before, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.operator import pass_days
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.maintenance import usage
from tidemill.engine.maintenance.usage import ROLL_UP, SETTLED_MS, UNENDED, USAGE, UsageRow
from tidemill.handlers.contract import NodeContext
from tidemill.kernel.jobs import MAINTENANCE_QUEUE, task_of
from tidemill.stores.contract import Claim
from tidemill.testing.faulty_store import Call, Trouble

DAY = "1970-01-01"
"""Simulations begin a quarter of an hour after 1970 did."""


async def rolled_up(mill: Cluster) -> dict[tuple[str, str], UsageRow]:
    """What the task has written."""
    page = await mill.store.find(TENANT, USAGE, limit=100)
    found = [usage._ROW.decode(row.body) for row in page.rows]
    return {(row.day, row.workflow): row for row in found}


async def answered(process: Process, **asked: str) -> dict[tuple[str, str], UsageRow]:
    report = await process.engine.usage.find(**asked)
    assert report.complete
    return {(row.day, row.workflow): row for row in report.rows}


@simulated
async def test_what_runs_took_is_known_when_they_end_and_written_by_a_task(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    await worker.publish(document(call("a", args={"seconds": 3, "value": "four"}), node("b", "a"), name="paid"))
    runs = [await worker.run("paid") for _ in range(3)]
    row = await mill.row(runs[0].run_id)
    assert (row.work_ms, row.tokens) == (3_000, 2)
    assert row.output_bytes == len('"four"') + len("null")
    at_once = await answered(worker)
    assert await rolled_up(mill) == {}, "runs of the last minute are left to the next roll-up"
    await asyncio.sleep(SETTLED_MS / 1000 + 60)
    expected = UsageRow(
        day=DAY,
        workflow="paid",
        runs=3,
        node_ms=9_000,
        events=sum(run.events for run in runs),
        bytes=3 * row.output_bytes,
        tokens=6,
    )
    assert await rolled_up(mill) == {(DAY, "paid"): expected} == at_once == await answered(worker)


@simulated
async def test_retries_and_items_count_with_everything_that_they_did(mill: Cluster, ledger: Ledger) -> None:
    async def flaky(context: NodeContext) -> None:
        await asyncio.sleep(1)
        if context.attempt < 3:
            raise ConnectionError

    worker = await mill.process(functions={"work": ledger.work, "flaky": flaky})
    run = await worker.run(
        document(
            call("a", function="flaky", retry={"max_attempts": 3, "backoff_seconds": 1}),
            call("m", "a", args={"seconds": 2}, map={"over": [1, 2, 3]}),
        )
    )
    assert run.status == "COMPLETED"
    assert run.nodes["a"]["attempts"] == 3
    assert (await mill.row(run.run_id)).work_ms == 3 * 1_000 + 3 * 2_000


@simulated
async def test_a_run_that_takes_long_counts_on_the_day_of_its_end(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("s", type="signal", config={"name": "go"}), name="slow"))
    run_id = await worker.engine.start("slow")
    await worker.run(chain("a"))
    await asyncio.sleep(SETTLED_MS / 1000 + 60)
    assert set(await rolled_up(mill)) == {(DAY, "test")}
    assert len((await mill.store.find(TENANT, UNENDED)).rows) == 1
    pass_days(mill, 2)
    await worker.engine.signal(run_id, "go")
    await worker.end(run_id)
    assert set(await answered(worker)) == {(DAY, "test"), ("1970-01-03", "slow")}
    await asyncio.sleep(60)
    assert {key: row.runs for key, row in (await rolled_up(mill)).items()} == {
        (DAY, "test"): 1,
        ("1970-01-03", "slow"): 1,
    }
    assert (await mill.store.find(TENANT, UNENDED)).rows == ()
    assert set(await answered(worker, since="1970-01-02")) == {("1970-01-03", "slow")}
    assert set(await answered(worker, workflow="test")) == {(DAY, "test")}


@simulated
async def test_a_reopened_run_counts_once(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", type="fail", config={"attempts": 1, "value": 1})))
    await asyncio.sleep(SETTLED_MS / 1000 + 60)
    before = await rolled_up(mill)
    await worker.engine.retry(run.run_id)
    assert (await worker.end(run.run_id)).status == "COMPLETED"
    await asyncio.sleep(SETTLED_MS / 1000 + 60)
    assert await rolled_up(mill) == before == await answered(worker)
    assert before[DAY, "test"].runs == 1


def only_rollups(trouble: Trouble, process: Process) -> None:
    """The next commit that writes usage goes wrong."""

    async def around(verb: str, given: object, call: Call) -> object:
        rows = [row for each in given for row in each.rows] if verb == "commit" else []  # type: ignore[attr-defined]
        if any(row.kind == USAGE for row in rows):
            process.faulty_store.around = None
            return await trouble(call)
        return await call()

    process.faulty_store.around = around


@simulated
@pytest.mark.parametrize("dying", [dying_before, dying_after])
async def test_a_task_that_is_killed_at_its_commit_counts_every_run_once(mill: Cluster, dying: object) -> None:
    """It is repeated by another worker, before or behind what it wrote."""
    first, second = await mill.process("w1"), await mill.process("w2")
    for _ in range(7):
        await first.run(chain("a", "b"))
    for process in (first, second):
        only_rollups(dying(process), process)  # type: ignore[operator]
    await asyncio.sleep(SETTLED_MS / 1000 + 30)
    dead = [process for process in (first, second) if process.faulty_store.dead]
    assert dead, "one of them has died of it"
    third = await mill.process("w3")
    await asyncio.sleep(SETTLED_MS / 1000 + 300)
    assert {key: row.runs for key, row in (await rolled_up(mill)).items()} == {(DAY, "test"): 7}
    assert await rolled_up(mill) == await answered(third)


@simulated
async def test_a_task_that_has_lost_its_lease_writes_nothing(mill: Cluster) -> None:
    """While it counted, its lease expired and another worker counted the same runs."""
    worker = await mill.process()
    await worker.run(chain("a"))
    schedule = worker.engine.schedule
    assert schedule is not None
    pass_days(mill, 1)
    (lease,) = [
        lease
        for lease in await mill.store.claim(Claim(queues=(MAINTENANCE_QUEUE,), limit=10, lease_ms=1_000, owner="late"))
        if task_of(lease.body).node == ROLL_UP
    ]
    await asyncio.sleep(60)
    before = await rolled_up(mill)
    assert before[DAY, "test"].runs == 1, "the other one"
    await schedule.run(lease)
    assert await rolled_up(mill) == before


@simulated
async def test_a_clock_that_is_set_back_counts_nothing_twice(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.run(chain("a"))
    pass_days(mill, 1)
    rollup = usage.UsageRollup(mill.store)
    first = await rollup.run(TENANT, {})
    assert [row.kind for row in first.rows] == [USAGE]
    pass_days(mill, -2)
    second = await rollup.run(TENANT, first.cursor)
    pass_days(mill, 2)
    third = await rollup.run(TENANT, second.cursor)
    assert first.cursor == second.cursor and second.rows == third.rows == ()


@simulated
async def test_many_runs_are_counted_in_several_steps(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "RUNS_PER_ROLL_UP", 4)
    monkeypatch.setattr(usage, "PAGE", 2)
    worker = await mill.process()
    for _ in range(11):
        await worker.run(chain("a"))
        await asyncio.sleep(1)
    pass_days(mill, 1)
    cursor: dict[str, object] = {}
    rollup, counted = usage.UsageRollup(mill.store), 0
    for _ in range(4):
        result = await rollup.run(TENANT, cursor)
        added = sum(usage._ROW.decode(row.body).runs for row in result.rows if row.kind == USAGE)
        counted, cursor = counted + added, result.cursor
        # The rows of the last step are not written here, so each step begins at nothing.
        assert added <= 4
    assert counted == 11 and not result.more


@simulated
async def test_the_answer_has_no_gap_while_a_window_is_partly_read(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "RUNS_PER_ROLL_UP", 2)
    monkeypatch.setattr(usage, "PAGE", 2)
    worker = await mill.process()
    for _ in range(9):
        await worker.run(chain("a"))
        await asyncio.sleep(1)
    seen = set()
    for _ in range(40):
        await asyncio.sleep(5)
        seen.add(len(await rolled_up(mill)) and (await rolled_up(mill))[DAY, "test"].runs)
        assert (await answered(worker))[DAY, "test"].runs == 9
    assert {0, 9} < seen, "some answers were given in between"


@simulated
async def test_rows_of_an_earlier_version_count_as_runs(mill: Cluster) -> None:
    from tests.unit.engine.services.test_run_summary import as_earlier_versions_wrote

    worker = await mill.process()
    await worker.run(chain("a"))
    await as_earlier_versions_wrote(mill)
    (row,) = (await answered(worker)).values()
    assert (row.runs, row.node_ms, row.tokens) == (1, 0, 0) and row.events > 0


@simulated
async def test_a_wrong_date_is_refused(mill: Cluster) -> None:
    client = await mill.process("c", work=False)
    assert await code_of(client.engine.usage.find(since="soon")) == "query_value_invalid"
    for since in (date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC), timedelta(days=1), "1970-01-01", "2h", "-7d"):
        assert (await client.engine.usage.find(since=since)).rows == ()
    assert ROLL_UP == "usage", "the name of a stored cursor stays"
