"""A worker at its work: how much at once, what first, what it leaves to others, and how it stops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.ambient import RealAmbient
from tidemill.blobs.memory import MemoryBlobs
from tidemill.engine.engine import Engine
from tidemill.engine.worker.instrumentation import OutcomeReport
from tidemill.engine.worker.leases import STEP_MS
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.handlers.contract import Done, Handler, NodeContext
from tidemill.kernel.events import NodeCompleted, NodeFailed, NodeStarted, ResultDiscarded
from tidemill.kernel.model import NodeType
from tidemill.node_types import built_in_handlers
from tidemill.stores.memory import MemoryStore
from tidemill.testing.faulty_store import FaultyStore, after_s, bug, refuse


@pytest.mark.parametrize("concurrency", [1, 3, 10])
@simulated
async def test_never_more_at_once_than_agreed(mill: Cluster, concurrency: int, ledger: Ledger) -> None:
    """Claims and hand-overs together keep the bound, and use it."""
    worker = await mill.process(functions={"work": ledger.work}, concurrency=concurrency)
    steps = [call("a", args={"seconds": 0.2})]
    steps += [call(f"b{i}", "a", args={"seconds": 0.1 + i % 4}) for i in range(12)]
    steps += [call(f"c{i}", f"b{i}", args={"seconds": 0.3}) for i in range(12)]
    reference = await worker.publish(document(*steps, call("m", args={"seconds": 1}, map={"over": list(range(15))})))
    runs = [await worker.start(reference) for _ in range(3)]
    for run_id in runs:
        assert (await worker.end(run_id)).status == "COMPLETED"
    assert ledger.most == concurrency
    assert len(ledger.calls) == 3 * (1 + 12 + 12 + 15)


@simulated
async def test_higher_priority_first(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    reference = await client.publish(
        document(*(call(f"p{priority}", priority=priority, args={"seconds": 1}) for priority in (1, 9, 5, 0, 7)))
    )
    run_id = await client.start(reference)
    await mill.process(functions={"work": ledger.work}, concurrency=1)
    await client.end(run_id)
    assert [key.split("/")[1] for key, _ in ledger.calls] == ["p9", "p7", "p5", "p1", "p0"]


@simulated
async def test_equal_priority_in_the_order_of_readiness(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    reference = await client.publish(document(call("a", args={"seconds": 1})))
    runs = []
    for number in range(5):
        runs.append(await client.start(reference, key=f"r{number}"))
        await asyncio.sleep(0.1)
    await mill.process(functions={"work": ledger.work}, concurrency=1)
    for run_id in runs:
        await client.end(run_id)
    assert [key.split("/")[0] for key, _ in ledger.calls] == runs


@simulated
async def test_a_worker_serves_only_its_queues(mill: Cluster, ledger: Ledger) -> None:
    plain = await mill.process("plain", functions={"work": ledger.work}, queues=("default",))
    run_id = await plain.start(document(call("a"), call("g", "a", queue="gpu"), node("z", "g")))
    await asyncio.sleep(30)
    assert (ledger.count("a"), ledger.count("g")) == (1, 0)
    await mill.process("gpu", functions={"work": ledger.work}, queues=("gpu",))
    run = await plain.end(run_id)
    assert run.status == "COMPLETED"
    assert [event.worker for event in await mill.of(run_id, NodeCompleted)] == ["plain", "gpu", "plain"]


@simulated
async def test_a_worker_without_named_queues_serves_all(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.run(document(call("a"), call("g", "a", queue="gpu"), call("h", "g", queue="other")))
    assert run.status == "COMPLETED"


@simulated
async def test_a_type_that_a_worker_does_not_know_is_left_to_one_that_does(mill: Cluster) -> None:
    special = Handler(NodeType(name="special"), lambda context: Done("done"))
    client = await mill.process("client", work=False, more=[special])
    run_id = await client.start(document(node("a"), node("b", "a", type="special"), node("c", "b")))
    ignorant = await mill.process("ignorant", handlers=built_in_handlers())
    await asyncio.sleep(20)
    shown = await client.engine.show(run_id)
    assert (shown.nodes["a"]["status"], shown.nodes["b"]["status"], shown.nodes["b"]["attempts"]) == (
        "COMPLETED",
        "QUEUED",
        0,
    )
    assert 10 <= ignorant.faulty_store.calls["release"] <= 20_000 / STEP_MS + 2
    await mill.process("knowing", more=[special])
    began = mill.loop.now
    run = await client.end(run_id)
    assert run.status == "COMPLETED" and mill.loop.now - began <= 1.0
    assert [event.worker for event in await mill.of(run_id, NodeCompleted, "b")] == ["knowing"]
    assert await mill.of(run_id, NodeFailed) == []


@simulated
async def test_a_drain_lets_attempts_finish(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=30_000)
    run_id = await worker.start(document(call("a", args={"seconds": 10}), call("b", "a")))
    await mill.until(lambda: ledger.running == 1)
    began = mill.loop.now
    await worker.stop()
    assert mill.loop.now - began <= 10.1
    assert ledger.cancelled == [] and ledger.count("b") == 0
    assert len(await mill.of(run_id, NodeCompleted, "a")) == 1
    (view,) = await mill.jobs(run_id)
    assert (view.job.key, view.token) == ("run/b/1/-1", 0)


@simulated
async def test_an_idle_worker_stops_at_once(mill: Cluster) -> None:
    worker = await mill.process()
    assert (await worker.run(chain("a"))).status == "COMPLETED"
    began = mill.loop.now
    await worker.stop()
    assert mill.loop.now - began <= 0.1


@pytest.mark.parametrize("seconds_before", [0.1, 12])
@simulated
async def test_what_does_not_finish_is_given_back_and_starts_elsewhere_at_once(
    mill: Cluster, seconds_before: float, ledger: Ledger
) -> None:
    """It is not an attempt, also when its start is in the log."""
    first = await mill.process("w1", functions={"work": ledger.work}, grace_ms=2_000)
    run_id = await first.start(document(call("a", args={"seconds": 20})))
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(seconds_before)
    assert len(await mill.of(run_id, NodeStarted)) == (seconds_before > 1)
    second = await mill.process("w2", functions={"work": ledger.work})
    await first.stop()
    assert len(ledger.cancelled) == 1
    waited = await mill.until(lambda: ledger.running == 1)
    assert waited <= 1
    run = await second.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 1)
    assert ledger.calls == [(f"{run_id}/a/1/-1", 1)] * 2
    assert await mill.of(run_id, NodeFailed) == []
    assert await mill.of(run_id, ResultDiscarded) == []


@simulated
async def test_a_drain_without_grace_gives_everything_back(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=0)
    run_id = await worker.start(document(call("m", args={"seconds": 9}, map={"over": list(range(20))})))
    await mill.until(lambda: ledger.running == 20)
    await worker.stop()
    views = await mill.jobs(run_id)
    assert len(views) == 20 and {view.token for view in views} == {0}
    assert len(ledger.cancelled) == 20


@simulated
async def test_a_drain_leaves_a_call_that_the_log_does_not_show_to_its_lease(mill: Cluster, ledger: Ledger) -> None:
    """A job that was given back would look as if nobody had begun it."""
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=0, concurrency=1)
    run_id = await worker.start(document(call("a", args={"seconds": 9}), call("b")))
    await mill.until(lambda: ledger.running == 1)
    worker.faulty_store.always("commit", refuse)
    await worker.stop()
    assert worker.engine.worker is not None and worker.engine.worker.returned == 0
    views = {view.job.key: view.token > 0 for view in await mill.jobs(run_id)}
    assert views == {"run/a/1/-1": True, "run/b/1/-1": False}
    assert "NodeStarted" not in await mill.kinds(run_id)
    other = await mill.process("w2", functions={"work": ledger.work})
    run = await other.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"], run.nodes["b"]["attempts"]) == ("COMPLETED", 2, 1)


@simulated
async def test_a_drain_while_runs_are_being_loaded_gives_back_what_was_claimed(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a")))
    first = mill.build("w1", functions={"work": ledger.work}, grace_ms=0)
    first.faulty_store.next("load", after_s(5))
    await first.open()
    await mill.until(lambda: first.faulty_store.fired["load"] == 1)
    first.faulty_store.next("release", after_s(0.3))
    await first.stop()
    assert [view.token for view in await mill.jobs(run_id)] == [0]
    second = await mill.process("w2", functions={"work": ledger.work})
    assert await mill.until(lambda: ledger.count("a") == 1) <= 1
    run = await second.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 1)


@simulated
async def test_a_drain_does_not_fail_when_the_store_is_gone(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, grace_ms=100)
    run_id = await worker.start(document(call("a", args={"seconds": 60})))
    await mill.until(lambda: ledger.running == 1)
    worker.faulty_store.always("release", refuse)
    await worker.stop()
    assert worker.faulty_store.fired["release"] == 1 and worker.faulty_store.calls["close"] == 1
    second = await mill.process("w2", functions={"work": ledger.work})
    run = await second.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 2)


@simulated
async def test_closing_what_was_never_opened_and_closing_twice(mill: Cluster) -> None:
    worker = mill.build()
    await worker.engine.close()
    for _ in range(3):
        await worker.open()
        claimed = worker.faulty_store.claimed
        assert (await worker.run(chain(*(f"n{i}" for i in range(20))))).status == "COMPLETED"
        assert worker.faulty_store.claimed - claimed <= 2
        await worker.engine.close()
        await worker.engine.close()
        claims = worker.faulty_store.calls["claim"]
        await asyncio.sleep(10)
        assert worker.faulty_store.calls["claim"] == claims


@simulated
async def test_a_worker_outlasts_an_outage(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 3}), node("b", "a"), call("c", "b")))
    await mill.until(lambda: ledger.running == 1)
    for verb in ("commit", "claim", "load", "renew", "release", "find", "jobs"):
        worker.faulty_store.always(verb, refuse)
    await asyncio.sleep(120)
    for verb in ("commit", "claim", "load", "renew", "release", "find", "jobs"):
        worker.faulty_store.always(verb, None)
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    assert worker.faulty_store.fired["claim"] > 100


@pytest.mark.parametrize("times", [1, 6])
@simulated
async def test_a_load_that_fails_is_not_a_lost_worker(mill: Cluster, times: int, ledger: Ledger) -> None:
    """A blip between claim and call uses up neither attempts nor the patience with lost workers."""
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a")))
    worker = mill.build(functions={"work": ledger.work})
    worker.faulty_store.next("load", *[refuse] * times)
    await worker.open()
    run = await client.end(run_id)
    assert worker.faulty_store.fired["load"] == times
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 1)
    assert await mill.of(run_id, NodeFailed) == []


@simulated
async def test_a_worker_whose_clock_is_wrong_works_all_the_same(mill: Cluster) -> None:
    worker = await mill.process()
    worker.ambient.skew_ms = 86_400_000
    run = await worker.run(
        document(
            node("s", type="sleep", config={"seconds": 20}),
            node("f", "s", type="fail", config={"attempts": 1, "value": 1, "retryable": True}),
        )
    )
    assert run.status == "COMPLETED"
    assert mill.loop.now - 1_000 == pytest.approx(21, abs=0.5)
    assert all(event.waited_ms < 60_000 for event in await mill.of(run.run_id, NodeCompleted))


@simulated
async def test_a_store_that_somebody_else_closed_is_not_asked_in_a_hurry(mill: Cluster) -> None:
    """Two engines on one store, and one of them closes it: claims then answer at once, with nothing."""
    worker = await mill.process(claim_wait_ms=1_000)
    await mill.store.close()
    await asyncio.sleep(10)
    assert worker.faulty_store.calls["claim"] <= 3_000
    await mill.store.open()
    assert (await worker.run(chain("a"))).status == "COMPLETED"


@simulated
async def test_many_runs_at_once(mill: Cluster) -> None:
    workers = [await mill.process(f"w{i}", concurrency=16) for i in range(2)]
    reference = await workers[0].publish(
        document(node("a"), *(node(f"b{i}", "a") for i in range(4)), node("c", *(f"b{i}" for i in range(4))))
    )
    runs = await asyncio.gather(*(workers[i % 2].start(reference) for i in range(100)))
    shown: list[Any] = await asyncio.gather(*(workers[0].end(run_id) for run_id in runs))
    assert {run.status for run in shown} == {"COMPLETED"}


@simulated
async def test_a_claim_that_fails_is_made_again(mill: Cluster) -> None:
    worker = mill.build()
    worker.faulty_store.next("claim", refuse, bug)
    await worker.open()
    async with asyncio.timeout(60):
        assert (await worker.run(chain("a"))).status == "COMPLETED"
    assert worker.faulty_store.fired["claim"] == 2


# What virtual time cannot show: threads. Real clocks, short leases, a second or two for all of it


LEASE_MS_OF_REAL_TIME = 400


@asynccontextmanager
async def _engine(
    store: MemoryStore, blobs: MemoryBlobs, name: str, functions: dict[str, Callable[..., Any]], **options: Any
) -> AsyncIterator[tuple[Engine, FaultyStore]]:
    faulty_store = FaultyStore(store)
    engine = Engine(
        store=faulty_store,
        blobs=blobs,
        ambient=RealAmbient(),
        handlers=built_in_handlers(functions),
        worker=WorkerOptions(name=name, **{"lease_ms": LEASE_MS_OF_REAL_TIME, "grace_ms": 2_000, **options}),
    )
    async with engine:
        yield engine, faulty_store


def _function(isolation: str = "inline", **more: Any) -> dict[str, Any]:
    return {"id": "a", "type": "python", "config": {"function": "work", "isolation": isolation}, **more}


async def test_a_handler_that_blocks_the_loop_keeps_its_lease() -> None:
    """Renewal has a thread of its own: the loop sleeps for four leases and nobody takes the job over."""
    calls: list[int] = []
    store, blobs = MemoryStore(), MemoryBlobs()
    blocked, stop = threading.Event(), threading.Event()
    claimed: list[int] = []

    def block(context: NodeContext) -> str:
        calls.append(context.attempt)
        blocked.set()
        time.sleep(4 * LEASE_MS_OF_REAL_TIME / 1000)
        return "kept"

    async def wait_for_a_chance() -> None:
        async with _engine(store, blobs, "rival", {"work": block}) as (_, faulty_store):
            await asyncio.to_thread(stop.wait)
            claimed.append(faulty_store.claimed)

    def rival() -> None:
        """Another process, in a loop of its own, that would love to have the job."""
        blocked.wait(10)
        asyncio.run(wait_for_a_chance())

    thread = threading.Thread(target=rival)
    thread.start()
    async with _engine(store, blobs, "w1", {"work": block}) as (engine, faulty_store):
        await engine.publish(document(_function()))
        run_id = await engine.start("test")
        try:
            run = await engine.result(run_id, timeout_s=20)
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)
    assert (run.status, run.outputs, run.nodes["a"]["attempts"]) == ("COMPLETED", {"a": "kept"}, 1)
    assert (calls, claimed) == ([1], [0])
    assert faulty_store.calls["renew"] >= 3


async def test_a_blocking_function_runs_in_a_thread_and_others_go_on() -> None:
    inside: list[threading.Thread] = []
    others_done = threading.Event()

    def block() -> bool:
        inside.append(threading.current_thread())
        return others_done.wait(50)

    async with _engine(MemoryStore(), MemoryBlobs(), "w1", {"work": block}) as (engine, _):
        await engine.publish(document(_function("thread"), node("z", "a", config="{{ a.output }}")))
        await engine.publish(document(node("q", config=1), name="quick"))
        run_id = await engine.start("test")
        quick = await engine.result(await engine.start("quick"), timeout_s=30)
        others_done.set()
        run = await engine.result(run_id, timeout_s=30)
    assert (quick.status, run.outputs) == ("COMPLETED", {"z": True})
    assert inside[0] is not threading.main_thread()


async def test_a_thread_that_takes_too_long_is_not_waited_for() -> None:
    release = threading.Event()

    def block() -> None:
        release.wait(50)

    async with _engine(MemoryStore(), MemoryBlobs(), "w1", {"work": block}) as (engine, _):
        await engine.publish(document(_function("thread", timeout_seconds=0.2, retry={"max_attempts": 1})))
        began = time.monotonic()
        run = await engine.result(await engine.start("test"), timeout_s=30)
        assert time.monotonic() - began < 30
        release.set()
    assert run.nodes["a"]["error"]["code"] == "timeout"


async def test_a_worker_stops_with_its_heart() -> None:
    before = {thread.name for thread in threading.enumerate()}
    async with _engine(MemoryStore(), MemoryBlobs(), "w1", {}) as (engine, _):
        assert any(thread.name == "tidemill-heart" for thread in threading.enumerate())
        await engine.publish(document(node("a")))
        assert (await engine.result(await engine.start("test"), timeout_s=30)).status == "COMPLETED"
    after = {thread.name for thread in threading.enumerate()}
    assert "tidemill-heart" not in after - before


@simulated
async def test_a_listener_is_told_the_attempt_of_the_last_node(mill: Cluster) -> None:
    worker = await mill.process()
    told: list[OutcomeReport] = []
    worker.engine.turns.listener = told.append
    branch = {"rules": [{"condition": "output > 1", "next_nodes": ["b"]}], "default": ["d"]}
    flow = document(node("a", config=1, branch=branch), node("b", "a"), node("d", "a", "b", join="any"))
    flow["outputs"] = {"d": "{{ d.output }}"}
    assert (await worker.run(flow)).status == "COMPLETED"
    assert [(report.node, report.attempt) for report in told] == [("a", 1), ("d", 1)]


@simulated
async def test_a_listener_is_told_how_every_attempt_ended(mill: Cluster) -> None:
    worker = await mill.process()
    told: list[OutcomeReport] = []
    worker.engine.turns.listener = told.append
    run = await worker.run(
        document(
            node("a", config=1),
            node("f", "a", type="fail", config={"attempts": 1, "retryable": True, "kind": "shaky"}),
            node("s", "f", when="false"),
            node("m", "f", type="fail", config={"kind": "odd"}, map={"over": [1], "tolerate": 1}),
            node("h", "m", type="fail", config={"kind": "handled"}, on_error="continue"),
        )
    )
    assert run.status == "COMPLETED"
    assert {report.run_id for report in told} == {run.run_id}
    found = [(report.node, report.index, report.attempt, report.outcome, report.tolerated) for report in told]
    assert sorted(found) == [
        ("a", -1, 1, "completed", False),
        ("f", -1, 1, "retrying", False),
        ("f", -1, 2, "completed", False),
        ("h", -1, 1, "failed", True),
        ("m", -1, 1, "completed", False),
        ("m", 0, 1, "failed", True),
        ("s", -1, 0, "skipped", False),
    ]
    assert [report.error.code for report in told if report.error is not None] == ["shaky", "odd", "handled"]
