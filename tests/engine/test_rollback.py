"""Rollback by real workers: backwards, with the values of then."""

from __future__ import annotations

import pytest

from tests.engine.kit import Mill, simulated
from tests.engine.people import LARGE, child, human, signal, unchanged, waits
from tests.engine.scripts import call
from tests.engine.undoer import Undoer, trip, undo_with, undoing_process
from tests.kernel.authoring import document, node
from tidemill.kernel.events import BlobRef, CompensationCompleted, RollbackStarted


@simulated
async def test_what_completed_is_undone_backwards(mill: Mill) -> None:
    undoer = Undoer()
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
async def test_a_failure_rolls_back_if_the_document_says_so(mill: Mill, automatic: bool) -> None:
    undoer = Undoer()
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
async def test_a_cancel_rolls_back_if_somebody_says_so(mill: Mill, document_says: bool, asked: bool | None) -> None:
    undoer = Undoer()
    worker = await undoing_process(mill, undoer)
    top = {"on_failure": {"compensate": "automatic"}} if document_says else {}
    run_id = await worker.start({**trip(), **top}, {"who": "ada"})
    await waits(mill, run_id, "go")
    await worker.engine.cancel(run_id, compensate=asked)
    run = await worker.end(run_id)
    expected = document_says if asked is None else asked
    assert (run.status, run.rollback["status"]) == ("CANCELLED", "done" if expected else "none")
    assert undoer.nodes() == (["tour", "hotel", "flight"] if expected else [])


# The values of then


@simulated
async def test_items_are_undone_one_by_one_with_what_each_was_given(mill: Mill) -> None:
    undoer = Undoer()
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
async def test_every_pass_is_undone_with_the_values_that_it_had(mill: Mill) -> None:
    undoer = Undoer()
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
async def test_a_rewound_visit_is_undone_with_the_values_that_it_had(mill: Mill) -> None:
    undoer, number = Undoer(), iter(range(1, 9))

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
async def test_large_values_are_at_hand(mill: Mill) -> None:
    undoer = Undoer()
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
async def test_a_large_answer_of_a_compensator_is_kept_by_content(mill: Mill) -> None:
    worker = await mill.process(functions={"big": lambda: LARGE})
    config = {"function": "big", "isolation": "inline"}
    run = await worker.run(document(node("a", compensator={"type": "python", "config": config})))
    await worker.engine.rollback(run.run_id)
    assert (await worker.end(run.run_id)).rollback["status"] == "done"
    (completed,) = await mill.of(run.run_id, CompensationCompleted)
    assert isinstance(completed.output, BlobRef)


@simulated
async def test_decisions_signals_and_children_can_be_undone_too(mill: Mill) -> None:
    undoer = Undoer()
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
async def test_a_visit_outside_a_loop_is_undone_with_what_the_loop_had_when_it_was_made(mill: Mill) -> None:
    """An error path has left the loop, which then went on without it."""
    undoer = Undoer()
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
