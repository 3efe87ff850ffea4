"""A figure, what it must reach, how to show it, and notes beside figures."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `at_most` tells whether smaller is better."""

    name: str
    value: float
    unit: str
    must: float | None = None
    aim: float | None = None
    at_most: bool = True

    @property
    def reached(self) -> bool:
        """Whether it is as good as it must be."""
        return self.must is None or self._good(self.must)

    def _good(self, bound: float) -> bool:
        return self.value <= bound if self.at_most else self.value >= bound

    def line(self) -> str:
        """One row of the table."""
        sign = "≤" if self.at_most else "≥"
        must = "" if self.must is None else f"must {sign} {self.must:g}"
        aim = "" if self.aim is None else f"aim {sign} {self.aim:g}"
        verdict = "" if self.must is None else ("ok" if self.reached else "MISSED")
        if self.aim is not None and self.reached and self._good(self.aim):
            verdict = "ok, aim reached"
        return f"  {self.name:58} {self.value:>12,.2f} {self.unit:10} {must:16} {aim:14} {verdict}"


@dataclass(frozen=True, slots=True)
class Note:
    """A line between figures, which nothing depends on."""

    text: str
    reached: ClassVar[bool] = True

    def line(self) -> str:
        """One row of the table."""
        return f"  {self.text}"


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Seconds since the block began."""
    gc.collect()
    started = time.perf_counter()
    yield lambda: time.perf_counter() - started


def best_of(times: int, measure: Callable[[], float]) -> float:
    """The smallest of several measurements: the least disturbed one."""
    return min(measure() for _ in range(times))
