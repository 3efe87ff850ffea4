"""Those who have killed their warden and run on: they are known by a mark in their environment.

A program may kill the process that guards it, and nobody is left to whom its orphans would come back. So a warden gives
its program a mark of its own, an environment variable with a random value, which all that it starts inherits, whatever
session it begins. Only one that has started another program with an environment without it is not found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
ROUND_SECONDS = 0.002
ENDING_SECONDS = 5.0
"""How long those are tried to be killed that beget others as quickly."""


def end_strays(name: str, value: str) -> None:
    """Kill all that carry a mark, and those that they start meanwhile; only on Linux they can be found."""
    entry = f"{name}={value}".encode()
    until = time.monotonic() + ENDING_SECONDS
    while sum(_killed(pid, entry) for pid in _pids()) and time.monotonic() < until:
        time.sleep(ROUND_SECONDS)


def _pids() -> Iterator[int]:
    with suppress(OSError):
        for each in os.listdir(PROCESSES):
            if each.isdecimal():
                yield int(each)


def _killed(pid: int, entry: bytes) -> bool:
    """Kill a process if it carries the mark. It is held on to before, or its number might be another's by then."""
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return False
    try:
        if entry not in (PROCESSES / str(pid) / "environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)
