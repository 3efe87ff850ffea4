"""Tags that versions share by weight, the way back, and workflows that are taken out of the catalog."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from tests.fixtures.approvers import code_of, refused
from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tidemill.engine.versions import (
    SHARING_MAX,
    WORKFLOW,
    History,
    TagMoved,
    Version,
    chosen,
    decode_record,
    read_workflow_row,
)
from tidemill.stores.contract import Row, Stream

KEYS = 10_000


async def with_versions(mill: Cluster, count: int) -> Process:
    process = await mill.process()
    for number in range(1, count + 1):
        await process.engine.publish(document(node("a", config=number)))
    return process


@pytest.mark.parametrize("shares", [{1: 90, 2: 10}, {1: 50, 2: 50}, {3: 1, 4: 99}, {1: 20, 2: 30, 3: 50}])
def test_every_version_gets_its_share_of_many_keys(shares: dict[int, int]) -> None:
    counts = Counter(chosen(shares, f"test:stable:key-{number}") for number in range(KEYS))
    for version, percent in shares.items():
        expected = KEYS * percent / 100
        # Ten standard deviations: chance fails this less often than hardware does.
        assert abs(counts[version] - expected) <= 10 * (KEYS * percent / 100 * (1 - percent / 100)) ** 0.5
    assert counts.total() == KEYS


def test_a_version_whose_share_grows_keeps_its_keys() -> None:
    keys = [f"key-{number}" for number in range(KEYS)]
    few = {key for key in keys if chosen({1: 90, 2: 10}, key) == 2}
    more = {key for key in keys if chosen({1: 60, 2: 40}, key) == 2}
    assert few < more


@simulated
async def test_runs_that_a_shared_tag_starts_get_several_versions_and_a_key_always_the_same(mill: Cluster) -> None:
    worker = await with_versions(mill, 2)
    await worker.engine.tag("test", "stable", 1)
    moved = await worker.engine.tag("test", "stable", 2, weight=30, actor="ada")
    assert (moved.version, moved.was, moved.weights, moved.was_weights) == (1, 1, {1: 70, 2: 30}, {})
    keys = [f"order-{number}" for number in range(60)]
    for _ in range(2):
        assert await worker.engine.start_many("test:stable", [None] * len(keys), keys=keys) == keys
    versions = {key: (await mill.row(key)).version for key in keys}
    history = await worker.engine.catalog._history(TENANT, "test")
    assert versions == {key: history.meant_by("test:stable", key).version for key in keys}
    assert set(versions.values()) == {1, 2}
    for key in keys[:10]:
        assert await worker.engine.start("test:stable", key=key) == key
    assert (await worker.end(keys[0])).outputs == {"a": versions[keys[0]]}
    assert (await mill.row(keys[0])).tag_used == "test:stable"
    assert (await worker.engine.workflow("test:stable")).digest == history.versions[0].digest, "the main one"


@simulated
async def test_inputs_are_checked_against_the_version_that_a_run_gets(mill: Cluster) -> None:
    worker = await mill.process()
    for kind in ("integer", "string"):
        await worker.engine.publish(document(node("a"), inputs={"type": "object", "properties": {"n": {"type": kind}}}))
    await worker.engine.tag("test", "next", {1: 50, 2: 50})
    history = await worker.engine.catalog._history(TENANT, "test")
    first, second = (next(k for k in map(str, range(99)) if history.tagged("next", k).version == v) for v in (1, 2))
    await worker.engine.start("test:next", {"n": 7}, key=first)
    await worker.engine.start("test:next", {"n": "seven"}, key=second)
    refusal = await refused(worker.engine.start_many("test:next", [{"n": None}] * 2, keys=["p", "q"]))
    assert {problem.path.split("/")[2] for problem in refusal.problems} == {"0", "1"}


@simulated
async def test_a_child_gets_the_version_that_its_id_decides(mill: Cluster) -> None:
    worker = await with_versions(mill, 2)
    await worker.engine.tag("test", "stable", {1: 50, 2: 50})
    starts = [node(f"c{number}", type="workflow", config={"workflow": "test:stable"}) for number in range(12)]
    run = await worker.run(document(*starts, name="parent"))
    assert run.status == "COMPLETED"
    children = await mill.rows(f"parent:{run.run_id}")
    history = await worker.engine.catalog._history(TENANT, "test")
    assert [row.version for row in children] == [history.tagged("stable", row.run_id).version for row in children]
    assert {row.version for row in children} == {1, 2}


@simulated
async def test_shares_change_one_by_one_and_the_history_has_them(mill: Cluster) -> None:
    worker = await with_versions(mill, 3)
    tag = worker.engine.tag
    await tag("test", "stable", 1)
    assert (await tag("test", "stable", 2, weight=10)).weights == {1: 90, 2: 10}
    assert not (await tag("test", "stable", 2, weight=10)).moved
    assert (await tag("test", "stable", 3, weight=50)).weights == {1: 45, 2: 5, 3: 50}
    assert (await tag("test", "stable", 2, weight=0)).weights == {1: 47, 3: 53}
    assert (await tag("test", "stable", 3, weight=100)).weights == {}
    history = await worker.engine.tag_history("test", "stable")
    assert [(move.version, move.weights) for move in history][:3] == [
        (1, ()),
        (1, ((1, 90), (2, 10))),
        (3, ((1, 45), (2, 5), (3, 50))),
    ]
    assert (history[-1].version, history[-1].weights) == (3, ())
    row = (await worker.engine.workflows.find())[0][0]
    assert (row.tags["stable"], row.weights) == (3, {})
    await tag("test", "stable", {"1": 40, "3": 60})
    assert (await worker.engine.workflows.find())[0][0].weights == {"stable": {1: 40, 3: 60}}
    assert (await worker.engine.reindex()).different == 0


@pytest.mark.parametrize(
    ("version", "weight"),
    [
        ({1: 50, 2: 40}, None),
        ({1: 110, 2: -10}, None),
        ({1: 50.0, 2: 50.0}, None),
        ({1: True, 2: 99}, None),
        ({1: 50, 2: 50}, 10),
        ({}, None),
        (1, 10),
        (2, 101),
        (2, -1),
        (2, True),
        (dict.fromkeys(range(1, SHARING_MAX + 2), 9) | {1: 10}, None),
    ],
)
@simulated
async def test_wrong_weights_are_refused(mill: Cluster, version: Any, weight: Any) -> None:
    worker = await with_versions(mill, SHARING_MAX + 1)
    await worker.engine.tag("test", "stable", 1)
    before = await worker.engine.tag_history("test")
    assert await code_of(worker.engine.tag("test", "stable", version, weight=weight)) == "tag_weights_invalid"
    assert await code_of(worker.engine.tag("test", "new", 1, weight=10)) == "tag_weights_invalid"
    assert await code_of(worker.engine.tag("test", "stable", {1: 50, 99: 50})) == "version_unknown"
    assert await worker.engine.tag_history("test") == before


@simulated
async def test_a_tag_goes_back_to_where_it_pointed_before(mill: Cluster) -> None:
    worker = await with_versions(mill, 3)
    await worker.engine.tag("test", "stable", 1)
    assert await code_of(worker.engine.rollback_tag("test", "stable")) == "tag_without_past"
    assert await code_of(worker.engine.rollback_tag("test", "nope")) == "tag_unknown"
    await worker.engine.tag("test", "stable", 2, weight=20)
    await worker.engine.tag("test", "stable", 3)
    back = await worker.engine.rollback_tag("test", "stable", actor="ada", message="3 is broken")
    assert (back.version, back.weights, back.was) == (1, {1: 80, 2: 20}, 3)
    assert (await worker.engine.rollback_tag("test", "stable")).version == 3
    last = (await worker.engine.tag_history("test", "stable"))[-2]
    assert (last.actor, last.message, last.weights) == ("ada", "3 is broken", ((1, 80), (2, 20)))


def test_records_and_rows_of_an_earlier_version_are_read() -> None:
    move = {"type": "tag_moved", "name": "w", "tag": "stable", "version": 1, "was": 0, "at_ms": 5, "v": 1}
    record = decode_record(msgspec.msgpack.encode(move))
    assert isinstance(record, TagMoved) and record.weights == ()
    history = History("w", [Version(name="w", version=1, digest="d", document="t", at_ms=1), record])
    assert history.tagged("stable", "any run").version == 1
    row = {"name": "w", "version": 1, "digest": "d", "versions": 1, "tags": {}, "created_ms": 1, "updated_ms": 1}
    body = msgspec.msgpack.encode({**row, "description": "", "v": 1})
    assert read_workflow_row(Row(kind=WORKFLOW, key="w", sort=1, body=body)).weights == {}


# Deletion


@simulated
async def test_a_workflow_with_live_runs_is_not_deleted(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("s", type="signal", config={"name": "go"})))
    for number in range(3):
        await worker.engine.start("test", key=f"r{number}")
    refusal = await refused(worker.engine.delete_workflow("test"))
    (problem,) = refusal.problems
    assert (problem.code, problem.message) == ("workflow_in_use", "3 runs of test have not ended")
    assert "runs bulk cancel workflow:test live" in problem.hint
    assert (await worker.engine.workflow("test")).name == "test"


@simulated
async def test_ended_runs_of_a_deleted_workflow_stay_readable(mill: Cluster) -> None:
    worker = await with_versions(mill, 2)
    await worker.engine.tag("test", "stable", 1)
    run = await worker.run("test:stable", key="old")
    deleted = await worker.engine.delete_workflow("test", actor="ada", message="replaced")
    assert (deleted.name, deleted.versions) == ("test", 2)
    for reference in ("test", "test@1", "test:stable"):
        assert await code_of(worker.engine.start(reference)) == "workflow_unknown"
    assert await code_of(worker.engine.delete_workflow("test")) == "workflow_unknown"
    assert (await worker.engine.workflows.find())[0] == []
    client = await mill.process("c", work=False)
    assert (await client.engine.show("old")).outputs == run.outputs
    assert (await client.engine.document("old")).document["nodes"]
    assert (await client.engine.verify_log()).clean
    assert (await client.engine.reindex()) == (await client.engine.reindex())
    assert (await client.engine.workflows.find())[0] == []
    collected = await client.engine.collect_blobs()
    assert collected.retired == 0, "what runs need is kept"


@simulated
async def test_a_name_that_is_published_again_continues_the_numbers(mill: Cluster) -> None:
    worker = await with_versions(mill, 2)
    await worker.engine.tag("test", "stable", 1)
    await worker.engine.delete_workflow("test")
    again = await worker.engine.publish(document(node("a", config=1)))
    assert (again.version, again.created) == (3, True)
    assert [version.version for version in await worker.engine.versions("test")] == [3]
    assert await worker.engine.tags("test") == {"latest": 3}
    assert await code_of(worker.engine.start("test@1")) == "version_unknown"
    assert await code_of(worker.engine.rollback_tag("test", "stable")) == "tag_unknown"
    row = (await worker.engine.workflows.find())[0][0]
    assert (row.version, row.versions, row.tags) == (3, 1, {"latest": 3})
    assert (await worker.run("test")).version == 3
    (tail,) = await mill.store.load({Stream(TENANT, WORKFLOW, "test"): 0})
    assert tail.version == 5


@simulated
async def test_a_process_that_holds_the_history_notices_the_deletion(mill: Cluster) -> None:
    one, other = await with_versions(mill, 1), await mill.process("c", work=False)
    await other.engine.start("test", key="r")
    await one.end("r")
    await one.engine.delete_workflow("test")
    assert await code_of(other.engine.start("test")) == "workflow_unknown"
    await other.engine.publish(chain("a", "b"))
    assert (await one.run("test")).version == 2
