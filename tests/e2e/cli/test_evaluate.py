"""`tidemill eval`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.command_line import InProcessCli, on_terminal, process
from tidemill.cli import main

COMPOSITE = {
    "type": "composite",
    "operator": "OR",
    "conditions": [
        "output.score > 90",
        {"type": "composite", "operator": "NOT", "conditions": [{"type": "cel", "expression": "ctx.a.output == 3"}]},
        "true",
    ],
}
SANDBOX = "def evaluate(output, context):\n    return output > context['a']['output']\n"


def test_the_parts_that_were_asked_are_listed(inside: InProcessCli) -> None:
    given = ("eval", "-c", json.dumps(COMPOSITE), "--output", '{"score": 87}', "--context", '{"a": 4}')
    answer = inside(*given, "--json").json
    assert answer["result"] is True
    assert [(part["path"], part["type"], part["result"]) for part in answer["parts"]] == [
        ("/conditions/0", "cel", False),
        ("/conditions/1", "composite", True),
        ("/conditions/1/conditions/0", "cel", False),
    ]
    assert all(part["reason"] for part in answer["parts"])
    assert inside(*given).out.splitlines() == [
        "true  OR, part 2 of 3: NOT: ctx.a.output == 3 is false",
        "  false  /conditions/0  output.score > 90",
        "  true   /conditions/1  NOT: ctx.a.output == 3 is false",
        "  false  /conditions/1/conditions/0  ctx.a.output == 3",
    ]


@pytest.mark.parametrize(
    ("condition", "context"),
    [
        ("ctx.a.output == 4 && ctx.b.output.n == 1", '{"a": 4, "b": {"n": 1}}'),
        (
            "ctx.a.output == 4 && ctx.b.meta.attempts == 2",
            '{"a": {"output": 4}, "b": {"output": 1, "meta": {"attempts": 2}}}',
        ),
        ("ctx.a.output.output == 4 && ctx.b.output == 1", '{"a": {"output": 4}, "b": 1}'),
        ("ctx.a.output.meta == 4", '{"a": {"meta": 4}}'),
        ('ctx["a-b"].output == null', '{"a-b": null}'),
        ("!has(ctx.a.output)", "{}"),
    ],
)
def test_the_context_has_two_forms(inside: InProcessCli, condition: str, context: str) -> None:
    ended = inside("eval", "-c", condition, "--context", context, "--json")
    assert ended.code == main.OK, ended
    assert ended.json["result"] is True


def test_values_and_conditions_from_files(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rule.yaml").write_text("type: cel\nexpression: output.score > inputs.least\n")
    (tmp_path / "rule").write_text(json.dumps(COMPOSITE))
    (tmp_path / "output.json").write_text('{"score": 95}')
    monkeypatch.chdir(tmp_path)
    given = ("--output", "@output.json", "--inputs", '{"least": 90}', "--json")
    for condition in ("rule.yaml", "rule", "@rule", str(tmp_path / "rule.yaml")):
        assert inside("eval", "-c", condition, *given).json["result"] is True
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"score": 91}')))
    assert inside("eval", "-c", "output.score == 91", "--output", "-", "--json").json["result"] is True


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("output.scor > 80", "known keys: score"),
        ("output.score", "true or false"),
        ("ctx.nope.output > 1", "nope"),
        ("output.score > 'x'", "output.score > 'x'"),
    ],
)
def test_a_condition_without_an_answer(inside: InProcessCli, condition: str, words: str) -> None:
    ended = inside("eval", "-c", condition, "--output", '{"score": 87}')
    assert (ended.code, ended.out) == (main.FAILED, "")
    assert words in ended.err and "[condition_failed]" in ended.err
    ended = inside("eval", "-c", condition, "--output", '{"score": 87}', "--json")
    assert ended.code == main.FAILED
    (problem,) = ended.json["problems"]
    assert problem["code"] == "condition_failed" and words in problem["message"] + problem["hint"]


@pytest.mark.parametrize(
    "condition",
    [
        "output.score > 1",
        '{"type": "jsonpath", "query": "$.score", "operator": ">", "value": 1}',
        '{"type": "schema_validation", "schema": {"type": "object"}}',
    ],
)
def test_an_output_that_was_not_given_can_be(inside: InProcessCli, condition: str) -> None:
    ended = inside("eval", "-c", condition)
    assert ended.code == main.FAILED
    assert "output is not available here" in ended.err and "→ give it one: --output JSON" in ended.err


def test_a_part_that_fails_is_named(inside: InProcessCli) -> None:
    inner = {"type": "composite", "operator": "OR", "conditions": ["output.n > 5", "output.nope > 1"]}
    condition = {"type": "composite", "operator": "AND", "conditions": ["output.n == 1", inner]}
    ended = inside("eval", "-c", json.dumps(condition), "--output", '{"n": 1}', "--json")
    assert ended.json["problems"][0]["path"] == "/conditions/1/conditions/1"


@pytest.mark.parametrize(("given", "hint"), [("o.json", "→ a file is written @o.json"), ("{", ""), ("@nope.json", "")])
def test_the_name_of_a_file_is_not_json(inside: InProcessCli, given: str, hint: str) -> None:
    ended = inside("eval", "-c", "output > 1", "--output", given)
    assert ended.code == main.REFUSED
    assert hint in ended.err
    assert bool(hint) is ("a file is written" in ended.err)


def test_everything_that_is_wrong_is_told_at_once(inside: InProcessCli) -> None:
    condition = '{"type": "composite", "operator": "XOR", "conditions": ["output >", {"type": "nope"}]}'
    given = ("--output", "{", "--context", "[]", "--inputs", "3")
    ended = inside("eval", "-c", condition, *given, "--json")
    assert ended.code == main.REFUSED
    assert [(problem["code"], problem["path"]) for problem in ended.json["problems"]] == [
        ("condition_shape", "/operator"),
        ("condition_syntax", "/conditions/0"),
        ("condition_unknown_kind", "/conditions/1/type"),
        ("json_syntax", ""),
        ("option_invalid", ""),
        ("option_invalid", ""),
    ]
    ended = inside("eval", "-c", condition, *given)
    assert (ended.code, ended.out) == (main.REFUSED, "")
    assert "refused: 6 problems" in ended.err and "--output: line 1" in ended.err


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("missing.yaml", "file_missing"),
        ("@missing", "file_missing"),
        ('{"type": "cel"', "json_syntax"),
        ("output.score >", "condition_syntax"),
        ("nope.score > 1", "condition_unknown_name"),
        ("x" * 5000 + "\0", "condition_syntax"),
    ],
)
def test_a_condition_that_is_none(inside: InProcessCli, condition: str, code: str) -> None:
    ended = inside("eval", "-c", condition, "--json")
    assert ended.code == main.REFUSED
    assert code in [problem["code"] for problem in ended.json["problems"]]


def test_what_takes_long_is_decided_in_another_process() -> None:
    """A list of thousands of items, and code."""
    ended = process("eval", "-c", "output.all(x, x >= 0)", "--output", json.dumps([*range(3000)]), "--json")
    assert ended.code == main.OK and ended.json["result"] is True
    condition = json.dumps({"type": "python_sandbox", "code": SANDBOX})
    ended = process("eval", "-c", condition, "--output", "5", "--context", '{"a": 4}')
    assert (ended.code, ended.err) == (main.OK, "")
    assert ended.out.startswith("true  ")


def test_code_and_schemas_are_read_from_the_store(inside: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(SANDBOX)
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    code = inside("blobs", "put", str(tmp_path / "code.py"), "--json").json["$blob"]
    schema = inside("blobs", "put", str(tmp_path / "schema.json"), "--json").json["$blob"]
    parts = [{"type": "python_sandbox", "code_ref": code}, {"type": "schema_validation", "schema_ref": schema}]
    condition = {"type": "composite", "operator": "AND", "conditions": parts}
    given = ("--output", "5", "--context", '{"a": 4}', "--json")
    answer = inside("eval", "-c", json.dumps(condition), *given).json
    assert answer["result"] is True
    assert [part["type"] for part in answer["parts"]] == ["python_sandbox", "schema_validation"]
    unknown = json.dumps({"type": "python_sandbox", "code_ref": "sha256:" + "0" * 64})
    ended = inside("eval", "-c", unknown, *given)
    assert ended.code == main.REFUSED
    assert [problem["code"] for problem in ended.json["problems"]] == ["blob_unknown"]


def test_no_store_is_opened_without_need(inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside("eval", "-c", "true", "--store", "sqlite:///nowhere/at/all.db").code == main.OK
    assert list(tmp_path.iterdir()) == []


# `tidemill render`


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
def test_a_template_is_filled_in(inside: InProcessCli, template: str, scope: dict[str, Any], printed: str) -> None:
    assert inside("render", template, "--scope", json.dumps(scope)) == (main.OK, printed, "")


def test_a_rendering_that_fails(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "value.json"
    file.write_text('{"a": ["{{ enrich.scor }}"]}')
    ended = inside("render", f"@{file}", "--scope", '{"enrich": {"score": 3}}')
    assert (ended.code, ended.out) == (main.FAILED, "")
    assert 'enrich.output has no key "scor" (known keys: score) [template_failed]' in ended.err
    assert 'did you mean "score"?' in ended.err
    ended = inside("render", f"@{file}", "--scope", '{"enrich": {"score": 3}}', "--json")
    assert ended.code == main.FAILED
    assert [(problem["code"], problem["path"]) for problem in ended.json["problems"]] == [("template_failed", "/a/0")]


def test_render_everything_that_is_wrong_is_told_at_once(inside: InProcessCli, tmp_path: Path) -> None:
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
def test_a_scope_that_is_none(inside: InProcessCli, scope: str, words: str) -> None:
    ended = inside("render", "x", "--scope", scope)
    assert (ended.code, ended.out) == (main.REFUSED, "")
    assert words in ended.err


def test_a_file_that_cannot_be_read(inside: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    for template, code in ((f"@{tmp_path}/latin.txt", "not_utf8"), ("@missing", "file_missing")):
        ended = inside("render", template, "--json")
        assert ended.code == main.REFUSED
        assert [problem["code"] for problem in ended.json["problems"]] == [code]


def test_nothing_acts_on_a_terminal() -> None:
    code, written = on_terminal("render", "{{ inputs.x }}!", "--scope", '{"inputs": {"x": "\\u001b[31mred"}}')
    assert (code, written) == (main.OK, "\\x1b[31mred!\n")
