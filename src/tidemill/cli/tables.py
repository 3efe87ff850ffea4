"""Tables and labelled lines that stay readable at 80 columns: lines are cut, never folded, and say how to see all."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tidemill.cli.paint import BOLD, DIM, STATUS_COLOURS, Paint, clipped, columns, folded, padded, room
from tidemill.cli.terminal import clean

GAP = 2
CELL_COLUMNS_MIN = 8
VALUE_COLUMNS_MAX = 2_000
COMMAND = "how"
"""The label of a command that does something about it."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    status: bool = False
    """Its cells are states, and coloured as such."""
    number: bool = False
    gives: bool = False
    """It is cut when the table is too wide."""


class Line(NamedTuple):
    """A row of a table, and what there is to say about it on a line of its own."""

    cells: Sequence[str]
    note: str = ""


def print_table(heads: Sequence[Column], lines: Iterable[Line], *, indent: int = 0) -> None:
    """Print rows below their titles, aligned; titles are left out when there are none."""
    rows = [Line([_cell(cell) for cell in line.cells], line.note) for line in lines]
    widths = _widths(heads, rows, columns() - indent)
    paint, margin = Paint(), " " * indent
    if any(head.title for head in heads):
        titles = [head.title for head in heads]
        print(margin + paint(_joined(_placed(titles, heads, widths)), DIM))
    for row in rows:
        placed = _placed(row.cells, heads, widths)
        print(margin + _joined(_painted(paint, cell, head) for cell, head in zip(placed, heads, strict=False)))
        if row.note:
            print(margin + "  " + paint(clipped(_cell(row.note), columns() - indent - 2), DIM))


def _cell(text: str) -> str:
    return clean(" ".join(text[:VALUE_COLUMNS_MAX].split()))


def _joined(cells: Iterable[str]) -> str:
    return (" " * GAP).join(cells)


def _placed(cells: Sequence[str], heads: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """The cells of a row, each as wide as its column; nothing stands behind the last one that is not empty."""
    texts = [clipped(cell, width) for cell, width in zip(cells, widths, strict=True)]
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


def _painted(paint: Paint, placed: str, head: Column) -> str:
    return paint(placed, STATUS_COLOURS.get(placed.strip(), "")) if head.status else placed


def _widths(heads: Sequence[Column], rows: Sequence[Line], columns_max: int) -> list[int]:
    """The widest cell of each column; those that give are cut until all of it fits."""
    widths = [max([room(head.title), *(room(row.cells[number]) for row in rows)]) for number, head in enumerate(heads)]
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
    shown = [(label, clean(str(value))) for label, value in facts if value not in (None, "", (), [], {})]
    width = max((len(label) for label, _ in shown), default=0)
    paint, margin = Paint(), " " * indent
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
    paint, (first, *rest) = Paint(), [clean(" ".join(part.split())) for part in parts]
    fits = room("  ".join((first, *rest))) <= columns()
    title = paint(clipped(first, columns()), BOLD)
    print(("  " if fits else "\n").join([title, *(paint(part, DIM) for part in rest)]))


def print_headline(text: str) -> None:
    """Print a sentence that says the most important thing."""
    for line in folded(clean(" ".join(text.split())), columns()):
        print(Paint()(line, BOLD))


def print_hint(text: str) -> None:
    """Print what can be done next."""
    print(Paint()(f"→ {clean(text)}", DIM))


def print_next(cursor: str | None) -> None:
    """Say how to get the next page, when there is one."""
    if cursor is not None:
        import shlex

        print_hint(f"next page: --after {shlex.quote(cursor)}")
