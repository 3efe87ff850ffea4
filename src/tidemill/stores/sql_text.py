"""The text of one SQL statement: its strings, comments, parameters and end, in the dialects of the databases.

Scanning takes time linear in the text, because any author of a workflow can write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

Dialect = Literal["sqlite", "postgresql"]

_QUOTED = r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)"""
_TOKENS: Mapping[Dialect, re.Pattern[str]] = {
    "sqlite": re.compile(
        rf"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<quoted>{_QUOTED}|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z))|(?P<end>;)",
        re.DOTALL,
    ),
    "postgresql": re.compile(
        r"(?P<comment>--[^\n]*)|(?P<nested>/\*)"
        rf"|(?P<quoted>(?<![\w$])[eE]'(?:[^'\\]|\\.)*(?:'|\Z)|{_QUOTED})"
        r"|(?P<dollars>(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))"
        r"|(?P<cast>::)|(?<!\w):(?P<name>[^\W\d]\w*)|(?P<mark>\?)|(?P<end>;)",
        re.DOTALL,
    ),
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_COPY = re.compile(r"(?>\s|;|--[^\n]*\n|(?>/\*.*?\*/))*+COPY\b", re.IGNORECASE | re.DOTALL)
_COMPOUND = re.compile(
    r"(?>\s|--[^\n]*\n|(?>/\*.*?\*/))*+CREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:TEMP|TEMPORARY|CONSTRAINT)\s+)?"
    r"(?:TRIGGER|FUNCTION|PROCEDURE|RULE)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that contain statements; only the database knows where they end."""


class Token(NamedTuple):
    kind: str
    start: int
    stop: int
    name: str | None = None


def is_several(text: str, dialect: Dialect) -> bool:
    if _COMPOUND.match(text):
        return False
    ended = False
    for kind, holds_sql in _pieces(text, dialect):
        if ended and holds_sql:
            return True
        ended = ended or kind == "end"
    return False


def is_nothing(text: str, dialect: Dialect) -> bool:
    """Whether a text holds no statement, only comments and semicolons."""
    return not any(holds_sql for _, holds_sql in _pieces(text, dialect))


def _pieces(text: str, dialect: Dialect) -> Iterator[tuple[str, bool]]:
    """For each token, and the rest, its kind and whether it or the text before it is part of a statement."""
    position = 0
    for token in tokens(text, dialect):
        between = text[position : token.start].strip()
        yield token.kind, bool(between) or token.kind not in ("comment", "nested", "end")
        position = token.stop
    yield "", bool(text[position:].strip())


def is_copy(text: str) -> bool:
    """Whether a statement is PostgreSQL's COPY, which uses a protocol of its own."""
    return _COPY.match(text) is not None


def with_placeholders(text: str, parameters: list[Any] | dict[str, Any]) -> str:
    """Replace `?` or, with named parameters, `:name` by placeholders of the PostgreSQL driver. Raises KeyError."""
    named = isinstance(parameters, dict)
    parts: list[str] = []
    position = 0
    for token in tokens(text, "postgresql"):
        if named and token.kind == "name":
            name = token.name or ""
            if name not in parameters:
                raise KeyError(name)
            placeholder = f"%({name})s"
        elif not named and token.kind == "mark":
            placeholder = "%s"
        else:
            continue
        parts += (_literal(text[position : token.start]), placeholder)
        position = token.stop
    return "".join([*parts, _literal(text[position:])])


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def tokens(text: str, dialect: Dialect) -> Iterator[Token]:
    """Strings, comments, parameters and semicolons, in order."""
    position = 0
    while found := _TOKENS[dialect].search(text, position):
        kind = found.lastgroup or ""
        position = _comment_end(text, found.start()) if kind == "nested" else found.end()
        yield Token(kind, found.start(), position, found["name"] if kind == "name" else None)


def _comment_end(text: str, start: int) -> int:
    """The end of a comment that may contain comments."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
