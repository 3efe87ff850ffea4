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
    monkeypatch.setattr(rows, "WALKED_PER_PAGE_MAX", 100)
    monkeypatch.setattr(rows, "RARE", 20)
    written = tuple(row(f"r{n:04}", n, "even" if n % 2 == 0 else "odd", "all") for n in range(1_000))
    await store.commit([Commit(stream=RUN, expected=None, rows=written)])
    walked = []
    monkeypatch.setattr(rows, "_walk", lambda *given, walk=rows._walk: walked.append(len(walk(*given))) or walk(*given))
    pages, after = 0, None
    while True:
        before = sum(walked)
        page = await store.find("acme", "run", ["even", "odd"], after=after)
        assert not page.rows
        assert sum(walked) - before <= 100
        pages += 1
        if page.after is None:
            break
        after = page.after
    assert pages >= 5


async def test_terms_that_share_a_number_do_not_share_rows(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "number_of", lambda tenant, kind, term: 7)
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
