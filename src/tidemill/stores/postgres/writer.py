"""Fenced calls: each happens once, or its caller knows that its outcome is unknown.

A call carries the id and the epoch of its session. When its connection is cut, the outcome is unknown: the next
connection raises the epoch, which waits for a call that is still being executed and keeps one that arrives late from
being executed at all. Then the session's row says whether the call was committed, and what it answered.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import psycopg

from tidemill.errors import StoreUnusable, TidemillError, Unavailable
from tidemill.stores.postgres.database import (
    PATIENCE_SECONDS,
    READ_ONLY,
    SESSION_OVER,
    SQL,
    Link,
    Place,
    is_cut,
    migrate,
    read_only,
    translate_error,
)

T = TypeVar("T")

CONFLICTS_MAX = 20
NO_PARTITION = "23514"

Head = tuple[int, int, int]
"""Session, epoch and batch: the first values of every fenced call."""


class Session:
    """A connection whose calls are fenced, one at a time."""

    def __init__(self, place: Place, *setup: str) -> None:
        self.link = Link(place, *setup)
        self._id = self._epoch = self._batch = 0
        self._connected: object = None
        self._unheard = 0
        """A batch whose outcome is unknown to its caller."""
        self.turn = asyncio.Lock()

    async def call(self, run: Callable[[Head], Awaitable[T]], read_back: Callable[[str], T] | None = None) -> T:
        """Run a fenced call. After a cut it is read back if that is possible, else undone and repeated."""
        self._batch += 1
        batch, until, conflicts, cut = self._batch, time.monotonic() + PATIENCE_SECONDS, 0, False
        while True:
            try:
                if not self._is_current():
                    answer = await self._resume(batch if cut else 0, until - time.monotonic())
                    if answer is not None and read_back is not None:
                        return read_back(answer)
                return await run((self._id, self._epoch, batch))
            except asyncio.CancelledError:
                # The next call fences this one, and gives back what it has leased.
                self._unheard = batch
                await self.link.drop()
                raise
            except Unavailable:
                self._unheard = batch if cut else self._unheard
                raise
            except (psycopg.Error, OSError, TimeoutError) as error:
                state = getattr(error, "sqlstate", None) or ""
                if is_cut(error, self.link.connection):
                    cut = True
                    if time.monotonic() < until:
                        await asyncio.sleep(0.02)
                        continue
                    self._unheard = batch
                elif (state.startswith("40") or state == NO_PARTITION) and conflicts < CONFLICTS_MAX:
                    conflicts += 1
                    if state == NO_PARTITION:
                        await self.link.fetch(SQL["add_partitions"])
                    continue
                elif state == READ_ONLY:
                    # The server has become a replica: another one of the URL may have become the primary.
                    await self.link.drop()
                    if time.monotonic() < until:
                        await asyncio.sleep(0.2)
                        continue
                    raise StoreUnusable(read_only(self.link.place).problems[0]) from error
                elif state == SESSION_OVER and conflicts < CONFLICTS_MAX:
                    # Another version may have migrated the store.
                    conflicts += 1
                    await migrate(self.link)
                    self._id = 0
                    continue
                raise translate_error(error, self.link.place) from error

    def _is_current(self) -> bool:
        connection = self.link.connection
        return connection is not None and connection is self._connected and self._id > 0 and not connection.closed

    async def _resume(self, unknown: int, seconds: float) -> str | None:
        """Have a connection and a session. Answers what the call with an unknown outcome has left, if it committed."""
        connection = await self.link.reconnect(max(seconds, 0.1))
        stored: tuple[int, str] | None = None
        if self._id:
            found = await self.link.fetch(SQL["fence"], (self._id,))
            if found:
                self._epoch, *last = found[0]
                stored = last[0], last[1]
            elif unknown:
                self._id = 0
                raise Unavailable(f"the outcome of a commit to {self.link.place.name} is not known")
            else:
                self._id = 0
        if not self._id:
            ((self._id, self._epoch),) = await self.link.fetch(SQL["enter"], (f"{socket.gethostname()}/{os.getpid()}",))
        self._connected = connection
        if self._unheard:
            # The tokens of what it leased are unknown.
            await self.link.fetch(SQL["give_back"], (self._id, self._unheard))
            self._unheard = 0
        return stored[1] if unknown and stored is not None and stored[0] == unknown else None

    async def close(self) -> None:
        if self._id and self.link.connection is not None:
            with suppress(psycopg.Error, TidemillError, TimeoutError):
                await self.link.fetch(SQL["leave"], (self._id,))
        self._id = 0
        await self.link.drop()
