"""The list of guards fits the sources, the tests and its page. Whether the tests notice, `make mutants` shows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

from tests.mutants.guard import ROOT, Guard
from tests.mutants.guards import GUARDS, GUARDS_MIN
from tests.mutants.page import PAGE, page


def test_there_are_enough_of_them() -> None:
    assert len(GUARDS) >= GUARDS_MIN


def test_every_guard_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(guard.name for guard in GUARDS).items() if count > 1] == []
    assert [guard.name for guard in GUARDS if not re.fullmatch(r"[a-z]+(-[a-z]+)+", guard.name)] == []


def test_every_guard_says_in_one_sentence_why_it_exists() -> None:
    assert [guard.name for guard in GUARDS if not re.fullmatch(r"[A-Z][^.|]*\.", guard.why)] == []


def test_no_two_guards_are_the_same_sabotage() -> None:
    mutants = Counter((guard.file, guard.snippet, guard.sabotage) for guard in GUARDS)
    assert [mutant for mutant, count in mutants.items() if count > 1] == []


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_the_guard_is_where_the_list_says(guard: Guard) -> None:
    source = (ROOT / guard.path).read_text()
    assert guard.broken(source) != source


def test_every_test_exists() -> None:
    """pytest refuses a node id that it cannot find."""
    tests = sorted({guard.test for guard in GUARDS})
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", *tests]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout[-3_000:] + collected.stderr[-3_000:]
    assert sum(line in tests for line in collected.stdout.splitlines()) == len(tests)


def test_the_page_is_made_from_the_list() -> None:
    assert (ROOT / PAGE).read_text() == page(GUARDS), "run: python -m tests.mutants --page"
