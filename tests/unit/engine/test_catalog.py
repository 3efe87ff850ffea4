"""Publishing and addressing workflows: by content, by name, by version."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from tests.fixtures.approvers import refused, signal, waits
from tests.fixtures.child_processes import until
from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tidemill.blobs.contract import digest_of
from tidemill.blobs.memory import MemoryBlobs
from tidemill.bootstrap import engine_at
from tidemill.engine.catalog import Catalog
from tidemill.engine.compiled import CONTENT_BYTES_MAX
from tidemill.errors import Rejected, Unavailable
from tidemill.handlers.contract import Done, Handler
from tidemill.kernel.document.normalize import borrowed_in, with_stand_ins
from tidemill.kernel.model import ConfigProblem, NodeType, Workflow
from tidemill.stores.contract import Stream
from tidemill.testing.faulty_store import after_s, following, lose_reply


@simulated
async def test_equal_content_is_the_same_version(mill: Cluster) -> None:
    client = await mill.process(work=False)
    first = await client.engine.publish(chain("a", "b"))
    again = await client.engine.publish(chain("a", "b"))
    text = await client.engine.publish(
        "name: test\nnodes:\n  - {id: a, type: value}\n  - {id: b, type: value, dependencies: [a]}\n"
    )
    assert (first.version, first.created) == (1, True)
    assert [(other.version, other.created, other.digest) for other in (again, text)] == [(1, False, first.digest)] * 2
    assert len(await client.engine.catalog.versions(TENANT, "test")) == 1


@simulated
async def test_new_content_is_a_new_version_and_older_content_keeps_its_own(mill: Cluster) -> None:
    client = await mill.process(work=False)
    versions = [(await client.engine.publish(chain(*names))).version for names in ("a", "ab", "abc", "ab", "a")]
    assert versions == [1, 2, 3, 2, 1]


@simulated
async def test_a_name_is_the_newest_version_and_a_number_that_one(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("a", config=1)))
    await worker.publish(document(node("a", config=2)))
    for reference, expected in (("test", 2), ("test@1", 1), ("test@2", 2)):
        run = await worker.run(reference)
        assert (run.outputs, run.version) == ({"a": expected}, expected)
        assert (await mill.row(run.run_id)).tag_used == reference


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("nobody", "workflow_unknown"),
        ("", "workflow_unknown"),
        ("nobody@1", "workflow_unknown"),
        ("test@0", "version_unknown"),
        ("test@2", "version_unknown"),
        ("test@", "version_unknown"),
        ("test@-1", "version_unknown"),
        ("test@one", "version_unknown"),
        ("test@1@1", "version_unknown"),
        ("test@" + "9" * 5_000, "version_unknown"),
        ("test@٣", "version_unknown"),
        ("\ud800", "workflow_unknown"),
        ({"name": "test", "nodes": []}, "reference_invalid"),
    ],
)
@simulated
async def test_what_does_not_exist_is_refused(mill: Cluster, reference: Any, code: str) -> None:
    client = await mill.process(work=False)
    await client.publish(chain("a"))
    with pytest.raises(Rejected) as refused:
        await client.engine.runs.start(reference)
    assert refused.value.code == code
    assert len(str(refused.value)) < 8_000
    assert await mill.rows() == []


@simulated
async def test_a_document_with_problems_is_refused_whole(mill: Cluster) -> None:
    client = await mill.process(work=False)
    broken: Any = document(node("a", "zzz"), node("b", type="nonsense"), node("c", config="{{ a.output"), surprise=1)
    with pytest.raises(Rejected) as refused:
        await client.engine.publish(broken)
    assert len(refused.value.problems) >= 4
    assert all(problem.code and problem.path and problem.message for problem in refused.value.problems)
    assert await client.engine.catalog.versions(TENANT, "test") == []
    assert mill.blobs._held == {}


@simulated
async def test_two_who_publish_at_once_get_two_versions_or_share_one(mill: Cluster) -> None:
    first = await mill.process("c1", work=False)
    second = await mill.process("c2", work=False)
    first.faulty_store.next("commit", following(lambda: second.engine.publish(chain("x"))))
    published = await first.engine.publish(chain("y"))
    assert (published.version, published.created) == (2, True)
    first.faulty_store.next("commit", following(lambda: second.engine.publish(chain("z"))))
    shared = await first.engine.publish(chain("z"))
    assert (shared.version, shared.created) == (3, False)
    assert first.faulty_store.fired["commit"] == 2


@simulated
async def test_publishing_again_after_a_lost_reply_answers_the_same_version(mill: Cluster) -> None:
    client = await mill.process(work=False)
    client.faulty_store.next("commit", lose_reply)
    results = await asyncio.gather(client.engine.publish(chain("a")), return_exceptions=True)
    assert client.faulty_store.fired["commit"] == 1
    again = await client.engine.publish(chain("a"))
    assert again.version == 1
    assert len(await client.engine.catalog.versions(TENANT, "test")) == 1
    assert len(results) == 1


@simulated
async def test_a_version_keeps_its_document_in_the_normal_form(mill: Cluster) -> None:
    client = await mill.process(work=False)
    await client.engine.publish(
        {"name": "seeds", "nodes": [{"node_id": "a", "handler": "decision", "config": 1}]},
        author="ada",
        message="first",
    )
    (version,) = await client.engine.catalog.versions(TENANT, "seeds")
    assert (version.author, version.message, version.at_ms) == ("ada", "first", 1_000_000)
    normal = await client.engine.catalog.document(TENANT, version)
    assert normal["nodes"][0]["id"] == "a" and normal["nodes"][0]["type"].startswith("value")


@simulated
async def test_another_process_runs_what_one_has_published(mill: Cluster) -> None:
    """The compiled form is read by its digest; it is never compiled a second time."""
    client = await mill.process("client", work=False)
    reference = await client.publish(document(node("a", config="{{ inputs.x + 1 }}")))
    worker = await mill.process("w1")
    run = await worker.run(reference, {"x": 4})
    assert run.outputs == {"a": 5}
    digest = (await mill.row(run.run_id)).digest
    assert (await worker.engine.catalog.flow(TENANT, digest)) is (await worker.engine.catalog.flow(TENANT, digest))


@simulated
async def test_a_running_run_stays_with_the_version_it_started_with(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    old = await client.start(document(node("a", config="old")))
    new = await client.start(document(node("a", config="new")))
    worker = await mill.process("w1")
    assert (await worker.end(old)).outputs == {"a": "old"}
    assert (await worker.end(new)).outputs == {"a": "new"}


@simulated
async def test_workflows_are_listed_by_rows(mill: Cluster) -> None:
    client = await mill.process(work=False)
    for name in ("one", "two"):
        await client.publish(chain("a", name=name))
        await client.publish(chain("b", name=name))
    page = await mill.store.find(TENANT, "workflow", ["workflow"])
    assert sorted(row.key for row in page.rows) == ["one", "two"]
    (tail,) = await mill.store.load({Stream(TENANT, "workflow", "one"): 0})
    assert tail.version == 2


@simulated
async def test_of_two_publishers_each_gets_its_own_version(mill: Cluster) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    for process in (first, second):
        process.faulty_store.next("commit", after_s(0.01))
    answers = await asyncio.gather(first.engine.publish(chain("a")), second.engine.publish(chain("a", "b")))
    assert sorted(answer.version for answer in answers) == [1, 2]
    for answer in answers:
        version = await first.engine.catalog.resolve("default", f"{answer.name}@{answer.version}")
        assert version.digest == answer.digest


class Lying(MemoryBlobs):
    """A blob store that does not verify what it reads."""

    async def get(self, tenant: str, digest: str) -> bytes:
        body = await super().get(tenant, digest)
        return body.replace(b"value@1", b"value@2")


@simulated
async def test_a_damaged_workflow_is_not_run(mill: Cluster) -> None:
    client = await mill.process("c", work=False)
    published = await client.engine.publish(chain("a"))
    blobs = Lying()
    blobs._held = mill.blobs._held
    catalog = Catalog(mill.store, blobs, client.ambient, client.engine.types)
    with pytest.raises(Unavailable, match="damaged"):
        await catalog.flow("default", published.digest)


# Schemas and code that conditions refer to by digest are part of the version that is published


SCHEMA = {"type": "object", "required": ["ok"]}
CODE = "def evaluate(output, context):\n    return output['ok']\n"
NOBODY = "sha256:" + "0" * 64


def by_schema(digest: str, **more: Any) -> dict[str, Any]:
    return {"type": "schema_validation", "schema_ref": digest, **more}


def by_code(digest: str) -> dict[str, Any]:
    return {"type": "python_sandbox", "code_ref": digest}


def branching(condition: Any) -> dict[str, Any]:
    return document(node("a", config={"ok": True}, branch=rules(condition)), node("x"), node("z"))


def rules(condition: Any) -> dict[str, Any]:
    return {"rules": [{"condition": condition, "next_nodes": ["x"]}], "default": ["z"]}


async def flow(client: Process, raw: Any) -> Workflow:
    return (await client.engine.catalog.compile(TENANT, raw)).workflow


async def stored(mill: Cluster) -> tuple[str, str]:
    """The digests of a schema and of code."""
    return (
        await mill.blobs.put(TENANT, json.dumps(SCHEMA).encode()),
        await mill.blobs.put(TENANT, CODE.encode()),
    )


@pytest.mark.parametrize("scheme", ["", "cas://"])
@simulated
async def test_content_takes_the_place_of_its_digest(mill: Cluster, scheme: str) -> None:
    client = await mill.process(work=False)
    schema, code = await stored(mill)
    both = {
        "type": "composite",
        "operator": "OR",
        "conditions": [
            by_code(scheme + code),
            {"type": "composite", "operator": "NOT", "conditions": [by_schema(schema)]},
        ],
    }
    inline: dict[str, Any] = {
        "type": "composite",
        "operator": "OR",
        "conditions": [
            {"type": "python_sandbox", "code": CODE},
            {"type": "composite", "operator": "NOT", "conditions": [{"type": "schema_validation", "schema": SCHEMA}]},
        ],
    }
    for borrowed, written in ((by_schema(scheme + schema, invert=True), None), (both, inline)):
        written = written or {"type": "schema_validation", "schema": SCHEMA, "invert": True}
        assert (await flow(client, branching(borrowed))).digest == (await flow(client, branching(written))).digest


@pytest.mark.parametrize("nodes_as", [list, dict])
@simulated
async def test_wherever_a_condition_stands(mill: Cluster, nodes_as: type) -> None:
    schema, _ = await stored(mill)
    nodes = {
        "a": {"type": "value", "when": {"type": "python_sandbox", "code_ref": NOBODY}},
        "b": {
            "type": "value",
            "loop": {"condition": by_schema(NOBODY), "max_iterations": 2},
            "branch": {
                "rules": [
                    {"condition": by_schema(schema), "next_nodes": ["c"]},
                    {"condition": by_code(NOBODY), "next_nodes": ["c"]},
                ]
            },
        },
        "c": {"type": "value", "when": {"type": "composite", "operator": "NOT", "conditions": [by_code("sha256:xyz")]}},
    }
    listed = [{"id": name, **fields} for name, fields in nodes.items()]
    client = await mill.process(work=False)
    raw = {"name": "test", "nodes": listed if nodes_as is list else nodes}
    before = json.dumps(raw)
    refusal = await refused(client.engine.publish(raw))
    places = "012" if nodes_as is list else "abc"
    assert [(problem.code, problem.path) for problem in refusal.problems] == [
        ("condition_ref_unreadable", f"/nodes/{places[0]}/when/code_ref"),
        ("condition_ref_unreadable", f"/nodes/{places[1]}/branch/rules/1/condition/code_ref"),
        ("condition_ref_unreadable", f"/nodes/{places[1]}/loop/condition/schema_ref"),
        ("condition_shape", f"/nodes/{places[2]}/when/conditions/0/code_ref"),
    ]
    assert all(problem.hint for problem in refusal.problems)
    assert json.dumps(raw) == before, "the document belongs to whoever gave it"


@pytest.mark.parametrize(
    ("condition", "body", "words"),
    [
        (by_schema, b"\xff\xfe", "cannot be read"),
        (by_schema, b"{nope", "cannot be read"),
        (by_code, b"\xff\xfe", "cannot be read"),
        (by_schema, b"[" + b"1," * (CONTENT_BYTES_MAX // 2) + b"1]", "8,388,608"),
    ],
    ids=["neither text nor JSON", "no JSON", "no text", "too large"],
)
@simulated
async def test_a_blob_that_holds_something_else(mill: Cluster, condition: Any, body: bytes, words: str) -> None:
    client = await mill.process(work=False)
    digest = await mill.blobs.put(TENANT, body)
    (problem,) = (await refused(client.engine.publish(branching(condition(digest))))).problems
    assert (problem.code, words in problem.message) == ("condition_ref_unreadable", True)


@pytest.mark.parametrize(
    ("condition", "body", "codes"),
    [
        (by_schema, b'{"type": 5}', {"schema_invalid"}),
        (by_schema, b'"x"', {"schema_invalid"}),
        (by_code, b"def evaluate(", {"condition_syntax"}),
    ],
)
@simulated
async def test_content_is_checked_like_what_is_written_there(
    mill: Cluster, condition: Any, body: bytes, codes: set[str]
) -> None:
    client = await mill.process(work=False)
    digest = await mill.blobs.put(TENANT, body)
    found = (await refused(client.engine.publish(branching(condition(digest))))).problems
    assert {problem.code for problem in found} == codes
    assert all(problem.path.startswith("/nodes/0/branch/rules/0/condition/") for problem in found)


@simulated
async def test_a_version_needs_no_blob_to_run(mill: Cluster) -> None:
    worker = await mill.process()
    digest = await mill.blobs.put(TENANT, json.dumps(SCHEMA).encode())
    reference = await worker.publish(branching(by_schema(digest)))
    del mill.blobs._held[TENANT, digest]
    run = await worker.run(reference)
    assert run.nodes["x"]["status"] == "COMPLETED"


@simulated
async def test_a_run_is_patched_with_a_reference(mill: Cluster) -> None:
    worker = await mill.process()
    digest = await mill.blobs.put(TENANT, json.dumps(SCHEMA).encode())
    run_id = await worker.start(document(signal("go"), node("a", "go", config={"ok": 1}), node("x", "a")))
    await waits(mill, run_id, "go")
    loop = {"condition": by_schema(digest, invert=True), "max_iterations": 3}
    await worker.engine.patch(run_id, [{"op": "add", "path": "/nodes/a/loop", "value": loop}])
    await worker.engine.patch(run_id, [{"op": "replace", "path": "/nodes/a/config", "value": {"ok": 2}}])
    await worker.engine.signal(run_id, "go")
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["output"], run.nodes["a"]["visits"]) == ("COMPLETED", {"ok": 2}, 1)


def test_stand_ins_let_the_rest_be_checked() -> None:
    raw = branching(by_schema(NOBODY))
    shown, warnings = with_stand_ins(raw)
    assert borrowed_in(shown) == [] and len(borrowed_in(raw)) == 1
    assert [(each.code, each.path) for each in warnings] == [
        ("condition_ref_unchecked", "/nodes/0/branch/rules/0/condition/schema_ref")
    ]
    assert with_stand_ins(branching("output > 1")) == (branching("output > 1"), [])


def test_a_misspelt_digest_has_no_stand_in() -> None:
    raw = branching(by_schema("cas://sha256:abc"))
    shown, warnings = with_stand_ins(raw)
    assert (len(borrowed_in(shown)), warnings) == (1, [])


@pytest.mark.parametrize("raw", [None, 5, [], {}, {"nodes": 5}, {"nodes": [5, {"when": 3, "loop": 4, "branch": [1]}]}])
def test_what_is_no_document_refers_to_nothing(raw: Any) -> None:
    assert borrowed_in(raw) == []


def test_a_condition_that_holds_itself_is_looked_at_once() -> None:
    circle: dict[str, Any] = {"type": "composite", "operator": "NOT", "conditions": []}
    circle["conditions"] += [circle, by_code(NOBODY)]
    assert [each.path for each in borrowed_in(branching(circle))] == [
        "/nodes/0/branch/rules/0/condition/conditions/1/code_ref"
    ]


def test_a_digest_is_that_of_the_bytes() -> None:
    found = borrowed_in(branching(by_code("cas://" + digest_of(b"x"))))
    assert [each.digest for each in found] == [digest_of(b"x")]


async def test_a_large_document_is_compiled_in_a_thread() -> None:
    """The event loop goes on meanwhile: what it does lets the compiler end."""
    threads: list[str] = []
    going_on = threading.Event()

    def check(config: Any) -> list[ConfigProblem]:
        threads.append(threading.current_thread().name.partition("_")[0])
        if config["wait"]:
            assert going_on.wait(60)
        return []

    checked = Handler(NodeType(name="checked", check=check), lambda context: Done(1))
    async with engine_at("memory://", handlers=[checked]) as engine:
        await engine.publish(document(node("a", type="checked", config={"wait": False}), name="small"))
        nodes = [node(f"n{number}", type="checked", config={"wait": number == 0}) for number in range(200)]
        publishing = asyncio.create_task(engine.publish(document(*nodes, name="large")))
        await until(lambda: len(threads) > 1)
        run = await engine.result(await engine.start("small"))
        assert run.status == "COMPLETED" and not publishing.done()
        going_on.set()
        assert (await publishing).version == 1
        text = json.dumps(document(*nodes, name="text"))
        assert (await engine.publish(text)).version == (await engine.publish(text.encode())).version == 1
    assert threads[0] == "MainThread"
    assert set(threads[1:]) == {"tidemill-compile"}


async def test_compiled_workflows_in_memory_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred large documents must not fill the memory of every worker that meets them."""
    monkeypatch.setattr("tidemill.engine.catalog.FLOWS_BYTES_MAX", 250_000)
    async with engine_at("memory://", work=False) as engine:
        made = [
            await engine.publish(document(node("a", config="x" * 100_000), name=f"w{number}")) for number in range(5)
        ]
        kept = [await engine.catalog.flow(TENANT, each.digest) for each in made]
        again = [await engine.catalog.flow(TENANT, each.digest) for each in reversed(made)]
        same = [one is other for one, other in zip(reversed(kept), again, strict=True)]
        assert same == [True, True, False, False, False]
