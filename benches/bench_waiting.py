"""100,000 runs that wait for a person: what they cost the worker, and whether they slow down the others."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import tracemalloc

from benches.figures import Figure
from benches.graphs import diamond, node
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine

WAITING = 100_000
WEIGHED = 20_000
"""Runs whose memory is weighed: watching every allocation is slow."""
KIB_MUST = 2
SLOWER_MUST = 5
CLIENTS = 20
ROUNDS = 9
RUNS_PER_ROUND = 300

APPROVAL = {
    "name": "approval",
    "nodes": [
        node("a"),
        {"id": "ok", "type": "human", "config": {"title": "go on?"}, "dependencies": ["a"]},
        node("b", "ok"),
    ],
}


async def wait(engine: Engine, runs: int) -> None:
    """Start runs, and see all of them wait for a person."""
    await engine.publish(APPROVAL)

    async def client(count: int) -> None:
        for _ in range(count):
            await engine.start("approval", {"who": "somebody"})

    await asyncio.gather(*(client(runs // CLIENTS) for _ in range(CLIENTS)))
    for _ in range(10_000):
        if await engine._store.count("default", "run", ["waiting"], at_most=runs) == runs:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not all of them wait")


async def weigh() -> tuple[float, float]:
    """KiB per waiting run: what the worker holds, and all of it with the store that is in the same process here."""
    async with engine_at("memory://") as engine:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await wait(engine, WEIGHED)
        gc.collect()
        full = tracemalloc.get_traced_memory()[0]
        engine.run_cache._entries.clear()
        gc.collect()
        without = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return (full - without) / WEIGHED / 1024, (full - before) / WEIGHED / 1024


async def rate(engine: Engine) -> float:
    """Nodes per second of processor time."""
    started = time.process_time()

    async def client() -> None:
        for _ in range(RUNS_PER_ROUND // CLIENTS):
            await engine.result(await engine.start("diamond"))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return RUNS_PER_ROUND * 5 / (time.process_time() - started)


async def slowdown() -> float:
    """By how many per cent other work is slower beside waiting runs; rounds alternate with an engine without any."""
    async with engine_at("memory://") as busy, engine_at("memory://") as idle:
        await wait(busy, WAITING)
        for engine in (busy, idle):
            await engine.publish(diamond())
            await rate(engine)
        # The store's own objects stand for a file: the collector need not look through them for us.
        gc.collect()
        gc.freeze()
        ratios = [await rate(idle) / await rate(busy) for _ in range(ROUNDS)]
    return (statistics.median(ratios) - 1) * 100


def figures() -> list[Figure]:
    """Measure."""
    worker, whole = asyncio.run(weigh())
    return [
        Figure(f"memory per waiting run in the worker, {WEIGHED:,} runs", worker, "KiB", KIB_MUST),
        Figure("the same with the memory store", whole, "KiB"),
        Figure(f"other work slower beside {WAITING:,} waiting runs", asyncio.run(slowdown()), "%", SLOWER_MUST),
    ]
