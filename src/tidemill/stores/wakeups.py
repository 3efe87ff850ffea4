"""Waiters: tasks that sleep until a topic (a queue, a cap, a stream) is notified, from any thread of this process.

A store that several processes share must detect changes of the others itself and then notify its own waiters. Its clock
is that of the server, and calls of many tasks share one call to the server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from tidemill.ambient import wall_clock_ms
from tidemill.errors import Unavailable

T = TypeVar("T")
R = TypeVar("R")

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


class GatheredCalls(Generic[T, R]):
    """Calls that arrive while `at_once` are under way: the next one answers up to `most` of them together."""

    def __init__(self, run: Callable[[list[T]], Awaitable[list[R]]], *, at_once: int = 1, most: int = 256) -> None:
        self._run_together, self._at_once, self._most = run, at_once, most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._closed = False
        self._ended = asyncio.Event()
        """Set when the last call has ended after `close`."""

    async def submit(self, call: T) -> R:
        if self._closed:
            raise Unavailable("the store is closed")
        if self._running < self._at_once:
            # Nothing to gather with: the caller's own task does it, which saves turns of the loop.
            self._running += 1
            try:
                return (await self._run_together([call]))[0]
            finally:
                if self._waiting:
                    self._start()
                else:
                    self._end()
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        return await future

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._run(), name="tidemill-calls")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        self._running -= 1
        if self._closed and not self._running:
            self._ended.set()

    async def close(self) -> None:
        """Refuse further calls, and wait for those that were submitted."""
        self._closed = True
        if self._running:
            await self._ended.wait()

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(batch)
        finally:
            self._end()

    async def _answer(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._run_together([call for call, _ in batch])
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, Unavailable):
                # One by one, so that only the calls fail that cannot be done.
                for each in batch:
                    await self._answer([each])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
