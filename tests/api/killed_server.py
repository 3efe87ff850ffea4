"""Clients that start runs, patch them and decide about them while their server is killed and started again.

Every request carries a key or a command id, and is sent again until it is acknowledged. At the end nothing that was
acknowledged is lost, and nothing was done twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.fixtures.approvers import human
from tests.fixtures.serve_process import ServeProcess
from tidemill.engine.views import activation_id

DOCUMENT: dict[str, Any] = {
    "name": "order",
    "inputs": {"type": "object", "properties": {"n": {"type": "integer"}}},
    "nodes": [
        human("ask", rejection_path=["refuse"]),
        {"id": "ship", "type": "value", "config": "as published", "dependencies": ["ask"]},
        {"id": "refuse", "type": "value", "config": "refused"},
    ],
}
WITHIN_S = 120


@dataclass
class Order:
    """One run, and the answers that were acknowledged about it."""

    number: int
    run_id: str = ""
    patched: dict[str, Any] = field(default_factory=dict)
    decided: dict[str, Any] = field(default_factory=dict)

    @property
    def decision(self) -> str:
        return "approve" if self.number % 3 else "reject"

    @property
    def start(self) -> tuple[str, dict[str, Any], dict[str, str]]:
        body = {"workflow": "order", "inputs": {"n": self.number}, "labels": {"number": str(self.number)}}
        return "/runs", body, {"Idempotency-Key": f"order {self.number}"}

    @property
    def patch(self) -> tuple[str, dict[str, Any], dict[str, str]]:
        operations = [{"op": "replace", "path": "/nodes/1/config", "value": f"patched {self.number}"}]
        return f"/runs/{self.run_id}/patch", {"operations": operations, "command_id": f"patch {self.number}"}, {}

    @property
    def decide(self) -> tuple[str, dict[str, Any], dict[str, str]]:
        body = {"decision": self.decision, "command_id": f"decide {self.number}"}
        return f"/approvals/{activation_id(self.run_id, 'ask', 1, -1)}/decide", body, {}


class Campaign:
    def __init__(self, server: ServeProcess, *, orders: int, kills: int, seed: int, clients: int = 8) -> None:
        self.server, self.clients, self.random = server, clients, random.Random(seed)
        self.orders = [Order(number) for number in range(orders)]
        # Every order is acknowledged three times; kills come at some of those, and never when all is nearly done.
        self.kill_at = sorted(self.random.sample(range(2, 2 * orders), kills))
        self.acknowledged, self.interrupted = 0, 0
        self._kills = asyncio.Queue[float]()

    async def run(self) -> None:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=f"{self.server.url}/api/v1", timeout=30, limits=limits) as self.http:
            published = await self.http.post("/workflows", json={"document": DOCUMENT})
            assert published.is_success, published.text
            waiting = asyncio.Queue[Order]()
            for order in self.orders:
                waiting.put_nowait(order)
            async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
                for _ in range(self.clients):
                    group.create_task(self._client(waiting))
                group.create_task(self._killer(len(self.kill_at)))
            await self._check()

    async def _killer(self, kills: int) -> None:
        for _ in range(kills):
            # Within the next request or so, not right behind an answer.
            await asyncio.sleep(await self._kills.get())
            await asyncio.to_thread(self.server.kill)
            await asyncio.to_thread(self.server.start)

    async def _client(self, waiting: asyncio.Queue[Order]) -> None:
        while not waiting.empty():
            order = waiting.get_nowait()
            order.run_id = (await self._acknowledged(*order.start))["run_id"]
            order.patched = await self._acknowledged(*order.patch)
            order.decided = await self._acknowledged(*order.decide)

    async def _acknowledged(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """The answer to a request, which is sent until there is one."""
        while True:
            try:
                answer = await self.http.post(path, json=body, headers=headers)
            except httpx2.TransportError:
                self.interrupted += 1
                await asyncio.sleep(0.05)
                continue
            if answer.status_code in (404, 503) and path.endswith("/decide"):
                # The run has not come to its question yet.
                assert answer.json()["code"] in ("approval_unknown", "unavailable"), answer.text
                await asyncio.sleep(0.02)
                continue
            assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
            self.acknowledged += 1
            if self.kill_at and self.acknowledged >= self.kill_at[0]:
                self.kill_at.pop(0)
                self._kills.put_nowait(self.random.random() * 0.02)
            found: dict[str, Any] = answer.json()
            return found

    async def _check(self) -> None:
        """Nothing is lost, nothing is doubled, and every request gets its first answer again."""
        wrong = []
        for order in self.orders:
            ended = (await self.http.get(f"/runs/{order.run_id}/result", params={"timeout": 60})).json()
            events = (await self.http.get(f"/runs/{order.run_id}/events", params={"limit": 500})).json()["items"]
            counts = Counter(event["type"] for event in events)
            decided = [event["decision"] for event in events if event["type"] == "ApprovalDecided"]
            path, body, headers = order.start
            again = await self.http.post(path, json=body, headers=headers)
            facts = {
                "status": ended["status"],
                "starts, patches": (counts[events[0]["type"]], counts["RunPatched"]),
                "decisions": decided,
                "output": ended["nodes"]["ship" if order.decision == "approve" else "refuse"].get("output"),
                "started again": (again.status_code, again.json()),
                "patched again": (await self._acknowledged(*order.patch)),
                "decided again": (await self._acknowledged(*order.decide)),
            }
            expected = {
                "status": "COMPLETED",
                "starts, patches": (1, 1),
                "decisions": [order.decision],
                "output": f"patched {order.number}" if order.decision == "approve" else "refused",
                "started again": (200, {"run_id": order.run_id, "created": False}),
                "patched again": order.patched,
                "decided again": order.decided,
            }
            wrong += [
                f"{order.number} {key}: {facts[key]}, not {expected[key]}"
                for key in facts
                if facts[key] != expected[key]
            ]
        count = 0
        after = None
        while True:
            page = (await self.http.get("/runs", params={"limit": 500, **({"after": after} if after else {})})).json()
            count, after = count + len(page["items"]), page["next"]
            if after is None:
                break
        if count != len(self.orders):
            wrong.append(f"there are {count} runs of {len(self.orders)} orders")
        assert not wrong, "\n".join(wrong)
