"""Pure functions over tables of JSON rows: sort, select, extract, parse dates, group, join.

A table is a list of objects. Values are never converted: an integer of any size stays one, and values that cannot be
compared are refused with the row they are in. A field is a key or, where a row has no such key, a path into nested
objects: `address.city`. A field that a row lacks is null there; a field that no row has is a mistake (`TableError`).

Every function charges a `Meter` before it works and for every row that it makes, so that a result that is too large is
refused while it grows, and work ends when its caller has gone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from sys import getsizeof
from typing import Any, Final, Literal, NamedTuple

from tidemill.expressions.errors import ExpressionError, kind_of, listing, meant
from tidemill.expressions.templates.dates import fitting_forms, read_moment, readable_directives, write_moment
from tidemill.expressions.templates.regex import Match, Pattern, compile_pattern, work_of
from tidemill.handlers.data.meter import Meter, Row, Rows, TableError, text_size

Order = Literal["asc", "desc"]
Nulls = Literal["first", "last"]


class Absent:
    """The value of a field that a row lacks; null is a value."""


ABSENT: Final = Absent()


def table(value: Any) -> Rows:
    if not isinstance(value, list):
        hint = "name the list in it: {{ node.output.items }}"
        raise TableError(f"a table is a list of objects, and this is {kind_of(value)}", hint=hint)
    for number, row in enumerate(value):
        if not isinstance(row, dict):
            raise TableError(f"a row is an object, and this is {kind_of(row)}", row=number)
    return value


def read(row: Row, field: str) -> Any:
    """The field of a row; `ABSENT` if it lacks it."""
    if field in row:
        return row[field]
    value: Any = row
    for key in field.split("."):
        if not isinstance(value, dict) or key not in value:
            return ABSENT
        value = value[key]
    return value


def present(row: Row, field: str) -> Any:
    """The field of a row, null if it lacks it."""
    value = read(row, field)
    return None if value is ABSENT else value


def column(rows: Rows, field: str, meter: Meter) -> list[Any]:
    """The field of every row, null where a row lacks it; raises `TableError` if all of them do."""
    check_field(rows, field, meter)
    meter.work(len(rows))
    return [present(row, field) for row in rows]


def check_field(rows: Rows, field: str, meter: Meter) -> None:
    """Refuse a field that no row has."""
    for number, row in enumerate(rows):
        if read(row, field) is not ABSENT:
            return
        if number % 100 == 0:
            meter.work(100)
    if rows:
        known = columns(rows, meter)
        hint = meant(field, known) or f"fields: {listing(known)}"
        raise TableError("no row has such a field", field=field, hint=hint)


def columns(rows: Rows, meter: Meter) -> list[str]:
    meter.work(sum(map(len, rows)))
    return list(dict.fromkeys(key for row in rows for key in row))


# Sort and select.


class SortKey(NamedTuple):
    field: str
    order: Order = "asc"
    nulls: Nulls = "last"


def sort_keys(field: Any, order: Order, nulls: Nulls) -> list[SortKey]:
    """Parse what to sort by: one field or several, each a name or an object with its own order."""
    given = field if isinstance(field, list) else [field]
    keys: list[Any] = [{"field": each} if isinstance(each, str) else each for each in given]
    return [SortKey(each["field"], each.get("order", order), each.get("nulls", nulls)) for each in keys]


def sort_rows(rows: Rows, keys: Sequence[SortKey], meter: Meter) -> Rows:
    """Stable sort by several fields, the most significant first."""
    for key in reversed(keys):
        values = column(rows, key.field, meter)
        meter.work(4 * len(values))
        _check_comparable(values, key.field)
        known = [number for number, value in enumerate(values) if value is not None]
        absent = [number for number, value in enumerate(values) if value is None]
        known = _sorted(known, values, meter, reverse=key.order == "desc")
        rows = [rows[number] for number in (absent + known if key.nulls == "first" else known + absent)]
    return rows


_SORTED_AT_ONCE = 10_000
"""Sorting holds the interpreter's lock, so more items are sorted in parts that are merged."""


def _sorted(numbers: list[int], values: list[Any], meter: Meter, *, reverse: bool) -> list[int]:
    by = values.__getitem__
    parts = []
    for start in range(0, len(numbers), _SORTED_AT_ONCE):
        meter.work(_SORTED_AT_ONCE)
        parts.append(sorted(numbers[start : start + _SORTED_AT_ONCE], key=by, reverse=reverse))
    if len(parts) < 2:
        return parts[0] if parts else []
    merged: list[int] = []
    for number in heapq.merge(*parts, key=by, reverse=reverse):
        meter.work(10)
        merged.append(number)
    return merged


def first_rows(rows: Rows, k: int, keys: Sequence[SortKey] = (), *, meter: Meter) -> Rows:
    return sort_rows(rows, keys, meter)[:k]


def select_fields(rows: Rows, fields: Sequence[str] | Mapping[str, str], meter: Meter) -> Rows:
    """Keep some fields, in the given order; a mapping is from new names to fields."""
    named = dict(fields) if isinstance(fields, Mapping) else {field: field for field in fields}
    for field in dict.fromkeys(named.values()):
        check_field(rows, field, meter)
    made: Rows = []
    taken = [(name, text_size(name), field) for name, field in named.items()]
    for row in rows:
        kept: Row = {}
        for name, length, field in taken:
            kept[name] = value = present(row, field)
            meter.entry(length, value)
        meter.entries(kept)
        made.append(kept)
    return made


def drop_fields(rows: Rows, fields: Sequence[str], meter: Meter) -> Rows:
    """Leave some fields out; these are keys, not paths."""
    dropped = set(fields)
    made: Rows = []
    for row in rows:
        meter.work(len(row))
        made.append({key: value for key, value in row.items() if key not in dropped})
        meter.row(made[-1])
    return made


def kind_for_order(value: Any) -> str | None:
    """The kind of values that a value can be compared with; None if it has no order."""
    return kind_of(value) if isinstance(value, int | float | str) else None


def _check_comparable(values: list[Any], field: str) -> None:
    """Refuse values that cannot be compared with each other; null is placed separately."""
    expected: tuple[str, int] | None = None
    for number, value in enumerate(values):
        if value is None:
            continue
        kind = kind_for_order(value)
        if kind is None:
            hint = "choose a field inside of it"
            raise TableError(f"{kind_of(value)} cannot be sorted", field=field, row=number, hint=hint)
        if expected is None:
            expected = kind, number
        elif kind != expected[0]:
            message = f"{kind} cannot be compared with {expected[0]}, as row {expected[1]} has it"
            raise TableError(message, field=field, row=number, hint="filter or convert the values first")


# Patterns and dates.

WORK_MAX = 1 << 31
"""Cost limit of a pattern over all rows, in the units of `work_of`: at worst a quarter of a minute."""

Otherwise = Literal["null", "drop", "fail"]
"""For a row without a match: its new fields are null, it is left out, or the step fails."""


class Extract(NamedTuple):
    """Options of `regex_extract`."""

    field: str
    pattern: str
    into: str | None = None
    every: bool = False
    """A list of all matches instead of the first."""
    otherwise: Otherwise = "null"


class Dates(NamedTuple):
    """Options of `parse_date`."""

    field: str
    formats: Sequence[str] = ()
    zone: str = "UTC"
    output: str = "iso"
    output_zone: str | None = None
    into: str | None = None
    otherwise: Otherwise = "fail"


def extract(rows: Rows, wanted: Extract, meter: Meter) -> Rows:
    """Add a field for each named group, or else one for the first group or the whole match."""
    pattern = compile_pattern(wanted.pattern)
    shape = _shape(pattern, wanted, meter)
    budget = WORK_MAX
    made: Rows = []
    for number, (row, text) in enumerate(zip(rows, column(rows, wanted.field, meter), strict=True)):
        matches: Iterator[Match] = iter(())
        if isinstance(text, str):
            work = _work(pattern, text, wanted.field, number)
            budget -= work
            if budget < 0:
                raise TableError("the pattern is too complex for so much text", field=wanted.field, row=number)
            meter.work(10 + (work >> 5))
            matches = _matches(pattern, text, meter)
        elif text is not None:
            raise TableError(f"a pattern is for strings, and this is {kind_of(text)}", field=wanted.field, row=number)
        first = next(matches, None)
        if first is None and wanted.otherwise == "fail":
            hint = "otherwise: null, or drop"
            raise TableError("the pattern does not match", field=wanted.field, row=number, hint=hint)
        if first is not None or wanted.otherwise == "null":
            made.append(row | shape(first, matches))
            meter.row(made[-1])
    return made


def _matches(pattern: Pattern, text: str, meter: Meter) -> Iterator[Match]:
    for match in pattern.finditer(text):
        meter.work(5)
        # A match takes more memory than its shortest form as JSON: the bytes of "",.
        meter.expect(3)
        yield match


def _work(pattern: Pattern, text: str, field: str, row: int) -> int:
    try:
        return work_of(pattern, text)
    except ExpressionError as failure:
        raise TableError(failure.message, field=field, row=row, hint=failure.hint) from None


def _shape(pattern: Pattern, wanted: Extract, meter: Meter) -> Callable[[Match | None, Iterator[Match]], Row]:
    """A function from the first match in a row and the others to the new fields. No more than one match is kept."""
    names = sorted(pattern.groupindex, key=pattern.groupindex.__getitem__)
    into = wanted.into or wanted.field
    group = 1 if pattern.groups else 0

    def taken(match: Match | None, group: str | int) -> str | None:
        text = None if match is None else match.group(group)
        meter.expect(len(text or ""))
        meter.hold(getsizeof(text))
        return text

    def named(match: Match | None) -> Row:
        found = {name: taken(match, name) for name in names}
        meter.hold(getsizeof(found))
        return found

    if wanted.every:
        value = named if names else partial(taken, group=group)
        return lambda first, others: {into: [] if first is None else [value(each) for each in chain((first,), others)]}
    return lambda first, _: named(first) if names else {into: taken(first, group)}


def parse_dates(rows: Rows, wanted: Dates, meter: Meter) -> Rows:
    """Rewrite the dates of a field; null stays null."""
    into = wanted.into or wanted.field
    made: Rows = []
    for number, (row, value) in enumerate(zip(rows, column(rows, wanted.field, meter), strict=True)):
        meter.work(50 * (1 + len(wanted.formats)))
        try:
            moment = None if value is None else read_moment(value, wanted.formats, wanted.zone)
            made.append(row | {into: None if moment is None else written(moment, wanted)})
        except ExpressionError as failure:
            if wanted.otherwise == "fail":
                raise TableError(failure.message, field=wanted.field, row=number, hint=_date_hint(value)) from None
            if wanted.otherwise == "drop":
                continue
            made.append(row | {into: None})
        meter.row(made[-1])
    return made


def _date_hint(value: Any) -> str:
    """Name a format that fits, or what formats are made of."""
    fitting = " or ".join(f'"{form}"' for form in fitting_forms(value)) if isinstance(value, str) else ""
    if fitting:
        return f"format: {fitting} would fit; several formats are a list"
    return f"a format such as %d.%m.%Y is made of {readable_directives()}; otherwise: null or drop passes over it"


def written(moment: datetime, wanted: Dates) -> Any:
    """A time in the wanted form: one of `OUTPUT_WORDS`, or a format."""
    if wanted.output == "timestamp":
        seconds = moment.timestamp()
        return int(seconds) if seconds.is_integer() else seconds
    if wanted.output == "timestamp_ms":
        return round(moment.timestamp() * 1000)
    form = {"iso": None, "date": "%Y-%m-%d"}.get(wanted.output, wanted.output)
    return write_moment(moment, form, wanted.output_zone)


OUTPUT_WORDS = ("iso", "date", "timestamp", "timestamp_ms")


# Group.

Key = tuple[tuple[str, Any], ...]


class Aggregation(NamedTuple):
    """A function over a field of a group; without a field, the number of rows."""

    function: str
    field: str | None = None


def aggregation(given: Any) -> Aggregation:
    """Parse `count` or `{sum: amount}`."""
    if isinstance(given, str):
        return Aggregation(given)
    ((function, field),) = given.items()
    return Aggregation(function, field)


_HASHED_MAX = 1 << 60
"""Larger integers are keys by their text: Python hashes them modulo 2^61-1, so that data could choose equal hashes."""


def key_of(value: Any, field: str, row: int) -> tuple[str, Any]:
    """A value as a key: equal if and only if the JSON values are, so true is not 1, but 1.0 is."""
    if value is None:
        return "null", None
    kind = kind_for_order(value)
    if kind is None:
        raise TableError(f"{kind_of(value)} cannot be a key", field=field, row=row, hint="choose a field inside of it")
    if type(value) is float:
        value = int(value) if value.is_integer() else repr(value)
    if type(value) is int and not -_HASHED_MAX < value < _HASHED_MAX:
        value = hex(value)
    return kind, value


def keys_of(rows: Rows, fields: Sequence[str], meter: Meter) -> Iterator[Key]:
    for field in fields:
        check_field(rows, field, meter)
    for number, row in enumerate(rows):
        meter.work(4 * len(fields))
        yield tuple([key_of(present(row, field), field, number) for field in fields])


_KEY_BYTES = 160
"""Memory of a part of a key, with its share of the group."""


def group_rows(rows: Rows, by: Sequence[str], aggregations: Mapping[str, Aggregation], meter: Meter) -> Rows:
    """One row per group, in order of first appearance."""
    groups: dict[Key, list[int]] = {}
    for number, key in enumerate(keys_of(rows, by, meter)):
        if key not in groups:
            meter.hold(_KEY_BYTES * len(key))
        groups.setdefault(key, []).append(number)
    values: dict[str, list[Any]] = {}
    for each in aggregations.values():
        if each.field is not None and each.field not in values:
            meter.hold(8 * len(rows))
            values[each.field] = column(rows, each.field, meter)
    made: Rows = []
    for members in groups.values():
        row: Row = {}
        for field in by:
            row[field] = present(rows[members[0]], field)
            meter.entry(text_size(field), row[field])
        for name, each in aggregations.items():
            meter.work(2 * len(members))
            row[name] = _aggregate(each, members, values)
            meter.entry(text_size(name), row[name])
        meter.entries(row)
        made.append(row)
    return made


def _aggregate(each: Aggregation, members: list[int], columns: Mapping[str, list[Any]]) -> Any:
    if each.field is None:
        return len(members)
    values = columns[each.field]
    return FUNCTIONS[each.function]([(number, values[number]) for number in members], each.field)


_Found = list[tuple[int, Any]]
"""Row numbers and values."""


def _present(found: _Found) -> _Found:
    return [(number, value) for number, value in found if value is not None]


def _numbers(found: _Found, field: str) -> list[Any]:
    present = _present(found)
    for number, value in present:
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = "count, first, last and list take anything"
            raise TableError(f"{kind_of(value)} is not a number", field=field, row=number, hint=hint)
    return [value for _, value in present]


def _total(values: list[Any], field: str) -> Any:
    """An exact sum: integers stay integers, and doubles are rounded once."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    return _finite(lambda: math.fsum(values), field)


def _finite(compute: Callable[[], float], field: str) -> float:
    try:
        value = compute()
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise TableError("the result is too large for a number with a fraction", field=field)
    return value


def _average(found: _Found, field: str) -> Any:
    values = _numbers(found, field)
    return _finite(lambda: _total(values, field) / len(values), field) if values else None


def _extreme(choose: Callable[[Iterable[Any]], Any]) -> Callable[[_Found, str], Any]:
    def chosen(found: _Found, field: str) -> Any:
        present = _present(found)
        kinds = {kind_for_order(value): number for number, value in present}
        if None in kinds:
            raise TableError("lists and objects have no order", field=field, row=kinds[None])
        if len(kinds) > 1:
            message = f"{' and '.join(sorted(map(str, kinds)))} cannot be compared"
            raise TableError(message, field=field, row=max(kinds.values()))
        return choose(value for _, value in present) if present else None

    return chosen


FUNCTIONS: Mapping[str, Callable[[_Found, str], Any]] = {
    "count": lambda found, _: len(_present(found)),
    "sum": lambda found, field: _total(_numbers(found, field), field),
    "avg": _average,
    "min": _extreme(min),
    "max": _extreme(max),
    "first": lambda found, _: found[0][1],
    "last": lambda found, _: found[-1][1],
    "list": lambda found, _: [value for _, value in found],
}


# Join.

SUFFIX = "_right"
How = Literal["inner", "left", "right", "full"]


class Join(NamedTuple):
    left_on: Sequence[str]
    right_on: Sequence[str]
    how: How = "inner"
    suffix: str = SUFFIX
    """Appended to the name of a field of the right table that the left table has too."""


def join_rows(left: Rows, right: Rows, join: Join, rows_max: int, meter: Meter) -> Rows:
    """Join two tables: matches in the order of the left one, then rows of the right one. Null matches nothing."""
    joined: Rows = []
    for row in _joined(left, right, join, meter):
        if len(joined) == rows_max:
            hint = "the fields of a join should tell the rows of one of the tables apart"
            raise TableError(f"the result has more than {rows_max} rows", field=", ".join(join.left_on), hint=hint)
        joined.append(row)
        meter.row(row)
    return joined


def _joined(left: Rows, right: Rows, join: Join, meter: Meter) -> Iterator[Row]:
    names, left_names = _names(left, right, join, meter), columns(left, meter)
    partners: dict[Key, list[int]] = {}
    for number, key in enumerate(keys_of(right, join.right_on, meter)):
        if not _is_empty(key):
            if key not in partners:
                meter.hold(_KEY_BYTES * len(key))
            partners.setdefault(key, []).append(number)
    unmatched = set(range(len(right)))
    nothing = dict.fromkeys(names.values())
    for row, key in zip(left, keys_of(left, join.left_on, meter), strict=True):
        found = partners.get(key, ()) if not _is_empty(key) else ()
        for number in found:
            meter.work(len(names))
            unmatched.discard(number)
            yield row | nothing | {name: right[number].get(field) for field, name in names.items()}
        if not found and join.how in ("left", "full"):
            yield row | nothing
    both = [here for here, there in zip(join.left_on, join.right_on, strict=True) if here == there]
    for row in [right[number] for number in sorted(unmatched)] if join.how in ("right", "full") else ():
        # The fields that both tables are joined by have the values of the right one.
        meter.work(len(names))
        shared = {field: present(row, field) for field in both}
        yield dict.fromkeys(left_names) | shared | {name: row.get(field) for field, name in names.items()}


def _is_empty(key: Key) -> bool:
    return any(value is None for _, value in key)


def _names(left: Rows, right: Rows, join: Join, meter: Meter) -> dict[str, str]:
    """Names in the result of the fields of the right table, without those that both tables are joined by."""
    shared = {there for here, there in zip(join.left_on, join.right_on, strict=True) if here == there}
    taken = set(columns(left, meter))
    names: dict[str, str] = {}
    given: set[str] = set()
    for field in columns(right, meter):
        if field in shared:
            continue
        name = field + join.suffix if field in taken else field
        if name in taken or name in given:
            hint = "choose another suffix, or select and rename fields before"
            raise TableError(f"two fields of the result would be called {name}", field=field, hint=hint)
        given.add(name)
        names[field] = name
    return names
