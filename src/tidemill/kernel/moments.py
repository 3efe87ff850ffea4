"""Moments in words. The kernel reads no clock and no calendar of the machine's: this is arithmetic."""

from __future__ import annotations

_DAYS_PER_ERA = 146_097
"""Four hundred years, after which the calendar repeats itself."""


def iso(ms: int) -> str:
    """A moment in milliseconds since 1970 as ISO 8601 in UTC."""
    seconds, milli = divmod(ms, 1_000)
    days, rest = divmod(seconds, 86_400)
    year, month, day = _date(days)
    hour, minute, second = rest // 3_600, rest // 60 % 60, rest % 60
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}+00:00"


def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day, counted in eras that begin on the first of March, so that a leap day comes last."""
    era, day = divmod(days + 719_468, _DAYS_PER_ERA)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month = month + 3 if month < 10 else month - 9
    return year + 400 * era + (month <= 2), month, day + 1
