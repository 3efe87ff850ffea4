"""The engine on a private PostgreSQL server: one hop beside its floor, and many runs by two worker processes.

The floor of a hop is one prepared statement that writes the same: it raises a version, adds a record, removes a job and
adds another. Engine and floor take turns, because the time of a sync varies from one minute to the next.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import psycopg

from benches.figures import Figure, Note
from benches.workloads import CHAIN, MANY, PLACES, together
from tests.fixtures.servers.postgres_server import Server, running
from tidemill.bootstrap import engine_at

ROUNDS = 7
HOP_FLOOR_MUST, HOP_AIM_MS = 1.8, 1.5
RATE_MUST, RATE_AIM = 3_000, 4_500
DURABLE = ("fsync=on", "max_connections=100", "shared_buffers=256MB")
TABLES = """
CREATE TABLE IF NOT EXISTS s (id bigint PRIMARY KEY, version bigint);
CREATE TABLE IF NOT EXISTS r (stream bigint, version bigint, body bytea, PRIMARY KEY (stream, version));
CREATE TABLE IF NOT EXISTS j (stream bigint, key text, body bytea, PRIMARY KEY (stream, key));
TRUNCATE s, r, j; INSERT INTO s VALUES (1, 0); INSERT INTO j VALUES (1, '0', '')
"""
HOP = """
WITH a AS (UPDATE s SET version = version + 1 WHERE id = %s AND version = %s),
    b AS (INSERT INTO r VALUES (%s, %s, %s)), c AS (DELETE FROM j WHERE stream = %s AND key = %s)
INSERT INTO j VALUES (%s, %s, %s)
"""


async def floor_ms(server: Server) -> float:
    """Milliseconds per hop of the floor."""
    body = b"x" * 300
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True, prepare_threshold=0) as connection:
        await connection.execute(TABLES, prepare=False)
        begun = time.perf_counter()
        for n in range(CHAIN.nodes):
            values = (1, n, 1, n + 1, body, 1, f"{n}", 1, f"{n + 1}", body[:60])
            await connection.execute(HOP, values)
        return (time.perf_counter() - begun) / CHAIN.nodes * 1000


async def hops_ms(server: Server) -> tuple[list[float], list[float]]:
    """Milliseconds per hop of the engine and of its floor, round by round."""
    mine: list[float] = []
    floors: list[float] = [await floor_ms(server)]
    async with engine_at(server.new_store(), concurrency=PLACES) as engine:
        await engine.publish(CHAIN.document)
        await engine.result(await engine.start("chain"))
        for _ in range(ROUNDS):
            gc.collect()
            begun = time.perf_counter()
            await CHAIN.play(engine)
            mine.append((time.perf_counter() - begun) / CHAIN.nodes * 1000)
            floors.append(await floor_ms(server))
    return mine, [(before + after) / 2 for before, after in pairwise(floors)]


@contextmanager
def worker(url: str) -> Iterator[None]:
    """A worker process that is ready."""
    program = str(Path(sys.executable).with_name("tidemill"))
    command = [program, "worker", "--store", url, "--concurrency", str(PLACES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the worker did not start"
        yield
    finally:
        process.terminate()
        process.wait(30)


async def rate(url: str) -> float:
    """Nodes per second of all workers."""
    async with engine_at(url, work=False) as engine:
        await engine.publish(MANY.document)
        await engine.result(await engine.start("diamond"))
        took = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            await together(engine, "diamond", MANY.runs)
            took.append(time.perf_counter() - begun)
    return MANY.nodes / min(took)


def figures() -> Iterator[Figure | Note]:
    """Measure."""
    with running(*DURABLE) as server:
        mine, floors = asyncio.run(hops_ms(server))
        # Others that use the machine slow down both; the quickest rounds are those that nobody disturbed.
        ratio = min(mine) / min(floors)
        yield Figure(f"{CHAIN.name}, one hop", statistics.median(mine), "ms", None, HOP_AIM_MS)
        yield Figure("W1, times its floor", ratio, "×", HOP_FLOOR_MUST)
        yield Figure("W1, the floor of a hop", statistics.median(floors), "ms")
        for count, must, aim in ((1, None, None), (2, RATE_MUST, RATE_AIM)):
            url = server.new_store()
            with ExitStack() as workers:
                for _ in range(count):
                    workers.enter_context(worker(url))
                found = asyncio.run(rate(url))
            yield Figure(f"{MANY.name}, {count} workers", found, "nodes/s", must, aim, at_most=False)
