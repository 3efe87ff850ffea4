"""Large runs through the whole engine: does a step cost the same at the end of a run as at its beginning?"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benches.figures import Figure
from benches.graphs import chain, fan
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN
from tidemill.stores.contract import Stream

NODES = 100_000
RATIO_MAX = 1.5


def wide_map(width: int) -> dict[str, Any]:
    """One node over a list as long as asked for, a few hundred items at a time."""
    node = {
        "id": "each",
        "type": "value",
        "config": {"v": "{{ item }}"},
        "map": {"over": "{{ inputs.items }}", "max_parallel": 500},
    }
    return {"name": "map", "nodes": [node]}


async def progress(engine: Engine, run: str) -> list[tuple[float, int]]:
    """(seconds, events) while the run goes on, every few milliseconds."""
    seen: list[tuple[float, int]] = []
    started = time.perf_counter()
    while True:
        entry = engine.run_cache.get(Stream("default", RUN, run))
        if entry is None:
            return seen
        seen.append((time.perf_counter() - started, entry.state.seq))
        await asyncio.sleep(0.01)


async def measure(name: str, document: dict[str, Any], inputs: Any) -> list[Figure]:
    """The time of the first and of the last tenth of a run's events, the very ends left out."""
    async with engine_at("memory://") as engine:
        await engine.publish(document)
        run = await engine.start(name, inputs)
        seen = await progress(engine, run)
        view_status = (await engine.find([], limit=1))[0][0].status
    assert view_status == "COMPLETED", view_status
    total = seen[-1][1]

    def when(share: float) -> float:
        return next(seconds for seconds, events in seen if events >= share * total)

    # A fan's first event burst schedules everything at once, so its tenths are taken from what follows.
    begin = 0.35 if name == "fan" else 0.01
    step = (0.99 - begin) / 10
    first = when(begin + step) - when(begin)
    last = when(0.99) - when(0.99 - step)
    return [
        Figure(f"{name} of {NODES:,} through the engine", seen[-1][0] / NODES * 1e6, "µs/node"),
        Figure(f"{name} of {NODES:,}: last tenth / first tenth", last / first, "×", RATIO_MAX),
    ]


def figures() -> list[Figure]:
    """Measure."""
    found: list[Figure] = []
    for name, document, inputs in (
        ("chain", chain(NODES), None),
        ("fan", fan(NODES), None),
        ("map", wide_map(NODES), {"items": list(range(NODES))}),
    ):
        found += asyncio.run(measure(name, document, inputs))
    return found
