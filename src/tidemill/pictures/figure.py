"""Parts of every picture: the frame with its title, colours for light and dark, signs of statuses, the key, the page.

Colours are classes with fixed values, once for light and once for dark, so that every program that shows SVG knows
them. There are no ids, so many pictures can be in one page. A status is a sign and a word as well as a colour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from tidemill.pictures.labels import fitted, text_width

FONT = "-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif"
MARGIN = 24.0
HEADER = 74.0
"""From the top of a picture to its content."""
KEY = 34.0
WIDTH_MIN = 440.0
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 16.0, 13.0, 11.0

_COLOURS: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#0d1117"),
    "frame": ("#d1d9e0", "#30363d"),
    "text": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "link": ("#818b98", "#7d8590"),
    "faint": ("#c4ccd4", "#3d444d"),
    "plain": ("#f6f8fa", "#161b22"),
    "done": ("#1a7f37", "#3fb950"),
    "done-pale": ("#f0faf2", "#10231a"),
    "bad": ("#cf222e", "#f85149"),
    "bad-pale": ("#fff2f0", "#2b1416"),
    "busy": ("#0969da", "#4493f8"),
    "busy-pale": ("#eef6ff", "#0e2038"),
    "wait": ("#9a6700", "#d29922"),
    "wait-pale": ("#fff9e8", "#2a210c"),
    "loop": ("#8250df", "#ab7df8"),
}
"""By role: in light and in dark surroundings."""


def _rules(dark: bool) -> str:
    return "".join(
        f".tidemill .f-{role}{{fill:{pair[dark]}}}.tidemill .s-{role}{{stroke:{pair[dark]}}}"
        for role, pair in _COLOURS.items()
    )


STYLE = f"<style>{_rules(False)}@media(prefers-color-scheme:dark){{{_rules(True)}}}</style>"

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escaped(text: str) -> str:
    """Text for an element or an attribute; what XML cannot hold becomes a replacement character."""
    return escape(_NOT_XML.sub("\ufffd", text))


def number(value: float) -> str:
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def text_at(x: float, y: float, text: str, role: str, size: float = SMALL_SIZE, more: str = "") -> str:
    place = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}"'
    return f'<text {place} class="f-{role}"{more}>{escaped(text)}</text>'


BOLD = ' font-weight="600"'
MIDDLE = ' text-anchor="middle"'
RIGHT = ' text-anchor="end"'


def rect_at(x: float, y: float, width: float, height: float, classes: str, more: str = "") -> str:
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect {place} class="{classes}"{more}/>'


def line_at(path: str, role: str, width: float = 1.5, more: str = "") -> str:
    return f'<path d="{path}" fill="none" stroke-width="{number(width)}" class="s-{role}"{more}/>'


DASHED = ' stroke-dasharray="5 4"'
DOTTED = ' stroke-dasharray="2 3"'


class Sign(NamedTuple):
    """A small round sign; its path is drawn around the origin."""

    word: str
    role: str
    path: str
    solid: bool = False
    """Whether the disc is filled, and not a ring."""
    filled: bool = False
    """Whether the path is an area, and not a line."""


_CLOCK = "M0 -3.6V0.2L2.6 1.8"
_PERSON = "M-1.8 -1.8A1.8 1.8 0 1 1 1.8 -1.8A1.8 1.8 0 1 1 -1.8 -1.8M-3.3 4A3.3 3.3 0 0 1 3.3 4"

STATUS_SIGNS = {
    "COMPLETED": Sign("completed", "done", "M-3.6 0.2L-1.2 2.7L3.7 -2.6", True),
    "FAILED": Sign("failed", "bad", "M-2.6 -2.6L2.6 2.6M2.6 -2.6L-2.6 2.6", True),
    "HANDLED": Sign("failed and handled", "wait", "M0 -3.9V0.9M0 3.3V3.6", True),
    "RUNNING": Sign("running", "busy", "M-2 -3.4L3.8 0L-2 3.4Z", True, True),
    "RETRYING": Sign("waiting to retry", "wait", "M2.8 -1.9A3.4 3.4 0 1 0 3.3 1M3.5 -4V-1.5H1"),
    "WAITING": Sign("waiting", "wait", _CLOCK),
    "PAUSED": Sign("paused", "wait", "M-1.7 -3V3M1.7 -3V3", True),
    "QUEUED": Sign("queued", "busy", "M-3.2 0H-3M-0.1 0H0.1M3 0H3.2"),
    "PENDING": Sign("not reached", "faint", ""),
    "SKIPPED": Sign("skipped", "soft", "M-2.8 2.8L2.8 -2.8"),
    "CANCELLED": Sign("cancelled", "soft", "M-2.3 -2.3H2.3V2.3H-2.3Z", True, True),
    "UNDONE": Sign("undone", "loop", "M-0.6 -3.4L-3.2 -0.8L-0.6 1.8M-3.2 -0.8H1A2.2 2.2 0 0 1 1 3.6H-0.6"),
}
"""In the order of the key."""

KIND_SIGNS = {
    "human": Sign("person", "soft", _PERSON),
    "sleep": Sign("timer", "soft", _CLOCK),
    "wait_until": Sign("timer", "soft", _CLOCK),
    "signal": Sign("signal", "soft", "M-3.6 0.4A3.6 3.6 0 0 1 3.6 0.4M-1.7 1.4A1.7 1.7 0 0 1 1.7 1.4M0 3V3.2"),
    "workflow": Sign("child workflow", "soft", "M-3.1 -3.1H3.1V3.1H-3.1ZM-0.9 -0.9H0.9V0.9H-0.9Z"),
    "branch": Sign("branch", "soft", "M0 -3.9L3.9 0L0 3.9L-3.9 0Z"),
    "step": Sign("step", "soft", "M-1.5 0A1.5 1.5 0 1 0 1.5 0A1.5 1.5 0 1 0 -1.5 0", False, True),
}
"""By node type, `branch` for a node that has one, `step` for all others."""


def sign_at(x: float, y: float, sign: Sign) -> str:
    ring = f'<circle r="8" class="f-{sign.role}"/>'
    if not sign.solid:
        ring = f'<circle r="7.3" stroke-width="1.4" class="f-page s-{sign.role}"/>'
    inside = "page" if sign.solid else sign.role
    if sign.filled:
        mark = f'<path d="{sign.path}" class="f-{inside}"/>'
    else:
        round_ends = ' stroke-linecap="round" stroke-linejoin="round"'
        mark = line_at(sign.path, inside, 1.6, round_ends) if sign.path else ""
    return f'<g transform="translate({number(x)} {number(y)})">{ring}{mark}</g>'


class Heading(NamedTuple):
    title: str
    about: str
    sign: Sign | None = None


class Content(NamedTuple):
    """What is below the heading, drawn from the origin."""

    width: float
    height: float
    parts: list[str]
    key: list[tuple[str, str]]
    """What signs and lines mean: each drawn around the origin, 20 wide, and its words."""


def figure(heading: Heading, content: Content) -> str:
    """A whole picture as one SVG document."""
    inner = max(content.width, WIDTH_MIN)
    key_rows = list(_key_rows(content.key, inner))
    width = inner + 2 * MARGIN
    height = HEADER + content.height + MARGIN + KEY * bool(key_rows) + 20.0 * max(0, len(key_rows) - 1)
    name = f"{heading.title}: {heading.about}"
    left = MARGIN + (26.0 if heading.sign is not None else 0.0)
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tidemill" {size} font-family="{FONT}" role="img"',
        f' aria-label="{escaped(name)}">',
        f"<title>{escaped(name)}</title>{STYLE}",
        rect_at(0.5, 0.5, width - 1, height - 1, "f-page s-frame", ' rx="12"'),
        sign_at(MARGIN + 8, 31, heading.sign) if heading.sign is not None else "",
        text_at(
            left, 36.5, fitted(heading.title, TITLE_SIZE, width - left - MARGIN, bold=True), "text", TITLE_SIZE, BOLD
        ),
        text_at(MARGIN, 56, fitted(heading.about, 12, width - 2 * MARGIN), "soft", 12),
        f'<g transform="translate({number(MARGIN + (inner - content.width) / 2)} {number(HEADER)})">',
        *content.parts,
        "</g>",
    ]
    y = HEADER + content.height + MARGIN + 10.0
    for row in key_rows:
        parts += _key_row(row, y)
        y += 20.0
    parts.append("</svg>")
    return "\n".join(part for part in parts if part) + "\n"


KeyEntry = tuple[str, str]


def _key_rows(key: Sequence[KeyEntry], width: float) -> Iterable[list[KeyEntry]]:
    row: list[KeyEntry] = []
    used = 0.0
    for entry in key:
        room = _key_width(entry)
        if row and used + room > width:
            yield row
            row, used = [], 0.0
        row.append(entry)
        used += room
    if row:
        yield row


def _key_width(entry: KeyEntry) -> float:
    return 26.0 + text_width(entry[1], SMALL_SIZE) + 16.0


def _key_row(row: Sequence[KeyEntry], y: float) -> Iterable[str]:
    x = MARGIN
    for entry in row:
        yield f'<g transform="translate({number(x + 10)} {number(y)})">{entry[0]}</g>'
        yield text_at(x + 26, y + 4, entry[1], "soft")
        x += _key_width(entry)


class TableRow(NamedTuple):
    sign: Sign
    cells: tuple[str, ...]


def table(names: Sequence[str], rows: Iterable[TableRow]) -> str:
    """An HTML table with a sign before each row, for a page that holds a picture."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    small = 'class="tidemill" width="18" height="18" viewBox="-9 -9 18 18"'
    body = "".join(
        f"<tr><td><svg {small}>{sign_at(0, 0, row.sign)}</svg></td>"
        + "".join(f"<td>{escaped(cell)}</td>" for cell in row.cells)
        + "</tr>\n"
        for row in rows
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>\n"


def page(title: str, *parts: str) -> str:
    """An HTML page that holds pictures and tables and needs nothing else."""
    back, text, line, soft = (_COLOURS[role] for role in ("plain", "text", "frame", "soft"))
    style = (
        f"body{{margin:0;padding:24px;background:{back[0]};color:{text[0]};font:13px/1.5 {FONT}}}"
        "figure{margin:0 auto 24px;max-width:max-content;overflow-x:auto}"
        "figure svg,td svg{display:block}table{border-collapse:collapse}"
        f"th,td{{padding:5px 14px 5px 0;text-align:left;vertical-align:top;border-bottom:1px solid {line[0]}}}"
        f"th{{color:{soft[0]};font-weight:600}}"
        f"@media(prefers-color-scheme:dark){{body{{background:{back[1]};color:{text[1]}}}"
        f"th,td{{border-color:{line[1]}}}th{{color:{soft[1]}}}}}"
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escaped(title)}</title>'
    body = "".join(f"<figure>\n{each}</figure>\n" for each in parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{style}</style></head>\n<body>\n{body}</body></html>\n'
