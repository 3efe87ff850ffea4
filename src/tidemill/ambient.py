"""Everything nondeterministic: time, sleeping, ids, randomness.

The engine uses it only through `Ambient`, so that the simulator can replace all of it at once. The kernel never imports
this module: it receives times and ids as arguments.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from typing import Protocol


class Ambient(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump, so only displays may order by it."""

    def monotonic_ms(self) -> float:
        """A clock that never goes back, for durations and limits."""

    async def sleep(self, ms: float) -> None:
        """Let other tasks run for at least this long."""

    def new_id(self) -> str:
        """A fresh, roughly time-ordered unique id."""

    def chance(self) -> float:
        """A number in [0, 1), for jitter and sampling."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


_id_lock = threading.Lock()
_last_tick = 0


def uuid7() -> str:
    """A UUID of version 7 (RFC 9562), greater than all earlier ones of this process."""
    # The 60 bits of time count 4096ths of a millisecond; a second id within one takes the next.
    global _last_tick
    ms, rest = divmod(time.time_ns(), 1_000_000)
    with _id_lock:
        _last_tick = tick = max(ms << 12 | (rest << 12) // 1_000_000, _last_tick + 1)
    chance = int.from_bytes(os.urandom(8)) >> 2
    text = f"{(tick >> 12) << 80 | 7 << 76 | (tick & 0xFFF) << 64 | 2 << 62 | chance:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class RealAmbient:
    def now_ms(self) -> int:
        return wall_clock_ms()

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000.0)

    def new_id(self) -> str:
        return uuid7()

    def chance(self) -> float:
        return random.random()
