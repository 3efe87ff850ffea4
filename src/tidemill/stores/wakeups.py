"""Waiters: tasks that sleep until a topic (a queue, a cap, a stream) is notified, from any thread of this process.

A store that several processes share must detect changes of the others itself and then notify its own waiters. Its clock
is that of the server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Hashable, Iterable
from contextlib import suppress

from tidemill.ambient import wall_clock_ms

CLOCK_MEMORY_MS = 10_000.0
EVERY_QUEUE = ("every", "queue")
"""The topic of claims that take from any queue."""
CAPS = ("caps",)
"""The topic of the end of leases that count for a cap."""


class Waiter:
    __slots__ = ("future", "thread")

    def __init__(self) -> None:
        self.future = asyncio.get_running_loop().create_future()
        self.thread = threading.get_ident()

    def notify(self) -> None:
        if self.thread == threading.get_ident():
            self._wake()
        else:
            with suppress(RuntimeError):  # A closed loop of the sleeper must not fail the committer.
                self.future.get_loop().call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Waiters:
    """Waiters by topic, in the order in which they were added (the simulator needs it). `notify` empties a topic."""

    def __init__(self) -> None:
        self._by_topic: dict[Hashable, dict[Waiter, None]] = {}

    def add(self, topics: Iterable[Hashable]) -> Waiter:
        waiter = Waiter()
        for topic in topics:
            self._by_topic.setdefault(topic, {})[waiter] = None
        return waiter

    def notify(self, topic: Hashable) -> None:
        for waiter in self._by_topic.pop(topic, ()):
            waiter.notify()

    def notify_all(self) -> None:
        for topic in list(self._by_topic):
            self.notify(topic)

    def remove(self, waiter: Waiter, topics: Iterable[Hashable]) -> None:
        for topic in topics:
            waiting = self._by_topic.get(topic, {})
            waiting.pop(waiter, None)
            if not waiting:
                self._by_topic.pop(topic, None)


async def rest(waiter: Waiter, ms: float) -> bool:
    """Sleep until the waiter is notified (True) or the time is up."""
    alarmed = False

    def alarm() -> None:
        nonlocal alarmed
        alarmed = True
        waiter.notify()

    timer = asyncio.get_running_loop().call_later(max(ms, 0) / 1000, alarm)
    try:
        await waiter.future
    finally:
        timer.cancel()
    return not alarmed


class ServerClock:
    """The server's clock, estimated from its replies. Each was right when sent, so the estimate is never ahead."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._since = 0.0

    def observe(self, server_ms: int) -> None:
        now = time.monotonic() * 1000
        ahead = server_ms - now
        if self._ahead is None or ahead > self._ahead or now - self._since > CLOCK_MEMORY_MS:
            self._ahead, self._since = ahead, now

    def now_ms(self) -> int:
        return wall_clock_ms() if self._ahead is None else int(time.monotonic() * 1000 + self._ahead)
