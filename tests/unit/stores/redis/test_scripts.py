"""Calls that are executed once, names as bytes, and to which partition a key belongs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from redis.crc import key_slot

from tests.conformance.stores.harness import RUN, job
from tests.fixtures.servers.redis_server import PrivateServer, running
from tidemill.errors import Unavailable
from tidemill.stores.contract import Commit, Stream
from tidemill.stores.redis.database import place_at
from tidemill.stores.redis.scripts import Session, decoded, encoded, encoded_stream, partition_of, root_of
from tidemill.stores.redis.store import RedisStore
from tidemill.stores.redis.streams import Applied


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with running() as started:
        yield started


@pytest_asyncio.fixture
async def store(server: PrivateServer) -> AsyncIterator[RedisStore]:
    opened = RedisStore(place_at(server.new_store()))
    await opened.open()
    yield opened
    await opened.close()


async def test_a_call_that_comes_late_is_not_executed(store: RedisStore) -> None:
    (part,) = store._parts
    session, head = Session(part.partition), store._head
    for version in range(2):
        await Applied(part.partition, [Commit(RUN, version, records=(b"x",))]).send(session, head)
    session._batch = 0
    with pytest.raises(Unavailable, match="STALE"):
        await Applied(part.partition, [Commit(RUN, 2, records=(b"late",), jobs=(job(),))]).send(session, head)
    (tail,) = await store.load({RUN: 0})
    assert tail.records == (b"x", b"x")


async def test_a_session_that_ended_leaves_nothing(store: RedisStore, server: PrivateServer) -> None:
    await store.commit([Commit(RUN, 0, records=(b"x",))])
    (part,) = store._parts
    assert len(server.client().hkeys(part.partition.meta)) == 6
    await store.close()
    assert sorted(server.client().hkeys(part.partition.meta)) == [
        b"format",
        b"order",
        b"partitions",
        b"store",
        b"token",
    ]


NAMES = ["", "a", "a\0", "a\0b", "a\x01", "ab", "b", "ä", "中", "\U0001f30a"]


def test_names_keep_their_order_and_come_back() -> None:
    packed = [encoded(one) + encoded(other) for one in NAMES for other in NAMES]
    assert sorted(packed) == packed
    assert [tuple(decoded(each)) for each in packed] == [(one, other) for one in NAMES for other in NAMES]
    assert decoded(encoded_stream(Stream("t", "k", "key"))) == ["k", "t", "key"]


def test_what_belongs_to_a_run_is_in_its_partition() -> None:
    for key in ("run", "run.child", "run.child.1", "run/log/3"):
        assert root_of(key) == "run"
    spread = {partition_of("acme", f"run{number}", 8) for number in range(200)}
    assert spread == set(range(8))
    assert key_slot(b"tidemill:{p0}:jobs") == key_slot(b"tidemill:{p0}:r:x") != key_slot(b"tidemill:{p1}:jobs")


async def test_a_follower_hears_of_what_another_process_writes(store: RedisStore, server: PrivateServer) -> None:
    """By a hint, whatever the names are; it looks by itself only after a while."""
    other = RedisStore(store.place)
    await other.open()
    streams = [Stream(tenant, kind, "k" + key) for tenant in NAMES for kind, key in (("run", "\0"), ("", "a"))]
    seen = [asyncio.create_task(anext(aiter(store.follow(stream, 0)))) for stream in streams]
    for _ in range(1_000):
        if server.asked("PUBSUB", "NUMSUB", f"{store.place.prefix}:records")[1]:  # type: ignore[index]
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    hinted: list[Stream | None] = []
    arrived = store._hints._records
    store._hints._records = lambda stream: (hinted.append(stream), arrived(stream))[1]
    await other.commit([Commit(stream, 0, records=(b"1",)) for stream in streams])
    for task in seen:
        assert (await asyncio.wait_for(task, 20)).body == b"1"
    assert set(hinted) == set(streams)
    await other.close()
