"""Servers that the suites of stores and blobs share, one per process of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.servers import redis_server
from tests.fixtures.servers.postgres_server import Server, given_or_running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with given_or_running() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[redis_server.Server]:
    with redis_server.given_or_running() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[list[redis_server.PrivateServer]]:
    with redis_server.cluster() as nodes:
        yield nodes
