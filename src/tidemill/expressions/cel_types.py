"""Operands of CEL that can never fit together, found before anything runs.

The native checker knows no schemas, so to it every value of a run is of any type. Here the kinds that schemas
promise are carried up the syntax tree, and an operator is refused when no combination of them works. Whatever is
not certain has no kind, and nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemill.expressions.cel_faults import MIXING, TO_NUMBER, shown_operator
from tidemill.expressions.cel_syntax import Chain, chain_of, chains, scoped_parts
from tidemill.expressions.cel_tree import Call, Comprehension, Const, ListOf, Select, Struct, Tree, children
from tidemill.expressions.expectations import Kinds, Lacking
from tidemill.expressions.wording import listing, meant, place

Looking = Callable[[Chain], "Kinds | Lacking | None"]
"""What is promised of a chain of keys."""

_BOOL: Kinds = frozenset({"bool"})
_NUMBERS: Kinds = frozenset({"int", "uint", "double"})
_LIST: Kinds = frozenset({"list"})
_MAP: Kinds = frozenset({"map"})
_HOLDERS = _LIST | _MAP
_TEXTS: Kinds = frozenset({"string", "bytes"})
_EQUALITY = frozenset({"_==_", "_!=_"})
_ORDER = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_LOGIC = frozenset({"_&&_", "_||_", "!_"})
_OPTIONAL = frozenset({"_?._", "_[?_]"})
_ARITHMETIC: dict[str, Kinds] = {
    "_+_": _NUMBERS | _TEXTS | _LIST,
    "_-_": _NUMBERS,
    "_*_": _NUMBERS,
    "_/_": _NUMBERS,
    "_%_": _NUMBERS - {"double"},
    "-_": _NUMBERS,
}
_METHODS = frozenset({"contains", "startsWith", "endsWith", "matches"})
_RESULTS: dict[str, Kinds] = {
    **dict.fromkeys((*_EQUALITY, *_ORDER, *_LOGIC, *_METHODS, "@in", "bool"), _BOOL),
    **{name: frozenset({name}) for name in ("int", "uint", "double", "string")},
    "size": frozenset({"int"}),
}
_WORDS = {
    "null": "null",
    "bool": "a boolean",
    "int": "an integer",
    "uint": "an unsigned integer",
    "double": "a double",
    "string": "a string",
    "bytes": "bytes",
    "list": "a list",
    "map": "an object",
}
_LITERALS: dict[int, Kinds] = {
    number: frozenset({kind})
    for number, kind in enumerate(("null", "bool", "int", "uint", "double", "string", "bytes"), start=1)
}
"""The kinds of literals by the number that the syntax tree has for them."""
_CONVERT = "compare values of one type: int(x), double(x) and string(x) convert"
_COMPARE = "compare it with something: x > 0, x == 'yes', size(x) > 0"


class Mismatch(NamedTuple):
    """Something that can never work, and what to do about it."""

    message: str
    hint: str


def mismatches(tree: Tree, roots: frozenset[str], look: Looking) -> list[Mismatch]:
    """Find everything in a condition that can never work; `look` tells what is promised of a chain of keys."""
    checker = _Checker(roots, look, _asked_for(tree, roots))
    kinds = checker.kinds(tree, frozenset())
    if kinds is not None and not kinds & _BOOL:
        message = f"a condition must be true or false, and {checker.named(tree, kinds)} never is"
        checker.found.append(Mismatch(message, _COMPARE))
    return list(dict.fromkeys(checker.found))


def _asked_for(tree: Tree, roots: frozenset[str]) -> frozenset[tuple[str, ...]]:
    """Collect the keys that are asked for, with `has()` or `in`: whoever asks expects that they may be missing."""
    found = {(chain.root, *chain.keys) for chain in chains(tree, roots) if chain.tested}
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        waiting += children(each)
        match each:
            case Call("@in", (Const(str(key)), holder)) if (chain := chain_of(holder, roots, frozenset())) is not None:
                found.add((chain.root, *chain.keys, key))
    return frozenset(found)


class _Checker:
    def __init__(self, roots: frozenset[str], look: Looking, asked_for: frozenset[tuple[str, ...]]) -> None:
        self.roots, self.look, self.asked_for = roots, look, asked_for
        self.found: list[Mismatch] = []

    def kinds(self, tree: Tree, bound: frozenset[str]) -> Kinds | None:
        """Tell which kinds an expression can have, None if that is not certain; note what can never work in it."""
        chain = chain_of(tree, self.roots, bound)
        if chain is not None:
            return self._of_chain(tree, chain)
        match tree:
            case Const():
                return _LITERALS.get(tree.number)
            case ListOf() | Struct():
                for part in children(tree):
                    self.kinds(part, bound)
                return _LIST if isinstance(tree, ListOf) else None if tree.name else _MAP
            case Comprehension():
                self._loop(tree, bound)
            case Select():
                self.kinds(tree.operand, bound)
                return _BOOL if tree.tested else None
            case Call():
                return self._of_call(tree, bound)
        return None

    def _of_chain(self, tree: Tree, chain: Chain) -> Kinds | None:
        if chain.tested:
            return _BOOL
        if _is_optional(tree):
            return None
        seen = self.look(chain)
        if not isinstance(seen, Lacking):
            return seen
        if (chain.root, *chain.keys[: seen.at + 1]) not in self.asked_for:
            self.found.append(lacks(chain, seen))
        return None

    def _loop(self, loop: Comprehension, bound: frozenset[str]) -> None:
        for part, inside in scoped_parts(loop, bound):
            kinds = self.kinds(part, inside)
            if part is loop.range and kinds is not None and not kinds & _HOLDERS:
                self.found.append(Mismatch(f"{self.named(part, kinds)} has no items to go through", ""))

    def _of_call(self, call: Call, bound: frozenset[str]) -> Kinds | None:
        operands = list(children(call))
        kinds = [self.kinds(each, bound) for each in operands]
        function = call.function
        if function == "_?_:_" and len(kinds) == 3:
            condition, one, other = kinds
            self._need(operands[:1], [condition], _BOOL, "? :")
            return None if one is None or other is None else one | other
        if function in _LOGIC:
            self._need(operands, kinds, _BOOL, shown_operator(function))
        elif function in _METHODS and call.target is not None:
            self._need(operands[:1], kinds[:1], _TEXTS, function)
        elif function == "@in" and len(kinds) == 2:
            self._need(operands[1:], kinds[1:], _HOLDERS, "in")
        elif function in _EQUALITY | _ORDER:
            self._compare(function, operands, kinds)
        elif function in _ARITHMETIC:
            return self._compute(function, operands, kinds)
        return _RESULTS.get(function)

    def _need(self, operands: list[Tree], kinds: list[Kinds | None], wanted: Kinds, operator: str) -> None:
        for operand, kind in zip(operands, kinds, strict=True):
            if kind is not None and not kind & wanted:
                hint = _COMPARE if wanted == _BOOL else ""
                self.found.append(Mismatch(f"{operator} does not take {self.named(operand, kind)}", hint))

    def _compare(self, function: str, operands: list[Tree], kinds: list[Kinds | None]) -> None:
        left, right = kinds
        if left is None or right is None:
            return
        # Equality with null is a question that may be asked of anything.
        if function in _EQUALITY and "null" in left | right:
            return
        common = comparable(left) & comparable(right)
        if not (common - {"null", "list", "map"} if function in _ORDER else common):
            self._refuse(function, operands, [left, right], _CONVERT)

    def _compute(self, function: str, operands: list[Tree], kinds: list[Kinds | None]) -> Kinds | None:
        known = [each for each in kinds if each is not None]
        if len(known) < len(kinds):
            return None
        common = _ARITHMETIC[function].intersection(*known)
        if not common:
            mixed = all(each & _NUMBERS for each in known) and function != "_%_"
            self._refuse(function, operands, known, MIXING if mixed else TO_NUMBER)
            return None
        return common

    def _refuse(self, function: str, operands: list[Tree], kinds: list[Kinds], hint: str) -> None:
        said = " and ".join(self.named(each, kind) for each, kind in zip(operands, kinds, strict=True))
        self.found.append(Mismatch(f"{shown_operator(function)} does not take {said}", hint))

    def named(self, tree: Tree, kinds: Kinds) -> str:
        """Name an operand by where it comes from, if it is a value of the run, and by its kind."""
        chain = chain_of(tree, self.roots, frozenset())
        return said(kinds) if chain is None else f"{written(chain, len(chain.keys))} ({said(kinds)})"


def lacks(chain: Chain, lacking: Lacking) -> Mismatch:
    """Say that a key of a chain can never be there."""
    where, key = written(chain, lacking.at), chain.keys[lacking.at]
    if lacking.kinds != _MAP:
        return Mismatch(f'{where} is {said(lacking.kinds)}, so it has no key "{key}"', "")
    hint = meant(key, lacking.known) or f"known keys: {listing(lacking.known)}"
    return Mismatch(f'{where} never has a key "{key}"', hint)


def comparable(kinds: Kinds) -> Kinds:
    """Numbers of all kinds can be compared with each other."""
    return kinds - _NUMBERS | {"number"} if kinds & _NUMBERS else kinds


def _is_optional(tree: Tree) -> bool:
    """Whether a chain has a step that expects to find nothing."""
    while isinstance(tree, (Select, Call)):
        if isinstance(tree, Call):
            if tree.function in _OPTIONAL:
                return True
            tree = tree.arguments[0]
        else:
            tree = tree.operand
    return False


def written(chain: Chain, depth: int) -> str:
    """Write the first keys of a chain the way an author does."""
    text = chain.root
    for key in chain.keys[:depth]:
        text = place(text, key)
    return text


def said(kinds: Kinds) -> str:
    """Name kinds in a sentence."""
    if kinds == {"int", "double"}:
        return "a number"
    return " or ".join(_WORDS.get(kind, kind) for kind in sorted(kinds))
