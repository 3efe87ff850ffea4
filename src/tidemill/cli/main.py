"""The entry point of the installed script, the exit codes, and the report of errors that no command handled.

A user never sees a traceback: a refusal is a list of problems, and an unforeseen exception is one line that asks to be
reported. The exit codes are a promise to scripts (`docs/reference/cli.md`). This module imports nothing of the engine.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def main() -> None:
    """Run the command line and end the process with its exit code."""
    # Modules are never garbage, and looking for it while they are imported takes 7 % of a short command.
    gc.disable()
    code = call(sys.argv[1:])
    from tidemill.cli.render.terminal import leave

    leave(code)


def start_collector() -> None:
    """Enable the garbage collector, which `main` has delayed, and exempt everything imported so far."""
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


SWITCH_SECONDS = 0.0005
RELEASE_EVERY_SECONDS = 5


def prepare_long_life() -> None:
    """Set up a process that serves for long.

    Threads that compute release the interpreter's lock soon, because the loop of a worker waits for it at every hop.
    A thread returns freed memory to the system, because glibc keeps most of it.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    threading.Thread(target=_release_memory_for_ever, name="tidemill-memory", daemon=True).start()


def _release_memory_for_ever() -> None:
    while release_memory():
        time.sleep(RELEASE_EVERY_SECONDS)


def release_memory() -> bool:
    """Return freed memory to the system; False where the C library cannot. Other threads keep running."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


def call(arguments: Sequence[str]) -> int:
    """Run one command in this process and return its exit code; nothing is raised."""
    from tidemill.cli.render.terminal import configure_streams

    configure_streams()

    def command() -> int:
        from tidemill.cli.app import run_app

        return run_app(arguments)

    return guarded(command, as_json="--json" in arguments)


OK = 0
FAILED = 1
"""The run failed or was cancelled, an expression has no result, something that is stored is damaged, or the store or
server does not answer."""
REFUSED = 2
"""Bad input, or no room on the disk: nothing was done."""
BUG = 70
INTERRUPTED = 130
TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, where a command ends as after Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in the main thread on SIGTERM."""

    def on_signal(number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


TRACEBACK = "TIDEMILL_TRACEBACK"


def guarded(command: Callable[[], int], *, as_json: bool = False) -> int:
    """Run a command; never raise. With `as_json`, errors that a program can react to are printed as JSON."""
    on_terminal = sys.stdout.isatty()
    try:
        return command()
    except KeyboardInterrupt as interrupt:
        return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
    except Exception as error:
        # The reader (`head`, a pager or terminal that was closed) has seen enough.
        lost = isinstance(error, OSError) and error.errno == errno.EIO and on_terminal and not sys.stdout.isatty()
        if lost or isinstance(error, BrokenPipeError):
            return FAILED
        return _explain(error, as_json)


def _explain(error: Exception, as_json: bool) -> int:
    from tidemill.errors import DiskFull, Rejected, ServerUnavailable, StoreUnusable, TidemillError, Unavailable

    if isinstance(error, (Rejected, StoreUnusable)):
        from tidemill.cli.render.tables import report_refusal

        report_refusal(error, as_json=as_json)
        return REFUSED
    if isinstance(error, DiskFull):
        # A worker waits for free space and continues; a command does not, and its request was not executed.
        _report("disk_full", str(error), "then repeat the command: it was not executed", as_json)
        return REFUSED
    if isinstance(error, ServerUnavailable):
        _report("server_unavailable", str(error), "try again later", as_json)
        return FAILED
    if isinstance(error, Unavailable):
        _report("store_unavailable", f"the store does not answer: {error}", "try again later", as_json)
        return FAILED
    if isinstance(error, TidemillError):
        # Foreign code has broken the process; the text says how.
        print(f"tidemill: {error}", file=sys.stderr)
        return BUG
    if os.environ.get(TRACEBACK):
        import traceback

        traceback.print_exception(error)
    from tidemill.cli.render.terminal import sanitize

    text = sanitize(f"{type(error).__name__}: {error}".splitlines()[0][:300])
    print(f"tidemill: this is a bug: {text} (set {TRACEBACK}=1 to see where, and please report it)", file=sys.stderr)
    return BUG


def _report(code: str, message: str, hint: str, as_json: bool) -> None:
    """Print one line for a person, or the same as a problem for a program."""
    if not as_json:
        print(f"tidemill: {message}; {hint}", file=sys.stderr)
        return
    from tidemill.cli.render.terminal import report_problems
    from tidemill.errors import Problem

    report_problems([Problem(code=code, message=message, hint=hint)], as_json=True)
