"""The pages hang together: links lead somewhere, the navigation is complete, what the README promises stays short."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT, Unreadable, page_names, parse, read_page, rows_of

README_LINES_MAX = 150
USER_WORDS_MAX = 45_000
FOR_CONTRIBUTORS = ("docs/decisions/", "docs/architecture.md", "docs/testing.md", "CONTRIBUTING.md", "CHANGELOG.md")


def dead_links(name: str) -> Iterator[str]:
    page = read_page(name)
    folder = (ROOT / name).parent
    for link in page.links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else ROOT / name
        if not target.exists() or not target.is_relative_to(ROOT):
            yield f"{name}: {link}"
        elif anchor and anchor not in read_page(str(target.relative_to(ROOT))).anchors:
            yield f"{name}: {link} has no such heading"


@pytest.mark.parametrize("name", page_names())
def test_links_lead_somewhere(name: str) -> None:
    assert list(dead_links(name)) == []


def in_navigation(entries: object) -> Iterator[str]:
    """The pages of a navigation, which nests lists and mappings."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for value in entries.values():
            yield from in_navigation(value)
    elif isinstance(entries, list):
        for value in entries:
            yield from in_navigation(value)


def test_every_page_is_in_the_navigation_once() -> None:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())
    pages = list(in_navigation(settings["project"]["nav"]))
    assert sorted(pages) == sorted(name.removeprefix("docs/") for name in page_names() if name.startswith("docs/"))


def test_every_decision_is_listed() -> None:
    links = [row[0] for row in rows_of(read_page("docs/decisions/index.md").text) if row[0]]
    files = sorted(path.name for path in (ROOT / "docs/decisions").glob("0*.md"))
    assert links == [f"[{int(name[:4])}]({name})" for name in files]
    for name in files:
        headings = re.findall(r"^#+ .*", (ROOT / "docs/decisions" / name).read_text(), re.MULTILINE)
        assert headings[0].startswith(f"# {int(name[:4])}. ")
        assert headings[1:] == ["## Context", "## Decision", "## Consequences"], name


def test_the_readme_is_short_and_begins_with_installation_and_an_example() -> None:
    page = read_page("README.md")
    assert len(page.text.splitlines()) <= README_LINES_MAX
    assert page.blocks[0].body.startswith("pip install")
    example = next(block for block in page.blocks if block.language == "python")
    assert example.answer is not None
    assert len([line for line in example.body.splitlines() if line.strip()]) <= 10


def test_every_page_has_one_title() -> None:
    for name in page_names():
        assert len([line for line in read_page(name).prose.splitlines() if line.startswith("# ")]) == 1, name


@pytest.mark.parametrize("text", ["  ```python\n1\n```\n", "```python no-run\n1\n```\n", "```python\n1\n"])
def test_a_block_that_cannot_be_read_is_loud(text: str) -> None:
    with pytest.raises(Unreadable):
        parse("x.md", text)


def test_user_documentation_stays_short() -> None:
    """Words outside of code blocks; the bars of tables are none."""
    pages = [name for name in page_names() if not name.startswith(FOR_CONTRIBUTORS)]
    assert "README.md" in pages and "docs/reference/errors.md" in pages
    texts = (re.sub(r"^```.*?^```", "", read_page(name).text, flags=re.DOTALL | re.MULTILINE) for name in pages)
    assert sum(bool(word.strip("|-: ")) for text in texts for word in text.split()) <= USER_WORDS_MAX


@pytest.mark.parametrize("name", [name for name in page_names() if name.startswith("docs/concepts/")])
def test_every_concept_has_a_figure(name: str) -> None:
    assert re.search(r"^!\[.+\]\(\.\./assets/", read_page(name).text, re.MULTILINE), "draw one with `make pictures`"
