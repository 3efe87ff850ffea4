"""Where copies are kept that need not outlast anything."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.stores.sqlite import writer

IN_MEMORY = "/dev/shm"


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder on a disk that has nothing to sync, where there is one: hundreds of copies are opened there."""
    place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def log_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the log is made long beforehand: its length would say nothing, and a full disk be noticed late."""
    monkeypatch.setattr(writer, "PREPARED_BYTES", 0)
