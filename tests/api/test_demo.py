"""What `tidemill serve --demo` fills a store with: runs that reach every state by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.fixtures.api_server import ApiServer, api_server
from tests.fixtures.serve_process import ServeProcess
from tidemill.api.auth import Access
from tidemill.demo import sample_runs
from tidemill.demo.demo_steps import Steps
from tidemill.settings import Settings

RUN_STATES = {
    ("order-fulfilment", "COMPLETED"),
    ("nightly-report", "COMPLETED"),
    ("nightly-report", "FAILED"),
    ("supplier-payout", "FAILED"),
    ("trip-booking", "FAILED"),
    ("catalogue-import", "PAUSED"),
    ("newsletter-draft", "CANCELLED"),
    ("newsletter-draft", "COMPLETED"),
    ("uptime-check", "COMPLETED"),
}
T = TypeVar("T")
WAITING = {"parcel-dispatch", "trial-reminder", "supplier-sync", "employee-onboarding", "account"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    def local(engine: object) -> Access:
        return Access.open(engine, roles=sample_runs.ROLES)  # type: ignore[arg-type]

    steps = Steps(pace=0).functions
    store = f"sqlite:///{tmp_path}/demo.db"
    async with api_server(store, functions=steps, access=local, settings=Settings(), grace_ms=0) as server:
        await sample_runs.fill(server.engine)
        yield server


async def until(ask: Callable[[], Awaitable[T]], met: Callable[[T], Any]) -> T:
    """Ask until the answer is right; the limit of the test ends it otherwise."""
    while True:
        answer = await ask()
        if met(answer):
            return answer
        await asyncio.sleep(0.02)


async def states(server: ApiServer) -> set[tuple[str, str]]:
    rows = (await server.get("/runs", limit=200))["items"]
    return {(row["workflow"], row["status"]) for row in rows}


@pytest.mark.timeout(120)
async def test_the_runs_reach_every_state(server: ApiServer) -> None:
    wanted = {*RUN_STATES, *((name, "RUNNING") for name in WAITING)}
    await until(lambda: states(server), lambda found: wanted <= found)
    waiting = (await server.get("/approvals", query="status:pending"))["items"]
    assert {row["workflow"] for row in waiting} >= {"invoice-approval", "lead-triage", "account"}
    letters = (await server.get("/dead-letters"))["items"]
    assert {row["code"] for row in letters} >= {"exception", "no_car", "unknown_outcome"}
    trips = (await server.get("/runs", query="workflow:trip-booking"))["items"]
    assert trips[0]["rollback"] in {"running", "done"}


async def test_a_failure_has_a_traceback_and_a_cause(server: ApiServer) -> None:
    failed = (await server.get("/runs", query="workflow:nightly-report"))["items"][0]["run_id"]
    run = await server.engine.result(failed, timeout=60)
    assert run.status == "FAILED"
    why = await server.get(f"/runs/{failed}/why")
    assert "no exchange rate for 'EURO'" in str(why)
    error = (await server.engine.show(failed)).nodes["convert"]["error"]
    assert error["type"] == "ReportError" and "KeyError" in str(error["causes"])


async def test_whoever_opens_the_page_may_decide(server: ApiServer) -> None:
    query = "workflow:invoice-approval"
    waiting = (await until(lambda: server.get("/approvals", query=query), lambda page: page["items"]))["items"]
    body = {"decision": "approve", "form": {"account": "Projects"}}
    answer = await server.post(f"/approvals/{waiting[0]['approval_id']}/decide", body)
    assert answer["decision"] == "approve"


async def test_further_runs_come(server: ApiServer) -> None:
    before = len((await server.get("/runs", limit=200))["items"])
    playing = asyncio.create_task(sample_runs.keep_going(server.engine, 0.001))
    wanted = before + len(sample_runs.LATER)
    page = await until(lambda: server.get("/runs", limit=200), lambda page: len(page["items"]) >= wanted)
    playing.cancel()
    assert len(page["items"]) >= wanted > before


def test_a_demo_stays_in_a_folder_of_its_own(tmp_path: Path) -> None:
    process = ServeProcess(tmp_path, "", "--demo", "--grace", "0.5")
    try:
        process.start()
        assert "a demo in a temporary folder" in process.said
        process.tell()
        assert process.end() == 0
    finally:
        process.bury()
    assert list(tmp_path.iterdir()) == []
