"""Composite tools over HTTP: listed, shown, renamed, pinned, retired, and not those of another tenant."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.api_server import api_server, sqlite_url
from tests.fixtures.callers import TestAccess, as_caller
from tidemill.agents.promotion import lifted

ANN, VIEWER, THEIRS = (
    as_caller("ann", "author"),
    as_caller("vic", "viewer"),
    as_caller("tom", "admin", tenant="other"),
)


async def test_composite_tools(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess, work=False) as server:
        http = server.http
        for k in (1, 2):
            use = lifted([{"step": "top_k", "k": k}])
            assert use is not None
            await server.engine.tools.used(use, f"key-{k}")
        (tool,) = (await http.get("/tools", headers=VIEWER)).json()["items"]
        assert (tool["version"], tool["parameters"]["properties"]["k"]["default"]) == (1, 1)
        assert (await http.get("/tools", headers=THEIRS)).json()["items"] == []
        assert (await http.get(f"/tools/{tool['name']}", headers=THEIRS)).status_code == 404
        path = f"/tools/{tool['name']}"
        assert (await http.patch(path, json={"name": "first"}, headers=VIEWER)).status_code == 403
        assert (await http.patch(path, json={}, headers=ANN)).status_code == 422
        changed = (await http.patch(path, json={"name": "first", "pinned": True}, headers=ANN)).json()
        assert (changed["name"], changed["pinned"], changed["retired"]) == ("first", True, False)
        assert (await http.get("/tools/first@1", headers=VIEWER)).json() == changed
        await http.patch("/tools/first", json={"retired": True}, headers=ANN)
        assert (await http.get("/tools", headers=VIEWER)).json()["items"] == []
        retired = (await http.get("/tools?retired=true", headers=VIEWER)).json()["items"]
        assert [each["name"] for each in retired] == ["first"]


async def test_more_tools_than_a_page_has(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess, work=False) as server:
        for length in (1, 2, 3):
            for k in (1, 2):
                use = lifted([{"step": "top_k", "k": k}] * length)
                assert use is not None
                await server.engine.tools.used(use, f"{length}-{k}")
        whole = (await server.http.get("/tools", headers=VIEWER)).json()
        assert len(whole["items"]) == 3 and whole["next"] is None
        first = (await server.http.get("/tools", params={"limit": 2}, headers=VIEWER)).json()
        rest = (await server.http.get("/tools", params={"limit": 2, "after": first["next"]}, headers=VIEWER)).json()
        assert first["items"] + rest["items"] == whole["items"] and rest["next"] is None
