"""What asyncio lacks: cheap calls into a loop in a thread, loops that outlive foreign code, coroutines begun at once.

A call of `LoopThread` is queued, and an eventfd wakes the loop, which takes less than `call_soon_threadsafe`. A queued
call that the ending loop does not begin any more is refused, never left waiting.

`run_until` keeps a loop running that foreign code tries to end: asyncio lets `SystemExit` and `KeyboardInterrupt` of a
task through, and one job would end worker after worker. A handler that cancels every task of the loop cannot be
survived: the process ends, says why, and leaves its jobs to other workers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import coroutine
from typing import Any, Generic, TypeVar

LOG = logging.getLogger(__name__)

T = TypeVar("T")

EVENTS_AHEAD_MAX = 4_096
"""What a `BufferedIterator` keeps for a slow reader before it stops reading itself."""
STOP_SECONDS_MAX = 5.0
RECEIVED_SECONDS_MAX = 0.0005
"""How long the loop waits for a thread to take its answer."""


def run_until(loop: asyncio.AbstractEventLoop, over: Callable[[], bool]) -> None:
    """Run a loop until it has been stopped and `over` says that this was meant."""
    while not over():
        try:
            loop.run_forever()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
            LOG.error("a task that a handler left in the loop raised %s; the engine continues", said, exc_info=error)
        else:
            if not over():
                LOG.error("a handler stopped the event loop; the engine continues")


def begin_at_once(work: Coroutine[Any, Any, None], context: Context, name: str) -> asyncio.Task[None] | None:
    """Run a coroutine in a context until it suspends; a task does the rest, if there is one.

    Until then it has no task of its own: it may await futures, but neither time-outs nor task groups.
    """
    try:
        suspended = context.run(work.send, None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest_of(work, suspended), name=name, context=context)


async def _rest_of(begun: Coroutine[Any, Any, None], suspended: Any) -> None:
    await _resume(begun, suspended)


@coroutine
def _resume(begun: Coroutine[Any, Any, None], suspended: Any) -> Generator[Any, Any, None]:
    """Continue a coroutine that waits for the future with which it has `suspended`."""
    with suppress(StopIteration):
        while True:
            try:
                sent = yield suspended
            except BaseException as error:
                suspended = begun.throw(error)
            else:
                suspended = begun.send(sent)


class LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: set[_Call[Any]] = set()
        self._queue: deque[_Call[Any]] = deque()
        """Calls that the loop has not begun yet."""
        self._wakeup = _Wakeup()
        self._loop.add_reader(self._wakeup.reader, self._begin_queued)
        self._stopping = self._ended = False
        target = partial(run_until, self._loop, lambda: self._ended)
        self._thread = threading.Thread(target=target, name="tidemill-loop", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, answer: Coroutine[Any, Any, T]) -> T:
        """Have the loop compute an answer, in the context of the caller, and wait for it."""
        call = _Call(answer)
        self._calls.add(call)
        self._queue.append(call)
        # In this order: either the ending loop finds the call in the queue, or the call finds that the loop is ending.
        if self._stopping:
            self._refuse_queued()
        else:
            self._wakeup.set()
        try:
            return call.wait()
        except BaseException:
            if not call.over:
                with suppress(RuntimeError):  # The loop has ended meanwhile.
                    self._loop.call_soon_threadsafe(call.cancel)
            raise
        finally:
            self._calls.discard(call)
            call.received.release()

    def _begin_queued(self) -> None:
        self._wakeup.clear()
        while self._queue:
            call = self._queue.popleft()
            if call.over:  # Its caller has left.
                call.answer.close()
                continue
            call.task = self._loop.create_task(self._tell(call), context=call.context)
            call.task.add_done_callback(call.on_done)

    async def _tell(self, call: _Call[Any]) -> None:
        """Compute an answer and hand it to the thread that waits for it, without another step of the loop."""
        try:
            value = await call.answer
        except asyncio.CancelledError:
            call.end(error=CancelledError())
            raise
        except BaseException as error:
            call.end(error=error)
            if not isinstance(error, Exception):
                raise
        else:
            call.end(value)
        if len(self._calls) == 1:
            # Without this the thread would get the interpreter only when the loop waits next, after other work.
            call.received.acquire(timeout=RECEIVED_SECONDS_MAX)

    def _refuse_queued(self) -> None:
        with suppress(IndexError):
            while True:
                call = self._queue.popleft()
                call.answer.close()
                call.end(error=RuntimeError("the event loop has ended"))

    def cancel_calls(self) -> None:
        """In the loop: stop computing every answer."""
        for call in tuple(self._calls):
            call.cancel()

    def stop(self) -> None:
        """End every task of the loop, then the loop."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(STOP_SECONDS_MAX)
        if not self._thread.is_alive():
            self._loop.close()
            if not self._calls:
                self._wakeup.close()

    async def _end(self) -> None:
        self._stopping = True
        self._loop.remove_reader(self._wakeup.reader)
        self._refuse_queued()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
        self._ended = True
        self._loop.stop()


class _Wakeup:
    """Wakes a loop that reads it, from any thread: an eventfd, or a pipe where there is none."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.reader = self._writer = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.reader, self._writer = os.pipe()
            os.set_blocking(self.reader, False)
            os.set_blocking(self._writer, False)

    def set(self) -> None:
        with suppress(BlockingIOError):  # It is set, many times over.
            os.write(self._writer, _ONE)

    def clear(self) -> None:
        os.read(self.reader, 4_096)

    def close(self) -> None:
        for each in {self.reader, self._writer}:
            os.close(each)
        self.reader = self._writer = -1

    def __del__(self) -> None:
        if self.reader >= 0:
            self.close()


_ONE = (1).to_bytes(8, sys.byteorder)
"""What an eventfd adds to its counter."""


class _Call(Generic[T]):
    """A call that the event loop answers to a waiting thread. A `Future` costs more: each step locks a condition."""

    __slots__ = ("_answered", "_error", "_value", "answer", "context", "over", "received", "task")

    def __init__(self, answer: Coroutine[Any, Any, T]) -> None:
        self.answer, self.context = answer, copy_context()
        self._answered, self.received = threading.Lock(), threading.Lock()
        self._answered.acquire()
        self.received.acquire()
        """Released once the thread has the answer."""
        self.task: asyncio.Task[None] | None = None
        self.over = False
        self._value: Any = None
        self._error: BaseException | None = None

    def wait(self) -> T:
        """In the thread: wait for the answer."""
        self._answered.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # Its traceback refers to this call.
        value: T = self._value
        return value

    def end(self, value: T | None = None, error: BaseException | None = None) -> None:
        """In the loop: answer; only the first answer counts."""
        if not self.over:
            self.over, self._value, self._error = True, value, error
            self._answered.release()

    def on_done(self, _: asyncio.Task[None]) -> None:
        """In the loop: a task that was cancelled before its first step has answered nothing."""
        if not self.over:
            self.answer.close()
            self.end(error=CancelledError())

    def cancel(self) -> None:
        """In the loop: stop computing the answer."""
        if not self.over:
            self.end(error=CancelledError())
            if self.task is not None:
                self.task.cancel()


class BufferedIterator(Generic[T]):
    """Reads ahead in the loop's thread, so that a reader in another thread crosses over once per batch."""

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        self._ahead: list[T] = []
        self._some, self._room = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._task = asyncio.create_task(self._fill(), name="tidemill-follow")
        self._task.add_done_callback(lambda _: self._some.set())

    async def _fill(self) -> None:
        async for each in self._source:
            self._ahead.append(each)
            self._some.set()
            if len(self._ahead) >= EVENTS_AHEAD_MAX:
                self._room.clear()
                await self._room.wait()

    async def take(self) -> list[T]:
        """Everything read so far, at least one; nothing when the run has ended."""
        assert self._task is not None
        await self._some.wait()
        batch, self._ahead = self._ahead, []
        self._room.set()
        if self._task.done():
            if not batch:
                self._task.result()
        else:
            self._some.clear()
        return batch

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
