"""Which values a CEL expression reads, found in its syntax tree.

So macros, strings, comments and the variables of comprehensions are the parser's business and not ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.expressions.cel_tree import Call, Comprehension, Const, Ident, Select, Tree, children

_ACCESS_BY_KEY = frozenset({"_[_]", "_?._", "_[?_]"})


class Chain(NamedTuple):
    """A root and the constant keys that are read from it, one after the other."""

    root: str
    keys: tuple[str, ...]
    tested: bool
    """Only asked for by `has()`, so its value does not matter."""


def chains(tree: Tree, roots: frozenset[str], bound: frozenset[str] = frozenset()) -> Iterator[Chain]:
    """List every way in which an expression reads its roots; the longest static part of each.

    `bound` are the names that are variables of a comprehension around it.
    """
    chain = chain_of(tree, roots, bound)
    if chain is not None:
        yield chain
        return
    for part, inside in scoped_parts(tree, bound):
        yield from chains(part, roots, inside)


def scoped_parts(tree: Tree, bound: frozenset[str]) -> Iterator[tuple[Tree, frozenset[str]]]:
    """Give the parts of an expression, each with the names that are variables in it."""
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
    """Take the last key off an access: what it is read from, the key, and whether it is only tested."""
    match tree:
        case Select(operand, key, tested):
            return operand, key, tested
        case Call(function, (operand, Const(str(key)))) if function in _ACCESS_BY_KEY:
            return operand, key, False
    return None
