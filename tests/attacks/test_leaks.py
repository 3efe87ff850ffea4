"""Thousands of evaluations leave nothing behind: no memory, no open file, no process; `make leaks` does more."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = 250


def test_two_thousand_evaluations_of_each_kind_leak_nothing() -> None:
    command = [sys.executable, "-m", "tests.attacks.leaks", str(ROUNDS)]
    measured = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert measured.returncode == 0, measured.stdout + measured.stderr
