"""Every store beside a simpler one, over many more seeds than the quick suites have time for."""

from __future__ import annotations

from tests.conformance.stores import test_differential, test_postgres, test_redis, test_sqlite


class TestMemoryBesideNaive(test_differential.TestMemoryBesideNaive):
    seeds = range(1200)


class TestSqliteBesideMemory(test_sqlite.TestSqliteBesideMemory):
    seeds = range(400)


class TestPostgresBesideMemory(test_postgres.TestPostgresBesideMemory):
    seeds = range(120)


class TestRedisBesideMemory(test_redis.TestRedisBesideMemory):
    seeds = range(120)
