"""What authors write in CEL that belongs to another language, and how it is said in CEL.

The parser reports where it was lost, in terms of tokens. Here that place is looked at once more, in the text, and a
known slip gets the hint that leads out of it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.expressions.wording import listing, meant, shorten

LEVELS_MAX = 32
"""Nesting of an expression that the native parser takes."""

DEPTH = (
    f"the expression is nested more than {LEVELS_MAX} levels deep",
    "every + and - of a chain is a level: group it with parentheses, or write the parts of a composite condition",
)
"""What is said of an expression that goes deeper."""

_LOST = re.compile(r"(?:token recognition error at:|mismatched input|extraneous input) '(.*?)\s*'$")
_DEPTH_SAID = re.compile(r"max recursion depth|recursion limit exceeded")


class _Slip(NamedTuple):
    """A slip, told by the text before the place where the parser was lost, and by the text from there on."""

    before: re.Pattern[str]
    after: re.Pattern[str]
    hint: str


def _slip(before: str, after: str, hint: str) -> _Slip:
    return _Slip(re.compile(f"(?:{before})$"), re.compile(after, re.IGNORECASE), hint)


_SLIPS = (
    _slip(r"\{\{.*|^\{?", r"\{|\}", "a condition is an expression already: leave out the {{ }}"),
    _slip(r"^\s*", r"\$", 'a JSONPath is {"type": "jsonpath", "query": "$.x", "operator": "==", "value": 1}'),
    _slip(r"[=!]=", r"=", "equality is written ==, the opposite !="),
    _slip(r"[^=!<>]", r"=(?!=)", "equality is written =="),
    _slip(r"<", r">", "the opposite of == is !="),
    _slip(r"(?i:\bnot)\s+", r"", "not is written !: !(x > 1)"),
    _slip(r"", r"and\b|&(?!&)", "and is written &&"),
    _slip(r"", r"or\b|\|(?!\|)", "or is written ||"),
    _slip(r"", r"not\b", "not is written !: !(x > 1), !(x in y)"),
    _slip(r"", r"is\b|eq\b|equals\b", "equality is written =="),
    _slip(r"", r"(?:matches|contains|startsWith|endsWith)\b", "it is a function: x.contains('y'), x.matches('y+')"),
    _slip(r"\bin\s*\([^()]*", r",", "a list is written [1, 2]"),
    _slip(r"", r"[“”„‘’`]", "strings stand between \" or '"),
    _slip(r"", r"[\"']", "the string has no end"),
    _slip(r"", r";", "it is one expression: leave out the ;"),
    _slip(r"^\s*", r"if\b", "a choice is written x ? y : z"),
)

_WORDS = {
    "len": "size",
    "length": "size",
    "count": "size",
    "any": "exists",
    "some": "exists",
    "every": "all",
    "find": "filter",
    "includes": "contains",
    "lower": "lowerAscii",
    "toLowerCase": "lowerAscii",
    "upper": "upperAscii",
    "toUpperCase": "upperAscii",
    "str": "string",
    "float": "double",
    "number": "double",
    "strip": "trim",
    "match": "matches",
    "max": "math.greatest",
    "min": "math.least",
    "sum": 'a condition of type jsonpath with "sum_gt"',
}
"""Functions of other languages, and what they are called here."""

_FUNCTIONS = (
    *("size", "contains", "startsWith", "endsWith", "matches", "lowerAscii", "upperAscii"),
    *("split", "join", "replace", "substring", "indexOf", "trim", "has", "all", "exists", "exists_one", "map"),
    *("filter", "int", "double", "string", "bool", "timestamp", "duration"),
)
LITERALS = {
    "none": "null",
    "nil": "null",
    "undefined": "null",
    "null": "null",
    "true": "true",
    "yes": "true",
    "false": "false",
    "no": "false",
}
"""Words for the three constants, in lower case, and what they are called here."""


def goes_too_deep(said: str) -> bool:
    """Tell whether the parser minds the depth of an expression."""
    return _DEPTH_SAID.search(said) is not None


def syntax_words(expression: str, said: str, line: int, column: int) -> tuple[str, str]:
    """Tell what the parser minds, and what was probably meant; no hint if that is anybody's guess."""
    if "<EOF>" in said:
        if not expression.strip():
            return "the expression is empty", "such as output.score > 80"
        missing = [end for begin, end in ("()", "[]", "{}") if expression.count(begin) > expression.count(end)]
        return "the expression ends too early", f"there is a {missing[0]} missing" if missing else ""
    if "has() argument" in said:
        return said, 'has() asks for a key by its name: has(x.key); any other key is asked for with "a key" in x'
    lost = _LOST.search(said)
    return (f"{shorten(lost[1], 60)} is not expected here" if lost else said), _slip_at(expression, line, column)


def _slip_at(expression: str, line: int, column: int) -> str:
    lines = expression.split("\n")
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    before, after = text[: max(column - 1, 0)], text[max(column - 1, 0) :]
    return next((slip.hint for slip in _SLIPS if slip.before.search(before) and slip.after.match(after)), "")


def function_hint(name: str) -> str:
    """Tell what a function is called here that nobody knows by that name."""
    if name in _WORDS:
        return f"it is called {_WORDS[name]}"
    return meant(name, _FUNCTIONS) or f"functions are {listing(_FUNCTIONS)}"
