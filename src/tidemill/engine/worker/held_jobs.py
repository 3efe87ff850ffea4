"""The jobs that a worker holds, and when the start of an attempt is recorded.

The start of a short attempt is recorded together with its end, which costs nothing. `StartRecorder` records the other
starts in between, so that every view shows such a node as RUNNING within a second, also after its worker was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.attempts.attempt import Attempt
from tidemill.engine.attempts.compensation import CompensationAttempt
from tidemill.engine.attempts.recorder import AttemptLog
from tidemill.engine.pending_commands import PendingCommand
from tidemill.engine.run_cache import CachedRun, RunCache
from tidemill.engine.turn import TurnLoop
from tidemill.errors import InternalError
from tidemill.kernel.commands import Failed, Result
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.state import peek_at
from tidemill.stores.contract import Lease, Stream

JobKey = tuple[Stream, str]
"""The run, and the key of the job in it."""
JobHandler = Callable[[Lease], Awaitable[None] | None]
"""Runs a job that belongs to no run, and settles it; None for one that it leaves to other workers."""

STARTED_AFTER_MS = 400
"""The start of an attempt that takes longer is recorded while it runs."""
LOOK_EVERY_MS = 200
LOOK_AGAIN_MS = 5


class HeldJob(msgspec.Struct):
    lease: Lease
    task: JobBody
    job_key: JobKey
    running: asyncio.Future[Any] | None = None
    """Its task, or the call in a thread that it waits for."""
    attempt: Attempt | None = None
    compensation: CompensationAttempt | None = None
    begun: bool = False
    """The start of its attempt is recorded, or was submitted to be."""
    submissions: int = 0
    """How often its result was submitted to a store that did not answer."""

    @property
    def settling(self) -> bool:
        """True once the work has finished and its result is being committed."""
        return self.running is None or (self.running.done() and not self.running.cancelled())


INTERNAL_TRIES_MAX = 4
"""How often a job may end in an internal error before its run is marked as stuck."""
INTERNAL_DELAY_MS_MAX = 600_000
INTERNAL = "internal_error"
TRIED_MAX = 10_000


class InternalErrors:
    """How often jobs of this worker have ended in an internal error."""

    def __init__(self) -> None:
        self._tries: dict[JobKey, int] = {}

    def of(self, job_key: JobKey) -> int:
        return self._tries.get(job_key, 0)

    def count(self, job_key: JobKey) -> int:
        """Add one, and return how many there are."""
        tries = self._tries[job_key] = self._tries.pop(job_key, 0) + 1
        if len(self._tries) > TRIED_MAX:
            del self._tries[next(iter(self._tries))]
        return tries

    def forget(self, job_key: JobKey) -> None:
        if self._tries:
            self._tries.pop(job_key, None)


def failed_internally(result: Result, error: InternalError) -> Result | None:
    """A failure in place of a result that cannot be recorded; None if it is such a failure already."""
    outcome = result.outcome
    if isinstance(outcome, Failed) and outcome.error.code == INTERNAL:
        return None
    envelope = Error(INTERNAL, str(error), hint="report it with the traceback in the worker's log")
    failed = Failed(error=envelope, unknown_outcome=result.called and not isinstance(outcome, Failed))
    return msgspec.structs.replace(result, outcome=failed, route=None)


BEGIN_MS = 20
"""How long jobs that were taken together are started without a break: a template of each may need that long."""
Begun = tuple[HeldJob, CachedRun | None, bool]
"""A job, its run, and whether the state of the run was just found to call for it."""


def start(
    jobs: Iterable[Begun], begin: Callable[[HeldJob, CachedRun | None, bool], None], clock_ms: Callable[[], float]
) -> None:
    """Start jobs one after another; after some milliseconds the others wait until the loop has served all else."""
    began, waiting = clock_ms(), iter(jobs)
    for job in waiting:
        begin(*job)
        if clock_ms() - began > BEGIN_MS:
            # The runs may have moved on by then.
            later = [(held, entry, False) for held, entry, _ in waiting]
            asyncio.get_running_loop().call_soon(start, later, begin, clock_ms)


class StartRecorder:
    """Records the starts of attempts that take long, or that a drain cuts off; it sleeps while there are none."""

    def __init__(
        self,
        ambient: Ambient,
        turns: TurnLoop,
        runs: RunCache,
        log: AttemptLog,
        held: Callable[[], Collection[HeldJob]],
    ) -> None:
        self._ambient, self._turns, self._runs, self._log, self._held = ambient, turns, runs, log, held
        self._working = asyncio.Event()

    def wake(self) -> None:
        """Work has begun that does not end at once."""
        self._working.set()

    async def run(self) -> None:
        while True:
            await self._working.wait()
            await self._ambient.sleep(LOOK_EVERY_MS)
            if not self._record():
                self._working.clear()

    async def record_all(self, within_ms: float) -> None:
        """Record the starts of all attempts that run, however short they are; wait for the store for a while."""
        until = self._ambient.monotonic_ms() + within_ms
        self._record(0)
        while self._unrecorded() and self._ambient.monotonic_ms() < until:
            await self._ambient.sleep(LOOK_AGAIN_MS)
            self._record(0)

    def _unrecorded(self) -> bool:
        return any(not held.settling and self.may_have_acted(held) for held in self._held())

    def may_have_acted(self, held: HeldJob) -> bool:
        """Whether a handler was called for a job, and the log may hold no start of the attempt."""
        if held.attempt is None or not held.attempt.called:
            return False
        entry, task = self._runs.get(held.lease.stream), held.task
        visit = None if entry is None else entry.state.peek(task.node)
        act = None if visit is None or visit.visit != task.visit else peek_at(visit, task.index)
        return act is None or not act.running

    def _record(self, after_ms: float = STARTED_AFTER_MS) -> bool:
        """Record the starts that are due; returns whether other attempts are without a recorded start."""
        more = False
        for held in list(self._held()):
            attempt = held.attempt
            if held.begun or held.settling or attempt is None:
                continue
            if not attempt.called or attempt.elapsed_ms < after_ms:
                more = True
                continue
            held.begun = True
            # The outcome does not matter: if the attempt no longer counts, its result will be discarded.
            start = PendingCommand(self._log.start_command(attempt), lambda *_: None, hold=held.lease)
            self._turns.ask(held.lease.stream, start)
        return more
