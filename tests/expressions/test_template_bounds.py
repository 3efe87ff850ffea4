"""No template takes much time or memory, whatever it says."""

from __future__ import annotations

import resource
import time

import pytest

from tests.pace import allowed
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.limits import RENDER_MS_MAX
from tidemill.expressions.scope import Scope, Seen
from tidemill.expressions.templates.limits import Meter
from tidemill.expressions.templates.template import compile_template

SECONDS = 8
MEBIBYTES = 300

SCOPE = Scope(
    nodes={"big": Seen({"text": "a" * 500_000, "list": list(range(50_000))}), "x": Seen("x")},
    inputs={"n": 10**9},
    run={},
)
TWICE = "{% set ns = namespace(v=@) %}{% for i in range(100) %}{% set ns.v = # %}{% endfor %}{{ ns.v | length }}"
NESTED = "{% set a = [1, 2] %}" + "{% set a = [a, a] %}" * 60
BOTH = NESTED + "{% set b = [1, 2] %}" + "{% set b = [b, b] %}" * 60
TUPLES = "{% set a = (1, 2) %}" + "{% set a = (a, a) %}" * 60


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10 ** 9) | list }}",
        "{{ range(inputs.n) | sum }}",
        "{{ range(0, inputs.n, 1) | length }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in big.list %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ big.list | sum }}{% endfor %}",
        "{% for i in range(99999) %}{{ big.list | map('string') | list | length }}{% endfor %}",
        "{% for i in range(99999) %}{% for j in big.list | map('abs') %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ big.text | upper | length }}{% endfor %}",
        "{% for i in range(99999) %}{{ big.text.split('b') | length }}{% endfor %}",
        "{% for i in range(99999) %}{{ big.text }}{% endfor %}",
        "{% set t %}{% for i in range(99999) %}{{ big.text }}{% endfor %}{% endset %}{{ t | length }}",
        "{% set t %}{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}{% endset %}{{ t | length }}",
        "{% macro m(n) %}{{ m(n - 1) }}{{ m(n - 1) }}{% endmacro %}{{ m(900) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for x in [[1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ 'x' * inputs.n }}",
        "{{ inputs.n * 'x' }}",
        "{{ [1] * inputs.n }}",
        "{{ (1, 2) * inputs.n }}",
        "{{ 10 ** inputs.n }}",
        "{{ 2 ** 65536 * 2 ** 65536 }}",
        TWICE.replace("@", "'xx'").replace("#", "ns.v + ns.v"),
        TWICE.replace("@", "'xx'").replace("#", "ns.v ~ ns.v"),
        TWICE.replace("@", "'xx'").replace("#", "ns.v * 2"),
        TWICE.replace("@", "[1]").replace("#", "ns.v + ns.v"),
        TWICE.replace("@", "'xx'").replace("#", "ns.v | replace('x', 'xx')"),
        TWICE.replace("@", "'xx'").replace("#", "ns.v.replace('x', 'xx')"),
        TWICE.replace("@", "'xx'").replace("#", "[ns.v, ns.v] | join"),
        TWICE.replace("@", "'xx'").replace("#", "''.join([ns.v, ns.v])"),
        TWICE.replace("@", "'xx'").replace("#", "'%s%s' % (ns.v, ns.v)"),
        TWICE.replace("@", "'xx'").replace("#", "'%s%s' | format(ns.v, ns.v)"),
        TWICE.replace("@", "'<<'").replace("#", "ns.v | tojson"),
        "{% set ns = namespace(v=3) %}{% for i in range(100) %}{% set ns.v = ns.v * ns.v %}{% endfor %}{{ ns.v > 1 }}",
        "{% set ns = namespace(v=3) %}{% for i in range(100) %}{% set ns.v = ns.v ** 3 %}{% endfor %}{{ ns.v > 1 }}",
        "{{ 'x' | center(inputs.n) }}",
        "{{ 'x'.ljust(inputs.n) }}",
        "{{ 'x'.zfill(inputs.n) }}",
        "{{ 'x' | indent(inputs.n, true) }}",
        "{{ big.text | wordwrap(1, wrapstring=big.text) }}",
        "{{ big.text | replace('', big.text) }}",
        "{{ big.text.replace('a', big.text) }}",
        "{{ big.list | join(big.text) }}",
        "{{ big.text.join(big.list) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '%*d' % (inputs.n, 1) }}",
        "{{ ('%(a)s' * 100000) | format(a=big.text) }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ 'x' | tojson(indent=inputs.n) }}",
        "{{ [[1]] | json(indent=inputs.n) }}",
        "{{ [1] | batch(inputs.n, 'x') | list }}",
        "{{ [1] | slice(inputs.n) | list }}",
        "{{ 1.5 | round(inputs.n, 'ceil') }}",
        "{{ 1.5 | round(0 - inputs.n, 'floor') }}",
        "{{ [[1]] * 100 | sum(start=big.list) }}",
        "{{ [big.list] * 1000 | sum(start=[]) | length }}",
        NESTED + "{{ a }}",
        NESTED + "{{ a | json }}",
        NESTED + "{{ a | tojson }}",
        NESTED + "{{ a ~ 'x' }}",
        NESTED + "{{ a | string }}",
        NESTED + "{{ a | upper }}",
        NESTED + "{{ [a] | join }}",
        NESTED + "{{ '%s' % (a,) }}",
        BOTH + "{{ a == b }}",
        BOTH + "{{ a in [b] }}",
        BOTH + "{{ a < b }}",
        BOTH + "{{ a is eq(b) }}",
        BOTH + "{{ [a, b] | sort | first }}",
        BOTH + "{{ [a, b] | max | first }}",
        BOTH + "{{ [a] | select('in', [b]) | list }}",
        BOTH + "{{ [a, b] | map('list') | min }}",
        NESTED + "{{ {'x': a} | xmlattr }}",
        NESTED + "{{ {'x': a} | urlencode }}",
        TUPLES + "{{ {a: 1} }}",
        TUPLES + "{{ [a] | unique | list }}",
        TUPLES + "{{ {}.get(a) + 1 }}",
        TUPLES + "{{ {}[a] }}",
        TUPLES + "{{ dict([(a, 1)]) }}",
        TUPLES + "{{ namespace({a: 1}) }}",
        TUPLES + "{% for x in [a, a] %}{{ loop.changed(x) }}{% endfor %}",
        "{{ [[big.text] * 1000] * 1000 }}",
        "{{ [[big.text] * 1000] * 1000 | json }}",
        "{{ " + "[" * 60 + "1" + "] * 1000" * 60 + " }}",
        "{{ big.text ~ big.text ~ big.text }}",
        "{{ big.text }}{{ big.text }}{{ big.text }}",
    ],
)
def test_a_bomb_is_defused(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.thread_time()
    with pytest.raises(ExpressionError) as caught:
        compile_template(source).render(SCOPE)
    assert caught.value.code == "template_failed"
    assert time.thread_time() - started < allowed(SECONDS)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEBIBYTES


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for i in range(99999) %}{% if loop.last %}{{ i }}{% endif %}{% endfor %}", "99998"),
        ("{{ big.list | map('abs') | select('odd') | list | length }}", 25_000),
        ("{{ big.list | selectattr(0, 'undefined') | list | length }}", 50_000),
        ("{{ 2 ** 64 }}", 2**64),
        ("{{ 12345678901234567890 * 98765432109876543210 }}", 12345678901234567890 * 98765432109876543210),
        ("{{ '%05.1f|%s|%(x)s' | format(x=1) if false else '%05.1f' | format(2.25) }}", "002.2"),
    ],
)
def test_honest_work_is_not_in_the_way(source: str, expected: object) -> None:
    assert compile_template(source).render(SCOPE) == expected


def test_negative_amounts_earn_no_budget() -> None:
    source = "{{ [1] | batch(0 - inputs.n) | list }}{% for i in range(99999) %}{{ big.list | sum }}{% endfor %}"
    with pytest.raises(ExpressionError, match="steps"):
        compile_template(source).render(SCOPE)


def test_a_large_value_passes_through_a_path_without_cost() -> None:
    assert compile_template("{{ big.text }}").render(SCOPE) is SCOPE.nodes["big"].output["text"]  # type: ignore[union-attr]


def test_the_strings_of_a_value_share_one_budget() -> None:
    once = "{{ big.list | sum }}"
    assert compile_template([once]).render(SCOPE) == [sum(range(50_000))]
    with pytest.raises(ExpressionError, match="steps"):
        compile_template([once] * 25).render(SCOPE)
    with pytest.raises(ExpressionError, match="steps"):
        compile_template(["x {{ big.text }}"] * 150).render(SCOPE)


def test_work_in_few_steps_ends_at_the_deadline() -> None:
    """A match costs a step, and some of them take microseconds."""
    started = time.thread_time()
    with pytest.raises(ExpressionError, match=f"more than {RENDER_MS_MAX} ms"):
        compile_template("{{ big.text | regex_findall('(a)(b)?(c)?(d)?') | length }}").render(SCOPE)
    assert time.thread_time() - started < allowed(RENDER_MS_MAX / 1000)


def test_a_process_that_is_held_up_does_not_fail_its_renderings() -> None:
    """What is counted is the time that the template used, not the time that passed."""
    meter, started = Meter(), time.monotonic()
    meter.spend(1)
    time.sleep(RENDER_MS_MAX / 1000 + 0.05)
    meter.spend(1)
    assert time.monotonic() - started > RENDER_MS_MAX / 1000
