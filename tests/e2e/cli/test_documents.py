"""`tidemill validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import InProcessCli, on_terminal, shown
from tidemill.cli import main

BROKEN = """
name: Broken One
nodse: []
nodes:
  - {id: a, type: valeu}
  - {id: b, type: value, dependencies: [zz]}
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


@pytest.mark.parametrize("command", ["validate", "graph", "publish", "run"])
def test_problems_are_told_with_line_and_column(cli_store: CliStore, tmp_path: Path, command: str) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(BROKEN)
    told = cli_store(command, str(file))
    assert told.code == main.REFUSED
    said = told.out + told.err
    assert "line 5, column 13: node `a`: there is no node type `valeu` [unknown_node_type]" in said
    if command != "graph":
        problems = cli_store(command, str(file), "--json").json["problems"]
        places = {problem["path"]: (problem.get("line"), problem.get("column")) for problem in problems}
        assert (places["/nodse"], places["/nodes/0/type"]) == ((3, 1), (5, 13))


def test_inputs_that_are_no_schema_are_told_the_right_form(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("name: x\ninputs: {name: string, age: int}\nnodes: [{id: a, type: value}]\n")
    told = inside("validate", str(file))
    assert told.code == main.REFUSED
    assert "line 2, column 1" in told.out
    assert "write {type: object, properties: {name: {type: string}, age: {type: integer}}}" in told.out


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


# `tidemill publish`, `start` and `workflows`: what is published, its versions and tags


FLOW: dict[str, Any] = {
    "name": "echo",
    "description": "says it again",
    "inputs": {"type": "object", "required": ["n"]},
    "nodes": [{"id": "a", "type": "value", "config": {"n": "{{ inputs.n }}"}}],
}


def test_a_version_is_printed_as_it_can_be_published_again(cli_store: CliStore) -> None:
    cli_store.mill.publish(FLOW)
    text = cli_store.fine("workflows", "show", "echo")
    assert text.startswith("# echo@1, sha256:")
    assert text.splitlines()[1:3] == ["name: echo", "description: says it again"]
    assert cli_store.mill.publish(text).created is False
    shown = cli_store.json("workflows", "show", "echo:latest")
    assert (shown["version"], shown["document"]["name"]) == (1, "echo")
    assert cli_store.json("workflows", "show", "echo@1") == shown
