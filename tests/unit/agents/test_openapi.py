"""`openapi_action`: documents, selection, checks before the request, credentials at one origin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fixtures.agent_tools import code, content, workbench
from tests.fixtures.servers.web import Web, json_reply, redirect, web
from tidemill.agents import openapi
from tidemill.agents.openapi import Operation, find_operations, read_operation, settings_problems
from tidemill.agents.tools import Pending
from tidemill.handlers.contract import Fail

DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "servers": [{"url": "/v1"}],
    "components": {
        "schemas": {
            "Order": {
                "type": "object",
                "properties": {"item": {"type": "string"}, "parent": {"$ref": "#/components/schemas/Order"}},
                "required": ["item"],
            }
        },
        "parameters": {"Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}},
    },
    "paths": {
        "/orders/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {
                "operationId": "readOrder",
                "summary": "Read an order",
                "parameters": [{"name": "fields", "in": "query", "schema": {"type": "array"}}],
            },
        },
        "/orders": {
            "post": {
                "operationId": "addOrder",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}},
                },
            },
            "delete": {"description": "Delete all"},
        },
    },
}


@pytest.fixture
async def served() -> AsyncIterator[Web]:
    routes = {
        "/openapi.json": json_reply(DOCUMENT),
        "/v1/orders/7": json_reply({"id": 7}),
        "/v1/orders": json_reply({"id": 8}, 201),
        "/v1/orders/8": json_reply({"why": "gone"}, 404),
        "/v1/orders/9": redirect("/elsewhere"),
    }
    async with web(routes) as server:
        yield server


def tool(served: Web, *operations: str, **more: Any) -> dict[str, Any]:
    names = list(operations) or ["readOrder", "addOrder"]
    return {"name": "openapi_action", "document": served.url("/openapi.json"), "operations": names, **more}


async def test_an_operation_is_called_at_the_documents_server(served: Web) -> None:
    async with workbench(tool(served)) as bench:
        given = {"operation": "readOrder", "parameters": {"id": 7, "fields": ["a b", "c"]}}
        assert content(await bench.call("openapi_action", given)) == {"status": 200, "body": {"id": 7}}
        assert [asked.target for asked in served.asked] == ["/openapi.json", "/v1/orders/7?fields=a+b&fields=c"]
        added = {"operation": "addOrder", "body": {"item": "x"}}
        assert content(await bench.call("openapi_action", added))["status"] == 201
        assert msgspec.json.decode(served.asked[-1].body) == {"item": "x"}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"operation": "delete /orders"}, "operation_not_allowed"),
        ({"operation": "readOrder"}, "arguments_invalid"),
        ({"operation": "readOrder", "parameters": {"id": "7"}}, "arguments_invalid"),
        ({"operation": "readOrder", "parameters": {"id": 7, "x": 1}}, "arguments_invalid"),
        ({"operation": "addOrder"}, "arguments_invalid"),
        ({"operation": "addOrder", "body": {"item": 1}}, "arguments_invalid"),
        ({"operation": "readOrder", "parameters": {"id": 8}}, "http_status"),
    ],
)
async def test_what_does_not_fit_is_not_sent(served: Web, given: Any, error: str) -> None:
    async with workbench(tool(served, "readOrder", "add*")) as bench:
        assert code(await bench.call("openapi_action", given)) == error
        sent = [asked.path for asked in served.asked]
        assert sent == (["/openapi.json", "/v1/orders/8"] if error == "http_status" else ["/openapi.json"])


async def test_a_person_confirms_what_deletes(served: Web) -> None:
    wipe = {"operation": "delete /orders"}
    for methods in ({}, {"methods": ["get", "delete"]}):
        async with workbench(tool(served, "readOrder", "delete *", **methods)) as bench:
            read = {"operation": "readOrder", "parameters": {"id": 7}}
            assert content(await bench.call("openapi_action", read))["status"] == 200
            assert content(await bench.call("openapi_action", wipe, describe=True))["summary"] == "Delete all"
            asked = await bench.call("openapi_action", wipe)
            assert isinstance(asked, Pending) and served.asked[-1].method == "GET"
            agreed = {"decision": "approve", "comments": ""}
            assert content(await bench.resume("openapi_action", wipe, asked, agreed))["status"] == 201
            assert served.asked[-1].method == "DELETE"
    async with workbench(tool(served, "delete *", confirm=False)) as bench:
        assert content(await bench.call("openapi_action", wipe))["status"] == 201


async def test_a_redirect_is_not_followed(served: Web) -> None:
    async with workbench(tool(served)) as bench:
        assert code(await bench.call("openapi_action", operation="readOrder", parameters={"id": 9}))
        assert "/elsewhere" not in [asked.path for asked in served.asked]


async def test_credentials_go_to_the_server_of_the_config(served: Web) -> None:
    bound = tool(served, server=served.url("/v1"), auth={"bearer": "t0ken"})
    async with workbench(bound) as bench:
        await bench.call("openapi_action", operation="readOrder", parameters={"id": 7})
        assert [asked.headers.get("authorization") for asked in served.asked] == [None, "Bearer t0ken"]


def test_credentials_need_a_server() -> None:
    found = list(settings_problems({"document": {}, "operations": ["a"], "auth": {"bearer": "x"}}, "/tools/0"))
    assert [each.path for each in found] == ["/tools/0/auth"]


async def test_a_stored_document_and_a_description_of_an_operation(served: Web) -> None:
    async with workbench("execute_pipeline") as other:
        stored = await other.port.put_blob(DOCUMENT)
        assert stored.preview["type"] == "object"
        assert await other.port.read_blob(stored.reference["$blob"]) == DOCUMENT
    async with workbench(tool(served)) as bench:
        shown = content(await bench.call("openapi_action", operation="addOrder", describe=True))
        assert shown["arguments"]["required"] == ["body"]
        assert served.asked[-1].path == "/openapi.json"


async def test_the_egress_guard_holds(served: Web) -> None:
    async with workbench(tool(served), egress=()) as bench:
        assert code(await bench.call("openapi_action", operation="readOrder", parameters={"id": 7})) == "egress_refused"
        assert served.asked == []


def read(document: Any, name: str) -> Operation:
    return read_operation(document, find_operations(document, [name])[name])


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"openapi": "2.0", "paths": {}},
        {"openapi": "3.1.0", "paths": {"/a": {"get": {"operationId": "b"}}}},
        {"openapi": "3.1.0", "paths": {"/a": {"get": {"operationId": "a", "parameters": [{"$ref": "http://x/y"}]}}}},
        {"openapi": "3.1.0", "paths": {"/a": {"get": {"operationId": "a", "parameters": [{"$ref": "#/nope"}]}}}},
    ],
)
def test_documents_that_cannot_be_used(document: Any) -> None:
    with pytest.raises(Fail) as refused:
        read(document, "a")
    assert refused.value.code == "openapi_invalid"


def test_references_that_multiply_are_refused() -> None:
    schemas = {f"s{n}": {"allOf": [{"$ref": f"#/components/schemas/s{n + 1}"}] * 2} for n in range(20)}
    schemas["s20"] = {"type": "string"}  # type: ignore[dict-item]
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/s0"}}}}
    paths = {"/a": {"post": {"operationId": "a", "requestBody": body}}}
    with pytest.raises(Fail, match="references"):
        read({"openapi": "3.1.0", "components": {"schemas": schemas}, "paths": paths}, "a")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [{"$ref": "#/components/schemas/wide"}] * 1_000}, "more than 1048576 bytes"),
        ({"anyOf": [{"$ref": "#/components/schemas/text"}] * 1_000}, "more than 1048576 bytes"),
        ({"$ref": "#/components/schemas/deep"}, "levels deep"),
    ],
)
def test_an_operation_is_bounded_while_its_references_are_resolved(
    monkeypatch: pytest.MonkeyPatch, schema: Any, words: str
) -> None:
    """Refused before the copies exist: the check of the whole schema is never reached."""
    monkeypatch.setattr(openapi, "check_schema", lambda schema: pytest.fail("it was made"))
    deep: Any = {"type": "string"}
    for _ in range(400):
        deep = {"items": deep}
    wide = {"properties": {f"p{number}": {"type": "string"} for number in range(2_000)}}
    schemas = {"wide": wide, "text": {"description": "x" * 10_000}, "deep": deep}
    body = {"content": {"application/json": {"schema": schema}}}
    paths = {"/a": {"post": {"operationId": "a", "requestBody": body}}}
    with pytest.raises(Fail, match=words):
        read({"openapi": "3.1.0", "components": {"schemas": schemas}, "paths": paths}, "a")


def test_only_the_called_operation_is_read() -> None:
    """A document of a server may select many operations; each costs only when it is called."""
    broken = {"get": {"operationId": "b", "parameters": [{"$ref": "#/nope"}]}}
    document = {"openapi": "3.1.0", "paths": {"/a": {"get": {"operationId": "a", "parameters": 1}}, "/b": broken}}
    places = find_operations(document, ["*"])
    assert list(places) == ["a", "b"] and read_operation(document, places["a"]).id == "a"


def test_schemas_of_openapi_3_0_are_read() -> None:
    old = {"type": "integer", "nullable": True, "minimum": 0, "exclusiveMinimum": True}
    parameter = {"name": "n", "in": "query", "schema": old}
    paths = {"/a": {"get": {"operationId": "a", "parameters": [parameter]}}}
    schema = read({"openapi": "3.0.0", "paths": paths}, "a").schema()["properties"]["parameters"]["properties"]["n"]
    assert (schema["type"], schema["exclusiveMinimum"], "minimum" in schema) == (["integer", "null"], 0, False)
