"""The sessions on the page about the command line, replayed in one process and one store."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.docs.pages import Page, read_page
from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import eventually
from tidemill.cli.app import app
from tidemill.cli.options import LazyCommand

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


def test_the_page_shows_what_is_printed(cli_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read_page(PAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getuser", lambda: "dora")
    for block in page.blocks:
        if block.title:
            Path(block.title).write_text(block.body)
    for line, command, expected in commands(page):
        program, *arguments = shlex.split(command)
        assert program == "tidemill", command
        ended = cli_store(*arguments)
        assert steady(ended.out + ended.err) == steady(expected), f"{PAGE}:{line} {command}\n{ended.out}{ended.err}"
        eventually(lambda: not cli_store.mill.find(["active"])[0], "a run does not come to rest")
    assert len({line for line, _, _ in commands(page)}) >= SESSIONS_MIN


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Every command there is, with its name in full."""
    for name, command in app.commands.items():
        group = command.load() if isinstance(command, LazyCommand) else command
        inner = group.commands if isinstance(group, click.Group) else None
        yield from [(name, group)] if inner is None else [(f"{name} {each}", inner[each]) for each in inner]


@pytest.mark.parametrize(("name", "command"), [*every_command()])
def test_every_command_and_option_is_on_the_page(name: str, command: click.Command) -> None:
    text = read_page(PAGE).text
    group, _, verb = name.partition(" ")
    assert re.search(rf"(?:tidemill |`){group}\b.*\b{verb}\b", text), name
    for parameter in command.params:
        long = [each for each in parameter.opts if each.startswith("--") and each != "--help"]
        assert not long or any(each in text for each in long), f"{name} {long}"
