"""`tidemill worker`: a process that runs nodes until it is stopped; `tidemill workers`, `tidemill concurrency`.

The first SIGTERM or SIGINT starts the drain: the worker takes no more jobs, and attempts may finish within the grace
period. The second one ends the wait. In both cases the worker releases the remaining jobs and exits with 0.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, Self

import click
import msgspec

from tidemill.bootstrap import engine_at
from tidemill.cli import main, options
from tidemill.cli.options import GROUPS, CommandGroup
from tidemill.cli.render.board import duration
from tidemill.cli.render.events import where
from tidemill.cli.render.tables import dotted, error_words, names, traceback_lines
from tidemill.cli.render.terminal import (
    DIM,
    GREEN,
    MAGENTA,
    RED,
    YELLOW,
    Styler,
    counted,
    in_short,
    one_line,
    reserve_stdout,
    sanitize,
)
from tidemill.cli.session import PRIVATE_STORE, StoreSession, item_or_none
from tidemill.cli.user_code import importable, load_apps, warn_of_ignored_config
from tidemill.client import EngineBroken, Tidemill
from tidemill.engine.engine import Engine
from tidemill.engine.services.workers import QueueView
from tidemill.engine.views import plain
from tidemill.engine.worker.instrumentation import OutcomeReport
from tidemill.engine.worker.registry import WorkerRow
from tidemill.errors import DiskFull, Rejected, TidemillError, Unavailable, rejected
from tidemill.event_loop import run_until
from tidemill.kernel.decide.waits import CHILD_FAILED
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.jobs import MAINTENANCE_QUEUE
from tidemill.observability.capture import OUTPUT_SINK, OutputCapture
from tidemill.observability.metrics import MetricsServer, read_address
from tidemill.security.grants import ImportGrants
from tidemill.settings import Settings, read_settings
from tidemill.storage_urls import without_password

_TRIED = "the worker keeps trying"
LEVELS = ("debug", "info", "warning", "error")
_LEVEL_OF = {
    **dict.fromkeys(("completed", "skipped", "discarded"), "info"),
    "waiting": "debug",
    "retrying": "warning",
    "failed": "error",
}
_SIGNS = {
    "completed": ("✓", GREEN),
    "skipped": ("⊘", DIM),
    "waiting": ("◷", MAGENTA),
    "retrying": ("↻", YELLOW),
    "failed": ("✗", RED),
    "discarded": ("⊘", DIM),
}


class StatusLines:
    """Lines for people, or one JSON object per line for programs; those of nodes are flushed together."""

    def __init__(self, *, as_json: bool, level: str = "info") -> None:
        # With --json standard output is kept clean of what functions print, so this is a way of its own to it.
        self._json = open(os.dup(1), "w", encoding="utf-8", buffering=1) if as_json else None  # noqa: SIM115
        self._paint = Styler()
        self._trouble = ""
        self._rank = LEVELS.index(level)
        self._flushing: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._json is not None:
            with suppress(OSError):
                self._json.close()

    def ready(self, row: WorkerRow, store: str, settings: Settings, metrics: str = "") -> None:
        words = f"worker {row.name} is ready · pid {row.pid} · {store} · queues {names(row.queues) or 'all'}"
        known = f"· {counted(len(row.types), 'node type')}" + (f" · metrics at {metrics}" if metrics else "")
        grants = sanitize(f"grants: {in_short(settings.granted)}")
        self._say(
            f"{self._paint('✓', GREEN)} {sanitize(words)} {self._paint(known, DIM)}\n  {self._paint(grants, DIM)}",
            event="ready",
            worker=row.name,
            pid=row.pid,
            store=store,
            queues=list(row.queues),
            types=list(row.types),
            concurrency=row.concurrency,
            metrics=metrics or None,
            grants=settings.granted,
        )

    def draining(self, holding: int, grace_s: float) -> None:
        wait = f"up to {grace_s:g} s for {counted(holding, 'job')} in progress; a second signal stops at once"
        words = f"draining: {wait if holding else 'no job in progress'}"
        self._say(words, event="draining", holding=holding, grace_ms=round(grace_s * 1000))

    def hurrying(self, holding: int) -> None:
        self._say("stopping at once", event="hurrying", holding=holding)

    def drained(self, returned: int, finished: int) -> None:
        words = f"{counted(returned, 'job')} returned" if returned else "no job returned"
        self._say(f"{self._paint('✓', GREEN)} drained: {words}", event="drained", returned=returned, finished=finished)

    def reach(self, trouble: TidemillError | None) -> None:
        """Report that the store no longer answers, and why, or that it answers again; only when that changes."""
        cause = "" if trouble is None else str(trouble)
        if cause == self._trouble:
            return
        self._trouble, mark = cause, self._paint("!", YELLOW)
        if trouble is None:
            self._say(f"{mark} the store is reachable again", event="store_back")
        else:
            full = isinstance(trouble, DiskFull)
            words = (
                f"{cause}; the worker then continues by itself"
                if full
                else f"the store does not answer: {cause}; {_TRIED}"
            )
            self._say(f"{mark} {sanitize(words)}", event="store_lost", message=cause)

    def refused(self, refusal: Rejected) -> None:
        """The store refuses claims until an operator repairs it."""
        problem = refusal.problems[0]
        words = f"{self._paint('!', YELLOW)} {sanitize(f'{problem.message} [{problem.code}]; {problem.hint}')}"
        self._say(words, event="store_refuses", code=problem.code, message=problem.message)

    def ended(self, report: OutcomeReport) -> None:
        """How a node, an attempt of it or a run ended; what the level leaves out is not printed."""
        error = None if report.error is None else plain(report.error)
        level = _LEVEL_OF[report.outcome] if not report.tolerated else "warning"
        if LEVELS.index(level) < self._rank:
            return
        undone = report.undo and error is None
        sign, colour = ("↶", GREEN) if undone else _SIGNS[report.outcome]
        place = where({"node": report.node, "visit": report.visit, "index": report.index}) or "the run failed"
        tried = f"attempt {report.attempt}" if report.attempt > 1 or (report.attempt and error is not None) else ""
        again = "handled" if report.tolerated else ""
        if report.retry_at_ms is not None:
            again = f"retry in {duration(max(0, report.retry_at_ms - time.time_ns() // 1_000_000))}"
        what = one_line(error_words(error), ERROR_COLUMNS_MAX) if error else "undone" if undone else report.outcome
        took = duration(report.duration_ms) if report.worker and report.outcome != "discarded" else ""
        said = dotted("not undone" if report.undo and error else "", tried, took, what, again)
        # The traceback of an item or a child run is printed with it, not again with its map or parent.
        of_other = report.error is not None and report.error.index not in (NOT_AN_ITEM, report.index)
        of_other = of_other or (report.error is not None and report.error.code == CHILD_FAILED)
        lines = traceback_lines(error) if report.outcome == "failed" and not of_other else []
        self._say(
            "\n  ".join([f"{self._paint(sign, colour)} {report.run_id} {sanitize(f'{place}  {said}')}", *lines]),
            event=f"{'undo' if report.undo else 'node' if report.node else 'run'}_{report.outcome}",
            level=level,
            run=report.run_id,
            node=report.node,
            visit=report.visit,
            index=item_or_none(report.index),
            attempt=report.attempt,
            duration_ms=report.duration_ms,
            error=error,
            retry_at_ms=report.retry_at_ms,
            at_once=False,
        )

    def logged(self, record: logging.LogRecord) -> None:
        """What the engine or a function has logged."""
        text = logging.Formatter().format(record)
        level, by = record.levelname.lower(), getattr(OUTPUT_SINK.get(), "label", None)
        self._say(sanitize(text), event="log", level=level, logger=record.name, message=text, by=by)

    def printed(self, stream: str, by: str, line: str) -> None:
        """A line that a function has printed; only where lines are JSON, else it goes where it would have gone."""
        self._say(line, event="printed", stream=stream, message=line, by=by)

    def _say(self, words: str, *, at_once: bool = True, **fields: Any) -> None:
        if self._json is not None:
            # A worker continues without a reader of its output.
            with suppress(OSError):
                # One call: functions print from threads.
                self._json.write(json.dumps({**fields, "at_ms": time.time_ns() // 1_000_000}) + "\n")
            return
        # One call: print writes the end of the line by itself where the output is not buffered.
        sys.stdout.write(words + "\n")
        if at_once:
            sys.stdout.flush()
        if not at_once and self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        sys.stdout.flush()


FLUSH_SECONDS = 0.1
ERROR_COLUMNS_MAX = 500
FATAL = frozenset({"store_newer", "store_gone", "store_read_only"})
"""Refusals that waiting does not fix: another version has migrated the store, or its file is gone or not accessible."""
REOPEN_SECONDS = 1.0
SCRAPE_SECONDS_MAX = 5.0
LEFTOVER_SECONDS_MAX = 1.0
"""How long functions that were cancelled may take to notice, before the process ends without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    store: str
    queues: str | None
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
    log_level: str = "info"
    log_format: str = "text"
    metrics: str | None = None
    """Where metrics are served: HOST:PORT."""

    @property
    def in_json(self) -> bool:
        return self.as_json or self.log_format == "json"


def work(options: WorkOptions) -> int:
    try:
        settings = read_settings(imports=options.imports)
        if settings.imports is None:
            # A person who publishes to a shared store need not be the operator of its workers.
            settings = msgspec.structs.replace(settings, imports=ImportGrants())
        # Before the current folder can be searched for modules.
        import_before_work()
        with status_output(options, importing=settings.may_import) as status_lines:
            engine = _engine(options, settings)
            main.start_collector()
            main.prepare_long_life()
            in_loop(_work(engine, options, settings, status_lines))
    except Rejected as refusal:
        return StoreSession(options.store, options.in_json).refused(refusal)
    return main.OK


def _number(level: str) -> int:
    return int(getattr(logging, level.upper()))


class LogLines(logging.Handler):
    """Prints log records as the worker's other lines are printed."""

    def __init__(self, status_lines: StatusLines, level: int) -> None:
        super().__init__(level)
        self._status_lines = status_lines

    def emit(self, record: logging.LogRecord) -> None:
        self._status_lines.logged(record)


class OutputOptions(Protocol):
    """The options of a long-lived command that decide what it imports and prints."""

    @property
    def apps(self) -> tuple[str, ...]: ...
    @property
    def in_json(self) -> bool: ...
    @property
    def log_level(self) -> str: ...


@contextmanager
def status_output(options: OutputOptions, *, importing: bool) -> Iterator[StatusLines]:
    """The status lines and log of a long-lived command, with its folder importable if it imports user code."""
    with (
        importable() if options.apps or importing else nullcontext(),
        StatusLines(as_json=options.in_json, level=options.log_level) as status_lines,
        reserve_stdout() if options.in_json else nullcontext(),
        _log_lines(options.in_json, options.log_level, status_lines),
    ):
        yield status_lines


@contextmanager
def _log_lines(in_json: bool, log_level: str, status_lines: StatusLines) -> Iterator[None]:
    """Tell the run and node of lines that functions print, and format log records."""
    capture, root = OutputCapture(), logging.getLogger()
    capture.install(**({"told": status_lines.printed} if in_json else {"marks": str}))
    # A line per node is printed anyway, so records below a warning are shown only to those who debug.
    level = logging.DEBUG if log_level == "debug" else max(logging.WARNING, _number(log_level))
    handler: logging.Handler | None = None
    if in_json:
        handler = LogLines(status_lines, level)
    elif log_level == "debug":
        handler = logging.StreamHandler()
    if handler is not None:
        root.addHandler(handler)
    if log_level == "debug":
        logging.getLogger("tidemill").setLevel(logging.DEBUG)
    try:
        yield
    finally:
        capture.remove()
        if handler is not None:
            root.removeHandler(handler)


def import_before_work() -> None:
    """Import what the first nodes need, because importing it later would block the event loop."""
    import_module("tidemill.kernel.compile.compiler")
    import_module("tidemill.net.transport").trusted_authorities()
    import_module("tidemill.expressions.cel.evaluate")
    import_module("tidemill.expressions.jsonpath.parser").read_query("$")


def _engine(options: WorkOptions, settings: Settings) -> Engine:
    if options.store == PRIVATE_STORE:
        hint = "use a durable store: --store URL, or TIDEMILL_STORE"
        raise rejected(
            "store_private", "memory:// is private to this process, so the worker would never get a job", hint=hint
        )
    if not options.heartbeat_s < options.dead_after_s < math.inf:
        message = f"--dead-after {options.dead_after_s:g} is not more than --heartbeat {options.heartbeat_s:g}"
        raise rejected("option_invalid", message, hint="use about three heartbeats")
    queues = [] if options.queues is None else [queue.strip() for queue in options.queues.split(",")]
    if not all(queues):
        raise rejected("option_invalid", f"--queues {options.queues!r} names nothing", hint="write --queues a,b")
    if options.metrics is not None:
        read_address(options.metrics)
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
        metrics=options.metrics is not None,
    )


async def _work(engine: Engine, options: WorkOptions, settings: Settings, status_lines: StatusLines) -> None:
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
    engine.turns.listener = status_lines.ended
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if await opened(engine, stop, status_lines):
        try:
            # The store's refusal of this worker must come before the report that it is ready.
            with suppress(Unavailable):
                await registry.check()
            with _metrics_server(engine, options) as address:
                status_lines.ready(registry.row(), without_password(options.store), settings, address)
                await stop.wait()
        finally:
            await engine.close()
    if refusals:
        raise refusals[0]
    status_lines.drained(worker.returned, worker.finished)


@contextmanager
def _metrics_server(engine: Engine, options: WorkOptions) -> Iterator[str]:
    """Serve metrics where they are wanted; yields the address of them."""
    if options.metrics is None or engine.metrics is None:
        yield ""
        return
    measured, loop = engine.metrics, asyncio.get_running_loop()

    def text() -> bytes:
        answer = asyncio.run_coroutine_threadsafe(measured.text(), loop)
        try:
            return answer.result(SCRAPE_SECONDS_MAX)
        except Exception:
            # The loop is blocked or closing: counters need neither.
            return measured.metrics.render()

    server = MetricsServer(*read_address(options.metrics), text)
    try:
        yield f"http://{f'[{server.host}]' if ':' in server.host else server.host}:{server.port}/metrics"
    finally:
        # A scrape may wait for this loop.
        threading.Thread(target=server.close, name="tidemill-metrics-end", daemon=True).start()


async def opened(engine: Engine, stop: asyncio.Event, status_lines: StatusLines) -> bool:
    """Retry until the store opens; return False if a signal came first."""
    while not stop.is_set():
        try:
            await engine.open()
        except Unavailable as error:
            status_lines.reach(error)
            await asyncio.sleep(REOPEN_SECONDS)
        else:
            status_lines.reach(None)
            # What was imported stays: the garbage collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            return True
    return False


def in_loop(main: Coroutine[Any, Any, None]) -> None:
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
@options.flag("--all", "every", about="Include workers that died within the last hour.")
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
@options.argument("name", "NAME", "The worker's name, the end of it, or its pid.")
@options.on_store()
def show_command(session: StoreSession, name: str) -> int:
    """Show a worker: the jobs it holds and the node types it runs."""
    from tidemill.cli.render.lists import find_worker, print_worker

    return session.ask_and_print(lambda mill: find_worker(mill.workers(), name), print_worker)


@click.group(cls=CommandGroup, help=GROUPS["concurrency"], invoke_without_command=True)
@options.on_store()
@click.pass_context
def concurrency(context: click.Context, session: StoreSession) -> int:
    if context.invoked_subcommand is not None:
        return main.OK
    from tidemill.cli.render.lists import print_limits

    return session.ask_and_print(lambda mill: mill.concurrency_limits(), print_limits)


@concurrency.command("set")
@options.argument("name", "NAME", "What to limit: queue:NAME, type:NAME, workflow:NAME or label:KEY.")
@options.argument("limit", "N", "Maximum number of nodes at once; for a label, per value.", type=int)
@options.on_store(creates=True)
def set_limit_command(session: StoreSession, name: str, limit: int) -> int:
    """Set a limit. It holds for nodes that are scheduled from now on, within a few seconds in every process."""
    from tidemill.cli.render.lists import print_limits

    return session.ask_and_print(lambda mill: mill.limit_concurrency(name, limit), lambda found: print_limits([found]))


@concurrency.command("remove")
@options.argument("name", "NAME", "The limit.")
@options.on_store()
def remove_limit_command(session: StoreSession, name: str) -> int:
    """Remove a limit."""
    return session.ask_and_print(
        lambda mill: mill.unlimit_concurrency(name), lambda _: print(f"{sanitize(name)} is no longer limited")
    )


@click.command("queues")
@options.flag("--all", "everything", about="Also the queue of the engine's own maintenance.")
@options.on_store()
def queues_command(session: StoreSession, everything: bool) -> int:
    """Show how much work is waiting in each queue.

    Also shows how long the oldest job has been waiting.
    """
    from tidemill.cli.render.summaries import print_queues

    def ask(mill: Tidemill) -> list[QueueView]:
        return [each for each in mill.queues() if everything or each.queue != MAINTENANCE_QUEUE]

    return session.ask_and_print(ask, print_queues)
