"""Jobs that were taken together do not keep the loop from everything else."""

from __future__ import annotations

import asyncio
from typing import Any

from tidemill.engine.worker.held_jobs import BEGIN_MS, start


async def test_others_are_served_between_jobs_that_take_long() -> None:
    now, seen = 0.0, list[Any]()

    def begin(job: Any, entry: Any, known: bool) -> None:
        nonlocal now
        now += BEGIN_MS * 0.6
        seen.append((job, entry, known))
        asyncio.get_running_loop().call_soon(seen.append, "another")

    jobs: Any = [(number, "run", True) for number in range(5)]
    start(iter(jobs), begin, lambda: now)
    assert seen == [(0, "run", True), (1, "run", True)]
    for _ in range(10):
        await asyncio.sleep(0)
    started = [each for each in seen if each != "another"]
    assert started == [(number, "run", number < 2) for number in range(5)], "the later ones look at their runs again"
    assert seen[2] == "another" and seen[-1] == "another"
