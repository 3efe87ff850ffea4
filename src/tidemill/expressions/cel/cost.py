"""Decide whether a CEL expression is cheap enough for this process, whatever its values; sizes of patterns.

The native library cannot be interrupted, searching a text and building a list in a loop are quadratic, and strings can
be doubled. A cheap expression is short, has no loop inside a loop, no large value in the body of a loop, and at most
one costly construct; a function that is not listed here is never cheap. Patterns are compiled early, because CEL would
report a mistake only in the run; matching takes the length of the text times the states of the automaton.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, prod

from tidemill.expressions.cel import ast
from tidemill.expressions.cel.doubles import BITS, MOMENTS
from tidemill.expressions.errors import shorten

PATTERNS_MAX = 1024
"""Characters of all patterns of one expression together."""

_COUNTED = re.compile(r"(.)\{(\d+)?(?:,(\d+)?)?\}", re.DOTALL)
_UNWEIGHED = re.compile(r"\\[pP]|\(\?[^:]")


def states(pattern: str) -> float:
    """Estimate the states of a pattern from its text; infinite with classes of Unicode or flags."""
    if _UNWEIGHED.search(pattern):
        return inf
    counts = [(before, max(int(low or 0), int(high or 0), 1)) for before, low, high in _COUNTED.findall(pattern)]
    # The count of a group multiplies whatever is in it.
    groups = prod(count for before, count in counts if before == ")")
    return groups * (len(pattern) + sum(count for before, count in counts if before != ")"))


def pattern_problem(tree: ast.Tree, env: ast.NativeEnv) -> str | None:
    """Say what is wrong with a pattern that an expression spells out; nothing if all of them compile."""
    found = list(dict.fromkeys(_patterns(tree)))
    if sum(map(len, found)) > PATTERNS_MAX:
        return f"the patterns of matches() are limited to {PATTERNS_MAX} characters together"
    if not found:
        return None
    # Only the environment that evaluates a pattern knows whether it is valid.
    trial = env.compile("''.matches(output)")
    for pattern in found:
        result = trial.eval(data={"output": pattern}).value()
        if isinstance(result, str):
            return shorten(result.partition(": ")[2] or result, 200)
    return None


def _patterns(tree: ast.Tree) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        waiting += ast.children(each)
        if isinstance(each, ast.Call) and each.function == "matches" and each.arguments:
            pattern = each.arguments[-1]
            if isinstance(pattern, ast.Const) and isinstance(pattern.value, str):
                yield pattern.value


BUDGET = 400
"""About 20 ms over the largest values decided here: a thousand items and 32 KiB of text."""

NODE, NODE_IN_LOOP, GROWTH, COSTLY = 1, 8, 40, 200
SHORT_MAX = 64
"""Characters of a literal that may be handled in every pass of a loop."""

STATES_MAX = 48
"""States of a pattern; CEL compiles it again for every text."""

_FREE = frozenset({"_&&_", "_||_", "!_", "@not_strictly_false", "_-_", "_*_", "_/_", "_%_", "-_"})
_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_ACCESS = frozenset({"_[_]", "_?._", "_[?_]"})
_SEARCHES = frozenset({"contains", "indexOf", "lastIndexOf"})
_REMAKING = frozenset({"split", "join", "replace"})
_KEEPING = frozenset(
    {"lowerAscii", "upperAscii", "trim", "charAt", "substring", "reverse", "string", "bytes", "dyn", "of"}
    | {"ofNonZeroValue", "value", "or", "orValue"}
)
"""One pass over their operands, with a result that may be as large as they are."""
_SMALL = frozenset(
    {"@max", "@min", "abs", "sign", "sqrt", "ceil", "floor", "round", "trunc", "isNaN", "isInf", "isFinite", "size"}
    | {"bool", "int", "uint", "double", "timestamp", "duration", "type", "startsWith", "endsWith", "none", "hasValue"}
    | BITS
    | MOMENTS
)
"""One pass over their operands, with a small result."""


def is_cheap(tree: ast.Tree, roots: frozenset[str]) -> bool:
    """Whether an expression is within the budget, whatever its values are."""
    cost = _Cost(roots)
    cost.add(tree, frozenset())
    return cost.points <= BUDGET


class _Cost:
    """Adds up points. `add` returns whether the value of a tree is wide: it may hold much of what was read.

    The variable of a loop is not wide: over all passes together its values are no more than what was read.
    """

    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots
        self.points: float = 0

    def add(self, tree: ast.Tree, bound: frozenset[str]) -> bool:
        """Add the cost of a tree; `bound` are the variables of the loop that it is in, if it is in one."""
        self.points += NODE_IN_LOOP if bound else NODE
        match tree:
            case ast.Const(value):
                return not isinstance(value, int) and len(value) > SHORT_MAX
            case ast.Ident(name):
                return name not in bound and name.removeprefix(".") in self.roots
            case ast.Select(operand, _, tested):
                return self.add(operand, bound) and not tested
            case ast.ListOf() | ast.Struct():
                wide = sum(self.add(each, bound) for each in ast.children(tree))
                self.points += wide * GROWTH
                return wide > 0
            case ast.Comprehension():
                return self._loop(tree, bound)
            case ast.Call():
                return self._call(tree, bound)

    def _loop(self, loop: ast.Comprehension, bound: frozenset[str]) -> bool:
        """Loops are cheap over a value of the scope or a list of constants, and not inside of each other."""
        constants = (
            isinstance(loop.range, ast.ListOf) and bool(loop.range.items) and all(map(_is_short, loop.range.items))
        )
        empty = isinstance(loop.start, ast.Const | ast.ListOf) and not any(ast.children(loop.start))
        # Over no items at all it is a macro that binds a value.
        self._need(not bound and empty and (constants or ast.chain_of(loop.range, self.roots, bound) is not None))
        builds = isinstance(loop.start, ast.ListOf)
        self.points += COSTLY if builds else 0
        self.add(loop.range, bound)
        for part in (loop.condition, loop.step, loop.result):
            self.add(part, frozenset({loop.variable, loop.second, loop.accumulator}))
        return builds

    def _call(self, call: ast.Call, bound: frozenset[str]) -> bool:
        operands = list(ast.children(call))
        wide = [self.add(each, bound) for each in operands]
        # Functions of a namespace are methods of its name until they are checked, and have both names afterwards.
        function = call.function if call.function.startswith("_") else call.function.rpartition(".")[2]
        if function in _FREE:
            return False
        if function == "_?_:_":
            return any(wide[1:])
        if function == "_+_":
            if any(isinstance(each, ast.Const) and each.is_number for each in operands):
                return False
            self._need(not (bound and any(wide)))
            self.points += 0 if bound else GROWTH
            return any(wide)
        if function in _COMPARISONS:
            self._need(not (bound and all(wide)))
            return False
        if function == "@in":
            self.points += COSTLY if bound and wide[-1] else 0
            return False
        if function in _ACCESS:
            self._need(not (bound and any(wide[1:])))
            return any(wide[:1])
        self._need(not (bound and any(wide)))
        return self._function(function, operands, in_loop=bool(bound)) and any(wide)

    def _function(self, function: str, operands: list[ast.Tree], *, in_loop: bool) -> bool:
        """Add the cost of a function; return whether its result may be as large as its operands."""
        arguments = operands[1:]
        if function == "matches":
            pattern = operands[-1].value if isinstance(operands[-1], ast.Const) else None
            self._need(isinstance(pattern, str) and states(pattern) <= STATES_MAX)
            self.points += COSTLY
        elif function in _SEARCHES:
            self._need(all(map(_is_short, arguments)))
        elif function in _REMAKING:
            texts = [each.value for each in arguments if isinstance(each, ast.Const) and isinstance(each.value, str)]
            grows = function == "replace" and not (len(texts) == 2 and 1 <= len(texts[0]) >= len(texts[1]))
            self._need(not in_loop and all(map(_is_short, arguments)) and not grows)
            self.points += COSTLY
            return True
        else:
            self._need(function in _KEEPING or function in _SMALL)
        return function in _KEEPING

    def _need(self, cheap: bool) -> None:
        self.points += 0 if cheap else inf


def _is_short(tree: ast.Tree) -> bool:
    return isinstance(tree, ast.Const) and (isinstance(tree.value, int) or len(tree.value) <= SHORT_MAX)
