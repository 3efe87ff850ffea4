"""`tidemill render`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import Inside, on_terminal
from tidemill.cli import main


@pytest.mark.parametrize(
    ("template", "scope", "printed"),
    [
        ("hello {{ enrich.score }}", {"enrich": {"score": 3}}, "hello 3\n"),
        ("{{ enrich }}", {"enrich": {"score": 3}}, '{"score":3}\n'),
        ("{{ enrich.score }}", {"nodes": {"enrich": {"score": 3}}}, "3\n"),
        ("{{ ctx.enrich.meta.attempts }}", {"ctx": {"enrich": {"output": 1, "meta": {"attempts": 2}}}}, "2\n"),
        (
            "{{ inputs.name }} {{ run.id }} {{ iteration }}",
            {"inputs": {"name": "Ada"}, "run": {"id": "r"}},
            "Ada r 0\n",
        ),
        ("{{ item }}/{{ index }}/{{ iteration }}", {"item": None, "index": 2, "iteration": 4}, "None/2/4\n"),
        ("{{ nodes['a-b'] }}", {"a-b": [1, None]}, "[1,null]\n"),
        ("no expression", {}, "no expression\n"),
        ("{{ none }}", {}, "null\n"),
        ("{{ '2026-03-29' | date_format('%d.%m.') }}", {}, "29.03.\n"),
    ],
)
def test_a_template_is_filled_in(inside: Inside, template: str, scope: dict[str, Any], printed: str) -> None:
    assert inside("render", template, "--scope", json.dumps(scope)) == (main.OK, printed, "")


def test_a_rendering_that_fails(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    file.write_text('{"a": ["{{ enrich.scor }}"]}')
    ended = inside("render", f"@{file}", "--scope", '{"enrich": {"score": 3}}')
    assert (ended.code, ended.out) == (main.FAILED, "")
    assert 'enrich.output has no key "scor" (known keys: score) [template_failed]' in ended.err
    assert 'did you mean "score"?' in ended.err
    ended = inside("render", f"@{file}", "--scope", '{"enrich": {"score": 3}}', "--json")
    assert ended.code == main.FAILED
    assert [(problem["code"], problem["path"]) for problem in ended.json["problems"]] == [("template_failed", "/a/0")]


def test_everything_that_is_wrong_is_told_at_once(inside: Inside, tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    file.write_text('{"a": "{{ x | }}", "b": "{{ x | nope }}"}')
    ended = inside("render", f"@{file}", "--scope", '{"secrets": {}}', "--json")
    assert ended.code == main.REFUSED
    assert [(problem["code"], problem["path"]) for problem in ended.json["problems"]] == [
        ("template_syntax", "/a"),
        ("template_syntax", "/b"),
        ("option_invalid", ""),
    ]


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("{", "--scope: line 1"),
        ("[]", "--scope is not a JSON object"),
        ("@missing.json", "no file missing.json"),
        ('{"nodes": []}', "--scope: nodes is not a JSON object"),
        ('{"run": 1}', "--scope: run is not a JSON object"),
        ('{"index": -1}', "--scope: index is a whole number"),
        ('{"iteration": true}', "--scope: iteration is a whole number"),
        ('{"output": 1}', "cannot see output"),
        ('{"nodes": {"a": {"output": 1, "meta": 2}}}', "meta of a is not a JSON object"),
        ('{"a": NaN}', "--scope"),
    ],
)
def test_a_scope_that_is_none(inside: Inside, scope: str, words: str) -> None:
    ended = inside("render", "x", "--scope", scope)
    assert (ended.code, ended.out) == (main.REFUSED, "")
    assert words in ended.err


def test_a_file_that_cannot_be_read(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    for template, code in ((f"@{tmp_path}/latin.txt", "not_utf8"), ("@missing", "file_missing")):
        ended = inside("render", template, "--json")
        assert ended.code == main.REFUSED
        assert [problem["code"] for problem in ended.json["problems"]] == [code]


def test_nothing_acts_on_a_terminal() -> None:
    code, written = on_terminal("render", "{{ inputs.x }}!", "--scope", '{"inputs": {"x": "\\u001b[31mred"}}')
    assert (code, written) == (main.OK, "\\x1b[31mred!\n")
