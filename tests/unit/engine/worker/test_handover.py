"""Which jobs a worker keeps: the arithmetic of its room."""

from __future__ import annotations

import pytest

from tidemill.engine.worker.leases import HAND_OVER_MS, HAND_OVERS_PER_CLAIM, HandoverPolicy
from tidemill.kernel.jobs import JobBody, JobSpec
from tidemill.stores.contract import Stream

RUN = Stream("acme", "run", "r")
CLOCK = [0.0]
NEXT = JobSpec("run/a/1/-1", JobBody("run", "a", 1), "default")


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def keeping(woken: list[str]) -> HandoverPolicy:
    return HandoverPolicy(4, lambda: 1, lambda: woken.append("claims"), clock_ms=lambda: CLOCK[0])


def test_only_a_worker_that_is_alone_has_room_for_more(keeping: HandoverPolicy) -> None:
    assert (keeping.free, keeping.room(RUN, keeping.free)) == (3, 0)
    keeping.is_only_worker = True
    assert keeping.room(RUN, keeping.free) == 3


def test_what_is_promised_is_not_promised_again(keeping: HandoverPolicy) -> None:
    keeping.is_only_worker = True
    keeping.reserve(5)
    assert (keeping.free, keeping.room(RUN, keeping.free)) == (-2, 0)


def test_whoever_found_no_room_is_woken_when_a_promise_ends(keeping: HandoverPolicy, woken: list[str]) -> None:
    """A commit that lost its race keeps nothing, so no job that ends would ever wake them."""
    keeping.reserve(3)
    assert woken == []
    keeping.reserve(0)
    assert woken == ["claims"]
    keeping.reserve(0)
    assert woken == ["claims"]


def test_a_worker_with_a_free_place_keeps_what_follows_for_ever(keeping: HandoverPolicy) -> None:
    """Its claim waits in the store, so whatever gets into the queue is taken at once and has to wait for nobody."""
    CLOCK[0] += 10 * HAND_OVER_MS
    keeping.record_taken(10 * HAND_OVERS_PER_CLAIM)
    assert keeping.select(RUN, [NEXT], 1)


def test_a_worker_without_one_asks_the_queue_now_and_then(keeping: HandoverPolicy) -> None:
    keeping.reserve(3)
    assert keeping.free == 0
    keeping.claim()
    assert keeping.select(RUN, [NEXT], 1)
    CLOCK[0] += HAND_OVER_MS
    assert not keeping.select(RUN, [NEXT], 1)
    keeping.claim()
    assert keeping.select(RUN, [NEXT], 1)
    keeping.record_taken(HAND_OVERS_PER_CLAIM)
    assert not keeping.select(RUN, [NEXT], 1)
