"""The process that runs a copy's tests: `python -m tests.guards.inside`, started in the copy.

It reads requests from its input and answers each with an exit code. A forked child serves each request; it has
imported pytest and the libraries but none of the copy's code, which makes hundreds of mutants cheap. A child refuses
to run when the package or the tests were imported from outside the copy.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

QUIET = ("--quiet", "--no-header", "--tb=short", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")
WARM = (
    "asyncio",
    "hypothesis",
    "jinja2.sandbox",
    "jsonschema_rs",
    "msgspec",
    "pytest_asyncio.plugin",
    "pytest_timeout",
)
"""Imported before the fork, because nearly every test needs it."""
UNMOVED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
FOREIGN = 90
"""Exit code: the code under test was not imported from the copy."""
KILLED = -1
"""The answer for a child that took too long."""
LOOK_SECONDS = 0.005


class Notes:
    """A pytest plugin that records the duration of each test and whether it passed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.bad: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.bad.add(report.nodeid)

    def passed(self) -> dict[str, float]:
        return {name: seconds for name, seconds in self.seconds.items() if name not in self.bad}


def main(results: str, seconds: str, *nodes: str) -> int:
    """Run the tests and write the seconds of those that passed to `results`."""
    import tests
    import tidemill

    here = Path.cwd().resolve()
    foreign = [str(module.__file__) for module in (tidemill, tests) if here not in Path(str(module.__file__)).parents]
    if foreign:
        print(f"not the copy's code: {', '.join(foreign)}")
        return FOREIGN
    notes = Notes()
    code = pytest.main([*QUIET, *UNMOVED, f"--timeout={seconds}", *nodes], plugins=[notes])
    Path(results).write_text(json.dumps(notes.passed()))
    return int(code)


def serve() -> None:
    """Answer requests until there are no more."""
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _serve_one(request)
        print(_outcome(child, request["limit"]), flush=True)


def _serve_one(request: dict[str, Any]) -> None:
    """What a child does; it never returns."""
    code = FOREIGN
    try:
        os.setsid()
        for stream, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
            os.dup2(os.open(request["output"] if stream else os.devnull, mode | os.O_CREAT | os.O_APPEND), stream)
        sys.dont_write_bytecode = not request["compiled"]
        code = main(request["results"], str(request["seconds"]), *request["tests"])
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _outcome(child: int, limit: float) -> int:
    """The exit code of a child, which has so many seconds."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(LOOK_SECONDS)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return KILLED


if __name__ == "__main__":
    serve()
