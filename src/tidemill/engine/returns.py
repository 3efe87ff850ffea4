"""Giving jobs back to the store: at once when a worker stops, after a rest when this worker cannot run them.

Jobs that a worker lacks the node type for must reach one that has it, and must not stand in the way of work that
this one can do. Whoever meets such a job for the first time gives it back at once and leaves the line to others for
a moment; so it passes quickly along all who cannot run it. Whoever meets it again lets it rest until the next tick
of the store's clock, when all of them stand back together. No timer is exact, so they do so a little earlier, and who
is late all the same and takes such a job at the tick gives it back at once. The more there are the longer they rest,
so a queue full of them costs a bounded part of what a worker can claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence

from tidemill.errors import TidemillError
from tidemill.stores.contract import Lease, Store

LOG = logging.getLogger(__name__)

STEP_MS = 800
"""Jobs that were put aside come due at multiples of this, by the store's clock: others have them within a second."""
ROOM_MS = 100
"""How long others have the line for themselves then."""
EARLY_MS = 20
"""So long before it is not claimed any more, because a claim may take longer than it was meant to."""
OFFERS_MAX = 16
"""So many jobs in a step are offered to others at once when they are first met; more of them rest like the rest."""
MEMORY_MS = 30 * STEP_MS
EACH_MS = 5
"""How much longer each of them rests for every one that nobody takes."""
REST_MS_MAX = 60_000
KNOWN_MAX = REST_MS_MAX // EACH_MS


class Aside:
    """The jobs that this worker has met lately and cannot run."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._met: dict[Hashable, int] = {}
        """When each was last met, those met longest ago first."""
        self._resting: dict[Hashable, int] = {}
        """When those come due that were let rest."""
        self._offers: tuple[int, int] = (0, 0)
        """In which step some were offered to others at once, and how many."""
        self._offered_ms = self._stood_back_ms = 0

    def rest_ms(self, place: Hashable, claimed_ms: int) -> int:
        """Put aside a job that was claimed at that moment, and say for how long."""
        now = self._clock()
        first = self._met.pop(place, None) is None
        self._met[place] = now
        if self._may_offer(now) if first else claimed_ms % STEP_MS < ROOM_MS:
            self._offered_ms = now
            return 0
        self._forget(now)
        self._resting.pop(place, None)
        steps = 1 + min(len(self._resting) * EACH_MS, REST_MS_MAX - STEP_MS) // STEP_MS
        self._resting[place] = due = (now // STEP_MS + steps) * STEP_MS
        return due - now

    def _may_offer(self, now: int) -> bool:
        step, number = self._offers
        self._offers = (now // STEP_MS, number + 1 if step == now // STEP_MS else 1)
        return self._offers[1] <= OFFERS_MAX

    def _forget(self, now: int) -> None:
        """What came due a while ago and was not met again has found somebody."""
        _drop_before(self._resting, now - 2 * STEP_MS)
        _drop_before(self._met, now - MEMORY_MS)

    def pause_ms(self) -> int:
        """How long to claim nothing, because others should have what has just come due; granted once each time."""
        if not self._met:
            return 0
        now = self._clock()
        self._forget(now)
        moment = max(self._offered_ms, (now + EARLY_MS) // STEP_MS * STEP_MS)
        if not self._met or moment <= self._stood_back_ms:
            return 0
        self._stood_back_ms = moment
        return max(0, moment + ROOM_MS - now)

    def wait_ms(self, wanted_ms: int) -> int:
        """How long a claim may wait for work: it is over before something may come due."""
        if not self._met:
            return wanted_ms
        return min(wanted_ms, max(0, STEP_MS - EARLY_MS - self._clock() % STEP_MS))


def _drop_before(moments: dict[Hashable, int], ms: int) -> None:
    """Forget what is older than this, and what there is too much of."""
    while moments:
        place = next(iter(moments))
        if moments[place] >= ms and len(moments) <= KNOWN_MAX:
            return
        del moments[place]


class Returns:
    """Jobs on their way back: those that gather are given back in one call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[int, list[Lease]] = {}
        self._sending: asyncio.Task[None] | None = None

    def give(self, leases: Sequence[Lease], delay_ms: int = 0) -> None:
        """Give jobs back, to be claimed again after a delay; it is not waited for."""
        if not leases:
            return
        self._waiting.setdefault(delay_ms, []).extend(leases)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="tidemill-returns")

    async def settle(self) -> None:
        """Wait until everything is back."""
        if self._sending is not None:
            await asyncio.gather(self._sending)

    async def _send(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            for delay_ms, leases in waiting.items():
                await self._release(leases, delay_ms)

    async def _release(self, leases: Sequence[Lease], delay_ms: int) -> None:
        try:
            await self._store.release(leases, delay_ms=delay_ms)
        except TidemillError:
            # The leases expire by themselves.
            return
        except Exception:
            # A bug must be heard of; the jobs that wait for their turn behind this one are given back all the same.
            LOG.exception("giving back %d jobs failed; they wait for the end of their leases", len(leases))
