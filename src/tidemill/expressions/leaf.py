"""What the kinds of conditions have in common, and how one is decided that must not be decided here.

Native code that holds the interpreter's lock cannot be stopped, and some expressions take time or memory out of
all proportion. So a kind says of itself whether it is `light`, its values are counted before it is asked, and
whatever is too much becomes an `Errand`: somebody with processes to spare carries it out and kills them in time.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tidemill.expressions.bounds import WRITABLE_BITS_MAX
from tidemill.expressions.references import References
from tidemill.expressions.scope import Json, Scope

ITEMS_MAX = 1000
"""Items of lists and objects that a condition may reach and still be decided in this process."""

TEXT_REACH_MAX = 1 << 16
"""Characters of strings, likewise: searching and matching them takes time in proportion to more than their size."""

DEADLINE_MS = 5000
"""What an errand may take, unless its kind says otherwise."""


class Leaf(Protocol):
    """A condition that is not made of others. All of them are frozen, and shared between threads."""

    @property
    def references(self) -> References:
        """What it refers to, known without evaluating it."""
        ...

    @property
    def light(self) -> bool:
        """Over few values it ends soon, whatever they are."""
        ...

    @property
    def deadline_ms(self) -> int:
        """How long it may take as an errand."""
        ...

    def normal(self) -> Json:
        """Write it in the one form in which it is stored."""
        ...

    def bind(self, scope: Scope) -> Json:
        """Give what it reads of a scope, and nothing else."""
        ...

    def holds(self, data: Json, scope: Scope) -> bool:
        """Decide over what `bind` gave; raise `ExpressionError` if it is neither true nor false."""
        ...

    def told(self) -> str:
        """Name it in a sentence that ends with `is true` or `is false`."""
        ...


@dataclass(frozen=True, slots=True)
class Errand:
    """A condition to be decided elsewhere, before its deadline."""

    leaf: Leaf
    scope: Scope
    deadline_ms: int

    @property
    def what(self) -> str:
        """What is spoken of when it has no answer."""
        return "the condition"


_T = TypeVar("_T")
Steps = Generator[Errand, bool, _T]
"""A computation that stops at every errand and goes on with its answer."""


def decide_leaf(leaf: Leaf, scope: Scope) -> Steps[bool]:
    """Decide one condition: here if that is sure to end soon, otherwise as an errand."""
    if leaf.light:
        data = leaf.bind(scope)
        if is_small(data):
            return leaf.holds(data, scope)
    return (yield Errand(leaf, scope, leaf.deadline_ms))


def is_small(data: Json, items: int = ITEMS_MAX, text: int = TEXT_REACH_MAX) -> bool:
    """Tell whether a value holds few enough items and little enough text; looks no further than that."""
    waiting = [data]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind is str:
            text -= len(each)
            if text < 0:
                return False
        elif kind is dict:
            items -= len(each)
            if items < 0:
                return False
            text -= sum(map(len, each))
            if text < 0:
                return False
            waiting.extend(each.values())
        elif kind is list:
            items -= len(each)
            if items < 0:
                return False
            waiting.extend(each)
        elif kind is int and each.bit_length() > WRITABLE_BITS_MAX:
            # Native code dies of it, and it cannot travel either: whoever packs it says so.
            return False
    return True
