"""The whole engine on the memory store, beside a bare asyncio walk of the same graphs: one task per node, no engine."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from typing import Any

from benches.figures import Figure
from benches.graphs import chain, compiled, diamond, fan
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.kernel.model import Workflow

RUNS = 1_000
PLACES = 256
"""How many nodes the worker has in hand at a time; the floor has no such bound."""
CLIENTS = 10
"""How many start runs at the same time, one after the other each."""


async def handler(name: str) -> dict[str, int]:
    """What a node does."""
    return {"n": 1}


async def walk(flow: Workflow) -> None:
    """The floor: every node is a task, and its end starts the nodes whose parents are all done."""
    waiting = {node.id: len(node.inbound) for node in flow.nodes}
    outputs: dict[str, Any] = {}
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def ended(name: str, task: asyncio.Task[dict[str, int]]) -> None:
        outputs[name] = task.result()
        for target in flow.by_id[name].outbound:
            waiting[target] -= 1
            if not waiting[target]:
                start(target)
        if len(outputs) == len(waiting):
            done.set_result(None)

    def start(name: str) -> None:
        task = loop.create_task(handler(name))
        task.add_done_callback(lambda task: ended(name, task))

    for entry in flow.entries:
        start(entry)
    await done


async def bare_rate(flow: Workflow, runs: int) -> float:
    """Nodes per second of processor time of the floor; that other programs run beside it does not matter."""
    gc.collect()
    started = time.process_time()
    await asyncio.gather(*(walk(flow) for _ in range(runs)))
    return runs * len(flow.nodes) / (time.process_time() - started)


async def engine_rate(engine: Engine, name: str, runs: int, nodes: int) -> float:
    """Nodes per second of processor time of the engine, from the first start to the last end."""

    async def client() -> None:
        for _ in range(runs // CLIENTS):
            await engine.start(name)

    gc.collect()
    started = time.process_time()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    while (await engine.find(["live"], limit=1))[0]:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    return runs * nodes / (time.process_time() - started)


async def hop_us(engine: Engine, length: int) -> float:
    """Microseconds per hop of one chain."""
    started = time.perf_counter()
    await engine.result(await engine.start("chain"))
    return (time.perf_counter() - started) / length * 1e6


async def measure() -> list[Figure]:
    """Measure floor and engine alternately in one process, so that both meet the same machine."""
    flow = compiled(diamond())
    bare: list[float] = []
    mine: list[float] = []
    async with engine_at("memory://", concurrency=PLACES) as engine:
        await engine.publish(diamond())
        await engine.publish(chain(500))
        await engine.publish(fan(500))
        for _ in range(9):
            bare.append(await bare_rate(flow, RUNS))
            mine.append(await engine_rate(engine, "diamond", RUNS, 5))
        hop = min([await hop_us(engine, 500) for _ in range(3)])
        wide = max([await engine_rate(engine, "fan", 10, 502) for _ in range(3)])
    # Floor and engine of one round meet the same machine, so their ratio is taken round by round.
    ratio = statistics.median(100 * ours / floor for ours, floor in zip(mine, bare, strict=True))
    return [
        Figure("bare asyncio walk, 1,000 diamonds", statistics.median(bare), "nodes/s"),
        Figure("memory engine, 1,000 diamonds", statistics.median(mine), "nodes/s"),
        Figure("memory engine / bare walk, median of the rounds", ratio, "%", 15, 20, at_most=False),
        Figure("memory engine, one hop of a chain of 500", hop, "µs"),
        Figure("memory engine, ten fans of 500", wide, "nodes/s"),
    ]


def figures() -> list[Figure]:
    """Measure."""
    return asyncio.run(measure())
