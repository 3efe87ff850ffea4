"""The memory store: every law, and what is promised of it alone (no suspension, threads, an injected clock, bounds)."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.conformance.stores.harness import LONG_MS, RUN, ack, job, keys, run
from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tidemill.stores.contract import Claim, Commit, Lease, Row
from tidemill.stores.memory import MemoryStore


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def memory_under_test() -> StoreUnderTest:
    clock = ManualClock()
    store = MemoryStore(clock)

    async def advance(ms: int) -> None:
        clock.now += ms
        store.notify_all()
        await asyncio.sleep(0)

    return StoreUnderTest(store=store, advance=advance, exact_times=True)


def memory_in_real_time() -> StoreUnderTest:
    async def advance(ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    return StoreUnderTest(store=MemoryStore(), advance=advance, settle_ms=5)


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def sut(self) -> StoreUnderTest:
        return memory_under_test()


class TestMemoryStoreInRealTime(StoreConformance):
    """The same laws by the machine's clock, which proves that its timers wake by themselves."""

    @pytest.fixture
    def sut(self) -> StoreUnderTest:
        return memory_in_real_time()


def at_once(verb: Coroutine[Any, Any, Any]) -> Any:
    """Run a verb without a loop; a single suspension is a failure."""
    with pytest.raises(StopIteration) as end:
        verb.send(None)
    return end.value.value


def test_the_hot_path_never_suspends() -> None:
    store = MemoryStore()
    at_once(store.open())
    at_once(store.commit([Commit(stream=RUN, expected=0, records=(b"1",), jobs=(job(),))]))
    leases = at_once(store.claim(Claim(queues=("q",), limit=1, lease_ms=LONG_MS)))
    assert keys(leases) == ["a"]
    assert at_once(store.claim(Claim(queues=("q",), limit=1, lease_ms=LONG_MS))) == []
    assert at_once(store.renew(leases, LONG_MS)) == []
    assert at_once(store.load({RUN: 0}))[0].version == 1
    at_once(store.release(leases))
    at_once(store.close())


@pytest.mark.asyncio
async def test_an_injected_sleep_ends_a_wait() -> None:
    clock = ManualClock()
    naps: list[float] = []

    async def sleep(ms: float) -> None:
        naps.append(ms)
        clock.now += int(ms)

    store = MemoryStore(clock, sleep)
    await store.commit([Commit(stream=RUN, expected=0, jobs=(job(ready_at_ms=clock.now + 700),))])
    request = Claim(queues=("q",), limit=1, lease_ms=300, wait_ms=1000)
    assert keys(await asyncio.wait_for(store.claim(request), 5)) == ["a"]
    assert [lease.expired for lease in await asyncio.wait_for(store.claim(request), 5)] == [1]
    assert naps == [700, 300]
    assert await asyncio.wait_for(store.claim(Claim(queues=("none",), limit=1, lease_ms=1, wait_ms=50)), 5) == []


@pytest.mark.asyncio
async def test_a_claimer_is_woken_from_another_thread() -> None:
    store = MemoryStore()
    claimer = asyncio.create_task(store.claim(Claim(queues=("q",), limit=1, lease_ms=LONG_MS, wait_ms=LONG_MS)))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    started = loop.time()
    commit = store.commit([Commit(stream=RUN, expected=0, jobs=(job(),))])

    def somebody_else() -> None:
        time.sleep(0.05)
        asyncio.run(commit)

    thread = threading.Thread(target=somebody_else)
    thread.start()
    assert keys(await asyncio.wait_for(claimer, 10)) == ["a"]
    assert loop.time() - started < 5, "a loop that sleeps must be woken, not waited for"
    thread.join()


@pytest.mark.asyncio
async def test_leases_are_renewed_from_a_thread_while_the_loop_works() -> None:
    store = MemoryStore()
    held: list[Lease] = []
    stop = threading.Event()
    lost: list[Lease] = []

    def renewer() -> None:
        while not stop.is_set():
            lost.extend(asyncio.run(store.renew(list(held), LONG_MS)))

    await store.commit([Commit(stream=run("held"), expected=0, jobs=tuple(job(f"{n}") for n in range(20)))])
    held += await store.claim(Claim(queues=("q",), limit=20, lease_ms=LONG_MS))
    thread = threading.Thread(target=renewer)
    thread.start()
    for number in range(3000):
        stream = run(f"{number}")
        await store.commit([Commit(stream=stream, expected=0, jobs=(job(),))])
        (lease,) = await store.claim(Claim(queues=("q",), limit=5, lease_ms=LONG_MS))
        await store.commit([Commit(stream=stream, expected=0, acks=(ack(lease),))])
    stop.set()
    thread.join()
    assert lost == []
    assert len(await store.jobs(run("held"))) == 20


def test_no_verb_of_another_thread_runs_in_the_middle_of_one() -> None:
    store = MemoryStore()
    at_once(store.commit([Commit(stream=RUN, expected=0, jobs=(job(),))]))
    leases = at_once(store.claim(Claim(queues=("q",), limit=1, lease_ms=LONG_MS)))
    verbs = [
        lambda: store.renew(leases, LONG_MS),
        lambda: store.commit([Commit(stream=RUN, expected=0)]),
        lambda: store.claim(Claim(queues=("q",), limit=1, lease_ms=LONG_MS)),
        lambda: store.release(leases),
        lambda: store.load({RUN: 0}),
    ]
    threads = [threading.Thread(target=lambda verb=verb: at_once(verb())) for verb in verbs]
    with store._lock:
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.asyncio
async def test_rows_that_move_often_stay_in_order() -> None:
    store, dice = MemoryStore(), random.Random(3)
    model: dict[str, int] = {}
    for _ in range(12_000):
        key = f"{dice.randrange(60)}"
        model[key] = dice.randrange(1_000)
        row = Row(kind="run", key=key, sort=model[key], terms=("x",))
        await store.commit([Commit(stream=RUN, expected=None, rows=(row,))])
        if dice.random() < 0.01:
            page = await store.find("acme", "run", ["x"], limit=100)
            assert [(found.sort, found.key) for found in page.rows] == sorted(
                ((sort, key) for key, sort in model.items()), reverse=True
            )


@pytest.mark.asyncio
async def test_what_is_over_leaves_nothing_behind() -> None:
    """A bound on everything: leases, timers, rows and names that are gone must not pile up."""
    store = MemoryStore()
    for number in range(20_000):
        stream = run(f"{number}", f"t{number % 7}")
        busy = Row(kind="run", key="busy", sort=number, terms=("x", f"n:{number}"))
        new = (job("now", caps=(f"c{number}",)), job("far", ready_at_ms=store.now_ms() + LONG_MS))
        await store.commit([Commit(stream=stream, expected=None, jobs=new, keep=("now",), rows=(busy,))])
        await store.commit([Commit(stream=stream, expected=None, drop=("now", "far"))])
    assert len(store._jobs._later) < 5_000
    assert len(store._logs) == len(store._jobs._live) == len(store._jobs._lanes) == 0
    orders = [order for table in store._tables.values() for order in table._orders.values()]
    assert sum(len(order._sorted) + len(order._fresh) + len(order._dead) for order in orders) < 50_000
