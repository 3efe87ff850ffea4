"""Calling a function that may block, in a thread of its own.

One that never returns costs its own thread and nobody else's place. Nobody can stop a thread from outside, so when
the attempt is over it is told at its next heartbeat, checkpoint or chunk.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from tidemill.handlers.contract import Cancelled, Ended, NodeContext
from tidemill.handlers.generators import drained, settled

T = TypeVar("T")


class Given(Generic[T]):
    """Something that is there already, for those who may await it but need not."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self.value


class _Bridge:
    """What a thread may ask of the loop."""

    def __init__(self, context: NodeContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop
        self._home = threading.get_ident()
        self._asked: Future[None] | None = None
        self._over = False

    def context(self) -> NodeContext:
        """The attempt's context, with a checkpoint that a thread can wait for."""
        return msgspec.structs.replace(self._context, checkpoint=self._checkpoint)

    def _checkpoint(self, value: Any) -> Any:
        checkpoint = self._context.checkpoint
        assert checkpoint is not None, "every attempt can keep one"
        if threading.get_ident() == self._home:
            # What the function returned is awaited in the loop.
            return checkpoint(value)
        self._context.heartbeat()
        self._asked = asyncio.run_coroutine_threadsafe(_kept(checkpoint, value), self._loop)
        if self._over:
            self._asked.cancel()
        try:
            return Given(self._asked.result())
        except BaseException as error:
            if self._over:
                raise Cancelled("nobody wants the result of this attempt any more") from error
            raise

    def close(self) -> None:
        """The attempt is over: nothing is kept any more."""
        self._over = True
        if self._asked is not None:
            self._asked.cancel()


async def _kept(checkpoint: Callable[[Any], Any], value: Any) -> None:
    await checkpoint(value)


async def in_thread(name: str, function: Callable[[NodeContext], Any], context: NodeContext) -> Ended:
    """Call a function in a thread. What it returns may still want to be awaited, e.g. behind a decorator."""
    loop = asyncio.get_running_loop()
    bridge = _Bridge(context, loop)
    given = bridge.context()
    future: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        outcome, error = None, None
        try:
            outcome = _called(function, given)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(_settle, future, outcome, error)

    ground = contextvars.copy_context()
    threading.Thread(target=ground.run, args=(run,), name=f"tidemill-{name}", daemon=True).start()
    try:
        return await settled(await future, given)
    finally:
        bridge.close()


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


def _called(function: Callable[[NodeContext], Any], context: NodeContext) -> Any:
    try:
        result = function(context)
        return drained(result, context) if inspect.isgenerator(result) else result
    except (StopIteration, GeneratorExit) as error:
        # These mean something to those who wait for a future, so they cannot travel through one.
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from error
