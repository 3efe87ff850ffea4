"""Node types that workers offer: what a process without the plug-in accepts, compiles and lists, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import tidemill.engine.offered_types as stored_types
from tests.fixtures.approvers import refused
from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.engine.offered_types import (
    CONFIRM_MS,
    NODE_TYPE,
    NODE_TYPE_FORMAT,
    UNOFFERED_MS,
    NodeTypeRow,
    forget_unoffered_types,
    offer_types,
    offered_types,
)
from tidemill.engine.worker import registry
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, Handler
from tidemill.kernel.explain import blockers
from tidemill.kernel.model import Capabilities, ConfigProblem, NodeType, encode_workflow
from tidemill.stores.contract import Commit, Row, Stream

DAY_S = CONFIRM_MS / 1000
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def _never(config: Any) -> Iterator[ConfigProblem]:
    yield ConfigProblem("/text", "the code of the plug-in says no", "")


def shout(**more: Any) -> Handler:
    fields = {"name": "shout", "config_schema": TEXT, **more}
    return Handler(NodeType(**fields), lambda context: Done(context.config["text"].upper()))


LOUD = document(node("a"), node("b", "a", type="shout", config={"text": "hi"}), node("c", "b"), name="loud")


async def _rows(mill: Cluster) -> tuple[Row, ...]:
    return (await mill.store.find(TENANT, NODE_TYPE)).rows


@simulated
async def test_a_process_without_a_plug_in_accepts_its_nodes_and_they_run(mill: Cluster) -> None:
    plain = await mill.process("plain")
    with pytest.raises(Rejected):
        await plain.publish(LOUD)
    plugged = await mill.process("plugged", more=[shout()])
    await asyncio.sleep(1)
    # The worker without it decides turns of the run, and leaves the node itself to the other.
    for _ in range(5):
        run = await plain.run(LOUD)
        assert (run.status, run.nodes["b"]["output"], run.nodes["b"]["attempts"]) == ("COMPLETED", "HI", 1)
    published = await plain.engine.publish(LOUD)
    assert published.from_workers == ("shout@1",)
    assert (await plugged.engine.publish(LOUD)).from_workers == ()


@simulated
async def test_a_run_waits_for_a_worker_that_has_the_type(mill: Cluster) -> None:
    plain = await mill.process("plain")
    await offer_types(mill.store, TENANT, [shout().type])
    run_id = await plain.start(LOUD)
    await asyncio.sleep(120)
    (view,) = await mill.jobs(run_id)
    assert (view.job.key, view.lease_expires_at_ms) == ("run/b/1/-1", None)
    blocker = (await plain.engine.why(run_id)).blockers[0]
    assert isinstance(blocker, blockers.Worker) and blocker.need == "no_type"
    await mill.process("plugged", more=[shout()])
    assert (await plain.end(run_id)).nodes["b"]["output"] == "HI"


UNUSUAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "queue": {"queue": "loud"},
    "no retries": {"capabilities": Capabilities(retryable=False)},
    "at most once": {"capabilities": Capabilities(at_most_once=True, concurrency=3)},
    "waits": {"waits": True, "exits": ("rejection_path",)},
    "secrets": {"secret_fields": ("text",)},
    "schemas": {"schemas": ("form",), "output_schema": {"type": "string"}, "input_schema": {"type": "object"}},
    "tuples": {"config_schema": {"type": ("object", "null"), "required": ("text",)}},
    "check": {"check": lambda config: iter(())},
}


@pytest.mark.parametrize("kind", UNUSUAL)
@simulated
async def test_what_is_compiled_does_not_depend_on_who_compiles_it(mill: Cluster, kind: str) -> None:
    plain = await mill.process("plain", work=False)
    plugged = await mill.process("plugged", more=[shout(**UNUSUAL[kind])])
    await asyncio.sleep(1)
    config = {"text": "{{ secrets.word }}" if kind == "secrets" else "hi"}
    nodes = [node("a"), node("b", "a", type="shout", config=config, compensator={"type": "shout", "config": config})]
    if kind == "waits":
        config["rejection_path"] = ["c"]
        nodes.append(node("c", type="value"))
    loud = {**document(*nodes, name="loud"), "defaults": {"timeout_seconds": 5}}
    here, there = [await each.engine.catalog.compile(TENANT, loud) for each in (plain, plugged)]
    assert encode_workflow(here.workflow) == encode_workflow(there.workflow)
    assert (here.workflow.digest, here.document) == (there.workflow.digest, there.document)


@simulated
async def test_a_configuration_is_checked_against_the_schema_of_the_row(mill: Cluster) -> None:
    plain = await mill.process("plain", work=False)
    plugged = await mill.process("plugged", more=[shout(check=_never)])
    await asyncio.sleep(1)
    wrong = document(node("b", type="shout", config={"txt": "hi"}), name="loud")
    assert {problem.code for problem in (await refused(plain.engine.publish(wrong))).problems} == {"config_invalid"}
    # What only the code of the plug-in can tell is left to the worker.
    await plain.engine.publish(LOUD)
    (problem,) = (await refused(plugged.engine.publish(LOUD))).problems
    assert problem.message.endswith("the code of the plug-in says no")


@simulated
async def test_a_type_of_this_process_wins_over_the_row(mill: Cluster) -> None:
    await mill.process("plugged", more=[shout()])
    await asyncio.sleep(1)
    other = await mill.process("other", work=False, more=[shout(config_schema=True, queue="mine")])
    published = await other.engine.publish(document(node("b", type="shout", config={"txt": 3}), name="loud"))
    assert published.from_workers == ()
    types = await other.engine.catalog.node_types.union()
    assert [type_.queue for type_ in types["shout"]] == ["mine"]
    assert (await other.engine.workflow("loud")).by_id["b"].queue == "mine"


@simulated
async def test_a_type_without_a_version_is_the_newest_of_all(mill: Cluster) -> None:
    await mill.process("second", more=[shout(major=2)])
    first = await mill.process("first", more=[shout(major=1)])
    await asyncio.sleep(1)
    plain = await mill.process("plain", work=False)
    for process in (first, plain):
        compiled = await process.engine.catalog.compile(TENANT, LOUD)
        assert compiled.workflow.by_id["b"].type == "shout@2"
    (problem,) = (await refused(plain.engine.publish(document(node("a", type="shout@3"), name="loud")))).problems
    assert problem.code == "unknown_type_version"
    assert problem.hint == "known: shout@2, shout@1 (no worker of this store has offered it)"


@simulated
async def test_the_refusal_of_an_unknown_type_says_that_no_worker_offers_it(mill: Cluster) -> None:
    plain = await mill.process("plain")
    (problem,) = (await refused(plain.engine.publish(LOUD))).problems
    assert problem.code == "unknown_node_type"
    assert problem.hint.endswith("(no worker of this store has offered it)")


@simulated
async def test_a_row_is_written_once_and_confirmed_once_a_day(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    hour_ms = 3_600_000
    monkeypatch.setattr(stored_types, "CONFIRM_MS", hour_ms)
    monkeypatch.setattr(registry, "CONFIRM_MS", hour_ms)
    await mill.process("w1", more=[shout()])
    await asyncio.sleep(1)
    (written,) = await _rows(mill)
    await mill.process("w2", more=[shout()])
    await asyncio.sleep(3_500)
    assert await _rows(mill) == (written,)
    await asyncio.sleep(200)
    (confirmed,) = await _rows(mill)
    assert confirmed.sort >= written.sort + hour_ms
    assert _without_time(confirmed) == _without_time(written)


def _without_time(row: Row) -> dict[str, Any]:
    return {**msgspec.msgpack.decode(row.body), "offered_ms": 0}


@simulated
async def test_a_worker_with_another_form_of_the_type_writes_it_over(mill: Cluster) -> None:
    await offer_types(mill.store, TENANT, [shout().type])
    assert await offer_types(mill.store, TENANT, [shout().type]) == 0
    assert await offer_types(mill.store, TENANT, [shout(queue="loud").type], "registry/shop:7") == 1
    (row,) = await offered_types(mill.store, TENANT)
    assert (row.queue, row.image) == ("loud", "registry/shop:7")


@simulated
async def test_a_worker_of_built_in_types_writes_no_rows(mill: Cluster) -> None:
    await mill.process("w1")
    await asyncio.sleep(600)
    assert await _rows(mill) == ()


@simulated
async def test_reads_of_the_rows_are_cached_and_a_start_makes_none(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    finds = client.faulty_store.calls
    for number in range(20):
        await client.publish(document(node("a"), name=f"ours-{number}"))
    assert finds["find"] == 1
    await client.engine.start("ours-1")
    # The concurrency limits.
    assert finds["find"] == 2
    await asyncio.sleep(10)
    await client.publish(document(node("a"), name="later"))
    assert finds["find"] == 3
    # A type that is not among them is looked for again at once.
    await offer_types(mill.store, TENANT, [shout().type])
    await client.publish(LOUD)
    assert finds["find"] == 4


@simulated
async def test_what_cannot_be_described_is_not_offered(mill: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A limit that code decides on would be compiled differently; a schema may hold what no JSON is."""
    capped = NodeType(name="capped", capabilities=Capabilities(concurrency=1), capped=lambda config: False)
    strange = NodeType(name="strange", config_schema={"const": object()})
    assert await offer_types(mill.store, TENANT, [capped, strange, shout().type]) == 1
    assert [row.key for row in await _rows(mill)] == ["shout@1"]
    assert [record.message for record in caplog.records if "strange@1 cannot be published" in record.message]


def _newer(row: Row, **fields: Any) -> Row:
    return msgspec.structs.replace(row, body=msgspec.msgpack.encode({**msgspec.msgpack.decode(row.body), **fields}))


async def _write(mill: Cluster, row: Row) -> None:
    await mill.store.commit([Commit(stream=Stream(TENANT, NODE_TYPE, row.key), expected=None, rows=(row,))])


@simulated
async def test_a_row_of_a_newer_format_is_neither_used_nor_written_over(mill: Cluster) -> None:
    await offer_types(mill.store, TENANT, [shout().type])
    newer = _newer((await _rows(mill))[0], v=NODE_TYPE_FORMAT + 1, queue={"by": "region"})
    await _write(mill, newer)
    plain = await mill.process("plain", work=False)
    assert (await refused(plain.engine.publish(LOUD))).code == "unknown_node_type"
    assert await offer_types(mill.store, TENANT, [shout(queue="loud").type]) == 0
    assert await _rows(mill) == (newer,)


@simulated
async def test_a_confirmation_keeps_the_fields_of_a_newer_version(mill: Cluster) -> None:
    await offer_types(mill.store, TENANT, [shout().type])
    await _write(mill, _newer((await _rows(mill))[0], colour="red"))
    mill.loop.now += DAY_S + 1
    assert await offer_types(mill.store, TENANT, [shout().type]) == 1
    body = msgspec.msgpack.decode((await _rows(mill))[0].body)
    assert (body["colour"], body["offered_ms"]) == ("red", mill.store.now_ms())


@simulated
async def test_a_type_that_nobody_has_offered_for_a_week_is_forgotten(mill: Cluster) -> None:
    await offer_types(mill.store, TENANT, [shout().type])
    mill.loop.now += UNOFFERED_MS / 1000 - 3_600
    await offer_types(mill.store, TENANT, [shout(name="other").type])
    assert await forget_unoffered_types(mill.store, TENANT, mill.store.now_ms()) == 0
    mill.loop.now += 3_601
    assert await forget_unoffered_types(mill.store, TENANT, mill.store.now_ms()) == 1
    assert [row.key for row in await _rows(mill)] == ["other@1"]


@simulated
async def test_the_list_says_who_has_a_type(mill: Cluster) -> None:
    plain = await mill.process("plain", work=False, more=[shout(name="mine")])
    workers = [await mill.process(name, more=[shout()]) for name in ("w1", "w2")]
    await asyncio.sleep(1)
    views = {view.node_type.key: view for view in await plain.engine.workers.node_types()}
    assert (views["shout@1"].here, views["shout@1"].workers) == (False, 2)
    assert (views["mine@1"].here, views["mine@1"].workers, views["mine@1"].last_seen_ms) == (True, 0, None)
    assert (views["value@1"].here, views["value@1"].workers) == (True, 2)
    for worker in workers:
        await worker.stop()
    await asyncio.sleep(60)
    (gone,) = [view for view in await plain.engine.workers.node_types() if view.node_type.key == "shout@1"]
    assert gone.workers == 0 and gone.last_seen_ms is not None
    assert mill.store.now_ms() - gone.last_seen_ms >= 60_000


def test_a_row_carries_everything_of_a_type_that_is_data() -> None:
    left_out = set(NodeType.__struct_fields__) - set(NodeTypeRow.__struct_fields__)
    assert left_out == {"check", "checks_anything", "capped", "output_keys"}
