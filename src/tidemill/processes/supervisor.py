"""The supervisor script: runs one program, and kills every process that the program leaves behind.

A worker starts this file as a script and sends a launch spec over a socket. On Linux the supervisor is a subreaper:
every orphaned descendant becomes its child, daemons included. When the program ends, the worker closes the socket or
dies, or all processes together exceed their memory limit, it kills every descendant and reports how the program ended.
On other systems it kills the program's process group.

It starts with `-I -S` for each program, so it imports only a few modules of the standard library; the framing is here
because the script can import nothing else of the package.
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

HEADER_SIZE = 4
"""A frame is the length of its body in this many bytes, and the body."""
GROUP = 0x80
"""A byte from the worker is a signal number for the program; with this bit, for its process group."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_SIZE, "big") + body


def read_frame(wire: socket.socket) -> bytes | None:
    """Read the next body from a blocking socket; None if the other side has closed it."""
    header = _read_exactly(wire, HEADER_SIZE)
    return None if header is None else _read_exactly(wire, int.from_bytes(header, "big"))


def _read_exactly(wire: socket.socket, size: int) -> bytes | None:
    body = bytearray()
    while len(body) < size:
        part = wire.recv(min(size - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return bytes(body)


def resident_mb() -> int:
    """Resident memory of this process; 0 where the kernel does not report it."""
    pages = _read("/proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") >> 20 if pages else 0


def descendants(root: int) -> list[int]:
    found = [root]
    for pid in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found[1:]


def living(pids: list[int]) -> list[int]:
    """The processes that still run; zombies do not."""
    states = {pid: _read(f"/proc/{pid}/stat").rpartition(b")")[2][1:2] for pid in pids}
    return [pid for pid, state in states.items() if state not in (b"", b"Z", b"X")]


def memory_of(pids: list[int], bytes_max: int) -> int:
    """Private and shared memory of processes together, resident and swapped; mapped files do not count."""
    # This is quick to read, but counts shared pages once per process.
    held = sum(_kilobytes(pid, "status", (b"RssAnon:", b"RssShmem:", b"VmSwap:")) or 0 for pid in pids) << 10
    if held <= bytes_max:
        return held
    exact = [_kilobytes(pid, "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")) for pid in pids]
    return sum(each or 0 for each in exact) << 10 if any(exact) else held


def _kilobytes(pid: int, file: str, names: tuple[bytes, ...]) -> int | None:
    lines = [line.split() for line in _read(f"/proc/{pid}/{file}").splitlines()]
    counted = [int(line[1]) for line in lines if line[0] in names]
    return sum(counted) if counted else None


def _read(path: str) -> bytes:
    """A file under /proc, or nothing if the process is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


class ProcessTree:
    """The program and all its descendants."""

    def __init__(self, program: int) -> None:
        self.program = program
        self.status: int | None = None
        """Exit status of the program; a negative one is a signal number."""

    def send_signal(self, word: int) -> None:
        """Send a signal to the program or its group, unless it was reaped and its pid may be reused."""
        if self.status is None:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if word & GROUP else os.kill)(self.program, word & ~GROUP)

    def reaped(self) -> bool:
        """Reap ended processes; whether any are left."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.program:
                    self.status = os.waitstatus_to_exitcode(status)
        return False

    def end(self) -> None:
        """Kill all of them. Orphans meanwhile become children of this process: the next round kills them."""
        # Processes of another user cannot be killed.
        until = time.monotonic() + 5.0
        self.send_signal(signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.program, signal.SIGKILL)
        while self.reaped() and time.monotonic() < until:
            for pid in descendants(os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)


def main(control: socket.socket) -> None:
    control.set_inheritable(False)
    # The worker decides when a program ends; a signal to the whole service must not.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    spec = read_frame(control)
    if spec is None:
        return
    program, argv, env, fds, memory_max = marshal.loads(spec)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    deaths = _death_pipe()
    tree, error = _launch(program, argv, env, memory_max)
    # Close the files of the program: its output ends when no process holds them any more.
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    for fd in fds:
        os.close(fd)
    taken = 0 if error else _watch(control, deaths, tree, memory_max)
    tree.end()
    with suppress(OSError):
        control.sendall(marshal.dumps((tree.status, taken, error)))


def _watch(control: socket.socket, deaths: int, tree: ProcessTree, memory_max: int | None) -> int:
    """Wait until the program ends or must be killed; returns its memory if that exceeds the limit."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(deaths, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(None if memory_max is None else 100)}
        if deaths in ready:
            os.read(deaths, 4096)
        tree.reaped()
        if tree.status is not None:
            return 0
        if control.fileno() in ready:
            words = control.recv(64)
            if not words:
                return 0
            for word in words:
                tree.send_signal(word)
        if memory_max is not None:
            taken = memory_of(descendants(os.getpid()), memory_max)
            if taken > memory_max:
                return taken


def _launch(
    program: bytes, argv: list[bytes], env: dict[bytes, bytes], memory_max: int | None
) -> tuple[ProcessTree, int]:
    """Start the program; the second value is an error number, or 0."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _prepare_program(memory_max)
            os.execve(program, argv, env)
        except BaseException as failure:
            number = failure.errno if isinstance(failure, OSError) else None
            os.write(write_end, (number or errno.EINVAL).to_bytes(HEADER_SIZE, "big"))
        finally:
            os._exit(127)
    os.close(write_end)
    # A successful exec closes the pipe.
    error = int.from_bytes(os.read(read_end, HEADER_SIZE), "big")
    os.close(read_end)
    return ProcessTree(pid), error


def _prepare_program(memory_max: int | None) -> None:
    """In the forked copy: it dies with the supervisor, and the kernel picks it first when memory runs out."""
    os.setsid()
    end_with_parent(signal.SIGKILL)
    # Python itself changes the last two.
    for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    if memory_max is not None:
        # Private writable memory; only root can raise it again. The address space is not a measure: one thread reserves
        # 72 MB of it and uses hardly any.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = memory_max if hard == resource.RLIM_INFINITY else min(memory_max, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _death_pipe() -> int:
    """A pipe that becomes readable when a child of this process has ended."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    return read_end


def end_with_parent(number: int) -> None:
    """Let the system send this process a signal when its parent dies, where it can."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        # Not at the top: the worker and its children import this file too.
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
    # The worker waits for this process, so it skips the interpreter's clean-up.
    os._exit(0)
