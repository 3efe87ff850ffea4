"""Collects the problems of a document.

Readers record a problem and continue, so the author sees everything at once. The list and the effort for hints are
bounded, because a hostile document can be wrong in a million places. `DocumentPath` is a position in the document with
the name that messages use for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from tidemill.errors import Problem, Rejected

PROBLEMS_MAX = 1000
CANDIDATES_MAX = 2_000
COMPARISONS_MAX = 100_000
"""Names compared for all hints of one document, so that a thousand typos do not take a minute."""
NAME_SHOWN_MAX = 60
STEP_SHOWN_MAX = 200


class ProblemCollector:
    __slots__ = ("comparisons_left", "dropped", "problems", "warnings")

    def __init__(self) -> None:
        self.comparisons_left = COMPARISONS_MAX
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.dropped = 0

    def problem(self, code: str, path: str, message: str, hint: str = "") -> None:
        """Record what makes the document unusable."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(code=code, path=path, message=message, hint=hint))
        else:
            self.dropped += 1

    def warning(self, code: str, path: str, message: str, hint: str = "") -> None:
        """Record what compiles but is probably a mistake."""
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(Problem(code=code, path=path, message=message, hint=hint))

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.problem(problem.code, problem.path, problem.message, problem.hint)

    def nearest(self, name: str, known: Iterable[str]) -> str:
        """A hint with the most similar known name, or an empty string."""
        candidates = list(islice(known, min(CANDIDATES_MAX, self.comparisons_left)))
        self.comparisons_left -= len(candidates)
        matches = get_close_matches(name[:NAME_SHOWN_MAX], candidates, n=1, cutoff=0.6)
        return f"did you mean `{shown(matches[0])}`?" if matches else ""

    def all_problems(self) -> list[Problem]:
        if not self.dropped:
            return list(self.problems)
        rest = Problem(code="too_many_problems", message=f"and {self.dropped} more problems")
        return [*self.problems, rest]

    def refuse(self) -> None:
        if self.problems:
            raise Rejected(self.all_problems())


class DocumentPath:
    """A position in the document: its path, and the subject of messages, `who` or a node."""

    __slots__ = ("_node", "_who", "found", "path")

    def __init__(self, found: ProblemCollector, path: str, who: str = "", node: str | None = None) -> None:
        self.found, self.path, self._who, self._node = found, path, who, node

    def problem(self, code: str, key: str, message: str, hint: str = "") -> None:
        """Record a problem with `key` (one or more pointer steps) below this place, or with the place itself."""
        self.found.problem(code, f"{self.path}/{key}" if key else self.path, self._with_subject(message), hint)

    def warning(self, code: str, key: str, message: str, hint: str = "") -> None:
        self.found.warning(code, f"{self.path}/{key}" if key else self.path, self._with_subject(message), hint)

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.found.problem(problem.code, problem.path, self._with_subject(problem.message), problem.hint)

    def child(self, key: str) -> DocumentPath:
        return DocumentPath(self.found, f"{self.path}/{key}", self._who, self._node)

    def _with_subject(self, message: str) -> str:
        who = self._who if self._node is None else f"node `{shown(self._node)}`"
        return f"{who}: {message}" if who else message


def pointer(path: str, key: str | int) -> str:
    return f"{path}/{key}" if isinstance(key, int) else f"{path}/{escaped(key)}"


def escaped(key: str) -> str:
    """Escape and shorten a key for a JSON pointer."""
    return shown(key, STEP_SHOWN_MAX).replace("~", "~0").replace("/", "~1")


def shown(value: str, length_max: int = NAME_SHOWN_MAX) -> str:
    """A name for messages: short, and without control characters."""
    short = value if len(value) <= length_max else value[: length_max - 1] + "…"
    return short if short.isprintable() else ascii(short)[1:-1]
