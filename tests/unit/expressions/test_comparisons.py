"""Comparisons between nodes: two operands and an operator, and expressions in which every number is a double."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.scopes import AFTER, SCOPE, WatchedScope, evaluate
from tidemill.expressions.comparisons import PATH_MAX, Comparison, Computation
from tidemill.expressions.conditions import Composite, Single, decide_leaf, normal, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import SandboxPool
from tidemill.expressions.scope import Scope, Seen

OUTPUT = {
    "score": 87,
    "final score": 90,
    "a-b": {"x": 1},
    "items": [{"price": 5}, {"price": 7.5}],
    "tags": ["a", "b"],
    "none": None,
    "output": {"z": 1},
    "meta": {"attempts": 99},
    'q"uote': 3,
    "yes": True,
}
HERE = replace(AFTER, output=OUTPUT)


def parsed(raw: dict[str, Any]) -> Single:
    condition, problems = parse_condition({"type": "cross_node_comparison", **raw})
    assert not problems, problems
    assert condition is not None
    assert not isinstance(condition, Composite)
    return condition


def compare(left: dict[str, Any], operator: str, right: dict[str, Any], scope: Scope = HERE) -> bool:
    return evaluate(parsed({"left": left, "operator": operator, "right": right}), scope).value


def refused(raw: dict[str, Any]) -> list[tuple[str, str]]:
    condition, problems = parse_condition({"type": "cross_node_comparison", **raw}, "/when")
    assert condition is None
    assert all(problem.code.startswith("condition_") for problem in problems)
    return [(problem.path.removeprefix("/when"), problem.message) for problem in problems]


def failure(raw: dict[str, Any], scope: Scope = HERE) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        evaluate(parsed(raw), scope)
    assert caught.value.code == "condition_failed"
    return caught.value


@pytest.mark.parametrize(
    ("operand", "value"),
    [
        ({"source": "current", "path": "output.score"}, 87),
        ({"source": "current", "path": "score"}, 87),
        ({"path": "output.score"}, 87),
        ({"path": "items[0].price"}, 5),
        ({"path": "items[-1].price"}, 7.5),
        ({"path": 'output["a-b"].x'}, 1),
        ({"path": '["a-b"].x'}, 1),
        ({"path": "a-b.x"}, 1),
        ({"path": r'["q\"uote"]'}, 3),
        ({"path": "output.output.z"}, 1),
        ({"path": "output.meta.attempts"}, 99),
        ({"path": "none"}, None),
        ({"source": "current"}, OUTPUT),
        ({"source": "context", "node": "enrich", "path": "output.score"}, 87),
        ({"source": "output", "path": "score"}, 87),
        ({"node": "enrich", "path": "score"}, 87),
        ({"node": "enrich", "path": "meta.attempts"}, 2),
        ({"node": "enrich", "path": "output.meta"}, "mine"),
        ({"node": "a-b", "path": "[1]"}, 2),
        ({"node": "a-b"}, [1, 2, 3]),
        ({"node": "null"}, None),
        ({"path": "nope", "default": 4}, 4),
        ({"path": "score", "default": 4}, 87),
        ({"path": "none", "default": 4}, None),
        ({"node": "skipped", "path": "x", "default": [1]}, [1]),
        ({"value": {"a": [1]}}, {"a": [1]}),
    ],
)
def test_an_operand_is_read(operand: dict[str, Any], value: Any) -> None:
    assert compare(operand, "==", {"value": value})
    assert not compare({"value": value}, "!=", operand)


@pytest.mark.parametrize(
    ("left", "operator", "right", "expected"),
    [
        ({"path": "score"}, ">=", {"node": "enrich", "path": "score"}, True),
        ({"path": "score"}, ">", {"node": "enrich", "path": "ratio"}, True),
        ({"path": "yes"}, "==", {"value": 1}, False),
        ({"value": "b"}, "in", {"path": "tags"}, True),
        ({"value": "c"}, "not_in", {"path": "tags"}, True),
        ({"path": "tags"}, "contains", {"value": "a"}, True),
        ({"node": "text"}, "contains", {"value": "lai"}, True),
        ({"path": "items"}, "contains", {"value": {"price": 5.0}}, True),
    ],
)
def test_a_comparison_decides(left: Any, operator: str, right: Any, expected: bool) -> None:
    assert compare(left, operator, right) is expected


@pytest.mark.parametrize(
    ("left", "message", "hint"),
    [
        ({"path": "zzz"}, 'output has no key "zzz" (known keys: score', "default"),
        ({"path": "scor"}, 'output has no key "scor"', 'did you mean "score"?'),
        ({"path": "items[7].price"}, "output.items has 2 items, so there is no [7]", "default"),
        ({"path": "score.x"}, 'output.score is a number, so it has no key "x"', "default"),
        ({"node": "skipped", "path": "x"}, 'node "skipped" was skipped', "default"),
        ({"node": "later"}, 'node "later" has not ended', "default"),
        ({"node": "enrich", "path": "zzz"}, 'ctx.enrich.output has no key "zzz"', "default"),
        ({"node": "nowhere"}, 'there is no name "nowhere" here', "available nodes: a-b"),
        ({"path": "tags"}, "> does not compare a list with a number (in `output.tags > 1`)", "numbers"),
        ({"path": "yes"}, "> does not compare a boolean with a number", "numbers"),
    ],
)
def test_a_comparison_fails_with(left: dict[str, Any], message: str, hint: str) -> None:
    found = failure({"left": left, "operator": ">", "right": {"value": 1}})
    assert message in found.message
    assert hint in found.hint


def test_output_is_missing_in_when() -> None:
    condition = parsed({"left": {"path": "x"}, "operator": "==", "right": {"value": 1}})
    assert condition.references.roots == {"output"}
    raw = {"left": {"path": "x"}, "operator": "==", "right": {"value": 1}}
    assert "output is not available here" in failure(raw, SCOPE).message


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({}, "/operator", "needs an operator"),
        ({"operator": "=~"}, "/operator", "no such operator"),
        ({"operator": "=="}, "", "needs a left operand"),
        ({"operator": "==", "left": 1, "right": {"value": 1}}, "/left", "an object as its left operand"),
        ({"operator": "==", "left": {"value": 1, "path": "x"}, "right": {"value": 1}}, "/left/path", "no key"),
        ({"operator": "==", "left": {"pth": "x"}, "right": {"value": 1}}, "/left/pth", "no key"),
        ({"operator": "==", "left": {"source": "other"}, "right": {"value": 1}}, "/left/source", "current or context"),
        ({"operator": "==", "left": {"source": "ctx"}, "right": {"value": 1}}, "/left/node", "needs the id"),
        ({"operator": "==", "left": {"node": 5}, "right": {"value": 1}}, "/left/node", "needs the id"),
        (
            {"operator": "==", "left": {"source": "current", "node": "a"}, "right": {"value": 1}},
            "/left/node",
            "no node",
        ),
        ({"operator": "==", "left": {"path": "meta.attempts"}, "right": {"value": 1}}, "/left/path", 'no "meta"'),
        ({"operator": "==", "left": {"path": "a..b"}, "right": {"value": 1}}, "/left/path", "from character 2"),
        ({"operator": "==", "left": {"path": "a[b]"}, "right": {"value": 1}}, "/left/path", "from character 2"),
        ({"operator": "==", "left": {"path": r'["\x"]'}, "right": {"value": 1}}, "/left/path", "from character 1"),
        ({"operator": "==", "left": {"path": "a" * (PATH_MAX + 1)}, "right": {"value": 1}}, "/left/path", "at most"),
        ({"operator": ">", "left": {"path": "a"}, "right": {"value": [1]}}, "/right/value", "does not compare a list"),
        ({"operator": ">", "left": {"path": "a", "default": None}, "right": {"value": 1}}, "/left/default", "null"),
        ({"operator": "in", "left": {"path": "a"}, "right": {"value": 1}}, "/right/value", "cannot contain"),
        ({"operator": "contains", "left": {"value": None}, "right": {"path": "a"}}, "/left/value", "cannot contain"),
        ({"operator": ">", "left": {"value": "a"}, "right": {"value": 1}}, "", "does not compare a string with a num"),
        ({"expression": "output.x > 1", "left": {}}, "/left", "no key"),
        ({"expression": 5}, "/expression", "is a string, not a number"),
        ({"expression": "nope > 1"}, "/expression", 'there is no name "nope"'),
        ({"expression": "current.x +"}, "/expression", "ends too early"),
        ({"expression": "1 + 2"}, "/expression", "a condition must be true or false"),
        ({"expression": "current.n % 2 == 0"}, "/expression", "% takes integers only"),
        ({"expression": "current.meta.attempts > 1"}, "/expression", 'current has no "meta"'),
    ],
)
def test_what_is_wrong_is_reported_where_it_is(raw: dict[str, Any], path: str, message: str) -> None:
    first = refused(raw)[0]
    assert first[0] == path
    assert message in first[1]


def test_every_problem_is_reported() -> None:
    found = refused({"operator": "~", "left": {"source": "x"}, "right": {"path": "a["}, "zzz": 1})
    assert [path for path, _ in found] == ["/zzz", "/operator", "/left/source", "/right/path"]


@pytest.mark.parametrize(
    ("operand", "stored"),
    [
        ({"path": "score"}, {"source": "current", "path": "output.score"}),
        ({"path": "output['a-b']"}, {"source": "current", "path": "output.a-b"}),
        ({"path": r'["q\"uote"][0]'}, {"source": "current", "path": r'output["q\"uote"][0]'}),
        ({"node": "n"}, {"source": "context", "node": "n", "path": "output"}),
        ({"node": "n", "path": "meta.x"}, {"source": "context", "node": "n", "path": "meta.x"}),
        ({"path": "x", "default": None}, {"source": "current", "path": "output.x", "default": None}),
        ({"value": [1]}, {"value": [1]}),
    ],
)
def test_there_is_one_normal_form(operand: dict[str, Any], stored: dict[str, Any]) -> None:
    condition = parsed({"left": operand, "operator": "==", "right": {"value": 1}})
    assert normal(condition)["left"] == stored
    again, problems = parse_condition(normal(condition))
    assert not problems
    assert again == condition
    assert again is not None
    assert normal(again) == normal(condition)


@given(st.lists(st.text(min_size=1, max_size=6) | st.integers(-5, 5), min_size=1, max_size=4))
def test_keys_are_written_so_that_they_are_read_back(keys: list[str | int]) -> None:
    text = "output" + "".join(f"[{key}]" if isinstance(key, int) else f'["{_escaped(key)}"]' for key in keys)
    condition = parsed({"left": {"path": text}, "operator": "==", "right": {"value": 1}})
    assert isinstance(condition, Comparison)
    assert condition.left.path is not None
    assert list(condition.left.path.keys) == keys
    again, _ = parse_condition(normal(condition))
    assert isinstance(again, Comparison)
    assert again.left.path is not None
    assert list(again.left.path.keys) == keys


def _escaped(key: str) -> str:
    return json.dumps(key)[1:-1]


def test_the_reason_tells_what_was_compared() -> None:
    raw = {"left": {"path": "score"}, "operator": ">", "right": {"node": "a-b", "path": "[0]"}}
    assert evaluate(parsed(raw), HERE).reason == 'output.score > ctx["a-b"].output[0] is true'
    assert evaluate(parsed({"expression": "current.score > 1"}), HERE).reason == "current.score > 1 is true"


def test_only_the_named_nodes_are_asked_for() -> None:
    raw: dict[str, Any] = {"left": {"path": "score"}, "operator": "==", "right": {"node": "enrich", "path": "score"}}
    for condition in (parsed(raw), parsed({"expression": "current.score == ctx.enrich.score"})):
        assert condition.references.nodes == {"enrich"}
        nodes = WatchedScope(SCOPE.nodes)
        assert evaluate(condition, replace(HERE, nodes=nodes)).value
        assert nodes.asked == {"enrich"}


COMPUTED = [
    ("(current.output.score - ctx.enrich.output.score) / ctx.enrich.output.score == 0", True),
    ("(current.score - 80) / 80 > 0.08", True),
    ("current.score * 1.1 > ctx.enrich.score", True),
    ("current.items[0].price + current.items[1].price == 12.5", True),
    ("current.items[size(current.items) - 1].price == 7.5", True),
    ("current.items.map(i, i.price * 2) == [10, 15]", True),
    ("size(current.items) / 4 == 0.5", True),
    ("'abc'.substring(1) == 'bc' && 'abc'.substring(size('abc') - 1) == 'c'", True),
    ("'a,b,c'.split(',', 2)[1] == 'b,c' && 'aaa'.replace('a', 'b', 1) == 'baa'", True),
    ("int(2.9) / 4 == 0.5", True),
    ("math.bitAnd(int(current.score), 1) == 1", True),
    ("timestamp('2026-01-01T00:00:00Z').getFullYear() / 2 == 1013", True),
    ("0x10 + 1u == 17", True),
    ("-5 < -4.5", True),
    ("2 in [1, 2] && {1: 2}[1] == 2 && {'a': 1}.a == 1", True),
    ("optional.of(4).optMap(x, x / 8).value() == 0.5", True),
    ("'1 + 1.5' == '1 + 1.5' // 1 + 1.5", True),
    (r"r'\d1' != '1' && b'1' == b'1'", True),
    ("iteration / 4 == 0.5 && inputs.n / 2 == 1.5 && run.version / 8 == 0.5", True),
    # Both spellings of a value, and of this node's own output.
    ("current.score == current.output.score && current.output == output && current == output", True),
    ("current.output.output.z == 1 && current.output.meta.attempts == 99", True),
    ("ctx.enrich.score == ctx.enrich.output.score", True),
    ("ctx.enrich.meta.attempts / 4 == 0.5 && ctx.enrich.output.meta == 'mine'", True),
    ("ctx['a-b'][1] == 2 && ctx['a-b'].output[1] == 2", True),
    ("ctx[inputs.which].score == 87", True),
    ("ctx.?enrich.?score.orValue(1) == 87 && ctx.?skipped.?score.orValue(1) == 1", True),
    ("current.?output.?score.orValue(1) == 87 && current.?nope.orValue(1) == 1", True),
    ("has(ctx.enrich.score) && has(current.output) && has(current.score) && !has(current.nope)", True),
    ("[{'meta': 2}].exists(current, current.meta == 2)", True),
    ("[{'a': {'b': 1}}].exists(ctx, ctx.a.b == 1)", True),
    # Doubles are those of IEEE 754.
    ("current.score / 0 > 1000000", True),
    ("0 / 0 > 1 || 0 / 0 < 1 || 0 / 0 == 0 / 0", False),
    ("9007199254740993 == 9007199254740992", True),
]


@pytest.mark.parametrize(("expression", "expected"), COMPUTED)
def test_every_number_is_a_double(expression: str, expected: bool) -> None:
    condition = parsed({"expression": expression})
    assert isinstance(condition, Computation)
    assert condition.holds(condition.bind(HERE), HERE) is expected
    assert normal(condition) == {"type": "cross_node_comparison", "expression": expression}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("current.nope > 1", 'current has no key "nope"'),
        ("ctx.enrich.nope > 1", 'ctx.enrich.output has no key "nope"'),
        ("ctx.skipped.x > 1", 'node "skipped" was skipped'),
        ("current.tags > 1", "> does not take list and double"),
        ("current.items[2].price > 1", "the list has 2 items, so there is no [2]"),
    ],
)
def test_a_computation_fails_with(expression: str, message: str) -> None:
    assert message in failure({"expression": expression}).message


def test_an_integer_beyond_all_doubles_is_an_error() -> None:
    found = failure({"expression": "current.n > 1"}, replace(AFTER, output={"n": 10**400}))
    assert "too large" in found.message
    assert evaluate(parsed({"expression": "current.n > 1"}), replace(AFTER, output={"n": 2**70})).value


def test_the_data_of_the_scope_stays_as_it_is() -> None:
    output = {"n": [1, {"m": 2}]}
    assert evaluate(parsed({"expression": "current.n == [1, {'m': 2}]"}), replace(AFTER, output=output)).value
    assert type(output["n"][0]) is int


async def test_what_is_large_is_decided_in_another_process() -> None:
    scope = replace(HERE, output={"rows": list(range(2000)), "n": 3}, nodes={"big": Seen(list(range(5000)))})
    raws: list[dict[str, Any]] = [
        {"left": {"path": "n"}, "operator": "in", "right": {"node": "big"}},
        {"expression": "current.n / 2 == 1.5 && ctx.big[4999] == 4999"},
        {"type": "schema_validation", "schema": {"properties": {"rows": {"items": {"type": "integer"}}}}},
    ]
    processes = SandboxPool()
    try:
        for raw in raws:
            condition = parsed(raw)
            steps = decide_leaf(condition, scope)
            request = next(steps)
            assert await processes.holds(request) is True
    finally:
        await processes.close()
