"""Conditions whose operands can never fit together are refused where a schema says what they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.authoring import document, node, said
from tidemill.bootstrap import built_in_types
from tidemill.errors import Rejected
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.model import NodeType

INPUTS = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "flag": {"type": "string"}},
    "additionalProperties": False,
}
TYPES = {
    **built_in_types(),
    "score": [NodeType(name="score", output_schema={"type": "object", "properties": {"score": {"type": "integer"}}})],
}
CODE = "def evaluate(output, context):\n    return output > 1\n"
WRONG = "inputs.amount > 'x'"
BOTH = {
    "type": "composite",
    "operator": "AND",
    "conditions": ["inputs.flag == 'y'", {"type": "cel", "expression": WRONG}],
}


def told(*nodes: Any) -> list[tuple[str, str]]:
    """Paths and messages of the problems with types; there must be no others."""
    with pytest.raises(Rejected) as refusal:
        compile_document(document(*nodes, inputs=INPUTS), TYPES)
    assert {problem.code for problem in refusal.value.problems} == {"condition_type"}
    return [(problem.path, problem.message) for problem in refusal.value.problems]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"when": WRONG}, "when"),
        ({"when": {"type": "cel", "expression": WRONG}}, "when/expression"),
        ({"when": BOTH}, "when/conditions/1/expression"),
        ({"loop": {"condition": WRONG, "max_iterations": 2, "timeout_path": ["x"]}}, "loop/condition"),
        ({"branch": {"rules": [{"condition": WRONG, "next_nodes": ["x"]}]}}, "branch/rules/0/condition"),
    ],
)
def test_wherever_a_condition_stands(fields: dict[str, Any], key: str) -> None:
    ((path, message),) = told(node("a", **fields), node("x"))
    assert path == f"/nodes/0/{key}"
    assert message == "node `a`: > does not take inputs.amount (an integer) and a string"


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("inputs.flag", "a condition must be true or false, and inputs.flag (a string) never is"),
        ("inputs.nope == 1", 'inputs never has a key "nope"'),
        ("inputs.amount + 0.5 > 1.0", "+ does not take inputs.amount (an integer) and a double"),
        ("iteration == '1'", "== does not take iteration (an integer) and a string"),
        ("run.version > 'x'", "> does not take run.version (an integer) and a string"),
        ("run.name == 'x'", 'run never has a key "name"'),
        ("ctx.a.meta.attempt > 1", 'ctx.a.meta never has a key "attempt"'),
        ("ctx.a.meta.status == 1", "== does not take ctx.a.meta.status (a string) and an integer"),
        ("ctx.a.output.score == 'high'", "== does not take ctx.a.output.score (an integer) and a string"),
        ("ctx.h.output.decison == 'approve'", 'ctx.h.output never has a key "decison"'),
    ],
)
def test_what_is_known_of_values(condition: str, message: str) -> None:
    found = told(node("a", type="score"), node("h", "a", type="human"), node("b", "h", when=condition))
    assert found == [("/nodes/2/when", f"node `b`: {message}")]


def computed(expression: str) -> dict[str, Any]:
    return {"type": "cross_node_comparison", "expression": expression}


def compared(left: Any, operator: str, right: Any) -> dict[str, Any]:
    return {"type": "cross_node_comparison", "left": left, "operator": operator, "right": right}


def queried(query: str, operator: str, value: Any = 1, source: str = "ctx") -> dict[str, Any]:
    return {"type": "jsonpath", "query": query, "operator": operator, "value": value, "source": source}


SCORE, ATTEMPTS = {"node": "a", "path": "score"}, {"node": "a", "path": "meta.attempts"}


@pytest.mark.parametrize(
    ("condition", "key", "message"),
    [
        (computed("inputs.flag * 2 > 5"), "expression", "* does not take inputs.flag (a string) and a double"),
        (computed("ctx.a.score > 'x'"), "expression", "> does not take ctx.a.output.score (a double) and a string"),
        (
            compared(ATTEMPTS, ">", {"value": "x"}),
            "operator",
            "> does not take ctx.a.meta.attempts (an integer) and a string",
        ),
        (
            compared(ATTEMPTS, "==", {"node": "a", "path": "meta.status"}),
            "operator",
            "== does not take ctx.a.meta.attempts (an integer) and ctx.a.meta.status (a string)",
        ),
        (
            compared({"value": 1}, "in", {"node": "a", "path": "meta.status"}),
            "operator",
            "in does not take an integer and ctx.a.meta.status (a string)",
        ),
        (
            compared({"node": "a", "path": "meta.tries"}, ">", {"value": 1}),
            "left/path",
            'ctx.a.meta never has a key "tries"',
        ),
        (
            queried("$.a.meta.status", ">", 3),
            "operator",
            "> does not take ctx.a.meta.status (a string) and an integer",
        ),
        (
            queried("$.a.output.score", "in", ["x"], "ctx") | {"operator": "contains", "value": "x"},
            "operator",
            "contains does not take ctx.a.output.score (an integer) and a string",
        ),
        (queried("$.a.meta.tries", ">"), "query", 'ctx.a.meta never has a key "tries"'),
        (queried("$.a.output.score.length()", ">"), "query", "ctx.a.output.score (an integer) has no length"),
    ],
)
def test_every_kind_is_checked(condition: dict[str, Any], key: str, message: str) -> None:
    nested = {"type": "composite", "operator": "NOT", "conditions": [condition]}
    assert told(node("a", type="score"), node("b", "a", when=condition)) == [
        (f"/nodes/1/when/{key}", f"node `b`: {message}")
    ]
    assert told(node("a", type="score"), node("b", "a", when=nested)) == [
        (f"/nodes/1/when/conditions/0/{key}", f"node `b`: {message}")
    ]


@pytest.mark.parametrize(
    "condition",
    [
        computed("inputs.amount * 1.5 > 2 && ctx.a.score / 2 == 1"),
        compared(SCORE, ">", {"value": 1.5}),
        compared(SCORE, "==", {"value": None}),
        compared({"node": "a", "path": "meta.tries", "default": 1}, ">", {"value": 1}),
        compared({"node": "a", "path": "meta.status"}, "contains", {"value": "COMP"}),
        compared({"value": "x"}, "in", {"node": "a", "path": "any"}),
        compared({"node": "a", "path": "list[0].x"}, ">", {"value": 1}),
        queried("$.a.meta.tries", "exists", False),
        queried("$.a.meta.tries", "!=", 1),
        queried("$.a.meta.status", "in", ["COMPLETED"]),
        queried("$.a.output.score", "sum_gt", 1),
        queried("$.a.meta.status.length()", ">", 1),
        queried("$.a.output[0].score", ">", "x"),
        queried("$.*.output.score", ">", "x"),
    ],
)
def test_nothing_is_said_of_what_may_work(condition: dict[str, Any]) -> None:
    compile_document(document(node("a", type="score"), node("b", "a", when=condition), inputs=INPUTS), TYPES)


def test_a_node_sees_its_own_output() -> None:
    branch = {"rules": [{"condition": "output.score > 'x' || current.score == 'y'", "next_nodes": ["b"]}]}
    found = told(node("a", type="score", branch=branch), node("b"))
    assert [message.partition(": ")[2] for _, message in found] == [
        "> does not take output.score (an integer) and a string",
        "== does not take current.score (an integer) and a string",
    ]


@pytest.mark.parametrize(
    ("first", "inputs"),
    [
        (node("a", type="score", map={"over": [1]}), INPUTS),
        (node("a", type="score", on_error="continue"), INPUTS),
        (node("a"), INPUTS),
        (node("a"), None),
        (node("a"), {"type": "object"}),
        (node("a"), {"$ref": "#/$defs/x", "$defs": {"x": {}}}),
    ],
)
def test_nothing_is_said_where_nothing_is_known(first: dict[str, Any], inputs: Any) -> None:
    conditions = ["ctx.a.output.score == 'high'", "size(ctx.a.output) == 1"]
    nodes = [node(f"n{number}", "a", when=condition) for number, condition in enumerate(conditions)]
    more = [] if inputs is INPUTS else [node("i", when="inputs.amount == 'x'")]
    given = {} if inputs is None else {"inputs": inputs}
    compiled = compile_document(document(first, *nodes, *more, **given), TYPES)
    assert not compiled.warnings


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("output > 1", {"type": "cel", "expression": "output > 1"}),
        ("output > 1", "(output  >  1) // the same"),
        (computed("current.x > 1"), computed("current.x>1.0")),
        (
            {"type": "composite", "operator": "OR", "conditions": ["output > 1", "output < 0"]},
            {
                "conditions": [{"expression": "output > 1", "type": "cel"}, "output < 0"],
                "operator": "OR",
                "type": "composite",
            },
        ),
        (
            {"type": "jsonpath", "query": "$.a", "operator": ">", "value": 1},
            {"value": 1, "operator": ">", "query": "$.a", "type": "jsonpath", "source": "output"},
        ),
        (
            {"type": "schema_validation", "schema": {"type": "object", "required": ["x"]}},
            {"schema": {"required": ["x"], "type": "object"}, "invert": False, "type": "schema_validation"},
        ),
        (
            {"type": "cross_node_comparison", "left": {"path": "x"}, "operator": "==", "right": {"value": 1}},
            {
                "type": "cross_node_comparison",
                "right": {"value": 1},
                "operator": "==",
                "left": {"source": "current", "path": "output.x"},
            },
        ),
        (
            {"type": "python_sandbox", "code": CODE},
            {"type": "python_sandbox", "code": CODE, "timeout_ms": 1000, "max_memory_mb": 50},
        ),
    ],
)
def test_a_rule_that_says_the_same_in_other_words_can_never_match(one: Any, other: Any) -> None:
    branch = {"rules": [{"condition": one, "next_nodes": ["x"]}, {"condition": other, "next_nodes": ["y"]}]}
    found = said(document(node("a", branch=branch), node("x"), node("y")))
    assert found == [("unreachable_rule", "/nodes/0/branch/rules/1/condition")]
