"""Sleeping until there is news: from this process, whose commits ring a bell, or from others, which must be looked for.

SQLite counts changes but tells nobody, so while somebody sleeps here the counter is looked at now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.stores.bells import Bell

LOOK_EVERY_MS = 20.0


class Lookout:
    """Those of a process who sleep. `look` wakes them if there is news, and answers whether to go on looking."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._sleepers = 0
        self._timer: asyncio.TimerHandle | None = None

    async def rest(self, bell: Bell, ms: float | None) -> None:
        """Sleep until there is news in this process, another one has written, or the time is up."""
        loop = asyncio.get_running_loop()
        alarm = None if ms is None else loop.call_later(max(ms, 0) / 1000, bell.ring)
        self._sleepers += 1
        if self._timer is None:
            self._timer = loop.call_later(LOOK_EVERY_MS / 1000, self._look_out)
        try:
            await bell.future
        finally:
            self._sleepers -= 1
            if alarm is not None:
                alarm.cancel()

    def _look_out(self) -> None:
        self._timer = None
        if self._sleepers and self._look():
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_MS / 1000, self._look_out)
