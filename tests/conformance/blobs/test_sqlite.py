"""Blobs in a SQLite file: the laws, and what files do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from tests.conformance.blobs.laws import TENANT, BlobLaws, RenewalLaws, everything, killed_after, soon_ms
from tidemill.blobs.contract import digest_of
from tidemill.blobs.sqlite import DatabaseBlobs
from tidemill.errors import StoreUnusable, Unavailable
from tidemill.stores.sqlite.database import translate_error

SQL = Path(__file__).resolve().parents[3] / "src/tidemill/stores/sql/sqlite/0002_blobs.sql"


def prepared(path: Path) -> Path:
    """A file with the tables, as the store's migrations leave it."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(SQL.read_text())
    connection.close()
    return path


def connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(10_000)
    return connection


class TestDatabaseBlobs(BlobLaws, RenewalLaws):
    @pytest.fixture
    async def blobs(self, tmp_path: Path) -> AsyncIterator[DatabaseBlobs]:
        blobs = DatabaseBlobs(prepared(tmp_path / "store.db"), connect, translate_error)
        await blobs.open()
        yield blobs
        await blobs.close()

    async def age(self, blobs: DatabaseBlobs, digest: str, since_ms: int) -> None:
        look = connect(blobs._path)
        look.execute("UPDATE blobs SET since_ms = ? WHERE digest = ?", (since_ms, digest))
        look.close()

    async def spoil(self, blobs: DatabaseBlobs, digest: str, body: bytes) -> None:
        look = connect(blobs._path)
        look.execute("UPDATE blob_pieces SET body = ?", (body,))
        look.close()


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[DatabaseBlobs]:
    found = DatabaseBlobs(prepared(tmp_path / "store.db"), connect, translate_error)
    await found.open()
    yield found
    await found.close()


async def test_a_deleted_blob_leaves_no_pieces(blobs: DatabaseBlobs, tmp_path: Path) -> None:
    digest = await blobs.put(TENANT, b"x" * 5_000_000)
    await blobs.quarantine(TENANT, digest)
    look = apsw.Connection(str(tmp_path / "store.db"))
    assert look.execute("SELECT count(*), max(length(body)) FROM blob_pieces").fetchall() == [(5, 1024 * 1024)]
    assert await blobs.delete(TENANT, digest, before_ms=soon_ms())
    assert look.execute("SELECT count(*) FROM blob_pieces").fetchall() == [(0,)]
    look.close()


async def test_two_processes_share_a_file(blobs: DatabaseBlobs, tmp_path: Path) -> None:
    other = DatabaseBlobs(tmp_path / "store.db", connect, translate_error)
    await other.open()
    bodies = [b"%d" % number * 50_000 for number in range(20)]
    await asyncio.gather(*(place.put(TENANT, body) for body in bodies for place in (blobs, other)))
    assert len(await everything(other)) == 20
    for body in bodies:
        assert await other.get(TENANT, digest_of(body)) == body
    await other.close()


async def opened_and_put(blobs: DatabaseBlobs) -> None:
    await blobs.open()
    await blobs.put(TENANT, b"body")


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "store_unusable"), (b"this is no database at all" * 100, "store_foreign"), (b"", "store_damaged")],
    ids=["absent", "text", "empty"],
)
async def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "other.db"
    if content is not None:
        path.write_bytes(content)
    blobs = DatabaseBlobs(path, connect, translate_error)
    with pytest.raises(StoreUnusable) as told:
        await opened_and_put(blobs)
    assert (told.value.problem.code, "\n" in str(told.value)) == (code, False)
    await blobs.close()


async def test_a_damaged_page_is_called_by_its_name(blobs: DatabaseBlobs, tmp_path: Path) -> None:
    digest = await blobs.put(TENANT, b"x" * 100_000)
    await blobs.close()
    path = tmp_path / "store.db"
    with apsw.Connection(str(path)) as look:
        ((page,),) = look.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'blob_pieces'")
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    await blobs.open()
    with pytest.raises(StoreUnusable) as told:
        await blobs.get(TENANT, digest)
    assert told.value.problem.code == "store_damaged"


async def test_a_closed_one_says_so(blobs: DatabaseBlobs) -> None:
    await blobs.close()
    with pytest.raises(Unavailable, match="closed"):
        await blobs.put(TENANT, b"body")


async def test_a_full_file_is_told_in_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the number of pages is a disk that is full after so many."""
    blobs = DatabaseBlobs(prepared(tmp_path / "store.db"), connect, translate_error)
    await blobs.open()
    first = await blobs.put(TENANT, b"first")
    await blobs._ask(lambda: blobs._db.pragma("max_page_count", 100))
    with pytest.raises(Unavailable, match="full"):
        await blobs.put(TENANT, b"x" * 3_000_000)
    assert [info.digest for info in await everything(blobs)] == [first]
    await blobs._ask(lambda: blobs._db.pragma("max_page_count", 1_000_000))
    assert await blobs.put(TENANT, b"x" * 3_000_000) == digest_of(b"x" * 3_000_000)
    await blobs.close()


WRITER = """
import asyncio, sys
from pathlib import Path
import apsw
from tidemill.blobs.sqlite import DatabaseBlobs
from tidemill.stores.sqlite.database import translate_error

async def main():
    blobs = DatabaseBlobs(Path(sys.argv[1]), lambda path: apsw.Connection(str(path)), translate_error)
    await blobs.open()
    number = 0
    while True:
        number += 1
        print(await blobs.put("acme", b"%d" % number * 700_000), flush=True)

asyncio.run(main())
"""


async def test_a_killed_writer_loses_nothing_that_it_was_told_is_stored(blobs: DatabaseBlobs, tmp_path: Path) -> None:
    told = await asyncio.to_thread(killed_after, 6, WRITER, str(tmp_path / "store.db"))
    stored = {info.digest for info in await everything(blobs)}
    assert set(told) <= stored
    for digest in stored:
        assert digest_of(await blobs.get(TENANT, digest)) == digest
