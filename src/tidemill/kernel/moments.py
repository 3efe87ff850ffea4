"""Moments in words. The kernel reads no clock: `datetime` serves as a calendar only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(ms: int) -> str:
    """A moment in milliseconds since 1970 as ISO 8601 in UTC."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
