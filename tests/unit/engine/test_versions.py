"""Versions and what makes them, tags and who moved them, lists of workflows, and what lies between two versions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import refused
from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tidemill.engine.catalog import Catalog, Tagged
from tidemill.engine.versions import TAGS_MAX, WORKFLOW
from tidemill.errors import Unavailable
from tidemill.kernel.document.diff import Change, NodeChange
from tidemill.stores.contract import Stream
from tidemill.testing.faulty_store import following, lose_reply


def put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


async def records(mill: Cluster, name: str = "test") -> int:
    (tail,) = await mill.store.load({Stream(TENANT, "workflow", name): 0})
    return tail.version


async def with_versions(mill: Cluster, count: int, name: str = "c") -> tuple[Process, Catalog]:
    client = await mill.process(name, work=False)
    for number in range(1, count + 1):
        await client.engine.publish(document(node("a", config={"n": number}), node("b", "a")))
    return client, client.engine.catalog


@simulated
async def test_a_version_knows_the_one_before_it(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 3)
    again = await client.engine.publish(document(node("a", config={"n": 1}), node("b", "a")))
    assert (again.version, again.created) == (1, False)
    versions = await catalog.versions(TENANT, "test")
    assert [(one.version, one.parent, one.patch) for one in versions] == [(1, 0, None), (2, 1, None), (3, 2, None)]
    assert [await catalog.patch_of(TENANT, one) for one in versions] == [None] * 3
    assert (await catalog.resolve(TENANT, "test")).version == 3
    assert await catalog.tags(TENANT, "test") == {"latest": 3}


@simulated
async def test_moves_of_tags_do_not_count_as_versions(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 1)
    await catalog.tag(TENANT, "test", "stable", 1)
    published = await client.engine.publish(chain("z"))
    assert (published.version, await records(mill)) == (2, 3)
    assert (await catalog.resolve(TENANT, "test@2")).parent == 1


@pytest.mark.parametrize("field", ["author", "message"])
@pytest.mark.parametrize("words", ["x" * 2_001, "\ud800", 3])
@simulated
async def test_words_that_cannot_be_kept_are_refused(mill: Cluster, field: str, words: Any) -> None:
    _, catalog = await with_versions(mill, 1)
    mine: Any = {field: words}
    actor: Any = {"actor" if field == "author" else field: words}
    for asked in (
        catalog.publish(TENANT, chain("z"), **mine),
        catalog.patch(TENANT, "test", [], **mine),
        catalog.tag(TENANT, "test", "stable", 1, **actor),
        catalog.untag(TENANT, "test", "stable", **actor),
    ):
        assert (await refused(asked)).code == "text_invalid"
    assert await records(mill) == 1


@simulated
async def test_a_workflow_is_compiled_and_stored_without_publishing_it(mill: Cluster) -> None:
    client = await mill.process(work=False)
    catalog = client.engine.catalog
    config = await mill.blobs.put(TENANT, b'{"x":1}')
    compiled = await catalog.compile(TENANT, document({"id": "a", "type": "value", "config_ref": config}))
    assert compiled.workflow.by_id["a"].config == {"x": 1} and len(mill.blobs._held) == 1
    digest, text = await catalog.store_flow(TENANT, compiled)
    assert digest == compiled.workflow.digest
    assert (await catalog.flow(TENANT, digest)).workflow == compiled.workflow
    assert b'"config":{"x":1}' in await mill.blobs.get(TENANT, text)
    assert await records(mill) == 0


@simulated
async def test_a_patch_makes_a_version(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("a", config=1)))
    await worker.publish(document(node("a", config=2)))
    catalog = worker.engine.catalog
    operations = [{"op": "replace", "path": "/nodes/a/config", "value": 3}]
    made = await catalog.patch(TENANT, "test@1", operations, author="ada", message="three")
    assert (made.version, made.created) == (3, True)
    version = await catalog.resolve(TENANT, "test")
    assert (version.version, version.parent, version.author, version.message) == (3, 1, "ada", "three")
    assert await catalog.patch_of(TENANT, version) == operations
    assert (await worker.run("test")).outputs == {"a": 3}


@simulated
async def test_a_patch_that_gives_what_there_is_answers_it_and_writes_nothing(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 3)
    back = await catalog.patch(TENANT, "test", [put("/nodes/a/config/n", 1)])
    assert (back.version, back.created) == (1, False)
    nothing = await catalog.patch(TENANT, "test@2", [])
    assert (nothing.version, nothing.created) == (2, False)
    assert (await catalog.tags(TENANT, "test"), await records(mill)) == ({"latest": 3}, 3)


@simulated
async def test_a_patch_repeated_after_a_lost_reply_is_one_version(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 1)
    client.faulty_store.next("commit", lose_reply)
    with pytest.raises(Unavailable):
        await catalog.patch(TENANT, "test@1", [put("/description", "new")])
    assert client.faulty_store.fired["commit"] == 1
    again = await catalog.patch(TENANT, "test@1", [put("/description", "new")])
    assert (again.version, again.created, await records(mill)) == (2, False, 2)


@simulated
async def test_a_patch_is_refused_like_a_document(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 1)
    held = dict(mill.blobs._held)
    for operations, codes in (
        ([{"op": "remove", "path": "/nodes/a"}, put("/edges/-", {"from": "a", "to": "b"})], ["unknown_dependency"]),
        ([{"op": "remove", "path": "/nodes/zz"}], ["patch_path_missing"]),
        ([{"op": "test", "path": "/name", "value": "x"}], ["patch_test_failed"]),
        ([{"op": "zap"}, 3], ["patch_invalid"] * 3),
        ([put("/name", "other")], ["patch_invalid"]),
        ([put("/nodes/a/config_ref", "sha256:none"), {"op": "remove", "path": "/nodes/a/config"}], None),
    ):
        problems = (await refused(catalog.patch(TENANT, "test", operations))).problems
        assert [problem.code for problem in problems] == (codes or ["config_ref_unreadable"])
    assert (await refused(catalog.patch(TENANT, "nobody", []))).code == "workflow_unknown"
    assert (await refused(catalog.patch(TENANT, "test@7", []))).code == "version_unknown"
    assert (await refused(catalog.patch(TENANT, "test:zz", []))).code == "tag_unknown"
    assert (await records(mill), mill.blobs._held) == (1, held)


@simulated
async def test_a_patch_made_for_other_content_is_stale(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 1)
    seen = await catalog.resolve(TENANT, "test")
    await client.engine.publish(chain("z"))
    stale = await refused(catalog.patch(TENANT, "test", [put("/description", "D")], base_digest=seen.digest))
    assert (stale.code, await records(mill)) == ("patch_stale", 2)
    made = await catalog.patch(TENANT, "test@1", [put("/description", "D")], base_digest=seen.digest)
    assert (made.version, made.created) == (3, True)


@simulated
async def test_a_patch_that_loses_a_race_is_made_again_on_what_is_there(mill: Cluster) -> None:
    first, catalog = await with_versions(mill, 1)
    second = await mill.process("c2", work=False)
    first.faulty_store.next("commit", following(lambda: second.engine.publish(chain("a", "z"))))
    made = await catalog.patch(TENANT, "test", [put("/description", "D")])
    assert (made.version, first.faulty_store.fired["commit"]) == (3, 1)
    version = await catalog.resolve(TENANT, "test")
    assert version.parent == 2
    assert [entry["id"] for entry in (await catalog.document(TENANT, version))["nodes"]] == ["a", "z"]


@simulated
async def test_a_patch_with_a_digest_that_loses_a_race_is_stale(mill: Cluster) -> None:
    first, catalog = await with_versions(mill, 1)
    second = await mill.process("c2", work=False)
    seen = await catalog.resolve(TENANT, "test")
    first.faulty_store.next("commit", following(lambda: second.engine.publish(chain("a", "z"))))
    lost = await refused(catalog.patch(TENANT, "test", [put("/description", "D")], base_digest=seen.digest))
    assert (lost.code, first.faulty_store.fired["commit"], await records(mill)) == ("patch_stale", 1, 2)


@simulated
async def test_too_many_publishers_at_once_are_not_waited_for(mill: Cluster) -> None:
    first, catalog = await with_versions(mill, 1)
    second = await mill.process("c2", work=False)
    numbers = iter(range(1_000))
    first.faulty_store.always(
        "commit", following(lambda: second.engine.publish(chain("z", description=f"{next(numbers)}")))
    )
    with pytest.raises(Unavailable, match="too many"):
        await catalog.publish(TENANT, chain("q"))
    with pytest.raises(Unavailable, match="too many"):
        await catalog.tag(TENANT, "test", "stable", 1)
    assert first.faulty_store.fired["commit"] == 32


@simulated
async def test_a_tag_points_to_a_version_until_somebody_moves_it(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 2)
    assert await catalog.tag(TENANT, "test", "stable", 1) == Tagged(name="test", tag="stable", version=1, was=0)
    assert (await catalog.resolve(TENANT, "test:stable")).version == 1
    await client.engine.publish(chain("z"))
    assert await catalog.tags(TENANT, "test") == {"latest": 3, "stable": 1}
    assert (await catalog.tag(TENANT, "test", "stable", 3)).was == 1
    for reference, expected in (("test", 3), ("test:latest", 3), ("test:stable", 3), ("test@1", 1)):
        assert (await catalog.resolve(TENANT, reference)).version == expected


@simulated
async def test_a_run_is_started_by_a_tag(mill: Cluster) -> None:
    worker = await mill.process()
    for config in (1, 2):
        await worker.publish(document(node("a", config=config)))
    await worker.engine.catalog.tag(TENANT, "test", "stable", 1)
    run = await worker.run("test:stable")
    assert (run.outputs, run.version) == ({"a": 1}, 1)
    assert (await mill.row(run.run_id)).tag_used == "test:stable"


@simulated
async def test_moving_a_tag_to_where_it_is_writes_nothing(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 1)
    moved = [await catalog.tag(TENANT, "test", "stable", 1) for _ in range(3)]
    assert [one.moved for one in moved] == [True, False, False]
    assert await records(mill) == 2


@simulated
async def test_the_history_of_tags_is_kept(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 2)
    await catalog.tag(TENANT, "test", "stable", 1, actor="ada", message="first")
    await asyncio.sleep(5)
    await catalog.tag(TENANT, "test", "canary", 2)
    await catalog.tag(TENANT, "test", "stable", 2, actor="bob")
    await catalog.untag(TENANT, "test", "stable", actor="eve", message="broken")
    moves = await catalog.tag_history(TENANT, "test", "stable")
    assert [(move.was, move.version, move.actor, move.message) for move in moves] == [
        (0, 1, "ada", "first"),
        (1, 2, "bob", ""),
        (2, 0, "eve", "broken"),
    ]
    assert moves[1].at_ms - moves[0].at_ms == 5_000
    assert [move.tag for move in await catalog.tag_history(TENANT, "test")] == ["stable", "canary", "stable", "stable"]
    assert await catalog.tag_history(TENANT, "test", "latest") == []
    assert await catalog.tags(TENANT, "test") == {"latest": 2, "canary": 2}


@simulated
async def test_a_tag_that_is_gone_can_be_taken_away_again_and_come_back(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 1)
    await catalog.tag(TENANT, "test", "stable", 1)
    client.faulty_store.next("commit", lose_reply)
    with pytest.raises(Unavailable):
        await catalog.untag(TENANT, "test", "stable")
    assert (await catalog.untag(TENANT, "test", "stable")).moved is False
    assert (client.faulty_store.fired["commit"], await records(mill)) == (1, 3)
    assert (await refused(catalog.resolve(TENANT, "test:stable"))).code == "tag_unknown"
    assert (await catalog.tag(TENANT, "test", "stable", 1)).was == 0


@pytest.mark.parametrize("version", [0, 3, -1, True, pytest.param(10**5_000, id="huge"), "x"])
@simulated
async def test_a_tag_points_to_a_version_that_exists(mill: Cluster, version: Any) -> None:
    _, catalog = await with_versions(mill, 2)
    refusal = await refused(catalog.tag(TENANT, "test", "stable", version))
    assert (refusal.code, refusal.problems[0].hint) == ("version_unknown", "versions 1 to 2 exist")
    assert await records(mill) == 2


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("latest", "tag_reserved"),
        ("", "tag_invalid"),
        ("7", "tag_invalid"),
        ("Stable", "tag_invalid"),
        ("a" * 65, "tag_invalid"),
        ("a b", "tag_invalid"),
        ("a\n", "tag_invalid"),
        ("-a", "tag_invalid"),
        ("ä", "tag_invalid"),
        (7, "tag_invalid"),
        (None, "tag_invalid"),
    ],
)
@simulated
async def test_what_a_tag_cannot_be_called(mill: Cluster, tag: Any, code: str) -> None:
    _, catalog = await with_versions(mill, 1)
    for asked in (catalog.tag(TENANT, "test", tag, 1), catalog.untag(TENANT, "test", tag)):
        refusal = await refused(asked)
        assert (refusal.code, refusal.problems[0].path) == (code, "/tag")
        assert refusal.problems[0].hint
    assert await records(mill) == 1


@simulated
async def test_a_workflow_has_a_bounded_number_of_tags(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 2)
    for number in range(TAGS_MAX):
        await catalog.tag(TENANT, "test", f"t{number}", 1)
    assert (await refused(catalog.tag(TENANT, "test", "more", 1))).code == "too_many_tags"
    assert (await catalog.tag(TENANT, "test", "t7", 2)).moved
    await catalog.untag(TENANT, "test", "t8")
    assert (await catalog.tag(TENANT, "test", "more", 1)).moved


@simulated
async def test_of_two_who_move_a_tag_at_once_both_are_on_record(mill: Cluster) -> None:
    first, catalog = await with_versions(mill, 2)
    second = await mill.process("c2", work=False)
    first.faulty_store.next(
        "commit", following(lambda: second.engine.catalog.tag(TENANT, "test", "stable", 2, actor="bob"))
    )
    moved = await catalog.tag(TENANT, "test", "stable", 1, actor="ada")
    assert (moved.was, moved.version, first.faulty_store.fired["commit"]) == (2, 1, 1)
    moves = await catalog.tag_history(TENANT, "test")
    assert [(move.actor, move.was, move.version) for move in moves] == [("bob", 0, 2), ("ada", 2, 1)]


@simulated
async def test_two_who_move_a_tag_to_one_place_move_it_once(mill: Cluster) -> None:
    first, catalog = await with_versions(mill, 1)
    second = await mill.process("c2", work=False)
    first.faulty_store.next("commit", following(lambda: second.engine.catalog.tag(TENANT, "test", "stable", 1)))
    assert (await catalog.tag(TENANT, "test", "stable", 1)).moved is False
    assert (first.faulty_store.fired["commit"], await records(mill)) == (1, 2)


@simulated
async def test_a_publisher_and_a_tagger_at_once_both_succeed(mill: Cluster) -> None:
    first, catalog = await with_versions(mill, 1)
    second = await mill.process("c2", work=False)
    first.faulty_store.next("commit", following(lambda: second.engine.catalog.tag(TENANT, "test", "stable", 1)))
    assert (await catalog.publish(TENANT, chain("z"))).version == 2
    (row,), _ = await catalog.find(TENANT)
    assert (row.version, row.tags) == (2, {"latest": 2, "stable": 1})


@pytest.mark.parametrize(
    ("reference", "code", "hint"),
    [
        ("tset", "workflow_unknown", "`test`"),
        ("Test", "workflow_unknown", "`test`"),
        ("zzz", "workflow_unknown", "publish it first: `tidemill publish FILE`"),
        ("", "workflow_unknown", "publish it first: `tidemill publish FILE`"),
        (":stable", "workflow_unknown", ""),
        ("\ud800", "workflow_unknown", ""),
        pytest.param("x" * 10_000, "workflow_unknown", "", id="long-name"),
        ("test:stabel", "tag_unknown", "`stable`"),
        ("test:1", "tag_unknown", "test@1"),
        ("test:", "tag_unknown", "latest, stable"),
        ("test:stable@1", "tag_unknown", ""),
        ("test@stable", "version_unknown", "test:stable"),
        ("test@latest", "version_unknown", "test:latest"),
        ("test@1:stable", "version_unknown", "versions 1 to 2"),
        ("test@3", "version_unknown", "versions 1 to 2"),
        pytest.param("test@" + "9" * 10_000, "version_unknown", "versions 1 to 2", id="long-number"),
    ],
)
@simulated
async def test_a_reference_that_means_nothing_has_a_hint(mill: Cluster, reference: str, code: str, hint: str) -> None:
    client, catalog = await with_versions(mill, 2)
    await catalog.tag(TENANT, "test", "stable", 1)
    refusal = await refused(catalog.resolve(TENANT, reference))
    assert refusal.code == code and hint in refusal.problems[0].hint
    assert len(str(refusal)) < 500
    asked = {stream.key for load in client.faulty_store.loads for stream in load if stream.kind == WORKFLOW}
    assert asked <= {"test", "tset", "zzz"}, "a name that no workflow can have is not asked for"


@simulated
async def test_the_tags_of_an_unknown_workflow_are_refused(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 1)
    for asked in (
        catalog.tags(TENANT, "tset"),
        catalog.tag_history(TENANT, "tset"),
        catalog.tag(TENANT, "tset", "stable", 1),
        catalog.untag(TENANT, "tset", "stable"),
        catalog.diff(TENANT, "test", "tset"),
    ):
        refusal = await refused(asked)
        assert (refusal.code, refusal.problems[0].hint) == ("workflow_unknown", "did you mean `test`?")
    assert (await refused(catalog.untag(TENANT, "test", "stable"))).code == "tag_unknown"
    assert (await refused(catalog.tag_history(TENANT, "test", "stable"))).code == "tag_unknown"


@simulated
async def test_workflows_belong_to_their_tenant(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 1)
    assert (await refused(catalog.resolve("other", "test"))).problems[
        0
    ].hint == "publish it first: `tidemill publish FILE`"
    assert await catalog.find("other") == ([], None)
    await catalog.publish("other", chain("z"))
    assert (await catalog.tags("other", "test"), await catalog.tags(TENANT, "test")) == ({"latest": 1}, {"latest": 1})
    assert (await catalog.find("other"))[0][0].digest != (await catalog.find(TENANT))[0][0].digest


@simulated
async def test_a_list_shows_what_a_workflow_is_now(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 1)
    (before,), _ = await catalog.find(TENANT)
    await asyncio.sleep(2)
    newest = await client.engine.publish(chain("z", description="d" * 1_000))
    await asyncio.sleep(3)
    await catalog.tag(TENANT, "test", "stable", 1)
    (row,), after = await catalog.find(TENANT)
    assert after is None
    assert (row.name, row.version, row.versions, row.digest) == ("test", 2, 2, newest.digest)
    assert (row.tags, row.description) == ({"latest": 2, "stable": 1}, "d" * 500)
    assert (row.created_ms, row.updated_ms) == (before.created_ms, before.updated_ms + 5_000)


@simulated
async def test_lists_have_pages_and_terms(mill: Cluster) -> None:
    client = await mill.process(work=False)
    catalog = client.engine.catalog
    for number in range(5):
        await client.engine.publish(chain("a", name=f"w{number}"))
        await asyncio.sleep(1)
    await catalog.tag(TENANT, "w1", "stable", 1)
    first, cursor = await catalog.find(TENANT, limit=3)
    rest, end = await catalog.find(TENANT, after=cursor, limit=3)
    assert ([row.name for row in first], [row.name for row in rest]) == (["w1", "w4", "w3"], ["w2", "w0"])
    assert (cursor is not None, end) == (True, None)
    assert [row.name for row in (await catalog.find(TENANT, ["tag:stable"]))[0]] == ["w1"]
    await catalog.untag(TENANT, "w1", "stable")
    assert await catalog.find(TENANT, ["tag:stable"]) == ([], None)
    assert (await refused(catalog.find(TENANT, limit=0))).code == "limit_invalid"


@simulated
async def test_the_difference_of_two_versions_is_a_patch_and_a_comparison(mill: Cluster) -> None:
    client, catalog = await with_versions(mill, 1)
    await client.engine.publish(document(node("a", config={"n": 2}), node("c", "a"), description="D"))
    await catalog.tag(TENANT, "test", "stable", 1)
    found = await catalog.diff(TENANT, "test:stable", "test")
    assert (found.left.version, found.right.version) == (1, 2)
    assert found.graph.nodes_added == ("c",) and found.graph.nodes_removed == ("b",)
    assert found.graph.nodes_changed == (
        NodeChange(id="a", fields=(Change(field="config", old={"n": 1}, new={"n": 2}),)),
    )
    assert found.graph.edges_added == (("a", "c"),) and found.graph.edges_removed == (("a", "b"),)
    assert found.graph.keys == (Change(field="description", new="D"),)
    assert (found.graph.terminals_added, found.graph.terminals_removed) == (("c",), ("b",))
    again = await catalog.patch(TENANT, "test@1", list(found.document))
    assert (again.version, again.created) == (2, False)


@simulated
async def test_a_version_does_not_differ_from_itself(mill: Cluster) -> None:
    _, catalog = await with_versions(mill, 1)
    found = await catalog.diff(TENANT, "test", "test@1")
    assert found.left == found.right and found.document == ()
    assert not any(getattr(found.graph, field) for field in found.graph.__struct_fields__)


@simulated
async def test_a_difference_is_found_by_a_process_that_compiled_neither(mill: Cluster) -> None:
    await with_versions(mill, 2)
    other = await mill.process("other", work=False)
    found = await other.engine.catalog.diff(TENANT, "test@1", "test@2")
    assert list(found.document) == [{"op": "replace", "path": "/nodes/a/config/n", "value": 2}]
