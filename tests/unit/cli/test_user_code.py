"""Folders of the user's code come last on the path, and leave it afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemill.cli.user_code import importable, workflow_at
from tidemill.errors import Rejected


def test_folders_come_after_everything_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, documents = tmp_path / "here", tmp_path / "documents"
    here.mkdir()
    monkeypatch.chdir(here)
    before = list(sys.path)
    with importable(documents):
        assert sys.path == [*before, str(documents), str(here)]
        with importable():
            assert sys.path == [*before, str(documents), str(here)], "none of them twice"
    assert sys.path == before


def test_an_exception_in_a_library_is_shown_at_the_line_of_the_workflow(tmp_path: Path) -> None:
    file = tmp_path / "library_flow.py"
    file.write_text(
        "import contextlib, json, tidemill\n@tidemill.task\ndef f(n: int) -> int: return n\n"
        "@tidemill.workflow\ndef a(n: int) -> str:\n    return json.loads('{')\n"
        "@tidemill.workflow\ndef b(n: int) -> int:\n    with contextlib.ExitStack() as stack:\n"
        "        return stack.enter_context(3)\n"
    )
    for name, line in (("a", 6), ("b", 10)):
        with pytest.raises(Rejected) as refused:
            workflow_at(f"{file}:{name}")
        assert refused.value.problems[0].hint == f"see {file}, line {line}"
    with pytest.raises(Rejected) as unknown:
        workflow_at(f"{file}:aa")
    assert unknown.value.problems[0].hint == "did you mean `a`?"
