from collections.abc import Iterator

import pytest

from tests.cli.kit import Inside
from tests.cli.shop import Shop, opened


@pytest.fixture(autouse=True)
def _no_store_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_STORE", raising=False)


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(capsys)


@pytest.fixture
def shop(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with opened(inside, monkeypatch) as found:
        yield found
