"""Operands that can never fit together are found before anything runs; what is not certain is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.scopes import evaluate
from tidemill.errors import Problem
from tidemill.expressions.cel.ast import Chain
from tidemill.expressions.cel.evaluate import ROOTS, Cel, parse_cel
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.schema_analysis import Kinds, MissingKey, expected
from tidemill.expressions.scope import Scope
from tidemill.expressions.type_check import Mismatch, mismatches

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "amount": {"type": "integer"},
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "name": {"type": "string"},
        "flag": {"type": "boolean"},
        "word": {"enum": ["yes", "no"]},
        "rows": {"type": "array"},
        "order": {"$ref": "#/$defs/order"},
        "loose": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "maybe": {"type": ["string", "null"]},
        "mixed": {"type": ["string", "integer"]},
        "open": {},
        "far": {"$ref": "https://example.com/schema"},
        "circle": {"$ref": "#/properties/circle"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "$defs": {
        "order": {"type": "object", "properties": {"total": {"type": "number"}}, "additionalProperties": False},
    },
}


def look(chain: Chain) -> Kinds | MissingKey | None:
    return expected(SCHEMA, chain.keys) if chain.root == "inputs" else None


def found(expression: str) -> list[Mismatch]:
    problems: list[Problem] = []
    cel = parse_cel(expression, "", problems)
    assert isinstance(cel, Cel), problems
    return mismatches(cel.syntax, ROOTS, look)


NEVER = [
    ("inputs.amount > 'x'", "> does not take inputs.amount (an integer) and a string"),
    ("inputs.name < inputs.amount", "< does not take inputs.name (a string) and inputs.amount (an integer)"),
    ("inputs.amount == '5'", "== does not take inputs.amount (an integer) and a string"),
    ("inputs.word == 1", "== does not take inputs.word (a string) and an integer"),
    ("inputs.count + 0.5 > 1.0", "+ does not take inputs.count (an integer) and a double"),
    ("inputs.price % inputs.name == 0", "% does not take inputs.price (a number) and inputs.name (a string)"),
    ("-inputs.name == 1", "- does not take inputs.name (a string)"),
    ("inputs.name", "a condition must be true or false, and inputs.name (a string) never is"),
    ("inputs.name && inputs.flag", "&& does not take inputs.name (a string)"),
    ("!inputs.name", "! does not take inputs.name (a string)"),
    ("inputs.name ? true : false", "? : does not take inputs.name (a string)"),
    ("1 in inputs.amount", "in does not take inputs.amount (an integer)"),
    ("inputs.amount.startsWith('x')", "startsWith does not take inputs.amount (an integer)"),
    ("inputs.amount.all(x, x > 0)", "inputs.amount (an integer) has no items to go through"),
    ("inputs.nope == 1", 'inputs never has a key "nope"'),
    ("inputs.order.totl > 1.0", 'inputs.order never has a key "totl"'),
    ("inputs.amount.value > 1", 'inputs.amount is an integer, so it has no key "value"'),
    ("output.all(x, x > 0 && inputs.name > 1)", "> does not take inputs.name (a string) and an integer"),
    ("has(inputs.name) && inputs.amount > 'x'", "> does not take inputs.amount (an integer) and a string"),
]


@pytest.mark.parametrize(("expression", "message"), NEVER)
def test_what_can_never_work_is_told(expression: str, message: str) -> None:
    assert [each.message for each in found(expression)] == [message]


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("inputs.count + 0.5 > 1.0", "double(x)"),
        ("inputs.amount == '5'", "convert"),
        ("inputs.order.totl > 1.0", 'did you mean "total"?'),
        ("inputs.name", "compare the value"),
    ],
)
def test_a_mismatch_says_what_to_do(expression: str, hint: str) -> None:
    assert hint in found(expression)[0].hint


@pytest.mark.parametrize(
    "expression",
    [
        "inputs.amount > 5.5",
        "inputs.price * 2 > 3",
        "inputs.name == 'x' || inputs.flag",
        "inputs.name + 'x' == inputs.word",
        "inputs.maybe == null",
        "inputs.name == null",
        "inputs.mixed > 3",
        "inputs.open",
        "inputs.open.deep > 1",
        "inputs.far.key > 1",
        "inputs.circle > 1",
        "inputs.loose.other == 1",
        "has(inputs.nope)",
        "has(inputs.nope) && inputs.nope == 1",
        "'nope' in inputs && inputs.nope == 1",
        "inputs.?nope.orValue(1) == 1",
        "dyn(inputs.amount) == '5'",
        "double(inputs.count) + 0.5 > 1.0",
        "inputs.rows.exists(name, name == 1 && inputs.name == 'x')",
        "inputs.order.total > 1 ? inputs.flag : !inputs.flag",
        "output > 'x' || output > 1",
        "inputs.rows[0] == 'x' || inputs.rows[0] > 1",
        "inputs.rows.map(inputs, inputs.nope == 1) == []",
        "size(inputs.rows) > 0 && inputs.rows + [1] == [1]",
        "'x' in inputs.rows && 'x' in inputs.order",
        # Lists, objects and computed values are left to the evaluation.
        "inputs.rows > inputs.rows",
        "inputs.name + inputs.word == inputs.count",
    ],
)
def test_nothing_is_said_of_what_may_work(expression: str) -> None:
    assert found(expression) == []


def test_the_same_mistake_is_told_once() -> None:
    assert len(found("inputs.nope == 1 || inputs.nope == 2")) == 1


@pytest.mark.parametrize(
    ("schema", "keys", "kinds"),
    [
        (True, ("a",), None),
        (None, (), None),
        ({"type": "integer"}, (), {"int"}),
        ({"type": "number"}, (), {"int", "double"}),
        ({"type": ["null", "object"]}, ("a",), None),
        ({"const": 1.0}, (), {"int"}),
        ({"enum": [1, 2.5, None]}, (), {"int", "double", "null"}),
        ({"type": "nonsense"}, (), None),
        ({"type": 5}, (), None),
        ({"properties": 5}, ("a",), None),
        ({"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"type": "string"}}}, ("a",), {"string"}),
        ({"properties": {"a": {"$id": "other", "type": "string"}}}, ("a",), None),
        ({"additionalProperties": False, "patternProperties": {"^x": {}}}, ("a",), None),
    ],
)
def test_what_a_schema_promises(schema: Any, keys: tuple[str, ...], kinds: set[str] | None) -> None:
    assert expected(schema, keys) == (None if kinds is None else frozenset(kinds))


def test_a_schema_says_where_a_chain_ends() -> None:
    assert expected(SCHEMA, ("order", "x", "y")) == MissingKey(1, frozenset({"map"}), ("total",))
    assert expected(SCHEMA, ("name", "x")) == MissingKey(1, frozenset({"string"}))


VALUES = {
    "amount": st.integers(-9, 9),
    "count": st.integers(-9, 9),
    "price": st.one_of(st.integers(-9, 9), st.floats(-9, 9)),
    "name": st.text(max_size=3),
    "flag": st.booleans(),
    "word": st.sampled_from(["yes", "no"]),
    "rows": st.lists(st.integers(0, 3), max_size=3),
    "order": st.fixed_dictionaries({"total": st.floats(0, 9)}),
}


@pytest.mark.parametrize("expression", [expression for expression, _ in NEVER if "output" not in expression])
@given(inputs=st.fixed_dictionaries(VALUES))
@settings(max_examples=15, deadline=None)
def test_what_can_never_work_never_does(expression: str, inputs: Any) -> None:
    """For any inputs that follow the schema, it fails, or it asks something that has one answer only."""
    problems: list[Problem] = []
    cel = parse_cel(expression, "", problems)
    assert cel is not None
    try:
        answer = evaluate(cel, Scope(nodes={}, inputs=inputs, run={})).value
    except ExpressionError:
        return
    assert any(operator in expression for operator in ("==", "!=", "&&", "in "))
    assert answer is ("!=" in expression)
