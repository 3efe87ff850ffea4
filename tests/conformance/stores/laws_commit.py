"""Laws of commit and load: versions, refusals, all or nothing, groups, snapshots."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.stores.harness import OTHER, RUN, StoreUnderTest, ack, job, row, run
from tidemill.stores.contract import Commit, Committed, LeasesLost, Snapshot, Tail, VersionConflict


class CommitLaws:
    async def test_version_is_the_number_of_records(self, sut: StoreUnderTest) -> None:
        assert await sut.commit(expected=0, records=(b"1",)) == Committed(version=1)
        assert await sut.commit(expected=1, records=(b"2", b"3")) == Committed(version=3)
        assert (await sut.tail()).records == (b"1", b"2", b"3")

    async def test_records_come_back_byte_for_byte(self, sut: StoreUnderTest) -> None:
        records = (b"", b"\x00\xff\xfe", "żółw".encode(), b"'; drop table --", b"x" * 70_000)
        await sut.committed(expected=0, records=records)
        assert (await sut.tail()).records == records

    @pytest.mark.parametrize("expected", [0, 1, 3, 1000])
    async def test_another_version_is_a_conflict(self, sut: StoreUnderTest, expected: int) -> None:
        await sut.committed(expected=0, records=(b"1", b"2"))
        assert await sut.commit(expected=expected, records=(b"x",)) == VersionConflict(version=2)
        assert (await sut.tail()).records == (b"1", b"2")

    async def test_a_new_stream_has_version_0(self, sut: StoreUnderTest) -> None:
        assert await sut.commit(expected=1, records=(b"x",)) == VersionConflict(version=0)
        assert await sut.commit(expected=0) == Committed(version=0)

    async def test_starting_twice_starts_once(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"first",), jobs=(job(),))
        assert await sut.commit(expected=0, records=(b"second",), jobs=(job("b"),)) == VersionConflict(version=1)
        assert list(await sut.views()) == ["a"]

    async def test_no_expected_version_fits_any(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1", b"2"))
        assert await sut.commit(jobs=(job(),), rows=(row("r"),)) == Committed(version=2)
        assert list(await sut.views()) == ["a"]
        assert await sut.found() == ["r"]

    @pytest.mark.parametrize(
        "wrong",
        [
            Commit(stream=RUN, expected=None, records=(b"x",)),
            Commit(stream=RUN, expected=None, snapshot=Snapshot(version=0, body=b"")),
            Commit(stream=RUN, expected=0, records=(b"x",), snapshot=Snapshot(version=2, body=b"")),
        ],
    )
    async def test_a_commit_nobody_may_build_is_loud_and_writes_nothing(
        self, sut: StoreUnderTest, wrong: Commit
    ) -> None:
        good = Commit(stream=OTHER, expected=0, records=(b"1",), jobs=(job(),))
        with pytest.raises(ValueError, match=r"version|stream"):
            await sut.store.commit([good, wrong])
        assert (await sut.tail(OTHER)).version == 0
        assert await sut.views(OTHER) == {}

    async def test_a_conflict_writes_nothing_at_all(self, sut: StoreUnderTest) -> None:
        await self._populate(sut)
        lease = await sut.take()
        before = await sut.picture(RUN, OTHER)
        result = await sut.commit(expected=1, **self._everything(ack(lease)))
        assert result == VersionConflict(version=2)
        assert await sut.picture(RUN, OTHER) == before
        assert await sut.claim(9, queues=("fresh",)) == []
        assert await sut.commit(acks=(ack(lease),)) == Committed(version=2)

    @pytest.mark.parametrize("place", ["acks", "holds"])
    async def test_a_lost_lease_writes_nothing_at_all(self, sut: StoreUnderTest, place: str) -> None:
        await self._populate(sut)
        lease, good = await sut.claim(2)
        await sut.store.release([lease])
        await sut.take()
        before = await sut.picture(RUN, OTHER)
        fields = self._everything(ack(good))
        fields[place] = (*fields.get(place, ()), ack(lease))
        assert await sut.commit(expected=2, **fields) == LeasesLost(keys=("a",))
        assert await sut.picture(RUN, OTHER) == before
        assert await sut.claim(9, queues=("fresh",)) == []
        assert await sut.commit(acks=(ack(good),)) == Committed(version=2)

    @staticmethod
    async def _populate(sut: StoreUnderTest) -> None:
        snapshot = Snapshot(version=1, body=b"old")
        jobs = (job("a", priority=9), job("b"), job("c"), job("d"))
        await sut.committed(expected=0, records=(b"1", b"2"), snapshot=snapshot, jobs=jobs, rows=(row("r", 1, "t"),))
        await sut.committed(OTHER, expected=0, records=(b"1",), jobs=(job("a", queue="elsewhere"),))

    @staticmethod
    def _everything(settled: tuple[str, int]) -> dict[str, Any]:
        return {
            "records": (b"3",),
            "snapshot": Snapshot(version=2, body=b"new"),
            "acks": (settled,),
            "drop": ("c",),
            "withdraw": ("d",),
            "jobs": (job("e", queue="fresh"), job("f", queue="fresh")),
            "keep": ("e",),
            "rows": (row("r", 5, "t", "u"), row("s")),
        }

    async def test_lost_leases_are_told_before_a_conflict(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1",))
        assert await sut.commit(expected=7, acks=(("a", 1),)) == LeasesLost(keys=("a",))

    async def test_all_lost_leases_are_named_once_in_order(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a"), job("b"))
        held = await sut.take()
        result = await sut.commit(acks=(("z", 9), ack(held), ("b", 9), ("z", 8)), holds=(("y", 9), ("b", 9)))
        assert result == LeasesLost(keys=("z", "b", "y"))

    async def test_a_group_is_answered_in_order(self, sut: StoreUnderTest) -> None:
        streams = [run(f"g{number}") for number in range(20)]
        commits = [
            Commit(stream=stream, expected=0, records=(b"x",) * (number % 3)) for number, stream in enumerate(streams)
        ]
        results = await sut.store.commit(commits)
        assert results == [Committed(version=number % 3) for number in range(20)]

    async def test_an_empty_group_is_fine(self, sut: StoreUnderTest) -> None:
        assert await sut.store.commit([]) == []

    async def test_the_middle_of_a_group_may_conflict(self, sut: StoreUnderTest) -> None:
        results = await sut.store.commit(
            [
                Commit(stream=run("x"), expected=0, records=(b"1",), jobs=(job("x"),)),
                Commit(stream=run("y"), expected=4, records=(b"1",), jobs=(job("y"),), rows=(row("y"),)),
                Commit(stream=run("z"), expected=0, records=(b"1",), jobs=(job("z"),)),
            ]
        )
        assert results == [Committed(version=1), VersionConflict(version=0), Committed(version=1)]
        assert [lease.key for lease in await sut.claim(9)] == ["x", "z"]
        assert [tail.version for tail in await sut.store.load({run("x"): 0, run("y"): 0, run("z"): 0})] == [1, 0, 1]
        assert await sut.found() == []

    async def test_the_middle_of_a_group_may_have_lost_its_lease(self, sut: StoreUnderTest) -> None:
        for name in "xyz":
            await sut.put(job(name), stream=run(name))
        x, y, z = await sut.claim(3)
        await sut.store.release([y])
        commits = [
            Commit(stream=lease.stream, expected=0, records=(b"done",), acks=(ack(lease),)) for lease in (x, y, z)
        ]
        assert await sut.store.commit(commits) == [
            Committed(version=1),
            LeasesLost(keys=("y",)),
            Committed(version=1),
        ]
        assert [len(await sut.views(run(name))) for name in "xyz"] == [0, 1, 0]

    async def test_a_later_commit_of_a_group_sees_the_earlier(self, sut: StoreUnderTest) -> None:
        results = await sut.store.commit(
            [
                Commit(stream=RUN, expected=0, records=(b"1",), jobs=(job(),)),
                Commit(stream=RUN, expected=0, records=(b"lost",)),
                Commit(stream=RUN, expected=1, records=(b"2",), drop=("a",)),
            ]
        )
        assert results == [Committed(version=1), VersionConflict(version=1), Committed(version=2)]
        assert (await sut.tail()).records == (b"1", b"2")
        assert await sut.views() == {}

    async def test_of_many_committers_one_wins_each_version(self, sut: StoreUnderTest) -> None:
        async def writer(name: int) -> int:
            wins = version = 0
            while wins < 5:
                result = await sut.commit(expected=version, records=(f"{name}.{wins}".encode(),))
                assert isinstance(result, Committed | VersionConflict)
                wins += isinstance(result, Committed)
                version = result.version
                await asyncio.sleep(0)
            return wins

        assert sum(await asyncio.gather(*(writer(name) for name in range(16)))) == 80
        records = (await sut.tail()).records
        assert len(records) == 80 == len(set(records))

    async def test_streams_of_one_name_are_apart_by_tenant_and_kind(self, sut: StoreUnderTest) -> None:
        names = [run("n", "acme"), run("n", "zeta"), run("n")._replace(kind="workflow")]
        for number, stream in enumerate(names):
            await sut.committed(stream, 0, records=(b"%d" % number,), jobs=(job(body=b"%d" % number),))
        for number, stream in enumerate(names):
            assert (await sut.tail(stream)).records == (b"%d" % number,)
            assert (await sut.views(stream))["a"].job.body == b"%d" % number

    async def test_load_answers_the_tail(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1", b"2", b"3"))
        assert await sut.tail(after=1) == Tail(stream=RUN, version=3, after=1, records=(b"2", b"3"))
        assert await sut.tail(after=3) == Tail(stream=RUN, version=3, after=3, records=())
        assert await sut.tail(after=9) == Tail(stream=RUN, version=3, after=9, records=())

    async def test_load_answers_every_stream_in_order(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1", b"2"))
        await sut.committed(OTHER, 0, records=(b"3",))
        tails = await sut.store.load({OTHER: 0, run("nobody"): 0, RUN: 1})
        assert [(tail.stream.key, tail.version, tail.records) for tail in tails] == [
            ("r2", 1, (b"3",)),
            ("nobody", 0, ()),
            ("r1", 2, (b"2",)),
        ]
        assert await sut.store.load({}) == []

    async def test_load_begins_at_a_snapshot_that_is_further_on(self, sut: StoreUnderTest) -> None:
        snapshot = Snapshot(version=2, body=b"folded")
        await sut.committed(expected=0, records=(b"1", b"2", b"3"), snapshot=snapshot)
        from_snapshot = Tail(stream=RUN, version=3, after=2, records=(b"3",), snapshot=b"folded")
        assert await sut.tail(after=0) == from_snapshot
        assert await sut.tail(after=1) == from_snapshot
        assert await sut.tail(after=2) == Tail(stream=RUN, version=3, after=2, records=(b"3",))
        assert await sut.tail(after=3) == Tail(stream=RUN, version=3, after=3, records=())

    async def test_load_can_ignore_snapshots(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1", b"2"), snapshot=Snapshot(version=2, body=b"folded"))
        assert await sut.tail(snapshots=False) == Tail(stream=RUN, version=2, after=0, records=(b"1", b"2"))

    @pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 9])
    async def test_load_answers_no_more_records_than_asked_for(self, sut: StoreUnderTest, limit: int) -> None:
        """However the records were committed."""
        await sut.committed(expected=0, records=(b"1", b"2", b"3"))
        await sut.committed(expected=3, records=(b"4",))
        await sut.committed(expected=4, records=(b"5", b"6"))
        every = (b"1", b"2", b"3", b"4", b"5", b"6")
        for after in range(8):
            wanted = every[after : after + limit]
            assert await sut.tail(after=after, limit=limit) == Tail(stream=RUN, version=6, after=after, records=wanted)
        assert await sut.tail(run("nobody"), limit=limit) == Tail(stream=run("nobody"), version=0, after=0, records=())

    async def test_a_limit_counts_from_the_snapshot(self, sut: StoreUnderTest) -> None:
        snapshot = Snapshot(version=2, body=b"folded")
        await sut.committed(expected=0, records=(b"1", b"2", b"3", b"4"), snapshot=snapshot)
        assert await sut.tail(limit=1) == Tail(stream=RUN, version=4, after=2, records=(b"3",), snapshot=b"folded")
        assert await sut.tail(limit=1, snapshots=False) == Tail(stream=RUN, version=4, after=0, records=(b"1",))

    async def test_only_a_newer_snapshot_replaces_one(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1", b"2", b"3"), snapshot=Snapshot(version=2, body=b"two"))
        for late in (Snapshot(version=1, body=b"one"), Snapshot(version=2, body=b"two again")):
            await sut.committed(expected=3, snapshot=late)
            assert (await sut.tail()).snapshot == b"two"
        await sut.committed(expected=3, snapshot=Snapshot(version=3, body=b"three"))
        assert await sut.tail() == Tail(stream=RUN, version=3, after=3, records=(), snapshot=b"three")
