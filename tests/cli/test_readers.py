"""Arguments mean the same as they do to Typer, which reads them more slowly; so do its complaints."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from tidemill.cli.app import app
from tidemill.cli.readers import Reader
from tidemill.cli.runs import runs
from tidemill.cli.tree import tree

VALUES: dict[str, tuple[Any, ...]] = {
    "limit": (20, "5", "007", "0", "1001", "1000", "-1", "+5", " 5", "5.0", "1_000", "9" * 40, "٣", "²", "", True),
    "status": ("FAILED", "failed", "DONE", ""),
    "workflow": ("billing", "", "ä", "a\nb", "ä\nb", "\udcff", b"billing", 7),
    "labels": (["a=b"], ("a=b", "ä"), [], "a=b", ["\udcff"], [7]),
}
CASES = [(name, value) for name, values in VALUES.items() for value in (None, *values)]


def outcome(reader: Any, value: Any, parameter: Any) -> tuple[str, Any]:
    try:
        return "read", reader.coerce(value, param=parameter, ctx=None)
    except typer.BadParameter as error:
        return "refused", error.message


@pytest.mark.parametrize(("name", "value"), CASES)
def test_an_argument_means_what_it_means_to_typer(name: str, value: Any) -> None:
    whole = get_command(runs)
    assert isinstance(whole, TyperGroup)
    (parameter,) = (each for each in whole.commands["list"].params if each.name == name)
    slow: Any = parameter.get_runtime_param()  # type: ignore[attr-defined]
    assert outcome(Reader(parameter), value, parameter) == outcome(slow, value, parameter)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [("version",), ("runs", "list"), ("workers",), ("workers", "show")])
def test_the_tree_has_the_one_command_that_the_words_name(words: tuple[str, ...]) -> None:
    root = tree(app, words)
    assert list(root.commands) == [words[0]]
    group = root.commands[words[0]]
    if isinstance(group, TyperGroup) and len(words) > 1:
        assert list(group.commands) == [words[1]]


@pytest.mark.parametrize("words", [(), ("--help",), ("rns",), ("runs", "lst"), ("runs", "--help")])
def test_words_that_name_no_command_meet_all_of_them(words: tuple[str, ...]) -> None:
    root = tree(app, words)
    if words[:1] == ("runs",):
        assert isinstance(root.commands["runs"], TyperGroup)
        assert {"list", "show", "retry", "patch"} <= root.commands["runs"].commands.keys()
    else:
        assert {"run", "why", "runs", "workers"} <= root.commands.keys()
