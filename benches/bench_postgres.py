"""The engine on a private PostgreSQL server: one hop beside its floor, many runs by worker processes, timers.

The floor of a hop is one prepared statement that writes the same to the same tables: it raises a version, adds a
record, removes a job and adds another. Engine and floor take turns, because the time of a sync varies.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import psycopg

from benches.figures import Figure, Note
from benches.workloads import CHAIN, MANY, PLACES
from tests.fixtures.servers.postgres_server import Server, running
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine

ROUNDS = 7
TIMERS, WIDTH, TIMERS_MUST_S = 10_000, 100, 6.0
"""Timers that are due within one second, and how many a run has."""
PREPARED_MS = 20_000
STARTED_AT_ONCE, LOOK_EVERY_S, LOOKS_AFTER = 50, 0.005, 0.85
BACKLOG, LOOK_RARELY_S = 4, 0.02
"""Times the runs of W3 that wait when workers continue, and how often the measuring process looks for their end."""
HOP_FLOOR_MUST, HOP_AIM_MS = 1.8, 1.5
RATE_MUST, RATE_AIM = 3_000, 4_500
DURABLE = ("fsync=on", "max_connections=100", "shared_buffers=256MB")
BEGIN = """
INSERT INTO streams (tenant, kind, key, version, month)
    VALUES ('t', 'floor', %s, 0, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMM')::integer) RETURNING id, month
"""
HOP = """
WITH a AS (UPDATE streams SET version = version + 1 WHERE id = %(id)s AND version = %(n)s),
    b AS (INSERT INTO records VALUES (%(month)s, %(id)s, %(n)s + 1, 't', %(body)s)),
    c AS (DELETE FROM jobs WHERE stream = %(id)s AND key = %(old)s)
INSERT INTO jobs (stream, key, tenant, lane, capped, ready_at_ms, place, state, due_ms, token, owner, body)
    VALUES (%(id)s, %(new)s, 't', 1, false, 0, %(n)s, 2, 4102444800000, %(n)s, 'me', %(body)s)
"""


async def floor_ms(server: Server, schema: str) -> float:
    """Milliseconds per hop of the floor, on the tables of a store."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True, prepare_threshold=0) as connection:
        await connection.execute(f"SET search_path = {schema}".encode())
        found = await connection.execute(BEGIN, (str(time.perf_counter()),))
        ((number, month),) = await found.fetchall()
        values = {"id": number, "month": month, "body": b"x" * 300}
        begun = time.perf_counter()
        for n in range(CHAIN.nodes):
            await connection.execute(HOP, values | {"n": n, "old": f"{n}", "new": f"{n + 1}"})
        return (time.perf_counter() - begun) / CHAIN.nodes * 1000


async def hops_ms(server: Server) -> tuple[list[float], list[float]]:
    """Milliseconds per hop of the engine and of its floor, round by round."""
    mine: list[float] = []
    url = server.new_store()
    schema = url.partition("schema=")[2]
    async with engine_at(url, concurrency=PLACES) as engine:
        floors = [await floor_ms(server, schema)]
        await engine.publish(CHAIN.document)
        await engine.result(await engine.start("chain"))
        for _ in range(ROUNDS):
            gc.collect()
            begun = time.perf_counter()
            await CHAIN.play(engine)
            mine.append((time.perf_counter() - begun) / CHAIN.nodes * 1000)
            floors.append(await floor_ms(server, schema))
    return mine, [(before + after) / 2 for before, after in pairwise(floors)]


@contextmanager
def worker(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that is ready. It prints a line per node, so nobody has to read them from a pipe."""
    program = str(Path(sys.executable).with_name("tidemill"))
    command = [program, "worker", "--store", url, "--concurrency", str(PLACES)]
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL)
        try:
            while not os.fstat(printed.fileno()).st_size:
                assert process.poll() is None, "the worker did not start"
                time.sleep(0.02)
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(30)


async def runs_s(engine: Engine, before_s: float = 0.0) -> float:
    """Seconds from the first start to the last end.

    Starts come in batches, and no one looks for the end until most of the time of the round before has passed:
    the process that starts and looks uses the processors of the workers.
    """
    begun = time.perf_counter()
    for _ in range(MANY.runs // STARTED_AT_ONCE):
        await engine.start_many("diamond", [None] * STARTED_AT_ONCE)
    await asyncio.sleep(LOOKS_AFTER * before_s - (time.perf_counter() - begun))
    while (await engine.find(["live"], limit=1))[0]:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_EVERY_S)
    return time.perf_counter() - begun


async def rates(new_store: Callable[[], str]) -> tuple[float, float]:
    """Nodes per second of one worker process and of two, in turns, because the machine is not always equally fast."""
    best = {}
    async with AsyncExitStack() as stack:
        engines = []
        for count in (1, 2):
            url = new_store()
            engine = await stack.enter_async_context(engine_at(url, work=False))
            await engine.publish(MANY.document)
            for _ in range(count):
                stack.enter_context(worker(url))
            best[len(engines)] = await runs_s(engine)
            engines.append(engine)
        for _ in range(ROUNDS):
            for number, engine in enumerate(engines):
                best[number] = min(best[number], await runs_s(engine, best[number]))
    return MANY.nodes / best[0], MANY.nodes / best[1]


async def backlog_ratio(new_store: Callable[[], str]) -> float:
    """How many times as fast as one worker process two of them work off the same runs; the median of rounds.

    The processes are stopped while the runs are started, and those of the other store all the time, so that the two
    processors serve the measured workers and the server alone.
    """
    async with AsyncExitStack() as stack:
        fleets: list[tuple[Engine, list[subprocess.Popen[bytes]]]] = []
        for count in (1, 2):
            url = new_store()
            engine = await stack.enter_async_context(engine_at(url, work=False))
            await engine.publish(MANY.document)
            fleets.append((engine, [stack.enter_context(worker(url)) for _ in range(count)]))
            await runs_s(engine)
            _signal(fleets[-1][1], signal.SIGSTOP)
        rounds = [[await _backlog_s(*fleet) for fleet in fleets] for _ in range(ROUNDS)]
    return statistics.median(one / two for one, two in rounds)


async def _backlog_s(engine: Engine, workers: list[subprocess.Popen[bytes]]) -> float:
    for _ in range(MANY.runs * BACKLOG // STARTED_AT_ONCE):
        await engine.start_many("diamond", [None] * STARTED_AT_ONCE)
    begun = time.perf_counter()
    _signal(workers, signal.SIGCONT)
    while (await engine.find(["live"], limit=1))[0]:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_RARELY_S)
    took = time.perf_counter() - begun
    _signal(workers, signal.SIGSTOP)
    return took


def _signal(workers: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for each in workers:
        each.send_signal(number)


async def timers_s(url: str) -> float:
    """Seconds from the moment at which the last of many timers is due until all their runs have ended."""
    async with engine_at(url, concurrency=PLACES) as engine:
        first_ms = int(time.time() * 1000) + PREPARED_MS
        nodes = [
            {"id": f"n{number}", "type": "wait_until", "config": {"at_ms": first_ms + number * 1_000 // WIDTH}}
            for number in range(WIDTH)
        ]
        await engine.publish({"name": "timers", "nodes": nodes})
        runs = await engine.start_many("timers", [None] * (TIMERS // WIDTH))
        assert time.time() * 1000 < first_ms, "the machine is too slow to prepare that"
        await asyncio.gather(*(engine.result(run) for run in runs))
    return time.time() - first_ms / 1000 - 1


def figures() -> Iterator[Figure | Note]:
    """Measure."""
    with running(*DURABLE) as server:
        mine, floors = asyncio.run(hops_ms(server))
        # Engine and floor of one round meet the same machine, so their ratio is taken round by round.
        ratio = statistics.median(each / floor for each, floor in zip(mine, floors, strict=True))
        yield Figure(f"{CHAIN.name}, one hop", statistics.median(mine), "ms", None, HOP_AIM_MS)
        yield Figure("W1, times its floor", ratio, "×", HOP_FLOOR_MUST)
        yield Figure("W1, the floor of a hop", statistics.median(floors), "ms")
        one, two = asyncio.run(rates(server.new_store))
        yield Figure(f"{MANY.name}, 1 worker", one, "nodes/s", at_most=False)
        yield Figure(f"{MANY.name}, 2 workers", two, "nodes/s", RATE_MUST, RATE_AIM, at_most=False)
        yield Figure(
            f"{TIMERS:,} timers due in a second", asyncio.run(timers_s(server.new_store())), "s", TIMERS_MUST_S
        )
