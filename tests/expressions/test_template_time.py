"""No template takes longer than its limit, however large the values are that it looks at."""

from __future__ import annotations

import resource
import time

import pytest

from tests.pace import allowed
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.limits import RENDER_MS_MAX
from tidemill.expressions.scope import Json, Scope, Seen
from tidemill.expressions.templates.limits import Meter, Passes
from tidemill.expressions.templates.template import compile_template

SECONDS = RENDER_MS_MAX / 1000 + 0.4
"""The limit, and a last step that began before it."""

STEP_SECONDS = 0.4
"""A step takes 0.3 seconds at worst when the machine has nothing else to do."""

MEBIBYTES = 200
MANY = 1_000

SCOPE = Scope(
    nodes={
        "a": Seen([float(number) for number in range(100_000)]),
        "big": Seen([(number * 7919 % 400_009) / 7 for number in range(400_000)]),
        "rows": Seen([{"id": number, "tags": ["x", "y"]} for number in range(1_000)]),
        "ids": Seen([3 * number for number in range(1_000)]),
        "entries": Seen({f"k{number}": number for number in range(100_000)}),
        "texts": Seen(["\U000e0001" * 500_000] * 60),
        "book": Seen("ab " * 10_000_000),
        "digits": Seen([10**4000, 10**4000 + 1]),
    },
    inputs={"txt": "a" * 1_000_000, "few": ["a", "b"]},
    run={},
)


def ended(source: Json, scope: Scope = SCOPE) -> tuple[str, float]:
    """Say how a rendering failed, and how much processor time it took."""
    template = compile_template(source)
    began = time.thread_time()
    with pytest.raises(ExpressionError) as caught:
        template.render(scope)
    assert caught.value.code == "template_failed"
    return caught.value.message, time.thread_time() - began


@pytest.mark.parametrize("rest", ["{% for x in range(100000) %}@{% endfor %}", "@" * MANY], ids=["loop", "row"])
@pytest.mark.parametrize(
    "step",
    [
        pytest.param("{% if -1 in a.output %}{% endif %}", id="in"),
        "{% if a.output == a.output[:] %}{% endif %}",
        "{% if 'ab' in inputs.txt %}{% endif %}",
        "{% if -1 in entries.values() %}{% endif %}",
        "{% if 0.5 in range(100000) %}{% endif %}",
        "{% if -1 is in(a.output) %}{% endif %}",
        pytest.param("{% set y = a.output + a.output %}", id="plus"),
        "{% set y = a.output * 9 %}",
        pytest.param("{% set y = a.output[1:] %}", id="slice"),
        "{% set y = inputs.txt[::-1] %}",
        "{% set y = ''.join(inputs.few * 9000) %}",
        "{% set y = dict(**entries) %}",
        "{% set y = a.output ~ '' %}",
        "{% set y = inputs.txt.title() %}",
    ],
)
def test_steps_over_large_values_end_at_a_limit(step: str, rest: str) -> None:
    message, seconds = ended(rest.replace("@", step))
    assert message.startswith(("the template takes more than", "a value would grow beyond"))
    assert seconds < allowed(SECONDS)


KEYS = ".".join("0" * 20_000)
"""The first character of the first character, and so on: a text always has one."""


@pytest.mark.parametrize(
    "source",
    [
        "{{ big | sort | first }}",
        pytest.param("{{ (big[:160000] | sort) is none }}", id="sort"),
        "{{ big | sort(attribute='a.b') | first }}",
        "{{ big | groupby(0) | list }}",
        "{{ entries.values() | list | sort | map('string') | sort | first }}",
        "{{ (big + big) | min }}",
        "{{ (big + big) | unique | list }}",
        "{{ (inputs.few * 50000) | groupby('" + KEYS + "') | list }}",
        pytest.param("{{ (inputs.few * 50000) | sort(attribute='" + KEYS[:199] + "') }}", id="keys"),
        pytest.param("{{ [digits[0] + 1] * 1000000 == [digits[0] + 1] * 1000000 }}", id="digits"),
        "{{ [inputs.txt ~ 'b'] * 1000000 == [inputs.txt ~ 'b'] * 1000000 }}",
        pytest.param("{{ ([(1, 2)] * 1000000) | sum(start=()) | length }}", id="tuples"),
        pytest.param("{{ (texts * 2) | sort | first | length }}", id="folded"),
        pytest.param("{{ texts | string | length }}", id="printed"),
        "{{ texts | json | length }}",
        "{{ {'x': texts} | urlencode | length }}",
        "x{{ texts }}",
        "x{{ big }}" * 100,
        "{{ book | upper }}",
        pytest.param("{{ book | wordcount }}", id="book"),
        "{{ book | list | length }}",
        pytest.param("{{ book.title() | length }}", id="method"),
        "{{ [[0] * 1000] * 4000 == [[0] * 1000] * 4000 }}",
    ],
)
def test_no_step_takes_long_or_much_memory(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, seconds = ended(source)
    assert seconds < allowed(STEP_SECONDS)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEBIBYTES


@pytest.mark.parametrize(
    "source",
    [
        "{{ inputs.txt | regex_findall('a') | length }}",
        "{{ big | map('abs') | map('abs') | list }}",
        "{{ (inputs.few * 200000) | map(attribute='" + KEYS + "') | list }}",
        "{{ (inputs.few * 200000) | selectattr('" + KEYS + "') | list }}",
        "{{ (inputs.few * 200000) | join(',', '" + KEYS + "') }}",
        "{{ big | map(attribute='a.b.c') | list }}",
        pytest.param("{{ (inputs.few * 200000) | selectattr('" + KEYS[:19] + "') | list }}", id="paced"),
    ],
)
def test_many_small_steps_end_at_a_limit(source: str) -> None:
    assert ended(source)[1] < SECONDS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% for r in rows %}{% if r.id in ids and loop.last %}{{ loop.length }}{% endif %}{% endfor %}",
            "1000",
        ),
        ("{% for r in rows if r.id in ids %}{% if loop.last %}{{ loop.length }}{% endif %}{% endfor %}", "334"),
        ("{% for r in rows %}{% if loop.revindex == 1 %}{{ r.id }}{% endif %}{% endfor %}", "999"),
        ("{% for x in [[1, [2]]] recursive %}{{ x[0] }}{% if x[1:] %}{{ loop(x[1:]) }}{% endif %}{% endfor %}", "12"),
        ("{{ a | sort(reverse=true) | first }}", 99_999.0),
        ("{{ rows | sort(attribute='id', reverse=true) | map(attribute='tags.0') | list | length }}", 1_000),
        ("{{ rows | groupby('tags.1') | length }}", 1),
        ("{{ book | length }}", 30_000_000),
        ("{{ -1 in big }}", False),
        ("{{ none | map('upper') | list }}", []),
        ("{{ [[1], [2]] | sum(start=()) }}", [1, 2]),
        (
            "{% set n = namespace(v=[]) %}{% for i in range(3000) %}{% set n.v = n.v + [i] %}{% endfor %}{{ n.v[-1] }}",
            "2999",
        ),
    ],
)
def test_honest_work_over_large_values_is_not_in_the_way(source: str, expected: Json) -> None:
    assert compile_template(source).render(SCOPE) == expected


def test_a_loop_looks_at_the_clock_in_every_pass() -> None:
    looks: list[int] = []

    class Clock(Meter):
        def tick(self) -> None:
            looks.append(1)

    passes = Passes([1, 2, 3], Clock())
    assert (list(passes), len(passes), len(looks)) == ([1, 2, 3], 3, 3)


def test_numbers_that_cannot_be_stored_are_not_made() -> None:
    assert "16384 bits" in ended("{{ digits[0] * digits[0] }}")[0]
