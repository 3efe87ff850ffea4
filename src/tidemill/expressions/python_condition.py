"""The condition `python_sandbox`: a function `evaluate(output, context)` in a subset of Python.

The code is only parsed here, never run; `sandbox.child` runs it. What the interpreter does not support is refused when
a workflow is published, because later it would fail a run. Only node ids that are constants in the code count as
references; any other use of the context may reach any node.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.conditions import Raw, no_other_keys, shape
from tidemill.expressions.errors import NO_OUTPUT, condition_failed, kind_of, listing, shorten
from tidemill.expressions.scope import Json, References, Scope, Seen

CODE_MAX = 1 << 16
"""Characters of code in one condition."""

MODULES = frozenset(
    {
        *("asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime"),
        *("decimal", "functools", "hashlib", "itertools", "json", "math", "os", "os.path", "pathlib"),
        *("posixpath", "random", "re", "sys", "time", "tomllib", "typing", "unicodedata", "__future__"),
    }
)
"""What the code can import; files, clock, randomness and environment are disabled even so."""

_CODE_EXAMPLE = "def evaluate(output, context): return output['score'] > 80"
OUTPUT, CONTEXT, ANSWER = "_output", "_context", "_answer"
"""Variables around the code for the two arguments and the answer; the code can see them."""

_INDIRECT = frozenset({"eval", "exec", "locals", OUTPUT, CONTEXT})
"""Names that read the arguments without naming a parameter."""


class Reading(NamedTuple):
    """`references` is meaningful only without problems."""

    references: References
    problems: list[Problem]


def read(code: str, path: str) -> Reading:
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
    defined = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "evaluate"]
    if not defined:
        problems.append(_syntax("the code defines no function called evaluate", path, _CODE_EXAMPLE))
        return Reading(References(), problems)
    # The last definition counts once all of the module has run.
    function = defined[-1]
    if not _takes_two(function.args):
        message = f"line {function.lineno}: evaluate is called with two arguments, output and context"
        problems.append(_syntax(message, path, _CODE_EXAMPLE))
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
    # Node ids that are constants; any other use of the context may reach any node.
    constant = {id(name): key for node in inside for name, key in _looked_up(node)}
    uses = [node for node in inside if isinstance(node, ast.Name) and node.id == context]
    nodes = {constant[id(use)] for use in uses if id(use) in constant}
    dynamic = any(id(use) not in constant for use in uses) or any(_binds(node, context) for node in inside)
    roots = {"output"} if read_output else set()
    roots |= {"ctx"} if nodes or dynamic else set()
    return References(nodes=frozenset(nodes), roots=frozenset(roots), dynamic=dynamic)


def _is_what_is_called(function: ast.FunctionDef, tree: ast.Module) -> bool:
    """True if the arguments reach this body: it has no decorator, and the name is not rebound."""
    # Earlier definitions of the name are overwritten; their bodies are checked nevertheless.
    overwritten = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == function.name]
    others = (node for node in ast.walk(tree) if node not in overwritten)
    return not function.decorator_list and not any(_binds(node, "evaluate") for node in others)


def _looked_up(node: ast.AST) -> Iterator[tuple[ast.Name, str]]:
    """Return the variable and the key of `x["key"]`, `x.get("key")` and `"key" in x`."""
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
    """True if a node rebinds the name: a variable, a parameter, an import, a `global`, a pattern."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Attribute | ast.keyword | ast.Constant):
        return False
    fields = (value for _, value in ast.iter_fields(node))
    return any(value == name or (isinstance(value, list) and name in value) for value in fields)


TIMEOUT_MS = 1000
TIMEOUT_MS_MAX = 60_000
MEMORY_MB = 50
MEMORY_MB_MAX = 1024

START_MS = 2000
"""Time beyond the limit of the code, for the start of the interpreter and the transfer of values."""

_KEYS = ("type", "code", "code_ref", "timeout_ms", "max_memory_mb")
_EXAMPLE = '{"type": "python_sandbox", "code": "def evaluate(output, context): return output[\'n\'] > 3"}'


class Sandbox(msgspec.Struct, frozen=True):
    """Code that decides, and its limits."""

    code: str
    timeout_ms: int
    max_memory_mb: int
    references: References

    @property
    def light(self) -> bool:
        """No code of an author runs in this process."""
        return False

    @property
    def deadline_ms(self) -> int:
        """The interpreter stops the code earlier, unless it hangs itself."""
        return self.timeout_ms + START_MS

    def normal(self) -> Json:
        limits = {"timeout_ms": self.timeout_ms, "max_memory_mb": self.max_memory_mb}
        return {"type": "python_sandbox", "code": self.code, **limits}

    def bind(self, scope: Scope) -> dict[str, Json]:
        """Return the two arguments: the output, and output and meta of each node that is read and has them."""
        if "output" in self.references.roots and not scope.has_output:
            raise condition_failed("output is not available here", NO_OUTPUT)
        wanted = scope.nodes if self.references.dynamic else sorted(self.references.nodes)
        entries = ((node, scope.nodes.get(node)) for node in wanted)
        context = {
            node: ({"output": seen.output, "meta": dict(seen.meta)} if seen.meta else {"output": seen.output})
            for node, seen in entries
            if isinstance(seen, Seen)
        }
        return {"output": scope.output, "context": context}

    def holds(self, data: Json, scope: Scope) -> bool:
        """Never called in this process: `light` is false."""
        raise AssertionError("only the interpreter evaluates an author's code")

    def told(self) -> str:
        return "evaluate(output, context)"


def parse_sandbox(raw: Raw, path: str, problems: list[Problem]) -> Sandbox | None:
    found = len(problems)
    no_other_keys(raw, _KEYS, path, problems)
    if find_spec("pydantic_monty") is None:
        message = "python_sandbox needs an interpreter that is not installed"
        hint = 'pip install "tidemill[sandbox]"'
        problems.append(Problem(code="sandbox_missing", message=message, path=path, hint=hint))
    timeout_ms = _whole(raw, "timeout_ms", TIMEOUT_MS, TIMEOUT_MS_MAX, path, problems)
    max_memory_mb = _whole(raw, "max_memory_mb", MEMORY_MB, MEMORY_MB_MAX, path, problems)
    code = _code(raw, path, problems)
    if code is None:
        return None
    references, faults = read(code, f"{path}/code")
    problems += faults
    return Sandbox(code, timeout_ms, max_memory_mb, references) if len(problems) == found else None


def _code(raw: Raw, path: str, problems: list[Problem]) -> str | None:
    if "code" in raw and "code_ref" in raw:
        problems.append(shape("code and code_ref are mutually exclusive", f"{path}/code_ref", "leave one of them out"))
    elif "code_ref" in raw:
        hint = "publish the workflow where the code is stored, or write it as code"
        problems.append(shape("the code that code_ref names is missing", f"{path}/code_ref", hint))
        return None
    code = raw.get("code")
    if isinstance(code, str):
        return code
    if "code" in raw:
        problems.append(shape(f"code is a string, not {kind_of(code)}", f"{path}/code", _EXAMPLE))
    else:
        problems.append(shape("a python_sandbox condition needs code", path, _EXAMPLE))
    return None


def _whole(raw: Raw, key: str, default: int, most: int, path: str, problems: list[Problem]) -> int:
    value = raw.get(key, default)
    if type(value) is int and 1 <= value <= most:
        return value
    problems.append(shape(f"{key} is a whole number from 1 to {most}", f"{path}/{key}", f"left out, it is {default}"))
    return default
