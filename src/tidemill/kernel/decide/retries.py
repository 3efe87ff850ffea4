"""When work is retried: the delay after a failure, and how many workers may be lost with it."""

from __future__ import annotations

from tidemill.kernel.events import Error
from tidemill.kernel.model import Retry

LOST_IN_A_ROW_MAX = 5

SET_ASIDE = "the workers that claimed it were lost before they recorded anything"


def set_aside(lost: int) -> bool:
    """Whether to leave a job alone: the worker that should have given it up was lost as well."""
    return lost > LOST_IN_A_ROW_MAX


def worker_killer(lost: int, work: str) -> Error | None:
    """The error of work with which too many workers in a row were lost; None while there are fewer.

    Attempts and compensations are counted in the state. The count of any other job is that of its expired leases.
    """
    if lost < LOST_IN_A_ROW_MAX:
        return None
    message = f"{LOST_IN_A_ROW_MAX} workers in a row were lost while they {work}"
    return Error("worker_killer", message, hint="find out what kills them: memory, native code, a function that exits")


def retry_delay_ms(retry: Retry, failures: int, retry_after_ms: int | None, chance: float) -> int:
    """The delay after the n-th failure: what the remote service asked for, else exponential with jitter."""
    if retry_after_ms is not None:
        return max(0, retry_after_ms)
    # The exponent is bounded so that many failures cannot overflow a float.
    delay = min(retry.max_backoff_ms, retry.backoff_ms * retry.multiplier ** min(failures - 1, 64))
    return max(0, min(retry.max_backoff_ms, int(delay * (1 + retry.jitter * (2 * chance - 1)))))
