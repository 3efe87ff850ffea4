"""What virtual time cannot show: threads. Real clocks, short leases, a second or two for all of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.engine.door import Door
from tests.kernel.authoring import document, node
from tidemill.ambient import RealAmbient
from tidemill.blobs.memory import MemoryBlobs
from tidemill.bootstrap import built_in_handlers
from tidemill.engine.engine import Engine
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.handlers.contract import NodeContext
from tidemill.stores.memory import MemoryStore

LEASE_MS = 400


@asynccontextmanager
async def _engine(
    store: MemoryStore, blobs: MemoryBlobs, name: str, functions: dict[str, Callable[..., Any]], **options: Any
) -> AsyncIterator[tuple[Engine, Door]]:
    door = Door(store)
    engine = Engine(
        store=door,
        blobs=blobs,
        ambient=RealAmbient(),
        handlers=built_in_handlers(functions),
        worker=WorkerOptions(name=name, **{"lease_ms": LEASE_MS, "grace_ms": 2_000, **options}),
    )
    async with engine:
        yield engine, door


def _function(isolation: str = "inline", **more: Any) -> dict[str, Any]:
    return {"id": "a", "type": "python", "config": {"function": "work", "isolation": isolation}, **more}


async def test_a_handler_that_blocks_the_loop_keeps_its_lease() -> None:
    """Renewal has a thread of its own: the loop sleeps for four leases and nobody takes the job over."""
    calls: list[int] = []
    store, blobs = MemoryStore(), MemoryBlobs()
    blocked, stop = threading.Event(), threading.Event()
    claimed: list[int] = []

    def block(context: NodeContext) -> str:
        calls.append(context.attempt)
        blocked.set()
        time.sleep(4 * LEASE_MS / 1000)
        return "kept"

    async def wait_for_a_chance() -> None:
        async with _engine(store, blobs, "rival", {"work": block}) as (_, door):
            await asyncio.to_thread(stop.wait)
            claimed.append(door.claimed)

    def rival() -> None:
        """Another process, in a loop of its own, that would love to have the job."""
        blocked.wait(10)
        asyncio.run(wait_for_a_chance())

    thread = threading.Thread(target=rival)
    thread.start()
    async with _engine(store, blobs, "w1", {"work": block}) as (engine, door):
        await engine.publish(document(_function()))
        run_id = await engine.start("test")
        try:
            run = await engine.result(run_id, timeout_s=20)
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)
    assert (run.status, run.outputs, run.nodes["a"]["attempts"]) == ("COMPLETED", {"a": "kept"}, 1)
    assert (calls, claimed) == ([1], [0])
    assert door.calls["renew"] >= 3


async def test_a_blocking_function_runs_in_a_thread_and_others_go_on() -> None:
    inside: list[threading.Thread] = []
    others_done = threading.Event()

    def block() -> bool:
        inside.append(threading.current_thread())
        return others_done.wait(50)

    async with _engine(MemoryStore(), MemoryBlobs(), "w1", {"work": block}) as (engine, _):
        await engine.publish(document(_function("thread"), node("z", "a", config="{{ a.output }}")))
        await engine.publish(document(node("q", config=1), name="quick"))
        run_id = await engine.start("test")
        quick = await engine.result(await engine.start("quick"), timeout_s=30)
        others_done.set()
        run = await engine.result(run_id, timeout_s=30)
    assert (quick.status, run.outputs) == ("COMPLETED", {"z": True})
    assert inside[0] is not threading.main_thread()


async def test_the_default_is_a_thread() -> None:
    inside: list[threading.Thread] = []
    functions = {"work": lambda: inside.append(threading.current_thread())}
    async with _engine(MemoryStore(), MemoryBlobs(), "w1", functions) as (engine, _):
        await engine.publish(document({"id": "a", "type": "python", "config": {"function": "work"}}))
        run = await engine.result(await engine.start("test"), timeout_s=30)
    assert run.status == "COMPLETED" and inside[0] is not threading.main_thread()


async def test_a_thread_that_takes_too_long_is_not_waited_for() -> None:
    release = threading.Event()

    def block() -> None:
        release.wait(50)

    async with _engine(MemoryStore(), MemoryBlobs(), "w1", {"work": block}) as (engine, _):
        await engine.publish(document(_function("thread", timeout_seconds=0.2, retry={"max_attempts": 1})))
        began = time.monotonic()
        run = await engine.result(await engine.start("test"), timeout_s=30)
        assert time.monotonic() - began < 30
        release.set()
    assert run.nodes["a"]["error"]["code"] == "timeout"


async def test_whatever_a_thread_raises_ends_the_attempt() -> None:
    """StopIteration cannot travel through a future; without care the attempt would hang for ever."""
    for kind in (StopIteration, SystemExit, KeyError, GeneratorExit):

        def explode(kind: type[BaseException] = kind) -> None:
            raise kind("in a thread")

        async with _engine(MemoryStore(), MemoryBlobs(), "w1", {"work": explode}) as (engine, _):
            await engine.publish(document(_function("thread", retry={"max_attempts": 1})))
            run = await engine.result(await engine.start("test"), timeout_s=30)
        assert run.status == "FAILED"
        assert run.nodes["a"]["error"]["code"] == "exception"
        assert "in a thread" in run.nodes["a"]["error"]["message"]


async def test_a_worker_stops_with_its_heart() -> None:
    before = {thread.name for thread in threading.enumerate()}
    async with _engine(MemoryStore(), MemoryBlobs(), "w1", {}) as (engine, _):
        assert any(thread.name == "tidemill-heart" for thread in threading.enumerate())
        await engine.publish(document(node("a")))
        assert (await engine.result(await engine.start("test"), timeout_s=30)).status == "COMPLETED"
    after = {thread.name for thread in threading.enumerate()}
    assert "tidemill-heart" not in after - before
