"""What a CEL expression reads, found in its syntax tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.expressions.scopes import AFTER, Watched
from tidemill.errors import Problem
from tidemill.expressions.cel.evaluate import Cel, parse_cel
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import References, Scope, Seen


def program(expression: str) -> Cel:
    problems: list[Problem] = []
    found = parse_cel(expression, "", problems)
    assert found is not None, problems
    return found


def refers(nodes: str = "", roots: str = "", dynamic: bool = False) -> References:
    return References(frozenset(nodes.split()), frozenset(roots.split()), dynamic)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("true", refers()),
        ("output.x == 1", refers("", "output")),
        ("inputs.x == run.id || iteration > 1 || current == 2", refers("", "inputs run iteration current")),
        ("ctx.a.output == 1", refers("a", "ctx")),
        ("ctx['a-b'].output == 1 && ctx[\"c\"].meta.attempts == 1", refers("a-b c", "ctx")),
        ("ctx.`a-b`.output == 1", refers("a-b", "ctx")),
        ("has(ctx.a.output) && has(ctx.b.output.x)", refers("a b", "ctx")),
        ("ctx.?a.?output.?x.orValue(1) == 1", refers("a", "ctx")),
        ("ctx[?'a'].output.x.orValue(1) == 1", refers("a", "ctx")),
        ("ctx[inputs.x].output == 1", refers("", "ctx inputs", dynamic=True)),
        ("ctx['a' + 'b'].output == 1", refers("", "ctx", dynamic=True)),
        ("ctx.exists(k, ctx[k].output == 1)", refers("", "ctx", dynamic=True)),
        ("'a' in ctx", refers("", "ctx", dynamic=True)),
        ("size(ctx) > 1 && ctx.a.output == 1", refers("a", "ctx", dynamic=True)),
        ("'ctx.a.output' == \"ctx['b']\" // ctx.c.output", refers()),
        ("[1].exists(ctx, ctx == 1)", refers()),
        ("[1].exists(x, ctx.a.output == x)", refers("a", "ctx")),
        ("[1].exists(output, .output == output)", refers("", "output")),
        ("[[1]].exists(inputs, inputs.exists(x, x == 1)) && inputs.y == 1", refers("", "inputs")),
        ("[1].map(x, x + inputs.y)[0] == 1", refers("", "inputs")),
        ("[1].map(x, inputs.ok, x)[0] == 1", refers("", "inputs")),
        ("[ctx.a.output, {'k': ctx.b.output, ctx.c.output: 1}] == []", refers("a b c", "ctx")),
        ("ctx.a.output.startsWith(ctx.b.output)", refers("a b", "ctx")),
        ("ctx.a.output ? ctx.b.output == 1 : ctx.c.output == 2", refers("a b c", "ctx")),
        ("double(ctx.a.output) > 1", refers("a", "ctx")),
    ],
)
def test_an_expression_refers_to(expression: str, expected: References) -> None:
    assert program(expression).references == expected


@pytest.mark.parametrize(
    ("expression", "tree"),
    [
        ("output.a.b == 1", {"output": {"a": {"b": None}}}),
        ("output.a == 1 && output.a.b == 1", {"output": {"a": None}}),
        ("output.a.b == 1 && output.a == 1", {"output": {"a": None}}),
        ("output.a.b == 1 && output == 1", {"output": None}),
        ("has(output.a.b)", {"output": {"a": {"b": {}}}}),
        ("has(output.a) && output.a.b == 1", {"output": {"a": {"b": None}}}),
        ("output.a.b == 1 && has(output.a)", {"output": {"a": {"b": None}}}),
        ("output.a == 1 && has(output.a)", {"output": {"a": None}}),
        ("output.a[0].b == 1", {"output": {"a": None}}),
        ("output['a'].b == 1", {"output": {"a": {"b": None}}}),
        ("output[inputs.k] == 1", {"output": None, "inputs": {"k": None}}),
        ("ctx.a.output.x == 1 && has(ctx.b.output)", {"ctx": {"a": {"output": {"x": None}}, "b": {"output": {}}}}),
        ("output.a.exists(x, x.b == 1)", {"output": {"a": None}}),
    ],
)
def test_the_keys_that_are_read(expression: str, tree: object) -> None:
    assert program(expression).tree == tree


def test_only_the_nodes_that_are_named_are_asked_for() -> None:
    nodes = Watched(AFTER.nodes)
    assert decided(program("ctx.enrich.output.score == 87"), replace(AFTER, nodes=nodes))
    assert nodes.asked == {"enrich"}


LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 2.0, "a", "b", ""])
KEYS = st.sampled_from(["a", "b", "c"])
JSON = st.recursive(LEAVES, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below), max_leaves=8)
READS = st.builds(
    lambda root, keys: root + "".join(keys),
    st.sampled_from(["output", "inputs", "ctx.n.output", "ctx['m'].output", "current"]),
    st.lists(st.sampled_from([".a", ".b", "['c']", "[0]", ".?a"]), max_size=3),
)
TERMS = READS | st.sampled_from(["1", "2.0", "'a'", "null", "true", "iteration", "[1, 2]", "{'a': 1}"])
ATOMS = st.one_of(
    st.builds("({} {} {})".format, TERMS, st.sampled_from(["==", "!=", "<", "in"]), TERMS),
    st.builds("({} + {} == {})".format, TERMS, TERMS, TERMS),
    st.builds("has({}.a)".format, READS.filter(lambda read: "?" not in read)),
    st.builds("{}.exists(x, x == {})".format, READS, TERMS),
    READS,
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda below: (
        st.builds("({} && {})".format, below, below)
        | st.builds("({} || {})".format, below, below)
        | st.builds("!({})".format, below)
    ),
    max_leaves=4,
)


@given(EXPRESSIONS, JSON, JSON, st.booleans())
def test_cutting_the_values_down_changes_no_decision(expression: str, first: Any, second: Any, absent: bool) -> None:
    problems: list[Problem] = []
    found = parse_cel(expression, "", problems)
    if found is None:
        assert problems
        return
    nodes = {"n": Seen(first)} if absent else {"n": Seen(first), "m": Seen(second)}
    scope = Scope(nodes=nodes, inputs=second, run={}, has_output=True, output=first)
    ctx: dict[str, Any] = {"n": {"output": first, "meta": {}}, "m": {} if absent else {"output": second, "meta": {}}}
    whole = {"output": first, "current": first, "inputs": second, "ctx": ctx, "iteration": 0}
    assert decided(found, scope) == answered(found, whole)


def decided(found: Cel, scope: Scope) -> bool | None:
    try:
        return found.holds(found.bind(scope), scope)
    except ExpressionError:
        return None


def answered(found: Cel, whole: dict[str, Any]) -> bool | None:
    """Ask the library itself, which answers some errors with a value and raises others."""
    try:
        answer = found.native.eval(data=whole).value()
    except (RuntimeError, TypeError):
        return None
    return answer if isinstance(answer, bool) else None
