"""A program that a worker runs under a supervisor: its output is captured, and everything it starts ends with it.

The worker sends a launch spec and signal numbers to the supervisor (`supervisor.py`), which at last reports how the
program ended. When the worker closes the socket or dies, the supervisor kills everything.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from tidemill.processes import supervisor

SCRIPT = os.path.abspath(supervisor.__file__)
STREAMS = {1: "stdout", 2: "stderr"}
PIECE_BYTES = 65_536
"""The most that one read takes; a longer line is passed on in pieces."""
PIECES_MAX = 4
"""Consecutive reads of one stream, so that other tasks of the event loop can run."""
ENDING_MS = 8_000
"""How long a supervisor may take to kill everything; it needs a few milliseconds."""

OnOutput = Callable[[str, bytes], object]
"""Receives output with the name of its stream."""


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    program: str
    """Path of the executable."""
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    """None means the worker's environment."""
    fds: tuple[int, ...] = ()
    """File descriptors that the program inherits."""
    memory_bytes_max: int | None = None
    """The kernel refuses each of its processes more private memory; the supervisor kills all if the sum exceeds it."""

    def encode(self) -> bytes:
        """The frame for the supervisor. Raises `ValueError` for a NUL character."""
        env = {_encode(name): _encode(value) for name, value in (os.environ if self.env is None else self.env).items()}
        argv = [_encode(each) for each in self.argv]
        spec = _encode(self.program), argv, env, list(self.fds), self.memory_bytes_max
        return supervisor.frame(marshal.dumps(spec))


class ExitReport(msgspec.Struct, frozen=True):
    status: int
    """A negative status is a signal number."""
    taken_bytes: int = 0
    """Its memory, if it was killed for that."""
    error: int = 0
    """The error number, if it could not be started."""


class LineSplitter:
    """Passes output on in whole lines."""

    def __init__(self, emit: Callable[[str], object]) -> None:
        self._emit = emit
        self._pending = bytearray()

    def add(self, data: bytes) -> None:
        self._pending += data
        whole = self._pending.rfind(b"\n") + 1
        self._flush(len(self._pending) if len(self._pending) - whole > PIECE_BYTES else whole)

    def finish(self) -> None:
        self._flush(len(self._pending))

    def _flush(self, size: int) -> None:
        if size:
            self._emit(self._pending[:size].decode("utf-8", "replace"))
            del self._pending[:size]


class SupervisedProcess:
    """A program and its supervisor. Raises `OSError` if the supervisor cannot be started."""

    _launched = False
    _stdin: asyncio.WriteTransport | None = None

    def __init__(
        self, spec: LaunchSpec, on_output: OnOutput, *, reads_stdin: bool = False, cwd: str | None = None
    ) -> None:
        self._spec, self._on_output = spec.encode(), on_output
        self._loop = asyncio.get_running_loop()
        self._gone, self.output_closed = asyncio.Event(), asyncio.Event()
        self._report = bytearray()
        self._pipes: dict[int, str] = {}
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        outputs: list[int] = []
        for name in STREAMS.values():
            ours, output = os.pipe()
            os.set_blocking(ours, False)
            self._pipes[ours] = name
            outputs.append(output)
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", SCRIPT, str(theirs.fileno())],
                stdin=subprocess.PIPE if reads_stdin else subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                cwd=cwd,
                # The program could read the environment of its parent.
                env={},
                pass_fds=(theirs.fileno(), *spec.fds),
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
            for fd in outputs:
                os.close(fd)
        self._loop.add_reader(self._control, self._read_report)
        for fd in self._pipes:
            self._loop.add_reader(fd, self._read_output, fd)

    async def launch(self, stdin: bytes = b"", *, keep_stdin: bool = False) -> None:
        """Start the program. Its standard input ends after `stdin`, unless it is kept for `write`."""
        with suppress(OSError):
            await self._loop.sock_sendall(self._control, self._spec)
        self._launched = True
        if self._supervisor.stdin is not None:
            pipe, _ = await self._loop.connect_write_pipe(asyncio.BaseProtocol, self._supervisor.stdin)
            # The transport drops the rest when no process can read it any more.
            pipe.write(stdin)
            if keep_stdin:
                self._stdin = pipe
            else:
                pipe.write_eof()

    def write(self, data: bytes) -> None:
        """Write to a standard input that was kept."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    def alive(self) -> bool:
        """Whether no end of it is known yet."""
        return not self._gone.is_set() and self._supervisor.poll() is None

    def has_other_processes(self) -> bool:
        """Whether a process that the program has started still runs."""
        below = supervisor.descendants(self._supervisor.pid)
        return len(below) > 1 and len(supervisor.living(below)) > 1

    def send_signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the program or its process group, if it was launched."""
        if self._launched:
            with suppress(OSError):
                self._control.send(bytes([number | (supervisor.GROUP if group else 0)]))

    def kill(self) -> None:
        """Kill the program and all that it has started, without waiting."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def wait(self, within_ms: int | None) -> bool:
        """Wait until all of its processes are gone; False on timeout."""
        return await wait_for(self._gone, within_ms)

    def report(self) -> ExitReport | None:
        """How it ended; None if it still runs."""
        if not self._gone.is_set():
            return None
        try:
            status, taken, error = marshal.loads(self._report)
        except (EOFError, ValueError, TypeError):
            # The supervisor was killed, and the program with it.
            return ExitReport(-signal.SIGKILL)
        return ExitReport(-signal.SIGKILL if status is None else status, taken, error)

    async def end(self) -> None:
        """Kill it, wait until it is gone, and close everything."""
        self.kill()
        if not await self.wait(ENDING_MS):
            self._supervisor.kill()
        # It has closed the socket by ending, so this takes microseconds.
        self._supervisor.wait()
        self._close()

    def drain_output(self) -> None:
        for fd in list(self._pipes):
            self._read_output(fd)

    def _read_output(self, fd: int) -> None:
        for _ in range(PIECES_MAX):
            try:
                data = os.read(fd, PIECE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close_pipe(fd)
                return
            self._on_output(self._pipes[fd], data)

    def _read_report(self) -> None:
        try:
            data = self._control.recv(4_096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._report += data
        if not data:
            self._loop.remove_reader(self._control)
            self._gone.set()

    def _close_pipe(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        del self._pipes[fd]
        os.close(fd)
        if not self._pipes:
            self.output_closed.set()

    def _close(self) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.abort()
        for fd in list(self._pipes):
            self._close_pipe(fd)
        self._loop.remove_reader(self._control)
        self._control.close()


async def wait_for(event: asyncio.Event, within_ms: int | None) -> bool:
    """Wait for an event; False on timeout."""
    try:
        async with asyncio.timeout(None if within_ms is None else within_ms / 1_000):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _encode(text: str) -> bytes:
    data = os.fsencode(text)
    if b"\0" in data:
        raise ValueError("embedded null byte")
    return data
