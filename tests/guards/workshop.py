"""A copy of the repository in which one file at a time is sabotaged and one test is run.

A copy keeps its compiled modules. The sabotaged file gets a unique modification time, so Python compiles it again, and
no compiled form is written while it is in place; restoring the original makes its compiled form valid again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.guards.guard import ROOT, Guard, read_sources

COPIED = ("src", "tests", "pyproject.toml")
HANG_SECONDS = 20.0
"""pytest ends a test after this long."""
GRACE_SECONDS = 20.0

Fate = Literal["killed", "killed (hang)", "SURVIVED", "BROKEN"]

RED, GREEN = 1, 0
"""Exit codes of pytest. Any other one means that the test did not run."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The fate of one mutant."""

    guard: Guard
    fate: Fate
    seconds: float
    words: str = ""
    """The end of pytest's output, unless the mutant was killed."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Exit code of pytest, -1 when it was killed, and the seconds of each test that passed."""

    code: int
    seconds: float
    output: str
    passed: dict[str, float]


class Workshop:
    """One copy of the repository, and the process that runs its tests."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        self.sources = read_sources(root)
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=ignored)
            else:
                shutil.copy2(root / name, folder / name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHON"))}
        environment["PYTHONPATH"] = str(folder / "src")
        self._inside = subprocess.Popen(
            [sys.executable, "-m", "tests.guards.inside"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *exc: object) -> None:
        self._inside.communicate()

    def try_guard(self, guard: Guard, number: int) -> Verdict:
        """Break a guard and run its test."""
        name, broken = guard.broken(self.sources)
        path = self.folder / name
        date = path.stat()
        path.write_text(broken)
        # Python recognises compiled modules by modification time and size.
        os.utime(path, (number + 1, number + 1))
        try:
            report = self.play([guard.test], compiled=False)
        finally:
            path.write_text(self.sources[name])
            os.utime(path, ns=(date.st_atime_ns, date.st_mtime_ns))
        return check(guard, report)

    def play(self, tests: list[str], *, compiled: bool = True) -> Report:
        """Run tests in this copy."""
        results, output = self.folder / "results.json", self.folder / "output.txt"
        for path in (results, output):
            path.unlink(missing_ok=True)
        request = {
            "results": str(results),
            "output": str(output),
            "seconds": HANG_SECONDS,
            "limit": len(tests) * HANG_SECONDS + GRACE_SECONDS,
            "tests": tests,
            "compiled": compiled,
        }
        started = time.monotonic()
        code = self._ask(json.dumps(request))
        seconds = time.monotonic() - started
        words = output.read_text(errors="replace") if output.exists() else ""
        passed = json.loads(results.read_text()) if results.exists() else {}
        return Report(code=code, seconds=seconds, output=words, passed=passed)

    def _ask(self, request: str) -> int:
        asked, answered = self._inside.stdin, self._inside.stdout
        assert asked is not None and answered is not None
        asked.write(request + "\n")
        asked.flush()
        return int(answered.readline())


def check(guard: Guard, report: Report) -> Verdict:
    """A mutant is killed by a red test or by a hang."""
    fate: Fate = "BROKEN"
    if report.code == RED:
        fate = "killed (hang)" if "from pytest-timeout" in report.output else "killed"
    elif report.code == GREEN:
        fate = "SURVIVED"
    elif report.code == -1:
        fate = "killed (hang)"
    words = "" if fate.startswith("killed") else report.output[-2_000:]
    return Verdict(guard=guard, fate=fate, seconds=report.seconds, words=words)
