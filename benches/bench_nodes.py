"""What the node types cost: a call by a node beside the same call without an engine."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from benches.echo import echo
from benches.figures import Figure, stopwatch
from benches.inline import inline_figures
from benches.streams import stream_figures
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.handlers.contract import Done, NodeContext
from tidemill.handlers.python.pool import Limits, PythonProcesses
from tidemill.net.http_client import Call, Fetcher
from tidemill.settings import EGRESS_VARIABLE, read_settings

CALLS = 2_000
AT_ONCE = 50
ROUNDS = 5
HTTP_MUST = 75
PROCESS_CALLS = 200
PROCESS_MUST_MS = 3


@contextmanager
def allowed(port: int) -> Iterator[str]:
    """The URL of a server on loopback, which may be called as long as the block lasts."""
    before = os.environ.get(EGRESS_VARIABLE, "")
    os.environ[EGRESS_VARIABLE] = f"127.0.0.1:{port}"
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        os.environ[EGRESS_VARIABLE] = before


async def at_once(call: Callable[[], Awaitable[object]]) -> float:
    """Calls per second of processor time, so many at a time; that other programs run beside it does not matter."""
    gc.collect()
    started = time.process_time()

    async def client() -> None:
        for _ in range(CALLS // AT_ONCE):
            await call()

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return CALLS / (time.process_time() - started)


async def node_calls(engine: Engine, url: str) -> float:
    """The same of `http` nodes: a map over as many items, so many at a time."""
    gc.collect()
    started = time.process_time()
    ended = await engine.result(await engine.start("calls", {"url": url, "items": list(range(CALLS))}))
    assert ended.status == "COMPLETED", ended.error
    return CALLS / (time.process_time() - started)


async def http_rates(store: str) -> list[tuple[float, float, float]]:
    """Rates of nodes, of the HTTP library as one would use it without an engine, and of the fetcher alone, in turn."""
    call = {"id": "call", "type": "http", "config": {"url": "{{ inputs.url }}"}}
    mapped = {**call, "map": {"over": "{{ inputs.items }}", "max_parallel": AT_ONCE}}
    with echo() as port, allowed(port) as url:
        fetcher, kept = (
            Fetcher(read_settings().egress),
            httpx2.Limits(max_connections=None, max_keepalive_connections=AT_ONCE),
        )
        async with (
            engine_at(store, concurrency=AT_ONCE) as engine,
            httpx2.AsyncClient(trust_env=False, limits=kept) as client,
        ):
            await engine.publish({"name": "calls", "nodes": [mapped]})

            async def plain() -> object:
                return (await client.get(url)).json()

            async def fetched() -> object:
                return await fetcher.fetch(Call(url=url))

            rounds = [
                (await node_calls(engine, url), await at_once(plain), await at_once(fetched)) for _ in range(ROUNDS + 1)
            ]
        await fetcher.close()
    return rounds[1:]


def http_figures() -> list[Figure]:
    """What is left of a client's speed when nodes do the calling, on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = asyncio.run(http_rates(f"sqlite:///{Path(folder) / 'bench.db'}"))
    of_plain = statistics.median(nodes / plain for nodes, plain, _ in rounds) * 100
    of_fetcher = statistics.median(nodes / fetched for nodes, _, fetched in rounds) * 100
    return [
        Figure(f"http nodes, {AT_ONCE} at a time", max(nodes for nodes, *_ in rounds), "calls/s of CPU", at_most=False),
        Figure("of httpx2 without the engine", of_plain, "%", HTTP_MUST, at_most=False),
        Figure("of the fetcher without the engine", of_fetcher, "%", at_most=False),
    ]


def add(a: int) -> int:
    """What a process is asked to compute."""
    return a + 1


async def process_times() -> tuple[float, float]:
    """Seconds that the first call in a process takes, and a later one: the median of many."""
    processes = PythonProcesses()
    function = "benches.bench_nodes:add"
    config = {"function": function, "args": {"a": 1}}
    context = NodeContext(run_id="r", node="n", visit=1, index=-1, attempt=1, config=config, upstream={})

    async def once() -> float:
        with stopwatch() as passed:
            assert await processes.call(function, context, Limits()) == Done(2)
            return passed()

    try:
        first = await once()
        return first, statistics.median([await once() for _ in range(PROCESS_CALLS)])
    finally:
        await processes.close()


def process_figures() -> list[Figure]:
    """What it costs to have a function called in a process of its own."""
    first, warm = asyncio.run(process_times())
    return [
        Figure("python in a process, the first call", first * 1000, "ms"),
        Figure("python in a process, warm", warm * 1000, "ms", PROCESS_MUST_MS),
    ]


def figures() -> list[Figure]:
    """Measure."""
    return [*inline_figures(), *http_figures(), *process_figures(), *stream_figures()]
