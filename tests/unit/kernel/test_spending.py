"""Arithmetic of budgets: limits that both hold, what is left, what is used up, and the part of a child run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.kernel.spending import Budget, Spend, as_spend, cut, exhausted, left_of, share_of, stricter

AMOUNTS = st.builds(Spend, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
LIMIT = st.none() | st.integers(0, 50)
BUDGETS = st.builds(Budget, LIMIT, LIMIT, LIMIT)


@given(AMOUNTS, AMOUNTS)
def test_what_is_added_can_be_taken_away(one: Spend, other: Spend) -> None:
    assert one + other - other == one


def test_of_two_budgets_the_stricter_limit_holds() -> None:
    assert stricter(Budget(5, None, 7), Budget(3, 9, None)) == Budget(3, 9, 7)
    assert stricter(None, None) == Budget()


def test_nothing_less_than_nothing_is_left() -> None:
    assert left_of(Budget(5, None, 10), Spend(7, 100, 4)) == Budget(0, None, 6)


@pytest.mark.parametrize(
    ("left", "wanted", "name"),
    [
        (Budget(0, 5, 5), Spend(1, 1, 1), "calls"),
        (Budget(1, 0, 5), Spend(1, 1, 1), "tokens"),
        (Budget(1, 1, 0), Spend(1, 1, 1), "money"),
        (Budget(1, 1, 9), Spend(1, 1, 0), "prices"),
        (Budget(1, 1, None), Spend(1, 1, 0), ""),
        (Budget(1, 1, 1), Spend(1, 900, 900), ""),
        (Budget(), Spend(10**9, 10**9, 10**9), ""),
    ],
)
def test_a_call_is_refused_when_nothing_is_left_of_what_it_spends(left: Budget, wanted: Spend, name: str) -> None:
    assert exhausted(left, wanted) == name


@given(AMOUNTS, BUDGETS)
def test_a_reservation_is_never_more_than_what_is_left(wanted: Spend, left: Budget) -> None:
    reserved = cut(wanted, left)
    amounts, limits = (reserved.calls, reserved.tokens, reserved.micros), (left.calls, left.tokens, left.micros)
    for amount, limit in zip(amounts, limits, strict=True):
        assert limit is None or amount <= limit


@given(BUDGETS, BUDGETS)
def test_the_part_of_a_child_is_within_what_is_left(wanted: Budget, left: Budget) -> None:
    part = share_of(wanted, left)
    assert share_of(None, left) == left
    assert cut(as_spend(part), left) == as_spend(part)
