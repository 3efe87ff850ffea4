"""`tidemill validate`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import EXAMPLES, InProcessCli, on_terminal, process, shown
from tidemill.cli import main

BROKEN = """
name: Broken One
nodse: []
nodes:
  - {id: a, type: valeu}
  - {id: b, type: value, dependencies: [zz]}
"""
WARNED = """
name: warned
nodes:
  - {id: a, type: value, config: {x: 1}}
  - {id: b, type: value, config: 2}
  - {id: c, type: value, dependencies: [a, b], join: any, config: "{{ a.output }}"}
"""
BORROWING = """
name: borrowing
nodes:
  - id: a
    type: value
    branch:
      rules: [{condition: {type: schema_validation, schema_ref: "REFERENCE"}, next_nodes: [b]}]
  - {id: b, type: value}
"""


def test_a_valid_document_is_one_friendly_line() -> None:
    ended = process("validate", str(EXAMPLES / "hello.yaml"))
    (line,) = ended.out.splitlines()
    assert (ended.code, ended.err) == (main.OK, "")
    assert line.startswith("✓ hello is valid: 3 nodes, sha256:")


def test_every_problem_is_listed_at_once(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN)
    ended = inside("validate", str(file))
    assert ended.code == main.REFUSED
    assert "is refused: 4 problems" in ended.out
    for words in ("/name ", "[unknown_key]", "→ did you mean `value`?", "/nodes/1/dependencies/0"):
        assert words in ended.out
    assert "\x1b" not in ended.out
    columns = {
        line.index(word) for line in ended.out.splitlines() for word in ("`Broken", "unknown key") if word in line
    }
    assert len(columns) == 1, "the messages stand in one column"


def test_a_terminal_is_coloured_and_its_width_kept(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN.replace("nodse", "nodse" + "x" * 40))
    code, written = on_terminal("validate", str(file), columns=70)
    assert code == main.REFUSED
    assert "\x1b[31m" in written
    lines = shown(written).splitlines()
    assert max(len(line) for line in lines[1:]) <= 70
    code, plain = on_terminal("validate", str(file), columns=70, env={"NO_COLOR": "1"})
    assert code == main.REFUSED
    assert "\x1b[31m" not in plain


@pytest.mark.parametrize("command", ["validate", "graph"])
def test_what_is_referred_to_by_content_needs_no_store(inside: InProcessCli, tmp_path: Path, command: str) -> None:
    file = tmp_path / "flow.yaml"
    reference = f"cas://sha256:{'0' * 64}"
    file.write_text(BORROWING.replace("REFERENCE", reference))
    ended = inside(command, str(file))
    assert (ended.code, ended.err) == (main.OK, ""), ended
    if command == "validate":
        (warning,) = inside("validate", str(file), "--json").json["warnings"]
        place = "/nodes/0/branch/rules/0/condition/schema_ref"
        assert (warning["code"], warning["path"]) == ("condition_ref_unchecked", place)
        assert place in ended.out


def test_a_reference_that_is_no_digest_is_refused(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(BORROWING.replace("REFERENCE", "sha256:short"))
    ended = inside("validate", str(file), "--json")
    assert (ended.code, [each["code"] for each in ended.json["problems"]]) == (main.REFUSED, ["condition_shape"])


# `tidemill publish`, `start` and `workflows`: what is published, its versions and tags


FLOW: dict[str, Any] = {
    "name": "echo",
    "description": "says it again",
    "inputs": {"type": "object", "required": ["n"]},
    "nodes": [{"id": "a", "type": "value", "config": {"n": "{{ inputs.n }}"}}],
}


def codes(problems: list[dict[str, str]]) -> list[str]:
    return [problem["code"] for problem in problems]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "echo.json"
    path.write_text(json.dumps(FLOW))
    return str(path)


def test_publish(cli_store: CliStore, file: str) -> None:
    told = cli_store.fine("publish", file, "--message", "first", "--author", "ada")
    assert re.fullmatch(r"✓ echo@1 is published\n  digest  sha256:[0-9a-f]{64}\n", told)
    again = cli_store.json("publish", file)
    assert (again["version"], again["created"], again["warnings"]) == (1, False, [])
    assert cli_store.fine("publish", file).startswith("✓ echo@1 has this content already\n")
    (version,) = cli_store.mill.versions("echo")
    assert (version.author, version.message) == ("ada", "first")


def test_start_prints_the_run_and_does_not_wait(cli_store: CliStore, file: str) -> None:
    cli_store.fine("publish", file)
    options = ("-i", "n=3", "--label", "customer=acme", "--as", "bob", "--correlation", "order 7")
    run_id = cli_store.fine("start", "echo:latest", *options).strip()
    cli_store.until(run_id, lambda view: view.status == "COMPLETED")
    assert cli_store.mill.show(run_id).outputs == {"a": {"n": 3}}
    (row,) = cli_store.json("runs", "list", "--term", "by:bob")["runs"]
    assert (row["labels"], row["correlation_id"]) == ({"customer": "acme"}, "order 7")
    assert cli_store.json("start", "echo", "-i", "n=1", "--key", "one") == {"run_id": "one"}
    assert cli_store.json("start", "echo", "-i", "n=1", "--key", "one") == {"run_id": "one"}


def test_a_version_is_printed_as_it_can_be_published_again(cli_store: CliStore) -> None:
    cli_store.mill.publish(FLOW)
    text = cli_store.fine("workflows", "show", "echo")
    assert text.startswith("# echo@1, sha256:")
    assert text.splitlines()[1:3] == ["name: echo", "description: says it again"]
    assert cli_store.mill.publish(text).created is False
    shown = cli_store.json("workflows", "show", "echo:latest")
    assert (shown["version"], shown["document"]["name"]) == (1, "echo")
    assert cli_store.json("workflows", "show", "echo@1") == shown
