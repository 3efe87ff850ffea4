"""The turn: load → decide → commit. The only way a run changes, and the only writer of its stream.

Callers submit a `PendingCommand` (a command and the lease it settles) and get its outcome once it is durable. Commands
for one run that arrive during a commit are decided together and committed once; commits of many runs share one call to
the store. After a lost race (another version, a lost lease, an unknown outcome) the turn loads the tail and decides
again; it never calls a handler again for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from itertools import repeat
from typing import Protocol

from tidemill.ambient import Ambient
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.index_rows import run_row, run_terms
from tidemill.engine.maintenance.audit_chain import event_rows
from tidemill.engine.pending_commands import (
    COMMITTED,
    REPEATED,
    CommandOutcome,
    PendingCommand,
    PlannedCommit,
    all_pending,
    leased_keys,
    mark_unknown_outcome,
    not_idle,
    resolve_all,
    statements_of,
    still_valid,
)
from tidemill.engine.run_cache import SNAPSHOT_TAIL_MIN, CachedRun, EndWaiters, RunCache
from tidemill.engine.worker.instrumentation import OUTCOME_LOG, Instrumentation, OutcomeReport, tell_outcomes
from tidemill.engine.worker.leases import HandoverTarget
from tidemill.engine.worker.spans import RunSpans
from tidemill.errors import InternalError, Problem, TidemillError, Unavailable, internal_error
from tidemill.event_loop import begin_at_once
from tidemill.kernel.codec import encode_events
from tidemill.kernel.commands import AnyCommand
from tidemill.kernel.decide.decide import decide_all
from tidemill.kernel.jobs import JobSpec, body_of
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State
from tidemill.stores.contract import (
    Commit,
    Committed,
    Job,
    Lease,
    LeasesLost,
    Store,
    Stream,
)
from tidemill.stores.optional import InServer

LOG = logging.getLogger(__name__)

STATEMENTS_MS = 20
"""Time of the dry runs of statements that share a commit."""
RACES_MAX = 64
"""How often a turn decides again before it gives up: every lost race means progress elsewhere."""
COMMIT_TIMES_KEPT = 200
OUTAGES_MAX = 6
"""How often a commit is tried while the store does not answer."""
NO_KEYS: frozenset[str] = frozenset()
CLOSED = "the engine is closed; `tidemill runs show` says whether it happened"
REPORTED_MAX = 1_000

STEPS_TO_CALLER = 2
"""Steps of the loop until a caller in another thread has its answer."""


IDLE_MS = 1.0
"""How long after a commit a start no longer waits for others to share its own."""


class JobLimits(Protocol):
    """The concurrency limits of the fleet."""

    limits: Mapping[str, int]

    def apply(self, jobs: tuple[Job, ...], stream: Stream, flow: Workflow, state: State) -> tuple[Job, ...]:
        """The jobs of a run with the caps of the limits that hold for them."""


class TurnLoop:
    def __init__(
        self, store: Store, runs: RunCache, ambient: Ambient, *, owner: str = "", lease_ms: int = 15_000
    ) -> None:
        self._store, self._runs, self._ambient = store, runs, ambient
        self._owner, self._lease_ms = owner, lease_ms
        self._suspends = isinstance(store, InServer)
        self._waiting: dict[Stream, list[PendingCommand]] = {}
        self._wakeup = asyncio.Event()
        self._with_statements: deque[tuple[Stream, PendingCommand]] = deque()
        """Results with statements, which are committed apart: they may take long, and nothing else waits for them."""
        self._statement_wakeup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._context = copy_context()
        """Not that of a caller: what commits start, attempts for example, must not see its variables."""
        self._at_once: asyncio.Task[None] | None = None
        """The rest of a batch that was begun in the task of its caller."""
        self._steps_to_caller = STEPS_TO_CALLER
        self._processing = self._closed = False
        self.handover_target: HandoverTarget | None = None
        self.limits: JobLimits | None = None
        self.metrics: Instrumentation | None = None
        """Set where metrics are wanted."""
        self.spans: RunSpans | None = None
        """Set where spans are wanted."""
        self.listener: Callable[[OutcomeReport], None] | None = None
        """Called with what every commit of this process has ended."""
        self.races = 0
        """Decisions that had to be taken again."""
        self.commit_times: deque[tuple[float, float]] = deque(maxlen=COMMIT_TIMES_KEPT)
        """Of the last commits: when they were answered, and how many milliseconds that took."""
        self._handing_over: dict[Stream, int] = {}
        """Jobs that commits have leased to the worker, and that it takes in the next steps of the loop."""
        self._begun: list[tuple[Stream, tuple[Lease, ...]]] = []
        """Of these, what the commits of the present batch have kept."""
        self._end_waiters = EndWaiters()
        self._reported: dict[str, None] = {}
        """Digests of tracebacks that were logged."""

    def open(self) -> None:
        self._closed = False
        self._context = copy_context()
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._loop(), name="tidemill-turns"),
                asyncio.create_task(self._statement_loop(), name="tidemill-statements"),
            ]

    async def close(self) -> None:
        """Stop; commands without an outcome are answered with `Unavailable`."""
        self._closed = True
        tasks = self._tasks + ([] if self._at_once is None else [self._at_once])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        left, self._waiting = self._waiting, {}
        resolve_all([*all_pending(left), *(pending for _, pending in self._with_statements)], Unavailable(CLOSED))
        self._with_statements.clear()

    def ask(self, stream: Stream, pending: PendingCommand) -> None:
        """Queue a command; its `done` is called once the outcome is known."""
        if self._closed:
            pending.done(pending, CommandOutcome(error=Unavailable(CLOSED)))
            return
        if self.metrics is not None:
            pending.asked_ms = self._ambient.monotonic_ms()
        if pending.statement is not None:
            self._with_statements.append((stream, pending))
            self._statement_wakeup.set()
            return
        waiting = self._waiting.get(stream)
        if waiting is None:
            self._waiting[stream] = [pending]
            self._wakeup.set()
        else:
            waiting.append(pending)

    async def command(
        self,
        stream: Stream,
        command: AnyCommand,
        *,
        hold: Lease | None = None,
        start: CompiledWorkflow | None = None,
        flow: CompiledWorkflow | None = None,
        audited: bool = False,
    ) -> CommandOutcome:
        """Queue a command and wait for its outcome; raises when the store cannot be reached."""
        answered: asyncio.Future[CommandOutcome] = asyncio.get_running_loop().create_future()
        pending = PendingCommand(command, _answer_future, answered, None, hold, start, flow, audited=audited)
        if start is not None and self._is_idle():
            pending.asked_ms = self._ambient.monotonic_ms()
            self._process_at_once({stream: [pending]})
        else:
            self.ask(stream, pending)
        answer = await answered
        if answer.error is not None:
            raise answer.error
        return answer

    async def commands(
        self,
        commands: Sequence[tuple[Stream, AnyCommand]],
        *,
        hold: Lease | None = None,
        start: CompiledWorkflow | None = None,
        flow: CompiledWorkflow | None = None,
        audited: bool = False,
    ) -> list[CommandOutcome]:
        """Queue commands and wait until all have an outcome; raises when the store cannot be reached."""
        answered: list[asyncio.Future[CommandOutcome]]
        answered = [asyncio.get_running_loop().create_future() for _ in commands]
        for about, (stream, command) in zip(answered, commands, strict=True):
            self.ask(stream, PendingCommand(command, _answer_future, about, None, hold, start, flow, audited=audited))
        answers = [await each for each in answered]
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return answers

    def _is_idle(self) -> bool:
        """Whether a start is better committed at once: there is nothing with which it could share a commit."""
        busy = self._suspends or self._processing or self._waiting or self._closed
        last_ms = self.commit_times[-1][0] if self.commit_times else 0
        return not busy and self._ambient.monotonic_ms() - last_ms > IDLE_MS

    def _process_at_once(self, batch: dict[Stream, list[PendingCommand]]) -> None:
        """Commit starts without another step of the loop, unless the store suspends: then a task does the rest."""
        self._processing, self._steps_to_caller = True, 0
        self._at_once = begin_at_once(self._process_or_answer(batch), self._context, "tidemill-turn")
        self._steps_to_caller = STEPS_TO_CALLER
        if self._at_once is None:
            self._processing = False
        else:
            self._at_once.add_done_callback(self._on_finished)

    def _on_finished(self, _: asyncio.Task[None]) -> None:
        self._processing, self._at_once = False, None

    async def end_in_this_process(self, stream: Stream, seconds: float) -> CachedRun | None:
        """The run once a commit of this process has ended it; None after `seconds`, or if others may continue it.

        As long as this worker holds all jobs of a run, only its own commits move the run on, and no one has to read
        them from the store.
        """
        worker = self.handover_target
        if worker is None or not (stream in self._handing_over or worker.works_on(stream)):
            return None
        return await self._end_waiters.wait(stream, seconds)

    async def _loop(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            if self._at_once is not None:
                await asyncio.wait([self._at_once])
            self._processing = True
            batch, self._waiting = self._waiting, {}
            await self._process_or_answer(batch)
            self._processing = False
            if not self._suspends:
                # A store that never suspends must not keep the rest of the process waiting.
                await asyncio.sleep(0)
            self._reserve_untaken()

    async def _statement_loop(self) -> None:
        """Commit results with statements, as many together as take little time."""
        while True:
            await self._statement_wakeup.wait()
            batch: dict[Stream, list[PendingCommand]] = {}
            took_ms = 0
            while self._with_statements and took_ms < STATEMENTS_MS:
                stream, pending = self._with_statements.popleft()
                batch.setdefault(stream, []).append(pending)
                assert pending.statement is not None, "only such commands are queued here"
                took_ms += pending.statement.statement.took_ms
            if not self._with_statements:
                self._statement_wakeup.clear()
            await self._process_or_answer(batch)
            await asyncio.sleep(0)

    async def _process_or_answer(self, batch: dict[Stream, list[PendingCommand]]) -> None:
        """Commit a batch; every command is answered, whatever happens."""
        try:
            await self._process_batch(batch)
        except asyncio.CancelledError:
            resolve_all(all_pending(batch), Unavailable(CLOSED))
            raise
        except Exception as error:
            resolve_all(all_pending(batch), self._as_error(error))

    def report(self, error: Exception) -> InternalError:
        """Convert a bug into an `InternalError`; its traceback is logged once."""
        internal = error if isinstance(error, InternalError) else internal_error(error)
        if internal.digest not in self._reported:
            LOG.error("%s", internal, exc_info=internal.__cause__ or internal)
            self._reported[internal.digest] = None
            if len(self._reported) > REPORTED_MAX:
                del self._reported[next(iter(self._reported))]
        return internal

    def _as_error(self, error: Exception) -> TidemillError:
        return error if isinstance(error, TidemillError) else self.report(error)

    async def put_job(self, stream: Stream, put: JobSpec, seq: int) -> None:
        """Insert a job unless it exists."""
        await self._store.commit([Commit(stream=stream, expected=None, jobs=(_job(put, seq),))])

    async def mark_stuck(self, stream: Stream, reason: str) -> None:
        """Show in lists, `why` and `show` why a run makes no progress. Its next event removes the mark."""
        try:
            entry = (await self._runs.refresh([stream])).get(stream)
            if entry is None or not entry.state.busy:
                return
            LOG.error("run %s is stuck: %s", stream.key, reason)
            terms = run_terms(entry.state, retention=entry.flow.workflow.retention, stuck=True)
            row = run_row(stream, entry.state, terms, stuck=True, stuck_reason=reason)
            entry.indexed_facts = None
            await self._store.commit([Commit(stream=stream, expected=entry.state.seq, rows=(row,))])
        except TidemillError as error:
            LOG.warning("run %s could not be marked as stuck: %s", stream.key, error)
        except Exception as error:
            self.report(error)

    async def _process_batch(self, batch: dict[Stream, list[PendingCommand]], unsure: Iterable[Stream] = ()) -> None:
        """Commit a batch, deciding again for runs that lost a race."""
        races = outages = 0
        claimed: dict[Stream, frozenset[str]] = {}
        """Jobs of these runs that were not idle when a commit needed them to be."""
        while batch:
            if unsure and not self._steps_to_caller:
                # What loads runs may need a task of its own.
                await asyncio.sleep(0)
            try:
                plans = await self._plan(batch, unsure, claimed)
                # The other commands are answered.
                batch = {plan.stream: plan.commands for plan in plans}
                began = self._ambient.monotonic_ms()
                results = await self._store.commit([plan.commit for plan in plans if plan.commit is not None])
                ended = self._ambient.monotonic_ms()
                self.commit_times.append((ended, ended - began))
            except Unavailable as error:
                outages += 1
                if outages > OUTAGES_MAX:
                    resolve_all(all_pending(batch), error)
                    return
                # The outcome of the commit is unknown until the tail is loaded.
                unsure = dict.fromkeys(batch)
                mark_unknown_outcome(all_pending(batch))
                await self._ambient.sleep(50 * 2**outages * (0.5 + self._ambient.chance()))
                continue
            except Exception as error:
                if isinstance(error, TidemillError) or len(batch) == 1:
                    resolve_all(all_pending(batch), self._as_error(error))
                    return
                # One by one, so that a bug in one commit does not affect the others that shared the call.
                mark_unknown_outcome(all_pending(batch))
                for stream, commands in batch.items():
                    await self._process_batch({stream: commands}, (stream,))
                return
            answers = iter(results)
            tells = self.listener is not None or OUTCOME_LOG.isEnabledFor(logging.INFO)
            batch = {}
            lost: dict[Stream, None] = {}
            for plan in plans:
                result = Committed(version=plan.entry.state.seq) if plan.commit is None else next(answers)
                if isinstance(result, Committed):
                    self._on_committed(plan, result, tells=tells)
                else:
                    if isinstance(result, LeasesLost):
                        taken = not_idle(plan, result)
                        if taken:
                            claimed[plan.stream] = claimed.get(plan.stream, NO_KEYS) | taken
                        if self.metrics is not None and len(taken) < len(result.keys):
                            self.metrics.metrics.fenced(len(result.keys) - len(taken), "commit")
                    batch[plan.stream] = still_valid(plan.commands, result)
                    lost[plan.stream] = None
            if self._begun:
                begun, self._begun = self._begun, []
                self._hand_over_later(self._steps_to_caller + 1, begun)
            unsure = lost
            if batch:
                self.races += 1
                races += 1
                if races > RACES_MAX:
                    resolve_all(all_pending(batch), Unavailable("too many lost races"))
                    return

    async def _plan(
        self,
        batch: Mapping[Stream, list[PendingCommand]],
        unsure: Iterable[Stream],
        claimed: Mapping[Stream, frozenset[str]],
    ) -> list[PlannedCommit]:
        load = dict.fromkeys(unsure)
        self._reserve_untaken()
        now_ms = self._runs.forget_unseen()
        # Looked up once: the cache may drop a run while others are loaded, and that does not mean that it is unknown.
        known: dict[Stream, CachedRun | None] = {}
        for stream, commands in batch.items():
            entry = known[stream] = self._runs.get(stream)
            if entry is None and not any(pending.start is not None for pending in commands):
                load[stream] = None
        # An ended run is loaded for this turn only.
        loaded = await self._runs.refresh(load) if load else {}
        for stream in unsure:
            if stream in loaded:
                # A commit with unknown outcome may not have written the row.
                loaded[stream].indexed_facts = None
        if load:
            now_ms = self._store.now_ms()
        plans: list[PlannedCommit] = []
        for stream, commands in batch.items():
            entry = loaded.get(stream) if load and stream in load else known[stream]
            if entry is None:
                entry = self._new_run(stream, commands)
                if entry is None:
                    continue
            try:
                plans.append(self._decide(stream, entry, commands, now_ms, claimed.get(stream, NO_KEYS)))
            except Exception as error:
                # An error in one run must not fail the others in the batch.
                resolve_all(commands, self._as_error(error))
        return plans

    def _new_run(self, stream: Stream, commands: list[PendingCommand]) -> CachedRun | None:
        """The run that one of the commands creates; without it the commands are answered."""
        damage = self._runs.damage(stream)
        if damage is not None:
            if any(pending.ack is not None for pending in commands):
                # Only workers need the warning; a caller gets the error itself.
                self._runs.warn_once(stream, damage)
            resolve_all(commands, damage)
            return None
        flow = next((pending.start for pending in commands if pending.start is not None), None)
        if flow is not None:
            return CachedRun(State(), flow)
        unknown = Problem(code="run_unknown", message=f"there is no run {stream.key}", hint="see `tidemill runs list`")
        for pending in commands:
            pending.done(pending, CommandOutcome(problem=unknown))
        return None

    def _decide(
        self, stream: Stream, entry: CachedRun, commands: list[PendingCommand], now_ms: int, claimed: frozenset[str]
    ) -> PlannedCommit:
        state, flow = entry.state, entry.flow.workflow
        asked: list[AnyCommand] = []
        acks: list[tuple[str, int]] = []
        holds: tuple[tuple[str, int], ...] = ()
        statements = audited = False
        for pending in commands:
            asked.append(pending.command)
            ack = pending.ack
            if ack is not None:
                acks.append((ack.key, ack.token))
            if pending.hold is not None:
                holds += ((pending.hold.key, pending.hold.token),)
            if pending.statement is not None:
                statements = True
            if pending.audited:
                audited = True
        decision, problems = decide_all(flow, state, asked, now_ms, claimed)
        if decision.work.idle:
            leased = leased_keys(commands)
            if not leased.isdisjoint(decision.work.idle):
                # The worker whose commands these are holds the jobs.
                decision, problems = decide_all(flow, state, asked, now_ms, claimed | leased)
            holds += tuple([(key, 0) for key in decision.work.idle])
        plan = PlannedCommit(stream, entry, commands, decision, problems)
        events, work, after = decision.events, decision.work, decision.after
        specs = work.put
        if not (events or acks or specs or work.drop or work.withdraw):
            # The decision to write nothing holds only if no other process has moved the run on.
            plan.commit = Commit(stream=stream, expected=state.seq) if commands else None
            return plan
        records = encode_events(events)
        jobs: tuple[Job, ...] = ()
        keep: tuple[str, ...] = ()
        if specs:
            jobs = tuple(map(_job, specs, repeat(after.seq)))
            if self.limits is not None and self.limits.limits:
                jobs = self.limits.apply(jobs, stream, flow, after)
                specs = tuple([spec for spec, job in zip(specs, jobs, strict=True) if not job.caps])
            if self.handover_target is not None:
                keep = self.handover_target.handover.select(stream, specs, len(acks), entry.flow.instant)
        rows = entry.rows_of(stream, decision, records) if events else ()
        if audited:
            by = {(each.command.actor, each.command.id) for each in commands if each.audited}
            rows += event_rows(stream, state.seq, events, records, by)
        plan.commit = Commit(
            stream,
            state.seq,
            records,
            entry.snapshot() if entry.since_snapshot > SNAPSHOT_TAIL_MIN else None,
            tuple(acks),
            holds,
            work.drop,
            work.withdraw,
            jobs,
            keep,
            self._lease_ms,
            self._owner,
            rows,
            statements_of(commands, events) if statements else (),
        )
        return plan

    def _reserve_untaken(self) -> None:
        worker = self.handover_target
        if worker is not None and (self._handing_over or worker.handover.reserved):
            worker.handover.reserve(sum(self._handing_over.values()))

    def _on_committed(self, plan: PlannedCommit, result: Committed, *, tells: bool) -> None:
        """Update the cached state, answer the commands, hand over jobs."""
        stream, entry, commands, decision, commit = plan.stream, plan.entry, plan.commands, plan.decision, plan.commit
        expected = None if commit is None else commit.expected
        try:
            if decision.events and commit is not None and expected is not None:
                if commit.snapshot is not None:
                    entry.since_snapshot = 0
                patched = decision.after.digest != entry.digest
                flows = [pending.flow for pending in commands if pending.flow is not None] if patched else ()
                if self.spans is not None:
                    # While the state before the commit is still there.
                    self.spans.committed(stream, entry.flow.workflow, entry.state, decision.after, decision.events)
                entry.apply_committed(decision, expected, flows)
                if tells:
                    tell_outcomes(stream.key, decision.after, decision.events, self.listener)
                if self.metrics is not None:
                    self.metrics.committed(decision.events)
            self._runs.put(stream, entry)
        except Exception as error:
            # The commit is durable all the same.
            self.report(error)
            self._runs.forget(stream)
        begins, problems = expected == 0, plan.problems
        for number, pending in enumerate(commands):
            outcome, problem = COMMITTED, problems[number]
            if problem is not None:
                outcome = CommandOutcome(problem=problem)
            elif pending.start is not None:
                # Of several starts in one commit the first has begun the run.
                outcome, begins = COMMITTED if begins else REPEATED, False
            pending.done(pending, outcome)
        if stream in self._end_waiters:
            ended = not entry.state.busy
            if ended or (commit is not None and len(result.kept) < len(commit.jobs)):
                self._end_waiters.answer(stream, entry if ended else None)
        kept = result.kept
        if kept and self.handover_target is not None:
            if commit is not None and commit.acks:
                if self.metrics is not None:
                    self.metrics.handed_over(commands, len(kept))
                self.handover_target.take(kept)
            else:
                self._handing_over[stream] = self._handing_over.get(stream, 0) + len(kept)
                self._begun.append((stream, kept))

    def _hand_over_later(self, steps: int, begun: list[tuple[Stream, tuple[Lease, ...]]]) -> None:
        """Hand over the first jobs of runs after their callers know of the start: a node may block the loop."""
        if steps:
            asyncio.get_running_loop().call_soon(self._hand_over_later, steps - 1, begun)
            return
        worker = self.handover_target
        assert worker is not None, "it was there when the commit kept them"
        for stream, leases in begun:
            left = self._handing_over.pop(stream) - len(leases)
            if left:
                self._handing_over[stream] = left
            worker.handover.reserve(max(0, worker.handover.reserved - len(leases)))
            worker.take(leases)


def _answer_future(pending: PendingCommand, outcome: CommandOutcome) -> None:
    if not pending.about.done():
        pending.about.set_result(outcome)


def _job(put: JobSpec, seq: int) -> Job:
    return Job(put.key, put.queue, body_of(put.task, seq), put.ready_at_ms, put.priority, put.caps)
