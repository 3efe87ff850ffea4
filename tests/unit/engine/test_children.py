"""Workflows that run other workflows: what goes down, what comes back, and who ends whom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.approvers import LARGE, child, code_of, ended, human, signal, waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.blobs.payloads import given_text
from tidemill.engine.attempts.results import asked_for
from tidemill.engine.children import DEPTH_MAX, ChildRunMessenger
from tidemill.engine.worker.worker import Worker
from tidemill.handlers.contract import ChildRun, Done, Handler, NodeContext, Wait
from tidemill.kernel.commands import ChildEnded
from tidemill.kernel.events import (
    BlobRef,
    ChildFinished,
    ChildStarted,
    NodeFailed,
    RunCancelled,
    RunCreated,
    RunRetried,
)
from tidemill.kernel.evolve import replay
from tidemill.kernel.model import NodeType
from tidemill.settings import Limits, Settings


async def _publish(process: Process, *nodes: Any, name: str = "kid", **top: Any) -> str:
    return await process.publish(document(*nodes, name=name, **top))


async def _alive(mill: Cluster, run_id: str) -> bool:
    return (await mill.state(run_id)).live


@simulated
async def test_a_childs_outputs_are_its_nodes_output(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(
        worker,
        node("double", config="{{ inputs.x * 2 }}"),
        inputs={"type": "object", "required": ["x"]},
        outputs={"y": "{{ double.output }}"},
    )
    parent = document(
        node("a", config=21),
        child("c", "kid", "a", inputs={"x": "{{ a.output }}"}, labels={"of": "{{ run.id }}"}),
        node("z", "c", config="{{ c.output.y }}"),
    )
    run = await worker.run(parent, key="mum", submitted_by="ada", correlation_id="req-1")
    assert (run.status, run.outputs) == ("COMPLETED", {"z": 42})
    kid = await worker.engine.show("mum.c.1")
    assert (kid.status, kid.parent, kid.labels) == ("COMPLETED", "mum", {"of": "mum"})
    row = await mill.row("mum.c.1")
    assert (row.submitted_by, row.correlation_id, row.parent, row.tag_used) == ("ada", "req-1", "mum", "kid")
    assert [found.run_id for found in await mill.rows("parent:mum")] == ["mum.c.1"]
    (started,), (finished,) = await mill.of("mum", ChildStarted), await mill.of("mum", ChildFinished)
    assert (started.child, started.workflow, started.version) == ("mum.c.1", "kid", 1)
    assert (finished.child, finished.status, finished.error) == ("mum.c.1", "COMPLETED", None)


@simulated
async def test_a_child_without_declared_outputs_returns_those_of_its_last_nodes(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("a", config=1), node("b", config=LARGE))
    run = await worker.run(document(child("c", "kid")))
    assert run.outputs == {"c": {"a": 1, "b": LARGE}}


@simulated
async def test_inputs_and_outputs_of_any_size_go_through(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("echo", config="{{ inputs.text }}!"), outputs="{{ echo.output }}")
    run = await worker.run(
        document(
            node("a", config=LARGE),
            child("c", "kid", "a", inputs={"text": "{{ a.output }}"}),
            node("z", "c", config="{{ c.output | length }}"),
        ),
        key="mum",
    )
    assert (run.status, run.outputs) == ("COMPLETED", {"z": len(LARGE) + 1})
    (created,) = await mill.of("mum.c.1", RunCreated)
    assert isinstance(created.inputs, BlobRef)


@simulated
async def test_much_that_is_given_to_a_child_is_looked_through_in_threads(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads: list[Any] = []
    to_thread = asyncio.to_thread

    async def noted(work: Any, *given: Any) -> Any:
        in_threads.append(work)
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    worker = await mill.process()
    await worker.engine.publish(document(node("a", config="{{ inputs.n | length }}"), name="inner"))
    outer = document(child("c", "inner", inputs={"n": [{"a": 1}] * 50_000}), name="outer")
    assert (await worker.run(outer)).outputs == {"c": {"a": 50_000}}
    assert {asked_for, given_text} <= set(in_threads)


@simulated
async def test_a_version_may_be_named(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("a", config="old"))
    await _publish(worker, node("a", config="new"))
    run = await worker.run(document(child("one", "kid@1"), child("two", "kid")))
    assert run.outputs == {"one": {"a": "old"}, "two": {"a": "new"}}


@simulated
async def test_every_item_of_a_map_may_have_a_child(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("a", config="{{ inputs * 10 }}"), outputs="{{ a.output }}")
    maps = {"over": list(range(30)), "max_parallel": 7}
    run = await worker.run(document(child("m", "kid", inputs="{{ item }}", map=maps)), key="mum")
    assert run.outputs == {"m": [number * 10 for number in range(30)]}
    assert len(await mill.rows("parent:mum")) == 30
    assert (await worker.engine.show("mum.m.1.29")).outputs == 290


@simulated
async def test_children_have_children(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("a", config="{{ inputs }}"), name="leaf", outputs="{{ a.output }}")
    await _publish(worker, child("c", "leaf", inputs="{{ inputs + 1 }}"), name="twig", outputs="{{ c.output }}")
    await _publish(worker, child("c", "twig", inputs="{{ inputs + 1 }}"), name="tree", outputs="{{ c.output }}")
    run = await worker.run(document(child("c", "tree", inputs=1)), key="r")
    assert run.outputs == {"c": 3}
    assert (await mill.state("r.c.1.c.1.c.1")).depth == 3


@simulated
async def test_every_visit_has_a_child_of_its_own(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("a", config="{{ inputs }}"), outputs="{{ a.output }}")
    loop = {"condition": "output < 2", "max_iterations": 9}
    run = await worker.run(document(child("c", "kid", inputs="{{ iteration }}", loop=loop)), key="mum")
    assert (run.status, run.nodes["c"]["output"], run.nodes["c"]["visits"]) == ("COMPLETED", 2, 3)
    assert {row.run_id for row in await mill.rows("parent:mum")} == {"mum.c.1", "mum.c.2", "mum.c.3"}


@simulated
async def test_a_failure_comes_up_with_its_causes(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("f", type="fail", config={"kind": "no_stock", "message": "sold out"}), name="leaf")
    await _publish(worker, child("c", "leaf"), name="twig")
    run = await worker.run(document(child("c", "twig")), key="r")
    assert run.error is not None and (run.status, run.error["code"]) == ("FAILED", "child_failed")
    assert run.error["causes"] == ["child_failed", "no_stock"]
    assert "r.c.1" in run.error["message"] and "sold out" in run.error["message"]
    assert run.nodes["c"]["attempts"] == 1
    (finished,) = await mill.of("r", ChildFinished)
    assert (finished.status, finished.error is not None and finished.error.code) == ("FAILED", "child_failed")


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"workflow": "nobody"}, "workflow_unknown", "child mum.c.1: "),
        ({"workflow": "kid@9"}, "version_unknown", "child mum.c.1: "),
        ({"workflow": "kid", "inputs": {"x": "text"}}, "inputs_invalid", 'child mum.c.1: /inputs/x: "text" is not'),
        ({"workflow": "kid", "inputs": {"x": 1}, "labels": {"k": "v" * 201}}, "labels_invalid", "/labels: "),
    ],
)
@simulated
async def test_a_child_that_cannot_be_started_fails_its_node_and_says_why(
    mill: Cluster, asked: Any, code: str, words: str
) -> None:
    worker = await mill.process()
    await _publish(
        worker,
        node("a"),
        inputs={"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}},
    )
    run = await worker.run(document({"id": "c", "type": "workflow", "config": asked}), key="mum")
    assert run.error is not None and run.error["code"] == "child_failed"
    assert run.error["causes"] == [code]
    assert words in run.error["message"]
    assert await mill.of("mum", ChildStarted) == []
    assert await mill.events("mum.c.1") == []


async def _refusals(mill: Cluster, run_id: str) -> set[tuple[str, ...]]:
    """The causes of all failures of children below a root."""
    rows = await mill.rows(f"root:{run_id}")
    failed = [each for run in (run_id, *(row.run_id for row in rows)) for each in await mill.of(run, NodeFailed)]
    return {each.error.causes for each in failed if each.error.code == "child_failed"}


@simulated
async def test_a_workflow_that_starts_itself_twice_stays_within_the_limit(mill: Cluster) -> None:
    worker = await mill.process(descendants_max=200)
    await _publish(worker, child("one", "kid"), child("two", "kid"))
    run_id = await worker.start("kid", key="r")
    assert await ended(mill, run_id) == "FAILED"
    # A closed parent closes its children, so fewer may be left to be started.
    assert 1 <= len(await mill.rows("root:r")) <= 200
    await worker.run(document(child("c", "nobody"), name="other"), key="other")
    assert [row.run_id for row in await mill.rows("root:other")] == []


@pytest.mark.parametrize(("most", "items"), [(1, 5), (7, 20), (150, 200), (200, 200)])
@simulated
async def test_the_child_beyond_the_limit_fails_its_node(mill: Cluster, most: int, items: int) -> None:
    worker = await mill.process(descendants_max=most)
    await _publish(worker, node("a", config="{{ inputs }}"), outputs="{{ a.output }}")
    maps = {"over": list(range(items)), "tolerate": items}
    run = await worker.run(document(child("m", "kid", inputs="{{ item }}", map=maps)), key="mum")
    assert len(await mill.rows("root:mum")) == most
    assert sum(isinstance(each, dict) for each in run.nodes["m"]["output"]) == items - most
    refused = [each.error for each in await mill.of("mum", NodeFailed)]
    assert len(refused) == items - most, "none is tried again"
    for error in refused:
        assert (error.code, error.causes, error.retryable) == ("child_failed", ("too_many_descendants",), False)
        assert "max_descendants" in error.hint


@simulated
async def test_grandchildren_count_for_their_root(mill: Cluster) -> None:
    worker = await mill.process(descendants_max=5)
    await _publish(worker, node("a", config=1), name="leaf")
    await _publish(worker, *(child(f"c{number}", "leaf") for number in range(2)), name="twig")
    run = await worker.run(document(child("x", "twig"), child("y", "twig", "x")), key="r")
    assert run.status == "FAILED"
    assert ("child_failed", "too_many_descendants") in await _refusals(mill, "r")
    assert len(await mill.rows("root:r")) == 5
    assert (await mill.state("r.x.1.c0.1")).root == "r"
    # Another root has a budget of its own.
    assert (await worker.run(document(child("x", "twig")), key="s")).status == "COMPLETED"


@simulated
async def test_starting_children_rarely_counts_them(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await mill.process()
    counts: list[Any] = []
    count = mill.store.count

    async def counted(*args: Any, **options: Any) -> int:
        counts.append(args)
        return await count(*args, **options)

    monkeypatch.setattr(mill.store, "count", counted)
    await _publish(worker, node("a", config=1))
    run = await worker.run(document(child("m", "kid", map={"over": list(range(300))})), key="mum")
    assert run.status == "COMPLETED"
    assert len([args for args in counts if args[2] == ["root:mum"]]) <= 300 / 100 + 1


@simulated
async def test_several_workers_exceed_the_limit_by_little(mill: Cluster) -> None:
    workers = [await mill.process(f"w{number}", descendants_max=100, concurrency=4) for number in range(3)]
    await _publish(workers[0], node("a", config="{{ inputs }}"), outputs="{{ a.output }}")
    maps = {"over": list(range(160)), "tolerate": 160}
    await workers[0].run(document(child("m", "kid", inputs="{{ item }}", map=maps)), key="mum")
    # Two further workers: one percent and one run that they need not count, and four jobs in hand.
    assert 100 <= len(await mill.rows("root:mum")) <= 100 + 2 * (2 + 4)


@simulated
async def test_a_child_of_an_earlier_version_counts_as_a_root(mill: Cluster) -> None:
    worker = await mill.process(descendants_max=3)
    await _publish(worker, signal("s"), child("c", "leaf", "s"), name="twig")
    await _publish(worker, node("a", config=1), name="leaf")
    run_id = await worker.start(document(child("x", "twig")), key="r")
    stream = mill.stream("r.x.1")
    await waits(mill, stream.key, "s")
    entry = worker.engine.run_cache.get(stream)
    assert entry is not None
    entry.state.root = ""
    await worker.engine.signal(stream.key, "s")
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert (await mill.state("r.x.1.c.1")).root == "r.x.1"


@simulated
async def test_a_fork_of_a_child_is_a_root(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("a", config=1))
    await worker.run(document(child("x", "kid")), key="r")
    forked = await worker.engine.fork("r.x.1", node="a", key="f")
    await worker.end("f")
    assert forked and ((await mill.state("f")).root, (await mill.state("f")).parent) == ("", None)


@simulated
async def test_a_workflow_that_starts_itself_comes_to_an_end(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, child("c", "kid"))
    run_id = await worker.start("kid", key="r")
    assert await ended(mill, run_id) == "FAILED"
    run = await worker.engine.show(run_id)
    assert run.error is not None and run.error["causes"] == ["child_failed", "child_too_deep"]
    rows = await mill.rows("workflow:kid")
    assert len(rows) == DEPTH_MAX + 1
    assert max(len(row.run_id.encode()) for row in rows) <= 120


@simulated
async def test_a_tolerated_child(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("f", type="fail", config={"attempts": "{{ inputs }}"}))
    maps = {"over": [0, 5, 0], "tolerate": 1}
    run = await worker.run(document(child("m", "kid", inputs="{{ item }}", map=maps)))
    assert run.status == "COMPLETED"
    assert run.outputs["m"][1]["error"]["code"] == "child_failed"


@simulated
async def test_whoever_is_cancelled_cancels_its_children(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, signal("never"), name="leaf")
    await _publish(worker, child("c", "leaf"), human("ok"), name="kid")
    run_id = await worker.start(document(child("c", "kid"), child("m", "kid", map={"over": [1, 2]})), key="r")
    for leaf in ("r.c.1.c.1", "r.m.1.0.c.1", "r.m.1.1.c.1"):
        await waits(mill, leaf, "never")
    began = mill.loop.now
    await worker.engine.cancel(run_id, reason="enough")
    for leaf in ("r.c.1.c.1", "r.m.1.0.c.1", "r.m.1.1.c.1"):
        assert await ended(mill, leaf) == "CANCELLED"
    assert mill.loop.now - began <= 3
    (cancelled,) = await mill.of("r.c.1", RunCancelled)
    assert cancelled.reason == "its parent no longer waits for it"


@pytest.mark.parametrize("how", ["failure", "rewind", "override", "time-out"])
@simulated
async def test_a_child_that_nobody_waits_for_any_more_is_cancelled(mill: Cluster, how: str) -> None:
    worker = await mill.process()
    await _publish(worker, signal("never"))
    limits = {"timeout_seconds": 20, "retry": {"max_attempts": 1}} if how == "time-out" else {}
    run_id = await worker.start(document(child("c", "kid", **limits), signal("other"), node("z", "c")), key="r")
    await waits(mill, "r.c.1", "never")
    match how:
        case "failure":
            await worker.engine.patch(run_id, [{"op": "add", "path": "/limits", "value": {"deadline_seconds": 9}}])
            await asyncio.sleep(9)
        case "rewind":
            await worker.engine.rewind(run_id, "c")
            await waits(mill, "r.c.2", "never")
        case "override":
            await worker.engine.override(run_id, "c", value="by hand")
        case "time-out":
            await asyncio.sleep(20)
    await asyncio.sleep(3)
    assert (await mill.state("r.c.1")).status == "CANCELLED"
    if how == "rewind":
        assert await _alive(mill, "r.c.2")
    if how == "time-out":
        (failed,) = await mill.of(run_id, NodeFailed, "c")
        assert failed.error.code == "timeout"


@simulated
async def test_an_abandoned_child_lives_on(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, signal("never"))
    run_id = await worker.start(document(child("c", "kid", close="abandon")), key="r")
    await waits(mill, "r.c.1", "never")
    await worker.engine.cancel(run_id)
    await asyncio.sleep(60)
    assert await _alive(mill, "r.c.1")
    await worker.engine.signal("r.c.1", "never", 1)
    assert (await worker.end("r.c.1")).status == "COMPLETED"
    assert (await worker.engine.show(run_id)).status == "CANCELLED"


@simulated
async def test_a_child_that_somebody_cancels_fails_its_parent(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, signal("never"))
    run_id = await worker.start(document(child("c", "kid")), key="r")
    await waits(mill, "r.c.1", "never")
    await worker.engine.cancel("r.c.1", reason="by mistake")
    run = await worker.end(run_id)
    assert run.error is not None
    assert (run.error["code"], run.error["causes"]) == ("child_failed", ["child_cancelled"])
    assert "by mistake" in run.error["message"]


@simulated
async def test_a_parent_that_is_retried_lets_its_child_go_on_from_its_failure(mill: Cluster) -> None:
    ledger, works = Ledger(), {"now": False}

    def flaky() -> str:
        if not works["now"]:
            raise RuntimeError("not yet")
        return "done"

    worker = await mill.process(functions={"work": ledger.work, "flaky": flaky})
    await _publish(
        worker,
        call("dear", args={"seconds": 1}),
        call("f", "dear", function="flaky", retry={"max_attempts": 1}),
        outputs="{{ f.output }}",
    )
    run_id = await worker.start(document(child("c", "kid")), key="r")
    assert (await worker.end(run_id)).status == "FAILED"
    await worker.engine.retry(run_id)
    assert (await worker.end(run_id)).status == "FAILED"
    works["now"] = True
    await worker.engine.retry(run_id)
    run = await worker.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"c": "done"})
    assert ledger.count("dear") == 1
    kid = await worker.engine.show("r.c.1")
    assert (kid.status, kid.nodes["f"]["attempts"]) == ("COMPLETED", 3)


@simulated
async def test_of_a_map_of_children_only_those_that_failed_run_again(mill: Cluster) -> None:
    ledger, bad = Ledger(), {3, 5}

    def picky(x: int) -> int:
        if x in bad:
            raise RuntimeError("bad")
        return x

    worker = await mill.process(functions={"work": ledger.quick, "picky": picky})
    await _publish(
        worker,
        call("first"),
        call("f", "first", function="picky", args={"x": "{{ inputs }}"}, retry={"max_attempts": 1}),
        outputs="{{ f.output }}",
    )
    run_id = await worker.start(
        document(child("m", "kid", inputs="{{ item }}", map={"over": list(range(8)), "max_parallel": 1})), key="r"
    )
    assert (await worker.end(run_id)).status == "FAILED"
    bad.clear()
    await worker.engine.retry(run_id)
    run = await worker.end(run_id)
    assert run.outputs == {"m": list(range(8))}
    assert ledger.count("first") == 8


@simulated
async def test_a_time_out_that_is_retried_lets_the_same_child_go_on(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    await _publish(worker, call("a", args={"seconds": 1}), signal("go", "a"))
    retry = {"max_attempts": 2, "backoff_seconds": 5, "jitter": 0}
    run_id = await worker.start(document(child("c", "kid", timeout_seconds=20, retry=retry)), key="r")
    await asyncio.sleep(23)
    assert (await mill.state("r.c.1")).status == "CANCELLED"
    await asyncio.sleep(5)
    assert await _alive(mill, "r.c.1")
    await worker.engine.signal("r.c.1", "go", "late")
    run = await worker.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"c": {"go": "late"}})
    assert ledger.count("a") == 1


# Paused, and names that are taken


@simulated
async def test_a_paused_parent_starts_no_child_and_hears_of_the_end_of_one(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, signal("go"))
    held = await worker.start(
        document(node("s", type="sleep", config={"seconds": 5}), child("c", "kid", "s")), key="held"
    )
    await worker.engine.pause(held)
    running = await worker.start(document(child("c", "kid"), node("z", "c")), key="running")
    await waits(mill, "running.c.1", "go")
    await worker.engine.pause(running)
    await worker.engine.signal("running.c.1", "go", 1)
    await asyncio.sleep(30)
    assert await mill.events("held.c.1") == []
    state = await mill.state(running)
    assert (state.peek("c").status, state.peek("z").status, state.status) == ("COMPLETED", "QUEUED", "PAUSED")
    for run_id in (held, running):
        await worker.engine.resume(run_id)
    await waits(mill, "held.c.1", "go")
    await worker.engine.signal("held.c.1", "go", 1)
    assert [(await worker.end(run_id)).status for run_id in (held, running)] == ["COMPLETED"] * 2


@simulated
async def test_a_run_that_has_a_childs_name_is_not_taken_for_it(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, node("a", config="mine"))
    await worker.run("kid", key="r.c.1")
    run = await worker.run(document(child("c", "kid")), key="r")
    assert run.error is not None
    assert (run.error["code"], run.error["causes"]) == ("child_failed", ["child_id_taken"])


@simulated
async def test_a_key_that_is_a_childs_name_belongs_to_another_run(mill: Cluster) -> None:
    worker = await mill.process()
    await _publish(worker, signal("go"))
    await _publish(worker, signal("go"), node("b", "go"), name="other")
    await worker.start(document(child("c", "kid", inputs={"x": 1})), key="r")
    await waits(mill, "r.c.1", "go")
    for workflow, inputs in (("kid", {"x": 2}), ("other", {"x": 1})):
        assert await code_of(worker.engine.start(workflow, inputs, key="r.c.1")) == "key_reused"
    assert len(await mill.of("r.c.1", RunCreated)) == 1


def worker_of(process: Process) -> Worker:
    assert process.engine.worker is not None
    return process.engine.worker


def errands_of(process: Process) -> ChildRunMessenger:
    return worker_of(process)._messenger


@simulated
async def test_a_child_is_retried_once_for_an_attempt_of_its_parent(mill: Cluster) -> None:
    """Also when the worker that did it was never heard of again, and the child has failed once more since."""
    worker = await mill.process()
    await worker.publish(document(node("f", type="fail"), name="kid"))
    parent = document(child("c", "kid", retry={"max_attempts": 1}))
    run_id = (await worker.run(parent, key="mum")).run_id
    await worker.engine.retry(run_id)
    await worker.end(run_id)
    assert len(await mill.of("mum.c.1", RunRetried)) == 1
    events = await mill.events(run_id)
    states = [replay(events, until=until) for until in range(len(events))]
    state = [state for state in states if state.peek("c").status == "WAITING"][-1]
    assert state.peek("c").attempt == 2
    answer = await errands_of(worker).start_child(mill.stream(run_id), state, "c", 1, -1)
    assert isinstance(answer, ChildEnded)
    assert len(await mill.of("mum.c.1", RunRetried)) == 1


def test_the_operator_sets_the_limit(tmp_path: Path) -> None:
    settings = Settings(limits=Limits(max_descendants=2))
    with tidemill.open(f"sqlite:///{tmp_path}/t.db", settings=settings) as mill:
        mill.publish(document(node("a", config=1), name="kid"))
        mill.publish(document(*(child(f"c{number}", "kid") for number in range(3)), name="mum"))
        run = mill.result(mill.start("mum", key="r"), timeout_s=60)
        assert run.error is not None and run.error["causes"] == ["too_many_descendants"]
        assert "under `[limits]`" in run.error["hint"]
        assert len(mill.find(["root:r"])[0]) == 2


def test_a_document_cannot_raise_it(tmp_path: Path) -> None:
    with tidemill.open(f"sqlite:///{tmp_path}/t.db") as mill, pytest.raises(tidemill.Rejected) as refused:
        mill.publish(document(child("c", "kid"), limits={"max_descendants": 1_000_000}))
    assert refused.value.problems[0].code == "unknown_key"


def _delegating(*asked: ChildRun) -> Handler:
    """A node type that starts children one after the other, and returns what each ended with."""

    def call(context: NodeContext) -> Any:
        seen = [*(context.last_checkpoint or [])]
        return _next(context, seen)

    async def _next(context: NodeContext, seen: list[Any]) -> Any:
        if context.resumed is not None:
            seen.append(context.resumed)
            assert context.checkpoint is not None
            await context.checkpoint(seen)
        return Done(seen) if len(seen) == len(asked) else Wait("child", child=asked[len(seen)], resume=True)

    return Handler(NodeType(name="delegating"), call)


@simulated
async def test_a_visit_may_have_several_children_and_get_their_failures(mill: Cluster) -> None:
    asked = (
        ChildRun(workflow="kid", inputs={"x": 1}, key="c1"),
        ChildRun(workflow="bad", inputs={}, key="c2", failure="return"),
        ChildRun(workflow="kid", inputs={"x": 2}, key="c3"),
    )
    worker = await mill.process(more=[_delegating(*asked)])
    await _publish(worker, node("a", config="{{ inputs.x }}"), inputs={"type": "object"})
    await _publish(worker, node("f", type="fail", config={"message": "no"}), name="bad")
    run = await worker.run(document(node("d", type="delegating")), key="mum")
    assert run.status == "COMPLETED"
    first, failed, third = run.outputs["d"]
    assert (first, third) == ({"a": 1}, {"a": 2})
    assert failed["$child_failed"]["child"] == "mum.d.1.c2"
    assert {row.run_id for row in await mill.rows("parent:mum")} == {f"mum.d.1.c{number}" for number in (1, 2, 3)}


@simulated
async def test_a_child_with_a_key_is_cancelled_with_its_parent(mill: Cluster) -> None:
    worker = await mill.process(more=[_delegating(ChildRun(workflow="kid", inputs={}, key="c1"))])
    await _publish(worker, signal("go"))
    run_id = await worker.start(document(node("d", type="delegating")), key="mum")
    await waits(mill, "mum.d.1.c1", "go")
    await worker.engine.cancel(run_id)
    await worker.end("mum.d.1.c1")
    assert not await _alive(mill, "mum.d.1.c1")
