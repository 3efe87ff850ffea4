"""The source of a workflow function: what Python does while the graph is built, and no result is asked for.

A block (`with tidemill.when(…):`) decides which tasks run. Everything else in it happens once, whatever the condition
says later. And Python asks a result nothing to compare it with None, or with a pattern of a mapping or a list. Only the
source shows that; code without a source is not checked.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Literal, NamedTuple

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


class Decision(NamedTuple):
    """A comparison that has the same answer whatever the result is."""

    line: int
    message: str
    hint: str


def decided_early(code: CodeType, parameters: Collection[str]) -> list[Decision]:
    """What a workflow function compares without asking its parameters or results."""
    function = _function(code)
    nodes = [] if function is None else [node for each in function.body for node in _own_nodes(each)]
    known = set(parameters) - {node.id for node in nodes if isinstance(node, ast.Name) and _is_set(node)}
    found: list[Decision] = []
    for node in nodes:
        match node:
            case ast.Match(cases=cases) if any(map(_takes_apart, cases)):
                message = "Python compares with a pattern of a mapping or a list, which no result fits"
                found.append(Decision(node.lineno, message, "match it inside a task"))
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]
            ) if name in known:
                message = f"Python asks whether {name} is None, and it never is while the graph is built"
                hint = f"write `with tidemill.when({name} == None):`, or decide inside a task"
                found.append(Decision(node.lineno, message, hint))
    return [each._replace(line=code.co_firstlineno + each.line - 1) for each in found]


def _is_set(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _takes_apart(case: ast.match_case) -> bool:
    return any(isinstance(each, (ast.MatchMapping, ast.MatchSequence)) for each in ast.walk(case.pattern))


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
