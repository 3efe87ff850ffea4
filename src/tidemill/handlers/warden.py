"""The process between a worker and a program that it runs: nothing that the program has started outlives it.

The worker starts this file as a script and says over a socket what to run. On Linux all that loses its parent below
here comes back to here, a daemon too, whatever session it has begun. So when the program ends, when the worker says so,
when the worker is gone, or when all of it together takes more memory than it may, every one of them can be found and
killed. Then the worker is told how it ended. Elsewhere only the program's process group is killed.

One is started for every command, so it needs nothing but a few modules of the standard library.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress

MARK = "TIDEMILL_WARD"
"""The variable by which those are found who have killed their warden; the worker gives each warden another value."""
HEADER_SIZE = 4
"""An order is its length in so many bytes, and its body."""
GROUP = 0x80
"""A byte from the worker is a signal for the program; with this bit, for its process group."""
WATCH_MS = 100
"""How often the memory is looked at."""
ROUND_SECONDS = 0.001
ENDING_SECONDS = 5.0
"""How long those are tried to be killed that cannot be, because they belong to somebody else."""
NOT_STARTED = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_HELD = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_SHARED_OUT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def descendants(root: int) -> list[int]:
    """All processes below one, on Linux."""
    found: list[int] = []
    sought = [root]
    while sought:
        children = _children(sought.pop())
        found += children
        sought += children
    return found


def living(pids: list[int]) -> list[int]:
    """Those of the processes that still run; one that has ended but was not waited for does not."""
    return [pid for pid in pids if _state(pid) not in (b"", b"Z", b"X")]


def memory_of(pids: list[int], bytes_max: int) -> int:
    """The bytes that processes hold together, in memory or swapped out: their own, and those that they share.

    What several of them share is counted for each at first, because that is quick to read. Only if that is more than
    they may have, it is divided among them. Mapped files are not counted: the kernel can let go of those.
    """
    held = sum(_kilobytes(pid, "status", _HELD) or 0 for pid in pids) << 10
    if held <= bytes_max:
        return held
    exact = [_kilobytes(pid, "smaps_rollup", _SHARED_OUT) for pid in pids]
    return sum(each or 0 for each in exact) << 10 if any(exact) else held


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _state(pid: int) -> bytes:
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2][1:2]


def _kilobytes(pid: int, file: str, names: tuple[bytes, ...]) -> int | None:
    lines = [line.split() for line in _read(f"/proc/{pid}/{file}").splitlines()]
    counted = [int(line[1]) for line in lines if line[0] in names]
    return sum(counted) if counted else None


def _read(path: str) -> bytes:
    """A file of the kernel's, or nothing when its process is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


class Errand:
    """What the worker wants to have run. `tidemill.handlers.wards.Order` says what each of it means."""

    def __init__(
        self,
        program: bytes,
        argv: list[bytes],
        env: dict[bytes, bytes] | None,
        fds: list[int],
        data_max: int | None,
        memory_max: int | None,
    ) -> None:
        self.program, self.argv, self.env, self.fds = program, argv, env, fds
        self.data_max, self.memory_max = data_max, memory_max


class Brood:
    """The program and whatever it has started."""

    def __init__(self, program: int) -> None:
        self.program = program
        self.status: int | None = None
        """How the program ended; negative is the number of a signal."""

    def tell(self, word: int) -> None:
        """Send a signal to the program or to its group, unless the number may belong to somebody else by now."""
        if self.status is None:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if word & GROUP else os.kill)(self.program, word & ~GROUP)

    def reaped(self) -> bool:
        """Take note of who has ended; whether anybody is left."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.program:
                    self.status = os.waitstatus_to_exitcode(status)
        return False

    def end(self) -> None:
        """Kill them all. Whoever loses its parent meanwhile comes back to here, and is killed in the next round."""
        until = time.monotonic() + ENDING_SECONDS
        self.tell(signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.program, signal.SIGKILL)
        while self.reaped() and time.monotonic() < until:
            for pid in descendants(os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(ROUND_SECONDS)


def main(control: socket.socket) -> None:
    """Run one program to the end of everything that it has started."""
    control.set_inheritable(False)
    # A service that is stopped ends its programs through its worker.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    errand = _errand(control)
    if errand is None:
        return
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    deaths = _deaths()
    brood, error = _started(errand)
    _let_go(errand.fds)
    taken = 0 if error else _watched(control, deaths, brood, errand.memory_max)
    brood.end()
    with suppress(OSError):
        control.sendall(marshal.dumps((brood.status, taken, error)))


def _watched(control: socket.socket, deaths: int, brood: Brood, memory_max: int | None) -> int:
    """Wait until the program has ended or has to be ended; answers its memory if that is too much."""
    news = select.poll()
    news.register(control, select.POLLIN)
    news.register(deaths, select.POLLIN)
    while True:
        ready = {fd for fd, _ in news.poll(None if memory_max is None else WATCH_MS)}
        if deaths in ready:
            os.read(deaths, 4096)
        brood.reaped()
        if brood.status is not None:
            return 0
        if control.fileno() in ready:
            words = control.recv(64)
            if not words:
                return 0
            for word in words:
                brood.tell(word)
        if memory_max is not None:
            taken = memory_of(descendants(os.getpid()), memory_max)
            if taken > memory_max:
                return taken


def _started(errand: Errand) -> tuple[Brood, int]:
    """Start the program; with the number of the error if that was not possible."""
    heard, told = os.pipe()
    program = os.fork()
    if program == 0:
        try:
            _become(errand)
        except BaseException as failure:
            number = failure.errno if isinstance(failure, OSError) else None
            os.write(told, (number or errno.EINVAL).to_bytes(HEADER_SIZE, "big"))
        finally:
            os._exit(NOT_STARTED)
    os.close(told)
    # The pipe is closed by the kernel when the program runs.
    error = int.from_bytes(os.read(heard, HEADER_SIZE), "big")
    os.close(heard)
    return Brood(program), error


def _become(errand: Errand) -> None:
    """In the copy: turn into the program, which dies with the warden, and before others when memory runs out."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (*_IGNORED, *_CHANGED_BY_PYTHON):
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    if errand.data_max is not None:
        _bound(errand.data_max)
    if errand.env is None:
        os.execv(errand.program, errand.argv)
    else:
        os.execve(errand.program, errand.argv, {**errand.env, MARK.encode(): os.environb[MARK.encode()]})


def _bound(data_max: int) -> None:
    """Bound the private memory of each process that can be written to; only root can lift that again.

    The whole address space cannot be bounded: a thread alone reserves 72 MB of it, and uses hardly any.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = data_max if hard == resource.RLIM_INFINITY else min(data_max, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _errand(control: socket.socket) -> Errand | None:
    """What to run; nothing when the worker is gone."""
    size = _received(control, HEADER_SIZE)
    body = None if size is None else _received(control, int.from_bytes(size, "big"))
    return None if body is None else Errand(*marshal.loads(body))


def _received(control: socket.socket, size: int) -> bytes | None:
    body = bytearray()
    while len(body) < size:
        part = control.recv(min(size - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return bytes(body)


def _deaths() -> int:
    """A pipe that can be read when a process below this one has ended."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    return heard


def _let_go(fds: list[int]) -> None:
    """Close what only the program needs: its output ends when nobody holds it any more."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    for fd in fds:
        os.close(fd)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        # Only here: the worker imports this file too, for what both have to know.
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
    # The worker waits for it, so it does not tidy up.
    os._exit(0)
