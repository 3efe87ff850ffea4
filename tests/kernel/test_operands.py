"""Conditions whose operands can never fit together are refused where a schema says what they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.authoring import document, node, said
from tidemill.bootstrap import built_in_types
from tidemill.errors import Rejected
from tidemill.kernel.compile import compile_document
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
        ({"when": WRONG}, "when/expression"),
        ({"when": {"type": "cel", "expression": WRONG}}, "when/expression"),
        ({"when": BOTH}, "when/conditions/1/expression"),
        ({"loop": {"condition": WRONG, "max_iterations": 2, "timeout_path": ["x"]}}, "loop/condition/expression"),
        ({"branch": {"rules": [{"condition": WRONG, "next_nodes": ["x"]}]}}, "branch/rules/0/condition/expression"),
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
    assert found == [("/nodes/2/when/expression", f"node `b`: {message}")]


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
    compile_document(document(first, *nodes, *more, **given), TYPES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("output > 1", {"type": "cel", "expression": "output > 1"}),
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
