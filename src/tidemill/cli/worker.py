"""`tidemill worker`: a process that runs nodes until it is told to stop.

The first SIGTERM or SIGINT begins the drain: nothing more is taken, and what runs may finish within the grace
period. The second one does not wait any longer. Either way what is left is given back and the process ends well.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tidemill.bootstrap import engine_at
from tidemill.cli import exits
from tidemill.cli.apps import importable, load_apps
from tidemill.cli.asking import Asking
from tidemill.cli.bulletins import Bulletins
from tidemill.cli.terminal import stdout_kept_clean
from tidemill.engine.engine import Engine
from tidemill.engine.loops import EngineBroken, run_until
from tidemill.engine.registry import Registry
from tidemill.errors import Rejected, Unavailable, rejected

PRIVATE = "memory://"
FATAL = frozenset({"store_newer", "store_gone", "store_read_only"})
"""Refusals that no waiting heals: another version has taken the store over, or its file is gone or not for us."""
REOPEN_SECONDS = 1.0
LEFTOVER_SECONDS_MAX = 1.0
"""How long functions that were cancelled may take to notice, before the process ends without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """What the command line asked for."""

    store: str
    queues: str
    concurrency: int
    grace_s: float
    heartbeat_s: float
    dead_after_s: float
    apps: tuple[str, ...]
    name: str
    archive: str | None
    retention_days: float | None
    as_json: bool


def work(options: WorkOptions) -> int:
    """Work until a signal comes."""
    asking = Asking(options.store, options.as_json)
    try:
        with (
            importable(),
            Bulletins(as_json=options.as_json) as bulletins,
            stdout_kept_clean() if options.as_json else nullcontext(),
        ):
            _in_loop(_work(_engine(options), options, bulletins))
    except Rejected as refusal:
        return asking.refused(refusal)
    return exits.OK


def _engine(options: WorkOptions) -> Engine:
    if options.store == PRIVATE:
        hint = "name a store that lasts: --store URL, or TIDEMILL_STORE"
        raise rejected("store_private", "nobody else can reach memory://, so nothing would ever be to do", hint=hint)
    if not options.heartbeat_s < options.dead_after_s < math.inf:
        message = f"--dead-after {options.dead_after_s:g} is not more than --heartbeat {options.heartbeat_s:g}"
        raise rejected("option_invalid", message, hint="three heartbeats are a good measure")
    queues = [queue.strip() for queue in options.queues.split(",")] if options.queues else []
    if not all(queues):
        raise rejected("option_invalid", f"--queues {options.queues!r} names nothing", hint="write --queues a,b")
    app = load_apps(options.apps)
    return engine_at(
        options.store,
        functions=app.functions,
        handlers=app.handlers,
        concurrency=options.concurrency,
        queues=tuple(dict.fromkeys(queues)),
        standing=True,
        name=options.name,
        archive=options.archive,
        retention_days=options.retention_days,
        grace_ms=round(options.grace_s * 1000),
        beat_ms=round(options.heartbeat_s * 1000),
        dead_after_ms=round(options.dead_after_s * 1000),
    )


async def _work(engine: Engine, options: WorkOptions, bulletins: Bulletins) -> None:
    stop, worker, registry = asyncio.Event(), engine.worker, engine.registry
    assert worker is not None and registry is not None, "it was asked for"
    registry.on_reach = bulletins.reach
    refusals: list[Rejected] = []

    def on_refusal(refusal: Rejected) -> None:
        if refusal.problems[0].code in FATAL:
            refusals.append(refusal)
            stop.set()
        else:
            bulletins.refused(refusal)

    def on_signal() -> None:
        if stop.is_set():
            worker.hurry()
            bulletins.hurrying(len(worker.hands))
        else:
            stop.set()
            engine.drain()
            bulletins.draining(len(worker.hands), options.grace_s)

    worker.refusals.listener = on_refusal
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if await _opened(engine, stop, bulletins):
        try:
            await _welcome(registry)
            bulletins.ready(registry.row(), without_password(options.store))
            await stop.wait()
        finally:
            await engine.close()
    if refusals:
        raise refusals[0]
    bulletins.drained(worker.returned, worker.finished)


async def _opened(engine: Engine, stop: asyncio.Event, bulletins: Bulletins) -> bool:
    """Open the store, however long it takes to answer; answers whether that was before a signal came."""
    while not stop.is_set():
        try:
            await engine.open()
        except Unavailable as error:
            bulletins.reach(error)
            await asyncio.sleep(REOPEN_SECONDS)
        else:
            bulletins.reach(None)
            return True
    return False


async def _welcome(registry: Registry) -> None:
    """Raise what the store has against this worker before it says that it is ready."""
    with suppress(Unavailable):
        await registry.check()


def _in_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, and leave then: a function that swallows its cancellation does not keep the process alive."""
    loop = asyncio.new_event_loop()
    try:
        working = loop.create_task(main)
        working.add_done_callback(lambda _: loop.stop())
        run_until(loop, working.done)
        if working.cancelled():
            raise EngineBroken
        working.result()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=LEFTOVER_SECONDS_MAX))
    finally:
        # Nobody wants to hear that what was given back was not finished here.
        loop.set_exception_handler(lambda *_: None)
        loop.close()


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:…@{host}"))
