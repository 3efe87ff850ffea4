"""The workshop tells killed from survived, and a test that could not run from both; shown on a toy repository."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants import inside, workshop
from tests.mutants.guard import ROOT, Guard, Stale
from tests.mutants.guards import GUARDS, GUARDS_MIN
from tests.mutants.workshop import Workshop

SOURCE = '''"""A toy."""


def allowed(token: int) -> bool:
    while token > 9:
        token -= 1
    return token == 9
'''
TESTS = '''"""Tests of the toy."""

import time

from tidemill.toy import allowed


def test_watchful():
    assert not allowed(8)


def test_idle():
    assert allowed(9)


def test_bounded():
    assert allowed(10)


def test_slow():
    time.sleep(0.2)
    assert allowed(9)


def test_red():
    assert not allowed(9)
'''


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository with one module, its tests, and what the workshop starts in a copy."""
    root = tmp_path / "toy"
    for folder in ("src/tidemill", "tests/mutants"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "tests/__init__.py").touch()
    (root / "src/tidemill/toy.py").write_text(SOURCE)
    (root / "tests/test_toy.py").write_text(TESTS)
    shutil.copy2(ROOT / "tests/mutants/inside.py", root / "tests/mutants/inside.py")
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return root


@pytest.fixture
def place(toy: Path, tmp_path: Path) -> Iterator[Workshop]:
    """A copy of it."""
    with Workshop(tmp_path / "copy", toy) as workshop:
        yield workshop


def guard(test: str, snippet: str = "token == 9", sabotage: str = "token > 0") -> Guard:
    return Guard(
        name="toy-guard", why="It is a toy.", file="toy.py", snippet=snippet, sabotage=sabotage, test=f"tests/{test}"
    )


def test_a_mutant_is_killed_by_a_red_test_and_survives_a_green_one(toy: Path, place: Workshop) -> None:
    report = place.play(["tests/test_toy.py::test_watchful", "tests/test_toy.py::test_idle"])
    assert (report.code, sorted(report.passed)) == (
        0,
        ["tests/test_toy.py::test_idle", "tests/test_toy.py::test_watchful"],
    )
    assert place.try_guard(guard("test_toy.py::test_watchful"), 0).fate == "killed"
    assert place.try_guard(guard("test_toy.py::test_idle"), 1).fate == "SURVIVED"
    # The copy is sound again, and so is what Python has compiled of it.
    assert place.play(["tests/test_toy.py::test_watchful"]).code == 0
    assert (toy / "src/tidemill/toy.py").read_text() == SOURCE


def test_a_test_that_could_not_run_proves_nothing(place: Workshop) -> None:
    verdict = place.try_guard(guard("test_toy.py::test_that_is_gone"), 0)
    assert (verdict.fate, "test_that_is_gone" in verdict.words) == ("BROKEN", True)
    unimportable = guard("test_toy.py::test_watchful", "def allowed", "raise ImportError\n\n\ndef allowed")
    assert place.try_guard(unimportable, 1).fate == "BROKEN"


def test_a_mutant_that_hangs_is_killed(place: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "HANG_SECONDS", 1.0)
    endless = guard("test_toy.py::test_bounded", "token -= 1", "pass")
    assert place.try_guard(endless, 0).fate == "killed (hang)"


def test_a_mutant_that_cannot_be_stopped_is_killed(place: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs where pytest cannot interrupt it: while it is imported."""
    monkeypatch.setattr(workshop, "HANG_SECONDS", 0.5)
    monkeypatch.setattr(workshop, "GRACE_SECONDS", 1.0)
    endless = guard("test_toy.py::test_bounded", "def allowed", "while True:\n    pass\n\n\ndef allowed")
    assert place.try_guard(endless, 0).fate == "killed (hang)"
    assert place.play(["tests/test_toy.py::test_watchful"]).code == 0


def test_code_from_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside.main(str(tmp_path / "results.json"), "1") == inside.FOREIGN


@pytest.mark.parametrize(
    ("snippet", "words"), [("token == 8", "0 times"), ("token", "4 times"), ("return token == 9", "not Python")]
)
def test_a_guard_that_no_longer_fits_is_stale(snippet: str, words: str) -> None:
    with pytest.raises(Stale, match=words):
        guard("test_toy.py::test_idle", snippet, "return (").broken(SOURCE)


@pytest.mark.parametrize(
    ("guards", "code", "words"),
    [
        ([guard("test_toy.py::test_watchful")], 0, "1/1 killed"),
        ([guard("test_toy.py::test_watchful"), guard("test_toy.py::test_idle")], 1, "1/2 killed"),
        ([guard("test_toy.py::test_red")], 1, "do not pass on the code as it is"),
        ([guard("test_toy.py::test_watchful", "gone")], 1, "occurs 0 times"),
        ([guard("test_toy.py::test_slow")], 1, "at most 0"),
    ],
    ids=["killed", "survived", "red", "stale", "slow"],
)
def test_the_campaign_succeeds_only_when_every_mutant_is_killed(
    toy: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    guards: list[Guard],
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(command, "SLOW_SECONDS", 0.15)
    assert command.campaign(guards, toy) == code
    assert words in capsys.readouterr().out


def test_a_short_list_or_an_unknown_name_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.main(["no-such-guard"]) == 2
    monkeypatch.setattr(command, "GUARDS", GUARDS[: GUARDS_MIN - 1])
    assert command.main([]) == 1
    assert f"at least {GUARDS_MIN} are wanted" in capsys.readouterr().out
