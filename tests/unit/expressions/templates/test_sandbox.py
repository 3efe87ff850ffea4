"""Attempts to get out of a template: each is refused, at compile time or when rendered, and reveals nothing."""

from __future__ import annotations

import pytest

from tests.fixtures.scopes import SCOPE
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.templates.template import compile_template

DUNDERS = [f"__{name}__" for name in ("class", "mro", "init", "globals", "dict", "subclasses", "doc")]
OBJECTS = ["''", "()", "[]", "{}", "1", "1.5", "none", "true", "range", "dict", "namespace", "namespace()", "range(1)"]
WALKS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'][1]['__subclasses__']() }}",
    "{{ ''|attr('__class__') }}",
    "{{ []|map(attribute='__class__')|list ~ [1]|map(attribute='__class__')|list }}",
    "{{ ['x']|map('attr', '__class__')|list }}",
    "{{ [range]|selectattr('__globals__')|list }}",
    "{{ [range]|sum(attribute='__globals__') }}",
    "{{ range.__globals__['__builtins__'] }}",
    "{{ dict.fromkeys(['a']) }}",
    "{{ dict.mro() }}",
    "{{ lipsum.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ config }}",
    "{{ caller }}",
    "{% for x in [1] %}{{ loop }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
    "{% for x in [1] %}{{ loop['_iterator'] }}{% endfor %}",
    "{% for x in [1] %}{{ loop.cycle.__func__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m }}",
    "{% macro m() %}{% endmacro %}{{ m['_func']['__globals__'] }}",
    "{% macro m() %}{{ caller.__init__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{{ namespace(a=1)._Namespace__attrs }}",
    "{{ namespace(a=1)['_Namespace__attrs'] }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ ['{0.__class__}']|map('format', 1)|first ~ range }}",
    "{{ 'x'.encode() }}",
    "{{ (1).to_bytes(1) }}",
    "{{ (1.5).hex() }}",
    "{{ [1].append(2) }}",
    "{{ {'a': 1}.pop('a') }}",
    "{{ inputs.list.append(1) }}",
    "{{ inputs['update']({'x': 1}) }}",
    "{{ {}.keys().mapping }}",
    "{{ (x for x in []).gi_frame }}",
    "{{ ([1]|map('abs'))['gi_frame'] }}",
    "{{ ([1]|select).gi_frame.f_globals }}",
    "{{ ([1]|reverse).__reduce__() }}",
    "{{ ''.join.__self__ }}",
    "{{ enrich.__class__ }}",
    "{{ enrich['__class__'] }}",
    "{{ ctx['__class__'] }}",
    "{{ nodes['enrich']['__class__'] }}",
    "{{ skipped.output.__class__ }}",
    "{{ skipped.output._undefined_exception }}",
    "{{ skipped.output._why }}",
    "{{ secrets.__class__ }}",
    "{{ secrets.values() | list }}",
    "{{ secrets | list }}",
    "{% for s in secrets %}{{ s }}{% endfor %}",
    "{% set s = secrets %}{{ s.TOKEN }}",
    "{{ [secrets] | map(attribute='TOKEN') | list }}",
    "{% import 'os' as os %}{{ os }}",
    "{% include '/etc/passwd' %}",
    "{% block x %}{{ super() }}{% endblock %}",
    "{% debug %}",
    "{{ ''.__ｃlass__ }}",
    "{{ ''.\\x5f\\x5fclass\\x5f\\x5f }}",
    "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ ''['__cla' ~ 'ss__'] }}",
    "{{ ''[['__class__'] | first] }}",
    "{{ open('/etc/passwd') }}",
    "{{ eval('1') }}",
    "{{ __import__('os') }}",
    "{{ type('') }}",
    "{{ [1] | map('a method', 'append') | list }}",
    "{{ 'x' is filter and ''.__class__ }}",
]


@pytest.mark.parametrize("source", [f"{{{{ ({each}).{name} }}}}" for each in OBJECTS for name in DUNDERS] + WALKS)
def test_an_escape_is_refused(source: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_template(source).render(SCOPE)
    assert caught.value.code == "template_failed"
    told = caught.value.message + caught.value.hint
    assert "s3cr3t" not in told
    assert " at 0x" not in told, "no Python object is shown"


def test_nothing_in_the_scope_is_changed() -> None:
    before = repr(SCOPE)
    for source in WALKS:
        with pytest.raises(ExpressionError):
            compile_template(source).render(SCOPE)
    assert repr(SCOPE) == before
