"""Run the test suites, and warn of those that are slow.

The suites of `make test` run beside each other, each in one process, so that every module is imported once and what a
session shares is made once. A suite that is asked for alone, and those of `make test-long`, are spread over processes.
`tests/budget.toml` names the suites. A suite fails when a test of it fails, when one was skipped or expected to fail,
or when no test ran. Every such complaint counts as a failure, so the last line, `N passed, M failed`, says `0 failed`
only when the exit code is 0. Time decides nothing: a suite over its budget gets a warning, and only one that hangs for
`HANG_SECONDS` is killed. Nothing beyond the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "tests" / "budget.toml"
OVERRUN_MAX = 1.5
HANG_SECONDS = 1200.0
"""Protects CI from a suite that never ends; far above what any suite takes on a slow machine."""
BESIDE = 3
"""Suites at a time: more than the cores of a small machine, because many tests wait."""
SLOWEST = 5
"""Tests that every suite names with their seconds, if they took longer than two."""
IN_MEMORY = "/dev/shm"
IN_MEMORY_BYTES = 2 << 30
"""What must be free there: with less, the files of the tests stay on the disk."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What to run, in how many processes (0 for none beside pytest's own), and how long it usually takes."""

    name: str
    paths: tuple[str, ...]
    seconds: float
    workers: int
    long: bool = False
    """Left to `make test-long`."""
    browser: bool = False
    """Left to `make test-web`: it needs a Chromium."""
    disk: bool = False
    """Its files are on a disk, because they shall be synced; those of the others may be in memory."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What pytest reported about one suite."""

    suite: Suite
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    exit_code: int = 0


def read_suites(text: str) -> tuple[Suite, ...]:
    """Read the budget file; raises ValueError where it makes no sense as a whole."""
    suites = tuple(
        Suite(
            name=row["name"],
            paths=tuple(row["paths"]),
            seconds=row["seconds"],
            workers=row["workers"],
            long=row.get("long", False),
            browser=row.get("browser", False),
            disk=row.get("disk", False),
        )
        for row in tomllib.loads(text)["suite"]
    )
    names = [suite.name for suite in suites]
    if len(set(names)) != len(names):
        raise ValueError(f"a suite is named twice: {names}")
    if not all(suite.paths and suite.seconds > 0 and suite.workers >= 0 for suite in suites):
        raise ValueError("every suite needs paths, positive seconds and a number of workers")
    return suites


def count(junit_xml: str) -> tuple[int, int, int]:
    """Count passed, failed and skipped tests; an expected failure is a skipped one."""
    passed = failed = skipped = 0
    for case in ElementTree.fromstring(junit_xml).iter("testcase"):
        marks = {child.tag for child in case}
        if marks & {"failure", "error"}:
            failed += 1
        elif "skipped" in marks:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def complaints(outcome: Outcome) -> list[str]:
    """Say what is wrong with a suite beyond its failed tests."""
    found = []
    if outcome.skipped:
        found.append(f"{outcome.skipped} skipped or expected to fail; every test must run and pass")
    if not outcome.passed and not outcome.failed:
        found.append("no test ran")
    if outcome.exit_code and not outcome.failed:
        found.append(f"pytest ended with exit code {outcome.exit_code}")
    return found


def slow(outcomes: Sequence[Outcome]) -> list[str]:
    """Name the suites that took much longer than their budgets: a warning, whatever the reason."""
    return [
        f"{outcome.suite.name}: took {outcome.seconds:.1f} s, budget {outcome.suite.seconds:.0f} s"
        for outcome in outcomes
        if outcome.seconds > outcome.suite.seconds * OVERRUN_MAX
    ]


def verdict(outcomes: Sequence[Outcome]) -> tuple[list[str], int, int]:
    """Judge the whole: complaints in words, tests passed, and failures including the complaints."""
    words = [f"{outcome.suite.name}: {problem}" for outcome in outcomes for problem in complaints(outcome)]
    passed = sum(outcome.passed for outcome in outcomes)
    return words, passed, sum(outcome.failed for outcome in outcomes) + len(words)


def table(outcomes: Sequence[Outcome]) -> str:
    """Draw one row per suite and one for the whole."""
    rows = [("suite", "passed", "seconds", "budget")]
    rows += [(o.suite.name, str(o.passed), f"{o.seconds:.1f}", f"{o.suite.seconds:.0f}") for o in outcomes]
    seconds = sum(outcome.seconds for outcome in outcomes)
    passed = sum(outcome.passed for outcome in outcomes)
    rows.append(("total", str(passed), f"{seconds:.1f}", f"{sum(o.suite.seconds for o in outcomes):.0f}"))
    return "\n".join(f"{name:<16}{passed:>8}{seconds:>10}{budget:>8}" for name, passed, seconds, budget in rows)


def run_suite(suite: Suite, root: Path = ROOT, hang_seconds: float = HANG_SECONDS, *, quiet: bool = False) -> Outcome:
    """Run one suite in a process group of its own, which is killed when it hangs; `quiet` prints at its end."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    with tempfile.TemporaryDirectory(dir=None if suite.disk else in_memory()) as folder:
        os.chmod(folder, 0o1777)  # Servers of tests may run as another user.
        environment["TMPDIR"] = folder
        report, said = Path(folder) / "report.xml", Path(folder) / "output.txt"
        command = [sys.executable, "-m", "pytest", "--quiet", f"--junit-xml={report}", "-n", str(suite.workers)]
        command += [f"--durations={SLOWEST}", "--durations-min=2"]
        command += ["--dist", "worksteal"] if suite.workers else []
        started = time.monotonic()
        with said.open("wb") if quiet else contextlib.nullcontext() as output:
            process = subprocess.Popen(
                [*command, *suite.paths],
                cwd=root,
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if quiet else None,
            )
        try:
            exit_code = process.wait(timeout=hang_seconds)
        except subprocess.TimeoutExpired:
            exit_code = -signal.SIGKILL
        finally:
            end_group(process)
        seconds = time.monotonic() - started
        passed, failed, skipped = count(report.read_text()) if report.exists() else (0, 0, 0)
        if quiet:
            print(f"== {suite.name}: {seconds:.0f} s\n{said.read_text(errors='replace')}", flush=True)
    return Outcome(suite=suite, passed=passed, failed=failed, skipped=skipped, seconds=seconds, exit_code=exit_code)


def in_memory() -> str | None:
    """A folder in memory, where a sync costs nothing, if it is large enough and programs may be run there."""
    with contextlib.suppress(OSError):
        found = os.statvfs(IN_MEMORY)
        executable = not found.f_flag & getattr(os, "ST_NOEXEC", 8)
        if executable and found.f_bavail * found.f_frsize >= IN_MEMORY_BYTES and os.access(IN_MEMORY, os.W_OK):
            return IN_MEMORY
    return None


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Leave no process of a suite behind, not even one its tests forgot."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_suites(suites: Sequence[Suite]) -> Iterator[Outcome]:
    """Run suites one after another."""
    for suite in suites:
        print(f"== {suite.name} ({suite.seconds:.0f} s)", flush=True)
        yield run_suite(suite)


def run_beside(suites: Sequence[Suite]) -> list[Outcome]:
    """Run suites beside each other, each in one process, the longest first."""
    longest = sorted(suites, key=lambda suite: -suite.seconds)
    print(f"== {', '.join(suite.name for suite in longest)}", flush=True)
    with ThreadPoolExecutor(BESIDE) as pool:
        outcomes = pool.map(lambda suite: run_suite(replace(suite, workers=0), quiet=True), longest)
        return sorted(outcomes, key=lambda outcome: [suite.name for suite in suites].index(outcome.suite.name))


def main(names: Sequence[str]) -> int:
    """Run the named suites, those of `make test-long` (`--long`) or `make test-web` (`--web`), or all others."""
    suites = read_suites(BUDGET.read_text())
    run = run_suites if names else run_beside
    if names == ["--web"]:
        names = [suite.name for suite in suites if suite.browser]
    elif not names or names == ["--long"]:
        names = [suite.name for suite in suites if suite.long is bool(names) and not suite.browser]
    unknown = set(names) - {suite.name for suite in suites}
    if unknown:
        print(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in suites)}")
        return 2
    outcomes = list(run([suite for suite in suites if suite.name in names]))
    words, passed, failed = verdict(outcomes)
    print(f"\n{table(outcomes)}\n")
    for warning in slow(outcomes):
        print(f"SLOW {warning}")
    for problem in words:
        print(f"FAILED {problem}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
