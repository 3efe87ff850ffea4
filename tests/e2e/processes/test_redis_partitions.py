"""A Redis store of seven partitions on a cluster of three: the laws that do not speak of an order between runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tests.conformance.stores.test_redis import emptied, redis_under_test
from tests.fixtures.servers.redis_server import Server, cluster

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
