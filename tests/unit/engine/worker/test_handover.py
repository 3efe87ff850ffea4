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


def jobs(names: str) -> list[JobSpec]:
    return [JobSpec(f"run/{name}/1/-1", JobBody("run", name, 1), "default") for name in names]


def kept(policy: HandoverPolicy, names: str, settled: int, instant: str = "") -> str:
    return "".join(key.split("/")[1] for key in policy.select(RUN, jobs(names), settled, instant))


def test_only_a_worker_that_is_alone_keeps_more_than_it_settles(keeping: HandoverPolicy) -> None:
    assert keeping.free == 3
    assert kept(keeping, "abcdef", 1) == "a"
    keeping.is_only_worker = True
    assert kept(keeping, "abcdef", 1) == "abcd"


def test_what_is_promised_is_not_promised_again(keeping: HandoverPolicy) -> None:
    keeping.is_only_worker = True
    assert kept(keeping, "abc", 1) == "abc"
    assert (keeping.reserved, keeping.free) == (2, 1)
    assert kept(keeping, "abc", 1) == "ab"
    assert kept(keeping, "abc", 1) == "a"


def test_a_worker_among_others_keeps_further_nodes_if_they_are_instant(keeping: HandoverPolicy) -> None:
    """A claim by another worker would take longer than they do."""
    assert kept(keeping, "abc", 1, instant="bc") == "abc"
    keeping.reserve(0)
    assert kept(keeping, "abc", 1, instant="c") == "ac"
    keeping.reserve(0)
    assert kept(keeping, "abc", 0, instant="b") == "b"
    keeping.reserve(0)
    assert kept(keeping, "abcdefg", 1, instant="abcdefg") == "abcd", "no more than it has room for"
    keeping.reserve(3)
    assert kept(keeping, "abc", 1, instant="abc") == "a"


def test_a_worker_of_one_run_keeps_no_instant_nodes_of_others() -> None:
    policy = HandoverPolicy(4, lambda: 1, lambda: None, clock_ms=lambda: CLOCK[0], only="another")
    assert kept(policy, "ab", 1, instant="ab") == "a"


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
