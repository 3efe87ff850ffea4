"""Whatever is given: a sentence, a code, exit 2, and never a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.command_line import InProcessCli
from tidemill.cli import main

FLOW = """
name: flow
inputs: {type: object, required: [n], properties: {n: {type: integer}}}
nodes: [{id: a, type: value}]
"""

Prepare = Callable[[Path], list[str]]


def file(content: str | bytes, name: str = "flow.yaml") -> Prepare:
    def prepare(folder: Path) -> list[str]:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [str(path)]

    return prepare


def unreadable(folder: Path) -> list[str]:
    # A file of another kind than a file: reading it fails for root, too.
    return ["/proc/self/mem"]


def looping(folder: Path) -> list[str]:
    (folder / "a.yaml").symlink_to(folder / "a.yaml")
    return [str(folder / "a.yaml")]


SOURCES: dict[str, tuple[Prepare, str]] = {
    "missing": (lambda folder: [str(folder / "none.yaml")], "file_missing"),
    "folder": (lambda folder: [str(folder)], "file_is_folder"),
    "file as folder": (lambda folder: [file(FLOW)(folder)[0] + "/x"], "file_missing"),
    "unreadable": (unreadable, "file_unreadable"),
    "symbolic link to itself": (looping, "file_unreadable"),
    "NUL in the name": (lambda folder: ["a\0b.yaml"], "file_unreadable"),
    "endless": (lambda folder: ["/dev/zero"], "document_too_large"),
    "empty": (file(""), "not_a_mapping"),
    "not UTF-8": (file(b"name: \xff\xfe"), "not_utf8"),
    "binary": (file(os.urandom(64) + b"\x80"), "not_utf8"),
    "broken YAML": (file("a: [1, 2"), "yaml_syntax"),
    "broken JSON": (file('{"a": ', "flow.json"), "json_syntax"),
    "a list": (file("[1, 2]"), "not_a_mapping"),
    "a number": (file("7", "flow.json"), "not_a_mapping"),
    "nested too deeply": (file("[" * 10_000 + "]" * 10_000, "flow.json"), "too_deep"),
    "NaN": (file('{"name": NaN}', "flow.json"), "not_json"),
    "duplicate keys": (file("name: a\nname: b\n"), "duplicate_key"),
    "unknown key": (file("name: a\nnodes: [{id: a, type: value}]\nnope: 1\n"), "unknown_key"),
    "no nodes": (file("name: a\n"), "missing_key"),
}


@pytest.mark.parametrize("case", SOURCES)
def test_documents_that_cannot_be_read(inside: InProcessCli, tmp_path: Path, case: str) -> None:
    prepare, code = SOURCES[case]
    arguments = prepare(tmp_path)
    for command in ("validate", "graph", "run"):
        ended = inside(command, *arguments)
        assert ended.code == main.REFUSED, command
        said = ended.out + ended.err
        assert f"[{code}]" in said
        assert "Traceback" not in said
        assert "this is a bug" not in said
    listed = inside("validate", *arguments, "--json").json
    assert code in {problem["code"] for problem in listed["problems"]}
    refused = inside("run", *arguments, "--json").json
    assert code in {problem["code"] for problem in refused["problems"]}


INPUTS: dict[str, tuple[list[str], str]] = {
    "no equals sign": (["n"], "input_invalid"),
    "no name": (["=1"], "input_invalid"),
    "empty": ([""], "input_invalid"),
    "missing file": (["@none.json"], "file_missing"),
    "no file": (["@"], "file_missing"),
    "folder": (["@."], "file_is_folder"),
    "broken file": (["@broken.json"], "json_syntax"),
    "file with a list": (["@list.json"], "input_invalid"),
    "number out of range": (["n=1e999"], "not_json"),
    "keys twice": (['n={"a": 1, "a": 2}'], "duplicate_key"),
    "nested too deeply": (["n=" + "[" * 5000 + "]" * 5000], "too_deep"),
    "half a character": (["n=\udcff"], "input_invalid"),
    "missing": ([], "inputs_invalid"),
    "of the wrong type": (["n=many"], "inputs_invalid"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_inputs_that_make_no_sense(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    given, code = INPUTS[case]
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (path,) = file(FLOW)(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = [part for text in given for part in ("--input", text)]
    ended = inside("run", path, *options)
    assert (ended.code, ended.out) == (main.REFUSED, "")
    assert f"[{code}]" in ended.err
    assert "Traceback" not in ended.err
    as_json = inside("run", path, *options, "--json")
    assert as_json.code == main.REFUSED
    assert as_json.json["problems"][0]["code"] == code


def test_hostile_text_cannot_reach_the_terminal(inside: InProcessCli, tmp_path: Path) -> None:
    document = {"name": "x", "nodes": [{"id": "a\x1b[31m", "type": "value\x07", "\x1b]0;title": 1}]}
    (path,) = file(json.dumps(document), "flow.json")(tmp_path)
    for command in ("validate", "graph", "run"):
        ended = inside(command, path)
        assert ended.code == main.REFUSED
        assert {"\x1b", "\x07"}.isdisjoint(ended.out + ended.err)


HINTED: dict[str, tuple[str, list[str], str]] = {
    "a missing input": (FLOW, [], "it takes an integer"),
    "inputs of the command line": (FLOW, [], "give inputs with -i n=…"),
    "inputs with odd names": (
        'name: f\ninputs: {required: ["a b", c], properties: {c: {type: integer}}}\nnodes: [{id: a, type: value}]',
        ["-i", "c=x"],
        "give inputs with -i 'a b'=…",
    ),
    "inputs that fit no schema": (
        "name: f\ninputs: {minProperties: 1}\nnodes: [{id: a, type: value}]",
        [],
        "give inputs with -i NAME=VALUE",
    ),
    "a store without a scheme": (FLOW, ["-i", "n=1", "--store", "runs.db"], "write sqlite:///runs.db"),
    "a sign of another language": (
        "name: f\nnodes: [{id: a, type: value, when: 'inputs.n >> 2'}]",
        [],
        "write a comparison with one sign",
    ),
    "a port where nothing listens": (
        "name: f\nnodes: [{id: a, type: http, retry: {max_attempts: 1}, config: {url: 'http://127.0.0.1:1/'}}]",
        [],
        "check that the service runs there",
    ),
    "a template without quotes": (
        "name: f\nnodes: [{id: a, type: value, config: {{ inputs.n }}}]",
        [],
        'a template without quotes is a mapping [not_json] → write "{{ … }}"',
    ),
    "a function in a file": (
        "name: f\nnodes: [{id: a, type: python, config: {function: 'steps_here.py:f'}}]",
        [],
        "write steps_here:f",
    ),
    "a name that is no function": (
        "name: f\nnodes: [{id: a, type: python, config: {function: 'steps_here:n'}}]",
        [],
        "steps_here:n is not a function: its type is int",
    ),
    "a map over an object": (
        "name: f\nnodes: [{id: a, type: value, map: {over: '{{ inputs }}'}, config: 1}]",
        [],
        "map.over gave an object, not a list: {{ inputs }}",
    ),
    "a key of a node's output without it": (
        (
            "name: f\nnodes: [{id: a, type: value, config: {x: 1}}, {id: b, type: value, dependencies: [a], "
            "config: '{{ a.result }}'}]"
        ),
        [],
        "below the id of a node stands `output`: a.output",
    ),
    "an approver without a kind": (
        "name: f\nnodes: [{id: a, type: human, config: {approvers: [alice]}}]",
        [],
        "write user:alice or role:alice",
    ),
    "a body under another key": (
        "name: f\nnodes: [{id: a, type: http, config: {url: 'http://127.0.0.1:1/', json: {a: 1}}}]",
        [],
        'did you mean "body"? It takes {json: …}',
    ),
    "a duration with a unit": (
        "name: f\nnodes: [{id: a, type: sleep, config: {seconds: 5m}}]",
        [],
        "write 300",
    ),
    "a model without a name": (
        "name: f\nnodes: [{id: a, type: llm, config: {prompt: hi}}]",
        [],
        "the name of a model",
    ),
    "a script that is only a label": (
        (
            "name: f\nnodes: [{id: a, type: classify, retry: 1, "
            "config: {text: x, labels: [bug, other], provider: scripted, answers: [bug]}}]"
        ),
        [],
        "{label: …, confidence: …}",
    ),
    "a key that is written out": (
        (
            "name: f\nnodes: [{id: a, type: http, retry: 1, "
            "config: {url: 'http://127.0.0.1:1/', headers: {Authorization: Bearer sk-1}}}]"
        ),
        [],
        "[literal_credential] → write {{ secrets.NAME }}",
    ),
    "a URL without a scheme": (
        "name: f\nnodes: [{id: a, type: http, config: {url: 'example.org/x'}}]",
        [],
        "the URL has no scheme [config_invalid] → begin with http:// or https://",
    ),
    "a node that is not there": (
        "name: f\nnodes: [{id: a, type: value, dependencies: [zebra]}]",
        [],
        "name a node of this workflow, or add one",
    ),
    "a module without what it imports": (
        "name: f\nnodes: [{id: a, type: python, config: {function: 'needs_more:f'}}]",
        [],
        "needs_more.py, line 1 imports it",
    ),
}


@pytest.mark.parametrize("case", HINTED)
def test_a_mistake_is_told_with_what_to_write(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    document, arguments, hint = HINTED[case]
    (tmp_path / "needs_more.py").write_text("import surely_nowhere\n")
    (tmp_path / "steps_here.py").write_text("def f(): ...\nn = 1\n")
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", "127.0.0.1:1")
    done = inside("run", *file(document)(tmp_path), *arguments)
    assert done.code != main.OK and hint in " ".join((done.out + done.err).split())


TOLD_ONCE: dict[str, tuple[str, str]] = {
    "a cycle": (
        "name: f\nnodes: [{id: a, type: value, dependencies: [b]}, {id: b, type: value, dependencies: [a]}]",
        "cycle",
    ),
    "no nodes": ("name: f", "missing_key"),
}


@pytest.mark.parametrize("case", TOLD_ONCE)
def test_one_mistake_is_one_problem(inside: InProcessCli, tmp_path: Path, case: str) -> None:
    document, code = TOLD_ONCE[case]
    problems = inside("validate", *file(document)(tmp_path), "--json").json["problems"]
    assert [each["code"] for each in problems] == [code]


def test_a_hint_offers_nothing_that_only_looks_alike(inside: InProcessCli, tmp_path: Path) -> None:
    document = "name: f\nnodes: [{id: a, type: http, config: {url: 'https://x.org', method: FETCH}}]"
    (problem,) = inside("validate", *file(document)(tmp_path), "--json").json["problems"]
    assert "PATCH" in problem["message"] and "did you mean" not in problem["hint"]


def test_an_argument_that_does_not_fit_has_no_cause_of_python(inside: InProcessCli, tmp_path: Path) -> None:
    document = "name: f\nnodes: [{id: a, type: python, config: {function: 'json:dumps', args: {object: 1}}}]"
    done = inside("run", *file(document)(tmp_path), "--allow-import", "json")
    assert "did you mean `obj`?" in done.out and "StopIteration" not in done.out


def test_a_broken_object_is_not_taken_as_text(inside: InProcessCli, tmp_path: Path) -> None:
    (path,) = file("name: x\nnodes: [{id: ask, type: signal}]")(tmp_path)
    inside("publish", path)
    inside("start", "x", "--key", "x1")
    for command in (("run", path, "-i"), ("runs", "override", "x1", "ask", "--value"), ("runs", "signal", "x1", "ask")):
        for text in ("{", "{a: 1}", '{"a": }'):
            ended = inside(*command, f"a={text}" if command[0] == "run" else text)
            assert (ended.code, "begins like a JSON object" in ended.err) == (2, True), (command, text, ended.err)
    assert inside("runs", "signal", "x1", "ask", "{{ as text }}").code == 0
