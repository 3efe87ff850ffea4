"""One file has one name, and a store whose file is taken away says so instead of writing into nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import msgspec
import pytest

from tests.conformance.stores.harness import job, run
from tidemill.errors import Rejected
from tidemill.stores.contract import Claim, Commit, Committed, Job, Snapshot, Stream
from tidemill.stores.sqlite.database import resolve_path, translate_error
from tidemill.stores.sqlite.jobs import CAPS
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
    with pytest.raises(Rejected, match="would be deleted") as refusal:
        SqliteStore(tmp_path / name)
    assert refusal.value.problems[0].code == "store_unusable"


def test_a_file_system_that_is_mounted_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # To mount one takes rights that a test does not have.
    *rest, flags, longest = os.statvfs(tmp_path)
    assert not flags & os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*rest, flags | os.ST_RDONLY, longest)))
    for error in (apsw.CantOpenError("unable to open"), apsw.ReadOnlyError("readonly")):
        assert "mounted read-only" in str(translate_error(error, tmp_path / "a.db"))


# What a process reads of a file while another one writes to it: one moment, never half of two


RUN = Stream("default", "run", "one")


async def elsewhere(path: Path, commit: Commit | None) -> None:
    """What another process does: here a thread with a loop and a store of its own."""
    store = SqliteStore(path)
    await store.open()
    if commit is None:
        await store.forget(RUN)
    else:
        await store.commit([commit])
    await store.close()


def in_between(store: SqliteStore, happen: Callable[[], None]) -> list[str]:
    """Let something happen once, after the first statement of a view that looks for a stream."""
    read, happened, begun = store._read, list[str](), list[str]()

    def watched(statement: str, *values: Any) -> Any:
        rows = read(statement, *values).fetchall()
        if statement == "BEGIN":
            begun.append(statement)
        if "FROM streams" in statement and begun and not happened:
            happened.append(statement)
            thread = threading.Thread(target=happen)
            thread.start()
            thread.join()
        return SimpleNamespace(fetchall=lambda: rows)

    store._read = watched  # type: ignore[assignment]
    return happened


MORE = Commit(stream=RUN, expected=2, records=(b"3", b"4"), jobs=(Job(key="b", queue="q", body=b""),))
SHORTER = Commit(stream=RUN, expected=2, records=(b"3",), snapshot=Snapshot(version=3, body=b"123"))


@pytest.mark.parametrize("commit", [MORE, SHORTER, None], ids=["appended", "shortened", "forgotten"])
async def test_a_stream_that_another_process_changes_meanwhile_is_not_damaged(
    tmp_path: Path, commit: Commit | None
) -> None:
    path = tmp_path / "tidemill.db"
    store = SqliteStore(path)
    await store.open()
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1", b"2"))])
    happened = in_between(store, lambda: asyncio.run(elsewhere(path, commit)))
    (tail,) = await store.load({RUN: 0})
    assert happened
    assert (tail.damage, tail.version, tail.after, tail.records) == ("", 2, 0, (b"1", b"2"))
    (later,) = await store.load({RUN: 0}, snapshots=False)
    assert (later.damage, later.version) == ("", {MORE: 4, SHORTER: 3, None: 0}[commit])
    await store.close()


async def test_news_of_a_stream_that_was_quiet_is_seen_at_once(tmp_path: Path) -> None:
    """While nobody writes, its version is known by heart; whoever writes to it, here or elsewhere, ends that."""
    path = tmp_path / "tidemill.db"
    store, other = SqliteStore(path), SqliteStore(path)
    await store.open()
    await other.open()
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1",))])
    looks = counted(store)

    async def version(known: int) -> int:
        """What is seen by whoever knows so much, asked three times."""
        seen = {(await store.load({RUN: known}))[0].version for _ in range(3)}
        assert len(seen) == 1
        return seen.pop()

    assert await version(1) == 1
    assert looks() == 1, "the file was asked once, not three times"
    await store.commit([Commit(stream=RUN, expected=1, records=(b"2",))])
    assert await version(1) == 2
    assert await version(2) == 2
    await other.commit([Commit(stream=RUN, expected=2, records=(b"3",))])
    assert await version(2) == 3
    assert await version(3) == 3
    await store.forget(RUN)
    assert await version(3) == 0
    await other.commit([Commit(stream=RUN, expected=0, records=(b"anew",))])
    assert await version(0) == 1
    await other.forget(RUN)
    assert await version(1) == 0
    await other.close()
    await store.close()


async def test_a_store_that_is_opened_again_has_forgotten_what_it_knew(tmp_path: Path) -> None:
    """SQLite counts what others write for each connection, from the same number on."""
    path = tmp_path / "tidemill.db"
    store = SqliteStore(path)
    await store.open()
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1",))])
    await store.load({RUN: 1})
    await store.close()
    await elsewhere(path, Commit(stream=RUN, expected=1, records=(b"2",)))
    await store.open()
    assert (await store.load({RUN: 1}))[0].records == (b"2",)
    await store.close()


def counted(store: SqliteStore) -> Callable[[], int]:
    """How often a stream has been looked for in the file, since this was last asked."""
    read, looks = store._read, list[str]()

    def watched(statement: str, *values: Any) -> Any:
        looks.extend([statement] if "FROM streams" in statement else [])
        return read(statement, *values)

    store._read = watched  # type: ignore[assignment]

    def told() -> int:
        count = len(looks)
        looks.clear()
        return count

    return told


async def test_claims_that_caps_block_are_woken_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every commit of a worker would cost a claim, too."""
    store = await opened(tmp_path / "a.db")
    told: list[Any] = []
    notify = store._waiters.notify
    monkeypatch.setattr(store._waiters, "notify", lambda topic: (told.append(topic), notify(topic)))
    bounded = msgspec.structs.replace(ANY, caps={"c": 1})
    await store.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"), job("b", caps=("c",))))])
    first, second = await store.claim(bounded)
    await store.commit([Commit(stream=run("r"), expected=None, acks=((first.key, first.token),))])
    assert CAPS not in told
    await store.commit([Commit(stream=run("r"), expected=None, jobs=(job("d", caps=("c",)),))])
    assert await store.claim(bounded) == []
    await store.commit([Commit(stream=run("r"), expected=None, acks=((second.key, second.token),))])
    assert CAPS in told
    await store.close()
