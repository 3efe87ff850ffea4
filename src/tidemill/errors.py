"""All errors that Tidemill raises on purpose, by whose fault they are.

`Rejected` is the caller's fault and carries a stable code, the path, a sentence and a hint; it becomes an exit code or
an HTTP status. `Unavailable` is the environment's fault and is retried. A failed node is data in an event, not an
error. Anything else is a bug, reported as an `InternalError` where other work has to continue.
"""

from __future__ import annotations

import logging
import os.path
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from hashlib import sha256
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import msgspec

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_MEANT = {
    "workers": "did you mean `concurrency`?",
    **dict.fromkeys(("schedule", "cron"), "schedules are made with mill.create_schedule(name, workflow, cron=…)"),
}
"""Arguments that other libraries have, and what to write here."""

_PYTHON = os.path.dirname(os.__file__) + os.sep
_INNER_NAME = re.compile(r"(?:\w*Service|RunActions|Remote\w+|ByPlace|Engine|Tidemill)\.(?=\w+\(\) )")
_TIDEMILL = os.path.dirname(__file__) + os.sep

NAMES_COMPARED_MAX = 1_000
NAMES_OFFERED_MAX = 8
INTERNAL_TEXT_MAX = 300

CONFIG_FILE = "tidemill.toml (~/.config/tidemill/tidemill.toml, or --config)"
"""The operator's file, as hints name it."""


class Problem(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One thing that is wrong with the caller's input, precise enough to act on."""

    code: str
    message: str
    path: str = ""
    hint: str = ""
    line: int = 0
    """Where `path` is in the text that was given, from 1, with `column`; 0 if that is not known."""
    column: int = 0

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.sentence} [{self.code}]{hint}"

    def to_dict(self) -> dict[str, str | int]:
        """The problem as a JSON value: always the four texts, and its place where that is known."""
        texts = {"code": self.code, "path": self.path, "message": self.message, "hint": self.hint}
        return {**texts, "line": self.line, "column": self.column} if self.line else {**texts}

    @property
    def sentence(self) -> str:
        """Path and message, for a text that shows another code."""
        return f"{self.path}: {self.located_message}" if self.path else self.located_message

    @property
    def located_message(self) -> str:
        """The message, with line and column before it where they are known."""
        return f"line {self.line}, column {self.column}: {self.message}" if self.line else self.message


class TidemillError(Exception):
    """Base of all errors that Tidemill raises on purpose."""


class Rejected(TidemillError):
    """The request cannot be executed; nothing was changed."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))

    @property
    def code(self) -> str:
        return self.problems[0].code


def not_ended(run_id: str, seconds: float | None) -> TimeoutError:
    return TimeoutError(
        f"run {run_id} has not ended after {seconds:g} s; it continues, and result({run_id!r}) waits again"
    )


def rejected(code: str, message: str, *, path: str = "", hint: str = "") -> Rejected:
    return Rejected(Problem(code=code, message=message, path=path, hint=hint))


def read_each(read: Callable[[S], T], values: Iterable[S]) -> tuple[T, ...]:
    """Read every value. Raises Rejected with the problems of all that are wrong."""
    found: list[T] = []
    problems: list[Problem] = []
    for value in values:
        try:
            found.append(read(value))
        except Rejected as refusal:
            problems += refusal.problems
    if problems:
        raise Rejected(problems)
    return tuple(found)


def offered(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar known one, or else the first few."""
    # Imported only when a name is unknown.
    from difflib import get_close_matches

    names = list(islice(known, NAMES_COMPARED_MAX))
    longer = [each for each in names if name and each.startswith(f"{name}_")]
    near = longer if len(longer) == 1 else get_close_matches(name[:NAMES_COMPARED_MAX], names, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    more = ", …" if len(names) > NAMES_OFFERED_MAX else ""
    return f"known: {', '.join(names[:NAMES_OFFERED_MAX])}{more}" if names else "there is none"


_MISFIT = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_TYPE_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "text",
}


def in_words(misfit: str, subject: str) -> str:
    """What a decoder says of a value with a wrong type, as a sentence about its key."""
    found = _MISFIT.fullmatch(misfit)
    if found is None:
        return misfit[:1].lower() + misfit[1:]
    wanted = [_TYPE_WORDS.get(each, each) for each in found[1].split(" | ") if each != "null"]
    return f"`{subject}` must be {' or '.join(wanted)}, not {_TYPE_WORDS.get(found[2], found[2])}"


class Unavailable(TidemillError):
    """The environment does not answer (store, network, disk); the same request may succeed later."""


class ServerUnavailable(Unavailable):
    """A server does not answer, or not as one of ours."""


class StoreUnusable(Unavailable):
    """The environment stays unusable until an operator fixes `problem`.

    Running work waits for that, so it is no `Rejected`; commands, which do not wait, report it like one.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(f"{problem.message}; {problem.hint}" if problem.hint else problem.message)


class DiskFull(Unavailable):
    """The disk is full: nothing was done, and nothing will be until space is freed."""


class RunFailed(TidemillError):
    """A run has not completed: raised by `run.raise_for_status()`, never by the engine itself."""

    def __init__(
        self, run_id: str, status: str, *, workflow: str = "", node: str = "", error: Mapping[str, object] = {}
    ) -> None:
        self.run_id, self.status, self.workflow, self.node, self.error = run_id, str(status), workflow, node, error
        what = f"run {run_id} of {workflow}" if workflow else f"run {run_id}"
        if status in ("RUNNING", "PAUSED"):
            super().__init__(f"{what} has not ended: it is {status}")
            return
        kind = f"{error['type']}: " if error.get("type") and error["code"] == "exception" else ""
        said = f": {kind}{error['message']} [{error['code']}]" if error else ""
        super().__init__(f"{what} {status}{f' at node {node}' if node else ''}{said}")
        if traceback := str(error.get("traceback") or "").strip():
            # Python prints it below the traceback of the caller, which has no line of the step.
            self.add_note(f"\nWhere the step raised it:\n{traceback}")

    @property
    def code(self) -> str:
        """The code of the run's error; empty where it has none."""
        return str(self.error.get("code", ""))


def shorten_traceback(error: Exception, verb: Callable[..., Any] | None = None) -> None:
    """Take the frames inside of Tidemill off an error, before a function that users call raises it again.

    The traceback of a refusal ends at the user's own line; one from the user's code, such as a workflow function,
    continues in that code. A bug of ours keeps its frames. The logger `tidemill.errors` has all of them at DEBUG.
    """
    LOG.debug("raised for the caller: %r", error, exc_info=error)
    if isinstance(error, TypeError) and (inner := _INNER_NAME.match(str(error))):
        # The call itself was wrong: Python names the function that the verb stands for.
        called = re.sub(r"^iterate\(", "runs(", str(error)[inner.end() :])
        error.args, error.__traceback__ = (called,), None
        if verb is not None:
            _offer_argument(error, verb)
        return
    if isinstance(error, (Rejected, Unavailable, TimeoutError)):
        error.__traceback__, error.__suppress_context__ = None, True
        return
    at = error.__traceback__
    while at is not None and _is_inside(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    error.__traceback__ = at or error.__traceback__


def _offer_argument(error: Exception, function: Callable[..., Any]) -> None:
    """Let an error of a call with an unknown argument say which was meant."""
    unknown = re.fullmatch(r"\w+\(\) got an unexpected keyword argument '(\w+)'.*", str(error))
    if isinstance(error, TypeError) and unknown:
        import inspect  # Only here: it takes long to import.

        known = [name for name in inspect.signature(function).parameters if name != "self"]
        hint = _MEANT.get(unknown[1]) or offered(unknown[1], known)
        error.args = (f"{error}: {hint}",)


def unknown_attribute(owner: object, name: str) -> AttributeError:
    """The error for a misspelt attribute of a client, with the one that was meant."""
    from difflib import get_close_matches

    public = [each for each in dir(type(owner)) if not each.startswith("_")]
    near = [] if name.startswith("_") else get_close_matches(name, public, n=1)
    hint = f": did you mean `{near[0]}`?" if near else ""
    # With the name alone, Python looks for no similar name itself.
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name)


def _is_inside(file: str) -> bool:
    """Whether it is a file of Tidemill or of Python itself."""
    return file.startswith((_TIDEMILL, _PYTHON, "<frozen ")) and "site-packages" not in file.removeprefix(_TIDEMILL)


def for_callers(function: Callable[P, T]) -> Callable[P, T]:
    """A function that users call: what it raises has a short traceback."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten_traceback(error)
            if str(error).startswith(f"{function.__name__}() "):
                _offer_argument(error, function)
            raise

    return call


class InternalError(TidemillError):
    """A bug in Tidemill; `digest` identifies its traceback in the worker's log."""

    def __init__(self, text: str, digest: str) -> None:
        self.digest = digest
        super().__init__(f"internal error: {text} (traceback {digest})")


def internal_error(error: Exception) -> InternalError:
    """Wrap an unexpected exception. Exceptions raised at the same place have the same digest."""
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
