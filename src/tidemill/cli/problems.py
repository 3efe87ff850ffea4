"""How a refusal looks: to people an aligned list, to programs one JSON object."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from tidemill.cli.paint import BOLD, DIM, RED, YELLOW, Paint
from tidemill.cli.terminal import clean
from tidemill.errors import Problem

PATH_COLUMNS_MAX = 36
MESSAGE_COLUMNS_MIN = 48
"""On a narrower terminal every path stands on a line of its own."""
SHOWN_MAX = 200
"""Problems shown to a person; programs get all of them."""


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
    _write(text.decode())


def print_json_line(value: Any) -> None:
    """Print a JSON value on one line, at once."""
    import msgspec

    _write(msgspec.json.encode(value).decode())
    sys.stdout.flush()


def _write(shown: str) -> None:
    if not _speaks_unicode(sys.stdout):
        shown = json.dumps(json.loads(shown))
    sys.stdout.write(shown + "\n")


def print_refusal(problems: Sequence[Problem]) -> None:
    """Print to stderr what is wrong with what the caller gave."""
    if len(problems) > 1 or problems[0].path:
        print_problems(f"✗ refused: {counted(len(problems), 'problem')}", problems, sys.stderr)
        return
    (only,) = problems
    paint = Paint(sys.stderr)
    print(f"{paint('✗', RED)} {clean(only.message)} {paint(f'[{only.code}]', DIM)}", file=sys.stderr)
    if only.hint:
        print(f"  {paint('→ ' + clean(only.hint), DIM)}", file=sys.stderr)


def tell_problems(problems: Sequence[Problem], *, as_json: bool) -> None:
    """Tell what is wrong, in the form that was asked for."""
    if as_json:
        print_json({"problems": as_plain(problems)})
    else:
        print_refusal(problems)


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def print_problems(title: str, problems: Sequence[Problem], stream: IO[str], *, warning: bool = False) -> None:
    """Print a title and an aligned list of problems, coloured on a terminal."""
    paint = Paint(stream)
    print(paint(title, BOLD + (YELLOW if warning else RED)), file=stream)
    shown = problems[:SHOWN_MAX]
    columns = shutil.get_terminal_size().columns if stream.isatty() else None
    width = max((len(problem.path) for problem in shown if len(problem.path) <= PATH_COLUMNS_MAX), default=0)
    if columns is not None and columns - width < MESSAGE_COLUMNS_MIN:
        width = 0
    for problem in shown:
        for line in _lines(problem, width, columns, paint):
            print(line, file=stream)
    if len(problems) > len(shown):
        print(f"  … and {len(problems) - len(shown)} more; --json lists them all", file=stream)


def _lines(problem: Problem, width: int, columns: int | None, paint: Paint) -> Iterator[str]:
    """The path and the message side by side, the hint below; a long path has a line of its own."""
    path = clean(problem.path)
    indent = " " * (width + 4 if width else 4 if path else 2)
    said = _folded(f"{clean(problem.message)} [{problem.code}]", len(indent), columns)
    hint = _folded(f"→ {clean(problem.hint)}", len(indent), columns) if problem.hint else []
    if len(path) > width:
        yield f"  {paint(path, BOLD)}"
    elif width:
        yield f"  {paint(path, BOLD)}{' ' * (width - len(path) + 2)}{said.pop(0)}"
    for line in said:
        yield indent + line
    for line in hint:
        yield indent + paint(line, DIM)


def _folded(text: str, indent: int, columns: int | None) -> list[str]:
    """The lines of a text, no longer than the terminal has room for."""
    lines = text.split("\n")
    if columns is None:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, columns - indent, break_long_words=False) or [""]]


def _speaks_unicode(stream: IO[str]) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")
