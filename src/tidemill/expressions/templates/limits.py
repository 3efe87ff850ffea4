"""The budget of a rendering, budgeted sequences, bounded operations, and the conversion of results to JSON.

Steps are the same on every machine but some take microseconds, so processor time of the thread counts too. The clock is
read only when something is charged: loops, filters and Jinja's functions must get their items from here. Operations
that can multiply a value (`"x" * 10**10`, `s.replace("", s)`) check their bound first. Results leave through
`to_json_value`, which converts or refuses what JSON does not have; nothing after it checks again.

A rendering on the event loop has a smaller budget. What exceeds it raises `LoopBudgetSpent`: rendering is pure, so the
caller starts again in a child process.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from threading import local
from time import perf_counter, thread_time
from types import GeneratorType
from typing import Any, Protocol

import jinja2  # noqa: F401 - the whole package first, or threads that import parts of it meet half of one
import msgspec
from jinja2.runtime import Undefined

from tidemill.expressions import limits as bounds
from tidemill.expressions.errors import Explanation, LoopBudgetSpent, shorten, template_failed
from tidemill.expressions.scope import Json
from tidemill.expressions.templates.undefined import NotAvailable

_EMPTY: dict[str, Any] = {}
VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
"""The types of dictionary views."""

_SECONDS_MAX = bounds.RENDER_MS_MAX / 1000
_LOOP_SECONDS_MAX = bounds.LOOP_MS_MAX / 1000
_SMALL = 1 << 64
_LISTS = (list, tuple, range, *VIEWS)
_NESTING = (dict, *_LISTS)


class _Current(local):
    """Whether the rendering in this thread is one on the event loop, for functions that have no context."""

    on_loop = False


_CURRENT = _Current()


def room(size: int) -> None:
    """Refuse a string or list that would become larger than the bound."""
    if size > bounds.LOOP_TEXT_MAX and _CURRENT.on_loop:
        raise LoopBudgetSpent
    if size > bounds.TEXT_MAX:
        raise template_failed(f"a value would grow beyond {bounds.TEXT_MAX} characters or items")


_ENCODER = msgspec.json.Encoder()
_TOO_MANY = Explanation(
    f"the result is larger than {bounds.VALUES_MAX:,} values or {64 * bounds.VALUES_MAX:,} characters",
    "pass a part of it on, or return tidemill.Blob(…) where it is made; 64 characters count as a value",
)


class RenderBudget:
    """The budget of one rendering, shared by all strings of the value that is rendered."""

    __slots__ = ("_began", "_look_at", "_on_loop", "_passed_on", "_steps_left", "_values_left")

    def __init__(self, on_loop: bool = False) -> None:
        self._on_loop = on_loop
        self._steps_left = bounds.LOOP_STEPS_MAX if on_loop else bounds.STEPS_MAX
        self._values_left = bounds.VALUES_MAX
        self._passed_on = False
        self._began: float | None = None
        self._look_at = 0.0

    def enter(self) -> None:
        """Be the budget of this thread, before functions are called that have no context."""
        _CURRENT.on_loop = self._on_loop

    def spend(self, steps: int) -> None:
        """Charge for work; raise `ExpressionError` if the budget is exceeded."""
        self._steps_left -= max(0, steps)
        if self._steps_left < 0:
            if self._on_loop:
                raise LoopBudgetSpent
            raise template_failed(f"the template takes more than {bounds.STEPS_MAX} steps", "loop over fewer items")
        self.tick()

    def tick(self) -> None:
        """Check the clock during work that is already charged or too small to charge."""
        if perf_counter() >= self._look_at:
            self._look()

    def grow(self, values: int) -> None:
        """Charge for values of the result, of which 64 characters are one; all strings together have one budget."""
        self._values_left -= values
        if self._values_left < 0:
            raise template_failed(_TOO_MANY)

    def pass_on(self, value: object) -> None:
        """Charge for a list or object that is passed on as it is. The first is free, as it adds nothing to what is."""
        if self._passed_on:
            self.grow(len(_ENCODER.encode(value)) >> 6)
        self._passed_on = True

    def weigh(self, value: object, times: int = 1) -> None:
        """Pay for every value inside, before they are compared one by one.

        A list that holds itself twice, sixty times over, is small in memory and endless to compare. Comparing is
        native, so a step pays for four items or 256 characters; callers with more work per item pass `times`.
        """
        waiting: list[Any] = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                self.spend(times * (len(each) >> 8))
            elif isinstance(each, dict):
                self._weigh_items(each.values(), sum(map(len, each)), times, waiting)
            elif isinstance(each, _LISTS):
                self._weigh_items(each, 0, times, waiting)

    def _weigh_items(self, items: Collection[Any], size: int, times: int, waiting: list[Any]) -> None:
        """Charge for the items of one list before they are read; nested ones go to `waiting`."""
        self.spend(times * (1 + (len(items) >> 2)))
        for each in items:
            kind = type(each)
            if kind is str:
                size += len(each)
            elif kind is int:
                if not -_SMALL < each < _SMALL:
                    size += each.bit_length() >> 3
            elif isinstance(each, _NESTING):
                waiting.append(each)
        self.spend(times * (size >> 8))

    def _look(self) -> None:
        """Read the processor time, which costs 20 times the wall clock; so only when it could be used up."""
        now = thread_time()
        if self._began is None:
            self._began = now
        used = now - self._began
        seconds_max = _LOOP_SECONDS_MAX if self._on_loop else _SECONDS_MAX
        if used > seconds_max:
            if self._on_loop:
                raise LoopBudgetSpent
            raise template_failed(f"the template takes more than {bounds.RENDER_MS_MAX} ms", "loop over fewer items")
        self._look_at = perf_counter() + seconds_max - used


# Budgeted sequences and the cost of reading a value.

SIZED = (str, list, tuple, dict, range, *VIEWS)


class Budget(Protocol):
    """The part of a rendering that pays."""

    def spend(self, steps: int) -> None: ...

    def tick(self) -> None: ...


class LoopItems:
    """The items of a loop. The passes are charged together; each one checks the clock."""

    __slots__ = ("_budget", "_items")

    def __init__(self, items: Sequence[Any], budget: Budget) -> None:
        self._items, self._budget = items, budget

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.tick()
            yield item


def budgeted(budget: Budget, items: Iterable[Any], steps: int = 1) -> Iterator[Any]:
    for item in items:
        budget.spend(steps)
        yield item


def drawn(budget: Budget, lazy: Iterable[Any]) -> list[Any]:
    """Read a lazy sequence, one step per item, so that it ends."""
    return list(budgeted(budget, lazy))


def cost(value: object) -> int:
    """Count what it costs to go through a value once; lazy sequences were paid for by their source."""
    if isinstance(value, str):
        return 1 + (len(value) >> 6)
    return 1 + len(value) if isinstance(value, SIZED) else 1


def cost_of_copy(value: object) -> int:
    """Count what it costs to make a string or list out of others, item by item but natively."""
    return 1 + (len(value) >> 6) if isinstance(value, SIZED) else 1


def short(value: str) -> str:
    """Refuse a text that is too long for native functions, which do not check the clock."""
    if len(value) > bounds.LOOP_TEXT_MAX and _CURRENT.on_loop:
        raise LoopBudgetSpent
    if len(value) > bounds.TEXT_MAX:
        message = f"a text of {len(value)} characters is too long, at most {bounds.TEXT_MAX} are possible"
        raise template_failed(message, "pass it on as it is, or search it with a regex filter")
    return value


# Conversion of results to JSON.

_LISTABLE: tuple[type, ...] = (GeneratorType, range, map, filter, zip, reversed, *VIEWS)


def to_json_value(value: object, meter: RenderBudget | None = None) -> Json:
    """Return the value as JSON of exact built-in types, containers copied; `meter` looks at the clock meanwhile."""
    if value is None or type(value) is bool:
        return value
    walk = _Walk(bounds.VALUES_MAX, 1, 6, _TOO_MANY, None if meter is None else meter.tick)
    converted = walk.convert(value, 0)
    if meter is not None:
        meter.grow(bounds.VALUES_MAX - walk.left)
    return converted


def printable(value: object) -> Json:
    """Return the value as JSON if it can be printed: with brackets, commas and quotes a value takes two characters."""
    message = f"a value would grow beyond {bounds.TEXT_MAX} characters when it is printed"
    walk = _Walk(bounds.TEXT_MAX, 2, 0, message)
    if _CURRENT.on_loop:
        walk.left = min(walk.left, 2 * bounds.LOOP_VALUES_MAX)
    return walk.convert(value, 0)


def text(value: object) -> str:
    """Return the value as a template prints it; `None` and booleans as Jinja's users know them."""
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
    """One conversion; it counts values and text, because a small template can hold the same list very often."""

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
            if _CURRENT.on_loop:
                raise LoopBudgetSpent
            raise template_failed(self.complaint)
        if kind is str:
            return _sound(value)
        if kind is bool or value is None:
            return value
        if kind is int:
            bits = value.bit_length()
            if bits > bounds.WRITABLE_BITS_MAX:
                raise template_failed("the result holds an integer with thousands of digits")
            if bits > _LONG_BITS:
                # The time to write it grows with the square of its length: 1,300 values stand for 4,000 digits.
                self.left -= bits * bits >> 17
            return value
        if kind is float:
            if not isfinite(value):
                raise template_failed(f"the result holds {value}, which is not a JSON number")
            return value
        if depth >= bounds.DEPTH_MAX:
            raise template_failed(f"the result is nested more than {bounds.DEPTH_MAX} levels deep")
        if self.tick is not None:
            self.tick()
        if kind is dict:
            self.left -= sum(len(key) for key in value if type(key) is str) >> self.shift
            items = value.items() if self.tick is None or len(value) < _PORTION else _ticking(value.items(), self.tick)
            return {_key(key): self.convert(each, depth + 1) for key, each in items}
        if isinstance(value, list | tuple):
            each_of = value if self.tick is None or len(value) < _PORTION else _ticking(value, self.tick)
            return [self.convert(each, depth + 1) for each in each_of]
        if isinstance(value, str):
            return _sound(str.__str__(value))
        if isinstance(value, NotAvailable):
            value.refuse()
        if isinstance(value, Undefined):
            raise template_failed("the expression has no value", "give the inline `if` an `else`")
        if isinstance(value, _LISTABLE):
            raise template_failed("the result is a sequence that was not read yet", "end the expression with `| list`")
        raise template_failed(
            f"the result is not a JSON value but a {type(value).__name__}",
            "a method is called with (), and nodes, inputs and items hold only JSON",
        )


_LONG_BITS = 1024
_PORTION = 1000
"""Items of a list between two looks at the clock."""


def _ticking(items: Iterable[Any], tick: Callable[[], None]) -> Iterator[Any]:
    rest = iter(items)
    while portion := list(islice(rest, _PORTION)):
        tick()
        yield from portion


def _sound(value: str) -> str:
    if len(value) > bounds.TEXT_MAX:
        raise template_failed(f"a string of the result is longer than {bounds.TEXT_MAX} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise template_failed("the result holds a string that is not valid Unicode") from None
    return value


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise template_failed(f"the result has an object with the key {shorten(repr(key), 40)}; keys are strings")
    return _sound(str.__str__(key))


# Bounded operations.

_SEQUENCES = (str, list, tuple)
_STARRED = re.compile(r"%[^%a-zA-Z]*\*")
_DIGITS = re.compile(r"\d+")
_SPELLED_FLOAT = 400
"""The longest a float gets when it is printed without a width, rounded up."""


def bounded_range(*limits: int) -> range:
    numbers = range(*limits)
    if len(numbers) > bounds.RANGE_MAX:
        raise template_failed(f"range() is limited to {bounds.RANGE_MAX} numbers")
    return numbers


def add(left: Any, right: Any) -> Any:
    if isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
        room(len(left) + len(right))
    return operator.add(left, right)


def multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _bits(left.bit_length() + right.bit_length())
    elif isinstance(left, _SEQUENCES) and isinstance(right, int):
        room(len(left) * right)
    elif isinstance(right, _SEQUENCES) and isinstance(left, int):
        room(len(right) * left)
    return operator.mul(left, right)


def power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _bits(left.bit_length() * abs(right))
    return operator.pow(left, right)


def modulo(left: Any, right: Any) -> Any:
    """Take the remainder, or fill a printf-style pattern."""
    return formatted(left, right) if isinstance(left, str) else operator.mod(left, right)


OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {"+": add, "*": multiply, "**": power, "%": modulo}


def _bits(count: int) -> None:
    if count > bounds.INT_BITS_MAX:
        raise template_failed(f"an integer would need more than {bounds.INT_BITS_MAX} bits")


def formatted(pattern: str, values: object) -> str:
    if _STARRED.search(pattern):
        raise template_failed("a width given as * is not supported", "write the width into the pattern: %5d")
    spread = values if isinstance(values, tuple) else tuple(values.values()) if isinstance(values, dict) else (values,)
    longest = max((len(text(each)) for each in spread), default=0)
    widths = sum(int(digits[:9]) for digits in _DIGITS.findall(pattern))
    room(len(pattern) + widths + pattern.count("%") * max(longest, _SPELLED_FLOAT) if spread else len(pattern))
    return pattern % values


def joined(separator: str, parts: Iterable[object]) -> str:
    texts: list[str] = []
    size = 0
    for part in parts:
        each = text(part)
        size += len(each) + len(separator)
        room(size)
        texts.append(each)
    return separator.join(texts)


def replaced(whole: str, old: str, new: str, count: int = -1) -> str:
    found = whole.count(old) if old else len(whole) + 1
    if count >= 0:
        found = min(found, count)
    room(len(whole) + found * max(0, len(new) - len(old)))
    return whole.replace(old, new, count)


def padded(method: str) -> Callable[..., str]:
    """Return the string method of that name (`ljust`, `center`…) with a bounded width."""
    native: Callable[..., str] = getattr(str, method)

    def pad(whole: str, width: int, *fill: str) -> str:
        room(width)
        return native(whole, width, *fill)

    return pad
