"""`tidemill.open()`: a blocking client over an engine whose loop runs in a background thread.

Its methods are the engine's own, with their signatures and docstrings; the caller gets what the engine raises. Ctrl-C
leaves a call at once and cancels what was not done yet; the client stays usable.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from tidemill.bootstrap import engine_at
from tidemill.engine.agents.composite_tools import CompositeToolService
from tidemill.engine.attempts.log_store import LogLine
from tidemill.engine.engine import Engine, service_verb
from tidemill.engine.index_rows import RunRow
from tidemill.engine.maintenance.usage import UsageService
from tidemill.engine.services.access import AuditService, KeyService, TenantService
from tidemill.engine.services.approvals import ApprovalService
from tidemill.engine.services.blobs import BlobService
from tidemill.engine.services.dead_letters import DeadLetterService
from tidemill.engine.services.runs import RunService
from tidemill.engine.services.workers import QueueService, WorkerService
from tidemill.engine.services.workflows import WorkflowService
from tidemill.engine.validation import Seconds, timeout_of
from tidemill.engine.views import html_table
from tidemill.errors import Rejected, TidemillError, Unavailable, for_callers, shorten_traceback, unknown_attribute
from tidemill.event_loop import BufferedIterator, LoopThread
from tidemill.handlers.contract import Handler, NodeClass
from tidemill.handlers.python.functions import Function
from tidemill.kernel.model import RETENTION_BY_STORE
from tidemill.pictures.labels import duration
from tidemill.security.roles import OPERATOR_TENANT
from tidemill.settings import Settings
from tidemill.storage_urls import DEFAULT_URL, store_url, without_password
from tidemill.triggers.service import ScheduleService, schedule_verb

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from tidemill.engine.maintenance.doctor import Diagnosis

LOG = logging.getLogger(__name__)


class EngineBroken(TidemillError):
    """A handler has cancelled the engine's own tasks, as one does that cancels all tasks of the loop."""

    def __init__(self) -> None:
        super().__init__("a handler cancelled the engine's own tasks; a handler may cancel only tasks that it created")


CLOSED_MEANWHILE = (
    "this Tidemill was closed during the call; `tidemill runs show` says whether it happened, and runs continue when "
    "the store is opened again"
)

P = ParamSpec("P")
T = TypeVar("T")
FunctionT = TypeVar("FunctionT", bound=Function)

HTML_RUNS = 10


@for_callers
def open(  # noqa: A001 - `tidemill.open` is how it is called
    url: str | PathLike[str] = DEFAULT_URL,
    *,
    functions: Mapping[str, Function] | Iterable[Function] | None = None,
    handlers: Sequence[Handler | NodeClass] = (),
    concurrency: int = 64,
    queues: Sequence[str] = (),
    only: str = "",
    work: bool = True,
    archive: str | None = None,
    retention_days: float | None = RETENTION_BY_STORE,
    settings: Settings | None = None,
    tracer_provider: TracerProvider | None = None,
    tenant: str = OPERATOR_TENANT,
) -> Tidemill:
    """Open the store at `url` (a `Path` is that of a SQLite file) and, unless `work` is off, run nodes in this process.

    `functions` are Python functions that nodes of type `python` call by name, `handlers` are node types of your
    own, beside those that come with Tidemill and those that installed distributions offer. At most `concurrency`
    nodes run at a time, of all queues unless `queues` names some, and of all runs unless `only` names one: then of
    that one and its children, and a caller that waits for it learns when the store gives out no work. Runs that ended
    `retention_days` ago, or when their workflow says, go to the `archive`: a folder, or `s3://bucket/prefix`.
    `settings` are what the operator grants, by default from `tidemill.toml` and the environment
    (`tidemill.settings.read_settings`). Spans go to the `tracer_provider` of OpenTelemetry, else where the settings and
    the environment say. `tenant` is whose workflows and runs are meant, if there are
    several. Close it, or use it in a `with`.
    """
    url = store_url(url)
    engine = engine_at(
        url,
        functions=functions,
        handlers=handlers,
        concurrency=concurrency,
        queues=queues,
        only=only,
        work=work,
        archive=archive,
        retention_days=retention_days,
        settings=settings,
        tracer_provider=tracer_provider,
        tenant=tenant,
    )
    opened = Tidemill(engine, url)
    if only and engine.worker is not None:
        engine.worker.refusals.give_up = opened._on_claims_refused
    try:
        opened._wait(engine.open())
    except BaseException:
        opened._stop()
        raise
    return opened


@for_callers
def connect(url: str | None = None, key: str | None = None) -> Tidemill:
    """A client of the server at `url`, with the methods of `tidemill.open`. Close it, or use it in a `with`.

    Without arguments it is the server of TIDEMILL_SERVER, with the key of TIDEMILL_KEY. The key determines who acts,
    so `actor`, `roles`, `author` and `submitted_by` are not sent. What fails on the way is repeated for half a minute.
    """
    from tidemill.remote.remote_engine import remote_engine

    engine = remote_engine(url, key)
    connected = Tidemill(engine, engine.url)
    try:
        connected._wait(engine.open())
    except BaseException:
        connected._stop()
        raise
    return connected


@for_callers
def diagnose(url: str = DEFAULT_URL) -> Diagnosis:
    """Check the store at `url` and the deployment around it; what cannot be opened is a finding.

    Nothing is written: a missing store is not created, a pending migration not applied. Raises `Rejected` for a URL
    that names no store.
    """
    return asyncio.run(_diagnosed(engine_at(url, work=False, read_only=True)))


async def _diagnosed(engine: Engine) -> Diagnosis:
    from tidemill.engine.maintenance.doctor import diagnosis_of, is_readable, refusal

    doctor = engine.maintenance.doctor()
    found = await doctor.check_store()
    if is_readable(found):
        try:
            async with engine:
                found += await doctor.check_deployment()
        except TidemillError as error:
            found.append(refusal(error))
    return diagnosis_of(found)


def _blocking(verb: Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Tidemill, P], T]:
    @wraps(verb)
    def call(self: Tidemill, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self._wait(verb(self._engine, *args, **kwargs))
        except Exception as error:
            shorten_traceback(error, verb)
            raise

    return call


def _iterating(
    verb: Callable[Concatenate[Engine, P], AsyncIterator[T]],
) -> Callable[Concatenate[Tidemill, P], Iterator[T]]:
    @wraps(verb)
    def call(self: Tidemill, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            return self._iterate(verb(self._engine, *args, **kwargs))
        except TypeError as error:
            shorten_traceback(error, verb)
            raise

    return call


def _started(row: RunRow) -> str:
    return datetime.fromtimestamp(row.created_ms / 1_000, UTC).isoformat(" ", "seconds")


def _took(row: RunRow) -> str:
    return "" if row.ended_ms is None else duration(row.ended_ms - row.created_ms)


class Tidemill:
    """An open engine. Every method may be called from any thread, except from inside the engine's own loop."""

    publish = _blocking(Engine.publish)
    start = _blocking(Engine.start)
    start_many = _blocking(Engine.start_many)
    result = _blocking(Engine.result)
    run = _blocking(Engine.run)
    show = _blocking(Engine.show)
    events = _blocking(Engine.events)
    path = _blocking(Engine.path)
    tokens = _blocking(Engine.tokens)
    why = _blocking(Engine.why)
    why_node = _blocking(Engine.why_node)
    compare = _blocking(Engine.compare)
    transcript = _blocking(Engine.transcript)
    logs = _blocking(Engine.logs)
    find = _blocking(Engine.find)
    runs = _iterating(service_verb("runs", RunService.iterate))
    count = _blocking(Engine.count)
    summary = _blocking(Engine.summary)
    facets = _blocking(Engine.facets)
    histogram = _blocking(Engine.histogram)
    failure_groups = _blocking(Engine.failure_groups)
    resolve = _blocking(Engine.resolve)
    cancel = _blocking(Engine.cancel)
    pause = _blocking(Engine.pause)
    resume = _blocking(Engine.resume)
    retry = _blocking(Engine.retry)
    rewind = _blocking(Engine.rewind)
    override = _blocking(Engine.override)
    patch = _blocking(Engine.patch)
    document = _blocking(Engine.document)
    fork = _blocking(Engine.fork)
    rollback = _blocking(Engine.rollback)
    relabel = _blocking(Engine.relabel)
    bulk = _blocking(Engine.bulk)
    signal = _blocking(Engine.signal)
    approvals = _blocking(service_verb("approvals", ApprovalService.find))
    approval = _blocking(Engine.approval)
    decide = _blocking(Engine.decide)
    delegate = _blocking(Engine.delegate)
    dead_letters = _blocking(service_verb("dead_letters", DeadLetterService.find))
    dead_letter = _blocking(Engine.dead_letter)
    discard = _blocking(Engine.discard)
    reprocess = _blocking(Engine.reprocess)
    workflow = _blocking(Engine.workflow)
    patch_workflow = _blocking(Engine.patch_workflow)
    workflows = _blocking(service_verb("workflows", WorkflowService.find))
    workflow_document = _blocking(Engine.workflow_document)
    versions = _blocking(Engine.versions)
    tag = _blocking(Engine.tag)
    rollback_tag = _blocking(Engine.rollback_tag)
    untag = _blocking(Engine.untag)
    tags = _blocking(Engine.tags)
    tag_history = _blocking(Engine.tag_history)
    delete_workflow = _blocking(Engine.delete_workflow)
    diff = _blocking(Engine.diff)
    put_blob = _blocking(Engine.put_blob)
    blob = _blocking(Engine.blob)
    blobs = _blocking(service_verb("blobs", BlobService.find))
    save_blob = _blocking(Engine.save_blob)
    collect_blobs = _blocking(Engine.collect_blobs)
    diagnose = _blocking(Engine.diagnose)
    verify_log = _blocking(Engine.verify_log)
    reindex = _blocking(Engine.reindex)
    archive_sweep = _blocking(Engine.archive_sweep)
    archive_list = _blocking(Engine.archive_list)
    archive_show = _blocking(Engine.archive_show)
    archive_restore = _blocking(Engine.archive_restore)
    workers = _blocking(service_verb("workers", WorkerService.find))
    queues = _blocking(service_verb("queues", QueueService.find))
    usage = _blocking(service_verb("usage", UsageService.find))
    concurrency_limits = _blocking(Engine.concurrency_limits)
    limit_concurrency = _blocking(Engine.limit_concurrency)
    unlimit_concurrency = _blocking(Engine.unlimit_concurrency)
    tools = _blocking(service_verb("tools", CompositeToolService.find))
    tool = _blocking(Engine.tool)
    rename_tool = _blocking(Engine.rename_tool)
    pin_tool = _blocking(Engine.pin_tool)
    retire_tool = _blocking(Engine.retire_tool)
    create_schedule = _blocking(schedule_verb(ScheduleService.create))
    update_schedule = _blocking(schedule_verb(ScheduleService.update))
    schedules = _blocking(schedule_verb(ScheduleService.find))
    schedule = _blocking(schedule_verb(ScheduleService.show))
    schedule_times = _blocking(schedule_verb(ScheduleService.times))
    pause_schedule = _blocking(schedule_verb(ScheduleService.pause))
    resume_schedule = _blocking(schedule_verb(ScheduleService.resume))
    delete_schedule = _blocking(schedule_verb(ScheduleService.delete))
    trigger_schedule = _blocking(schedule_verb(ScheduleService.trigger))
    node_types = _blocking(service_verb("workers", WorkerService.node_types))
    create_key = _blocking(Engine.create_key)
    keys = _blocking(service_verb("keys", KeyService.find))
    revoke_key = _blocking(Engine.revoke_key)
    create_tenant = _blocking(Engine.create_tenant)
    tenants = _blocking(service_verb("tenants", TenantService.find))
    disable_tenant = _blocking(Engine.disable_tenant)
    enable_tenant = _blocking(Engine.enable_tenant)
    audit = _blocking(service_verb("audit", AuditService.find))
    verify_audit = _blocking(Engine.verify_audit)

    def __init__(self, engine: Engine, url: str = "") -> None:
        self._engine, self._url = engine, without_password(url)
        self._closed = self._closing = False
        self._pid = os.getpid()
        self._loop = LoopThread()
        self._refusal: Rejected | None = None

    @overload
    def register(self, function: FunctionT, /) -> FunctionT: ...
    @overload
    def register(self, *functions: Function, **named: Function) -> Function | None: ...
    def register(self, *functions: Function, **named: Function) -> Function | None:
        """Add or replace functions that nodes of type `python` call by name.

        A function has the name that it was marked with, else its own; `register(score=f)` gives it another. Also a
        decorator: it returns the first function. Attempts that have begun keep the function they have.
        """
        return self._engine.register(*functions, **named)

    @for_callers
    def follow(
        self, run_id: str, after: int = 0, *, live: bool = False, awaited: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The run's events from `after` + 1 on, as they are committed; ends with the run.

        With `live` also parts of results and progress, which are not kept. An `awaited` run may start later: who
        follows it before it starts misses nothing.
        """
        return self._iterate(self._engine.follow(run_id, after, live=live, awaited=awaited))

    @for_callers
    def follow_logs(
        self,
        run_id: str,
        node: str | None = None,
        *,
        visit: int | None = None,
        index: int | None = None,
        attempt: int | None = None,
    ) -> Iterator[LogLine]:
        """Yield what handlers print and log, past and new, until the run ends."""
        return self._iterate(self._engine.follow_logs(run_id, node, visit=visit, index=index, attempt=attempt))

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over what the loop's thread reads from now on."""
        ahead = BufferedIterator(source)
        self._wait(ahead.open())
        return self._taken(ahead)

    def _taken(self, ahead: BufferedIterator[T]) -> Iterator[T]:
        try:
            while batch := self._wait(ahead.take()):
                yield from batch
        except Exception as error:
            shorten_traceback(error)
            raise
        finally:
            if not self._closed:
                self._wait(ahead.close())

    @for_callers
    def close(self, *, timeout: Seconds | None = None, timeout_s: Seconds | None = None) -> None:
        """Let running attempts finish (at most `timeout` seconds), then close the store; idempotent."""
        if self._closed or self._forked:
            return
        self._closing = True
        try:
            # What still runs after that is cut off; its lease ends by itself.
            with suppress(TimeoutError):
                self._answered(asyncio.wait_for(self._engine.close(), timeout_of(timeout, timeout_s)))
        finally:
            self._stop()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name)

    def __repr__(self) -> str:
        return f"<Tidemill {self._url} {'closed' if self._closed else 'open'}>"

    def _repr_html_(self) -> str:
        """For notebooks: the newest runs."""
        from html import escape

        head = f"<p><b>Tidemill</b> <code>{escape(self._url)}</code>"
        if self._closed or self._forked:
            return f"{head} · closed</p>"
        try:
            rows = [row for row in self.find(limit=100).rows if not row.parent][:HTML_RUNS]
        except TidemillError as error:
            return f"{head} · {escape(str(error))}</p>"
        cells = [(row.run_id, f"{row.workflow}@{row.version}", row.status, _started(row), _took(row)) for row in rows]
        return f"{head}</p>{html_table(('run', 'workflow', 'status', 'started', 'took'), cells)}"

    def __enter__(self) -> Tidemill:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _forked(self) -> bool:
        """Whether this is a copy in a forked process: its loop runs in a thread that was not copied."""
        return os.getpid() != self._pid

    def _wait(self, answer: Coroutine[Any, Any, T]) -> T:
        """Have the loop's thread compute an answer and wait for it."""
        if self._closed or self._forked or self._loop.is_current:
            answer.close()
            if self._forked:
                raise RuntimeError("this Tidemill belongs to the process that opened it; open another one after a fork")
            if self._closed:
                raise RuntimeError("this Tidemill is closed")
            raise RuntimeError("a blocking method was called inside the engine's own event loop; call it from a thread")
        return self._answered(answer)

    def _answered(self, answer: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.call(answer)
        except CancelledError:
            if self._closing:
                raise Unavailable(CLOSED_MEANWHILE) from None
            # Without a refusal, code in the engine's loop has cancelled a task that is not its own.
            raise self._refusal or EngineBroken() from None

    def _on_claims_refused(self, refusal: Rejected) -> None:
        """In the loop: stop claiming jobs. Running attempts may still end; after that nothing more happens."""
        if self._engine.worker is not None and not self._engine.worker.held_jobs and not self._closing:
            self._refusal = refusal
            self._loop.cancel_calls()

    def _stop(self) -> None:
        self._closed = True
        self._loop.stop()
