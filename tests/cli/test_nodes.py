"""`tidemill nodes`: which node types there are, and what their fields are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kit import Inside

APP = """
import tidemill

SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "Who gets it."},
        "level": {"enum": ["low", "high"], "default": "low"},
        "auth": {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}}},
    },
    "required": ["to"],
}

class Send:
    type = tidemill.NodeType(
        name="send", major=2, version="2.3.1", title="Send", icon="✉", description="Sends something.\\n\\nTwice.",
        config_schema=SCHEMA, secret_fields=("auth.token",), queue="mail",
        capabilities=tidemill.Capabilities(retryable=False, streaming=True, at_most_once=True, concurrency=4),
        output_schema={"type": "object", "properties": {"id": {}}},
    )

    def call(self, context):
        return None

handlers = [Send()]
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sender_app.py").write_text(APP)
    yield "sender_app.py"
    sys.modules.pop("sender_app", None)


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(capsys)


def test_types_are_listed(inside: Inside, app: str) -> None:
    said = inside("nodes", "list", "--app", app)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split() == ["TYPE", "VERSION", "QUEUE", "FROM", "CAN"]
    row = next(number for number, line in enumerate(lines) if line.startswith("send "))
    assert lines[row].split(maxsplit=4) == [
        "send", "2.3.1", "mail", "`handlers`", "stream, at most once, no retries, 4 at a time",
    ]  # fmt: skip
    assert lines[row + 1] == "  Sends something."
    assert any(line.startswith("http ") and "Tidemill" in line for line in lines)


def test_a_type_is_shown_with_its_fields(inside: Inside, app: str) -> None:
    said = inside("nodes", "show", "send", "--app", app)
    assert said.code == 0
    lines = [line.rstrip() for line in said.out.splitlines()]
    assert lines[0] == "send@2  Send"
    assert "returns  object with id" in lines
    table = [line.split() for line in lines[lines.index("") + 1 :] if line.split()]
    fields = {words[0]: " ".join(words[1:]) for words in table}
    assert fields["to"] == "string required"
    assert fields["Who"] == "gets it."
    assert fields["level"] == "low | high low"
    assert fields["auth.token"] == "string required, may hold secrets"
    assert fields["rows"] == "array of object"
    assert fields["rows.*.n"] == "integer | null"


def test_programs_get_everything(inside: Inside, app: str) -> None:
    shown = inside("nodes", "show", "send@2", "--app", app, "--json").json
    assert shown["capabilities"] == {
        "retryable": False, "streaming": True, "checkpointing": False, "at_most_once": True, "process": False,
        "concurrency": 4,
    }  # fmt: skip
    assert shown["secret_fields"] == ["auth.token"]
    assert shown["config_schema"]["required"] == ["to"]
    listed = inside("nodes", "list", "--json").json
    assert {each["name"] for each in listed["types"]} >= {"value", "python", "http", "sleep"}
    assert listed["broken"] == []


@pytest.mark.parametrize(
    ("name", "hint"), [("htp", "did you mean `http`?"), ("http@9", "http@1"), ("", ""), ("x" * 300, "")]
)
def test_unknown_types_are_refused(inside: Inside, name: str, hint: str) -> None:
    said = inside("nodes", "show", name, "--json")
    assert said.code == 2
    (problem,) = said.json["problems"]
    assert problem["code"] == "unknown_node_type" and hint in problem["hint"]


def test_every_built_in_type_can_be_shown(inside: Inside) -> None:
    for each in inside("nodes", "list", "--json").json["types"]:
        said = inside("nodes", "show", each["type"])
        assert said.code == 0 and said.out.startswith(each["type"]), each["type"]
        assert each["description"] in said.out
