"""The worker: claim jobs, run them, submit their results, keep what follows.

A worker holds at most `concurrency` jobs. A job that became ready by its own result is handed over in the same commit,
so a chain needs no claims. Stopping is a drain: the worker claims nothing more, lets attempts finish within the grace
period, then cancels the rest and releases it at once. A job is never released after a call of its handler that the log
does not show: to the store a released job is one that no worker has begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs
from tidemill.engine.attempts.attempt import Attempt
from tidemill.engine.attempts.compensation import CompensationAttempt
from tidemill.engine.attempts.invocation import LEASE_LOST, ON_STALL, failed_result
from tidemill.engine.attempts.recorder import AttemptLog
from tidemill.engine.attempts.rendering import Values
from tidemill.engine.attempts.results import outputs_of_run
from tidemill.engine.attempts.runtime import AttemptRuntime, AttemptSuperseded, LeaveToOtherWorker, ProcessRuntime
from tidemill.engine.children import ChildRunMessenger
from tidemill.engine.corruption import is_newer, newer_job
from tidemill.engine.pending_commands import COMMITTED, STATEMENT_CONFLICT, CommandOutcome, PendingCommand
from tidemill.engine.run_cache import CachedRun, RunCache, seen_by
from tidemill.engine.turn import TurnLoop
from tidemill.engine.worker.held_jobs import (
    INTERNAL_DELAY_MS_MAX,
    INTERNAL_TRIES_MAX,
    HeldJob,
    InternalErrors,
    JobHandler,
    JobKey,
    StartRecorder,
    failed_internally,
    start,
)
from tidemill.engine.worker.instrumentation import Instrumentation
from tidemill.engine.worker.leases import (
    ClaimLoop,
    HandoverPolicy,
    LeaseRenewalThread,
    LeaseRenewer,
    ReleaseQueue,
    UnrunnableBackoff,
    WorkerOptions,
)
from tidemill.engine.worker.watchdog import LoopWatchdog
from tidemill.errors import InternalError, Unavailable
from tidemill.handlers.contract import Handler, PendingOutcome
from tidemill.kernel.commands import (
    AnyCommand,
    CompensationResult,
    CompensationWorkerLost,
    Done,
    OutputsRendered,
    Result,
    WorkerLost,
)
from tidemill.kernel.decide.fencing import attempt_status
from tidemill.kernel.decide.retries import SET_ASIDE, set_aside
from tidemill.kernel.decide.rollback import current as current_undo
from tidemill.kernel.jobs import (
    JOB_FORMAT,
    MAINTENANCE_QUEUE,
    MESSAGES,
    SYSTEM_QUEUE,
    WITHOUT_RUN,
    JobKind,
    begun_elsewhere,
    cap_of,
    may_run,
    shelved,
    task_of,
    timer_of,
)
from tidemill.kernel.state import LIVE
from tidemill.stores.contract import Claim, Lease, Store, Stream

LOG = logging.getLogger(__name__)

RELEASE_DELAY_MS = 1_000
"""Delay of a job that could not be settled, before it can be claimed again."""
SUBMISSIONS_MAX = 60
"""How often a result is submitted to a store that does not answer before its run is marked as stuck."""
LOOKED_THROUGH_MAX = 64
"""Held jobs among which a worker looks for those of one run."""
OWN_QUEUES = (SYSTEM_QUEUE, MAINTENANCE_QUEUE)
LOST_APART = 2
"""Visits that have lost this many workers in a row run one at a time: one of them may kill its worker."""
SETTLE_MS = 1_000
"""How long a drain waits, after its grace, for starts and then for results that are being committed."""


class Worker:
    def __init__(
        self,
        *,
        store: Store,
        runs: RunCache,
        turns: TurnLoop,
        blobs: Blobs,
        ambient: Ambient,
        handlers: Mapping[str, Handler],
        messenger: ChildRunMessenger,
        options: WorkerOptions,
        runtime: ProcessRuntime,
        tenant_handlers: Mapping[str, Mapping[str, Handler]] = {},
    ) -> None:
        self._store, self._runs, self._turns, self._messenger = store, runs, turns, messenger
        self._blobs, self._values, self._ambient = blobs, Values(blobs, memory_max=options.value_memory), ambient
        self._log = AttemptLog(turns, runs, store, blobs, options.name, self._note_begun)
        self.watchdog = LoopWatchdog(ambient)
        tools = (ambient, blobs, self._values, self._log, options.name, store.now_ms, runtime, self.watchdog.blocked_ms)
        self._tools = AttemptRuntime(*tools)
        self._handlers, self._options = defaultdict(lambda: handlers, tenant_handlers), options
        limits = {cap_of(key): handler.type.capabilities.concurrency for key, handler in handlers.items()}
        self._caps = {name: limit for name, limit in limits.items() if limit is not None}
        self._queues = frozenset({*options.queues, *OWN_QUEUES} if options.queues else ())
        self._held_jobs: dict[JobKey, HeldJob] = {}
        self._apart: HeldJob | None = None
        """The job whose attempt runs apart from others that have lost workers, until it is dropped."""
        self._internal_errors = InternalErrors()
        self._backoff, self._releases = UnrunnableBackoff(store.now_ms), ReleaseQueue(store)
        self._claims = ClaimLoop(store, ambient, self._backoff, self._next_claim, self._accept)
        self.refusals = self._claims.refusals
        self.job_handlers: dict[JobKind, JobHandler] = {}
        """By kind, what runs and settles jobs that belong to no run."""
        self.metrics: Instrumentation | None = None
        self.draining = False
        self._stopping_now = False
        room = (options.concurrency, self._held_jobs.__len__, self._claims.wake, ambient.monotonic_ms)
        self.handover = HandoverPolicy(*room, queues=self._queues, only=options.only)
        self._tasks: list[asyncio.Task[None]] = []
        self._renewer = LeaseRenewer(store, ambient, self._leases, self._on_renewed, options.lease_ms, options.beat_ms)
        self._thread: LeaseRenewalThread | None = None
        self._starts = StartRecorder(ambient, turns, runs, self._log, self._held_jobs.values)
        self.finished = 0
        self.returned = 0
        """Jobs that the last drain released: cancelled ones, and those whose results could not be stored."""

    # Start and stop

    def open(self) -> None:
        """Start working, also after a close."""
        self._turns.handover_target = self
        self.draining = self._stopping_now = self.handover.stopped = False
        self._tasks.clear()
        self.returned = 0
        self._claims.open()
        self._tasks.append(asyncio.create_task(self._starts.run(), name="tidemill-starts"))
        if self._options.heart_thread:
            self._thread = LeaseRenewalThread(self._renewer)
            self._thread.start(self._on_renewed)
            self.watchdog.start()
        else:
            self._tasks.append(asyncio.create_task(self._renewer.renew_in_loop(), name="tidemill-heart"))

    def drain(self) -> None:
        """Accept nothing from now on, neither claimed nor handed over."""
        self.draining = self.handover.stopped = True
        self._claims.stop()

    def stop_now(self) -> None:
        self._stopping_now = True

    async def close(self) -> None:
        """Drain: claim nothing more, let attempts finish for the grace period, release the rest."""
        self.drain()
        await self._claims.close()
        for held in [held for held in self._held_jobs.values() if held.task.kind == "maintain"]:
            # It may take long, and another worker continues it.
            if held.running is not None:
                held.running.cancel()
            self._drop(held)
            self._releases.give([held.lease])
        await self._wait_until(lambda: self._stopping_now or not self._held_jobs, self._options.grace_ms)
        await self._starts.record_all(SETTLE_MS)
        for held in list(self._held_jobs.values()):
            if held.running is not None:
                held.running.cancel()
        await self._wait_until(lambda: not any(held.settling for held in self._held_jobs.values()), SETTLE_MS)
        left = list(self._held_jobs.values())
        self._held_jobs.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.watchdog.stop()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)
        self._give_back(left, 0)
        await self._releases.settle()

    async def _wait_until(self, over: Callable[[], bool], ms: float) -> None:
        until = self._ambient.monotonic_ms() + ms
        while not over() and self._ambient.monotonic_ms() < until:
            await self._ambient.sleep(5)

    @property
    def held_jobs(self) -> Collection[HeldJob]:
        """Those of runs, oldest first."""
        return [held for held in self._held_jobs.values() if held.task.kind not in WITHOUT_RUN]

    def _leases(self) -> Sequence[Lease]:
        return [held.lease for held in list(self._held_jobs.values())]

    def _next_claim(self) -> Claim | None:
        if self.handover.free <= 0:
            return None
        self.handover.claim()
        return Claim(
            queues=tuple(sorted(self._queues)),
            limit=self._options.concurrency,
            room=lambda: self.handover.free,
            lease_ms=self._options.lease_ms,
            wait_ms=self._options.claim_wait_ms,
            owner=self._options.name,
            run_tree=self._options.only,
            caps=self._caps,
        )

    async def _accept(self, leases: Sequence[Lease]) -> None:
        """Start claimed jobs; loads the runs whose cached state is too old in one call."""
        room = max(0, self.handover.free)
        leases, surplus = leases[:room], leases[room:]
        if surplus:
            # A commit took slots for its own jobs during the claim.
            self._releases.give(surplus)
        accepted = [self._acquire(lease) for lease in leases]
        for held in [held for held in accepted if set_aside(held.lease.expired) and held.task.kind not in WITHOUT_RUN]:
            # Not even the loss of its workers could be recorded: loading the run would end this process too.
            LOG.error("job %s of run %s is set aside: %s", held.lease.key, held.lease.stream.key, SET_ASIDE)
            accepted.remove(held)
            self._release(held, INTERNAL_DELAY_MS_MAX)
        if self.metrics is not None:
            self.metrics.claimed([held.lease for held in accepted if held.task.kind == "run"])
        leases = [held.lease for held in accepted]
        self._runs.forget_unseen()
        known = {lease.stream: self._runs.get(lease.stream) for lease in leases}
        of_runs = (held for held in accepted if held.task.kind not in WITHOUT_RUN)
        unseen = (held.lease for held in of_runs if not seen_by(known[held.lease.stream], held.task, held.lease))
        stale = dict.fromkeys(lease.stream for lease in unseen)
        loaded: Mapping[Stream, CachedRun] = {}
        if stale:
            try:
                loaded = await self._runs.refresh(stale)
            except BaseException:
                # A held lease without work would be renewed for ever; an expired one would count as a lost worker.
                for held in accepted:
                    self._release(held, 0 if self.draining else RELEASE_DELAY_MS)
                raise
        jobs = ((each, each.lease.stream not in stale) for each in accepted)
        begun = ((each, (known if fresh else loaded).get(each.lease.stream), fresh) for each, fresh in jobs)
        start(begun, self._begin, self._ambient.monotonic_ms)

    def take(self, leases: tuple[Lease, ...]) -> None:
        """Start jobs that a commit leased to this worker; their runs are cached."""
        self.handover.record_taken(len(leases))
        if self.draining:
            # The drain began while the commit that kept them was under way.
            self._releases.give(leases)
            return
        if len(leases) == 1:
            self._begin(self._acquire(leases[0]), self._runs.get(leases[0].stream), True)
            return
        jobs = ((self._acquire(lease), self._runs.get(lease.stream), True) for lease in leases)
        start(jobs, self._begin, self._ambient.monotonic_ms)

    def works_on(self, stream: Stream) -> bool:
        """Whether this worker holds a job of a run; a worker with many jobs in hand does not look."""
        return len(self._held_jobs) <= LOOKED_THROUGH_MAX and any(held == stream for held, _ in self._held_jobs)

    def _acquire(self, lease: Lease) -> HeldJob:
        job_key = (lease.stream, lease.key)
        earlier = self._held_jobs.get(job_key)
        if earlier is not None and earlier.running is not None:
            # The worker lost the job and claimed it again: the work under the old lease is void.
            earlier.running.cancel(LEASE_LOST)
        held = self._held_jobs[job_key] = HeldJob(lease, task_of(lease.body), job_key)
        return held

    def _drop(self, held: HeldJob) -> None:
        job_key = held.job_key
        if self._held_jobs.get(job_key) is held:
            del self._held_jobs[job_key]
            self.finished += held.task.kind not in WITHOUT_RUN
            if self._claims.waits:
                self._claims.wake()

    def _begin(self, held: HeldJob, entry: CachedRun | None, known: bool) -> None:
        """Start a job that is still held. `known`: the cached state was just found to call for it."""
        try:
            task = held.task
            if self._held_jobs.get(held.job_key) is not held:
                return
            if task.kind == "run" and entry is not None and entry.state.status in LIVE and task.v <= JOB_FORMAT:
                self._begin_attempt(held, entry, known)
            else:
                self._dispatch(held, entry)
        except Exception as error:
            self._release_after_error(held, self._turns.report(error))

    def _dispatch(self, held: HeldJob, entry: CachedRun | None) -> None:
        task, stream = held.task, held.lease.stream
        if task.v > JOB_FORMAT or (entry is None and is_newer(self._runs.damage(stream))):
            self._runs.warn_once(stream, self._runs.damage(stream) or newer_job(held.lease.key))
            self._release_to_others(held)
        elif task.kind in WITHOUT_RUN:
            self._in_task(held, self._handle(held))
        elif entry is None or not may_run(task, entry.state):
            self._settle(held, shelved(task))
        elif task.kind in MESSAGES:
            deliver = partial(self._messenger.run, stream, entry.state, task, held.lease.expired)
            self._in_task(held, self._work_on(held, deliver))
        elif task.kind == "undo":
            self._begin_compensation(held, entry)
        elif task.kind == "outputs":
            self._in_task(held, self._work_on(held, partial(self._rendered, held, entry)))
        else:
            self._settle(held, timer_of(task))

    async def _handle(self, held: HeldJob) -> None:
        """Run a job that belongs to no run; its handler settles it."""
        handler = self.job_handlers.get(held.task.kind)
        handling = None if handler is None else handler(held.lease)
        if handling is None:
            self._release_to_others(held)
            return
        try:
            await handling
        except Unavailable:
            self._release(held)
        except Exception as error:
            if is_newer(error):
                self._release_to_others(held)
            else:
                self._release_after_error(held, self._turns.report(error))
        else:
            self._drop(held)

    async def claim_maintenance(self) -> None:
        """Claim maintenance tasks although all slots are taken: they must not wait for the end of a long attempt."""
        if self.draining or self.handover.free > 0:
            return
        options = self._options
        request = Claim(queues=(MAINTENANCE_QUEUE,), limit=10, lease_ms=options.lease_ms, owner=options.name)
        leases = await self._store.claim(request)
        if self.handover.stopped:
            self._releases.give(leases)
            return
        for lease in leases:
            self._begin(self._acquire(lease), None, known=True)

    def _begin_attempt(self, held: HeldJob, entry: CachedRun, known: bool) -> None:
        task, lease, state = held.task, held.lease, entry.state
        node = entry.flow.workflow.by_id.get(task.node)
        current = known or attempt_status(state, task.node, task.visit, task.index, lease.token) == "current"
        if node is None or not current:
            self._settle(held, shelved(task))
            return
        if lease.expired or (node.delivery == "at_most_once" and begun_elsewhere(state, task, lease.token)):
            # Also in a paused run: the possible effect of a lost worker must be recorded before its job is removed.
            times = max(1, lease.expired)
            lost = WorkerLost(node=task.node, visit=task.visit, index=task.index, token=lease.token, times=times)
            self._settle(held, lost)
            return
        if state.status == "PAUSED":
            self._settle(held, shelved(task))
            return
        handler = self._handlers[lease.stream.tenant].get(node.type)
        if handler is None:
            self._release_to_others(held)
            return
        attempt = held.attempt = Attempt(self._tools, entry, node, handler, task, lease)
        if attempt.lost >= LOST_APART:
            self._begin_apart(held, attempt)
            return
        instant = False
        try:
            result = attempt.begin()
            instant = result is not None and not result.duration_ms
        except Exception as error:
            result = failed_result(task, lease, error, self._options.name)
        if instant:
            entry.flow.instant.add(task.node)
        else:
            entry.flow.instant.discard(task.node)
        if result is not None:
            self._settle(held, result)
            return
        self._drive(held, self._run(held, attempt))

    def _drive(self, held: HeldJob, work: Coroutine[PendingOutcome | None, None, None]) -> None:
        """Continue an attempt until it ends, waits for a thread, or needs a task to wait for anything else."""
        try:
            pending = work.send(None)
        except StopIteration:
            return
        if pending is None:
            self._in_task(held, work)
            return
        held.running = pending
        self._starts.wake()
        pending.add_done_callback(partial(self._resume, held, work))

    def _resume(self, held: HeldJob, work: Coroutine[PendingOutcome | None, None, None], call: PendingOutcome) -> None:
        """The call in a thread is over; the job is dropped if it was cancelled."""
        try:
            if call.cancelled():
                work.close()
                self._drop(held)
            else:
                self._drive(held, work)
        except BaseException:
            self._drop(held)
            raise

    def _begin_apart(self, held: HeldJob, attempt: Attempt) -> None:
        """Run an attempt that has lost workers only while no other such runs here: the next loss counts for one."""
        if self._apart is not None and self._held_jobs.get(self._apart.job_key) is self._apart:
            self._release(held)
            return
        self._apart = held
        self._in_task(held, self._run(held, attempt, apart=True))

    def _in_task(self, held: HeldJob, work: Coroutine[Any, Any, None]) -> None:
        """Work on a job in its own task; drops the job if the task fails or is cancelled, even before it starts."""

        def over(task: asyncio.Task[None]) -> None:
            if task.cancelled() or task.exception() is not None:
                self._drop(held)

        # Every job has a context of its own: a stall must not be blamed on the run of another job.
        context = copy_context()
        context.run(ON_STALL.set, partial(self._turns.mark_stuck, held.lease.stream))
        self._starts.wake()
        held.running = asyncio.create_task(work, context=context)
        held.running.add_done_callback(over)

    async def _run(self, held: HeldJob, attempt: Attempt, *, apart: bool = False) -> None:
        """Run an attempt to its result. A cancelled one settles nothing: its lease was lost or released."""
        if apart:
            await self._releases.settle()
        try:
            result = await attempt.run(in_task=apart)
        except InternalError as error:
            self._release_after_error(held, error)
            return
        except Unavailable as error:
            if not attempt.called:
                self._release(held)
                return
            result = attempt.fails(error)
        except AttemptSuperseded:
            self._settle(held, shelved(held.task))
            return
        except LeaveToOtherWorker:
            self._release_to_others(held)
            return
        except Exception as error:
            result = failed_result(held.task, held.lease, error, self._options.name)
        self._settle(held, result)

    async def _rendered(self, held: HeldJob, entry: CachedRun) -> AnyCommand:
        tools = (held.lease, self._values, self._blobs, self._tools.runtime.isolation)
        return OutputsRendered(outcome=await outputs_of_run(entry.flow, entry.state, *tools))

    def _begin_compensation(self, held: HeldJob, entry: CachedRun) -> None:
        """Compensate a completed visit or item, or settle the job if that is no longer needed."""
        task, lease = held.task, held.lease
        if current_undo(entry.state, task.node, task.visit, task.index, lease.token) is None:
            self._settle(held, shelved(task))
            return
        if lease.expired:
            lost = CompensationWorkerLost(
                node=task.node, visit=task.visit, index=task.index, token=lease.token, times=lease.expired
            )
            self._settle(held, lost)
            return
        node = entry.flow.workflow.by_id.get(task.node)
        compensator = None if node is None else node.compensator
        handler = None if compensator is None else self._handlers[lease.stream.tenant].get(compensator.type)
        if handler is None:
            self._release_to_others(held)
            return
        compensation = held.compensation = CompensationAttempt(self._tools, self._store, entry, handler, task, lease)
        self._in_task(held, self._work_on(held, compensation.run))

    async def _work_on(self, held: HeldJob, work: Callable[[], Awaitable[AnyCommand]]) -> None:
        """Settle a job with the command that its work returns. Cancelled work settles nothing."""
        try:
            command = await work()
        except Unavailable:
            self._release(held)
            return
        except LeaveToOtherWorker:
            self._release_to_others(held)
            return
        except Exception as error:
            self._release_after_error(held, self._turns.report(error))
            return
        self._settle(held, command)

    def _settle(self, held: HeldJob, command: AnyCommand) -> None:
        """Submit the result of a job; the same commit settles its lease."""
        lease, work = held.lease, held.attempt or held.compensation
        pending = PendingCommand(command, self._settled, held, lease)
        if work is not None and work.statement is not None and isinstance(command, (Result, CompensationResult)):
            # The store executes the statement of the job's work in the commit of its result.
            pending.statement = work.statement if isinstance(command.outcome, Done) else None
        self._turns.ask(lease.stream, pending)

    def _settled(self, pending: PendingCommand, answer: CommandOutcome) -> None:
        held: HeldJob = pending.about
        if answer is COMMITTED:
            self._internal_errors.forget(held.job_key)
            self._drop(held)
        elif answer is STATEMENT_CONFLICT:
            self._begin(held, self._runs.get(held.lease.stream), known=False)
        elif isinstance(answer.error, Unavailable) and isinstance(pending.command, Result) and not self.draining:
            self._in_task(held, self._submit_again(held, pending.command, answer.error))
        elif isinstance(answer.error, InternalError) and not self.draining:
            self._on_internal_error(held, pending.command, answer.error)
        else:
            self._release(held)

    async def _submit_again(self, held: HeldJob, result: Result, error: Unavailable) -> None:
        """Submit a result until the store answers, however long: otherwise the handler would be called again."""
        held.submissions += 1
        if held.submissions % SUBMISSIONS_MAX == 0:
            reason = f"a result of {held.task.node} cannot be stored: {error}"
            await self._turns.mark_stuck(held.lease.stream, reason)
        await self._submit_later(held, result, RELEASE_DELAY_MS)

    def _on_internal_error(self, held: HeldJob, command: AnyCommand, error: InternalError) -> None:
        """Submit a result again a few times, then fail the visit; a job that cannot even fail is delayed.

        The lease of a job whose handler was called is left to expire: the next claim counts a lost worker, so that a
        result that cannot be recorded does not repeat the call for ever.
        """
        tries = self._internal_errors.of(held.job_key)
        failed = failed_internally(command, error) if isinstance(command, Result) else None
        if failed is None or not isinstance(command, Result):
            called = isinstance(command, CompensationResult) or (isinstance(command, Result) and command.called)
            self._release_after_error(held, error, expires=called)
        elif tries < INTERNAL_TRIES_MAX - 1:
            self._internal_errors.count(held.job_key)
            self._in_task(held, self._submit_later(held, command, RELEASE_DELAY_MS * 2**tries))
        else:
            self._settle(held, failed)

    async def _submit_later(self, held: HeldJob, result: Result, delay_ms: int) -> None:
        await self._ambient.sleep(delay_ms)
        self._settle(held, result)

    def _release_after_error(self, held: HeldJob, error: InternalError, *, expires: bool = False) -> None:
        """Release a job, or let its lease expire, with a growing delay; after some tries its run is marked as stuck."""
        tries = self._internal_errors.count(held.job_key)
        delay_ms = min(RELEASE_DELAY_MS * 2 ** min(tries - 1, 20), INTERNAL_DELAY_MS_MAX)
        let_go = partial(self._drop, held) if expires else partial(self._release, held, delay_ms)
        if tries < INTERNAL_TRIES_MAX or self.draining:
            let_go()
        else:

            async def mark_and_let_go() -> None:
                await self._turns.mark_stuck(held.lease.stream, str(error))
                let_go()

            self._in_task(held, mark_and_let_go())

    def _release(self, held: HeldJob, delay_ms: int = RELEASE_DELAY_MS) -> None:
        self._drop(held)
        self._give_back([held], delay_ms)

    def _give_back(self, jobs: Sequence[HeldJob], delay_ms: int) -> None:
        """Release jobs that are no longer held. The leases of those that may have acted expire instead."""
        idle = [held.lease for held in jobs if not self._starts.may_have_acted(held)]
        self.returned += len(idle) if self.draining else 0
        self._releases.give(idle, delay_ms)

    def _release_to_others(self, held: HeldJob) -> None:
        self._release(held, self._backoff.delay_ms(held.job_key, held.lease.expires_at_ms - self._options.lease_ms))

    def _note_begun(self, attempt: Attempt, begun: bool) -> None:
        held = self._held_jobs.get((attempt.lease.stream, attempt.lease.key))
        if held is not None and held.attempt is attempt:
            held.begun = begun

    def _on_renewed(self, lost: Sequence[Lease]) -> None:
        """After each renewal: cancel work whose lease was lost."""
        for lease in lost:
            held = self._held_jobs.get((lease.stream, lease.key))
            if held is not None and held.lease.token == lease.token and held.running is not None:
                held.running.cancel(LEASE_LOST)
