"""Every route in every role, and with every kind of credential that is none, compared with `permissions.toml`."""

from __future__ import annotations

import asyncio
import shutil
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from tests.fixtures.api_server import ApiServer
from tests.fixtures.api_world import EMPTY, World, bearer, code, furnished, key_of, operations, stored, world_server
from tidemill.security.roles import ANYONE, OPERATORS_ONLY, PERMISSIONS, ROLES

TABLE: dict[str, str] = tomllib.loads((Path(__file__).parent / "permissions.toml").read_text())["routes"]
OPEN = ("public", "link")
TENANTS = ("default", "acme")
PREFIX = "/api/v1"

SHARED = "/node-types/"
"""Node types belong to all tenants."""
ACT = {"reason": "not allowed"}
BODIES: Mapping[str, Any] = {
    "POST /runs": {"workflow": "done"},
    "POST /runs/batch": {"workflow": "done", "runs": [{}]},
    "POST /runs/{run_id}/rewind": {"node": "price"},
    "POST /runs/{run_id}/override": {"node": "ask", "skip": True},
    "POST /runs/{run_id}/signal": {"name": "paid"},
    "POST /runs/{run_id}/relabel": {"set": {"team": "z"}},
    "POST /runs/{run_id}/fork": {},
    "POST /runs/{run_id}/patch": {"operations": [{"op": "replace", "path": "/nodes/2/config", "value": 1}]},
    "POST /runs/bulk": {"action": "cancel", "query": "live"},
    "POST /workflows/validate": {"document": {"name": "x", "nodes": [{"id": "a", "type": "value"}]}},
    "POST /workflows": {"document": {"name": "new", "nodes": [{"id": "a", "type": "value"}]}},
    "POST /workflows/{reference}/patch": {"operations": [{"op": "add", "path": "/description", "value": "new"}]},
    "PUT /workflows/{name}/tags/{tag}": {"version": 1},
    "POST /approvals/{approval_id}/decide": {"decision": "approve"},
    "POST /approvals/{approval_id}/request-changes": {"comments": "no"},
    "POST /approvals/{approval_id}/delegate": {"to": "user:bob"},
    "POST /dead-letters/reprocess": {"code": "unlucky"},
    "PUT /concurrency/{name}": {"limit": 1},
    "POST /schedules": {"name": "new", "workflow": "done", "every": "1h"},
    "PATCH /schedules/{name}": {"description": "changed"},
    "POST /keys": {"label": "new", "roles": ["admin"]},
    "POST /tenants": {"name": "new"},
}
"""Requests that would change something, if they were let through."""


class Asked(NamedTuple):
    method: str
    template: str
    permission: str


def routes_of(app: FastAPI) -> set[str]:
    """Every route of the application, also those that the OpenAPI document leaves out."""
    found = set()
    for route in app.routes:
        included = getattr(route, "original_router", None)
        if included is None:
            found.add(f"GET {getattr(route, 'path', route)}")
            continue
        assert isinstance(included, APIRouter)
        prefix = route.include_context.prefix  # type: ignore[attr-defined]
        for each in included.routes:
            assert isinstance(each, APIRoute), f"{each} is not declared with a permission"
            found |= {f"{method} {prefix}{each.path_format}" for method in each.methods or ()}
    return found


def granted(role: str, tenant: str, permission: str) -> bool:
    if permission == ANYONE:
        return True
    return permission in ROLES[role] and (tenant == "default" or permission not in OPERATORS_ONLY)


def path_of(template: str, world: World | None) -> str:
    """A path with ids that exist, so that an act which is let through would change something."""
    values = {"visit": "1", "token": "none", "code": "run_unknown"}
    if world is not None:
        ids, names = world.ids, world.names
        values |= {
            "run_id": ids["run"][0],
            "other_id": ids["run"][1],
            "text": ids["run"][0],
            "approval_id": ids["approval"][0],
            "dead_letter_id": ids["dead letter"][0],
            "digest": ids["blob"][0],
            "key_id": ids["key"][0],
            "reference": "done",
            "tag": "stable",
            "node": "price",
        }
        kinds = {"schedules": "nightly", "node-types": "http", "concurrency": "queue:gpu", "tenants": "acme"}
        values["name"] = kinds.get(template.removeprefix(PREFIX).split("/")[1], names["workflow"][0])
    parts = [values.get(part[1:-1], "none") if part.startswith("{") else part for part in template.split("/")]
    return "/".join(parts)


async def ask(server: ApiServer, asked: Asked, headers: Mapping[str, str], world: World | None) -> httpx2.Response:
    body = BODIES.get(
        f"{asked.method} {asked.template.removeprefix(PREFIX)}", ACT if "{run_id}" in asked.template else {}
    )
    is_stream = asked.template.endswith("/stream")
    url = server.url + path_of(asked.template, world)
    options: dict[str, Any] = {} if asked.method in ("GET", "DELETE") else {"json": body}
    if asked.template.endswith("/result"):
        options["params"] = {"timeout": 0}
    request = server.http.build_request(asked.method, url, headers=dict(headers), **options)
    answer = await server.http.send(request, stream=True)
    if not (is_stream and answer.is_success):
        await answer.aread()
    await answer.aclose()
    server.http.cookies.clear()
    return answer


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, World]]:
    """A store that is furnished once; every test gets a copy."""
    folder = tmp_path_factory.mktemp("furnished")
    return folder / "store.db", asyncio.run(furnished(folder, *TENANTS))


@pytest.fixture
def worlds(template: tuple[Path, dict[str, World]]) -> dict[str, World]:
    return template[1]


@pytest.fixture
async def server(template: tuple[Path, dict[str, World]], tmp_path: Path) -> AsyncIterator[ApiServer]:
    shutil.copy(template[0], tmp_path / "store.db")
    async with world_server(tmp_path) as running:
        yield running


def asked_routes() -> list[Asked]:
    parts = [(*route.partition(" "), permission) for route, permission in TABLE.items()]
    return [Asked(method, path, permission) for method, _, path, permission in parts]


async def test_the_table_names_every_route_and_its_permission(server: ApiServer) -> None:
    declared = operations(server.app.openapi())
    assert routes_of(server.app) == set(TABLE), "tests/api/permissions.toml and the routes differ"
    said = {f"{method} {path}": operation.get("x-permission") for method, path, operation in declared}
    assert said == {
        route: None if permission in OPEN else permission
        for route, permission in TABLE.items()
        if route != f"GET {PREFIX}/openapi.json"
    }
    assert set(TABLE.values()) <= PERMISSIONS | {ANYONE, *OPEN}


async def test_roles_may_what_the_table_says_and_no_more(
    server: ApiServer, worlds: dict[str, World], tmp_path: Path
) -> None:
    wrong = []
    for tenant in TENANTS:
        for role in ROLES:
            headers = bearer(await key_of(server, tenant, role, label=f"the {role}".replace(" ", "-")))
            routes = [each for each in asked_routes() if each.permission not in OPEN]
            refused = [each for each in routes if not granted(role, tenant, each.permission)]
            allowed = [each for each in routes if granted(role, tenant, each.permission)]
            before = stored(tmp_path / "store.db", tenant)
            for asked in refused:
                answer = await ask(server, asked, headers, worlds[tenant])
                if (answer.status_code, code(answer)) != (403, "not_allowed"):
                    wrong.append(f"{tenant} {role} may {asked}: {answer.status_code}")
            if stored(tmp_path / "store.db", tenant) != before:
                wrong.append(f"{tenant} {role} has changed something without permission")
            for asked in allowed:
                # An absent id: who may ask is told that there is none.
                answer = await ask(server, asked, headers, None)
                if answer.status_code in (401, 403) or answer.status_code >= 500:
                    wrong.append(f"{tenant} {role} may not {asked}: {answer.status_code} {answer.text}")
    assert not wrong, "\n".join(wrong)


async def test_without_a_valid_credential_every_route_is_closed(
    server: ApiServer, worlds: dict[str, World], tmp_path: Path
) -> None:
    services = server.engine.for_tenant("acme")
    revoked = await services.keys.create("revoked", roles=["admin"], actor="the test")
    await services.keys.revoke(revoked.view.id, actor="the test")
    expired = await key_of(server, "acme", "admin", label="expired", expires_days=1e-9)
    await asyncio.sleep(0.01)
    key, other = worlds["acme"].key, worlds["default"].key
    credentials = {
        "unauthenticated": {},
        "key_revoked": bearer(revoked.key),
        "key_expired": bearer(expired),
        # The id of one tenant's key with the secret of another's.
        "credential_invalid": bearer("_".join((*key.split("_")[:2], other.split("_", 2)[2]))),
        "session_invalid": {"Cookie": "tidemill_session=x.y"},
    }
    before = {tenant: stored(tmp_path / "store.db", tenant) for tenant in TENANTS}
    wrong = []
    for asked in asked_routes():
        for expected, headers in credentials.items():
            answer = await ask(server, asked, headers, worlds["acme"])
            if asked.permission == "public":
                fits = answer.status_code == 200
            elif asked.permission == "link":
                fits = (answer.status_code, code(answer)) == (404, "link_invalid")
            else:
                fits = (answer.status_code, code(answer)) == (401, expected)
            if not fits or (
                answer.is_closed and not asked.template.endswith("openapi.json") and "canary" in answer.text
            ):
                wrong.append(f"{expected} at {asked}: {answer.status_code} {code(answer)}")
    assert not wrong, "\n".join(wrong)
    assert {tenant: stored(tmp_path / "store.db", tenant) for tenant in TENANTS} == before


async def test_the_body_of_a_caller_who_may_not_ask_is_not_read(server: ApiServer, worlds: dict[str, World]) -> None:
    viewer = bearer(await key_of(server, "acme", "viewer", label="viewer"))
    wrong = []
    for asked in asked_routes():
        if asked.method in ("GET", "DELETE"):
            continue
        url = server.url + path_of(asked.template, worlds["acme"])
        for headers, expected in (({}, (401, "unauthenticated")), (viewer, (403, "not_allowed"))):
            if asked.permission == "link":
                expected = 404, "link_invalid"
            elif headers and granted("viewer", "acme", asked.permission):
                continue
            for body in (b'{"a": ', b"[" * 2_000, b" " * 3_000_000):
                sent = {**headers, "Content-Type": "application/json"}
                answer = await server.http.request(asked.method, url, content=body, headers=sent)
                if (answer.status_code, code(answer)) != expected:
                    wrong.append(f"{asked}: {answer.status_code} {code(answer)}")
    assert not wrong, "\n".join(wrong)


async def test_an_administrator_of_another_tenant_finds_and_changes_nothing(
    server: ApiServer, worlds: dict[str, World], tmp_path: Path
) -> None:
    headers = worlds[EMPTY].headers
    before = {tenant: stored(tmp_path / "store.db", tenant) for tenant in TENANTS}
    wrong = []
    for asked in asked_routes():
        if asked.permission in OPEN:
            continue
        answer = await ask(server, asked, headers, worlds["acme"])
        told = "" if asked.template.endswith("/stream") and answer.is_success else answer.text
        if any(each in told for each in worlds["acme"].unsaid(path_of(asked.template, worlds["acme"]))):
            wrong.append(f"{asked} tells something: {told[:200]}")
        has_id = "{" in asked.template and SHARED not in asked.template
        if has_id and answer.is_success:
            wrong.append(f"{asked} answers about what another tenant has: {answer.status_code}")
    assert not wrong, "\n".join(wrong)
    assert {tenant: stored(tmp_path / "store.db", tenant) for tenant in TENANTS} == before
