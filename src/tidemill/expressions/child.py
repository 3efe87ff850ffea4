"""The child process that does errands and chores: it reads one, answers, and reads the next, until its parent is gone.

Native code that holds the interpreter's lock listens to nobody, so everything that ends this process is left to
the kernel: the alarm at the deadline, the limit of memory, and the lifeline, a pipe whose other end only the
parent holds. A signal meant for the parent (Ctrl-C, a service that is stopped) must not make a condition fail, so
those are ignored; the parent says when it is over.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from importlib import import_module

from tidemill.expressions.chores import Chore, done
from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.frames import answer_of, packed_answer, unpacked
from tidemill.expressions.interpreter import Interpreter
from tidemill.expressions.leaf import Errand, Leaf
from tidemill.expressions.offspring import HEADER_SIZE, framed, hold_on_to, received, resident_mb, volunteer
from tidemill.expressions.sandbox import MEMORY_MB_MAX, Sandbox
from tidemill.expressions.scope import Scope

MEMORY_MAX_MB = MEMORY_MB_MAX + 256
"""What a condition may take: room for the largest interpreter, and for CEL, whose `map` over 8,000 items needs 1 GB."""

SPENT_MB = 256
"""A child that keeps more than this after an errand is replaced, so that the next one finds enough room."""

FILES_MAX = 64
GRACE_MS = 1000
"""The parent ends this process at the deadline; the alarm comes later, and only matters if there is no parent."""

READY = b""


def main(wire: socket.socket, lifeline: int) -> None:
    """Serve until the parent closes the wire."""
    _prepare()
    # The interpreter's process must not keep them open when this one is gone.
    wire.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    _confine(lifeline)
    interpreter = Interpreter()
    wire.sendall(framed(READY))
    while (header := received(wire, HEADER_SIZE)) is not None:
        body = received(wire, int.from_bytes(header, "big"))
        if body is None:
            return
        value = _decided(body, interpreter)
        signal.setitimer(signal.ITIMER_REAL, 0)
        wire.sendall(packed_answer(answer_of(value, spent=resident_mb() > SPENT_MB)))


def _prepare() -> None:
    """Import what conditions are made of, before the deadline of the first one counts."""
    for kind in ("cel", "compare", "jsonpath", "matching"):
        import_module(f"tidemill.expressions.{kind}")


def _decided(body: bytes, interpreter: Interpreter) -> bool | bytes | ExpressionError:
    """Do an errand or a chore; whatever goes wrong is an answer."""
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


def _done(work: Errand | Chore, interpreter: Interpreter) -> bool | bytes:
    def judge(leaf: Leaf, scope: Scope) -> bool:
        data = leaf.bind(scope)
        return interpreter.holds(leaf, data, scope) if isinstance(leaf, Sandbox) else leaf.holds(data, scope)

    return judge(work.leaf, work.scope) if isinstance(work, Errand) else done(work, judge)


def _confine(lifeline: int) -> None:
    """Give up what is not needed. The process of the interpreter inherits all of it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    volunteer()
    for kind, most in _LIMITS.items():
        resource.setrlimit(kind, (most, most))
    hold_on_to(lifeline)
    # What native code writes when it dies is nothing for the log of the parent; up to here, an error is.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    os.close(silence)


_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: FILES_MAX,
    # Private memory that can be written to, which leaves out mapped libraries and reserved addresses.
    resource.RLIMIT_DATA: MEMORY_MAX_MB << 20,
}
