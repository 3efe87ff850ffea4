"""Groups of rows that have something in common, and what can be computed of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.expressions.wording import kind_of
from tidemill.handlers.tables import Row, Rows, Wrong, column, kind_for_order

Key = tuple[tuple[str, Any], ...]


class Aggregation(NamedTuple):
    """What is computed of a field of a group; without a field, of its rows."""

    function: str
    field: str | None = None


def aggregation(given: Any) -> Aggregation:
    """Read `count`, or `{sum: amount}`."""
    if isinstance(given, str):
        return Aggregation(given)
    ((function, field),) = given.items()
    return Aggregation(function, field)


def key_of(value: Any, field: str, row: int) -> tuple[str, Any]:
    """Give a value as a key: equal if and only if the JSON values are, so that true is not 1, but 1.0 is."""
    if value is None:
        return "null", None
    kind = kind_for_order(value)
    if kind is None:
        raise Wrong(f"{kind_of(value)} cannot be a key", field=field, row=row, hint="choose a field inside of it")
    return kind, value


def keys_of(rows: Rows, fields: Sequence[str]) -> list[Key]:
    """Give the key of every row."""
    keyed = [[key_of(value, field, number) for number, value in enumerate(column(rows, field))] for field in fields]
    return list(zip(*keyed, strict=True)) if rows else []


def group_rows(rows: Rows, by: Sequence[str], aggregations: Mapping[str, Aggregation]) -> Rows:
    """Give one row per group, in the order in which the groups first appear."""
    groups: dict[Key, list[int]] = {}
    for number, key in enumerate(keys_of(rows, by)):
        groups.setdefault(key, []).append(number)
    columns = {each.field: column(rows, each.field) for each in aggregations.values() if each.field is not None}
    return [
        _named(by, key) | {name: _aggregated(each, members, columns) for name, each in aggregations.items()}
        for key, members in groups.items()
    ]


def _named(by: Sequence[str], key: Key) -> Row:
    return {field: value for field, (_, value) in zip(by, key, strict=True)}


def _aggregated(each: Aggregation, members: list[int], columns: Mapping[str, list[Any]]) -> Any:
    if each.field is None:
        return len(members)
    values = columns[each.field]
    return FUNCTIONS[each.function]([(number, values[number]) for number in members], each.field)


_Found = list[tuple[int, Any]]
"""Values with the rows that they are from."""


def _present(found: _Found) -> _Found:
    return [(number, value) for number, value in found if value is not None]


def _numbers(found: _Found, field: str) -> list[Any]:
    present = _present(found)
    for number, value in present:
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = "count, first, last and list take anything"
            raise Wrong(f"{kind_of(value)} is no number", field=field, row=number, hint=hint)
    return [value for _, value in present]


def _total(values: list[Any], field: str) -> Any:
    """Add exactly: integers stay integers, and doubles are rounded once."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    return _finite(lambda: math.fsum(values), field)


def _finite(compute: Callable[[], float], field: str) -> float:
    try:
        value = compute()
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise Wrong("the result is too large for a number with a fraction", field=field)
    return value


def _sum(found: _Found, field: str) -> Any:
    return _total(_numbers(found, field), field)


def _average(found: _Found, field: str) -> Any:
    values = _numbers(found, field)
    return _finite(lambda: _total(values, field) / len(values), field) if values else None


def _extreme(choose: Callable[[Iterable[Any]], Any]) -> Callable[[_Found, str], Any]:
    def chosen(found: _Found, field: str) -> Any:
        present = _present(found)
        kinds = {kind_for_order(value): number for number, value in present}
        if None in kinds:
            raise Wrong("lists and objects have no order", field=field, row=kinds[None])
        if len(kinds) > 1:
            message = f"{' and '.join(sorted(map(str, kinds)))} cannot be compared"
            raise Wrong(message, field=field, row=max(kinds.values()))
        return choose(value for _, value in present) if present else None

    return chosen


FUNCTIONS: Mapping[str, Callable[[_Found, str], Any]] = {
    "count": lambda found, _: len(_present(found)),
    "sum": _sum,
    "avg": _average,
    "min": _extreme(min),
    "max": _extreme(max),
    "first": lambda found, _: found[0][1],
    "last": lambda found, _: found[-1][1],
    "list": lambda found, _: [value for _, value in found],
}
