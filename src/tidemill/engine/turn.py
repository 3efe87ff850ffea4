"""Load → decide → commit; pending commands, races, outages, snapshots.

The turn: load → decide → commit. The only way a run changes, and the only writer of its stream.

Callers hand in an `Ask` (a command and the lease it settles) and are answered when it is durable. Asks that
gather for the same run while a commit is under way are decided together and committed once; commits of many
runs share one call to the store. Losing a race (another version, a lost lease, an unknown outcome) always means
the same: load the tail, decide again. The handler is never called again for that.

Commands on their way to a decision, and what becomes of them when a commit is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.attempts.results import TransactionalStatement
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.index_rows import rows_beside, run_row, run_terms, what_terms_say
from tidemill.engine.run_cache import CachedRun, RunCache
from tidemill.engine.views import waiting_for
from tidemill.engine.worker.leases import HandoverPolicy
from tidemill.errors import InternalError, Problem, TidemillError, Unavailable, internal_error
from tidemill.kernel.codec import encode_events
from tidemill.kernel.commands import AnyCommand, CompensationResult, Result
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.decide import decide_all
from tidemill.kernel.events import AnyEvent, CompensationCompleted, NodeCompleted
from tidemill.kernel.jobs import JobSpec
from tidemill.kernel.state import State, encode_state
from tidemill.stores.contract import (
    Commit,
    Committed,
    Job,
    Lease,
    LeasesLost,
    Row,
    Snapshot,
    Statement,
    StatementRefused,
    Store,
    Stream,
    VersionConflict,
)


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an ask. Without a problem or an error it is durable."""

    problem: Problem | None = None
    error: Exception | None = None


COMMITTED = CommandOutcome()
STATEMENT_CONFLICT = CommandOutcome(error=Unavailable("its statement came out otherwise, because somebody was quicker"))
"""Nothing is written, and the same attempt is made again: what it was to do has to be rehearsed anew."""


class PendingCommand(msgspec.Struct):
    """A command on its way to a decision."""

    command: AnyCommand
    done: Callable[[PendingCommand, CommandOutcome], None]
    """Called once, when the outcome is known."""
    about: Any = None
    """Whatever the asker wants to find again when it is answered."""
    ack: Lease | None = None
    """The lease this command settles: its job is removed in the same commit."""
    hold: Lease | None = None
    """The lease that must still be held, and stays so."""
    start: CompiledWorkflow | None = None
    """The workflow of a run that is to be created."""
    flow: CompiledWorkflow | None = None
    """The workflow that the run goes on under, when the command changes it."""
    statement: TransactionalStatement | None = None
    """What the store is to do in the transaction that takes the result."""


Refusal = VersionConflict | LeasesLost | StatementRefused


def statements_of(asks: Iterable[PendingCommand], events: Sequence[AnyEvent]) -> tuple[Statement, ...]:
    """What the store is to do in the same transaction: for results that are taken, not for those that are discarded."""
    wanted: dict[tuple[type, str, int, int], Statement] = {}
    for ask in asks:
        if ask.statement is not None:
            command = ask.command
            assert isinstance(command, (Result, CompensationResult)), "nothing else brings a statement"
            wanted[_TAKEN[type(command)], command.node, command.visit, command.index] = ask.statement.statement
    if not wanted:
        return ()
    ended = [each for each in events if isinstance(each, (NodeCompleted, CompensationCompleted))]
    taken = [(type(each), each.node, each.visit, each.index) for each in ended]
    return tuple([wanted[place] for place in taken if place in wanted])


_TAKEN: Mapping[type, type] = {Result: NodeCompleted, CompensationResult: CompensationCompleted}
"""Which event says that what a command brings is taken."""


def still_valid(asks: list[PendingCommand], result: Refusal) -> list[PendingCommand]:
    """The asks to decide again. One whose lease is gone has nothing to say any more, except that it came too late."""
    if isinstance(result, VersionConflict):
        return asks
    if isinstance(result, StatementRefused):
        return _without_statement(asks, result)
    kept: list[PendingCommand] = []
    for ask in asks:
        lease = ask.ack or ask.hold
        if lease is None or lease.key not in result.keys:
            kept.append(ask)
        elif isinstance(ask.command, Result):
            ask.command = msgspec.structs.replace(ask.command, late=True)
            ask.ack = ask.hold = None
            kept.append(ask)
        else:
            problem = Problem(code="lease_lost", message="somebody else holds the job now")
            ask.done(ask, CommandOutcome(problem=problem))
    return kept


def _without_statement(asks: list[PendingCommand], refused: StatementRefused) -> list[PendingCommand]:
    """A result whose statement was refused is a failure; the others that shared its commit stay what they are.

    Where somebody was quicker, it does not count, and those behind it were rehearsed too early as well. Those before it
    stay, so of statements that get into each other's way the first is done.
    """
    bearing = [(number, ask.statement) for number, ask in enumerate(asks) if ask.statement is not None]
    equals = [(number, bears) for number, bears in bearing if bears.statement == refused.statement]
    place, refused_one = equals[refused.equals]
    if refused.changed:
        late = [number for number, _ in bearing if number >= place]
        for number in late:
            asks[number].done(asks[number], STATEMENT_CONFLICT)
        return [ask for number, ask in enumerate(asks) if number not in late]
    command, failed = asks[place].command, refused_one.refusal(refused)
    assert isinstance(command, (Result, CompensationResult)), "nothing else brings a statement"
    routed = {"route": None} if isinstance(command, Result) else {}
    asks[place].command = msgspec.structs.replace(command, outcome=failed, **routed)
    asks[place].statement = None
    return asks


def mark_unknown_outcome(asks: Iterable[PendingCommand]) -> None:
    for ask in asks:
        if isinstance(ask.command, Result):
            ask.command = msgspec.structs.replace(ask.command, again=True)


def all_pending(batch: Mapping[Stream, list[PendingCommand]]) -> Iterator[PendingCommand]:
    return (ask for asks in batch.values() for ask in asks)


def resolve_all(asks: Iterable[PendingCommand], error: TidemillError) -> None:
    for ask in asks:
        ask.done(ask, CommandOutcome(error=error))


LOG = logging.getLogger(__name__)

RACES_MAX = 64
"""How often a turn decides again before it gives up: every lost race means that somebody else made progress."""
OUTAGES_MAX = 6
"""How often a commit is tried while the store does not answer."""
CLOSED = "the engine is closed; whether it still happened, the run will tell"
SNAPSHOT_TAIL_MIN = 500
REPORTED_MAX = 1_000
ROW_LAG_MS = 1_000
"""How long the row of a run that makes progress may lag behind its log."""
NODES_LOOKED_AT_MAX = 1_000
"""What a larger run waits for is found by the keeper, off the way of its progress."""

_encode_task = msgspec.msgpack.Encoder().encode


class HandoverTarget(Protocol):
    """Who takes the jobs that became ready, without a detour through the queue (hand-over)."""

    keeping: HandoverPolicy

    def take(self, leases: tuple[Lease, ...]) -> None:
        """Begin with jobs that the commit left in its hands."""
        ...


class PlannedCommit(msgspec.Struct):
    """A commit in the making."""

    stream: Stream
    entry: CachedRun
    asks: list[PendingCommand]
    decision: Decision
    problems: list[Problem | None]
    commit: Commit | None = None
    """None when there is nothing to write."""


class TurnLoop:
    """The turns of one process."""

    def __init__(
        self, store: Store, runs: RunCache, ambient: Ambient, *, owner: str = "", lease_ms: int = 15_000
    ) -> None:
        self._store, self._runs, self._ambient = store, runs, ambient
        self._owner, self._lease_ms = owner, lease_ms
        self._waiting: dict[Stream, list[PendingCommand]] = {}
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.taker: HandoverTarget | None = None
        self.races = 0
        """Decisions that had to be taken again."""
        self.commits = 0
        self.gathered = 0
        """Commands that shared a commit with an earlier one."""
        self._reported: dict[str, None] = {}
        """Digests of tracebacks that were logged."""

    def open(self) -> None:
        """Begin to take turns."""
        self._closed = False
        if self._task is None:
            self._task = asyncio.create_task(self._take_turns(), name="tidemill-turns")

    async def close(self) -> None:
        """Stop; whoever was not answered yet is told that nobody will."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        left, self._waiting = self._waiting, {}
        resolve_all(all_pending(left), Unavailable(CLOSED))

    def ask(self, stream: Stream, ask: PendingCommand) -> None:
        """Queue a command; its `done` is called once the outcome is known."""
        if self._closed:
            ask.done(ask, CommandOutcome(error=Unavailable(CLOSED)))
            return
        waiting = self._waiting.get(stream)
        if waiting is None:
            self._waiting[stream] = [ask]
            self._bell.set()
        else:
            waiting.append(ask)

    async def command(
        self,
        stream: Stream,
        command: AnyCommand,
        *,
        hold: Lease | None = None,
        start: CompiledWorkflow | None = None,
        flow: CompiledWorkflow | None = None,
    ) -> CommandOutcome:
        """Queue a command and wait for its answer; raises when the store cannot be reached."""
        future: asyncio.Future[CommandOutcome] = asyncio.get_running_loop().create_future()

        def settle(ask: PendingCommand, answer: CommandOutcome) -> None:
            if not future.done():
                future.set_result(answer)

        self.ask(stream, PendingCommand(command, settle, hold=hold, start=start, flow=flow))
        answer = await future
        if answer.error is not None:
            raise answer.error
        return answer

    async def _take_turns(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            batch, self._waiting = self._waiting, {}
            try:
                await self._process_batch(batch)
            except asyncio.CancelledError:
                resolve_all(all_pending(batch), Unavailable(CLOSED))
                raise
            except Exception as error:
                resolve_all(all_pending(batch), self._answerable(error))
            # A store that never suspends must not keep the rest of the process waiting.
            await asyncio.sleep(0)
            self._reserve(0)

    def report(self, error: Exception) -> InternalError:
        """An exception that is a bug, as an error to answer with; its traceback is logged once."""
        internal = error if isinstance(error, InternalError) else internal_error(error)
        if internal.digest not in self._reported:
            LOG.error("%s", internal, exc_info=internal.__cause__ or internal)
            self._reported[internal.digest] = None
            if len(self._reported) > REPORTED_MAX:
                del self._reported[next(iter(self._reported))]
        return internal

    def _answerable(self, error: Exception) -> TidemillError:
        return error if isinstance(error, TidemillError) else self.report(error)

    async def mark_stuck(self, stream: Stream, reason: str) -> None:
        """Let lists, `why` and `show` say why a run does not go on. Its next event removes the mark."""
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
        """Commit a batch, deciding again for whatever lost a race."""
        races = outages = 0
        while batch:
            try:
                plans = await self._plan(batch, unsure)
                # The other asks are answered.
                batch = {plan.stream: plan.asks for plan in plans}
                results = await self._store.commit([plan.commit for plan in plans if plan.commit is not None])
            except Unavailable as error:
                outages += 1
                if outages > OUTAGES_MAX:
                    resolve_all(all_pending(batch), error)
                    return
                # Nobody knows whether the commit happened: the tail will tell.
                unsure = dict.fromkeys(batch)
                mark_unknown_outcome(all_pending(batch))
                await self._ambient.sleep(50 * 2**outages * (0.5 + self._ambient.chance()))
                continue
            except Exception as error:
                await self._isolate(batch, error)
                return
            answers = iter(results)
            batch = {}
            lost: dict[Stream, None] = {}
            for plan in plans:
                result = Committed(version=plan.entry.state.seq) if plan.commit is None else next(answers)
                if isinstance(result, Committed):
                    self._on_committed(plan, result)
                else:
                    batch[plan.stream] = still_valid(plan.asks, result)
                    lost[plan.stream] = None
            unsure = lost
            if batch:
                self.races += 1
                races += 1
                if races > RACES_MAX:
                    resolve_all(all_pending(batch), Unavailable("too many lost races"))
                    return

    async def _isolate(self, batch: dict[Stream, list[PendingCommand]], error: Exception) -> None:
        """A bug in the commit of one run must not keep the others that shared the call from theirs."""
        if isinstance(error, TidemillError) or len(batch) == 1:
            resolve_all(all_pending(batch), self._answerable(error))
            return
        mark_unknown_outcome(all_pending(batch))
        for stream, asks in batch.items():
            await self._process_batch({stream: asks}, (stream,))

    async def _plan(
        self, batch: Mapping[Stream, list[PendingCommand]], unsure: Iterable[Stream]
    ) -> list[PlannedCommit]:
        """Decide what each run's asks come to."""
        load = dict.fromkeys(unsure)
        self._reserve(0)
        self._runs.forget_unseen()
        # Looked up once: a run that is forgotten while others are loaded is no run that does not exist.
        known = {stream: self._runs.get(stream) for stream in batch}
        for stream, asks in batch.items():
            if known[stream] is None and not any(ask.start is not None for ask in asks):
                load[stream] = None
        # A run that has ended is loaded for this turn alone.
        loaded = await self._runs.refresh(load) if load else {}
        for stream in unsure:
            if stream in loaded:
                # The row that went with a commit in doubt may not have been written.
                loaded[stream].indexed_facts = None
        # Timers are judged by the store's clock, so they are set by it too: a worker's own may be wrong by a day.
        now_ms = self._store.now_ms()
        plans: list[PlannedCommit] = []
        for stream, asks in batch.items():
            entry = loaded.get(stream) if stream in load else known[stream]
            damage = self._runs.damage(stream) if entry is None else None
            if damage is not None:
                if any(ask.ack is not None for ask in asks):
                    # A worker's job. Whoever gave a command is told anyway.
                    self._runs.warn_once(stream, damage)
                resolve_all(asks, damage)
                continue
            if entry is None:
                flow = next((ask.start for ask in asks if ask.start is not None), None)
                if flow is None:
                    problem = Problem(code="run_unknown", message=f"there is no run {stream.key}")
                    for ask in asks:
                        ask.done(ask, CommandOutcome(problem=problem))
                    continue
                entry = CachedRun(State(), flow)
            try:
                plans.append(self._decide(stream, entry, asks, now_ms))
            except Exception as error:
                # One run's trouble is not that of the others whose commits would have shared the call.
                resolve_all(asks, self._answerable(error))
        return plans

    def _decide(self, stream: Stream, entry: CachedRun, asks: list[PendingCommand], now_ms: int) -> PlannedCommit:
        """Turn the asks into one commit."""
        state = entry.state
        decision, problems = decide_all(entry.flow.workflow, state, [ask.command for ask in asks], now_ms)
        plan = PlannedCommit(stream, entry, asks, decision, problems)
        acks = tuple([(ask.ack.key, ask.ack.token) for ask in asks if ask.ack is not None])
        holds = tuple([(ask.hold.key, ask.hold.token) for ask in asks if ask.hold is not None])
        work = decision.work
        if not (decision.events or acks or work.put or work.drop or work.withdraw):
            # Nothing follows, as far as this process knows. It is only true if nobody else has moved the run on.
            plan.commit = Commit(stream=stream, expected=state.seq) if asks else None
            return plan
        records, snapshot = encode_events(decision.events), self._snapshot(entry)
        jobs = tuple([_job(put, decision.after.seq) for put in work.put])
        keep = self.taker.keeping.select(stream, work.put, len(acks)) if jobs and self.taker else ()
        plan.commit = Commit(
            stream,
            state.seq,
            records,
            snapshot,
            acks,
            holds,
            work.drop,
            work.withdraw,
            jobs,
            keep,
            self._lease_ms,
            self._owner,
            self._rows(plan) if records else (),
            statements_of(asks, decision.events),
        )
        return plan

    def _reserve(self, places: int) -> None:
        if self.taker is not None:
            self.taker.keeping.reserve(places)

    def _snapshot(self, entry: CachedRun) -> Snapshot | None:
        """The state before this commit, when folding the tail has become dearer than storing it."""
        state = entry.state
        if entry.since_snapshot <= max(SNAPSHOT_TAIL_MIN, (len(state.cells) + state.items) // 4):
            return None
        return Snapshot(version=state.seq, body=encode_state(state))

    def _rows(self, plan: PlannedCommit) -> tuple[Row, ...]:
        """What lists show of the run, where it matters.

        The row is written whenever the run can be found by other terms, has nothing in flight or has not been
        written for a while. In between, a busy run's row may lag behind its log; it says by how much (`events`),
        and the keeper brings it up to date should nothing follow.
        """
        entry, before, after = plan.entry, plan.entry.state, plan.decision.after
        others: tuple[Row, ...] = ()
        if after.approvals or after.letters or before.letters:
            others = rows_beside(plan.stream, before, after, plan.decision.events)
        said = entry.indexed_facts
        if said is not None and after.in_flight and after.last_ms - entry.row_ms < ROW_LAG_MS:
            # Compared one by one: this is asked in every commit of a busy run.
            status, busy, rollback, labels, _ = said
            if status == after.status and busy and rollback == after.rollback and labels is after.labels:
                return others
        found_by = what_terms_say(after)
        entry.row_ms = after.last_ms
        if entry.indexed_facts != found_by:
            retention = entry.flow.workflow.retention
            entry.terms, entry.indexed_facts = run_terms(after, retention=retention), found_by
        quiet = after.live and not after.in_flight and len(entry.flow.workflow.nodes) <= NODES_LOOKED_AT_MAX
        waits = waiting_for(entry.flow.workflow, after) if quiet else ()
        return (run_row(plan.stream, after, entry.terms, waiting_for=waits), *others)

    def _on_committed(self, plan: PlannedCommit, result: Committed) -> None:
        """The commit is durable: bring the cached state up to it, answer, hand over."""
        try:
            self._take_in(plan)
        except Exception as error:
            # It is in the store all the same.
            self.report(error)
            self._runs.forget(plan.stream)
        for ask, problem in zip(plan.asks, plan.problems, strict=True):
            ask.done(ask, COMMITTED if problem is None else CommandOutcome(problem=problem))
        if result.kept and self.taker is not None:
            if plan.commit is not None and plan.commit.acks:
                self.taker.take(result.kept)
            else:
                # Whoever started the run hears of it before its first node can hold up the loop.
                asyncio.get_running_loop().call_soon(self.taker.take, result.kept)

    def _take_in(self, plan: PlannedCommit) -> None:
        entry, events = plan.entry, plan.decision.events
        if events and plan.commit is not None and plan.commit.expected is not None:
            if plan.commit.snapshot is not None:
                entry.since_snapshot = 0
            patched = plan.decision.after.digest != entry.digest
            flows = [ask.flow for ask in plan.asks if ask.flow is not None] if patched else ()
            entry.apply_committed(plan.decision, plan.commit.expected, flows)
            self.commits += 1
            self.gathered += len(plan.asks) - 1
        self._runs.put(plan.stream, entry)


def _job(put: JobSpec, seq: int) -> Job:
    task = put.task
    body = _encode_task((task.kind, task.node, task.visit, task.index, task.v, seq, task.attempt))
    return Job(put.key, put.queue, body, put.ready_at_ms, put.priority, put.caps)
