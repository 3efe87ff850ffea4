"""Every block of every page is tried; the few that are excused are counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.docs.pages import page_names, parse, read_page
from tests.docs.playground import compare, developer_commands, is_run, play
from tidemill.cli.app import app
from tidemill.cli.options import LazyCommand

EXCUSED_MAX = 8
"""Blocks that are shown but not run, all pages together. A page that needs another one should rather run it."""
TRIED_MIN = 45

SHOWN_COMMAND = re.compile(
    r"^(?:\$ |[A-Z_]+=\S+ |ExecStart=\S*/|(?:HEALTHCHECK .*)?CMD (?:\[\")?)?"
    r"tidemill(?=[\s\"])([^#|>;\n]*)",
    re.MULTILINE,
)
"""A command in a block that is not run: a line of a shell, of a systemd unit or of a Dockerfile."""

PLAYED = [name for name in page_names() if any(is_run(block) for block in read_page(name).blocks)]


@pytest.mark.parametrize("name", PLAYED)
def test_every_block_of_a_page_does_what_the_page_says(name: str, tmp_path: Path) -> None:
    assert play(read_page(name), tmp_path) > 0


def test_few_blocks_are_excused() -> None:
    blocks = [block for name in page_names() for block in read_page(name).blocks]
    excused = [block.place for block in blocks if "no-run" in block.marks or not block.language]
    assert len(excused) <= EXCUSED_MAX, excused
    assert sum(is_run(block) for block in blocks) >= TRIED_MIN


def test_commands_for_developers_exist() -> None:
    blocks = [block for name in page_names() for block in read_page(name).blocks if block.language == "sh"]
    assert len(blocks) > 4
    assert [problem for block in blocks for problem in developer_commands(block)] == []


def unknown_words(text: str) -> Iterator[str]:
    """Commands and options of Tidemill that a text shows and that do not exist."""
    for shown in SHOWN_COMMAND.findall(text):
        words, command = re.findall(r"[^\s\",\[\]]+", shown), app
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            name, *words = words
            found = command.get_command(click.Context(command), name)
            if found is None:
                yield name
                break
            command = found.load() if isinstance(found, LazyCommand) else found
        else:
            known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            yield from sorted(options - known - {"--help"})


@pytest.mark.parametrize("name", page_names())
def test_commands_that_are_shown_exist(name: str) -> None:
    texts = [block.body for block in read_page(name).blocks if block.language == "text"]
    assert [word for text in texts for word in unknown_words(text)] == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("ExecStart=/srv/.venv/bin/tidemill worker --app shop --grce 3\n", ["--grce"]),
        ('CMD ["tidemill", "work", "--app", "shop"]\n', ["work"]),
        ("export X=1\nTIDEMILL_STORE=x tidemill runs lst # all\n", ["lst"]),
        ("$ tidemill concurrency set queue:gpu 4\ntidemill doctor --json | jq --raw\n", []),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(text: str, unknown: list[str]) -> None:
    assert list(unknown_words(text)) == unknown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```python\nraise SystemExit(3)\n```\n", "x.md:1"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "expected"),
        ("```yaml\nname: x\nnodes: [{id: a, type: valeu}]\n```\n", "valeu"),
        ("```yaml\nname: x\nnodes: [{id: a, type: value, config: 1}]\n```\n```json\n{}\n```\n", "x.md:5"),
        ("```yaml\nname: x\nnodes: [{id: a, type: fail}]\n```\n", "configured to fail"),
        ('```yaml {data-fails="other"}\nname: x\nnodes: [{id: a, type: fail}]\n```\n', "configured to fail"),
        ('```yaml {data-refused="cycle"}\nname: x\nnodes: [{id: a, type: valeu}]\n```\n', "unknown_node_type"),
        ("```yaml\nloop: {}\n```\n", "not a document"),
        ("```console\n$ tidemill validate missing.yaml\n```\n", "exit code 2"),
        ("```console\n$ tidemill version\nelse\n```\n", "expected"),
        ("```console\n$ rm -rf x\n```\n", "rm -rf"),
        ("```ruby\nputs 1\n```\n", "nobody knows"),
        ("```python {.skip}\n1\n```\n", "unknown mark"),
        ("```python {.theirs}\nfrom x import\n```\n", "x.md:1"),
    ],
)
def test_a_wrong_block_is_noticed(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=words):
        play(parse("x.md", text), tmp_path)


def test_an_output_may_leave_something_open() -> None:
    compare("here", "run …\n…\nend", "run 17\nanything\nat all\nend\n")
    compare("here", "run …\n…\nend", "run 17\nend\n")
    with pytest.raises(AssertionError, match="actual"):
        compare("here", "run …\nend", "run 17\nmore\nend\n")
