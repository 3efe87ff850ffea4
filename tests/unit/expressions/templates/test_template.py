"""What templates render to."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fixtures.scopes import AFTER, IN_MAP, OUTPUT, SCOPE, is_plain
from tests.pace import allowed
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.scope import NOTHING, References, Scope, Seen, is_template, merged
from tidemill.expressions.templates.template import check_template, compile_template


def render(value: Any, scope: Scope = SCOPE) -> Any:
    return compile_template(value).render(scope)


def failure(value: Any, scope: Scope = SCOPE) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        render(value, scope)
    assert caught.value.code == "template_failed"
    return caught.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # A single expression keeps its type; white space around it does not matter.
        ("{{ enrich.output.score }}", 87),
        ("  {{ enrich.output.score }}\n", 87),
        ("{{ enrich.output.none }}", None),
        ("{{ enrich.output.deep }}", {"k": {"z": 1}}),
        ("{{- enrich.output.score -}}", 87),
        ("{# why #}{{ enrich.output.score }}", 87),
        ("{{ inputs.n + 1 }}", 4),
        ("{{ inputs.n > 2 and enrich.score == 87 }}", True),
        ("{{ [1, (2, 3), {'a': none}] }}", [1, [2, 3], {"a": None}]),
        # Anything else is a string.
        ("{{ enrich.output.score }}!", "87!"),
        ("{{ 1 }}{{ 1 }}", "11"),
        ("https://crm.example/{{ inputs.customer }}/x", "https://crm.example/acme/x"),
        ("{% if inputs.n == 3 %}yes{% else %}no{% endif %}", "yes"),
        ("a{{ enrich.output.none }}b{{ enrich.output.flag }}", "aNonebTrue"),
        # Trap 8: what looks like another type stays a string.
        ("{{ '[1,2]' }}", "[1,2]"),
        ("{{ 'None' }}", "None"),
        # The shorthand, and the two names that it does not cover.
        ("{{ enrich.score }}", 87),
        ("{{ enrich['score'] }}", 87),
        ("{{ enrich.output }}", OUTPUT),
        ("{{ enrich.output.output }}", {"z": 1}),
        ("{{ enrich.meta.attempts }}", 2),
        ("{{ enrich.meta }}", {"status": "COMPLETED", "attempts": 2, "duration_ms": 3}),
        ("{{ enrich.output.meta }}", "mine"),
        ("{{ enrich }}", OUTPUT),
        ("{{ enrich | length }}", len(OUTPUT)),
        ("{{ text }}", "plain"),
        ("{{ null }}", None),
        # Other roads to the same node.
        ("{{ ctx.enrich.output.score }}", 87),
        ("{{ ctx.enrich.meta.status }}", "COMPLETED"),
        ("{{ ctx['a-b'].output }}", [1, 2, 3]),
        ('{{ nodes["a-b"].output[0] }}', 1),
        ('{{ nodes["a-b"] }}', [1, 2, 3]),
        ('{{ nodes["a-b"][1:] }}', [2, 3]),
        ("{{ nodes.enrich.score }}", 87),
        ("{{ nodes[inputs.which].score }}", 87),
        ("{{ nodes[inputs.which].meta.attempts }}", 2),
        ("{{ nodes['a-' ~ 'b'] }}", [1, 2, 3]),
        # The other roots.
        ("{{ run.id }}", "r1"),
        ("{{ run }}", {"id": "r1", "workflow": "w", "version": 4}),
        ("{{ iteration }}", 0),
        ("{{ inputs.list[0] }}", 3),
        ("{{ inputs.list.0 }}", 3),
        ("Bearer {{ secrets.TOKEN }}", "Bearer s3cr3t-value"),
        # Undefined is chainable until used.
        ("{{ skipped.output.x | default(1) }}", 1),
        ("{{ skipped.output.x.y[0].z | default('d') }}", "d"),
        ("{{ skipped | default(1) }}", 1),
        ("{{ inputs.nope.x | d(2) }}", 2),
        ("{{ nowhere.x | default(3) }}", 3),
        ("{{ skipped.output is defined }}", False),
        ("{{ skipped.meta is undefined }}", True),
        ("{{ nodes[inputs.customer].x | default(4) }}", 4),
        ("{{ [] | first | default(6) }}", 6),
        ("{{ inputs.empty | default('x', true) }}", "x"),
        # Nothing is lost around the expressions.
        ("a\r\n{{ inputs.n }}\r\n", "a\r\n3\r\n"),
        ("a\r\n{{ inputs.customer | upper }}\r\n\n", "a\r\nACME\r\n\n"),
        ("{{ 'x' }}\r{{ 'y' }}\x1c", "x\ry\x1c"),
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("{# only a comment #}", ""),
        ('{{ "{{" }}', "{{"),
        ("x{{ inputs.n if false }}", "x"),
        ("{{ '<' }}&", "<&"),
        # Loops, variables, macros.
        ("{% for i in enrich.items %}{{ i.n }}{{ ',' if not loop.last }}{% endfor %}", "a,b"),
        ("{% for i in enrich.items if i.id > 1 %}{{ loop.index }}{{ i.n }}{% else %}-{% endfor %}", "1b"),
        ("{% for item in inputs.list | sort %}{{ item }}{% endfor %}", "123"),
        ("{% for k, v in enrich.deep.items() %}{{ k }}={{ v.z }}{% endfor %}", "k=1"),
        ("{% set s = enrich.score %}{{ s + 1 }}", "88"),
        ("{% set x %}<{{ inputs.n }}>{% endset %}{{ x }}{{ x }}", "<3><3>"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m(inputs.customer) }}", "<1><acme>"),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ inputs.n }}{% endcall %}", "<3>"),
        ("{% filter upper %}x{{ inputs.customer }}{% endfilter %}", "XACME"),
        ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for g in enrich.items | groupby('n') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}", "a1b1"),
    ],
)
def test_a_string_renders_to(source: str, expected: Any) -> None:
    found = render(source)
    assert found == expected
    assert type(found) is type(expected)
    assert is_plain(found)


@pytest.mark.parametrize("key", ["items", "keys", "values", "get", "copy", "pop", "update", "clear", "count", "index"])
def test_a_key_comes_before_a_method_of_the_same_name(key: str) -> None:
    """Trap 7."""
    scope = Scope(nodes={"n": Seen({key: "the key"})}, inputs={}, run={})
    assert render(f"{{{{ n.output.{key} }}}}", scope) == "the key"
    assert render(f"{{{{ n.{key} }}}}", scope) == "the key"
    assert render(f"{{% for x in [n.output] %}}{{{{ x.{key} }}}}{{% endfor %}}", scope) == "the key"


@pytest.mark.parametrize("key", ["items", "keys", "values"])
def test_a_call_still_means_the_method(key: str) -> None:
    scope = Scope(nodes={"n": Seen({key: [0], "b": 2})}, inputs={}, run={})
    expected = {"items": [[key, [0]], ["b", 2]], "keys": [key, "b"], "values": [[0], 2]}[key]
    assert render(f"{{{{ n.output.{key}() | list }}}}", scope) == expected


def test_a_private_key_is_reached_by_subscription_only() -> None:
    assert render('{{ enrich.output["_private"] }}') == 5
    assert "_private" in failure("{{ enrich.output._private }}").message


def test_item_and_index_exist_in_a_map() -> None:
    assert render({"a": "{{ item.id }}", "b": "{{ index }}"}, IN_MAP) == {"a": 9, "b": 4}
    assert "item is not available here" in failure("{{ item.id }}").message
    assert "index is not available here" in failure("{{ index + 1 }}").message


def test_output_exists_where_the_scope_has_one() -> None:
    assert render("{{ output.score }}{{ current.n }}", AFTER) == "872.5"
    assert render("{{ iteration }}", AFTER) == 2
    assert "output is not available here" in failure("{{ output }}").message


def test_a_value_without_templates_is_handed_out_as_it_is() -> None:
    config = {"url": "https://crm.example", "list": [1, {"a": None}], "brace": "{ x }"}
    template = compile_template(config)
    assert template.is_constant
    assert template.render(SCOPE) is config


def test_a_nested_value_is_rendered_in_place() -> None:
    config = {"z": "{{ inputs.n }}", "a": ["x", "{{ inputs.customer }}", {"k": "-{{ run.id }}-"}], "m": {"same": [1]}}
    template = compile_template(config)
    rendered = template.render(SCOPE)
    assert rendered == {"z": 3, "a": ["x", "acme", {"k": "-r1-"}], "m": {"same": [1]}}
    assert list(rendered) == ["z", "a", "m"]
    assert rendered["m"] is config["m"]
    assert not template.is_constant
    assert config["z"] == "{{ inputs.n }}", "the template itself is never changed"


def test_a_failure_names_the_place_of_the_string() -> None:
    assert failure({"a": [{"b/c": "{{ skipped.output }}"}]}).path == "/a/0/b~1c"
    assert failure("{{ skipped.output }}").path == ""


def test_a_template_with_wrong_syntax_cannot_be_compiled() -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_template({"url": "{{ a b }}"})
    assert caught.value.code == "template_failed"
    assert caught.value.path == "/url"
    assert "line 1" in caught.value.message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{{ x }}", True),
        ("{% x %}", True),
        ("{# x #}", True),
        ("{ x }", False),
        ("", False),
        (1, False),
        (["{{"], False),
    ],
)
def test_what_is_a_template(value: Any, expected: bool) -> None:
    assert is_template(value) is expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "can only concatenate"),
        ("{{ inputs.n + inputs.customer }}", "unsupported operand"),
        ("{{ inputs.list | map(attribute='x') | list }}", 'no key "x"'),
        ("{{ inputs.list | map('upper') }}", "not read yet"),
        ("{{ range(3) }}", "not read yet"),
        ("{{ 'x'.upper }}", 'no key "upper"'),
        ("{{ range }}", "not a JSON value"),
        ("x{{ range }}", "not a JSON value"),
        ("{{ {1: 2} }}", "a key of an object is a string, not a number"),
        ("{{ dict([[1, 2]]) }}", "positional"),
        ("{{ 1e300 * 1e300 }}", "inf"),
        ("{{ (0 - 8) ** 0.5 }}", "complex"),
        ("{{ '\\ud800' }}", "Unicode"),
        ("{{ inputs.n if false }}", "no value"),
        ("{{ inputs['customer']() }}", "cannot be called"),
        ("{{ inputs.customer() }}", 'no method "customer"'),
        ("{{ inputs.n.foo() }}", 'no method "foo"'),
        ("{{ [skipped.output] }}", "was skipped"),
        ("{{ [] | first }}", "empty"),
    ],
)
def test_an_expression_fails_with(source: str, words: str) -> None:
    assert words in failure(source).message


# What is found wrong with a template before anything is rendered


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("{{ a b }}", "line 1: expected token 'end of print statement', got 'b'", "{{ name.key }}"),
        ("x\n\n{{ a | }}", "line 3:", ""),
        ("{{ ", "line 1: unexpected 'end of template'", ""),
        ("{% if x %}", "line 1: Unexpected end of template", ""),
        ("{% endfor %}", "line 1: Encountered unknown tag 'endfor'", ""),
        ("{# never closed", "Missing end of comment tag", ""),
        ("{{ x | uper }}", 'there is no filter called "uper"', 'did you mean "upper"?'),
        ("{{ x | zzzzz }}", 'there is no filter called "zzzzz"', "known: abs, b64, b64decode"),
        ("{% if true %}{{ x | uper }}{% endif %}", 'there is no filter called "uper"', ""),
        ("{{ x is definde }}", 'there is no test called "definde"', 'did you mean "defined"?'),
        ("{{ x | attr('y') }}", 'there is no filter called "attr"', "x[name]"),
        ("{{ x | random }}", 'there is no filter called "random"', "rendered again"),
        ("{{ x | pprint }}", 'there is no filter called "pprint"', "`json(indent=2)`"),
        ("{{ x | base64 }}", 'there is no filter called "base64"', "`b64`"),
        ("{{ x.__class__ }}", 'names that start with _ are not visible: "__class__"', '["__class__"]'),
        ("{{ x._y }}", 'names that start with _ are not visible: "_y"', '["_y"]'),
        ("{{ self }}", '"self" is not defined here', 'nodes["self"]'),
        ("{{ super() }}", '"super" is not defined here', ""),
        ("{% include 'x' %}", "the tag {% include %} is not available", "stands alone"),
        ("{% extends 'x' %}", "the tag {% extends %} is not available", ""),
        ("{% autoescape true %}{% endautoescape %}", "the tag {% autoescape %} is not available", ""),
        ("{% set a = a.output %}{{ a }}", '"a" may be read before it is set', 'nodes["a"]'),
        ("{% if inputs.x %}{% set y = 1 %}{% endif %}{{ y }}", '"y" may be read before it is set', "set y"),
        ("{% for ctx in ctx.a.output %}{% endfor %}", '"ctx" may be read before it is set', ""),
        ("{% for x in y %}{% set loop = 1 %}{% endfor %}", "loop", ""),
        ("{{ 1e999 }}", "a number is too large", ""),
        ("{{ " + "9" * 5000 + " }}", "digits", ""),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "nested too deep", ""),
        ("{{ " + "[" * 150 + "]" * 150 + " }}", "", ""),
        ("{% if x %}" * 150 + "{% endif %}" * 150, "", ""),
        ("{{ x }}" * 40_000, "limited to 262144 characters", ""),
    ],
)
def test_a_problem_is_found(source: str, message: str, hint: str) -> None:
    problems, _ = check_template({"url": source}, "/nodes/0/config")
    assert [problem.code for problem in problems] == ["template_syntax"]
    assert problems[0].path == "/nodes/0/config/url"
    assert message in problems[0].message
    assert hint in problems[0].hint


def test_every_problem_is_reported_with_its_place() -> None:
    value = {"a": "{{ x | nope }} {{ y | nope }}", "b": [1, "{{ }}", {"c~/d": "{{ x is nope }}"}], "fine": "{{ z.q }}"}
    problems, references = check_template(value, "/config")
    assert [problem.path for problem in problems] == ["/config/a", "/config/a", "/config/b/1", "/config/b/2/c~0~1d"]
    assert "z" in references.nodes


def test_a_value_that_is_nested_too_deep_is_a_problem() -> None:
    value: object = "{{ x.y }}"
    for _ in range(100_000):
        value = [value]
    problems, _ = check_template(value, "")
    assert ["nested more than" in problem.message for problem in problems] == [True]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 10 ** 10 ** 8 }}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ range(10 ** 12) | list }}",
        "{% set x = 'x' * 10 ** 10 %}{{ x }}",
        "{{ 1 / 0 }}",
        "{% for x in [] %}{{ 0 if ()[0] else 0 }}{% endfor %}",
    ],
)
def test_compiling_executes_nothing(source: str) -> None:
    started = time.thread_time()
    assert check_template(source, "")[0] == []
    assert time.thread_time() - started < allowed(1)


def refers(nodes: str = "", roots: str = "", dynamic: bool = False) -> References:
    return References(frozenset(nodes.split()), frozenset(roots.split()), dynamic)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no template", refers()),
        ("{{ 1 }}", refers()),
        ("{{ enrich }}", refers("enrich")),
        ("{{ enrich.output.score }}", refers("enrich")),
        ("{{ ctx.enrich.output }}", refers("enrich", "ctx")),
        ("{{ nodes['a-b'][0] }}", refers("a-b", "nodes")),
        ("{{ nodes.a.output }}", refers("a", "nodes")),
        ("{{ inputs.x }} {{ run.id }} {{ iteration }}", refers("", "inputs run iteration")),
        ("{{ item.x + index }}", refers("", "item index")),
        ("{{ output.x }}{{ current.y }}", refers("", "output current")),
        ("Bearer {{ secrets.TOKEN }}", refers("", "secrets")),
        ("{{ ctx[inputs.which].output }}", refers("", "ctx inputs", dynamic=True)),
        ("{{ nodes[inputs.which] }}", refers("", "nodes inputs", dynamic=True)),
        ("{{ nodes[a.output].x }}", refers("a", "nodes", dynamic=True)),
        ("{{ nodes[0] }}", refers("", "nodes", dynamic=True)),
        ("{{ ctx }}", refers("", "ctx", dynamic=True)),
        ("{% set c = ctx %}{{ c.a.output }}", refers("", "ctx", dynamic=True)),
        ("{{ a.b | default(c.d) }}", refers("a c")),
        ("{{ a.b if c.d else e.f }}", refers("a c e")),
        ("{{ a.b[c.d:e.f] }}", refers("a c e")),
        ("{{ [a.x, {'k': b.y}, (c.z,)] }}", refers("a b c")),
        ("{{ 'x'.replace(a.x, b.y) }}", refers("a b")),
        ("{{ x is divisibleby(y.z) }}", refers("x y")),
        ("{{ 'a.x' }}{# b.y #}{% raw %}{{ c.z }}{% endraw %}", refers()),
        ("{% for x in a.list %}{{ x.y }}{{ b.z }}{% endfor %}", refers("a b")),
        ("{% for x in a.list if x.ok and b.ok %}{% else %}{{ c.z }}{% endfor %}", refers("a b c")),
        ("{% for item in inputs.list %}{{ item }}{% endfor %}", refers("", "inputs")),
        ("{% for item in item.list %}{{ item }}{% endfor %}", refers("", "item")),
        ("{{ loop.index }}", refers("loop")),
        ("{% set x = a.y %}{{ x.z }}", refers("a")),
        ("{% if a.x %}{{ b.y }}{% elif c.z %}{{ d.w }}{% else %}{{ e.v }}{% endif %}", refers("a b c d e")),
        ("{% macro m(x) %}{{ x }}{{ a.y }}{% endmacro %}{{ m(b.z) }}", refers("a b")),
        ("{% with x = a.y %}{{ x }}{{ b.z }}{% endwith %}", refers("a b")),
        ("{% filter upper %}{{ a.y }}{% endfilter %}", refers("a")),
        ("{{ range(a.n) | list }}", refers("a")),
        ("{{ ctx.a.output.b[c.d] }}", refers("a c", "ctx")),
        ({"x": "{{ a.y }}", "l": ["{{ ctx.b.output }}", 1, {"z": "-{{ inputs.q }}-"}]}, refers("a b", "ctx inputs")),
    ],
)
def test_a_template_refers_to(value: Any, expected: References) -> None:
    assert compile_template(value).references == expected
    assert check_template(value, "") == ([], expected)


def test_a_function_is_not_a_node() -> None:
    assert compile_template("{{ range(2) | list }}").references == NOTHING
    assert compile_template('{{ nodes["range"].x | default(1) }}').references == refers("range", "nodes")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ['enrich'] | map('a node') | list }}",
        "{{ [0] | map('a path') | list }}",
        "{{ ['enrich'] | map('a ' ~ 'node') | list }}",
        "{% set f = 'a node' %}{{ ['enrich'] | map(f) | list }}",
    ],
)
def test_no_node_is_reached_around_the_references(source: str) -> None:
    template = compile_template(source)
    assert not template.references.nodes
    assert not template.references.dynamic
    with_error = pytest.raises(Exception, match="no filter called")
    with with_error:
        template.render(SCOPE)


def test_references_unite() -> None:
    assert refers("a", "inputs") | refers("b", "ctx", dynamic=True) == refers("a b", "inputs ctx", dynamic=True)
    assert merged([]) is NOTHING
    assert merged([NOTHING, NOTHING]) is NOTHING
