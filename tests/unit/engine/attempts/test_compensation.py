"""Rollback by real workers: backwards, with the values of then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.fixtures.approvers import LARGE, child, code_of, human, signal, unchanged, waits
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.compensations import Compensations, trip, undo_with, undoing_process
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import call
from tidemill.handlers.contract import Done, Handler, NodeContext, Skip
from tidemill.kernel.events import (
    BlobRef,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    RollbackFinished,
    RollbackStarted,
)
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Stream, Tail


@simulated
async def test_what_completed_is_undone_backwards(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    run_id = await worker.start(trip(), {"who": "ada"}, key="trip")
    await waits(mill, run_id, "go")
    assert await unchanged(mill, run_id, worker.engine.rollback(run_id)) == "run_not_ended"
    await worker.engine.signal(run_id, "go")
    assert (await worker.end(run_id)).status == "COMPLETED"
    for _ in range(2):
        await worker.engine.rollback(run_id, reason="storm", actor="ada", command_id="undo")
    run = await worker.end(run_id)
    assert undoer.calls == [
        ("trip/tour/1/-1/undo", 1, "ada trip"),
        ("trip/hotel/1/-1/undo", 1, "h1 f1"),
        ("trip/flight/1/-1/undo", 1, "f1"),
    ]
    undone = ["tour/1/-1", "hotel/1/-1", "flight/1/-1"]
    assert (run.status, run.rollback) == ("COMPLETED", {"status": "done", "undone": undone, "left": []})
    assert (await mill.of(run_id, CompensationCompleted))[0].output == b'"undone tour"'
    (began,) = await mill.of(run_id, RollbackStarted)
    assert (began.actor, began.reason, began.steps) == ("ada", "storm", 3)
    assert len(await mill.rows("rollback:done")) == 1
    assert await unchanged(mill, run_id, worker.engine.rollback(run_id)) == "rollback_done"
    assert await unchanged(mill, run_id, worker.engine.retry(run_id)) == "run_completed"


@pytest.mark.parametrize("automatic", [True, False])
@simulated
async def test_a_failure_rolls_back_if_the_document_says_so(mill: Cluster, automatic: bool) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    top = {"on_failure": {"compensate": "automatic"}} if automatic else {}
    run = await worker.run(
        document(
            call("a", compensator=undo_with()),
            call("b", "a", compensator=undo_with()),
            node("f", "b", type="fail"),
            **top,
        )
    )
    assert run.status == "FAILED"
    assert undoer.nodes() == (["b", "a"] if automatic else [])
    assert run.rollback["status"] == ("done" if automatic else "none")
    if automatic:
        assert await unchanged(mill, run.run_id, worker.engine.retry(run.run_id)) == "run_rolled_back"
    else:
        await worker.engine.rollback(run.run_id)
        assert (await worker.end(run.run_id)).rollback["status"] == "done"


@pytest.mark.parametrize(("document_says", "asked"), [(True, None), (True, False), (False, None), (False, True)])
@simulated
async def test_a_cancel_rolls_back_if_somebody_says_so(mill: Cluster, document_says: bool, asked: bool | None) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    top = {"on_failure": {"compensate": "automatic"}} if document_says else {}
    run_id = await worker.start({**trip(), **top}, {"who": "ada"})
    await waits(mill, run_id, "go")
    await worker.engine.cancel(run_id, compensate=asked)
    run = await worker.end(run_id)
    expected = document_says if asked is None else asked
    assert (run.status, run.rollback["status"]) == ("CANCELLED", "done" if expected else "none")
    assert undoer.nodes() == (["tour", "hotel", "flight"] if expected else [])


@simulated
async def test_items_are_undone_one_by_one_with_what_each_was_given(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    run = await worker.run(
        document(
            call(
                "m",
                args={"value": "{{ item }}!"},
                map={"over": ["a", "b", "c"], "max_parallel": 1},
                compensator=undo_with("{{ index }} {{ item }} {{ output }}"),
            )
        ),
        key="r",
    )
    await worker.engine.rollback(run.run_id)
    await worker.end(run.run_id)
    assert undoer.calls == [
        ("r/m/1/2/undo", 1, "2 c c!"),
        ("r/m/1/1/undo", 1, "1 b b!"),
        ("r/m/1/0/undo", 1, "0 a a!"),
    ]


@simulated
async def test_every_pass_is_undone_with_the_values_that_it_had(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    loop = {"condition": "output < 2", "max_iterations": 9, "loop_back_to": "a"}
    run = await worker.run(
        document(
            node("a", config="{{ iteration * 10 }}", compensator=undo_with("a {{ output }}")),
            node("b", "a", config="{{ iteration }}", loop=loop, compensator=undo_with("{{ output }} {{ a.output }}")),
        )
    )
    await worker.engine.rollback(run.run_id)
    await worker.end(run.run_id)
    assert [value for _, _, value in undoer.calls] == ["2 20", "a 20", "1 10", "a 10", "0 0", "a 0"]


@simulated
async def test_a_rewound_visit_is_undone_with_the_values_that_it_had(mill: Cluster) -> None:
    undoer, number = Compensations(), iter(range(1, 9))

    def count() -> int:
        return next(number)

    worker = await undoing_process(mill, undoer, functions={"count": count})
    run_id = await worker.start(
        document(
            call("a", function="count", compensator=undo_with("a {{ output }}")),
            call(
                "b", "a", args={"value": "{{ a.output * 100 }}"}, compensator=undo_with("b {{ output }} {{ a.output }}")
            ),
            signal("go", "b"),
        ),
        key="r",
    )
    await waits(mill, run_id, "go")
    await worker.engine.rewind(run_id, "a")
    await waits(mill, run_id, "go", visit=2)
    await worker.engine.cancel(run_id, compensate=True)
    await worker.end(run_id)
    assert [(key.split("/")[2], value) for key, _, value in undoer.calls] == [
        ("2", "b 200 2"),
        ("2", "a 2"),
        ("1", "b 100 1"),
        ("1", "a 1"),
    ]


@simulated
async def test_large_values_are_at_hand(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    size = "{{ output | length }} {{ inputs.text | length }} {{ a.output | length }}"
    run = await worker.run(
        document(
            node("a", config=LARGE),
            call("b", "a", args={"value": LARGE + "b"}, compensator=undo_with(size)),
            call(
                "m",
                "b",
                args={"value": "{{ item }}"},
                map={"over": [LARGE, LARGE]},
                compensator={**undo_with("{{ item | length }}"), "timeout_seconds": 9},
            ),
        ),
        {"text": LARGE + "in"},
    )
    fresh = await undoing_process(mill, undoer, "fresh")
    worker.kill()
    await fresh.engine.rollback(run.run_id)
    assert (await fresh.end(run.run_id)).rollback["status"] == "done"
    n = len(LARGE)
    assert [value for _, _, value in undoer.calls] == [n, n, f"{n + 1} {n + 2} {n}"]


@simulated
async def test_a_large_answer_of_a_compensator_is_kept_by_content(mill: Cluster) -> None:
    worker = await mill.process(functions={"big": lambda: LARGE})
    config = {"function": "big", "isolation": "inline"}
    run = await worker.run(document(node("a", compensator={"type": "python", "config": config})))
    await worker.engine.rollback(run.run_id)
    assert (await worker.end(run.run_id)).rollback["status"] == "done"
    (completed,) = await mill.of(run.run_id, CompensationCompleted)
    assert isinstance(completed.output, BlobRef)


@simulated
async def test_decisions_signals_and_children_can_be_undone_too(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    await worker.publish(document(node("k", config="kid"), name="kid"))
    compensated = {"compensator": undo_with()}
    run_id = await worker.start(
        document(
            human("ok", node={"compensator": undo_with("{{ output.decided_by }}")}),
            signal("go", "ok", **compensated),
            child("c", "kid", "go", **compensated),
        )
    )
    await waits(mill, run_id, "ok")
    await worker.engine.decide(run_id, "ok", "approve", actor="ada")
    await waits(mill, run_id, "go")
    await worker.engine.signal(run_id, "go", "now")
    await worker.end(run_id)
    await worker.engine.rollback(run_id)
    await worker.end(run_id)
    assert [value for _, _, value in undoer.calls] == [{"k": "kid"}, "now", "user:ada"]


@simulated
async def test_a_visit_outside_a_loop_is_undone_with_what_the_loop_had_when_it_was_made(mill: Cluster) -> None:
    """An error path has left the loop, which then went on without it."""
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    once = {"attempts": "{{ 1 if iteration == 0 else 0 }}", "value": "fine"}
    loop = {"condition": "iteration < 2", "max_iterations": 9, "loop_back_to": "a"}
    run = await worker.run(
        document(
            node("a", config="pass {{ iteration }}"),
            node("b", "a", type="fail", config=once, on_error={"route": ["e"]}, retry={"max_attempts": 1}),
            node("c", "a", type="sleep", config={"seconds": 1}),
            node("l", "b", "c", loop=loop),
            node("e", "b", config="{{ a.output }}", compensator=undo_with("{{ output }} {{ a.output }}")),
        )
    )
    assert (run.status, run.nodes["a"]["visits"], run.nodes["e"]["output"]) == ("COMPLETED", 3, "pass 0")
    await worker.engine.rollback(run.run_id)
    await worker.end(run.run_id)
    assert [value for _, _, value in undoer.calls] == ["pass 0 pass 0"]


# Undoing that fails, takes too long, loses its worker or is stopped; and that says honestly what is left


async def _status(mill: Cluster, run_id: str) -> str:
    return (await mill.row(run_id)).rollback


async def _rolled_back(mill: Cluster, run_id: str, within_s: float = 900) -> Any:
    for _ in range(int(within_s * 10)):
        found = await mill.of(run_id, RollbackFinished)
        if found:
            return found[-1]
        await asyncio.sleep(0.1)
    raise AssertionError("the rollback does not end")


@simulated
async def test_undoing_is_tried_again_and_what_is_left_is_named(mill: Cluster) -> None:
    undoer = Compensations()
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
async def test_a_compensator_has_a_time_out_of_its_own(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    slow = undo_with(seconds=50, timeout_seconds=4)
    slow["retry"] = {"max_attempts": 2, "backoff_seconds": 1, "jitter": 0}
    run = await worker.run(document(call("a", compensator=slow)))
    await worker.engine.rollback(run.run_id)
    after = await worker.end(run.run_id)
    slow = {"code": "timeout", "message": "the attempt took longer than 4000 ms"}
    assert after.rollback == {"status": "partial", "undone": [], "left": ["a/1/-1"], "errors": {"a/1/-1": slow}}
    assert [event.error.code for event in await mill.of(run.run_id, CompensationFailed)] == ["timeout", "timeout"]
    assert mill.loop.now - 1_000 == pytest.approx(9, abs=2)


def _exits(context: NodeContext) -> Done:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("call_", "config", "code"),
    [
        (lambda context: Skip("no"), None, "answer_invalid"),
        (lambda context: Done(object()), None, "output_not_json"),
        (lambda context: Done(1), "{{ inputs.nothing.there }}", "template_failed"),
        (lambda context: Done(1), 5, "config_invalid"),
        (_exits, None, ""),
    ],
)
@simulated
async def test_a_compensator_that_misbehaves_is_a_failure_and_nothing_more(
    mill: Cluster, call_: Any, config: Any, code: str
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
async def test_a_worker_without_the_handler_leaves_it_to_another(mill: Cluster) -> None:
    done: list[str] = []

    async def undo(context: NodeContext) -> Done:
        done.append(context.effect_key)
        return Done(None)

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
async def test_a_worker_that_dies_while_it_undoes(mill: Cluster) -> None:
    undoer = Compensations()
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
async def test_five_workers_lost_in_a_row_are_enough(mill: Cluster) -> None:
    undoer = Compensations()
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
    assert after.rollback["errors"]["b/1/-1"]["code"] == "worker_killer"
    assert (after.rollback["undone"], after.rollback["left"]) == (["a/1/-1"], ["b/1/-1"])
    assert undoer.nodes() == ["b"] * 5 + ["a"]
    assert (await mill.of(run.run_id, CompensationFailed))[-1].error.code == "worker_killer"


@simulated
async def test_a_rollback_is_only_stopped_by_force(mill: Cluster) -> None:
    undoer = Compensations()
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
    mill: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its log nobody knows what a visit saw, and undoing it with something else would be wrong."""
    undoer, damaged = Compensations(), list[Tail]()
    worker = await undoing_process(mill, undoer)
    loop = {"condition": "output < 1", "max_iterations": 9, "loop_back_to": "a"}
    run = await worker.run(
        document(
            node("a", config=0),
            node("a2", "a", config="{{ iteration }}", loop=loop, compensator=undo_with("{{ output }}")),
        )
    )
    load = worker.faulty_store.load

    async def damaging(after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None) -> list[Tail]:
        tails = await load(after, snapshots=snapshots, limit=limit)
        if snapshots or len(damaged) >= 2:
            return tails
        damaged.extend(tails)
        return [msgspec.structs.replace(tail, records=(), damage="a bit flipped") for tail in tails]

    monkeypatch.setattr(worker.faulty_store, "load", damaging)
    await worker.engine.rollback(run.run_id)
    await worker.end(run.run_id)
    assert len(damaged) == 2
    assert [value for _, _, value in undoer.calls] == [1, 0]
    assert "Traceback" not in caplog.text
