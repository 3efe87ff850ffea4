"""Sequences that pay while they are read, and the prices of going through a value.

The clock of a rendering is looked at only when something is paid. So whoever goes through many items, be it a loop, a
filter or a function of Jinja's that keeps us out, gets them from here: between any two of them the meter runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tidemill.expressions.bounds import TEXT_MAX
from tidemill.expressions.failure import template_failed
from tidemill.expressions.meter import VIEWS

SIZED = (str, list, tuple, dict, range, *VIEWS)


class Payer(Protocol):
    """The part of a rendering that pays."""

    def spend(self, steps: int) -> None: ...

    def tick(self) -> None: ...


class Passes:
    """What a loop goes through. The passes were paid for together; in each of them the clock is looked at."""

    __slots__ = ("_items", "_payer")

    def __init__(self, items: Sequence[Any], payer: Payer) -> None:
        self._items = items
        self._payer = payer

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._payer.tick()
            yield item


def paced(payer: Payer, items: Iterable[Any], steps: int = 1) -> Iterator[Any]:
    """Hand items on, each for some steps."""
    for item in items:
        payer.spend(steps)
        yield item


def drawn(payer: Payer, lazy: Iterable[Any]) -> list[Any]:
    """Read a lazy sequence, one step per item, so that it ends."""
    return list(paced(payer, lazy))


def cost(value: object) -> int:
    """Count what it costs to go through a value once; lazy sequences were paid for by their source."""
    if isinstance(value, str):
        return 1 + (len(value) >> 6)
    return 1 + len(value) if isinstance(value, SIZED) else 1


def cost_of_copy(value: object) -> int:
    """Count what it costs to make a string or list out of others, item by item but natively."""
    return 1 + (len(value) >> 6) if isinstance(value, SIZED) else 1


def short(value: str) -> str:
    """Refuse a text of the scope that is too long to be worked on natively, where no clock is looked at."""
    if len(value) > TEXT_MAX:
        message = f"a text of {len(value)} characters is too long to be worked on, at most {TEXT_MAX} are possible"
        raise template_failed(message, "pass it on as it is, or search it with a regex filter")
    return value
