"""Node types of installed distributions: found by their metadata, apart when broken, refused when there are two."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.command_line import process
from tidemill.bootstrap import engine_at
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, Handler, NodeContext
from tidemill.handlers.discovery import handlers_in, installed
from tidemill.kernel.model import NodeType
from tidemill.node_types import built_in_types, node_types

CODE = '''
import tidemill

@tidemill.node_type("shout", title="Shout", version="2.1.0", config_schema={"type": "object"})
def shout(context):
    """Says it loudly."""
    return context.config["text"].upper()

class Whisper:
    type = tidemill.NodeType(name="whisper")
    async def call(self, context):
        return context.config["text"].lower()

def several():
    return [shout, Whisper()]

def one():
    return Whisper()

nothing = 42
both = [shout, shout]
'''


def install(site: Path, name: str, points: dict[str, str], code: str = CODE) -> None:
    """What an installer would leave: a module, and a folder that describes the distribution."""
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    info = site / f"{module}-1.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.4\n")
    lines = [f"{point} = {target}" for point, target in points.items()]
    (info / "entry_points.txt").write_text("[tidemill.nodes]\n" + "\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder where distributions are found, and whose modules are forgotten afterwards."""
    folder, known = tmp_path / "site", set(sys.modules)
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    yield folder
    for name in set(sys.modules) - known:
        if (folder / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("loud:shout", {"shout"}),
        ("loud:Whisper", {"whisper"}),
        ("loud:one", {"whisper"}),
        ("loud:several", {"shout", "whisper"}),
    ],
)
def test_whatever_describes_node_types_is_found(site: Path, target: str, found: set[str]) -> None:
    install(site, "loud", {"it": target})
    offers, broken = installed()
    assert ({offer.handler.type.name for offer in offers}, broken) == (found, ())
    assert {offer.origin for offer in offers} == {"loud 1.4"}


def test_they_run_like_any_other(site: Path) -> None:
    install(site, "loud", {"all": "loud:several"})
    nodes = [
        {"id": "a", "type": "shout", "config": {"text": "Hello"}, "dependents": ["b"]},
        {"id": "b", "type": "whisper", "config": {"text": "{{ nodes.a.output }}"}},
    ]
    with tidemill.open("memory://") as mill:
        run = mill.run({"name": "t", "nodes": nodes})
    assert (run.nodes["a"]["output"], run.nodes["b"]["output"]) == ("HELLO", "hello")


def test_nothing_is_imported_that_offers_nothing(site: Path) -> None:
    (site / "innocent.py").write_text("raise SystemExit('imported')")
    info = site / "innocent-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: innocent\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[console_scripts]\ninnocent = innocent:main\n")
    assert installed().broken == ()
    assert "innocent" not in sys.modules


@pytest.mark.parametrize(
    ("target", "code", "reason"),
    [
        ("loud:missing", CODE, "AttributeError: module 'loud' has no attribute 'missing'"),
        ("loud:nothing", CODE, "TypeError: int is not a Handler"),
        ("loud:shout", "raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("loud:shout", "import sys; sys.exit(3)", "SystemExit: 3"),
        ("loud:shout", "raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("loud:shout", CODE.replace('"object"', "7"), "config_schema of shout@1 is not a JSON Schema: /type: "),
        ("loud:both", CODE, "shout@1 comes from loud 1.4 too"),
        ("absent:shout", CODE, "ModuleNotFoundError: No module named 'absent'"),
    ],
)
def test_a_broken_one_is_told_and_the_rest_goes_on(
    site: Path, caplog: pytest.LogCaptureFixture, target: str, code: str, reason: str
) -> None:
    install(site, "loud", {"shout": target}, code)
    install(site, "soft", {"quiet": "soft:Whisper"})
    with caplog.at_level(logging.WARNING):
        engine = engine_at("memory://", work=False)
    warning = caplog.messages[0]
    assert set(caplog.messages) == {warning}
    assert warning.startswith("loud 1.4 offers node types as `shout` that cannot be used: ") and reason in warning
    assert "whisper" in engine.types and "shout" not in engine.types
    assert set(built_in_types()) < set(engine.types)
    with tidemill.open("memory://", work=False) as mill, pytest.raises(Rejected) as refused:
        mill.publish({"name": "t", "nodes": [{"id": "a", "type": "shout"}]})
    (problem,) = refused.value.problems
    assert problem.code == "unknown_node_type" and warning[:200] in problem.hint


def call(context: NodeContext) -> Done:
    return Done(None)


def test_an_installed_type_cannot_take_the_place_of_a_built_in_one(site: Path) -> None:
    install(site, "loud", {"all": "loud:several"}, CODE.replace('"shout"', '"http"'))
    types = node_types()
    origins = {offer.handler.type.name: offer.origin for offer in types.offers}
    assert (origins["http"], origins["whisper"]) == ("Tidemill", "loud 1.4")
    assert [(each.name, each.reason) for each in types.broken] == [("http", "http@1 comes from Tidemill too")]


def test_a_given_type_with_a_bad_schema_is_left_out_and_told() -> None:
    odd = Handler(NodeType(name="odd", output_schema={"type": "nothing"}), call)
    with tidemill.open("memory://", handlers=[odd], work=False) as mill, pytest.raises(Rejected) as refused:
        mill.publish({"name": "t", "nodes": [{"id": "a", "type": "odd"}]})
    (problem,) = refused.value.problems
    assert problem.code == "unknown_node_type" and "output_schema of odd@1 is not a JSON Schema" in problem.hint


@pytest.mark.parametrize(
    ("points", "handlers", "origins"),
    [
        ({"a": "loud:shout"}, [Handler(NodeType(name="shout"), call)], ("loud 1.4", "`handlers`")),
        ({}, [Handler(NodeType(name="http"), call)], ("Tidemill", "`handlers`")),
    ],
)
def test_two_types_of_one_name_are_refused(
    site: Path, points: dict[str, str], handlers: list[Handler], origins: tuple[str, str]
) -> None:
    if points:
        install(site, "loud", points)
    with pytest.raises(Rejected) as refused:
        engine_at("memory://", handlers=handlers, work=False)
    (problem,) = refused.value.problems
    assert problem.code == "node_type_twice"
    assert f"comes from {origins[0]} and from {origins[1]}" in problem.message


def test_another_major_version_is_another_type() -> None:
    types = node_types(handlers=[Handler(NodeType(name="http", major=2), call)])
    assert {offer.handler.type.key for offer in types.offers} >= {"http@1", "http@2"}


@pytest.mark.parametrize("wrong", [None, 3, "text", {"a": 1}, [3], NodeType(name="x")])
def test_what_describes_no_node_type_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        handlers_in(wrong)


def test_the_command_line_shows_where_they_come_from(site: Path) -> None:
    install(site, "loud", {"all": "loud:several"})
    install(site, "broken-one", {"gone": "broken_one:gone"}, "")
    env = {"PYTHONPATH": str(site)}
    listed = process("nodes", "list", "--json", env=env)
    types = {each["type"]: each for each in listed.json["types"]}
    assert types["shout@1"]["origin"] == "loud 1.4"
    assert (types["shout@1"]["version"], types["shout@1"]["description"]) == ("2.1.0", "Says it loudly.")
    assert listed.json["broken"][0]["origin"] == "broken-one 1.4"
    shown = process("nodes", "show", "gone", env=env)
    assert shown.code == 2 and "broken-one 1.4 offers node types" in shown.err
