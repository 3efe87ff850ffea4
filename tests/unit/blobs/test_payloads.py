"""The one door through which values enter the log: what is JSON passes unchanged, all else is refused with a place."""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.blobs.payloads import NotJson, decode_value, encode_given, encode_value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_json_passes_unchanged(value: Any) -> None:
    text = encode_value(value)
    assert decode_value(text) == value
    assert json.loads(text) == value


@given(JSON)
def test_what_is_given_is_written_as_it_is(value: Any) -> None:
    assert encode_given(value) == encode_value(value)


def test_sets_that_are_given_have_the_same_order_in_every_process() -> None:
    code = (
        "from tidemill.blobs.payloads import encode_given\n"
        "words = {f'word {n}' for n in range(20)}\n"
        "value = {'z': [words, (1, 2)], 'a': {frozenset({'x', 'y'}), (3, 1), None, 7, 'seven'}}\n"
        "print(encode_given(value).decode())"
    )

    def told(seed: str) -> bytes:
        return subprocess.check_output([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed})

    first = told("1")
    assert first == told("2") == told("3")
    decoded = json.loads(first)
    assert list(decoded) == ["z", "a"]
    assert decoded["z"][0] == sorted(f"word {n}" for n in range(20))
    assert len(decoded["a"]) == 5


@given(JSON, st.sampled_from([math.nan, math.inf, -math.inf]), st.lists(st.booleans(), max_size=4))
def test_what_json_has_no_number_for_is_refused_wherever_it_is(value: Any, bad: float, path: list[bool]) -> None:
    poisoned: Any = bad
    for as_list in path:
        poisoned = [value, poisoned] if as_list else {"k": value, "bad": poisoned}
    with pytest.raises(NotJson):
        encode_value(poisoned)


@given(st.text(alphabet=st.characters(categories=["Cs"]), min_size=1), st.sampled_from(["value", "key", "list"]))
def test_lone_surrogates_are_refused(half: str, place: str) -> None:
    with pytest.raises(NotJson):
        encode_value({"value": half, "key": {half: 1}, "list": ["a", ["b", half]]}[place])


def test_integers_are_exact_whatever_their_size() -> None:
    for number in (2**53 + 1, 2**64, -(2**200), 10**400, 10**4_300 - 1):
        assert decode_value(encode_value({"n": number})) == {"n": number}
    with pytest.raises(NotJson, match=r"an integer has more than 4,300 digits$"):
        encode_value({"n": 10**4_300})


def test_the_place_of_what_is_refused_is_named() -> None:
    with pytest.raises(NotJson, match="/a/1/b"):
        encode_value({"a": [0, {"b": math.nan}]})
    with pytest.raises(NotJson, match="the value is inf"):
        encode_value(math.inf)


@pytest.mark.parametrize("value", ["null", "a null b", {"null": 1}, [None], {"a": None, "b": [None, "null"]}, None])
def test_a_null_is_not_mistaken_for_nan(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


def _selfish() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), print, {(1,): 2}, {1j}, _selfish(), _deep(100_000), {"a": object}, (x for x in [1]), ValueError("x")],
)
def test_what_is_no_value_is_refused(value: Any) -> None:
    with pytest.raises(NotJson) as refused:
        encode_value(value)
    assert 0 < len(str(refused.value)) < 1_000


@pytest.mark.parametrize("leaf", [1, None, "text", []])
@pytest.mark.parametrize("as_list", [True, False])
def test_values_may_be_two_hundred_levels_deep(leaf: Any, as_list: bool) -> None:
    def nested(levels: int) -> Any:
        value = leaf
        for _ in range(levels - (leaf == [])):
            value = [value] if as_list else {"k": value}
        return value

    assert decode_value(encode_value(nested(200))) == nested(200)
    for levels in (201, 300, 900, 5_000):
        with pytest.raises(NotJson, match="too deeply"):
            encode_value(nested(levels))


def test_many_brackets_are_not_deep() -> None:
    many: list[Any] = ["[" * 5_000, ["{" * 300] * 300, [[]] * 10_000, {str(i): {"a": [i]} for i in range(1_000)}]
    for value in many:
        assert decode_value(encode_value(value)) == value


@dataclass
class Point:
    x: int
    y: float | None = None


def test_plain_python_values_become_json() -> None:
    assert decode_value(encode_value((1, 2))) == [1, 2]
    assert decode_value(encode_value(Point(1))) == {"x": 1, "y": None}
    assert decode_value(encode_value(datetime.date(2026, 1, 2))) == "2026-01-02"
    assert decode_value(encode_value({1: "a"})) == {"1": "a"}


def test_nan_does_not_hide_in_plain_python_values() -> None:
    with pytest.raises(NotJson):
        encode_value(Point(1, math.nan))
    with pytest.raises(NotJson):
        encode_value([Point(1, 2.0), {"p": (Point(1, math.inf),)}])


def test_a_refusal_is_a_value_error() -> None:
    """Handlers that check their own values catch it as such."""
    assert issubclass(NotJson, ValueError)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}], ids=["nan", "inf", "-inf"])
def test_a_number_that_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(NotJson):
        encode_value(value)
