"""10,000 unfinished runs after `kill -9` of the worker: how soon does every one of them go on?

A `tidemill worker` is killed in the middle of its work: runs without a pause keep it busy. All others have one step
behind them and wait for a timer; some seconds later all timers are due, and another worker is started. It is measured
from the start of its process until the store has a new event of every run that was unfinished, read from outside. Then
the rest is let finish, and nothing may be missing. `STORE=postgres` and `STORE=redis` measure on a private server
instead of a file.
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
import psycopg

from benches.bench_postgres import DURABLE
from benches.figures import Figure, Note
from benches.graphs import node
from benches.tape import folder
from tests.fixtures.servers import redis_server
from tests.fixtures.servers.postgres_server import running
from tidemill.bootstrap import engine_at
from tidemill.stores.redis.scripts import decoded

RUNS = int(os.environ.get("RUNS") or 10_000)
STORE = os.environ.get("STORE") or "sqlite"
SPARE = 600
"""Runs without a pause, in whose midst the worker is killed."""
PAUSE_S = 30
SLICE_S = 0.03
STARTED_AT_ONCE = 500
LOOK_EVERY_S = 0.05
PATIENCE_S = 120

DOCUMENT: dict[str, Any] = {
    "name": "recovery",
    "nodes": [
        node("before"),
        {"id": "pause", "type": "sleep", "config": {"seconds": "{{ inputs.pause }}"}, "dependencies": ["before"]},
        node("after", "pause"),
    ],
}


@contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as anybody starts it; never left behind."""
    command = [sys.executable, "-c", "from tidemill.cli.main import main; main()", "worker"]
    # Leases of a killed process are over before the timers are due, also where only time ends them.
    options = ["--store", url, "--concurrency", "256", "--heartbeat", "0.5", "--dead-after", "2"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def start_runs(url: str, count: int, pause: int) -> None:
    """Have runs started by somebody who does not work on them."""
    async with engine_at(url, work=False) as engine:
        await engine.publish(DOCUMENT)
        for first in range(0, count, STARTED_AT_ONCE):
            await engine.start_many("recovery", [{"pause": pause}] * min(STARTED_AT_ONCE, count - first))


async def completed(url: str, count: int) -> bool:
    """Whether so many runs are listed as completed, with nothing wrong in a sample of them."""
    async with engine_at(url, work=False) as engine:
        there = await engine._store.count("default", "run", ["status:COMPLETED"], at_most=count + 1)
        rows, _ = await engine.find((), limit=50)
        return there == count and (await engine.verify_log([row.run_id for row in rows])).clean


class Outside:
    """The store, as another process sees it."""

    def __init__(self, url: str, connect: Callable[[], Any], seconds_must: float) -> None:
        self.url, self.seconds_must = url, seconds_must
        self._connect = connect
        self._connection: Any = None

    def _ask(self, sql: str) -> list[Any]:
        self._connection = self._connection or self._connect()
        found: list[Any] = self._connection.execute(sql).fetchall()
        return found

    def versions(self) -> dict[str, int]:
        """How many events each run has."""
        return dict(self._ask("SELECT key, version FROM streams WHERE kind = 'run'"))

    def live(self) -> set[str]:
        """The runs that have not ended: those with a job, since each has a step to do or a timer."""
        sql = "SELECT DISTINCT s.key FROM jobs j JOIN streams s ON s.id = j.stream WHERE s.kind = 'run'"
        return {key for (key,) in self._ask(sql)}

    def leased(self) -> int:
        """Jobs in somebody's hands."""
        return int(self._ask("SELECT count(*) FROM jobs WHERE state = 2")[0][0])


@contextmanager
def in_a_file() -> Iterator[Outside]:
    with folder() as place:

        def connect() -> apsw.Connection:
            connection = apsw.Connection(str(place / "runs.db"), flags=apsw.SQLITE_OPEN_READONLY)
            connection.set_busy_timeout(10_000)
            return connection

        yield Outside(f"sqlite:///{place / 'runs.db'}", connect, 5)


@contextmanager
def on_postgres() -> Iterator[Outside]:
    with running(*DURABLE) as server:
        url = server.new_store()
        path = f"-c search_path={url.partition('schema=')[2]}"
        yield Outside(url, lambda: psycopg.connect(server.url, autocommit=True, options=path), 10)


class RedisOutside(Outside):
    """The records of a stream are a list, its jobs fields of a hash (`stores/lua/commit.lua`)."""

    def _streams(self, part: str, command: str) -> Iterator[tuple[str, Any]]:
        self._connection = self._connection or self._connect()
        keys = list(self._connection.scan_iter(match=f"*:{part}:run\0*", count=10_000))
        pipeline = self._connection.pipeline(transaction=False)
        for key in keys:
            pipeline.execute_command(command, key)
        names = (decoded(key.partition(f":{part}:".encode())[2])[2] for key in keys)
        return zip(names, pipeline.execute(), strict=True)

    def versions(self) -> dict[str, int]:
        return dict(self._streams("r", "LLEN"))

    def live(self) -> set[str]:
        return {key for key, fields in self._streams("h", "HKEYS") if any(each.startswith(b"j") for each in fields)}

    def leased(self) -> int:
        async def look() -> int:
            async with engine_at(self.url, work=False) as engine:
                return sum(each.leased for each in await engine._store.backlog())

        return asyncio.run(look())


@contextmanager
def on_redis() -> Iterator[Outside]:
    with redis_server.running("appendfsync everysec") as server:
        yield RedisOutside(server.new_store(), server.client, 10)


STORES = {"sqlite": in_a_file, "postgres": on_postgres, "redis": on_redis}


def until(reached: Callable[[], object], what: str) -> float:
    """Look again and again; answers the moment at which it was so."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        begun = time.monotonic()
        if reached():
            return time.monotonic()
        assert begun < deadline, f"{what}: not within {PATIENCE_S} seconds"
        # A server must not be kept busy by being looked at.
        time.sleep(max(LOOK_EVERY_S, 9 * (time.monotonic() - begun)))


def all_wait(outside: Outside, started: int) -> bool:
    """Whether every run has come as far as its timer; as `started` they have fewer events."""
    return set(outside.versions().values()).isdisjoint(range(started + 1)) and not outside.leased()


def held_in_mid_work(process: subprocess.Popen[bytes], outside: Outside) -> int:
    """Give a process runs to work on, and stop it when it has ended some and has others in hand. Answers how many."""
    for given in range(SPARE, 20 * SPARE, SPARE):
        process.send_signal(signal.SIGSTOP)
        asyncio.run(start_runs(outside.url, SPARE, 0))
        while len(outside.live()) > RUNS:
            process.send_signal(signal.SIGCONT)
            time.sleep(SLICE_S)
            process.send_signal(signal.SIGSTOP)
            if len(outside.live()) < RUNS + SPARE and outside.leased():
                return given
        process.send_signal(signal.SIGCONT)
    raise AssertionError("the worker never was in the middle of its work")


def figures() -> Iterator[Figure | Note]:
    """Kill, start again, and measure."""
    with STORES[STORE]() as outside:
        url = outside.url
        asyncio.run(start_runs(url, RUNS, PAUSE_S))
        started = max(outside.versions().values())
        with worker(url) as first:
            until(lambda: all_wait(outside, started), "every run waits for its timer")
            last_due = time.monotonic() + PAUSE_S
            count = RUNS + held_in_mid_work(first, outside)
            first.send_signal(signal.SIGKILL)
            first.wait()
        before, unfinished, leased = outside.versions(), outside.live(), outside.leased()
        assert len(unfinished) >= RUNS, f"only {len(unfinished)} runs were unfinished"
        assert leased, "the worker had nothing in hand when it was killed"
        yield Note(f"killed with {len(unfinished):,} runs unfinished and {leased} jobs in hand")
        time.sleep(max(0, last_due - time.monotonic()))
        yield from recovered(outside, before, unfinished)
        assert asyncio.run(completed(url, count)), "some runs did not complete"
        yield Note(f"all {count:,} runs completed, nothing missing")


def processor_s(pid: int) -> float:
    """What a process has computed so far: on a busy machine it tells more than the clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def recovered(outside: Outside, before: dict[str, int], unfinished: set[str]) -> Iterator[Figure]:
    """The second worker's figures."""

    def behind() -> int:
        now = outside.versions()
        return sum(1 for key in unfinished if now[key] == before[key])

    begun = time.monotonic()
    with worker(outside.url) as second:
        first_s = until(lambda: behind() < len(unfinished), "the first run goes on") - begun
        all_s = until(lambda: behind() == 0, "every run goes on") - begun
        worked_s = processor_s(second.pid)
        done_s = until(lambda: not outside.live(), "every run ends") - begun
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    yield Figure("from the start of a process to the first new event", first_s, "s")
    yield Figure(f"until all {len(unfinished):,} runs have gone on", all_s, "s", outside.seconds_must)
    yield Figure("until then the worker's processor time", worked_s, "s")
    yield Figure("until all have ended", done_s, "s")
