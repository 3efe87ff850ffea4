"""The test runner keeps its promises: no skipping, no empty suite, an honest last line, and no failure by time."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import run

SUITE = run.Suite(name="kernel", paths=("tests/unit/kernel",), seconds=10, workers=0)


GOOD = run.Outcome(suite=SUITE, passed=3, seconds=9.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"seconds": 1_000.0}, []),
        ({"skipped": 2}, ["kernel: 2 skipped or expected to fail; every test must run and pass"]),
        ({"passed": 0, "exit_code": 5}, ["kernel: no test ran", "kernel: pytest ended with exit code 5"]),
        ({"exit_code": -9}, ["kernel: pytest ended with exit code -9"]),
        ({"failed": 1, "exit_code": 1}, []),
    ],
)
def test_complaints_count_as_failures(changes: dict[str, Any], words: list[str]) -> None:
    found, passed, failed = run.verdict([replace(GOOD, **changes)])
    assert found == words
    assert passed == changes.get("passed", 3)
    assert failed == len(words) + changes.get("failed", 0)


def test_a_suite_over_its_budget_gets_a_warning() -> None:
    assert run.slow([GOOD, replace(GOOD, seconds=15.0)]) == []
    assert run.slow([replace(GOOD, seconds=15.1), GOOD]) == ["kernel: took 15.1 s, budget 10 s"]


def test_a_slow_suite_passes_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_suite", lambda suite: replace(GOOD, suite=suite, seconds=suite.seconds * 100))
    assert run.main(["house", "simulation"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith(("SLOW", "FAILED"))] == [
        "SLOW house",
        "SLOW simulation",
    ]
    assert lines[-1] == "6 passed, 0 failed"


def test_suites_beside_each_other_are_told_in_their_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(
            f"def test_{name}(tmp_path): print(tmp_path); assert {name!r} == 'a'\n"
        )
    suites = [
        run.Suite(name=name, paths=(str(tmp_path / name),), seconds=at, workers=2) for at, name in enumerate("ab", 1)
    ]
    outcomes = run.run_beside(suites)
    assert [(seen.suite.name, seen.passed, seen.failed) for seen in outcomes] == [("a", 1, 0), ("b", 0, 1)]
    said = capfd.readouterr().out
    assert said.startswith("== b, a\n") and "1 failed" in said


@pytest.mark.parametrize(("free", "place"), [(0, "there"), (1 << 60, None)])
def test_files_are_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, place: str | None
) -> None:
    monkeypatch.setattr(run, "IN_MEMORY", str(tmp_path))
    monkeypatch.setattr(run, "IN_MEMORY_BYTES", free)
    assert run.in_memory() == (place and str(tmp_path))
    monkeypatch.setattr(run, "IN_MEMORY", str(tmp_path / "absent"))
    assert run.in_memory() is None


def budget(*rows: tuple[str, int]) -> str:
    return "".join(
        f"[[suite]]\nname = '{name}'\npaths = ['tests/{name}']\nseconds = {seconds}\nworkers = 2\n"
        for name, seconds in rows
    )


def test_suites_are_read_in_order() -> None:
    assert run.read_suites(budget(("b", 20), ("a", 90))) == (
        run.Suite(name="b", paths=("tests/b",), seconds=20, workers=2),
        run.Suite(name="a", paths=("tests/a",), seconds=90, workers=2),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (budget(("a", 1), ("a", 1)), "named twice"),
        (budget(("a", 0)), "positive seconds"),
    ],
)
def test_a_senseless_budget_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run.read_suites(text)


def test_the_table_shows_every_suite_and_the_whole() -> None:
    lines = run.table([GOOD, replace(GOOD, suite=run.Suite(name="sim", paths=("s",), seconds=90, workers=2))])
    assert [line.split() for line in lines.splitlines()] == [
        ["suite", "passed", "seconds", "budget"],
        ["kernel", "3", "9.0", "10"],
        ["sim", "3", "9.0", "90"],
        ["total", "6", "18.0", "100"],
    ]


MIXED = """
import pytest
@pytest.fixture
def broken(): raise OSError
def test_passes(): assert True
def test_fails(): assert False
def test_errors(broken): assert True
def test_skips(): pytest.skip('why')
@pytest.mark.xfail
def test_expected(): assert False
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_pytest_is_understood(tmp_path: Path, workers: int) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_mixed.py").write_text(MIXED)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.skip('why', allow_module_level=True)\n")
    suite = run.Suite(name="mixed", paths=(".",), seconds=30, workers=workers)
    seen = run.run_suite(suite, tmp_path)
    assert (seen.passed, seen.failed, seen.skipped, seen.exit_code) == (1, 2, 3, 1)


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_tests_can_interrupt_where_the_shell_has_ignored_it() -> None:
    """`make test &` in a script ignores interrupts, and every command of a test would inherit that."""
    program = (
        "import signal",
        "usual = signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import tests.conftest",
        "assert signal.getsignal(signal.SIGINT) is usual",
    )
    command = [sys.executable, "-c", "\n".join(program)]
    done = subprocess.run(
        command, cwd=run.ROOT, stderr=subprocess.PIPE, text=True, check=False, timeout=120, preexec_fn=_interruptible
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_suite_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text("import time\ndef test_hangs(): time.sleep(60)\n")
    suite = run.Suite(name="hangs", paths=(".",), seconds=600, workers=0)
    seen = run.run_suite(suite, tmp_path, hang_seconds=1)
    assert (seen.passed, seen.exit_code) == (0, -9)
    assert run.HANG_SECONDS >= 20 * 60


def test_a_suite_is_not_ended_by_its_budget(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text("def test_slow(): assert True\n")
    seen = run.run_suite(run.Suite(name="slow", paths=(".",), seconds=0.001, workers=0), tmp_path)
    assert (seen.passed, seen.exit_code) == (1, 0)
