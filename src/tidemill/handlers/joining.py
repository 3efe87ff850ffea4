"""Two tables joined by what their rows have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from tidemill.handlers.grouping import Key, keys_of
from tidemill.handlers.tables import ABSENT, Row, Rows, Wrong, columns, read

SUFFIX = "_right"
How = Literal["inner", "left", "right", "full"]


class Join(NamedTuple):
    """Which fields must be equal, and what becomes of rows without a partner."""

    left_on: Sequence[str]
    right_on: Sequence[str]
    how: How = "inner"
    suffix: str = SUFFIX
    """What is added to the name of a field of the right table that the left one has as well."""


def join_rows(left: Rows, right: Rows, join: Join, rows_max: int) -> Rows:
    """Join two tables: partners in the order of the left table, then what only the right one has.

    Null has no partner, not even another null. Raises `Wrong` beyond so many rows.
    """
    joined: Rows = []
    for row in _joined(left, right, join):
        if len(joined) == rows_max:
            hint = "the fields of a join should tell the rows of one of the tables apart"
            raise Wrong(f"the result has more than {rows_max} rows", field=", ".join(join.left_on), hint=hint)
        joined.append(row)
    return joined


def _joined(left: Rows, right: Rows, join: Join) -> Iterator[Row]:
    names, left_names = _names(left, right, join), columns(left)
    partners: dict[Key, list[int]] = {}
    for number, key in enumerate(keys_of(right, join.right_on)):
        if not _is_empty(key):
            partners.setdefault(key, []).append(number)
    lonely = set(range(len(right)))
    nothing = dict.fromkeys(names.values())
    for row, key in zip(left, keys_of(left, join.left_on), strict=True):
        found = partners.get(key, ()) if not _is_empty(key) else ()
        for number in found:
            lonely.discard(number)
            yield row | nothing | {name: right[number].get(field) for field, name in names.items()}
        if not found and join.how in ("left", "full"):
            yield row | nothing
    if join.how in ("right", "full"):
        for number in sorted(lonely):
            yield _alone(right[number], left_names, names, join)


def _is_empty(key: Key) -> bool:
    return any(value is None for _, value in key)


def _names(left: Rows, right: Rows, join: Join) -> dict[str, str]:
    """Give the fields of the right table the names that they have in the result.

    A field that both tables are joined by is there once.
    """
    shared = {there for here, there in zip(join.left_on, join.right_on, strict=True) if here == there}
    taken = set(columns(left))
    names: dict[str, str] = {}
    for field in columns(right):
        if field in shared:
            continue
        name = field + join.suffix if field in taken else field
        if name in taken or name in names.values():
            hint = "choose another suffix, or select and rename fields before"
            raise Wrong(f"two fields of the result would be called {name}", field=field, hint=hint)
        names[field] = name
    return names


def _alone(row: Row, left_names: list[str], names: dict[str, str], join: Join) -> Row:
    """Give a row of the right table without a partner: what it is joined by stands where the left one has it."""
    whole: dict[str, Any] = dict.fromkeys(left_names)
    for here, there in zip(join.left_on, join.right_on, strict=True):
        if here == there:
            found = read(row, there)
            whole[here] = None if found is ABSENT else found
    return whole | {name: row.get(field) for field, name in names.items()}
