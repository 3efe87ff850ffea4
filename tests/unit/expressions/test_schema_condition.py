"""The condition that asks whether the output matches a schema."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.scopes import AFTER, SCOPE, evaluate
from tests.pace import allowed
from tidemill.expressions.conditions import EvaluationRequest, decide_leaf, normal, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.schema_condition import Matching

DONE = {
    "type": "object",
    "required": ["status", "data"],
    "properties": {"status": {"const": "success"}, "data": {"type": "array", "minItems": 1}},
}


def matching(schema: Any, **more: Any) -> Matching:
    condition, problems = parse_condition({"type": "schema_validation", "schema": schema, **more})
    assert not problems
    assert isinstance(condition, Matching)
    return condition


def decided(schema: Any, output: Any, **more: Any) -> bool:
    return evaluate(matching(schema, **more), replace(AFTER, output=output)).value


@pytest.mark.parametrize(
    ("schema", "output", "expected"),
    [
        (DONE, {"status": "success", "data": [1]}, True),
        (DONE, {"status": "success", "data": []}, False),
        (DONE, {"status": "failed", "data": [1]}, False),
        (True, None, True),
        (False, {}, False),
        ({"type": "integer"}, 3.0, True),
        ({"type": "integer"}, True, False),
        ({"type": "string", "pattern": "^a+$"}, "aa", True),
    ],
)
def test_the_output_is_matched(schema: Any, output: Any, expected: bool) -> None:
    assert decided(schema, output) is expected
    assert decided(schema, output, invert=True) is not expected
    assert decided(schema, output, invert=False) is expected


def test_the_reason_names_the_schema() -> None:
    scope = replace(AFTER, output=1)
    assert evaluate(matching({"type": "integer"}), scope).reason == "the output's match with the schema is true"
    titled = evaluate(matching({"title": "Order", "type": "string"}, invert=True), scope)
    assert titled.reason == 'the output\'s mismatch with the schema "Order" is true, since it does not keep `type`'


@pytest.mark.parametrize(
    ("schema", "output", "since"),
    [
        (DONE, {"status": "success"}, ', since it has no key "data"'),
        (DONE, {"status": "secret", "data": [1]}, ", since /status does not keep `const`"),
        ({"properties": {"a": {"required": ["b"]}}}, {"a": {}}, ', since /a has no key "b"'),
        ({"items": {"type": "string"}}, ["x", 1], ", since /1 does not keep `type`"),
        (False, 1, ", since it does not keep `false`"),
    ],
)
def test_a_mismatch_says_where_it_is_and_never_the_value(schema: Any, output: Any, since: str) -> None:
    scope = replace(AFTER, output=output)
    assert evaluate(matching(schema), scope).reason == f"the output's match with the schema is false{since}"
    assert evaluate(matching(schema, invert=True), scope).reason.endswith(f" is true{since}")


def test_a_mismatch_is_explained_only_if_that_ends_soon() -> None:
    """The library lists all that is wrong below an `anyOf`, once for every item."""
    schema = {"anyOf": [{"items": {"anyOf": [{"const": number} for number in range(130)]}}]}
    began = time.thread_time()
    assert evaluate(matching(schema), replace(AFTER, output=["x" * 30] * 30)).reason.endswith("`anyOf`")
    assert time.thread_time() - began < allowed(0.2)
    long = "the output's match with the schema is false"
    assert evaluate(matching(schema), replace(AFTER, output=["x"] * 31)).reason == long
    assert evaluate(matching(schema), replace(AFTER, output=["x" * 1025])).reason == long
    assert evaluate(matching(schema | {"title": "x" * 2000}), replace(AFTER, output=["x"])).reason.endswith("is false")


def test_the_normal_form_is_stable() -> None:
    condition = matching(DONE)
    assert normal(condition) == {"type": "schema_validation", "schema": DONE, "invert": False}
    again, problems = parse_condition(normal(condition))
    assert not problems
    assert again is not None
    assert normal(again) == normal(condition)


def test_it_refers_to_the_output_and_needs_one() -> None:
    assert matching(DONE).references.roots == {"output"}
    with pytest.raises(ExpressionError, match="output is not available here"):
        evaluate(matching(DONE), SCOPE)


@pytest.mark.parametrize("invert", [True, False])
@pytest.mark.parametrize("value", ["\ud800", {1: 2}], ids=["surrogate", "key"])
def test_a_value_that_is_not_json_is_an_error_and_no_mismatch(value: Any, invert: bool) -> None:
    scope = replace(AFTER, output=value)
    condition = matching({"type": "object"}, invert=invert)
    with pytest.raises(ExpressionError, match="not JSON"):
        condition.holds(condition.bind(scope), scope)


def test_deep_data_is_an_error() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    with pytest.raises(ExpressionError, match="nested more than"):
        decided({"type": "array"}, deep)


@pytest.mark.parametrize(
    ("raw", "code", "path", "message"),
    [
        ({}, "condition_shape", "", "needs a schema"),
        ({"schema": DONE, "schema_ref": "sha256:x"}, "condition_shape", "/schema_ref", "a schema and a schema_ref"),
        ({"schema_ref": "sha256:x"}, "condition_shape", "/schema_ref", "has not been replaced"),
        ({"schema": DONE, "invert": "yes"}, "condition_shape", "/invert", "true or false, not a string"),
        ({"schema": DONE, "inverted": True}, "condition_shape", "/inverted", "no key"),
        ({"schema": []}, "schema_invalid", "/schema", "a schema is an object"),
        (
            {"schema": {"items": {"$ref": "http://x.example/s"}}},
            "schema_invalid",
            "/schema/items/$ref",
            "Tidemill fetches",
        ),
    ],
)
def test_what_is_wrong_is_reported_where_it_is(raw: Any, code: str, path: str, message: str) -> None:
    condition, problems = parse_condition({"type": "schema_validation", **raw}, "/when")
    assert condition is None
    assert problems[0].code == code
    assert problems[0].path == f"/when{path}"
    assert message in problems[0].message


def test_every_problem_is_reported() -> None:
    raw = {"type": "schema_validation", "schema": {"type": "x", "minimum": "y"}, "invert": 1, "zzz": 1}
    _, problems = parse_condition(raw)
    assert {problem.path for problem in problems} == {"/schema/type", "/schema/minimum", "/invert", "/zzz"}


@pytest.mark.parametrize(
    ("schema", "light"),
    [
        (DONE, True),
        ({"pattern": "^[A-Z]{3}-[0-9]{6}$"}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, False),
        ({"properties": {"a": {"$dynamicRef": "#x"}}, "$dynamicAnchor": "x"}, False),
        ({"pattern": "a.{900}z"}, False),
        ({"pattern": "(a{20}){20}"}, False),
        ({"pattern": "^(?=a)a+$"}, False),
        ({"allOf": [{"minimum": each} for each in range(2000)]}, False),
    ],
)
def test_what_is_light_is_known_from_the_schema(schema: Any, light: bool) -> None:
    assert matching(schema).light is light


def test_much_is_decided_elsewhere() -> None:
    condition = matching({"items": {"type": "integer"}})
    scope = replace(AFTER, output=list(range(2000)))
    assert isinstance(next(decide_leaf(condition, scope)), EvaluationRequest)
