"""Tables: sorting, selecting, grouping, joining, and the laws that hold for whatever is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.handlers.data import tables
from tidemill.handlers.data.meter import Meter, Row, Rows, TableError
from tidemill.handlers.data.tables import (
    ABSENT,
    FUNCTIONS,
    Aggregation,
    Dates,
    Extract,
    How,
    Join,
    SortKey,
    aggregation,
    read,
    sort_keys,
    table,
)

BIG = 2**60


def unlimited(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a meter that has only the limits that every step has."""
    return lambda *given: function(*given, meter=Meter())


column, drop_fields, extract, first_rows, group_rows, join_rows, parse_dates, select_fields, sort_rows = (
    unlimited(getattr(tables, name))
    for name in (
        *("column", "drop_fields", "extract", "first_rows", "group_rows"),
        *("join_rows", "parse_dates", "select_fields", "sort_rows"),
    )
)


def of(field: str, *values: Any) -> Rows:
    return [{field: value, "row": number} for number, value in enumerate(values)]


def numbers(rows: Rows) -> list[int]:
    return [row["row"] for row in rows]


@pytest.mark.parametrize(
    ("row", "field", "value"),
    [
        ({"a": 1}, "a", 1),
        ({"a": None}, "a", None),
        ({}, "a", ABSENT),
        ({"a": {"b": [1]}}, "a.b", [1]),
        ({"a.b": 2, "a": {"b": 1}}, "a.b", 2),
        ({"a": 1}, "a.b", ABSENT),
        ({"a": [1]}, "a.0", ABSENT),
    ],
)
def test_a_field_is_a_key_or_a_way(row: Row, field: str, value: Any) -> None:
    assert read(row, field) is value or read(row, field) == value


@pytest.mark.parametrize(
    ("value", "words", "row"),
    [({"a": 1}, "an object", None), ("x", "a string", None), (None, "null", None), ([{}, 1], "a number", 1)],
)
def test_what_is_no_table_is_refused(value: Any, words: str, row: int | None) -> None:
    with pytest.raises(TableError) as wrong:
        table(value)
    assert words in wrong.value.message and wrong.value.row == row


def test_a_field_that_no_row_has_is_a_mistake() -> None:
    with pytest.raises(TableError) as wrong:
        column([{"price": 1}, {"name": "x"}], "prise")
    assert (wrong.value.field, wrong.value.hint) == ("prise", 'did you mean "price"?')
    assert column([{"price": 1}, {}], "price") == [1, None]
    assert column([], "price") == []


SORTS: list[tuple[Rows, list[SortKey], list[int]]] = [
    (of("a", 3, 1, 2), [SortKey("a")], [1, 2, 0]),
    (of("a", 3, 1, 2), [SortKey("a", "desc")], [0, 2, 1]),
    (of("a", None, 1, None, 0), [SortKey("a")], [3, 1, 0, 2]),
    (of("a", None, 1, None, 0), [SortKey("a", "desc")], [1, 3, 0, 2]),
    (of("a", None, 1, None, 0), [SortKey("a", "asc", "first")], [0, 2, 3, 1]),
    (of("a", "b", "a", "é", "B"), [SortKey("a")], [3, 1, 0, 2]),
    (of("a", 1.5, 1, BIG + 1, float(BIG), BIG), [SortKey("a")], [1, 0, 3, 4, 2]),
    (of("a", True, False), [SortKey("a")], [1, 0]),
    (of("a", 1, 1, 0, 0), [SortKey("a", "desc")], [0, 1, 2, 3]),
    ([], [SortKey("a")], []),
]


@pytest.mark.parametrize(("rows", "keys", "order"), SORTS)
def test_sorting(rows: Rows, keys: list[SortKey], order: list[int]) -> None:
    assert numbers(sort_rows(rows, keys)) == order


def test_sorting_by_several_fields() -> None:
    rows = [{"a": a, "b": b} for a, b in [(1, "x"), (2, "y"), (1, "y"), (2, "x")]]
    by = sort_keys(["a", {"field": "b", "order": "desc"}], "asc", "last")
    assert [(row["a"], row["b"]) for row in sort_rows(rows, by)] == [(1, "y"), (1, "x"), (2, "y"), (2, "x")]


@pytest.mark.parametrize(
    ("values", "row", "words"),
    [
        ((1, "1"), 1, "a string cannot be compared with a number, as row 0 has it"),
        ((None, 1, 2, True), 3, "a boolean cannot be compared with a number"),
        (("a", [1]), 1, "a list cannot be sorted"),
        (({"x": 1},), 0, "an object cannot be sorted"),
    ],
)
def test_what_has_no_order_is_refused(values: tuple[Any, ...], row: int, words: str) -> None:
    with pytest.raises(TableError) as wrong:
        sort_rows(of("a", *values), [SortKey("a")])
    assert words in wrong.value.message
    assert (wrong.value.field, wrong.value.row) == ("a", row)


@given(st.lists(st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))), st.booleans())
def test_sorting_is_stable_and_loses_nothing(values: list[Any], down: bool) -> None:
    rows = of("a", *values)
    done = sort_rows(rows, [SortKey("a", "desc" if down else "asc")])
    assert sorted(numbers(done)) == list(range(len(rows)))
    present = [row["a"] for row in done if row["a"] is not None]
    assert present == sorted(present, reverse=down)
    assert all(row["a"] is None for row in done[len(present) :])
    for one, other in pairwise(done):
        if one["a"] == other["a"]:
            assert one["row"] < other["row"]


def test_the_first_rows() -> None:
    rows = of("a", 2, 3, 1)
    assert numbers(first_rows(rows, 2)) == [0, 1]
    assert numbers(first_rows(rows, 2, [SortKey("a", "desc")])) == [1, 0]
    assert first_rows(rows, 0) == [] and numbers(first_rows(rows, 9)) == [0, 1, 2]


def test_selecting() -> None:
    rows: Rows = [{"a": 1, "b": {"c": BIG + 1}, "d": None}, {"a": 2}]
    assert select_fields(rows, ["d", "a"]) == [{"d": None, "a": 1}, {"d": None, "a": 2}]
    assert list(select_fields(rows, ["d", "a"])[0]) == ["d", "a"]
    assert select_fields(rows, {"x": "b.c", "y": "a"}) == [{"x": BIG + 1, "y": 1}, {"x": None, "y": 2}]
    assert drop_fields(rows, ["b", "d"]) == [{"a": 1}, {"a": 2}]


AGGREGATES: list[tuple[str, tuple[Any, ...], Any]] = [
    ("count", (1, None, "x"), 2),
    ("sum", (1, 2, None), 3),
    ("sum", (BIG * BIG, 1), BIG * BIG + 1),
    ("sum", (0.1,) * 10, 1.0),
    ("sum", (1, 0.5), 1.5),
    ("sum", (None,), 0),
    ("avg", (1, 2), 1.5),
    ("avg", (None, 4), 4.0),
    ("avg", (None,), None),
    ("min", (3, 1, None), 1),
    ("max", ("a", "b"), "b"),
    ("min", (None,), None),
    ("first", (None, 1), None),
    ("last", (1, {"x": 1}), {"x": 1}),
    ("list", (1, None, [2]), [1, None, [2]]),
]


@pytest.mark.parametrize(("function", "values", "result"), AGGREGATES)
def test_what_is_computed_of_a_group(function: str, values: tuple[Any, ...], result: Any) -> None:
    rows = [{"g": 1, "v": value} for value in values]
    (group,) = group_rows(rows, ["g"], {"r": Aggregation(function, "v")})
    assert group == {"g": 1, "r": result} and type(group["r"]) is type(result)


def test_every_function_has_a_case() -> None:
    assert {function for function, _, _ in AGGREGATES} == FUNCTIONS.keys()


@pytest.mark.parametrize(
    ("function", "values", "row"),
    [
        ("sum", (1, "2"), 1),
        ("sum", (1, True), 1),
        ("avg", ({},), 0),
        ("max", (1, "a"), 1),
        ("min", ([1],), 0),
        ("sum", (1e308, 1e308), None),
        ("avg", (10**400, 10**400), None),
    ],
)
def test_what_cannot_be_computed_is_refused(function: str, values: tuple[Any, ...], row: int | None) -> None:
    with pytest.raises(TableError) as wrong:
        group_rows([{"g": 1, "v": value} for value in values], ["g"], {"r": Aggregation(function, "v")})
    assert (wrong.value.field, wrong.value.row) == ("v", row)


def test_groups_are_told_apart_like_json_values() -> None:
    rows = [{"g": value} for value in (1, True, "1", None, 1.0, "é", 0, False)]
    groups = group_rows([*rows, {}], ["g"], {"n": aggregation("count")})
    assert [(group["g"], group["n"]) for group in groups] == [
        (1, 2), (True, 1), ("1", 1), (None, 2), ("é", 1), (0, 1), (False, 1)
    ]  # fmt: skip
    with pytest.raises(TableError, match="a list cannot be a key"):
        group_rows([{"g": [1]}], ["g"], {})


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(-5, 5))))
def test_groups_part_a_table(values: list[tuple[int, bool, int]]) -> None:
    rows = [{"a": a, "b": b, "v": v} for a, b, v in values]
    asked = {"n": Aggregation("count"), "all": Aggregation("list", "v"), "sum": Aggregation("sum", "v")}
    groups = group_rows(rows, ["a", "b"], asked)
    assert [(group["a"], group["b"]) for group in groups] == list(dict.fromkeys((a, b) for a, b, _ in values))
    assert sum(group["n"] for group in groups) == len(rows)
    for group in groups:
        assert group["all"] == [v for a, b, v in values if (a, b) == (group["a"], group["b"])]
        assert group["sum"] == sum(group["all"])


PEOPLE: Rows = [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bo"}, {"id": None, "name": "Cy"}]
ORDERS: Rows = [{"id": 1, "sum": 5}, {"id": 1, "sum": 6}, {"id": 3, "sum": 7}, {"id": None, "sum": 8}]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(1, "Ada", 5), (1, "Ada", 6)]),
        ("left", [(1, "Ada", 5), (1, "Ada", 6), (2, "Bo", None), (None, "Cy", None)]),
        ("right", [(1, "Ada", 5), (1, "Ada", 6), (3, None, 7), (None, None, 8)]),
        (
            "full",
            [(1, "Ada", 5), (1, "Ada", 6), (2, "Bo", None), (None, "Cy", None), (3, None, 7), (None, None, 8)],
        ),
    ],
)
def test_joining(how: How, expected: list[tuple[Any, ...]]) -> None:
    joined = join_rows(PEOPLE, ORDERS, Join(["id"], ["id"], how), 100)
    assert [tuple(row.values()) for row in joined] == expected
    assert all(list(row) == ["id", "name", "sum"] for row in joined)


def test_fields_of_the_same_name_get_a_suffix() -> None:
    left, right = [{"k": 1, "v": "l", "x": 0}], [{"key": 1, "v": "r", "y": 2}]
    assert join_rows(left, right, Join(["k"], ["key"]), 9) == [
        {"k": 1, "v": "l", "x": 0, "key": 1, "v_right": "r", "y": 2}
    ]
    assert join_rows(left, right, Join(["k"], ["key"], "inner", "2"), 9)[0]["v2"] == "r"
    with pytest.raises(TableError, match="two fields of the result would be called v_right"):
        join_rows([left[0] | {"v_right": 1}], right, Join(["k"], ["key"]), 9)


def test_a_join_ends_where_it_would_explode() -> None:
    many = [{"k": 1}] * 1_000
    with pytest.raises(TableError, match="more than 5000 rows"):
        join_rows(many, many, Join(["k"], ["k"]), 5_000)


KEYS = st.one_of(st.none(), st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 1.0, "1", ""]))


def naive(left: Rows, right: Rows, how: How) -> list[tuple[Any, Any]]:
    def equal(one: Any, other: Any) -> bool:
        return one is not None and isinstance(one, bool) == isinstance(other, bool) and one == other

    pairs = [(a["l"], b["r"]) for a in left for b in right if equal(a["k"], b["k"])]
    if how in ("left", "full"):
        pairs += [(a["l"], None) for a in left if not any(equal(a["k"], b["k"]) for b in right)]
    if how in ("right", "full"):
        pairs += [(None, b["r"]) for b in right if not any(equal(a["k"], b["k"]) for a in left)]
    return pairs


@given(st.lists(KEYS, max_size=8), st.lists(KEYS, max_size=8), st.sampled_from(["inner", "left", "right", "full"]))
def test_a_join_is_what_a_naive_one_is(here: list[Any], there: list[Any], how: How) -> None:
    left: Rows = [{"k": key, "l": number} for number, key in enumerate(here)]
    right: Rows = [{"k": key, "r": number} for number, key in enumerate(there)]
    joined = join_rows(left, right, Join(["k"], ["k"], how), 1_000)
    assert Counter((row.get("l"), row.get("r")) for row in joined) == Counter(naive(left, right, how))


EXTRACTS: list[tuple[Extract, Any, Row]] = [
    (Extract("t", r"(?P<y>\d+)-(?P<m>\d+)"), "on 2026-05", {"t": "on 2026-05", "y": "2026", "m": "05"}),
    (Extract("t", r"(?P<y>\d+)-(?P<m>\d+)?"), "2026-", {"t": "2026-", "y": "2026", "m": None}),
    (Extract("t", r"(?P<y>\d+)"), "none", {"t": "none", "y": None}),
    (Extract("t", r"(\d+) EUR", "eur"), "12 EUR", {"t": "12 EUR", "eur": "12"}),
    (Extract("t", r"\d+"), "a1b22", {"t": "1"}),
    (Extract("t", r"\d+", "n", True), "a1b22", {"t": "a1b22", "n": ["1", "22"]}),
    (Extract("t", r"(?P<a>\w)=(?P<b>\d)", "n", True), "x=1,y=2",
     {"t": "x=1,y=2", "n": [{"a": "x", "b": "1"}, {"a": "y", "b": "2"}]}),
    (Extract("t", r"\d+", "n", True), None, {"t": None, "n": []}),
    (Extract("t", r"\d+", "n"), None, {"t": None, "n": None}),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "text", "row"), EXTRACTS)
def test_extracting(wanted: Extract, text: Any, row: Row) -> None:
    assert extract([{"t": text}], wanted) == [row]


@pytest.mark.parametrize("pattern", ["ab", "(?P<a>a)(?P<b>b)"])
def test_short_matches_are_charged_by_their_memory(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of two characters has five bytes as JSON and more than fifty in memory."""
    monkeypatch.setattr("tidemill.handlers.data.meter.MEMORY_MAX", 400_000)
    with pytest.raises(TableError, match="memory"):
        tables.extract([{"a": "ab" * 10_000}], Extract("a", pattern, every=True), Meter(1_000_000))


def test_rows_without_a_match() -> None:
    rows = of("t", "1", "x", None)
    assert numbers(extract(rows, Extract("t", r"\d", "n", otherwise="drop"))) == [0]
    with pytest.raises(TableError, match="does not match") as wrong:
        extract(rows, Extract("t", r"\d", "n", otherwise="fail"))
    assert (wrong.value.field, wrong.value.row) == ("t", 1)
    with pytest.raises(TableError, match="a pattern is for strings, and this is a number"):
        extract([{"t": 1}], Extract("t", r"\d"))


def test_a_pattern_is_never_too_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableError, match="too complex for a text of 300000 characters") as wrong:
        extract(of("t", "b", "a" * 300_000), Extract("t", "[a-z]{500}x"))
    assert (wrong.value.field, wrong.value.row) == ("t", 1)
    monkeypatch.setattr(tables, "WORK_MAX", 10_000)
    with pytest.raises(TableError, match="too complex for so much text") as wrong:
        extract(of("t", *["a" * 100] * 100), Extract("t", "[a-z]{5}x"))
    assert wrong.value.row is not None and 1 < wrong.value.row < 99


DATES: list[tuple[Dates, Any, Any]] = [
    (Dates("d"), "2026-03-01", "2026-03-01T00:00:00Z"),
    (Dates("d"), "2026-03-01T12:00:00+02:00", "2026-03-01T12:00:00+02:00"),
    (Dates("d"), 0, "1970-01-01T00:00:00Z"),
    (Dates("d"), None, None),
    (Dates("d", ["%d.%m.%Y"]), "01.03.2026", "2026-03-01T00:00:00Z"),
    (Dates("d", ["%d.%m.%Y", "%m/%d/%Y"]), "12/31/2026", "2026-12-31T00:00:00Z"),
    (Dates("d", ["%d.%m.%Y"], "Europe/Berlin"), "01.07.2026", "2026-07-01T00:00:00+02:00"),
    (Dates("d", ["%d.%m.%Y"], "Europe/Berlin", "iso", "UTC"), "01.07.2026", "2026-06-30T22:00:00Z"),
    (Dates("d", output="date"), "2026-03-01T23:00:00Z", "2026-03-01"),
    (Dates("d", output="date", output_zone="Asia/Tokyo"), "2026-03-01T23:00:00Z", "2026-03-02"),
    (Dates("d", output="timestamp"), "1970-01-01T00:01:00Z", 60),
    (Dates("d", output="timestamp"), "1970-01-01T00:00:00.5Z", 0.5),
    (Dates("d", output="timestamp_ms"), "1970-01-01T00:00:00.5Z", 500),
    (Dates("d", output="%d %b %Y"), "2026-03-01", "01 Mar 2026"),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "value", "result"), DATES)
def test_dates(wanted: Dates, value: Any, result: Any) -> None:
    (row,) = parse_dates([{"d": value}], wanted)
    assert row == {"d": result} and type(row["d"]) is type(result)


def test_what_is_no_date() -> None:
    rows = of("d", "2026-03-01", "soon")
    with pytest.raises(TableError) as wrong:
        parse_dates(rows, Dates("d"))
    assert (wrong.value.field, wrong.value.row) == ("d", 1)
    assert [row["x"] for row in parse_dates(rows, Dates("d", into="x", otherwise="null"))][1] is None
    assert numbers(parse_dates(rows, Dates("d", otherwise="drop"))) == [0]
    with pytest.raises(TableError, match="none of the 2 formats"):
        parse_dates(rows, Dates("d", ["%Y", "%d.%m.%Y"]))
    for text, hint in (
        ("29.03.2026", 'format: "%d.%m.%Y" would fit'),
        ("03/04/2026", 'format: "%d/%m/%Y" or "%m/%d/%Y" would fit'),
        ("29/Mar/2026:14:30:00 +0200", '"%d/%b/%Y:%H:%M:%S %z" would fit'),
        ("one day", "is made of %Y %m %d"),
        (True, "is made of %Y %m %d"),
    ):
        with pytest.raises(TableError) as wrong:
            parse_dates([{"d": text}], Dates("d"))
        assert hint in wrong.value.hint, wrong.value.hint


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.integers(), st.text(max_size=3)))))
def test_nothing_that_is_given_is_changed(rows: Rows) -> None:
    before = msgspec.json.encode(rows)
    works: list[Callable[[], Rows]] = [
        lambda: sort_rows(rows, [SortKey("a")]),
        lambda: select_fields(rows, ["a", "b"]),
        lambda: group_rows(rows, ["a"], {"n": Aggregation("list", "b")}),
        lambda: join_rows(rows, rows, Join(["a"], ["a"], "full"), 10_000),
    ]
    for work in works:
        with suppress(TableError):
            work()
    assert msgspec.json.encode(rows) == before


def test_numbers_with_equal_hashes_are_different_keys_without_comparisons() -> None:
    """Python hashes k * (2**61 - 1) to 0 for every k, so that 20,000 such keys would be compared 200 million times."""
    flood = [number * (2**61 - 1) for number in range(1, 20_001)]
    keys = [tables.key_of(value, "k", 0) for value in flood]
    assert len(set(keys)) == len({hash(key) for key in keys}) == len(flood)
    rows = [{"k": value} for value in flood]
    assert group_rows(rows, ["k"], {}) == rows
    assert join_rows(rows, rows, Join(["k"], ["k"]), 100_000) == rows


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (2**60, float(2**60), True),
        (-(2**61), -float(2**61), True),
        (2**70, 1.1805916207174113e21, True),
        (2**60 + 1, float(2**60), False),
        (10**400, 10**400, True),
        (5, 5.0, True),
        (0, -0.0, True),
        (0.5, 0.5, True),
        (0.5, "0.5", False),
        (2**60, hex(2**60), False),
        (1, True, False),
    ],
)
def test_large_numbers_are_one_key_if_they_are_equal(one: Any, other: Any, equal: bool) -> None:
    assert (tables.key_of(one, "k", 0) == tables.key_of(other, "k", 0)) is equal
    grouped = group_rows([{"k": one}, {"k": other}], ["k"], {})
    assert [type(row["k"]) for row in grouped] == ([type(one)] if equal else [type(one), type(other)])


def test_a_sort_in_parts_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SORTED_AT_ONCE", 3)
    rows = of("k", *[3, 1, None, 2, 1, 3, 2, 2, 1, None, 3])
    assert numbers(sort_rows(rows, [SortKey("k")])) == [1, 4, 8, 3, 6, 7, 0, 5, 10, 2, 9]
    assert numbers(sort_rows(rows, [SortKey("k", "desc")])) == [0, 5, 10, 3, 6, 7, 1, 4, 8, 2, 9]
