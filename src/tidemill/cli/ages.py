"""Moments in words: how long ago, and when exactly."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_STEPS = ((1, 60, "s"), (60, 60, "min"), (3_600, 48, "h"))
"""Units: the seconds of one, and how many are said before the next unit is plainer."""
_DAY_S = 86_400
_MOMENT_MAX_MS = 253_402_300_799_000
"""The end of the year 9999, where calendars stop."""


def now_ms() -> int:
    """The present moment."""
    return time.time_ns() // 1_000_000


def age(at_ms: int | None, now: int | None = None) -> str:
    """A moment as seen from now: `3 min ago`, `in 2 h`."""
    if at_ms is None:
        return ""
    ahead_ms = at_ms - (now_ms() if now is None else now)
    seconds = round(abs(ahead_ms) / 1_000)
    if seconds < 1:
        return "just now"
    return f"in {_span(seconds)}" if ahead_ms > 0 else f"{_span(seconds)} ago"


def _span(seconds: int) -> str:
    for unit, count, word in _STEPS:
        if (whole := round(seconds / unit)) < count:
            return f"{whole} {word}"
    days = round(seconds / _DAY_S)
    return f"{days:,} day{'s' if days != 1 else ''}"


def iso(at_ms: int | None) -> str:
    """A moment as ISO 8601 writes it, in UTC and to the second."""
    if at_ms is None:
        return ""
    moment = datetime.fromtimestamp(min(max(at_ms, 0), _MOMENT_MAX_MS) / 1_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(at_ms: int | None) -> str:
    """Both: `3 min ago (2030-01-31T09:00:00Z)`."""
    return "" if at_ms is None else f"{age(at_ms)} ({iso(at_ms)})"
