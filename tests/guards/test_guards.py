"""The table of guards fits the sources and the tests, and the workshop tells killed mutants from survivors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards import __main__ as command
from tests.guards import inside, workshop
from tests.guards.guard import PROMISES, ROOT, Guard, Stale, read_guards, read_sources
from tests.guards.workshop import Workshop

GUARDS = read_guards()

SOURCE = '''"""A toy."""


def allowed(token: int) -> bool:
    while token > 9:
        token -= 1
    return token == 9


class Other:
    def allows(self, token: int) -> bool:
        return token == 9
'''
TESTS = '''"""Tests of the toy."""

from tidemill.toy import allowed


def test_watchful():
    assert not allowed(8)


def test_idle():
    assert allowed(9)


def test_bounded():
    assert allowed(10)


def test_red():
    assert not allowed(9)
'''


def test_every_row_has_a_promise_and_a_reason() -> None:
    assert [guard.name for guard in GUARDS if guard.promise not in PROMISES] == []
    assert [guard.name for guard in GUARDS if not re.fullmatch(r"[A-Z][^.|]*\.", guard.why)] == []


def test_every_promise_has_guards() -> None:
    assert {guard.promise for guard in GUARDS} == set(PROMISES)


def test_every_snippet_stands_once_in_the_sources() -> None:
    sources = read_sources()
    mutants = [guard.broken(sources) for guard in GUARDS]
    assert all(text != sources[path] for path, text in mutants)
    assert len(set(mutants)) == len(mutants)


def test_every_test_exists() -> None:
    """A test of a class is inherited from a conformance suite; whether its parameters exist, the campaign shows."""
    missing = []
    for guard in GUARDS:
        path, name = re.match(r"([^:]+)::(?:\w+::)?(\w+)", guard.test).groups()  # type: ignore[union-attr]
        places = (ROOT / path).parent.glob("*.py") if "::Test" in guard.test else [ROOT / path]
        if not any(f"def {name}(" in place.read_text() for place in places):
            missing.append(guard.test)
    assert missing == []


# The workshop, shown on a toy repository


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository with one module and its tests."""
    root = tmp_path / "toy"
    for folder in ("src/tidemill", "src/tidemill/testing", "tests/guards"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "tests/__init__.py").touch()
    shutil.copy(ROOT / "tests/guards/inside.py", root / "tests/guards/inside.py")
    (root / "src/tidemill/testing/plugin.py").touch()  # What the installed package offers to pytest.
    (root / "src/tidemill/toy.py").write_text(SOURCE)
    (root / "tests/test_toy.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return root


@pytest.fixture
def place(toy: Path, tmp_path: Path) -> Iterator[Workshop]:
    with Workshop(tmp_path / "copy", toy) as workshop:
        yield workshop


def guard(test: str, snippet: str = "return token == 9", sabotage: str = "return token > 0") -> Guard:
    named = {"name": "toy-guard", "promise": "P2", "why": "It is a toy.", "within": "allowed"}
    return Guard(**named, snippet=snippet, sabotage=sabotage, test=f"tests/test_toy.py::{test}")


def test_a_mutant_is_killed_by_a_red_test_and_survives_a_green_one(toy: Path, place: Workshop) -> None:
    report = place.play([guard("test_watchful").test, guard("test_idle").test])
    assert (report.code, len(report.passed)) == (0, 2)
    assert place.try_guard(guard("test_watchful"), 0).fate == "killed"
    assert place.try_guard(guard("test_idle"), 1).fate == "SURVIVED"
    assert place.play([guard("test_watchful").test]).code == 0, "the copy is restored"
    assert (toy / "src/tidemill/toy.py").read_text() == SOURCE


def test_a_test_that_did_not_run_kills_nothing(place: Workshop) -> None:
    verdict = place.try_guard(guard("test_missing"), 0)
    assert (verdict.fate, "test_missing" in verdict.words) == ("BROKEN", True)


def test_a_mutant_that_hangs_is_killed(place: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "HANG_SECONDS", 1.0)
    assert place.try_guard(guard("test_bounded", "token -= 1", "pass"), 0).fate == "killed (hang)"


def test_code_from_outside_the_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside.main(str(tmp_path / "results.json"), "1") == inside.FOREIGN


@pytest.mark.parametrize(
    ("snippet", "words"), [("return token == 8", "0 times"), ('"""A toy."""', "0 times"), ("token -= 1", "not Python")]
)
def test_a_guard_that_no_longer_fits_is_stale(snippet: str, words: str) -> None:
    with pytest.raises(Stale, match=words):
        guard("test_idle", snippet, "return (").broken({"toy.py": SOURCE})


def test_the_sabotage_is_indented_like_the_snippet() -> None:
    snippet, sabotage = "while token > 9:\n    token -= 1", "if token:\n    pass"
    _, text = guard("test_idle", snippet, sabotage).broken({"toy.py": SOURCE})
    assert "    if token:\n        pass\n    return token == 9\n" in text


@pytest.mark.parametrize(
    ("guards", "code", "words"),
    [
        ([guard("test_watchful")], 0, "1/1 killed"),
        ([guard("test_watchful"), guard("test_idle")], 1, "1/2 killed"),
        ([guard("test_red")], 1, "do not pass on the unbroken code"),
        ([guard("test_watchful", "gone")], 1, "occurs 0 times"),
    ],
    ids=["killed", "survived", "red", "stale"],
)
def test_the_campaign_succeeds_only_when_every_mutant_is_killed(
    toy: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    guards: list[Guard],
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(command, "JOBS", len(guards))
    assert command.campaign(guards, toy) == code
    assert words in capsys.readouterr().out


def test_an_unknown_name_is_refused() -> None:
    assert command.main(["no-such-guard"]) == 2
