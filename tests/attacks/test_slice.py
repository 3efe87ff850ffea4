"""A slice of the attacks, quick enough for `make test`; all of them are in `test_review.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.corpus import SLICE, SLICE_NAMES
from tests.attacks.review import CANARY, ODD, Row, Run
from tests.attacks.test_review import check_command, check_run


@pytest.mark.parametrize("row", SLICE, ids=[row.name for row in SLICE])
def test_an_attack(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SECRET_CRM", CANARY)
    monkeypatch.setenv("TIDEMILL_SECRET_ODD", ODD)
    if isinstance(row, Run):
        check_run(row, tmp_path)
    else:
        check_command(row, tmp_path)


def test_every_name_of_the_slice_is_an_attack() -> None:
    assert {row.name for row in SLICE} == SLICE_NAMES
