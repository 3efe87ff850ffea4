r"""A table of CEL: what each expression answers. `ERROR` fails when it is evaluated, `REFUSED` when it is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from tests.fixtures.scopes import AFTER
from tidemill.errors import Problem
from tidemill.expressions.cel.evaluate import parse_cel
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import Absent, Scope, Seen

Answer = bool | Literal["ERROR", "REFUSED"]
ERROR: Answer = "ERROR"
REFUSED: Answer = "REFUSED"

HERE: Scope = replace(
    AFTER,
    output={
        "i": 7,
        "zero": 0,
        "d": 2.5,
        "whole": 7.0,
        "s": "hello",
        "empty": "",
        "yes": True,
        "no": False,
        "nil": None,
        "list": [3, 1, 2],
        "none": [],
        "words": ["ada", "bob", "eve"],
        "mixed": [1, "a", None, True, 2.5],
        "rows": [{"id": 1, "ok": True}, {"id": 2, "ok": False}, {"id": 3, "ok": True}],
        "map": {"a": 1, "b": 2},
        "deep": {"a": {"b": {"c": 1}}},
        "big": 9223372036854775807,
        "huge": 9223372036854775808,
        "far": 1e300,
        "uni": "Zürich 😀",
        "when": "2026-03-01T12:30:45.5Z",
        "a key": 1,
    },
    nodes={
        "n": Seen({"v": 10, "list": [1]}, {"status": "COMPLETED", "attempts": 2}),
        "a-b": Seen([1, 2]),
        "gone": Absent("was skipped"),
    },
    inputs={"n": 3, "name": "n"},
    iteration=2,
)

CASES: list[tuple[str, Answer]] = [
    # Comparisons of one kind.
    ("output.i == 7", True),
    ("output.i > 6", True),
    ("output.i >= 7", True),
    ("output.s == 'hello'", True),
    ("output.s < 'help'", True),
    ("'B' < 'a'", True),
    ("false < true", True),
    ("output.nil == null", True),
    ("output.list == [3, 1, 2]", True),
    ("output.list == [1, 2, 3]", False),
    ("output.map == {'b': 2, 'a': 1}", True),
    ("output.deep == {'a': {'b': {'c': 1}}}", True),
    ("b'a' < b'b'", True),
    # Values of different kinds are not equal, and have no order.
    ("output.s == output.i", False),
    ("output.nil == output.no", False),
    ("output.yes == output.i", False),
    ("output.s < output.i", ERROR),
    ("output.list < output.list", ERROR),
    ("'a' < 1", REFUSED),
    ("'a' == 1", REFUSED),
    ("1 == null", REFUSED),
    ("output == null", False),
    # Integers, unsigned integers and doubles.
    ("output.whole == 7", True),
    ("output.i == 7.0", True),
    ("output.d > 2", True),
    ("7 == 7.0 && 7u == 7", True),
    ("output.i in [7.0]", True),
    ("output.big < output.huge", True),
    ("output.big == 9223372036854775807", True),
    ("output.huge == 9223372036854775808u", True),
    ("output.big + 1 > 0", ERROR),
    ("output.far > output.big", True),
    ("9223372036854775808 > 0", REFUSED),
    ("1.0 / 0.0 > 1e308", True),
    ("0.0 / 0.0 == 0.0 / 0.0", False),
    # Arithmetic does not mix them.
    ("output.i + 1 == 8", True),
    ("output.i / 2 == 3", True),
    ("output.i % 4 == 3", True),
    ("-output.i == -7", True),
    ("double(output.i) / 2.0 == 3.5", True),
    ("int(output.d) == 2 && int(-2.5) == -2", True),
    ("output.i + output.d > 1.0", ERROR),
    ("output.i / output.zero == 1", ERROR),
    ("output.d % 2.0 == 0.5", REFUSED),
    ("output.d / 0.0 > 1.0", True),
    ("output.s + 1 == ''", REFUSED),
    ("output.s + output.i == ''", ERROR),
    ("1 + 1.0 == 2.0", REFUSED),
    ("'a' + 'b' == 'ab'", True),
    ("[1] + [2] == [1, 2]", True),
    # Logic: one side that decides is enough, whatever the other one is.
    ("!output.no", True),
    ("false && output.missing", False),
    ("output.missing && false", False),
    ("true || output.missing", True),
    ("output.missing || true", True),
    ("output.missing || false", ERROR),
    ("output.missing && true", ERROR),
    ("output.i / output.zero == 1 || output.i == 7", True),
    ("output.i == 7 && output.i / output.zero == 1", ERROR),
    ("output.i && true", ERROR),
    ("!output.nil", ERROR),
    ("true || false && false", True),
    ("output.yes", True),
    ("output.no", False),
    ("output.i", ERROR),
    ("output.missing", ERROR),
    ("1", REFUSED),
    # The ternary asks one side only.
    ("output.i > 5 ? output.s == 'hello' : output.missing", True),
    ("output.i < 5 ? output.missing : true", True),
    ("(output.i > 5 ? 'high' : 'low') == 'high'", True),
    ("output.missing ? true : true", ERROR),
    ("output.i ? true : false", ERROR),
    # Strings.
    ("output.s.contains('ell')", True),
    ("output.s.startsWith('he') && output.s.endsWith('lo')", True),
    ("output.i.contains('7')", ERROR),
    ("output.s.contains(1)", REFUSED),
    ("output.list.contains(1)", REFUSED),
    ("output.list.contains(output.s)", ERROR),
    ("output.s.size() == 5 && size(output.s) == 5", True),
    ("output.s.charAt(1) == 'e'", True),
    ("output.s.charAt(9) == ''", ERROR),
    ("output.s.indexOf('l') == 2 && output.s.lastIndexOf('l') == 3", True),
    ("output.s.substring(1, 3) == 'el' && output.s.substring(3) == 'lo'", True),
    ("output.s.substring(9) == ''", ERROR),
    ("output.s.upperAscii() == 'HELLO' && 'ABC'.lowerAscii() == 'abc'", True),
    ("'  a b '.trim() == 'a b'", True),
    ("output.s.replace('l', 'L') == 'heLLo' && output.s.replace('l', 'L', 1) == 'heLlo'", True),
    ("'a,b,c'.split(',') == ['a', 'b', 'c']", True),
    ("['a', 'b'].join('-') == 'a-b' && [].join('-') == ''", True),
    ("'%s has %d'.format([output.s, output.i]) == 'hello has 7'", True),
    # Regular expressions.
    ("output.s.matches('^h.*o$')", True),
    ("output.s.matches('(?i)HELLO')", True),
    ("output.uni.matches('^\\\\pL+ ')", True),
    ("output.s.matches(output.s + '(')", ERROR),
    ("output.s.matches('(')", REFUSED),
    ("output.s.matches('(?=h)')", REFUSED),
    # Escapes and Unicode.
    ("size(output.uni) == 8", True),
    ("'é' == 'e\\u0301'", False),
    ("'a", REFUSED),
    # Lists and maps.
    ("output.list[0] == 3", True),
    ("output.list[3] == 0", ERROR),
    ("output.list[-1] == 2", ERROR),
    ("output.list['0'] == 3", ERROR),
    ("output.none.size() == 0 && size(output.list) == 3", True),
    ("size(output.map) == 2 && output.map.size() == 2", True),
    ("size(output.i) == 1", ERROR),
    ("output.map.a == 1 && output.map['b'] == 2", True),
    ("output.map.c == 1", ERROR),
    ("output['a key'] == 1", True),
    ("output.deep.a.b.c == 1", True),
    ("output.deep.x.b.c == 1", ERROR),
    ("output.s.x == 1", ERROR),
    ("output.nil.x == 1", ERROR),
    ("{'a': 1, 'a': 2}.a == 2", ERROR),
    # in
    ("3 in output.list", True),
    ("3.0 in output.list", True),
    ("'ada' in output.words", True),
    ("'a' in output.map", True),
    ("'e' in output.s", ERROR),
    ("null in output.mixed && true in output.mixed", True),
    ("1 in output.i", ERROR),
    # has
    ("has(output.i)", True),
    ("has(output.missing)", False),
    ("has(output.nil)", True),
    ("has(output.deep.a.b)", True),
    ("has(output.deep.x)", False),
    ("has(output.deep.x.y)", ERROR),
    ("has(output.deep.x) && output.deep.x.y == 1", False),
    ("has(output)", REFUSED),
    ("has(output.list[0])", REFUSED),
    # Optionals.
    ("output.?i.orValue(0) == 7", True),
    ("output.?missing.orValue(0) == 0", True),
    ("output.?missing.?deeper.orValue('x') == 'x'", True),
    ("output.list[?0].orValue(9) == 3 && output.list[?9].orValue(9) == 9", True),
    ("output.?i.value() == 7", True),
    ("output.?missing.value() == 7", ERROR),
    ("output.?i.optMap(x, x * 2).orValue(0) == 14", True),
    ("[?output.?missing, 1] == [1]", True),
    ("output.?i", REFUSED),
    # Macros over lists.
    ("output.list.all(x, x > 0)", True),
    ("output.none.all(x, false)", True),
    ("output.list.exists(x, x == 2)", True),
    ("output.list.exists_one(x, x > 2)", True),
    ("output.list.map(x, x * 10) == [30, 10, 20]", True),
    ("output.list.filter(x, x > 1) == [3, 2]", True),
    ("output.rows.filter(r, r.ok).map(r, r.id) == [1, 3]", True),
    ("output.rows.all(r, has(r.id))", True),
    ("output.rows.exists(r, r.missing == 1)", ERROR),
    ("output.rows.exists(r, r.missing == 1 || r.id == 2)", True),
    ("output.mixed.exists(x, x > 2)", True),
    ("output.mixed.all(x, x > 0)", ERROR),
    ("output.list.exists(output, output == 3)", True),
    ("output.list.all(x, x)", ERROR),
    ("output.i.all(x, x > 0)", ERROR),
    # Macros over maps go through the keys.
    ("output.map.all(k, k in ['a', 'b'])", True),
    ("output.map.exists(k, output.map[k] == 2)", True),
    # Conversions and types.
    ("string(7) == '7' && string(2.5) == '2.5' && string(true) == 'true'", True),
    ("int('7') == 7 && double('2.5') == 2.5 && uint('7') == 7u", True),
    ("int('x') == 1", ERROR),
    ("bool('true') && !bool('false')", True),
    ("type(output.i) == int && type(output.d) == double && type(output.s) == string", True),
    ("type(output.list) == list && type(output.map) == map && type(null) == null_type", True),
    ("dyn(1) == 1.0", True),
    ("string(b'\\xff') == ''", ERROR),
    # Moments and lengths of time.
    ("timestamp(output.when).getFullYear() == 2026 && timestamp(output.when).getMonth() == 2", True),
    ("timestamp(output.when).getHours() == 12 && timestamp(output.when).getMilliseconds() == 500", True),
    ("timestamp(output.when).getHours('+02:00') == 14", True),
    ("timestamp('2026-01-02T00:00:00Z') - timestamp('2026-01-01T00:00:00Z') == duration('24h')", True),
    ("timestamp('2026-01-01T00:00:00Z') + duration('90m') == timestamp('2026-01-01T01:30:00Z')", True),
    ("duration('1h30m') == duration('5400s') && duration('90m').getHours() == 1", True),
    ("timestamp('yesterday') == timestamp(0)", ERROR),
    ("duration('long') == duration('1s')", ERROR),
    # Functions of numbers.
    ("math.greatest(1, output.i, 3.5) == 7 && math.least([3, 1, 2]) == 1", True),
    ("math.ceil(1.2) == 2.0 && math.floor(1.8) == 1.0 && math.round(1.5) == 2.0 && math.trunc(-1.8) == -1.0", True),
    # Nodes, inputs, the run.
    ("ctx.n.output.v == 10", True),
    ("ctx['n'].output['v'] == 10", True),
    ("ctx['a-b'].output[1] == 2", True),
    ('ctx["a-b"].output.size() == 2', True),
    ("ctx.n.meta.attempts == 2 && ctx.n.meta.status == 'COMPLETED'", True),
    ("ctx[inputs.name].output.v == 10", True),
    ("has(ctx.n.output) && !has(ctx.gone.output)", True),
    ("ctx.gone.output.v == 1", ERROR),
    ("ctx.gone.output.v == 1 || true", True),
    ("'n' in ctx && !('gone' in ctx)", True),
    ("ctx.exists(k, ctx[k].output == [1, 2])", True),
    ("ctx.a-b.output == 1", REFUSED),
    ("ctx.n.v == 10", REFUSED),
    ("current.i == output.i && inputs.n == 3 && iteration == 2 && run.version == 4", True),
    (".output.i == 7", True),
    ("item == 1", REFUSED),
    ("secrets.TOKEN == ''", REFUSED),
    ("nope", REFUSED),
    ("nope(1)", REFUSED),
    # Spaces, comments and what is not CEL.
    ("  output.i\n\t==\n7  ", True),
    ("output.i == 7 // and so on", True),
    ("output.i == 7 and true", REFUSED),
    ("output.i = 7", REFUSED),
    ("not output.no", REFUSED),
    ("output.list[0:1] == [3]", REFUSED),
    ("(output.i == 7", REFUSED),
    ("", REFUSED),
]


def answer(expression: str) -> Answer:
    problems: list[Problem] = []
    program = parse_cel(expression, "", problems)
    if program is None:
        assert problems
        assert {problem.code for problem in problems} <= {"condition_syntax", "condition_unknown_name"}
        return REFUSED
    try:
        return program.holds(program.bind(HERE), HERE)
    except ExpressionError as error:
        return ERROR if error.code == "condition_failed" and error.message else REFUSED


@pytest.mark.parametrize(("expression", "expected"), CASES)
def test_an_expression_answers(expression: str, expected: Answer) -> None:
    assert answer(expression) == expected


def test_the_table_is_long_and_says_nothing_twice() -> None:
    assert len(CASES) >= 150
    assert len({expression for expression, _ in CASES}) == len(CASES)
