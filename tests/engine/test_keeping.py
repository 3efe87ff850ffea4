"""Which jobs a worker keeps: the arithmetic of its room."""

from __future__ import annotations

import pytest

from tidemill.engine.keeping import Keeping
from tidemill.stores.contract import Stream

RUN = Stream("acme", "run", "r")


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def keeping(woken: list[str]) -> Keeping:
    return Keeping(4, lambda: 1, lambda: woken.append("claims"))


def test_only_a_worker_that_is_alone_has_room_for_more(keeping: Keeping) -> None:
    assert (keeping.free, keeping.room(RUN)) == (3, 0)
    keeping.alone = True
    assert keeping.room(RUN) == 3


def test_what_is_promised_is_not_promised_again(keeping: Keeping) -> None:
    keeping.alone = True
    keeping.promise(5)
    assert (keeping.free, keeping.room(RUN)) == (-2, 0)


def test_whoever_found_no_room_is_woken_when_a_promise_ends(keeping: Keeping, woken: list[str]) -> None:
    """A commit that lost its race keeps nothing, so no job that ends would ever wake them."""
    keeping.promise(3)
    assert woken == []
    keeping.promise(0)
    assert woken == ["claims"]
    keeping.promise(0)
    assert woken == ["claims"]
