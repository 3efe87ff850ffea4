"""The pages of the documentation, taken apart: fenced blocks with their marks, links, headings, tables.

A fence names its language and may carry marks in braces, which the site understands too:

    ```yaml {title="flow.yaml" data-input='{"n": 3}'}

What a mark means is said in `playground`. Whatever this file cannot read raises, so that no block is missed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"(`{3,})(\w*)[ ]*(?:\{(.*)\})?[ ]*")
_HEADING = re.compile(r"#{1,6} +(.+?)\s*")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`]*`")


class Unreadable(Exception):
    """A page is written in a way that its checks cannot follow."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block. `answer` is the block right below it, with nothing but blank lines between."""

    page: str
    line: int
    language: str
    marks: frozenset[str]
    options: dict[str, str]
    body: str
    answer: Block | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def title(self) -> str:
        """The name of the file that the block shows, if any."""
        return self.options.get("title", "")


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of Markdown, by its path from the root of the repository."""

    name: str
    text: str
    blocks: tuple[Block, ...]
    prose: str = field(repr=False)
    """The text without its blocks."""

    @property
    def links(self) -> list[str]:
        return _LINK.findall(_CODE.sub("", self.prose))

    @property
    def anchors(self) -> set[str]:
        """What the headings can be linked by, as the site and GitHub both name them."""
        found = [match[1] for line in self.prose.splitlines() if (match := _HEADING.fullmatch(line))]
        return {_slug(heading) for heading in found}


def _slug(heading: str) -> str:
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[\s]+", "-", plain)


def page_names() -> list[str]:
    """Every page there is."""
    docs = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *docs]


def read_page(name: str) -> Page:
    return parse(name, (ROOT / name).read_text())


def parse(name: str, text: str) -> Page:
    """Take a page apart."""
    blocks: list[Block] = []
    prose: list[str] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.lstrip().startswith("```"):
            prose.append(line)
            continue
        blocks.append(_read_block(name, number, line, lines))
        prose.append("")
    return Page(name=name, text=text, blocks=_with_answers(text, blocks), prose="\n".join(prose))


def _read_block(name: str, number: int, first: str, lines: Iterator[tuple[int, str]]) -> Block:
    match = _FENCE.fullmatch(first)
    if match is None:
        raise Unreadable(f"{name}:{number} {first}")
    words = shlex.split(match[3] or "")
    body: list[str] = []
    for _, line in lines:
        if line.rstrip() == match[1]:
            break
        body.append(line)
    else:
        raise Unreadable(f"{name}:{number} the block has no end")
    return Block(
        page=name,
        line=number,
        language=match[2],
        marks=frozenset(word[1:] for word in words if word.startswith(".")),
        options=dict(word.split("=", 1) for word in words if not word.startswith(".")),
        body="\n".join(body) + "\n",
    )


def _with_answers(text: str, blocks: list[Block]) -> tuple[Block, ...]:
    """Give each block the one that follows it without a word between."""
    lines = text.splitlines()
    found: list[Block] = []
    for block, following in zip_longest(blocks, blocks[1:]):
        ends = block.line + block.body.count("\n") + 1
        between = lines[ends : following.line - 1] if following is not None else ["nothing follows"]
        answer = following if not any(line.strip() for line in between) else None
        found.append(replace(block, answer=answer))
    return tuple(found)


def rows_of(text: str, heading: str = "") -> list[list[str]]:
    """The cells of all tables of a page, or of those below one heading."""
    if heading:
        level = heading.split(" ")[0]
        _, _, text = text.partition(f"\n{heading}\n")
        assert text, f"no heading {heading}"
        text = re.split(rf"^#{{1,{len(level)}}} ", text, flags=re.MULTILINE)[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in rows]
    return [row for row in cells if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]


def codes_of(cell: str) -> list[str]:
    """Everything in a cell that is set as code."""
    return [code.strip("`") for code in _CODE.findall(cell)]
