"""`python -m benches.profile [W1|W2|W3|W4] [memory]`: where the time of a workload goes, function by function."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
from pathlib import Path

from benches.tape import folder
from benches.workloads import CHAIN, FAN, MANY, PLACES, SINGLE, Workload
from tidemill.bootstrap import engine_at

WORKLOADS = {workload.name.split()[0]: workload for workload in (CHAIN, FAN, MANY, SINGLE)}
TIMES = {"W1": 4, "W2": 4, "W3": 4, "W4": 5}
LINES = 45


async def profiled(workload: Workload, times: int, url: str) -> cProfile.Profile:
    """A workload several times over, after it was run once."""
    profile = cProfile.Profile()
    async with engine_at(url, concurrency=PLACES) as engine:
        await engine.publish(workload.document)
        await workload.play(engine)
        profile.enable()
        for _ in range(times):
            await workload.play(engine)
        profile.disable()
    return profile


def main(name: str = "W3", *where: str) -> None:
    """Print the functions in which most time was spent."""
    with folder() as place:
        url = "memory://" if "memory" in where else f"sqlite:///{Path(place) / 'runs.db'}"
        profile = asyncio.run(profiled(WORKLOADS[name], TIMES[name], url))
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(LINES)


if __name__ == "__main__":
    main(*sys.argv[1:])
