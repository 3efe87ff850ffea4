"""The clock of the machine jumps or stands still: timers come early or late, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.durability.harness import ENDS, FAN, FLAKY, begin, chain, engine_on, examined, finish
from tidemill.stores.sqlite.store import SqliteStore

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
NAPPING: dict[str, Any] = {
    "name": "napping",
    "nodes": [
        {"id": "a", "type": "sleep", "config": {"seconds": 0.3}},
        {"id": "b", "type": "sleep", "dependencies": ["a"], "config": {"seconds": 0.3}},
        {"id": "c", "type": "value", "dependencies": ["b"], "config": "done"},
    ],
    "outputs": {"said": "{{ c.output }}"},
}


NAPS = [f"nap-{number}" for number in range(5)]
EXPECTED = {
    **dict.fromkeys(NAPS, ("COMPLETED", {"said": "done"})),
    **{run: ENDS[run] for run in ENDS if run != "run-asking"},
}
"""How every run ends, whatever the clock does."""


class Clock:
    """The machine's clock, which somebody can set and stop."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._stopped_at: int | None = None
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self._stopped_at if self._stopped_at is not None else time.time_ns() // 1_000_000 + self.ahead_ms

    def stop(self) -> None:
        self._stopped_at = self()

    def go_on(self) -> None:
        self._stopped_at = None


async def through(path: Path, trouble: Any) -> dict[str, Any]:
    """Timers, retries and leases are under way while something happens to the clock; answers how all runs ended."""
    clock = Clock()
    engine = await engine_on(SqliteStore(path, clock=clock), lease_ms=600).open()
    try:
        await engine.publish(NAPPING)
        runs = [await engine.start("napping", key=key) for key in NAPS]
        runs += await begin(engine, [chain(), FAN, FLAKY])
        await asyncio.sleep(0.15)
        asked = clock.asked
        await trouble(clock)
        assert clock.asked > asked, "nobody looked at the clock meanwhile"
        ends = await finish(engine, runs)
    finally:
        await engine.close()
    await examined(path)
    return {run: ends[run] for run in runs}


@pytest.mark.parametrize("jump_ms", [SECOND, HOUR, DAY])
async def test_the_clock_is_set_forward(quick_path: Path, jump_ms: int) -> None:
    async def trouble(clock: Clock) -> None:
        clock.ahead_ms = jump_ms
        await asyncio.sleep(0.3)

    assert await through(quick_path / "a.db", trouble) == EXPECTED


@pytest.mark.parametrize("jump_ms", [SECOND, HOUR, DAY])
async def test_the_clock_is_set_back_and_put_right(quick_path: Path, jump_ms: int) -> None:
    async def trouble(clock: Clock) -> None:
        clock.ahead_ms = -jump_ms
        await asyncio.sleep(0.6)
        clock.ahead_ms = 0

    assert await through(quick_path / "a.db", trouble) == EXPECTED


async def test_the_clock_stands_still(quick_path: Path) -> None:
    async def trouble(clock: Clock) -> None:
        clock.stop()
        await asyncio.sleep(0.8)
        clock.go_on()

    assert await through(quick_path / "a.db", trouble) == EXPECTED


async def test_the_clock_goes_to_and_fro(quick_path: Path) -> None:
    async def trouble(clock: Clock) -> None:
        for ahead_ms in (-DAY, SECOND, -HOUR, HOUR, -SECOND, HOUR):
            clock.ahead_ms = ahead_ms
            await asyncio.sleep(0.1)

    assert await through(quick_path / "a.db", trouble) == EXPECTED
