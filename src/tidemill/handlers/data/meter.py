"""Limits of work on tables, charged while it is done, and the threads that do more of it than the event loop should.

Work that is small by the size of its tables begins on the event loop, with a budget. When that is spent, it is begun
again in a thread; it is pure, so that is safe. A thread sees that its caller has gone, or that its time is over,
wherever it charges its meter; nothing between two charges holds the interpreter's lock for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from sys import getsizeof
from time import thread_time
from typing import Any, TypeVar

import msgspec

from tidemill.expressions.limits import DIGITS_MAX, long_digits

Row = dict[str, Any]
Rows = list[Row]

_T = TypeVar("_T")


class TableError(Exception):
    """A step cannot be applied to a table, with the field and the row of the problem."""

    def __init__(
        self, message: str, *, field: str = "", row: int | None = None, hint: str = "", code: str = "step_failed"
    ) -> None:
        super().__init__(message)
        self.message, self.field, self.row, self.hint, self.code = message, field, row, hint, code


SECONDS_MAX = 30
"""Processor time of one step."""

MEMORY_MAX = 128 << 20
"""Bytes of the rows and texts that a step makes, without values that they share with the rows before. Two steps work at
once, and a worker has to stay below 600 MB under attack."""

_LOOK_EVERY = 20_000
"""Units of work between two looks at the clock: some milliseconds."""

_LONG_TEXT = 800
"""A shorter text holds no integer whose digits count."""

_ENCODER = msgspec.json.Encoder()


class WorkTooLong(Exception):
    """The work is more than may be done on the event loop, or its caller has gone."""


class Meter:
    """Limits of one piece of work on a table, charged while it is done. A unit of work is about 0.2 microseconds."""

    __slots__ = ("_began", "_bytes_max", "_digits", "_due", "_held", "_pending", "_work_left", "cancelled", "size")

    def __init__(self, bytes_max: int | None = None, work_max: int | None = None) -> None:
        """With `work_max`, more work raises `WorkTooLong`."""
        self._bytes_max, self._work_left = bytes_max, work_max
        self._due = _LOOK_EVERY
        self._began: float | None = None
        self._held = self._pending = self._digits = 0
        self.size = 2
        """Bytes of the rows made, as JSON."""
        self.cancelled = False
        """Set by another thread: the work ends soon."""

    def work(self, units: int) -> None:
        """Charge for work before it is done."""
        if self._work_left is not None:
            self._work_left -= units
            if self._work_left < 0:
                raise WorkTooLong
        self._due -= units
        if self._due < 0:
            self._look()

    def hold(self, size: int) -> None:
        """Charge for memory that stays in use until the end."""
        self._held += size
        if self._held > MEMORY_MAX:
            message = f"it takes more than {MEMORY_MAX >> 20} MB of memory"
            raise TableError(message, hint="select fewer fields, or filter earlier", code="rows_too_large")

    def expect(self, size: int) -> None:
        """Check the bytes of a row that is still being made."""
        self._pending += size
        self._check_bytes()

    def entry(self, name: int, value: Any) -> None:
        """Check an entry of a row that is still being made, by the size of its name."""
        self.expect(name + self._encoded_size(value) + 2)

    def row(self, row: Row, size: int | None = None) -> None:
        """Charge for a row that was made; `size` if it is known."""
        self._pending = 0
        size = self._encoded_size(row) if size is None else size
        self.size += size + 1
        self._check_bytes()
        self.hold(getsizeof(row))
        self.work(len(row) + (size >> 6))

    def entries(self, row: Row) -> None:
        """Charge for a row whose entries were checked one by one."""
        self.row(row, max(2, 1 + self._pending))

    def _encoded_size(self, value: Any) -> int:
        text = _ENCODER.encode(value)
        if len(text) > _LONG_TEXT:
            self._digits += long_digits(text)
        if self._digits > DIGITS_MAX:
            message = f"its long integers have more than {DIGITS_MAX} digits together"
            raise TableError(message, hint="convert them to strings", code="rows_too_large")
        return len(text)

    def _check_bytes(self) -> None:
        if self._bytes_max is not None and self.size + self._pending > self._bytes_max:
            raise TableError(f"it has more than {self._bytes_max} bytes", code="rows_too_large")

    def _look(self) -> None:
        self._due = _LOOK_EVERY
        if self.cancelled:
            raise WorkTooLong
        now = thread_time()
        if self._began is None:
            self._began = now
        if now - self._began > SECONDS_MAX:
            message = f"it takes more than {SECONDS_MAX} seconds of processor time"
            raise TableError(message, hint="filter earlier, or split the table", code="step_too_long")


def text_size(text: str) -> int:
    """The bytes of a string as JSON."""
    return len(_ENCODER.encode(text))


LOOP_BYTES = 1 << 18
"""Tables of more bytes are worked on in a thread."""

LOOP_WORK = 60_000
"""Units of work on the event loop: about ten milliseconds."""

_THREADS = ThreadPoolExecutor(2, "tidemill-tables")
"""Few, because each of them competes with the event loop for the interpreter's lock."""


async def metered(work: Callable[[Meter], _T], bytes_max: int | None = None, *, small: bool) -> _T:
    """Do work on a table: small work here if its budget is enough, otherwise in a thread."""
    if small:
        with suppress(WorkTooLong):
            return work(Meter(bytes_max, LOOP_WORK))
    meter = Meter(bytes_max)
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, work, meter)
    finally:
        meter.cancelled = True
