"""The HTTP service on a SQLite file: starts, streams, and the server process itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

from benches.figures import Figure, Note
from benches.load import ONE_NODE, connected, offered, published, quantile, serving

SECONDS = 5.0
OFFERED = 300
STARTS_MUST, P50_MUST_MS, BATCH_MUST = 500, 8.0, 2_000
SSE_MUST_MS, RSS_MUST_MB, READY_MUST_S = 100.0, 150.0, 2.0
BATCHES, BATCH = 10, 500
FOLLOWED, SIGNALS = 20, 10

LISTENS = {
    "name": "listens",
    "nodes": [
        {"id": f"s{n}", "type": "signal", "config": {"name": f"n{n}"}, "dependencies": [f"s{n - 1}"] if n else []}
        for n in range(SIGNALS)
    ],
}


async def batches(port: int) -> float:
    """Runs per second that are started by one client in batches."""
    async with connected(port) as http:
        began = time.perf_counter()
        for _ in range(BATCHES):
            runs = [{"inputs": {"n": number}} for number in range(BATCH)]
            assert len((await http.post("/runs/batch", {"workflow": "one", "runs": runs}))["runs"]) == BATCH
        return BATCHES * BATCH / (time.perf_counter() - began)


async def streamed(port: int) -> list[float]:
    """Milliseconds from the time of an event to its arrival at a client that follows the run."""
    delays: list[float] = []

    async def follow(run_id: str) -> None:
        async with connected(port) as http:
            async for event in http.frames(f"/runs/{run_id}/stream"):
                delays.append(time.time() * 1_000 - event["at_ms"])
                if event["type"] == "RunCompleted":
                    return

    async def one() -> None:
        async with connected(port) as http:
            run_id = (await http.post("/runs", {"workflow": "listens"}))["run_id"]
            following = asyncio.create_task(follow(run_id))
            for number in range(SIGNALS):
                await http.post(f"/runs/{run_id}/signal", {"name": f"n{number}"})
                await asyncio.sleep(0.05)
            await asyncio.wait_for(following, 60)

    await published(port, LISTENS)
    await asyncio.gather(*(one() for _ in range(FOLLOWED)))
    return delays


def figures() -> Iterator[Figure | Note]:
    with serving() as server:
        yield Figure("tidemill serve: from its start to ready", server.ready_s, "s", READY_MUST_S)
        yield Figure("idle: memory of the server", server.rss_mb(), "MB", RSS_MUST_MB)
        asyncio.run(published(server.port, ONE_NODE))
        delays = asyncio.run(streamed(server.port))
        yield Figure(f"stream, {FOLLOWED} followers: event to client, p95", quantile(delays, 0.95), "ms", SSE_MUST_MS)
        steady = asyncio.run(offered(server.port, OFFERED, SECONDS))
        yield Figure(f"start at {OFFERED}/s: durable answer, p50", quantile(steady.ms, 0.5), "ms", P50_MUST_MS)
        yield Note(f"{steady.rate:,.0f} answered/s, p99 {quantile(steady.ms, 0.99):.1f} ms; the same process runs them")
    with serving("--no-worker") as server:
        asyncio.run(published(server.port, ONE_NODE))
        most = asyncio.run(offered(server.port, math.inf, SECONDS))
        yield Figure("starts, saturated, workers elsewhere", most.rate, "runs/s", STARTS_MUST, at_most=False)
        yield Note(f"p50 {quantile(most.ms, 0.5):.1f} ms, p99 {quantile(most.ms, 0.99):.1f} ms")
        rate = asyncio.run(batches(server.port))
        yield Figure(f"batches of {BATCH} starts", rate, "runs/s", BATCH_MUST, at_most=False)
