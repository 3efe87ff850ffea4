"""One command of the operating system, from its start to the end of everything it started.

It runs behind a warden, without a shell between. All that it has started ends with the command, with its time, with its
attempt, and with this process, however that ends. What the command says is heard as it comes; of each stream the end
is kept.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidemill.handlers.contract import Fail, Lacking
from tidemill.handlers.wards import STREAMS, Lines, Order, Report, Ward, happens

GRACE_MS = 2_000
"""How long a command whose time is up may take to end by itself."""
CANCELLED_GRACE_MS = 500
"""The same for one that nobody waits for any more: it is gone before the next attempt begins."""
DRAINING_MS = 1_000
"""How long the rest of the output is waited for when the command is gone. A stranger may hold on to it for ever."""
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

    def order(self) -> Order:
        """As the warden is told. No process may have more memory than all of them together."""
        most = None if self.memory_mb is None else self.memory_mb << 20
        return Order(
            program=self.program,
            argv=self.argv,
            env=self.env,
            data_bytes_max=most,
            memory_bytes_max=most,
        )


class Said(msgspec.Struct, frozen=True):
    """What came out of a stream: its end, and whether something stood before it."""

    data: bytes
    cut: bool

    def text(self) -> str:
        """As text. A mark stands for what was cut off, together with half a character there."""
        data = self.data
        if self.cut:
            lead = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
            data = data[lead:]
        return ("…" if self.cut else "") + data.decode("utf-8", "replace")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended: a negative status is the number of a signal."""

    status: int
    stdout: Said
    stderr: Said
    taken_mb: int = 0
    """How much memory it had, if it was killed for that."""


async def run(command: Command, hear: Hear) -> Ended:
    """Run a command to its end. Raises `Fail` when it cannot be started or takes too long."""
    streams = {name: _Stream(name, command.output_bytes, hear) for name in STREAMS.values()}
    try:
        ward = Ward(
            command.order(),
            lambda name, data: streams[name].add(data),
            fed=command.stdin is not None,
            cwd=command.cwd,
        )
    except (OSError, ValueError) as error:
        raise _not_started(command, error) from error
    try:
        report = await _ended(ward, command)
    finally:
        await asyncio.shield(ward.end())
        stdout, stderr = (stream.said() for stream in streams.values())
    if report.error:
        raise _not_started(command, OSError(report.error, os.strerror(report.error)))
    return Ended(status=report.status, stdout=stdout, stderr=stderr, taken_mb=report.taken_bytes >> 20)


async def _ended(ward: Ward, command: Command) -> Report:
    """Wait for the end, and see to it that it comes."""
    try:
        await ward.start(command.stdin or b"")
        if not await ward.ended(command.time_ms):
            await _stop(ward, GRACE_MS)
            raise _late(command.time_ms)
    except asyncio.CancelledError:
        await _stop(ward, CANCELLED_GRACE_MS)
        raise
    await happens(ward.silent, DRAINING_MS)
    report = ward.report()
    assert report is not None, "it has ended"
    return report


async def _stop(ward: Ward, grace_ms: int) -> None:
    """Ask the whole group to end, and wait a moment before it is made to."""
    ward.tell(signal.SIGTERM, group=True)
    await ward.ended(grace_ms)


class _Stream:
    """What is said on one stream: handed on line by line, and its last bytes kept."""

    def __init__(self, name: str, bytes_max: int, hear: Hear) -> None:
        self._lines = Lines(lambda text: hear(name, text))
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._cut = False

    def add(self, data: bytes) -> None:
        self._kept += data
        surplus = len(self._kept) - self._bytes_max
        if surplus > 0:
            self._cut = True
            del self._kept[:surplus]
        self._lines.add(data)

    def said(self) -> Said:
        """What is kept, once nothing more comes."""
        self._lines.rest()
        return Said(bytes(self._kept), self._cut)


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
