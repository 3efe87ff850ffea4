"""The answers about real workflows, approvals, dead letters, blobs and workers are what the OpenAPI document says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.api.test_approvals import asking, pending
from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.api_world import operations

FAILING = {"name": "failing", "nodes": [{"id": "a", "type": "fail"}]}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path)) as running:
        yield running


async def check(server: ApiServer, template: str, method: str = "get", body: Any = None, **values: str) -> Any:
    """The answer of an operation, which must be as it is declared."""
    path = template
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    answer = await server.http.request(method, path, **({} if body is None else {"json": body}))
    document = server.app.openapi()
    declared = document["paths"][f"/api/v1{template.partition('?')[0]}"][method]["responses"]
    schema = declared[str(answer.status_code)]["content"]["application/json"]["schema"]
    jsonschema_rs.validate({**schema, "components": document["components"]}, answer.json())
    return answer.json()


async def test_answers_are_as_they_are_declared(server: ApiServer) -> None:
    await check(server, "/workflows", "post", {"document": asking(approvers=["user:local"])})
    await check(server, "/workflows", "post", {"document": FAILING})
    await check(server, "/workflows/validate", "post", {"document": {"name": "x", "nodes": [{"id": "a", "type": "x"}]}})
    await check(server, "/workflows/{name}/tags/{tag}", "put", {"version": 1}, name="order", tag="stable")
    for template in ("/workflows/{reference}", "/workflows/{reference}/document", "/workflows/{reference}/graph"):
        await check(server, template, reference="order:stable")
    for template in ("/workflows/{name}/versions", "/workflows/{name}/tags", "/workflows/{name}/tag-history"):
        await check(server, template, name="order")
    await check(server, "/workflows/{reference}/diff?to=order@1", reference="order")
    await check(server, "/workflows")

    await server.engine.start("failing", key="failed")
    await server.engine.start("order", key="run")
    approval_id = await pending(server, "run")
    for template in ("/approvals/{approval_id}", "/approvals/{approval_id}/votes", "/approvals/{approval_id}/history"):
        await check(server, template, approval_id=approval_id)
    assert (await check(server, "/approvals?mine=true"))["items"]
    link = await check(server, "/approvals/{approval_id}/links", "post", {}, approval_id=approval_id)
    token = link["url"].rpartition("/")[2]
    await check(server, "/decisions/{token}", token=token)
    await check(server, "/decisions/{token}", "post", {"decision": "approve"}, token=token)
    await check(server, "/approvals/{approval_id}/decide", "post", {"decision": "approve"}, approval_id=approval_id)

    await server.engine.result("failed", timeout=30)
    (letter,) = (await check(server, "/dead-letters"))["items"]
    letter_id = letter["dead_letter_id"]
    await check(server, "/dead-letters/{dead_letter_id}", dead_letter_id=letter_id)
    await check(server, "/dead-letters/reprocess", "post", {"code": "failed", "dry_run": True})
    await check(server, "/dead-letters/{dead_letter_id}/discard", "post", {"reason": "x"}, dead_letter_id=letter_id)

    digest = (await server.http.post("/blobs", content=b"x")).json()["$blob"]
    await check(server, "/blobs/{digest}/info", digest=digest)
    for template in ("/blobs", "/workers", "/queues", "/node-types", "/concurrency"):
        await check(server, template)
    await check(server, "/node-types/{name}", name="http")
    await check(server, "/concurrency/{name}", "put", {"limit": 3}, name="queue:gpu")


async def test_operations_tell_which_credential_they_take(server: ApiServer) -> None:
    document = server.app.openapi()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "session"}
    assert document["security"] == [{"bearer": []}, {"session": []}]
    without = {path for path, item in document["paths"].items() for each in item.values() if each.get("security") == []}
    assert without == {"/livez", "/readyz", "/api/v1/errors/{code}", "/api/v1/decisions/{token}"}


async def test_every_body_has_an_example(server: ApiServer) -> None:
    document, without = server.app.openapi(), list[str]()
    for method, path, operation in operations(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            schema = next((each for each in body["schema"].get("anyOf", ()) if "$ref" in each), body["schema"])
            schema = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
            places = (body, schema, *schema.get("properties", {}).values())
            if not any({"example", "examples"} & {*each} for each in places):
                without.append(f"{method} {path}")
    assert without == []
