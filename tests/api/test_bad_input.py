"""The bad input of every route alike: bodies that are none, cursors that are none, and ids that nothing has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.api_world import code, operations
from tidemill.api.server_settings import ServerLimits
from tidemill.engine.views import activation_id

LIMITS = ServerLimits(body_bytes=10_000, key_requests_per_second=0, tenant_requests_per_second=0)
RUN = "0199f3c2-7a51-7c1e-9b7e-2f6f0e0d6a11"
ABSENT = {
    "approval_id": activation_id(RUN, "ask", 1, -1),
    "dead_letter_id": activation_id(RUN, "ask", 1, -1),
    "digest": f"sha256:{'0' * 64}",
    "key_id": "default.0123456789abcdef",
    "token": "none",
}
BODIES: dict[str, tuple[bytes, str, tuple[int, str]]] = {
    "malformed": (b'{"a": ', "application/json", (400, "body_malformed")),
    "no characters": (b"\xff\xfe{", "application/json", (400, "body_malformed")),
    "of another type": (b"a=b", "application/x-www-form-urlencoded", (415, "content_type_unsupported")),
    "without a type": (b"{}", "", (415, "content_type_unsupported")),
    "too deep": (b"[" * 2_000, "application/json", (413, "body_too_complex")),
    "too large": (b'"' + b"x" * 20_000 + b'"', "application/json", (413, "body_too_large")),
}
VALID: dict[str, Any] = {
    "/runs/{run_id}/rewind": {"node": "a"},
    "/runs/{run_id}/override": {"node": "a", "skip": True},
    "/runs/{run_id}/signal": {"name": "paid"},
    "/runs/{run_id}/patch": {"operations": []},
    "/workflows/{reference}/patch": {"operations": []},
    "/workflows/{name}/tags/{tag}": {"version": 1},
    "/approvals/{approval_id}/decide": {"decision": "approve"},
    "/approvals/{approval_id}/request-changes": {"comments": "no"},
    "/approvals/{approval_id}/delegate": {"to": "user:bob"},
    "/decisions/{token}": {"decision": "approve"},
    "/concurrency/{name}": {"limit": 1},
    "/tools/{name}": {"pinned": True},
    "/runs/{run_id}/rehearse": {"action": "cancel"},
}
"""Bodies that are valid, so that the id alone is wrong."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), work=False, limits=LIMITS) as running:
        yield running


def absent_path(path: str) -> str:
    parts = [ABSENT.get(part[1:-1], "none") if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts).replace("/runs/none", f"/runs/{RUN}")


async def test_a_body_that_is_none_is_refused_at_every_route(server: ApiServer) -> None:
    wrong = []
    for method, path, operation in operations(server.app.openapi()):
        if "application/json" not in operation.get("requestBody", {}).get("content", {}):
            continue
        for name, (body, kind, expected) in BODIES.items():
            headers = {"Content-Type": kind} if kind else {}
            answer = await server.http.request(method, server.url + absent_path(path), content=body, headers=headers)
            # A link that is none is refused before the body is read.
            if (answer.status_code, code(answer)) != ((404, "link_invalid") if "{token}" in path else expected):
                wrong.append(f"{method} {path} with a body {name}: {answer.status_code} {answer.text}")
    assert not wrong, "\n".join(wrong)


async def test_a_cursor_that_is_none_is_refused_at_every_list(server: ApiServer) -> None:
    await server.publish({"name": "none", "nodes": [{"id": "a", "type": "value"}]})
    run_id = await server.engine.start("none")
    lists, wrong = 0, []
    for method, path, operation in operations(server.app.openapi()):
        names = {parameter["name"] for parameter in operation.get("parameters", ())}
        if not {"after", "limit"} <= names:
            continue
        lists += 1
        for cursor in ("nonsense", "\u00e9", "x:y"):
            url = server.url + absent_path(path).replace(RUN, run_id)
            answer = await server.http.request(method, url, params={"after": cursor})
            if answer.status_code != 400 or code(answer) not in ("bad_cursor", "cursor_invalid"):
                wrong.append(f"{method} {path} after {cursor!r}: {answer.status_code} {answer.text}")
    assert lists >= 10
    assert not wrong, "\n".join(wrong)


async def test_an_id_that_nothing_has_is_unknown_at_every_route(server: ApiServer) -> None:
    asked, wrong = 0, []
    for method, path, operation in operations(server.app.openapi()):
        if "{" not in path or (method, path) == ("PUT", "/api/v1/concurrency/{name}"):
            continue
        asked += 1
        body = VALID.get(path.removeprefix("/api/v1"), {})
        needed = {
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "query" and each["required"]
        }
        options: dict[str, Any] = {"params": dict.fromkeys(needed, "none")}
        if "requestBody" in operation:
            options["json"] = body
        answer = await server.http.request(method, server.url + absent_path(path), **options)
        if answer.status_code != 404 or not code(answer) or not answer.json()["hint"]:
            wrong.append(f"{method} {path}: {answer.status_code} {answer.text}")
    assert asked > 60
    assert not wrong, "\n".join(wrong)
