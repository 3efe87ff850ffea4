"""One simulated world: a shared store, processes with workers and keepers, clients, and everything that goes wrong."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from tests.model.documents import random_document
from tests.simulation.checker import check
from tests.simulation.effects import Effects
from tests.simulation.faults import FaultRates, FaultyStore
from tests.simulation.operators import Operators
from tests.simulation.scripted_handlers import Ledger, Script
from tests.simulation.waits import KID, with_compensators, with_waits
from tidemill.blobs.memory import MemoryBlobs
from tidemill.engine.catalog import Published
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.errors import Rejected, Unavailable
from tidemill.kernel.codec import decode_event
from tidemill.kernel.commands import AnyCommand, Cancel, Pause, Resume, Retry, Rollback
from tidemill.kernel.events import RunCreated
from tidemill.kernel.invariants.checker import LogChecker
from tidemill.kernel.jobs import run_job
from tidemill.kernel.model import Workflow, decode_workflow
from tidemill.stores.contract import Commit, CommitResult, Committed, Job, LeasesLost, Stream
from tidemill.stores.memory import MemoryStore
from tidemill.testing.simulated_loop import SimAmbient, SimLoop

TENANT = "default"
LEASE_MS = 3_000
TROUBLED_S = 90.0
QUIET_S_MAX = 400.0
"""How long nothing may happen in a healed world: the longest wait of a document is forty seconds."""
EMPTY_COMMITS_MAX = 400
EMPTY_COMMITS_PER_RUN = 4
"""A message between runs is settled by a commit without an event, and some worlds have hundreds of children."""

CUT_OFF = (0, 2, 5)
"""Worlds by their seed modulo 7 in which runs are cancelled again and again; those of `seeds.txt` stay as they were."""

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="")


class Broken(AssertionError):
    """The world broke a law."""


class CheckedStore(MemoryStore):
    """The shared store, with every run's log read by the checker as it grows."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world.store_now_ms, sleep=world.sleep_ms)
        self._world = world

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        results = await super().commit(commits)
        for commit, result in zip(commits, results, strict=True):
            if commit.stream.kind != RUN:
                continue
            if isinstance(result, Committed):
                self._world.committed(commit)
            elif isinstance(result, LeasesLost):
                self._world.refused(commit, result)
        return results


class SeenBlobs(MemoryBlobs):
    """Blobs that the world itself can look into."""

    def held(self, tenant: str, digest: str) -> bytes:
        """A blob that must be there: a fact points to it."""
        return self._held[tenant, digest]


class Process:
    """A worker process: it can be killed, stopped, drained and started again."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world, self.name = world, name
        self.identity = f"{name}.{number}"
        self.tasks: dict[asyncio.Task[Any], None] = {}
        rng = random.Random(f"{world.seed}/{self.identity}")
        self.store = FaultyStore(world.store, rng, world.fired, world.odds)
        self.store.on_crash = asyncio.get_running_loop().create_future()
        self.ambient = SimAmbient(world.loop, rng, self.identity)
        self.options = WorkerOptions(
            name=name,
            concurrency=rng.choice((1, 3, 8)),
            lease_ms=LEASE_MS,
            claim_wait_ms=20_000,
            grace_ms=rng.choice((0, 200, 5_000)),
            heart_thread=False,
        )
        self.engine = Engine(
            store=self.store,
            blobs=world.blobs,
            ambient=self.ambient,
            handlers=world.script.handlers(),
            worker=self.options,
            audit_every_ms=15_000,
        )

    @property
    def findings(self) -> int:
        """Runs whose logs this process's keeper takes for damaged."""
        return 0 if self.engine.reconciler is None else self.engine.reconciler.findings

    async def start(self) -> None:
        """Begin to work, under this process's name, so that all its tasks can be killed together."""
        self.world.processes[self.identity] = self
        token = PROCESS.set(self.identity)
        try:
            await self.engine.open()
        finally:
            PROCESS.reset(token)

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, and nothing is cleaned up."""
        self.store.dead = True
        for task in list(self.tasks):
            task.cancel()
        self.world.processes.pop(self.identity, None)


class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.seed, self.loop = seed, loop
        self.rng = random.Random(seed)
        self.fired: Counter[str] = Counter()
        self.behaved: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.clock_offset_ms = 0
        self.frozen_at_ms: int | None = None
        heat = self.rng.choice((0.0, 0.3, 1.0, 2.0))
        base = FaultRates()
        self.odds = FaultRates(base.slow, base.error * heat, base.crash * heat, base.claim * heat, base.stale * heat)
        self.meddling = heat > 0
        self.cuts = self.meddling and seed % 7 in CUT_OFF
        self.blobs = SeenBlobs()
        self.ledger = Ledger()
        self.effects = Effects(self.ledger)
        self._flows: dict[str, Workflow] = {}
        trouble = self.rng.choice((0.0, 0.1, 0.3))
        self.script = Script(seed, self.ledger, self.behaved, trouble, self._choices)
        self.store = CheckedStore(self)
        self.operators = Operators(self)
        self.processes: dict[str, Process] = {}
        self.checkers: dict[str, LogChecker] = {}
        self.forks: dict[str, str] = {}
        """Forks by run, with the run that they were forked from."""
        self.acknowledged: list[tuple[str, str]] = []
        """(run, command id) of client commands that were answered."""
        self.empty_commits = 0
        self.last_event_s = 0.0
        self.broken: list[str] = []
        self.clients: list[Engine] = []
        self._client_stores: list[FaultyStore] = []
        self._numbers: Counter[str] = Counter()
        self._processes_wanted = self.rng.choice((1, 2, 2, 3))

    # The store's side

    def store_now_ms(self) -> int:
        """The one clock by which leases and timers are judged; it may jump or stand still."""
        if self.frozen_at_ms is not None:
            return self.frozen_at_ms
        return int(self.loop.now * 1000) + self.clock_offset_ms

    async def sleep_ms(self, ms: float) -> None:
        """Wait in the loop's time; a frozen store clock must not turn a short wait into a busy one."""
        await asyncio.sleep(max(1.0, ms) / 1000)

    def committed(self, commit: Commit) -> None:
        """Read what was just committed to a run."""
        if not commit.records:
            # Clients may ask as often as they like; a process that keeps committing nothing is in a loop.
            self.empty_commits += bool(PROCESS.get())
            return
        self.last_event_s = self.loop.now
        run = commit.stream.key
        checker, copied = self.checkers.get(run), 0
        if checker is None:
            created = decode_event(commit.records[0])
            assert isinstance(created, RunCreated)
            if created.forked_from is not None:
                self.forks[run], copied = created.forked_from
            checker = self.checkers[run] = LogChecker(self.flow_of(created.digest), self.flow_of)
        if commit.expected != checker.seq:
            self.broken.append(f"{run}: committed at {commit.expected} after {checker.seq}")
        self.behaved["jobs.idle"] += sum(not token for _, token in commit.holds)
        for number, record in enumerate(commit.records):
            event = decode_event(record)
            self.events[type(event).__name__] += 1
            checker.take(event)
            if number >= copied and (wrong := self.effects.read(run, event, commit)):
                self.broken.append(f"{run}: {wrong}")
        if checker.finish():
            self.broken.append(f"{run}: {checker.violations[0]}")

    def refused(self, commit: Commit, result: LeasesLost) -> None:
        """Note the jobs of a refused commit that a worker had in hand."""
        idle = {key for key, token in commit.holds if not token}
        for key in idle.intersection(result.keys):
            self.behaved["jobs.not_idle"] += 1
            self.effects.refused.add((commit.stream.key, key.removeprefix("run/")))

    def flow_of(self, digest: str) -> Workflow:
        """The workflow behind a digest, as the blobs have it."""
        known = self._flows.get(digest)
        if known is None:
            known = self._flows[digest] = decode_workflow(self.blobs.held(TENANT, digest))
        return known

    def _choices(self, run: str, node: str) -> tuple[str, ...]:
        branch = self.checkers[run].workflow.by_id[node].branch
        return branch.available if branch is not None and branch.kind == "agent_driven" else ()

    # Life

    def run(self) -> None:
        """Live through the seed; raises `Broken` when a law does not hold."""
        self.loop.set_task_factory(self._task)
        self.loop.run_until_complete(self._live())

    def _task(self, loop: Any, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **options)
        process = self.processes.get(PROCESS.get())
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    async def _live(self) -> None:
        for _ in range(self._processes_wanted):
            await self._spawn(f"w{len(self.processes)}")
        client = await self._client("client")
        other = await self._client("other")
        self.clients = [client, other]
        await self._publish_kid(client)
        for number in range(self.rng.choice((1, 1, 2, 3))):
            await self._submit(client, number)
        ends, afterwards = self.loop.now + TROUBLED_S, self.rng.choice((0, 2, 5, 12))
        cutter = asyncio.create_task(self._cut_off(ends)) if self.cuts else None
        if self.meddling:
            while self.loop.now < ends and not self.broken:
                if not await self._any_live():
                    afterwards -= 1
                    if afterwards < 0:
                        break
                await asyncio.sleep(self.rng.choice((0.01, 0.3, 2.0, 6.0)))
                await self._something_happens(client)
        if cutter is not None:
            cutter.cancel()
        await self._heal(client)
        await self._must_end()
        await asyncio.sleep(60)
        await self._must_end()
        await self._roll_everything_back(client)
        await self._final_checks()
        for process in list(self.processes.values()):
            process.kill()
        for each in self.clients:
            await each.turns.close()

    async def _spawn(self, name: str) -> Process:
        self._numbers[name] += 1
        process = Process(self, name, self._numbers[name])
        await process.start()
        assert process.store.on_crash is not None
        process.store.on_crash.add_done_callback(lambda _: self._died(process))
        return process

    def _died(self, process: Process) -> None:
        if process.identity in self.processes:
            process.kill()

    async def _client(self, name: str) -> Engine:
        rng = random.Random(f"{self.seed}/{name}")
        store = FaultyStore(self.store, rng, self.fired, FaultRates(self.odds.slow, self.odds.error, 0.0, 0.0, 0.0))
        engine = Engine(
            store=store, blobs=self.blobs, ambient=SimAmbient(self.loop, rng, name), handlers=self.script.handlers()
        )
        engine.turns.open()
        self._client_stores.append(store)
        return engine

    # Clients

    async def _publish_kid(self, client: Engine) -> None:
        document = {**random_document(self.rng, self.rng.choice((1, 2, 4))), "name": KID}
        await _until_answered(lambda: client.publish(document))

    async def _submit(self, client: Engine, number: int) -> str:
        document = _troubled(self.rng, random_document(self.rng, self.rng.choice((3, 5, 8, 12))))
        run = f"run{number}"
        published = await self._published(client, document)
        inputs = {
            "flag": self.rng.random() < 0.5,
            "x": self.rng.randrange(4),
            "items": list(range(self.rng.randrange(5))),
        }
        reference = f"{published.name}@{published.version}"
        times = 2 if self.rng.random() < 0.2 else 1
        await asyncio.gather(*(_until_answered(lambda: client.start(reference, inputs, key=run)) for _ in range(times)))
        self.acknowledged.append((run, f"start:{run}"))
        return run

    async def _published(self, client: Engine, document: dict[str, Any]) -> Published:
        try:
            waiting = with_waits(self.rng, document)
            if self.cuts:
                waiting = with_compensators(random.Random(f"{self.seed}/compensators"), waiting)
            published: Published = await _until_answered(lambda: client.publish(waiting))
            self.behaved["document.waits"] += 1
        except Rejected:
            self.behaved["document.plain"] += 1
            published = await _until_answered(lambda: client.publish(document))
        return published

    async def _command(self, client: Engine, run: str, command: AnyCommand) -> None:
        """Send a command as a client with retries would; remember it once it is acknowledged."""
        for _ in range(20):
            try:
                answer = await client.turns.command(Stream(TENANT, RUN, run), command)
            except Unavailable:
                continue
            if answer.problem is None and command.id is not None:
                self.acknowledged.append((run, command.id))
            return

    # Trouble

    async def _something_happens(self, client: Engine) -> None:
        kind = self.rng.choice(_HAPPENINGS)
        await getattr(self, f"_{kind}")(client)

    def _victim(self) -> Process | None:
        return self.rng.choice(list(self.processes.values())) if self.processes else None

    async def _restart(self, client: Engine) -> None:
        if len(self.processes) < self._processes_wanted:
            if self.rng.random() < 0.3:
                self.fired["process.slow_start"] += 1
                await asyncio.sleep(7)
            name = f"w{self.rng.randrange(self._processes_wanted)}"
            if any(process.name == name for process in self.processes.values()):
                self.fired["process.same_name"] += 1
            await self._spawn(name)

    async def _kill(self, client: Engine) -> None:
        victim = self._victim()
        if victim is not None:
            self.fired["process.crash_loop"] += 1
            victim.kill()

    async def _stop(self, client: Engine) -> None:
        victim = self._victim()
        if victim is None:
            return
        long = self.rng.random() < 0.5
        self.fired["process.stop_long" if long else "process.stop_short"] += 1
        victim.store.gate.clear()
        self.loop.call_later(self.rng.uniform(4, 30) if long else 0.5, victim.store.gate.set)

    async def _drain(self, client: Engine) -> None:
        victim = self._victim()
        if victim is None or not victim.store.gate.is_set():
            return
        self.processes.pop(victim.identity)
        try:
            await asyncio.wait_for(victim.engine.close(), 20)
            name = "process.clean_drain" if victim.options.grace_ms >= 5_000 else "process.drain_timeout"
            self.fired[name] += 1
        except (TimeoutError, Unavailable):
            pass
        victim.kill()

    async def _lose_job(self, client: Engine) -> None:
        found = await self._some_job()
        if found is not None:
            self.fired["queue.job_lost"] += 1
            self.effects.jobs_lost.add((found[0].key, found[1].removeprefix("run/")))
            await self.store.commit([Commit(stream=found[0], expected=None, drop=(found[1],))])

    async def _act(self, client: Engine) -> None:
        await self.operators.act()

    async def _invent_job(self, client: Engine) -> None:
        run = self.rng.choice(list(self.checkers))
        node = self.rng.choice(self.checkers[run].workflow.nodes)
        put = run_job(node, self.rng.choice((1, 1, 2)), self.rng.choice((-1, -1, 0)))
        job = Job(key=put.key, queue=put.queue, body=msgspec.msgpack.encode(put.task))
        self.fired["queue.job_invented"] += 1
        await self.store.commit([Commit(stream=Stream(TENANT, RUN, run), expected=None, jobs=(job,))])

    async def _some_job(self) -> tuple[Stream, str] | None:
        for run in self.rng.sample(list(self.checkers), len(self.checkers)):
            stream = Stream(TENANT, RUN, run)
            jobs = await self.store.jobs(stream)
            if jobs:
                return stream, self.rng.choice(jobs).job.key
        return None

    async def _jump(self, client: Engine) -> None:
        ahead = self.rng.random() < 0.6
        self.fired["time.jump_forward" if ahead else "time.jump_back"] += 1
        self.clock_offset_ms += self.rng.choice((1_000, 4_000, 60_000)) if ahead else -self.rng.choice((100, 4_000))
        if ahead:
            self.fired["queue.leases_expired"] += 1
        self.store.notify_all()

    async def _freeze(self, client: Engine) -> None:
        if self.frozen_at_ms is None:
            self.fired["time.frozen"] += 1
            self.frozen_at_ms = self.store_now_ms()
            self.loop.call_later(5, self._thaw)

    def _thaw(self) -> None:
        self.frozen_at_ms = None
        self.store.notify_all()

    async def _skew(self, client: Engine) -> None:
        victim = self._victim()
        if victim is not None:
            self.fired["time.skew"] += 1
            victim.ambient.skew_ms = self.rng.choice((-3_600_000, -500, 500, 86_400_000))

    async def _meddle(self, client: Engine) -> None:
        run = self.rng.choice(list(self.checkers))
        number = len(self.acknowledged) + self.rng.randrange(1_000_000)
        kind = self.rng.choice(("pause", "resume", "pause", "resume", "cancel"))
        command: AnyCommand
        if kind == "cancel" and self.rng.random() < 0.3:
            undo = True if number % 2 else None
            command = Cancel(id=f"cancel-{number}", reason="meddling", actor="sim", compensate=undo)
        elif kind == "pause":
            command = Pause(id=f"pause-{number}", actor="sim")
        else:
            command = Resume(id=f"resume-{number}", actor="sim")
        twice = self.rng.random() < 0.2
        client = self.rng.choice(self.clients)
        await self._command(client, run, command)
        if twice:
            await self._command(client, run, command)

    async def _cut_off(self, ends: float) -> None:
        """Cancel runs in the middle of what they do, often when a process has just gone, and let some of them go on."""
        rng = random.Random(f"{self.seed}/cuts")
        while self.loop.now < ends:
            await asyncio.sleep(rng.choice((0.05, 0.3, 1.0, 4.0)))
            live = [run for run, checker in self.checkers.items() if checker.status in ("RUNNING", "PAUSED")]
            if not live:
                continue
            run, client = rng.choice(live), rng.choice(self.clients)
            gone = rng.choice(("", "", "kill", "drain", "drain"))
            if gone:
                await getattr(self, f"_{gone}")(client)
            for number in range(rng.choice((1, 1, 2))):
                name = f"{len(self.acknowledged)}-{rng.randrange(1_000_000)}"
                if number:
                    await self._command(client, run, Retry(id=f"retry:{name}", actor="sim"))
                undo = rng.choice((None, None, False, True))
                await self._command(client, run, Cancel(id=f"cut-{name}", actor="sim", compensate=undo))
            if rng.random() < 0.7:
                await self._command(client, run, Retry(id=f"retry:{name}-again", actor="sim"))

    # Healing and judging

    async def _any_live(self) -> bool:
        busy = await self.store.count(TENANT, RUN, ["live"]) + await self.store.count(TENANT, RUN, ["rollback:running"])
        return busy > 0

    async def _heal(self, client: Engine) -> None:
        self._thaw()
        for store in self._client_stores:
            store.healed()
        for process in self.processes.values():
            process.store.healed()
            process.ambient.skew_ms = 0
        self.odds = FaultRates(slow=0.05, error=0.0, crash=0.0, claim=0.0, stale=0.0)
        if not self.processes:
            await self._spawn("w0")
        for run in list(self.checkers):
            # Whoever asks may know an old state of the run; the answer must hold all the same.
            await self._command(self.rng.choice(self.clients), run, Resume())

    async def _must_end(self) -> None:
        self.last_event_s = self.loop.now
        while await self._any_live():
            if self.broken:
                raise Broken(self.broken[0])
            if self.loop.now > self.last_event_s + QUIET_S_MAX:
                raise Broken(f"no progress: {await self._stuck()}")
            await self.operators.diligent()
            if not self.processes:
                # The last one died of a fault that struck in the very moment of healing.
                await self._spawn("w0")
            await asyncio.sleep(3)
        if self.broken:
            raise Broken(self.broken[0])

    async def _roll_everything_back(self, client: Engine) -> None:
        """What every run has done shall be undone, or named as what is left."""
        for run in list(self.checkers):
            await self._command(client, run, Rollback(id=f"rollback:undo-{run}", actor="sim"))
        await self._must_end()

    async def _stuck(self) -> str:
        found = []
        for run, checker in list(self.checkers.items()):
            if checker.status in ("RUNNING", "PAUSED") or await self.store.jobs(Stream(TENANT, RUN, run)):
                jobs = [view.job.key for view in await self.store.jobs(Stream(TENANT, RUN, run))]
                found.append(f"{run} {checker.status} counter {checker.counter}, jobs {jobs}")
        return "; ".join(found)

    async def _final_checks(self) -> None:
        for run in list(self.checkers):
            for complaint in await check(self, run):
                raise Broken(f"{run}: {complaint}")
        verdict = await self.clients[0].verify_log()
        for finding in verdict.findings:
            raise Broken(f"{finding.run}: verify-log found {finding}")
        if found := [process for process in self.processes.values() if process.findings]:
            raise Broken(f"the keeper of {found[0].identity} found {found[0].findings} runs with damage")
        if self.empty_commits > EMPTY_COMMITS_MAX + EMPTY_COMMITS_PER_RUN * len(self.checkers):
            raise Broken(f"hot loop: {self.empty_commits} commits without an event")


_HAPPENINGS = (
    ["kill"] * 3 + ["restart"] * 5 + ["stop"] * 2 + ["drain"] * 2 + ["lose_job", "invent_job"]
    + ["jump", "freeze", "skew"] + ["meddle"] * 3 + ["act"] * 20
)  # fmt: skip


def _troubled(rng: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """Add what the kernel's generator leaves out because it knows no time: time-outs, deadlines, byte limits."""
    for node in document["nodes"]:
        if rng.random() < 0.15:
            node["timeout_seconds"] = rng.choice((1, 3, 10))
    limits = document.setdefault("limits", {})
    if rng.random() < 0.15:
        limits["deadline_seconds"] = rng.choice((5, 30, 120))
    if rng.random() < 0.05:
        limits["max_bytes"] = 400
    return document


async def _until_answered(ask: Any) -> Any:
    """What a client does when it gets no answer: ask again, with the same key."""
    for _ in range(100):
        try:
            return await ask()
        except Unavailable:
            continue
        except Rejected:
            raise
    raise Broken("the store never answered")


def live(seed: int) -> World:
    """Live through one seed in a loop of its own."""
    loop = SimLoop()
    # Killed processes leave tasks behind that will never run again; asyncio need not remark on it.
    loop.set_exception_handler(lambda loop, context: None)
    asyncio.set_event_loop(loop)
    try:
        world = World(seed, loop)
        world.run()
        return world
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
