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


def test_a_file_that_cannot_be_read(inside: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    for template, code in ((f"@{tmp_path}/latin.txt", "not_utf8"), ("@missing", "file_missing")):
        ended = inside("render", template, "--json")
        assert ended.code == main.REFUSED
        assert [problem["code"] for problem in ended.json["problems"]] == [code]


def test_nothing_acts_on_a_terminal() -> None:
    code, written = on_terminal("render", "{{ inputs.x }}!", "--scope", '{"inputs": {"x": "\\u001b[31mred"}}')
    assert (code, written) == (main.OK, "\\x1b[31mred!\n")


def test_inputs_are_given_as_to_run(inside: InProcessCli) -> None:
    assert inside("eval", "-c", "inputs.n > 2", "-i", "n=3").out.startswith("true")
    assert inside("eval", "-c", "inputs.n > inputs.m", "-i", '{"n": 3}', "--inputs", '{"m": 5}').out.startswith("false")
    assert inside("render", "{{ inputs.who }} and {{ inputs.n }}", "-i", "who=Ada", "-i", "n=3").out == "Ada and 3\n"
    refused = inside("render", "{{ inputs.who }}", "-i", "who", "--json")
    assert refused.code == 2 and "a JSON object" in refused.json["problems"][0]["hint"]
