"""A process in which functions are called, as its worker sees it: a wire to it, and what it writes past that.

What a function prints with `sys.stdout` comes over the wire, together with all else that it says. What it writes to the
file descriptors themselves, or has programs write, comes through pipes, and is heard like anything that is printed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from tidemill.expressions.offspring import HEADER_SIZE
from tidemill.handlers.contract import Fail, Lacking
from tidemill.handlers.python_frames import FRAME_MAX, READY, Call, Message, Reply, packed, unpacked
from tidemill.handlers.wards import STREAMS, Lines, Order, Ward

START_MS = 30_000
"""How long a process may take to start; a machine that takes longer is in trouble."""
DYING_MS = 1_000
WAIT_MS = 2
"""How long what is written past `sys.stdout` lies, so that what was printed before it is heard first."""
LAST_WORDS_MAX = 500
_BOOT = (
    "import sys, socket; sys.path[:] = sys.argv[2:]; from tidemill.handlers.python_child import main; "
    "main(socket.socket(fileno=int(sys.argv[1])))"
)

Say = Callable[[str, str], object]


class Peer(Ward):
    """A process with a voice."""

    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter

    def __init__(self, memory_bytes_max: int | None) -> None:
        self.memory_bytes_max = memory_bytes_max
        self._wire, theirs = socket.socketpair()
        self._wire.setblocking(False)
        self._listener = _Listener(lambda source, text: self._boot_words.append(text))
        self._boot_words: list[str] = []
        paths = [os.path.abspath(each) for each in sys.path]
        order = Order(
            program=sys.executable,
            argv=[sys.executable, "-c", _BOOT, str(theirs.fileno()), *paths],
            fds=(theirs.fileno(),),
            data_bytes_max=memory_bytes_max,
            memory_bytes_max=memory_bytes_max,
        )
        try:
            super().__init__(order, lambda source, data: self._listener.hear(source, data), wait_ms=WAIT_MS)
        except BaseException:
            self._wire.close()
            raise
        finally:
            theirs.close()

    async def wake(self) -> None:
        """Wait until it has started."""
        if self._reader is not None:
            return
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._wire)
        await self.start()
        ready = None
        with suppress(TimeoutError):
            async with asyncio.timeout(START_MS / 1000):
                ready = await self._body()
        if ready != READY:
            await self.ended(DYING_MS)
            self.hearken(None)
            raise no_process(f"it did not start: {''.join(self._boot_words)[-LAST_WORDS_MAX:]}")

    def hearken(self, say: Say | None) -> None:
        """Say what is printed past `sys.stdout` to somebody else from now on, or to nobody."""
        self.listen()
        self._listener.end()
        self._listener = _Listener(say or (lambda source, text: None))

    def alive(self) -> bool:
        """Whether it can be asked something: its end of the wire is closed by its death before all else."""
        if not super().alive():
            return False
        try:
            return self._wire.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def send(self, message: Call | Reply) -> None:
        """Say something to it; that it is gone is noticed by who listens."""
        with suppress(OSError):
            self._writer.write(packed(message))
            await self._writer.drain()

    async def hear(self) -> Message | None:
        """What it says next; nothing if it is gone."""
        body = await self._body()
        try:
            return None if body is None else unpacked(body)
        except msgspec.DecodeError as error:
            raise Fail("answer_invalid", f"the function ended with something that is no outcome: {error}") from error

    async def _body(self) -> bytes | None:
        assert self._reader is not None
        try:
            size = int.from_bytes(await self._reader.readexactly(HEADER_SIZE), "big")
            return None if size > FRAME_MAX else await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            return None

    async def end(self) -> None:
        await super().end()
        if self._reader is not None:
            self._writer.close()
        self._wire.close()


class _Listener:
    """Hears what a process writes to its standard streams without `sys`, and says it line by line."""

    def __init__(self, say: Say) -> None:
        self._lines = {name: Lines(_spoken(say, name)) for name in STREAMS.values()}

    def hear(self, source: str, data: bytes) -> None:
        self._lines[source].add(data)

    def end(self) -> None:
        for lines in self._lines.values():
            lines.rest()


def _spoken(say: Say, source: str) -> Callable[[str], object]:
    return lambda text: say(source, text)


def no_process(why: str) -> Lacking:
    """The machine has no process for a function."""
    return Lacking("process_unavailable", f"no process could be started for a function: {why}", retryable=True)
