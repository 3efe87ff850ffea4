"""Workers, queues, node types and limits over HTTP, and the health of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.approvers import signal
from tests.fixtures.callers import TestAccess, as_caller
from tidemill.handlers.control import WAITING

OURS, THEIRS = as_caller("ann", "viewer"), as_caller("tom", "admin", tenant="other")
ADMIN = as_caller("root", "admin")


async def get(server: ApiServer, path: str, who: dict[str, str]) -> Any:
    answer = await server.http.get(path, headers=who)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_other_tenants_see_workers_and_nothing_of_their_work(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess) as server:
        for _ in range(1_000):
            (ours,) = (await get(server, "/workers", OURS))["items"] or [None]
            if ours is not None:
                break
            await asyncio.sleep(0.01)
        (theirs,) = (await get(server, "/workers", THEIRS))["items"]
        assert ours["pid"] > 0 and ours["host"] and "value@1" in ours["types"]
        assert (theirs["name"], theirs["pid"], theirs["host"], theirs["held"]) == ("worker-1", 0, "", [])
        assert theirs["state"] == "alive" and theirs["types"] == ours["types"]


async def test_queues_show_the_work_of_the_tenant(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess, work=False) as server:
        await server.publish({"name": "x", "nodes": [{"id": "a", "type": "value", "queue": "gpu"}]})
        await server.engine.start("x")
        (queue,) = [each for each in (await get(server, "/queues", OURS))["items"] if each["queue"] == "gpu"]
        assert (queue["ready"], queue["leased"], queue["later"]) == (1, 0, 0) and queue["oldest_ms"] >= 0
        assert [each for each in (await get(server, "/queues", THEIRS))["items"] if each["queue"] == "gpu"] == []


async def test_node_types_are_described(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess, work=False) as server:
        listed = (await get(server, "/node-types", OURS))["items"]
        assert {each.type.name for each in WAITING} < {each["name"] for each in listed}
        shown = await get(server, "/node-types/human", OURS)
        assert (shown["type"], shown["waits"], shown["here"]) == ("human@1", True, True)
        assert "approvers" in shown["config_schema"]["properties"]
        assert await get(server, "/node-types/human@1", OURS) == shown
        unknown = await server.http.get("/node-types/humn", headers=OURS)
        assert (unknown.status_code, unknown.json()["hint"]) == (404, "did you mean `human`?")


async def test_only_the_operator_sets_limits_of_all_tenants(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess, work=False) as server:

        async def put(name: str, limit: int, who: dict[str, str]) -> httpx2.Response:
            return await server.http.put(f"/concurrency/{name}", json={"limit": limit}, headers=who)

        assert (await put("queue:gpu", 4, ADMIN)).json() == {"name": "queue:gpu", "limit": 4}
        assert (await put("workflow:billing", 1, ADMIN)).status_code == 200
        assert (await put("queue:gpu", 0, THEIRS)).status_code == 403
        assert (await put("nonsense", 1, ADMIN)).status_code == 422
        names = [each["name"] for each in (await get(server, "/concurrency", OURS))["items"]]
        assert names == ["queue:gpu", "workflow:billing"]
        assert [each["name"] for each in (await get(server, "/concurrency", THEIRS))["items"]] == ["queue:gpu"]
        assert (await server.http.delete("/concurrency/queue:gpu", headers=ADMIN)).status_code == 200
        gone = await server.http.delete("/concurrency/queue:gpu", headers=ADMIN)
        assert (gone.status_code, gone.json()["code"]) == (404, "limit_unknown")


async def test_readiness_tells_which_durability_holds(tmp_path: Path) -> None:
    for store, durability in (
        (sqlite_url(tmp_path), "full"),
        (f"{sqlite_url(tmp_path)}?durability=relaxed", "reduced"),
        ("memory://", "none"),
    ):
        async with api_server(store, access=TestAccess, work=False) as server:
            ready = await server.http.get(f"{server.url}/readyz")
            assert (ready.status_code, ready.json()["status"], ready.json()["durability"]) == (200, "ok", durability)
            assert ready.json()["findings"][0]["code"] == "durability"
            assert (await server.http.get(f"{server.url}/livez")).json() == {"status": "ok"}


async def test_a_server_that_shuts_down_is_not_ready(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), work=False) as server:
        server.app.state.closing.set()
        answer = await server.http.get(f"{server.url}/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "closing")


async def test_a_waiting_run_leaves_no_work_behind(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess) as server:
        await server.publish({"name": "x", "nodes": [signal("a")]})
        await server.engine.start("x", key="run")
        for _ in range(3_000):
            if (await server.engine.show("run")).waiting_for:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.1)
        assert [each for each in (await get(server, "/queues", OURS))["items"] if each["queue"] == "default"] == []
