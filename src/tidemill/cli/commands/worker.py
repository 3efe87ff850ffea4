"""`tidemill worker`: a process that runs nodes until it is told to stop; and `tidemill workers`.

The first SIGTERM or SIGINT starts the drain: the worker takes no more jobs, and attempts may finish within the grace
period. The second one ends the wait. In both cases the worker releases the remaining jobs and exits with 0.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import click
import msgspec

from tidemill.bootstrap import engine_at, without_password
from tidemill.cli import main, options
from tidemill.cli.options import GROUPS, CommandGroup
from tidemill.cli.render.tables import names
from tidemill.cli.render.terminal import DIM, GREEN, YELLOW, Styler, counted, reserve_stdout, sanitize
from tidemill.cli.session import PRIVATE_STORE, StoreSession
from tidemill.cli.user_code import importable, load_apps, warn_of_ignored_config
from tidemill.client import EngineBroken, run_until
from tidemill.engine.engine import Engine
from tidemill.engine.worker.registry import WorkerRow
from tidemill.errors import DiskFull, Rejected, TidemillError, Unavailable, rejected
from tidemill.security.grants import ImportGrants
from tidemill.settings import Settings, read_settings

_TRIED = "it is tried until it does"


class StatusLines:
    """Lines for people, or one JSON object per line for programs; each is written out at once."""

    def __init__(self, *, as_json: bool) -> None:
        # With --json standard output is kept clean of what functions print, so this is a way of its own to it.
        self._json = open(os.dup(1), "w", encoding="utf-8", buffering=1) if as_json else None  # noqa: SIM115
        self._paint = Styler()
        self._trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._json is not None:
            self._json.close()

    def ready(self, row: WorkerRow, store: str) -> None:
        known = names((type_.removesuffix("@1") for type_ in row.types), 200)
        words = f"worker {row.name} is ready · pid {row.pid} · {store} · queues {names(row.queues) or 'all'}"
        self._say(
            f"{self._paint('✓', GREEN)} {sanitize(words)} {self._paint(f'· types {sanitize(known)}', DIM)}",
            event="ready",
            worker=row.name,
            pid=row.pid,
            store=store,
            queues=list(row.queues),
            types=list(row.types),
            concurrency=row.concurrency,
        )

    def draining(self, holding: int, grace_s: float) -> None:
        wait = f"up to {grace_s:g} s for {counted(holding, 'job')} in hand; a second signal stops at once"
        words = f"draining: {wait if holding else 'nothing in hand'}"
        self._say(words, event="draining", holding=holding, grace_ms=round(grace_s * 1000))

    def hurrying(self, holding: int) -> None:
        self._say("stopping at once", event="hurrying", holding=holding)

    def drained(self, returned: int, finished: int) -> None:
        words = f"{counted(returned, 'job')} given back" if returned else "nothing was given back"
        self._say(f"{self._paint('✓', GREEN)} drained: {words}", event="drained", returned=returned, finished=finished)

    def reach(self, trouble: TidemillError | None) -> None:
        """Report that the store no longer answers, and why, or that it answers again; only when that changes."""
        cause = "" if trouble is None else str(trouble)
        if cause == self._trouble:
            return
        self._trouble, mark = cause, self._paint("!", YELLOW)
        if trouble is None:
            self._say(f"{mark} the store answers again", event="store_back")
        else:
            full = isinstance(trouble, DiskFull)
            words = f"{cause}; work goes on by itself then" if full else f"the store does not answer: {cause}; {_TRIED}"
            self._say(f"{mark} {sanitize(words)}", event="store_lost", message=cause)

    def refused(self, refusal: Rejected) -> None:
        """The store refuses claims until an operator repairs it."""
        problem = refusal.problems[0]
        words = f"{self._paint('!', YELLOW)} {sanitize(f'{problem.message} [{problem.code}]; {problem.hint}')}"
        self._say(words, event="store_refuses", code=problem.code, message=problem.message)

    def _say(self, words: str, **fields: Any) -> None:
        if self._json is not None:
            print(json.dumps({**fields, "at_ms": time.time_ns() // 1_000_000}), file=self._json, flush=True)
        else:
            print(words, file=sys.stdout, flush=True)


FATAL = frozenset({"store_newer", "store_gone", "store_read_only"})
"""Refusals that no waiting heals: another version has taken the store over, or its file is gone or not for us."""
REOPEN_SECONDS = 1.0
LEFTOVER_SECONDS_MAX = 1.0
"""How long functions that were cancelled may take to notice, before the process ends without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    store: str
    queues: str
    concurrency: int
    grace_s: float
    heartbeat_s: float
    dead_after_s: float
    apps: tuple[str, ...]
    imports: tuple[str, ...]
    name: str
    archive: str | None
    retention_days: float | None
    as_json: bool


def work(options: WorkOptions) -> int:
    try:
        settings = read_settings(imports=options.imports)
        if settings.imports is None:
            # A person who publishes to a shared store need not be the operator of its workers.
            settings = msgspec.structs.replace(settings, imports=ImportGrants())
        # Before the current folder can be searched for modules.
        _import_before_work()
        with (
            importable() if options.apps or settings.may_import else nullcontext(),
            StatusLines(as_json=options.as_json) as status_lines,
            reserve_stdout() if options.as_json else nullcontext(),
        ):
            engine = _engine(options, settings)
            main.start_collector()
            _in_loop(_work(engine, options, status_lines))
    except Rejected as refusal:
        return StoreSession(options.store, options.as_json).refused(refusal)
    return main.OK


def _import_before_work() -> None:
    """Import what the first nodes need: imported by them, it would block the loop of all runs."""
    import_module("tidemill.kernel.compile.compiler")
    import_module("tidemill.net.transport")
    import_module("tidemill.expressions.cel.evaluate")
    import_module("tidemill.expressions.jsonpath.parser").read_query("$")


def _engine(options: WorkOptions, settings: Settings) -> Engine:
    if options.store == PRIVATE_STORE:
        hint = "name a store that lasts: --store URL, or TIDEMILL_STORE"
        raise rejected(
            "store_private", "memory:// is private to this process, so the worker would never get a job", hint=hint
        )
    if not options.heartbeat_s < options.dead_after_s < math.inf:
        message = f"--dead-after {options.dead_after_s:g} is not more than --heartbeat {options.heartbeat_s:g}"
        raise rejected("option_invalid", message, hint="three heartbeats are a good measure")
    queues = [queue.strip() for queue in options.queues.split(",")] if options.queues else []
    if not all(queues):
        raise rejected("option_invalid", f"--queues {options.queues!r} names nothing", hint="write --queues a,b")
    app = load_apps(options.apps)
    warn_of_ignored_config()
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
        settings=settings,
    )


async def _work(engine: Engine, options: WorkOptions, status_lines: StatusLines) -> None:
    stop, worker, registry = asyncio.Event(), engine.worker, engine.registry
    assert worker is not None and registry is not None, "it was asked for"
    registry.on_reach = status_lines.reach
    refusals: list[Rejected] = []

    def on_refusal(refusal: Rejected) -> None:
        if refusal.problems[0].code in FATAL:
            refusals.append(refusal)
            stop.set()
        else:
            status_lines.refused(refusal)

    def on_signal() -> None:
        if stop.is_set():
            worker.stop_now()
            status_lines.hurrying(len(worker.held_jobs))
        else:
            stop.set()
            engine.drain()
            status_lines.draining(len(worker.held_jobs), options.grace_s)

    worker.refusals.listener = on_refusal
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if await _opened(engine, stop, status_lines):
        try:
            # The store's refusal of this worker must come before the report that it is ready.
            with suppress(Unavailable):
                await registry.check()
            status_lines.ready(registry.row(), without_password(options.store))
            await stop.wait()
        finally:
            await engine.close()
    if refusals:
        raise refusals[0]
    status_lines.drained(worker.returned, worker.finished)


async def _opened(engine: Engine, stop: asyncio.Event, status_lines: StatusLines) -> bool:
    """Retry until the store opens; return False if a signal came first."""
    while not stop.is_set():
        try:
            await engine.open()
        except Unavailable as error:
            status_lines.reach(error)
            await asyncio.sleep(REOPEN_SECONDS)
        else:
            status_lines.reach(None)
            return True
    return False


def _in_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end; a function that swallows its cancellation does not keep the process alive."""
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
        # Tasks that were released are unfinished by design, so asyncio need not report them.
        loop.set_exception_handler(lambda *_: None)
        loop.close()


@click.group(cls=CommandGroup, help=GROUPS["workers"], invoke_without_command=True)
@options.flag("--all", "every", about="Also those that died within the last hour.")
@options.on_store()
@click.pass_context
def workers(context: click.Context, session: StoreSession, every: bool) -> int:
    if context.invoked_subcommand is not None:
        return main.OK
    from tidemill.cli.render.lists import WorkerList, print_workers

    return session.ask_and_print(
        lambda mill: WorkerList(mill.workers(), every=every), lambda found: print_workers(session, found)
    )


@workers.command("show")
@options.argument("name", "NAME", "The worker's name, the last part of it, or its pid.")
@options.on_store()
def show_command(session: StoreSession, name: str) -> int:
    """Show a worker: what it holds, and which node types it can run."""
    from tidemill.cli.render.lists import find_worker, print_worker

    return session.ask_and_print(lambda mill: find_worker(mill.workers(), name), print_worker)
