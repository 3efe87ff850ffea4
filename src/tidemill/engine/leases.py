"""Keeping leases alive. The heart beats in a thread of its own, so a handler that blocks the loop loses nothing.

The heart only prolongs and reports: which leases there are is asked from their holder at each beat, and what
was lost is told to it. Correctness never depends on a beat, because the fence token decides at commit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from tidemill.ambient import Ambient
from tidemill.errors import TidemillError
from tidemill.stores.contract import Lease, Store

LOG = logging.getLogger(__name__)

BEATS_PER_LEASE = 3

Held = Callable[[], Sequence[Lease]]
OnBeat = Callable[[Sequence[Lease]], None]
"""Called in the holder's loop after each beat with the leases that were found lost."""


class Heart:
    """Renews what `held` answers, three times per lease or more."""

    def __init__(
        self, store: Store, ambient: Ambient, held: Held, on_beat: OnBeat, lease_ms: int, beat_ms: int
    ) -> None:
        self._store, self._ambient, self._held, self._on_beat = store, ambient, held, on_beat
        self._lease_ms = lease_ms
        # However long a lease is, who has lost one learns of it at the next beat.
        self.pause_ms = min(lease_ms / BEATS_PER_LEASE, beat_ms)
        self._failing = False

    async def beat(self) -> Sequence[Lease]:
        """One beat; an unreachable store loses nothing yet, the next beat tries again."""
        leases = self._held()
        if not leases:
            return ()
        try:
            lost = await self._store.renew(leases, self._lease_ms)
            self._failing = False
            return lost
        except TidemillError as error:
            if not self._failing:
                LOG.warning("leases cannot be renewed and will be tried again: %s", error)
            self._failing = True
            return ()
        except Exception:
            # A heart that stops would cost every lease; a bug must be heard of all the same.
            LOG.exception("renewing leases failed and will be repeated")
            return ()

    async def beat_in_loop(self) -> None:
        """Beat for ever in the caller's own loop: for simulations, and for stores that live in one loop."""
        while True:
            await self._ambient.sleep(self.pause_ms)
            self._on_beat(await self.beat())


class HeartThread:
    """A heart with a thread and a loop of its own."""

    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_beat: OnBeat) -> None:
        """Begin to beat; `on_beat` is called in the loop that calls this."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop, on_beat), name="tidemill-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop beating."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop, on_beat: OnBeat) -> None:
        while not self._stop.wait(self._heart.pause_ms / 1000):
            lost = asyncio.run(self._heart.beat())
            try:
                loop.call_soon_threadsafe(on_beat, lost)
            except RuntimeError:
                return
