"""The operators of a JSONPath condition: from the values that were found to true or false.

A query that can find several values must say what is to be compared: their number, their sum, the smallest of
them, or the whole list. Nothing found is *nothing*: unequal to everything, in no list, empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tidemill.expressions.failure import condition_failed
from tidemill.expressions.jsonpath_tree import NOTHING, Nothing
from tidemill.expressions.relations import RELATIONS, contains, hopeless
from tidemill.expressions.scope import Json
from tidemill.expressions.wording import kind_of

_SIGNS = {"eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_AGGREGATES = ("count", "sum", "avg", "min", "max")
_AGGREGATING: Mapping[str, tuple[str, str]] = {
    f"{aggregate}_{ending}": (aggregate, sign) for aggregate in _AGGREGATES for ending, sign in _SIGNS.items()
}
"""Each aggregating operator, taken apart."""

PLAIN = (*RELATIONS, "exists", "empty")
OPERATORS = (*PLAIN, *_AGGREGATING)
ALIASES: Mapping[str, str] = {
    "=": "==",
    "===": "==",
    "eq": "==",
    "ne": "!=",
    "<>": "!=",
    "gt": ">",
    "lt": "<",
    "ge": ">=",
    "le": "<=",
    "gte": ">=",
    "lte": "<=",
    "not in": "not_in",
    "nin": "not_in",
    "has": "contains",
    "is_empty": "empty",
    **{aggregate: f"{aggregate}_gt" for aggregate in _AGGREGATES},
    **{f"{aggregate}_{end}te": f"{aggregate}_{end}e" for aggregate in _AGGREGATES for end in "gl"},
}
"""What other tools call an operator, for hints only."""

ASKING = frozenset({"exists", "empty"})
"""Operators that are true or false by themselves; their value may be left out, or turns them round."""

SHALLOW = ASKING | {operator for operator, (aggregate, _) in _AGGREGATING.items() if aggregate == "count"}
"""Operators that do not look into what a query for one value has found."""

_SEVERAL_HINT = "say what to compare: count_gt, sum_gt, min_gt, max_gt, contains, or == with a list"


def subject(operator: str, found: Sequence[Json], single: bool, value: Json) -> Json | Nothing:
    """Make what is compared of what was found; `single` if the query cannot find more than one value."""
    if operator == "exists":
        return bool(found)
    if operator == "empty":
        return not found or (single and is_empty(found[0]))
    if operator in _AGGREGATING:
        return _AGGREGATED[_AGGREGATING[operator][0]](_items(found, single))
    if not single and (operator == "contains" or (operator in ("==", "!=") and isinstance(value, list))):
        return list(found)
    if len(found) > 1:
        raise condition_failed(f"{operator} compares one value, and {len(found)} were found", _SEVERAL_HINT)
    return found[0] if found else NOTHING


def related(operator: str, left: Json | Nothing, value: Json) -> bool:
    """Answer an operator for the value that it compares; raise `ExpressionError` if the two do not go together."""
    if operator in ASKING:
        return left is value
    sign = _AGGREGATING[operator][1] if operator in _AGGREGATING else operator
    if left is NOTHING:
        return sign in ("!=", "not_in")
    if sign == "contains":
        return contains(left, value)
    return RELATIONS[sign](left, value)


def wrong_value(operator: str, value: Json) -> str | None:
    """Say why an operator can never compare something with this value; None if it may."""
    if operator in ASKING:
        return None if isinstance(value, bool) else f"the value of {operator} is true or false, not {kind_of(value)}"
    if operator in ("in", "not_in"):
        return None if isinstance(value, list) else f"the value of {operator} is a list, not {kind_of(value)}"
    if operator not in _AGGREGATING:
        return hopeless(operator, value, "right")
    textual = _AGGREGATING[operator][0] in ("min", "max")
    if _is_number(value) or (textual and isinstance(value, str)):
        return None
    kinds = "a number or a string" if textual else "a number"
    return f"the value of {operator} is {kinds}, not {kind_of(value)}"


def is_empty(value: Json) -> bool:
    """Tell whether a value is null, or a string, list or object with nothing in it."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def length(value: Json) -> int:
    """Give the length of a string, list or object."""
    if isinstance(value, str | list | dict):
        return len(value)
    raise condition_failed(f"{kind_of(value)} has no length", "a string, a list and an object have one")


def _items(found: Sequence[Json], single: bool) -> Sequence[Json]:
    return found[0] if single and found and isinstance(found[0], list) else found


def _sum(values: Sequence[Json]) -> Json:
    """Add numbers: integers exactly, and floats with one rounding at the end, so that their order is all the same."""
    _require("sum", values, _is_number)
    try:
        return sum(values) if all(isinstance(each, int) for each in values) else math.fsum(values)
    except (OverflowError, ValueError):
        raise condition_failed("the sum is too large for a number") from None


def _average(values: Sequence[Json]) -> Json | Nothing:
    _require("avg", values, _is_number)
    try:
        return _sum(values) / len(values) if values else NOTHING
    except OverflowError:
        raise condition_failed("the average is too large for a number") from None


def _smallest(values: Sequence[Json]) -> Json | Nothing:
    _require_order("min", values)
    return min(values) if values else NOTHING


def _largest(values: Sequence[Json]) -> Json | Nothing:
    _require_order("max", values)
    return max(values) if values else NOTHING


_AGGREGATED: Mapping[str, Callable[[Sequence[Json]], Json | Nothing]] = {
    "count": len,
    "sum": _sum,
    "avg": _average,
    "min": _smallest,
    "max": _largest,
}


def _require_order(aggregate: str, values: Sequence[Json]) -> None:
    textual = bool(values) and isinstance(values[0], str)
    _require(aggregate, values, _is_text if textual else _is_number)


def _require(aggregate: str, values: Sequence[Json], fits: Callable[[Json], bool]) -> None:
    for value in values:
        if not fits(value):
            kinds = "strings" if fits is _is_text else "numbers"
            message = f"{aggregate} takes {kinds}, and one of the {len(values)} values is {kind_of(value)}"
            raise condition_failed(message, "filter them out first: $.items[?@.price > 0].price")


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Json) -> bool:
    return isinstance(value, str)
