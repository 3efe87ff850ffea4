"""Which expressions are decided in this process: only those that end soon, whatever their authors want."""

from __future__ import annotations

import random
import resource
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.scopes import AFTER
from tests.pace import allowed
from tidemill.errors import Problem
from tidemill.expressions.cel.ast import native_env, read_tree, write_tree
from tidemill.expressions.cel.cost import PATTERNS_MAX, states
from tidemill.expressions.cel.evaluate import DOUBLINGS_MAX, EXPRESSION_MAX, Cel, parse_cel
from tidemill.expressions.conditions import TEXT_REACH_MAX, is_small
from tidemill.expressions.errors import ExpressionError


def compiled(expression: str) -> Cel:
    problems: list[Problem] = []
    program = parse_cel(expression, "", problems)
    assert not problems, problems
    assert program is not None
    return program


def refusal(expression: str) -> str:
    problems: list[Problem] = []
    assert parse_cel(expression, "", problems) is None
    assert problems[0].code == "condition_syntax"
    return problems[0].message


@pytest.mark.parametrize(
    "expression",
    [
        "output.score > 80",
        "output.status != 'success' && ctx.enrich.output.score >= 80 || inputs.n == 3",
        "output.items.all(i, i.price > inputs.limit)",
        "output.items.exists(i, i.id == inputs.id && i.n in inputs.allowed)",
        "output.items.map(i, i.price)[0] == 1",
        "output.mail.matches('^[a-z]+@[a-z]+[.][a-z]{2,5}$')",
        "output.text.contains('error') || output.text.startsWith('x')",
        "output.name.upperAscii().trim() == 'ADA'",
        "size(output.items) > 3 && 'a' in output.tags",
        "ctx.?enrich.?output.?score.orValue(1) == 87",
        "math.greatest(output.a, output.b) > 3",
        "timestamp(output.at) > timestamp('2026-01-01T00:00:00Z') && timestamp(output.at).getHours() < 8",
        "has(output.a) ? output.a > 1 : false",
        "['gold', 'silver'].exists(t, t == output.tier)",
        "output.name.split(' ')[0] == 'Ada'",
        "output.tags.join(', ') == 'a, b'",
        "output.price.replace(',', '.') == '1.5'",
    ],
)
def test_what_people_write_is_light(expression: str) -> None:
    assert compiled(expression).light


@pytest.mark.parametrize(
    "expression",
    [
        # Loops inside of each other, over something made, and two that build lists.
        "output.a.all(x, output.b.all(y, x == y))",
        "output.a.map(x, x).all(y, y > 1)",
        "[output.a, 2, 3].all(x, x == 1)",
        "[" + "1," * 400 + "1].all(x, x == output.a)",
        "output.a.all(x, [1, 2].all(y, x == y))",
        "output.s.split('').all(x, x == 'a')",
        "output.a.map(x, x) == output.b.map(x, x)",
        "optional.of(output.s).optMap(x, x + x).value() == ''",
        # Strings and lists that grow.
        "output.s.replace('', output.s) == ''",
        "output.a.join(output.s) == ''",
        "'%s'.format([output.s]) == ''",
        "output.s.replace('a', 'bb') == ''",
        "output.s.split(output.t) == []",
        "output.s.split('').join(',') == ''",
        "output.a.join('" + "x" * 65 + "') == ''",
        "output.a.all(x, x.split('') == [])",
        " || ".join(["output.s.split('') == []"] * 2),
        "strings.quote(output.s) == ''",
        "output.s" + " + output.s" * 12 + " == ''",
        "[" + "1," * 501 + "1] == output.a",
        # Something large in every pass of a loop.
        "output.a.all(x, output.s.contains('a'))",
        "output.a.all(x, output.a == output.b)",
        "output.a.map(x, output.s + 'x') == []",
        "output.a.all(x, '" + "a" * 65 + "'.contains(x))",
        "output.a.all(x, output.m[output.s] == x)",
        "output.a.all(x, " + " && ".join(["!(x in output.b)"] * 2) + ")",
        # Searching is quadratic, and patterns become large.
        "output.s.contains(output.t)",
        "output.s.contains('" + "a" * 65 + "')",
        "output.s.matches(output.t)",
        "output.s.matches('a.{900}z')",
        r"output.s.matches('\\pL+')",
        "output.s.matches('" + "a" * 60 + "')",
        # Too much of everything.
        " || ".join(["output.a == output.b"] * 300),
    ],
)
def test_what_may_take_long_is_not_light(expression: str) -> None:
    assert not compiled(expression).light


TEXT = "".join(random.Random(1).choice("ab") for _ in range(TEXT_REACH_MAX - 1000))
NUMBERS = list(range(495))
OUTPUTS: dict[str, Any] = {
    "text": {"s": TEXT},
    "same": {"s": "a" * (TEXT_REACH_MAX // 2 - 10), "t": "a" * (TEXT_REACH_MAX // 2 - 10)},
    "accents": {"s": "é" * (TEXT_REACH_MAX - 10), "a": ["é" * 30] * 990},
    "lists": {"a": NUMBERS, "b": list(NUMBERS)},
    "apart": {"a": NUMBERS, "b": [each + 1000 for each in NUMBERS]},
    "strings": {"a": ["x" * 30] * 980, "b": ["y"], "s": ""},
    "objects": {
        "a": {"k" * 28 + str(each): each for each in NUMBERS[:490]},
        "b": {"k" * 28 + str(each): each for each in NUMBERS[:490]},
    },
}
HOSTILE = [
    "output.s.contains('" + "a" * 60 + "b')",
    "output.s.reverse() == 'x'",
    "output.s.upperAscii().lowerAscii().reverse() == 'x'",
    "output.s + output.s + output.s == output.t",
    "output.s.matches('((a|b|ab|ba|aa|bb)*)*a............z')",
    "output.a == output.b",
    "[output.a, output.a, output.a] == [output.b, output.b, output.b]",
    "output.a.all(x, !(x in output.b))",
    "output.a.map(x, [x, x, x, x]) == output.b",
    "output.a.map(x, x.upperAscii().reverse() + x + x + x) == output.b",
    "output.a.all(x, !x.matches('(a|b)*a......z'))",
    "output.a.all(x, [x, x, x, x, x, x] == [x, x, x, x, x, x])",
    "(" + " + ".join(["output.s"] * 7) + ")" + ".reverse()" * 16 + " == 'x'",
    "'x' in output.s.split('')",
    "output.s.replace('a', 'b').reverse() == 'x'",
    "output.a.join('" + "x" * 64 + "').reverse() == 'x'",
    "[output.s, output.s, output.s].join('xxxx').contains('" + "a" * 60 + "b')",
    "[" + ", ".join(str(number) for number in range(100)) + "].all(x, !(x in output.b))",
    "['" + "x" * 60 + "'].all(x, x.matches('(a|b|x)*a......z')) || output.a == output.b",
    "output.a.all(x, timestamp('2026-01-01T00:00:00Z').getFullYear('America/New_York') > 0)",
]


def most_of(expression: str) -> Cel:
    """Repeat an expression as often as it stays light."""
    found = compiled(expression)
    assert found.light
    times = 2
    while len(longer := " || ".join([f"!({expression})"] * times)) <= EXPRESSION_MAX and compiled(longer).light:
        found, times = compiled(longer), times + 1 + times // 4
    return found


@pytest.mark.parametrize("expression", HOSTILE)
def test_what_is_light_ends_soon(expression: str) -> None:
    program = most_of(expression)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for output in OUTPUTS.values():
        scope = replace(AFTER, output=output)
        data = program.bind(scope)
        assert is_small(data)
        began = time.thread_time()
        try:
            program.holds(data, scope)
        except ExpressionError:
            continue
        assert time.thread_time() - began < allowed(0.25), "at most 20 milliseconds on an idle machine"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("optional.of(1)" + ".optMap(v, v)" * 30 + ".hasValue()", f"limited to {DOUBLINGS_MAX}"),
        ("optional.of(optional.of(1).optMap(a, a))" + ".optMap(v, v)" * 4 + ".hasValue()", "limited to"),
        ("output" + ".a" * 4000, "nested more than 32 levels"),
        ("1" + "+1" * 4000 + " == 1", "nested more than 32 levels"),
        ("true ? true : " * 580 + "true", "nested more than 32 levels"),
        ("output.s.matches('(')", "invalid regular expression"),
        (r"matches(output.s, '(?=a)')", "invalid regular expression"),
        ("output.s.matches('(((a{10}){10}){10}){10}')", "invalid repetition size"),
        ("output.s.matches('" + "a" * (PATTERNS_MAX + 1) + "')", "limited to"),
        (" || ".join(f"output.s.matches('{'a' * 400}{each}')" for each in range(3)), "limited to"),
    ],
)
def test_a_hostile_expression_is_refused_soon(expression: str, message: str) -> None:
    began = time.thread_time()
    assert message in refusal(expression)
    assert time.thread_time() - began < allowed(1)


@pytest.mark.parametrize(
    "expression",
    [
        "&&".join(["true"] * 1300),
        "!" * 8000 + "true",
        "[" + "1," * 4000 + "1] == []",
        "{" + ",".join(f"{each}:1" for each in range(1100)) + "} == {}",
        "'" + r"\u00e9" * 1300 + "' == ''",
        r"output.s.matches('" + r"\\pL" * 250 + "') || true",
    ],
)
def test_a_long_expression_is_compiled_soon(expression: str) -> None:
    began = time.thread_time()
    assert isinstance(compiled(expression), Cel)
    assert time.thread_time() - began < allowed(3)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("abc", 3), ("a{20}", 25), ("a{2,5}", 11), ("a{3,}", 8), ("(ab){10}", 80), ("((a{5}){5}){5}", 475)],
)
def test_the_states_of_a_pattern_are_estimated(pattern: str, expected: int) -> None:
    assert states(pattern) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "output.a.all(x, x > 0) && output.s.matches('b') && -5 == -5 && 1.5 > 1.0",
        "[?optional.of(1), 2] == [1, 2]",
        "{?'a': optional.of(1), 'b': 2u} == {'a': 1, 'b': 2u}",
        "has(output.m.x) && !has(output.m.y)",
        "optional.of(1).optMap(x, x + 1).value() == 2",
        "google.protobuf.Struct{fields: {'a': google.protobuf.Value{number_value: 1.0}}} == {'a': 1.0}",
        "b'abc' == b'abc' && null == null && '' == '' && 0 == 0 && false == false && 0.0 == 0.0",
        "-9223372036854775808 < 0 && 18446744073709551615u > 0u",
        "output.a.map(x, x > 1, x * 2) == [4]",
        "timestamp('2020-01-01T00:00:00Z').getFullYear() == 2020",
    ],
)
def test_a_tree_is_written_as_it_was_read(expression: str) -> None:
    env = native_env(("current", "inputs", "iteration", "output", "run"))
    data = {"output": {"a": [1, 2], "s": "abc", "m": {"x": 1}}}
    for check in (True, False):
        native = env.compile(expression, disable_check=not check)
        tree = read_tree(native.serialize())
        again = env.deserialize(write_tree(tree))
        assert read_tree(again.serialize()) == tree
        assert again.eval(data=data).value() is True


def test_macros_that_double_are_limited() -> None:
    fine = "optional.of(1)" + ".optMap(v, v)" * DOUBLINGS_MAX + ".hasValue()"
    assert compiled(fine)
    assert "limited to" in refusal(fine.replace(".hasValue", ".optMap(v, v).hasValue"))


def test_keys_count_as_text() -> None:
    assert is_small({"k" * (TEXT_REACH_MAX - 1): 1})
    assert not is_small({"k" * (TEXT_REACH_MAX + 1): 1})
