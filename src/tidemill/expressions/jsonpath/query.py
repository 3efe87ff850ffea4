"""The tree of a JSONPath query: evaluation (RFC 9535), cost, and regular expressions (I-Regexp, RFC 9485).

The library parses queries but does not evaluate them: it takes true for 1 inside lists, slices strings, parses strings
as JSON, and its regular expressions backtrack. This evaluation follows the RFC, does not recurse over values, and is
several times as fast; patterns go to the linear-time engine of the templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tidemill.expressions.comparisons import equal, is_number
from tidemill.expressions.errors import ExpressionError, condition_failed
from tidemill.expressions.scope import Json

if TYPE_CHECKING:
    from tidemill.expressions.templates.regex import Pattern


CACHED_MAX = 128

UNBALANCED = ("missing", "unexpected")
"""How the engine begins to say that a bracket has no partner."""

_PLAIN = re.compile(r"\^?(?:\.\*)?(?:[^\\.*+?{}()\[\]|^$]|\\\W)*(?:\.\*)?\$?")


def is_pattern(pattern: str) -> bool:
    return not isinstance(_compiled(pattern), ExpressionError)


def why_no_pattern(pattern: str) -> tuple[str, str]:
    """Say what is wrong with a text that is not a regular expression, and what to do about it."""
    failure = _compiled(pattern)
    if not isinstance(failure, ExpressionError):
        return "", ""
    reason = failure.message.rpartition(" cannot be used: ")[2]
    if not reason.startswith(UNBALANCED):
        return reason, failure.hint
    return reason.partition(": ")[0], r"a bracket that means itself is written \( or \["


def is_plain(pattern: str) -> bool:
    """True for plain text, perhaps with `.*` around it: milliseconds over 1 MiB; others take up to a second."""
    return _PLAIN.fullmatch(pattern) is not None


def matches(pattern: str, text: str, *, whole: bool) -> bool:
    """Whether a pattern matches the whole text, or some part of it; what is no pattern matches nothing."""
    compiled = _compiled(pattern)
    if isinstance(compiled, ExpressionError):
        return False
    try:
        return (compiled.fullmatch(text) if whole else compiled.search(text)) is not None
    except UnicodeError:
        raise condition_failed("a string is not valid Unicode") from None


@lru_cache(maxsize=CACHED_MAX)
def _compiled(pattern: str) -> Pattern | ExpressionError:
    # Loaded on demand: only queries with regular expressions need it.
    from tidemill.expressions.templates.regex import compile_pattern

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


class NoValue:
    """What a query gives that finds no value; JSON null is a value."""


NOTHING: Final = NoValue()

Key = str | int


class Name(msgspec.Struct, frozen=True):
    name: str

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        return (value[self.name],) if type(value) is dict and self.name in value else ()


class Index(msgspec.Struct, frozen=True):
    """The item of a list, counted from its end if negative."""

    index: int

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        return (value[self.index],) if type(value) is list and -len(value) <= self.index < len(value) else ()


class Slice(msgspec.Struct, frozen=True):
    """A part of a list; a step of 0 selects nothing."""

    start: int | None
    stop: int | None
    step: int | None

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        return value[self.start : self.stop : self.step] if type(value) is list and self.step != 0 else ()


class Wildcard(msgspec.Struct, frozen=True):
    """Every member of an object, every item of a list."""

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        return children(value)


class Filter(msgspec.Struct, frozen=True):
    """The members or items for which a test is true."""

    test: Test

    def pick(self, value: Json, root: Json) -> Iterable[Json]:
        passes = self.test.passes
        return [child for child in children(value) if passes(child, root)]


Selector = Name | Index | Slice | Wildcard | Filter
"""`pick` returns what it selects of a value."""


class Segment(msgspec.Struct, frozen=True):
    """One step of a query, from every value found so far to some of its children or descendants."""

    selectors: tuple[Selector, ...]
    descendant: bool = False

    def step(self, values: Iterable[Json], root: Json) -> list[Json]:
        """Return what it selects of all values, in order and with repetitions."""
        if self.descendant:
            values = (below for value in values for below in containers(value))
        if len(self.selectors) == 1:
            pick = self.selectors[0].pick
            return [found for value in values for found in pick(value, root)]
        return [found for value in values for selector in self.selectors for found in selector.pick(value, root)]


class Query(msgspec.Struct, frozen=True):
    """A way from the root of the document, or from the value that a filter looks at, to any number of values."""

    segments: tuple[Segment, ...]
    absolute: bool = True
    keys: tuple[Key, ...] | None = None
    """The same way, if it leads to one value at most."""

    def find(self, current: Json, root: Json) -> Sequence[Json]:
        if self.keys is not None:
            value = self.value(current, root)
            return () if value is NOTHING else (value,)
        values: Sequence[Json] = (root if self.absolute else current,)
        for segment in self.segments:
            values = segment.step(values, root)
        return values

    def value(self, current: Json, root: Json) -> Json | NoValue:
        """Return the value that it leads to, if it leads to one at most."""
        value = root if self.absolute else current
        for key in self.keys or ():
            if type(value) is dict:
                if key not in value:
                    return NOTHING
            elif type(value) is not list or type(key) is not int or not -len(value) <= key < len(value):
                return NOTHING
            value = value[key]
        return value


class Constant(msgspec.Struct, frozen=True):
    content: Json

    def value(self, current: Json, root: Json) -> Json | NoValue:
        return self.content


class Length(msgspec.Struct, frozen=True):
    """`length(x)`: of a string, a list or an object."""

    of: Operand

    def value(self, current: Json, root: Json) -> Json | NoValue:
        """Return the length; of anything else it is nothing."""
        value = self.of.value(current, root)
        return len(value) if isinstance(value, str | list | dict) else NOTHING


class Count(msgspec.Struct, frozen=True):
    """`count(query)`: how many values the query finds."""

    of: Query

    def value(self, current: Json, root: Json) -> Json | NoValue:
        return len(self.of.find(current, root))


class Only(msgspec.Struct, frozen=True):
    """`value(query)`: the value that the query finds, if it is exactly one."""

    of: Query

    def value(self, current: Json, root: Json) -> Json | NoValue:
        found = self.of.find(current, root)
        return found[0] if len(found) == 1 else NOTHING


Operand = Query | Constant | Length | Count | Only
"""What stands for one value or nothing inside of a filter; a query only if it finds one value at most."""


class Comparison(msgspec.Struct, frozen=True):
    """Two operands with `==`, `!=`, `<`, `<=`, `>` or `>=` between them; it has an answer for all values."""

    operator: str
    left: Operand
    right: Operand

    def passes(self, current: Json, root: Json) -> bool:
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


class Found(msgspec.Struct, frozen=True):
    query: Query

    def passes(self, current: Json, root: Json) -> bool:
        return len(self.query.find(current, root)) > 0


class Matches(msgspec.Struct, frozen=True):
    """`match(text, pattern)` of the whole text, or `search(text, pattern)` of some part of it."""

    text: Operand
    pattern: Operand
    whole: bool

    def passes(self, current: Json, root: Json) -> bool:
        """Whether it is true of a value; what is no text or no pattern does not match."""
        text, pattern = self.text.value(current, root), self.pattern.value(current, root)
        if not isinstance(text, str) or not isinstance(pattern, str):
            return False
        return matches(pattern, text, whole=self.whole)


class Joined(msgspec.Struct, frozen=True):
    operator: Literal["&&", "||"]
    tests: tuple[Test, ...]

    def passes(self, current: Json, root: Json) -> bool:
        answers = (test.passes(current, root) for test in self.tests)
        return all(answers) if self.operator == "&&" else any(answers)


class Not(msgspec.Struct, frozen=True):
    test: Test

    def passes(self, current: Json, root: Json) -> bool:
        return not self.test.passes(current, root)


Test = Comparison | Found | Matches | Joined | Not
"""What is true or false of a value inside of a filter."""


def keys(segments: tuple[Segment, ...]) -> tuple[Key, ...] | None:
    """Return the keys that segments stand for, if they lead to one value at most."""
    found: list[Key] = []
    for segment in segments:
        match segment:
            case Segment((Name(key),), False) | Segment((Index(key),), False):
                found.append(key)
            case _:
                return None
    return tuple(found)


def children(value: Json) -> Iterable[Json]:
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()


def containers(value: Json) -> Iterable[Json]:
    """Return the lists and objects among a value and all below it, each before what is below it."""
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


def _less(left: Json | NoValue, right: Json | NoValue) -> bool:
    """Compare two numbers or two strings; anything else is not less than anything."""
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    return is_number(left) and is_number(right) and left < right


LIGHT_TEXT_MAX = 512
"""Characters of a query that is decided at once; every term of a longer one may be asked for every value."""

REPEATS_MAX = 4
"""How often a light query may find the same value: `[*, *]` finds all twice, and twice that in the next step."""


def queries(query: Query) -> Iterator[Query]:
    yield query
    for segment in query.segments:
        for selector in segment.selectors:
            if isinstance(selector, Filter):
                yield from _in_test(selector.test)


def is_cheap(query: Query, text: str) -> bool:
    """Whether a query asks each of few values only a few times, and nothing that takes long."""
    if query.keys is not None:
        return True
    if len(text) > LIGHT_TEXT_MAX or sum(segment.descendant for segment in query.segments) > 1:
        return False
    repeats = 1
    for segment in query.segments:
        names = {selector for selector in segment.selectors if isinstance(selector, Name)}
        repeats *= 1 if len(names) == len(segment.selectors) else len(segment.selectors)
    tests = (each.test for segment in query.segments for each in segment.selectors if isinstance(each, Filter))
    return repeats <= REPEATS_MAX and all(_is_light_test(test) for test in tests)


def _is_light_test(test: Test) -> bool:
    match test:
        case Joined():
            return all(_is_light_test(each) for each in test.tests)
        case Not():
            return _is_light_test(test.test)
        case Found():
            return test.query.keys is not None
        case Matches(text, pattern):
            plain = isinstance(pattern, Constant) and is_plain(str(pattern.content))
            return plain and _is_light_operand(text) and not _is_far(text)
        case Comparison(_, left, right):
            # Two values of the document's own, compared once for every other value, are its size squared.
            return _is_light_operand(left) and _is_light_operand(right) and not (_is_far(left) and _is_far(right))


def _is_light_operand(operand: Operand) -> bool:
    match operand:
        case Query(keys=keys) | Count(Query(keys=keys)) | Only(Query(keys=keys)):
            return keys is not None
        case Length(inner):
            return _is_light_operand(inner)
    return True


def _is_far(operand: Operand) -> bool:
    """Whether an operand is the same for all values: looked up from the root."""
    match operand:
        case Query():
            return operand.absolute
        case Only(query):
            return query.absolute
    return False


def _in_test(test: Test) -> Iterator[Query]:
    match test:
        case Joined():
            for each in test.tests:
                yield from _in_test(each)
        case Not():
            yield from _in_test(test.test)
        case Found():
            yield from queries(test.query)
        case Matches(left, right) | Comparison(_, left, right):
            yield from _in_operand(left)
            yield from _in_operand(right)


def _in_operand(operand: Operand) -> Iterator[Query]:
    match operand:
        case Query():
            yield from queries(operand)
        case Count(query) | Only(query):
            yield from queries(query)
        case Length(inner):
            yield from _in_operand(inner)
