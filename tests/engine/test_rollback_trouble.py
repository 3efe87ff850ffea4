"""Undoing that fails, takes too long, loses its worker or is stopped; and that says honestly what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.engine.kit import Mill, simulated
from tests.engine.people import code_of, unchanged, waits
from tests.engine.scripts import call
from tests.engine.undoer import Undoer, trip, undo_with, undoing_process
from tests.kernel.authoring import document, node
from tidemill.handlers.contract import Handler, NodeContext, Return, Skip
from tidemill.kernel.events import CompensationCompleted, CompensationFailed, CompensationScheduled, RollbackFinished
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Stream, Tail


async def _status(mill: Mill, run_id: str) -> str:
    return (await mill.row(run_id)).rollback


async def _rolled_back(mill: Mill, run_id: str, within_s: float = 900) -> Any:
    for _ in range(int(within_s * 10)):
        found = await mill.of(run_id, RollbackFinished)
        if found:
            return found[-1]
        await asyncio.sleep(0.1)
    raise AssertionError("the rollback does not end")


@simulated
async def test_undoing_is_tried_again_and_what_is_left_is_named(mill: Mill) -> None:
    undoer = Undoer()
    undoer.failing = {"flight": 1, "hotel": 99}
    worker = await undoing_process(mill, undoer)
    document_ = trip()
    document_["nodes"][0]["compensator"]["retry"] = {"max_attempts": 3, "backoff_seconds": 30, "jitter": 0}
    document_["nodes"][1]["compensator"]["retry"] = {"max_attempts": 2, "backoff_seconds": 1, "jitter": 0}
    run_id = await worker.start(document_, {"who": "ada"}, key="r")
    await waits(mill, run_id, "go")
    await worker.engine.cancel(run_id, compensate=True)
    began = mill.loop.now
    run = await worker.end(run_id)
    assert mill.loop.now - began == pytest.approx(31, abs=2)
    assert [(key.split("/")[1], attempt) for key, attempt, _ in undoer.calls] == [
        ("tour", 1),
        ("hotel", 1),
        ("hotel", 2),
        ("flight", 1),
        ("flight", 2),
    ]
    assert (run.rollback["status"], run.rollback["left"]) == ("partial", ["hotel/1/-1"])
    assert len(await mill.rows("rollback:partial")) == 1
    undoer.failing.clear()
    await worker.engine.rollback(run_id)
    after = (await worker.end(run_id)).rollback
    assert (after["status"], after["left"]) == ("done", [])
    assert set(after["undone"]) == {"tour/1/-1", "hotel/1/-1", "flight/1/-1"}
    assert undoer.nodes()[5:] == ["hotel"]


@simulated
async def test_a_compensator_has_a_time_out_of_its_own(mill: Mill) -> None:
    undoer = Undoer()
    worker = await undoing_process(mill, undoer)
    slow = undo_with(seconds=50, timeout_seconds=4)
    slow["retry"] = {"max_attempts": 2, "backoff_seconds": 1, "jitter": 0}
    run = await worker.run(document(call("a", compensator=slow)))
    await worker.engine.rollback(run.run_id)
    after = await worker.end(run.run_id)
    assert after.rollback == {"status": "partial", "undone": [], "left": ["a/1/-1"]}
    assert [event.error.code for event in await mill.of(run.run_id, CompensationFailed)] == ["timeout", "timeout"]
    assert mill.loop.now - 1_000 == pytest.approx(9, abs=2)


def _exits(context: NodeContext) -> Return:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("call_", "config", "code"),
    [
        (lambda context: Skip("no"), None, "answer_invalid"),
        (lambda context: Return(object()), None, "output_not_json"),
        (lambda context: Return(1), "{{ inputs.nothing.there }}", "template_failed"),
        (lambda context: Return(1), 5, "config_invalid"),
        (_exits, None, ""),
    ],
)
@simulated
async def test_a_compensator_that_misbehaves_is_a_failure_and_nothing_more(
    mill: Mill, call_: Any, config: Any, code: str
) -> None:
    odd = Handler(NodeType(name="odd", config_schema={"not": {"type": "integer"}}), call_)
    worker = await mill.process(more=[odd])
    compensator = {"type": "odd", "config": config if config != 5 else "{{ inputs.five }}"}
    compensator["retry"] = {"max_attempts": 1}
    run = await worker.run(document(node("a", compensator=compensator)), {"five": 5})
    await worker.engine.rollback(run.run_id)
    assert (await worker.end(run.run_id)).rollback["status"] == "partial"
    (failed,) = await mill.of(run.run_id, CompensationFailed)
    assert failed.error.code == code or not code


@simulated
async def test_a_worker_without_the_handler_leaves_it_to_another(mill: Mill) -> None:
    done: list[str] = []

    async def undo(context: NodeContext) -> Return:
        done.append(context.effect_key)
        return Return(None)

    special = Handler(NodeType(name="special"), undo)
    knowing = await mill.process("w1", more=[special])
    run = await knowing.run(document(node("a", compensator={"type": "special"})))
    knowing.kill()
    ignorant = await mill.process("w2")
    await ignorant.engine.rollback(run.run_id)
    await asyncio.sleep(60)
    assert (await _status(mill, run.run_id), done) == ("running", [])
    assert await mill.of(run.run_id, CompensationFailed) == []
    await mill.process("w3", more=[special])
    assert (await _rolled_back(mill, run.run_id)).status == "done"
    assert len(done) == 1


@simulated
async def test_a_worker_that_dies_while_it_undoes(mill: Mill) -> None:
    undoer = Undoer()
    worker = await undoing_process(mill, undoer, lease_ms=3_000)
    run = await worker.run(
        document(call("a", compensator=undo_with()), call("b", "a", compensator=undo_with(seconds=20)))
    )
    await worker.engine.rollback(run.run_id)
    await mill.until(lambda: len(undoer.calls) == 1)
    worker.kill()
    second = await undoing_process(mill, undoer, "w2", lease_ms=3_000)
    after = await second.end(run.run_id)
    assert after.rollback["status"] == "done"
    assert [(key.split("/")[1], attempt) for key, attempt, _ in undoer.calls] == [("b", 1), ("b", 2), ("a", 1)]
    (lost,) = await mill.of(run.run_id, CompensationFailed)
    assert lost.error.code == "worker_lost" and lost.lost
    assert len({key for key, _, _ in undoer.calls if "/b/" in key}) == 1


@simulated
async def test_five_workers_lost_in_a_row_are_enough(mill: Mill) -> None:
    undoer = Undoer()
    client = await mill.process("client", work=False)
    worker = await undoing_process(mill, undoer, lease_ms=3_000)
    run = await worker.run(
        document(call("a", compensator=undo_with()), call("b", "a", compensator=undo_with(seconds=20)))
    )
    await client.engine.rollback(run.run_id)
    for number in range(5):
        await mill.until(partial(undoer.has_begun, "b", number + 1))
        worker.kill()
        worker = await undoing_process(mill, undoer, f"next{number}", lease_ms=3_000)
    after = await worker.end(run.run_id)
    assert after.rollback == {"status": "partial", "undone": ["a/1/-1"], "left": ["b/1/-1"]}
    assert undoer.nodes() == ["b"] * 5 + ["a"]
    assert (await mill.of(run.run_id, CompensationFailed))[-1].error.code == "worker_killer"


# Stopped


@simulated
async def test_a_rollback_is_only_stopped_by_force(mill: Mill) -> None:
    undoer = Undoer()
    worker = await undoing_process(mill, undoer)
    run = await worker.run(
        document(
            call("a", compensator=undo_with()), call("b", "a", compensator=undo_with(seconds=60, timeout_seconds=90))
        )
    )
    await worker.engine.rollback(run.run_id)
    await mill.until(lambda: len(undoer.calls) == 1)
    assert await unchanged(mill, run.run_id, worker.engine.cancel(run.run_id)) == "rollback_running"
    assert await unchanged(mill, run.run_id, worker.engine.rollback(run.run_id)) == "rollback_running"
    assert await code_of(worker.engine.retry(run.run_id)) in ("run_completed", "run_rolled_back")
    await worker.engine.cancel(run.run_id, force=True)
    after = await worker.end(run.run_id)
    assert after.status == "COMPLETED"
    assert after.rollback == {"status": "partial", "undone": [], "left": ["b/1/-1", "a/1/-1"]}
    await asyncio.sleep(100)
    assert await mill.of(run.run_id, CompensationCompleted) == []
    assert len(await mill.of(run.run_id, CompensationScheduled)) == 1
    assert undoer.nodes() == ["b"]


@simulated
async def test_undoing_waits_for_a_log_that_cannot_be_read(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its log nobody knows what a visit saw, and undoing it with something else would be wrong."""
    undoer, damaged = Undoer(), list[Tail]()
    worker = await undoing_process(mill, undoer)
    loop = {"condition": "output < 1", "max_iterations": 9, "loop_back_to": "a"}
    run = await worker.run(
        document(
            node("a", config=0),
            node("a2", "a", config="{{ iteration }}", loop=loop, compensator=undo_with("{{ output }}")),
        )
    )
    load = worker.door.load

    async def damaging(after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None) -> list[Tail]:
        tails = await load(after, snapshots=snapshots, limit=limit)
        if snapshots or len(damaged) >= 2:
            return tails
        damaged.extend(tails)
        return [msgspec.structs.replace(tail, records=(), damage="a bit flipped") for tail in tails]

    monkeypatch.setattr(worker.door, "load", damaging)
    await worker.engine.rollback(run.run_id)
    await worker.end(run.run_id)
    assert len(damaged) == 2
    assert [value for _, _, value in undoer.calls] == [1, 0]
    assert "Traceback" not in caplog.text
