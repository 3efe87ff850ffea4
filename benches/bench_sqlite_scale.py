"""The embedded engine with much in it: W5 a map of 100,000 items, W6 10,000 runs that wait for approval.

Each runs in a process of its own, so that the memory it shows is its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from benches.bench_scale import wide_map
from benches.bench_waiting import rate, wait
from benches.figures import Figure
from benches.graphs import diamond
from benches.tape import folder
from benches.workloads import PLACES
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN
from tidemill.stores.contract import Stream

ITEMS = 100_000
RATIO_MUST = 1.5
FLAT_MUST = 1.1
WAITING = 10_000
REMEMBERED = 4_000
"""Less than what a worker remembers of runs (`engine/run_cache.py`), so that each of them has its share of memory."""
WAITING_MUST_BYTES = 2_048
SLOWER_MUST = 5
BESIDE_ROUNDS = 30


def resident_mib() -> float:
    """How much memory this process has now, where the kernel tells."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def watched(engine: Engine, run: str) -> list[tuple[float, int, float]]:
    """(seconds, events, MiB) while a run goes on, every few milliseconds."""
    seen: list[tuple[float, int, float]] = []
    begun = time.perf_counter()
    while (entry := engine.run_cache.get(Stream("default", RUN, run))) is not None:
        seen.append((time.perf_counter() - begun, entry.state.seq, resident_mib()))
        await asyncio.sleep(0.01)
    return seen


async def large_map(place: Path, items: int) -> dict[str, float]:
    """How long the first and the last tenth of a map take, and how much memory there is at both ends.

    The ends themselves are left out: the list is read at the first, the results are put together at the last.
    """
    async with engine_at(f"sqlite:///{place / 'runs.db'}", concurrency=PLACES) as engine:
        await engine.publish(wide_map(items))
        run = await engine.start("map", {"items": list(range(items))})
        seen = await watched(engine, run)
        assert (await engine.show(run)).status == "COMPLETED"
    total = seen[-1][1]

    def at(share: float) -> tuple[float, float]:
        return next((seconds, mib) for seconds, events, mib in seen if events >= share * total)

    first, last = at(0.11)[0] - at(0.01)[0], at(0.99)[0] - at(0.89)[0]
    mib_first, mib_half, mib_last = at(0.11)[1], at(0.5)[1], at(0.99)[1]
    return {
        "per_second": items / seen[-1][0],
        "ratio": last / first,
        "mib_first": mib_first,
        "mib_half": mib_half,
        "mib_last": mib_last,
        "bytes_per_item": (mib_last - mib_first) * 2**20 / (0.88 * items),
        "peak_mib": max(mib for _, _, mib in seen),
    }


async def weight(place: Path, runs: int) -> dict[str, float]:
    """Bytes that the worker's process holds for each waiting run, by what the allocator hands out."""
    async with engine_at(f"sqlite:///{place / 'runs.db'}", concurrency=PLACES) as engine:
        await engine.publish(diamond())
        await engine.result(await engine.start("diamond"))
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await wait(engine, runs)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return {"bytes": held / runs}


async def beside(place: Path, runs: int) -> dict[str, float]:
    """By how many per cent other work is slower beside waiting runs; rounds alternate with a store without any."""
    async with (
        engine_at(f"sqlite:///{place / 'busy.db'}", concurrency=PLACES) as busy,
        engine_at(f"sqlite:///{place / 'idle.db'}", concurrency=PLACES) as idle,
    ):
        begun = time.perf_counter()
        await wait(busy, runs)
        seconds = time.perf_counter() - begun
        for engine in (busy, idle):
            await engine.publish(diamond())
            await rate(engine)
        ratios = []
        for number in range(BESIDE_ROUNDS):
            # Each goes first in turn: what the one leaves behind, garbage for one, the other one meets.
            first, second = (idle, busy) if number % 2 else (busy, idle)
            rates = {engine: await rate(engine) for engine in (first, second)}
            ratios.append(rates[idle] / rates[busy])
    return {"slower": (statistics.median(ratios) - 1) * 100, "per_second": runs / seconds}


MEASURES = {"large_map": large_map, "weight": weight, "beside": beside}


def apart(measure: str, count: int) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benches.bench_sqlite_scale", measure, str(count)]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def figures() -> Iterator[Figure]:
    """Measure."""
    wide = apart("large_map", ITEMS)
    yield Figure(f"W5 map of {ITEMS:,} items: last tenth / first tenth", wide["ratio"], "×", RATIO_MUST)
    yield Figure("W5", wide["per_second"], "items/s")
    # By then SQLite's page cache has its full size, and what grows is what grows with the items.
    flat = wide["mib_last"] / wide["mib_half"]
    yield Figure("W5, memory after the last tenth / at half", flat, "×", FLAT_MUST)
    yield Figure("W5, the same / after the first tenth", wide["mib_last"] / wide["mib_first"], "×")
    yield Figure("W5, memory that comes with each item in between", wide["bytes_per_item"], "B")
    yield Figure("W5, most memory of the process", wide["peak_mib"], "MiB")
    beside_them = apart("beside", WAITING)
    yield Figure(f"W6 {WAITING:,} runs come to wait for approval", beside_them["per_second"], "runs/s")
    yield Figure("W6, other work slower beside them", beside_them["slower"], "%", SLOWER_MUST)
    yield Figure("W6, memory of the worker per waiting run", apart("weight", WAITING)["bytes"], "B", WAITING_MUST_BYTES)
    yield Figure(
        f"W6, the same for {REMEMBERED:,} runs, all of them remembered", apart("weight", REMEMBERED)["bytes"], "B"
    )


if __name__ == "__main__":
    measure_asked, count_asked = sys.argv[1:3]
    with folder() as made:
        print(json.dumps(asyncio.run(MEASURES[measure_asked](made, int(count_asked)))))
