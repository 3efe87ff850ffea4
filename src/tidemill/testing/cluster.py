"""Simulated processes over one store in memory: they are started, killed, and watched at every boundary.

A boundary is a place at which a process may die: just before or just after a commit, before or after a job is sent to
it, before or after an effect. `complaints` reads everything that was written with the checker of the laws, which knows
nothing of the engine. Nothing here knows fakes or the command line.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from tidemill.blobs.memory import MemoryBlobs
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import APPROVAL, DEAD_LETTER, RUN, RunRow, read_run_row
from tidemill.engine.views import RunView
from tidemill.expressions.conditions import EvaluationRequest
from tidemill.expressions.sandbox.tasks import SandboxTask, execute
from tidemill.handlers.contract import Handler, NodeClass, handler_of
from tidemill.handlers.discovery import NodeTypeSource
from tidemill.kernel.activation import Activation, NodeStatus
from tidemill.kernel.codec import decode_event, decode_state, encode_state
from tidemill.kernel.events import (
    AnyEvent,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    Error,
    NodeCancelled,
    NodeCompleted,
    NodeEvent,
    NodeFailed,
    NodeSkipped,
    RunCreated,
    RunPatched,
)
from tidemill.kernel.evolve import evolve, replay
from tidemill.kernel.invariants.checker import check_log
from tidemill.kernel.jobs import UNLISTED
from tidemill.kernel.model import Workflow, decode_workflow
from tidemill.kernel.state import State
from tidemill.node_types import NodeTypes, node_types
from tidemill.security.grants import ANY
from tidemill.settings import Settings, read_settings
from tidemill.stores.contract import Commit, JobView, Lease, Stream
from tidemill.stores.memory import MemoryStore
from tidemill.testing.faulty_store import Call, FaultyStore, Trouble
from tidemill.testing.simulated_loop import SimAmbient, SimLoop, SimulatedFunctions

TENANT = "default"
RESULT_SECONDS_MAX = 3_000.0
EVENTS_SHOWN_MAX = 4
GRANTED = ("shell", "sql")
"""Types that check what the operator has granted."""
UNDO = "/undo"
"""What the compensator of a node is called: `book/undo`. Its effect keys end in the same."""

_PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("simulated-process", default="")

When = Literal["before", "after"]
Kind = Literal["commit", "send", "effect"]


class Boundary(NamedTuple):
    """A place at which a process may die. A job is sent to the worker that claims it."""

    when: When
    kind: Kind
    nodes: tuple[str, ...]
    """Compensators as `node/undo`."""
    about: str
    """What is committed, sent or done, in a few words."""

    def __str__(self) -> str:
        return f"{self.when} {self.kind}: {self.about}"


class CrashPlan:
    """Sees every boundary that processes reach, in order, and says at which of them the process dies."""

    def __init__(self, dies: Callable[[Boundary], bool]) -> None:
        self._dies = dies
        self.reached: list[Boundary] = []
        self.crashes: list[Boundary] = []

    def meets(self, boundary: Boundary) -> bool:
        """Note a boundary; whether the process dies there."""
        self.reached.append(boundary)
        if not self._dies(boundary):
            return False
        self.crashes.append(boundary)
        return True


class Process:
    """An engine of its own, with a worker if it has one; `kill` is SIGKILL, `stop` is a drain."""

    def __init__(
        self, mill: Cluster, name: str, faulty_store: FaultyStore, ambient: SimAmbient, engine: Engine
    ) -> None:
        self.mill, self.name, self.faulty_store, self.ambient, self.engine = mill, name, faulty_store, ambient, engine
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._plan: CrashPlan | None = None

    async def open(self) -> Process:
        token = _PROCESS.set(self.name)
        try:
            await self.engine.open()
        finally:
            _PROCESS.reset(token)
        return self

    def kill(self) -> None:
        """Nothing of it runs any more, and nothing is cleaned up."""
        self.faulty_store.dead = True
        lived = self.mill.processes.pop(self.name, None) is self
        self.mill.buried.add(self.name)
        for task in list(self.tasks):
            task.cancel()
        # The streams of the real process are not its own.
        self.engine.release_output()
        if lived and self.mill.on_kill is not None:
            self.mill.on_kill(self)

    async def stop(self) -> None:
        await self.engine.close()
        self.mill.processes.pop(self.name, None)

    async def publish(self, document: Any) -> str:
        published = await self.engine.publish(document)
        return f"{published.name}@{published.version}"

    async def start(self, document: Any, inputs: Any = None, **options: Any) -> str:
        """Publish a document, unless it is the name of one, and start it."""
        reference = document if isinstance(document, str) else await self.publish(document)
        return await self.engine.start(reference, inputs, **options)

    async def end(self, run_id: str) -> RunView:
        return await self.engine.result(run_id, timeout_s=RESULT_SECONDS_MAX)

    async def run(self, document: Any, inputs: Any = None, **options: Any) -> RunView:
        return await self.end(await self.start(document, inputs, **options))

    # Boundaries

    def follow(self, plan: CrashPlan) -> None:
        """Let a plan see every boundary of this process, and kill it where the plan says."""
        self._plan = plan
        self.faulty_store.around = self._around

    async def reach(self, when: When, kind: Kind, nodes: tuple[str, ...], about: str) -> None:
        """Pass a boundary, or die at it."""
        if self._plan is not None and self._plan.meets(Boundary(when, kind, nodes, about)):
            await self._die()

    async def _die(self) -> None:
        self.kill()
        await asyncio.Event().wait()

    async def _around(self, verb: str, given: Any, call: Call) -> Any:
        if verb == "commit":
            nodes, about = _committed(given)
            if not about:
                return await call()
            await self.reach("before", "commit", nodes, about)
            answer = await call()
            await self.reach("after", "commit", nodes, about)
            return answer
        leases: list[Lease] = await call()
        sent = [lease.key for lease in leases if lease.stream.kind == RUN]
        if sent and self._plan is not None:
            nodes, about = tuple(filter(None, map(_node_of, sent))), ", ".join(map(_job_name, sent))
            if self._plan.meets(Boundary("before", "send", nodes, about)):
                # What the store has not sent yet is ready for any other worker.
                await self.mill.store.release(leases)
                await self._die()
            await self.reach("after", "send", nodes, about)
        return leases


def _node_of(key: str) -> str:
    kind, *parts = key.split("/")
    return f"{parts[0]}{UNDO if kind == 'undo' else ''}" if parts else ""


def _job_name(key: str) -> str:
    """A job by its kind and node, e.g. `run charge`."""
    return " ".join(filter(None, (key.partition("/")[0], _node_of(key).removesuffix(UNDO))))


def _committed(commits: Sequence[Commit]) -> tuple[tuple[str, ...], str]:
    """The nodes that commits of runs are about, and what they write; empty if they change no run."""
    mine = [commit for commit in commits if commit.stream.kind == RUN]
    events = [decode_event(record) for commit in mine for record in commit.records]
    nodes = [
        f"{node}{UNDO if isinstance(event, (CompensationScheduled, CompensationCompleted, CompensationFailed)) else ''}"
        for event in events
        if (node := getattr(event, "node", ""))
    ]
    said = [" ".join(filter(None, (type(event).__name__, getattr(event, "node", "")))) for event in events]
    if len(said) > EVENTS_SHOWN_MAX:
        said = [*said[:EVENTS_SHOWN_MAX], f"{len(said) - EVENTS_SHOWN_MAX} more events"]
    if not said:
        said = [f"{_job_name(key)} settled" for commit in mine for key, _ in commit.acks]
    return tuple(dict.fromkeys(nodes)), ", ".join(said)


class VisitEnd(NamedTuple):
    """How a visit, an item of a map or a compensation ended, as the log says."""

    node: str
    """A node, or `node/undo` for its compensator."""
    status: NodeStatus
    error: Error | None = None
    tolerated: bool = False
    """It failed, and `on_error` or the map lets the run go on."""


class RunLog(NamedTuple):
    """What the log of a run says."""

    workflow: str
    status: str
    parent: str
    """Of a child run: the effect key of the visit or item that started it."""
    ends: dict[str, VisitEnd]
    """By effect key."""


def _ends(run_id: str, events: Sequence[AnyEvent]) -> dict[str, VisitEnd]:
    found: dict[str, VisitEnd] = {}
    for event in events:
        if not isinstance(event, NodeEvent):
            continue
        key = effect_key(run_id, event.node, event.visit, event.index)
        match event:
            case NodeCompleted():
                found[key] = VisitEnd(event.node, "COMPLETED")
            case NodeFailed(retry_at_ms=None):
                found[key] = VisitEnd(event.node, "FAILED", event.error, event.tolerated)
            case NodeSkipped():
                found[key] = VisitEnd(event.node, "SKIPPED")
            case NodeCancelled():
                found[key] = VisitEnd(event.node, "CANCELLED")
            case CompensationCompleted():
                found[f"{key}{UNDO}"] = VisitEnd(f"{event.node}{UNDO}", "COMPLETED")
            case CompensationFailed(retry_at_ms=None):
                found[f"{key}{UNDO}"] = VisitEnd(f"{event.node}{UNDO}", "FAILED", event.error)
    return found


def effect_key(run_id: str, node: str, visit: int, index: int) -> str:
    """What `NodeContext.effect_key` is for the attempts of a visit or item."""
    return f"{run_id}/{node}/{visit}/{index}"


def dying_before(process: Process) -> Trouble:
    """The process is killed when it makes the call, which never happens."""

    async def trouble(call: Call) -> Any:
        process.kill()
        await asyncio.Event().wait()

    return trouble


def dying_after(process: Process) -> Trouble:
    """The process is killed before it learns the answer to the call, which did happen."""

    async def trouble(call: Call) -> Any:
        await call()
        process.kill()
        await asyncio.Event().wait()

    return trouble


class InlineIsolation:
    """Decides on the spot what a real engine decides in a child process: simulated time knows no processes."""

    async def holds(self, request: EvaluationRequest) -> bool:
        return request.leaf.holds(request.leaf.bind(request.scope), request.scope)

    async def execute(self, task: SandboxTask) -> Any:
        return msgspec.json.decode(execute(task, lambda leaf, scope: leaf.holds(leaf.bind(scope), scope)))

    async def close(self) -> None: ...


class FakeSecrets:
    """A value for every secret, so that workflows that need them can be simulated."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def get(self, name: str) -> str | None:
        return self._given.get(name, f"secret-{name}")


def simulated_types(
    functions: SimulatedFunctions, handlers: Sequence[Handler | NodeClass] = (), settings: Settings | None = None
) -> NodeTypes:
    """The node types of a simulation; they can be shared by many."""
    settings = settings or read_settings()
    if settings.imports is None:
        settings = msgspec.structs.replace(settings, imports=ANY)
    types = node_types(functions, [handler_of(each) for each in handlers], InlineIsolation(), None, settings)
    return types._replace(offers=tuple(map(_without_grants, types.offers)))


def _without_grants(offer: NodeTypeSource) -> NodeTypeSource:
    """A type that does not ask what the operator has granted: its nodes are faked."""
    handler = offer.handler
    if handler.type.name not in GRANTED:
        return offer
    return offer._replace(handler=replace(handler, type=msgspec.structs.replace(handler.type, check=None)))


class Cluster:
    """What the processes of one simulation share. `epoch_ms` is the wall clock's time at loop time 0."""

    process_class: ClassVar[type[Process]] = Process

    def __init__(self, loop: SimLoop, epoch_ms: int = 0) -> None:
        self.loop, self.epoch_ms = loop, epoch_ms
        self.store = MemoryStore(clock=self.now_ms, sleep=self._sleep)
        self.blobs = MemoryBlobs()
        self.processes: dict[str, Process] = {}
        self.buried: set[str] = set()
        """Names of killed processes: what still stirs in them is cancelled at once."""
        self.on_kill: Callable[[Process], None] | None = None

    def now_ms(self) -> int:
        return int(self.loop.now * 1000) + self.epoch_ms

    async def _sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    def add(self, name: str, engine: Callable[[FaultyStore, SimAmbient], Engine]) -> Process:
        """A process with the engine that `engine` makes; it is not open yet."""
        faulty_store, ambient = FaultyStore(self.store), SimAmbient(self.loop, random.Random(name), name)
        ambient.skew_ms = self.epoch_ms
        process = self.process_class(self, name, faulty_store, ambient, engine(faulty_store, ambient))
        self.processes[name] = process
        self.buried.discard(name)
        return process

    def spawn(self, loop: Any, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        """The loop's task factory: each task belongs to the process that started it."""
        task = asyncio.Task(coro, loop=loop, **options)
        given = options.get("context")
        name = _PROCESS.get() if given is None else given.get(_PROCESS, "")
        process = self.processes.get(name)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        elif name in self.buried:
            loop.call_soon(task.cancel)
        return task

    @property
    def calls(self) -> int:
        """How often living processes have asked the store for something."""
        return sum(process.faulty_store.calls.total() for process in self.processes.values())

    # What the store holds

    def stream(self, run_id: str) -> Stream:
        return Stream(TENANT, RUN, run_id)

    async def events(self, run_id: str) -> list[AnyEvent]:
        (tail,) = await self.store.load({self.stream(run_id): 0}, snapshots=False)
        return [decode_event(record) for record in tail.records]

    async def state(self, run_id: str) -> State:
        return replay(await self.events(run_id))

    async def jobs(self, run_id: str) -> list[JobView]:
        return await self.store.jobs(self.stream(run_id))

    async def rows(self, *terms: str) -> list[RunRow]:
        page = await self.store.find(TENANT, RUN, terms, limit=10_000)
        return [shown for row in page.rows if (shown := read_run_row(row)) is not None]

    async def awaited_signals(self) -> list[tuple[str, str]]:
        """Runs and names of the signals that their nodes wait for."""
        states = {row.run_id: await self.state(row.run_id) for row in await self.rows("live")}
        waits = [(run_id, act.wait) for run_id, state in states.items() for act in activations(state)]
        found = [(run_id, wait.name) for run_id, wait in waits if wait is not None and wait.on == "signal"]
        return list(dict.fromkeys(found))

    async def next_due_ms(self) -> int | None:
        """When the next thing happens in any run by time alone: a timer, or a lease that expires."""
        # A run that has ended may still have to report to its parent, or be rolled back.
        jobs = [view for row in await self.rows() for view in await self.jobs(row.run_id)]
        # A live worker renews its leases: there it is the handler that ends, by a timer of its own.
        views = [view for view in jobs if view.owner not in self.processes]
        due = [view.lease_expires_at_ms or view.job.ready_at_ms for view in views]
        timer = self.loop.next_timer() if len(views) < len(jobs) else None
        if timer is not None:
            due.append(math.ceil(timer * 1000) + self.epoch_ms)
        return min(due, default=None)

    async def logs(self) -> dict[str, RunLog]:
        """What the logs of all runs say, by run."""
        found: dict[str, RunLog] = {}
        for row in await self.rows():
            events = await self.events(row.run_id)
            created = next((event.parent for event in events if isinstance(event, RunCreated)), None)
            parent = "" if created is None else effect_key(*created)
            found[row.run_id] = RunLog(row.workflow, row.status, parent, _ends(row.run_id, events))
        return found

    # What must hold

    async def complaints(self, ignored: frozenset[str] = frozenset()) -> list[str]:
        """Everything that is wrong with what was written; `ignored` are runs whose log was damaged on purpose."""
        await self._let_messages_arrive()
        found: list[str] = []
        for row in await self.rows():
            if row.run_id not in ignored:
                found += [f"{row.run_id}: {each}" for each in await self._complaints_of(row)]
        return found

    async def _complaints_of(self, row: RunRow) -> list[str]:
        events = await self.events(row.run_id)
        graphs = await self._graphs(events)
        found = [str(violation) for violation in check_log(next(iter(graphs.values())), events, graphs)]
        state = replay(events)
        (short,) = await self.store.load({self.stream(row.run_id): 0})
        folded = State() if short.snapshot is None else decode_state(short.snapshot)
        for record in short.records:
            evolve(folded, decode_event(record))
        if encode_state(folded) != encode_state(state):
            found.append("folding the snapshot differs from folding the log")
        if not state.busy:
            shown = (row.status, row.events, row.counter, row.rollback, row.revision, row.digest)
            log = (state.status, state.seq, 0, state.rollback, state.revision, state.digest)
            if shown != log:
                found.append(f"the list shows {shown}, the log says {log}")
            if jobs := await self.jobs(row.run_id):
                found.append(f"jobs are left of a run that has ended: {', '.join(view.job.key for view in jobs)}")
        return found + await self._complaints_of_lists(row.run_id, state)

    async def _complaints_of_lists(self, run_id: str, state: State) -> list[str]:
        """Where lists show something else than the log of a run."""
        letters = await self.store.count(TENANT, DEAD_LETTER, [f"run:{run_id}", "status:open"])
        asked = await self.store.count(TENANT, APPROVAL, [f"run:{run_id}", "status:pending"])
        waiting = sum(act.wait is not None and act.wait.on == "human" for act in activations(state))
        found = []
        if letters != state.dead_letters:
            found.append(f"{letters} open dead letters are listed, {state.dead_letters} are open")
        if asked != waiting:
            found.append(f"{asked} approvals are listed as pending, {waiting} are waited for")
        return found

    async def _let_messages_arrive(self) -> None:
        """Messages between runs that are still to be delivered are no leftovers; but delivery must not take long."""
        for _ in range(100):
            jobs = [view.job.key for row in await self.rows() for view in await self.jobs(row.run_id)]
            if not any(key.partition("/")[0] in UNLISTED for key in jobs):
                return
            await asyncio.sleep(0.1)

    async def _graphs(self, events: list[AnyEvent]) -> dict[str, Workflow]:
        """The graphs that a run has had, the first one first."""
        digests = [event.digest for event in events if isinstance(event, (RunCreated, RunPatched))]
        return {digest: decode_workflow(await self.blobs.get(TENANT, digest)) for digest in digests}


def activations(state: State) -> list[Activation]:
    """Visits of a run and items of its maps."""
    items = [item for cell in state.cells.values() if cell.map is not None for _, item in cell.map.known()]
    return [*state.cells.values(), *items]
