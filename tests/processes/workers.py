"""Real worker processes on one file: started, told to stop, killed, and asked what they say of themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import tidemill
from tests.cli.kit import COMMAND, environment

SECONDS_MAX = 120.0
APP = """
import asyncio, os, threading, time
import tidemill

def note(what, key):
    line = f"{what} {os.getpid()} {time.monotonic()} {key}\\n"
    handle = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)

async def work(context, seconds=0.0):
    note("begin", context.effect_key)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled", context.effect_key)
        raise
    note("end", context.effect_key)
    return os.getpid()

def block(context, seconds):
    note("begin", context.effect_key)
    time.sleep(seconds)
    return os.getpid()

async def stubborn(context):
    note("begin", context.effect_key)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("cancelled", context.effect_key)

async def speak(context, parts, wait_for):
    while not os.path.exists(wait_for):
        await asyncio.sleep(0.01)
    for number in range(1, parts + 1):
        context.stream(f"{number} ")
        if number % 200 == 0:
            context.progress(number / parts, "speaking")
            await asyncio.sleep(0.02)

def chatter():
    print("a function prints", flush=True)

async def sweep(context):
    for task in asyncio.all_tasks():
        task.cancel()

functions = {"sweep": sweep, "work": work, "block": block, "stubborn": stubborn, "chatter": chatter, "speak": speak}

class special:
    handlers = [tidemill.Handler(tidemill.NodeType(name="special"), lambda context: tidemill.Return(os.getpid()))]
"""


def until(happened: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.005)


class Worker:
    """A `tidemill worker --json`."""

    def __init__(self, place: Place, *arguments: str) -> None:
        self._child = subprocess.Popen(
            [*COMMAND, "worker", "--store", place.url, "--json", *arguments],
            cwd=place.folder,
            env=environment({"LEDGER": str(place.ledger)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._child.pid
        self.said: list[dict[str, Any]] = []
        self.err = b""
        self._readers = [Thread(target=read, daemon=True) for read in (self._hear, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _hear(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.said.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        self.err = self._child.stderr.read()

    def hears(self, event: str) -> dict[str, Any]:
        """Wait until it has said something."""
        until(lambda: self.last(event) is not None or self._child.poll() is not None, f"no {event}: {self.said}")
        found = self.last(event)
        assert found is not None, f"it ended without {event}: {self.said}, {self.err!r}"
        return found

    def last(self, event: str) -> dict[str, Any] | None:
        return next((each for each in reversed(self.said) if each["event"] == event), None)

    def tell(self, number: int = signal.SIGTERM) -> None:
        self._child.send_signal(number)

    def end(self, seconds: float = SECONDS_MAX) -> int:
        code = self._child.wait(seconds)
        for reader in self._readers:
            reader.join(5)
        return code

    def bury(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self.end()
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            stream.close()


class Place:
    """A folder with a store, the code of the nodes, and what they wrote down."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ledger = folder, folder / "ledger.txt"
        self.file = str(folder / "mill.db")
        self.url = f"sqlite:///{self.file}"
        (folder / "shop_code.py").write_text(APP)
        self._workers: list[Worker] = []

    def worker(self, *arguments: str, app: str = "shop_code.py") -> Worker:
        """Start a worker and wait until it is ready."""
        worker = Worker(self, "--app", app, *arguments)
        self._workers.append(worker)
        assert worker.hears("ready")["pid"] == worker.pid
        return worker

    def notes(self, what: str) -> list[tuple[int, float]]:
        """(process, moment) of everything of a kind that was written down."""
        if not self.ledger.exists():
            return []
        lines = [line.split(maxsplit=3) for line in self.ledger.read_text().splitlines()]
        return [(int(pid), float(at)) for word, pid, at, _ in lines if word == what]

    def close(self) -> None:
        for worker in self._workers:
            worker.bury()


def calls(function: str, **args: Any) -> dict[str, Any]:
    """A workflow of one node that calls a function."""
    config = {"function": function, "args": args}
    return {"name": function, "nodes": [{"id": "a", "type": "python", "config": config}]}


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Place, tidemill.Tidemill]]:
    place = Place(folder)
    try:
        with tidemill.open(place.url, work=False) as mill:
            yield place, mill
    finally:
        place.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
