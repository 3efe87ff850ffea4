"""Functions that give their results bit by bit: each value that a generator yields is shown to followers.

The visit's value is all of them together, unless the generator returns one of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from typing import Any

from tidemill.handlers.contract import Ended, NodeContext, ended

CHUNKS_PER_BREATH = 64
"""So often a generator that never waits lets others have the loop."""


async def settled(result: Any, context: NodeContext) -> Ended:
    """What a call comes to in the loop: it may still be awaited, or asked for one value after the other."""
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, AsyncGenerator):
        result = await _drained_later(result, context)
    elif inspect.isgenerator(result):
        result = drained(result, context)
    return ended(result)


def is_final(result: Any) -> bool:
    """Whether there is nothing left to wait for or to be asked for."""
    return not (inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result))


def drained(chunks: Generator[Any, Any, Any], context: NodeContext) -> Any:
    """Show what a generator yields; it is closed when the attempt no longer counts."""
    with closing(chunks):
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as end:
                return context.voice.folded() if end.value is None else end.value
            context.stream(chunk)
            context.heartbeat()


async def _drained_later(chunks: AsyncGenerator[Any, Any], context: NodeContext) -> Any:
    shown = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            context.stream(chunk)
            shown += 1
            if shown % CHUNKS_PER_BREATH == 0:
                await asyncio.sleep(0)
    return context.voice.folded()
