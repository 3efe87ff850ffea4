"""Dead letters: what was given up on, shown with what it was given, and tried again or taken off the list."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fixtures.approvers import LARGE, code_of, refused, unchanged
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.index_rows import DeadLetterRow
from tidemill.kernel.events import DeadLetterClosed, RunPatched


class RepairableFunction:
    """A function that fails until it is repaired."""

    def __init__(self) -> None:
        self.open = False
        self.ledger = Ledger()

    def sell(self, context: Any, what: Any = None) -> Any:
        self.ledger.quick(context)
        if not self.open:
            raise RuntimeError("closed")
        return what


def _sale(name: str = "test", **fields: Any) -> dict[str, Any]:
    sell = call("sell", "a", function="sell", args={"what": "{{ a.output }}"}, retry={"max_attempts": 2}, **fields)
    return document(node("a", config="{{ inputs.x }}"), sell, node("z", "sell"), name=name)


async def _process(mill: Cluster, repairable: RepairableFunction) -> Process:
    return await mill.process(functions={"sell": repairable.sell, "work": repairable.ledger.quick})


async def _roll_back(worker: Process, flow: dict[str, Any], key: str) -> None:
    """Let a run fail and be rolled back: it cannot be retried."""
    undone = node("paid", compensator={"type": "value", "config": 1})
    await worker.run(
        {**flow, "nodes": [undone, *({**each, "dependencies": ["paid"]} for each in flow["nodes"])]}, key=key
    )
    await worker.engine.rollback(key)


async def _letters(process: Process, *terms: str) -> list[DeadLetterRow]:
    return (await process.engine.dead_letters.find(terms))[0]


@simulated
async def test_a_letter_is_listed_with_what_failed(mill: Cluster) -> None:
    worker = await _process(mill, RepairableFunction())
    run = await worker.run(_sale(), {"x": 7}, key="r")
    (row,) = await _letters(worker)
    assert (row.run_id, row.workflow, row.node, row.visit, row.index) == ("r", "test", "sell", 1, -1)
    assert (row.attempts, row.code, row.message, row.status) == (2, "exception", "RuntimeError: closed", "open")
    assert row.at_ms == (await mill.row("r")).ended_ms
    for term in ("status:open", "run:r", "workflow:test", "node:test/sell", "code:exception"):
        assert await _letters(worker, term) == [row]
    for term in ("status:discarded", "run:other", "node:test/a", "code:timeout"):
        assert await _letters(worker, term) == []
    assert run.status == "FAILED"


@simulated
async def test_letters_come_page_by_page(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(document(node("f", type="fail")))
    runs = [(await worker.run(reference)).run_id for _ in range(11)]
    seen: list[str] = []
    after: str | None = None
    while True:
        rows, after = await worker.engine.dead_letters.find(["status:open"], after=after, limit=4)
        seen += [row.run_id for row in rows]
        if after is None:
            break
    assert sorted(seen) == sorted(runs) and len(seen) == 11
    assert await code_of(worker.engine.dead_letters.find(limit=0)) == "limit_invalid"


@simulated
async def test_a_retry_closes_the_letter_and_says_who_and_when(mill: Cluster) -> None:
    repairable = RepairableFunction()
    worker = await _process(mill, repairable)
    await worker.run(_sale(), {"x": 7}, key="r")
    await asyncio.sleep(50)
    repairable.open = True
    now_ms = mill.now_ms()
    await worker.engine.retry("r", reason="opened again", actor="ada")
    (row,) = await _letters(worker)
    assert (row.status, row.closed_by, row.closed_ms, row.reason) == ("reprocessed", "ada", now_ms, "opened again")
    assert await _letters(worker, "status:open") == []
    assert await code_of(worker.engine.discard("r", "sell")) == "dead_letter_closed"
    assert (await worker.end("r")).status == "COMPLETED"


@simulated
async def test_a_discarded_letter(mill: Cluster) -> None:
    worker = await _process(mill, RepairableFunction())
    await worker.run(_sale(), {"x": 7}, key="r")
    engine = worker.engine
    for asked in (
        engine.discard("r", "a"),
        engine.discard("r", "nobody"),
        engine.discard("r", "sell", visit=2),
        engine.discard("r", "sell", index=0),
    ):
        assert await unchanged(mill, "r", asked) == "dead_letter_unknown"
    assert await code_of(engine.discard("nobody", "sell")) == "run_unknown"
    for _ in range(2):
        await engine.discard("r", "sell", reason="obsolete", actor="ada", command_id="d1")
    await engine.discard("r", "sell", reason="again", actor="bob")
    (row,) = await _letters(worker)
    assert (row.status, row.closed_by, row.reason) == ("discarded", "ada", "obsolete")
    assert len(await mill.of("r", DeadLetterClosed)) == 1
    assert (await mill.row("r")).dead_letters == 0
    assert (await engine.reprocess(workflow="test")).matched == 0


@simulated
async def test_what_tolerate_or_on_error_handles_is_no_letter(mill: Cluster) -> None:
    worker = await mill.process()
    maps = {"over": [0, 9, 0, 9], "tolerate": 2}
    fails = {"attempts": "{{ item }}", "kind": "bad"}
    run = await worker.run(
        document(node("m", type="fail", config=fails, map=maps), node("t", "m", type="fail", on_error="continue")),
        key="r",
    )
    row = await mill.row("r")
    assert (run.status, row.dead_letters, await _letters(worker)) == ("COMPLETED", 0, [])
    assert row.tolerated == 3


@simulated
async def test_a_failed_map_that_was_retried_leaves_no_letter_open(mill: Cluster) -> None:
    worker = await mill.process()
    maps = {"over": [8, 9, 7], "tolerate": 1, "max_parallel": 1}
    await worker.run(document(node("m", type="fail", config={"kind": "bad"}, map=maps)), key="r")
    letters = await _letters(worker, "status:open")
    assert sorted((row.node, row.index) for row in letters) == [("m", 1)]
    shown = await worker.engine.dead_letter("r", "m")
    assert (shown["index"], shown["status"]) == (1, "open"), "without an index it is the item that failed the map"
    patch = [{"op": "replace", "path": "/nodes/m/type", "value": "value"}]
    outcome = await worker.engine.reprocess(run_id="r", operations=patch)
    assert [(each.result, each.letters) for each in outcome.runs] == [("retried", 1)]
    await worker.end("r")
    row = await mill.row("r")
    assert (row.status, row.dead_letters, await _letters(worker, "status:open")) == ("COMPLETED", 0, [])


@simulated
async def test_a_letter_shows_what_the_node_was_given(mill: Cluster) -> None:
    worker = await _process(mill, RepairableFunction())
    await worker.run(_sale(), {"x": {"deep": [7, LARGE]}}, key="r")
    shown = await worker.engine.dead_letter("r", "sell")
    args = {"what": {"deep": [7, LARGE]}}
    assert shown["input"] == {"function": "sell", "isolation": "inline", "args": args}
    assert (shown["status"], shown["attempts"], shown["visit"], shown["index"]) == ("open", 2, 1, None)
    assert (shown["error"]["code"], shown["error"]["message"]) == ("exception", "closed")
    assert (shown["closed_by"], shown["closed_ms"], shown["reason"]) == (None, None, "")
    await worker.engine.retry("r", actor="ada", reason="once more")
    closed = await worker.engine.dead_letter("r", "sell")
    assert (closed["status"], closed["closed_by"], closed["reason"]) == ("reprocessed", "ada", "once more")
    await worker.end("r")
    assert (await worker.engine.dead_letter("r", "sell"))["status"] == "open"
    await worker.engine.discard("r", "sell", actor="bob", reason="enough")
    closed = await worker.engine.dead_letter("r", "sell")
    assert (closed["status"], closed["closed_by"], closed["reason"]) == ("discarded", "bob", "enough")
    assert closed["closed_ms"] == mill.now_ms()
    assert await code_of(worker.engine.dead_letter("r", "a")) == "dead_letter_unknown"
    assert await code_of(worker.engine.dead_letter("nobody", "a")) == "run_unknown"


@simulated
async def test_the_letter_of_an_item_shows_what_the_item_was_given(mill: Cluster) -> None:
    worker = await _process(mill, RepairableFunction())
    sell = call("m", "a", function="sell", args={"what": "{{ index }}: {{ item.n }} {{ a.output }}"})
    for number, over in enumerate(([{"n": 5}, {"n": 6}], [{"n": 5, "more": LARGE}, {"n": 6}])):
        maps = {"over": over, "tolerate": 1, "max_parallel": 1}
        run = await worker.run(document(node("a", config="!"), {**sell, "map": maps, "retry": {"max_attempts": 1}}))
        shown = await worker.engine.dead_letter(run.run_id, "m", index=1)
        assert (shown["input"]["args"], shown["index"]) == ({"what": "1: 6 !"}, 1), number


@simulated
async def test_a_letter_about_an_input_that_cannot_be_made_has_none(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config="{{ inputs.nothing.there }}")))
    shown = await worker.engine.dead_letter(run.run_id, "a")
    assert (shown["error"]["code"], shown["input"]) == ("template_failed", None)


@simulated
async def test_a_letter_shows_the_values_of_its_moment(mill: Cluster) -> None:
    """The run has been patched and its nodes went on: the letter of the first visit still tells of the first."""
    worker = await mill.process()
    loop = {"condition": "iteration < 2", "max_iterations": 5, "loop_back_to": "a"}
    fails = {"kind": "bad", "message": "{{ a.output }}"}
    await worker.run(
        document(
            node("a", config="pass {{ iteration }}"),
            node("f", "a", type="fail", config=fails, map={"over": [1]}),
            node("l", "f", loop=loop),
        ),
        key="r",
    )
    patch = [{"op": "replace", "path": "/nodes/f/type", "value": "value"}]
    await worker.engine.patch("r", patch, retry=True)
    assert (await worker.end("r")).nodes["f"]["visits"] == 3
    shown = await worker.engine.dead_letter("r", "f", visit=1, index=0)
    assert (shown["visit"], shown["input"]["message"], shown["status"]) == (1, "pass 0", "reprocessed")


async def _failed_runs(worker: Process) -> None:
    for name, count in (("books", 3), ("shoes", 2)):
        for number in range(count):
            await worker.run(_sale(name), {"x": number}, key=f"{name}-{number}")
    await worker.run(document(node("f", type="fail", config={"kind": "odd"}), name="odd"), key="odd-0")


@simulated
async def test_letters_are_tried_again_by_what_they_have_in_common(mill: Cluster) -> None:
    repairable = RepairableFunction()
    worker = await _process(mill, repairable)
    await _failed_runs(worker)
    engine = worker.engine

    async def counted(**which: Any) -> tuple[int, int]:
        before = [await mill.events(row.run_id) for row in await mill.rows()]
        outcome = await engine.reprocess(dry_run=True, **which)
        assert {each.result for each in outcome.runs} <= {"would retry"}
        assert [await mill.events(row.run_id) for row in await mill.rows()] == before
        return outcome.matched, len(outcome.runs)

    assert await counted(run_id="books-1") == (1, 1)
    assert await counted(run_id="books-1", node="sell") == (1, 1)
    assert await counted(run_id="books-1", node="a") == (0, 0)
    assert await counted(workflow="books") == (3, 3)
    assert await counted(workflow="books", node="sell") == (3, 3)
    assert await counted(workflow="books", code="timeout") == (0, 0)
    assert await counted(code="exception") == (5, 5)
    assert await counted(code="odd") == (1, 1)
    assert await code_of(engine.reprocess()) == "letters_unnamed"
    assert await counted(node="sell") == (5, 5)
    assert await counted(node="f") == (1, 1)
    assert await counted(node="nobody") == (0, 0)
    repairable.open = True
    outcome = await engine.reprocess(workflow="books", reason="opened", actor="ada")
    assert {(each.run_id, each.result, each.letters) for each in outcome.runs} == {
        (f"books-{number}", "retried", 1) for number in range(3)
    }
    for number in range(3):
        assert (await worker.end(f"books-{number}")).nodes["sell"]["output"] == number
    assert {row.run_id for row in await _letters(worker, "status:open")} == {"shoes-0", "shoes-1", "odd-0"}
    assert {row.closed_by for row in await _letters(worker, "status:reprocessed")} == {"ada"}


@simulated
async def test_with_a_corrected_config(mill: Cluster) -> None:
    worker = await _process(mill, RepairableFunction())
    await _failed_runs(worker)
    engine = worker.engine
    config = {"function": "work", "isolation": "inline", "args": {"value": "{{ a.output * 10 }}"}}
    for wrong in ({"workflow": "books"}, {"workflow": "books", "node": "sell", "operations": []}):
        assert await code_of(engine.reprocess(config=config, **wrong)) == "correction_unclear"
    outcome = await engine.reprocess(workflow="books", node="sell", config=config, dry_run=True)
    assert [each.result for each in outcome.runs] == ["would retry"] * 3
    assert await mill.of("books-0", RunPatched) == []
    outcome = await engine.reprocess(workflow="books", node="sell", config=config, reason="typo", actor="ada")
    assert [each.result for each in outcome.runs] == ["retried"] * 3
    for number in range(3):
        run = await worker.end(f"books-{number}")
        assert (run.nodes["sell"]["output"], run.revision) == (number * 10, 1)
    (patched,) = await mill.of("books-0", RunPatched)
    assert (patched.message, patched.actor) == ("typo", "ada")


@simulated
async def test_with_a_patch_and_each_refusal_by_its_run(mill: Cluster) -> None:
    worker = await _process(mill, RepairableFunction())
    await _failed_runs(worker)
    await worker.engine.retry("odd-0")
    await worker.end("odd-0")
    await _roll_back(worker, document(node("t", type="fail", config={"kind": "odd"}), name="odd"), "odd-1")
    operations = [{"op": "replace", "path": "/nodes/f/config", "value": {"attempts": 0, "value": "ok"}}]
    outcome = await worker.engine.reprocess(workflow="odd", operations=operations)
    found = {each.run_id: (each.result, each.code) for each in outcome.runs}
    assert found == {"odd-0": ("retried", ""), "odd-1": ("refused", "patch_path_missing")}
    assert all(each.problem for each in outcome.runs if each.result == "refused")
    assert (await worker.end("odd-0")).outputs == {"f": "ok"}
    outcome = await worker.engine.reprocess(workflow="odd", dry_run=True)
    assert [(each.run_id, each.result, each.code) for each in outcome.runs] == [("odd-1", "refused", "run_rolled_back")]


@simulated
async def test_a_bounded_number_at_a_time(mill: Cluster) -> None:
    repairable = RepairableFunction()
    worker = await _process(mill, repairable)
    await _failed_runs(worker)
    outcome = await worker.engine.reprocess(code="exception", dry_run=True, limit=2)
    assert (outcome.matched, len(outcome.runs), outcome.more) == (2, 2, True)
    outcome = await worker.engine.reprocess(code="exception", dry_run=True, limit=5)
    assert (outcome.matched, outcome.more) == (5, False)
    refusal = await refused(worker.engine.reprocess(code="exception", limit=0))
    assert (refusal.code, refusal.problems[0].path) == ("limit_invalid", "/limit")
    repairable.open = True
    left = []
    while True:
        outcome = await worker.engine.reprocess(code="exception", limit=2)
        left.append(outcome.matched)
        if not outcome.more:
            break
    assert left == [2, 2, 1]


@simulated
async def test_runs_that_refuse_do_not_use_up_the_limit(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.run(document(node("f", type="fail")), key="r")
    for key in ("s", "t"):
        await _roll_back(worker, document(node("f", type="fail", map={"over": [1]})), key)
    outcome = await worker.engine.reprocess(node="f", dry_run=True, limit=1)
    assert [(each.run_id, each.result, each.letters) for each in outcome.runs] == [
        ("t", "refused", 1),
        ("s", "refused", 1),
        ("r", "would retry", 1),
    ]
    assert (outcome.matched, outcome.handled, outcome.more) == (3, 1, False)


@simulated
async def test_a_visit_or_item_that_is_no_number_is_refused(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.run(document(node("f", type="fail")), key="r")
    odd: Any = "1"
    for ask in (worker.engine.dead_letter, worker.engine.discard):
        for which in ({"visit": odd}, {"index": odd}, {"visit": True}):
            refusal = await refused(ask("r", "f", **which))
            assert (refusal.code, refusal.problems[0].path) == ("place_invalid", f"/{next(iter(which))}")
