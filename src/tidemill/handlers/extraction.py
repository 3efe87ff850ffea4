"""Fields made from the text of others: parts that a pattern finds, and dates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.moments import fitting_forms, read_moment, readable_directives, write_moment
from tidemill.expressions.patterns import Match, Pattern, compile_pattern, work_of
from tidemill.expressions.wording import kind_of
from tidemill.handlers.tables import Row, Rows, Wrong, column

WORK_MAX = 1 << 31
"""What a pattern may cost over all rows, as `work_of` counts it: at worst a quarter of a minute."""

Otherwise = Literal["null", "drop", "fail"]
"""What becomes of a row in which nothing is found: its new fields are null, it is left out, or the step fails."""


class Extract(NamedTuple):
    """What is looked for in a field, and where it goes."""

    field: str
    pattern: str
    into: str | None = None
    every: bool = False
    """Take all places that match, as a list, and not only the first."""
    otherwise: Otherwise = "null"


class Dates(NamedTuple):
    """How the dates of a field are written, and how they shall be."""

    field: str
    formats: Sequence[str] = ()
    zone: str = "UTC"
    output: str = "iso"
    output_zone: str | None = None
    into: str | None = None
    otherwise: Otherwise = "fail"


def extract(rows: Rows, wanted: Extract) -> Rows:
    """Add what a pattern finds: a field for each named group, or else one for the first group or the whole match."""
    pattern = compile_pattern(wanted.pattern)
    shape = _shape(pattern, wanted)
    budget = WORK_MAX
    made: Rows = []
    for number, (row, text) in enumerate(zip(rows, column(rows, wanted.field), strict=True)):
        if text is None:
            found = []
        elif isinstance(text, str):
            budget -= _work(pattern, text, wanted.field, number)
            if budget < 0:
                raise Wrong("the pattern is too complex for so much text", field=wanted.field, row=number)
            found = list(pattern.finditer(text)) if wanted.every else _first(pattern, text)
        else:
            raise Wrong(f"a pattern is for strings, and this is {kind_of(text)}", field=wanted.field, row=number)
        if not found and wanted.otherwise == "fail":
            raise Wrong("the pattern does not match", field=wanted.field, row=number, hint="otherwise: null, or drop")
        if found or wanted.otherwise == "null":
            made.append(row | shape(found))
    return made


def _work(pattern: Pattern, text: str, field: str, row: int) -> int:
    try:
        return work_of(pattern, text)
    except ExpressionError as failure:
        raise Wrong(failure.message, field=field, row=row, hint=failure.hint) from None


def _first(pattern: Pattern, text: str) -> list[Match]:
    match = pattern.search(text)
    return [] if match is None else [match]


def _shape(pattern: Pattern, wanted: Extract) -> Callable[[list[Match]], Row]:
    """Choose how matches become fields."""
    names = sorted(pattern.groupindex, key=pattern.groupindex.__getitem__)
    into = wanted.into or wanted.field
    group = 1 if pattern.groups else 0
    if wanted.every and names:
        return lambda found: {into: [{name: match.group(name) for name in names} for match in found]}
    if wanted.every:
        return lambda found: {into: [match.group(group) for match in found]}
    if names:
        return lambda found: {name: found[0].group(name) if found else None for name in names}
    return lambda found: {into: found[0].group(group) if found else None}


def parse_dates(rows: Rows, wanted: Dates) -> Rows:
    """Write the dates of a field anew; null stays null."""
    into = wanted.into or wanted.field
    made: Rows = []
    for number, (row, value) in enumerate(zip(rows, column(rows, wanted.field), strict=True)):
        if value is None:
            made.append(row | {into: None})
            continue
        try:
            made.append(row | {into: written(read_moment(value, wanted.formats, wanted.zone), wanted)})
        except ExpressionError as failure:
            if wanted.otherwise == "fail":
                raise Wrong(failure.message, field=wanted.field, row=number, hint=_date_hint(value)) from None
            if wanted.otherwise == "null":
                made.append(row | {into: None})
    return made


def _date_hint(value: Any) -> str:
    """Say which format would have fitted, or what formats are made of."""
    fitting = " or ".join(f'"{form}"' for form in fitting_forms(value)) if isinstance(value, str) else ""
    if fitting:
        return f"format: {fitting} would fit; several formats are a list"
    return f"a format such as %d.%m.%Y is made of {readable_directives()}; otherwise: null or drop passes over it"


def written(moment: datetime, wanted: Dates) -> Any:
    """Give a moment as it is wanted: a word from below, or a format."""
    match wanted.output:
        case "iso":
            return write_moment(moment, None, wanted.output_zone)
        case "date":
            return write_moment(moment, "%Y-%m-%d", wanted.output_zone)
        case "timestamp":
            seconds = moment.timestamp()
            return int(seconds) if seconds.is_integer() else seconds
        case "timestamp_ms":
            return round(moment.timestamp() * 1000)
        case form:
            return write_moment(moment, form, wanted.output_zone)


OUTPUT_WORDS = ("iso", "date", "timestamp", "timestamp_ms")
