"""Dates and times in templates: parsed, formatted and moved, as ISO 8601 text in between.

There is no `now`: a rendering must be repeatable. Directives of a format are implemented here with English names,
because those of the C library differ between machines.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, NamedTuple

from tidemill.expressions.errors import ExpressionError, kind_of, shorten, template_failed
from tidemill.expressions.templates.regex import compile_pattern

if TYPE_CHECKING:
    from tidemill.expressions.templates.lookup import ScopeContext


FORMAT_MAX = 200
"""Characters in a format."""

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DIRECTIVE = re.compile(r"%(:z|.?)", re.DOTALL)
_TWO_DIGITS = "[0-9]{1,2}"
_OFFSET = "Z|[+-][0-9]{2}:?[0-9]{2}"
_AMOUNT_MAX = 10**12
_USUAL = [
    date + time
    for date in (
        *("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y"),
        *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d/%b/%Y"),
    )
    for time in ("", " %H:%M", " %H:%M:%S", " %H:%M:%S %z", "T%H:%M:%S", ":%H:%M:%S %z", " %I:%M %p")
]
"""Formats tried for a hint about what the author may have meant."""


class _Directive(NamedTuple):
    write: Callable[[datetime], str]
    read: str = ""
    """The pattern of what can be read with it; empty if it can only be written."""


def _any_of(names: Iterable[str]) -> str:
    return f"(?i:{'|'.join(names)})"


def _offset(moment: datetime, between: str) -> str:
    minutes = int((moment.utcoffset() or timedelta()).total_seconds()) // 60
    sign, minutes = ("-", -minutes) if minutes < 0 else ("+", minutes)
    return f"{sign}{minutes // 60:02}{between}{minutes % 60:02}"


_DIRECTIVES: Mapping[str, _Directive] = {
    "Y": _Directive(lambda moment: f"{moment.year:04}", "[0-9]{4}"),
    "m": _Directive(lambda moment: f"{moment.month:02}", _TWO_DIGITS),
    "d": _Directive(lambda moment: f"{moment.day:02}", _TWO_DIGITS),
    "H": _Directive(lambda moment: f"{moment.hour:02}", _TWO_DIGITS),
    "I": _Directive(lambda moment: f"{(moment.hour + 11) % 12 + 1:02}", _TWO_DIGITS),
    "p": _Directive(lambda moment: "PM" if moment.hour >= 12 else "AM", "(?i:AM|PM)"),
    "M": _Directive(lambda moment: f"{moment.minute:02}", _TWO_DIGITS),
    "S": _Directive(lambda moment: f"{moment.second:02}", _TWO_DIGITS),
    "f": _Directive(lambda moment: f"{moment.microsecond:06}", "[0-9]{1,6}"),
    "b": _Directive(lambda moment: _MONTHS[moment.month - 1][:3], _any_of(name[:3] for name in _MONTHS)),
    "B": _Directive(lambda moment: _MONTHS[moment.month - 1], _any_of(_MONTHS)),
    "z": _Directive(lambda moment: _offset(moment, ""), _OFFSET),
    ":z": _Directive(lambda moment: _offset(moment, ":"), _OFFSET),
    "Z": _Directive(lambda moment: moment.tzname() or ""),
    "a": _Directive(lambda moment: _DAYS[moment.weekday()][:3]),
    "A": _Directive(lambda moment: _DAYS[moment.weekday()]),
    "u": _Directive(lambda moment: str(moment.isoweekday())),
    "j": _Directive(lambda moment: f"{moment.timetuple().tm_yday:03}"),
    "y": _Directive(lambda moment: f"{moment.year % 100:02}"),
    "G": _Directive(lambda moment: f"{moment.isocalendar().year:04}"),
    "V": _Directive(lambda moment: f"{moment.isocalendar().week:02}"),
    "%": _Directive(lambda _moment: "%", "%"),
}


def _parse(_context: ScopeContext, value: object, format: str | None = None, zone: str = "UTC") -> str:  # noqa: A002
    return _written(_moment(value, zone) if format is None else _read(value, format, zone))


def _format(_context: ScopeContext, value: object, format: str, zone: str | None = None) -> str:  # noqa: A002
    return write_moment(_moment(value), format, zone)


def _zoned(_context: ScopeContext, value: object, zone: str) -> str:
    return _written(_in_zone(_moment(value), zone))


def _timestamp(_context: ScopeContext, value: object) -> float:
    seconds = _moment(value).timestamp()
    return int(seconds) if seconds.is_integer() else seconds


def _add(
    _context: ScopeContext,
    value: object,
    *,
    years: float = 0,
    months: float = 0,
    weeks: float = 0,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    zone: str | None = None,
) -> str:
    """Move a moment: years to days by the calendar, hours to seconds by the clock (summer time makes a difference)."""
    from tidemill.expressions.templates.undefined import NotAvailable

    amounts: tuple[object, ...] = (years, months, weeks, days, hours, minutes, seconds)
    for amount in amounts:
        if isinstance(amount, NotAvailable):
            amount.refuse()
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not abs(amount) <= _AMOUNT_MAX:
            raise template_failed(f"date_add takes numbers up to {_AMOUNT_MAX}")
    span = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    try:
        local = _months_later(_in_zone(_moment(value), zone), years * 12 + months) + timedelta(weeks=weeks, days=days)
        moved = (local.astimezone(UTC) + span).astimezone(local.tzinfo)
    except (OverflowError, ValueError):
        raise template_failed("the date would be outside of the years 1 to 9999") from None
    stays_date = isinstance(value, str) and _DATE.fullmatch(value) and not span and zone is None
    return moved.date().isoformat() if stays_date else _written(moved)


def _months_later(moment: datetime, months: float) -> datetime:
    """Move by months; a day that the month does not have becomes its last."""
    if months != int(months):
        raise template_failed("date_add takes whole years and months")
    year, month = divmod(moment.year * 12 + moment.month - 1 + int(months), 12)
    last = monthrange(year, month + 1)[1] if 1 <= year <= 9999 else moment.day
    return moment.replace(year=year, month=month + 1, day=min(moment.day, last))


def _moment(value: object, zone: str = "UTC") -> datetime:
    """Parse ISO 8601 or seconds since 1970; a text without an offset is in the given zone."""
    place = _zone(zone)
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=place)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    hint = "write 2026-03-29 or 2026-03-29T14:30:00+02:00, or name the format: `x | date_parse('%d.%m.%Y')`"
    raise template_failed(f"{kind_of(value)} is not a date in ISO 8601, nor seconds since 1970", hint)


def _read(value: object, form: str, zone: str) -> datetime:
    if not isinstance(value, str):
        raise template_failed(f"a date is read from a string, not from {kind_of(value)}")
    found = compile_pattern(_pattern(_checked(form))).fullmatch(value[: FORMAT_MAX * 2])
    if found is None:
        raise template_failed(f"the text is not a date of the form {shorten(form, 60)}")
    read = {name: text for name in _named(form) if (text := found.group(name)) is not None}
    try:
        return datetime(
            int(read.get("Y", 1900)),
            _month(read),
            int(read.get("d", 1)),
            _hour(read),
            int(read.get("M", 0)),
            int(read.get("S", 0)),
            int(read.get("f", "0").ljust(6, "0")),
            _read_offset(read["z"]) if "z" in read else _zone(zone),
        )
    except ValueError as error:
        raise template_failed(f"there is no such date: {error}") from None


def _named(form: str) -> list[str]:
    return [found[1].removeprefix(":") for found in _DIRECTIVE.finditer(form) if found[1] != "%"]


def _pattern(form: str) -> str:
    """Write the format as a pattern with a group for each directive."""
    names = _named(form)
    if len(names) != len(set(names)):
        raise template_failed("a directive stands twice in the format")
    parts: list[str] = []
    end = 0
    for found in _DIRECTIVE.finditer(form):
        read = _directive(found[1]).read
        if not read:
            raise template_failed(f"%{found[1]} can be written, but not read", f"read are {_listed(readable=True)}")
        name = found[1].removeprefix(":")
        parts += (re.escape(form[end : found.start()]), read if name == "%" else f"(?P<{name}>{read})")
        end = found.end()
    return "".join([*parts, re.escape(form[end:])])


def _month(read: Mapping[str, str]) -> int:
    name = (read.get("b") or read.get("B") or "").title()[:3]
    return [month[:3] for month in _MONTHS].index(name) + 1 if name else int(read.get("m", 1))


def _hour(read: Mapping[str, str]) -> int:
    if "I" not in read:
        return int(read.get("H", 0))
    hour = int(read["I"])
    if not 1 <= hour <= 12:
        raise ValueError("hour must be in 1..12")
    return hour % 12 + (12 if read.get("p", "AM").upper() == "PM" else 0)


def _read_offset(text: str) -> tzinfo:
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    try:
        return timezone((-1 if text[0] == "-" else 1) * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])))
    except ValueError:
        raise template_failed("an offset from UTC is less than 24 hours") from None


def _written(moment: datetime) -> str:
    written = moment.isoformat()
    return f"{written.removesuffix('+00:00')}Z" if written.endswith("+00:00") else written


def _in_zone(moment: datetime, zone: str | None) -> datetime:
    try:
        return moment if zone is None else moment.astimezone(_zone(zone))
    except (OverflowError, ValueError):
        raise template_failed("the date would be outside of the years 1 to 9999") from None


def _zone(name: object) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        if isinstance(name, str):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    shown = shorten(name, 60) if isinstance(name, str) else kind_of(name)
    raise template_failed(f"there is no time zone called {shown}", "such as UTC or Europe/Amsterdam")


def _checked(form: object) -> str:
    if not isinstance(form, str) or len(form) > FORMAT_MAX:
        raise template_failed(f"a format is a string of at most {FORMAT_MAX} characters", "such as '%d.%m.%Y %H:%M'")
    return form


def _directive(letter: str) -> _Directive:
    found = _DIRECTIVES.get(letter)
    if found is None:
        raise template_failed(f"there is no directive %{letter}", f"directives: {_listed()}")
    return found


def _listed(*, readable: bool = False) -> str:
    return " ".join(f"%{letter}" for letter, each in _DIRECTIVES.items() if each.read or not readable)


def read_moment(value: object, forms: Sequence[str] = (), zone: str = "UTC") -> datetime:
    """Parse by the first format that fits; without formats, ISO 8601 or seconds since 1970."""
    if not forms:
        return _moment(value, zone)
    failures: list[ExpressionError] = []
    for form in forms:
        try:
            return _read(value, form, zone)
        except ExpressionError as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    raise template_failed(f"the text is a date of none of the {len(failures)} formats", failures[0].message)


def fitting_forms(text: str) -> list[str]:
    """Return the usual formats in which a text would be a date; two where day and month could be either."""
    fitting: list[str] = []
    for form in _USUAL:
        with suppress(ExpressionError):
            _read(text, form, "UTC")
            fitting.append(form)
    return fitting[:2]


def readable_directives() -> str:
    return _listed(readable=True)


def write_moment(moment: datetime, form: str | None = None, zone: str | None = None) -> str:
    moment = _in_zone(moment, zone)
    if form is None:
        return _written(moment)
    return _DIRECTIVE.sub(lambda found: _directive(found[1]).write(moment), _checked(form))


def check_forms(forms: Iterable[str], *, readable: bool) -> None:
    """Raise `ExpressionError` for the first format that cannot be read, or written, with."""
    for form in forms:
        if readable:
            compile_pattern(_pattern(_checked(form)))
        else:
            write_moment(datetime(2000, 1, 1, tzinfo=UTC), form)


def check_zone(name: str) -> None:
    """Raise `ExpressionError` if there is no such time zone."""
    _zone(name)


MOMENT_FILTERS: Mapping[str, Callable[..., object]] = {
    "date_add": _add,
    "date_format": _format,
    "date_parse": _parse,
    "date_zone": _zoned,
    "timestamp": _timestamp,
}
