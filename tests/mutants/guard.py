"""What a guard is: a line of the product that keeps something safe, how to break it, and the test that notices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/tidemill"


class Stale(Exception):
    """The list no longer fits the sources."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """A safety check. `snippet` occurs exactly once in `file`, and `test` goes red once it reads `sabotage`."""

    name: str
    why: str
    """One sentence: what would happen without it."""
    file: str
    """Below the package, e.g. `kernel/decide.py`."""
    snippet: str
    sabotage: str
    test: str
    """The pytest node id of the one test that must go red."""

    @property
    def path(self) -> str:
        """The file, from the root of the repository."""
        return f"{PACKAGE}/{self.file}"

    def broken(self, source: str) -> str:
        """The source without the guard."""
        found = source.count(self.snippet)
        if found != 1:
            raise Stale(f"{self.name}: the snippet occurs {found} times in {self.path}, not once")
        text = source.replace(self.snippet, self.sabotage)
        try:
            compile(text, self.path, "exec")
        except SyntaxError as error:
            raise Stale(f"{self.name}: sabotaged, {self.path} is not Python: {error}") from None
        return text
