"""Tables, labelled facts, relative times and values on one line, all of them readable at 80 columns.

Rows of tables are cut, never folded. Nothing here knows what it prints: which columns and facts a kind of object has
is said by the modules that print it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from typing import IO, Any, NamedTuple

import msgspec

from tidemill.cli.render.terminal import (
    BOLD,
    DIM,
    Styler,
    columns,
    folded,
    padded,
    report_problems,
    room,
    sanitize,
    truncate,
)
from tidemill.errors import Rejected, StoreUnusable

GAP = 2
CELL_COLUMNS_MIN = 8
VALUE_COLUMNS_MAX = 2_000
COMMAND = "how"
"""The label of a command that does something about it."""


class Column(NamedTuple):
    title: str
    value: str | Callable[[Any], object] = ""
    """The attribute of a row that it shows, or a function of the row; only `print_rows` needs it."""
    status: bool = False
    """Its cells are states, and coloured as such."""
    number: bool = False
    gives: bool = False
    """It is cut when the table is too wide."""
    least: int = 0
    """How wide it is at least."""


class Line(NamedTuple):
    """A row of a table, and an optional note on a line below it."""

    cells: Sequence[str]
    note: str = ""


def print_table(heads: Sequence[Column], lines: Iterable[Line], *, indent: int = 0) -> None:
    """Print rows below their titles, aligned; titles are left out when there are none."""
    rows = [Line([_cell(cell) for cell in line.cells], line.note) for line in lines]
    widths = _widths(heads, rows, columns() - indent)
    paint, margin, gap = Styler(), " " * indent, " " * GAP
    titles = [head.title for head in heads]
    if any(titles):
        print(margin + paint(gap.join(_placed(titles, heads, widths)), DIM))
    for row in rows:
        placed = zip(_placed(row.cells, heads, widths), heads, strict=False)
        print(margin + gap.join(paint.status(cell) if head.status else cell for cell, head in placed))
        if row.note:
            print(margin + "  " + paint(truncate(_cell(row.note), columns() - indent - 2), DIM))


def print_rows(columns: Sequence[Column], rows: Iterable[Any], note: Callable[[Any], str] | None = None) -> None:
    """Print one line per object, by the values of the columns; `note` says what stands below it."""
    values = [attrgetter(column.value) if isinstance(column.value, str) else column.value for column in columns]
    lines = (Line([str(value(row)) for value in values], note(row) if note is not None else "") for row in rows)
    print_table(columns, lines)


def _cell(text: str) -> str:
    return sanitize(" ".join(text[:VALUE_COLUMNS_MAX].split()))


def _placed(cells: Sequence[str], heads: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """The cells of a row, each as wide as its column; empty cells at the end are dropped."""
    texts = [truncate(cell, width) for cell, width in zip(cells, widths, strict=True)]
    while texts and not texts[-1]:
        texts.pop()
    last = len(texts) - 1
    return [
        " " * (widths[number] - room(text)) + text
        if heads[number].number
        else text
        if number == last
        else padded(text, widths[number])
        for number, text in enumerate(texts)
    ]


def _widths(heads: Sequence[Column], rows: Sequence[Line], columns_max: int) -> list[int]:
    """The widest cell of each column; columns that give are cut until the table fits."""
    widths = [
        max([head.least, room(head.title), *(room(row.cells[number]) for row in rows)])
        for number, head in enumerate(heads)
    ]
    surplus = sum(widths) + GAP * (len(widths) - 1) - columns_max
    while surplus > 0:
        giving = [number for number, head in enumerate(heads) if head.gives and widths[number] > CELL_COLUMNS_MIN]
        if not giving:
            break
        widest = max(giving, key=lambda number: widths[number])
        others = max([CELL_COLUMNS_MIN, *(widths[number] for number in giving if number != widest)])
        cut = min(surplus, max(1, widths[widest] - others))
        widths[widest] -= cut
        surplus -= cut
    return widths


def print_facts(facts: Iterable[tuple[str, Any]], *, indent: int = 0) -> None:
    """Print labelled lines; facts without a value are left out, texts of several lines stay together."""
    shown = [(label, sanitize(str(value))) for label, value in facts if value not in (None, "", (), [], {})]
    width = max((len(label) for label, _ in shown), default=0)
    paint, margin = Styler(), " " * indent
    for label, text in shown:
        for number, line in enumerate(_folded(label, text, columns() - indent - width - GAP)):
            name = paint(f"{label if not number else '':<{width}}", DIM)
            said = paint.status(line) if label == "status" else line
            print(f"{margin}{name}  {said}".rstrip())


def _folded(label: str, text: str, columns_max: int) -> list[str]:
    """The lines of a fact. Sentences are folded on a terminal; what is to be copied is left in one piece."""
    lines = text.split("\n")
    if label == COMMAND or not sys.stdout.isatty():
        return lines
    return [part for line in lines for part in folded(line, columns_max)]


def print_title(*parts: str) -> None:
    """Print the first line of an answer: what it is about, then the rest of what names it."""
    paint, (first, *rest) = Styler(), [sanitize(" ".join(part.split())) for part in parts]
    fits = room("  ".join((first, *rest))) <= columns()
    title = paint(truncate(first, columns()), BOLD)
    print(("  " if fits else "\n").join([title, *(paint(part, DIM) for part in rest)]))


def print_headline(text: str) -> None:
    for line in folded(sanitize(" ".join(text.split())), columns()):
        print(Styler()(line, BOLD))


def print_hint(text: str) -> None:
    print(Styler()(f"→ {sanitize(text)}", DIM))


def print_next(cursor: str | None) -> None:
    if cursor is not None:
        import shlex

        print_hint(f"next page: --after {shlex.quote(cursor)}")


_STEPS = ((1, 60, "s"), (60, 60, "min"), (3_600, 48, "h"))
"""Units: the seconds of one, and how many are said before the next unit is plainer."""
_DAY_S = 86_400
_MOMENT_MAX_MS = 253_402_300_799_000
"""The end of the year 9999, where calendars stop."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def age(at_ms: int | None, now: int | None = None) -> str:
    """A time relative to now: `3 min ago`, `in 2 h`."""
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
    """A timestamp in ISO 8601, in UTC, to the second."""
    if at_ms is None:
        return ""
    moment = datetime.fromtimestamp(min(max(at_ms, 0), _MOMENT_MAX_MS) / 1_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{age(at_ms)} ({iso(at_ms)})"


TEXT_BYTES_MAX = 4_000
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def snippet(value: Any, columns_max: int) -> str:
    """A value on one line, no wider than this."""
    if value is None:
        return "null"
    if isinstance(value, str):
        # The longest texts are cut before they are looked at letter by letter.
        return truncate(sanitize(" ".join(value[:TEXT_BYTES_MAX].split())) or '""', columns_max)
    if isinstance(value, dict) and isinstance(value.get("$blob"), str):
        return truncate(sanitize(file_words(value)), columns_max)
    # More than the beginning of a long list or mapping could not be shown anyway.
    if isinstance(value, list):
        value = value[:100]
    elif isinstance(value, dict):
        value = dict(islice(value.items(), 100))
    text = msgspec.json.encode(value).decode()
    return truncate(sanitize(text[:TEXT_BYTES_MAX]), columns_max)


def file_words(described: Mapping[str, Any]) -> str:
    size = described.get("size")
    about = [str(described.get("media_type") or ""), size_of(size) if isinstance(size, int) else ""]
    name = str(described.get("name") or described["$blob"])
    return f"{name} ({', '.join(part for part in about if part)})"


def size_of(count: int) -> str:
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if not unit else f"{amount:.1f} {UNITS[unit]}"


def cost_text(cost: float) -> str:
    """Money in the currency of the prices; small amounts with all their digits."""
    return f"{cost:,.2f}" if cost >= 1 else f"{cost:.6f}".rstrip("0").rstrip(".")


def dotted(*parts: str) -> str:
    """The parts that are not empty, on one line."""
    return " · ".join(part for part in parts if part)


def label_words(labels: Mapping[str, str], columns_max: int = 60) -> str:
    return names((f"{key}={value}" for key, value in sorted(labels.items())), columns_max)


def names(found: Any, columns_max: int = 60) -> str:
    """Names in a row: the first of them, and how many more there are."""
    parts = [str(name) for name in found]
    shown: list[str] = []
    for name in parts:
        if shown and sum(map(len, shown)) + 2 * len(shown) + len(name) > columns_max:
            return f"{', '.join(shown)} and {len(parts) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


EXCEPTION = "exception"
"""The code of errors that foreign code raised, which are told apart by their type."""


def error_words(error: Mapping[str, Any]) -> str:
    """An error on one line: its message and its code, and of an exception its class."""
    message, code, kind = (str(error.get(name) or "") for name in ("message", "code", "type"))
    named = f"{kind}: " if code == EXCEPTION and kind and message != kind else ""
    return f"{named}{message} [{code}]"


def print_traceback(error: Mapping[str, Any] | None, *, indent: int = 0, stream: IO[str] | None = None) -> None:
    """Print the traceback of an error below what was printed of it, if it has one."""
    if lines := traceback_lines(error):
        paint = Styler(stream)
        print(*("", *(f"{' ' * indent}{paint(line, DIM)}" for line in lines)), sep="\n", file=stream)


def report_refusal(error: Rejected | StoreUnusable, *, as_json: bool) -> None:
    """Report what was refused; below it the traceback of a workflow function that raised something else."""
    report_problems(error.problems if isinstance(error, Rejected) else (error.problem,), as_json=as_json)
    raised = error.__cause__
    if isinstance(error, Rejected) and error.code == "workflow_invalid" and raised is not None and not as_json:
        from tidemill.handlers.contract import describe_exception

        print_traceback({"traceback": describe_exception(raised).traceback}, stream=sys.stderr)


def traceback_lines(error: Mapping[str, Any] | None) -> list[str]:
    text = str((error or {}).get("traceback") or "")
    return sanitize(text).rstrip().split("\n") if text.strip() else []
