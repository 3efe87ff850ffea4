"""Python child processes that serve calls: started under a supervisor, addressed in frames, kept warm in a pool.

A child runs `main(wire)` of a module and sends an empty frame when it is ready; the caller defines all later messages.
Unless the caller sets `reusable` after a clean call, the pool kills the child with everything that it has started, so
no answer can reach the wrong caller.

`confine` is for a child that runs code of a stranger. It gives up the environment, the network and the right to other
files than installed packages. The code can change any module of its process, so an audit hook alone does not hold:
Landlock, where the kernel has it, refuses the same.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from sysconfig import get_paths
from typing import Any

import msgspec

from tidemill.processes.supervised import STREAMS, ExitReport, LaunchSpec, LineSplitter, SupervisedProcess
from tidemill.processes.supervisor import HEADER_SIZE, frame

START_MS = 30_000
"""Time limit for the start of a child."""
DYING_MS = 1_000
"""Time limit for the exit report after a child has closed its wire."""

_INSTALLED = tuple(sys.path)
"""Where modules are found before folders of documents and apps are added."""

_BOOT = (
    "import gc, sys, socket; gc.disable(); sys.path[:] = sys.argv[2:]; from {module} import main; gc.freeze(); "
    "gc.enable(); main(socket.socket(fileno=int(sys.argv[1])))"
)
"""Imports make no garbage worth a look, and stay."""

_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The only environment variables of a child that needs none: where the interpreter's libraries are."""

OnText = Callable[[str, str], object]
"""Receives a line of output with the name of its stream."""


def minimal_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}


class StartFailed(Exception):
    """A child process could not be started."""


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a child; children with equal specs are interchangeable."""

    module: str
    flags: tuple[str, ...] = ()
    """Interpreter flags."""
    env: Mapping[str, str] | None = None
    """None means the worker's environment."""
    cwd: str | None = None
    memory_bytes_max: int | None = None
    user_code: bool = False
    """Whether it finds modules wherever this process does; otherwise only what is installed."""


class ChildProcess(SupervisedProcess):
    """A child that serves calls. Raises `OSError` if it cannot be started."""

    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter
    retirement: asyncio.TimerHandle | None = None
    """When the pool will end it, if it stays idle."""
    reusable = False
    """Whether another call may use it; the caller sets it after a clean end."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._boot_output: list[str] = []
        self._lines = _splitters(lambda source, text: self._boot_output.append(text))
        self._wire, theirs = socket.socketpair()
        self._wire.setblocking(False)
        paths = [os.path.abspath(each) for each in (sys.path if spec.user_code else _INSTALLED)]
        boot = _BOOT.format(module=spec.module)
        launch = LaunchSpec(
            program=sys.executable,
            # `-P`: without it, the current folder would come before what is installed.
            argv=[sys.executable, "-P", *spec.flags, "-c", boot, str(theirs.fileno()), *paths],
            env=spec.env,
            fds=(theirs.fileno(),),
            memory_bytes_max=spec.memory_bytes_max,
        )
        try:
            super().__init__(launch, lambda source, data: self._lines[source].add(data), cwd=spec.cwd)
        except BaseException:
            self._wire.close()
            raise
        finally:
            theirs.close()

    async def wait_ready(self) -> None:
        """Wait until it has started; raise `StartFailed` if it does not."""
        if self._reader is not None:
            return
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._wire)
        await self.launch()
        ready = None
        with suppress(TimeoutError):
            async with asyncio.timeout(START_MS / 1_000):
                ready = await self.receive(0)
        if ready is None:
            await self.wait(DYING_MS)
            self.set_output_callback(None)
            raise StartFailed(f"it did not start: {''.join(self._boot_output)[-500:]}")
        self.set_output_callback(None)

    def set_output_callback(self, on_text: OnText | None) -> None:
        """Pass lines of its standard streams to this callback from now on, or drop them."""
        self.drain_output()
        for lines in self._lines.values():
            lines.finish()
        self._lines = _splitters(on_text or (lambda source, text: None))

    def alive(self) -> bool:
        """Whether it can be called: its death closes its end of the wire before anything else."""
        if not super().alive():
            return False
        try:
            return self._wire.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def send(self, body: bytes) -> None:
        """Send a message; if the child is gone, `receive` returns None."""
        with suppress(OSError):
            self._writer.write(frame(body))
            await self._writer.drain()

    async def receive(self, size_max: int) -> bytes | None:
        """Read the next message; None if the child is gone or sends too much."""
        assert self._reader is not None
        try:
            size = int.from_bytes(await self._reader.readexactly(HEADER_SIZE), "big")
            return None if size > size_max else await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            return None

    async def exit_report(self) -> ExitReport:
        """The report of a child that gave no answer."""
        await self.wait(DYING_MS)
        return self.report() or ExitReport(0)

    async def end(self) -> None:
        await super().end()
        if self._reader is not None:
            # Not `close`, which would keep the file registered for what could not be sent.
            self._writer.transport.abort()
        self._wire.close()


class Pool:
    """Warm children, each with one call at a time; with `idle_seconds`, those that are idle for longer are ended.

    A pool belongs to one event loop until it is closed.
    """

    def __init__(self, size: int, *, idle_seconds: float | None = None) -> None:
        self._size, self._idle_seconds = size, idle_seconds
        self._turns = asyncio.Semaphore(size)
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self.closing = False

    @asynccontextmanager
    async def child(self, spec: ChildSpec) -> AsyncIterator[ChildProcess]:
        """Lend a child for one call; raise `StartFailed` if none can be started."""
        async with self._turns:
            child = await self._take(spec)
            self._busy.add(child)
            child.reusable = False
            try:
                await child.wait_ready()
                yield child
            finally:
                self._busy.discard(child)
                if child.reusable and not self.closing:
                    self._rest(child)
                else:
                    await self._end(child)

    async def close(self) -> None:
        """End all children; running calls get no answer, waiting ones a `RuntimeError`. Later calls start new ones."""
        self.closing, turns = True, self._turns
        for child in self._busy:
            child.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(START_MS / 1_000):
                for _ in range(self._size):
                    await turns.acquire()
        while self._idle:
            await self._end(self._idle.pop())
        # A caller that was cancelled twice has not waited for the end of its child.
        await asyncio.gather(*self._ending)
        # The old semaphore belongs to this event loop; the next calls may come from another.
        self._turns, self.closing = asyncio.Semaphore(self._size), False
        for _ in range(self._size):
            turns.release()

    def _rest(self, child: ChildProcess) -> None:
        self._idle.append(child)
        if self._idle_seconds is not None:
            loop = asyncio.get_running_loop()
            child.retirement = loop.call_later(self._idle_seconds, self._retire, child)

    def _retire(self, child: ChildProcess) -> None:
        if child in self._idle:
            self._idle.remove(child)
            self._begin_end(child)

    def _begin_end(self, child: ChildProcess) -> asyncio.Task[None]:
        if child.retirement is not None:
            child.retirement.cancel()
        task = asyncio.create_task(child.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _end(self, child: ChildProcess) -> None:
        await asyncio.shield(self._begin_end(child))

    async def _take(self, spec: ChildSpec) -> ChildProcess:
        dead = [each for each in self._idle if not each.alive()]
        self._idle = [each for each in self._idle if each not in dead]
        for each in dead:
            await self._end(each)
        if self.closing:
            raise RuntimeError("the pool is closed")
        for child in reversed(self._idle):
            if child.spec == spec:
                self._idle.remove(child)
                if child.retirement is not None:
                    child.retirement.cancel()
                return child
        if len(self._idle) + len(self._busy) >= self._size:
            await self._end(self._idle.pop(0))
        try:
            return ChildProcess(spec)
        except OSError as error:
            raise StartFailed(str(error)) from error


def _splitters(on_text: OnText) -> dict[str, LineSplitter]:
    return {name: LineSplitter(partial(on_text, name)) for name in STREAMS.values()}


# In a child that runs code of a stranger.

FILES_MAX = 256


def confine(seconds: float, memory_bytes_max: int) -> None:
    """Give up everything but time to compute and memory, for so many seconds; SIGALRM or SIGXCPU ends the process."""
    os.environ.clear()
    unshare, namespaces = getattr(os, "unshare", None), ("CLONE_NEWUSER", "CLONE_NEWNET")
    if unshare is not None:
        # Where the kernel refuses that, the audit hook still refuses sockets.
        with suppress(OSError):
            unshare(sum(getattr(os, name) for name in namespaces))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES_MAX),
        (resource.RLIMIT_CPU, round(seconds) + 1),
        (resource.RLIMIT_DATA, memory_bytes_max),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard < 0 else min(most, hard)
        resource.setrlimit(kind, (bound, bound))
    installed = {get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots = {f"{each}{os.sep}" for path in installed for each in (path, os.path.realpath(path))}
    _restrict_files(sorted(roots))
    for name, function in (("_posixsubprocess", "fork_exec"), ("subprocess", "_fork_exec")):
        # It causes no audit event.
        setattr(import_module(name), function, None)
    sys.addaudithook(_guard(tuple(roots)))


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_BENEATH, _SET_NO_NEW_PRIVS = 1, 38
_FILE_RIGHTS = (13, 14, 15, 15, 16)
"""How many rights on files Landlock knows, by its version; versions after the last one know no fewer."""


def _restrict_files(roots: list[str]) -> None:
    """Let the kernel (Landlock) refuse every file but those to read below `roots`, programs, TCP and other processes.

    Where the kernel has no Landlock, the audit hook remains.
    """
    known = set(sys.modules)
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        if sys.platform == "linux":
            _landlock(ctypes, roots)
    for name in set(sys.modules) - known:
        # Imported again, it would open a library, which the hook refuses.
        del sys.modules[name]


def _landlock(ctypes: Any, roots: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    rights = (1 << _FILE_RIGHTS[min(version, len(_FILE_RIGHTS)) - 1]) - 1
    # Files; TCP from version 4 on; abstract sockets and signals of others from version 6 on.
    words = [rights, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    asked = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
    rules = libc.syscall(_CREATE_RULESET, asked, ctypes.c_size_t(len(asked)), 0)
    if rules < 0:
        return
    for root in roots:
        with suppress(OSError):
            folder = os.open(root, os.O_PATH | os.O_CLOEXEC)
            allowed = (_READ_FILE | _READ_FOLDER).to_bytes(8, sys.byteorder) + folder.to_bytes(4, sys.byteorder)
            libc.syscall(_ADD_RULE, rules, _BENEATH, allowed, 0)
            os.close(folder)
    if libc.prctl(_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0:
        libc.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)


_REFUSED = (
    *("socket.", "subprocess.", "ctypes.", "shutil.", "ftplib.", "http.client.", "imaplib.", "smtplib.", "urllib."),
    *("os.exec", "os.fork", "os.kill", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "os.putenv"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("os.chown", "os.chdir", "os.chflags", "os.setxattr", "os.removexattr", "os.utime", "pty.", "fcntl.", "mmap."),
    *("msvcrt.", "signal.pthread_kill", "sqlite3.", "syslog.", "webbrowser.", "winreg.", "code.__new__", "gc."),
    *("cpython.", "sys.set", "sys.remote_exec", "tempfile.", "resource.", "faulthandler."),
)
"""Audit events that the code must not cause, by their beginnings."""


def _guard(roots: tuple[str, ...]) -> Any:
    """An audit hook. What it uses are defaults of its own: the code can change modules, built-in names and frames."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def guard(
        event: str,
        arguments: tuple[Any, ...],
        *,
        kind: Any = type,
        text: Any = str,
        number: Any = int,
        starts: Any = str.startswith,
        ends: Any = str.endswith,
        has: Any = str.__contains__,
        roots: tuple[str, ...] = roots,
        writes: int = writes,
        refused: tuple[str, ...] = _REFUSED,
        error: Any = PermissionError,
    ) -> None:
        if event == "open" or event in ("os.listdir", "os.scandir", "os.walk"):
            # Exactly a text, and without a step up: nothing here may run methods of the code.
            path = arguments[0] if arguments else None
            inside = kind(path) is text and starts(path, roots) and not has(path, "/../") and not ends(path, "/..")
            changes = event == "open" and kind(arguments[2]) is number and arguments[2] & writes
            if not inside or changes:
                raise error("code of a model has no files")
        elif starts(event, refused):
            raise error(f"code of a model may not do this: {event}")

    return guard
