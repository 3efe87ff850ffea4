"""Exceptions to error envelopes: always serialisable, whatever the exception holds or does when it is looked at."""

from __future__ import annotations

import msgspec

from tidemill.blobs.payloads import NotJson
from tidemill.expressions.failure import ExpressionError
from tidemill.handlers.contract import Fail
from tidemill.handlers.raised import causes_of, clipped, described, text_of
from tidemill.kernel.commands import Failed, Result
from tidemill.kernel.events import Error
from tidemill.kernel.jobs import Task
from tidemill.security.secrets import SecretMissing, SecretUnusable
from tidemill.stores.contract import Lease

CODE_MAX = 100
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
        envelope = Error(code, clipped(error.message), "Fail", bool(error.retryable), hint, causes_of(error))
        unknown = bool(getattr(error, "unknown_outcome", False))
        return Failed(error=envelope, retry_after_ms=_delay_ms(error.retry_after_ms), unknown_outcome=unknown)
    if isinstance(error, ExpressionError):
        return Failed(error=Error(error.code, clipped(error.message), hint=clipped(error.hint)))
    if isinstance(error, NotJson):
        return Failed(error=Error("output_not_json", clipped(text_of(error)), hint="return plain JSON values"))
    if isinstance(error, SecretMissing):
        return Failed(error=Error("secret_missing", clipped(error.message), hint=clipped(error.hint)))
    if isinstance(error, SecretUnusable):
        hint = "a secret is a text of 4 characters to 64 KiB that the workers' user may read"
        return Failed(error=Error("secret_unusable", clipped(text_of(error)), retryable=True, hint=hint))
    raised = described(error)
    return Failed(
        error=Error(
            "exception",
            raised.message,
            raised.kind,
            raised.retryable,
            causes=raised.causes,
            traceback=raised.traceback,
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


def _delay_ms(said: object) -> int | None:
    """How long a failure asks to wait, as far as that is a number of milliseconds."""
    if not isinstance(said, (int, float)) or said != said:
        return None
    return int(min(max(0, said), RETRY_AFTER_MS_MAX))
