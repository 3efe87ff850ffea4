"""Where guards are broken: copies of the repository in which one file at a time is sabotaged and one test is run.

A copy keeps the compiled form of all its modules. The sabotaged file is given a date of its own, so Python compiles it
anew, and nothing compiled is written while it is in place; putting the original back makes the old form valid again.
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

from tests.mutants.guard import ROOT, Guard

COPIED = ("src", "tests", "pyproject.toml")
SLOW_SECONDS = 5.0
"""A test that takes longer on the sound code is too slow to tell a hang from work."""
HANG_SECONDS = 20.0
"""pytest ends a test after this long."""
GRACE_SECONDS = 20.0

Fate = Literal["killed", "killed (hang)", "SURVIVED", "BROKEN"]

RED, GREEN = 1, 0
"""Exit codes of pytest: tests failed, all passed. Anything else means that the test did not really run."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one mutant."""

    guard: Guard
    fate: Fate
    seconds: float
    words: str = ""
    """The end of pytest's output, unless the mutant was killed."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What pytest said: its exit code, -1 when it had to be killed, and the seconds of each test that passed."""

    code: int
    seconds: float
    output: str
    passed: dict[str, float]


class Workshop:
    """One copy of the repository, and the process that runs its tests."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=ignored)
            else:
                shutil.copy2(root / name, folder / name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHON"))}
        environment["PYTHONPATH"] = str(folder / "src")
        self._inside = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.inside"],
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
        """Break a guard and see whether its test notices."""
        path = self.folder / guard.path
        sound, date = path.read_text(), path.stat()
        path.write_text(guard.broken(sound))
        # Compiled modules are recognised by date and size: this date occurs nowhere else.
        os.utime(path, (number + 1, number + 1))
        try:
            report = self.play([guard.test], compiled=False)
        finally:
            path.write_text(sound)
            os.utime(path, ns=(date.st_atime_ns, date.st_mtime_ns))
        return judge(guard, report)

    def play(self, tests: list[str], *, compiled: bool = True) -> Report:
        """Run tests in this copy, which must import the package from it."""
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


def judge(guard: Guard, report: Report) -> Verdict:
    """A mutant is killed by a red test or by a hang; a test that could not run proves nothing."""
    fate: Fate = "BROKEN"
    if report.code == RED:
        fate = "killed (hang)" if "from pytest-timeout" in report.output else "killed"
    elif report.code == GREEN:
        fate = "SURVIVED"
    elif report.code == -1:
        fate = "killed (hang)"
    words = "" if fate.startswith("killed") else report.output[-2_000:]
    return Verdict(guard=guard, fate=fate, seconds=report.seconds, words=words)
