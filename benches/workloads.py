"""The workloads W1 to W4: small graphs that show what a hop, a fan, many runs and one run after another cost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benches.graphs import chain, diamond, fan, node
from tidemill.engine.engine import Engine

CLIENTS = 10
"""How many start runs at the same time, one after the other each."""
PLACES = 256
"""How many nodes the worker has in hand at a time."""
LOOK_EVERY_S = 0.002


@dataclass(frozen=True, slots=True)
class Workload:
    """Something to do for an engine, and how many node executions it is."""

    name: str
    document: dict[str, Any]
    runs: int
    nodes: int
    play: Callable[[Engine], Awaitable[None]]


async def in_turn(engine: Engine, name: str, runs: int) -> None:
    """One run after the other, each waited for."""
    for _ in range(runs):
        await engine.result(await engine.start(name))


async def together(engine: Engine, name: str, runs: int) -> None:
    """Many runs at once, from the first start to the last end."""

    async def client() -> None:
        for _ in range(runs // CLIENTS):
            await engine.start(name)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    while (await engine.find(["live"], limit=1))[0]:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY_S)


CHAIN = Workload("W1 chain of 500", chain(500), 1, 500, lambda engine: in_turn(engine, "chain", 1))
FAN = Workload("W2 1→500→1", fan(500), 1, 502, lambda engine: in_turn(engine, "fan", 1))
MANY = Workload("W3 500 runs of A→(B,C)→D→E", diamond(), 500, 2_500, lambda engine: together(engine, "diamond", 500))
SINGLE = Workload(
    "W4 100 runs of one node, in turn",
    {"name": "single", "nodes": [node("only")]},
    100,
    100,
    lambda engine: in_turn(engine, "single", 100),
)
