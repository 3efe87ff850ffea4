"""Operations whose result can be much larger than what they are given, each with a bound checked first.

Python's own would fill the memory before anything could notice: `"x" * 10**10`, `s.replace("", s)`,
`"%999999999d" % 1`. Everything a template can multiply with goes through here.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.expressions.bounds import INT_BITS_MAX, RANGE_MAX
from tidemill.expressions.failure import template_failed
from tidemill.expressions.meter import room
from tidemill.expressions.plain import text

_SEQUENCES = (str, list, tuple)
_STARRED = re.compile(r"%[^%a-zA-Z]*\*")
_DIGITS = re.compile(r"\d+")
_SPELLED_FLOAT = 400
"""The longest a float gets when it is printed without a width, rounded up."""


def bounded_range(*limits: int) -> range:
    """Make a range of bounded length."""
    numbers = range(*limits)
    if len(numbers) > RANGE_MAX:
        raise template_failed(f"range() is limited to {RANGE_MAX} numbers")
    return numbers


def add(left: Any, right: Any) -> Any:
    """Add, or join two strings or lists."""
    if isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        room(len(left) + len(right))
    return operator.add(left, right)


def multiply(left: Any, right: Any) -> Any:
    """Multiply, or repeat a string or list."""
    if isinstance(left, int) and isinstance(right, int):
        _bits(left.bit_length() + right.bit_length())
    elif isinstance(left, _SEQUENCES) and isinstance(right, int):
        room(len(left) * right)
    elif isinstance(right, _SEQUENCES) and isinstance(left, int):
        room(len(right) * left)
    return operator.mul(left, right)


def power(left: Any, right: Any) -> Any:
    """Raise to a power."""
    if isinstance(left, int) and isinstance(right, int):
        _bits(left.bit_length() * abs(right))
    return operator.pow(left, right)


def modulo(left: Any, right: Any) -> Any:
    """Take the remainder, or fill a printf-style pattern."""
    return formatted(left, right) if isinstance(left, str) else operator.mod(left, right)


OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {"+": add, "*": multiply, "**": power, "%": modulo}


def _bits(count: int) -> None:
    if count > INT_BITS_MAX:
        raise template_failed(f"an integer would need more than {INT_BITS_MAX} bits")


def formatted(pattern: str, values: object) -> str:
    """Fill a printf-style pattern."""
    if _STARRED.search(pattern):
        raise template_failed("a width given as * is not supported", "write the width into the pattern: %5d")
    spread = values if isinstance(values, tuple) else tuple(values.values()) if isinstance(values, dict) else (values,)
    longest = max((len(text(each)) for each in spread), default=0)
    widths = sum(int(digits[:9]) for digits in _DIGITS.findall(pattern))
    room(len(pattern) + widths + pattern.count("%") * max(longest, _SPELLED_FLOAT) if spread else len(pattern))
    return pattern % values


def joined(separator: str, parts: Iterable[object]) -> str:
    """Join anything printable."""
    texts: list[str] = []
    size = 0
    for part in parts:
        each = text(part)
        size += len(each) + len(separator)
        room(size)
        texts.append(each)
    return separator.join(texts)


def replaced(whole: str, old: str, new: str, count: int = -1) -> str:
    """Replace a part of a string."""
    found = whole.count(old) if old else len(whole) + 1
    if count >= 0:
        found = min(found, count)
    room(len(whole) + found * max(0, len(new) - len(old)))
    return whole.replace(old, new, count)


def padded(method: str) -> Callable[..., str]:
    """Give the string method of that name (`ljust`, `center`…) with a bounded width."""
    native: Callable[..., str] = getattr(str, method)

    def pad(whole: str, width: int, *fill: str) -> str:
        room(width)
        return native(whole, width, *fill)

    return pad
