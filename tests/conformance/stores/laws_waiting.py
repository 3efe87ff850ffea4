"""Laws of a claim that waits: what ends the wait, and that one job wakes at most one successful claimer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.conformance.stores.harness import LONG_MS, OTHER, SHORT_MS, StoreUnderTest, ack, job, keys
from tidemill.stores.contract import Lease


@asynccontextmanager
async def waiting(
    sut: StoreUnderTest, *, short: bool = False, **fields: Any
) -> AsyncIterator[asyncio.Task[list[Lease]]]:
    """A claimer that has found nothing and waits; at the end of the block it must have its answer soon.

    A `short` wait may be over before a slow machine looks at it.
    """
    task = asyncio.create_task(sut.claim(9, **({"wait_ms": LONG_MS} | fields)))
    try:
        await sut.settle()
        assert short or not task.done(), "it should wait"
        yield task
        await asyncio.wait_for(asyncio.shield(task), 20)
    finally:
        task.cancel()


class WaitingLaws:
    async def test_work_that_is_there_is_not_waited_for(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        assert keys(await asyncio.wait_for(sut.claim(9, wait_ms=LONG_MS), 5)) == ["a"]

    async def test_a_wait_ends_with_its_time(self, sut: StoreUnderTest) -> None:
        async with waiting(sut, short=True, wait_ms=sut.soon_ms) as task:
            await sut.pass_short()
        assert task.result() == []

    async def test_a_commit_ends_a_wait(self, sut: StoreUnderTest) -> None:
        async with waiting(sut) as task:
            await sut.put(job("other", queue="other"))
            await sut.settle()
            assert not task.done()
            await sut.put(job())
        assert keys(task.result()) == ["a"]

    async def test_a_release_ends_a_wait(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.take()
        async with waiting(sut, queues=("other", "q")) as task:
            await sut.store.release([lease])
        assert keys(task.result()) == ["a"]

    async def test_a_ready_time_ends_a_wait(self, sut: StoreUnderTest) -> None:
        await sut.put(job(ready_at_ms=sut.store.now_ms() + sut.soon_ms))
        async with waiting(sut, short=True) as task:
            await sut.pass_short()
        assert keys(task.result()) == ["a"]

    async def test_a_job_delayed_meanwhile_ends_a_wait(self, sut: StoreUnderTest) -> None:
        await sut.put(job("far", ready_at_ms=sut.store.now_ms() + LONG_MS // 2))
        async with waiting(sut) as task:
            await sut.put(job(ready_at_ms=sut.store.now_ms() + SHORT_MS))
            await sut.pass_short()
        assert keys(task.result()) == ["a"]

    async def test_an_expiry_ends_a_wait(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.take(lease_ms=SHORT_MS)
        async with waiting(sut, short=True) as task:
            await sut.pass_short()
        assert [lease.expired for lease in task.result()] == [1]

    async def test_room_under_a_cap_ends_a_wait(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", caps=("http",)))
        await sut.put(job("b", caps=("http",)), stream=OTHER)
        first = await sut.take(9, caps={"http": 1})
        async with waiting(sut, caps={"http": 1}) as task:
            await sut.committed(first.stream, acks=(ack(first),))
        assert keys(task.result()) == ["b"]

    async def test_of_many_who_wait_each_job_goes_to_one(self, sut: StoreUnderTest) -> None:
        tasks = [asyncio.create_task(sut.claim(1, wait_ms=LONG_MS)) for _ in range(8)]
        await sut.settle()
        await sut.put(job("a"), job("b"))
        await sut.put(job("c"), stream=OTHER)
        done: set[asyncio.Task[list[Lease]]] = set()
        async with asyncio.timeout(20):
            while len(done) < 3:
                done = {task for task in tasks if task.done()}
                await asyncio.sleep(0.001)
        await sut.settle()
        assert sorted(lease.key for task in tasks if task.done() for lease in task.result()) == ["a", "b", "c"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def test_a_claimer_who_gives_up_takes_no_job_along(self, sut: StoreUnderTest) -> None:
        task = asyncio.create_task(sut.claim(1, wait_ms=LONG_MS))
        await sut.settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await sut.put(job())
        assert keys(await sut.claim(9)) == ["a"]

    async def test_closing_ends_a_wait(self, sut: StoreUnderTest) -> None:
        async with waiting(sut) as task:
            await sut.store.close()
        assert task.result() == []
        await sut.store.open()

    async def test_a_claim_that_is_cancelled_keeps_nothing(self, sut: StoreUnderTest) -> None:
        """Whatever step it is cancelled at, the job is there for the next one, and nobody counts as lost."""
        await sut.put(job())
        for steps in range(8):
            task = asyncio.create_task(sut.claim(9))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled():
                await sut.store.release(task.result())
            lease = (await asyncio.wait_for(sut.claim(9, wait_ms=LONG_MS), 5))[0]
            assert (lease.key, lease.expired) == ("a", 0), f"cancelled after {steps} steps"
            await sut.store.release([lease])
