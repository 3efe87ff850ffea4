"""Exceptions to error envelopes: always serialisable, whatever the exception holds or does when it is looked at."""

from __future__ import annotations

import traceback

import msgspec

from tidemill.blobs.payloads import NotJson
from tidemill.expressions.failure import ExpressionError
from tidemill.handlers.contract import Fail
from tidemill.kernel.commands import Failed, Result
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import Task
from tidemill.stores.contract import Lease

CODE_MAX = 100
MESSAGE_MAX = 2_000
TRACEBACK_MAX = 8_000
CAUSES_MAX = 8
RETRY_AFTER_MS_MAX = 366 * 86_400_000


def failed_by(error: BaseException) -> Failed:
    """What an attempt that raised came to. Unknown exceptions are retryable; known mistakes are not."""
    try:
        return _failed_by(error)
    except BaseException:
        return Failed(error=Error("exception", "the error cannot be shown: it fails when it is looked at"))


def _failed_by(error: BaseException) -> Failed:
    if isinstance(error, Fail):
        # Its fields are whatever its author put there.
        code, hint = clipped(error.code, CODE_MAX) or "failed", clipped(error.hint or "")
        envelope = Error(code, clipped(error.message), "Fail", bool(error.retryable), hint, _causes(error))
        return Failed(error=envelope, retry_after_ms=_delay_ms(error.retry_after_ms))
    if isinstance(error, ExpressionError):
        return Failed(error=Error(error.code, clipped(error.message), hint=clipped(error.hint)))
    if isinstance(error, NotJson):
        return Failed(error=Error("output_not_json", clipped(_text(error)), hint="return plain JSON values"))
    return Failed(
        error=Error(
            "exception",
            clipped(_text(error)),
            clipped(type(error).__name__, CODE_MAX),
            isinstance(error, Exception),
            causes=_causes(error),
            traceback=_traceback(error),
        )
    )


def failed_result(task: Task, lease: Lease, error: BaseException, worker: str) -> Result:
    """The result of an attempt that could not even begin. Trying again would find the same values."""
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
    """An attempt that took longer than it may."""
    return Failed(
        error=Error("timeout", f"the attempt took longer than {timeout_ms} ms", retryable=True), unknown_outcome=True
    )


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return f"{type(error).__name__} (its message cannot be shown)"


def clipped(said: object, limit: int = MESSAGE_MAX) -> str:
    """Whatever somebody said as text that can be stored: lone surrogates as question marks, and not too long."""
    # A subclass of str may lie about itself, so it is asked for its characters only.
    text = str.__str__(str(said))[: limit + 1]
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _delay_ms(said: object) -> int | None:
    """How long a failure asks to wait, as far as that is a number of milliseconds."""
    if not isinstance(said, (int, float)) or said != said:
        return None
    return int(min(max(0, said), RETRY_AFTER_MS_MAX))


def _causes(error: BaseException) -> tuple[str, ...]:
    found: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(found) < CAUSES_MAX:
        found.append(clipped(f"{type(cause).__name__}: {_text(cause)}", 500))
        cause = cause.__cause__ or cause.__context__
    return tuple(found)


def _traceback(error: BaseException) -> str:
    try:
        return clipped("".join(traceback.format_exception(error))[-TRACEBACK_MAX:], TRACEBACK_MAX)
    except BaseException:
        return ""
