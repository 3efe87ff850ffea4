"""Exceptions to error envelopes: always serialisable, whatever the exception holds or does when it is looked at."""

from __future__ import annotations

import traceback

from tidemill.blobs.payloads import NotJson
from tidemill.expressions.failure import ExpressionError
from tidemill.handlers.contract import Fail
from tidemill.kernel.commands import Failed
from tidemill.kernel.events import Error

MESSAGE_MAX = 2_000
TRACEBACK_MAX = 8_000
CAUSES_MAX = 8


def failed_by(error: BaseException) -> Failed:
    """What an attempt that raised came to. Unknown exceptions are retryable; known mistakes are not."""
    if isinstance(error, Fail):
        envelope = Error(error.code, _clip(error.message), "Fail", error.retryable, error.hint, _causes(error))
        return Failed(error=envelope, retry_after_ms=error.retry_after_ms)
    if isinstance(error, ExpressionError):
        return Failed(error=Error(error.code, _clip(error.message), hint=error.hint))
    if isinstance(error, NotJson):
        return Failed(error=Error("output_not_json", _clip(_text(error)), hint="return plain JSON values"))
    return Failed(
        error=Error(
            "exception",
            _clip(_text(error)),
            type(error).__name__,
            isinstance(error, Exception),
            causes=_causes(error),
            traceback=_traceback(error),
        )
    )


def timed_out(timeout_ms: int) -> Failed:
    """An attempt that took longer than it may."""
    return Failed(
        error=Error("timeout", f"the attempt took longer than {timeout_ms} ms", retryable=True), unknown_outcome=True
    )


def _text(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} (its message cannot be shown)"


def _clip(text: str, limit: int = MESSAGE_MAX) -> str:
    # Lone surrogates cannot be stored; they are shown as question marks.
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _causes(error: BaseException) -> tuple[str, ...]:
    found: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(found) < CAUSES_MAX:
        found.append(_clip(f"{type(cause).__name__}: {_text(cause)}", 500))
        cause = cause.__cause__ or cause.__context__
    return tuple(found)


def _traceback(error: BaseException) -> str:
    try:
        return _clip("".join(traceback.format_exception(error))[-TRACEBACK_MAX:], TRACEBACK_MAX)
    except Exception:
        return ""
