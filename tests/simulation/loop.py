"""A deterministic event loop: real asyncio code under a clock that only moves when nothing else can happen."""

from __future__ import annotations

import asyncio
import random
from typing import Any


class _NoSelector:
    """Instead of waiting for I/O, let time pass."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: every task waits for something that will never happen")
        self._loop.now += max(0.0, timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """Time is `now`, in seconds. Callbacks run in the order in which they were scheduled."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self._selector = _NoSelector(self)

    def time(self) -> float:
        return self.now

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """There are no other threads."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Do at once what would be done in a thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class SimAmbient:
    """Everything a process takes from its machine, seeded. `skew_ms` is how wrong its wall clock is."""

    def __init__(self, loop: SimLoop, rng: random.Random, name: str) -> None:
        self._loop, self._rng, self._name = loop, rng, name
        self._ids = 0
        self.skew_ms = 0

    def now_ms(self) -> int:
        return int(self._loop.now * 1000) + self.skew_ms

    def monotonic_ms(self) -> float:
        return self._loop.now * 1000

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._name}-{self._ids}"

    def chance(self) -> float:
        return self._rng.random()
