"""Folders of the user's code come last on the path, and leave it afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemill.cli.user_code import importable


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
