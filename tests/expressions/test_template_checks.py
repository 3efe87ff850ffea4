"""What is found wrong with a template before anything is rendered."""

from __future__ import annotations

import time

import pytest

from tests.pace import allowed
from tidemill.expressions.templates.template import check_template


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("{{ a b }}", "line 1: expected token 'end of print statement', got 'b'", "{{ name.key }}"),
        ("x\n\n{{ a | }}", "line 3:", ""),
        ("{{ ", "line 1: unexpected 'end of template'", ""),
        ("{% if x %}", "line 1: Unexpected end of template", ""),
        ("{% for x in %}", "line 1:", ""),
        ("{% endfor %}", "line 1: Encountered unknown tag 'endfor'", ""),
        ("{% nope %}", "Encountered unknown tag 'nope'", ""),
        ("{# never closed", "Missing end of comment tag", ""),
        ("{{ x | uper }}", 'there is no filter called "uper"', 'did you mean "upper"?'),
        ("{{ x | zzzzz }}", 'there is no filter called "zzzzz"', "known: abs, b64, b64decode"),
        ("{% if true %}{{ x | uper }}{% endif %}", 'there is no filter called "uper"', ""),
        ("{{ x is definde }}", 'there is no test called "definde"', 'did you mean "defined"?'),
        ("{{ x | attr('y') }}", 'there is no filter called "attr"', "x[name]"),
        ("{{ x | random }}", 'there is no filter called "random"', "can be repeated"),
        ("{{ x | pprint }}", 'there is no filter called "pprint"', "`json(indent=2)`"),
        ("{{ x | base64 }}", 'there is no filter called "base64"', "`b64`"),
        ("{{ x.__class__ }}", 'names that start with _ are not visible: "__class__"', '["__class__"]'),
        ("{{ x._y }}", 'names that start with _ are not visible: "_y"', '["_y"]'),
        ("{{ x.y._z.w }}", 'names that start with _ are not visible: "_z"', ""),
        ("{{ ().__class__() }}", 'names that start with _ are not visible: "__class__"', ""),
        ("{{ self }}", '"self" has no meaning here', 'nodes["self"]'),
        ("{{ self.x() }}", '"self" has no meaning here', ""),
        ("{{ super() }}", '"super" has no meaning here', ""),
        ("{% include 'x' %}", "the tag {% include %} is not available", "stands alone"),
        ("{% import 'x' as y %}", "the tag {% import %} is not available", ""),
        ("{% from 'x' import y %}", "the tag {% from %} is not available", ""),
        ("{% extends 'x' %}", "the tag {% extends %} is not available", ""),
        ("{% block x %}{% endblock %}", "the tag {% block %} is not available", ""),
        ("{% autoescape true %}{% endautoescape %}", "the tag {% autoescape %} is not available", ""),
        ("{% set a = a.output %}{{ a }}", '"a" is read where it may not be set yet', 'nodes["a"]'),
        ("{% if inputs.x %}{% set y = 1 %}{% endif %}{{ y }}", '"y" is read where it may not be set yet', "set y"),
        ("{% for ctx in ctx.a.output %}{% endfor %}", '"ctx" is read where it may not be set yet', ""),
        ("{% for secrets in [secrets.A] %}{% endfor %}", '"secrets" is read where it may not be set yet', ""),
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
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ range(10 ** 12) | list }}",
        "{{ '%99999999999d' % 1 }}",
        "{% set x = 'x' * 10 ** 10 %}{{ x }}",
        "{{ 1 / 0 }}",
        "{% set x = 1 %}{{ (1 / 0) ~ x }}",
        "{% for x in [] %}{{ 0 if ()[0] else 0 }}{% endfor %}",
    ],
)
def test_compiling_executes_nothing(source: str) -> None:
    started = time.thread_time()
    assert check_template(source, "")[0] == []
    assert time.thread_time() - started < allowed(1)
