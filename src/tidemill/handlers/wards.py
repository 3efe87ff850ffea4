"""Programs that a worker runs, each behind a warden: what they print is heard, and all that they start ends with them.

`warden.py` is the process in between. The worker and it have a socket: the worker says what to run and which signals
to send, the warden says at last how it ended. When the worker's side is closed, however that comes, the warden kills
all. When the warden is killed, the worker does.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from tidemill.handlers import warden
from tidemill.handlers.strays import end_strays

WARDEN = os.path.abspath(warden.__file__)
STREAMS = {1: "stdout", 2: "stderr"}
PIECE_BYTES = 65_536
"""So much is read at a time, and a line that is longer is heard in pieces."""
TURNS = 3
"""Turns of the loop that output lies at least: what was sent before it is read in the first and heard in the second."""
PIECES_MAX = 4
"""So many are heard before others have their turn."""
ENDING_MS = 8_000
"""How long a warden may take to kill everybody; it needs a few milliseconds."""

Hear = Callable[[str, bytes], object]
"""Takes what came out of a stream, by its name."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. Raises `ValueError` when written, if there is a character in it that no program can be given."""

    program: str
    """The file, with its path."""
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    """Without it, that of the worker."""
    fds: tuple[int, ...] = ()
    """Files that the program is to have under the same numbers."""
    data_bytes_max: int | None = None
    """How much private memory each of its processes can have."""
    memory_bytes_max: int | None = None
    """How much memory all of them together may have before they are killed."""

    def written(self) -> bytes:
        """As the warden reads it."""
        env = None if self.env is None else {_plain(name): _plain(value) for name, value in self.env.items()}
        argv = [_plain(each) for each in self.argv]
        bounds = self.data_bytes_max, self.memory_bytes_max
        body = marshal.dumps((_plain(self.program), argv, env, list(self.fds), *bounds))
        return len(body).to_bytes(warden.HEADER_SIZE, "big") + body


class Report(msgspec.Struct, frozen=True):
    """How it ended."""

    status: int
    """Negative is the number of a signal."""
    taken_bytes: int = 0
    """How much memory it had, if it was killed for that."""
    error: int = 0
    """The number of the error, if it could not be started."""


class Lines:
    """Makes lines of what comes in pieces."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._open = bytearray()

    def add(self, data: bytes) -> None:
        """Say what is whole now."""
        self._open += data
        whole = self._open.rfind(b"\n") + 1
        self._said(len(self._open) if len(self._open) - whole > PIECE_BYTES else whole)

    def rest(self) -> None:
        """Say what is left, once nothing more comes."""
        self._said(len(self._open))

    def _said(self, size: int) -> None:
        if size:
            self._say(self._open[:size].decode("utf-8", "replace"))
            del self._open[:size]


class Ward:
    """A program and its warden, as the worker sees them. Raises `OSError` if the warden cannot be started."""

    _ordered = False

    def __init__(self, order: Order, hear: Hear, *, fed: bool = False, cwd: str | None = None, wait_ms: int = 0):
        """`fed`: it reads from `stdin`. `wait_ms`: how long output may lie, so that what was sent before is heard."""
        self._order, self._hear, self._wait_ms = order.written(), hear, wait_ms
        self._loop = asyncio.get_running_loop()
        self._gone, self.silent = asyncio.Event(), asyncio.Event()
        self._last_words = bytearray()
        self._pipes: dict[int, str] = {}
        self._mark = secrets.token_hex(16)
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        outputs = [self._pipe(name) for name in STREAMS.values()]
        try:
            self._warden = subprocess.Popen(
                [sys.executable, "-I", "-S", WARDEN, str(theirs.fileno())],
                stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                cwd=cwd,
                env={**os.environ, warden.MARK: self._mark},
                pass_fds=(theirs.fileno(), *order.fds),
                start_new_session=True,
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            theirs.close()
            for fd in outputs:
                os.close(fd)
        self._loop.add_reader(self._control, self._told)
        for fd in self._pipes:
            self._loop.add_reader(fd, self._audible, fd)

    async def start(self, stdin: bytes = b"") -> None:
        """Have the program started."""
        with suppress(OSError):
            await self._loop.sock_sendall(self._control, self._order)
        self._ordered = True
        if self._warden.stdin is not None:
            pipe, _ = await self._loop.connect_write_pipe(asyncio.BaseProtocol, self._warden.stdin)
            # Whatever is left of it is let go of when nobody can read it any more.
            pipe.write(stdin)
            pipe.write_eof()

    def alive(self) -> bool:
        """Whether it has not ended yet, as far as is known."""
        return not self._gone.is_set() and self._warden.poll() is None

    def others(self) -> bool:
        """Whether anything runs that the program has started."""
        below = warden.descendants(self._warden.pid)
        return len(below) > 1 and len(warden.living(below)) > 1

    def tell(self, number: int, *, group: bool = False) -> None:
        """Send the program a signal, or its whole process group, if it was started."""
        if not self._ordered:
            return
        with suppress(OSError):
            self._control.send(bytes([number | (warden.GROUP if group else 0)]))

    def kill(self) -> None:
        """Have it killed, with all that it has started."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def ended(self, within_ms: int | None) -> bool:
        """Wait until nothing of it is left, no longer than this."""
        return await happens(self._gone, within_ms)

    def report(self) -> Report | None:
        """Tell how it ended; nothing if it has not."""
        if not self._gone.is_set():
            return None
        try:
            status, taken, error = marshal.loads(self._last_words)
        except (EOFError, ValueError, TypeError):
            return Report(-signal.SIGKILL)
        return Report(-signal.SIGKILL if status is None else status, taken, error)

    async def end(self) -> None:
        """Kill it, wait until it is gone, and let go of everything."""
        self.kill()
        if not await self.ended(ENDING_MS):
            self._warden.kill()
        # It has closed the socket by ending, so this is a matter of microseconds.
        self._warden.wait()
        if not self._last_words:
            # It was killed itself, so it has killed nobody.
            await asyncio.to_thread(end_strays, warden.MARK, self._mark)
        self._let_go()

    def listen(self) -> None:
        """Hear what has been printed up to now."""
        for fd in list(self._pipes):
            self._heard(fd)

    def _pipe(self, name: str) -> int:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self._pipes[ours] = name
        return theirs

    def _audible(self, fd: int) -> None:
        """Something was printed. It stays in its pipe for a moment if something else was to be heard before it."""
        if not self._wait_ms:
            self._heard(fd)
            return
        self._loop.remove_reader(fd)
        self._loop.call_later(self._wait_ms / 1_000, self._heard_late, fd, TURNS)

    def _heard_late(self, fd: int, turns: int) -> None:
        """A loop that is short of time may have had no turn in the meantime, so turns are counted too."""
        if turns:
            self._loop.call_soon(self._heard_late, fd, turns - 1)
        elif fd in self._pipes:
            self._loop.add_reader(fd, self._audible, fd)
            self._heard(fd)

    def _heard(self, fd: int) -> None:
        for _ in range(PIECES_MAX):
            try:
                data = os.read(fd, PIECE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close(fd)
                return
            self._hear(self._pipes[fd], data)
            if len(data) < PIECE_BYTES and self._wait_ms:
                # The pipe was empty: what has come meanwhile may be younger than something that was sent.
                return

    def _told(self) -> None:
        """The warden reports, or is gone."""
        try:
            data = self._control.recv(4_096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._last_words += data
        if not data:
            self._loop.remove_reader(self._control)
            self._gone.set()

    def _close(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        del self._pipes[fd]
        os.close(fd)
        if not self._pipes:
            self.silent.set()

    def _let_go(self) -> None:
        for fd in list(self._pipes):
            self._close(fd)
        self._loop.remove_reader(self._control)
        self._control.close()


async def happens(event: asyncio.Event, within_ms: int | None) -> bool:
    """Wait for an event, no longer than this; whether it happened."""
    try:
        async with asyncio.timeout(None if within_ms is None else within_ms / 1_000):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _plain(text: str) -> bytes:
    data = os.fsencode(text)
    if b"\0" in data:
        raise ValueError("embedded null byte")
    return data
