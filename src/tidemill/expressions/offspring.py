"""Child processes that can be killed and that end with this one: how they are started, and how they hold on to it.

A child has a wire, a pair of sockets over which it is spoken to, and a lifeline, a pipe whose other end only the
parent holds. When the parent is gone, however it ended, the kernel kills the child and all that it has started.
Both ends live here; what is said over the wire is the affair of those who speak.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import IO, Any

HEADER_SIZE = 4
"""A frame is its length in so many bytes, and its body."""

_BOOT = (
    "import sys, socket; sys.path[:] = sys.argv[3:]; from {module} import main; "
    "main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))"
)


def framed(body: bytes) -> bytes:
    """Put the length before a body."""
    return len(body).to_bytes(HEADER_SIZE, "big") + body


class Offspring:
    """One process, as its parent sees it. Raises `OSError` if it cannot be started."""

    def __init__(self, module: str, *flags: str, **options: Any) -> None:
        """Start an interpreter with `flags` that calls `main(wire, lifeline)` of a module; `options` are Popen's."""
        self.wire, theirs = socket.socketpair()
        self.wire.setblocking(False)
        end, lifeline = os.pipe()
        self._lifeline: IO[bytes] = open(lifeline, "wb", buffering=0)  # noqa: SIM115
        paths = [os.path.abspath(each) for each in sys.path]
        fds = (theirs.fileno(), end)
        boot = _BOOT.format(module=module)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", boot, *map(str, fds), *paths],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
                **options,
            )
        except OSError:
            self.let_go()
            raise
        finally:
            theirs.close()
            os.close(end)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def status(self) -> int:
        """Tell how it ended; negative is the number of a signal."""
        return self._process.returncode or 0

    async def end(self) -> None:
        """Kill it and all that it has started, and wait until it is gone."""
        self.kill()
        self.let_go()
        await asyncio.get_running_loop().run_in_executor(None, self._process.wait)

    def kill(self) -> None:
        """Kill it and all that it has started."""
        # As long as nobody has waited for it, its number cannot belong to another process.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Close what connects it to this process, which ends what may be left of it."""
        self.wire.close()
        self._lifeline.close()


def received(wire: socket.socket, size: int) -> bytes | None:
    """In the child: read so many bytes; nothing if the parent is gone."""
    body = bytearray()
    while len(body) < size:
        part = wire.recv(min(size - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return bytes(body)


def hold_on_to(lifeline: int) -> None:
    """In the child: have the kernel kill the whole group when the parent is gone."""
    if sys.platform == "linux":
        import fcntl

        # Its own group, which is called like itself: were it in that of its parent, the kernel would refuse.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    # It may have been gone before the kernel was asked.
    if select.select([lifeline], [], [], 0)[0]:
        raise SystemExit


def volunteer() -> None:
    """In the child: when the machine runs out of memory, let the kernel end this process and not its parent."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def resident_mb() -> int:
    """In the child: measure it; nothing where the kernel does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            pages = int(statm.read().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
