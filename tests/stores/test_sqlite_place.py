"""One file has one name, and a store whose file is taken away says so instead of writing into nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tests.stores.kit import job, run
from tidemill.errors import Rejected
from tidemill.stores.contract import Claim, Commit, Committed
from tidemill.stores.sqlite.database import resolve_path, translate_error
from tidemill.stores.sqlite.store import HOLDER_CHECK_MS, SqliteStore
from tidemill.stores.sqlite.writer import Transaction

ANY = Claim(queues=("q",), limit=10, lease_ms=600_000, owner="w")


async def opened(path: Path, presence_ms: float = 0.0) -> SqliteStore:
    store = SqliteStore(path, presence_ms=presence_ms)
    await store.open()
    return store


async def test_a_link_to_a_store_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(tmp_path / "a.db")
    first = await opened(tmp_path / "a.db")
    second = await opened(link)
    await first.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"),))])
    assert len(await first.claim(ANY)) == 1
    await asyncio.sleep(HOLDER_CHECK_MS / 1000)
    assert await second.claim(ANY) == [], "what a living store holds was taken from it"
    assert list((tmp_path / "elsewhere").iterdir()) == [link]
    await second.close()
    await first.close()


async def test_a_folder_of_locks_that_is_gone_proves_nobody_dead(tmp_path: Path) -> None:
    first, second = await opened(tmp_path / "a.db"), await opened(tmp_path / "a.db")
    await first.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"),))])
    assert len(await first.claim(ANY)) == 1
    assert await second.claim(ANY) == []
    shutil.rmtree(tmp_path / "a.db-live")
    await asyncio.sleep(HOLDER_CHECK_MS / 1000)
    assert await second.claim(ANY) == [], "what a living store holds was taken from it"
    await second.close()
    await first.close()


async def test_a_process_may_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = await opened(Path("a.db"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    await store.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"),))])
    leases = await store.claim(ANY)
    lost = await asyncio.to_thread(lambda: asyncio.run(store.renew(leases, 600_000)))
    assert lost == [], "the thread has looked at another file"
    await store.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_lane_that_was_rolled_back_is_not_remembered(tmp_path: Path) -> None:
    first, second = await opened(tmp_path / "a.db"), await opened(tmp_path / "a.db")
    await first.claim(ANY)
    seen: list[str] = []

    def comes_to_nothing(tx: Transaction) -> None:
        first._streams.apply(tx, Commit(stream=run("r"), expected=None, jobs=(job("a", queue="q"),)))
        seen.extend(lease.queue for lease in first._jobs.claim(tx, ANY))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await first._write(comes_to_nothing, durable=False)
    assert seen == ["q"], "the lane was never looked up"
    await second.commit([Commit(stream=run("s"), expected=None, jobs=(job("b", queue="other"),))])
    assert await first.claim(ANY) == [], "a job of another queue was claimed"
    (lease,) = await first.claim(Claim(queues=("other",), limit=10, lease_ms=1_000, owner="w"))
    assert lease.queue == "other"
    await second.close()
    await first.close()


def without_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def without_file(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    other = path.with_name("other.db")
    shutil.copy(path, other)
    os.replace(other, path)


@pytest.mark.parametrize("take_away", [without_log, without_file, replaced])
async def test_a_store_that_is_gone_acknowledges_nothing(tmp_path: Path, take_away: Callable[[Path], None]) -> None:
    path = tmp_path / "a.db"
    store = await opened(path)
    (done,) = await store.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"),))])
    assert isinstance(done, Committed)
    take_away(path)
    left = sorted(os.listdir(tmp_path))
    with pytest.raises(Rejected, match="removed or replaced") as refusal:
        await store.commit([Commit(stream=run("s"), expected=None, jobs=(job("b"),))])
    assert refusal.value.problems[0].code == "store_gone"
    with pytest.raises(Rejected, match="removed or replaced"):
        await asyncio.to_thread(lambda: asyncio.run(store.renew([], 1_000)))
    assert sorted(os.listdir(tmp_path)) == left, "a new file was made where the old one had been"
    await store.close()


async def test_it_is_looked_for_now_and_then(tmp_path: Path) -> None:
    store = await opened(tmp_path / "a.db", presence_ms=150.0)
    (tmp_path / "a.db").unlink()
    await asyncio.sleep(0.2)
    with pytest.raises(Rejected, match="removed or replaced"):
        await store.forget(run("r"))
    await store.close()


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, ":memory:", "loop"])
def test_what_cannot_name_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(Rejected) as refusal:
        resolve_path(tmp_path / name)
    assert refusal.value.problems[0].code == "store_unusable"
    assert "\0" not in str(refusal.value)


@pytest.mark.parametrize("name", ["a.db-wal", "a.db-shm", "a.db-journal"])
def test_a_name_that_sqlite_gives_to_files_of_its_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(Rejected, match="would be removed") as refusal:
        SqliteStore(tmp_path / name)
    assert refusal.value.problems[0].code == "store_unusable"


def test_a_file_system_that_is_mounted_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # To mount one takes rights that a test does not have.
    *rest, flags, longest = os.statvfs(tmp_path)
    assert not flags & os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*rest, flags | os.ST_RDONLY, longest)))
    for error in (apsw.CantOpenError("unable to open"), apsw.ReadOnlyError("readonly")):
        assert "mounted read-only" in str(translate_error(error, tmp_path / "a.db"))
