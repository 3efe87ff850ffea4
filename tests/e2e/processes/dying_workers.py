"""Workers that are killed at one point of their work, one after the other, until their run has ended or is set aside.

`python -m tests.e2e.processes.dying_workers URL RUN POINT` prints how many were lost. Each worker is a process of its
own; at the point it kills itself as the kernel kills a process that needs too much memory.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import tidemill
import tidemill.engine.attempts.attempt
import tidemill.engine.attempts.compensation
import tidemill.engine.attempts.results
import tidemill.engine.catalog
import tidemill.engine.children
import tidemill.engine.compiled
import tidemill.stores.sqlite.transactional as transactional
from tidemill.kernel.decide.retries import SET_ASIDE

LOST_MAX = 9
SECONDS_MAX = 60

POINTS: dict[str, tuple[Any, str]] = {
    "template": (tidemill.engine.attempts.attempt, "rendered"),
    "when": (tidemill.engine.attempts.attempt, "find_admission"),
    "branch": (tidemill.engine.attempts.attempt, "find_route"),
    "compile": (tidemill.engine.compiled.CompiledWorkflow, "program"),
    "undo": (tidemill.engine.attempts.compensation, "rendered"),
    "outputs": (tidemill.engine.attempts.results, "needed_for_outputs"),
    "child": (tidemill.engine.children, "checked_inputs"),
    "report": (tidemill.engine.children, "as_payload"),
    "load": (tidemill.engine.catalog, "decode_workflow"),
    "statement": (transactional, "_instr"),
}
"""By name: a function that is called there."""


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it is dead")


class Logged(logging.Handler):
    set_aside = False

    def emit(self, record: logging.LogRecord) -> None:
        self.set_aside = self.set_aside or SET_ASIDE in record.getMessage()


def work(url: str, run_id: str) -> None:
    functions: dict[str, Callable[..., Any]] = {"die": die, "ok": lambda: "ok", "fail": lambda: 1 / 0}
    logged = Logged()
    logging.getLogger("tidemill").addHandler(logged)
    with tidemill.open(url, functions=functions) as mill:
        until = time.monotonic() + SECONDS_MAX
        # Read from its row, because this process may not survive reading the run.
        while not logged.set_aside and time.monotonic() < until:
            ended = [row for row in mill.find(["status:FAILED"])[0] if row.run_id == run_id]
            if ended and ended[0].rollback != "running":
                return
            time.sleep(0.05)


def main(url: str, run_id: str, point: str) -> None:
    """The parent has no threads, so that it can fork."""
    for lost in range(LOST_MAX):
        worker = os.fork()
        if worker == 0:
            if point in POINTS:
                setattr(*POINTS[point], die)
            try:
                work(url, run_id)
            finally:
                os._exit(0)
        _, status = os.waitpid(worker, 0)
        if not os.WIFSIGNALED(status):
            print(lost)
            return
    print(LOST_MAX)


if __name__ == "__main__":
    main(*sys.argv[1:])
