"""What is said when a template reads something that is not there."""

from __future__ import annotations

import pytest

from tests.fixtures.scopes import SCOPE
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.templates.template import compile_template


def said(source: str) -> tuple[str, str]:
    with pytest.raises(ExpressionError) as caught:
        compile_template(source).render(SCOPE)
    return caught.value.message, caught.value.hint


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("{{ skipped.output.x }}", 'node "skipped" was skipped, so skipped.output.x has no value', "default("),
        ("{{ skipped }}", 'node "skipped" was skipped, so skipped has no value', "default("),
        ("{{ ctx.skipped.meta.attempts }}", 'node "skipped" was skipped, so ctx.skipped.meta.attempts has no', ""),
        ("{{ later.output }}", 'node "later" has not ended, so later.output has no value', "default("),
        ("a {{ later.x }}", 'node "later" has not ended, so later.x has no value', ""),
        ("{{ nodes[inputs.which ~ 'x'].score }}", 'there is no name "enrichx" here', 'did you mean "enrich"?'),
        ("{{ enrch.score }}", "", "available nodes: a-b, enrich, later"),
        ("{{ imputs.n }}", "", 'did you mean "inputs"?'),
        ("{{ enrich.scor }}", 'enrich.output has no key "scor" (known keys: score, ratio', 'did you mean "score"?'),
        ("{{ enrich.output.deep.k.q }}", 'enrich.output.deep.k has no key "q" (known keys: z)', ""),
        ("{{ enrich.meta.atempts }}", 'enrich.meta has no key "atempts" (known keys: status', 'mean "attempts"?'),
        ("{{ enrich.items[7].id }}", "enrich.output.items has 2 items, so there is no [7]", ""),
        ("{{ enrich.items.id }}", 'enrich.output.items is a list, so it has no key "id"', "[0]"),
        ("{{ enrich.name.first }}", 'enrich.output.name is a string, so it has no key "first"', ""),
        ("{{ enrich.score.x }}", 'enrich.output.score is a number, so it has no key "x"', ""),
        ("{{ enrich.flag[0] }}", "enrich.output.flag is a boolean, so there is no [0]", ""),
        ("{{ inputs.custmer }}", 'inputs has no key "custmer" (known keys: customer,', 'did you mean "customer"?'),
        ("{{ inputs['a b'].c }}", 'inputs has no key "a b"', ""),
        ("{{ run.flow }}", 'run has no key "flow" (known keys: id, workflow, version)', 'mean "workflow"?'),
        ("{{ ctx }}", "ctx has no value of its own", "ctx.NAME"),
        ("{{ nodes | length }}", "nodes has no value of its own", ""),
        ("{{ secrets | json }}", "secrets has no value of its own", "secrets.NAME"),
        ("{{ secrets[inputs.customer] }}", "secrets has no value of its own", ""),
        ("{% for i in enrich.items %}{{ i.x }}{% endfor %}", 'the value has no key "x" (known keys: id, n)', ""),
        ("{% set d = {} %}{{ d.x }}", 'the value has no key "x" (it is empty)', ""),
        ("{% set s = 'x' %}{{ s.upper }}", 'the value is a string, so it has no key "upper"', "called as .upper()"),
        ("{{ nodes[3] }}", "a node is chosen by its id, which is a string", ""),
    ],
)
def test_the_message_says_what_is_missing(source: str, message: str, hint: str) -> None:
    found = said(source)
    assert message in found[0]
    assert hint in found[1]


@pytest.mark.parametrize(
    "use",
    [
        "{{ @ }}",
        "{{ @ + 1 }}",
        "{{ @ == 1 }}",
        "{{ @ < 1 }}",
        "{{ not @ }}",
        "{{ 1 in @ }}",
        "{{ @ ~ 'x' }}",
        "{{ @() }}",
        "{{ @.items() }}",
        "{{ [@] }}",
        "{{ {'a': @} }}",
        "{{ @ | length }}",
        "{{ @ | json }}",
        "{{ @ | map('upper') | list }}",
        "{{ @ is none }}",
        "{{ [1, @] | join(',') }}",
        "{% if @ %}{% endif %}",
        "{% for x in @ %}{% endfor %}",
        "{% set x = @ %}{{ x }}",
        "x{{ @ }}",
    ],
)
def test_every_use_of_what_is_missing_says_why(use: str) -> None:
    assert "was skipped" in said(use.replace("@", "skipped.output.x"))[0]


def test_a_missing_secret_does_not_list_the_others() -> None:
    hint = "set TIDEMILL_SECRET_TOKN for the workers, or put a file TOKN into the folder TIDEMILL_SECRETS"
    assert said("{{ secrets.TOKN }}") == ('there is no secret "TOKN"', hint)
    assert said("{{ secrets.TOKEN.x }}") == ('secrets.TOKEN is a string, so it has no key "x"', "")


@pytest.mark.parametrize(
    "source", ["{{ {}[secrets.TOKEN] }}", "{{ nodes[secrets.TOKEN] }}", "{{ 1 + {}[secrets.TOKEN] }}"]
)
def test_a_message_never_holds_a_secret(source: str) -> None:
    message, hint = said(source)
    assert "s3cr3t" not in message + hint
    assert "***" in message


def test_many_keys_are_not_all_listed() -> None:
    source = "{{ dict(" + ", ".join(f"k{number}=1" for number in range(40)) + ")['x'] }}"
    assert "and 28 more" in said(source)[0]
