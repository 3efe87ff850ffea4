"""The words and signs for a node on the board, the same in the live display and in plain lines."""

from __future__ import annotations

from tidemill.cli.board import NOT_REACHED, Phase, Row
from tidemill.cli.terminal import one_line

REASON_COLUMNS_MAX = 160
NOT_TAKEN = "no inbound edge was taken"
"""The kernel's reason for the arms of a branch that were not chosen: it goes without saying."""

SIGNS: dict[Phase, str] = {
    "PENDING": "○",
    "ACTIVE": "●",
    "RETRYING": "↻",
    "WAITING": "◷",
    "COMPLETED": "✓",
    "TOLERATED": "!",
    "FAILED": "✗",
    "SKIPPED": "⊘",
    "CANCELLED": "✗",
}


def duration(ms: float) -> str:
    """A span of time as short as it can be said."""
    if ms < 1000:
        return f"{ms:.0f} ms" if ms >= 1 else "<1 ms"
    seconds = ms / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} m"


def detail(row: Row, now_ms: int) -> str:
    """What there is to say about a row besides its name and time."""
    said = [_items(row), _passes(row), _attempts(row), _happening(row, now_ms)]
    return " · ".join(part for part in said if part)


def _happening(row: Row, now_ms: int) -> str:
    left = "" if row.until_ms is None else duration(max(0, row.until_ms - now_ms))
    match row.phase:
        case "PENDING":
            return row.reason
        case "ACTIVE":
            return _progress(row)
        case "COMPLETED":
            return ""
        case "RETRYING" if row.until_ms is not None and row.until_ms <= now_ms:
            return f"attempt {row.attempt + 1}"
        case "RETRYING":
            return f"attempt {row.attempt} failed: {_blame(row)} · again in {left}"
        case "WAITING":
            return _waiting(row, left)
        case "TOLERATED":
            return f"failed, tolerated: {_blame(row)}"
        case "FAILED" if row.code == NOT_REACHED:
            return f"not reached: {_blame(row)}"
        case "FAILED":
            return _blame(row)
        case "SKIPPED":
            return (
                "skipped" if row.reason in ("", NOT_TAKEN) else f"skipped: {one_line(row.reason, REASON_COLUMNS_MAX)}"
            )
        case "CANCELLED":
            return "cancelled"


def _progress(row: Row) -> str:
    """How far a node says that it has come."""
    share = "" if row.progress is None else f"{row.progress:.0%}"
    return " ".join(part for part in (share, one_line(row.said, REASON_COLUMNS_MAX)) if part)


def _waiting(row: Row, left: str) -> str:
    reason = row.reason
    if reason == "timer":
        return f"sleeps, {left} left" if left else "sleeps"
    if reason == "loop":
        return "waits for the rest of its loop"
    agreed = f", {row.agreed} of {row.quorum} agreed" if row.quorum > 1 else ""
    return f"waits for {one_line(reason, REASON_COLUMNS_MAX)}{agreed}" + (f", {left} left" if left else "")


def _blame(row: Row) -> str:
    reason = one_line(row.reason, REASON_COLUMNS_MAX)
    return reason if row.code in ("", NOT_REACHED) else f"{reason} [{row.code}]"


def _passes(row: Row) -> str:
    if not row.loops or (row.phase in ("PENDING", "SKIPPED") and row.passes == 1):
        return ""
    if row.phase == "COMPLETED":
        return f"{row.passes} pass{'es' if row.passes != 1 else ''}"
    return passes(row)


def passes(row: Row) -> str:
    """Which pass of how many a looping node is in."""
    return f"pass {row.passes}" + (f" of {row.passes_max}" if row.passes_max is not None else "")


def _attempts(row: Row) -> str:
    if row.attempt < 2 or row.phase in ("RETRYING", "PENDING"):
        return ""
    return f"attempt {row.attempt}" if row.phase == "ACTIVE" else f"{row.attempt} attempts"


def _items(row: Row) -> str:
    if row.count is None:
        return ""
    count = f"{row.done:,}/{row.count:,}" if row.phase != "COMPLETED" else f"{row.count:,} items"
    return count + (f", {row.failed:,} failed" if row.failed else "")
