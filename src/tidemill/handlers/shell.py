"""Node type `shell`: runs one command of the operating system, if the operator has enabled that.

A command can do whatever the worker's account may do, so it is off by default: then documents with one are refused at
publication, and existing runs leave it to other workers. The command sees a few environment variables of the worker and
those that the node gives it. It runs under a supervisor, without a shell; everything that it has started ends with it,
with its time limit, its attempt and the worker. Its output is passed on live, and the end of each stream is kept.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tidemill.errors import CONFIG_FILE
from tidemill.expressions.limits import json_excess
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import (
    CapabilityMissing,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    ending,
    object_schema,
    truncate,
)
from tidemill.kernel.model import Capabilities, ConfigProblem, Json, NodeType
from tidemill.net.http_client import origin_hint
from tidemill.observability.capture import OUTPUT_SINK
from tidemill.processes.supervised import STREAMS, ExitReport, LaunchSpec, LineSplitter, SupervisedProcess, wait_for
from tidemill.security.grants import SHELL_ORIGIN

# Run a command.

GRACE_MS = 2_000
"""How long a command may take to end by itself when its time is up."""
CANCELLED_GRACE_MS = 500
"""The same for a cancelled attempt: the command is gone before the next attempt begins."""
DRAINING_MS = 1_000
"""How long to wait for the rest of the output after the command ended: another process may hold it open."""
_NOT_THERE = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR)

OnText = Callable[[str, str], object]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    program: str
    """Path of the executable."""
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes | None = None
    time_ms: int | None = None
    memory_mb: int | None = None
    output_bytes: int


class StreamEnd(msgspec.Struct, frozen=True):
    """The last bytes of an output stream, and whether earlier ones were cut off."""

    data: bytes
    cut: bool

    def text(self) -> str:
        """An ellipsis replaces what was cut off, and a partial character there."""
        data = self.data
        if self.cut:
            lead = next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
            data = data[lead:]
        return ("…" if self.cut else "") + data.decode("utf-8", "replace")


class CommandExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended; a negative status is a signal number."""

    status: int
    stdout: StreamEnd
    stderr: StreamEnd
    taken_mb: int = 0
    """Its memory, if it was killed for that."""


async def run(command: Command, on_text: OnText) -> CommandExit:
    """Run a command to its end. Raises `Fail` if it cannot be started or takes too long."""
    streams = {name: _Stream(name, command.output_bytes, on_text) for name in STREAMS.values()}
    most = None if command.memory_mb is None else command.memory_mb << 20
    spec = LaunchSpec(program=command.program, argv=command.argv, env=command.env, memory_bytes_max=most)
    try:
        process = SupervisedProcess(
            spec, lambda name, data: streams[name].add(data), reads_stdin=command.stdin is not None, cwd=command.cwd
        )
    except (OSError, ValueError) as error:
        raise _not_started(command, error) from error
    try:
        report = await _wait(process, command)
    finally:
        await asyncio.shield(process.end())
        stdout, stderr = (stream.finish() for stream in streams.values())
    if report.error:
        raise _not_started(command, OSError(report.error, os.strerror(report.error)))
    return CommandExit(status=report.status, stdout=stdout, stderr=stderr, taken_mb=report.taken_bytes >> 20)


async def _wait(process: SupervisedProcess, command: Command) -> ExitReport:
    """Wait for the end of the command, and enforce its time limit."""
    try:
        await process.launch(command.stdin or b"")
        if not await process.wait(command.time_ms):
            await _stop(process, GRACE_MS)
            message = f"the command took longer than {(command.time_ms or 0) / 1_000:g} s"
            raise Fail("timeout", message, retryable=True, hint="raise limits.time_seconds", unknown_outcome=True)
    except asyncio.CancelledError:
        await _stop(process, CANCELLED_GRACE_MS)
        raise
    await wait_for(process.output_closed, DRAINING_MS)
    report = process.report()
    assert report is not None, "it has ended"
    return report


async def _stop(process: SupervisedProcess, grace_ms: int) -> None:
    """Send SIGTERM to the process group, and wait a moment; `end` kills the rest."""
    process.send_signal(signal.SIGTERM, group=True)
    await process.wait(grace_ms)


class _Stream:
    """One output stream: passes lines on, and keeps the last bytes."""

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

    def finish(self) -> StreamEnd:
        self._lines.finish()
        return StreamEnd(bytes(self._kept), self._cut)


def _not_started(command: Command, error: OSError | ValueError) -> Fail:
    if isinstance(error, ValueError):
        return Fail("config_invalid", f"the command cannot be started: {error}")
    if error.errno == errno.E2BIG:
        return Fail("config_invalid", "/argv: the arguments are too long", hint="pass long values in stdin")
    if error.errno in _NOT_THERE:
        hint = "does the interpreter in its first line exist?"
        return Fail("command_not_found", f"{command.argv[0]} cannot be run: {error.strerror}", hint=hint)
    why = f"no process could be started for a command: {error.strerror}"
    return CapabilityMissing("process_unavailable", why, retryable=True)


# The node type.

INHERITED = ("PATH", "HOME", "LANG", "TZ")
"""Environment variables of the worker that every command gets."""
PRIVATE = "TIDEMILL_"
"""Prefix of variables that hold secrets; no command gets them."""
OUTPUT_BYTES = 1_048_576
QUOTED_MAX = 500
OUT_OF_MEMORY_RETRIES = 2
HINT = f"the operator writes `shell = true` in {CONFIG_FILE}, or sets TIDEMILL_SHELL=on"
_OFF = "commands are not enabled here"
_EXHAUSTED = re.compile(r"MemoryError|cannot allocate memory|out of memory|bad_alloc|memory exhausted", re.IGNORECASE)
_VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"
_TEXT = {"type": "string"}
_TEXTS = {"additionalProperties": _TEXT}
_INTEGER = {"type": "integer"}
_STATUS = _INTEGER | {"minimum": 0, "maximum": 255}
_STATUSES = {"type": "array", "items": _STATUS, "minItems": 1, "maxItems": 256}

FOLDER_PREFIX = "tidemill-shell-"
"""Of temporary folders; each is locked while its command runs."""
UNLOCKED_SECONDS = 60
"""A younger folder may not be locked yet."""
_PR_SET_DUMPABLE = 4

SHELL = NodeType(
    name="shell",
    title="Command",
    icon="terminal",
    description="Runs a command and returns what it printed; off unless the operator enables it.",
    capabilities=Capabilities(process=True),
    secret_fields=("env", "stdin"),
    config_schema=object_schema(
        ("argv",),
        argv={"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 10_000},
        cwd={"type": "string", "minLength": 1},
        env={"type": "object", "propertyNames": {"pattern": _VARIABLE}, **_TEXTS, "maxProperties": 1_000},
        inherit={"type": "array", "items": _TEXT | {"pattern": _VARIABLE}, "maxItems": 100, "default": []},
        stdin=True,
        expect=_STATUSES | {"default": [0]},
        retry_on=_STATUSES | {"default": []},
        parse={"enum": ["text", "json", "lines"], "default": "text"},
        limits={
            "type": "object",
            "properties": {
                "time_seconds": {"type": "number", "exclusiveMinimum": 0},
                "memory_mb": {"type": "integer", "minimum": 1},
                "output_bytes": _INTEGER | {"minimum": 1, "maximum": 64 * 1_048_576, "default": OUTPUT_BYTES},
            },
            "additionalProperties": False,
        },
    ),
    output_schema=object_schema(
        ("exit_code", "stderr", "truncated", "duration_ms"),
        exit_code={"type": "integer"},
        stdout={"type": "string"},
        value=True,
        stderr={"type": "string"},
        truncated={"type": "boolean"},
        duration_ms={"type": "integer"},
    ),
)


def shell_handler(*, enabled: bool = False) -> Handler:
    """The node type; unless it is enabled, it refuses everything."""

    async def call(context: NodeContext) -> HandlerOutcome:
        if not enabled:
            raise CapabilityMissing("shell_disabled", _OFF, hint=HINT)
        config: dict[str, Any] = context.config
        if context.forbidden_at is not None and (secret := context.forbidden_at(SHELL_ORIGIN)):
            message = f"the secret {secret} may not be given to commands"
            raise Fail("origin_not_allowed", message, hint=origin_hint(secret, SHELL_ORIGIN))
        async with _folder(config.get("cwd")) as cwd:
            began = time.monotonic()
            finished = await run(command_of(config, cwd, os.environ), OUTPUT_SINK.get() or (lambda source, text: None))
        duration_ms = round((time.monotonic() - began) * 1_000)
        _check_status(finished, config, context.attempt)
        return Done(_output(finished, config.get("parse", "text"), duration_ms))

    def check(config: Json) -> Iterator[ConfigProblem]:
        if not enabled:
            yield ConfigProblem("", _OFF, HINT, code="shell_disabled")
        yield from _check(config)

    return Handler(msgspec.structs.replace(SHELL, check=check), call, open=_open if enabled else None)


def _open() -> None:
    """Hide the environment of this process from commands."""
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def remove_leftovers() -> None:
    """Remove the temporary folders of workers that were killed; those of living ones are locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError), _opened(folder) as fd:
            found = os.fstat(fd)
            if found.st_uid == os.geteuid() and time.time() - found.st_ctime > UNLOCKED_SECONDS:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _opened(folder: str | Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def _check(config: Json) -> Iterator[ConfigProblem]:
    cwd = config.get("cwd")
    if isinstance(cwd, str) and not is_template(cwd) and not os.path.isabs(cwd):
        hint = "write an absolute path: workers may start in any folder"
        yield ConfigProblem("/cwd", f"{cwd!r} is not an absolute path", hint)
    inherit = config.get("inherit")
    for number, name in enumerate(inherit if isinstance(inherit, list) else ()):
        if isinstance(name, str) and name.startswith(PRIVATE):
            yield ConfigProblem(f"/inherit/{number}", f"commands do not get {name}", "pass secrets in `env`")


def command_of(config: Mapping[str, Any], cwd: str, around: Mapping[str, str]) -> Command:
    """The command of a config, in a folder and with the environment of a worker."""
    argv, limits = config["argv"], config.get("limits") or {}
    names = [name for name in (*INHERITED, *config.get("inherit", ())) if not name.startswith(PRIVATE)]
    env = {name: around[name] for name in names if name in around} | config.get("env", {})
    seconds, stdin = limits.get("time_seconds"), config.get("stdin")
    encoded = stdin.encode("utf-8", "replace") if isinstance(stdin, str) else msgspec.json.encode(stdin)
    return Command(
        program=_program(argv[0], cwd, env.get("PATH", os.defpath)),
        argv=argv,
        cwd=cwd,
        env=env,
        stdin=None if stdin is None else encoded,
        time_ms=None if seconds is None else max(1, round(seconds * 1_000)),
        memory_mb=limits.get("memory_mb"),
        output_bytes=limits.get("output_bytes", OUTPUT_BYTES),
    )


def _program(name: str, cwd: str, path: str) -> str:
    """The executable of a name; one with a slash is relative to the working directory."""
    path_or_name = os.path.join(cwd, name) if "/" in name else name
    found = None if "\0" in path_or_name else shutil.which(path_or_name, path=path)
    if found is None:
        hint = "list the program and each argument separately; [sh, -c, …] runs a shell line"
        raise Fail("command_not_found", f"there is no command {truncate(name, QUOTED_MAX)!r}", hint=hint)
    return os.path.abspath(found)


@asynccontextmanager
async def _folder(cwd: str | None) -> AsyncIterator[str]:
    """The folder that the node names, or a temporary one."""
    if cwd is not None:
        _require_folder(cwd)
        yield cwd
        return
    made = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    try:
        with _opened(made) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield made
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, made, ignore_errors=True))


def _require_folder(cwd: str) -> None:
    if not os.path.isabs(cwd) or not os.path.isdir(cwd):
        message = f"/cwd: there is no folder {truncate(cwd, QUOTED_MAX)!r}"
        raise Fail("folder_missing", message, hint="write the whole path")


def _check_status(finished: CommandExit, config: Mapping[str, Any], attempt: int) -> None:
    status, memory_mb = finished.status, (config.get("limits") or {}).get("memory_mb")
    if status in config.get("expect", (0,)):
        return
    printed = finished.stderr.text().strip() or finished.stdout.text().strip()
    last = f": {ending(printed, QUOTED_MAX)}" if printed else ""
    if finished.taken_mb or (memory_mb is not None and _EXHAUSTED.search(last)):
        retryable = attempt <= OUT_OF_MEMORY_RETRIES
        message = f"the command needs more memory than the {memory_mb} MB that it may have{last}"
        raise Fail("out_of_memory", message, retryable=retryable, hint="raise limits.memory_mb", unknown_outcome=True)
    if status < 0:
        hint = "the machine may have run out of memory" if status == -signal.SIGKILL else ""
        message = f"the command was ended by {_signal_name(-status)}{last}"
        raise Fail("process_died", message, retryable=True, hint=hint, unknown_outcome=True)
    retryable = status in config.get("retry_on", ())
    hint = "list the status under `expect` if it is a result, or under `retry_on`"
    raise Fail("exit_status", f"the command ended with status {status}{last}", retryable=retryable, hint=hint)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _output(finished: CommandExit, parse: str, duration_ms: int) -> dict[str, Any]:
    stdout = finished.stdout
    printed = {"stdout": stdout.text()} if parse == "text" else {"value": _parsed(stdout, parse)}
    return {
        "exit_code": finished.status,
        **printed,
        "stderr": finished.stderr.text(),
        "truncated": stdout.cut or finished.stderr.cut,
        "duration_ms": duration_ms,
    }


def _parsed(stdout: StreamEnd, parse: str) -> Any:
    if parse == "lines":
        lines = stdout.text().splitlines()
        return lines[1:] if stdout.cut else lines
    if stdout.cut:
        message = f"the command printed more than the {len(stdout.data):,} bytes that are kept"
        raise Fail("output_too_large", message, hint="raise limits.output_bytes")
    if excess := json_excess(stdout.data):
        message = f"what the command printed cannot be read: {excess}"
        raise Fail("output_too_large", message, hint="print less, or set parse to text")
    try:
        return msgspec.json.decode(stdout.data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        message = f"the command did not print JSON: {error}"
        raise Fail("response_invalid", message, hint="set parse to text to see what it is") from error
