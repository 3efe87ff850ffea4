"""One command of the operating system, from its start to the end of everything it started.

It runs under a supervisor, without a shell between. All that it has started ends with the command, with its time, with
its attempt, and with this process. Its output is passed on as it comes; of each stream the end is kept.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidemill.handlers.contract import Fail, Lacking
from tidemill.processes.supervised import STREAMS, ExitReport, LaunchSpec, LineSplitter, SupervisedProcess, wait_for

GRACE_MS = 2_000
"""How long a command may take to end by itself when its time is up."""
CANCELLED_GRACE_MS = 500
"""The same for a cancelled attempt: the command is gone before the next attempt begins."""
DRAINING_MS = 1_000
"""How long to wait for the rest of the output when the command is gone: another process may hold it open."""
_NOT_THERE = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR)

OnText = Callable[[str, str], object]


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

    def launch_spec(self) -> LaunchSpec:
        """For the supervisor."""
        most = None if self.memory_mb is None else self.memory_mb << 20
        return LaunchSpec(program=self.program, argv=self.argv, env=self.env, memory_bytes_max=most)


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


async def run(command: Command, on_text: OnText) -> Ended:
    """Run a command to its end. Raises `Fail` when it cannot be started or takes too long."""
    streams = {name: _Stream(name, command.output_bytes, on_text) for name in STREAMS.values()}
    try:
        process = SupervisedProcess(
            command.launch_spec(),
            lambda name, data: streams[name].add(data),
            reads_stdin=command.stdin is not None,
            cwd=command.cwd,
        )
    except (OSError, ValueError) as error:
        raise _not_started(command, error) from error
    try:
        report = await _ended(process, command)
    finally:
        await asyncio.shield(process.end())
        stdout, stderr = (stream.said() for stream in streams.values())
    if report.error:
        raise _not_started(command, OSError(report.error, os.strerror(report.error)))
    return Ended(status=report.status, stdout=stdout, stderr=stderr, taken_mb=report.taken_bytes >> 20)


async def _ended(process: SupervisedProcess, command: Command) -> ExitReport:
    """Wait for the end, and see to it that it comes."""
    try:
        await process.launch(command.stdin or b"")
        if not await process.wait(command.time_ms):
            await _stop(process, GRACE_MS)
            raise _late(command.time_ms)
    except asyncio.CancelledError:
        await _stop(process, CANCELLED_GRACE_MS)
        raise
    await wait_for(process.output_closed, DRAINING_MS)
    report = process.report()
    assert report is not None, "it has ended"
    return report


async def _stop(process: SupervisedProcess, grace_ms: int) -> None:
    """Ask the whole group to end, and wait a moment before it is made to."""
    process.send_signal(signal.SIGTERM, group=True)
    await process.wait(grace_ms)


class _Stream:
    """One output stream: passed on line by line, and its last bytes kept."""

    def __init__(self, name: str, bytes_max: int, on_text: OnText) -> None:
        self._lines = LineSplitter(lambda text: on_text(name, text))
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
        self._lines.finish()
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
