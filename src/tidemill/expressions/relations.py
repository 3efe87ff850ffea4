"""What `==`, `<`, `in` and `contains` mean between JSON values, for every kind of condition outside of CEL.

Equality is that of JSON and strict: true is not 1, the string "1" is not the number, 1 is 1.0, and lists and
objects are compared all the way down. Order exists between two numbers and between two strings only; any other
pair has no answer, and the failure names the kinds of the two values and never the values themselves.
"""

from __future__ import annotations

import operator as op
from collections.abc import Callable, Mapping
from typing import Literal

from tidemill.expressions.failure import condition_failed
from tidemill.expressions.scope import Json
from tidemill.expressions.wording import kind_of

Relation = Callable[[Json, Json], bool]

_ORDERS: Mapping[str, Relation] = {">": op.gt, "<": op.lt, ">=": op.ge, "<=": op.le}
_HOLDING_SIDE = {"in": "right", "not_in": "right", "contains": "left"}

ORDER_HINT = "numbers are compared with numbers, and strings with strings"
HOLDER_HINT = "a list contains items, an object contains keys, and a string contains strings"


def equal(left: Json, right: Json) -> bool:
    """Tell whether two JSON values are the same, without recursion, so that no depth of nesting hurts."""
    waiting = [(left, right)]
    while waiting:
        a, b = waiting.pop()
        kind = type(a)
        if kind is dict:
            if type(b) is not dict or a.keys() != b.keys():
                return False
            waiting.extend((a[key], b[key]) for key in a)
        elif kind is list:
            if type(b) is not list or len(a) != len(b):
                return False
            waiting.extend(zip(a, b, strict=True))
        elif kind is bool or type(b) is bool:
            if a is not b:
                return False
        elif a != b:
            return False
    return True


def ordered(operator: str, left: Json, right: Json) -> bool:
    """Answer one of `>`, `<`, `>=`, `<=`; raise `ExpressionError` where there is no order."""
    if (_is_number(left) and _is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
        return _ORDERS[operator](left, right)
    raise condition_failed(f"{operator} does not compare {kind_of(left)} with {kind_of(right)}", ORDER_HINT)


def contains(holder: Json, item: Json) -> bool:
    """Tell whether a list has an item, an object a key or a string a part; raise `ExpressionError` otherwise."""
    if isinstance(holder, list):
        return any(equal(each, item) for each in holder)
    if isinstance(item, str) and isinstance(holder, str | dict):
        return item in holder
    raise condition_failed(f"{kind_of(holder)} cannot contain {kind_of(item)}", HOLDER_HINT)


def hopeless(operator: str, value: Json, side: Literal["left", "right"]) -> str | None:
    """Say why a value on that side of an operator has no answer, whatever the other one is; None if it may have."""
    if operator in _ORDERS and not (_is_number(value) or isinstance(value, str)):
        return f"{operator} does not compare {kind_of(value)} with anything"
    if _HOLDING_SIDE.get(operator) == side and not isinstance(value, list | str | dict):
        return f"{kind_of(value)} cannot contain anything"
    return None


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


RELATIONS: Mapping[str, Relation] = {
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    ">": lambda left, right: ordered(">", left, right),
    "<": lambda left, right: ordered("<", left, right),
    ">=": lambda left, right: ordered(">=", left, right),
    "<=": lambda left, right: ordered("<=", left, right),
    "in": lambda left, right: contains(right, left),
    "not_in": lambda left, right: not contains(right, left),
    "contains": contains,
}
"""Every operator between two values, as a function that answers or raises `ExpressionError`."""
