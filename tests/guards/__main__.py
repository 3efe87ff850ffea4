"""`python -m tests.guards [NAME…]`: break each guard once and expect its test to fail.

First all named tests must pass on the unbroken code. Then each mutant is tried against its own test, two
at a time. Exit code 0 only when every mutant was killed.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.guards.guard import ROOT, Guard, Stale, read_guards
from tests.guards.workshop import Report, Verdict, Workshop

JOBS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guards")
    parser.add_argument("names", nargs="*", help="only these guards")
    names = parser.parse_args(arguments).names
    guards = read_guards()
    unknown = set(names) - {guard.name for guard in guards}
    if unknown:
        print(f"no such guard: {', '.join(sorted(unknown))}")
        return 2
    return campaign([guard for guard in guards if not names or guard.name in names])


def campaign(guards: Sequence[Guard], root: Path = ROOT) -> int:
    """Try the guards and print the fate of each."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidemill-guards-") as folder, ExitStack() as open_places:
        places = [open_places.enter_context(Workshop(Path(folder) / str(number), root)) for number in range(JOBS)]
        complaints = [*stale(guards, places[0]), *unsound(guards, places)]
        if complaints:
            print("\n".join(complaints))
            return 1
        verdicts = try_all(guards, places)
    killed = sum(verdict.fate.startswith("killed") for verdict in verdicts)
    print(f"\n{killed}/{len(verdicts)} killed in {time.monotonic() - started:.0f} s")
    for verdict in verdicts:
        if verdict.words:
            print(f"\n{verdict.guard.name}: {verdict.fate}\n{verdict.words}")
    return 0 if killed == len(verdicts) else 1


def stale(guards: Sequence[Guard], place: Workshop) -> list[str]:
    """Guards that no longer fit the sources."""
    found = []
    for guard in guards:
        try:
            guard.broken(place.sources)
        except Stale as error:
            found.append(str(error))
    return found


def unsound(guards: Sequence[Guard], places: Sequence[Workshop]) -> list[str]:
    """Complaints about the tests: each must pass on the unbroken code.

    Every copy runs all of them, which also compiles its modules.
    """
    tests = list(dict.fromkeys(guard.test for guard in guards))
    with ThreadPoolExecutor(len(places)) as pool:
        reports: list[Report] = list(pool.map(lambda place: place.play(tests), places))
    for report in reports:
        if report.code:
            return [f"the tests do not pass on the unbroken code (exit code {report.code})\n{report.output[-4_000:]}"]
    passed = reports[0].passed
    return [f"{test} did not run" for test in tests if test not in passed]


def try_all(guards: Sequence[Guard], places: Sequence[Workshop]) -> list[Verdict]:
    """Try each guard in a free copy; print the rows in the order of the table."""
    free: queue.SimpleQueue[Workshop] = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def attempt(numbered: tuple[int, Guard]) -> Verdict:
        place = free.get()
        try:
            return place.try_guard(numbered[1], numbered[0])
        finally:
            free.put(place)

    verdicts = []
    print(f"{'guard':<38} {'mutant':<14} {'time':>7}  test")
    with ThreadPoolExecutor(len(places)) as pool:
        for verdict in pool.map(attempt, enumerate(guards)):
            verdicts.append(verdict)
            print(row(verdict), flush=True)
    return verdicts


def row(verdict: Verdict) -> str:
    """One line of the table."""
    test = verdict.guard.test.removeprefix("tests/")
    return f"{verdict.guard.name:<38} {verdict.fate:<14} {verdict.seconds:5.1f} s  {test}"


if __name__ == "__main__":
    sys.exit(main())
