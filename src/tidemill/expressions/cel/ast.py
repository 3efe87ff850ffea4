"""The native CEL library, its syntax tree as plain values, and the values an expression reads.

Nothing else imports the library. It gives Python no tree, but it serializes one (protobuf, the public `cel.expr`
schema) and reads one back, so a small codec of that format is enough and parsing stays with the library. Its errors are
values: a failed evaluation returns a non-empty string, which is truthy. Callers must accept only the two booleans.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

import msgspec


class NativeType(Protocol):
    def name(self) -> str: ...


class NativeValue(Protocol):
    def value(self) -> Any: ...

    def type(self) -> NativeType: ...


class NativeExpression(Protocol):
    def eval(self, *, data: Mapping[str, Any]) -> NativeValue: ...

    def return_type(self) -> NativeType: ...

    def serialize(self) -> bytes: ...


class NativeEnv(Protocol):
    def compile(self, expression: str, disable_check: bool = False) -> NativeExpression: ...

    def deserialize(self, serialized: bytes) -> NativeExpression: ...


@lru_cache(maxsize=4)
def native_env(variables: tuple[str, ...]) -> NativeEnv:
    """Create an environment with untyped variables; `ctx` is a map with string keys."""
    from cel_expr_python import cel  # type: ignore[import-untyped]
    from cel_expr_python.ext import ext_math, ext_optional, ext_strings  # type: ignore[import-untyped]

    anything = cel.Type.DYN
    declared = dict.fromkeys(variables, anything) | {"ctx": cel.Type.Map(cel.Type.STRING, anything)}
    extensions = [ext_strings.ExtStrings(), ext_optional.ExtOptional(), ext_math.ExtMath()]
    return cast(NativeEnv, cel.NewEnv(variables=declared, extensions=extensions))


_Fields = dict[int, list["bytes | int"]]

# Field numbers of the messages in cel/expr/{syntax,checked}.proto.
_ANY_TYPE, _ANY_VALUE = 1, 2
_CHECKED_EXPR, _PARSED_EXPR = 4, 2
_ID, _CONST, _IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 2, 3, 4, 5, 6, 7, 8, 9
_BOOL, _INT, _UINT, _DOUBLE, _STRING = 2, 3, 4, 5, 6
_LOOP_NAMES, _LOOP_PARTS = (1, 3, 8), (2, 4, 5, 6, 7)
_PARSED_TYPE = b"type.googleapis.com/cel.expr.ParsedExpr"


class Const(msgspec.Struct, frozen=True):
    """A literal; strings decoded, integers as they are, all others as the library encoded them."""

    value: str | int | bytes
    number: int
    """The field number of the protobuf message that holds it."""

    @property
    def is_integer(self) -> bool:
        return self.number in (_INT, _UINT)

    @property
    def is_number(self) -> bool:
        return self.number in (_INT, _UINT, _DOUBLE)


class Ident(msgspec.Struct, frozen=True):
    name: str


class Select(msgspec.Struct, frozen=True):
    """`operand.key`, or `has(operand.key)`."""

    operand: Tree
    key: str
    tested: bool = False


class Call(msgspec.Struct, frozen=True):
    function: str
    arguments: tuple[Tree, ...]
    target: Tree | None = None


class ListOf(msgspec.Struct, frozen=True):
    """A list literal; `optional` are the places of the items that are written `?x`."""

    items: tuple[Tree, ...]
    optional: bytes = b""


class Entry(msgspec.Struct, frozen=True):
    """One entry of a map or message: its key is a tree in the one, and a name in the other."""

    key: Tree | str
    value: Tree
    optional: bool


class Struct(msgspec.Struct, frozen=True):
    name: str
    entries: tuple[Entry, ...]


class Comprehension(msgspec.Struct, frozen=True):
    """A macro, written out as a loop over a range."""

    variable: str
    accumulator: str
    second: str
    range: Tree
    start: Tree
    condition: Tree
    step: Tree
    result: Tree


Tree = Const | Ident | Select | Call | ListOf | Struct | Comprehension


def read_tree(serialized: bytes) -> Tree:
    envelope = _fields(serialized)
    checked = _bytes(envelope, _ANY_TYPE).endswith(b"CheckedExpr")
    body = _fields(_bytes(envelope, _ANY_VALUE))
    return _tree(_bytes(body, _CHECKED_EXPR if checked else _PARSED_EXPR))


def write_tree(tree: Tree) -> bytes:
    ids = iter(range(1, 1 << 30))
    return _field(_ANY_TYPE, _PARSED_TYPE) + _field(_ANY_VALUE, _field(_PARSED_EXPR, _written(tree, ids)))


def children(tree: Tree) -> Iterator[Tree]:
    """Return the direct parts of a tree; those of a comprehension see more names, see `scoped_parts`."""
    match tree:
        case Select():
            yield tree.operand
        case Call():
            if tree.target is not None:
                yield tree.target
            yield from tree.arguments
        case ListOf():
            yield from tree.items
        case Struct():
            for entry in tree.entries:
                if not isinstance(entry.key, str):
                    yield entry.key
                yield entry.value
        case Comprehension():
            yield from (tree.range, tree.start, tree.condition, tree.step, tree.result)


def _tree(message: bytes) -> Tree:
    fields = _fields(message)
    if _CONST in fields:
        number, values = next(iter(_fields(_bytes(fields, _CONST)).items()))
        value = values[-1]
        if number == _STRING:
            return Const(_as_bytes(value).decode(), number)
        return Const(value, number)
    if _IDENT in fields:
        return Ident(_text(_fields(_bytes(fields, _IDENT)), 1))
    if _SELECT in fields:
        select = _fields(_bytes(fields, _SELECT))
        return Select(_tree(_bytes(select, 1)), _text(select, 2), bool(select.get(3)))
    if _CALL in fields:
        call = _fields(_bytes(fields, _CALL))
        target = _tree(_bytes(call, 1)) if 1 in call else None
        return Call(_text(call, 2), _trees(call, 3), target)
    if _LIST in fields:
        items = _fields(_bytes(fields, _LIST))
        return ListOf(_trees(items, 1), _bytes(items, 2))
    if _STRUCT in fields:
        made = _fields(_bytes(fields, _STRUCT))
        return Struct(_text(made, 1), tuple(_entry(_fields(_as_bytes(each))) for each in made.get(2, ())))
    loop = _fields(_bytes(fields, _COMPREHENSION))
    variable, accumulator, second = (_text(loop, number) for number in _LOOP_NAMES)
    parts = (_tree(_bytes(loop, number)) for number in _LOOP_PARTS)
    return Comprehension(variable, accumulator, second, *parts)


def _entry(fields: _Fields) -> Entry:
    key = _text(fields, 2) if 2 in fields else _tree(_bytes(fields, 3))
    return Entry(key, _tree(_bytes(fields, 4)), bool(fields.get(5)))


def _trees(fields: _Fields, number: int) -> tuple[Tree, ...]:
    return tuple(_tree(_as_bytes(each)) for each in fields.get(number, ()))


def _written(tree: Tree, ids: Iterator[int]) -> bytes:
    match tree:
        case Const(value, number):
            content = _CONST, _constant(value, number)
        case Ident(name):
            content = _IDENT, _field(1, name.encode())
        case Select(operand, key, tested):
            test = _field(3, 1) if tested else b""
            content = _SELECT, _field(1, _written(operand, ids)) + _field(2, key.encode()) + test
        case Call(function, arguments, target):
            receiver = b"" if target is None else _field(1, _written(target, ids))
            content = _CALL, receiver + _field(2, function.encode()) + _repeated(3, arguments, ids)
        case ListOf(items, optional):
            content = _LIST, _repeated(1, items, ids) + (_field(2, optional) if optional else b"")
        case Struct(name, entries):
            written = b"".join(_field(2, _written_entry(entry, ids)) for entry in entries)
            content = _STRUCT, (_field(1, name.encode()) if name else b"") + written
        case Comprehension():
            names = zip(_LOOP_NAMES, (tree.variable, tree.accumulator, tree.second), strict=True)
            parts = zip(_LOOP_PARTS, children(tree), strict=True)
            named = b"".join(_field(number, name.encode()) for number, name in names if name)
            content = _COMPREHENSION, named + b"".join(_field(number, _written(part, ids)) for number, part in parts)
    return _field(_ID, next(ids)) + _field(*content)


def _constant(value: str | int | bytes, number: int) -> bytes:
    if number == _DOUBLE:
        return bytes([_DOUBLE << 3 | 1]) + (value if isinstance(value, bytes) else b"")
    return _field(number, value.encode() if isinstance(value, str) else value)


TRUE = Const(1, _BOOL)


def double(value: int) -> Const:
    return Const(struct.pack("<d", float(value)), _DOUBLE)


def text(value: str) -> Const:
    return Const(value, _STRING)


def integer(const: Const) -> int:
    """Decode an integer literal; negative ones are encoded as two's complement."""
    value = const.value if isinstance(const.value, int) else 0
    return value - (1 << 64) if const.number == _INT and value >= 1 << 63 else value


def _written_entry(entry: Entry, ids: Iterator[int]) -> bytes:
    key = _field(2, entry.key.encode()) if isinstance(entry.key, str) else _field(3, _written(entry.key, ids))
    return (
        _field(1, next(ids)) + key + _field(4, _written(entry.value, ids)) + (_field(5, 1) if entry.optional else b"")
    )


def _repeated(number: int, trees: Iterable[Tree], ids: Iterator[int]) -> bytes:
    return b"".join(_field(number, _written(each, ids)) for each in trees)


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint_written(number << 3) + _varint_written(value)
    return _varint_written(number << 3 | 2) + _varint_written(len(value)) + value


def _varint_written(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _text(fields: _Fields, number: int) -> str:
    return _bytes(fields, number).decode()


def _bytes(fields: _Fields, number: int) -> bytes:
    found = fields.get(number)
    return _as_bytes(found[-1]) if found else b""


def _as_bytes(value: bytes | int) -> bytes:
    return value if isinstance(value, bytes) else b""


def _fields(message: bytes) -> _Fields:
    """Read one protobuf message, without knowing its schema."""
    fields: _Fields = {}
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        value: bytes | int
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        else:
            size = 8 if kind == 1 else 4
            value, at = message[at : at + size], at + size
        fields.setdefault(number, []).append(value)
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = message[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


_ACCESS_BY_KEY = frozenset({"_[_]", "_?._", "_[?_]"})


class Chain(NamedTuple):
    root: str
    keys: tuple[str, ...]
    tested: bool
    """Only tested by `has()`; its value is not read."""


def chains(tree: Tree, roots: frozenset[str], bound: frozenset[str] = frozenset()) -> Iterator[Chain]:
    """List every way in which an expression reads its roots; `bound` are variables of comprehensions around it."""
    chain = chain_of(tree, roots, bound)
    if chain is not None:
        yield chain
        return
    for part, inside in scoped_parts(tree, bound):
        yield from chains(part, roots, inside)


def scoped_parts(tree: Tree, bound: frozenset[str]) -> Iterator[tuple[Tree, frozenset[str]]]:
    """Return the parts of an expression, each with the names that are variables in it."""
    if not isinstance(tree, Comprehension):
        yield from ((part, bound) for part in children(tree))
        return
    inside = bound | {tree.variable, tree.second, tree.accumulator}
    yield from ((part, bound) for part in (tree.range, tree.start))
    yield from ((part, inside) for part in (tree.condition, tree.step))
    yield tree.result, bound | {tree.accumulator}


def chain_of(tree: Tree, roots: frozenset[str], bound: frozenset[str]) -> Chain | None:
    """Read an expression as a chain of constant keys below a root, if it is one."""
    keys: list[str] = []
    tested = False
    while not isinstance(tree, Ident):
        step = _step(tree)
        if step is None:
            return None
        tree, key, is_test = step
        tested = tested or (is_test and not keys)
        keys.append(key)
    if tree.name in bound or tree.name.removeprefix(".") not in roots:
        return None
    return Chain(tree.name.removeprefix("."), tuple(reversed(keys)), tested)


def _step(tree: Tree) -> tuple[Tree, str, bool] | None:
    """Split off the last key: the operand, the key, and whether it is only tested."""
    match tree:
        case Select(operand, key, tested):
            return operand, key, tested
        case Call(function, (operand, Const(str(key)))) if function in _ACCESS_BY_KEY:
            return operand, key, False
    return None
