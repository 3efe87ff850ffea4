"""`tidemill.testing.open`: an engine in memory under a clock that a test moves, for plain blocking tests.

`start` and every act return when nothing more can happen without time passing. `run` and `result` let the clock jump
to the next timer until the run has ended. Nothing runs between two calls, so a test sees every state for as long as it
likes. `crash` kills the worker at a boundary; another one is started, as a supervisor would.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from time import monotonic
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, get_args

from tidemill.authoring.decorators import Workflow
from tidemill.engine.catalog import Published
from tidemill.engine.engine import Engine, service_verb
from tidemill.engine.services.approvals import ApprovalService
from tidemill.engine.services.context import AnyRun, run_id_of
from tidemill.engine.services.dead_letters import DeadLetterService
from tidemill.engine.services.runs import RunService
from tidemill.engine.services.workflows import Document
from tidemill.engine.validation import Seconds, timeout_of
from tidemill.engine.views import RunView
from tidemill.engine.worker.leases import WorkerOptions
from tidemill.errors import shorten_traceback
from tidemill.handlers.contract import Handler, NodeClass
from tidemill.handlers.python.functions import Function, function_registry
from tidemill.node_types import NodeTypes
from tidemill.settings import Settings
from tidemill.stores.contract import Commit, Lease
from tidemill.testing.cluster import (
    Boundary,
    Cluster,
    CrashPlan,
    FakeSecrets,
    InlineIsolation,
    Kind,
    Process,
    RunLog,
    When,
    simulated_types,
)
from tidemill.testing.fakes import Effect, Faked, Fakes, name_of
from tidemill.testing.faulty_store import FaultyStore
from tidemill.testing.simulated_loop import SimAmbient, SimLoop, SimulatedFunctions
from tidemill.triggers.scheduler import Scheduler
from tidemill.triggers.service import ScheduleService, schedule_verb

P = ParamSpec("P")
T = TypeVar("T")

CrashPoint = Literal[
    "before commit", "after commit", "before send", "after send", "before effect", "after effect"
]  # fmt: skip
"""When a worker is killed, and at what. A node that follows another one comes with its commit, without a send."""

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
SETTLE_STEPS_MAX = 100
SETTLE_STEP_S = 0.001
QUIET_STEPS_MAX = 5
"""After this many steps without a call of the store, handlers are only waiting."""
WAKES_MAX = 5_000
"""How many timers a run may use before it counts as endless."""
RESTART_S = 0.01
OVERDUE_MAX = 20
"""How often in a row a job may be found ready that no worker takes."""
IDLE_MS = 1_000
"""Sleeps of workers of this length or longer only look for changes: they need not wake an idle worker."""
CLAIM_MS = 30 * 86_400_000


class StillWaiting(TimeoutError):
    """A run waits for something that time alone will not bring."""


class Clock:
    """The clock of a simulation. It moves by `advance`, and by itself while a test waits for a result."""

    def __init__(self, mill: SimulatedMill) -> None:
        self._mill = mill

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._mill._cluster.now_ms() / 1000, UTC)

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float | None = None,
        hours: float | None = None,
        minutes: float | None = None,
        seconds: float | None = None,
    ) -> None:
        """Let time pass, and everything happen that is due in it."""
        given = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        numbers: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
        by = timedelta() if by is None and numbers else by
        if not isinstance(by, timedelta) or not all(isinstance(each, int | float) for each in numbers.values()):
            raise TypeError("write clock.advance(hours=4), or give it a timedelta")
        span = timedelta(**numbers) + by
        if span < timedelta():
            raise ValueError("time cannot go back")
        self._mill._wait(self._mill._advance(span.total_seconds()))


@dataclass(slots=True)
class _PlannedCrash:
    when: When
    kind: Kind
    name: str | None
    nodes: Callable[[], Collection[str] | None]
    """Any, if it is None."""
    nth: int
    left: int

    def is_met(self, boundary: Boundary) -> bool:
        matches, nodes = (boundary.when, boundary.kind) == (self.when, self.kind), self.nodes()
        if not matches or (nodes is not None and set(boundary.nodes).isdisjoint(nodes)):
            return False
        self.left -= 1
        return self.left == 0

    @property
    def hint(self) -> str:
        """Why the boundary may be missing."""
        if self.kind != "send":
            return ""
        return f"; a node that follows another one comes with its commit, without a send: use `{self.when} effect`"


def _blocking(
    verb: Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]], *, settles: bool = True
) -> Callable[Concatenate[SimulatedMill, P], T]:
    @wraps(verb)
    def call(self: SimulatedMill, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer = self._wait(verb(self._client.engine, *args, **kwargs))
        if settles:
            self.settle()
        return answer

    return call


def _listed(
    verb: Callable[Concatenate[Engine, P], AsyncIterator[T]],
) -> Callable[Concatenate[Engine, P], Coroutine[Any, Any, Iterator[T]]]:
    """All at once: no time passes between the items."""

    @wraps(verb)
    async def call(engine: Engine, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return iter([each async for each in verb(engine, *args, **kwargs)])

    return call


class SimulatedMill:
    """An engine in memory, with a client that asks and a worker that can be killed. Use it in a `with`."""

    show = _blocking(Engine.show, settles=False)
    events = _blocking(Engine.events, settles=False)
    path = _blocking(Engine.path, settles=False)
    why = _blocking(Engine.why, settles=False)
    why_node = _blocking(Engine.why_node, settles=False)
    compare = _blocking(Engine.compare, settles=False)
    transcript = _blocking(Engine.transcript, settles=False)
    document = _blocking(Engine.document, settles=False)
    logs = _blocking(Engine.logs, settles=False)
    find = _blocking(Engine.find, settles=False)
    count = _blocking(Engine.count, settles=False)
    runs = _blocking(_listed(service_verb("runs", RunService.iterate)), settles=False)
    approvals = _blocking(service_verb("approvals", ApprovalService.find), settles=False)
    approval = _blocking(Engine.approval, settles=False)
    dead_letters = _blocking(service_verb("dead_letters", DeadLetterService.find), settles=False)
    dead_letter = _blocking(Engine.dead_letter, settles=False)
    decide = _blocking(Engine.decide)
    delegate = _blocking(Engine.delegate)
    signal = _blocking(Engine.signal)
    cancel = _blocking(Engine.cancel)
    pause = _blocking(Engine.pause)
    resume = _blocking(Engine.resume)
    retry = _blocking(Engine.retry)
    rewind = _blocking(Engine.rewind)
    override = _blocking(Engine.override)
    patch = _blocking(Engine.patch)
    fork = _blocking(Engine.fork)
    rollback = _blocking(Engine.rollback)
    bulk = _blocking(Engine.bulk)
    relabel = _blocking(Engine.relabel)
    discard = _blocking(Engine.discard)
    reprocess = _blocking(Engine.reprocess)
    workflow = _blocking(Engine.workflow, settles=False)
    workflow_document = _blocking(Engine.workflow_document, settles=False)
    versions = _blocking(Engine.versions, settles=False)
    tag = _blocking(Engine.tag)
    put_blob = _blocking(Engine.put_blob)
    blob = _blocking(Engine.blob, settles=False)
    create_schedule = _blocking(schedule_verb(ScheduleService.create))
    update_schedule = _blocking(schedule_verb(ScheduleService.update))
    schedules = _blocking(schedule_verb(ScheduleService.find), settles=False)
    schedule = _blocking(schedule_verb(ScheduleService.show), settles=False)
    pause_schedule = _blocking(schedule_verb(ScheduleService.pause))
    resume_schedule = _blocking(schedule_verb(ScheduleService.resume))
    delete_schedule = _blocking(schedule_verb(ScheduleService.delete))
    trigger_schedule = _blocking(schedule_verb(ScheduleService.trigger))

    def __init__(
        self,
        types: NodeTypes,
        functions: SimulatedFunctions,
        *,
        fakes: Mapping[Any, Any] | None = None,
        real: Collection[Faked] = (),
        real_code: bool = True,
        secrets: Mapping[str, str] | None = None,
        begin: datetime = BEGIN,
        workers: int = 1,
        plan: CrashPlan | None = None,
    ) -> None:
        _require_no_loop()
        self._types, self._functions, self._secrets = types, functions, FakeSecrets(secrets or {})
        self._loop = SimLoop()
        # Killed processes leave tasks behind that never end; asyncio need not remark on it.
        self._loop.set_exception_handler(lambda _, context: None)
        self._cluster = Cluster(self._loop, round((begin.timestamp() - self._loop.now) * 1000))
        self._loop.set_task_factory(self._cluster.spawn)  # type: ignore[arg-type]
        self._cluster.on_kill = self._on_kill
        self._loop.is_busy = self._are_working
        own = {node_type.name for node_type in types.not_built_in}
        self._fakes = Fakes(self._loop, fakes or {}, functions=functions, real=real, real_code=real_code, own_types=own)
        self._has_real = bool(real)
        self._planned: list[_PlannedCrash] = []
        self._plan = plan or CrashPlan(lambda boundary: sum(each.is_met(boundary) for each in self._planned) > 0)
        self._closed, self._restarts, self._started, self._restarting, self._overdue = False, True, 0, 0, 0
        self.clock = Clock(self)
        self._client = self._wait(self._open("client"))
        for _ in range(workers):
            self._wait(self._start_worker())

    def __repr__(self) -> str:
        return f"<SimulatedMill {'closed' if self._closed else 'open'}, {self.clock.now.isoformat(timespec='seconds')}>"

    # What a test gives

    def fake(self, node: Faked, fake: Any) -> None:
        """Give a node, its compensator (`node/undo`), a node type, or all that call a task or start a workflow, a fake.

        It is a value, a function, an exception or `in_turn(...)`.
        """
        self._fakes.give(node, fake)

    def register(self, function: Function, name: str | None = None) -> None:
        """Let nodes of type `python` call a function, by its name unless another is given."""
        register = self._client.engine.register
        register(**{name: function}) if name else register(function)

    def crash(self, point: CrashPoint, *, node: Faked | None = None, nth: int = 1) -> None:
        """Kill the worker when it reaches a boundary for the n-th time, of this node or task if one is named.

        Another worker is started at once. `close` fails if the boundary was never reached.
        """
        if point not in get_args(CrashPoint):
            raise ValueError(f"{point!r} is not a boundary: {', '.join(get_args(CrashPoint))}")
        when, kind = point.split()
        name = None if node is None else name_of(node)
        self._planned.append(_PlannedCrash(when, kind, name, lambda: self._fakes.ids_of(node), nth, nth))  # type: ignore[arg-type]

    def kill(self) -> None:
        """Kill the workers now; `restart` starts another one."""
        self._restarts = False
        for process in [each for each in self._cluster.processes.values() if each is not self._client]:
            process.kill()
        self._restarts = True

    def restart(self) -> None:
        """Start another worker."""
        self._wait(self._start_worker())
        self.settle()

    # What a test asks

    @property
    def crashes(self) -> list[Boundary]:
        """Where workers were killed at a boundary."""
        return list(self._plan.crashes)

    @property
    def boundaries(self) -> list[Boundary]:
        """Every boundary that workers have reached, in order."""
        return list(self._plan.reached)

    def effects(self, node: Faked | None = None) -> list[Effect]:
        """The calls of what touches the world, in order; of one node, compensator (`node/undo`) or task, if named."""
        return self._fakes.effects_of(node)

    def publish(self, document: Document | Workflow[..., Any]) -> Published:
        """Publish a document: a mapping, YAML or JSON text, the path of a file, or a workflow written in Python."""
        return self._wait(self._publish(document))

    def start(self, workflow: Document | Workflow[..., Any], inputs: Any = None, **options: Any) -> str:
        """Start a workflow, and return its run's id when nothing more happens without time passing."""
        run_id = self._wait(self._client.engine.start(self._published(workflow), inputs, **options))
        self.settle()
        return run_id

    def start_many(self, workflow: Document | Workflow[..., Any], inputs: Iterable[Any], **options: Any) -> list[str]:
        """Start a run for each of the `inputs`."""
        run_ids = self._wait(self._client.engine.start_many(self._published(workflow), inputs, **options))
        self.settle()
        return run_ids

    def _published(self, workflow: Document | Workflow[..., Any]) -> str | Workflow[..., Any]:
        """What to start: the name of a document that is published now, if it is not the name of one."""
        is_name = isinstance(workflow, str) and "\n" not in workflow and not workflow.lstrip().startswith("{")
        if isinstance(workflow, str) and is_name:
            return workflow
        published = self.publish(workflow)
        return workflow if isinstance(workflow, Workflow) else f"{published.name}@{published.version}"

    def run(
        self,
        workflow: Document | Workflow[..., Any],
        inputs: Any = None,
        *,
        timeout: Seconds | None = None,
        **options: Any,
    ) -> RunView:
        """Start a workflow and let time pass until it has ended; `timeout` is that of `result`."""
        if timeout_of(timeout) is not None and isinstance(workflow, Workflow) and inputs is None:
            workflow.refuse_options("run", {"timeout": timeout}, options)
        return self.result(self.start(workflow, inputs, **options), timeout=timeout)

    def result(self, run_id: AnyRun, *, timeout: Seconds | None = None) -> RunView:
        """Let time pass until a run has ended.

        Raises `StillWaiting` if time alone does not end it, or only after `timeout` seconds of the simulated clock.
        """
        seconds, begun, run_id = timeout_of(timeout), self.clock.now, run_id_of(run_id)
        for _ in range(WAKES_MAX):
            is_over = not self.step(run_id)
            if seconds is not None and (self.clock.now - begun).total_seconds() > seconds:
                raise StillWaiting(f"run {run_id} has not ended after {seconds:g} seconds")
            if is_over:
                return self._wait(self._ended(run_id))
        raise StillWaiting(f"run {run_id} has not ended after {WAKES_MAX:,} timers, and may never end")

    def step(self, run_id: AnyRun) -> bool:
        """Let time pass to the next thing that is due; False if the run has ended or nothing is due."""
        return self._wait(self._step(run_id_of(run_id)))

    def settle(self) -> None:
        """Let everything happen that can happen now."""
        self._wait(self._settle())

    def awaited_signals(self) -> list[tuple[str, str]]:
        """Runs and names of the signals that their nodes wait for."""
        return self._wait(self._cluster.awaited_signals())

    def take_over(self) -> None:
        """Let time pass until jobs of ended runs that dead workers hold are taken over, such as a report of a child."""
        self._wait(self._take_over())

    def complaints(self) -> list[str]:
        """Everything in logs, lists and jobs that breaks a law of the engine."""
        return self._wait(self._cluster.complaints())

    def run_logs(self) -> dict[str, RunLog]:
        """What the logs of all runs say, by run."""
        return self._wait(self._cluster.logs())

    @property
    def calling(self) -> dict[str, float]:
        """Nodes that are being called for real, and for how many seconds; another thread may ask."""
        now = monotonic()
        return {node: now - began for node, began in reversed(list(self._loop.calling.values()))}

    def give_up(self, error: BaseException) -> None:
        """Have the simulation end with an error: the engine would take what a signal raises for that of a handler."""
        self._loop.given_up = error

    def close(self) -> None:
        """End the simulation; idempotent.

        Raises AssertionError if a crash that was asked for never happened, or if a fake is for no node that was there.
        """
        self._end()
        if complaint := self._fakes.complaint(self._types.by_name):
            raise AssertionError(complaint)
        for each in self._planned:
            if each.left > 0:
                reached, hint = each.nth - each.left, self._fakes.hint_for(each.name) or each.hint
                times = f"reached only {reached} of {each.nth} times" if reached else f"never reached{hint}"
                where = f"{each.when} {each.kind} of {each.name or 'any node'}"
                raise AssertionError(f"no worker was killed {where}: the boundary was {times}")

    def __enter__(self) -> SimulatedMill:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    def _end(self) -> None:
        if self._closed:
            return
        self._closed, self._restarts, self._loop.is_ending = True, False, True
        for process in list(self._cluster.processes.values()):
            process.kill()
        if self._has_real:
            with suppress(Exception):
                self._loop.run_until_complete(self._close_handlers())
        self._loop.end()

    async def _close_handlers(self) -> None:
        """Close connections that real handlers have opened: they belong to this loop."""
        for handler in self._types.handlers:
            closed = None if handler.close is None else handler.close()
            if closed is not None:
                await closed

    # In the loop

    def _wait(self, answer: Coroutine[Any, Any, T]) -> T:
        try:
            _require_no_loop()
            if self._closed:
                raise RuntimeError("this simulation is closed")
        except RuntimeError:
            answer.close()
            raise
        try:
            return self._loop.run_until_complete(answer)
        except Exception as error:
            shorten_traceback(error)
            raise

    async def _publish(self, document: Document | Workflow[..., Any]) -> Published:
        engine = self._client.engine
        published = await engine.publish(document)
        family = document.family() if isinstance(document, Workflow) else []
        self._fakes.children |= {each.name: each.function for each in family}
        for name in [each.name for each in family] or [published.name]:
            self._fakes.learn(await engine.workflow(name))
        return published

    async def _open(self, name: str, plan: CrashPlan | None = None) -> Process:
        async def reach(when: When, kind: Kind, nodes: tuple[str, ...], about: str) -> None:
            process = self._cluster.processes.get(name)
            if process is None:
                await asyncio.Event().wait()
            else:
                await process.reach(when, kind, nodes, about)

        def engine(store: FaultyStore, ambient: SimAmbient) -> Engine:
            ambient.idle_from_ms = IDLE_MS
            options = WorkerOptions(name=name, heart_thread=False, claim_wait_ms=CLAIM_MS, dead_after_ms=CLAIM_MS)
            return Engine(
                store=store,
                blobs=self._cluster.blobs,
                ambient=ambient,
                handlers=self._fakes.handlers(self._types.handlers, reach),
                worker=options if plan is not None else None,
                audit_every_ms=None,
                isolation=InlineIsolation(),
                secrets=self._secrets,
                unusable_types=self._types.unusable_types,
                offers=self._types.not_built_in,
                functions=self._functions,
            )

        process = self._cluster.add(name, engine)
        if plan is not None:
            process.follow(plan)
        if process.engine.worker is not None:

            async def skip(lease: Lease) -> None:
                await store.commit([Commit(lease.stream, None, acks=((lease.key, lease.token),))])

            store, fire = process.faulty_store, Scheduler(process.engine.context).fire
            # A schedule begins the maintenance of its tenant, which a simulation goes without.
            process.engine.worker.job_handlers.update({"fire": fire, "maintain": skip})
        return await process.open()

    async def _start_worker(self) -> None:
        self._started += 1
        await self._open(f"worker-{self._started}", self._plan)

    def _on_kill(self, process: Process) -> None:
        if self._restarts and process is not self._client:
            self._restarting += 1

            async def restart() -> None:
                await asyncio.sleep(RESTART_S)
                await self._start_worker()
                self._restarting -= 1

            # The task must not belong to the process that was killed.
            self._loop.create_task(restart(), context=contextvars.Context())

    async def _advance(self, seconds: float) -> None:
        await self._settle()
        await asyncio.sleep(seconds)
        await self._settle()

    async def _settle(self) -> None:
        calls, quiet = -1, 0
        for _ in range(SETTLE_STEPS_MAX):
            await asyncio.sleep(SETTLE_STEP_S)
            if (
                not self._are_working()
                and not self._restarting
                and not any(each.ready for each in await self._cluster.store.backlog())
            ):
                return
            before, calls = calls, self._cluster.calls
            quiet = quiet + 1 if calls == before and not self._restarting else 0
            if quiet > QUIET_STEPS_MAX:
                return

    def _are_working(self) -> bool:
        workers = [process.engine.worker for process in self._cluster.processes.values()]
        return any(worker is not None and worker.held_jobs for worker in workers)

    async def _step(self, run_id: str) -> bool:
        if not (await self._client.engine.context.entry(run_id)).state.busy:
            return False
        due_ms = await self._cluster.next_due_ms()
        if due_ms is None:
            return False
        wait_s = (due_ms - self._cluster.now_ms()) / 1000
        self._overdue = self._overdue + 1 if wait_s < 0 else 0
        if self._overdue > OVERDUE_MAX:
            return False
        await asyncio.sleep(max(SETTLE_STEP_S, wait_s))
        await self._settle()
        return True

    async def _take_over(self) -> None:
        for _ in range(OVERDUE_MAX):
            ended = [row.run_id for row in await self._cluster.rows() if row.ended_ms is not None]
            jobs = [view for run_id in ended for view in await self._cluster.jobs(run_id)]
            due_ms = min((view.lease_expires_at_ms or view.job.ready_at_ms for view in jobs), default=None)
            if due_ms is None:
                return
            await asyncio.sleep(max(SETTLE_STEP_S, (due_ms - self._cluster.now_ms()) / 1000))
            await self._settle()

    async def _ended(self, run_id: str) -> RunView:
        view = await self._client.engine.show(run_id)
        if (await self._client.engine.context.entry(run_id)).state.busy:
            waiting = ", ".join(view.waiting_for) or "a worker"
            hint = "decide it, send the signal, or use clock.advance"
            if not view.waiting_for:
                hint = "none that runs can call it; give `functions` or `handlers` to `testing.open`, or fake the node"
                waiting += f" for {', '.join(name for name, each in view.nodes.items() if each['status'] == 'QUEUED')}"
            if len(self._cluster.processes) == 1:
                hint = "no worker runs; use restart"
            raise StillWaiting(f"run {run_id} is {view.status} and waits for {waiting}: {hint}")
        return view


def _require_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("a simulation runs its own event loop: use it in a plain test, or through asyncio.to_thread")


def open(  # noqa: A001 - it is called like `tidemill.open`
    *,
    functions: Mapping[str, Function] | Iterable[Function] | None = None,
    handlers: Sequence[Handler | NodeClass] = (),
    fakes: Mapping[Any, Any] | None = None,
    real: Collection[Faked] = (),
    secrets: Mapping[str, str] | None = None,
    begin: datetime = BEGIN,
    settings: Settings | None = None,
) -> SimulatedMill:
    """Open an engine in memory whose clock stops until the test moves it or waits for a result.

    `functions` and `handlers` are those of `tidemill.open`, and are called. `fakes` are what nodes return instead, by
    node, compensator (`node/undo`), task, workflow or node type: a value, a function, an exception or `in_turn(...)`.
    Other nodes that touch the world (`http`, `llm`, `sql`, `email` …) return a value that their schema allows, and the
    compensators of faked nodes return None, unless `real` names them. `secrets` that are not given have made-up values.
    `begin` is the time at which the clock stands.
    """
    known = SimulatedFunctions(function_registry(functions))
    types = simulated_types(known, handlers, settings)
    return SimulatedMill(types, known, fakes=fakes, real=real, secrets=secrets, begin=begin)
