"""`tidemill publish`, `start` and `workflows`: what is published, its versions and tags."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import PAYMENT, Shop
from tidemill.cli import main

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


def test_publish(shop: Shop, file: str) -> None:
    told = shop.fine("publish", file, "--message", "first", "--author", "ada")
    assert re.fullmatch(r"✓ echo@1 is published\n  digest  sha256:[0-9a-f]{64}\n", told)
    again = shop.json("publish", file)
    assert (again["version"], again["created"], again["warnings"]) == (1, False, [])
    assert shop.fine("publish", file).startswith("✓ echo@1 has this content already\n")
    (version,) = shop.mill.versions("echo")
    assert (version.author, version.message) == ("ada", "first")


def test_warnings_of_a_publication_go_to_stderr(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(
        """
name: early
nodes:
  - {id: a, type: value, config: 1}
  - {id: b, type: value, config: 2}
  - {id: c, type: value, dependencies: [a, b], join: any, config: "{{ a.output | default(0) }}"}
"""
    )
    ended = shop("publish", str(path))
    assert ended.code == main.OK
    assert "! 1 warning" in ended.err
    assert shop.json("publish", str(path))["warnings"][0]["code"]


@pytest.mark.parametrize("text", ["nodes: [", "name: x\nnodes: [{id: a, type: valeu}]\n"])
def test_a_bad_document_is_not_published(shop: Shop, tmp_path: Path, text: str) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(text)
    assert codes(shop.refused("publish", str(path)))[0] in ("yaml_syntax", "unknown_node_type")
    assert shop.json("workflows", "list")["workflows"] == []


def test_start_prints_the_run_and_does_not_wait(shop: Shop, file: str) -> None:
    shop.fine("publish", file)
    options = ("-i", "n=3", "--label", "customer=acme", "--as", "bob", "--correlation", "order 7")
    run_id = shop.fine("start", "echo:latest", *options).strip()
    shop.until(run_id, lambda view: view.status == "COMPLETED")
    assert shop.mill.show(run_id).outputs == {"a": {"n": 3}}
    (row,) = shop.json("runs", "list", "--term", "by:bob")["runs"]
    assert (row["labels"], row["correlation_id"]) == ({"customer": "acme"}, "order 7")
    assert shop.json("start", "echo", "-i", "n=1", "--key", "one") == {"run_id": "one"}
    assert shop.json("start", "echo", "-i", "n=1", "--key", "one") == {"run_id": "one"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("start", "nope"), "workflow_unknown"),
        (("start", "echo@7", "-i", "n=1"), "version_unknown"),
        (("start", "echo:stable", "-i", "n=1"), "tag_unknown"),
        (("start", "echo"), "inputs_invalid"),
        (("start", "echo", "-i", "n"), "input_invalid"),
        (("start", "echo", "-i", "n=1", "--label", "x"), "option_invalid"),
        (("start", "echo", "-i", "n=2", "--key", "taken"), "key_reused"),
        (("publish", "nope.yaml"), "file_missing"),
        (("workflows", "show", "nope"), "workflow_unknown"),
        (("workflows", "show", "echo@7"), "version_unknown"),
        (("workflows", "versions", "nope"), "workflow_unknown"),
        (("workflows", "tags", "nope"), "workflow_unknown"),
        (("workflows", "diff", "echo", "nope"), "workflow_unknown"),
        (("workflows", "tag", "echo", "stable", "7"), "version_unknown"),
        (("workflows", "tag", "echo", "latest", "1"), "tag_reserved"),
        (("workflows", "tag", "echo", "No!", "1"), "tag_invalid"),
        (("workflows", "tag", "nope", "stable", "1"), "workflow_unknown"),
        (("workflows", "untag", "echo", "stable"), "tag_unknown"),
        (("workflows", "patch", "echo"), "option_invalid"),
        (("workflows", "patch", "nope", "--set", "/a=1"), "workflow_unknown"),
        (("workflows", "patch", "echo", "--set", "/name=other"), "patch_invalid"),
        (("workflows", "patch", "echo", "--set", "/nodes/a/type=valeu"), "unknown_node_type"),
        (("workflows", "patch", "echo", "--set", "/nodes/a/config=1", "--base", "sha256:x"), "patch_stale"),
    ],
)
def test_what_is_refused(shop: Shop, arguments: tuple[str, ...], code: str) -> None:
    shop.mill.publish(FLOW)
    shop.mill.start("echo", {"n": 1}, key="taken")
    assert codes(shop.refused(*arguments)) == [code]
    assert len(shop.mill.versions("echo")) == 1


def test_workflows_are_listed(shop: Shop) -> None:
    assert shop.fine("workflows", "list") == "nothing is published\n"
    shop.mill.publish(PAYMENT)
    time.sleep(0.002)
    shop.mill.publish(FLOW)
    lines = shop.fine("workflows", "list").splitlines()
    assert lines[0].split() == ["WORKFLOW", "VERSIONS", "CHANGED", "TAGS"]
    assert [lines[1].split()[0], lines[2], lines[3].split()[0]] == ["echo", "  says it again", "payment"]
    first = shop.json("workflows", "list", "--limit", "1")
    assert first["workflows"][0]["name"] == "echo" and first["next"]
    rest = shop.json("workflows", "list", "--after", first["next"])
    assert [row["name"] for row in rest["workflows"]] == ["payment"]


def test_versions_tags_and_their_moves(shop: Shop) -> None:
    shop.mill.publish(FLOW, author="ada", message="first")
    patch = ("workflows", "patch", "echo", "--set", "/nodes/a/config/m=2", "--author", "bob", "-m", "more")
    assert shop.fine(*patch).startswith("✓ echo@2 is published\n")
    assert shop.fine("workflows", "tag", "echo", "stable", "1") == "✓ echo:stable is echo@1 now\n"
    assert shop.fine("workflows", "tag", "echo", "stable", "1") == "✓ echo:stable is echo@1 already\n"
    moved = shop.json("workflows", "tag", "echo", "stable", "2", "-m", "it works", "--as", "carl")
    assert moved == {"name": "echo", "tag": "stable", "version": 2, "was": 1}
    shown = shop.fine("workflows", "versions", "echo").splitlines()
    assert shown[0].split() == ["VERSION", "PUBLISHED", "BY", "DIGEST", "TAGS"]
    assert re.fullmatch(r"echo@2   .* bob  sha256:\w{12}  latest, stable", shown[1])
    assert shown[2] == "  patch of @1 · more"
    assert re.fullmatch(r"echo@1   .* ada  sha256:\w{12}", shown[3])
    listed = shop.json("workflows", "versions", "echo")
    assert [version["version"] for version in listed["versions"]] == [1, 2]
    assert listed["tags"] == {"latest": 2, "stable": 2}
    tags = shop.fine("workflows", "tags", "echo").splitlines()
    assert tags[:3] == ["TAG     VERSION", "latest       @2", "stable       @2"]
    assert re.fullmatch(r"\S+Z  stable  @1    @2  carl", tags[5])
    assert shop.json("workflows", "tags", "echo")["history"][1]["message"] == "it works"
    assert shop.fine("workflows", "untag", "echo", "stable") == "✓ echo:stable is taken away, it was @2\n"


def test_a_version_is_printed_as_it_can_be_published_again(shop: Shop) -> None:
    shop.mill.publish(FLOW)
    text = shop.fine("workflows", "show", "echo")
    assert text.startswith("# echo@1, sha256:")
    assert text.splitlines()[1:3] == ["name: echo", "description: says it again"]
    assert shop.mill.publish(text).created is False
    shown = shop.json("workflows", "show", "echo:latest")
    assert (shown["version"], shown["document"]["name"]) == (1, "echo")
    assert shop.json("workflows", "show", "echo@1") == shown


def test_versions_are_compared(shop: Shop) -> None:
    shop.mill.publish(FLOW)
    shop.mill.publish(
        {
            **FLOW,
            "description": "says more",
            "nodes": [
                {"id": "a", "type": "value", "config": {"n": "{{ inputs.n }}", "m": 1}},
                {"id": "b", "type": "value", "dependencies": ["a"]},
            ],
        }
    )
    told = shop.fine("workflows", "diff", "echo@1", "echo").splitlines()
    assert told[0].startswith("left   echo@1  sha256:") and told[1].startswith("right  echo@2  sha256:")
    assert told[3:] == [
        "+ node b",
        "~ node a",
        "   config/m: — → 1",
        "+ edge a → b",
        "~ description: says it again → says more",
    ]
    found = shop.json("workflows", "diff", "echo@1", "echo@2")
    assert found["graph"]["nodes_added"] == ["b"]
    assert any(operation["op"] == "add" for operation in found["document"])
    assert shop.fine("workflows", "diff", "echo@1", "echo@1").endswith("they are the same\n")
