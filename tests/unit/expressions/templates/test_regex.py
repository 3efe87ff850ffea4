r"""Regular expressions in templates: what they find, what they refuse, and that no pattern takes long."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest

from tests.fixtures.scopes import SCOPE, is_plain
from tests.pace import allowed
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.limits import PATTERN_MAX
from tidemill.expressions.scope import Scope, Seen
from tidemill.expressions.templates.template import check_template, compile_template

SECONDS = 3
"""Of processor time, of which a rendering has one, besides its last step."""
HOSTILE = Scope(
    nodes={"big": Seen({"text": "ab" * 400_000, "same": "a" * 800_000}), "x": Seen("x")},
    inputs={"pattern": "(a{1000}){1000}", "broken": "(", "word": "a+"},
    run={},
)


def rendered(expression: str, scope: Scope = SCOPE) -> Any:
    return compile_template(f"{{{{ {expression} }}}}").render(scope)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (r"'order 17 of 40' | regex_search('\d+')", "17"),
        (r"'order 17 of 40' | regex_search('(\\d+) of (\\d+)', 2)", "40"),
        (r"'order 17 of 40' | regex_search('of (?P<all>\d+)', 'all')", "40"),
        (r"'order' | regex_search('\d+')", None),
        (r"'order' | regex_search('o(x)?', 1)", None),
        (r"'order' | regex_search('\d+') | default('none', true)", "none"),
        (r"'a1 b22' | regex_findall('\d+')", ["1", "22"]),
        (r"'a1 b22' | regex_findall('([a-z])\d')", ["a", "b"]),
        (r"'a1 b22' | regex_findall('([a-z])(\d)')", [["a", "1"], ["b", "2"]]),
        (r"'ab' | regex_findall('a(x)?')", [""]),
        (r"'' | regex_findall('x')", []),
        (r"'2026-03-29' | regex_replace('(\d+)-(\d+)-(\d+)', '\\3.\\2.\\1')", "29.03.2026"),
        (r"'John Smith' | regex_replace('(?P<first>\w+) (?P<last>\w+)', '\\g<last>, \\g<first>')", "Smith, John"),
        (r"'aaa' | regex_replace('a', 'b', 2)", "bba"),
        (r"'aaa' | regex_replace('a', 'b', count=1)", "baa"),
        (r"'abc' | regex_replace('', '-')", "-a-b-c-"),
        (r"'a.b' | regex_replace('\.', '\\\\')", "a\\b"),
        (r"'aé€😀b' | regex_replace('[^a-z]', '?')", "a???b"),
        (r"'aé€😀b' | regex_search('😀.')", "😀b"),
        ("12345 | regex_search('3.')", "34"),
        ("'abc' is search('b')", True),
        ("'abc' is match('b')", False),
        ("'abc' is match('a')", True),
        ("'abc' is fullmatch('a')", False),
        ("'abc' is fullmatch('a.c')", True),
        ("'abc' is not search('x')", True),
        ("['a1', 'b', 'c2'] | select('search', '[0-9]') | list", ["a1", "c2"]),
        ("['a1', 'b2'] | map('regex_replace', '[0-9]', '') | list", ["a", "b"]),
        (r"'ABC' | regex_search('(?i)b')", "B"),
        ("'x' if inputs.customer is fullmatch(inputs.customer) else 'y'", "x"),
        (r"'tab\tand \\ quote\'' | length", 16),
    ],
)
def test_an_expression_gives(expression: str, expected: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rendered(expression)
    assert found == expected
    assert is_plain(found)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "missing )"),
        ("(?=a)", "(?="),
        ("(?<!a)", "(?<"),
        (r"(a)\\1", "escape"),
        ("(a{1000}){1000}", "repetition"),
        ("a{1001}", "repetition"),
        ("((a{100}){100}){100}", "repetition"),
        (r"\\pL{1000}", "too large"),
        ("a" * (PATTERN_MAX + 1), "limited to 1000 characters"),
        (r"\bword", "a backslash was probably lost"),
    ],
)
def test_a_pattern_that_is_written_out_is_checked_before_anything_runs(pattern: str, message: str) -> None:
    for use in (
        f"x | regex_search('{pattern}')",
        f"x | map('upper') | regex_findall('{pattern}')",
        f"x is match('{pattern}')",
    ):
        started = time.thread_time()
        problems, references = check_template(f"{{{{ {use} }}}}", "/nodes/0/config")
        assert time.thread_time() - started < allowed(1)
        assert [(problem.code, problem.path) for problem in problems] == [("template_syntax", "/nodes/0/config")]
        assert message in problems[0].message
        assert references.nodes == {"x"}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (r"'x' | regex_replace('(x)', '\1')", "a backslash was probably lost"),
        (r"'x' | regex_replace('(x)', '\\2')", "no group 2"),
        (r"'x' | regex_replace('(x)', '\\g<name>')", "no group name"),
        ("'x' | regex_search(1)", "a pattern is a string, not a number"),
    ],
)
def test_other_constants_are_checked_too(expression: str, message: str) -> None:
    (problem,) = check_template(f"{{{{ {expression} }}}}")[0]
    assert message in problem.message


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x | regex_search(inputs.broken)", "missing )"),
        ("x | regex_search(inputs.pattern)", "repetition"),
        ("x | regex_search(inputs.nope)", 'has no key "nope"'),
        ("x | regex_search(inputs)", "a pattern is a string, not an object"),
        ("x | regex_search(inputs.word * 1000)", "limited to 1000 characters"),
        ("x | regex_search('x', 3)", "no group 3"),
        ("x | regex_search('x', 'y')", "no group y"),
        ("x | regex_search('x', [])", ""),
        ("x | regex_replace('x', 3)", "a replacement is a string, not a number"),
        ("x | regex_replace(inputs.word, '\\\\' ~ 5)", "no group 5"),
        ("nope | regex_search('x')", 'there is no name "nope" here'),
        ("nope is search('x')", 'there is no name "nope" here'),
        ("big.text | regex_search('[ab]*a[ab]{900}c')", "too complex for a text of 800000 characters"),
        ("big.text | regex_findall('(?:a?){500}[ab]{500}c')", "too complex"),
        ("big.text is fullmatch('((a|b)*a(a|b){200})c')", "too complex"),
        ("big.text | regex_replace('', big.text)", "grow beyond"),
        ("big.same | regex_replace('a', 'b' * 1000)", "grow beyond"),
        ("big.same | regex_findall('a*b|a') | length", "takes more than 1000 ms"),
        ("big.same | regex_replace('a*b|a', 'c') | length", "takes more than"),
    ],
)
def test_a_rendering_that_fails_says_why_and_soon(expression: str, message: str) -> None:
    started = time.thread_time()
    with pytest.raises(ExpressionError) as caught:
        rendered(expression, HOSTILE)
    assert time.thread_time() - started < allowed(SECONDS)
    assert caught.value.code == "template_failed"
    assert message in caught.value.message


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x+x+)+y", "(.*)(.*)(.*)(.*)[^a]$", "^(a|a)*$", "(a|aa)+$"])
def test_patterns_that_make_others_backtrack_forever_do_not(pattern: str) -> None:
    started = time.thread_time()
    assert rendered(f"(big.same ~ 'b') is search('{pattern}')", HOSTILE) in (True, False)
    assert time.thread_time() - started < allowed(SECONDS)


def test_nothing_is_written_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    check_template("{{ x | regex_search('(') }}")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("(", "every ( needs its )"),
        ("a)", "every ) needs its ("),
        ("[a", "every [ needs its ]"),
        ("[z-a]", "the lower end first"),
        ("*a", "after what they repeat"),
        ("a**", "two repetitions"),
        ("a\\\\", "a backslash that means itself"),
        ("(?=a)", "look-around"),
        ("(a)\\\\1", "back references"),
        ("a{2000}", "{n,m} goes up to 1000"),
        ("\\\\pL{1000}", "fewer repetitions"),
    ],
)
def test_a_hint_is_about_the_mistake(pattern: str, hint: str) -> None:
    (problem,) = check_template(f"{{{{ x is search('{pattern}') }}}}")[0]
    assert hint in problem.hint
