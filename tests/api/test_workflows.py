"""Workflows over HTTP: validate, publish, versions, tags, patches, graphs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.callers import TestAccess, as_caller
from tidemill.kernel.document.reader import read_document
from tidemill.kernel.model import decode_workflow

HELLO = {"name": "hello", "nodes": [{"id": "greet", "type": "value", "config": "Hello"}]}
YAML = {"content-type": "application/yaml"}
BROKEN = """\
name: hello
nodes:
  - {id: a, type: vale}
  - id: b
    type: value
    dependencies: [c]
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), work=False) as running:
        yield running


def hello(greeting: str) -> dict[str, Any]:
    return {"name": "hello", "nodes": [{"id": "greet", "type": "value", "config": greeting}]}


async def test_a_published_document_is_listed_shown_and_compared(server: ApiServer) -> None:
    first = await server.http.post("/workflows", json={"document": HELLO, "message": "the first"})
    assert first.status_code == 201
    assert first.json()["version"] == 1 and first.json()["created"]
    again = await server.http.post("/workflows", json={"document": HELLO})
    assert (again.status_code, again.json()["created"]) == (201, False)
    await server.post("/workflows", {"document": hello("Good morning")})

    (row,) = (await server.get("/workflows"))["items"]
    assert (row["name"], row["version"]) == ("hello", 2)
    shown = await server.get("/workflows/hello@1")
    assert (shown["version"], shown["author"], shown["message"]) == (1, "local", "the first")
    assert (await server.get("/workflows/hello/document"))["nodes"][0]["config"] == "Good morning"
    compared = await server.get("/workflows/hello@1/diff", to="hello@2")
    assert compared["document"] == [{"op": "replace", "path": "/nodes/greet/config", "value": "Good morning"}]


async def test_versions_come_in_pages(server: ApiServer) -> None:
    for number in range(3):
        await server.post("/workflows", {"document": hello(f"Hello {number}")})
    first = await server.get("/workflows/hello/versions", limit=2)
    rest = await server.get("/workflows/hello/versions", limit=2, after=first["next"])
    assert [each["version"] for each in first["items"] + rest["items"]] == [1, 2, 3]
    assert rest["next"] is None
    refused = await server.http.get("/workflows/hello/versions", params={"after": "x"})
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_cursor")


async def test_a_document_in_yaml_is_published(server: ApiServer) -> None:
    text = "name: hello\nnodes:\n  - {id: greet, type: value, config: Hello}\n"
    answer = await server.http.post("/workflows", content=text, headers=YAML, params={"message": "from a file"})
    assert answer.status_code == 201
    assert (await server.get("/workflows/hello"))["message"] == "from a file"


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 200_000, "- " * 200_000, '{"a":' * 100_000], ids=["lists", "items", "maps"]
)
async def test_a_document_that_is_too_deep_is_refused(server: ApiServer, text: str) -> None:
    """Places are not looked up in it: the process would die of it."""
    for path in ("/workflows/validate", "/workflows"):
        answer = (await server.http.post(path, content=text, headers=YAML)).json()
        assert answer["problems"][0]["code"] == "too_deep"


async def test_validate_tells_every_problem_with_line_and_column(server: ApiServer) -> None:
    answer = await server.http.post("/workflows/validate", content=BROKEN, headers=YAML)
    found = answer.json()
    assert (answer.status_code, found["valid"]) == (200, False)
    places = {each["path"]: (each["line"], each["column"]) for each in found["problems"]}
    assert places == {"/nodes/0/type": (3, 13), "/nodes/1/dependencies/0": (6, 20)}
    assert (await server.get("/workflows"))["items"] == []


async def test_validate_finds_the_place_within_a_json_body(server: ApiServer) -> None:
    body = '{"document": {"name": "hello", "nodes": [\n  {"id": "a", "type": "vale"}]}}'
    answer = await server.http.post("/workflows/validate", content=body, headers={"content-type": "application/json"})
    (problem,) = answer.json()["problems"]
    assert (problem["path"], problem["line"], problem["column"]) == ("/nodes/0/type", 2, 15)


async def test_validate_answers_what_a_document_would_become(server: ApiServer) -> None:
    found = await server.post("/workflows/validate", {"document": HELLO})
    assert (found["valid"], found["name"], found["nodes"], found["problems"]) == (True, "hello", 1, [])
    assert (await server.post("/workflows", {"document": HELLO}))["digest"] == found["digest"]


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        ("{", "application/json", 400, "body_malformed"),
        ('{"document": {}, "document": {}}', "application/json", 400, "body_malformed"),
        ("[]", "application/json", 400, "body_malformed"),
        ('{"message": "x"}', "application/json", 422, "request_invalid"),
        ('{"document": {"name": "x", "nodes": []}}', "application/json", 422, "no_nodes"),
        ("name: x\nnodes: []", "text/html", 415, "content_type_unsupported"),
        ("a: [", "application/yaml", 422, "yaml_syntax"),
    ],
)
async def test_what_cannot_be_published_is_refused(
    server: ApiServer, body: str, kind: str, status: int, code: str
) -> None:
    answer = await server.http.post("/workflows", content=body, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await server.get("/workflows"))["items"] == []


async def test_a_patch_makes_a_new_version(server: ApiServer) -> None:
    first = await server.post("/workflows", {"document": HELLO})
    change = [{"op": "replace", "path": "/nodes/greet/config", "value": "Good evening"}]
    patched = await server.http.post(
        "/workflows/hello/patch", json={"operations": change, "base_digest": first["digest"]}
    )
    assert (patched.status_code, patched.json()["version"]) == (201, 2)
    stale = await server.http.post(
        "/workflows/hello/patch", json={"operations": change, "base_digest": first["digest"]}
    )
    assert (stale.status_code, stale.json()["code"]) == (409, "patch_stale")


async def test_tags_are_moved_removed_and_remembered(server: ApiServer) -> None:
    await server.post("/workflows", {"document": HELLO})
    await server.post("/workflows", {"document": hello("Good morning")})
    moved = await server.http.put("/workflows/hello/tags/stable", json={"version": 1, "message": "it works"})
    assert (moved.json()["tag"], moved.json()["version"], moved.json()["was"]) == ("stable", 1, 0)
    assert await server.get("/workflows/hello/tags") == {"stable": 1, "latest": 2}
    assert (await server.get("/workflows/hello:stable"))["version"] == 1
    assert (await server.http.delete("/workflows/hello/tags/stable")).json()["version"] == 0
    history = (await server.get("/workflows/hello/tag-history", tag="stable"))["items"]
    assert [(each["version"], each["actor"]) for each in history] == [(1, "local"), (0, "local")]
    refused = await server.http.get("/workflows/hello:stable")
    assert (refused.status_code, refused.json()["code"]) == (404, "tag_unknown")


async def test_a_document_is_read_back_as_json_or_yaml(server: ApiServer) -> None:
    await server.post("/workflows", {"document": HELLO})
    text = await server.http.get("/workflows/hello/document", params={"format": "yaml"})
    assert text.headers["content-type"].startswith("application/yaml") and text.text.startswith("name: hello\n")
    assert read_document(text.text, format="yaml") == await server.get("/workflows/hello/document")


async def test_the_graph_is_a_compiled_workflow_and_a_picture(server: ApiServer) -> None:
    await server.post("/workflows", {"document": HELLO})
    graph = await server.http.get("/workflows/hello/graph")
    assert decode_workflow(graph.content).nodes[0].id == "greet"
    picture = await server.http.get("/workflows/hello/graph.svg")
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert "greet" in picture.text and "sandbox" in picture.headers["content-security-policy"]


async def test_a_workflow_of_another_tenant_is_as_unknown_as_none(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), work=False, access=TestAccess) as server:
        ours, theirs = as_caller("ann", "author"), as_caller("tom", "author", tenant="other")
        await server.http.post("/workflows", json={"document": HELLO}, headers=ours)
        for path in (
            "/workflows/hello",
            "/workflows/hello/document",
            "/workflows/hello/graph",
            "/workflows/hello/tags",
        ):
            foreign, absent = (
                await server.http.get(path, headers=theirs),
                await server.http.get(path.replace("hello", "hellx"), headers=theirs),
            )
            assert foreign.status_code == absent.status_code == 404
            assert foreign.text.replace("hello", "hellx") == absent.text
        assert (await server.http.get("/workflows", headers=theirs)).json()["items"] == []


async def test_a_viewer_may_look_and_not_publish(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), work=False, access=TestAccess) as server:
        viewer = as_caller("vic", "viewer")
        assert (await server.http.get("/workflows", headers=viewer)).status_code == 200
        refused = await server.http.post("/workflows", json={"document": HELLO}, headers=viewer)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
        nameless = await server.http.get("/workflows")
        assert nameless.status_code == 401


async def test_versions_share_a_tag_and_a_rollback_takes_the_move_back(server: ApiServer) -> None:
    for greeting in ("one", "two", "three"):
        await server.post("/workflows", {"document": hello(greeting)})
    path = "/workflows/hello/tags/stable"
    await server.http.put(path, json={"version": 1})
    shared = await server.http.put(path, json={"version": 2, "weight": 10})
    assert shared.json()["weights"] == {"1": 90, "2": 10}
    named = await server.http.put(path, json={"weights": {"2": 50, "3": 50}})
    assert named.json()["weights"] == {"2": 50, "3": 50}
    shown = await server.http.get("/workflows/hello")
    assert shown.json()["weights"] == {"stable": {"2": 50, "3": 50}}
    back = await server.http.post(f"{path}/rollback", json={"message": "3 is slow"})
    assert back.json()["weights"] == {"1": 90, "2": 10}
    for body in ({}, {"version": 1, "weights": {"1": 100}}, {"weights": {"x": 100}}):
        refused = await server.http.put(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "request_invalid")


async def test_a_workflow_is_deleted_unless_runs_of_it_live(server: ApiServer) -> None:
    await server.post("/workflows", {"document": HELLO})
    await server.engine.start("hello", key="run")
    refused = await server.http.delete("/workflows/hello")
    assert (refused.status_code, refused.json()["code"]) == (409, "workflow_in_use")
    await server.engine.cancel("run")
    assert (await server.http.delete("/workflows/hello")).json() == {"name": "hello", "versions": 1}
    assert (await server.http.get("/workflows/hello")).status_code == 404
