"""Laws of commits that need jobs to be idle: holds with token 0."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.stores.harness import OTHER, RUN, StoreUnderTest, ack, job, run
from tidemill.stores.contract import Commit, Committed, LeasesLost, VersionConflict

IDLE = {"holds": (("a", 0),)}
WRITINGS: list[dict[str, Any]] = [{"expected": 0, "records": (b"1",)}, {"expected": 0}, {}]


async def in_state(sut: StoreUnderTest, state: str) -> None:
    """Bring the job `a` to where a test wants it."""
    if state != "absent":
        await sut.put(job(ready_at_ms=sut.store.now_ms() + 60_000 if state == "later" else 0))
    if state in ("leased", "released"):
        lease = await sut.take()
        if state == "released":
            await sut.store.release([lease])
    if state in ("expired", "taken over", "taken over and released", "taken over and settled"):
        await sut.expired()
    if state.startswith("taken over"):
        lease = await sut.take()
        if state == "taken over and released":
            await sut.store.release([lease])
        if state == "taken over and settled":
            await sut.committed(acks=(ack(lease),), jobs=(job(),))


class IdleLaws:
    @pytest.mark.parametrize("writing", WRITINGS)
    @pytest.mark.parametrize("state", ["absent", "ready", "later", "released", "taken over and settled"])
    async def test_an_idle_job_lets_a_commit_pass(
        self, sut: StoreUnderTest, state: str, writing: dict[str, Any]
    ) -> None:
        await in_state(sut, state)
        before = await sut.views()
        assert await sut.commit(**IDLE, **writing) == Committed(version=len(writing.get("records", ())))
        assert await sut.views() == before

    @pytest.mark.parametrize("writing", WRITINGS)
    @pytest.mark.parametrize("state", ["leased", "expired", "taken over", "taken over and released"])
    async def test_a_job_that_is_not_idle_refuses_a_commit(
        self, sut: StoreUnderTest, state: str, writing: dict[str, Any]
    ) -> None:
        """Whoever held it may have done the work, and may still be at it."""
        await in_state(sut, state)
        before = await sut.picture(RUN)
        fields = {**IDLE, **writing, "drop": ("a",), "jobs": (job("b"),)}
        assert await sut.commit(**fields) == LeasesLost(keys=("a",))
        assert await sut.picture(RUN) == before

    async def test_a_job_that_is_dropped_by_the_same_commit_was_idle(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        assert await sut.commit(expected=0, records=(b"1",), drop=("a",), **IDLE) == Committed(version=1)
        assert await sut.views() == {}

    async def test_idle_jobs_of_a_new_stream_are_no_obstacle(self, sut: StoreUnderTest) -> None:
        assert await sut.commit(expected=0, records=(b"1",), jobs=(job("b"),), **IDLE) == Committed(version=1)
        assert (await sut.tail()).records == (b"1",)
        assert list(await sut.views()) == ["b"]
        assert await sut.commit(run("none"), expected=3, records=(b"1",), **IDLE) == VersionConflict(version=0)

    async def test_a_lease_of_another_stream_is_no_matter(self, sut: StoreUnderTest) -> None:
        await sut.put(job(), stream=OTHER)
        await sut.take()
        await sut.put(job())
        assert await sut.commit(expected=0, records=(b"1",), **IDLE) == Committed(version=1)

    async def test_a_job_in_hand_is_told_before_a_conflict(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        assert await sut.commit(expected=7, records=(b"1",), **IDLE) == VersionConflict(version=0)
        await sut.take()
        assert await sut.commit(expected=7, records=(b"1",), **IDLE) == LeasesLost(keys=("a",))

    async def test_holds_of_both_kinds_are_judged_one_by_one(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a"), job("b"), job("c"), job("d"))
        first, second = await sut.claim(2)
        leases = (ack(first), ("c", 0), ack(second), ("d", 0), ("z", 0))
        assert await sut.commit(expected=0, records=(b"1",), holds=leases) == Committed(version=1)
        refused = await sut.commit(
            expected=1, records=(b"2",), acks=(("d", 0), ack(first)), holds=(("b", 0), ("d", 0), ("c", 9), ("z", 0))
        )
        assert refused == LeasesLost(keys=("d", "b", "c"))

    async def test_only_an_ack_needs_a_lease_for_a_job_that_nobody_holds(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        assert await sut.commit(acks=(("a", 0),), **IDLE) == LeasesLost(keys=("a",))
        lease = await sut.take()
        assert await sut.commit(acks=(ack(lease),), **IDLE) == LeasesLost(keys=("a",))

    async def test_within_a_group_each_commit_sees_the_leases_before_it(self, sut: StoreUnderTest) -> None:
        commits = [
            Commit(stream=RUN, expected=0, records=(b"1",), jobs=(job("a"),), keep=("a",)),
            Commit(stream=RUN, expected=1, records=(b"2",), drop=("a",), holds=(("a", 0),)),
            Commit(stream=OTHER, expected=0, records=(b"3",), holds=(("a", 0),)),
            Commit(stream=RUN, expected=1, records=(b"4",), drop=("a",)),
            Commit(stream=RUN, expected=2, records=(b"5",), holds=(("a", 0),)),
        ]
        results = await sut.store.commit(commits)
        assert isinstance(results[0], Committed)
        assert results[1:] == [
            LeasesLost(keys=("a",)),
            Committed(version=1),
            Committed(version=2),
            Committed(version=3),
        ]

    async def test_of_a_claim_and_a_commit_at_once_one_is_first(self, sut: StoreUnderTest) -> None:
        """Either the commit sees the lease, or the claim does not find the job."""
        async with sut.another() as beside:
            for number in range(20):
                stream = run(f"s{number}")
                await sut.put(job(), stream=stream)
                commit = Commit(stream=stream, expected=0, records=(b"1",), drop=("a",), holds=(("a", 0),))
                leases, result = await asyncio.gather(sut.claim(), beside.commit([commit]))
                assert result == [LeasesLost(keys=("a",))] if leases else result == [Committed(version=1)]
                for lease in leases:
                    await sut.committed(stream, acks=(ack(lease),))
