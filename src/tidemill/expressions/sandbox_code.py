"""Reading the Python of a condition without running it: what is wrong with it, and which nodes it looks at.

The code runs in an interpreter that knows a part of Python. What it does not know is refused when a workflow is
published, because later it would fail a run. Only names that stand in the code as constants count as references;
anything cleverer may reach any node.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.errors import Problem
from tidemill.expressions.references import References
from tidemill.expressions.wording import listing, shorten

CODE_MAX = 1 << 16
"""Characters of code in one condition."""

MODULES = frozenset(
    {
        "asyncio",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "copy",
        "csv",
        "dataclasses",
        "datetime",
        "decimal",
        "functools",
        "hashlib",
        "itertools",
        "json",
        "math",
        "os",
        "os.path",
        "pathlib",
        "posixpath",
        "random",
        "re",
        "sys",
        "time",
        "tomllib",
        "typing",
        "unicodedata",
        "__future__",
    }
)
"""What the interpreter can import. Files, clocks, chance and the environment are not there even so."""

_EXAMPLE = "def evaluate(output, context): return output['score'] > 80"
OUTPUT, CONTEXT, ANSWER = "_output", "_context", "_answer"
"""What the two arguments and the answer are called around the code, where it can see them."""

_INDIRECT = frozenset({"eval", "exec", "locals", OUTPUT, CONTEXT})
"""Names that read the arguments without naming a parameter."""


class Reading(NamedTuple):
    """What the code refers to, and what is wrong with it."""

    references: References
    problems: list[Problem]


def read(code: str, path: str) -> Reading:
    """Read code; what it refers to means something only if there are no problems."""
    if len(code) > CODE_MAX:
        return _unreadable(f"code is limited to {CODE_MAX} characters", path)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        return _unreadable(f"{where}{shorten(error.msg)}", path)
    except (MemoryError, RecursionError):
        return _unreadable("the code is nested too deeply", path)
    except ValueError:
        return _unreadable("the code is not valid Unicode text", path)
    problems = [_syntax(f"line {line}: {message}", path) for line, message in _unsupported(tree)]
    function = _evaluate(tree)
    if function is None:
        problems.append(_syntax("the code defines no function called evaluate", path, _EXAMPLE))
        return Reading(References(), problems)
    if not _takes_two(function.args):
        message = f"line {function.lineno}: evaluate is called with two arguments, output and context"
        problems.append(_syntax(message, path, _EXAMPLE))
    return Reading(_references(function, tree), problems)


def _unreadable(message: str, path: str) -> Reading:
    return Reading(References(), [_syntax(message, path)])


def _syntax(message: str, path: str, hint: str = "") -> Problem:
    return Problem(code="condition_syntax", message=message, path=path, hint=hint)


def _unsupported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find what the interpreter would refuse to run."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, _no_module(each.name)) for each in names if each.name not in MODULES)
            case ast.ImportFrom(module=module, level=level) if level or module not in MODULES:
                yield node.lineno, _no_module("." * level + (module or ""))
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                yield node.lineno, "import * is not supported: name what is imported"
            case ast.Delete():
                yield node.lineno, "del is not supported"
            case ast.Yield() | ast.YieldFrom():
                yield node.lineno, "yield is not supported: build a list"
            case ast.AsyncFor() | ast.AsyncWith() | ast.TryStar():
                yield node.lineno, "async for, async with and except* are not supported"
            case ast.ClassDef(bases=[_, *_]) | ast.ClassDef(keywords=[_, *_]):
                yield node.lineno, "a class cannot have a base class or a metaclass"


def _no_module(name: str) -> str:
    return f"there is no module {shorten(name, 60)} to import ({listing(sorted(MODULES - {'__future__'}))})"


def _evaluate(tree: ast.Module) -> ast.FunctionDef | None:
    """Find the function as it is when all of the module has run: the last definition counts."""
    found = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "evaluate"]
    return found[-1] if found else None


def _takes_two(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    needs_more = any(default is None for default in arguments.kw_defaults)
    return required <= 2 and (positional >= 2 or arguments.vararg is not None) and not needs_more


def _references(function: ast.FunctionDef, tree: ast.Module) -> References:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][:2]
    loaded = (each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    indirect = not _INDIRECT.isdisjoint(loaded)
    if indirect or len(names) < 2 or not _is_what_is_called(function, tree):
        return References(roots=frozenset({"output", "ctx"}), dynamic=True)
    inside = [node for statement in function.body for node in ast.walk(statement)]
    output, context = names
    read_output = any(isinstance(each, ast.Name) and each.id == output for each in inside)
    nodes, dynamic = _nodes(inside, context)
    roots = {"output"} if read_output else set()
    roots |= {"ctx"} if nodes or dynamic else set()
    return References(nodes=frozenset(nodes), roots=frozenset(roots), dynamic=dynamic)


def _is_what_is_called(function: ast.FunctionDef, tree: ast.Module) -> bool:
    """Tell whether the arguments reach this body: no decorator takes them first, and the name has no other meaning."""
    # Definitions of that name before this one are gone by then; what is inside of them is looked at all the same.
    gone = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == function.name]
    others = (node for node in ast.walk(tree) if node not in gone)
    return not function.decorator_list and not any(_binds(node, "evaluate") for node in others)


def _nodes(inside: list[ast.AST], context: str) -> tuple[set[str], bool]:
    """Give the nodes that are looked up by a constant name, and whether there is any other use of the context."""
    constant = {id(name): key for node in inside for name, key in _looked_up(node)}
    uses = [node for node in inside if isinstance(node, ast.Name) and node.id == context]
    nodes = {constant[id(use)] for use in uses if id(use) in constant}
    dynamic = any(id(use) not in constant for use in uses) or any(_binds(node, context) for node in inside)
    return nodes, dynamic


def _looked_up(node: ast.AST) -> Iterator[tuple[ast.Name, str]]:
    """Give the variable and the key of `x["key"]`, `x.get("key")` and `"key" in x`."""
    match node:
        case ast.Subscript(value=ast.Name() as name, slice=ast.Constant(value=str(key)), ctx=ast.Load()):
            yield name, key
        case ast.Call(
            func=ast.Attribute(value=ast.Name() as name, attr="get"), args=[ast.Constant(value=str(key)), *_]
        ):
            yield name, key
        case ast.Compare(
            left=ast.Constant(value=str(key)), ops=[ast.In() | ast.NotIn()], comparators=[ast.Name() as name]
        ):
            yield name, key


def _binds(node: ast.AST, name: str) -> bool:
    """Tell whether a node gives the name another meaning: a variable, a parameter, an import, a `global`, a pattern."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute | ast.keyword | ast.Constant):
        return False
    fields = (value for _, value in ast.iter_fields(node))
    return any(value == name or (isinstance(value, list) and name in value) for value in fields)
