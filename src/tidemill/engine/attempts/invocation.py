"""Call handlers: open and close them, bound them by their time-out, turn exceptions into failures.

A failure is always serialisable, whatever the exception holds or does when it is inspected. Storing a result has no
time-out, because the handler must not be called again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from itertools import count
from types import coroutine
from typing import Any, TypeVar, cast

import msgspec

from tidemill.blobs.payloads import NotJson, decode_value
from tidemill.errors import Unavailable
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.schema import Schema, compile_schema
from tidemill.handlers.contract import (
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    PendingOutcome,
    causes_of,
    describe_exception,
    text_of,
    truncate,
)
from tidemill.kernel.commands import Failed, Result
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import JobBody
from tidemill.observability.capture import OUTPUT_SINK, Ear
from tidemill.security.secrets import SecretMissing, SecretNotGranted, SecretUnusable
from tidemill.stores.contract import Lease

LOG = logging.getLogger(__name__)

T = TypeVar("T")

ABANDON_AFTER_MS = 1_000
"""How long to wait for a handler that was cancelled by its time-out before it is abandoned."""
LEASE_LOST = "the lease is lost"
"""Cancel reason of a handler whose lease is gone; a result that it still returns is recorded as discarded."""
LOST_AFTER_MS = 30_000
"""How long to wait for a handler that was cancelled with `LEASE_LOST`, unless it is cancelled again."""
STORE_AGAIN_MS = 200
STORE_AGAIN_MS_MAX = 5_000
STALLED_AFTER = 20
"""Failed tries to store a result (more than a minute) before `ON_STALL` is called."""
OnStall = Callable[[str], Awaitable[None]]
ON_STALL: ContextVar[OnStall | None] = ContextVar("tidemill-on-stall", default=None)
"""Called when a result cannot be stored; the worker sets it in the task of each job."""


class TimedOut(Exception): ...


@coroutine
def next_step() -> Generator[None, None, None]:
    """Suspend once; the driver of the coroutine resumes it."""
    yield


@coroutine
def outcome_of(pending: PendingOutcome) -> Generator[PendingOutcome, None, HandlerOutcome | BaseException]:
    """Suspend; the driver of the coroutine resumes it when the outcome is known. Returns what the call raised."""
    yield pending
    # Not raised here: the traceback would refer to this frame, which refers to the call.
    error = pending.exception()
    return pending.result() if error is None else error


async def bounded(
    pending: Awaitable[T], timeout_ms: int | None, call_context: Context | None = None
) -> T | BaseException:
    """Await a handler within its time-out. Returns what it raised as a value, and a time-out as `TimedOut`."""
    handler: asyncio.Future[Any] = (
        pending if isinstance(pending, PendingOutcome) else asyncio.create_task(guarded(pending), context=call_context)
    )
    try:
        await asyncio.wait({handler}, timeout=None if timeout_ms is None else timeout_ms / 1000)
        if not handler.done():
            handler.cancel()
            await asyncio.wait({handler}, timeout=ABANDON_AFTER_MS / 1000)
            return TimedOut()
    except asyncio.CancelledError as stop:
        handler.cancel()
        handler.add_done_callback(lambda _: _close(pending))
        if stop.args != (LEASE_LOST,):
            raise
        # A handler that continues keeps its slot.
        await asyncio.wait({handler}, timeout=LOST_AFTER_MS / 1000)
        if not handler.done() or handler.cancelled() or handler.exception() is not None:
            raise
        if isinstance(handler.result(), BaseException):
            raise
    if handler is pending and not handler.cancelled() and (error := handler.exception()) is not None:
        return error
    try:
        return cast("T | BaseException", handler.result())
    except BaseException as error:
        return error


async def retry_until_stored(store: Callable[[], Awaitable[T]], on_stall: OnStall | None = None) -> T:
    """Store a handler's result, retrying while the blob store is unreachable: the handler must not be called again.

    The caller holds a lease and is cancelled when it is lost or the worker stops; there is no other bound. After a
    while the run is marked as stuck.
    """
    for times in count():
        try:
            return await store()
        except Unavailable as error:
            if times == 0:
                LOG.warning("the worker holds a result until the store accepts it: %s", error)
            if (stalled := on_stall or ON_STALL.get()) is not None and times and times % STALLED_AFTER == 0:
                await stalled(f"a result cannot be stored: {error}")
            await asyncio.sleep(min(STORE_AGAIN_MS * 2 ** min(times, 6), STORE_AGAIN_MS_MAX) / 1000)
    raise AssertionError("counting ends")


def _close(pending: object) -> None:
    """Close a coroutine whose task was cancelled before its first step; a finished one is closed already."""
    if inspect.iscoroutine(pending):
        pending.close()


async def guarded(pending: Awaitable[T]) -> T | BaseException:
    """Await foreign code and return what it raises as a value: some exceptions would stop the loop."""
    try:
        return await pending
    except BaseException as error:
        return error


# Exceptions to failures

CODE_MAX = 100
RETRY_AFTER_MS_MAX = 366 * 86_400_000


def failed_by(error: BaseException) -> Failed:
    """Turn an exception into a failure. Unknown exceptions are retryable; known mistakes are not."""
    try:
        return _failed_by(error)
    except BaseException:
        return Failed(error=Error("exception", "the error cannot be shown: formatting it raises another error"))


def _failed_by(error: BaseException) -> Failed:
    if isinstance(error, Fail):
        # The fields hold whatever the handler's author put there.
        code, hint = truncate(error.code, CODE_MAX) or "failed", truncate(error.hint or "")
        envelope = Error(code, truncate(error.message), "Fail", bool(error.retryable), hint, causes_of(error))
        unknown = bool(getattr(error, "unknown_outcome", False))
        delay: object = error.retry_after_ms
        delay_ms = None
        if isinstance(delay, (int, float)) and delay == delay:
            delay_ms = int(min(max(0, delay), RETRY_AFTER_MS_MAX))
        return Failed(error=envelope, retry_after_ms=delay_ms, unknown_outcome=unknown)
    if isinstance(error, ExpressionError):
        return Failed(error=Error(error.code, truncate(error.problem().sentence), hint=truncate(error.hint)))
    if isinstance(error, NotJson):
        return Failed(error=Error("output_not_json", truncate(text_of(error)), hint="return plain JSON values"))
    if isinstance(error, (SecretMissing, SecretNotGranted)):
        code = "secret_missing" if isinstance(error, SecretMissing) else "secret_not_granted"
        return Failed(error=Error(code, truncate(error.message), hint=truncate(error.hint)))
    if isinstance(error, SecretUnusable):
        hint = "a secret is a text of 4 characters to 64 KiB that the workers' user may read"
        return Failed(error=Error("secret_unusable", truncate(text_of(error)), retryable=True, hint=hint))
    raised = describe_exception(error)
    return Failed(
        error=Error(
            "exception", raised.message, raised.kind, raised.retryable, causes=raised.causes, traceback=raised.traceback
        )
    )


def failed_result(task: JobBody, lease: Lease, error: BaseException, worker: str) -> Result:
    """The result of an attempt that could not begin. A retry would read the same values."""
    failed = failed_by(error)
    return Result(
        node=task.node,
        visit=task.visit,
        index=task.index,
        token=lease.token,
        outcome=msgspec.structs.replace(failed, error=msgspec.structs.replace(failed.error, retryable=False)),
        called=False,
        worker=worker,
    )


def timed_out(timeout_ms: int) -> Failed:
    return Failed(
        error=Error("timeout", f"the attempt took longer than {timeout_ms} ms", retryable=True), unknown_outcome=True
    )


# Handlers


class HandlerHost:
    def __init__(self) -> None:
        self._opened: dict[str, asyncio.Task[BaseException | None]] = {}
        self._handlers: list[Handler] = []
        self._schemas: dict[tuple[str, str], Schema] = {}
        self.enter_span: Callable[[str], None] | None = None
        """Makes the span of an attempt the current one of its handler, where spans are wanted."""

    def schema(self, handler: Handler) -> Schema:
        """The config schema of the handler's type, compiled once."""
        return self._compiled("config", handler, handler.type.config_schema)

    def check_output(self, handler: Handler, text: bytes) -> None:
        """Raise `Fail` unless a result, as it will be stored, matches its type's output schema."""
        schema = self._compiled("output", handler, handler.type.output_schema)
        _check(schema, decode_value(text), "output_invalid", f"the result is not what {handler.type.key} promises")

    def _compiled(self, part: str, handler: Handler, source: Any) -> Schema:
        known = self._schemas.get((part, handler.type.key))
        if known is None:
            known = self._schemas[part, handler.type.key] = compile_schema(source)
        return known

    def call(
        self, handler: Handler, context: NodeContext, sink: Ear | None
    ) -> tuple[Context | None, HandlerOutcome | Awaitable[HandlerOutcome]]:
        """Call a handler with its output captured; an awaitable result must be awaited in the returned context."""
        if handler.type.input_schema is not True:
            schema = self._compiled("input", handler, handler.type.input_schema)
            message = f"the upstream outputs do not match what {handler.type.key} expects"
            _check(schema, dict(context.upstream), "input_invalid", message)
        if not handler.captured:
            return None, handler.call(context)
        call_context = copy_context()
        call_context.run(OUTPUT_SINK.set, sink)
        if self.enter_span is not None:
            call_context.run(self.enter_span, context.traceparent)
        if handler.has_lifecycle:
            return call_context, self._call_with_lifecycle(handler, context)
        if handler.close is not None and handler not in self._handlers:
            self._handlers.append(handler)
        return call_context, call_context.run(handler.call, context)

    async def close(self) -> None:
        """Close the opened handlers; a failing one does not keep the others open."""
        handlers, self._handlers, self._opened = self._handlers, [], {}
        for handler in reversed(handlers):
            if handler.close is not None and (error := await guarded(_run_step(handler.close))) is not None:
                LOG.error("%s could not be closed", handler.type.key, exc_info=error)

    async def _call_with_lifecycle(self, handler: Handler, context: NodeContext) -> HandlerOutcome:
        await self._open(handler)
        try:
            if handler.prepare is not None:
                await _run_step(partial(handler.prepare, context))
            ended = handler.call(context)
            return await ended if inspect.isawaitable(ended) else ended
        finally:
            if handler.finish is not None:
                error = await guarded(_run_step(partial(handler.finish, context)))
                if error is not None:
                    # The result counts all the same: an effect that has happened must not be repeated.
                    LOG.error("%s could not finish", handler.type.key, exc_info=error)

    async def _open(self, handler: Handler) -> None:
        """Open a handler before its first attempt. Concurrent attempts wait; the next one retries a failure."""
        if handler.open is None and handler.close is None:
            return
        key = handler.type.key
        if key not in self._opened:
            # An opened handler serves all attempts, so its later output is not the first one's.
            call_context = copy_context()
            call_context.run(OUTPUT_SINK.set, None)
            self._opened[key] = asyncio.create_task(
                self._open_once(handler), name=f"tidemill-open-{key}", context=call_context
            )
        error = await asyncio.shield(self._opened[key])
        if error is not None:
            raise error

    async def _open_once(self, handler: Handler) -> BaseException | None:
        error = None if handler.open is None else await guarded(_run_step(handler.open))
        if error is None:
            self._handlers.append(handler)
        else:
            del self._opened[handler.type.key]
        return error


def _check(schema: Schema, value: Any, code: str, message: str) -> None:
    if not schema.accepts(value):
        first = schema.problems(value)[0]
        raise Fail(code, f"{message}: {first.sentence}", hint=first.hint)


async def _run_step(step: Callable[[], Awaitable[None] | None]) -> None:
    pending = step()
    if pending is not None:
        await pending
