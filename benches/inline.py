"""Two rows of `bench_nodes`: what the engine adds to an inline function, and timers that all fall due at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benches.figures import Figure
from benches.tape import folder
from benches.workloads import CLIENTS, LOOK_EVERY_S, PLACES, together
from tidemill.bootstrap import engine_at

RUNS = 500
NODES = 5 * RUNS
INLINE_MUST_US = 120
SLEEPERS = 10_000
SLEEP_S = 20.0
LATE_MUST_S = 2.0


def one() -> int:
    """What an inline function does here: next to nothing."""
    return 1


def calls(name: str, *after: str) -> dict[str, Any]:
    """A node that calls the function in the loop's own thread."""
    config = {"function": "one", "isolation": "inline"}
    return {"id": name, "type": "python", "config": config, "dependencies": list(after)}


DIAMOND = {
    "name": "diamond",
    "nodes": [calls("a"), calls("b", "a"), calls("c", "a"), calls("d", "b", "c"), calls("e", "d")],
}


async def overhead_us(store: Path) -> float:
    """Microseconds per node of W3 with inline functions, the best of three; the function itself takes none."""
    best = float("inf")
    async with engine_at(f"sqlite:///{store}", concurrency=PLACES, functions={"one": one}) as engine:
        await engine.publish(DIAMOND)
        await together(engine, "diamond", RUNS)
        for _ in range(3):
            begun = time.perf_counter()
            await together(engine, "diamond", RUNS)
            best = min(best, (time.perf_counter() - begun) / NODES * 1e6)
    return best


async def sleepers_s(store: Path) -> float:
    """Seconds from the moment at which the last of many `sleep` nodes is due until all runs have ended.

    Each run sleeps until the same moment: it is told how long that is when it is started.
    """
    sleep = {"id": "sleep", "type": "sleep", "config": {"ms": "{{ inputs.ms }}"}}
    async with engine_at(f"sqlite:///{store}", concurrency=PLACES) as engine:
        await engine.publish({"name": "sleeper", "nodes": [sleep]})
        due = time.perf_counter() + SLEEP_S

        async def client() -> None:
            for _ in range(SLEEPERS // CLIENTS):
                left_ms = round((due - time.perf_counter()) * 1000)
                assert left_ms > 1_000, "the machine is too slow to start so many in time"
                await engine.start("sleeper", {"ms": left_ms})

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        while (await engine.find(["live"], limit=1))[0]:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        return time.perf_counter() - due


def inline_figures() -> list[Figure]:
    """Measure both."""
    with folder() as place:
        took = asyncio.run(overhead_us(Path(place) / "inline.db"))
    with folder() as place:
        late = asyncio.run(sleepers_s(Path(place) / "sleepers.db"))
    return [
        Figure("engine per inline python node, W3 on SQLite", took, "µs", INLINE_MUST_US),
        Figure(f"{SLEEPERS:,} sleeps due at once, until the last run has ended", late, "s", LATE_MUST_S),
    ]
