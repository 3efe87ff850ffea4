"""Brackets on the left of a drawing: from the looping node back up to where its loop begins."""

from __future__ import annotations

from typing import NamedTuple

LANES_MAX = 6
"""Loops nested deeper than this have no bracket; the words at their looping node still tell."""


class Span(NamedTuple):
    """The lines on which a loop begins and ends."""

    top: int
    bottom: int


def gutter_of(spans: list[Span], height: int) -> list[str]:
    """What stands left of each line. Outer loops are further left; loops of one node are a mark of their own."""
    lanes = _lanes([span for span in spans if span.top < span.bottom])
    alone = {span.bottom for span in spans if span.top >= span.bottom}
    if not lanes and not alone:
        return [""] * height
    width = max(1, len(lanes))
    rows = [[" "] * (2 * width) for _ in range(height)]
    for number, lane in enumerate(lanes):
        for span in lane:
            _bracket(rows, 2 * number, span)
    for line in alone:
        # A loop of one node inside the innermost bracket, on its first or last line, keeps only its words.
        if rows[line][-1] == " ":
            rows[line][-1] = "↺"
    return ["".join(row) for row in rows]


def _lanes(spans: list[Span]) -> list[list[Span]]:
    """Give each span the leftmost lane in which it meets no other, the longest first."""
    lanes: list[list[Span]] = []
    ends: list[int] = []
    for span in sorted(spans, key=lambda span: (span.top, -span.bottom)):
        free = next((number for number, end in enumerate(ends) if end < span.top), None)
        if free is not None:
            lanes[free].append(span)
            ends[free] = span.bottom
        elif len(lanes) < LANES_MAX:
            lanes.append([span])
            ends.append(span.bottom)
    return lanes


def _bracket(rows: list[list[str]], column: int, span: Span) -> None:
    rows[span.top][column : column + 2] = "╭▶"
    rows[span.bottom][column : column + 2] = "╰─"
    for line in range(span.top + 1, span.bottom):
        rows[line][column] = "│"
