"""What a rendering may spend: steps, which are the same on every machine, and processor time, which is not.

A step stands for some microseconds of work, so the steps alone would let a clever template block a worker for
several seconds. Time is therefore counted too: the processor time of this thread and not the clock on the wall,
because a process that was stopped or a machine that is busy is not the template's fault.
"""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter, thread_time
from typing import Any

from tidemill.expressions.bounds import RENDER_MS_MAX, STEPS_MAX, TEXT_MAX
from tidemill.expressions.failure import template_failed

_EMPTY: dict[str, Any] = {}
VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
"""What a dictionary gives when it is asked for its keys, values or items."""

_SECONDS_MAX = RENDER_MS_MAX / 1000
_SMALL = 1 << 64
_LISTS = (list, tuple, range, *VIEWS)
_NESTING = (dict, *_LISTS)


def room(size: int) -> None:
    """Refuse a string or list that would become larger than the bound."""
    if size > TEXT_MAX:
        raise template_failed(f"a value would grow beyond {TEXT_MAX} characters or items")


class Meter:
    """The budget of one rendering, shared by all strings of the value that is rendered."""

    __slots__ = ("_began", "_look_at", "_steps_left")

    def __init__(self) -> None:
        self._steps_left = STEPS_MAX
        self._began: float | None = None
        self._look_at = 0.0

    def spend(self, steps: int) -> None:
        """Pay for work; a rendering that spends too much ends."""
        self._steps_left -= max(0, steps)
        if self._steps_left < 0:
            raise template_failed(f"the template takes more than {STEPS_MAX} steps", "loop over fewer items")
        self.tick()

    def tick(self) -> None:
        """Look at the clock, where work goes on that was paid for before or is too small to be paid for."""
        if perf_counter() >= self._look_at:
            self._look()

    def weigh(self, value: object, times: int = 1) -> None:
        """Pay for every value inside, before they are compared one by one.

        A list that holds itself twice, sixty times over, is small in memory and endless to compare. Comparing is
        native, so a step pays for four items, or for 256 characters; who also does other things pays several times.
        """
        waiting: list[Any] = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                self.spend(times * (len(each) >> 8))
            elif isinstance(each, dict):
                self._weigh_items(each.values(), sum(map(len, each)), times, waiting)
            elif isinstance(each, _LISTS):
                self._weigh_items(each, 0, times, waiting)

    def _weigh_items(self, items: Collection[Any], size: int, times: int, waiting: list[Any]) -> None:
        """Pay for the items of one list, before they are looked at; what is nested in them has to wait."""
        self.spend(times * (1 + (len(items) >> 2)))
        for each in items:
            kind = type(each)
            if kind is str:
                size += len(each)
            elif kind is int:
                if not -_SMALL < each < _SMALL:
                    size += each.bit_length() >> 3
            elif isinstance(each, _NESTING):
                waiting.append(each)
        self.spend(times * (size >> 8))

    def _look(self) -> None:
        """Ask for the processor time, which costs twenty times what the time of day costs.

        That is done once at the beginning, and again when so much time has passed that it could be used up.
        """
        now = thread_time()
        if self._began is None:
            self._began = now
        used = now - self._began
        if used > _SECONDS_MAX:
            raise template_failed(f"the template takes more than {RENDER_MS_MAX} ms", "loop over fewer items")
        self._look_at = perf_counter() + _SECONDS_MAX - used
