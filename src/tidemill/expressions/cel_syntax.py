"""Which values a CEL expression reads, found in its syntax tree.

The native library gives no tree to Python, but it serializes one (protobuf, the public `cel.expr` schema), so
a small reader of that wire format is all it takes, and macros, strings, comments and the variables of
comprehensions are the parser's business and not ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Fields = dict[int, list["bytes | int"]]

# Field numbers of the messages in cel/expr/{syntax,checked}.proto.
_ANY_TYPE, _ANY_VALUE = 1, 2
_CHECKED_EXPR, _PARSED_EXPR = 4, 2
_CONST, _IDENT, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 3, 4, 5, 6, 7, 8, 9
_CONST_STRING = 6
_ACCESS_BY_KEY = frozenset({b"_[_]", b"_?._", b"_[?_]"})


class Chain(NamedTuple):
    """A root and the constant keys that are read from it, one after the other."""

    root: str
    keys: tuple[str, ...]
    tested: bool
    """Only asked for by `has()`, so its value does not matter."""


def chains(serialized: bytes, roots: frozenset[str]) -> list[Chain]:
    """List every way in which an expression reads its roots; the longest static part of each."""
    envelope = _fields(serialized)
    checked = _bytes(envelope, _ANY_TYPE).endswith(b"CheckedExpr")
    body = _fields(_bytes(envelope, _ANY_VALUE))
    reader = _Reader(roots)
    reader.visit(_bytes(body, _CHECKED_EXPR if checked else _PARSED_EXPR), frozenset())
    return reader.found


class _Reader:
    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots
        self.found: list[Chain] = []

    def visit(self, expr: bytes, bound: frozenset[str]) -> None:
        """Collect the chains of an expression in which some names are variables of a comprehension."""
        fields = _fields(expr)
        chain = self._chain(fields, bound)
        if chain is not None:
            self.found.append(chain)
        elif _COMPREHENSION in fields:
            self._comprehension(_fields(_bytes(fields, _COMPREHENSION)), bound)
        else:
            for part in _parts(fields):
                self.visit(part, bound)

    def _chain(self, fields: Fields, bound: frozenset[str]) -> Chain | None:
        keys: list[str] = []
        tested = False
        while _IDENT not in fields:
            step = _step(fields)
            if step is None:
                return None
            operand, key, is_test = step
            tested = tested or (is_test and not keys)
            keys.append(key)
            fields = _fields(operand)
        name = _bytes(_fields(_bytes(fields, _IDENT)), 1).decode()
        if name in bound or name.removeprefix(".") not in self.roots:
            return None
        return Chain(name.removeprefix("."), tuple(reversed(keys)), tested)

    def _comprehension(self, fields: Fields, bound: frozenset[str]) -> None:
        variable, range_, accumulator, start, condition, loop_step, result, second = range(1, 9)
        for number in (range_, start):
            self.visit(_bytes(fields, number), bound)
        inside = bound | {_bytes(fields, number).decode() for number in (variable, accumulator, second)}
        for number in (condition, loop_step):
            self.visit(_bytes(fields, number), inside)
        self.visit(_bytes(fields, result), bound | {_bytes(fields, accumulator).decode()})


def _step(fields: Fields) -> tuple[bytes, str, bool] | None:
    """Take the last key off an access: what it is read from, the key, and whether it is only tested."""
    if _SELECT in fields:
        select = _fields(_bytes(fields, _SELECT))
        return _bytes(select, 1), _bytes(select, 2).decode(), bool(select.get(3))
    if _CALL in fields:
        call = _fields(_bytes(fields, _CALL))
        arguments = call.get(3, [])
        if _bytes(call, 2) in _ACCESS_BY_KEY and len(arguments) == 2:
            operand, key = arguments
            constant = _fields(_as_bytes(key)).get(_CONST)
            if constant and (text := _fields(_as_bytes(constant[0])).get(_CONST_STRING)):
                return _as_bytes(operand), _as_bytes(text[0]).decode(), False
    return None


def _parts(fields: Fields) -> Iterator[bytes]:
    """Give the expressions that an expression is made of."""
    if _SELECT in fields:
        yield _bytes(_fields(_bytes(fields, _SELECT)), 1)
    elif _CALL in fields:
        call = _fields(_bytes(fields, _CALL))
        yield from (_as_bytes(each) for number in (1, 3) for each in call.get(number, ()))
    elif _LIST in fields:
        yield from (_as_bytes(each) for each in _fields(_bytes(fields, _LIST)).get(1, ()))
    elif _STRUCT in fields:
        for entry in _fields(_bytes(fields, _STRUCT)).get(2, ()):
            parts = _fields(_as_bytes(entry))
            yield from (_as_bytes(each) for number in (3, 4) for each in parts.get(number, ()))


def _bytes(fields: Fields, number: int) -> bytes:
    found = fields.get(number)
    return _as_bytes(found[-1]) if found else b""


def _as_bytes(value: bytes | int) -> bytes:
    return value if isinstance(value, bytes) else b""


def _fields(message: bytes) -> Fields:
    """Read one protobuf message, without knowing its schema."""
    fields: Fields = {}
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
