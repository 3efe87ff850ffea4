"""Dates in templates: read, written and moved, the same on every machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.scopes import SCOPE, is_plain
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import Scope
from tidemill.expressions.templates.template import check_template, compile_template

MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - of UTC


def rendered(expression: str, scope: Scope = SCOPE) -> Any:
    return compile_template(f"{{{{ {expression} }}}}").render(scope)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'2026-03-29' | date_parse", "2026-03-29T00:00:00Z"),
        ("'2026-03-29T14:30:00Z' | date_parse", "2026-03-29T14:30:00Z"),
        ("'2026-03-29T14:30:00.5+02:00' | date_parse", "2026-03-29T14:30:00.500000+02:00"),
        ("'20260329T143000' | date_parse(zone='Europe/Amsterdam')", "2026-03-29T14:30:00+02:00"),
        ("0 | date_parse", "1970-01-01T00:00:00Z"),
        ("-1.5 | date_parse", "1969-12-31T23:59:58.500000Z"),
        ("'29.3.2026' | date_parse('%d.%m.%Y')", "2026-03-29T00:00:00Z"),
        ("'29 March 2026, 5:07 pm' | date_parse('%d %B %Y, %I:%M %p')", "2026-03-29T17:07:00Z"),
        ("'12 AM' | date_parse('%I %p')", "1900-01-01T00:00:00Z"),
        ("'Mar/29/2026 23:59:58.25' | date_parse('%b/%d/%Y %H:%M:%S.%f')", "2026-03-29T23:59:58.250000Z"),
        ("'2026-03-29 14:30 -0530' | date_parse('%Y-%m-%d %H:%M %z')", "2026-03-29T14:30:00-05:30"),
        ("'2026-03-29 Z' | date_parse('%Y-%m-%d %:z', 'Asia/Tokyo')", "2026-03-29T00:00:00Z"),
        ("'(100%) 2026' | date_parse('(100%%) %Y')", "2026-01-01T00:00:00Z"),
        ("'2026-07-01' | date_parse('%Y-%m-%d', 'America/New_York')", "2026-07-01T00:00:00-04:00"),
        ("'2026-03-29T14:30:00Z' | date_format('%d.%m.%Y %H:%M')", "29.03.2026 14:30"),
        ("'2026-03-29T14:30:05.07Z' | date_format('%A %a %B %b %I %p %S %f')", "Sunday Sun March Mar 02 PM 05 070000"),
        ("'2026-03-29T00:30:00Z' | date_format('%I%p %j %u %y %G-W%V 100%%')", "12AM 088 7 26 2026-W13 100%"),
        ("'2026-03-29T14:30:00Z' | date_format('%H:%M %Z %z %:z', 'America/New_York')", "10:30 EDT -0400 -04:00"),
        ("'2026-03-29T14:30:00Z' | date_format('%z', 'Asia/Kolkata')", "+0530"),
        ("'0001-02-03' | date_format('%Y-%m-%d')", "0001-02-03"),
        ("'2026-03-29T14:30:00Z' | date_zone('Europe/Amsterdam')", "2026-03-29T16:30:00+02:00"),
        ("'2026-03-29T14:30:00+02:00' | date_zone('UTC')", "2026-03-29T12:30:00Z"),
        ("'2026-01-31' | date_add(months=1)", "2026-02-28"),
        ("'2024-02-29' | date_add(years=1)", "2025-02-28"),
        ("'2026-01-31' | date_add(weeks=1, days=-1)", "2026-02-06"),
        ("'2026-01-31' | date_add(hours=1)", "2026-01-31T01:00:00Z"),
        ("'2026-01-31T10:00:00+02:00' | date_add(minutes=90, seconds=1.5)", "2026-01-31T11:30:01.500000+02:00"),
        ("'2026-03-28T12:00:00+01:00' | date_add(days=1, zone='Europe/Amsterdam')", "2026-03-29T12:00:00+02:00"),
        ("'2026-03-28T12:00:00+01:00' | date_add(hours=24, zone='Europe/Amsterdam')", "2026-03-29T13:00:00+02:00"),
        ("'1970-01-02' | timestamp", 86400),
        ("'1970-01-01T00:00:00.5Z' | timestamp", 0.5),
        ("('2026-03-02' | timestamp - '2026-03-01' | timestamp) / 3600", 24.0),
        ("['2026-01-01', '2026-01-02'] | map('date_format', '%d') | list", ["01", "02"]),
    ],
)
def test_an_expression_gives(expression: str, expected: Any) -> None:
    found = rendered(expression)
    assert found == expected
    assert type(found) is type(expected)
    assert is_plain(found)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("'soon' | date_parse", "a string is not a date"),
        ("none | date_parse", "null is not a date"),
        ("true | timestamp", "a boolean is not a date"),
        ("1e300 | date_parse", "a number is not a date"),
        ("2026 | date_parse('%Y')", "read from a string, not from a number"),
        ("'x' | date_parse('%Y')", "not a date of the form %Y"),
        ("'2026-02-30' | date_parse('%Y-%m-%d')", "no such date"),
        ("'+99:00' | date_parse('%z')", "less than 24 hours"),
        ("'2026 2026' | date_parse('%Y %Y')", "stands twice"),
        ("'Mon' | date_parse('%a')", "%a can be written, but not read"),
        ("'2026-03-29' | date_format('%Q')", "no directive %Q"),
        ("'2026-03-29' | date_format('%999999999d')", "no directive %9"),
        ("'2026-03-29' | date_format('%Y' * 101)", "at most 200 characters"),
        ("'2026-03-29' | date_format(3)", "a format is a string"),
        ("'2026-03-29' | date_zone('Europe/Atlantis')", "no time zone called Europe/Atlantis"),
        ("'2026-03-29' | date_zone('../../etc/passwd')", "no time zone"),
        ("'2026-03-29' | date_zone('tzdata.zi')", "no time zone"),
        ("'2026-03-29' | date_zone(3)", "no time zone called a number"),
        ("'2026-03-29' | date_parse(zone='x' * 1000)", "no time zone"),
        ("'9999-12-31' | date_add(days=1)", "years 1 to 9999"),
        ("'0001-01-01' | date_zone('America/New_York')", "years 1 to 9999"),
        ("'2026-03-29' | date_add(months=10 ** 13)", "numbers up to"),
        ("'2026-03-29' | date_add(days=10 ** 12)", "years 1 to 9999"),
        ("'2026-03-29' | date_add(months=1.5)", "whole years and months"),
        ("'2026-03-29' | date_add(days='1')", "numbers up to"),
        ("'2026-03-29' | date_add(days=inputs.nope)", 'has no key "nope"'),
        ("nope | date_parse", 'there is no name "nope" here'),
    ],
)
def test_what_is_no_date_fails(expression: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        rendered(expression)
    assert caught.value.code == "template_failed"
    assert message in caught.value.message


@given(MOMENTS)
def test_what_is_written_is_read_back(moment: datetime) -> None:
    scope = Scope(nodes={}, inputs={"at": moment.isoformat()}, run={})
    written = rendered("inputs.at | date_format('%d/%m/%Y %H-%M-%S.%f %z')", scope)
    again = Scope(nodes={}, inputs={"at": written}, run={})
    read = rendered("inputs.at | date_parse('%d/%m/%Y %H-%M-%S.%f %z')", again)
    assert datetime.fromisoformat(read) == moment


@given(MOMENTS, st.integers(-300, 300))
def test_days_are_added_as_they_should(moment: datetime, days: int) -> None:
    scope = Scope(nodes={}, inputs={"at": moment.isoformat(), "days": days}, run={})
    moved = rendered("inputs.at | date_add(days=inputs.days)", scope)
    assert datetime.fromisoformat(moved) == moment + timedelta(days=days)


@pytest.mark.parametrize("name", ["now", "utcnow", "today", "date"])
def test_there_is_no_present(name: str) -> None:
    """A rendering gives the same result whenever it is repeated, so nothing tells the time."""
    assert check_template(f"{{{{ 1 | {name} }}}}")[0]
    assert check_template(f"{{{{ {name}() }}}}")[1].nodes == {name}
