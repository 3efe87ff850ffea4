"""Sandbox tasks other than conditions: filter rows by a condition, run a jq program, evaluate a JSONPath query.

A task is executed in a killable child process with a deadline; its result is JSON. jq runs only there, because its
library shows the environment, reads imported files and holds the interpreter's lock: the child has no environment, and
a prefix hides the rest from the program. Results of jq are taken as text, because its own values round integers beyond
2^53. Only the syntax of short programs is checked in the worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import ClassVar

import msgspec

from tidemill.expressions.conditions import Leaf
from tidemill.expressions.errors import ExpressionError, condition_failed, shorten
from tidemill.expressions.scope import Json, Scope

CHORE_MS = 10_000
"""What a chore may take, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class FilterRows:
    """A condition to be decided for each of many rows, each of which is the output that it looks at."""

    what: ClassVar[str] = "the condition"
    leaf: Leaf
    scope: Scope
    rows: list[Json]
    deadline_ms: int = CHORE_MS


class Jq(msgspec.Struct, frozen=True, kw_only=True, tag="jq"):
    """A program in jq, and the text of what it is given; `each` asks it about every item of a list."""

    what: ClassVar[str] = "the program"
    program: str
    value: msgspec.Raw
    each: bool = False
    deadline_ms: int = CHORE_MS


class RunQuery(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """A JSONPath query, and the text of what it looks into."""

    what: ClassVar[str] = "the query"
    query: str
    value: msgspec.Raw
    deadline_ms: int = CHORE_MS


SandboxTask = FilterRows | Jq | RunQuery

Judge = Callable[[Leaf, Scope], bool]
"""Decides a condition over a scope."""


def done(chore: SandboxTask, judge: Judge) -> bytes:
    """Do a chore and return its result as JSON; raise `ExpressionError` if there is none."""
    match chore:
        case FilterRows():
            return msgspec.json.encode(_sifted(chore, judge))
        case Jq():
            # Only a child process runs jq: a crash of the native code ends its process.

            return run_jq(chore.program, bytes(chore.value), each=chore.each)
        case RunQuery():
            return msgspec.json.encode(find_all(chore.query, msgspec.json.decode(chore.value)))


def find_all(query: str, value: Json) -> list[Json]:
    """Give all that a query finds; raise `ExpressionError` if it is none."""
    from tidemill.expressions.jsonpath.parser import QueryFault, read_query

    try:
        return list(read_query(query).find(value, value))
    except QueryFault as fault:
        raise condition_failed(fault.message, fault.hint) from None


def _sifted(sift: FilterRows, judge: Judge) -> list[bool]:
    held: list[bool] = []
    for row in sift.rows:
        try:
            held.append(judge(sift.leaf, replace(sift.scope, has_output=True, output=row)))
        except ExpressionError as failure:
            failure.path = f"/{len(held)}"
            raise
    return held


PROGRAM_MAX = 20_000
"""Characters of a program."""

CHECKED_MAX = 4_000
"""Characters of a program whose syntax is checked in this process; what compiling a longer one takes is for a child."""

MISSING = "jq_transform needs the package jq, which is not installed"
INSTALL = 'pip install "tidemill[jq]"'

_BEFORE = "def modulemeta: {}; def env: {}; def input_filename: null; {} as $ENV | "
"""Nothing can be imported after a definition, and what is defined here hides what jq has under the same name."""

_PLACE = re.compile(r" at <top-level>, line (\d+), column (\d+):.*", re.DOTALL)


def is_installed() -> bool:
    """Whether the package is there; it is an extra."""
    return find_spec("jq") is not None


def check_jq(program: str) -> None:
    """Raise `ExpressionError` if a program cannot be compiled; nothing of it is run."""
    if not is_installed():
        raise condition_failed(MISSING, INSTALL)
    if len(program) <= CHECKED_MAX:
        import jq  # type: ignore[import-not-found]

        opening, whole = _wrapped(program)
        try:
            jq.compile(whole)
        except ValueError as error:
            raise _failed(str(error), len(opening)) from None


def _wrapped(program: str, *, each: bool = False) -> tuple[str, str]:
    """Give what is written before a program, and the whole that it is a part of."""
    opening = f"{_BEFORE}{'.[] | ' if each else ''}("
    # A comment at the end of the program must not swallow what comes after it.
    return opening, f"{opening}{program}\n) | tojson"


def run_jq(program: str, text: bytes, *, each: bool = False) -> bytes:
    """Give the text of the list of all results of a program; raise `ExpressionError` if it fails."""
    import jq

    opening, whole = _wrapped(program, each=each)
    try:
        results = jq.compile(whole).input_text(text.decode()).all()
    except ValueError as error:
        raise _failed(str(error), len(opening)) from None
    return _checked(b"[" + b",".join(result.encode() for result in results) + b"]")


def _checked(text: bytes) -> bytes:
    """Refuse what jq can write and JSON cannot hold, such as 1E+400."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise condition_failed(f"the result of the program is not JSON: {shorten(str(error))}") from None
    return text


def _failed(said: str, shift: int) -> ExpressionError:
    said = said.removeprefix("jq: error: ")
    place = _PLACE.search(said)
    if place is None:
        return condition_failed(f"the program failed: {shorten(said, 200)}")
    line, column = int(place[1]), int(place[2])
    column -= shift if line == 1 else 0
    where = f"line {line}, column {max(1, column)}"
    return condition_failed(f"the program cannot be used: {shorten(said[: place.start()], 200)} ({where})")
