"""`tidemill serve` as a process: killed under load, and told to stop with requests and streams under way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from tests.api.killed_server import DOCUMENT, Campaign
from tests.fixtures.api_server import sqlite_url, sse_frames
from tests.fixtures.serve_process import ServeProcess, serving
from tests.fixtures.servers import postgres_server
from tests.fixtures.worker_processes import until


async def test_what_a_killed_server_has_acknowledged_is_neither_lost_nor_done_twice(tmp_path: Path) -> None:
    with serving(tmp_path, sqlite_url(tmp_path)) as server:
        campaign = Campaign(server, orders=30, kills=2, seed=1)
        await campaign.run()
    assert campaign.interrupted, "no request was under way when the server was killed"


async def test_a_killed_server_on_postgresql(tmp_path: Path) -> None:
    with postgres_server.given_or_running() as database:
        store = database.new_store()
        try:
            with serving(tmp_path, store) as server:
                campaign = Campaign(server, orders=20, kills=1, seed=2)
                await campaign.run()
        finally:
            database.drop(store)
    assert campaign.interrupted, "no request was under way when the server was killed"


@pytest.fixture
def server(tmp_path: Path) -> ServeProcess:
    return ServeProcess(tmp_path, sqlite_url(tmp_path), "--grace", "20")


async def test_a_server_that_is_told_to_stop_answers_what_is_under_way(server: ServeProcess) -> None:
    """Streams end with the place to resume from, a waiting request is answered, and the exit code is 0."""
    try:
        await asyncio.to_thread(server.start)
        async with httpx2.AsyncClient(base_url=f"{server.url}/api/v1", timeout=60) as http:
            assert (await http.post("/workflows", json={"document": DOCUMENT})).is_success
            run_id = (await http.post("/runs", json={"workflow": "order"})).json()["run_id"]
            while (await http.get("/approvals")).json()["items"] == []:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            seq = len((await http.get(f"/runs/{run_id}/events")).json()["items"])
            async with (
                http.stream("GET", f"/runs/{run_id}/stream") as of_run,
                http.stream("GET", "/stream") as of_tenant,
            ):
                frames = sse_frames(of_run)
                seen = [await anext(frames) for _ in range(seq)]
                assert seen[-1].id == str(seq)
                waiting = asyncio.create_task(http.get(f"/runs/{run_id}/result", params={"timeout": 60}))
                await asyncio.sleep(0.2)
                server.tell()
                rest = [frame async for frame in frames]
                others = [frame async for frame in sse_frames(of_tenant)]
            answer = await waiting
        assert [frame.event for frame in rest][-1] == "resume" and rest[-1].data["after"] == str(seq), rest
        assert others[-1].event == "resume"
        assert (answer.status_code, answer.json()["run_id"]) == (202, run_id)
        assert await asyncio.to_thread(server.end, 20) == 0, server.said
        with pytest.raises(httpx2.ConnectError):
            await asyncio.to_thread(httpx2.get, f"{server.url}/livez")
    finally:
        server.bury()


async def test_workers_beside_a_killed_server_end_with_it(tmp_path: Path) -> None:
    """A server that is started again would have as many more each time."""
    with serving(tmp_path, sqlite_url(tmp_path), "--workers", "2") as server:
        assert "2 workers outside this process" in server.said
        async with httpx2.AsyncClient(base_url=f"{server.url}/api/v1", timeout=60) as http:
            workers: list[int] = []
            async with asyncio.timeout(60):
                while len(workers) < 2:
                    workers = [each["pid"] for each in (await http.get("/workers")).json()["items"]]
        await asyncio.to_thread(server.kill)
        for pid in workers:
            await asyncio.to_thread(until, lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{pid} is there", 60)
