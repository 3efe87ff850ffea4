"""The one error family: whose fault is it, and what now?

`Rejected` is the caller's fault and carries a stable code, the place, a sentence and a hint; it becomes an
exit code or an HTTP status at the edge. `Unavailable` is the environment's fault and is retried. A failed node is
neither: it is data in an event. Anything else that is raised is a bug and must be loud; where others have to go on, it
is answered as an `InternalError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice

import msgspec

NAMES_COMPARED_MAX = 1_000
NAMES_OFFERED_MAX = 8
INTERNAL_TEXT_MAX = 300


class Problem(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One thing that is wrong with what the caller gave, precise enough to act on."""

    code: str
    message: str
    path: str = ""
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.sentence} [{self.code}]{hint}"

    @property
    def sentence(self) -> str:
        """What is wrong, and where, for a message that has a code of its own."""
        return f"{self.path}: {self.message}" if self.path else self.message


class TidemillError(Exception):
    """Anything Tidemill raises on purpose."""


class Rejected(TidemillError):
    """The caller asked for something that cannot be done; nothing was changed."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))

    @property
    def code(self) -> str:
        """The code of the first problem, which names the refusal as a whole."""
        return self.problems[0].code


def rejected(code: str, message: str, *, path: str = "", hint: str = "") -> Rejected:
    """Build a refusal with a single problem."""
    return Rejected(Problem(code=code, message=message, path=path, hint=hint))


def offered(name: str, known: Iterable[str]) -> str:
    """A hint for a name that nobody knows: the known one most like it, or else the first few."""
    # Only somebody who mistyped a name pays for the import.
    from difflib import get_close_matches

    names = list(islice(known, NAMES_COMPARED_MAX))
    near = get_close_matches(name[:NAMES_COMPARED_MAX], names, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    more = ", …" if len(names) > NAMES_OFFERED_MAX else ""
    return f"known: {', '.join(names[:NAMES_OFFERED_MAX])}{more}" if names else "there is none"


class Unavailable(TidemillError):
    """The environment does not answer (store, network, disk); the same request may succeed later."""


class StoreUnusable(Unavailable):
    """The environment does not play along until somebody sees to it; `problem` says to what, as a refusal would.

    What is under way waits for that, so it is no refusal; a command, which does not wait, answers it like one.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(f"{problem.message}; {problem.hint}" if problem.hint else problem.message)


class DiskFull(Unavailable):
    """There is no room: nothing was done, and nothing will be until somebody frees some space."""


class InternalError(TidemillError):
    """A bug in Tidemill; `digest` names its traceback, which is in the worker's log."""

    def __init__(self, text: str, digest: str) -> None:
        self.digest = digest
        super().__init__(f"internal error: {text} (traceback {digest})")


def internal_error(error: Exception) -> InternalError:
    """An exception that was not raised on purpose. The digest is the same whenever it is raised at the same place."""
    try:
        text = f"{type(error).__name__}: {error}"[:INTERNAL_TEXT_MAX]
    except Exception:
        text = type(error).__name__
    places, at = [type(error).__name__], error.__traceback__
    while at is not None:
        places.append(f"{at.tb_frame.f_code.co_filename}:{at.tb_frame.f_code.co_name}:{at.tb_lineno}")
        at = at.tb_next
    internal = InternalError(text, sha256("\n".join(places).encode()).hexdigest()[:12])
    internal.__cause__ = error
    return internal
