"""Who works on a store: the rows of workers, when they are taken for dead, and what `why` makes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.services.workers import WorkerView
from tidemill.engine.worker.registry import FORGET_AFTER_MS, HELD_SHOWN_MAX, WORKER, WorkerRow, registered
from tidemill.handlers.contract import Done, Handler
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Commit, Row, Stream
from tidemill.testing.faulty_store import after_s, bug, refuse

SPECIAL = Handler(NodeType(name="special"), lambda context: Done("done"))


async def states(process: Process) -> dict[str, str]:
    return {worker.name: worker.state for worker in await process.engine.workers.find()}


async def only(process: Process) -> WorkerView:
    (found,) = await process.engine.workers.find()
    return found


async def rows(mill: Cluster) -> list[WorkerRow]:
    return await registered(mill.store, TENANT)


@simulated
async def test_a_worker_says_who_it_is_and_what_it_can_do(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    assert await client.engine.workers.find() == []
    began = mill.now_ms()
    await mill.process("w1", more=[SPECIAL], queues=("a", "b"), concurrency=7, host="here", pid=42, version="9.9")
    await asyncio.sleep(1)
    found = await only(client)
    assert (found.name, found.state, found.host, found.pid, found.version) == ("w1", "alive", "here", 42, "9.9")
    assert (found.queues, found.concurrency, found.holding, found.held) == (("a", "b"), 7, 0, ())
    assert {"special@1", "value@1", "python@1"} <= set(found.types)
    assert found.started_ms == began and found.beat_ms - began <= 1
    page = await mill.store.find(TENANT, WORKER, ["queue:a", "type:special@1"])
    assert [row.key for row in page.rows] == ["w1"]


@simulated
async def test_a_worker_says_what_it_holds(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, beat_ms=2_000)
    client = await mill.process("client", work=False)
    await asyncio.sleep(1)
    wide = document(call("m", args={"seconds": 60}, map={"over": list(range(30))}))
    run_id = await client.start(wide)
    await asyncio.sleep(3)
    found = await only(client)
    assert (found.holding, len(found.held), found.finished) == (30, HELD_SHOWN_MAX, 1)
    first = found.held[0]
    assert (first.run_id, first.kind, first.node, first.visit) == (run_id, "run", "m", 1)
    assert abs(first.since_ms - 1_001_000) <= 50
    assert (await only(worker)).holding == 30
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_what_lasts_is_told_before_the_next_beat(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, beat_ms=60_000, dead_after_ms=180_000)
    client = await mill.process("client", work=False)
    await asyncio.sleep(1.5)
    run_id = await client.start(document(call("a", args={"seconds": 8})))
    await asyncio.sleep(2.1)
    assert ((await only(client)).holding, (await only(client)).held[0].run_id) == (1, run_id)
    await worker.end(run_id)
    await asyncio.sleep(2.1)
    assert (await only(client)).holding == 0
    beats = worker.faulty_store.calls["beat"]
    for _ in range(20):
        await worker.run(document(call("a", args={"seconds": 0.1})))
    # What comes and goes is not worth a word.
    assert worker.faulty_store.calls["beat"] <= beats + 1


@pytest.mark.parametrize(("beat_ms", "dead_after_ms"), [(5_000, 15_000), (1_000, 3_000)])
@simulated
async def test_a_killed_worker_is_dead_after_a_while_and_forgotten_after_an_hour(
    mill: Cluster, beat_ms: int, dead_after_ms: int
) -> None:
    client = await mill.process("client", work=False)
    victim = await mill.process("w1", beat_ms=beat_ms, dead_after_ms=dead_after_ms)
    other = await mill.process("w2")
    await asyncio.sleep(60)
    assert await states(client) == {"w1": "alive", "w2": "alive"}
    assert victim.faulty_store.calls["beat"] == pytest.approx(60_000 / beat_ms, abs=2)
    victim.kill()
    await asyncio.sleep((dead_after_ms - beat_ms) / 1000 - 0.5)
    assert await states(client) == {"w1": "alive", "w2": "alive"}
    await asyncio.sleep((beat_ms + 1_000) / 1000)
    assert await states(client) == {"w1": "dead", "w2": "alive"}
    await asyncio.sleep(FORGET_AFTER_MS / 1000 - 120)
    assert await states(client) == {"w1": "dead", "w2": "alive"}
    await asyncio.sleep(300)
    assert await states(client) == {"w2": "alive"}
    await other.stop()


@simulated
async def test_a_worker_that_leaves_properly_takes_its_row_along(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=10_000)
    client = await mill.process("client", work=False)
    await client.start(document(call("a", args={"seconds": 6})))
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(1)
    closing = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.2)
    assert await states(client) == {"w1": "draining"}
    await closing
    assert await states(client) == {} and await rows(mill) == []
    await worker.open()
    await asyncio.sleep(0.1)
    assert await states(client) == {"w1": "alive"}


@simulated
async def test_an_outage_stops_no_beat_and_is_told_once(mill: Cluster) -> None:
    worker = mill.build()
    told: list[str | None] = []
    assert worker.engine.registry is not None
    worker.engine.registry.on_reach = lambda trouble: told.append(str(trouble) if trouble else None)
    await worker.open()
    client = await mill.process("client", work=False)
    await asyncio.sleep(7)
    for verb in ("beat", "find", "look"):
        worker.faulty_store.always(verb, refuse)
    await asyncio.sleep(100)
    assert await states(client) == {"w1": "dead"} and told == ["the store does not answer"]
    assert worker.faulty_store.fired["beat"] >= 19 and worker.faulty_store.fired["look"] >= 19
    for verb in ("beat", "find", "look"):
        worker.faulty_store.always(verb, None)
    await asyncio.sleep(6)
    assert await states(client) == {"w1": "alive"} and told == ["the store does not answer", None]


@simulated
async def test_a_store_that_takes_long_to_answer_is_told_once(mill: Cluster) -> None:
    worker = mill.build()
    told: list[tuple[int, str | None]] = []
    assert worker.engine.registry is not None
    worker.engine.registry.on_reach = lambda trouble: told.append(
        (round(mill.loop.now), str(trouble) if trouble else None)
    )
    worker.faulty_store.next("beat", after_s(60))
    await worker.open()
    await asyncio.sleep(100)
    assert worker.faulty_store.fired["beat"] == 1
    assert told == [(1_015, "it has sent no heartbeat for 15 s"), (1_060, None)]


@simulated
async def test_a_drain_does_not_wait_for_long_for_its_row(mill: Cluster) -> None:
    worker = await mill.process()
    await asyncio.sleep(1)
    worker.faulty_store.always("beat", after_s(600))
    began = mill.loop.now
    await worker.stop()
    assert worker.faulty_store.fired["beat"] >= 1 and mill.loop.now - began <= 2.5


@simulated
async def test_a_surprise_stops_no_beat(mill: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    worker = mill.build()
    worker.faulty_store.next("beat", bug)
    await worker.open()
    client = await mill.process("client", work=False)
    await asyncio.sleep(6)
    assert worker.faulty_store.fired["beat"] == 1 and "could not write its heartbeat" in caplog.text
    assert await states(client) == {"w1": "alive"}


@simulated
async def test_rows_of_a_later_format_are_left_alone(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    strange = Row(kind=WORKER, key="w9", sort=1, body=b"\x01")
    await mill.store.commit([Commit(stream=Stream(TENANT, WORKER, "w9"), expected=None, rows=(strange,))])
    assert await client.engine.workers.find() == []
    await mill.process("w1")
    await asyncio.sleep(4_000)
    assert await mill.store.count(TENANT, WORKER) == 2


async def blocker(process: Process, run_id: str) -> Any:
    (found,) = (await process.engine.why(run_id)).blockers
    return found


@simulated
async def test_why_says_that_nobody_is_there(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a")))
    found = await blocker(client, run_id)
    assert (found.need, found.words, found.command) == (
        "no_worker",
        "a is queued: no worker is running",
        "tidemill worker",
    )
    worker = await mill.process("w1")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_why_knows_of_a_dead_worker_that_it_is_none(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process("w1", queues=("other",))
    run_id = await client.start(document(node("a", queue="gpu")))
    await asyncio.sleep(1)
    assert (await blocker(client, run_id)).need == "no_queue"
    worker.kill()
    await asyncio.sleep(20)
    assert (await blocker(client, run_id)).need == "no_worker"


@simulated
async def test_why_says_when_whoever_holds_a_job_looks_dead(mill: Cluster, ledger: Ledger) -> None:
    """It may have been renewed after the last sign of life, so for a moment both are so."""
    client = await mill.process("client", work=False)
    worker = await mill.process("w1", functions={"work": ledger.work}, lease_ms=60_000)
    run_id = await client.start(document(call("a", args={"seconds": 500})))
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(12)
    assert (await blocker(client, run_id)).words == "worker w1 works on a, attempt 1 of 3"
    worker.kill()
    heard_ms = (await only(client)).beat_ms
    await asyncio.sleep(20)
    found = await blocker(client, run_id)
    assert (await states(client), found.kind, found.silent_since_ms) == ({"w1": "dead"}, "lease", heard_ms)
    assert found.words.startswith("worker w1, which has stopped sending heartbeats, works on a")


@simulated
async def test_why_says_when_no_live_worker_knows_a_type(mill: Cluster) -> None:
    client = await mill.process("client", work=False, more=[SPECIAL])
    await mill.process("plain")
    run_id = await client.start(document(node("b", type="special")))
    await asyncio.sleep(3.5)
    found = await blocker(client, run_id)
    assert (found.need, found.type, found.alive) == ("no_type", "special@1", ("plain",))
    assert found.words == "b is queued: no worker has type special@1"
    # Its job is put aside until later, but waits since it was made.
    assert found.since_ms <= 1_000_100 and found.until_ms is None
    assert found.command == "tidemill worker --queues default --app MODULE"
    await mill.process("there", more=[SPECIAL], queues=("gpu",))
    await asyncio.sleep(0.1)
    found = await blocker(client, run_id)
    assert (found.need, found.able_elsewhere) == ("no_type", ("there",))
    assert "no worker on queue default has type special@1, but there does on other queues" in found.words


@simulated
async def test_a_worker_that_drains_is_nobody_to_wait_for(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process("w1", functions={"work": ledger.work}, concurrency=1)
    await client.start(document(call("a", args={"seconds": 9})))
    await mill.until(lambda: ledger.running == 1)
    waiting = await client.start(document(call("b")))
    assert (await blocker(client, waiting)).need == "busy"
    worker.engine.drain()
    await asyncio.sleep(0.1)
    assert (await blocker(client, waiting)).need == "no_worker"
    assert (await blocker(worker, waiting)).need == "no_worker"
    await worker.stop()
