"""The ids of runs and commands: versions of RFC 9562, in order, never twice."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from tidemill import ambient
from tidemill.ambient import RealAmbient, uuid7


def test_an_id_is_a_uuid_of_version_7_that_begins_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may have set the clock forward.
    monkeypatch.setattr(ambient, "_last_tick", 0)
    before = time.time_ns() // 1_000_000
    found = uuid.UUID(RealAmbient().new_id())
    assert (found.version, found.variant) == (7, uuid.RFC_4122)
    assert before <= found.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_ids_are_in_order_and_unique() -> None:
    made = [uuid7() for _ in range(100_000)]
    assert made == sorted(made) and len(set(made)) == len(made)


def test_ids_of_several_threads_are_in_order_and_unique() -> None:
    made: list[list[str]] = [[] for _ in range(4)]
    begin = threading.Barrier(len(made))

    def make(mine: list[str]) -> None:
        begin.wait()
        mine.extend(uuid7() for _ in range(20_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    times = {each.replace("-", "")[:16] for mine in made for each in mine}
    assert len(times) == 80_000, "no two ids have the same time, so there is one order"


def test_a_clock_that_goes_back_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first = uuid7()
    monkeypatch.setattr(ambient.time, "time_ns", lambda: 0)
    second, third = uuid7(), uuid7()
    assert first < second < third
