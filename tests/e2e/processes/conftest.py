from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.worker_processes import Place, opened


@pytest.fixture
def here(tmp_path: Path) -> Iterator[tuple[Place, tidemill.Tidemill]]:
    with opened(tmp_path) as found:
        yield found
