"""When schedules are due: cron in a zone, changes of the clock, intervals, and what callers write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest

from tidemill.errors import Problem
from tidemill.triggers.times import (
    Timing,
    duration_text,
    latest,
    read_cron,
    read_duration,
    read_moment,
    read_zone,
    upcoming,
    utc_text,
)

BERLIN = "Europe/Berlin"
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


def due(timing: Timing, after: str, count: int) -> list[str]:
    return [utc_text(at_ms) for at_ms in islice(upcoming(timing, at(after)), count)]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # On 2026-03-29 at 02:00 the clocks of Berlin go to 03:00, on 2026-10-25 at 03:00 back to 02:00.
        ("30 2 * * *", "2026-03-27T23:00Z", ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        ("15,45 2 * * *", "2026-03-28T12:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:15:00Z"]),
        ("30 2 * * *", "2026-10-24T12:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        ("30 * * * *", "2026-03-29T00:00Z", ["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"]),
        ("30 * * * *", "2026-10-25T00:00Z", ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"]),
        ("@daily", "2026-03-28T12:00Z", ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]),
    ],
)
def test_changes_of_the_clock(cron: str, after: str, expected: list[str]) -> None:
    assert due(Timing(cron=cron, timezone=BERLIN), after, len(expected)) == expected


def test_a_repeated_time_is_due_once_wherever_the_walk_begins() -> None:
    timing = Timing(cron="30 2 * * *", timezone=BERLIN)
    whole = list(islice(upcoming(timing, at("2026-10-20T00:00Z")), 10))
    for minute in range(5 * 60):
        begin = at("2026-10-24T22:00Z") + minute * MINUTE
        assert next(upcoming(timing, begin)) == next(at_ms for at_ms in whole if at_ms > begin)


def test_due_times_of_a_year_grow_strictly() -> None:
    for cron in ("*/20 * * * *", "10,50 1-3 * * *", "0 3 * * 0", "0 0 29 2 *"):
        times = list(islice(upcoming(Timing(cron=cron, timezone=BERLIN), at("2026-01-01T00:00Z")), 300))
        assert all(first < second for first, second in pairwise(times)), cron


def test_a_rare_time_ends_with_the_calendar() -> None:
    """The 29th of February on a Sunday."""
    rare = Timing(cron="0 0 29 2 */7", timezone=BERLIN)
    assert due(rare, "2026-01-01T00:00Z", 2) == ["2032-02-28T23:00:00Z", "2060-02-28T23:00:00Z"]
    assert len(list(upcoming(rare, at("9900-01-01T00:00Z")))) < 10


def test_an_interval_does_not_drift() -> None:
    timing = Timing(every_ms=15 * MINUTE, anchor_ms=at("2026-01-01T00:00:07Z"))
    assert due(timing, "2026-01-01T00:00:07Z", 2) == ["2026-01-01T00:15:07Z", "2026-01-01T00:30:07Z"]
    assert due(timing, "2027-06-05T11:59:59Z", 1) == ["2027-06-05T12:00:07Z"]


def test_start_and_end_bound_both_kinds() -> None:
    bounds = {"start_at_ms": at("2026-01-05T00:00Z"), "end_at_ms": at("2026-01-06T12:00Z")}
    daily = Timing(cron="@daily", **bounds)
    assert due(daily, "2026-01-01T00:00Z", 9) == ["2026-01-05T00:00:00Z", "2026-01-06T00:00:00Z"]
    halves = Timing(every_ms=DAY // 2, anchor_ms=bounds["start_at_ms"], **bounds)
    expected = ["2026-01-05T00:00:00Z", "2026-01-05T12:00:00Z", "2026-01-06T00:00:00Z", "2026-01-06T12:00:00Z"]
    assert due(halves, "2026-01-01T00:00Z", 9) == expected


@pytest.mark.parametrize("timing", [Timing(cron="0 6 * * *", timezone=BERLIN), Timing(every_ms=DAY)])
def test_the_newest_of_many_missed_times(timing: Timing) -> None:
    begin, end = at("2024-05-05T00:00Z"), at("2026-05-05T12:00Z")
    every = [at_ms for at_ms in islice(upcoming(timing, begin), 1_000) if at_ms <= end]
    assert latest(timing, begin, end, 100) == every[-100:]
    assert latest(timing, begin, end, 1_000) == every
    assert latest(timing, every[-2], end, 5) == every[-1:]
    assert latest(timing, end, end, 5) == []


def test_a_year_of_missed_minutes_is_not_walked_through() -> None:
    """Walking through half a million times would take minutes."""
    timing = Timing(cron="* * * * *", timezone=BERLIN)
    begin, end = at("2025-05-05T00:00Z"), at("2026-05-05T12:00Z")
    assert latest(timing, begin, end, 100) == [end - number * MINUTE for number in reversed(range(100))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("*/5 * * * * *", "six fields"),
        ("* * * *", "4 fields"),
        ("", "0 fields"),
        ("61 * * * *", "minute 61 is not 0 to 59"),
        ("* 5-30 * * *", "hour 5-30 is not 0 to 23"),
        ("* * * foo *", "month foo is not 1 to 12, or JAN to DEC"),
        ("0 0 31 2 *", "no month has such a day"),
        ("@dayly", "@dayly"),
        ("x" * 300, "characters"),
        (5, "text"),
        ("0 0 \x00 * *", "one line"),
    ],
)
def test_a_wrong_cron_expression_is_refused_with_a_hint(text: Any, words: str) -> None:
    problems: list[Problem] = []
    assert read_cron(text, problems) == ""
    (problem,) = problems
    assert (problem.code, problem.path) == ("cron_invalid", "/cron")
    assert words in problem.message
    assert problem.hint


def test_what_is_understood_as_cron() -> None:
    problems: list[Problem] = []
    assert read_cron("  0  6 * *  mon-fri ", problems) == "0 6 * * mon-fri"
    assert read_cron("@Daily", problems) == "@daily"
    assert problems == []


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("30s", 30 * SECOND),
        ("15m", 15 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        (90, 90 * SECOND),
        (timedelta(hours=2), 2 * HOUR),
    ],
)
def test_durations(value: Any, ms: int) -> None:
    problems: list[Problem] = []
    assert (read_duration(value, "/every", problems), problems) == (ms, [])
    assert read_duration(duration_text(ms), "/every", problems) == ms


@pytest.mark.parametrize("value", ["", "15", "m15", "-5m", 0, 0.5, True, "400d", None, [], "1.5h", float("nan")])
def test_what_is_no_duration(value: Any) -> None:
    problems: list[Problem] = []
    assert read_duration(value, "/every", problems) == 0
    assert [(each.code, each.path, bool(each.hint)) for each in problems] == [("schedule_invalid", "/every", True)]


def test_zones() -> None:
    problems: list[Problem] = []
    assert [read_zone(name, problems) for name in ("UTC", BERLIN)] == ["UTC", BERLIN]
    assert problems == []
    unknown = ("Europe/Berln", "", "../etc/passwd", "/etc/passwd", 3, "Mars/Base\x00", "Europe")
    # What a machine has beside the database.
    for name in (*unknown, "localtime", "posixrules", "right/Europe/Berlin"):
        assert read_zone(name, problems) == "UTC"
    assert {each.code for each in problems} == {"timezone_unknown"}
    assert len(problems) == 10
    assert "Europe/Berlin" in problems[0].hint


def test_moments_without_a_zone_are_in_that_of_the_schedule() -> None:
    problems: list[Problem] = []
    assert read_moment("2026-07-01T08:00", BERLIN, "/start_at", problems) == at("2026-07-01T06:00Z")
    assert read_moment("2026-07-01", "UTC", "/start_at", problems) == at("2026-07-01T00:00Z")
    assert read_moment("2026-07-01T08:00Z", BERLIN, "/start_at", problems) == at("2026-07-01T08:00Z")
    assert read_moment(datetime(2026, 7, 1, tzinfo=UTC), BERLIN, "/start_at", problems) == at("2026-07-01T00:00Z")
    assert problems == []
    for value in ("tomorrow", 5, None, "1900-01-01", "9999-12-31T23:59:59-12:00"):
        assert read_moment(value, BERLIN, "/end_at", problems) is None
    assert [each.path for each in problems] == ["/end_at"] * 5
