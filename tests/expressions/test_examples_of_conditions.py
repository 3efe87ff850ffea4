"""A condition of every kind as authors write them, each with values for which it holds and for which it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.expressions.scopes import evaluate
from tidemill.expressions.conditions import normal, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import Absent, Scope, Seen

Nodes = dict[str, Any]

WAITING: Any = {
    "type": "object",
    "required": ["status", "data"],
    "properties": {"status": {"const": "success"}, "data": {"type": "array", "minItems": 1}},
}
RETRYABLE: Any = {"type": "object", "required": ["retry_token"]}

CEL = {"type": "cel", "expression": "output.status != 200 && output.retry_count < 5"}
CEL_WITH_CONTEXT = {"type": "cel", "expression": "output.score >= 80 && ctx.enrich_data.output.revenue > 100000"}
TERNARY = {"type": "cel", "expression": "(output.x > 10 ? 'high' : 'low') == 'high'"}
STRINGS = {
    "type": "cel",
    "expression": "output.name.startsWith('a') && output.name.contains('-') && output.name.endsWith('z')",
}
LISTS = {"type": "cel", "expression": "'vip' in output.tags && output.tags.all(t, t != 'blocked')"}
ARITHMETIC = {"type": "cel", "expression": "(output.a + output.b) * 2 - output.a / 2 > output.b % 3"}
UNTIL_VALID = {"type": "schema_validation", "schema": WAITING, "invert": True}
LARGE_CUSTOMERS = {
    "type": "jsonpath",
    "query": "$.data.customers[?(@.tier == 'enterprise')].length()",
    "operator": ">",
    "value": 0,
}
MUCH_MONEY = {"type": "jsonpath", "query": "$.transactions[*].amount", "operator": "sum_gt", "value": 10000}
BETTER = {
    "type": "cross_node_comparison",
    "left": {"source": "current", "path": "output.final_score"},
    "operator": ">",
    "right": {"source": "context", "node": "initial_score", "path": "output.score"},
}
ABOVE_FORECAST = {
    "type": "cross_node_comparison",
    "expression": "(current.output.revenue - ctx.forecast.output.predicted_revenue)"
    " / ctx.forecast.output.predicted_revenue > 0.1",
}
RETRY = {
    "type": "composite",
    "operator": "AND",
    "conditions": [
        {"type": "cel", "expression": "output.status != 'success'"},
        {"type": "jsonpath", "query": "$.errors.length()", "operator": "<", "value": 3},
        {"type": "schema_validation", "schema": RETRYABLE},
    ],
}
GOOD_OR_KNOWN = {
    "type": "composite",
    "operator": "OR",
    "conditions": [
        {"type": "cel", "expression": "output.score >= 80"},
        {
            "type": "cross_node_comparison",
            "left": {"source": "context", "node": "referral_check", "path": "output.is_referral"},
            "operator": "==",
            "right": {"value": True},
        },
    ],
}


def customers(*tiers: str) -> Any:
    return {"data": {"customers": [{"tier": tier} for tier in tiers]}}


def amounts(*values: float) -> Any:
    return {"transactions": [{"amount": value} for value in values]}


CASES: list[tuple[Any, Any, Nodes, bool]] = [
    ("output.score >= 80", {"score": 80}, {}, True),
    ("output.score >= 80", {"score": 79.9}, {}, False),
    (CEL, {"status": 503, "retry_count": 4}, {}, True),
    (CEL, {"status": 503, "retry_count": 5}, {}, False),
    (CEL, {"status": 200, "retry_count": 0}, {}, False),
    (CEL_WITH_CONTEXT, {"score": 80}, {"enrich_data": {"revenue": 100001}}, True),
    (CEL_WITH_CONTEXT, {"score": 80}, {"enrich_data": {"revenue": 100000.0}}, False),
    (CEL_WITH_CONTEXT, {"score": 79}, {}, False),
    (TERNARY, {"x": 11}, {}, True),
    (TERNARY, {"x": 10}, {}, False),
    (STRINGS, {"name": "a-z"}, {}, True),
    (STRINGS, {"name": "az"}, {}, False),
    (LISTS, {"tags": ["vip", "new"]}, {}, True),
    (LISTS, {"tags": ["vip", "blocked"]}, {}, False),
    (ARITHMETIC, {"a": 4, "b": 5}, {}, True),
    (ARITHMETIC, {"a": 4, "b": -4}, {}, False),
    (UNTIL_VALID, {"status": "success", "data": [1]}, {}, False),
    (UNTIL_VALID, {"status": "success", "data": []}, {}, True),
    (UNTIL_VALID, {"status": "pending"}, {}, True),
    (LARGE_CUSTOMERS, customers("free", "enterprise"), {}, True),
    (LARGE_CUSTOMERS, customers("free", "team"), {}, False),
    (LARGE_CUSTOMERS, {}, {}, False),
    (MUCH_MONEY, amounts(9000, 1000.5), {}, True),
    (MUCH_MONEY, amounts(9000, 1000), {}, False),
    (MUCH_MONEY, amounts(), {}, False),
    (BETTER, {"final_score": 7}, {"initial_score": {"score": 6.5}}, True),
    (BETTER, {"final_score": 7}, {"initial_score": {"score": 7}}, False),
    (ABOVE_FORECAST, {"revenue": 112}, {"forecast": {"predicted_revenue": 100}}, True),
    (ABOVE_FORECAST, {"revenue": 110}, {"forecast": {"predicted_revenue": 100}}, False),
    (RETRY, {"status": "failed", "errors": [1, 2], "retry_token": "t"}, {}, True),
    (RETRY, {"status": "failed", "errors": [1, 2, 3], "retry_token": "t"}, {}, False),
    (RETRY, {"status": "failed", "errors": []}, {}, False),
    (RETRY, {"status": "success"}, {}, False),
    (GOOD_OR_KNOWN, {"score": 10}, {"referral_check": {"is_referral": True}}, True),
    (GOOD_OR_KNOWN, {"score": 10}, {"referral_check": {"is_referral": False}}, False),
    (GOOD_OR_KNOWN, {"score": 90}, {}, True),
]


def scope(output: Any, nodes: Nodes) -> Scope:
    return Scope(
        nodes={name: Seen(value) for name, value in nodes.items()},
        inputs={},
        run={},
        has_output=True,
        output=output,
    )


@pytest.mark.parametrize(("raw", "output", "nodes", "expected"), CASES)
def test_it_holds_or_not(raw: Any, output: Any, nodes: Nodes, expected: bool) -> None:
    condition, problems = parse_condition(raw)
    assert condition is not None, problems
    verdict = evaluate(condition, scope(output, nodes))
    assert verdict.value is expected
    assert verdict.reason.partition(", since ")[0].endswith(("is true", "is false", "are true", "are false"))


@pytest.mark.parametrize("raw", [raw for raw, _, _, expected in CASES if expected])
def test_the_normal_form_means_the_same(raw: Any) -> None:
    condition, _ = parse_condition(raw)
    assert condition is not None
    again, problems = parse_condition(normal(condition))
    assert problems == [] and again is not None
    assert (normal(again), again.references) == (normal(condition), condition.references)


@pytest.mark.parametrize(
    ("raw", "nodes"),
    [
        (CEL_WITH_CONTEXT, {"enrich_data"}),
        (BETTER, {"initial_score"}),
        (ABOVE_FORECAST, {"forecast"}),
        (GOOD_OR_KNOWN, {"referral_check"}),
        (LARGE_CUSTOMERS, set()),
        (UNTIL_VALID, set()),
    ],
)
def test_it_says_which_nodes_it_reads(raw: Any, nodes: set[str]) -> None:
    condition, _ = parse_condition(raw)
    assert condition is not None
    assert (set(condition.references.nodes), condition.references.dynamic) == (nodes, False)


@pytest.mark.parametrize(
    ("raw", "output"),
    [(CEL_WITH_CONTEXT, {"score": 90}), (BETTER, {"final_score": 1}), (ABOVE_FORECAST, {"revenue": 1})],
)
def test_a_node_that_was_skipped_is_an_error_and_no_answer(raw: Any, output: Any) -> None:
    condition, _ = parse_condition(raw)
    assert condition is not None
    (name,) = condition.references.nodes
    looking = Scope(nodes={name: Absent("was skipped")}, inputs={}, run={}, has_output=True, output=output)
    with pytest.raises(ExpressionError, match="was skipped"):
        evaluate(condition, looking)
