"""Tables of JSON rows: how a field is read, and sorting, selecting and taking the first of them.

A table is a list of objects. Nothing is converted on the way: an integer stays one, whatever its size, and values
that cannot be compared are refused, with the row in which they were found. A field is a key, or, where a row has no
such key, a way into nested objects: `address.city`. A field that a row does not have counts as null there; one that
no row has is a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from tidemill.expressions.wording import kind_of, listing, meant

Row = dict[str, Any]
Rows = list[Row]
Order = Literal["asc", "desc"]
Nulls = Literal["first", "last"]


class Wrong(Exception):
    """A step cannot be carried out: what is wrong, in which field and row, and what to do."""

    def __init__(self, message: str, *, field: str = "", row: int | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.row = row
        self.hint = hint


class Absent:
    """What a row has in place of a field that it lacks; null is a value."""


ABSENT: Final = Absent()


def table(value: Any) -> Rows:
    """Take a value as a table; raise `Wrong` where it is none."""
    if not isinstance(value, list):
        hint = "name the list in it: {{ node.output.items }}"
        raise Wrong(f"a table is a list of objects, and this is {kind_of(value)}", hint=hint)
    for number, row in enumerate(value):
        if not isinstance(row, dict):
            raise Wrong(f"a row is an object, and this is {kind_of(row)}", row=number)
    return value


def read(row: Row, field: str) -> Any:
    """Give a field of a row, `ABSENT` if there is none."""
    if field in row:
        return row[field]
    value: Any = row
    for key in field.split("."):
        if not isinstance(value, dict) or key not in value:
            return ABSENT
        value = value[key]
    return value


def column(rows: Rows, field: str) -> list[Any]:
    """Give a field of every row, null where a row lacks it; raise `Wrong` if all of them do."""
    values = [read(row, field) for row in rows]
    if rows and all(value is ABSENT for value in values):
        known = columns(rows)
        hint = meant(field, known) or f"fields: {listing(known)}"
        raise Wrong("no row has such a field", field=field, hint=hint)
    return [None if value is ABSENT else value for value in values]


def columns(rows: Rows) -> list[str]:
    """Give the keys of all rows, in the order in which they first appear."""
    known: dict[str, None] = {}
    for row in rows:
        known.update(dict.fromkeys(row))
    return list(known)


class SortKey(NamedTuple):
    """One field to sort by."""

    field: str
    order: Order = "asc"
    nulls: Nulls = "last"


def sort_keys(field: Any, order: Order, nulls: Nulls) -> list[SortKey]:
    """Read what to sort by: one field or several, each a name or an object with an order of its own."""
    given = field if isinstance(field, list) else [field]
    return [
        SortKey(each, order, nulls)
        if isinstance(each, str)
        else SortKey(each["field"], each.get("order", order), each.get("nulls", nulls))
        for each in given
    ]


def sort_rows(rows: Rows, keys: Sequence[SortKey]) -> Rows:
    """Sort by several fields, the first of which decides first; equal rows keep their order."""
    for key in reversed(keys):
        values = column(rows, key.field)
        _comparable(values, key.field)
        present = [number for number, value in enumerate(values) if value is not None]
        absent = [number for number, value in enumerate(values) if value is None]
        present.sort(key=values.__getitem__, reverse=key.order == "desc")
        rows = [rows[number] for number in (absent + present if key.nulls == "first" else present + absent)]
    return rows


def first_rows(rows: Rows, k: int, keys: Sequence[SortKey] = ()) -> Rows:
    """Take the first rows, after sorting them if there is something to sort by."""
    return sort_rows(rows, keys)[:k]


def select_fields(rows: Rows, fields: Sequence[str] | Mapping[str, str]) -> Rows:
    """Keep some fields, in the given order; a mapping gives each the name on its left."""
    named = dict(fields) if isinstance(fields, Mapping) else {field: field for field in fields}
    taken = {name: column(rows, field) for name, field in named.items()}
    return [{name: values[number] for name, values in taken.items()} for number in range(len(rows))]


def drop_fields(rows: Rows, fields: Sequence[str]) -> Rows:
    """Leave some fields out; they are keys, not ways into nested objects."""
    gone = set(fields)
    return [{key: value for key, value in row.items() if key not in gone} for row in rows]


def kind_for_order(value: Any) -> str | None:
    """Name the kind of values that a value can be compared with; nothing if it has no order."""
    return kind_of(value) if isinstance(value, int | float | str) else None


def _comparable(values: list[Any], field: str) -> None:
    """Refuse values that have no order among each other; null has its own place."""
    expected: tuple[str, int] | None = None
    for number, value in enumerate(values):
        if value is None:
            continue
        kind = kind_for_order(value)
        if kind is None:
            hint = "choose a field inside of it"
            raise Wrong(f"{kind_of(value)} cannot be put in order", field=field, row=number, hint=hint)
        if expected is None:
            expected = kind, number
        elif kind != expected[0]:
            message = f"{kind} cannot be compared with {expected[0]}, as row {expected[1]} has it"
            raise Wrong(message, field=field, row=number, hint="filter or convert the values first")
