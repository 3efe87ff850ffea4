"""Dead letters over HTTP: list, show, discard, and let their runs go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.callers import TestAccess, as_caller

OPERATOR, ADMIN = as_caller("ann", "operator"), as_caller("root", "admin")
FLOW = {"name": "flow", "nodes": [{"id": "a", "type": "fail", "config": {"message": "no luck", "kind": "unlucky"}}]}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), access=TestAccess) as running:
        await running.publish(FLOW)
        for number in range(2):
            await running.engine.start("flow", key=f"run/{number}")
            await running.engine.result(f"run/{number}", timeout=30)
        yield running


async def letters(server: ApiServer, **params: Any) -> list[dict[str, Any]]:
    answer = await server.http.get("/dead-letters", params=params, headers=OPERATOR)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_letters_are_listed_shown_and_discarded(server: ApiServer) -> None:
    found = await letters(server)
    assert [(each["run_id"], each["code"]) for each in found] == [("run/1", "unlucky"), ("run/0", "unlucky")]
    path = f"/dead-letters/{found[0]['dead_letter_id']}"
    shown = (await server.http.get(path, headers=OPERATOR)).json()
    assert (shown["status"], shown["error"]["message"]) == ("open", "no luck")
    assert shown["input"] == {"message": "no luck", "kind": "unlucky"}
    closed = await server.http.post(f"{path}/discard", json={"reason": "by hand"}, headers=OPERATOR)
    assert (closed.json()["status"], closed.json()["closed_by"], closed.json()["reason"]) == (
        "discarded",
        "ann",
        "by hand",
    )
    assert [each["run_id"] for each in await letters(server)] == ["run/0"]
    assert len(await letters(server, query="")) == 2


async def test_runs_go_on_with_a_corrected_config(server: ApiServer) -> None:
    body = {"node": "a", "config": {"attempts": 0, "value": "better"}, "reason": "fixed"}
    refused = await server.http.post("/dead-letters/reprocess", json=body, headers=OPERATOR)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    counted = await server.http.post("/dead-letters/reprocess", json=body | {"dry_run": True}, headers=ADMIN)
    assert [each["result"] for each in counted.json()["runs"]] == ["would retry", "would retry"]
    again = await server.http.post("/dead-letters/reprocess", json=body, headers=ADMIN)
    assert again.json()["matched"] == 2
    for number in range(2):
        assert (await server.engine.result(f"run/{number}", timeout=30)).output == "better"
    assert await letters(server) == []


async def test_what_does_not_exist_and_what_is_not_named(server: ApiServer) -> None:
    for letter_id in ("nonsense", "cnVuLzkvYS8xLy0x"):
        assert (await server.http.get(f"/dead-letters/{letter_id}", headers=OPERATOR)).status_code == 404
    nothing = await server.http.post("/dead-letters/reprocess", json={}, headers=OPERATOR)
    assert (nothing.status_code, nothing.json()["code"]) == (422, "letters_unnamed")
    (_, other) = await letters(server)
    foreign = as_caller("tom", "admin", tenant="other")
    assert (await server.http.get(f"/dead-letters/{other['dead_letter_id']}", headers=foreign)).status_code == 404
    assert (await server.http.get("/dead-letters", headers=foreign)).json()["items"] == []
