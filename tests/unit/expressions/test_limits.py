"""Depth is measured without recursion, and results are plain JSON or refused."""

from __future__ import annotations

from typing import Any

import pytest
from markupsafe import Markup

from tests.fixtures.scopes import is_plain
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.limits import DEPTH_MAX, deeper_than
from tidemill.expressions.templates.limits import text, to_json_value


def nest(levels: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else kind([value])
    return value


@pytest.mark.parametrize("kind", [list, dict, tuple])
def test_depth_is_bounded(kind: type) -> None:
    assert not deeper_than(nest(DEPTH_MAX, kind))
    assert deeper_than(nest(DEPTH_MAX + 1, kind))
    assert deeper_than(nest(100_000, kind))
    assert to_json_value(nest(DEPTH_MAX, kind))
    with pytest.raises(ExpressionError, match="nested"):
        to_json_value(nest(DEPTH_MAX + 1, kind))


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [[], {}]])
def test_small_values_are_not_deep(value: Any) -> None:
    assert not deeper_than(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Markup("<b>"), "<b>"),
        ({"a": Markup("x")}, {"a": "x"}),
        ({Markup("k"): 1}, {"k": 1}),
        ([True, None, 0.5, 10**30], [True, None, 0.5, 10**30]),
    ],
)
def test_what_is_harmless_is_converted(value: Any, expected: Any) -> None:
    found = to_json_value(value)
    assert found == expected
    assert is_plain(found)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        [float("-inf")],
        {1: 2},
        {"a": {None: 1}},
        object(),
        {1, 2},
        b"x",
        1j,
        range(2),
        (x for x in ()),
        {}.keys(),
        "\ud800",
        {"\udfff": 1},
        [print],
        "x" * ((1 << 20) + 1),
    ],
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(ExpressionError):
        to_json_value(value)


def test_text_is_what_jinja_prints() -> None:
    assert [text(each) for each in (None, True, 1, 0.5, "x", [1, "a"])] == ["None", "True", "1", "0.5", "x", "[1, 'a']"]
