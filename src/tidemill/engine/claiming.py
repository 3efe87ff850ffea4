"""Asking the store for jobs, again and again, and stopping in a way that leaves none of them behind.

A claim that is under way when a worker stops is cancelled: a store promises that it then keeps nothing. Until the
leases are in hand nothing is awaited that could be cut off in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.returns import Aside
from tidemill.errors import Rejected, Unavailable
from tidemill.stores.contract import Claim, Lease, Store

LOG = logging.getLogger(__name__)

NOTHING_MS = 5
"""How long to rest after a claim that was given nothing, beside the wait that the store itself makes."""

Wanted = Callable[[], Claim | None]
"""What to ask for next; None while there is no room for more."""


class Claiming:
    """The claims of one worker."""

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        aside: Aside,
        wanted: Wanted,
        accept: Callable[[Sequence[Lease]], Awaitable[None]],
    ) -> None:
        self._store, self._ambient, self._aside = store, ambient, aside
        self._wanted, self._accept = wanted, accept
        self.refusals = Refusals()
        self._room = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to claim."""
        self._loop = asyncio.create_task(self._forever(), name="tidemill-claims")

    def stop(self) -> None:
        """Claim nothing from this moment on."""
        if self._loop is not None:
            self._loop.cancel()

    async def close(self) -> None:
        """Stop. A claim that is under way is cancelled, and keeps nothing."""
        self.stop()
        if self._loop is not None:
            await asyncio.gather(self._loop, return_exceptions=True)

    def wake(self) -> None:
        """There is room for more."""
        if not self._room.is_set():
            self._room.set()

    async def _forever(self) -> None:
        while True:
            while pause_ms := self._aside.pause_ms():
                await self._ambient.sleep(pause_ms)
            request = self._wanted()
            if request is None:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                leases = await self._claim(request)
                if leases:
                    await self._accept(leases)
                self.refusals.over()
                # What instant handlers just handed in should be committed before more is claimed; and a store that
                # has nothing and does not wait, because it was closed, is not asked in a hurry.
                busy = leases or request.most <= 0
                await (asyncio.sleep(0) if busy else self._ambient.sleep(NOTHING_MS))
            except Unavailable:
                await self._ambient.sleep(200 + 300 * self._ambient.chance())
            except Rejected as refusal:
                # A store that is damaged, or not for this version any more. Some of that heals; all of it is said once.
                self.refusals.hear(refusal)
                await self._ambient.sleep(1_000)
            except Exception:
                # A bug must be heard of, but it must not leave a process that looks alive and claims nothing.
                LOG.exception("claiming failed and will be repeated")
                await self._ambient.sleep(1_000)

    async def _claim(self, request: Claim) -> list[Lease]:
        wait_ms = self._aside.wait_ms(request.wait_ms)
        if wait_ms != request.wait_ms:
            request = msgspec.structs.replace(request, wait_ms=wait_ms)
        return await self._store.claim(request)


class Refusals:
    """Why the store refuses to give out work: said once for every reason."""

    def __init__(self) -> None:
        self._said = ""
        self._in_a_row = 0
        self.listener: Callable[[Rejected], None] | None = None
        """Who wants to know; without one it is logged."""
        self.give_up: Callable[[Rejected], None] | None = None
        """Who does not wait until that heals: told alone, from the second refusal in a row on."""

    def over(self) -> None:
        """Take note that the store gives out work."""
        self._in_a_row = 0

    def hear(self, refusal: Rejected) -> None:
        """Take note of a refusal."""
        self._in_a_row += 1
        if self.give_up is not None:
            if self._in_a_row > 1:
                self.give_up(refusal)
            return
        if str(refusal) == self._said:
            return
        self._said = str(refusal)
        if self.listener is None:
            LOG.error("no work can be claimed: %s", refusal)
        else:
            self.listener(refusal)
