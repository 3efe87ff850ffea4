"""The door through which the result of an expression leaves: plain JSON or an error.

A template can make things that JSON does not have (generators, methods, NaN, tuples, half a surrogate pair).
What is harmless is converted, the rest is refused here, so that nothing behind this door has to check again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from types import GeneratorType
from typing import Any

from jinja2.runtime import Undefined

from tidemill.expressions.bounds import DEPTH_MAX, TEXT_MAX, VALUES_MAX, WRITABLE_BITS_MAX
from tidemill.expressions.failure import template_failed
from tidemill.expressions.meter import VIEWS
from tidemill.expressions.missing import Missing
from tidemill.expressions.scope import Json
from tidemill.expressions.wording import shorten

_LISTABLE: tuple[type, ...] = (GeneratorType, range, map, filter, zip, reversed, *VIEWS)


def plain(value: object, tick: Callable[[], None] | None = None) -> Json:
    """Give the value as JSON of exact built-in types; containers are copied, scalars are shared.

    `tick` is called for every container, by whom a walk takes too long that is allowed by its size.
    """
    if value is None or type(value) is bool:
        return value
    return _Walk(VALUES_MAX, 1, 6, f"the result has more than {VALUES_MAX} values", tick).convert(value, 0)


def printable(value: object) -> Json:
    """Give the value as JSON if it can be printed: with brackets, commas and quotes a value takes two characters."""
    message = f"a value would grow beyond {TEXT_MAX} characters when it is printed"
    return _Walk(TEXT_MAX, 2, 0, message).convert(value, 0)


def text(value: object) -> str:
    """Give the value as a template prints it; `None` and booleans as Jinja's users know them."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[return-value]
    if kind is int or kind is bool or value is None:
        return str(value)
    if kind is Undefined:
        # Only an inline `if` without `else` makes one of these; Jinja prints it as nothing.
        return ""
    return str(printable(value))


class _Walk:
    """One conversion; it counts, because a small template can hold the same list or text very often.

    A value counts so much, and a text as much more as it is long, divided by a power of two.
    """

    __slots__ = ("complaint", "each", "left", "shift", "tick")

    def __init__(
        self, left: int, each: int, shift: int, complaint: str, tick: Callable[[], None] | None = None
    ) -> None:
        self.left, self.each, self.shift, self.complaint = left, each, shift, complaint
        self.tick = tick

    def convert(self, value: Any, depth: int) -> Json:
        kind = type(value)
        self.left -= self.each if kind is not str else self.each + (len(value) >> self.shift)
        if self.left < 0:
            raise template_failed(self.complaint)
        if kind is str:
            return _sound(value)
        if kind is bool or value is None:
            return value
        if kind is int:
            return _writable(value)
        if kind is float:
            return _finite(value)
        if depth >= DEPTH_MAX:
            raise template_failed(f"the result is nested more than {DEPTH_MAX} levels deep")
        if self.tick is not None:
            self.tick()
        if kind is dict:
            self.left -= sum(len(key) for key in value if type(key) is str) >> self.shift
            return {_key(key): self.convert(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.convert(each, depth + 1) for each in value]
        return _other(value)


def _sound(value: str) -> str:
    if len(value) > TEXT_MAX:
        raise template_failed(f"a string of the result is longer than {TEXT_MAX} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise template_failed("the result holds a string that is not valid Unicode") from None
    return value


def _writable(value: int) -> int:
    if value.bit_length() > WRITABLE_BITS_MAX:
        raise template_failed("the result holds an integer with thousands of digits")
    return value


def _finite(value: float) -> float:
    if not isfinite(value):
        raise template_failed(f"the result holds {value}, which is not a JSON number")
    return value


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise template_failed(f"the result has an object with the key {shorten(repr(key), 40)}; keys are strings")
    return _sound(str.__str__(key))


def _other(value: object) -> Json:
    if isinstance(value, str):
        return _sound(str.__str__(value))
    if isinstance(value, Missing):
        value.refuse()
    if isinstance(value, Undefined):
        raise template_failed("the expression has no value", "give the inline `if` an `else`")
    if isinstance(value, _LISTABLE):
        raise template_failed("the result is a sequence that was not read yet", "end the expression with `| list`")
    raise template_failed(
        f"the result is not a JSON value but a {type(value).__name__}",
        "a method is called with (), and nodes, inputs and items hold only JSON",
    )
