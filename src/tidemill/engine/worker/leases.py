"""Claim loop, heartbeat, release with back-off, hand-over policy.

Keeping leases alive. The heart beats in a thread of its own, so a handler that blocks the loop loses nothing.

The heart only prolongs and reports: which leases there are is asked from their holder at each beat, and what
was lost is told to it. Correctness never depends on a beat, because the fence token decides at commit.

Which of the jobs that its own commits insert a worker keeps, instead of having them go through the queue.

One for each job that it settles is always right: it takes the place of that one. More than that only while no other
worker is there who could take it sooner, and while there is room, so that no job waits here which could run elsewhere.

Giving jobs back to the store: at once when a worker stops, after a rest when this worker cannot run them.

Jobs that a worker lacks the node type for must reach one that has it, and must not stand in the way of work that
this one can do. Whoever meets such a job for the first time gives it back at once and leaves the line to others for
a moment; so it passes quickly along all who cannot run it. Whoever meets it again lets it rest until the next tick
of the store's clock, when all of them stand back together. No timer is exact, so they do so a little earlier, and who
is late all the same and takes such a job at the tick gives it back at once. The more there are the longer they rest,
so a queue full of them costs a bounded part of what a worker can claim.

Asking the store for jobs, again and again, and stopping in a way that leaves none of them behind.

A claim that is under way when a worker stops is cancelled: a store promises that it then keeps nothing. Until the
leases are in hand nothing is awaited that could be cut off in between.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

import msgspec

from tidemill.ambient import Ambient
from tidemill.errors import Rejected, TidemillError, Unavailable
from tidemill.kernel.jobs import JobSpec
from tidemill.stores.contract import Claim, Lease, Store, Stream, in_run_tree

LOG = logging.getLogger(__name__)

BEATS_PER_LEASE = 3

Held = Callable[[], Sequence[Lease]]
OnBeat = Callable[[Sequence[Lease]], None]
"""Called in the holder's loop after each beat with the leases that were found lost."""


class LeaseRenewer:
    """Renews what `held` answers, three times per lease or more."""

    def __init__(
        self, store: Store, ambient: Ambient, held: Held, on_beat: OnBeat, lease_ms: int, beat_ms: int
    ) -> None:
        self._store, self._ambient, self._held, self._on_beat = store, ambient, held, on_beat
        self._lease_ms = lease_ms
        # However long a lease is, who has lost one learns of it at the next beat.
        self.pause_ms = min(lease_ms / BEATS_PER_LEASE, beat_ms)
        self._failing = False

    async def renew_once(self) -> Sequence[Lease]:
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
            self._on_beat(await self.renew_once())


class LeaseRenewalThread:
    """A heart with a thread and a loop of its own."""

    def __init__(self, heart: LeaseRenewer) -> None:
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
            lost = asyncio.run(self._heart.renew_once())
            try:
                loop.call_soon_threadsafe(on_beat, lost)
            except RuntimeError:
                return


HAND_OVERS_PER_CLAIM = 256
HAND_OVER_MS = 100
"""A worker whose places are all taken keeps so many jobs for itself, and for so long; then it asks the queue again,
where priority and fairness are known. While it has a free place, nothing that it could take waits in the queue."""


class HandoverPolicy:
    """What one worker keeps."""

    def __init__(
        self,
        concurrency: int,
        held: Callable[[], int],
        wake: Callable[[], None],
        clock_ms: Callable[[], float],
        *,
        queues: frozenset[str] = frozenset(),
        only: str = "",
    ) -> None:
        self._concurrency, self._queues, self._only = concurrency, queues, only
        self._held, self._wake, self._clock_ms = held, wake, clock_ms
        self.is_only_worker = False
        """No other worker is known to be alive."""
        self.stopped = False
        self.promised = 0
        """Places for jobs that a commit under way keeps beyond those that it settles."""
        self._handed_over = 0
        """Jobs kept since the last claim."""
        self._asked_ms = clock_ms()

    @property
    def free(self) -> int:
        """Places for further jobs."""
        return self._concurrency - self._held() - self.promised

    def reserve(self, places: int) -> None:
        """Set places aside for a commit, or free them; whoever claims may have found that there is no room."""
        freed, self.promised = places < self.promised, places
        if freed:
            self._wake()

    def claim(self) -> None:
        """The queue is asked."""
        self._handed_over, self._asked_ms = 0, self._clock_ms()

    def record_taken(self, jobs: int) -> None:
        """Jobs were kept."""
        self._handed_over += jobs

    def select(self, stream: Stream, puts: Iterable[JobSpec], settled: int) -> tuple[str, ...]:
        """The keys of those jobs of a commit which are kept; `settled`: how many it takes off this worker's hands."""
        room = self.room(stream)
        if self.stopped or not (settled + room and (self.free > 0 or self._asked_lately())):
            return ()
        kept = [put.key for put in puts if self._may_keep(put)][: settled + room]
        if len(kept) > settled:
            self.reserve(self.promised + len(kept) - settled)
        return tuple(kept)

    def _may_keep(self, put: JobSpec) -> bool:
        """Only one that may run now, and that this worker would claim."""
        return (
            put.task.kind == "run"
            and not (put.ready_at_ms or put.caps)
            and (not self._queues or put.queue in self._queues)
        )

    def _asked_lately(self) -> bool:
        within = self._clock_ms() - self._asked_ms < HAND_OVER_MS
        return within and self._handed_over < HAND_OVERS_PER_CLAIM

    def room(self, stream: Stream) -> int:
        """How many jobs of a run may be kept beyond those that the same commit settles."""
        return max(0, self.free) if self.is_only_worker and in_run_tree(self._only, stream.key) else 0


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


class UnrunnableBackoff:
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

    def delay_ms(self, place: Hashable, claimed_ms: int) -> int:
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

    def claim_pause_ms(self) -> int:
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


class ReleaseQueue:
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


NOTHING_MS = 5
"""How long to rest after a claim that was given nothing, beside the wait that the store itself makes."""

Wanted = Callable[[], Claim | None]
"""What to ask for next; None while there is no room for more."""


class ClaimLoop:
    """The claims of one worker."""

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        aside: UnrunnableBackoff,
        wanted: Wanted,
        accept: Callable[[Sequence[Lease]], Awaitable[None]],
    ) -> None:
        self._store, self._ambient, self._aside = store, ambient, aside
        self._wanted, self._accept = wanted, accept
        self.refusals = ClaimErrors()
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
            while pause_ms := self._aside.claim_pause_ms():
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
                self.refusals.clear()
                # What instant handlers just handed in should be committed before more is claimed; and a store that
                # has nothing and does not wait, because it was closed, is not asked in a hurry.
                busy = leases or request.most <= 0
                await (asyncio.sleep(0) if busy else self._ambient.sleep(NOTHING_MS))
            except Unavailable:
                await self._ambient.sleep(200 + 300 * self._ambient.chance())
            except Rejected as refusal:
                # A store that is damaged, or not for this version any more. Some of that heals; all of it is said once.
                self.refusals.report(refusal)
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


class ClaimErrors:
    """Why the store refuses to give out work: said once for every reason."""

    def __init__(self) -> None:
        self._said = ""
        self._in_a_row = 0
        self.listener: Callable[[Rejected], None] | None = None
        """Who wants to know; without one it is logged."""
        self.give_up: Callable[[Rejected], None] | None = None
        """Who does not wait until that heals: told alone, from the second refusal in a row on."""

    def clear(self) -> None:
        """Take note that the store gives out work."""
        self._in_a_row = 0

    def report(self, refusal: Rejected) -> None:
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
