"""A mill for one test: a shared memory store under virtual time, and processes that can be started and killed.

`@simulated` runs an async test in a loop of its own whose clock moves only when nothing else can happen, so that
hours pass in milliseconds. When the story is told, every log that was written is read by the checker of laws and
folded from its snapshot, rows and jobs of ended runs are compared with it, and no task may have died unnoticed.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from tests.engine.door import Call, Door, Trouble
from tests.sim.loop import SimAmbient, SimLoop
from tidemill.blobs.memory import MemoryBlobs
from tidemill.bootstrap import built_in_handlers
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import APPROVAL, DEAD_LETTER, RUN, RunRow, read_run_row
from tidemill.engine.views import RunView
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.expressions.conditions import EvaluationRequest
from tidemill.expressions.sandbox.pool import Isolation
from tidemill.handlers.contract import Handler
from tidemill.kernel.activation import Activation
from tidemill.kernel.codec import decode_event
from tidemill.kernel.events import AnyEvent, RunCreated, RunPatched
from tidemill.kernel.evolve import evolve, replay
from tidemill.kernel.invariants.checker import check_log
from tidemill.kernel.jobs import UNLISTED
from tidemill.kernel.model import Workflow, decode_workflow
from tidemill.kernel.state import State, decode_state, encode_state
from tidemill.stores.contract import Commit, Job, JobView, Stream
from tidemill.stores.memory import MemoryStore

TENANT = "default"
STORY_SECONDS_MAX = 4 * 3600.0
RESULT_SECONDS_MAX = 3_000.0

E = TypeVar("E", bound=AnyEvent)
Story = Callable[..., Awaitable[None]]
Function = Callable[..., Any]

_PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("engine-process", default="")


class Process:
    """An engine with a worker, a keeper and a door of its own; `kill` is SIGKILL, `stop` is a drain."""

    def __init__(self, mill: Mill, name: str, door: Door, ambient: SimAmbient, engine: Engine) -> None:
        self.mill, self.name, self.door, self.ambient, self.engine = mill, name, door, ambient, engine
        self.tasks: dict[asyncio.Task[Any], None] = {}

    async def open(self) -> Process:
        token = _PROCESS.set(self.name)
        try:
            await self.engine.open()
        finally:
            _PROCESS.reset(token)
        return self

    def kill(self) -> None:
        """Nothing of it runs any more, and nothing is cleaned up."""
        self.door.dead = True
        self.mill.processes.pop(self.name, None)
        self.mill.buried.add(self.name)
        for task in list(self.tasks):
            task.cancel()

    async def stop(self) -> None:
        await self.engine.close()
        self.mill.processes.pop(self.name, None)

    def cached(self, run_id: str) -> State | None:
        """The run as this process last knew it."""
        entry = self.engine.run_cache.get(self.mill.stream(run_id))
        return None if entry is None else entry.state

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


def dying_before(process: Process) -> Trouble:
    """The process is killed when it makes the call, which never happens."""

    async def trouble(call: Call) -> Any:
        process.kill()
        await asyncio.Event().wait()

    return trouble


def dying_after(process: Process) -> Trouble:
    """The process is killed before it learns what came of the call, which did happen."""

    async def trouble(call: Call) -> Any:
        await call()
        process.kill()
        await asyncio.Event().wait()

    return trouble


class Here:
    """Decides on the spot what a real engine decides in a child process: simulated time knows no processes."""

    async def holds(self, errand: EvaluationRequest) -> bool:
        return errand.leaf.holds(errand.leaf.bind(errand.scope), errand.scope)

    async def close(self) -> None: ...


class Mill:
    """What the processes of one test share."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.store = MemoryStore(clock=self.now_ms, sleep=self._sleep)
        self.blobs = MemoryBlobs()
        self.processes: dict[str, Process] = {}
        self.buried: set[str] = set()
        """Names of killed processes: what still stirs in them is cancelled at once."""
        self.unjudged: set[str] = set()
        """Runs whose log a test has damaged."""

    def now_ms(self) -> int:
        return int(self.loop.now * 1000)

    async def _sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)

    def build(
        self,
        name: str = "w1",
        *,
        functions: Mapping[str, Function] | None = None,
        handlers: Sequence[Handler] | None = None,
        more: Sequence[Handler] = (),
        work: bool = True,
        audit_every_ms: int = 10_000,
        isolation: Isolation | None = None,
        **options: Any,
    ) -> Process:
        """A process that has not been started yet."""
        door, ambient = Door(self.store), SimAmbient(self.loop, random.Random(name), name)
        engine = Engine(
            store=door,
            blobs=self.blobs,
            ambient=ambient,
            handlers=(*(built_in_handlers(functions) if handlers is None else handlers), *more),
            worker=WorkerOptions(name=name, heart_thread=False, **options) if work else None,
            audit_every_ms=audit_every_ms,
            isolation=isolation or Here(),
        )
        process = self.processes[name] = Process(self, name, door, ambient, engine)
        self.buried.discard(name)
        return process

    async def process(self, name: str = "w1", **options: Any) -> Process:
        """A process at work."""
        return await self.build(name, **options).open()

    # What the store holds

    def stream(self, run_id: str) -> Stream:
        return Stream(TENANT, RUN, run_id)

    async def events(self, run_id: str) -> list[AnyEvent]:
        (tail,) = await self.store.load({self.stream(run_id): 0}, snapshots=False)
        return [decode_event(record) for record in tail.records]

    async def of(self, run_id: str, kind: type[E], node: str | None = None) -> list[E]:
        """The events of one kind, of one node if it is named."""
        found = [event for event in await self.events(run_id) if type(event) is kind]
        return [event for event in found if node is None or getattr(event, "node", None) == node]

    async def kinds(self, run_id: str) -> list[str]:
        return [type(event).__name__ for event in await self.events(run_id)]

    async def state(self, run_id: str) -> State:
        return replay(await self.events(run_id))

    async def jobs(self, run_id: str) -> list[JobView]:
        return await self.store.jobs(self.stream(run_id))

    async def row(self, run_id: str) -> RunRow:
        rows = [row for row in await self.rows() if row.run_id == run_id]
        assert len(rows) == 1, rows
        return rows[0]

    async def rows(self, *terms: str) -> list[RunRow]:
        page = await self.store.find(TENANT, RUN, terms, limit=10_000)
        return [read_run_row(row) for row in page.rows]

    async def meddle(self, run_id: str, *, jobs: tuple[Job, ...] = (), drop: tuple[str, ...] = ()) -> None:
        """Change a run's jobs behind the engine's back."""
        await self.store.commit([Commit(stream=self.stream(run_id), expected=None, jobs=jobs, drop=drop)])

    # Time

    async def until(self, condition: Callable[[], bool], *, within_s: float = 600, step_s: float = 0.01) -> float:
        """Let time pass until something is so; answers how long that took."""
        began = self.loop.now
        while not condition():
            assert self.loop.now - began <= within_s, f"it is still not so after {within_s} s"
            await asyncio.sleep(step_s)
        return self.loop.now - began

    # The end

    async def judge(self) -> None:
        """Everything that must hold of whatever was written."""
        await self._let_messages_arrive()
        for row in await self.rows():
            if row.run_id in self.unjudged:
                continue
            events = await self.events(row.run_id)
            graphs = await self._graphs(events)
            assert check_log(next(iter(graphs.values())), events, graphs) == []
            state = replay(events)
            (short,) = await self.store.load({self.stream(row.run_id): 0})
            folded = State() if short.snapshot is None else decode_state(short.snapshot)
            for record in short.records:
                evolve(folded, decode_event(record))
            assert encode_state(folded) == encode_state(state), "folding the snapshot differs from folding the log"
            if not state.busy:
                assert (row.status, row.events, row.counter) == (state.status, state.seq, 0)
                assert (row.rollback, row.revision, row.digest) == (state.rollback, state.revision, state.digest)
                assert await self.jobs(row.run_id) == [], "jobs are left of a run that has ended"
            await self._judge_lists(row.run_id, state)

    async def _let_messages_arrive(self) -> None:
        """What one run still has to tell another is not left over; but it must not take long."""
        for _ in range(100):
            jobs = [view.job.key for row in await self.rows() for view in await self.jobs(row.run_id)]
            if not any(key.partition("/")[0] in UNLISTED for key in jobs):
                return
            await asyncio.sleep(0.1)

    async def _graphs(self, events: list[AnyEvent]) -> dict[str, Workflow]:
        """The graphs that a run has had, the first one first."""
        digests = [event.digest for event in events if isinstance(event, (RunCreated, RunPatched))]
        return {digest: decode_workflow(await self.blobs.get(TENANT, digest)) for digest in digests}

    async def _judge_lists(self, run_id: str, state: State) -> None:
        """What lists show of a run is what its log says."""
        letters = await self.store.count(TENANT, DEAD_LETTER, [f"run:{run_id}", "status:open"])
        assert letters == state.dead_letters, f"{letters} open dead letters are listed, {state.dead_letters} are open"
        asked = await self.store.count(TENANT, APPROVAL, [f"run:{run_id}", "status:pending"])
        waiting = sum(act.wait is not None and act.wait.on == "human" for act in _activations(state))
        assert asked == waiting, f"{asked} approvals are listed as pending, {waiting} are waited for"

    def spawn(self, loop: Any, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        """The loop's task factory: each task belongs to the process that started it."""
        task = asyncio.Task(coro, loop=loop, **options)
        process = self.processes.get(_PROCESS.get())
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        elif _PROCESS.get() in self.buried:
            loop.call_soon(task.cancel)
        return task


def _activations(state: State) -> list[Activation]:
    items = [item for cell in state.cells.values() if cell.map is not None for _, item in cell.map.known()]
    return [*state.cells.values(), *items]


async def _tell(story: Story, mill: Mill, given: Mapping[str, Any]) -> None:
    async with asyncio.timeout(STORY_SECONDS_MAX):
        await story(mill, **given)
    await mill.judge()
    for process in list(mill.processes.values()):
        process.kill()


@cache
def _freeze() -> None:
    """Leave what was there before the first story out of every collection: it would take longer than the story."""
    gc.collect()
    gc.freeze()


def _live(story: Story, given: Mapping[str, Any]) -> None:
    _freeze()
    loop = SimLoop()
    troubles: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: troubles.append(context))
    asyncio.set_event_loop(loop)
    mill = Mill(loop)
    loop.set_task_factory(mill.spawn)  # type: ignore[arg-type]
    try:
        loop.run_until_complete(_tell(story, mill, given))
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        gc.collect()
        assert not troubles, troubles
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def simulated(story: Story) -> Callable[..., None]:
    """Make a test of an async function whose first argument is its mill; further ones are pytest's to give."""

    def test(**given: Any) -> None:
        _live(story, given)

    test.__name__, test.__qualname__, test.__doc__ = story.__name__, story.__qualname__, story.__doc__
    test.__module__ = story.__module__
    parameters = list(inspect.signature(story).parameters.values())[1:]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    for name, value in vars(story).items():
        setattr(test, name, value)
    return test
