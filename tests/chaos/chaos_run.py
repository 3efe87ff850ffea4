"""A storm: workers at work, a client that starts runs, and everything that is done to them, chosen by a seed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.client import DONE, read_acks
from tests.chaos.clock import JUMPS_MS, Clock
from tests.chaos.stores import CUTS, KEYS, STORES, ServedStore, kill
from tests.chaos.worker_fleet import Process, WorkerProcess, ended_at_last, module, until

AIM_S = 0.1
"""How long every other kill waits for a commit to begin."""
DRAINED_S = 30.0
ACCEPTS_S, PROGRESS_S = 60.0, 100.0
"""A server that was killed accepts again in a second or two, and there is progress 10 s later at the latest on a quiet
machine; the limits only keep a storm from hanging."""
CLIENT_S = 120.0
COMMIT_SOON_S = 0.5
CUTS_AT_ONCE = 3
JUMP_PAUSE_S = (0.2, 1.5)
HAPPENINGS = {
    "kill": 10,
    "kill_young": 5,
    "kill_all": 2,
    "kill_stopped": 2,
    "kill_draining": 1,
    "kill_client": 2,
    "stop_short": 4,
    "stop_long": 6,
    "drain": 2,
}
"""What happens, and how often beside the others. It is dealt like cards, so that everything has its turn. A store has
cards of its own."""


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """How large a storm is, and when it is over: once all runs are started and there were so many faults."""

    seed: int
    store: str = "sqlite"
    runs: int
    seconds: float
    kills: int
    stops: int
    workers: int = 3
    jumping_clocks: bool = False
    pause_s: tuple[float, float] = (0.1, 1.2)
    cards: tuple[str, ...] = ()
    """What happens, in this order and then no more, instead of cards that are dealt until the faults are enough."""
    progress_s: float = 60.0
    """How long the runs may take to end once nothing happens to the processes any more."""

    @property
    def calm(self) -> bool:
        """Nothing is to happen at all."""
        return not self.kills and not self.stops and not self.cards


@dataclass
class Stopped:
    """When a process stood still, by the machine's clock."""

    pid: int
    begin_ns: int
    end_ns: int = 0


@dataclass
class ChaosRun:
    """What was done."""

    disturbance: Disturbance
    folder: Path
    fired: Counter[str] = field(default_factory=Counter)
    stopped: list[Stopped] = field(default_factory=list)
    killed: dict[int, int] = field(default_factory=dict)
    """Processes that were killed, and when."""
    recovery_s: float = 0.0
    progress_s: list[float] = field(default_factory=list)
    """After each restart of the server: from the moment at which it accepts to the next commit of a worker."""
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"storm {self.disturbance.seed}")
        self.store = STORES[self.disturbance.store](self.folder)
        self._cards = list(reversed(self.disturbance.cards))
        self._at_work: list[WorkerProcess] = []
        self._draining: list[WorkerProcess] = []
        self._standing: list[tuple[float, WorkerProcess, Stopped]] = []
        self._client: Process | None = None
        self._begin = self._enough_at = 0.0
        self._clock = Clock(self.folder / "clock")
        self._furthest_ms = 0
        self._next_jump = 0.0

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.fired.items() if name.startswith("SIGKILL"))

    @property
    def stops(self) -> int:
        return self.fired["SIGSTOP"]

    @property
    def acks_file(self) -> Path:
        return self.folder / "acks.txt"

    # Life

    def rage(self) -> None:
        """Live through it, and let everything come to rest."""
        with ended_at_last(self.processes):
            self._begin = time.time()
            self._ask()
            for _ in range(self.disturbance.workers):
                self._spawn()
            if self.disturbance.cards:
                self._await(lambda: all(worker.has_claimed for worker in self._at_work), ACCEPTS_S, "all are at work")
            while not self._over():
                self._pause(self._rng.uniform(*self.disturbance.pause_s))
                if not self.disturbance.calm:
                    self._happen()
            self._heal()

    def _over(self) -> bool:
        enough = self.kills >= self.disturbance.kills and self.stops >= self.disturbance.stops
        if self.disturbance.cards:
            enough = not self._cards
        if enough and not self._enough_at:
            self._enough_at = max(time.time(), self._begin + self.disturbance.seconds)
        assert not enough or time.time() < self._enough_at + CLIENT_S, "the client does not come to its end"
        return enough and (DONE, "") in read_acks(self.acks_file)

    def _heal(self) -> None:
        """Let everybody go on, replace what is gone, wait until no run is left unfinished, and drain."""
        from tests.chaos.checker import unfinished

        for _, worker, stop in self._standing:
            self._continue(worker, stop)
        self._standing.clear()
        # A timer that was set by a clock far ahead comes due when the clock gets there.
        self._clock.set(max(self._clock.offset_ms, self._furthest_ms))
        left: list[str] = []

        def at_rest() -> bool:
            left[:] = unfinished(self.store.url)
            time.sleep(0.2 if left else 0)
            return not left

        try:
            self.recovery_s = until(at_rest, self.disturbance.progress_s, "every run has ended")
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(left)} left: {left[:10]}") from None
        for worker in self._at_work:
            worker.send(signal.SIGTERM)
        for worker in (*self._draining, *self._at_work):
            # One that had not begun yet knows no drain, and has nothing to give back.
            well = (0,) if worker.ready else (0, -signal.SIGTERM)
            assert worker.wait(DRAINED_S) in well, f"{worker.name} did not end well: {worker.err.read_text()}"

    # Processes

    def _spawn(self) -> WorkerProcess:
        name = f"worker-{len(self.processes):04}"
        worker = WorkerProcess(self.folder, name, self.store.work_url, lease_ms=self.store.lease_ms)
        self.processes.append(worker)
        self._at_work.append(worker)
        return worker

    def _ask(self) -> None:
        disturbance = self.disturbance
        options = {
            "store": self.store.work_url,
            "acks": self.acks_file,
            "clock": self.folder / "clock",
            "seed": disturbance.seed,
            "runs": disturbance.runs,
            "begin": self._begin,
            "seconds": disturbance.seconds,
        }
        self._client = Process(self.folder, f"client-{len(self.processes):04}", module("tests.chaos.client", options))
        self.processes.append(self._client)

    def _pause(self, seconds: float) -> None:
        """Let time pass; who has stood still for long enough goes on."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self._maybe_jump()
            due = [each for each in self._standing if each[0] <= time.monotonic()]
            for each in due:
                self._standing.remove(each)
                self._continue(each[1], each[2])
            time.sleep(min(0.02, left))
        for worker in self._at_work:
            assert worker.alive, f"{worker.name} has ended by itself: {worker.err.read_text()}"
        if self._client is not None and not self._client.alive and (DONE, "") not in read_acks(self.acks_file):
            raise AssertionError(f"the client has ended by itself: {self._client.err.read_text()}")

    def _maybe_jump(self) -> None:
        """Set the clock now and then, where it is to be set at all."""
        if not self.disturbance.jumping_clocks or time.monotonic() < self._next_jump:
            return
        self._next_jump = time.monotonic() + self._rng.uniform(*JUMP_PAUSE_S)
        offset_ms = self._rng.choice((0, *JUMPS_MS))
        if offset_ms != self._clock.offset_ms:
            self._note(f"the clock was set {'forward' if offset_ms > self._clock.offset_ms else 'back'}")
        self._furthest_ms = max(self._furthest_ms, offset_ms)
        self._clock.set(offset_ms)

    def _note(self, name: str, process: Process | None = None) -> None:
        """Count a fault, and write down when it was, for whoever has to find out what it led to."""
        self.fired[name] += 1
        whom = "" if process is None else f" {process.name} {process.pid}"
        with (self.folder / "storm.log").open("a") as log:
            log.write(f"{time.time_ns()} {name}{whom}\n")

    # What happens

    def _happen(self) -> None:
        if not self._cards:
            if self.disturbance.cards:
                return
            dealt = {**HAPPENINGS, **self.store.happenings}
            self._cards = [name for name, count in dealt.items() for _ in range(count)]
            self._rng.shuffle(self._cards)
        name = self._cards.pop()
        running = [worker for worker in self._at_work if not worker.stopped and worker.alive]
        if name in self.store.happenings:
            self._happen_to_store(name)
        elif name == "kill_client":
            self._kill_client()
        elif name == "kill_all":
            for worker in list(self._at_work):
                self._kill(worker, "SIGKILL worker, all at once")
            for _ in range(self.disturbance.workers):
                self._spawn()
        elif running:
            self._happen_to(name, self._rng.choice(running))

    def _happen_to(self, name: str, worker: WorkerProcess) -> None:
        match name:
            case "kill":
                self._kill(worker, "SIGKILL worker")
                self._spawn()
            case "kill_young":
                self._kill_young(worker)
            case "kill_stopped":
                self._kill_stopped(worker)
            case "kill_draining":
                self._kill_draining(worker)
            case "stop_short":
                self._stop(worker, self._rng.uniform(0.05, 0.5))
            case "stop_long":
                self._stop(worker, self._rng.uniform(1.2, 3.0) * self.store.lease_ms / 1_000)
            case "drain":
                self._drain(worker)

    def _kill(self, worker: WorkerProcess, name: str) -> None:
        young = worker.alive and worker.ready and not worker.has_claimed
        if self.kills % 2:
            # On a fast disk a commit is so short that kills at random moments miss it.
            deadline = time.monotonic() + AIM_S
            while worker.alive and not worker.committing and time.monotonic() < deadline:
                time.sleep(0.00002)
        worker.kill()
        self._note(name, worker)
        self.fired["a commit was in flight"] += worker.committing
        self.fired["it had only just begun"] += young
        self.killed[worker.pid] = time.time_ns()
        self._forget(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        if worker in self._at_work:
            self._at_work.remove(worker)
        for each in [each for each in self._standing if each[1] is worker]:
            self._standing.remove(each)
            each[2].end_ns = time.time_ns()

    def _kill_young(self, worker: WorkerProcess) -> None:
        """Kill the one that takes over from a killed one, as soon as it works or even before."""
        self._kill(worker, "SIGKILL worker")
        successor = self._spawn()
        while not successor.ready:
            # Whoever was stopped amid a transaction has to go on, or nobody can open the file.
            self._pause(0.02)
        self._pause(self._rng.uniform(0, 0.1))
        self._kill(successor, "SIGKILL worker, recovering")
        self._spawn()

    def _kill_stopped(self, worker: WorkerProcess) -> None:
        self._stop(worker, 60.0)
        self._pause(self._rng.uniform(0.1, 1.5))
        if worker in self._at_work:
            self._kill(worker, "SIGKILL worker, stopped")
            self._spawn()

    def _kill_draining(self, worker: WorkerProcess) -> None:
        worker.send(signal.SIGTERM)
        self._forget(worker)
        self._pause(self._rng.uniform(0, 0.1))
        if worker.alive:
            self._kill(worker, "SIGKILL worker, draining")
        self._spawn()

    def _drain(self, worker: WorkerProcess) -> None:
        """Tell it to stop, and start another one while it finishes what it has in hand."""
        worker.send(signal.SIGTERM)
        self._forget(worker)
        self._draining.append(worker)
        self._note("SIGTERM", worker)
        self._spawn()

    def _stop(self, worker: WorkerProcess, seconds: float) -> None:
        worker.stop()
        stop = Stopped(worker.pid, time.time_ns())
        self.stopped.append(stop)
        self._note("SIGSTOP", worker)
        self._standing.append((time.monotonic() + seconds, worker, stop))

    def _continue(self, worker: WorkerProcess, stop: Stopped) -> None:
        stop.end_ns = time.time_ns()
        worker.go_on()

    def _kill_client(self) -> None:
        assert self._client is not None
        if self._client.alive:
            self._client.kill()
            self._note("SIGKILL client", self._client)
            self._ask()

    # What happens to the server

    def _happen_to_store(self, name: str) -> None:
        store = self.store
        assert isinstance(store, ServedStore)
        match name:
            case "kill_server":
                self._kill_server(store, "SIGKILL server")
                self._pause(self._rng.uniform(0, 1.0))
                self._restart_server(store)
            case "kill_server_twice":
                self._kill_server(store, "SIGKILL server")
                store.server.launch()
                self._pause(self._rng.uniform(0, 0.15))
                self._kill_server(store, "SIGKILL server, recovering")
                self._restart_server(store)
            case "stop_server":
                self._note("SIGSTOP server")
                store.server.send_all(signal.SIGSTOP)
                self._pause(self._rng.uniform(0.3, 1.5) * store.lease_ms / 1_000)
                store.server.send_all(signal.SIGCONT)
            case "cut_all":
                self.fired["a commit was in flight when it was cut"] += self._committing()
                store.proxy.cut_all()
                self._note("connections cut, all at once")
            case "cut":
                for _ in range(CUTS_AT_ONCE):
                    self._cut(store)
            case _:
                if fault := store.hurt(name, self._rng):
                    self._note(fault)
                    self._await_progress(store)

    def _committing(self) -> bool:
        return any(worker.committing for worker in self._at_work if worker.alive)

    def _kill_server(self, store: ServedStore, name: str) -> None:
        """Kill the main process, mostly with all others of the server, amid a commit if there soon is one."""
        pids = store.server.processes() if self._rng.random() < 0.7 else ()
        ends = time.monotonic() + COMMIT_SOON_S
        while not (in_flight := self._committing()) and time.monotonic() < ends:
            time.sleep(0.0002)
        for pid in pids:
            kill(pid)
        store.server.stop(signal.SIGKILL)
        self._note(name)
        self.fired["a commit was in flight when the server was killed"] += in_flight

    def _restart_server(self, store: ServedStore) -> None:
        store.server.launch()
        self._await_progress(store)

    def _await_progress(self, store: ServedStore) -> None:
        """Wait until the server accepts, and from then on until a worker has committed something."""
        self._await(store.server.accepts, ACCEPTS_S, "the server accepts")
        begun, before = time.monotonic(), {worker.pid: worker.commits for worker in self._at_work}

        def progress() -> bool:
            return any(worker.commits > before.get(worker.pid, 0) for worker in self._at_work)

        self._await(progress, PROGRESS_S, "a worker commits after the restart of the server")
        self.progress_s.append(time.monotonic() - begun)

    def _await(self, happened: Callable[[], bool], seconds: float, what: str) -> None:
        ends = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < ends, f"not within {seconds:g} s: {what}"
            self._pause(0.02)

    def _cut(self, store: ServedStore) -> None:
        """Cut the connection of the next request, before it or its answer is passed on, or pass it on afterwards."""
        proxy, before = store.proxy.proxy, store.proxy.proxy.fired
        fault, match = self._rng.choice(CUTS), self._rng.choice(KEYS)
        proxy.arm(fault, match)
        ends = time.monotonic() + 1.0
        while proxy.fired == before and time.monotonic() < ends:
            self._pause(0.02)
        proxy.arm("")
        if proxy.fired > before:
            self._note("connections cut amid a call")
