"""How long to wait before something is tried again, and how often a lost worker is forgiven."""

from __future__ import annotations

from tidemill.kernel.model import Retry

LOST_IN_A_ROW_MAX = 5


def retry_delay_ms(retry: Retry, failures: int, retry_after_ms: int | None, chance: float) -> int:
    """How long to wait after the n-th failure: what the peer asked for, else exponential with jitter."""
    if retry_after_ms is not None:
        return max(0, retry_after_ms)
    # The exponent is bounded so that a long series of failures cannot overflow a float.
    delay = min(retry.max_backoff_ms, retry.backoff_ms * retry.multiplier ** min(failures - 1, 64))
    return max(0, min(retry.max_backoff_ms, int(delay * (1 + retry.jitter * (2 * chance - 1)))))
