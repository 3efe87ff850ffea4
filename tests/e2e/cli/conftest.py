from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.cli_store import CliStore, opened
from tests.fixtures.command_line import InProcessCli


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
