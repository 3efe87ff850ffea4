"""The child processes of a process, as the kernel tells them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path


def children_of(parent: int) -> list[int]:
    """Name the processes that a process has started and that are not gone yet, zombies included."""
    return sorted(
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent(entry) == parent
    )


def deciders() -> list[int]:
    """Name the processes that decide conditions for this one; each is the child of a supervisor."""
    below = (pid for supervisor in children_of(os.getpid()) for pid in children_of(supervisor))
    return sorted(pid for pid in below if "expressions.sandbox.child" in _command(pid))


def state(pid: int) -> str:
    """Tell what a process does: R runs, S sleeps, Z is dead; empty if there is none."""
    return _field(Path(f"/proc/{pid}"), 0)


def worked_ms(pid: int) -> int:
    """Tell how much time of a processor a process has taken, with all of its threads."""
    return int(_field(Path(f"/proc/{pid}"), 11) or 0) * 1000 // os.sysconf("SC_CLK_TCK")


def runs(pid: int) -> bool:
    """Tell whether a process is there and not dead."""
    return state(pid) not in ("", "Z", "X")


async def until(met: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something is the case."""
    limit = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < limit, "it did not come true in time"
        await asyncio.sleep(0.01)


def _parent(entry: Path) -> int:
    return int(_field(entry, 1) or -1)


def _field(entry: Path, number: int) -> str:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[number]
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
