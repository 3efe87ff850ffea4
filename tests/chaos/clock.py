"""A clock of a machine that somebody sets: as the real one, but hours or days ahead of it or behind, for everybody."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMPS_MS = (HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS, 1_500, -1_500)
OFFSET = struct.Struct("<q")


class Clock:
    """The clock, as a store takes one."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(OFFSET.pack(0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), OFFSET.size)

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms

    @property
    def offset_ms(self) -> int:
        return int(OFFSET.unpack(self._memory[:])[0])

    def set(self, offset_ms: int) -> None:
        """Set it."""
        self._memory[:] = OFFSET.pack(offset_ms)
