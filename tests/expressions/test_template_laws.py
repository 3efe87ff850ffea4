"""Laws that hold for any template, found wrong by random ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from tests.expressions.scopes import AFTER, SCOPE, Watched, is_plain
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import Json, Scope, Seen
from tidemill.expressions.templates import template
from tidemill.expressions.templates.limits import Meter, to_json_value
from tidemill.expressions.templates.template import check_template, compile_template

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=4) | st.dictionaries(TEXT, below, max_size=4), max_leaves=12
)

PATHS = st.sampled_from(
    [
        "enrich",
        "enrich.score",
        "enrich.output.items",
        "enrich.items[0].id",
        "enrich.nope",
        "skipped.output",
        "later.x",
        "text",
        "null",
        "nowhere.x",
        "ctx.enrich.output",
        "ctx['a-b'][1]",
        "nodes['a-b']",
        "nodes[inputs.which].score",
        "ctx[inputs.customer]",
        "inputs.list",
        "inputs.n",
        "inputs.customer",
        "run.id",
        "iteration",
        "item",
        "index",
        "output",
        "secrets.TOKEN",
        "ctx",
        "secrets",
        "x",
        "x.y",
        "loop.index",
    ]
)
LITERALS = st.sampled_from(
    ["1", "0", "2.5", "'a'", "''", "none", "true", "[]", "{}", "[1, 2]", "{'a': 1}", "(1,)", "range(3)"]
)
FILTERS = st.sampled_from(
    [
        "length",
        "upper",
        "default(1)",
        "first",
        "last",
        "list",
        "sum",
        "join(',')",
        "json",
        "tojson",
        "string",
        "int",
        "sort",
        "unique",
        "reverse",
        "map('upper')",
        "map(attribute='id')",
        "select",
        "selectattr('id')",
        "batch(2)",
        "dictsort",
        "items",
        "round",
        "abs",
        "e",
        "trim",
        "max",
        "groupby('n')",
    ]
)


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
    nodes = Watched(AFTER.nodes)
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
        found = program.evaluate(SCOPE, Meter())
    except ExpressionError as failure:
        return failure.message, failure.hint
    return type(found), found
