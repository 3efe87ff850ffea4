"""Every route × role × tenant against one table: who is let in, and that a foreign id answers like an absent one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter, FastAPI

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tidemill.api.auth import Access
from tidemill.engine.views import activation_id
from tidemill.security.identity import ROLES
from tidemill.stores.contract import Stream

EVERYONE = frozenset({"viewer", "operator", "author", "approver", "admin"})
STARTING = frozenset({"operator", "author", "admin"})
OPERATING = frozenset({"operator", "admin"})
AUTHORING = frozenset({"author", "admin"})
APPROVING = frozenset({"approver", "admin"})
ADMIN = frozenset({"admin"})
OF_THE_OPERATOR = frozenset({"GET /metrics", "PUT /concurrency/{}", "DELETE /concurrency/{}"})
"""These are let in from the operator's own tenant only, as all of `/tenants` are."""
PUBLIC = frozenset({"GET /livez", "GET /readyz", "GET /decisions/{}", "POST /decisions/{}"})
"""A signed link for one decision is its own credential."""

TABLE: dict[str, frozenset[str]] = {
    **dict.fromkeys(["GET /metrics", "GET /me", "POST /session", "DELETE /session", "GET /stream"], EVERYONE),
    # Runs
    **dict.fromkeys(["POST /runs", "POST /runs/batch", "POST /runs/{}/fork"], STARTING),
    **dict.fromkeys(["GET /runs", "GET /runs/{}"], EVERYONE),
    **dict.fromkeys(
        [
            f"GET /runs/{{}}/{each}"
            for each in (
                *("result", "events", "path", "tokens", "why", "why/{}", "logs", "document", "graph", "stream"),
                *("nodes/{}/output", "nodes/{}/transcript", "compare/{}"),
            )
        ],
        EVERYONE,
    ),
    **dict.fromkeys(
        [
            *(
                f"POST /runs/{{}}/{each}"
                for each in (
                    "cancel",
                    "pause",
                    "resume",
                    "retry",
                    "rewind",
                    "override",
                    "rollback",
                    "signal",
                    "relabel",
                )
            ),
            "POST /runs/bulk",
        ],
        OPERATING,
    ),
    "POST /runs/{}/patch": AUTHORING,
    # Workflows
    **dict.fromkeys(["POST /workflows/validate", "GET /workflows", "GET /workflows/{}"], EVERYONE),
    **dict.fromkeys(
        [
            f"GET /workflows/{{}}/{each}"
            for each in ("document", "graph", "graph.svg", "versions", "diff", "tags", "tag-history")
        ],
        EVERYONE,
    ),
    **dict.fromkeys(
        [
            *("POST /workflows", "POST /workflows/{}/patch", "DELETE /workflows/{}", "PUT /workflows/{}/tags/{}"),
            *("DELETE /workflows/{}/tags/{}", "POST /workflows/{}/tags/{}/rollback"),
        ],
        AUTHORING,
    ),
    # People and dead letters
    **dict.fromkeys(
        ["GET /approvals", "GET /approvals/{}", "GET /approvals/{}/votes", "GET /approvals/{}/history"], EVERYONE
    ),
    **dict.fromkeys(
        [f"POST /approvals/{{}}/{each}" for each in ("decide", "request-changes", "delegate", "links")], APPROVING
    ),
    **dict.fromkeys(["GET /dead-letters", "GET /dead-letters/{}"], EVERYONE),
    **dict.fromkeys(["POST /dead-letters/{}/discard", "POST /dead-letters/reprocess"], OPERATING),
    # Blobs, the fleet, schedules
    "POST /blobs": STARTING,
    **dict.fromkeys(["GET /blobs", "GET /blobs/{}", "GET /blobs/{}/info"], EVERYONE),
    **dict.fromkeys(
        ["GET /workers", "GET /queues", "GET /node-types", "GET /node-types/{}", "GET /concurrency"], EVERYONE
    ),
    **dict.fromkeys(["PUT /concurrency/{}", "DELETE /concurrency/{}"], ADMIN),
    **dict.fromkeys(["GET /tools", "GET /tools/{}"], EVERYONE),
    "PATCH /tools/{}": AUTHORING,
    **dict.fromkeys(["GET /schedules", "GET /schedules/{}", "GET /schedules/{}/times"], EVERYONE),
    **dict.fromkeys(
        [
            *("POST /schedules", "PATCH /schedules/{}", "DELETE /schedules/{}"),
            *("POST /schedules/{}/pause", "POST /schedules/{}/resume", "POST /schedules/{}/trigger"),
        ],
        STARTING,
    ),
    # Access
    **dict.fromkeys(["GET /keys", "POST /keys", "DELETE /keys/{}", "GET /audit", "GET /audit/verify"], ADMIN),
    **dict.fromkeys(["GET /tenants", "POST /tenants", "POST /tenants/{}/disable", "POST /tenants/{}/enable"], ADMIN),
}
"""The roles that each route lets in; `{}` stands for a part of the path."""

FLOW: dict[str, Any] = {"name": "hello", "nodes": [{"id": "a", "type": "human"}]}


def routes_of(app: FastAPI | APIRouter) -> list[str]:
    """`METHOD /path` of every route there is, whether or not the OpenAPI document shows it."""
    found: list[str] = []
    for route in app.routes:
        if (included := getattr(route, "original_router", None)) is not None:
            found += routes_of(included)
            continue
        path = re.sub(r"\{[^}]*\}", "{}", str(getattr(route, "path", ""))).removeprefix("/api/v1")
        found += [f"{method} {path}" for method in sorted(getattr(route, "methods", ()) or ()) if method != "HEAD"]
    return found


def is_of_the_operator(route: str) -> bool:
    return route in OF_THE_OPERATOR or " /tenants" in route


async def sent(server: ApiServer, route: str, ids: list[str], headers: dict[str, str]) -> tuple[int, str, str]:
    """The status, the code and the text of an answer; of a stream only that it began."""
    method, _, path = route.partition(" ")
    for each in ids:
        path = path.replace("{}", each, 1)
    url = f"{server.url}{path}" if path == "/metrics" else path
    body: dict[str, Any] = {} if method in ("GET", "DELETE") else {"json": {}}
    async with server.http.stream(method, url, headers=headers, **body) as response:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return response.status_code, "", ""
        await response.aread()
    is_problem = response.headers.get("content-type") == "application/problem+json"
    return response.status_code, response.json()["code"] if is_problem else "", response.text


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), access=Access) as found:
        await found.engine.tenants.create("acme", actor="the test")
        yield found


async def headers_of(server: ApiServer, tenant: str, role: str) -> dict[str, str]:
    made = await server.engine.for_tenant(tenant).keys.create(f"a-{role}", roles=[role], actor="the test")
    return {"Authorization": f"Bearer {made.key}"}


async def test_the_table_lists_every_route(server: ApiServer) -> None:
    found = [route for route in routes_of(server.app) if not route.endswith("/openapi.json")]
    assert sorted(found) == sorted({*TABLE, *PUBLIC}), "add the new route to the table, with the roles it lets in"
    assert len(PUBLIC) <= 5
    assert set(ROLES) == EVERYONE


async def test_every_route_lets_in_the_roles_of_the_table_and_no_other(server: ApiServer) -> None:
    absent = ["0199f3c2-7a51-7c1e-9b7e-2f6f0e0d6a11", "nothing"]
    refused: list[str] = []
    for tenant, role in product(("default", "acme"), sorted(EVERYONE)):
        headers = await headers_of(server, tenant, role)
        for route, let_in in TABLE.items():
            status, code, text = await sent(server, route, absent, headers)
            expected = role in let_in and (tenant == "default" or not is_of_the_operator(route))
            actual = (status, code) != (403, "not_allowed")
            if status in (401, 500) or actual is not expected:
                refused.append(f"{tenant} {role} {route}: {status} {text[:200]}")
    assert refused == []


async def test_without_a_credential_every_route_is_closed(server: ApiServer) -> None:
    await headers_of(server, "default", "viewer")
    for route in TABLE:
        for headers in ({}, {"Authorization": "Bearer tm_default.0123456789abcdef_x"}, {"Authorization": "x"}):
            status, _, _ = await sent(server, route, ["x", "y"], headers)
            assert status == 401, route


async def approval_of(server: ApiServer, headers: dict[str, str]) -> str:
    async with asyncio.timeout(60):
        while True:
            items = (await server.http.get("/approvals", headers=headers)).json()["items"]
            if items:
                return str(items[0]["approval_id"])
            await asyncio.sleep(0.05)


async def test_what_belongs_to_another_tenant_answers_like_what_does_not_exist(server: ApiServer) -> None:
    mine, theirs = server.engine.for_tenant("default", audited=True), await headers_of(server, "acme", "admin")
    await mine.workflows.publish(FLOW, author="ada")
    run_id = await mine.runs.start("hello", submitted_by="ada")
    digest = str((await mine.blobs.put(b"theirs alone"))["$blob"])
    own = await headers_of(server, "default", "viewer")
    (key,) = (await mine.keys.find())[0]
    there = {"runs": run_id, "workflows": "hello", "keys": key.id, "blobs": digest}
    subjects = {kind: (each, f"{each[:-3]}000") for kind, each in there.items()}
    subjects["approvals"] = await approval_of(server, own), activation_id(subjects["runs"][1], "a", 1, -1)
    (before,) = await mine.context.store.load({Stream("default", "run", run_id): 0}, snapshots=False)
    differing: list[str] = []
    for route in TABLE:
        kind = route.split("/")[1]
        if kind not in subjects or "{}" not in route:
            continue
        answers = []
        for each, run in zip(subjects[kind], subjects["runs"], strict=True):
            status, code, text = await sent(server, route, [each, "a", "b"], theirs)
            answers.append((status, code, text.replace(each, "ID").replace(run, "ID")))
        if answers[0] != answers[1] or answers[0][0] < 400:
            differing.append(f"{route}: {answers}")
    assert differing == []
    (after,) = await mine.context.store.load({Stream("default", "run", run_id): 0}, snapshots=False)
    assert after == before, "nothing was changed"


async def test_answers_about_other_tenants_do_not_differ_in_lists(server: ApiServer) -> None:
    mine, theirs = server.engine.for_tenant("default", audited=True), await headers_of(server, "acme", "admin")
    await mine.workflows.publish(FLOW, author="ada")
    await mine.runs.start("hello", submitted_by="ada")
    for path in ("/runs", "/workflows", "/approvals", "/dead-letters", "/blobs", "/schedules"):
        response = await server.http.get(path, headers=theirs)
        assert isinstance(response, httpx2.Response) and response.json()["items"] == [], path
    assert {each["actor"] for each in (await server.http.get("/audit", headers=theirs)).json()["items"]} == {"the test"}
