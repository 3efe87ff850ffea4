"""Sandbox tasks other than conditions: filter rows, run a jq program, evaluate a JSONPath query, render templates.

A task is executed in a killable child process with a deadline; its result is JSON. jq runs only there, because its
library shows the environment, reads imported files and holds the interpreter's lock: the child has no environment, and
a prefix hides the rest from the program. Results of jq are taken as text, because its own values round integers beyond
2^53. Only the syntax of short programs is checked in the worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import ClassVar

import msgspec

from tidemill.expressions.conditions import SimpleCondition
from tidemill.expressions.errors import ExpressionError, condition_failed, shorten
from tidemill.expressions.scope import Json, References, Scope

TASK_MS = 10_000
"""What a task may take, unless it says otherwise."""


class FilterRows(msgspec.Struct, frozen=True):
    """A condition to be decided for each row, which it sees as its output."""

    what: ClassVar[str] = "the condition"
    leaf: SimpleCondition
    scope: Scope
    rows: list[Json]
    deadline_ms: int = TASK_MS


class Jq(msgspec.Struct, frozen=True, kw_only=True, tag="jq"):
    """A jq program and its input as JSON text; with `each` it runs once per item of the list."""

    what: ClassVar[str] = "the program"
    program: str
    value: msgspec.Raw
    each: bool = False
    deadline_ms: int = TASK_MS


class RunQuery(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """A JSONPath query and its document as JSON text."""

    what: ClassVar[str] = "the query"
    query: str
    value: msgspec.Raw
    deadline_ms: int = TASK_MS


class RunCode(msgspec.Struct, frozen=True, kw_only=True, tag="code"):
    """Code in the subset of Python of python_sandbox conditions, and the data of its function `main(data)`."""

    what: ClassVar[str] = "the code"
    code: str
    value: msgspec.Raw
    memory_mb: int
    deadline_ms: int = TASK_MS


class RenderTexts(msgspec.Struct, frozen=True):
    """Templates by place, which take longer than they may on the event loop."""

    what: ClassVar[str] = "the template"
    texts: list[tuple[str, str]]
    references: References
    scope: Scope
    deadline_ms: int = TASK_MS
    """Of the process; rendering itself has its own limit, of processor time."""


SandboxTask = FilterRows | Jq | RunQuery | RenderTexts | RunCode

Judge = Callable[[SimpleCondition, Scope], bool]
"""Decides a condition over a scope."""


def execute(task: SandboxTask, judge: Judge) -> bytes:
    """Execute a task and return its result as JSON; raise `ExpressionError` if there is none."""
    match task:
        case FilterRows():
            return msgspec.json.encode(_filter(task, judge))
        case Jq():
            return run_jq(task.program, bytes(task.value), each=task.each)
        case RunQuery():
            return msgspec.json.encode(find_all(task.query, msgspec.json.decode(task.value)))
        case RenderTexts():
            from tidemill.expressions.templates.template import render_texts

            return msgspec.json.encode(render_texts(task.texts, task.scope))
        case RunCode():
            raise condition_failed("code runs in the interpreter of a child process only")


def find_all(query: str, value: Json) -> list[Json]:
    """Return all values that a query finds; raise `ExpressionError` if the query is invalid."""
    from tidemill.expressions.jsonpath.parser import QueryFault, read_query

    try:
        return list(read_query(query).find(value, value))
    except QueryFault as fault:
        raise condition_failed(fault.message, fault.hint) from None


def _filter(task: FilterRows, judge: Judge) -> list[bool]:
    held: list[bool] = []
    for row in task.rows:
        try:
            held.append(judge(task.leaf, replace(task.scope, has_output=True, output=row)))
        except ExpressionError as failure:
            failure.path = f"/{len(held)}"
            raise
    return held


# jq.

PROGRAM_MAX = 20_000
"""Characters of a program."""

CHECKED_MAX = 4_000
"""Characters of a program whose syntax the worker checks; compiling a longer one is left to a child."""

MISSING = "jq_transform needs the package jq, which is not installed"
INSTALL = 'pip install "tidemill[jq]"'

_BEFORE = "def modulemeta: {}; def env: {}; def input_filename: null; {} as $ENV | "
"""jq imports nothing after a definition, and these definitions hide its own of the same name."""

_PLACE = re.compile(r" at <top-level>, line (\d+), column (\d+):.*", re.DOTALL)


def is_installed() -> bool:
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
    """Return what is written before a program, and the whole that it is a part of."""
    opening = f"{_BEFORE}{'.[] | ' if each else ''}("
    # The line break ends a comment at the end of the program.
    return opening, f"{opening}{program}\n) | tojson"


def run_jq(program: str, text: bytes, *, each: bool = False) -> bytes:
    """Return the text of the list of all results of a program; raise `ExpressionError` if it fails."""
    import jq

    opening, whole = _wrapped(program, each=each)
    try:
        results = jq.compile(whole).input_text(text.decode()).all()
    except ValueError as error:
        raise _failed(str(error), len(opening)) from None
    found = b"[" + b",".join(result.encode() for result in results) + b"]"
    try:
        # jq can write what JSON cannot hold, such as 1E+400.
        msgspec.json.decode(found)
    except (msgspec.DecodeError, RecursionError) as error:
        raise condition_failed(f"the result of the program is not JSON: {shorten(str(error))}") from None
    return found


def _failed(error: str, shift: int) -> ExpressionError:
    error = error.removeprefix("jq: error: ")
    place = _PLACE.search(error)
    if place is None:
        return condition_failed(f"the program failed: {shorten(error, 200)}")
    line, column = int(place[1]), int(place[2])
    column -= shift if line == 1 else 0
    where = f"line {line}, column {max(1, column)}"
    return condition_failed(f"the program cannot be used: {shorten(error[: place.start()], 200)} ({where})")
