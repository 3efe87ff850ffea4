"""`tidemill.aopen()`: the engine for programs that have an event loop of their own, such as a web application.

Its methods are those of `tidemill.open`, awaited: both call the same engine. Everything runs in the
loop of the caller, so handlers that block it are to be plain functions, which run in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, cast, overload

from tidemill.bootstrap import engine_at
from tidemill.engine.agents.composite_tools import CompositeToolService
from tidemill.engine.engine import Engine, service_verb
from tidemill.engine.maintenance.usage import UsageService
from tidemill.engine.services.access import AuditService, KeyService, TenantService
from tidemill.engine.services.approvals import ApprovalService
from tidemill.engine.services.blobs import BlobService
from tidemill.engine.services.dead_letters import DeadLetterService
from tidemill.engine.services.runs import RunService
from tidemill.engine.services.workers import QueueService, WorkerService
from tidemill.engine.services.workflows import WorkflowService
from tidemill.engine.validation import Seconds, timeout_of
from tidemill.errors import for_callers, shorten_traceback, unknown_attribute
from tidemill.handlers.contract import Handler, NodeClass
from tidemill.handlers.python.functions import Function
from tidemill.kernel.model import RETENTION_BY_STORE
from tidemill.security.roles import OPERATOR_TENANT
from tidemill.settings import Settings
from tidemill.storage_urls import DEFAULT_URL, store_url, without_password
from tidemill.triggers.service import ScheduleService, schedule_verb

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

P = ParamSpec("P")
T = TypeVar("T")
FunctionT = TypeVar("FunctionT", bound=Function)


@for_callers
def aopen(
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
) -> AsyncTidemill:
    """An engine in the caller's event loop: `async with tidemill.aopen() as mill`, or `mill = await tidemill.aopen()`.

    The arguments are those of `tidemill.open`. A URL that names no store is refused here; the store is opened when the
    engine is entered or awaited.
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
    return AsyncTidemill(engine, url)


@for_callers
def aconnect(url: str | None = None, key: str | None = None) -> AsyncTidemill:
    """A client of the server at `url` in the caller's event loop: `async with tidemill.aconnect() as mill`.

    The arguments are those of `tidemill.connect`. The server is asked when the client is entered or awaited.
    """
    from tidemill.remote.remote_engine import remote_engine

    engine = remote_engine(url, key)
    return AsyncTidemill(engine, engine.url)


def _verb(method: Callable[Concatenate[Engine, P], T]) -> Callable[Concatenate[AsyncTidemill, P], T]:
    @wraps(method)
    def call(self: AsyncTidemill, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._open:
            raise RuntimeError(self._not_open())
        try:
            answer = method(self._engine, *args, **kwargs)
        except TypeError as error:
            shorten_traceback(error, method)
            raise
        return cast(T, _awaited(answer)) if isinstance(answer, Coroutine) else answer

    return call


async def _awaited(answer: Coroutine[Any, Any, T]) -> T:
    try:
        return await answer
    except Exception as error:
        shorten_traceback(error)
        raise


class AsyncTidemill:
    """An engine whose methods are awaited. They may be called from the loop in which it was opened."""

    publish = _verb(Engine.publish)
    start = _verb(Engine.start)
    start_many = _verb(Engine.start_many)
    result = _verb(Engine.result)
    run = _verb(Engine.run)
    show = _verb(Engine.show)
    events = _verb(Engine.events)
    follow = _verb(Engine.follow)
    path = _verb(Engine.path)
    tokens = _verb(Engine.tokens)
    why = _verb(Engine.why)
    why_node = _verb(Engine.why_node)
    compare = _verb(Engine.compare)
    transcript = _verb(Engine.transcript)
    logs = _verb(Engine.logs)
    follow_logs = _verb(Engine.follow_logs)
    find = _verb(Engine.find)
    runs = _verb(service_verb("runs", RunService.iterate))
    count = _verb(Engine.count)
    summary = _verb(Engine.summary)
    facets = _verb(Engine.facets)
    histogram = _verb(Engine.histogram)
    failure_groups = _verb(Engine.failure_groups)
    resolve = _verb(Engine.resolve)
    cancel = _verb(Engine.cancel)
    pause = _verb(Engine.pause)
    resume = _verb(Engine.resume)
    retry = _verb(Engine.retry)
    rewind = _verb(Engine.rewind)
    override = _verb(Engine.override)
    patch = _verb(Engine.patch)
    document = _verb(Engine.document)
    fork = _verb(Engine.fork)
    rollback = _verb(Engine.rollback)
    relabel = _verb(Engine.relabel)
    bulk = _verb(Engine.bulk)
    signal = _verb(Engine.signal)
    approvals = _verb(service_verb("approvals", ApprovalService.find))
    approval = _verb(Engine.approval)
    decide = _verb(Engine.decide)
    delegate = _verb(Engine.delegate)
    dead_letters = _verb(service_verb("dead_letters", DeadLetterService.find))
    dead_letter = _verb(Engine.dead_letter)
    discard = _verb(Engine.discard)
    reprocess = _verb(Engine.reprocess)
    workflow = _verb(Engine.workflow)
    patch_workflow = _verb(Engine.patch_workflow)
    workflows = _verb(service_verb("workflows", WorkflowService.find))
    workflow_document = _verb(Engine.workflow_document)
    versions = _verb(Engine.versions)
    tag = _verb(Engine.tag)
    rollback_tag = _verb(Engine.rollback_tag)
    untag = _verb(Engine.untag)
    tags = _verb(Engine.tags)
    tag_history = _verb(Engine.tag_history)
    delete_workflow = _verb(Engine.delete_workflow)
    diff = _verb(Engine.diff)
    put_blob = _verb(Engine.put_blob)
    blob = _verb(Engine.blob)
    blobs = _verb(service_verb("blobs", BlobService.find))
    save_blob = _verb(Engine.save_blob)
    collect_blobs = _verb(Engine.collect_blobs)
    diagnose = _verb(Engine.diagnose)
    verify_log = _verb(Engine.verify_log)
    reindex = _verb(Engine.reindex)
    archive_sweep = _verb(Engine.archive_sweep)
    archive_list = _verb(Engine.archive_list)
    archive_show = _verb(Engine.archive_show)
    archive_restore = _verb(Engine.archive_restore)
    workers = _verb(service_verb("workers", WorkerService.find))
    queues = _verb(service_verb("queues", QueueService.find))
    usage = _verb(service_verb("usage", UsageService.find))
    concurrency_limits = _verb(Engine.concurrency_limits)
    limit_concurrency = _verb(Engine.limit_concurrency)
    unlimit_concurrency = _verb(Engine.unlimit_concurrency)
    tools = _verb(service_verb("tools", CompositeToolService.find))
    tool = _verb(Engine.tool)
    rename_tool = _verb(Engine.rename_tool)
    pin_tool = _verb(Engine.pin_tool)
    retire_tool = _verb(Engine.retire_tool)
    create_schedule = _verb(schedule_verb(ScheduleService.create))
    update_schedule = _verb(schedule_verb(ScheduleService.update))
    schedules = _verb(schedule_verb(ScheduleService.find))
    schedule = _verb(schedule_verb(ScheduleService.show))
    schedule_times = _verb(schedule_verb(ScheduleService.times))
    pause_schedule = _verb(schedule_verb(ScheduleService.pause))
    resume_schedule = _verb(schedule_verb(ScheduleService.resume))
    delete_schedule = _verb(schedule_verb(ScheduleService.delete))
    trigger_schedule = _verb(schedule_verb(ScheduleService.trigger))
    node_types = _verb(service_verb("workers", WorkerService.node_types))
    create_key = _verb(Engine.create_key)
    keys = _verb(service_verb("keys", KeyService.find))
    revoke_key = _verb(Engine.revoke_key)
    create_tenant = _verb(Engine.create_tenant)
    tenants = _verb(service_verb("tenants", TenantService.find))
    disable_tenant = _verb(Engine.disable_tenant)
    enable_tenant = _verb(Engine.enable_tenant)
    audit = _verb(service_verb("audit", AuditService.find))
    verify_audit = _verb(Engine.verify_audit)

    def __init__(self, engine: Engine, url: str = "") -> None:
        self._engine, self._url = engine, without_password(url)
        self._open = self._closed = False

    @overload
    def register(self, function: FunctionT, /) -> FunctionT: ...
    @overload
    def register(self, *functions: Function, **named: Function) -> Function | None: ...
    def register(self, *functions: Function, **named: Function) -> Function | None:
        """Add functions that nodes of type `python` call by name, or replace them; also a decorator. Not awaited."""
        return self._engine.register(*functions, **named)

    async def close(
        self,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - as callers guess it
        timeout_s: Seconds | None = None,
    ) -> None:
        """Let running attempts finish (at most `timeout` seconds), then close the store; idempotent."""
        if self._open:
            self._open, self._closed = False, True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._engine.close(), timeout_of(timeout, timeout_s))

    async def __aenter__(self) -> AsyncTidemill:
        return await self._opened()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError("an AsyncTidemill is entered with `async with`")

        def __exit__(self, *exc: object) -> None: ...

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_attribute(self, name)

    def __await__(self) -> Generator[Any, None, AsyncTidemill]:
        return self._opened().__await__()

    async def _opened(self) -> AsyncTidemill:
        if self._closed:
            raise RuntimeError(self._not_open())
        if not self._open:
            await _awaited(self._engine.open())
            self._open = True
        return self

    def _not_open(self) -> str:
        if self._closed:
            return "this Tidemill is closed"
        return "this Tidemill is not open yet: write `async with tidemill.aopen() as mill`"

    def __repr__(self) -> str:
        state = "open" if self._open else "closed" if self._closed else "not open"
        return f"<AsyncTidemill {self._url} {state}>"
