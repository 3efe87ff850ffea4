"""10,000 unfinished runs after `kill -9` of the worker: how soon does every one of them go on?

A `tidemill worker` is killed in the middle of its work. Every run has one step behind it and waits for a timer; some
seconds later all timers are due, and another worker is started. It is measured from the start of its process until
the file has a new event of every run that was unfinished, read from outside. Then the rest is let finish, and nothing
may be missing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from benches.figures import Figure, Note
from benches.graphs import node
from benches.tape import folder
from tidemill.bootstrap import engine_at

RUNS = int(os.environ.get("RUNS") or 10_000)
SPARE = 600
"""Runs beyond those, so that enough are unfinished when some have ended."""
PAUSE_S = 5
CLIENTS = 50
LOOK_EVERY_S = 0.05
PATIENCE_S = 120
SECONDS_MUST = 5

DOCUMENT: dict[str, Any] = {
    "name": "recovery",
    "nodes": [
        node("before"),
        {"id": "pause", "type": "sleep", "config": {"seconds": PAUSE_S}, "dependencies": ["before"]},
        node("after", "pause"),
    ],
}


@contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as anybody starts it; never left behind."""
    command = [sys.executable, "-c", "from tidemill.cli.main import main; main()", "worker"]
    process = subprocess.Popen([*command, "--store", url, "--concurrency", "256"], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def start_runs(url: str, count: int) -> None:
    """Have runs started by somebody who does not work on them."""
    async with engine_at(url, work=False) as engine:
        await engine.publish(DOCUMENT)

        async def client() -> None:
            for _ in range(count // CLIENTS):
                await engine.start("recovery")

        await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def completed(url: str, count: int) -> bool:
    """Whether so many runs are listed as completed, with nothing wrong in a sample of them."""
    async with engine_at(url, work=False) as engine:
        there = await engine._store.count("default", "run", ["status:COMPLETED"], at_most=count + 1)
        rows, _ = await engine.find((), limit=50)
        return there == count and (await engine.verify_log([row.run_id for row in rows])).clean


class Outside:
    """The file, as another process sees it."""

    def __init__(self, file: Path) -> None:
        self._connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        self._connection.set_busy_timeout(10_000)

    def versions(self) -> dict[str, int]:
        """How many events each run has."""
        found: list[Any] = self._connection.execute("SELECT key, version FROM streams WHERE kind = 'run'").fetchall()
        return dict(found)

    def live(self) -> set[str]:
        """The runs that have not ended: those with a job, since each has a step to do or a timer."""
        sql = "SELECT DISTINCT s.key FROM jobs j JOIN streams s ON s.id = j.stream WHERE s.kind = 'run'"
        return {key for (key,) in self._connection.execute(sql)}

    def leased(self) -> int:
        """Jobs in somebody's hands."""
        found: list[Any] = self._connection.execute("SELECT count(*) FROM jobs WHERE state = 2").fetchall()
        return int(found[0][0])


def until(reached: Callable[[], object], what: str) -> float:
    """Look again and again; answers the moment at which it was so."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S} seconds"
        time.sleep(LOOK_EVERY_S)
    return time.monotonic()


def held_in_mid_work(process: subprocess.Popen[bytes], outside: Outside, count: int) -> bool:
    """Whether a process has ended some runs and has others in hand; it is stopped so that it stays so."""
    process.send_signal(signal.SIGSTOP)
    if len(outside.live()) < count and outside.leased():
        return True
    process.send_signal(signal.SIGCONT)
    return False


def figures() -> Iterator[Figure | Note]:
    """Kill, start again, and measure."""
    count = (RUNS + SPARE) // CLIENTS * CLIENTS
    with folder() as place:
        url = f"sqlite:///{place / 'runs.db'}"
        asyncio.run(start_runs(url, count))
        outside = Outside(place / "runs.db")
        with worker(url) as first:
            until(lambda: held_in_mid_work(first, outside, count), "some runs end and others are in hand")
            first.send_signal(signal.SIGKILL)
            first.wait()
        before, unfinished, leased = outside.versions(), outside.live(), outside.leased()
        assert len(unfinished) >= RUNS, f"only {len(unfinished)} runs were unfinished"
        assert leased, "the worker had nothing in hand when it was killed"
        yield Note(f"killed with {len(unfinished):,} runs unfinished and {leased} jobs in hand")
        time.sleep(PAUSE_S)
        yield from recovered(url, outside, before, unfinished)
        assert asyncio.run(completed(url, count)), "some runs did not complete"
        yield Note(f"all {count:,} runs completed, nothing missing")


def recovered(url: str, outside: Outside, before: dict[str, int], unfinished: set[str]) -> Iterator[Figure]:
    """The second worker's figures."""

    def behind() -> int:
        now = outside.versions()
        return sum(1 for key in unfinished if now[key] == before[key])

    begun = time.monotonic()
    with worker(url) as second:
        first_s = until(lambda: behind() < len(unfinished), "the first run goes on") - begun
        all_s = until(lambda: behind() == 0, "every run goes on") - begun
        done_s = until(lambda: not outside.live(), "every run ends") - begun
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    yield Figure("from the start of a process to the first new event", first_s, "s")
    yield Figure(f"until all {len(unfinished):,} runs have gone on", all_s, "s", SECONDS_MUST)
    yield Figure("until all have ended", done_s, "s")
