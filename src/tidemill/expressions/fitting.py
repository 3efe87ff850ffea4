"""Conditions of every kind whose operands can never fit together, where something is promised of them.

CEL has its own checker in `cel_types`; here it is asked in the name of each kind, and the kinds that compare two
values by `relations` are checked by the same promises. What is not certain is not spoken of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.expressions.cel import ROOTS, Cel
from tidemill.expressions.cel_syntax import Chain
from tidemill.expressions.cel_types import Looking, Mismatch, comparable, lacks, mismatches, said, written
from tidemill.expressions.compare import Comparison, Computation, Operand
from tidemill.expressions.conditions import Composite, Condition
from tidemill.expressions.expectations import Kinds, Lacking, kind_named
from tidemill.expressions.jsonpath import JsonPath
from tidemill.expressions.relations import HOLDER_HINT, ORDER_HINT
from tidemill.expressions.scope import Json

_NUMBERS: Kinds = frozenset({"int", "double"})
_TEXT: Kinds = frozenset({"string"})
_LENGTHY: Kinds = frozenset({"string", "list", "map"})
_ORDERS = frozenset({">", "<", ">=", "<="})
_EQUALITY = frozenset({"==", "!="})


class Misfit(NamedTuple):
    """Something that can never work, and the key below the condition at which it is written."""

    key: str
    mismatch: Mismatch


class _Side(NamedTuple):
    """One of two values: the kinds that it can have, and how it is called in a message."""

    kinds: Kinds
    name: str


def misfits(condition: Condition, raw: Json, look: Looking) -> Iterator[Misfit]:
    """Find everything in a condition that can never work; `raw` is how it is written, for the places."""
    match condition:
        case Composite():
            for number, part in enumerate(condition.parts):
                for key, found in misfits(part, raw["conditions"][number], look):
                    yield Misfit(f"/conditions/{number}{key}", found)
        case Cel():
            key = "" if isinstance(raw, str) else "/expression"
            yield from (Misfit(key, found) for found in mismatches(condition.syntax, ROOTS, look))
        case Computation():
            numbers = mismatches(condition.program.syntax, ROOTS, lambda chain: _in_doubles(look(chain)))
            yield from (Misfit("/expression", each) for each in numbers)
        case Comparison():
            yield from _of_comparison(condition, look)
        case JsonPath():
            yield from _of_query(condition, look)


def _in_doubles(found: Kinds | Lacking | None) -> Kinds | Lacking | None:
    """Where every number is a double, integers are none."""
    if found is None or isinstance(found, Lacking):
        return found
    return frozenset("double" if kind == "int" else kind for kind in found)


def _of_comparison(condition: Comparison, look: Looking) -> Iterator[Misfit]:
    sides: list[_Side | None] = []
    for key, operand in (("/left", condition.left), ("/right", condition.right)):
        chain = _chain_of(operand)
        found = None if chain is None else look(chain)
        if chain is not None and isinstance(found, Lacking) and not operand.has_value:
            yield Misfit(f"{key}/path", lacks(chain, found))
        sides.append(_side(operand, chain, found))
    left, right = sides
    if left is not None and right is not None and (mismatch := _misfit(condition.operator, left, right)):
        yield Misfit("/operator", mismatch)


def _chain_of(operand: Operand) -> Chain | None:
    """Give the keys by which an operand is read; nothing for a value, and for a place in a list."""
    path = operand.path
    if path is None:
        return None
    keys = tuple(key for key in path.keys if isinstance(key, str))
    if len(keys) < len(path.keys):
        return None
    if path.node is None:
        return Chain("output", keys, False)
    return Chain("ctx", (path.node, "meta" if path.meta else "output", *keys), False)


def _side(operand: Operand, chain: Chain | None, found: Kinds | Lacking | None) -> _Side | None:
    written_kinds = frozenset({kind_named(operand.value)}) if operand.has_value else frozenset()
    if operand.path is None:
        return _Side(written_kinds, said(written_kinds))
    if chain is None or found is None:
        return None
    kinds = written_kinds if isinstance(found, Lacking) else found | written_kinds
    return _Side(kinds, f"{written(chain, len(chain.keys))} ({said(kinds)})") if kinds else None


def _of_query(condition: JsonPath, look: Looking) -> Iterator[Misfit]:
    """A query for one value is a chain of keys. What is missing is nothing, and may be asked for."""
    keys = condition.head.keys if condition.single else None
    names = tuple(key for key in keys or () if isinstance(key, str))
    if keys is None or len(names) < len(keys):
        return
    chain = Chain(condition.source, names, False)
    found = look(chain)
    if isinstance(found, Lacking):
        if condition.operator in _ORDERS | {"==", "in", "contains"}:
            yield Misfit("/query", lacks(chain, found))
        return
    if found is None:
        return
    name = f"{written(chain, len(names))} ({said(found)})"
    if condition.measured:
        if not found & _LENGTHY:
            yield Misfit("/query", Mismatch(f"{name} has no length", "a string, a list and an object have one"))
        return
    value = frozenset({kind_named(condition.value)})
    if mismatch := _misfit(condition.operator, _Side(found, name), _Side(value, said(value))):
        yield Misfit("/operator", mismatch)


def _misfit(operator: str, left: _Side, right: _Side) -> Mismatch | None:
    """Tell why two values never go together; other operators than those between two values take anything."""
    message = f"{operator} does not take {left.name} and {right.name}"
    if operator in _ORDERS and not any(left.kinds & each and right.kinds & each for each in (_NUMBERS, _TEXT)):
        return Mismatch(message, ORDER_HINT)
    if operator in _EQUALITY and not comparable(left.kinds) & comparable(right.kinds):
        # Whether something is null may be asked of anything.
        return None if "null" in left.kinds | right.kinds else Mismatch(message, "they are never the same")
    if operator in ("in", "not_in", "contains"):
        item, holder = (right, left) if operator == "contains" else (left, right)
        if not ("list" in holder.kinds or (holder.kinds & _LENGTHY and item.kinds & _TEXT)):
            return Mismatch(message, HOLDER_HINT)
    return None
