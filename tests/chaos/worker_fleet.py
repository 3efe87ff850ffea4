"""The processes of a scenario: started with an exec and a group of their own, killed, stopped, continued, drained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.worker import CLAIMED, COMMITS_BEGUN, COMMITS_ENDED, COMMITTED, READY, SIGNS

ROOT = Path(__file__).resolve().parents[2]
READY_S = 30.0


class Process:
    """A process of ours. What it prints and complains of goes to files in the scenario's folder."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.name, self.out, self.err = name, folder / f"{name}.out", folder / f"{name}.err"
        self.stopped = False
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, start_new_session=True)
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; it is waited for by nobody else, so the number is still its own."""
        if self.alive:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop it as a debugger or a swapping machine would: it does not notice."""
        self.send(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        self.send(signal.SIGCONT)
        self.stopped = False

    def wait(self, seconds: float) -> int:
        """Wait for its end; answers the exit code."""
        return self._process.wait(seconds)


class WorkerProcess(Process):
    """A worker, and the signs that it leaves in shared memory."""

    def __init__(self, folder: Path, name: str, store: str, *, lease_ms: int, concurrency: int = 16) -> None:
        self._signs = folder / f"{name}.signs"
        self._signs.write_bytes(bytes(SIGNS.size))
        options = {
            "store": store,
            "ledger": folder / "effects.jsonl",
            "signs": self._signs,
            "name": name,
            "clock": folder / "clock",
            "lease-ms": lease_ms,
            "concurrency": concurrency,
        }
        super().__init__(folder, name, module("tests.chaos.worker", options))

    def sign(self, number: int) -> int:
        return int(SIGNS.unpack(self._signs.read_bytes())[number])

    @property
    def ready(self) -> bool:
        return self.sign(READY) > 0

    @property
    def has_claimed(self) -> bool:
        return self.sign(CLAIMED) > 0

    @property
    def commits(self) -> int:
        """Commits that it was told to have happened."""
        return self.sign(COMMITTED)

    @property
    def committing(self) -> bool:
        """Whether a commit is, or was at the moment of death, under way."""
        return self.sign(COMMITS_BEGUN) > self.sign(COMMITS_ENDED)


def module(name: str, options: dict[str, object]) -> list[str]:
    """The command that runs a module of the tests."""
    pairs = [(f"--{option}", str(value)) for option, value in options.items()]
    return [sys.executable, "-m", name, *(word for pair in pairs for word in pair)]


def until(happened: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for something; answers how long it took."""
    begun = time.monotonic()
    while not happened():
        if time.monotonic() - begun > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.005)
    return time.monotonic() - begun


@contextmanager
def ended_at_last(processes: list[Process]) -> Iterator[None]:
    """Leave no process behind, whatever happens."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def exists(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
