"""What a drawing says: edges with their labels, conditions and durations in words, and how wide a text is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from unicodedata import combining, east_asian_width

from tidemill.kernel.model import Node


class Edge(NamedTuple):
    """An edge from a node to the next. A plain one has no label; `error` ones are taken only after a failure."""

    target: str
    label: str = ""
    error: bool = False


def condition_text(condition: Any) -> str:
    match condition:
        case str():
            return condition
        case {"type": "cel", "expression": str(text)}:
            return text
        case {"type": "composite", "operator": "NOT", "conditions": [only]}:
            return f"not ({condition_text(only)})"
        case {"type": "composite", "operator": str(operator), "conditions": [*parts]}:
            return f" {operator.lower()} ".join(f"({condition_text(part)})" for part in parts)
        case {"type": str(kind), **rest}:
            return f"{kind} {inline(rest)}"
        case _:
            return inline(condition)


def inline(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def edges_of(node: Node, words: Callable[[Any], str] = condition_text) -> list[Edge]:
    """Every edge of a node once, in the order of the document, with all labels that rules give it."""
    labels: dict[str, list[str]] = {}
    errors, plain = set(node.error_path), set(node.plain)
    for label, targets in _labels(node, words):
        for target in targets:
            labels.setdefault(target, []).append(label)
    return [
        Edge(
            target,
            "" if target in plain else ", or ".join(dict.fromkeys(labels.get(target, ()))),
            target in errors and len(labels.get(target, ())) == 1,
        )
        for target in node.outbound
    ]


def _labels(node: Node, words: Callable[[Any], str]) -> Iterator[tuple[str, Iterable[str]]]:
    if node.branch is not None:
        for rule in node.branch.rules:
            yield f"if {words(rule.condition)}", rule.next_nodes
        yield "if chosen", node.branch.available
        yield "otherwise", node.branch.default
    if node.loop is not None:
        yield "when done", node.loop.break_path
        yield "when passes are used up", node.loop.timeout_path
    yield "on error", node.error_path
    for name, targets in node.exits.items():
        yield f"on {name.removesuffix('_path')}", targets


def type_name(node: Node) -> str:
    return node.type.partition("@")[0]


def duration(ms: float) -> str:
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


_WIDTHS = {
    letter: width
    for letters, width in (
        ("'ijl|", 0.24),
        (" !,./:;I[\\]ft", 0.29),
        ("()-`r{}", 0.35),
        ('"*Jcksvxyz·', 0.51),
        ("ABEKPSVXY&", 0.68),
        ("CDGHNOQRUw", 0.76),
        ("Mm%", 0.87),
        ("W@—…→↺", 1.0),
    )
    for letter in letters
}
_WIDTH = 0.57
_MARGIN = 1.08
"""Fonts differ: most have letters about as wide as these, some a little wider."""


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """About how wide a sans-serif font of `size` pixels draws a text."""
    ems = sum(_WIDTHS.get(letter) or _letter_width(letter) for letter in text)
    return ems * size * _MARGIN * (1.1 if bold else 1.0)


def _letter_width(letter: str) -> float:
    if letter.isascii():
        return _WIDTH
    if combining(letter):
        return 0.0
    return 1.0 if east_asian_width(letter) in "WF" else 0.64


def fitted(text: str, size: float, width: float, *, bold: bool = False) -> str:
    """The text on one line, cut with an ellipsis where it is wider than `width`."""
    line = " ".join(text[:1000].split())
    if text_width(line, size, bold=bold) <= width:
        return line
    left = width - text_width("…", size, bold=bold)
    for number, letter in enumerate(line):
        left -= text_width(letter, size, bold=bold)
        if left < 0:
            return line[:number].rstrip() + "…"
    return line
