"""Which of the jobs that its own commits insert a worker keeps, instead of having them go through the queue.

One for each job that it settles is always right: it takes the place of that one. More than that only while no other
worker is there who could take it sooner, and while there is room, so that no job waits here which could run elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemill.kernel.jobs import Put
from tidemill.stores.contract import Stream, in_family

HAND_OVERS_PER_CLAIM = 256
HAND_OVER_MS = 100
"""A worker whose places are all taken keeps so many jobs for itself, and for so long; then it asks the queue again,
where priority and fairness are known. While it has a free place, nothing that it could take waits in the queue."""


class Keeping:
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
        self.alone = False
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

    def promise(self, places: int) -> None:
        """Set places aside for a commit, or free them; whoever claims may have found that there is no room."""
        freed, self.promised = places < self.promised, places
        if freed:
            self._wake()

    def claim(self) -> None:
        """The queue is asked."""
        self._handed_over, self._asked_ms = 0, self._clock_ms()

    def took(self, jobs: int) -> None:
        """Jobs were kept."""
        self._handed_over += jobs

    def chosen(self, stream: Stream, puts: Iterable[Put], settled: int) -> tuple[str, ...]:
        """The keys of those jobs of a commit which are kept; `settled`: how many it takes off this worker's hands."""
        room = self.room(stream)
        if self.stopped or not (settled + room and (self.free > 0 or self._asked_lately())):
            return ()
        kept = [put.key for put in puts if self._may_keep(put)][: settled + room]
        if len(kept) > settled:
            self.promise(self.promised + len(kept) - settled)
        return tuple(kept)

    def _may_keep(self, put: Put) -> bool:
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
        return max(0, self.free) if self.alone and in_family(self._only, stream.key) else 0
