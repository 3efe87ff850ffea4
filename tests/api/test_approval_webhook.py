"""The webhook about approvals, from the operator's settings to a decision by the link that it carries."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from tests.fixtures.api_server import api_server, sqlite_url
from tests.fixtures.approvers import human
from tests.fixtures.callers import TestAccess
from tests.fixtures.servers.web import Web, reply, web
from tidemill.settings import read_settings

SECRET = "a secret of the server, long enough"
FLOW = {
    "name": "flow",
    "nodes": [human("ask", approvers=["user:alice"]), {"id": "b", "type": "value", "dependencies": ["ask"]}],
}


async def message(receiver: Web, kind: str) -> Any:
    for _ in range(6_000):
        found = [body for asked in receiver.asked if (body := json.loads(asked.body))["type"] == kind]
        if found:
            return found[0]["data"]
        await asyncio.sleep(0.01)
    raise AssertionError(f"no message {kind}")


async def test_a_person_decides_by_the_link_of_a_message(tmp_path: Path) -> None:
    async with web({"/hook": reply(b"ok")}) as receiver:
        file = tmp_path / "tidemill.toml"
        key = "whsec_" + base64.b64encode(bytes(range(32))).decode()
        file.write_text(
            f'[server]\nsecret = "{SECRET}"\npublic_url = "https://mill.example"\n'
            f'[server.approvals]\nwebhook = "{receiver.url("/hook")}"\nsecret = "{key}"\n'
        )
        settings = read_settings(file)
        async with api_server(
            sqlite_url(tmp_path), access=TestAccess, settings=settings, secret=settings.server.secret
        ) as server:
            await server.publish(FLOW)
            await server.engine.start("flow", key="run")
            requested = await message(receiver, "approval.requested")
            path = requested["decision_urls"]["user:alice"].removeprefix("https://mill.example/api/v1")
            answer = await server.http.post(path, json={"decision": "approve", "comments": "by mail"})
            assert answer.json()["next_nodes"] == ["b"]
            assert (await server.engine.result("run", timeout=30)).ok
            decided = await message(receiver, "approval.decided")
            assert (decided["decided_by"], decided["comments"]) == ("user:alice", "by mail")
