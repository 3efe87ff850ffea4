"""The child process of the sandbox: it reads an errand or a chore, answers, and reads the next.

Native code that holds the interpreter's lock reacts to nothing, so this process is ended from outside: by the alarm at
the deadline, by the memory limit, or by the supervisor. Signals meant for the parent (Ctrl-C, a service that is
stopped) must not make a condition fail, so the child ignores them.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from importlib import import_module

from tidemill.expressions.chores import SandboxTask, done
from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.frames import answer_of, packed_answer, unpacked
from tidemill.expressions.interpreter import Interpreter
from tidemill.expressions.leaf import Errand, Leaf
from tidemill.expressions.sandbox import MEMORY_MB_MAX, Sandbox
from tidemill.expressions.scope import Scope
from tidemill.processes.supervisor import frame, read_frame, resident_mb

MEMORY_MAX_MB = MEMORY_MB_MAX + 256
"""What a condition may take: room for the largest interpreter, and for CEL, whose `map` over 8,000 items needs 1 GB."""

RETIRE_MB = 256
"""A child that holds more than this after a call is replaced, so that the next call has enough room."""

FILES_MAX = 64
GRACE_MS = 1000
"""The parent ends this process at the deadline; the alarm comes later, and matters only if the parent hangs."""


def main(wire: socket.socket) -> None:
    """Serve until the parent closes the wire."""
    _prepare()
    # The interpreter's process must not keep it open when this one is gone.
    wire.set_inheritable(False)
    _confine()
    interpreter = Interpreter()
    wire.sendall(frame(b""))
    while (body := read_frame(wire)) is not None:
        value = _decided(body, interpreter)
        signal.setitimer(signal.ITIMER_REAL, 0)
        wire.sendall(frame(packed_answer(answer_of(value, retire=resident_mb() > RETIRE_MB))))


def _prepare() -> None:
    """Import the languages of conditions before the deadline of the first one counts."""
    for kind in ("cel", "compare", "jsonpath", "matching"):
        import_module(f"tidemill.expressions.{kind}")


def _decided(body: bytes, interpreter: Interpreter) -> bytes | ExpressionError:
    """Do an errand or a chore; every failure is an answer."""
    what = "the condition"
    try:
        work = unpacked(body)
        what = work.what
        signal.setitimer(signal.ITIMER_REAL, (work.deadline_ms + GRACE_MS) / 1000)
        return _done(work, interpreter)
    except ExpressionError as failure:
        return failure
    except MemoryError:
        return condition_failed(f"{what} needs more than {MEMORY_MAX_MB} MB of memory", "read less of the data")
    except Exception as error:
        return condition_failed(f"{what} could not be decided ({type(error).__name__})")


def _done(work: Errand | SandboxTask, interpreter: Interpreter) -> bytes:
    def judge(leaf: Leaf, scope: Scope) -> bool:
        data = leaf.bind(scope)
        return interpreter.holds(leaf, data, scope) if isinstance(leaf, Sandbox) else leaf.holds(data, scope)

    if isinstance(work, Errand):
        return b"true" if judge(work.leaf, work.scope) else b"false"
    return done(work, judge)


def _confine() -> None:
    """Give up what is not needed. The interpreter's process inherits all of it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for kind, most in _LIMITS.items():
        resource.setrlimit(kind, (most, most))
    # The worker does not need what native code writes when it dies; up to here, it reports errors.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.close(silence)


_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: FILES_MAX,
    # Private memory that can be written to, which leaves out mapped libraries and reserved addresses.
    resource.RLIMIT_DATA: MEMORY_MAX_MB << 20,
}
