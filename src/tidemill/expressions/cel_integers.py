"""Integers that CEL has no room for: it knows 64 bits, and JSON knows no end.

The library converts all of a value before it looks at any of it, so one such integer would fail conditions that never
ask for it. It is put aside instead: what stands in for it is equal to the same integer and to nothing else, and no
operator takes it. That is done when the library has refused a value, so all others pay nothing for it.
"""

from __future__ import annotations

from tidemill.expressions.scope import Json
from tidemill.expressions.wording import place

LARGEST = (1 << 64) - 1
SMALLEST = -(1 << 63)
HINT = "integers in conditions have 64 bits: compare it in a jsonpath condition"

_ASIDE = "an integer of more than 64 bits"


def oversized(data: Json, where: str = "") -> str | None:
    """Name the first place that holds an integer without room in CEL; nesting is limited before."""
    if type(data) is int:
        return None if SMALLEST <= data <= LARGEST else where
    if isinstance(data, dict):
        places = ((place(where, key) if where else key, value) for key, value in data.items())
    elif isinstance(data, list):
        places = ((place(where, number), value) for number, value in enumerate(data))
    else:
        return None
    return next((found for at, value in places if (found := oversized(value, at)) is not None), None)


def put_aside(data: Json) -> Json:
    """Copy a value, with an object in the place of each such integer: CEL compares objects, and does nothing else."""
    if type(data) is int and not SMALLEST <= data <= LARGEST:
        return {_ASIDE: hex(data)}
    if isinstance(data, dict):
        return {key: put_aside(value) for key, value in data.items()}
    return [put_aside(each) for each in data] if isinstance(data, list) else data
