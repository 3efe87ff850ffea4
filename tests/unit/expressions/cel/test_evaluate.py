"""Conditions in CEL: what they decide, what they refuse, and what they say then."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.scopes import AFTER, SCOPE, WatchedScope
from tests.pace import allowed
from tidemill.errors import Problem
from tidemill.expressions.cel.evaluate import EXPRESSION_MAX, Cel, parse_cel
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import References, Scope, Seen


def decide(expression: str, scope: Scope = AFTER) -> bool:
    problems: list[Problem] = []
    program = parse_cel(expression, "", problems)
    assert not problems
    assert program is not None
    return program.holds(program.bind(scope), scope)


def failure(expression: str, scope: Scope = AFTER) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        decide(expression, scope)
    assert caught.value.code == "condition_failed"
    return caught.value


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("output.missing > 1", 'output has no key "missing" (known keys: score, n', ""),
        ("output.scor > 1", 'output has no key "scor"', 'did you mean "score"?'),
        ("output.score.x > 1", 'output.score is a number, so it has no key "x"', ""),
        ("output.tags.x > 1", 'output.tags is a list, so it has no key "x"', ""),
        ("output.tags[7] == 'a'", "the list has 2 items, so there is no [7]", "size"),
        ("ctx.skipped.output.x > 1", 'node "skipped" was skipped', "has(ctx.skipped.output)"),
        ("ctx['later'].output.x > 1", 'node "later" has not ended', ""),
        ("ctx.skipped.meta.attempts > 1", 'node "skipped" was skipped', ""),
        ("ctx.nowhere.output > 1", 'node "nowhere" is not in reach', ""),
        ("has(ctx.skipped.output) || output.missing > 1", 'output has no key "missing"', ""),
        ("has(ctx.skipped.output.x)", 'node "skipped" was skipped', ""),
        ("ctx.enrich.output.deep.q == 1", 'ctx.enrich.output.deep has no key "q" (known keys: k)', ""),
        ("ctx[inputs.customer].output == 1", 'the key "acme" is missing', ""),
        ("ctx['skip' + 'ped'].output == 1", 'node "skipped" was skipped', '"skipped" in ctx'),
        ("output.score + output.n > 1.0", "+ does not take int and double", "double(x)"),
        ("output.tags.contains('a')", "contains(string) does not exist for list", "item in list"),
        ("output.score && true", "&& needs true or false", "compare"),
        ("!inputs.customer", "! needs true or false", ""),
        ("inputs.customer.matches('(' + inputs.customer)", "invalid regular expression", ""),
    ],
)
def test_an_evaluation_fails_with(expression: str, message: str, hint: str) -> None:
    found = failure(expression)
    assert message in found.message
    assert expression in found.message
    assert hint in found.hint


@pytest.mark.parametrize("expression", ["output", "output.score", "inputs.customer", "output.tags", "output.none"])
def test_only_a_strict_boolean_decides(expression: str) -> None:
    assert "a condition must be true or false" in failure(expression).message


def test_an_error_is_never_taken_for_true() -> None:
    """Trap 4: the library answers an error with a value whose content is a non-empty string."""
    program = parse_cel("output.missing", "", [])
    assert program is not None
    assert program.native.eval(data={"output": {}}).value(), "the trap is still there"
    assert failure("output.missing").code == "condition_failed"


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_of_the_scope_decides(value: bool) -> None:
    assert decide("output", replace(AFTER, output=value)) is value


def test_output_is_missing_in_when() -> None:
    found = failure("output.score > 1", SCOPE)
    assert "output is not available here" in found.message
    assert "when" in found.hint


@pytest.mark.parametrize(
    ("value", "words"),
    [("\ud800", "not valid Unicode"), (object(), ""), ((1, 2), "")],
)
def test_a_value_that_cel_cannot_hold_is_an_error(value: Any, words: str) -> None:
    assert words in failure("inputs.x == 1", replace(SCOPE, inputs={"x": value})).message


@pytest.mark.parametrize("large", [2**64, -(2**63) - 1, 10**400])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("inputs.size() == 3", True),
        ("inputs == inputs", True),
        ("inputs.exists(key, key == 'n')", True),
        ("inputs.x == 1", False),
        ("inputs.x in [1, 2]", False),
        ("inputs.x == inputs.same[0]", True),
        ("inputs.x == inputs.same[1]", False),
        ("inputs.x != inputs.n", True),
    ],
)
def test_an_integer_without_room_is_equal_to_itself_only(large: int, expression: str, expected: bool) -> None:
    scope = replace(SCOPE, inputs={"x": large, "n": 1, "same": [large, large + 1 if large > 0 else large - 1]})
    assert decide(expression, scope) is expected


@pytest.mark.parametrize("expression", ["inputs.a.x[1] > 1", "inputs.a.x[1] + 1 == 1", "double(inputs.a.x[1]) > 1.0"])
def test_computing_with_an_integer_without_room_names_it(expression: str) -> None:
    found = failure(expression, replace(SCOPE, inputs={"a": {"x": [1, 2**64]}}))
    assert found.message == f"inputs.a.x[1] has more than 64 bits (in `{expression}`)"
    assert "jsonpath" in found.hint


def test_another_failure_is_not_blamed_on_an_integer_without_room() -> None:
    found = failure("inputs.size() > 0 && inputs.nope > 1", replace(SCOPE, inputs={"x": 2**64}))
    assert found.message.startswith('inputs has no key "nope"')


def test_integers_of_64_bits_compare_exactly() -> None:
    scope = replace(SCOPE, inputs={"x": 2**63 - 1, "y": 2**63, "z": 2**64 - 1})
    assert decide("inputs.x < inputs.y && inputs.y < inputs.z && inputs.y != 1 && inputs.x > 0", scope)


def test_deep_data_does_not_kill_the_process() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    scope = replace(SCOPE, inputs={"x": deep})
    found = failure("inputs.x == 1", scope)
    assert (found.message, found.hint) == (
        "a value is nested more than 200 levels deep (in `inputs.x == 1`)",
        "read a part of it: x.key",
    )
    assert decide("has(inputs.x)", scope)


def test_too_many_steps_are_an_error() -> None:
    scope = replace(SCOPE, inputs={"x": list(range(1, 20_000))})
    assert "too many items" in failure("inputs.x.all(y, y > 0)", scope).message


@pytest.mark.parametrize(
    ("expression", "code", "message", "hint"),
    [
        ("", "condition_syntax", "the expression is empty", ""),
        ("output.score >", "condition_syntax", "line 1, column 15: the expression ends too early", ""),
        ("output.a &&\n output.b ) ", "condition_syntax", "line 2, column 11: ) is unexpected here", ""),
        ("'a", "condition_syntax", "line 1", ""),
        ("(" * 60 + "true" + ")" * 60, "condition_syntax", "nested more than 32 levels", "parentheses"),
        ("true" + " && true" * 2000, "condition_syntax", f"limited to {EXPRESSION_MAX} characters", ""),
        ("1", "condition_syntax", "a condition must be true or false, but this is int", "compare"),
        ("output.map(x, x)", "condition_syntax", "this is list", ""),
        ("1 + 1.0 == 2.0", "condition_syntax", "+ does not take int and double", "double(x)"),
        ("'a' > 1", "condition_syntax", "> does not take string and int", ""),
        ("has(ctx.a)", "condition_syntax", "has(ctx.a) says nothing", "has(ctx.a.output)"),
        ("\ud800", "condition_syntax", "", ""),
        ("output == 9223372036854775808", "condition_syntax", "", ""),
        ("foo > 1", "condition_unknown_name", 'there is no name "foo"', "ctx.foo.output"),
        ("outptu.x > 1", "condition_unknown_name", 'there is no name "outptu"', 'did you mean "output"?'),
        ("item.x > 1", "condition_unknown_name", 'there is no name "item"', "conditions see ctx, current"),
        ("secrets.X == ''", "condition_unknown_name", 'there is no name "secrets"', ""),
        ("foo(1)", "condition_unknown_name", 'there is no function called "foo"', ""),
        ("output.foo()", "condition_unknown_name", 'there is no function called "foo"', ""),
        ("ctx.a-b.output == 1", "condition_unknown_name", 'there is no name "b"', 'ctx["a-b"]'),
        ("ctx.enrich.score > 1", "condition_unknown_name", 'ctx.enrich has no "score"', "ctx.enrich.output.score"),
        ("ctx['a-b'].x > 1", "condition_unknown_name", 'ctx["a-b"] has no "x"', 'ctx["a-b"].output.x'),
        ("has(ctx.a.x)", "condition_unknown_name", 'ctx.a has no "x"', ""),
        ("[1].exists(x, x == y)", "condition_unknown_name", 'there is no name "y"', ""),
        ("[1].exists(x, x == 1) && x == 1", "condition_unknown_name", 'there is no name "x"', ""),
    ],
)
def test_an_expression_is_refused(expression: str, code: str, message: str, hint: str) -> None:
    problems: list[Problem] = []
    program = parse_cel(expression, "/when/expression", problems)
    assert program is None
    assert {problem.path for problem in problems} == {"/when/expression"}
    assert problems[0].code == code
    assert message in problems[0].message
    assert hint in problems[0].hint


def test_every_unknown_name_is_reported() -> None:
    problems: list[Problem] = []
    parse_cel("foo > 1 && bar.x == 2 || baz(3)", "", problems)
    assert [problem.message.split('"')[1] for problem in problems] == ["foo", "bar", "baz"]


def test_only_what_is_read_is_handed_over() -> None:
    big = [{"id": number} for number in range(200_000)]
    scope = replace(AFTER, output={"ok": True, "big": big}, inputs={"big": big})
    program = parse_cel("output.ok && has(output.big) && has(inputs.big) && !has(inputs.small)", "", [])
    assert program is not None
    started = time.thread_time()
    for _ in range(20):
        assert program.holds(program.bind(scope), scope)
    assert time.thread_time() - started < allowed(1), "converting the lists would take a second each time"


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
        ("ctx[?'a'].output.x.orValue(1) == 1", refers("a", "ctx")),
        ("ctx[inputs.x].output == 1", refers("", "ctx inputs", dynamic=True)),
        ("ctx.exists(k, ctx[k].output == 1)", refers("", "ctx", dynamic=True)),
        ("'a' in ctx", refers("", "ctx", dynamic=True)),
        ("size(ctx) > 1 && ctx.a.output == 1", refers("a", "ctx", dynamic=True)),
        ("'ctx.a.output' == \"ctx['b']\" // ctx.c.output", refers()),
        ("[1].exists(ctx, ctx == 1)", refers()),
        ("[1].exists(x, ctx.a.output == x)", refers("a", "ctx")),
        ("[1].exists(output, .output == output)", refers("", "output")),
        ("[[1]].exists(inputs, inputs.exists(x, x == 1)) && inputs.y == 1", refers("", "inputs")),
        ("[1].map(x, inputs.ok, x)[0] == 1", refers("", "inputs")),
        ("[ctx.a.output, {'k': ctx.b.output, ctx.c.output: 1}] == []", refers("a b c", "ctx")),
        ("ctx.a.output.startsWith(ctx.b.output)", refers("a b", "ctx")),
        ("ctx.a.output ? ctx.b.output == 1 : ctx.c.output == 2", refers("a b c", "ctx")),
    ],
)
def test_an_expression_refers_to(expression: str, expected: References) -> None:
    assert program(expression).references == expected


@pytest.mark.parametrize(
    ("expression", "tree"),
    [
        ("output.a.b == 1", {"output": {"a": {"b": None}}}),
        ("output.a == 1 && output.a.b == 1", {"output": {"a": None}}),
        ("output.a.b == 1 && output == 1", {"output": None}),
        ("has(output.a.b)", {"output": {"a": {"b": {}}}}),
        ("has(output.a) && output.a.b == 1", {"output": {"a": {"b": None}}}),
        ("output.a.b == 1 && has(output.a)", {"output": {"a": {"b": None}}}),
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
    nodes = WatchedScope(AFTER.nodes)
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
