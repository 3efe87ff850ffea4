"""When a schedule is due: cron expressions in a time zone, and intervals that do not drift.

Cron has five fields and the daylight saving rules of Debian's cron, which cronsim implements: a fixed time that the
clocks skip is due right after the gap, one that they repeat is due once; expressions with `*` in the minute or hour
follow real time. An interval counts from its anchor, so a late start does not delay the next one. All times are
milliseconds of whole seconds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any

import msgspec

from tidemill.errors import Problem, offered
from tidemill.kernel.document.problems import shown

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
CRON_LENGTH_MAX = 200
FIELDS_HINT = "write minute, hour, day, month, weekday: 0 6 * * 1-5; or @daily"
DURATION_HINT = "write 30s, 15m, 2h, 1d or 1h30m"
MOMENT_HINT = "write 2026-03-01T08:30 (in the time zone of the schedule) or 2026-03-01T08:30Z"
EVERY_MS_MAX = 366 * 86_400_000
FIRST_WINDOW_MS = 3_600_000
MOMENT_MS_MAX = 253_402_300_799_000
"""The end of the year 9999, where calendars stop."""

_NOT_IANA = ("localtime", "posix", "right/")
"""Files beside the database: they mean another time on another machine, or count leap seconds."""
_DURATION = re.compile(r"(?:(\d{1,6})w)?(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?")
_SECONDS = (604_800, 86_400, 3_600, 60, 1)


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When something is due: by a cron expression or by an interval."""

    cron: str = ""
    every_ms: int = 0
    timezone: str = "UTC"
    anchor_ms: int = 0
    """From where an interval counts."""
    start_at_ms: int | None = None
    """Nothing is due before it."""
    end_at_ms: int | None = None
    """Nothing is due after it."""


# Due times


def upcoming(timing: Timing, after_ms: int) -> Iterator[int]:
    """The due times after a moment, in order."""
    if timing.start_at_ms is not None:
        after_ms = max(after_ms, timing.start_at_ms - 1)
    for at_ms in _cron_times(timing, after_ms) if timing.cron else _interval_times(timing, after_ms):
        if at_ms > MOMENT_MS_MAX or (timing.end_at_ms is not None and at_ms > timing.end_at_ms):
            return
        yield at_ms


def latest(timing: Timing, after_ms: int, until_ms: int, count: int) -> list[int]:
    """The newest due times in an interval (exclusive start, inclusive end), at most `count`, oldest first."""
    # Looks at the last hour first, then further back: a year of minutes is not walked through for its last one.
    window_ms = FIRST_WINDOW_MS
    while True:
        begin_ms = max(after_ms, until_ms - window_ms)
        found = deque(takewhile(lambda at_ms: at_ms <= until_ms, upcoming(timing, begin_ms)), maxlen=count)
        if len(found) == count or begin_ms == after_ms:
            return list(found)
        window_ms *= 4


def _interval_times(timing: Timing, after_ms: int) -> Iterator[int]:
    at_ms = timing.anchor_ms + ((after_ms - timing.anchor_ms) // timing.every_ms + 1) * timing.every_ms
    while True:
        yield at_ms
        at_ms += timing.every_ms


def _cron_times(timing: Timing, after_ms: int) -> Iterator[int]:
    from cronsim import CronSim

    last_ms = after_ms
    begin = datetime.fromtimestamp(min(after_ms, MOMENT_MS_MAX) / 1_000, zone_of(timing.timezone))
    try:
        for at in CronSim(expanded(timing.cron), begin):
            # Several times that the clocks skip are due at the same time; those that they repeat were due before.
            at_ms = int(at.timestamp()) * 1_000
            if at_ms > last_ms:
                last_ms = at_ms
                yield at_ms
    except OverflowError:
        return  # Calendars end before it is due again.


def expanded(cron: str) -> str:
    return MACROS.get(cron, cron)


def zone_of(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    # cronsim walks UTC without looking for changes of the clock.
    return UTC if name == "UTC" else ZoneInfo(name)


def utc_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# What callers write


def read_cron(text: Any, problems: list[Problem]) -> str:
    """A cron expression in the form that is kept; what is wrong with it is added to the problems."""

    def refuse(message: str, hint: str) -> str:
        problems.append(Problem(code="cron_invalid", path="/cron", message=message, hint=hint))
        return ""

    if not isinstance(text, str):
        return refuse(f"a cron expression is text, not {type(text).__name__}", FIELDS_HINT)
    if len(text) > CRON_LENGTH_MAX or not text.isprintable():
        return refuse(f"a cron expression is one line of at most {CRON_LENGTH_MAX} characters", FIELDS_HINT)
    words = text.split()
    tidy = " ".join(words)
    if tidy.startswith("@"):
        known = tidy.lower()
        return known if known in MACROS else refuse(f"`{tidy}` is not a cron expression", offered(known, MACROS))
    if len(words) == 6:
        hint = "leave out the seconds field; for less than a minute use an interval: every 30s"
        return refuse(f"`{tidy}` has six fields, and a cron expression has five", hint)
    if len(words) != 5:
        return refuse(f"`{tidy}` has {len(words)} fields, and a cron expression has five", FIELDS_HINT)
    from cronsim import CronSim, CronSimError

    try:
        due = next(iter(CronSim(tidy, datetime(2024, 1, 1, tzinfo=UTC))), None)
    except CronSimError:
        return refuse(f"`{tidy}`: {_wrong_field(words)}", FIELDS_HINT)
    return tidy if due is not None else refuse(f"`{tidy}` never matches", FIELDS_HINT)


_FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31, or L"),
    ("month", "1 to 12, or JAN to DEC"),
    ("weekday", "0 to 7, or SUN to SAT"),
)


def _wrong_field(words: list[str]) -> str:
    """Name the first field that is wrong by itself; the library says only what it is called."""
    from cronsim import CronSim, CronSimError

    for number, (name, range_) in enumerate(_FIELDS):
        alone = ["*"] * len(_FIELDS)
        alone[number] = words[number]
        try:
            CronSim(" ".join(alone), datetime(2024, 1, 1, tzinfo=UTC))
        except CronSimError:
            return f"{name} {words[number]} is not {range_}"
    return "no month has such a day"


def read_zone(name: Any, problems: list[Problem]) -> str:
    """The name of an IANA time zone; an unknown one is added to the problems."""
    from zoneinfo import available_timezones

    try:
        if isinstance(name, str) and name and not name.startswith(_NOT_IANA):
            zone_of(name)
            return name
    except (KeyError, ValueError, OSError):
        pass
    hint = offered(name, sorted(available_timezones())) if isinstance(name, str) else "write Europe/Berlin"
    message = f"`{shown(str(name))}` is not a time zone of the IANA database"
    problems.append(Problem(code="timezone_unknown", path="/timezone", message=message, hint=hint))
    return "UTC"


def read_duration(value: Any, path: str, problems: list[Problem], *, least_ms: int = 1_000) -> int:
    """A duration in milliseconds: text such as `1h30m`, a timedelta, or seconds."""
    seconds: float | None = None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and value and (found := _DURATION.fullmatch(value.replace(" ", ""))):
        seconds = sum(int(count or 0) * unit for count, unit in zip(found.groups(), _SECONDS, strict=True))
    if seconds is None or seconds != seconds or not least_ms <= seconds * 1_000 <= EVERY_MS_MAX or seconds % 1:
        least = f"{least_ms // 1_000} seconds" if least_ms != 1_000 else "a second"
        message = f"`{shown(str(value))}` is not a duration in whole seconds between {least} and 366 days"
        problems.append(Problem(code="schedule_invalid", path=path, message=message, hint=DURATION_HINT))
        return 0
    return int(seconds) * 1_000


def duration_text(ms: int) -> str:
    """A duration as `read_duration` reads it."""
    parts, seconds = list[str](), ms // 1_000
    for letter, unit in zip("dhms", _SECONDS[1:], strict=True):
        count, seconds = divmod(seconds, unit)
        parts += [f"{count}{letter}"] if count else []
    return "".join(parts) or "0s"


def read_moment(value: Any, zone: str, path: str, problems: list[Problem]) -> int | None:
    """A timestamp in milliseconds; without a zone of its own it is in that of the schedule."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(at, datetime):
            at = at if at.tzinfo is not None else at.replace(tzinfo=zone_of(zone))
            at_ms = int(at.timestamp()) * 1_000
            if 0 <= at_ms <= MOMENT_MS_MAX:
                return at_ms
    except (ValueError, OverflowError):
        pass
    message = f"`{shown(str(value))}` is not a timestamp"
    problems.append(Problem(code="schedule_invalid", path=path, message=message, hint=MOMENT_HINT))
    return None
