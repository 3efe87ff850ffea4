"""`python -m tests.mutants [NAME…]`: break every guard once, see its test go red, and say which did not.

First all named tests must pass, and quickly, on the code as it is. Then each mutant is tried against its own test, two
at a time. Exit code 0 only when every guard of the whole list was broken and every mutant was killed.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.mutants.guard import ROOT, Guard, Stale
from tests.mutants.guards import GUARDS, GUARDS_MIN
from tests.mutants.page import PAGE, page
from tests.mutants.workshop import SLOW_SECONDS, Report, Verdict, Workshop

JOBS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("names", nargs="*", help="only these guards")
    parser.add_argument("--page", action="store_true", help="write docs/reference/guards.md and do nothing else")
    options = parser.parse_args(arguments)
    if options.page:
        (ROOT / PAGE).write_text(page(GUARDS))
        return 0
    chosen = [guard for guard in GUARDS if not options.names or guard.name in options.names]
    unknown = set(options.names) - {guard.name for guard in chosen}
    if unknown:
        print(f"no such guard: {', '.join(sorted(unknown))}")
        return 2
    if len(GUARDS) < GUARDS_MIN:
        print(f"{len(GUARDS)} guards; at least {GUARDS_MIN} are wanted")
        return 1
    return campaign(chosen)


def campaign(guards: Sequence[Guard], root: Path = ROOT) -> int:
    """Try the guards and print what became of each."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidemill-mutants-") as folder, ExitStack() as open_places:
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
            guard.broken((place.folder / guard.path).read_text())
        except Stale as error:
            found.append(str(error))
    return found


def unsound(guards: Sequence[Guard], places: Sequence[Workshop]) -> list[str]:
    """What is wrong with the tests themselves: they must pass on the code as it is, and quickly.

    Every copy runs all of them, which also leaves it with everything compiled.
    """
    tests = list(dict.fromkeys(guard.test for guard in guards))
    with ThreadPoolExecutor(len(places)) as pool:
        reports: list[Report] = list(pool.map(lambda place: place.play(tests), places))
    for report in reports:
        if report.code:
            return [f"the tests do not pass on the code as it is (exit code {report.code})\n{report.output[-4_000:]}"]
    passed = reports[0].passed
    return [f"{test} did not run" for test in tests if test not in passed] + [
        f"{test} takes {passed[test]:.1f} s; at most {SLOW_SECONDS:.0f}"
        for test in tests
        if passed.get(test, 0.0) > SLOW_SECONDS
    ]


def try_all(guards: Sequence[Guard], places: Sequence[Workshop], show: Callable[[str], None] = print) -> list[Verdict]:
    """Try each guard in whichever copy is free; rows appear in the order of the list."""
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
    show(f"{'guard':<38} {'mutant':<14} {'time':>7}  test")
    with ThreadPoolExecutor(len(places)) as pool:
        for verdict in pool.map(attempt, enumerate(guards)):
            verdicts.append(verdict)
            show(row(verdict))
    return verdicts


def row(verdict: Verdict) -> str:
    """One line of the table."""
    test = verdict.guard.test.removeprefix("tests/")
    return f"{verdict.guard.name:<38} {verdict.fate:<14} {verdict.seconds:5.1f} s  {test}"


if __name__ == "__main__":
    sys.exit(main())
