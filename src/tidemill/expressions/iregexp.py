r"""Regular expressions inside of JSONPath queries: I-Regexp (RFC 9485), in time linear in the text.

The JSONPath library brings an engine that backtracks, so a pattern of ten characters could keep it busy for
years. These patterns are given to the engine of the templates, which does not. It knows a little more than
the RFC, such as `\d`, and means something else by nothing but the dot.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tidemill.expressions.failure import ExpressionError, condition_failed

if TYPE_CHECKING:
    from tidemill.expressions.patterns import Pattern

CACHED_MAX = 128

UNBALANCED = ("missing", "unexpected")
"""How the engine begins to say that a bracket has no partner."""

_PLAIN = re.compile(r"\^?(?:\.\*)?(?:[^\\.*+?{}()\[\]|^$]|\\\W)*(?:\.\*)?\$?")


def is_pattern(pattern: str) -> bool:
    """Tell whether a text is a regular expression, and one that can be compiled."""
    return not isinstance(_compiled(pattern), ExpressionError)


def why_no_pattern(pattern: str) -> tuple[str, str]:
    """Say what is wrong with a text that is no regular expression, and what to do about it."""
    failure = _compiled(pattern)
    if not isinstance(failure, ExpressionError):
        return "", ""
    reason = failure.message.rpartition(" cannot be used: ")[2]
    if not reason.startswith(UNBALANCED):
        return reason, failure.hint
    return reason.partition(": ")[0], r"a bracket that means itself is written \( or \["


def is_plain(pattern: str) -> bool:
    """Tell whether a pattern is plain text, perhaps with anything around it.

    Over a text of a mebibyte, a pattern that is made for it takes up to a second, and a plain one some
    milliseconds.
    """
    return _PLAIN.fullmatch(pattern) is not None


def matches(pattern: str, text: str, *, whole: bool) -> bool:
    """Tell whether a pattern matches the whole text, or some part of it; what is no pattern matches nothing."""
    compiled = _compiled(pattern)
    if isinstance(compiled, ExpressionError):
        return False
    try:
        return (compiled.fullmatch(text) if whole else compiled.search(text)) is not None
    except UnicodeError:
        raise condition_failed("a string is not valid Unicode") from None


@lru_cache(maxsize=CACHED_MAX)
def _compiled(pattern: str) -> Pattern | ExpressionError:
    # It takes time to load, and only queries with regular expressions need it.
    from tidemill.expressions.patterns import compile_pattern

    try:
        return compile_pattern(_translated(pattern))
    except ExpressionError as failure:
        return failure


def _translated(pattern: str) -> str:
    """Write the dot out, which spares both line ends here and only one of them in other dialects."""
    parts: list[str] = []
    escaped = in_class = False
    for character in pattern:
        is_dot = character == "." and not escaped and not in_class
        parts.append(r"[^\n\r]" if is_dot else character)
        if not escaped:
            in_class = (in_class or character == "[") and character != "]"
        escaped = character == "\\" and not escaped
    return "".join(parts)
