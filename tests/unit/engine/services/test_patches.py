"""Patching a run: what would happen, what does, who comes too late; and the document that the next one is for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import LARGE, code_of, human, refused, signal, unchanged, waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.handlers.contract import Done, Handler, NodeContext
from tidemill.kernel.events import BlobRef, RunPatched, RunRetried
from tidemill.kernel.model import NodeType
from tidemill.testing.faulty_store import following

FIX = [{"op": "add", "path": "/nodes/f/config", "value": {"attempts": 0, "value": "fixed"}}]


def _add(name: str, *after: str, **fields: Any) -> list[dict[str, Any]]:
    """Operations that add a node."""
    edges = [{"op": "add", "path": "/edges/-", "value": {"from": source, "to": name}} for source in after]
    return [{"op": "add", "path": f"/nodes/{name}", "value": {"type": "value", **fields}}, *edges]


async def _waiting(mill: Cluster, process: Process, **options: Any) -> str:
    """A run that waits at `go`, between `a` and `z`."""
    run_id = await process.start(document(node("a", config=1), signal("go", "a"), node("z", "go")), **options)
    await waits(mill, run_id, "go")
    return run_id


async def _picture(mill: Cluster, run_id: str) -> Any:
    """Everything that the store holds of a run."""
    return await mill.events(run_id), [view.job for view in await mill.jobs(run_id)], await mill.row(run_id)


@simulated
async def test_a_dry_run_tells_and_changes_nothing(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), node("f", "a", type="fail"), node("z", "f"), node("y", "z")))
    before, blobs = await _picture(mill, run.run_id), dict(mill.blobs._held)
    operations = [*FIX, {"op": "remove", "path": "/nodes/y"}, *_add("w", "a")]
    shown = await worker.engine.patch(run.run_id, operations, retry=True, dry_run=True, publish=True)
    assert await _picture(mill, run.run_id) == before
    assert dict(mill.blobs._held) == blobs
    assert (shown.applied, shown.revision, shown.published) == (False, 1, None)
    assert (shown.added, shown.removed, shown.changed) == (("w",), ("y",), ("f",))
    assert (shown.rerun, shown.kept) == (("f",), ("a",))
    done = await worker.engine.patch(run.run_id, operations, retry=True)
    assert (done.applied, done.digest, done.revision) == (True, shown.digest, 1)
    assert (done.added, done.removed, done.changed, done.rerun, done.kept) == (
        shown.added, shown.removed, shown.changed, shown.rerun, shown.kept,
    )  # fmt: skip
    after = await worker.end(run.run_id)
    assert (after.status, after.revision, after.outputs) == ("COMPLETED", 1, {"z": None, "w": None})


@simulated
async def test_keys_of_the_document_that_change_are_told_as_pointers(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), node("f", "a", type="fail")))
    operations = [{"op": "add", "path": "/outputs", "value": 1}, {"op": "add", "path": "/description", "value": "d"}]
    for _ in range(2):
        done = await worker.engine.patch(run.run_id, operations, retry=True, command_id="p")
        assert done.changed == ("/description", "/outputs")


@simulated
async def test_a_dry_run_says_whether_the_patch_needs_a_retry(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), node("f", "a", type="fail"), node("z", "f")))
    before = await mill.events(run.run_id)
    asked = await worker.engine.patch(run.run_id, FIX, dry_run=True)
    assert (asked.applied, asked.needs_retry, asked.rerun, asked.kept) == (False, True, ("f",), ("a",))
    assert not (await worker.engine.patch(run.run_id, FIX, dry_run=True, retry=True)).needs_retry
    assert await mill.events(run.run_id) == before
    assert not (await worker.engine.patch(run.run_id, FIX, retry=True)).needs_retry
    done = await worker.end(run.run_id)
    assert await unchanged(mill, done.run_id, worker.engine.patch(run.run_id, FIX, dry_run=True)) == "run_completed"


@simulated
async def test_fix_and_continue_is_one_commit(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(document(call("a"), node("f", "a", type="fail"), node("z", "f", config="{{ f.output }}")))
    assert await unchanged(mill, run.run_id, worker.engine.patch(run.run_id, FIX)) == "patch_needs_retry"
    commits = len(worker.faulty_store.commits)
    await worker.engine.patch(run.run_id, FIX, retry=True, actor="ada", message="typo")
    (patched,), (retried,) = await mill.of(run.run_id, RunPatched), await mill.of(run.run_id, RunRetried)
    kinds = await mill.kinds(run.run_id)
    assert kinds.index("RunRetried") == kinds.index("RunPatched") + 1
    assert len(worker.faulty_store.commits[commits].records) >= 3
    assert (patched.actor, patched.message, retried.reason) == ("ada", "typo", "typo")
    after = await worker.end(run.run_id)
    assert (after.outputs, ledger.count("a")) == ({"z": "fixed"}, 1)


@simulated
async def test_a_repeated_patch_is_answered_like_the_first(mill: Cluster) -> None:
    one, two = await mill.process("c1", work=False), await mill.process("c2", work=False)
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    first = await one.engine.patch(run_id, _add("w", "z"), command_id="p1")
    again = await two.engine.patch(run_id, _add("w", "z"), command_id="p1")
    assert (again.applied, again.digest, again.revision, again.added) == (True, first.digest, 1, ("w",))
    assert len(await mill.of(run_id, RunPatched)) == 1
    # The same id for another act is another request.
    await one.engine.pause(run_id, command_id="other")
    assert (await two.engine.patch(run_id, _add("v", "z"), command_id="other")).revision == 2


@simulated
async def test_a_patch_that_is_published_is_a_version_also_when_the_request_is_repeated(mill: Cluster) -> None:
    """The first process dies between the two: whoever repeats the request gets what was asked for."""
    worker = await mill.process()
    client = await mill.process("client", work=False)
    run_id = await _waiting(mill, worker)
    await client.engine.patch(run_id, _add("w", "z"), command_id="p1")
    assert len(await worker.engine.versions("test")) == 1
    outcome = await worker.engine.patch(run_id, _add("w", "z"), command_id="p1", publish=True, actor="ada")
    assert outcome.published is not None and outcome.published.version == 2
    version = (await worker.engine.versions("test"))[-1]
    assert (version.author, version.digest) == ("ada", outcome.digest)


@simulated
async def test_a_published_patch(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    outcome = await worker.engine.patch(run_id, _add("w", "z", config=9), publish=True, actor="ada", message="more")
    assert outcome.published is not None
    assert (outcome.published.version, outcome.published.digest) == (2, outcome.digest)
    assert (await mill.row(run_id)).version == 1
    later = await worker.start("test")
    await waits(mill, later, "go")
    for each in (run_id, later):
        await worker.engine.signal(each, "go")
        assert (await worker.end(each)).outputs == {"w": 9}


@simulated
async def test_every_problem_is_told_at_once(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    operations = [
        {"op": "replace", "path": "/nodes/a/config", "value": 2},
        {"op": "add", "path": "/nodes/go/priority", "value": 2},
    ]
    before = await mill.events(run_id)
    refusal = await refused(worker.engine.patch(run_id, operations, expected_seq=1))
    assert sorted((problem.code, problem.path) for problem in refusal.problems) == [
        ("patch_finished_node", "/nodes/a"),
        ("patch_live_node", "/nodes/go"),
        ("patch_stale", "/expected_seq"),
    ]
    assert await mill.events(run_id) == before


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ("text", "patch_invalid"),
        ([{"op": "grow", "path": "/x"}], "patch_invalid"),
        ([{"op": "remove", "path": "/nodes/nobody"}], "patch_path_missing"),
        ([{"op": "test", "path": "/name", "value": "other"}], "patch_test_failed"),
        ([{"op": "replace", "path": "/name", "value": "other"}], "patch_name"),
        ([{"op": "add", "path": "/nodes/b", "value": {"type": "nothing"}}], "unknown_node_type"),
        ([{"op": "add", "path": "/edges/-", "value": {"from": "z", "to": "a"}}], "cycle"),
        ([{"op": "add", "path": "/nodes/z/config", "value": float("nan")}], "not_json"),
    ],
)
@simulated
async def test_what_cannot_be_is_refused(mill: Cluster, operations: Any, code: str) -> None:
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    for dry_run in (True, False):
        asked = worker.engine.patch(run_id, operations, dry_run=dry_run)
        assert await unchanged(mill, run_id, asked) == code


@simulated
async def test_a_patch_is_made_for_the_graph_that_the_run_has(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    engine = worker.engine
    base = (await engine.document(run_id)).digest
    assert await unchanged(mill, run_id, engine.patch(run_id, _add("w", "z"), base_digest="sha256:1")) == "patch_stale"
    await engine.patch(run_id, _add("w", "z"), base_digest=base)
    assert await unchanged(mill, run_id, engine.patch(run_id, _add("v", "z"), base_digest=base)) == "patch_stale"
    newer = await engine.document(run_id)
    assert newer.digest != base and newer.revision == 1
    outcome = await engine.patch(run_id, _add("v", "w"), base_digest=newer.digest)
    assert outcome.revision == 2
    seq = (await mill.state(run_id)).seq
    assert (await engine.patch(run_id, _add("u", "v"), expected_seq=seq)).revision == 3
    assert await code_of(engine.patch(run_id, _add("t", "v"), expected_seq=seq)) == "patch_stale"


@simulated
async def test_of_two_patches_at_once_one_is_too_late(mill: Cluster) -> None:
    worker = await mill.process()
    one, two = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run_id = await _waiting(mill, worker)
    one.faulty_store.next("commit", following(lambda: two.engine.patch(run_id, _add("two", "z"))))
    assert await code_of(one.engine.patch(run_id, _add("one", "z"))) == "patch_stale"
    assert one.faulty_store.fired["commit"] == 1
    (patched,) = await mill.of(run_id, RunPatched)
    assert patched.added == ("two",)
    await one.engine.patch(run_id, _add("one", "z"))
    await one.engine.signal(run_id, "go")
    assert set((await worker.end(run_id)).outputs) == {"one", "two"}


@simulated
async def test_a_run_is_patched_while_its_attempts_run(mill: Cluster, ledger: Ledger) -> None:
    """Workers that hold the old graph finish what they began, and go on under the new one."""
    workers = [await mill.process(f"w{i}", functions={"work": ledger.work}, concurrency=3) for i in range(2)]
    client = await mill.process("client", work=False)
    run_id = await client.start(
        document(
            *(call(f"a{i}", args={"seconds": 10 + i}) for i in range(4)),
            call("m", args={"seconds": 4}, map={"over": list(range(6)), "max_parallel": 1}),
            node("z", "m", *(f"a{i}" for i in range(4))),
        )
    )
    await asyncio.sleep(7)
    assert await unchanged(mill, run_id, client.engine.patch(run_id, [{"op": "remove", "path": "/nodes/a1"}])) == (
        "patch_live_node"
    )
    added = {"type": "python", "config": {"function": "work", "args": {"seconds": 1, "value": "{{ a0.output }}"}}}
    await client.engine.patch(
        run_id,
        [
            {"op": "add", "path": "/nodes/b", "value": added},
            {"op": "add", "path": "/edges/-", "value": {"from": "a0", "to": "b"}},
            {"op": "add", "path": "/nodes/z/config", "value": "new"},
            {"op": "add", "path": "/edges/-", "value": {"from": "b", "to": "z"}},
        ],
    )
    run = await workers[0].end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"z": "new"})
    assert (len(ledger.calls), ledger.count("b")) == (4 + 6 + 1, 1)
    assert {shown["attempts"] for name, shown in run.nodes.items()} == {1}


@simulated
async def test_an_edge_from_a_finished_node_is_decided_by_what_it_did(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    await worker.engine.patch(run_id, _add("w", "a", config="{{ a.output }}"))
    await asyncio.sleep(1)
    assert (await worker.engine.show(run_id)).nodes["w"]["output"] == 1


@simulated
async def test_the_document_has_all_patches_in_it(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    engine = worker.engine
    published = await engine.workflow_document("test")
    first = await engine.document(run_id)
    assert (first.workflow, first.version, first.revision) == ("test", 1, 0)
    assert [each["id"] for each in first.document["nodes"]] == [each["id"] for each in published["nodes"]]
    await engine.patch(run_id, _add("w", "z", config=LARGE))
    await engine.patch(run_id, [{"op": "replace", "path": "/nodes/w/config", "value": "small"}])
    await engine.patch(run_id, _add("v", "w"))
    assert isinstance((await mill.of(run_id, RunPatched))[0].patch, BlobRef)
    shown = await engine.document(run_id)
    nodes = {each["id"]: each for each in shown.document["nodes"]}
    assert (shown.revision, nodes["w"]["config"]) == (3, "small")
    assert {"from": "w", "to": "v"} in shown.document["edges"]
    assert shown.digest == (await mill.state(run_id)).digest == (await mill.row(run_id)).digest
    assert (await engine.publish(shown.document)).digest == shown.digest


@simulated
async def test_a_patched_document_is_in_its_normal_form_again(mill: Cluster) -> None:
    """Other spellings that a patch brought in are gone, so the next patch finds what the documentation says."""
    worker = await mill.process()
    run_id = await _waiting(mill, worker)
    spelled = {"node_id": "w", "handler": "value", "dependencies": ["z"], "retry": {"backoff_ms": 500}}
    await worker.engine.patch(run_id, [{"op": "add", "path": "/nodes/-", "value": spelled}])
    shown = (await worker.engine.document(run_id)).document
    added = next(each for each in shown["nodes"] if each["id"] == "w")
    assert set(added) == {"id", "type", "retry"} and added["retry"] == {"backoff_seconds": 0.5}
    assert {"from": "z", "to": "w"} in shown["edges"]
    test = {"op": "test", "path": "/nodes/w/type", "value": added["type"]}
    await worker.engine.patch(run_id, [test, {"op": "add", "path": "/nodes/w/priority", "value": 2}])
    await worker.engine.patch(run_id, _add("v", "w"))
    assert (await worker.engine.document(run_id)).revision == 3


def _thing(major: int) -> Handler:
    async def answer(context: NodeContext) -> Done:
        return Done(f"thing@{major}")

    return Handler(NodeType(name="thing", major=major), answer)


@simulated
async def test_nodes_keep_the_types_that_the_run_was_compiled_with(mill: Cluster) -> None:
    old = await mill.process("old", more=[_thing(1)])
    kept = {"compensator": {"type": "thing"}}
    run_id = await old.start(
        document(node("t", type="thing", **kept), signal("go", "t"), node("u", "go", type="thing", **kept))
    )
    await waits(mill, run_id, "go")
    old.kill()
    new = await mill.process("new", more=[_thing(1), _thing(2)])
    shown = (await new.engine.document(run_id)).document
    assert {each["type"] for each in shown["nodes"] if each["id"] in ("t", "u")} == {"thing@1"}
    assert {each["compensator"]["type"] for each in shown["nodes"] if each["id"] in ("t", "u")} == {"thing@1"}
    outcome = await new.engine.patch(run_id, _add("w", "u", type="thing"))
    assert (outcome.added, outcome.changed) == (("w",), ())
    pinned = {"op": "test", "path": "/nodes/w/type", "value": "thing@2"}
    await new.engine.patch(run_id, [pinned, *_add("x", "w", type="thing@1")])
    await new.engine.patch(run_id, _add("y", "x"))
    await new.engine.signal(run_id, "go")
    run = await new.end(run_id)
    assert [run.nodes[name]["output"] for name in "tuwx"] == ["thing@1", "thing@1", "thing@2", "thing@1"]


@simulated
async def test_a_dry_run_asks_also_what_only_the_retry_would_be_refused_for(mill: Cluster) -> None:
    async def hangs() -> None:
        await asyncio.sleep(60)

    worker = await mill.process(functions={"work": hangs})
    run = await worker.run(document(call("a", delivery="at_most_once", timeout_seconds=1)))
    assert (run.status, run.error["code"]) == ("FAILED", "unknown_outcome")
    operations = [{"op": "add", "path": "/description", "value": "x"}]
    for dry_run in (True, False):
        asked = worker.engine.patch(run.run_id, operations, retry=True, dry_run=dry_run)
        assert await code_of(asked) == "outcome_unknown"


@simulated
async def test_a_repeated_patch_is_answered_with_what_it_did_itself(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(human("h")))
    await waits(mill, run_id, "h")
    patches = {name: [{"op": "add", "path": f"/nodes/{name}", "value": node(name, "h")}] for name in ("x", "y")}
    for _ in range(2):
        outcomes = [await worker.engine.patch(run_id, patches[name], command_id=name) for name in patches]
        assert [(each.revision, each.added) for each in outcomes] == [(1, ("x",)), (2, ("y",))]
    await worker.engine.cancel(run_id)
