"""What a JSONPath query is made of, and what each part of it finds (RFC 9535).

The library that reads queries is not asked to evaluate them: it takes true for 1 inside of lists, cuts strings
into slices, parses strings as JSON and follows regular expressions without end. These few classes do exactly
what the RFC says, without recursion over the values, and several times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

from tidemill.expressions.iregexp import matches
from tidemill.expressions.relations import equal
from tidemill.expressions.scope import Json


class Nothing:
    """What a query gives that finds no value; JSON null is a value."""


NOTHING: Final = Nothing()

Key = str | int


@dataclass(frozen=True, slots=True)
class Name:
    """The member of an object."""

    name: str

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        """Give what it selects of a value."""
        return (value[self.name],) if type(value) is dict and self.name in value else ()


@dataclass(frozen=True, slots=True)
class Index:
    """The item of a list, counted from its end if negative."""

    index: int

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        """Give what it selects of a value."""
        return (value[self.index],) if type(value) is list and -len(value) <= self.index < len(value) else ()


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a list; a step of 0 selects nothing."""

    start: int | None
    stop: int | None
    step: int | None

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        """Give what it selects of a value."""
        return value[self.start : self.stop : self.step] if type(value) is list and self.step != 0 else ()


@dataclass(frozen=True, slots=True)
class Wildcard:
    """Every member of an object, every item of a list."""

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        """Give what it selects of a value."""
        return children(value)


@dataclass(frozen=True, slots=True)
class Filter:
    """The members or items for which a test is true."""

    test: Test

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        """Give what it selects of a value."""
        passes = self.test.passes
        return [child for child in children(value) if passes(child, root)]


Selector = Name | Index | Slice | Wildcard | Filter


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of a query, from every value found so far to some of its children or descendants."""

    selectors: tuple[Selector, ...]
    descendant: bool = False

    def step(self, values: Iterable[Json], root: Json) -> list[Json]:
        """Give what it selects of all values, in order and with repetitions."""
        if self.descendant:
            values = (below for value in values for below in containers(value))
        if len(self.selectors) == 1:
            pick = self.selectors[0].pick
            return [found for value in values for found in pick(value, root)]
        return [found for value in values for selector in self.selectors for found in selector.pick(value, root)]


@dataclass(frozen=True, slots=True)
class Query:
    """A way from the root of the document, or from the value that a filter looks at, to any number of values."""

    segments: tuple[Segment, ...]
    absolute: bool = True
    keys: tuple[Key, ...] | None = None
    """The same way, if it leads to one value at most."""

    def find(self, current: Json, root: Json) -> Sequence[Json]:
        """Give all that it finds."""
        if self.keys is not None:
            value = self.value(current, root)
            return () if value is NOTHING else (value,)
        values: Sequence[Json] = (root if self.absolute else current,)
        for segment in self.segments:
            values = segment.step(values, root)
        return values

    def value(self, current: Json, root: Json) -> Json | Nothing:
        """Give the value that it leads to, if it leads to one at most."""
        value = root if self.absolute else current
        for key in self.keys or ():
            if type(value) is dict:
                if key not in value:
                    return NOTHING
            elif type(value) is not list or type(key) is not int or not -len(value) <= key < len(value):
                return NOTHING
            value = value[key]
        return value


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is written in the filter."""

    content: Json

    def value(self, current: Json, root: Json) -> Json | Nothing:
        """Give the value."""
        return self.content


@dataclass(frozen=True, slots=True)
class Length:
    """`length(x)`: of a string, a list or an object."""

    of: Operand

    def value(self, current: Json, root: Json) -> Json | Nothing:
        """Give the length; of anything else it is nothing."""
        value = self.of.value(current, root)
        return len(value) if isinstance(value, str | list | dict) else NOTHING


@dataclass(frozen=True, slots=True)
class Count:
    """`count(query)`: how many values the query finds."""

    of: Query

    def value(self, current: Json, root: Json) -> Json | Nothing:
        """Give the number."""
        return len(self.of.find(current, root))


@dataclass(frozen=True, slots=True)
class Only:
    """`value(query)`: the value that the query finds, if it is exactly one."""

    of: Query

    def value(self, current: Json, root: Json) -> Json | Nothing:
        """Give the value."""
        found = self.of.find(current, root)
        return found[0] if len(found) == 1 else NOTHING


Operand = Query | Constant | Length | Count | Only
"""What stands for one value or nothing inside of a filter; a query only if it finds one value at most."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two operands with `==`, `!=`, `<`, `<=`, `>` or `>=` between them; it has an answer for all values."""

    operator: str
    left: Operand
    right: Operand

    def passes(self, current: Json, root: Json) -> bool:
        """Tell whether it is true of a value."""
        left, right = self.left.value(current, root), self.right.value(current, root)
        match self.operator:
            case "==":
                return equal(left, right)
            case "!=":
                return not equal(left, right)
            case "<":
                return _less(left, right)
            case ">":
                return _less(right, left)
            case "<=":
                return _less(left, right) or equal(left, right)
            case _:
                return _less(right, left) or equal(left, right)


@dataclass(frozen=True, slots=True)
class Found:
    """A query as a test: it finds something."""

    query: Query

    def passes(self, current: Json, root: Json) -> bool:
        """Tell whether it is true of a value."""
        return len(self.query.find(current, root)) > 0


@dataclass(frozen=True, slots=True)
class Matches:
    """`match(text, pattern)` of the whole text, or `search(text, pattern)` of some part of it."""

    text: Operand
    pattern: Operand
    whole: bool

    def passes(self, current: Json, root: Json) -> bool:
        """Tell whether it is true of a value; what is no text or no pattern does not match."""
        text, pattern = self.text.value(current, root), self.pattern.value(current, root)
        if not isinstance(text, str) or not isinstance(pattern, str):
            return False
        return matches(pattern, text, whole=self.whole)


@dataclass(frozen=True, slots=True)
class Joined:
    """Tests joined by `&&` or `||`."""

    operator: Literal["&&", "||"]
    tests: tuple[Test, ...]

    def passes(self, current: Json, root: Json) -> bool:
        """Tell whether it is true of a value."""
        answers = (test.passes(current, root) for test in self.tests)
        return all(answers) if self.operator == "&&" else any(answers)


@dataclass(frozen=True, slots=True)
class Not:
    """A test with `!` before it."""

    test: Test

    def passes(self, current: Json, root: Json) -> bool:
        """Tell whether it is true of a value."""
        return not self.test.passes(current, root)


Test = Comparison | Found | Matches | Joined | Not
"""What is true or false of a value inside of a filter."""


def keys(segments: tuple[Segment, ...]) -> tuple[Key, ...] | None:
    """Give the keys that segments stand for, if they lead to one value at most."""
    found: list[Key] = []
    for segment in segments:
        match segment:
            case Segment((Name(key),), False) | Segment((Index(key),), False):
                found.append(key)
            case _:
                return None
    return tuple(found)


def children(value: Json) -> Iterable[Json]:
    """Give the members of an object or the items of a list."""
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()


def containers(value: Json) -> Iterable[Json]:
    """Give the lists and objects among a value and all below it, each before what is below it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is dict:
            waiting.extend(reversed(each.values()))
        elif type(each) is list:
            waiting.extend(reversed(each))
        else:
            continue
        yield each


def _less(left: Json | Nothing, right: Json | Nothing) -> bool:
    """Compare two numbers or two strings; anything else is not less than anything."""
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    return _is_number(left) and _is_number(right) and left < right


def _is_number(value: Json | Nothing) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
