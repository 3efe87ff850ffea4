"""The sessions on the page about the command line, replayed in one process and one store."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup

from tests.cli.kit import eventually
from tests.cli.shop import Shop
from tests.docs.pages import Page, read_page
from tidemill.cli.app import app
from tidemill.cli.tree import tree

PAGE = "docs/reference/cli.md"
SESSIONS_MIN = 15
CHANGING = (
    (r"sha256:[0-9a-f]+", "sha256:X"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "MOMENT"),
    (r"just now|\d+ (?:s|min|h|days?) ago", "AGO"),
    (r"(?:<1|\d+) ms|\d+\.\d s", "SPAN"),
    (r"--after \d+:", "--after N:"),
    (r"; run (\S+) is (?:RUNNING|COMPLETED)", r"; run \1 GOES ON"),
    (r"[ ]+", " "),
)
"""What is another every time, and the blanks that align it."""


def steady(text: str) -> str:
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def commands(page: Page) -> Iterator[tuple[int, str, str]]:
    """Every command of a session with its line and what it prints."""
    for block in page.blocks:
        if block.language == "text" and block.body.startswith("$ "):
            for part in block.body.split("\n$ "):
                command, _, output = part.removeprefix("$ ").partition("\n")
                yield block.line, command, output


def test_the_page_shows_what_is_printed(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read_page(PAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getuser", lambda: "dora")
    for block in page.blocks:
        if block.title:
            Path(block.title).write_text(block.body)
    for line, command, expected in commands(page):
        program, *arguments = shlex.split(command)
        assert program == "tidemill", command
        ended = shop(*arguments)
        assert steady(ended.out + ended.err) == steady(expected), f"{PAGE}:{line} {command}\n{ended.out}{ended.err}"
        eventually(lambda: not shop.mill.find(["active"])[0], "a run does not come to rest")
    assert len({line for line, _, _ in commands(page)}) >= SESSIONS_MIN


def every_command() -> Iterator[str]:
    """Every command there is, in full."""
    for name, command in tree(app).commands.items():
        inner = getattr(command, "commands", None)
        yield from [name] if inner is None else [f"{name} {each}" for each in inner]


@pytest.mark.parametrize("command", [*every_command()])
def test_every_command_and_option_is_on_the_page(command: str) -> None:
    text = read_page(PAGE).text
    group, _, name = command.partition(" ")
    assert re.search(rf"(?:tidemill |`){group}\b.*\b{name}\b", text), command
    found = tree(app, command.split()).commands[group]
    if isinstance(found, TyperGroup):
        found = found.commands[name]
    for parameter in found.params:
        long = [name for name in parameter.opts if name.startswith("--") and name != "--help"]
        assert not long or any(name in text for name in long), f"{command} {long}"
