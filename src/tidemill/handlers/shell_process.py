"""One command of the operating system, from its start to the end of everything it started.

It runs in a process group of its own, without a shell between. The group ends with the command, with its time, with
its attempt, and with this process, however that ends: the kernel sees to the last. What the command says is heard as
it comes; of each stream the end is kept.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from tidemill.handlers.contract import Fail, Lacking

GRACE_MS = 2_000
"""How long a command whose time is up may take to end by itself."""
CANCELLED_GRACE_MS = 500
"""The same for one that nobody waits for any more: it is gone before the next attempt begins."""
DRAINING_MS = 1_000
"""How long the rest of the output is waited for when the command is gone. A daemon may hold on to it for ever."""
HEARD_BYTES = 65_536
"""A line that is longer is heard in pieces."""
STREAMS = {1: "stdout", 2: "stderr"}
_WITHIN = 'ulimit -d "$1" && shift && exec "$@"'
_NOT_THERE = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR)

Hear = Callable[[str, str], object]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and what it may take."""

    program: str
    """The file, with its path."""
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes | None = None
    time_ms: int | None = None
    memory_mb: int | None = None
    output_bytes: int

    def started_as(self) -> list[str]:
        """The program and its arguments; a bound on memory is set by a shell that then becomes the program."""
        if self.memory_mb is None:
            return list(self.argv)
        return ["/bin/sh", "-c", _WITHIN, "sh", str(self.memory_mb * 1_024), self.program, *self.argv[1:]]


class Said(msgspec.Struct, frozen=True):
    """What came out of a stream: its end, and whether something stood before it."""

    data: bytes
    cut: bool

    def text(self) -> str:
        """As text; half a character at the cut is left out."""
        data = self.data
        if self.cut:
            lead = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
            data = data[lead:]
        return data.decode("utf-8", "replace")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended: a negative status is the number of a signal."""

    status: int
    stdout: Said
    stderr: Said


async def run(command: Command, hear: Hear) -> Ended:
    """Run a command to its end. Raises `Fail` when it cannot be started or takes too long."""
    process = _Process(command, hear)
    await process.start()
    try:
        return await process.ended()
    finally:
        process.close()


class _Stream:
    """What is said on one stream: handed on line by line, and its last bytes kept."""

    def __init__(self, name: str, bytes_max: int, hear: Hear) -> None:
        self._name, self._bytes_max, self._hear = name, bytes_max, hear
        self._kept, self._line = bytearray(), bytearray()
        self._cut = False

    def add(self, data: bytes) -> None:
        self._kept += data
        surplus = len(self._kept) - self._bytes_max
        if surplus > 0:
            self._cut = True
            del self._kept[:surplus]
        self._line += data
        whole = self._line.rfind(b"\n") + 1
        self._say(len(self._line) if len(self._line) - whole > HEARD_BYTES else whole)

    def said(self) -> Said:
        """What is kept, once nothing more comes."""
        self._say(len(self._line))
        return Said(bytes(self._kept), self._cut)

    def _say(self, size: int) -> None:
        if size:
            self._hear(self._name, self._line[:size].decode("utf-8", "replace"))
            del self._line[:size]


class _Listener(asyncio.SubprocessProtocol):
    """What the loop tells about a process."""

    def __init__(self, streams: Mapping[int, _Stream]) -> None:
        self._streams = streams
        self._open = {1, 2}
        self.exited, self.silent = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._streams[fd].add(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()


class _Process:
    """A command that runs."""

    _transport: asyncio.SubprocessTransport

    def __init__(self, command: Command, hear: Hear) -> None:
        self._command = command
        self._streams = {fd: _Stream(name, command.output_bytes, hear) for fd, name in STREAMS.items()}
        self._listener = _Listener(self._streams)
        self._lifeline: int | None = None

    async def start(self) -> None:
        command, loop = self._command, asyncio.get_running_loop()
        theirs, self._lifeline = os.pipe()
        nothing = command.stdin is None
        try:
            self._transport, _ = await loop.subprocess_exec(
                lambda: self._listener,
                *command.started_as(),
                executable="/bin/sh" if command.memory_mb is not None else command.program,
                stdin=asyncio.subprocess.DEVNULL if nothing else asyncio.subprocess.PIPE,
                cwd=command.cwd,
                env=command.env,
                start_new_session=True,
                pass_fds=(theirs,),
            )
            _tie(theirs, self._transport.get_pid())
        except BaseException as error:
            self._let_go()
            if isinstance(error, (OSError, ValueError)):
                raise _not_started(command, error) from error
            raise
        finally:
            os.close(theirs)
        if not nothing:
            self._feed(command.stdin or b"")

    async def ended(self) -> Ended:
        """Wait for the end, and see to it that it comes."""
        time_ms = self._command.time_ms
        try:
            if not await _happens(self._listener.exited, time_ms):
                await self._stop(GRACE_MS)
                raise _late(time_ms)
        except asyncio.CancelledError:
            await self._stop(CANCELLED_GRACE_MS)
            raise
        self._signal(signal.SIGKILL)  # What it has left running would hold on to its output and its folder.
        await _happens(self._listener.silent, DRAINING_MS)
        status = self._transport.get_returncode()
        assert status is not None, "it has exited"
        stdout, stderr = (self._streams[fd].said() for fd in STREAMS)
        return Ended(status=status, stdout=stdout, stderr=stderr)

    def close(self) -> None:
        """Make sure that nothing of it is left."""
        self._signal(signal.SIGKILL)
        for stream in self._streams.values():
            stream.said()
        self._transport.close()
        self._let_go()

    async def _stop(self, grace_ms: int) -> None:
        """Ask the whole group to end, and wait a moment before it is made to."""
        self._signal(signal.SIGTERM)
        if await _happens(self._listener.exited, grace_ms):
            return
        self._signal(signal.SIGKILL)
        await _happens(self._listener.exited, DRAINING_MS)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), number)

    def _feed(self, data: bytes) -> None:
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(data)
        pipe.write_eof()

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def _tie(lifeline: int, group: int) -> None:
    """Have the kernel kill a group when this process, which alone holds the other end of the pipe, is gone.

    It is also the first to go when the machine runs out of memory.
    """
    if sys.platform == "linux":
        import fcntl

        # A short command may be gone already.
        with suppress(OSError):
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group)
            fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            with open(f"/proc/{group}/oom_score_adj", "w") as score:
                score.write("1000")


async def _happens(event: asyncio.Event, within_ms: int | None) -> bool:
    try:
        async with asyncio.timeout(None if within_ms is None else within_ms / 1_000):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _late(time_ms: int | None) -> Fail:
    message = f"the command took longer than {(time_ms or 0) / 1_000:g} s"
    return Fail("timeout", message, retryable=True, hint="raise limits.time_seconds", unknown_outcome=True)


def _not_started(command: Command, error: OSError | ValueError) -> Fail:
    if isinstance(error, ValueError):
        return Fail("config_invalid", f"the command cannot be started: {error}")
    if error.errno == errno.E2BIG:
        return Fail("config_invalid", "/argv: the arguments are too long", hint="hand long values over in stdin")
    if error.errno in _NOT_THERE:
        hint = "is the interpreter there that the file names in its first line?"
        return Fail("command_not_found", f"{command.argv[0]} cannot be run: {error.strerror}", hint=hint)
    why = f"no process could be started for a command: {error.strerror}"
    return Lacking("process_unavailable", why, retryable=True)
