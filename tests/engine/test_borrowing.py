"""Schemas and code that conditions refer to by digest are part of the version that is published."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.kit import TENANT, Mill, Process, simulated
from tests.engine.people import refused, signal, waits
from tests.kernel.authoring import document, node
from tidemill.blobs.contract import digest_of
from tidemill.engine.compiled import CONTENT_BYTES_MAX
from tidemill.kernel.document.normalize import borrowed_in, with_stand_ins
from tidemill.kernel.model import Workflow

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


async def stored(mill: Mill) -> tuple[str, str]:
    """The digests of a schema and of code."""
    return (
        await mill.blobs.put(TENANT, json.dumps(SCHEMA).encode()),
        await mill.blobs.put(TENANT, CODE.encode()),
    )


@pytest.mark.parametrize("scheme", ["", "cas://"])
@simulated
async def test_content_takes_the_place_of_its_digest(mill: Mill, scheme: str) -> None:
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
async def test_wherever_a_condition_stands(mill: Mill, nodes_as: type) -> None:
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
async def test_a_blob_that_holds_something_else(mill: Mill, condition: Any, body: bytes, words: str) -> None:
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
    mill: Mill, condition: Any, body: bytes, codes: set[str]
) -> None:
    client = await mill.process(work=False)
    digest = await mill.blobs.put(TENANT, body)
    found = (await refused(client.engine.publish(branching(condition(digest))))).problems
    assert {problem.code for problem in found} == codes
    assert all(problem.path.startswith("/nodes/0/branch/rules/0/condition/") for problem in found)


@simulated
async def test_a_version_needs_no_blob_to_run(mill: Mill) -> None:
    worker = await mill.process()
    digest = await mill.blobs.put(TENANT, json.dumps(SCHEMA).encode())
    reference = await worker.publish(branching(by_schema(digest)))
    del mill.blobs._held[TENANT, digest]
    run = await worker.run(reference)
    assert run.nodes["x"]["status"] == "COMPLETED"


@simulated
async def test_a_run_is_patched_with_a_reference(mill: Mill) -> None:
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


# Without a store


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
