"""Functions that try to get out of the process in which tests have them called, or to take more than they may."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tidemill

MB = 1 << 20
BOMB_MB = 600
NOBODY = 65_534


def _touched(memory: bytearray | mmap.mmap, size: int) -> None:
    """Write to every page, so that it is really there."""
    for start in range(0, size, mmap.PAGESIZE):
        memory[start] = 1


def lifts_its_limit() -> str:
    """Who may, lifts the hard limit too."""
    infinite = resource.RLIM_INFINITY
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (infinite, infinite))
    except ValueError:
        resource.setrlimit(resource.RLIMIT_DATA, resource.getrlimit(resource.RLIMIT_DATA)[1:] * 2)
    hoard = [bytearray(b"z" * MB) for _ in range(BOMB_MB)]
    time.sleep(5)
    return f"kept {len(hoard)}"


def takes_a_little_more(megabytes: int) -> str:
    """Private memory, up to so much."""
    hoard = []
    while _data_mb() < megabytes:
        hoard.append(bytearray(MB))
    return f"kept {len(hoard)}"


def _data_mb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmData:"))


def lifts_it_without_rights() -> str:
    """Root may lift anything; so it becomes somebody else before."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError:
        return "refused"
    return "lifted"


def shares_memory() -> str:
    shared = mmap.mmap(-1, BOMB_MB * MB)
    _touched(shared, BOMB_MB * MB)
    time.sleep(5)
    return f"kept {len(shared)}"


def _forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def _hoards(size: int, seconds: float) -> None:
    memory = bytearray(size)
    _touched(memory, size)
    time.sleep(seconds)


def divides_it(ledger: str) -> str:
    """None of its processes has too much, all of them together do."""
    pids = [_forked(lambda: _hoards(120 * MB, 20)) for _ in range(4)]
    Path(ledger).write_text(" ".join(map(str, pids)))
    time.sleep(5)
    return "kept"


def copies_itself() -> str:
    """Its copies have the same pages as it has itself, and nothing of their own."""
    memory = bytearray(120 * MB)
    _touched(memory, len(memory))
    for pid in [_forked(lambda: time.sleep(0.5)) for _ in range(4)]:
        os.waitpid(pid, 0)
    return "copied"


def leaves_a_daemon(ledger: str, then: str) -> str:
    """A session of its own, a parent that is gone, no file in common: nothing ties it to this process any more."""

    def become() -> None:
        os.setsid()
        _forked(stay)

    def stay() -> None:
        os.closerange(0, 256)
        Path(ledger).write_text(str(os.getpid()))
        time.sleep(60)

    os.waitpid(_forked(become), 0)
    while not Path(ledger).exists() or not Path(ledger).read_text():
        time.sleep(0.01)
    if then == "dies":
        os._exit(5)
    if then == "stays":
        time.sleep(60)
    if then == "fails":
        raise tidemill.Fail("odd", "it did not work")
    return "left"


def writes_past_python(context: tidemill.NodeContext) -> str:
    """Prints, and writes in all other ways, one after the other."""
    secret = context.secrets["CRAFT"]
    print("1 printed")
    os.write(1, f"2 written {secret}\n".encode())
    print("3 printed")
    subprocess.run(["echo", f"4 a program {secret}"], check=True)
    logging.getLogger("escapes").warning("5 logged")
    libc = ctypes.CDLL(None)
    libc.puts(b"6 from C")
    libc.fflush(None)
    print("7 printed")
    os.waitpid(_forked(lambda: print("8 a copy")), 0)
    print("9 printed")
    os.write(2, f"aside {secret}, unfinished".encode())
    return "written"


def floods(megabytes: int) -> str:
    """More than fits into any pipe, while no other thread of this process can run."""
    piece = b"x" * 65_535 + b"\n"
    write = ctypes.PyDLL(None).write
    return f"flooded {sum(write(1, piece, len(piece)) for _ in range(megabytes << 4)) >> 20}"


def writes_late() -> int:
    """A thread that it leaves behind goes on writing."""

    def go_on() -> None:
        while True:
            os.write(1, b"late\n")
            time.sleep(0.002)

    threading.Thread(target=go_on, daemon=True).start()
    return os.getpid()
