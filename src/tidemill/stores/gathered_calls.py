"""Calls to a server that arrive while others are under way: the next call answers all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tidemill.errors import Unavailable

T = TypeVar("T")
R = TypeVar("R")


class GatheredCalls(Generic[T, R]):
    """At most `at_once` calls are under way, each for at most `most` callers."""

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
