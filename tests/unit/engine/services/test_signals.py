"""Signals through the façade: sent before or while somebody waits, once, from any process, of any size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import LARGE, code_of, signal, unchanged, waits
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.kernel.decide.waits import SIGNALS_MAX
from tidemill.kernel.events import BlobRef, NodeCompleted, RunCompleted, SignalReceived
from tidemill.testing.faulty_store import lose_reply


@simulated
async def test_a_signal_ends_the_wait_with_its_payload(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    run_id = await client.start(document(signal("paid"), node("z", "paid", config="{{ paid.output.sum }}")))
    await waits(mill, run_id, "paid")
    sent = await client.engine.signal(run_id, "paid", {"sum": 7}, signal_id="s1", actor="bank")
    assert sent == "s1"
    assert (await worker.end(run_id)).outputs == {"z": 7}
    (received,) = await mill.of(run_id, SignalReceived)
    assert (received.node, received.signal, received.actor) == ("paid", "s1", "bank")


@simulated
async def test_a_signal_that_comes_first_is_kept_until_somebody_waits(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("s", type="sleep", config={"seconds": 30}), signal("go", "s")))
    await worker.engine.signal(run_id, "go", "early")
    await asyncio.sleep(10)
    assert (await mill.state(run_id)).peek("go").status == "PENDING"
    run = await worker.end(run_id)
    assert run.outputs == {"go": "early"}
    assert mill.loop.now - 1_000 == pytest.approx(30, abs=1)


@simulated
async def test_signals_are_taken_once_and_in_order(mill: Cluster) -> None:
    worker = await mill.process()
    names = {"name": "go"}
    run_id = await worker.start(
        document(
            node("s", type="sleep", config={"seconds": 5}),
            signal("a", "s", config=names),
            signal("b", "a", config=names),
            signal("c", "b", config=names),
        )
    )
    for number in range(2):
        await worker.engine.signal(run_id, "go", number)
    await waits(mill, run_id, "c")
    await worker.engine.signal(run_id, "go", 2)
    run = await worker.end(run_id)
    assert [run.nodes[name]["output"] for name in "abc"] == [0, 1, 2]


@simulated
async def test_the_same_signal_twice_is_one(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    config = {"name": "go"}
    run_id = await worker.start(document(signal("a", config=config), signal("b", "a", config=config)))
    await waits(mill, run_id, "a")
    for process in (client, worker, client):
        assert await process.engine.signal(run_id, "go", process.name, signal_id="s1") == "s1"
    await waits(mill, run_id, "b")
    assert len(await mill.of(run_id, SignalReceived)) == 1
    ids = {await worker.engine.signal(run_id, "go", "other")}
    assert ids and "s1" not in ids
    run = await worker.end(run_id)
    assert (run.nodes["a"]["output"], run.nodes["b"]["output"]) == ("client", "other")


@simulated
async def test_a_signal_whose_answer_was_lost_is_taken_once(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    config = {"name": "go"}
    run_id = await worker.start(document(signal("a", config=config), signal("b", "a", config=config)))
    await waits(mill, run_id, "a")
    client.faulty_store.next("commit", lose_reply)
    await client.engine.signal(run_id, "go", 1)
    assert client.faulty_store.fired["commit"] == 1
    await asyncio.sleep(5)
    assert len(await mill.of(run_id, SignalReceived)) == 1
    assert (await mill.state(run_id)).peek("b").status == "WAITING"
    await client.engine.signal(run_id, "go", 2)
    assert (await worker.end(run_id)).outputs == {"b": 2}


@pytest.mark.parametrize("early", [False, True])
@simulated
async def test_a_large_payload_travels_as_a_reference_and_comes_out_whole(mill: Cluster, early: bool) -> None:
    worker = await mill.process()
    gate = node("s", type="sleep", config={"seconds": 9})
    run_id = await worker.start(
        document(gate, signal("go", "s"), node("z", "go", config="{{ go.output.text | length }}"))
    )
    if not early:
        await waits(mill, run_id, "go")
    await worker.engine.signal(run_id, "go", {"text": LARGE})
    run = await worker.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"z": len(LARGE)})
    assert run.nodes["go"]["output"] == {"text": LARGE}
    (received,) = await mill.of(run_id, SignalReceived)
    (completed,) = await mill.of(run_id, NodeCompleted, "go")
    assert isinstance(received.payload, BlobRef) and completed.output == received.payload


@simulated
async def test_conditions_look_at_a_large_payload(mill: Cluster) -> None:
    worker = await mill.process()
    loop = {"condition": "size(output) < 100000", "max_iterations": 5}
    run_id = await worker.start(document(signal("go", loop=loop)))
    for visit, times in ((1, 1), (2, 2)):
        await waits(mill, run_id, "go", visit=visit)
        await worker.engine.signal(run_id, "go", LARGE * times)
    run = await worker.end(run_id)
    assert (run.status, run.nodes["go"]["visits"]) == ("COMPLETED", 2)


@simulated
async def test_what_cannot_be_a_signal_is_refused(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("go")))
    await waits(mill, run_id, "go")
    send: Any = worker.engine.signal
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        ("go", float("nan"), {}, "payload_not_json"),
        ("go", object(), {}, "payload_not_json"),
        ("go", "\ud800", {}, "payload_not_json"),
        ("", 1, {}, "signal_invalid"),
        ("go", 1, {"signal_id": ""}, "signal_invalid"),
        ("x" * 201, 1, {}, "text_invalid"),
        (5, 1, {}, "text_invalid"),
        ("go", 1, {"signal_id": "x" * 201}, "text_invalid"),
        ("go", 1, {"actor": 5}, "text_invalid"),
        ("stop", 1, {}, "signal_unknown"),
    ]
    for name, payload, more, code in cases:
        assert await unchanged(mill, run_id, send(run_id, name, payload, **more)) == code, (name, payload)
    assert await code_of(send("nobody", "go")) == "run_unknown"


@simulated
async def test_after_the_end_nobody_is_told(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("go")))
    await worker.engine.signal(run_id, "go", 1, signal_id="s1")
    await worker.end(run_id)
    assert await unchanged(mill, run_id, worker.engine.signal(run_id, "go", 2)) == "run_ended"
    # The one that was taken is still answered like the first time.
    assert await worker.engine.signal(run_id, "go", 1, signal_id="s1") == "s1"


@simulated
async def test_signals_that_nobody_took_are_named_at_the_end(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("go"), node("w", type="sleep", config={"seconds": 5})))
    for number in range(3):
        await worker.engine.signal(run_id, "go", number)
    await worker.end(run_id)
    (completed,) = await mill.of(run_id, RunCompleted)
    assert completed.unread == ("go",)


@simulated
async def test_a_run_keeps_a_bounded_number_of_signals(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(signal("go")))
    for number in range(SIGNALS_MAX):
        await client.engine.signal(run_id, "go", number)
    assert await unchanged(mill, run_id, client.engine.signal(run_id, "go", "more")) == "signals_full"
    worker = await mill.process()
    assert (await worker.end(run_id)).outputs == {"go": 0}


@simulated
async def test_a_wait_for_a_signal_takes_no_longer_than_the_node_may(mill: Cluster) -> None:
    worker = await mill.process()
    retry = {"max_attempts": 2, "backoff_seconds": 1, "jitter": 0}
    run_id = await worker.start(document(signal("go", timeout_seconds=10, retry=retry)))
    run = await worker.end(run_id)
    assert run.error is not None and (run.error["code"], run.nodes["go"]["attempts"]) == ("timeout", 2)
    assert mill.loop.now - 1_000 == pytest.approx(21, abs=2)


@simulated
async def test_items_of_a_map_take_one_signal_each(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("go", map={"over": [1, 2, 3]})))
    await waits(mill, run_id, "go", index=2)
    for number in range(3):
        await worker.engine.signal(run_id, "go", number)
    assert (await worker.end(run_id)).outputs == {"go": [0, 1, 2]}
