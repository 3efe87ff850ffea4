"""Leases of one worker: its options, renewal, hand-over policy, delayed release, claim loop.

Correctness never depends on renewal, because the fence token decides at commit. A worker may always keep as many new
jobs of a commit as the commit settled. It keeps more only if it has free slots, and either is the only live worker or
the nodes are instant: a claim by another worker would take longer than they do, and race with its commits. A job that
a worker cannot run is first released at once, and the worker pauses claiming so that another one can take it.
Later releases delay it to the next tick of the store's clock, at which all such workers pause. The delay grows with the
number of such jobs, so they use a bounded share of the claim rate.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidemill.ambient import Ambient
from tidemill.errors import Rejected, TidemillError, Unavailable
from tidemill.kernel.jobs import JobSpec
from tidemill.stores.contract import Claim, Lease, Store, Stream, in_run_tree

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    name: str
    queues: tuple[str, ...] = ()
    """The queues to serve; empty means all."""
    only: str = ""
    """Work on this run and its children only."""
    standing: bool = False
    """A standing worker: what it lacks, another worker may have, now or later."""
    concurrency: int = 64
    value_memory: int | None = None  # See `Values`.
    lease_ms: int = 15_000
    claim_wait_ms: int = 5_000
    grace_ms: int = 30_000
    heart_thread: bool = True
    beat_ms: int = 5_000
    """How often it writes its row."""
    dead_after_ms: int = 15_000
    """Without a write for this long, it counts as dead."""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Of Tidemill; like the host and the process, for display only."""
    image: str = ""


# Renewal

RENEWALS_PER_LEASE = 3

Held = Callable[[], Sequence[Lease]]
OnRenewed = Callable[[Sequence[Lease]], None]
"""Called in the holder's loop after each renewal with the leases that were lost."""


class LeaseRenewer:
    """Renews the leases that `held` returns, at least three times per lease time."""

    def __init__(
        self, store: Store, ambient: Ambient, held: Held, on_renewed: OnRenewed, lease_ms: int, beat_ms: int
    ) -> None:
        self._store, self._ambient, self._held, self._on_renewed = store, ambient, held, on_renewed
        self._lease_ms = lease_ms
        # With long leases too, the worker learns of a lost one within `beat_ms`.
        self.pause_ms = min(lease_ms / RENEWALS_PER_LEASE, beat_ms)
        self._failing = False

    async def renew_once(self) -> Sequence[Lease]:
        """Renew once; if the store is unreachable, the next renewal tries again and no lease counts as lost."""
        leases = self._held()
        if not leases:
            return ()
        try:
            lost = await self._store.renew(leases, self._lease_ms)
            self._failing = False
            return lost
        except TidemillError as error:
            if not self._failing:
                LOG.warning("leases could not be renewed; retrying: %s", error)
            self._failing = True
            return ()
        except Exception:
            # A stopped renewal would lose every lease, so a bug is only logged.
            LOG.exception("renewing leases failed; retrying")
            return ()

    async def renew_in_loop(self) -> None:
        """Renew for ever in the caller's loop: for simulations, and for stores that live in one loop."""
        while True:
            await self._ambient.sleep(self.pause_ms)
            self._on_renewed(await self.renew_once())


class LeaseRenewalThread:
    """Renews in its own thread and loop, so a handler that blocks the worker's loop loses no lease."""

    def __init__(self, renewer: LeaseRenewer) -> None:
        self._renewer = renewer
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_renewed: OnRenewed) -> None:
        """Start; `on_renewed` is called in the loop that calls this."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop, on_renewed), name="tidemill-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop, on_renewed: OnRenewed) -> None:
        while not self._stop.wait(self._renewer.pause_ms / 1000):
            lost = asyncio.run(self._renewer.renew_once())
            try:
                loop.call_soon_threadsafe(on_renewed, lost)
            except RuntimeError:
                return


# Hand-over

HAND_OVERS_PER_CLAIM = 256
HAND_OVER_MS = 100
"""A worker without free slots keeps at most this many jobs, for this long; then it claims from the queue again, where
priority and fairness apply. With a free slot it claims anyway."""


class HandoverPolicy:
    """Selects the jobs of its own commits that a worker leases to itself instead of queueing them."""

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
        self.reserved = 0
        """Slots reserved for jobs that a pending commit keeps beyond those that it settles."""
        self._handed_over = 0
        """Jobs kept since the last claim."""
        self._claimed_ms = clock_ms()

    @property
    def free(self) -> int:
        return self._concurrency - self._held() - self.reserved

    def reserve(self, places: int) -> None:
        freed, self.reserved = places < self.reserved, places
        if freed:
            self._wake()

    def claim(self) -> None:
        self._handed_over, self._claimed_ms = 0, self._clock_ms()

    def record_taken(self, jobs: int) -> None:
        self._handed_over += jobs

    def select(
        self, stream: Stream, jobs: Iterable[JobSpec], settled: int, instant: Container[str] = ()
    ) -> tuple[str, ...]:
        """The keys of the jobs of a commit to keep.

        `settled`: how many jobs of this worker the commit settles; `instant`: nodes that take less than a claim does.
        """
        queues, free = self._queues, self._concurrency - self._held() - self.reserved
        room = free if free > 0 and (not self._only or in_run_tree(self._only, stream.key)) else 0
        if self.stopped or not settled + room or (free <= 0 and not self._claimed_lately()):
            return ()
        at_most, anyway = settled + room, settled + room if self.is_only_worker else settled
        kept: list[str] = []
        for job in jobs:
            # Those that are ready, and that this worker could claim.
            if job.task.kind != "run" or job.ready_at_ms or job.caps or (queues and job.queue not in queues):
                continue
            if len(kept) < anyway or (len(kept) < at_most and job.task.node in instant):
                kept.append(job.key)
        if len(kept) > settled:
            self.reserve(self.reserved + len(kept) - settled)
        return tuple(kept)

    def _claimed_lately(self) -> bool:
        within = self._clock_ms() - self._claimed_ms < HAND_OVER_MS
        return within and self._handed_over < HAND_OVERS_PER_CLAIM


# Release

STEP_MS = 800
"""Delayed jobs come due at multiples of this, by the store's clock: another worker has them within a second."""
ROOM_MS = 100
"""How long this worker then claims nothing, so that another worker can take them."""
EARLY_MS = 20
"""Claims end this long before a tick, because a claim may take longer than intended."""
OFFERS_MAX = 16
"""Jobs per step that are released without delay when first met; further ones are delayed at once."""
MEMORY_MS = 30 * STEP_MS
EACH_MS = 5
"""The delay grows by this for every such job that no worker takes."""
REST_MS_MAX = 60_000
KNOWN_MAX = REST_MS_MAX // EACH_MS


class UnrunnableBackoff:
    """The jobs that this worker recently met and cannot run."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._met: dict[Hashable, int] = {}
        """When each was last met, oldest first."""
        self._delayed: dict[Hashable, int] = {}
        """When the delayed ones come due."""
        self._offers: tuple[int, int] = (0, 0)
        """The current step, and how many jobs were released in it without delay."""
        self._offered_ms = self._paused_ms = 0

    def delay_ms(self, place: Hashable, claimed_ms: int) -> int:
        """The delay for releasing a job that was claimed at `claimed_ms` and cannot run here."""
        now = self._clock()
        offered = claimed_ms % STEP_MS < ROOM_MS
        if self._met.pop(place, None) is None:
            step, number = self._offers
            self._offers = (now // STEP_MS, number + 1 if step == now // STEP_MS else 1)
            offered = self._offers[1] <= OFFERS_MAX
        self._met[place] = now
        if offered:
            self._offered_ms = now
            return 0
        self._forget(now)
        self._delayed.pop(place, None)
        steps = 1 + min(len(self._delayed) * EACH_MS, REST_MS_MAX - STEP_MS) // STEP_MS
        self._delayed[place] = due = (now // STEP_MS + steps) * STEP_MS
        return due - now

    def _forget(self, now: int) -> None:
        """Forget jobs that came due a while ago and were not met again: another worker took them."""
        _drop_before(self._delayed, now - 2 * STEP_MS)
        _drop_before(self._met, now - MEMORY_MS)

    def claim_pause_ms(self) -> int:
        """How long to claim nothing, so that other workers get the jobs that just came due; granted once per tick."""
        if not self._met:
            return 0
        now = self._clock()
        self._forget(now)
        moment = max(self._offered_ms, (now + EARLY_MS) // STEP_MS * STEP_MS)
        if not self._met or moment <= self._paused_ms:
            return 0
        self._paused_ms = moment
        return max(0, moment + ROOM_MS - now)

    def wait_ms(self, wanted_ms: int) -> int:
        """How long a claim may wait for work: it must end before the next tick."""
        if not self._met:
            return wanted_ms
        return min(wanted_ms, max(0, STEP_MS - EARLY_MS - self._clock() % STEP_MS))


def _drop_before(moments: dict[Hashable, int], ms: int) -> None:
    """Drop the entries older than `ms`, and the oldest beyond `KNOWN_MAX`."""
    while moments:
        place = next(iter(moments))
        if moments[place] >= ms and len(moments) <= KNOWN_MAX:
            return
        del moments[place]


class ReleaseQueue:
    """Releases jobs in the background; leases with the same delay share one call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[int, list[Lease]] = {}
        self._sending: asyncio.Task[None] | None = None

    def give(self, leases: Sequence[Lease], delay_ms: int = 0) -> None:
        """Release jobs, to be claimed again after a delay; does not wait."""
        if not leases:
            return
        self._waiting.setdefault(delay_ms, []).extend(leases)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="tidemill-returns")

    async def settle(self) -> None:
        if self._sending is not None:
            await asyncio.gather(self._sending)

    async def _send(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            for delay_ms, leases in waiting.items():
                try:
                    await self._store.release(leases, delay_ms=delay_ms)
                except TidemillError:
                    # The leases will expire.
                    continue
                except Exception:
                    # A bug is logged, and must not keep the remaining jobs from being released.
                    LOG.exception(
                        "returning %d jobs failed; they become available when their leases expire", len(leases)
                    )


# Claims

NOTHING_MS = 5
"""Pause after a claim that returned nothing, in addition to the store's own wait."""

NextClaim = Callable[[], Claim | None]
"""The next claim; None while there is no free slot."""


class ClaimLoop:
    """Claims jobs for one worker.

    Stopping cancels the claim under way; the store promises that a cancelled claim leases nothing. Between the store's
    answer and `accept` nothing is awaited that could be cancelled.
    """

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        backoff: UnrunnableBackoff,
        next_claim: NextClaim,
        accept: Callable[[Sequence[Lease]], Awaitable[None]],
    ) -> None:
        self._store, self._ambient, self._backoff = store, ambient, backoff
        self._next_claim, self._accept = next_claim, accept
        self.refusals = ClaimErrors()
        self._room = asyncio.Event()
        self.waits = False
        """Whether it waits for a free slot."""
        self._loop: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._loop = asyncio.create_task(self._forever(), name="tidemill-claims")

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()

    async def close(self) -> None:
        """Stop, and wait for the end of a claim under way."""
        self.stop()
        if self._loop is not None:
            await asyncio.gather(self._loop, return_exceptions=True)

    def wake(self) -> None:
        if self.waits:
            self._room.set()

    async def _forever(self) -> None:
        while True:
            while pause_ms := self._backoff.claim_pause_ms():
                await self._ambient.sleep(pause_ms)
            request = self._next_claim()
            if request is None:
                self._room.clear()
                self.waits = True
                await self._room.wait()
                self.waits = False
                continue
            try:
                wait_ms = self._backoff.wait_ms(request.wait_ms)
                if wait_ms != request.wait_ms:
                    request = msgspec.structs.replace(request, wait_ms=wait_ms)
                leases = await self._store.claim(request)
                if leases:
                    await self._accept(leases)
                self.refusals.clear()
                # Results of instant handlers are committed before the next claim. A closed store returns at once with
                # nothing, so it is not asked in a tight loop.
                busy = leases or request.most <= 0
                await (asyncio.sleep(0) if busy else self._ambient.sleep(NOTHING_MS))
            except Unavailable:
                await self._ambient.sleep(200 + 300 * self._ambient.chance())
            except Rejected as refusal:
                # The store is damaged, or not for this version any more; some of that is temporary.
                self.refusals.report(refusal)
                await self._ambient.sleep(1_000)
            except Exception:
                # A bug is logged, and must not leave a live process that claims nothing.
                LOG.exception("claiming jobs failed; retrying")
                await self._ambient.sleep(1_000)


class ClaimErrors:
    """Reports why the store refuses claims: once per reason."""

    def __init__(self) -> None:
        self._reported = ""
        self._in_a_row = 0
        self.listener: Callable[[Rejected], None] | None = None
        """Receives the refusals; without it they are logged."""
        self.give_up: Callable[[Rejected], None] | None = None
        """Set by a caller that does not wait for recovery: called alone, from the second refusal in a row on."""

    def clear(self) -> None:
        self._in_a_row = 0

    def report(self, refusal: Rejected) -> None:
        self._in_a_row += 1
        if self.give_up is not None:
            if self._in_a_row > 1:
                self.give_up(refusal)
            return
        if str(refusal) == self._reported:
            return
        self._reported = str(refusal)
        if self.listener is None:
            LOG.error("the worker cannot claim jobs: %s", refusal)
        else:
            self.listener(refusal)


class HandoverTarget(Protocol):
    """The worker that takes ready jobs from a commit without a claim (hand-over)."""

    handover: HandoverPolicy

    def take(self, leases: tuple[Lease, ...]) -> None:
        """Start jobs that a commit leased to this worker."""

    def works_on(self, stream: Stream) -> bool:
        """Whether this worker holds a job of a run."""
