"""Laws of follow and tell: records exactly once and in order, live frames if one is quick enough."""

from __future__ import annotations

import asyncio

from tests.conformance.stores.harness import OTHER, RUN, StoreUnderTest
from tidemill.stores.contract import Commit, Frame, Snapshot


def numbered(first: int, last: int) -> tuple[bytes, ...]:
    return tuple(b"%d" % number for number in range(first, last + 1))


def recorded(first: int, last: int) -> list[Frame]:
    return [Frame(version=number, body=b"%d" % number) for number in range(first, last + 1)]


class FollowLaws:
    async def test_a_late_reader_sees_all_from_the_beginning(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=numbered(1, 5))
        assert await sut.frames(5) == recorded(1, 5)

    async def test_a_reader_begins_where_it_says(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=numbered(1, 5))
        assert await sut.frames(2, after=3) == recorded(4, 5)

    async def test_snapshots_do_not_shorten_what_is_followed(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=numbered(1, 5), snapshot=Snapshot(version=4, body=b"s"))
        assert await sut.frames(5) == recorded(1, 5)

    async def test_a_reader_may_come_before_the_stream(self, sut: StoreUnderTest) -> None:
        reader = asyncio.create_task(sut.frames(3))
        await sut.settle()
        await sut.committed(OTHER, 0, records=(b"not mine",))
        await sut.committed(expected=0, records=numbered(1, 2))
        await sut.settle()
        await sut.committed(expected=2, records=numbered(3, 3))
        assert await reader == recorded(1, 3)

    async def test_a_reader_may_wait_for_a_version_to_come(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=numbered(1, 2))
        reader = asyncio.create_task(sut.frames(1, after=3))
        await sut.settle()
        await sut.committed(expected=2, records=numbered(3, 3))
        await sut.settle()
        assert not reader.done()
        await sut.committed(expected=3, records=numbered(4, 4))
        assert await reader == recorded(4, 4)

    async def test_readers_see_concurrent_commits_once_and_in_order(self, sut: StoreUnderTest) -> None:
        readers = [asyncio.create_task(sut.frames(200 - after, after=after)) for after in (0, 0, 7, 150)]
        version = 0
        while version < 200:
            size = min(1 + version % 4, 200 - version)
            await sut.committed(expected=version, records=numbered(version + 1, version + size))
            version += size
            if version % 3 == 0:
                await asyncio.sleep(0)
            if version == 100:
                readers.append(asyncio.create_task(sut.frames(200)))
        for reader, after in zip(readers, (0, 0, 7, 150, 0), strict=False):
            assert await reader == recorded(after + 1, 200)

    async def test_a_refused_commit_is_not_seen(self, sut: StoreUnderTest) -> None:
        reader = asyncio.create_task(sut.frames(2))
        await sut.settle()
        await sut.committed(expected=0, records=numbered(1, 1))
        await sut.commit(expected=0, records=(b"conflict",))
        await sut.commit(expected=1, records=(b"lost",), acks=(("a", 1),))
        await sut.committed(expected=1, records=numbered(2, 2))
        assert await reader == recorded(1, 2)

    async def test_live_frames_reach_who_is_there(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=numbered(1, 1))
        readers = [asyncio.create_task(sut.frames(4)) for _ in range(2)]
        await sut.settle()
        await sut.store.publish(OTHER, [b"not mine"])
        await sut.store.publish(RUN, [b"to", b"ken"])
        await sut.settle()
        await sut.committed(expected=1, records=numbered(2, 2))
        told = [Frame(version=0, body=b"to"), Frame(version=0, body=b"ken")]
        for reader in readers:
            assert await reader == [*recorded(1, 1), *told, *recorded(2, 2)]

    async def test_live_frames_reach_who_opened_the_store_too(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=numbered(1, 1))
        reader = asyncio.create_task(sut.frames(4))
        await sut.settle()
        async with sut.another() as other:
            await other.publish(OTHER, [b"not mine"])
            await other.commit([Commit(stream=RUN, expected=1, records=numbered(2, 2))])
            await other.publish(RUN, [b"token"])
            await other.commit([Commit(stream=RUN, expected=2, records=numbered(3, 3))])
            assert await reader == [*recorded(1, 2), Frame(version=0, body=b"token"), *recorded(3, 3)]

    async def test_a_live_frame_does_not_overtake_a_record(self, sut: StoreUnderTest) -> None:
        async with asyncio.timeout(20), sut.following() as follower:
            await sut.committed(expected=0, records=numbered(1, 1))
            assert await anext(follower) == Frame(version=1, body=b"1")
            await sut.committed(expected=1, records=numbered(2, 3))
            await sut.store.publish(RUN, [b"live"])
            await sut.committed(expected=3, records=numbered(4, 4))
            seen = [await anext(follower) for _ in range(3)]
            assert [frame.version for frame in seen if frame.version] == [2, 3, 4][: sum(1 for f in seen if f.version)]
            assert Frame(version=0, body=b"live") not in seen[:2]

    async def test_live_frames_are_never_stored(self, sut: StoreUnderTest) -> None:
        await sut.store.publish(RUN, [b"nobody listens"])
        await sut.committed(expected=0, records=numbered(1, 2))
        await sut.store.publish(RUN, [b"nobody listens"])
        assert await sut.frames(2) == recorded(1, 2)
        assert (await sut.tail()).version == 2

    async def test_a_slow_reader_may_miss_live_frames_but_no_record(self, sut: StoreUnderTest) -> None:
        async with asyncio.timeout(20), sut.following() as follower:
            await sut.committed(expected=0, records=numbered(1, 1))
            seen = [await anext(follower)]
            for version in range(1, 50):
                await sut.store.publish(RUN, [b"live"] * 100)
                await sut.committed(expected=version, records=numbered(version + 1, version + 1))
            while seen[-1].version < 50:
                seen.append(await anext(follower))
        assert [frame for frame in seen if frame.version] == recorded(1, 50)

    async def test_a_reader_who_left_disturbs_nobody(self, sut: StoreUnderTest) -> None:
        stays = asyncio.create_task(sut.frames(2))
        leaves = asyncio.create_task(sut.frames(2))
        await sut.settle()
        await sut.committed(expected=0, records=numbered(1, 1))
        await sut.settle()
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        await sut.store.publish(OTHER, [b"x"])
        await sut.committed(expected=1, records=numbered(2, 2))
        assert await stays == recorded(1, 2)

    async def test_closing_ends_the_following(self, sut: StoreUnderTest) -> None:
        async def read_all() -> list[Frame]:
            async with sut.following() as follower:
                return [frame async for frame in follower]

        await sut.committed(expected=0, records=numbered(1, 2))
        reader = asyncio.create_task(read_all())
        await sut.settle()
        await sut.store.close()
        assert await asyncio.wait_for(reader, 20) == recorded(1, 2)
        await sut.store.open()
