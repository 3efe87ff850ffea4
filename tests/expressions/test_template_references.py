"""What a template refers to, known without rendering it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.expressions.scopes import SCOPE
from tidemill.expressions.scope import NOTHING, References, merged
from tidemill.expressions.templates.template import check_template, compile_template


def refers(nodes: str = "", roots: str = "", dynamic: bool = False) -> References:
    return References(frozenset(nodes.split()), frozenset(roots.split()), dynamic)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no template", refers()),
        ("{{ 1 }}", refers()),
        ("{{ enrich }}", refers("enrich")),
        ("{{ enrich.score }}", refers("enrich")),
        ("{{ enrich.output.score }}", refers("enrich")),
        ("{{ enrich.meta.attempts }}", refers("enrich")),
        ("{{ ctx.enrich.output }}", refers("enrich", "ctx")),
        ('{{ ctx["a-b"].output }}', refers("a-b", "ctx")),
        ("{{ nodes['a-b'][0] }}", refers("a-b", "nodes")),
        ("{{ nodes.a.output }}", refers("a", "nodes")),
        ("{{ inputs.x }} {{ run.id }} {{ iteration }}", refers("", "inputs run iteration")),
        ("{{ item.x + index }}", refers("", "item index")),
        ("{{ output.x }}{{ current.y }}", refers("", "output current")),
        ("Bearer {{ secrets.TOKEN }}", refers("", "secrets")),
        ("{{ ctx[inputs.which].output }}", refers("", "ctx inputs", dynamic=True)),
        ("{{ nodes[inputs.which] }}", refers("", "nodes inputs", dynamic=True)),
        ("{{ nodes['a' ~ 'b'].x }}", refers("", "nodes", dynamic=True)),
        ("{{ nodes[a.output].x }}", refers("a", "nodes", dynamic=True)),
        ("{{ nodes[0] }}", refers("", "nodes", dynamic=True)),
        ("{{ ctx }}", refers("", "ctx", dynamic=True)),
        ("{% set c = ctx %}{{ c.a.output }}", refers("", "ctx", dynamic=True)),
        ("{{ a.b | default(c.d) }}", refers("a c")),
        ("{{ a.b if c.d else e.f }}", refers("a c e")),
        ("{{ a[b.c] }}", refers("a b")),
        ("{{ a.b[c.d:e.f] }}", refers("a c e")),
        ("{{ [a.x, {'k': b.y}, (c.z,)] }}", refers("a b c")),
        ("{{ a.x.items() | list }}", refers("a")),
        ("{{ 'x'.replace(a.x, b.y) }}", refers("a b")),
        ("{{ x | join(y.z) }}", refers("x y")),
        ("{{ x is divisibleby(y.z) }}", refers("x y")),
        ("{{ a.x ~ b.y ~ 'c.z' }}", refers("a b")),
        ("{{ 'a.x' }}{# b.y #}{% raw %}{{ c.z }}{% endraw %}", refers()),
        ("{% for x in a.list %}{{ x.y }}{{ b.z }}{% endfor %}", refers("a b")),
        ("{% for x in a.list if x.ok and b.ok %}{% else %}{{ c.z }}{% endfor %}", refers("a b c")),
        ("{% for item in inputs.list %}{{ item }}{% endfor %}", refers("", "inputs")),
        ("{% for item in item.list %}{{ item }}{% endfor %}", refers("", "item")),
        ("{% for x in a.l %}{{ loop.index }}{% endfor %}", refers("a")),
        ("{{ loop.index }}", refers("loop")),
        ("{% set x = a.y %}{{ x.z }}", refers("a")),
        ("{% if a.x %}{{ b.y }}{% elif c.z %}{{ d.w }}{% else %}{{ e.v }}{% endif %}", refers("a b c d e")),
        ("{% macro m(x) %}{{ x }}{{ a.y }}{% endmacro %}{{ m(b.z) }}", refers("a b")),
        ("{% with x = a.y %}{{ x }}{{ b.z }}{% endwith %}", refers("a b")),
        ("{% set x %}{{ a.y }}{% endset %}{{ x }}", refers("a")),
        ("{% filter upper %}{{ a.y }}{% endfilter %}", refers("a")),
        ("{{ range(a.n) | list }}", refers("a")),
        ("{{ dict(k=a.n) }}", refers("a")),
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
