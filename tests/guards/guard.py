"""A guard: lines of the product that keep a promise, how to break them, and the test that must then fail."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("guards.toml")
PACKAGE = "src/tidemill"
PROMISES = (*(f"P{number}" for number in range(1, 9)), "code", "sandbox", "egress", "secrets", "access")


class Stale(Exception):
    """A guard no longer fits the sources."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """`snippet` stands once in the sources, or once in functions called `within`; its indentation is relative."""

    name: str
    promise: str
    why: str
    snippet: str
    sabotage: str
    test: str
    within: str | None = None

    def broken(self, sources: Mapping[str, str]) -> tuple[str, str]:
        """The path of the file with the guard, and its text without it."""
        places = [(path, line) for path, text in sources.items() for line in self._lines(text)]
        if len(places) != 1:
            raise Stale(f"{self.name}: the snippet occurs {len(places)} times, not once")
        ((path, first),) = places
        lines = sources[path].split("\n")
        size = len(self.snippet.split("\n"))
        margin = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        lines[first : first + size] = textwrap.indent(self.sabotage, margin).split("\n")
        text = "\n".join(lines)
        if not path.endswith(".py"):
            return path, text
        try:
            compile(text, path, "exec")
        except SyntaxError as error:
            raise Stale(f"{self.name}: sabotaged, {path} is not Python: {error}") from None
        return path, text

    def _lines(self, text: str) -> Iterator[int]:
        """The numbers of the lines, from 0, at which the snippet begins."""
        wanted = self.snippet.split("\n")
        if wanted[0] not in text:
            return
        lines = text.split("\n")
        spans = None if self.within is None else _spans(text, self.within)
        for first in range(len(lines) - len(wanted) + 1):
            end = first + len(wanted)
            if lines[first].strip() != wanted[0] or textwrap.dedent("\n".join(lines[first:end])) != self.snippet:
                continue
            if spans is None or any(start <= first and end <= stop for start, stop in spans):
                yield first


def _spans(text: str, function: str) -> list[tuple[int, int]]:
    nodes = ast.walk(ast.parse(text))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.lineno - 1, node.end_lineno or 0) for node in found if node.name == function]


def read_guards(path: Path = TABLE) -> tuple[Guard, ...]:
    return tuple(Guard(name=name, **row) for name, row in tomllib.loads(path.read_text()).items())


def read_sources(root: Path = ROOT) -> dict[str, str]:
    """Every module, Lua script and SQL file of the package: path below the root → text."""
    paths = [path for suffix in ("py", "lua", "sql") for path in sorted((root / PACKAGE).rglob(f"*.{suffix}"))]
    return {str(path.relative_to(root)): path.read_text() for path in paths}
