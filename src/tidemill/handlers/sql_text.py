"""What the text of a statement says without a database: whether it is only one, and where its parameters are.

Strings, quoted names and comments are passed over, as each language writes them. Everything takes time in proportion to
the text, because a text may come from anybody who can publish a workflow.
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
"""Statements with statements inside. Where they end is for the database to say."""


class _Token(NamedTuple):
    kind: str
    start: int
    stop: int
    name: str | None = None


def is_several(text: str, dialect: Dialect) -> bool:
    """Tell whether something follows the end of the first statement."""
    if _COMPOUND.match(text):
        return False
    ended, place = False, 0
    for token in _tokens(text, dialect):
        if ended and (token.kind not in ("comment", "nested", "end") or text[place : token.start].strip()):
            return True
        ended = ended or token.kind == "end"
        place = token.stop
    return ended and bool(text[place:].strip())


def is_nothing(text: str, dialect: Dialect) -> bool:
    """Tell whether there is no statement at all, only comments and the ends of statements."""
    place = 0
    for token in _tokens(text, dialect):
        if token.kind not in ("comment", "nested", "end") or text[place : token.start].strip():
            return False
        place = token.stop
    return not text[place:].strip()


def is_copy(text: str) -> bool:
    """Tell whether a statement is PostgreSQL's COPY, which has a conversation of its own with its client."""
    return _COPY.match(text) is not None


def with_placeholders(text: str, parameters: list[Any] | dict[str, Any]) -> str:
    """Write a statement with the placeholders of the PostgreSQL driver in place of `?` or `:name`.

    With parameters by name, `?` is an operator of PostgreSQL's. Raises KeyError for a name that is not given.
    """
    named = isinstance(parameters, dict)
    parts: list[str] = []
    place = 0
    for token in _tokens(text, "postgresql"):
        if named and token.kind == "name":
            name = token.name or ""
            if name not in parameters:
                raise KeyError(name)
            placeholder = f"%({name})s"
        elif not named and token.kind == "mark":
            placeholder = "%s"
        else:
            continue
        parts += (_literal(text[place : token.start]), placeholder)
        place = token.stop
    return "".join([*parts, _literal(text[place:])])


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def _tokens(text: str, dialect: Dialect) -> Iterator[_Token]:
    """Find everything that is not plain text, in order."""
    place = 0
    while found := _TOKENS[dialect].search(text, place):
        kind = found.lastgroup or ""
        place = _comment_end(text, found.start()) if kind == "nested" else found.end()
        yield _Token(kind, found.start(), place, found["name"] if kind == "name" else None)


def _comment_end(text: str, start: int) -> int:
    """Find where a comment ends that may hold others."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
