"""The filters, tests and methods that templates have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fixtures.scopes import AFTER, SCOPE, WatchedScope, is_plain
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import Json, Scope, Seen
from tidemill.expressions.templates import template
from tidemill.expressions.templates.limits import RenderBudget, to_json_value
from tidemill.expressions.templates.template import check_template, compile_template


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("enrich.deep | json", '{"k": {"z": 1}}'),
        ("'<ä\"' | json", '"<ä\\""'),
        ("[1, none, true, 0.5] | json", "[1, null, true, 0.5]"),
        ("{'b': 1, 'a': [1]} | json(indent=1)", '{\n "b": 1,\n "a": [\n  1\n ]\n}'),
        ("'<&' | tojson", '"\\u003c\\u0026"'),
        ("{'b': 1, 'a': 2} | tojson", '{"a": 2, "b": 1}'),
        ("'a' | default('b')", "a"),
        ("none | default('b')", None),
        ("'' | default('b', true)", "b"),
        ("inputs.list | length", 3),
        ("inputs.list | sum", 6),
        ("enrich.items | sum(attribute='id')", 3),
        ("[[1], [2]] | sum(start=[])", [1, 2]),
        ("inputs.list | sort", [1, 2, 3]),
        ("inputs.list | first", 3),
        ("inputs.list | min", 1),
        ("inputs.list | reverse | list", [2, 1, 3]),
        ("[1, 1, 2] | unique | list", [1, 2]),
        ("inputs.list | join('-')", "3-1-2"),
        ("enrich.items | join(',', attribute='n')", "a,b"),
        ("enrich.items | map(attribute='id') | list", [1, 2]),
        ("enrich.items | map(attribute='x', default=0) | list", [0, 0]),
        ("['a', 'b'] | map('upper') | list", ["A", "B"]),
        ("enrich.items | selectattr('id', 'gt', 1) | list", [{"id": 2, "n": "b"}]),
        ("enrich.items | rejectattr('x', 'defined') | list | length", 2),
        ("[1, 2, 3] | select('odd') | list", [1, 3]),
        ("enrich.items | groupby('n') | list", [["a", [{"id": 1, "n": "a"}]], ["b", [{"id": 2, "n": "b"}]]]),
        ("{'b': 1, 'a': 2} | dictsort", [["a", 2], ["b", 1]]),
        ("{'b': 1} | items | list", [["b", 1]]),
        ("[1, 2, 3] | batch(2, 0) | list", [[1, 2], [3, 0]]),
        ("[1, 2, 3] | slice(2) | list", [[1, 2], [3]]),
        ("'abc' | upper", "ABC"),
        ("'abc' | replace('b', 'x')", "axc"),
        ("'a\nb' | indent(2)", "a\n  b"),
        ("'a b c' | wordwrap(3)", "a b\nc"),
        ("'abcdefghij' | truncate(5, true, '…', 0)", "abcd…"),
        ("'a b' | urlencode", "a%20b"),
        ("{'a': 1, 'b': 'x y'} | urlencode", "a=1&b=x+y"),
        ("'<b>' | e", "&lt;b&gt;"),
        ("'<b>' | escape ~ '<'", "&lt;b&gt;<"),
        ("'<b>' | safe", "<b>"),
        ("'hé' | b64", "aMOp"),
        ("'??>' | b64(urlsafe=true)", "Pz8-"),
        ("'??>' | b64encode", "Pz8+"),
        ("'Pz8+' | b64decode ~ 'Pz8-' | b64decode", "??>??>"),
        ("'YQ' | b64decode ~ 'YQ==' | b64decode", "aa"),
        ("{'a': 1} | json | b64encode | b64decode", '{"a": 1}'),
        ("'<b>x</b>' | striptags", "x"),
        ("{'a': 'x'} | xmlattr", ' a="x"'),
        ("3.7 | int", 3),
        ("'x' | int(-1)", -1),
        ("'1.5' | float", 1.5),
        ("1.005 | round(2)", 1.0),
        ("1.21 | round(1, 'ceil')", 1.3),
        ("12 | string", "12"),
        ("1500 | filesizeformat", "1.5 kB"),
        ("'%05d %s' | format(3, 'x')", "00003 x"),
        ("'%.1f' % 2.25", "2.2"),
        ("'abc' | reverse", "cba"),
        ("3 is odd and 4 is even and 9 is divisibleby 3", True),
        ("none is none and 'x' is string and 1 is number and 1.5 is float", True),
        ("{} is mapping and [] is sequence and true is boolean", True),
        ("1 is in [1, 2] and 1 is not in [2]", True),
        ("'upper' is filter and 'odd' is test", True),
        ("'Abc'.upper() ~ 'Abc'.lower() ~ 'abc'.title()", "ABCabcAbc"),
        ("'abc'.replace('b', 'x') ~ '-'.join(['a', 'b'])", "axca-b"),
        ("'7'.zfill(3) ~ 'a'.ljust(2, '.') ~ 'a'.rjust(2) ~ 'a'.center(3)", "007a. a a "),
        ("'abc'.startswith('a') and 'abc'.endswith('c') and '1'.isdigit()", True),
        ("{'a': 1}.get('a')", 1),
        ("{'a': 1}.items() | list", [["a", 1]]),
        ("range(1, 7, 2) | list", [1, 3, 5]),
        ("7 // 2 + 7 % 4 + 2 ** 3 - 1", 13),
        ("'a' in 'abc' and 'x' not in inputs", True),
        ("inputs.list[1:] + [9]", [1, 2, 9]),
        ("1 < inputs.n <= 3", True),
        ("[1, [2]] == [1, [2]] and (1, 2) != [1, 2]", True),
    ],
)
def test_an_expression_gives(expression: str, expected: Any) -> None:
    found = compile_template(f"{{{{ {expression} }}}}").render(SCOPE)
    assert found == expected
    assert type(found) is type(expected)
    assert is_plain(found)


@pytest.mark.parametrize(("value", "message"), [("a", "not in base64"), ("a*==", "not in base64"), ("/w==", "UTF-8")])
def test_what_is_not_base64_fails(value: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        compile_template(f"{{{{ '{value}' | b64decode }}}}").render(SCOPE)


def test_escaped_text_is_an_ordinary_string_afterwards() -> None:
    assert compile_template("{{ '<' | e }}{{ '<' }}").render(SCOPE) == "&lt;<"
    assert type(compile_template("{{ '<' | e }}").render(SCOPE)) is str


# Laws that hold for any template, found wrong by random ones


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=4) | st.dictionaries(TEXT, below, max_size=4), max_leaves=12
)

PATHS_WRITTEN = """
    enrich enrich.score enrich.output.items enrich.items[0].id enrich.nope skipped.output later.x text null
    nowhere.x ctx.enrich.output ctx['a-b'][1] nodes['a-b'] nodes[inputs.which].score ctx[inputs.customer]
    inputs.list inputs.n inputs.customer run.id iteration item index output secrets.TOKEN ctx secrets x x.y
    loop.index
"""
PATHS = st.sampled_from(PATHS_WRITTEN.split())
LITERALS = st.sampled_from(
    ["1", "0", "2.5", "'a'", "''", "none", "true", "[]", "{}", "[1, 2]", "{'a': 1}", "(1,)", "range(3)"]
)
FILTERS_WRITTEN = """
    length upper default(1) first last list sum join(',') json tojson string int sort unique reverse
    map('upper') map(attribute='id') select selectattr('id') batch(2) dictsort items round abs e trim max
    groupby('n')
"""
FILTERS = st.sampled_from(FILTERS_WRITTEN.split())


def _compound(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "~", "==", "<", "in", "and", "or", "%", "**", "//"])
    return st.one_of(
        st.builds("({} {} {})".format, below, operators, below),
        st.builds("({} | {})".format, below, FILTERS),
        st.builds("({})[{}]".format, below, below),
        st.builds("({}).{}".format, below, st.sampled_from(["a", "items", "x", "output"])),
        st.builds("({}).{}()".format, below, st.sampled_from(["items", "upper", "keys", "nope"])),
        st.builds("({} if {} else {})".format, below, below, below),
        st.builds("[{}, {}]".format, below, below),
        st.builds("{{'k': {}}}".format, below),
        st.builds("({} is {})".format, below, st.sampled_from(["defined", "none", "string", "mapping", "odd"])),
        st.builds("(not {})".format, below),
    )


EXPRESSIONS = st.recursive(PATHS | LITERALS, _compound, max_leaves=5)
PIECES = st.one_of(
    TEXT,
    st.builds("{{{{ {} }}}}".format, EXPRESSIONS),
    st.builds("{{% for x in {} %}}{{{{ {} }}}}{{% endfor %}}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("{{% if {} %}}{{{{ {} }}}}{{% endif %}}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("{{% set x = {} %}}".format, EXPRESSIONS),
    st.sampled_from(["{{", "}}", "{%", "%}", "{#", "#}", "{% raw %}", "{% endraw %}", "{{-", "-}}", "\r\n"]),
)
TEMPLATES = st.builds("{{{{ {} }}}}".format, EXPRESSIONS) | st.lists(PIECES, max_size=4).map("".join)


@given(JSON.filter(lambda value: not _has_syntax(value)))
def test_a_value_without_template_syntax_renders_to_itself(value: Json) -> None:
    template = compile_template(value)
    assert template.is_constant
    assert template.render(SCOPE) is value


def _has_syntax(value: Json) -> bool:
    if isinstance(value, str):
        return any(sign in value for sign in ("{{", "{%", "{#"))
    if isinstance(value, dict):
        return any(_has_syntax(each) for each in value.values())
    return isinstance(value, list) and any(_has_syntax(each) for each in value)


@given(JSON)
def test_any_value_survives_a_single_expression(value: Json) -> None:
    scope = Scope(nodes={"n": Seen(value)}, inputs=value, run={})
    for source in (
        "{{ n.output }}",
        "{{ inputs }}",
        "{{ nodes['n'] }}",
        "{{ [n.output][0] }}",
        "{{ n.output | default(1) }}",
    ):
        found = compile_template(source).render(scope)
        assert found == value
        assert repr(found) == repr(value)


@given(JSON)
def test_plain_json_is_plain(value: Json) -> None:
    assert repr(to_json_value(value)) == repr(value)
    assert is_plain(to_json_value(value))


@given(TEMPLATES)
@example("{{ (1 / 3) ** -2 }}")
@example("{{ ([1, 2] | map('upper'))[0] }}")
def test_any_template_gives_plain_json_or_says_why_not(source: str) -> None:
    problems, references = check_template(source, "")
    nodes = WatchedScope(AFTER.nodes)
    failure = None
    try:
        found = compile_template(source).render(replace(AFTER, nodes=nodes))
    except ExpressionError as error:
        failure = error
    if failure is None:
        assert is_plain(found)
        assert not problems
    else:
        assert failure.code == "template_failed"
        assert failure.message
    assert references.dynamic or nodes.asked <= references.nodes, "a node was read that is not referred to"


@given(
    st.lists(
        TEXT | PATHS.map("{{{{ {} }}}}".format) | st.sampled_from(["{", "}", "{{ x }}", "{{x.y}}", "{"]), max_size=5
    )
)
@example(["{", "{{ inputs.n }}"])
@example(["{{ inputs.n }}", "}"])
@example([" ", "{{ inputs.n }}", "\n"])
@example(["{{ true }}"])
@example(["{{ range }}"])
@example(["{{ x._y }}"])
def test_the_short_way_and_jinjas_way_agree(parts: list[str]) -> None:
    source = "".join(parts)
    short = template._simple(source) if template.has_syntax(source) else None
    if short is None:
        return
    full = template._full(source)
    assert full.program is not None
    assert full.references == short.references
    assert _result(full.program) == _result(short)


def _result(program: template.CompiledTemplate) -> object:
    try:
        found = program.evaluate(SCOPE, RenderBudget())
    except ExpressionError as failure:
        return failure.message, failure.hint
    return type(found), found
