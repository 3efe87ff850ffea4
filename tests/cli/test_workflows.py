"""`tidemill publish`, `start` and `workflows`: what is published, its versions and tags."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import Shop

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


def test_a_version_is_printed_as_it_can_be_published_again(shop: Shop) -> None:
    shop.mill.publish(FLOW)
    text = shop.fine("workflows", "show", "echo")
    assert text.startswith("# echo@1, sha256:")
    assert text.splitlines()[1:3] == ["name: echo", "description: says it again"]
    assert shop.mill.publish(text).created is False
    shown = shop.json("workflows", "show", "echo:latest")
    assert (shown["version"], shown["document"]["name"]) == (1, "echo")
    assert shop.json("workflows", "show", "echo@1") == shown
