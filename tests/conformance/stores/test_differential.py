"""Memory beside the naive model: the fast data structures answer as flat lists do."""

from __future__ import annotations

import pytest

from tests.conformance.stores.differential import DifferentialSuite, compare
from tests.conformance.stores.harness import StoreUnderTest
from tests.conformance.stores.naive_store import NaiveStore
from tests.conformance.stores.test_memory import ManualClock, memory_in_real_time, memory_under_test


def naive_under_test(kind: type[NaiveStore] = NaiveStore) -> StoreUnderTest:
    clock = ManualClock()

    async def advance(ms: int) -> None:
        clock.now += ms

    return StoreUnderTest(store=kind(clock), advance=advance, exact_times=True)


class TestMemoryBesideNaive(DifferentialSuite):
    seeds = range(80)

    async def pair(self) -> tuple[StoreUnderTest, StoreUnderTest]:
        return naive_under_test(), memory_under_test()


class TestMemoryBesideItselfInRealTime(DifferentialSuite):
    """The way a store is compared whose clock cannot be moved."""

    seeds = range(24)

    async def pair(self) -> tuple[StoreUnderTest, StoreUnderTest]:
        return memory_in_real_time(), memory_in_real_time()


class Forgetful(NaiveStore):
    """Takes the fence down: a lease is held by whoever names the job."""

    def held(self, stream: object, key: str, token: int) -> object:  # type: ignore[override]
        return self.task(stream, key)  # type: ignore[arg-type]


class Restarting(NaiveStore):
    """Starts its tokens again now and then."""

    async def release(self, leases: object, *, delay_ms: int = 0) -> None:
        await super().release(leases, delay_ms=delay_ms)  # type: ignore[arg-type]
        self.tokens = 0


async def hunt(broken: type[NaiveStore]) -> None:
    for seed in range(20):
        await compare(seed, 60, (memory_under_test(), naive_under_test(broken)), "replay it")


@pytest.mark.parametrize(("broken", "words"), [(Forgetful, "answers differ"), (Restarting, "a token is not above")])
async def test_a_broken_store_is_found_and_its_seed_told(broken: type[NaiveStore], words: str) -> None:
    with pytest.raises(AssertionError, match=r"replay: TIDEMILL_SEEDS=\d+ replay it") as found:
        await hunt(broken)
    assert words in str(found.value)
