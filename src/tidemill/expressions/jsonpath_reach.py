"""What a JSONPath query can touch and what it can cost, known without evaluating it."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.expressions import jsonpath_tree as tree
from tidemill.expressions.iregexp import is_plain

LIGHT_TEXT_MAX = 512
"""Characters of a query that is decided at once; every term of a longer one may be asked for every value."""

REPEATS_MAX = 4
"""How often a light query may find the same value: `[*, *]` finds all twice, and twice that in the next step."""


def queries(query: tree.Query) -> Iterator[tree.Query]:
    """Give a query and all those inside of its filters."""
    yield query
    for segment in query.segments:
        for selector in segment.selectors:
            if isinstance(selector, tree.Filter):
                yield from _in_test(selector.test)


def is_light(query: tree.Query, text: str) -> bool:
    """Tell whether a query asks each of few values only a few times, and nothing that takes long."""
    if query.keys is not None:
        return True
    if len(text) > LIGHT_TEXT_MAX or sum(segment.descendant for segment in query.segments) > 1:
        return False
    repeats = 1
    for segment in query.segments:
        repeats *= _repeats(segment)
    tests = (each.test for segment in query.segments for each in segment.selectors if isinstance(each, tree.Filter))
    return repeats <= REPEATS_MAX and all(_is_light_test(test) for test in tests)


def _repeats(segment: tree.Segment) -> int:
    names = {selector for selector in segment.selectors if isinstance(selector, tree.Name)}
    return 1 if len(names) == len(segment.selectors) else len(segment.selectors)


def _is_light_test(test: tree.Test) -> bool:
    match test:
        case tree.Joined():
            return all(_is_light_test(each) for each in test.tests)
        case tree.Not():
            return _is_light_test(test.test)
        case tree.Found():
            return test.query.keys is not None
        case tree.Matches(text, pattern):
            plain = isinstance(pattern, tree.Constant) and is_plain(str(pattern.content))
            return plain and _is_light_operand(text) and not _is_far(text)
        case tree.Comparison(_, left, right):
            # Two values of the document's own, compared once for every other value, are its size squared.
            return _is_light_operand(left) and _is_light_operand(right) and not (_is_far(left) and _is_far(right))


def _is_light_operand(operand: tree.Operand) -> bool:
    match operand:
        case tree.Query(keys=keys) | tree.Count(tree.Query(keys=keys)) | tree.Only(tree.Query(keys=keys)):
            return keys is not None
        case tree.Length(inner):
            return _is_light_operand(inner)
    return True


def _is_far(operand: tree.Operand) -> bool:
    """Tell whether an operand is the same for all values: looked up from the root."""
    match operand:
        case tree.Query():
            return operand.absolute
        case tree.Only(query):
            return query.absolute
    return False


def _in_test(test: tree.Test) -> Iterator[tree.Query]:
    match test:
        case tree.Joined():
            for each in test.tests:
                yield from _in_test(each)
        case tree.Not():
            yield from _in_test(test.test)
        case tree.Found():
            yield from queries(test.query)
        case tree.Matches(left, right) | tree.Comparison(_, left, right):
            yield from _in_operand(left)
            yield from _in_operand(right)


def _in_operand(operand: tree.Operand) -> Iterator[tree.Query]:
    match operand:
        case tree.Query():
            yield from queries(operand)
        case tree.Count(query) | tree.Only(query):
            yield from queries(query)
        case tree.Length(inner):
            yield from _in_operand(inner)
