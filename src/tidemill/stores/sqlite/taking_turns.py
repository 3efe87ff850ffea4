"""Who rehearses when: everybody at once, until somebody was overtaken; then one after the other.

Statements that change the same rows get into each other's way: of those that are rehearsed together only the first
comes out the same when it is committed. So once that has happened, a rehearsal waits until the commits of all earlier
ones are decided, as long as anybody waits. Other processes are not asked: who loses against one rehearses again.
"""

from __future__ import annotations

import asyncio
from collections import deque

PATIENCE_SECONDS = 0.2
"""How long to wait for commits that may never come, since whoever rehearsed can be cancelled."""


class TakingTurns:
    """The rehearsals of one process, which all belong to one loop."""

    def __init__(self) -> None:
        self._orderly = False
        self._undecided = 0
        """Rehearsals whose commit has not been seen yet."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until it makes sense to rehearse."""
        if not self._orderly:
            self._undecided += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._go_on()
        await turn

    def overtaken(self) -> None:
        """Have everybody wait for each other from now on."""
        self._orderly = True

    def decided(self, count: int = 1) -> None:
        """Learn that rehearsals have come to something: they were committed, or will be made again."""
        self._undecided = max(0, self._undecided - count)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not self._undecided:
            turn = self._waiting.popleft()
            if not turn.done():
                self._undecided += 1
                turn.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._stop_waiting)
        elif not self._undecided:
            self._orderly = False

    def _stop_waiting(self) -> None:
        self.decided(self._undecided)
