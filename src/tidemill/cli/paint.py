"""Colours, which only a terminal that wants them gets, and the room that text takes there."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from os import environ
from typing import IO

RED, GREEN, YELLOW, MAGENTA, CYAN = "\033[31m", "\033[32m", "\033[33m", "\033[35m", "\033[36m"
DIM, BOLD, OFF = "\033[2m", "\033[1m", "\033[0m"

COLUMNS_ELSEWHERE = 120
"""How wide lines may be where nobody knows the width: in files and pipes."""

STATUS_COLOURS = {
    "COMPLETED": GREEN,
    "FAILED": RED,
    "CANCELLED": RED,
    "RUNNING": CYAN,
    "QUEUED": CYAN,
    "WAITING": MAGENTA,
    "PAUSED": YELLOW,
    "PENDING": DIM,
    "SKIPPED": DIM,
    "pending": MAGENTA,
    "decided": GREEN,
    "approved": GREEN,
    "rejected": RED,
    "changes requested": YELLOW,
    "expired": RED,
    "cancelled": RED,
    "open": RED,
    "alive": GREEN,
    "draining": YELLOW,
    "silent": YELLOW,
    "dead": RED,
}
"""The states of runs, nodes, approvals, dead letters and workers."""


class Paint:
    """Colours text, or leaves it as it is."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        stream = sys.stdout if stream is None else stream
        self._on = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        return f"{colour}{text}{OFF}" if self._on and text and colour else text

    def status(self, status: str) -> str:
        """A state in its colour."""
        return self(status, STATUS_COLOURS.get(status, ""))


def columns() -> int:
    """How many columns a line of standard output may have."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else COLUMNS_ELSEWHERE


def room(text: str) -> int:
    """How many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_room_of(letter) for letter in text)


def _room_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def clipped(text: str, columns_max: int) -> str:
    """The beginning of a line, no wider than there is room for."""
    if room(text) <= columns_max:
        return text
    taken, kept = 1, []
    for letter in text:
        taken += _room_of(letter)
        if taken > columns_max:
            break
        kept.append(letter)
    return "".join(kept).rstrip() + "…"


def padded(text: str, columns_wanted: int) -> str:
    """A text with so many blanks after it that it fills its column."""
    return text + " " * (columns_wanted - room(text))


def folded(line: str, columns_max: int) -> list[str]:
    """A line as several, none wider than this unless it is one long word; blanks at its beginning stay."""
    if room(line) <= columns_max:
        return [line]
    found, margin = [""], " " * (len(line) - len(line.lstrip()))
    for word in line.split():
        longer = f"{found[-1]} {word}" if found[-1] else margin + word
        if found[-1] and room(longer) > columns_max:
            found.append(margin + word)
        else:
            found[-1] = longer
    return found
