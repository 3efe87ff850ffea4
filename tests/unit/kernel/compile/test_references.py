"""References: who may read whom, in which pass, and what the compiler warns of."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.fixtures.kernel.authoring import compiled, document, node, said
from tidemill.errors import Rejected
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.compile.graph import at_least
from tidemill.kernel.model import NodeType
from tidemill.node_types import built_in_types

LOOP = {"condition": "output.again", "max_iterations": 3}


def reading(id_: str, other: str, *dependencies: str, **fields: Any) -> dict[str, Any]:
    return node(id_, *dependencies, config={"x": f"{{{{ {other}.output }}}}"}, **fields)


def back(to: str) -> dict[str, Any]:
    return {**LOOP, "loop_back_to": to}


READS: list[tuple[str, list[Any], tuple[str, ...], tuple[str, ...]]] = [
    ("a parent", [node("a"), reading("z", "a", "a")], ("a",), ()),
    ("a grandparent", [node("a"), node("b", "a"), reading("z", "a", "b")], ("a",), ()),
    (
        "by a branch",
        [node("a", branch={"rules": [{"condition": "output.x", "next_nodes": ["z"]}]}), reading("z", "a")],
        ("a",),
        (),
    ),
    ("by an error path", [node("a"), node("b", "a", on_error={"route": ["z"]}), reading("z", "a")], ("a",), ()),
    ("itself in a loop", [reading("z", "z", loop=LOOP)], ("z",), ("z",)),
    ("itself in a loop around", [node("a"), reading("z", "z", "a"), node("b", "z", loop=back("a"))], ("z",), ("z",)),
    ("a later node of the loop", [reading("z", "b"), node("b", "z", loop=back("z"))], ("b",), ("b",)),
    (
        "a sister in the loop",
        [node("a"), reading("z", "b", "a"), node("b", "a"), node("c", "z", "b", loop=back("a"))],
        ("b",),
        ("b",),
    ),
    (
        "an outer loop is enough",
        [node("a", loop=LOOP), reading("z", "b", "a", loop=LOOP), node("b", "z", loop=back("a"))],
        ("b",),
        ("b",),
    ),
    (
        "in the delay of a loop",
        [
            node("a"),
            node("z", "a", loop={**LOOP, "delay_seconds": "{{ output.n + a.output + z.output | default(1) }}"}),
        ],
        ("a", "z"),
        ("z",),
    ),
    ("both at once", [node("a"), node("z", "a", config="{{ a.output }}{{ z.x }}", loop=LOOP)], ("a", "z"), ("z",)),
    ("in a condition", [node("a"), node("z", "a", when="ctx.a.output > 1")], ("a",), ()),
    (
        "in a rule",
        [node("a"), node("z", "a", branch={"rules": [{"condition": "ctx.a.output.x", "next_nodes": []}]})],
        ("a",),
        (),
    ),
    (
        "in a map",
        [node("a"), node("z", "a", map={"over": "{{ a.output }}"}, config="{{ item }}{{ index }}")],
        ("a",),
        (),
    ),
    (
        "under ctx and nodes",
        [node("a-b"), node("z", "a-b", config="{{ nodes['a-b'].output }}{{ iteration }}")],
        ("a-b",),
        (),
    ),
    ("in document order", [node("b"), node("a"), node("z", "a", "b", config="{{ a.x }}{{ b.x }}")], ("b", "a"), ()),
]


@pytest.mark.parametrize(("nodes", "reads", "past"), [row[1:] for row in READS], ids=[row[0] for row in READS])
def test_a_node_reads(nodes: list[Any], reads: tuple[str, ...], past: tuple[str, ...]) -> None:
    result = compiled(*nodes)
    z = result.workflow.by_id["z"]
    assert (z.reads, z.reads_past) == (reads, past)
    assert result.warnings == ()


REFUSED: list[tuple[str, list[Any], str]] = [
    ("itself", [reading("z", "z")], "self_reference"),
    ("itself in a compensator", [node("z", compensator={"type": "value", "config": "{{ z.x }}"})], "self_reference"),
    ("a descendant", [reading("z", "a"), node("a", "z")], "reference_not_ancestor"),
    ("a stranger", [reading("z", "a"), node("a")], "reference_not_ancestor"),
    ("a sister", [node("a"), node("b", "a"), reading("z", "b", "a")], "reference_not_ancestor"),
    (
        "a node behind the loop it is in",
        [reading("z", "a", loop=LOOP), node("a", "z")],
        "reference_not_ancestor",
    ),
    (
        "a node of another loop",
        [node("a"), node("b", "a", loop=LOOP), reading("z", "b", "a", loop=LOOP)],
        "reference_not_ancestor",
    ),
    ("by a condition", [node("a"), node("z", when="ctx.a.output.x")], "reference_not_ancestor"),
    ("an item outside a map", [node("z", when="true", config="{{ item.x }}")], "name_not_available"),
    ("an item in the list itself", [node("z", map={"over": "{{ item }}"})], "name_not_available"),
    ("an output in a config", [node("z", config="{{ output }}", loop=LOOP)], "name_not_available"),
]


@pytest.mark.parametrize(("nodes", "code"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_reference_is_refused(nodes: list[Any], code: str) -> None:
    assert [each for each, _ in said(document(*nodes))] == [code]


EARLY: list[tuple[str, list[Any], bool]] = [
    ("any", [node("a"), node("b"), reading("z", "a", "a", "b", join="any")], True),
    ("quorum", [node("a"), node("b"), node("c"), reading("z", "a", "a", "b", "c", join={"quorum": 2})], True),
    ("full quorum", [node("a"), node("b"), reading("z", "a", "a", "b", join={"quorum": 2})], False),
    ("all", [node("a"), node("b"), reading("z", "a", "a", "b", join="all")], False),
    ("strict", [node("a"), node("b"), reading("z", "a", "a", "b", join="strict")], False),
    ("any of one", [node("a"), reading("z", "a", "a", join="any")], False),
    ("before the fork", [node("a"), node("b", "a"), node("c", "a"), reading("z", "a", "b", "c", join="any")], False),
    ("behind the join", [node("a"), node("b"), node("c", "a", "b", join="any"), reading("z", "a", "c")], True),
    ("the join itself", [node("a"), node("b"), node("c", "a", "b", join="any"), reading("z", "c", "c")], False),
    ("waited for as well", [node("a"), node("b"), node("c", "a", "b", join="any"), reading("z", "a", "c", "a")], False),
    (
        "out of a loop by an error path",
        [node("a"), node("b", "a", on_error={"route": ["z"]}), node("c", "b", loop=back("a")), reading("z", "a")],
        True,
    ),
    (
        "the failed node itself, which may be running again",
        [node("b", on_error={"route": ["z"]}), node("c", "b", loop=back("b")), reading("z", "b")],
        True,
    ),
    (
        "the loop is over",
        [node("a", on_error={"route": ["z"]}), node("c", "a", loop=back("a")), reading("z", "a", "c")],
        False,
    ),
    ("an error path outside loops", [node("a", on_error={"route": ["z"]}), reading("z", "a")], False),
]


@pytest.mark.parametrize(("nodes", "warned"), [row[1:] for row in EARLY], ids=[row[0] for row in EARLY])
def test_a_reference_may_come_too_early(nodes: list[Any], warned: bool) -> None:
    result = compiled(*nodes)
    assert [each.code for each in result.warnings] == ["early_reference"] * warned
    assert result.workflow.by_id["z"].reads


def test_far_references_in_a_long_chain() -> None:
    count = 9000
    nodes = [node("n0"), node("n1", "n0")]
    nodes += [reading(f"n{number}", f"n{number // 2}", f"n{number - 1}") for number in range(2, count)]
    workflow = compiled(*nodes).workflow
    assert all(each.reads == (f"n{number // 2}",) for number, each in enumerate(workflow.nodes) if number > 1)


def test_a_far_reference_against_the_direction_is_found() -> None:
    ids = [f"n{number}" for number in range(5000)]
    nodes = [node(ids[0]), *(reading(later, ids[-1], earlier) for earlier, later in pairwise(ids[:-1])), node(ids[-1])]
    assert said(document(*nodes))[0] == ("reference_not_ancestor", "/nodes/1/config/x")


@pytest.mark.parametrize(
    ("sets", "count", "expected"),
    [
        ([0b1, 0b10], 1, 0b11),
        ([0b11, 0b10], 2, 0b10),
        ([0b111, 0b110, 0b100], 2, 0b110),
        ([0b111, 0b110, 0b100], 3, 0b100),
        ([0b11] * 99 + [0b01], 50, 0b01),
    ],
)
def test_what_is_in_at_least_so_many(sets: list[int], count: int, expected: int) -> None:
    assert at_least(sets, count) == expected


def code(name: str) -> str:
    return f"def evaluate(output, context):\n    return context[{name!r}]['output'] == 1\n"


KINDS = {
    "cel": lambda name: f"ctx.{name}.output == 1",
    "jsonpath": lambda name: {
        "type": "jsonpath",
        "query": f"$.{name}.output",
        "operator": "==",
        "value": 1,
        "source": "ctx",
    },
    "operands": lambda name: {
        "type": "cross_node_comparison",
        "left": {"source": "context", "node": name, "path": "output.x"},
        "operator": "==",
        "right": {"value": 1},
    },
    "expression": lambda name: {"type": "cross_node_comparison", "expression": f"ctx.{name}.output.x == 1"},
    "code": lambda name: {"type": "python_sandbox", "code": code(name)},
    "composite": lambda name: {
        "type": "composite",
        "operator": "NOT",
        "conditions": [{"type": "composite", "operator": "OR", "conditions": [f"ctx.{name}.output == 1"]}],
    },
}


def test_an_id_with_a_hyphen_is_hinted_at() -> None:
    flow = document(node("by-city"), node("z", "by-city", config="{{ by-city.output }}"))
    with pytest.raises(Rejected) as refused:
        compile_document(flow, built_in_types())
    assert [problem.hint for problem in refused.value.problems] == [
        "an id with a hyphen is written `nodes['by-city'].output`"
    ]


@pytest.mark.parametrize("condition", KINDS.values(), ids=KINDS)
def test_a_condition_of_any_kind_reads_only_what_can_have_run(condition: Any) -> None:
    assert compiled(node("a"), node("z", "a", when=condition("a"))).workflow.by_id["z"].reads == ("a",)
    assert said(document(node("a"), node("z", when=condition("a")))) == [
        ("reference_not_ancestor", "/nodes/1/when"),
    ]
    assert said(document(node("z", when=condition("nobody")))) == [("unknown_reference", "/nodes/0/when")]
    assert said(document(node("z", when=condition("z")))) == [("self_reference", "/nodes/0/when")]


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"when": "ctx.nobody.output == 1"}, "`ctx.<id>.output` in a condition"),
        ({"config": "{{ nobody.output }}"}, "`<id>.output`, an input"),
    ],
)
def test_the_hint_writes_a_node_as_it_is_written_there(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(Rejected) as refusal:
        compiled(node("z", **fields))
    assert hint in refusal.value.problems[0].hint


@pytest.mark.parametrize(
    "condition",
    [
        "output > 1",
        "current.x > 1",
        {"type": "jsonpath", "query": "$.x", "operator": "exists"},
        {"type": "schema_validation", "schema": {}},
        {
            "type": "cross_node_comparison",
            "left": {"source": "current", "path": "output.x"},
            "operator": "==",
            "right": {"value": 1},
        },
        {"type": "cross_node_comparison", "expression": "current.x > 1"},
        {"type": "python_sandbox", "code": "def evaluate(output, context):\n    return output > 1\n"},
        {"type": "composite", "operator": "AND", "conditions": [{"type": "schema_validation", "schema": {}}]},
    ],
)
def test_before_a_visit_there_is_no_output_for_any_kind(condition: Any) -> None:
    assert said(document(node("z", when=condition))) == [("name_not_available", "/nodes/0/when")]


# Conditions whose operands can never fit together are refused where a schema says what they are


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
    ("when", "message"),
    [
        ("inputs.tier == 'bronze'", 'inputs.tier (a string) is never "bronze"'),
        ("'silvr' != inputs.tier", 'inputs.tier (a string) is never "silvr"'),
        (
            {
                "type": "cross_node_comparison",
                "left": {"node": "ask", "path": "decision"},
                "operator": "==",
                "right": {"value": "approved"},
            },
            'ctx.ask.output.decision (a string) is never "approved"',
        ),
        ("inputs.tier == 'gold' || inputs.tier == inputs.flag || inputs.tier in ['iron']", ""),
        (
            {
                "type": "jsonpath",
                "source": "ctx",
                "query": "$.ask.output.decision",
                "operator": "==",
                "value": "approve",
            },
            "",
        ),
    ],
)
def test_a_choice_is_compared_with_what_it_can_be(when: Any, message: str) -> None:
    inputs = {"type": "object", "properties": {"tier": {"enum": ["gold", "silver"]}, "flag": {"type": "string"}}}
    nodes = [node("ask", type="human", config={"title": "?"}), node("a", when=when, dependencies=["ask"])]
    if not message:
        compile_document(document(*nodes, inputs=inputs), TYPES)
        return
    with pytest.raises(Rejected) as refusal:
        compile_document(document(*nodes, inputs=inputs), TYPES)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.message) == ("condition_type", f"node `a`: {message}")
    assert problem.hint.startswith(("did you mean", "it is"))


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


FORM = {"type": "object", "properties": {"amount": {"type": "integer"}, "why": {"type": "string"}}}
CLOSED = {**FORM, "additionalProperties": False}
SHARED = {"$defs": {"sum": CLOSED}, "properties": {"total": {"$ref": "#/$defs/sum"}}}
SCRIPT = {"provider": "scripted", "answers": ["x"]}
ASK = {"id": "a", "type": "human", "config": {"title": "?", "form": CLOSED}}
MODEL = {"id": "a", "type": "llm", "config": {**SCRIPT, "prompt": "?", "schema": CLOSED}}
PLAIN = {"id": "a", "type": "llm", "config": {**SCRIPT, "prompt": "?"}}
AGENT = {"id": "a", "type": "agent", "config": {**SCRIPT, "prompt": "?", "output_schema": CLOSED}}
LABELS = {"id": "a", "type": "classify", "config": {**SCRIPT, "text": "?", "labels": {"spam": "", "ham": ""}}}
MULTI = {**LABELS, "config": {**LABELS["config"], "multi": True}}
LATE = {**LABELS, "config": {**LABELS["config"], "multi": "{{ inputs.flag }}", "labels": ["{{ inputs.flag }}"]}}


def form(schema: Any) -> dict[str, Any]:
    return {**ASK, "config": {"title": "?", "form": schema}}


def read_by(first: dict[str, Any], template: Any) -> Any:
    return document(first, node("b", "a", config=template), inputs=INPUTS)


@pytest.mark.parametrize(
    ("first", "template", "message", "hint"),
    [
        (ASK, "{{ a.output.comment }}", 'a.output never has a key "comment"', "did you mean `comments`?"),
        (ASK, "{{ a.comment }}", 'a.output never has a key "comment"', "did you mean `comments`?"),
        (ASK, "by {{ nodes['a'].output.by }}", 'nodes.a.output never has a key "by"', "known keys: decision"),
        (ASK, "{{ a.output.comment or '' }}", 'a.output never has a key "comment"', "did you mean `comments`?"),
        (ASK, "{{ a.output.comment | upper }}", 'a.output never has a key "comment"', "did you mean `comments`?"),
        (ASK, "{{ a.output.form.amout }}", 'a.output.form never has a key "amout"', "did you mean `amount`?"),
        (ASK, "{{ a.output.form.amount.x }}", "a.output.form.amount is an integer, so", ""),
        (ASK, "{% if a.output.form.who %}x{% endif %}", 'a.output.form never has a key "who"', "did you mean `why`?"),
        (form(SHARED), "{{ a.output.form.total.x }}", 'a.output.form.total never has a key "x"', "known keys: amount"),
        (MODEL, "{{ a.output.value.amout }}", 'a.output.value never has a key "amout"', "did you mean `amount`?"),
        (PLAIN, "{{ a.output.value }}", 'a.output never has a key "value"', "known keys: text"),
        (AGENT, "{{ a.output.value.amout }}", 'a.output.value never has a key "amout"', "did you mean `amount`?"),
        (LABELS, "{{ a.output.labels }}", 'a.output never has a key "labels"', "did you mean `label`?"),
        (MULTI, "{{ a.output.label }}", 'a.output never has a key "label"', "did you mean `labels`?"),
        (ASK, "{{ a.output.decision }} {{ ctx.a.meta.state }}", 'ctx.a.meta never has a key "state"', ""),
        (ASK, "{{ inputs.amout }}", 'inputs never has a key "amout"', "did you mean `amount`?"),
        (ASK, "{{ inputs.flag.x }}", "inputs.flag is a string, so", ""),
        (ASK, "{{ iteration.x }}", "iteration is an integer, so", ""),
    ],
)
def test_a_template_reads_keys_that_can_be_there(first: dict[str, Any], template: str, message: str, hint: str) -> None:
    with pytest.raises(Rejected) as refusal:
        compile_document(read_by(first, template), TYPES)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.path) == ("template_type", "/nodes/1/config")
    assert problem.message.startswith(f"node `b`: {message}")
    assert problem.hint.startswith(hint)


@pytest.mark.parametrize(
    ("first", "template"),
    [
        (ASK, "{{ a.output.comments }} {{ a.decision }} {{ a.output.form.amount }}"),
        (ASK, "{{ a.output.comment | default('none') }}"),
        (ASK, "{{ (a.output.comment if inputs.flag else a.output.other) | d('none') }}"),
        (ASK, "{% if a.output.comment is defined %}{{ a.output.comment.x }}{% endif %}"),
        (ASK, "{{ a.output.comment if 'comment' in a.output else '' }}"),
        (ASK, "{% set x = a.output.comment %}{{ x | default('') }}"),
        (ASK, "{{ [a.output.comment, a.output.comments] | select('defined') | first }}"),
        (ASK, "{{ a.output.get('comment', '') }}"),
        (ASK, "{{ a.output[inputs.flag] }}"),
        (ASK, "{{ a.output.comments[0].x }}"),
        ({**ASK, "on_error": "continue"}, "{{ a.output.error.code }}"),
        ({**ASK, "map": {"over": [1]}}, "{{ a.output[0].anything }} {{ a.output }}"),
        (form({"type": "object"}), "{{ a.output.form.anything }}"),
        (form({**FORM, "additionalProperties": True}), "{{ a.output.form.anything }}"),
        (form({**FORM, "patternProperties": {"^x": True}}), "{{ a.output.form.x1 }}"),
        (form("{{ inputs.flag }}"), "{{ a.output.form.anything }}"),
        ({"id": "a", "type": "human"}, "{{ a.output.form.anything }}"),
        ({"id": "a", "type": "llm", "config_ref": "sha256:" + "0" * 64}, "{{ a.output.value }}"),
        ({**MODEL, "config": {**MODEL["config"], "schema": True}}, "{{ a.output.value.anything }}"),
        (LATE, "{{ a.output.label }} {{ a.output.labels }}"),
        (node("a"), "{{ a.output.anything }}"),
    ],
)
def test_a_template_may_read_what_is_open_or_has_a_default(first: dict[str, Any], template: str) -> None:
    assert not compile_document(read_by(first, template), TYPES).warnings


def test_keys_are_checked_wherever_a_template_stands() -> None:
    wrong = "{{ a.output.comment }}"
    undo = {"type": "value", "config": {"x": "{{ output.texts }}"}}
    nodes = [ASK, node("b", "a", map={"over": wrong}), {**PLAIN, "id": "c", "compensator": undo}]
    with pytest.raises(Rejected) as refusal:
        compile_document(document(*nodes, outputs={"x": wrong}), TYPES)
    places = ["/nodes/1/map/over", "/nodes/2/compensator/config/x", "/outputs/x"]
    assert [(each.code, each.path) for each in refusal.value.problems] == [("template_type", each) for each in places]


@pytest.mark.parametrize(
    "fields",
    [{"config": "{{ a.output.form.amout }}"}, {"when": "ctx.a.output.form.amout > 1"}],
)
def test_a_key_that_an_open_form_does_not_declare_gets_a_warning(fields: dict[str, Any]) -> None:
    (warning,) = compile_document(document(form(FORM), node("b", "a", **fields)), TYPES).warnings
    assert warning.code == "undeclared_key"
    assert warning.message.endswith('a.output.form has no key "amout"')
    assert "amount" in warning.hint


@pytest.mark.parametrize(
    ("first", "when", "message"),
    [
        (LABELS, "ctx.a.output.label == 'spm'", 'ctx.a.output.label (a string) is never "spm"'),
        (LABELS, "ctx.a.output.labels == []", 'ctx.a.output never has a key "labels"'),
        (LABELS, "ctx.a.output.label == 'ham' || ctx.a.output.label != null", ""),
        (LATE, "ctx.a.output.label == 'spm'", ""),
    ],
)
def test_a_label_is_compared_with_the_labels(first: dict[str, Any], when: str, message: str) -> None:
    workflow = document(first, node("b", "a", when=when), inputs=INPUTS)
    if not message:
        compile_document(workflow, TYPES)
        return
    with pytest.raises(Rejected) as refusal:
        compile_document(workflow, TYPES)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.message) == ("condition_type", f"node `b`: {message}")
    assert problem.hint in ('did you mean "spam"?', 'did you mean "label"?')


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
