import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.fixtures.cli_store import CliStore, opened
from tests.fixtures.command_line import InProcessCli
from tidemill.handlers import discovery


@pytest.fixture(scope="session", autouse=True)
def _entry_points_read_once() -> Iterator[None]:
    """Reading what all installed packages offer takes longer than most commands."""

    read = discovery._entry_points

    @cache
    def found(path: str | None) -> list[EntryPoint]:
        return list(read())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "_entry_points", lambda: found(os.environ.get("PYTHONPATH")))
        yield


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept without saying where is kept in a file of the test's own."""
    monkeypatch.setenv("TIDEMILL_STORE", f"sqlite:///{tmp_path}/tidemill.db")


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> InProcessCli:
    return InProcessCli(capsys)


@pytest.fixture
def cli_store(inside: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliStore]:
    with opened(inside, monkeypatch) as found:
        yield found
