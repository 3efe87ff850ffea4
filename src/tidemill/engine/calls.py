"""Waiting for a handler, no longer than it may take, and for what it came to to be stored, as long as that takes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from itertools import count
from typing import TypeVar

from tidemill.errors import Unavailable

LOG = logging.getLogger(__name__)

T = TypeVar("T")

ABANDON_AFTER_MS = 1_000
"""How long a handler that was cancelled because of its time-out may still take; then nobody waits for it any more."""
LEASE_LOST = "the lease is lost"
"""Why a handler is cancelled whose result cannot count. If it comes to one all the same, that is put on record."""
LOST_AFTER_MS = 30_000
"""How long such a one may still take, unless it is cancelled again."""
STORE_AGAIN_MS = 200
STORE_AGAIN_MS_MAX = 5_000
STALLED_AFTER = 20
"""How often a place is tried, for more than a minute, before somebody is told."""
ON_STALL: ContextVar[Callable[[str], Awaitable[None]] | None] = ContextVar("tidemill-on-stall", default=None)
"""Who is told that a result cannot be stored."""


class TimedOut(Exception):
    """The handler took longer than it may."""


async def bounded(pending: Awaitable[T], timeout_ms: int | None, ground: Context | None = None) -> T | BaseException:
    """What a handler ended with; whatever it raises is handed out as a value, a time-out as `TimedOut`.

    `ground` is the context to wait in.
    """
    handler = asyncio.create_task(guarded(pending), context=ground)
    try:
        await asyncio.wait({handler}, timeout=None if timeout_ms is None else timeout_ms / 1000)
        if not handler.done():
            handler.cancel()
            await asyncio.wait({handler}, timeout=ABANDON_AFTER_MS / 1000)
            return TimedOut()
    except asyncio.CancelledError as stop:
        handler.cancel()
        handler.add_done_callback(lambda _: _close(pending))
        if stop.args != (LEASE_LOST,):
            raise
        # As long as it goes on it keeps its place.
        await asyncio.wait({handler}, timeout=LOST_AFTER_MS / 1000)
        if not handler.done() or handler.cancelled() or isinstance(handler.result(), BaseException):
            raise
    try:
        return handler.result()
    except BaseException as error:
        return error


async def surely(store: Callable[[], Awaitable[T]]) -> T:
    """Store what a handler came to, however long the place for it is out of reach: it will not be called again.

    Whoever waits here holds a lease, and is cancelled when that is lost or the worker stops. It is meant to have no
    other bound; after a while the run is marked as stuck.
    """
    for times in count():
        try:
            return await store()
        except Unavailable as error:
            if times == 0:
                LOG.warning("a result is kept until it can be stored: %s", error)
            if (tell := ON_STALL.get()) is not None and times and times % STALLED_AFTER == 0:
                await tell(f"a result cannot be stored: {error}")
            await asyncio.sleep(min(STORE_AGAIN_MS * 2 ** min(times, 6), STORE_AGAIN_MS_MAX) / 1000)
    raise AssertionError("counting ends")


def _close(pending: object) -> None:
    """Close a coroutine whose task was cancelled before its first step; one that has ended is closed already."""
    if inspect.iscoroutine(pending):
        pending.close()


async def guarded(pending: Awaitable[T]) -> T | BaseException:
    """Await what foreign code does; whatever it raises is handed out as a value.

    Some exceptions would stop the loop if they left the task, and nobody may be waiting for the others any more.
    """
    try:
        return await pending
    except BaseException as error:
        return error
