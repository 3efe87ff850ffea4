"""CEL in which every number is a double, and the shorthand of comparisons between nodes.

`(current.total - ctx.forecast.total) / ctx.forecast.total > 0.1` is what people write when they compare nodes, and
CEL as it is refuses it as soon as one number is an integer. So the syntax tree is rewritten before it is compiled:
integers in it become doubles, except where CEL wants an integer (an index, a position in a string), and functions
that answer with an integer are converted. `current.x` is `current.output.x`, and `ctx.n.x` is `ctx.n.output.x`.

Doubles are those of IEEE 754: integers beyond 2^53 lose their last digits, a division by zero is infinite, and zero
by zero is not a number, which is neither less nor greater than anything, and not equal to anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from tidemill.expressions.cel import ast
from tidemill.expressions.errors import condition_failed
from tidemill.expressions.scope import Json

_PARTS = ("output", "meta")
_INDEXES = frozenset({"_[_]", "_[?_]"})
_OPTIONAL = frozenset({"_?._", "_[?_]"})
_ACCESS = _INDEXES | _OPTIONAL
BITS = frozenset({"bitAnd", "bitOr", "bitXor", "bitNot", "bitShiftLeft", "bitShiftRight"})
_DAYS = frozenset({"getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"})
MOMENTS = _DAYS | {"getHours", "getMinutes", "getSeconds", "getMilliseconds"}
"""Functions that take a moment apart."""
_POSITIONS = {"substring": 0, "charAt": 0, "indexOf": 1, "lastIndexOf": 1, "split": 1, "replace": 2}
_WHOLE = _POSITIONS | dict.fromkeys(BITS, 0)
"""Functions that want integers, and from which argument on."""
_COUNTS = BITS | MOMENTS | {"size", "indexOf", "lastIndexOf", "int", "uint"}
"""Functions that answer with an integer."""

_Rewrite = Callable[[ast.Tree], ast.Tree]


class Unsuited(Exception):
    """An expression that means nothing when every number is a double."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def in_doubles(tree: ast.Tree) -> ast.Tree:
    """Rewrite an expression; raise `Unsuited` if that cannot be done."""
    return _rewritten(tree, frozenset())


def doubled(value: Json) -> Json:
    """Convert every integer of a value to a double; the caller limits nesting."""
    kind = type(value)
    if kind is int:
        try:
            return float(value)
        except OverflowError:
            raise condition_failed("an integer is too large for a double", "doubles end at about 1.8e308") from None
    if kind is dict:
        return {key: doubled(each) for key, each in value.items()}
    return [doubled(each) for each in value] if kind is list else value


def _rewritten(tree: ast.Tree, bound: frozenset[str]) -> ast.Tree:
    inner = partial(_rewritten, bound=bound)
    match tree:
        case ast.Const():
            return ast.double(ast.integer(tree)) if tree.is_integer else tree
        case ast.Ident():
            return tree
        case ast.Select(operand, key, tested):
            return _access(tree, operand, key, bound) or ast.Select(_below(operand, key, bound), key, tested)
        case ast.Call():
            return _call(tree, bound)
        case ast.ListOf(items, optional):
            return ast.ListOf(tuple(map(inner, items)), optional)
        case ast.Struct(name, entries):
            return ast.Struct(name, tuple(_entry(each, inner) for each in entries))
        case ast.Comprehension():
            inside = bound | {tree.variable, tree.second, tree.accumulator}
            return msgspec.structs.replace(
                tree,
                range=_rewritten(tree.range, bound),
                start=_rewritten(tree.start, bound),
                condition=_rewritten(tree.condition, inside),
                step=_rewritten(tree.step, inside),
                result=_rewritten(tree.result, bound | {tree.accumulator}),
            )


def _entry(entry: ast.Entry, inner: _Rewrite) -> ast.Entry:
    """Rewrite an entry; a constant key stays, because a double cannot be a key."""
    key = entry.key if isinstance(entry.key, str | ast.Const) else inner(entry.key)
    return ast.Entry(key, inner(entry.value), entry.optional)


def _call(call: ast.Call, bound: frozenset[str]) -> ast.Tree:
    if call.function in _ACCESS and len(call.arguments) == 2:
        operand, key = call.arguments
        name = key.value if isinstance(key, ast.Const) and isinstance(key.value, str) else None
        plain = key if isinstance(key, ast.Const) else _rewritten(key, bound)
        made = ast.Call(call.function, (_below(operand, name, bound), plain))
        return (_access(call, operand, name, bound) or made) if name is not None else made
    if call.function == "_%_":
        hint = "a cel condition has integers: output.n % 2 == 0"
        raise Unsuited("% takes integers only, and here every number is a double", hint)
    first = _WHOLE.get(call.function, len(call.arguments))
    arguments = tuple(
        _rewritten(each, bound)
        if number < first
        else (each if isinstance(each, ast.Const) else ast.Call("int", (_rewritten(each, bound),)))
        for number, each in enumerate(call.arguments)
    )
    target = None if call.target is None else _rewritten(call.target, bound)
    made = ast.Call(call.function, arguments, target)
    return ast.Call("double", (made,)) if call.function in _COUNTS else made


def _access(tree: ast.Select | ast.Call, operand: ast.Tree, key: str, bound: frozenset[str]) -> ast.Tree | None:
    """Rewrite `current.output` to `current`, its name in plain CEL."""
    if not _is_root(operand, "current", bound) or key not in _PARTS:
        return None
    if key == "meta":
        raise Unsuited('current has no "meta"', "a key of the output that is called so is current.output.meta")
    if isinstance(tree, ast.Select):
        return ast.TRUE if tree.tested else operand
    return ast.Call("of", (operand,), ast.Ident("optional")) if tree.function in _OPTIONAL else operand


def _below(operand: ast.Tree, key: str | None, bound: frozenset[str]) -> ast.Tree:
    """Rewrite the operand of a key; a key of a node other than `output` and `meta` means its output."""
    made = _rewritten(operand, bound)
    if key in _PARTS or not _is_node(operand, bound):
        return made
    if isinstance(operand, ast.Call) and operand.function in _OPTIONAL:
        return ast.Call("_?._", (made, ast.text("output")))
    return ast.Select(made, "output")


def _is_node(tree: ast.Tree, bound: frozenset[str]) -> bool:
    match tree:
        case ast.Select(operand, _, False):
            return _is_root(operand, "ctx", bound)
        case ast.Call(function, (operand, _)) if function in _ACCESS:
            return _is_root(operand, "ctx", bound)
    return False


def _is_root(tree: ast.Tree, name: str, bound: frozenset[str]) -> bool:
    return isinstance(tree, ast.Ident) and tree.name not in bound and tree.name.removeprefix(".") == name
