"""The engine on a private PostgreSQL server: one hop beside its floor, and many runs by two worker processes.

The floor of a hop is one prepared statement that writes the same to the same tables: it raises a version, adds a
record, removes a job and adds another. Engine and floor take turns, because the time of a sync varies.
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
BEGIN = """
INSERT INTO streams (tenant, kind, key, version, month)
    VALUES ('t', 'floor', %s, 0, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMM')::integer) RETURNING id, month
"""
HOP = """
WITH a AS (UPDATE streams SET version = version + 1 WHERE id = %(id)s AND version = %(n)s),
    b AS (INSERT INTO records VALUES (%(month)s, %(id)s, %(n)s + 1, 't', %(body)s)),
    c AS (DELETE FROM jobs WHERE stream = %(id)s AND key = %(old)s)
INSERT INTO jobs (stream, key, tenant, lane, capped, ready_at_ms, place, state, due_ms, token, owner, body)
    VALUES (%(id)s, %(new)s, 't', 1, false, 0, %(n)s, 2, 0, %(n)s, 'me', %(body)s)
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
