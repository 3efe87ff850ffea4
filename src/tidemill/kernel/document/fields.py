"""Readers of single fields: each takes what the author wrote and gives its normal form, or records why not.

A reader has the signature `(place, key, value)` and answers None when it refused the value, so that reading goes
on as if the key were absent. A table of readers describes a mapping; keys outside the table are problems with
the nearest known key as a hint. Nothing here knows what a field is for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tidemill.kernel.document.findings import Place, escaped, shown
from tidemill.kernel.model import Json

Reader = Callable[[Place, str, Json], Json]


class Table:
    """The keys of a mapping: spelling to (name in the normal form, reader), in the order of the normal form."""

    __slots__ = ("entries", "order")

    def __init__(self, entries: Mapping[str, tuple[str, Reader]]) -> None:
        self.order = tuple(dict.fromkeys(name for name, _ in entries.values()))
        rank = {name: rank for rank, name in enumerate(self.order)}
        self.entries = {key: (name, reader, rank[name]) for key, (name, reader) in entries.items()}


NAME_LENGTH_MAX = 128
SECONDS_MAX = 10 * 366 * 24 * 3600
COUNT_MAX = 10**12

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
}


def kind(value: Json) -> str:
    """A value's type in the words of a document's author."""
    return _KINDS.get(type(value), "null" if value is None else f"a {type(value).__name__}")


def wrong_type(place: Place, key: str, value: Json, wanted: str, hint: str = "") -> None:
    what = f"`{shown(key)}` must be" if key else "must be"
    place.problem("wrong_type", key, f"{what} {wanted}, not {kind(value)}", hint)


def read_table(place: Place, raw: Mapping[str, Json], table: Table) -> dict[str, Json]:
    """Read a mapping by a table; null is the same as absent, and the result is in the table's order."""
    read: dict[str, Json] = {}
    entries = table.entries
    last, ordered = -1, True
    for key, value in raw.items():
        entry = entries.get(key)
        if entry is None:
            unknown_key(place, key, table)
            continue
        if value is None:
            continue
        name, reader, rank = entry
        if name in read:
            place.problem("conflicting_keys", key, f"`{key}` says again what another key has said", f"keep `{name}`")
            continue
        result = reader(place, key, value)
        if result is not None:
            read[name] = result
            ordered = ordered and rank > last
            last = rank
    return read if ordered else {name: read[name] for name in table.order if name in read}


def unknown_key(place: Place, key: str, table: Table) -> None:
    hint = place.found.nearest(key, table.entries) or f"known keys: {', '.join(table.order)}"
    place.problem("unknown_key", escaped(key), f"unknown key `{shown(key)}`", hint)


def require(place: Place, read: Mapping[str, Json], raw: Mapping[str, Json], *keys: str) -> None:
    """Record the keys that are missing; one that was given but refused has had its problem already."""
    for key in keys:
        if key not in read and raw.get(key) is None:
            place.problem("missing_key", "", f"`{key}` is missing")


def table_of(**readers: Reader) -> Table:
    """A table in which every key is spelled as in the normal form."""
    return Table({name: (name, reader) for name, reader in readers.items()})


def mapping_of(table: Table, *required: str) -> Reader:
    """A reader of a nested mapping."""

    def read(place: Place, key: str, value: Json) -> Json:
        if not isinstance(value, dict):
            return wrong_type(place, key, value, "a mapping")
        inner = place.inside(key)
        result = read_table(inner, value, table)
        require(inner, result, value, *required)
        return result

    return read


def anything(place: Place, key: str, value: Json) -> Json:
    """Free-form JSON, judged later by somebody who knows the node type or the expression language."""
    return value


def text(place: Place, key: str, value: Json) -> Json:
    return value if isinstance(value, str) else wrong_type(place, key, value, "a string")


def flag(place: Place, key: str, value: Json) -> Json:
    return value if isinstance(value, bool) else wrong_type(place, key, value, "true or false")


def whole(low: int, high: int = COUNT_MAX) -> Reader:
    """A reader of whole numbers within bounds; true and 3.0 are not whole numbers."""

    def read(place: Place, key: str, value: Json) -> Json:
        if not isinstance(value, int) or isinstance(value, bool):
            return wrong_type(place, key, value, "a whole number")
        if low <= value <= high:
            return value
        place.problem("out_of_range", key, f"`{key}` is {shown(str(value))}, it must be {low} to {high}")
        return None

    return read


def number(low: float, high: float, *, above: bool = False, scale: float = 1) -> Reader:
    """A reader of numbers within bounds; `scale` turns the author's unit into ours, `above` excludes the bound."""

    def read(place: Place, key: str, value: Json) -> Json:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return wrong_type(place, key, value, "a number")
        if low / scale <= value <= high / scale and not (above and value * scale <= low):
            return value if scale == 1 else _scaled(value, scale)
        limits = f"more than {low / scale:g}" if above else f"at least {low / scale:g}"
        place.problem("out_of_range", key, f"`{key}` must be {limits} and at most {high / scale:g}")
        return None

    return read


def _scaled(value: float, scale: float) -> float:
    """Another unit of the same quantity, whole where it is whole, so that equal documents stay equal."""
    result = round(value * scale, 9)
    return int(result) if result == int(result) else result


seconds = number(0.001, SECONDS_MAX)
from_ms = number(0.001, SECONDS_MAX, scale=0.001)
from_minutes = number(0.001, SECONDS_MAX, scale=60)
from_hours = number(0.001, SECONDS_MAX, scale=3600)


def choice(*options: str) -> Reader:
    """A reader of one of a few words."""

    def read(place: Place, key: str, value: Json) -> Json:
        if not isinstance(value, str):
            return wrong_type(place, key, value, "a string")
        if value in options:
            return value
        hint = place.found.nearest(value, options) or f"one of {', '.join(options)}"
        place.problem("unknown_value", key, f"`{key}` cannot be `{shown(value)}`", hint)
        return None

    return read


def matching(pattern: str, what: str, length_max: int = NAME_LENGTH_MAX) -> Reader:
    """A reader of names that follow a pattern and have a bounded length."""
    compiled = re.compile(pattern)

    def read(place: Place, key: str, value: Json) -> Json:
        if not isinstance(value, str):
            return wrong_type(place, key, value, "a string")
        if compiled.fullmatch(value) and len(value) <= length_max:
            return value
        place.problem("bad_name", key, f"`{shown(value)}` is not a name for `{key}`", f"{what}, at most {length_max}")
        return None

    return read


def node_ids(place: Place, key: str, value: Json) -> Json:
    """A list of node ids without repetitions, in the author's order; whether they exist is asked later."""
    if not isinstance(value, list):
        hint = f"write [{shown(value)}]" if isinstance(value, str) else ""
        return wrong_type(place, key, value, "a list of node ids", hint)
    if len(value) == 1 and isinstance(value[0], str):
        return value
    kept: dict[str, None] = {}
    inner = place.inside(key)
    for step, item in enumerate(value):
        if isinstance(item, str):
            kept[item] = None
        else:
            inner.problem("wrong_type", str(step), f"`{key}` holds {kind(item)}, it must hold node ids")
    return list(kept)


def is_id(value: str) -> bool:
    """Whether a string has the form of a node id."""
    return len(value) <= NAME_LENGTH_MAX and _ID.fullmatch(value) is not None
