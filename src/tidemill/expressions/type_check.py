"""Find conditions that can never be decided, from the JSON Schemas of the values they read.

Only what a schema guarantees (`schema_analysis`) counts. Only scalar operands are checked (a literal, or a value whose
schema allows only null, booleans, numbers or strings); lists, objects and computed values never cause a finding. Kinds
have CEL's names: a number is an `int` or a `double`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidemill.expressions.cel import ast
from tidemill.expressions.cel.evaluate import ROOTS, Cel
from tidemill.expressions.cel.messages import COMPARE, CONVERT, MIXING, TO_NUMBER, shown_operator
from tidemill.expressions.comparisons import HOLDER_HINT, ORDER_HINT, Comparison, Computation, Operand
from tidemill.expressions.conditions import Composite, Condition
from tidemill.expressions.errors import choices, meant, place
from tidemill.expressions.jsonpath.condition import JsonPath
from tidemill.expressions.schema_analysis import Choices, Kinds, MissingKey, kind_named, kinds_text
from tidemill.expressions.scope import Json


def _written_kind(value: Json) -> Kinds:
    return Choices.of(frozenset({kind_named(value)}), (value,))


Promise = Kinds | MissingKey | None
Look = Callable[[ast.Chain], Promise]
"""Returns what the schemas guarantee for a chain of keys."""

_NUMBERS: Kinds = frozenset({"int", "uint", "double"})
_TEXTS: Kinds = frozenset({"string", "bytes"})
_EQUALITY = frozenset({"==", "!="})
_ORDER = frozenset({">", "<", ">=", "<="})
_METHODS = frozenset({"contains", "startsWith", "endsWith", "matches"})
_LOGIC = frozenset({"_&&_", "_||_", "!_", "_?_:_"})
_ARITHMETIC: dict[str, Kinds] = {
    **dict.fromkeys(("_-_", "_*_", "_/_", "-_"), _NUMBERS),
    "_%_": _NUMBERS - {"double"},
    "_+_": _NUMBERS | _TEXTS,
}
"""The kinds that an operator takes; all operands must be of one of them."""
_LITERALS = ("null", "bool", "int", "uint", "double", "string", "bytes")
"""The kinds of literals in the order of the numbers, from 1, that the syntax tree has for them."""


class Mismatch(NamedTuple):
    message: str
    hint: str


class TypeMismatch(NamedTuple):
    """A mismatch, and the key below the condition at which it is written."""

    key: str
    mismatch: Mismatch


class _Side(NamedTuple):
    """An operand: the kinds that it can have, and its name in a message."""

    kinds: Kinds
    name: str

    def never_equals(self, other: _Side) -> Mismatch | None:
        """Say why a text that is written down is none of those that the other value can be."""
        ours, theirs = (side.kinds.values if isinstance(side.kinds, Choices) else () for side in (self, other))
        if len(ours) == 1 and theirs and isinstance(ours[0], str) and ours[0] not in theirs:
            texts = [each for each in theirs if isinstance(each, str)]
            return Mismatch(
                f"{other.name} is never {choices(ours)}", meant(ours[0], texts) or f"it is {choices(theirs)}"
            )
        return None


def misfits(condition: Condition, raw: Json, look: Look) -> Iterator[TypeMismatch]:
    """Find everything in a condition that can never work; `raw` is how it is written, for the places."""
    match condition:
        case Composite():
            for number, part in enumerate(condition.parts):
                for key, found in misfits(part, raw["conditions"][number], look):
                    yield TypeMismatch(f"/conditions/{number}{key}", found)
        case Cel():
            key = "" if isinstance(raw, str) else "/expression"
            yield from (TypeMismatch(key, found) for found in mismatches(condition.syntax, ROOTS, look))
        case Computation():
            found_in_doubles = mismatches(condition.program.syntax, ROOTS, lambda chain: _in_doubles(look(chain)))
            yield from (TypeMismatch("/expression", each) for each in found_in_doubles)
        case Comparison():
            yield from _of_comparison(condition, look)
        case JsonPath():
            yield from _of_query(condition, look)


def _in_doubles(found: Promise) -> Promise:
    """Integers become doubles."""
    if found is None or isinstance(found, MissingKey):
        return found
    return frozenset("double" if kind == "int" else kind for kind in found)


def _of_comparison(condition: Comparison, look: Look) -> Iterator[TypeMismatch]:
    sides: list[_Side | None] = []
    for key, operand in (("/left", condition.left), ("/right", condition.right)):
        chain = _chain_of(operand)
        found = None if chain is None else look(chain)
        if chain is not None and isinstance(found, MissingKey) and not operand.has_value:
            yield TypeMismatch(f"{key}/path", _missing_key(chain, found))
        written = _written_kind(operand.value) if operand.has_value else frozenset()
        if operand.path is None or isinstance(found, MissingKey):
            sides.append(_side(chain, written))
        else:
            sides.append(_side(chain, found | written if found and written else found))
    if mismatch := _between(condition.operator, *sides):
        yield TypeMismatch("/operator", mismatch)


def _chain_of(operand: Operand) -> ast.Chain | None:
    """Return the keys by which an operand is read; None for a value, and for an item of a list."""
    path = operand.path
    if path is None:
        return None
    keys = tuple(key for key in path.keys if isinstance(key, str))
    if len(keys) < len(path.keys):
        return None
    if path.node is None:
        return ast.Chain("output", keys, False)
    return ast.Chain("ctx", (path.node, "meta" if path.meta else "output", *keys), False)


def _of_query(condition: JsonPath, look: Look) -> Iterator[TypeMismatch]:
    """Check a query for one value: a chain of keys, any of which may be missing."""
    keys = condition.head.keys if condition.single else None
    names = tuple(key for key in keys or () if isinstance(key, str))
    if keys is None or len(names) < len(keys):
        return
    chain = ast.Chain(condition.source, names, False)
    found = look(chain)
    if isinstance(found, MissingKey):
        if condition.operator in _ORDER | {"==", "in", "contains"}:
            yield TypeMismatch("/query", _missing_key(chain, found))
        return
    side = _side(chain, found)
    if condition.measured:
        if side is not None and "string" not in side.kinds:
            yield TypeMismatch(
                "/query", Mismatch(f"{side.name} has no length", "a string, a list and an object have one")
            )
    elif mismatch := _between(condition.operator, side, _side(None, _written_kind(condition.value))):
        yield TypeMismatch("/operator", mismatch)


def _between(operator: str, left: _Side | None, right: _Side | None) -> Mismatch | None:
    """Say why an operator never takes two values; None if it may."""
    if left is None or right is None:
        return None
    message = f"{operator} does not take {left.name} and {right.name}"
    if operator in _EQUALITY and (never := left.never_equals(right) or right.never_equals(left)):
        return never
    if operator in _EQUALITY | _ORDER and _never_compare(operator, left.kinds, right.kinds):
        return Mismatch(message, ORDER_HINT if operator in _ORDER else "they are never the same")
    if operator in ("in", "not_in", "contains") and not ("string" in left.kinds and "string" in right.kinds):
        return Mismatch(message, HOLDER_HINT)
    return None


def _never_compare(operator: str, left: Kinds, right: Kinds) -> bool:
    """Numbers of all kinds compare with each other, and anything with null."""
    one, other = ({"number" if kind in _NUMBERS else kind for kind in kinds} for kinds in (left, right))
    if operator in _EQUALITY:
        return "null" not in one | other and not one & other
    return not (one & other) - {"null"}


def mismatches(tree: ast.Tree, roots: frozenset[str], look: Look) -> list[Mismatch]:
    checker = _Checker(tree, roots, look)
    found = list(checker.check(tree, frozenset()))
    whole = checker.side(tree, frozenset())
    if whole is not None and "bool" not in whole.kinds:
        found.append(Mismatch(f"a condition must be true or false, and {whole.name} never is", COMPARE))
    return list(dict.fromkeys(found))


class _Checker:
    def __init__(self, tree: ast.Tree, roots: frozenset[str], look: Look) -> None:
        self.roots, self.look = roots, look
        # An expression that tests for a key, with `has()` or `in`, expects that it may be missing.
        self.tested = {(chain.root, *chain.keys) for chain in ast.chains(tree, roots) if chain.tested}
        waiting = [tree]
        while waiting:
            each = waiting.pop()
            waiting += ast.children(each)
            match each:
                case ast.Call("@in", (ast.Const(str(key)), holder)) if chain := ast.chain_of(
                    holder, roots, frozenset()
                ):
                    self.tested.add((chain.root, *chain.keys, key))

    def check(self, tree: ast.Tree, bound: frozenset[str]) -> Iterator[Mismatch]:
        chain = ast.chain_of(tree, self.roots, bound)
        if chain is not None:
            found = self._promise(tree, chain)
            if isinstance(found, MissingKey) and (chain.root, *chain.keys[: found.at + 1]) not in self.tested:
                yield _missing_key(chain, found)
            return
        for part, inside in ast.scoped_parts(tree, bound):
            yield from self.check(part, inside)
        match tree:
            case ast.Comprehension() if side := self.side(tree.range, bound):
                yield Mismatch(f"{side.name} has no items to go through", "")
            case ast.Call():
                yield from _of_call(tree.function, [self.side(each, bound) for each in ast.children(tree)])

    def side(self, tree: ast.Tree, bound: frozenset[str]) -> _Side | None:
        """Return an operand if it is surely a scalar."""
        if isinstance(tree, ast.Const):
            return _side(None, Choices.of(frozenset({_LITERALS[tree.number - 1]}), (tree.value,)))
        chain = ast.chain_of(tree, self.roots, bound)
        found = None if chain is None else self._promise(tree, chain)
        return None if isinstance(found, MissingKey) else _side(chain, found)

    def _promise(self, tree: ast.Tree, chain: ast.Chain) -> Promise:
        return None if chain.tested or _is_optional(tree) else self.look(chain)


def _of_call(function: str, sides: list[_Side | None]) -> Iterator[Mismatch]:
    operator = "? :" if function == "_?_:_" else shown_operator(function)
    known = [side for side in sides if side is not None]
    if function in _LOGIC:
        asked = sides[:1] if function == "_?_:_" else sides
        yield from (
            Mismatch(_not_taken(operator, each), COMPARE) for each in asked if each and "bool" not in each.kinds
        )
    elif function in _METHODS:
        text = sides[0]
        if text is not None and not text.kinds & _TEXTS:
            yield Mismatch(_not_taken(operator, text), "")
    elif function == "@in":
        holder = sides[-1]
        if holder is not None:
            yield Mismatch(_not_taken(operator, holder), "")
    elif len(known) < len(sides):
        return
    elif operator in _EQUALITY | _ORDER:
        never = known[0].never_equals(known[1]) or known[1].never_equals(known[0]) if operator in _EQUALITY else None
        if never:
            yield never
        elif _never_compare(operator, known[0].kinds, known[1].kinds):
            yield Mismatch(_not_taken(operator, *known), CONVERT)
    elif function in _ARITHMETIC and not _ARITHMETIC[function].intersection(*(side.kinds for side in known)):
        mixed = function != "_%_" and all(side.kinds & _NUMBERS for side in known)
        yield Mismatch(_not_taken(operator, *known), MIXING if mixed else TO_NUMBER)


def _not_taken(operator: str, *sides: _Side) -> str:
    return f"{operator} does not take {' and '.join(side.name for side in sides)}"


def _side(chain: ast.Chain | None, kinds: Kinds | None) -> _Side | None:
    """Name a value by its path and kind; None if it may not be a scalar."""
    if not kinds or not kinds.issubset(_LITERALS):
        return None
    return _Side(
        kinds, kinds_text(kinds) if chain is None else f"{_written(chain, len(chain.keys))} ({kinds_text(kinds)})"
    )


def _missing_key(chain: ast.Chain, missing: MissingKey) -> Mismatch:
    key = chain.keys[missing.at]
    return Mismatch(missing.message(_written(chain, missing.at), key), meant(key, missing.known) or missing.others)


def _is_optional(tree: ast.Tree) -> bool:
    """Whether a chain has an optional step."""
    while isinstance(tree, (ast.Select, ast.Call)):
        if isinstance(tree, ast.Call) and tree.function in ("_?._", "_[?_]"):
            return True
        tree = tree.arguments[0] if isinstance(tree, ast.Call) else tree.operand
    return False


def _written(chain: ast.Chain, depth: int) -> str:
    text = chain.root
    for key in chain.keys[:depth]:
        text = place(text, key)
    return text
