"""The engine on a private Redis or Valkey server: one hop beside its floor, many runs by worker processes, timers.

The floor of a hop is one script, called by redis-py, that writes the same to the same kinds of keys: it checks a
version, adds three records, removes a job with its name and due time, adds another, and notes the counters and its own
answer. Engine and floor take turns. The log is synced every second.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from benches.bench_postgres import ROUNDS, TIMERS, backlog_ratio, rates, timers_s
from benches.figures import Figure, Note
from benches.workloads import CHAIN, MANY, PLACES
from tests.fixtures.servers.redis_server import Server, running
from tidemill.bootstrap import engine_at

HOP_FLOOR_MUST, HOP_AIM_MS = 1.6, 0.6
RATE_MUST, RATE_AIM = 6_000, 8_000
TWO_WORKERS_MUST = 1.25
TIMERS_MUST_S = 4.0
DURABLE = ("appendfsync everysec",)
FLOOR = """
local version = redis.call('LLEN', KEYS[1])
if version ~= tonumber(ARGV[1]) then
  return -1
end
redis.call('HSET', KEYS[2], ARGV[5], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[4], ARGV[6])
redis.call('ZADD', KEYS[4], ARGV[7], ARGV[4])
redis.call('RPUSH', KEYS[1], unpack(ARGV, 8))
redis.call('HDEL', KEYS[2], ARGV[3])
redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('HSET', KEYS[5], 'token', ARGV[7], 'order', ARGV[4], 'session', ARGV[6])
return version + 3
"""
RECORDS = (b"x" * 55, b"x" * 87, b"x" * 43)
"""A start, an end and what follows."""
JOB = b"x" * 154


async def floor_ms(server: Server) -> float:
    """Milliseconds per hop of the floor."""
    retry = Retry(NoBackoff(), 0)
    async with redis.asyncio.Redis.from_url(server.url, retry=retry, single_connection_client=True) as client:
        script = client.register_script(FLOOR)
        keys = [f"floor:{time.perf_counter()}:{name}" for name in ("records", "names", "jobs", "due", "meta")]

        async def hop(n: int) -> None:
            names = (str(n - 1), f"run/n{n - 1}/1/-1", str(n), f"run/n{n}/1/-1")
            assert await script(keys, [3 * n, *names, JOB, round(time.time() * 1000), *RECORDS]) == 3 * (n + 1)

        await hop(0)
        begun = time.perf_counter()
        for n in range(1, CHAIN.nodes + 1):
            await hop(n)
        return (time.perf_counter() - begun) / CHAIN.nodes * 1000


async def hops_ms(server: Server) -> tuple[list[float], list[float]]:
    """Milliseconds per hop of the engine and of its floor, round by round."""
    mine: list[float] = []
    async with engine_at(server.new_store(), concurrency=PLACES) as engine:
        floors = [await floor_ms(server)]
        await engine.publish(CHAIN.document)
        await engine.result(await engine.start("chain"))
        for _ in range(ROUNDS):
            gc.collect()
            begun = time.perf_counter()
            await CHAIN.play(engine)
            mine.append((time.perf_counter() - begun) / CHAIN.nodes * 1000)
            floors.append(await floor_ms(server))
    return mine, [(before + after) / 2 for before, after in pairwise(floors)]


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
        yield Figure("W3, two workers beside one, with the process that starts", two / one, "×", at_most=False)
        ratio = asyncio.run(backlog_ratio(server.new_store))
        yield Figure("waiting runs of W3, two workers beside one", ratio, "×", TWO_WORKERS_MUST, at_most=False)
        yield Figure(
            f"{TIMERS:,} timers due in a second", asyncio.run(timers_s(server.new_store())), "s", TIMERS_MUST_S
        )
