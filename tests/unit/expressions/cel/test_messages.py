"""What CEL says to an author who has made a mistake: which, where, and how it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixtures.scopes import SCOPE
from tidemill.errors import Problem
from tidemill.expressions.cel.evaluate import parse_cel
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import Seen

VALUES = {"s": "x", "a": 1, "n": None, "l": [1], "m": {"k": 1}, "d": 1.5, "o": {"a": None, "b": [1]}, "u": 2**63}
SCENE = replace(SCOPE, nodes={"first": Seen(5)}, has_output=True, output=VALUES)


def refusal(expression: str) -> list[Problem]:
    problems: list[Problem] = []
    assert parse_cel(expression, "/when", problems) is None
    return problems


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("output.a = 1", "line 1, column 10: = is unexpected here", "equality is written =="),
        ("output.a !== 1", "line 1, column 12: = is unexpected here", "the opposite !="),
        ("output.a <> 1", "> is unexpected here", "!="),
        ("output.a == 1 and output.b == 2", "and is unexpected here", "and is written &&"),
        ("output.a == 1 or output.b", "or is unexpected here", "or is written ||"),
        ("output.a & 1 == 1", "& is unexpected here", "&&"),
        ("not output.a", "output is unexpected here", "not is written !"),
        ("'x' not in output.l", "not is unexpected here", "!(x in y)"),
        ("output.a is null", "is is unexpected here", "=="),
        ("output.a in (1, 2)", ", is unexpected here", "[1, 2]"),
        ("output.s matches 'x'", "matches is unexpected here", "x.matches"),
        ("output.s == 'x", "unexpected here", "the string has no end"),
        ("output.s == “x”", "unexpected here", "strings stand between"),
        ("(output.a == 1", "the expression ends too early", "a ) is missing"),
        ("{{ output.a }} == 1", "} is unexpected here", "leave out the {{ }}"),
        ("$.a == 1", "$ is unexpected here", '"type": "jsonpath"'),
        ("output.a == 1;", "; is unexpected here", "leave out the ;"),
        ("if output.a then true", "reserved identifier", "x ? y : z"),
        ('has(output["m"])', "has() argument must be a field selection", '"a key" in x'),
        ("", "the expression is empty", "output.score > 80"),
        (" + ".join(["output.a"] * 40) + " > 1", "the expression is nested more than 32 levels deep", "parentheses"),
        ("tru == output.a", 'there is no name "tru"', 'did you mean "true"?'),
        ("True == output.a", 'there is no name "True"', "it is written true"),
        ("output.a == None", 'there is no name "None"', "it is written null"),
        ("x && x || x == x", 'there is no name "x"', "ctx.x.output"),
        ("len(output.l) > 1 && len(output.l) < 3", 'no function called "len"', "it is called size"),
        ("output.l.length() > 1", 'no function called "length"', "it is called size"),
        ("output.s.containz('x')", 'no function called "containz"', 'did you mean "contains"?'),
        ("foo(output.a)", 'no function called "foo"', "functions are size"),
        ("output.d % 2.0 == 1.0", "% does not take dyn and double", "integers only"),
    ],
)
def test_one_mistake_is_one_problem_with_a_way_out(expression: str, message: str, hint: str) -> None:
    (problem,) = refusal(expression)
    assert message in problem.message
    assert hint in problem.hint


def test_a_group_is_one_level_and_so_is_a_row_of_conjunctions() -> None:
    group = "(" + " + ".join(["output.a"] * 10) + ")"
    for expression in (" + ".join([group] * 4) + " == 40", " && ".join(["output.a == 1"] * 60)):
        problems: list[Problem] = []
        program = parse_cel(expression, "", problems)
        assert program is not None, problems
        assert program.holds(program.bind(SCENE), SCENE)


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("output.s > 5", "> does not take string and int", "convert"),
        ("output.n > 5", "> does not take null and int", "check x != null first"),
        ("output.s * 2 == 2", "* does not take string and int", "convert a string to a number"),
        ("-output.s == 1", "- does not take string", "convert a string to a number"),
        ("output.u + 1 > 5", "+ does not take uint and int", "2^63 - 1"),
        ("output.d % 2 == 1", "% does not take double and int", "integers only"),
        ("output.a / 0 == 1", "an integer is divided by zero", "n != 0"),
        ("output.a + 9223372036854775807 == 1", "the result has more than 64 bits", "double(x)"),
        ("int(output.s) == 1", "a string cannot be read as int", "x.matches("),
        ("bool(output.s)", "a string cannot be read as bool", "true or false"),
        ("timestamp(output.s) > timestamp('2030-01-01T00:00:00Z')", "read as timestamp", "2030-01-31T12:00:00Z"),
        ("duration(output.s) > duration('1s')", "read as duration", "1h30m"),
        ("int(1e30) == 1", "does not fit into an integer of 64 bits", "compare it as it is"),
        ("has(output.o.a.x)", 'output.o.a is null, so it has no key "x"', "only objects have keys"),
        ("has(output.o.b.x)", 'output.o.b is a list, so it has no key "x"', "choose an item first"),
        ("has(output.zz) || output.o.zz > 1", 'output.o has no key "zz"', "check has(output.o.zz) first"),
        ("output[0] == 1", "an object has no [0]", "only lists have numbers"),
        ("output.l['a'] == 1", "a list has no key that is a string", "choose an item"),
        ("output.s in output.a", "in needs a list or an object on its right", "contains"),
        ("output.a.all(x, x > 1)", "only a list or an object can be iterated over", "type(x)"),
        ("size(output.a) == 1", "size() takes lists, objects and strings", "the number itself"),
        ("output.a.startsWith('x')", "startsWith(string) does not exist for int", "string(x)"),
        ("output.n.startsWith('x')", "startsWith(string) does not exist for null", "check x != null first"),
        ("output.s.substring(5) == 'x'", "a position is past the end of the string", "size"),
        ("ctx[output.s].output == 1", 'the key "x" is missing', "available nodes: first"),
        ("output.zz > 1", 'output has no key "zz"', "check has(output.zz) first"),
    ],
)
def test_a_failure_says_what_it_is_about_and_what_to_do(expression: str, message: str, hint: str) -> None:
    program = parse_cel(expression, "", [])
    assert program is not None
    with pytest.raises(ExpressionError) as caught:
        program.holds(program.bind(SCENE), SCENE)
    assert message in caught.value.message
    assert caught.value.message.endswith(f"(in `{expression}`)")
    assert hint in caught.value.hint
