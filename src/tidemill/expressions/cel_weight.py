"""Whether a CEL expression is light: sure to end within some milliseconds over few values, whoever wrote it.

The native library cannot be interrupted and has no budget of time: searching a text is quadratic, building a list
in a loop is quadratic, strings can be doubled. So every construct has a price, measured at its worst over the most
that a light condition may read (a thousand items, 64 KiB of text), half a millisecond a point; an expression that
may cost more than the budget is decided in a process that can be killed. What has no price here is never light.
"""

from __future__ import annotations

from math import inf

from tidemill.expressions.cel_doubles import BITS, MOMENTS
from tidemill.expressions.cel_patterns import states
from tidemill.expressions.cel_syntax import chain_of
from tidemill.expressions.cel_tree import Call, Comprehension, Const, Ident, ListOf, Select, Struct, Tree, children

BUDGET = 100
ITEMS_WRITTEN_MAX = 500
SHORT_MAX = 64
"""Characters of a literal that may be handled in every pass of a loop."""

LISTED_MAX = 100
"""Constants in a list that a loop may go through."""

SEPARATOR_MAX = 4
"""Characters that may stand between the parts of a text that is joined."""

_NODE, _NODE_IN_LOOP = 0.02, 0.4
_CALL, _CALL_IN_LOOP = 0.6, 1.0
_JOINED, _COLLECTED, _SEARCHED_LIST, _LOOP, _LISTING_LOOP = 10, 5, 40, 2, 60
_PATTERN_STATE, _PATTERN_IN_LOOP, _REMADE = 2, 40, 30

_LOGIC = frozenset({"_&&_", "_||_", "!_", "@not_strictly_false"})
_ARITHMETIC = frozenset({"_-_", "_*_", "_/_", "_%_", "-_"})
_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_ACCESS = frozenset({"_[_]", "_?._", "_[?_]"})
_SEARCHES = frozenset({"contains", "indexOf", "lastIndexOf"})
_CASES = frozenset({"lowerAscii", "upperAscii", "trim", "charAt", "substring", "reverse"})
_WRAPPERS = frozenset({"string", "bytes", "dyn", "of", "ofNonZeroValue", "value", "or", "orValue"})
_KEEPING = _CASES | _WRAPPERS
"""One pass over their operands, with a result that may be as large as they are."""
_NUMBERS = frozenset({"@max", "@min", "abs", "sign", "sqrt", "ceil", "floor", "round", "trunc"}) | BITS
_CONVERSIONS = frozenset({"bool", "int", "uint", "double", "timestamp", "duration", "type"}) | MOMENTS
_ANSWERS = frozenset({"size", "startsWith", "endsWith", "none", "hasValue", "isNaN", "isInf", "isFinite"})
_SMALL = _NUMBERS | _CONVERSIONS | _ANSWERS
"""One pass over their operands, with a small result."""


_REMAKING = frozenset({"split", "join", "replace"})
"""One pass over their operands that makes as many values as they have characters: one of them is enough."""


def is_light(tree: Tree, roots: frozenset[str]) -> bool:
    """Tell whether an expression is within the budget, whatever its values are."""
    scale = _Scale(roots)
    scale.weigh(tree, frozenset())
    return scale.points <= BUDGET


class _Scale:
    """Adds up prices. To weigh a tree tells whether its value is wide: it may hold much of what was read."""

    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots
        self.points: float = 0

    def weigh(self, tree: Tree, bound: frozenset[str]) -> bool:
        """Add the price of a tree; `bound` are the variables of the loop that it is in, if it is in one."""
        self.points += _NODE_IN_LOOP if bound else _NODE
        match tree:
            case Const(value):
                return not isinstance(value, int) and len(value) > SHORT_MAX
            case Ident(name):
                return name not in bound and name.removeprefix(".") in self.roots
            case Select(operand, _, tested):
                return self.weigh(operand, bound) and not tested
            case ListOf() | Struct():
                return self._collection(tree, bound)
            case Comprehension():
                return self._loop(tree, bound)
            case Call():
                return self._call(tree, bound)

    def _collection(self, tree: ListOf | Struct, bound: frozenset[str]) -> bool:
        wide = sum(self.weigh(each, bound) for each in children(tree))
        items = tree.items if isinstance(tree, ListOf) else tree.entries
        self.points += inf if len(items) > ITEMS_WRITTEN_MAX else wide * _COLLECTED
        return wide > 0 or len(items) > SHORT_MAX

    def _loop(self, loop: Comprehension, bound: frozenset[str]) -> bool:
        """Loops are light over a value of the scope or a short list of constants; and not inside of each other."""
        if bound or not (_is_short_list(loop) or chain_of(loop.range, self.roots, bound) is not None):
            self.points = inf
            return True
        makes_a_list = isinstance(loop.start, ListOf)
        self.points += _LISTING_LOOP if makes_a_list else _LOOP
        inside = frozenset({loop.variable, loop.second, loop.accumulator})
        for part in (loop.condition, loop.step, loop.result):
            self.weigh(part, inside)
        return makes_a_list

    def _call(self, call: Call, bound: frozenset[str]) -> bool:
        operands = list(children(call))
        wide = [self.weigh(each, bound) for each in operands]
        # Functions of a namespace are methods of its name until they are checked, and have both names afterwards.
        function = call.function if call.function.startswith("_") else call.function.rpartition(".")[2]
        if function in _LOGIC or function in _ARITHMETIC:
            return False
        if function == "_?_:_":
            return any(wide[1:])
        if function == "_+_":
            return self._sum(operands, any(wide), bound)
        if function in _COMPARISONS:
            self._pay(bound, all(wide))
            return False
        if function == "@in":
            self._pay(bound, False)
            self.points += _SEARCHED_LIST if bound and wide[-1] else 0
            return False
        if function in _ACCESS:
            self._pay(bound, any(wide[1:]))
            return any(wide[:1])
        return self._function(function, operands, wide, bound)

    def _function(self, function: str, operands: list[Tree], wide: list[bool], bound: frozenset[str]) -> bool:
        self._pay(bound, any(wide))
        if function in _SEARCHES:
            self._need(not any(wide[1:]) and isinstance(operands[1], Const))
            return False
        if function == "matches":
            self._matches(operands[-1], bound)
            return False
        if function in _REMAKING:
            self.points += _REMADE
            self._need(not bound and not _is_remade(operands[0]) and _keeps_its_size(function, operands[1:]))
            return any(wide)
        self._need(function in _KEEPING or function in _SMALL)
        return function in _KEEPING and any(wide)

    def _sum(self, operands: list[Tree], wide: bool, bound: frozenset[str]) -> bool:
        """A sum of numbers is a number; of strings and lists it is larger than each of them."""
        if any(isinstance(each, Const) and each.is_number for each in operands):
            return False
        self._pay(bound, wide)
        self.points += 0 if bound else _JOINED
        return wide

    def _matches(self, pattern: Tree, bound: frozenset[str]) -> None:
        """Match one text, or all texts of a loop, with a pattern that is known; it is compiled for each of them."""
        size = states(pattern.value) if isinstance(pattern, Const) and isinstance(pattern.value, str) else inf
        self.points += size * _PATTERN_STATE + (_PATTERN_IN_LOOP if bound else 0)

    def _pay(self, bound: frozenset[str], wide: bool) -> None:
        """Add the price of one pass over the operands; of wide ones there cannot be one in every pass of a loop.

        The variable of a loop is not wide: over all passes together its values are no more than what was read.
        """
        self.points += (inf if wide else _CALL_IN_LOOP) if bound else _CALL

    def _need(self, light: bool) -> None:
        self.points += 0 if light else inf


def _is_short_list(loop: Comprehension) -> bool:
    """Tell whether a loop goes through a few constants; over no items at all it is a macro that binds a value."""
    if not isinstance(loop.range, ListOf) or not isinstance(loop.start, Const | ListOf):
        return False
    items = loop.range.items
    return 1 <= len(items) <= LISTED_MAX and all(_is_short(each) for each in items) and not any(children(loop.start))


def _is_short(tree: Tree) -> bool:
    return isinstance(tree, Const) and (isinstance(tree.value, int) or len(tree.value) <= SHORT_MAX)


def _is_remade(tree: Tree) -> bool:
    """Tell whether there is a function in a tree whose result may have any number of parts."""
    if isinstance(tree, Call) and tree.function.rpartition(".")[2] in _REMAKING:
        return True
    return any(map(_is_remade, children(tree)))


def _keeps_its_size(function: str, arguments: list[Tree]) -> bool:
    """Tell whether a function makes little or nothing longer: by short constants, and no part is replaced by more."""
    if not all(map(_is_short, arguments)):
        return False
    texts = [each.value for each in arguments if isinstance(each, Const) and isinstance(each.value, str)]
    if function == "replace":
        return len(texts) == 2 and 1 <= len(texts[0]) >= len(texts[1])
    return function == "split" or all(len(each) <= SEPARATOR_MAX for each in texts)
