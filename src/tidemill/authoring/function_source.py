"""The source of a workflow function: what Python does while the graph is built, and no result is asked for.

A block (`with tidemill.when(…):`) decides which tasks run. Everything else in it happens once, whatever the condition
says later. And Python asks a result nothing to compare it with None, or with a pattern of a mapping or a list. Only the
source shows that; code without a source is not checked.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import os
import random
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

Access = tuple[Literal["read", "set"], str, int]
"""What is done with a variable: how, its name, and the line in the file."""

_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class BlockSource(NamedTuple):
    """A `with` statement, and the statements that follow it."""

    inside: Sequence[ast.stmt]
    after: Sequence[ast.stmt]
    first_line: int
    """In the file, of the function that it belongs to."""

    def lost_lines(self) -> tuple[int, int] | None:
        """The line of a `return` in it, and the first line below the block, if there is one: it is never reached."""
        for each in self.inside:
            for node in _own_nodes(each):
                if isinstance(node, ast.Return) and self.after:
                    return self._line(node), self._line(self.after[0])
        return None

    def names_set(self) -> dict[str, int]:
        """The variables that it sets and that are read below before they are set again; where it sets them."""
        inside = {name: line for how, name, line in self._accesses(self.inside) if how == "set"}
        below: dict[str, str] = {}
        for how, name, _ in self._accesses(self.after):
            below.setdefault(name, how)
        return {name: line for name, line in inside.items() if below.get(name) == "read"}

    def names_changed(self) -> dict[str, tuple[int, bool]]:
        """The variables whose content it changes, that are read below: where, and whether to something constant."""
        read = {name for how, name, _ in self._accesses(self.after) if how == "read"}
        found: dict[str, tuple[int, bool]] = {}
        for node in (node for each in self.inside for node in _own_nodes(each)):
            match node:
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id=name))],
                    value=value,
                ):
                    pass
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "add"), args=[value]):
                    pass
                case _:
                    continue
            if name in read:
                found.setdefault(name, (self.first_line + node.lineno - 1, isinstance(value, ast.Constant)))
        return found

    def names_carried(self) -> dict[str, int]:
        """The variables that it reads and then sets, as if a pass of a loop saw those of the pass before."""
        first: dict[str, str] = {}
        found: dict[str, int] = {}
        for how, name, line in self._accesses(self.inside):
            first.setdefault(name, how)
            if how == "set" and first[name] == "read":
                found.setdefault(name, line)
        return found

    def _accesses(self, statements: Sequence[ast.stmt]) -> Iterator[Access]:
        for each in statements:
            for how, name, line in _accesses(each, frozenset()):
                yield how, name, self.first_line + line - 1

    def _line(self, node: ast.stmt) -> int:
        return self.first_line + node.lineno - 1


def block_source(code: CodeType, line: int) -> BlockSource | None:
    """The `with` statement at a line of a function's code."""
    return _blocks(code).get(line)


class Finding(NamedTuple):
    """Something that Python decides or makes once, while the graph is built."""

    line: int
    message: str
    hint: str
    code: str = "value_not_known"


IN_A_TASK = "do it inside a task"
_JOINING = ("join", "format")
"""Methods of a text that only join it with others."""


def decided_early(
    code: CodeType, names: Mapping[str, Any], results_are: tuple[type, ...], marks: re.Pattern[str]
) -> list[Finding]:
    """What a workflow function compares without asking, by the values of its variables when it returns.

    A variable that is set several times is not checked: its value may have been another one. Texts with results hold
    `marks`.
    """
    function = _function(code)
    nodes = [] if function is None else [node for each in function.body for node in _own_nodes(each)]
    times = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    known = {name: value for name, value in names.items() if times.count(name) < 2}
    results = {name for name, value in known.items() if isinstance(value, results_are)}
    texts = {name for name, value in known.items() if isinstance(value, str) and marks.search(value)}
    found: list[Finding] = []
    for node in nodes:
        match node:
            case ast.Match(cases=cases) if any(map(_takes_apart, cases)):
                message = "Python compares with a pattern of a mapping or a list, which no result fits"
                found.append(Finding(node.lineno, message, "match it inside a task"))
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.Is() | ast.IsNot()],
                comparators=[ast.Constant(value=None | True | False as value)],
            ):
                if name in results:
                    message = f"Python asks whether {name} is {value}, and it never is while the graph is built"
                    hint = f"write `with tidemill.when({name} == {value}):`, or decide inside a task"
                    found.append(Finding(node.lineno, message, hint))
            case _:
                for name, line in _looked_into(node):
                    if name in texts:
                        message = f"Python looks into the text `{name}`, which holds results, before they are known"
                        found.append(Finding(line, message, IN_A_TASK))
    return [each._replace(line=code.co_firstlineno + each.line - 1) for each in found]


def _looked_into(node: ast.AST) -> list[tuple[str, int]]:
    """The variables, and their lines, on whose text an expression or a statement depends; joining texts is none."""
    parts: list[ast.expr | None] = []
    match node:
        case ast.Attribute(value=value, attr=method) if method not in _JOINING:
            parts = [value]
        case ast.Subscript(value=value):
            parts = [value]
        case ast.Compare(left=left, comparators=others):
            parts = [left, *others]
        case ast.Call(func=ast.Name(id="len"), args=[value]):
            parts = [value]
        case ast.BoolOp(values=values):
            parts = [*values]
        case ast.UnaryOp(op=ast.Not(), operand=value):
            parts = [value]
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
            parts = [test]
        case ast.Match(subject=subject):
            parts = [subject]
    return [(each.id, each.lineno) for each in parts if isinstance(each, ast.Name)]


def _takes_apart(case: ast.match_case) -> bool:
    return any(isinstance(each, (ast.MatchMapping, ast.MatchSequence)) for each in ast.walk(case.pattern))


def frozen_calls(code: CodeType, names: Mapping[str, Any]) -> list[Finding]:
    """The calls of a workflow function that ask for the time or for chance: every run would get the same answer."""
    function = _function(code)
    found: list[Finding] = []
    for node in [] if function is None else (node for each in function.body for node in _own_nodes(each)):
        if isinstance(node, ast.Call) and (path := _dotted(node.func)) and path[0] in names:
            called = reduce(lambda value, name: getattr(value, name, None), path[1:], names[path[0]])
            if _is_new_each_time(called):
                message = f"`{'.'.join(path)}(…)` is called once, while the graph is built: every run gets its answer"
                hint = "call it inside a task, or make it an input"
                found.append(Finding(code.co_firstlineno + node.lineno - 1, message, hint, code="value_frozen"))
    return found


def _dotted(node: ast.expr) -> list[str]:
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=value, attr=name):
            before = _dotted(value)
            return [*before, name] if before else []
    return []


def _is_new_each_time(called: Any) -> bool:
    owner, name, module = (getattr(called, key, None) for key in ("__self__", "__name__", "__module__"))
    of_clock = inspect.isclass(owner) and issubclass(owner, datetime.date) and name in ("now", "utcnow", "today")
    of_module = (module, name) in _NEW_EACH_TIME or (getattr(owner, "__name__", None), name) in _NEW_EACH_TIME
    return of_clock or of_module or isinstance(owner, random.Random) or (module == "secrets" and callable(called))


_NEW_EACH_TIME = {
    *(("uuid", f"uuid{version}") for version in (1, 4, 6, 7)),
    *(("time", name) for name in ("time", "time_ns", "monotonic", "perf_counter")),
    *((module, "urandom") for module in ("posix", "os")),
}


def enclosed(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of functions around it that a function uses, those that are set already."""
    function = inspect.unwrap(function)
    names = getattr(function, "__code__", _NO_CODE).co_freevars
    found = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # It is set later.
            found[name] = cell.cell_contents
    return found


_NO_CODE = (lambda: None).__code__


# Places in code.

_PYTHON = os.path.dirname(os.__file__) + os.sep
"""Where the modules of Python itself are."""


def place_in_code() -> str:
    """File and line of the workflow function that is being called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame):
        frame = frame.f_back
    return place_of_line(frame.f_code, frame.f_lineno)


def place_of_line(code: CodeType, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line}"


def place_of_error(error: BaseException, file: str = "") -> str:
    """File and line of the caller's code that an error has left last; in this file, if one is named."""
    at, found = error.__traceback__, ""
    while at is not None:
        place = place_of_line(at.tb_frame.f_code, at.tb_lineno)
        found = found if is_ours(at.tb_frame) or (file and place.partition(":")[0] != file) else place
        at = at.tb_next
    return found


def is_ours(frame: FrameType) -> bool:
    """Whether code is that of Tidemill or of Python itself."""
    file = frame.f_code.co_filename
    return is_of_tidemill(frame) or (file.startswith(_PYTHON) and "site-packages" not in file)


def is_of_tidemill(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("tidemill.")


# Parsing.


@lru_cache(maxsize=256)
def _function(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    first = tree.body[0] if tree.body else None
    return first if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


@lru_cache(maxsize=256)
def _blocks(code: CodeType) -> dict[int, BlockSource]:
    """Every `with` statement of a function, by each line of its head."""
    found: dict[int, BlockSource] = {}
    function = _function(code)
    if function is not None:
        _collect(function.body, (), code.co_firstlineno, found)
    return found


def _collect(
    body: Sequence[ast.stmt], after: Sequence[ast.stmt], first_line: int, found: dict[int, BlockSource]
) -> None:
    for number, each in enumerate(body):
        below = (*body[number + 1 :], *after)
        if isinstance(each, (ast.With, ast.AsyncWith)):
            for line in range(each.lineno, max(each.lineno + 1, each.body[0].lineno)):
                found[first_line + line - 1] = BlockSource(each.body, below, first_line)
        if not isinstance(each, _OTHER_SCOPES):
            for field in ("body", "orelse", "finalbody"):
                _collect(getattr(each, field, ()), below, first_line, found)
            for handler in getattr(each, "handlers", ()):
                _collect(handler.body, below, first_line, found)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it, without the bodies of other functions."""
    yield node
    if not isinstance(node, _OTHER_SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _own_nodes(child)


def _accesses(node: ast.AST, hidden: frozenset[str]) -> Iterator[Access]:
    """What is read and set, in the order in which Python does it; `hidden` are names of comprehensions."""
    match node:
        case ast.Name(id=name, ctx=ctx):
            if name not in hidden:
                yield "read" if isinstance(ctx, ast.Load) else "set", name, node.lineno
            return
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            yield "read", name, node.lineno
            yield from _accesses(value, hidden)
            yield "set", name, node.lineno
            return
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            own = {each.id for part in node.generators for each in ast.walk(part.target) if isinstance(each, ast.Name)}
            hidden = hidden | own
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
            return
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        # The value comes first.
        given = node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.value
        children.sort(key=lambda child: child is not given)
    for child in children:
        yield from _accesses(child, hidden)
