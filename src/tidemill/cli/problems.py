"""How a refusal looks: to people an aligned list, to programs one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from tidemill.cli.terminal import clean
from tidemill.errors import Problem

PATH_COLUMNS_MAX = 36
SHOWN_MAX = 200
"""Problems shown to a person; programs get all of them."""

_RED, _YELLOW, _DIM, _BOLD, _OFF = "\033[31m", "\033[33m", "\033[2m", "\033[1m", "\033[0m"


def as_plain(problems: Iterable[Problem]) -> list[dict[str, str]]:
    """Problems as JSON values, always with all four keys."""
    return [
        {"code": problem.code, "path": problem.path, "message": problem.message, "hint": problem.hint}
        for problem in problems
    ]


def print_json(value: Any) -> None:
    """Print one JSON value: on several lines for a person, on one for a program."""
    import msgspec

    text = msgspec.json.encode(value)
    if sys.stdout.isatty():
        text = msgspec.json.format(text, indent=2)
    shown = text.decode()
    if not _speaks_unicode(sys.stdout):
        shown = json.dumps(json.loads(shown))
    sys.stdout.write(shown + "\n")


def print_refusal(problems: Sequence[Problem], *, what: str = "refused") -> None:
    """Print to stderr what is wrong with what the caller gave."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    print_problems(f"✗ {clean(what)}: {count}", problems, sys.stderr)


def print_problems(title: str, problems: Sequence[Problem], stream: IO[str], *, warning: bool = False) -> None:
    """Print a title and an aligned list of problems, coloured on a terminal."""
    paint = _Paint(stream)
    print(paint(title, _BOLD + (_YELLOW if warning else _RED)), file=stream)
    shown = problems[:SHOWN_MAX]
    width = max((len(problem.path) for problem in shown if len(problem.path) <= PATH_COLUMNS_MAX), default=0)
    for problem in shown:
        for line in _lines(problem, width, paint):
            print(line, file=stream)
    if len(problems) > len(shown):
        print(f"  … and {len(problems) - len(shown)} more; --json lists them all", file=stream)


def _lines(problem: Problem, width: int, paint: _Paint) -> Iterator[str]:
    """The path and the message side by side, the hint below; a long path has a line of its own."""
    path, message = clean(problem.path), clean(problem.message).split("\n")
    indent = " " * (width + 2) if width else ""
    if len(path) > width:
        yield f"  {paint(path, _BOLD)}"
        path = ""
    first, *rest = message
    gap = " " * (width - len(path) + 2) if width else ""
    code = f" {paint(f'[{problem.code}]', _DIM)}"
    yield f"  {paint(path, _BOLD)}{gap}{first}{'' if rest else code}"
    for number, line in enumerate(rest, 1):
        yield f"  {indent}{line}{code if number == len(rest) else ''}"
    if problem.hint:
        yield f"  {indent}{paint('→ ' + clean(problem.hint), _DIM)}"


class _Paint:
    """Colours text, or leaves it as it is."""

    def __init__(self, stream: IO[str]) -> None:
        from os import environ

        self._on = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_OFF}" if self._on and text else text


def _speaks_unicode(stream: IO[str]) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")
