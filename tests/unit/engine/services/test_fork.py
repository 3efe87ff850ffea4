"""Forks through the façade: a run of its own from any event of another one; and two runs side by side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import LARGE, child, code_of, human, refused, signal, unchanged, waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.kernel.events import RunCreated, RunForked
from tidemill.testing.faulty_store import lose_reply


def _rich() -> dict[str, Any]:
    """Something of everything that ends by itself."""
    branch = {
        "type": "conditional",
        "rules": [{"condition": "output > 1", "next_nodes": ["big"]}],
        "default": ["small"],
    }
    return document(
        node("a", config="{{ inputs.x }}"),
        node("m", "a", config="{{ item + a.output }}", map={"over": [1, 2, 3], "max_parallel": 2}),
        node("l", "a", config="{{ iteration }}", loop={"condition": "output < 2", "max_iterations": 5}),
        node("f", "a", type="fail", config={"attempts": 1, "value": "again", "retryable": True}),
        node("b", "l", config="{{ l.output }}", branch=branch),
        node("big", "b", config=LARGE),
        node("small", "b"),
        node("s", "m", type="sleep", config={"seconds": 3}),
        node("t", "f", type="fail", config={"kind": "meh"}, on_error="continue"),
        node("z", "s", "big", "small", "t"),
        outputs={"m": "{{ m.output }}", "b": "{{ b.output }}", "f": "{{ f.output }}", "n": "{{ big.output | length }}"},
        name="rich",
    )


@simulated
async def test_a_fork_at_any_event_comes_to_the_same_end(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(_rich(), {"x": 10}, key="r")
    assert run.outputs == {"m": [11, 12, 13], "b": 2, "f": "again", "n": len(LARGE)}
    before = await mill.events("r")
    forks = [await worker.engine.fork("r", at=at, key=f"fork-{at}") for at in range(1, len(before))]
    for at, fork in enumerate(forks, 1):
        forked = await worker.end(fork)
        assert (forked.status, forked.outputs) == ("COMPLETED", run.outputs), at
        (forked_from,) = await mill.of(fork, RunForked)
        assert forked_from.run == "r" and 1 <= forked_from.at <= at
    assert await mill.events("r") == before
    assert len(await mill.rows("forked_from:r")) == len(forks)


@simulated
async def test_what_was_done_is_shared_and_what_is_done_anew_has_a_name_of_its_own(
    mill: Cluster, ledger: Ledger
) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run_id = (await worker.run(document(call("a"), call("b", "a"), call("c", "b")))).run_id
    fork = await worker.engine.fork(run_id, node="b", reason="once more", actor="ada")
    run = await worker.end(fork)
    assert (run.status, run.nodes["a"]["visits"], run.nodes["b"]["visits"]) == ("COMPLETED", 1, 2)
    assert [ledger.count(name) for name in "abc"] == [1, 2, 2]
    assert {key.split("/")[0] for key, _ in ledger.calls[3:]} == {fork}
    (forked,) = await mill.of(fork, RunForked)
    assert (forked.run, forked.reason, forked.actor) == (run_id, "once more", "ada")


@simulated
async def test_a_fork_of_a_failed_run_goes_on(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(document(call("a", args={"value": 5}), node("f", "a", type="fail"), node("z", "f")))
    assert run.status == "FAILED"
    patch = [{"op": "add", "path": "/nodes/f/config", "value": {"attempts": 0, "value": "{{ a.output }}"}}]
    before = await mill.events(run.run_id)
    forked = await worker.end(await worker.engine.fork(run.run_id, patch=patch, labels={"k": "v"}))
    assert (forked.status, forked.nodes["f"]["output"], forked.revision) == ("COMPLETED", 5, 1)
    assert (forked.labels, ledger.count("a")) == ({"k": "v"}, 1)
    assert await mill.events(run.run_id) == before
    # The other run's letter is its own business.
    assert (await worker.engine.dead_letters.find([f"run:{forked.run_id}"]))[0] == []
    assert len((await worker.engine.dead_letters.find([f"run:{run.run_id}", "status:open"]))[0]) == 1
    shown = await worker.engine.document(forked.run_id)
    assert shown.revision == 1 and shown.digest == (await mill.row(forked.run_id)).digest
    await worker.engine.fork(forked.run_id, node="z", key="again")
    assert (await worker.end("again")).outputs == forked.outputs
    assert (await worker.engine.document("again")).document == shown.document


@simulated
async def test_other_inputs(mill: Cluster) -> None:
    worker = await mill.process()
    schema = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}
    run = await worker.run(
        document(node("a", config="{{ inputs.x }}"), node("b", "a", config="{{ inputs.x }}"), inputs=schema), {"x": 1}
    )
    refusal = await refused(worker.engine.fork(run.run_id, node="b", inputs={"x": "text"}))
    assert (refusal.code, refusal.problems[0].path) == ("inputs_invalid", "/inputs/x")
    forked = await worker.end(await worker.engine.fork(run.run_id, node="b", inputs={"x": 2}))
    assert (forked.nodes["a"]["output"], forked.nodes["b"]["output"]) == (1, 2)


@simulated
async def test_inputs_replace_those_of_the_same_name(mill: Cluster) -> None:
    worker = await mill.process()
    schema = {"properties": {"region": {"default": "eu"}}}
    run = await worker.run(document(node("a", config="{{ inputs }}"), inputs=schema), {"day": 1, "region": "us"})
    forked = await worker.end(await worker.engine.fork(run.run_id, node="a", inputs={"day": 2}))
    assert forked.outputs == {"a": {"day": 2, "region": "us"}}


@simulated
async def test_a_fork_of_a_patched_run_has_the_graph_of_its_moment(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("a"), signal("go", "a"), node("z", "go")))
    await waits(mill, run_id, "go")
    early = len(await mill.events(run_id))
    for number in (1, 2):
        new = {"type": "value", "config": number}
        edge = {"from": "z", "to": f"p{number}"}
        await worker.engine.patch(
            run_id,
            [
                {"op": "add", "path": f"/nodes/p{number}", "value": new},
                {"op": "add", "path": "/edges/-", "value": edge},
            ],
        )
    events = await mill.kinds(run_id)
    between = events.index("RunPatched") + 1
    for at, revision, ends in ((early, 0, {"z"}), (between, 1, {"p1"}), (len(events), 2, {"p1", "p2"})):
        fork = await worker.engine.fork(run_id, at=at)
        shown = await worker.engine.document(fork)
        assert (shown.revision, {each["id"] for each in shown.document["nodes"]} - {"a", "go"}) == (
            revision,
            ends | {"z"},
        )
        await waits(mill, fork, "go")
        patch = [{"op": "add", "path": "/nodes/z/config", "value": "fork"}]
        await worker.engine.patch(fork, patch, base_digest=shown.digest)
        await worker.engine.signal(fork, "go")
        run = await worker.end(fork)
        assert (set(run.outputs), run.nodes["z"]["output"]) == (ends, "fork")


@simulated
async def test_a_fork_asks_people_and_children_of_its_own(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(signal("go"), name="kid"))
    run_id = await worker.start(document(human("ok"), child("c", "kid"), node("z", "ok", "c")), key="r")
    await waits(mill, "r.c.1", "go")
    await waits(mill, run_id, "ok")
    fork = await worker.engine.fork(run_id, key="f")
    await waits(mill, "f.c.1", "go")
    rows = (await worker.engine.approvals.find(["status:pending"]))[0]
    assert {row.run_id for row in rows} == {"r", "f"}
    for run in ("r", "f"):
        await worker.engine.decide(run, "ok", "approve", actor="ada", comments=run)
        await worker.engine.signal(f"{run}.c.1", "go", run)
        ended = await worker.end(run)
        assert (ended.nodes["ok"]["output"]["comments"], ended.nodes["c"]["output"]) == (run, {"go": run})
    assert (await worker.engine.show(fork)).parent is None


@simulated
async def test_the_same_key_is_the_same_fork(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    run_id = (await worker.run(chain("a", "b"))).run_id
    other = (await worker.run(chain("a", "b"))).run_id
    client.faulty_store.next("commit", lose_reply)
    for process in (client, worker, client):
        assert await process.engine.fork(run_id, node="b", key="k") == "k"
    assert client.faulty_store.fired["commit"] == 1
    assert len(await mill.of("k", RunCreated)) == 1
    assert await unchanged(mill, "k", worker.engine.fork(other, node="b", key="k")) == "key_reused"
    for bad in ("", "x" * 201, "new\nline", 5):
        assert await code_of(worker.engine.fork(run_id, node="b", key=bad)) == "run_key_invalid"  # type: ignore[arg-type]


@simulated
async def test_a_key_that_belongs_to_a_run_of_its_own_is_refused(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = (await worker.run(chain("a", "b"))).run_id
    await worker.run(chain("a", "b"), key="mine")
    assert await unchanged(mill, "mine", worker.engine.fork(run_id, node="b", key="mine")) == "key_reused"
    assert await unchanged(mill, run_id, worker.engine.fork(run_id, node="b", key=run_id)) == "key_reused"


@simulated
async def test_forks_that_cannot_be(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(chain("a", "b"))
    fork = worker.engine.fork
    for asked, code in [
        (fork(run.run_id), "nothing_to_fork"),
        (fork(run.run_id, at=run.events), "nothing_to_fork"),
        (fork(run.run_id, at=0), "event_unknown"),
        (fork(run.run_id, at=-1), "event_unknown"),
        (fork(run.run_id, at=run.events + 1), "event_unknown"),
        (fork(run.run_id, node="nobody"), "node_unknown"),
        (fork(run.run_id, at=2, node="b"), "node_not_begun"),
        (fork(run.run_id, node="b", labels={"k": 5}), "labels_invalid"),  # type: ignore[dict-item]
        (fork(run.run_id, node="b", reason="x" * 2_001), "text_invalid"),
        (fork(run.run_id, node="b", inputs=float("nan")), "inputs_not_json"),
        (fork(run.run_id, node="b", patch=[{"op": "remove", "path": "/nodes/a"}]), "patch_finished_node"),
        (fork(run.run_id, node="b", patch=[{"op": "remove", "path": "/nodes/c"}]), "patch_path_missing"),
    ]:
        assert await unchanged(mill, run.run_id, asked) == code
    assert len(await mill.rows()) == 1, "a refused fork leaves nothing behind"


async def _pair(process: Process) -> tuple[str, str]:
    nodes = [node("a", config="{{ inputs.x }}"), node("b", "a", config="same"), node("c", "b", config="{{ a.output }}")]
    left = await process.run(document(*nodes), {"x": 1})
    right = await process.run(document(*nodes), {"x": 2})
    return left.run_id, right.run_id


@simulated
async def test_two_runs_side_by_side(mill: Cluster) -> None:
    worker = await mill.process()
    left, right = await _pair(worker)
    found = await worker.engine.compare(left, right)
    assert (found.left, found.right, found.same, found.outputs_same) == (left, right, False, False)
    assert found.first_divergence == "a"
    assert {each["node"]: each["same"] for each in found.nodes} == {"a": False, "b": True, "c": False}
    same = await worker.engine.compare(left, left)
    assert (same.same, same.outputs_same, same.first_divergence) == (True, True, None)
    fork = await worker.engine.fork(left, node="c", patch=[{"op": "add", "path": "/nodes/c/config", "value": 9}])
    await worker.end(fork)
    assert (await worker.engine.compare(left, fork)).first_divergence == "c"
    assert await code_of(worker.engine.compare(left, "nobody")) == "run_unknown"


@pytest.mark.parametrize("at", ["alive", "paused"])
@simulated
async def test_a_run_under_way_is_forked_without_being_touched(mill: Cluster, at: str, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 20, "value": 1}), call("b", "a")))
    await mill.until(lambda: ledger.running == 1)
    if at == "paused":
        await worker.engine.pause(run_id)
    before = await mill.events(run_id)
    fork = await worker.engine.fork(run_id)
    assert await mill.events(run_id) == before
    if at == "paused":
        await worker.engine.resume(run_id)
        if (await mill.state(fork)).status == "PAUSED":
            await worker.engine.resume(fork)
    await asyncio.sleep(60)
    for run in (run_id, fork):
        assert (await worker.end(run)).status == "COMPLETED"
    assert ledger.count("a") == 2
