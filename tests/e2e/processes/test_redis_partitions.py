"""A Redis store of seven partitions on a cluster of three: the laws that do not speak of an order between runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from redis.crc import key_slot

from tests.conformance.long.test_redis import emptied
from tests.conformance.stores.harness import LONG_MS, ack, job, run
from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tests.conformance.stores.test_redis import redis_under_test
from tests.fixtures.servers.redis_server import PASSWORD, Server, cluster
from tidemill.stores.contract import Claim, Commit, Committed
from tidemill.stores.redis.database import place_at
from tidemill.stores.redis.store import RedisStore

ORDERED = {
    "test_every_job_goes_to_one_claimer",  # Tokens are unique within a partition.
    "test_higher_priority_first_then_insertion",
    "test_tenants_take_turns_within_a_claim",
    "test_many_tenants_are_all_served",
    "test_room_under_a_cap_ends_a_wait",
    "test_the_end_of_a_lease_makes_room",
    "test_backlog_counts_by_tenant_and_queue",
    "test_forget_removes_a_stream_and_nothing_else",
    "test_the_middle_of_a_group_may_have_lost_its_lease",
}
"""Laws that expect the jobs of several runs in a certain order."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Server]]:
    with cluster() as started:
        yield list(started)


class TestRedisPartitions(StoreConformance):
    @pytest_asyncio.fixture
    async def sut(self, nodes: list[Server], request: pytest.FixtureRequest) -> AsyncIterator[StoreUnderTest]:
        sut = await redis_under_test(emptied(nodes, partitions=7))
        yield sut
        await sut.store.close()


for name in ORDERED:
    assert hasattr(StoreConformance, name)
    setattr(TestRedisPartitions, name, None)


async def test_a_slot_that_moves_to_another_node_costs_time_and_nothing_else(nodes: list[Server]) -> None:
    """Its keys move one by one while commits go on."""
    store = RedisStore(place_at(emptied(nodes)))
    await store.open()
    await store.commit([Commit(run("r"), 0, records=(b"0",), jobs=(job("0"),))])
    (lease,) = await store.claim(Claim(queues=(), limit=1, lease_ms=LONG_MS))
    moved = asyncio.create_task(asyncio.to_thread(move_slot, nodes, key_slot(b"{p0}")))
    version = 1
    while version < 300 or not moved.done():
        new = job(f"{version}")
        commit = Commit(run("r"), version, records=(b"%d" % version,), acks=(ack(lease),), jobs=(new,), keep=(new.key,))
        (result,) = await store.commit([commit])
        assert isinstance(result, Committed)
        (lease,) = result.kept
        version = result.version
    await moved
    (tail,) = await store.load({run("r"): 0})
    assert tail.records == tuple(b"%d" % number for number in range(version))
    await store.close()


def move_slot(nodes: list[Server], slot: int) -> None:
    names = {node.port: str(node.asked("CLUSTER", "MYID"), "ascii") for node in nodes}  # type: ignore[arg-type]
    source = next(node for node in nodes if node.asked("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = next(node for node in nodes if node is not source)
    target.asked("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
    source.asked("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
    with source.client() as client:
        while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 3):
            auth = ("AUTH", PASSWORD, "KEYS", *keys)
            client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, *auth)
    for node in (target, source, *nodes):
        node.asked("CLUSTER", "SETSLOT", slot, "NODE", names[target.port])
