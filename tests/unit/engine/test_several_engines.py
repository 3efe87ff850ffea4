"""Several engines on one store: they share the work, and what one of them leaves behind the others finish."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.errors import Unavailable
from tidemill.kernel.events import NodeCompleted, NodeStarted, ResultDiscarded


@simulated
async def test_two_engines_share_the_work(mill: Cluster, ledger: Ledger) -> None:
    first = await mill.process("w1", functions={"work": ledger.work}, concurrency=5)
    await mill.process("w2", functions={"work": ledger.work}, concurrency=5)
    run = await first.run(document(call("m", args={"seconds": 1}, map={"over": list(range(40))})))
    assert run.status == "COMPLETED"
    workers = [event.worker for event in await mill.of(run.run_id, NodeStarted)]
    assert min(workers.count("w1"), workers.count("w2")) >= 10
    assert (ledger.most, len(ledger.calls)) == (10, 40)


@simulated
async def test_one_starts_another_works_a_third_watches(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    watcher = await mill.process("watcher", work=False)
    run_id = await client.start(chain("a", "b", "c"))
    waiting = asyncio.ensure_future(watcher.end(run_id))
    await mill.process("worker")
    assert (await waiting).status == "COMPLETED"
    assert (await client.engine.show(run_id)).status == "COMPLETED"


@pytest.mark.parametrize("moment", [0.05, 0.5, 1.2, 3.0, 4.4, 7.7])
@simulated
async def test_one_engine_dies_in_the_middle(mill: Cluster, moment: float, ledger: Ledger) -> None:
    functions = {"work": ledger.work}
    first = await mill.process("w1", functions=functions, concurrency=3)
    second = await mill.process("w2", functions=functions, concurrency=3)
    run_id = await second.start(
        document(
            call("a", args={"seconds": 0.4}),
            *(call(f"b{i}", "a", args={"seconds": 0.5 + i}) for i in range(4)),
            call("m", "a", args={"seconds": 0.7}, map={"over": list(range(8))}),
            node("s", "b0", type="sleep", config={"seconds": 3}),
            call("z", "m", "s", *(f"b{i}" for i in range(4))),
            outputs={"n": "{{ m.output | length }}"},
        )
    )
    await asyncio.sleep(moment)
    first.kill()
    run = await second.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"n": 8})
    completed = [(event.node, event.index) for event in await mill.of(run_id, NodeCompleted)]
    assert len(completed) == len(set(completed)) == 1 + 4 + 8 + 1 + 1 + 1
    # The dead one reports nothing any more.
    assert await mill.of(run_id, ResultDiscarded) == []


@simulated
async def test_rolling_restart_fails_nothing(mill: Cluster, ledger: Ledger) -> None:
    options = {"functions": {"work": ledger.work}, "grace_ms": 500, "concurrency": 4}
    workers = [await mill.process(f"w{i}", **options) for i in range(2)]
    client = await mill.process("client", work=False)
    reference = await client.publish(document(call("a", args={"seconds": 2}), call("b", "a", args={"seconds": 2})))
    runs = [await client.start(reference) for _ in range(10)]
    for number in range(2, 8):
        await asyncio.sleep(1)
        workers.append(await mill.process(f"w{number}", **options))
        await workers.pop(0).stop()
    for run_id in runs:
        run = await client.end(run_id)
        assert run.status == "COMPLETED"
        assert {shown["attempts"] for shown in run.nodes.values()} == {1}
        assert await mill.of(run_id, ResultDiscarded) == []


@simulated
async def test_who_asks_a_closed_engine_is_told_so(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 1})))
    await worker.stop()
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable):
            await worker.engine.cancel(run_id)
        with pytest.raises(Unavailable):
            await worker.engine.start("test")


@simulated
async def test_who_waits_for_an_answer_when_the_engine_closes_gets_one(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=0)
    run_id = await worker.start(document(call("a", args={"seconds": 100})))
    await mill.until(lambda: ledger.running == 1)
    worker.faulty_store.always("commit", lambda call: asyncio.sleep(1_000))
    asked = asyncio.ensure_future(worker.engine.cancel(run_id))
    await asyncio.sleep(1)
    queued = asyncio.ensure_future(worker.engine.pause(run_id))
    await asyncio.sleep(1)
    await worker.stop()
    async with asyncio.timeout(60):
        for answer in (asked, queued):
            with pytest.raises(Unavailable):
                await answer
