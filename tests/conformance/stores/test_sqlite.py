"""The SQLite store: every law, beside the memory store, and what is promised of it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.stores.differential import DifferentialSuite
from tests.conformance.stores.suite import StoreConformance, StoreUnderTest
from tests.conformance.stores.test_memory import ManualClock, memory_under_test
from tidemill.stores.sqlite.store import SqliteStore


async def sqlite_under_test(path: Path) -> StoreUnderTest:
    clock = ManualClock()
    store = SqliteStore(path, durability="relaxed", clock=clock)
    await store.open()

    async def advance(ms: int) -> None:
        clock.now += ms
        store.notify_all()
        await asyncio.sleep(0.002)

    return StoreUnderTest(
        store=store, advance=advance, exact_times=True, settle_ms=10, beside=lambda: SqliteStore(path, clock=clock)
    )


class TestSqliteStore(StoreConformance):
    @pytest_asyncio.fixture
    async def sut(self, tmp_path: Path) -> AsyncIterator[StoreUnderTest]:
        sut = await sqlite_under_test(tmp_path / "tidemill.db")
        yield sut
        await sut.store.close()


class TestSqliteStoreInRealTime(StoreConformance):
    """The same laws by the machine's clock, with every commit on the disk."""

    @pytest_asyncio.fixture
    async def sut(self, tmp_path: Path) -> AsyncIterator[StoreUnderTest]:
        store = SqliteStore(tmp_path / "tidemill.db")
        await store.open()

        async def advance(ms: int) -> None:
            await asyncio.sleep(ms / 1000)

        yield StoreUnderTest(store=store, advance=advance, settle_ms=10, beside=lambda: SqliteStore(store.path))
        await store.close()


class TestSqliteBesideMemory(DifferentialSuite):
    seeds = range(32)

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.folder, self.opened = tmp_path, 0

    async def pair(self) -> tuple[StoreUnderTest, StoreUnderTest]:
        self.opened += 1
        return memory_under_test(), await sqlite_under_test(self.folder / f"{self.opened}.db")
