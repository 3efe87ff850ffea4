"""What operators mean between JSON values, outside of CEL."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pace import allowed
from tidemill.expressions.comparisons import RELATIONS, contains, equal, hopeless, ordered
from tidemill.expressions.errors import ExpressionError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 0.5]) | st.sampled_from(["", "a", "1"]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from("ab"), below, max_size=2),
    max_leaves=6,
)
KINDS: list[Any] = [None, True, 1, "a", [1], {"a": 1}]


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def same(a: Any, b: Any) -> bool:
    """Say the same by recursion."""
    if kind(a) != kind(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


@given(VALUES, VALUES)
def test_equality_is_that_of_json(a: Any, b: Any) -> None:
    assert equal(a, b) is same(a, b) is equal(b, a)
    assert equal(a, a)
    assert RELATIONS["!="](a, b) is not equal(a, b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        (None, False, False),
        (2**53 + 1, float(2**53), False),
        (10**400, 10**400, True),
        ([1, [True]], [1, [1]], False),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": None}, {}, False),
        ([], {}, False),
        ([1, 2], [2, 1], False),
    ],
)
def test_equality(a: Any, b: Any, expected: bool) -> None:
    assert equal(a, b) is expected


def test_equality_knows_no_depth() -> None:
    one: Any = 1
    other: Any = 1
    for _ in range(100_000):
        one, other = [one], [other]
    assert equal(one, other)


@pytest.mark.parametrize(
    ("a", "operator", "b", "expected"),
    [
        (2, ">", 1.5, True),
        (2, ">=", 2.0, True),
        ("b", ">", "a", True),
        ("B", "<", "a", True),
        ("é", ">", "z", True),
        (10**400, ">", 1.5, True),
        (2**53 + 1, ">", float(2**53), True),
        (1, "in", [3, 1.0], True),
        (True, "in", [1], False),
        ("b", "in", "abc", True),
        ("b", "in", {"b": None}, True),
        ([1], "in", [[1.0]], True),
        ([3, {"a": 1}], "contains", {"a": 1.0}, True),
        ("abc", "contains", "", True),
    ],
)
def test_an_operator_answers(a: Any, operator: str, b: Any, expected: bool) -> None:
    assert RELATIONS[operator](a, b) is expected


@pytest.mark.parametrize("operator", [">", "<", ">=", "<="])
def test_order_exists_between_numbers_and_between_strings_only(operator: str) -> None:
    for a in KINDS:
        for b in KINDS:
            if {kind(a), kind(b)} in ({"number"}, {"str"}):
                assert isinstance(ordered(operator, a, b), bool)
                continue
            with pytest.raises(ExpressionError) as caught:
                ordered(operator, a, b)
            assert caught.value.code == "condition_failed"
            assert f"{operator} does not compare" in caught.value.message
            assert caught.value.hint


@pytest.mark.parametrize("holder", [None, True, 1, 2.5])
def test_what_holds_nothing_has_no_answer(holder: Any) -> None:
    with pytest.raises(ExpressionError, match="cannot contain"):
        contains(holder, "a")


@pytest.mark.parametrize("holder", ["abc", {"a": 1}])
def test_strings_and_objects_contain_strings_only(holder: Any) -> None:
    with pytest.raises(ExpressionError, match="cannot contain a number"):
        contains(holder, 1)


def test_a_failure_tells_kinds_and_no_values() -> None:
    with pytest.raises(ExpressionError) as caught:
        ordered(">", "s3cr3t-value", 4711)
    assert caught.value.message == "> does not compare a string with a number"
    assert "s3cr3t" not in str(caught.value)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("operator", RELATIONS)
def test_what_is_hopeless_never_answers_and_what_is_not_sometimes_does(operator: str) -> None:
    def answers(a: Any, b: Any) -> bool:
        try:
            RELATIONS[operator](a, b)
        except ExpressionError:
            return False
        return True

    for value in KINDS:
        assert bool(hopeless(operator, value, "left")) is not any(answers(value, other) for other in KINDS)
        assert bool(hopeless(operator, value, "right")) is not any(answers(other, value) for other in KINDS)


def test_long_texts_are_searched_in_linear_time() -> None:
    began = time.thread_time()
    assert not contains("a" * 200_000, "a" * 100_000 + "b")
    assert time.thread_time() - began < allowed(1)
