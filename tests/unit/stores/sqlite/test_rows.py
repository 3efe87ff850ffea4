"""The places of rows in a file: whatever the disk does to them is noticed, and put right beside whoever writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio

import tidemill
from tests.conformance.stores.harness import RUN
from tests.conformance.stores.harness import row as harness_row
from tidemill.stores.contract import Commit, Row, Stream
from tidemill.stores.sqlite import rows
from tidemill.stores.sqlite.database import connect, migrate
from tidemill.stores.sqlite.rows import number_of
from tidemill.stores.sqlite.store import SqliteStore

TENANT, KIND = "acme", "thing"
STREAM = Stream(TENANT, KIND, "s")
MANY = 1_200
PAGE_BYTES = 4096


def number(term: str | None) -> int:
    return number_of(TENANT, KIND, term)


def row(n: int, *terms: str, sort: int | None = None) -> Row:
    return Row(kind=KIND, key=f"k{n:05}", sort=n if sort is None else sort, terms=("all", *terms), body=b"x" * 60)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def filled(path: Path, count: int = 50) -> None:
    async with opened(path) as store:
        await put(store, *(row(n, f"parity:{n % 2}") for n in range(count)))


async def put(store: SqliteStore, *rows: Row) -> None:
    await store.commit([Commit(stream=STREAM, expected=None, rows=rows)])


async def keys(store: SqliteStore, *terms: str) -> list[str]:
    found, after = list[str](), None
    while True:
        page = await store.find(TENANT, KIND, terms, after=after, limit=500)
        found += [each.key for each in page.rows]
        after = page.after
        if after is None:
            return found


def sql(path: Path, text: str, *values: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(text, values)
    assert connection.total_changes(), "nothing was damaged"
    connection.close()


def blank(path: Path, table: str, *, leaf: int = 0) -> None:
    """Zero a page of a table."""
    connection = apsw.Connection(str(path))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    leaves = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path LIMIT 1 OFFSET ?"
    found: list[Any] = connection.execute(leaves, (table, leaf)).fetchall()
    connection.close()
    (page,), body = found[0], bytearray(path.read_bytes())
    assert any(body[(page - 1) * PAGE_BYTES : page * PAGE_BYTES])
    body[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(body)


def flip(path: Path, found: bytes, *, at: int) -> None:
    """Flip the highest bit but one of a byte of the first thing that is stored like this."""
    body = bytearray(path.read_bytes())
    body[body.index(found) + at] ^= 0x40
    path.write_bytes(body)


DAMAGES: dict[str, tuple[Callable[[Path], None], tuple[int, int]]] = {
    "unlisted": (lambda path: sql(path, "DELETE FROM terms WHERE key = 'k00005'"), (1, 0)),
    "one term": (
        lambda path: sql(path, "DELETE FROM terms WHERE key = 'k00005' AND term = ?", number("parity:1")),
        (1, 0),
    ),
    "other place": (
        lambda path: sql(path, "UPDATE terms SET sort = 999 WHERE key = 'k00005' AND term = ?", number(None)),
        (1, 1),
    ),
    "other key": (
        lambda path: sql(path, "UPDATE terms SET key = 'l00005' WHERE key = 'k00005' AND term = ?", number(None)),
        (1, 1),
    ),
    "too many": (lambda path: sql(path, "INSERT INTO terms VALUES (?, 5, 'k00005')", number("parity:0")), (0, 1)),
    "none left": (lambda path: sql(path, "DELETE FROM terms"), (50, 0)),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_places_are_compared_and_put_right(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.db"
    await filled(path)
    do, expected = DAMAGES[damage]
    do(path)
    async with opened(path) as store:
        flaws = await store.index.problems()
        assert (flaws.missing, flaws.stray, flaws.unreadable) == (*expected, "")
        assert await store.index.repair() == flaws
        assert (await store.index.problems()).sound
        assert await keys(store) == await keys(store, "all") == [f"k{n:05}" for n in range(49, -1, -1)]
        assert len(await keys(store, "parity:0")) == await store.count(TENANT, KIND, ["parity:0"]) == 25


async def test_what_cannot_be_put_right_one_by_one_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ONE_BY_ONE_MAX", 10)
    path = tmp_path / "a.db"
    await filled(path)
    sql(path, "DELETE FROM terms")
    async with opened(path) as store:
        assert (await store.index.repair()).missing == 11
        assert (await store.index.problems()).sound
        assert len(await keys(store, "all")) == 50


@pytest.mark.parametrize(("table", "kept"), [("terms", MANY), ("rows", MANY - 60)])
async def test_a_page_that_cannot_be_read_costs_what_it_held(tmp_path: Path, table: str, kept: int) -> None:
    path = tmp_path / "a.db"
    await filled(path, MANY)
    blank(path, table, leaf=3)
    async with opened(path) as store:
        assert "malformed" in (await store.index.problems()).unreadable
        await store.index.repair()
        assert (await store.index.problems()).sound
        found = await keys(store, "all")
        assert kept <= len(found) <= MANY
        assert (len(found) < MANY) is (table == "rows")
        await put(store, *(row(n, "late") for n in range(MANY)))
        assert len(await keys(store, "late")) == MANY
    connection = apsw.Connection(str(path))
    connection.execute("VACUUM")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


async def test_an_entry_where_nobody_finds_it_again_is_no_place(tmp_path: Path) -> None:
    """A flipped bit of its term: it lies between others where no search by what it says comes to."""
    path = tmp_path / "a.db"
    await filled(path)
    flip(path, number("parity:1").to_bytes(8, "big", signed=True) + bytes([25]) + b"k00025", at=0)
    async with opened(path) as store:
        assert not (await store.index.repair()).sound
        assert (await store.index.problems()).sound
        assert len(await keys(store, "parity:1")) == 25


async def test_a_row_where_nobody_finds_it_again_is_given_up(tmp_path: Path) -> None:
    """Its log writes it again, and nothing walks in circles."""
    path = tmp_path / "a.db"
    await filled(path, MANY)
    flip(path, b"acmethingk00600", at=9)
    async with opened(path) as store:
        assert "out of order" in (await store.index.repair()).unreadable
        assert (await store.index.problems()).sound
        assert MANY - 1 <= len(await keys(store)) <= MANY


async def test_building_anew_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await filled(path)
    async with opened(path) as store:
        await store._write(rows._set_aside, durable=True)
        assert await keys(store) == []
    async with opened(path) as store:
        assert (await store.index.repair()).unreadable
        assert (await store.index.problems()).sound
        assert len(await keys(store)) == 50


async def test_a_place_that_a_row_came_to_since_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await filled(path)
    sql(path, "INSERT INTO terms VALUES (?, 5, 'k00005')", number("late"))
    async with opened(path) as store:
        found = await store.index._compare()
        assert found.stray
        await put(store, row(5, "late"))
        await store.index._repair_few(found)
        assert await keys(store, "late") == ["k00005"]
        assert (await store.index.problems()).sound


@pytest.mark.parametrize("table", ["", "terms", "rows"])
async def test_mending_beside_somebody_who_writes(tmp_path: Path, table: str) -> None:
    path = tmp_path / "a.db"
    await filled(path, MANY)
    sql(path, "DELETE FROM terms WHERE key < 'k00300'")
    if table:
        blank(path, table, leaf=6)
    async with opened(path) as mender, opened(path) as writer:
        mending = asyncio.create_task(mender.index.repair())
        written = 0
        while not mending.done():
            n = written % 100
            await put(writer, row(n, "late", sort=written + MANY), row(MANY + written))
            written += 1
            await asyncio.sleep(0)
        assert not mending.result().sound
        assert written > 1
        await put(writer, row(0, "last"))
        for store in (mender, writer):
            assert (await store.index.problems()).sound
            assert await keys(store, "last") == ["k00000"]
            assert len(await keys(store, "late")) == min(written, 100) - 1
            assert len(await keys(store)) >= MANY + written - (60 if table == "rows" else 0)


def test_a_place_is_looked_for_and_not_walked_to(tmp_path: Path) -> None:
    """Else a comparison takes as long as the square of what there is."""
    connection = connect(tmp_path / "a.db")
    migrate(connection, tmp_path / "a.db")
    connection.execute(rows.SQL["make_expected"])
    for name in ("missing_places", "stray_places"):
        plan = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {rows.SQL[name]}", (1,))]
        assert [step for step in plan if "SEARCH" in str(step) and "term=? AND sort=? AND key=?" in str(step)], plan
    connection.close()


FLOW = {"name": "one", "nodes": [{"id": "a", "type": "value", "config": {"n": 1}}]}


@pytest.mark.parametrize("table", ["rows", "terms"])
def test_lists_come_back_from_the_logs_when_they_cannot_be_read(tmp_path: Path, table: str) -> None:
    url, path = f"sqlite:///{tmp_path}/mill.db", tmp_path / "mill.db"
    with tidemill.open(url) as mill:
        mill.publish(FLOW)
        for number_ in range(3):
            mill.result(mill.start("one", key=f"r{number_}"))
        before = [shown.run_id for shown in mill.find()[0]]
    blank(path, table)
    with tidemill.open(url, work=False) as mill:
        verdict = mill.verify_log()
        assert [(finding.run, finding.code) for finding in verdict.findings] == [("the lists", "lists_unreadable")]
        assert (verdict.runs, verdict.workflows) == (3, 1)
        assert {finding.code for finding in mill.verify_log(["r1"]).findings} == {"lists_unreadable"}
        preview = mill.reindex(dry_run=True)
        assert (preview.anew, preview.missing) == (True, 6)
        assert mill.reindex().anew
        assert [shown.run_id for shown in mill.find()[0]] == before
        assert mill.verify_log().clean
        assert not mill.reindex().anew


def test_an_entry_of_a_list_that_is_gone_is_found_and_comes_back(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/mill.db", tmp_path / "mill.db"
    with tidemill.open(url) as mill:
        mill.publish(FLOW)
        mill.result(mill.start("one", key="r1"))
    sql(path, "DELETE FROM terms WHERE term = ?", number_of("default", "run", "status:COMPLETED"))
    with tidemill.open(url, work=False) as mill:
        assert mill.find(terms=["status:COMPLETED"])[0] == []
        assert "places_missing" in {finding.code for finding in mill.verify_log().findings}
        assert mill.reindex().misplaced == 1
        assert [shown.run_id for shown in mill.find(terms=["status:COMPLETED"])[0]] == ["r1"]
        assert mill.verify_log().clean


# Rows: a page looks at a bounded number of entries, however rarely terms meet


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
    written = tuple(harness_row(f"r{n:04}", n, "even" if n % 2 == 0 else "odd", "all") for n in range(1_000))
    await store.commit([Commit(stream=RUN, expected=None, rows=written)])
    steps: list[int] = []
    monkeypatch.setattr(rows, "_end", lambda *given, end=rows._end: steps.append(1) or end(*given))
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


async def test_a_page_is_read_with_one_statement(store: SqliteStore) -> None:
    written = tuple(harness_row(f"r{n:04}", n, "all") for n in range(100))
    await store.commit([Commit(stream=RUN, expected=None, rows=written)])
    asked: list[str] = []

    def execute(text: str, *given: Any) -> Any:
        asked.append(text)
        return store._read(text, *given)

    for terms in ([], ["all"]):
        asked.clear()
        assert [row.key for row in rows.find(execute, "acme", "run", terms, None, 3).rows] == [
            "r0099",
            "r0098",
            "r0097",
        ]
        assert len(asked) == 1


async def test_terms_that_share_a_number_do_not_share_rows(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "number_of", lambda tenant, kind, term: 7)
    monkeypatch.setattr(rows, "numbers_of", rows.numbers_of.__wrapped__)
    written = (harness_row("a", 1, "red"), harness_row("b", 2, "blue"))
    await store.commit([Commit(stream=RUN, expected=None, rows=written)])
    assert [found.key for found in (await store.find("acme", "run", ["red"])).rows] == ["a"]
    assert [found.key for found in (await store.find("acme", "run", ["blue"])).rows] == ["b"]


async def test_a_row_that_moves_leaves_no_trace(store: SqliteStore) -> None:
    for sort, terms in ((1, ("a", "b")), (2, ("b", "c")), (2, ())):
        await store.commit([Commit(stream=RUN, expected=None, rows=(harness_row("r", sort, *terms),))])
        assert store._read("SELECT count(*) FROM terms").fetchall() == [(1 + len(terms),)]
    await store.commit([Commit(stream=RUN, expected=None, rows=(harness_row("r", deleted=True),))])
    assert store._read("SELECT count(*) FROM terms").fetchall() == [(0,)]
