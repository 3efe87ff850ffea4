"""`/schedules` over HTTP: what the service can do, the right status, and every problem at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tidemill.api.app import create_app
from tidemill.bootstrap import engine_at
from tidemill.triggers.scheduler import run_key

FLOW = {"name": "report", "nodes": [{"id": "a", "type": "value", "config": 1}]}
NIGHTLY = {"name": "nightly", "workflow": "report", "cron": "0 2 * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with engine_at("memory://", work=False) as engine:
        await engine.publish(FLOW)
        transport = httpx2.ASGITransport(app=create_app(engine))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test/api/v1") as client:
            yield client


async def test_a_schedule_from_creation_to_deletion(http: httpx2.AsyncClient) -> None:
    made = await http.post("/schedules", json={**NIGHTLY, "inputs": {"n": 1}, "labels": {"team": "a"}})
    assert (made.status_code, made.json()["created_by"], made.json()["status"]) == (201, "local", "active")
    assert (await http.post("/schedules", json={**NIGHTLY, "inputs": {"n": 1}, "labels": {"team": "a"}})).is_success
    shown = (await http.get("/schedules/nightly")).json()
    assert (len(shown["next_times"]), shown["inputs"]) == (5, {"n": 1})
    times = (await http.get("/schedules/nightly/times", params={"count": 7})).json()
    assert times["times_ms"][:5] == shown["next_times"] and times["timezone"] == "Europe/Berlin"
    changed = (await http.patch("/schedules/nightly", json={"every": "15m", "labels": {}})).json()
    assert (changed["every_ms"], changed["cron"], changed["labels"], changed["inputs"]) == (900_000, "", {}, {"n": 1})
    assert (await http.post("/schedules/nightly/pause", json={"reason": "x"})).json()["status"] == "paused"
    assert (await http.post("/schedules/nightly/resume")).json()["status"] == "active"
    keyed, started = {"Idempotency-Key": "now-1"}, set[str]()
    for _ in range(2):
        triggered = await http.post("/schedules/nightly/trigger", headers=keyed)
        assert triggered.status_code == 201
        started.add(triggered.json()["run_id"])
    assert len(started) == 1
    page = (await http.get("/schedules", params={"term": "status:active"})).json()
    assert ([each["runs"] for each in page["items"]], page["next"]) == ([1], None)
    assert (await http.delete("/schedules/nightly")).json() == {"deleted": "nightly"}
    assert (await http.get("/schedules")).json()["items"] == []


async def test_a_key_cannot_take_the_run_of_a_due_time(http: httpx2.AsyncClient) -> None:
    due_ms = (await http.post("/schedules", json=NIGHTLY)).json()["next_ms"]
    keyed = {"Idempotency-Key": run_key("nightly", due_ms)}
    triggered = await http.post("/schedules/nightly/trigger", headers=keyed)
    assert triggered.status_code == 201 and triggered.json()["run_id"] != run_key("nightly", due_ms)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "paths"),
    [
        ("POST", "/schedules", {**NIGHTLY, "cron": "x", "timezone": "Mars"}, 422, {"/cron", "/timezone"}),
        ("POST", "/schedules", {"name": "nightly"}, 422, {"/workflow"}),
        ("POST", "/schedules", {**NIGHTLY, "crom": "x"}, 422, {"/crom"}),
        ("POST", "/schedules", {**NIGHTLY, "overlap": "no", "catch_up": 3}, 422, {"/overlap", "/catch_up"}),
        ("POST", "/schedules", {**NIGHTLY, "workflow": "nope"}, 404, {"/workflow"}),
        ("POST", "/schedules", {**NIGHTLY, "every": "5m"}, 422, {"/cron"}),
        ("POST", "/schedules", {**NIGHTLY, "paused": "no", "start_at": 3}, 422, {"/paused", "/start_at"}),
        ("PATCH", "/schedules/nope", {}, 404, {"/name"}),
        ("GET", "/schedules/nope", None, 404, {"/name"}),
        ("GET", "/schedules?term=x", None, 422, {"/terms/0"}),
        ("GET", "/schedules?after=x", None, 400, {"/after"}),
        ("GET", "/schedules?limit=0", None, 422, {"/limit"}),
        ("POST", "/schedules/nope/trigger", None, 404, {"/name"}),
        ("DELETE", "/schedules/nope", None, 404, {"/name"}),
    ],
)
async def test_what_is_refused(
    http: httpx2.AsyncClient, method: str, path: str, body: Any, status: int, paths: set[str]
) -> None:
    refused = await http.request(method, path, json=body)
    assert refused.status_code == status, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert {each["path"] for each in refused.json()["problems"]} == paths
    assert (await http.get("/schedules")).json()["items"] == []


async def test_another_schedule_of_the_name_is_a_conflict(http: httpx2.AsyncClient) -> None:
    await http.post("/schedules", json=NIGHTLY)
    assert (await http.post("/schedules", json={**NIGHTLY, "cron": "@daily"})).status_code == 409


async def test_the_document_describes_the_answers(http: httpx2.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    created = document["paths"]["/api/v1/schedules"]["post"]
    assert created["x-permission"] == "schedules:write"
    assert created["responses"]["201"]["content"]["application/json"]["schema"]["$ref"].endswith("/Schedule")
    fields = document["components"]["schemas"]["Schedule"]["properties"]
    made = (await http.post("/schedules", json=NIGHTLY)).json()
    assert set(fields) == set(made)
