"""Rows: a page looks at a bounded number of entries, however rarely terms meet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.stores.kit import RUN, row
from tidemill.stores.contract import Commit
from tidemill.stores.sqlite import rows
from tidemill.stores.sqlite.store import SqliteStore


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "a.db", durability="relaxed")
    await store.open()
    yield store
    await store.close()


async def test_a_page_walks_only_so_far(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two common terms that never meet: pages come back short, each with a cursor, and end."""
    monkeypatch.setattr(rows, "WALKED_AT_ONCE", 50)
    monkeypatch.setattr(rows, "RARE", 20)
    written = tuple(row(f"r{n:04}", n, "even" if n % 2 == 0 else "odd", "all") for n in range(1_000))
    await store.commit([Commit(stream=RUN, expected=None, rows=written)])
    steps: list[int] = []
    monkeypatch.setattr(rows, "_step", lambda *given, step=rows._step: steps.append(1) or step(*given))
    pages, after = 0, None
    while True:
        before = len(steps)
        page = await store.find("acme", "run", ["even", "odd"], after=after)
        assert not page.rows
        assert len(steps) - before <= rows.STEPS_PER_PAGE_MAX
        pages += 1
        if page.after is None:
            break
        after = page.after
    assert pages == 6, "500 entries at 100 a page, and a last look"
    assert await store.count("acme", "run", ["even", "odd"]) == 0
    assert await store.count("acme", "run", ["even", "all"]) == 500


async def test_terms_that_share_a_number_do_not_share_rows(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "number_of", lambda tenant, kind, term: 7)
    monkeypatch.setattr(rows, "numbers_of", rows.numbers_of.__wrapped__)
    written = (row("a", 1, "red"), row("b", 2, "blue"))
    await store.commit([Commit(stream=RUN, expected=None, rows=written)])
    assert [found.key for found in (await store.find("acme", "run", ["red"])).rows] == ["a"]
    assert [found.key for found in (await store.find("acme", "run", ["blue"])).rows] == ["b"]


async def test_a_row_that_moves_leaves_no_trace(store: SqliteStore) -> None:
    for sort, terms in ((1, ("a", "b")), (2, ("b", "c")), (2, ())):
        await store.commit([Commit(stream=RUN, expected=None, rows=(row("r", sort, *terms),))])
        assert store._read("SELECT count(*) FROM terms").fetchall() == [(1 + len(terms),)]
    await store.commit([Commit(stream=RUN, expected=None, rows=(row("r", deleted=True),))])
    assert store._read("SELECT count(*) FROM terms").fetchall() == [(0,)]
