"""The union of conditions: reading, normal form, deciding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.scopes import AFTER, evaluate
from tidemill.expressions.cel.evaluate import Cel
from tidemill.expressions.conditions import Composite, Condition, compiled, normal, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import Absent, Scope, Seen

YES, NO, BROKEN = "output.score > 1", "output.score < 1", "output.missing > 1"


def parsed(raw: Any) -> Condition:
    condition, problems = parse_condition(raw, "")
    assert condition is not None, problems
    return condition


def all_of(*parts: Any) -> dict[str, Any]:
    return {"type": "composite", "operator": "AND", "conditions": list(parts)}


def any_of(*parts: Any) -> dict[str, Any]:
    return {"type": "composite", "operator": "OR", "conditions": list(parts)}


def none_of(*parts: Any) -> dict[str, Any]:
    return {"type": "composite", "operator": "NOT", "conditions": list(parts)}


def test_a_plain_string_is_cel() -> None:
    assert parsed(YES) == parsed({"type": "cel", "expression": YES})
    assert normal(parsed(YES)) == {"type": "cel", "expression": YES}


def test_the_normal_form_writes_everything_out() -> None:
    cel = {"type": "cel", "expression": YES}
    raw = all_of(YES, any_of(NO, none_of(YES)))
    expected = all_of(cel, any_of({"type": "cel", "expression": NO}, none_of(cel)))
    assert normal(parsed(raw)) == expected
    assert normal(parsed(expected)) == expected, "it is its own normal form"


@pytest.mark.parametrize(
    ("raw", "value", "reason"),
    [
        (YES, True, "output.score > 1 is true"),
        (NO, False, "output.score < 1 is false"),
        ({"type": "cel", "expression": YES}, True, "output.score > 1 is true"),
        (all_of(YES, YES), True, "AND: all 2 parts are true"),
        (all_of(YES, NO, YES), False, "AND, part 2 of 3: output.score < 1 is false"),
        (any_of(NO, YES), True, "OR, part 2 of 2: output.score > 1 is true"),
        (any_of(NO, NO), False, "OR: all 2 parts are false"),
        (none_of(NO), True, "NOT: output.score < 1 is false"),
        (none_of(all_of(YES, NO)), True, "NOT: AND, part 2 of 2: output.score < 1 is false"),
        (any_of(NO, all_of(YES, none_of(NO))), True, "OR, part 2 of 2: AND: all 2 parts are true"),
        # Short circuit: what is not needed is not evaluated.
        (all_of(NO, BROKEN), False, "AND, part 1 of 2: output.score < 1 is false"),
        (any_of(YES, BROKEN), True, "OR, part 1 of 2: output.score > 1 is true"),
    ],
)
def test_a_condition_decides(raw: Any, value: bool, reason: str) -> None:
    verdict = evaluate(parsed(raw), AFTER)
    assert verdict.value is value
    assert verdict.reason == reason


@pytest.mark.parametrize("raw", [BROKEN, all_of(YES, BROKEN), any_of(NO, BROKEN), any_of(BROKEN, YES), none_of(BROKEN)])
def test_an_error_decides_nothing(raw: Any) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(parsed(raw), AFTER)
    assert caught.value.code == "condition_failed"


def test_the_references_of_the_parts_are_united() -> None:
    condition = parsed(all_of("ctx.a.output == 1", any_of("inputs.x == 1", none_of("ctx[inputs.y].output == 1"))))
    assert condition.references.nodes == {"a"}
    assert condition.references.roots == {"ctx", "inputs"}
    assert condition.references.dynamic


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (None, [("condition_shape", "")]),
        ([YES], [("condition_shape", "")]),
        ({}, [("condition_shape", "")]),
        ({"expression": YES}, [("condition_shape", "")]),
        ({"type": "cel"}, [("condition_shape", "")]),
        ({"type": "cel", "expression": 1}, [("condition_shape", "")]),
        ({"type": "cel", "expression": YES, "expresion": 1}, [("condition_shape", "/expresion")]),
        ({"type": "nope"}, [("condition_unknown_kind", "/type")]),
        ("foo > 1", [("condition_unknown_name", "")]),
        ({"type": "cel", "expression": "foo > 1"}, [("condition_unknown_name", "/expression")]),
        ({"type": "cel", "expression": "1 +"}, [("condition_syntax", "/expression")]),
        ({"type": "composite"}, [("condition_shape", "/operator"), ("condition_shape", "/conditions")]),
        (all_of(), [("condition_shape", "/conditions")]),
        (none_of(YES, YES), [("condition_shape", "/conditions")]),
        ({**all_of(YES), "operator": "XOR"}, [("condition_shape", "/operator")]),
        ({**all_of(YES), "conditions": YES}, [("condition_shape", "/conditions")]),
        (all_of(*[YES] * 501), [("condition_shape", "/conditions")]),
        (
            all_of("foo > 1", {"type": "nope"}, any_of(1, "1 +")),
            [
                ("condition_unknown_name", "/conditions/0"),
                ("condition_unknown_kind", "/conditions/1/type"),
                ("condition_shape", "/conditions/2/conditions/0"),
                ("condition_syntax", "/conditions/2/conditions/1"),
            ],
        ),
    ],
)
def test_every_problem_is_reported_with_its_place(raw: Any, found: list[tuple[str, str]]) -> None:
    condition, problems = parse_condition(raw, "/when")
    assert condition is None
    assert [(problem.code, problem.path) for problem in problems] == [(code, f"/when{path}") for code, path in found]
    with pytest.raises(ExpressionError):
        compiled(raw)


@pytest.mark.parametrize(
    ("raw", "path", "hint"),
    [
        ("'{{ inputs.x }}' == 'a'", "/when", "write inputs.x == 'a'"),
        ("'{{ first.output.x }}' == 'a'", "/when", "write ctx.first.output.x == 'a'"),
        ("'id-{{ inputs.x }}' == output.id", "/when", "+ joins texts"),
        ("'{{ secrets.KEY }}' == output.id", "/when", "write names as they are"),
        (
            all_of(YES, {"type": "cel", "expression": "output.x == '{{ inputs.x }}'"}),
            "/when/conditions/1/expression",
            "write output.x == inputs.x",
        ),
        (
            {"type": "jsonpath", "query": "$.x", "operator": "==", "value": "{{ inputs.x }}"},
            "/when/value",
            "output.x == inputs.y",
        ),
        (
            {
                "type": "cross_node_comparison",
                "left": {"path": "output.x"},
                "operator": "==",
                "right": {"value": "{{ inputs.x }}"},
            },
            "/when/right",
            "output.x == inputs.y",
        ),
    ],
)
def test_a_template_in_a_condition_is_refused(raw: Any, path: str, hint: str) -> None:
    condition, (problem,) = parse_condition(raw, "/when")
    assert condition is None
    assert (problem.code, problem.path) == ("condition_syntax", path)
    assert "conditions are not templates" in problem.message
    assert hint in problem.hint
    assert compiled(raw), "a workflow that is stored with it keeps its meaning"


def test_braces_may_be_searched_for() -> None:
    assert parsed("output.text.contains('{{')")


def test_conditions_are_not_nested_endlessly() -> None:
    raw: Any = YES
    for _ in range(20):
        raw = none_of(raw)
    assert parse_condition(raw, "")[1] == []
    deep = raw
    for _ in range(100_000):
        deep = none_of(deep)
    assert [problem.code for problem in parse_condition(deep, "")[1]] == ["condition_shape"]
    with pytest.raises(ExpressionError):
        compiled(deep)


def test_the_compiled_form_is_cached_by_content() -> None:
    assert compiled(YES) is compiled(YES)
    first = compiled({"type": "cel", "expression": NO})
    assert compiled({"expression": NO, "type": "cel"}) is first
    assert isinstance(first, Cel)
    assert isinstance(compiled(all_of(YES)), Composite)
    assert evaluate(compiled(normal(parsed(all_of(YES, YES)))), AFTER).value


# A condition of every kind as authors write them, each with values for which it holds and for which it does not


Nodes = dict[str, Any]

WAITING: Any = {
    "type": "object",
    "required": ["status", "data"],
    "properties": {"status": {"const": "success"}, "data": {"type": "array", "minItems": 1}},
}
RETRYABLE: Any = {"type": "object", "required": ["retry_token"]}

CEL = {"type": "cel", "expression": "output.status != 200 && output.retry_count < 5"}
CEL_WITH_CONTEXT = {"type": "cel", "expression": "output.score >= 80 && ctx.enrich_data.output.revenue > 100000"}
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
