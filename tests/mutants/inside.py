"""The process that runs a copy's tests: `python -m tests.mutants.inside RESULTS SECONDS TEST…`, started in the copy.

It refuses to work when the package or the tests come from anywhere else, because then nothing would be proven.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tests
import tidemill

QUIET = ("--quiet", "--no-header", "--tb=short", "-x", "-p", "no:cacheprovider", "-p", "no:xdist")
FOREIGN = 90
"""The exit code for code that is not the copy's."""


class Notes:
    """A pytest plugin that writes down how long each test took, all phases together, and whether it passed."""

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
    here = Path.cwd().resolve()
    foreign = [str(module.__file__) for module in (tidemill, tests) if here not in Path(str(module.__file__)).parents]
    if foreign:
        print(f"not the copy's code: {', '.join(foreign)}")
        return FOREIGN
    notes = Notes()
    code = pytest.main([*QUIET, f"--timeout={seconds}", *nodes], plugins=[notes])
    Path(results).write_text(json.dumps(notes.passed()))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
