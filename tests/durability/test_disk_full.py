"""A full disk: every call that cannot be done says so, nothing acknowledged is lost, and work goes on when there is
room again, in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import tidemill
from tests.conformance.stores.harness import ack, job, row, run
from tests.durability.disk import disk_full, failing, installed, write_failed
from tests.durability.harness import (
    BIG,
    ENDS,
    RecordingStore,
    begin,
    chain,
    engine_on,
    eventually,
    examined,
    finish,
    sql,
    wal_of,
)
from tests.durability.test_syncs import again
from tests.fixtures.command_line import COMMAND, environment
from tidemill.blobs.sqlite import DatabaseBlobs
from tidemill.cli import main
from tidemill.cli.main import call
from tidemill.engine.engine import Engine
from tidemill.errors import DiskFull, Unavailable
from tidemill.stores.contract import Claim, Commit, Committed
from tidemill.stores.sqlite.database import connect, translate_error
from tidemill.stores.sqlite.store import SqliteStore

WRITES_MAX = 60
CLAIMS = Claim(queues=("q",), limit=1, lease_ms=60_000, owner="w")


async def one_commit(store: SqliteStore) -> None:
    (result,) = await store.commit(
        [
            Commit(
                stream=run("new"), expected=0, records=(b"r" * 5000,), rows=(row("new", 1, "a", "b"),), jobs=(job("n"),)
            )
        ]
    )
    assert isinstance(result, Committed)


async def one_claim(store: SqliteStore) -> None:
    assert len(await store.claim(CLAIMS)) == 1


async def claim_and_settle(store: SqliteStore) -> None:
    (lease,) = await again(lambda: store.claim(CLAIMS))
    await store.renew([lease], 60_000)
    (result,) = await store.commit(
        [
            Commit(
                stream=run("old"),
                expected=1,
                records=(b"done",),
                acks=(ack(lease),),
                jobs=(job("next"),),
                keep=("next",),
            )
        ]
    )
    assert isinstance(result, Committed) and result.kept


async def one_release(store: SqliteStore) -> None:
    await store.release(await again(lambda: store.claim(CLAIMS)))


async def one_forget(store: SqliteStore) -> None:
    assert await store.forget(run("old"), expected=1)


async def one_blob(store: SqliteStore) -> None:
    blobs = DatabaseBlobs(store.path, connect, translate_error)
    await blobs.open()
    try:
        digest = await blobs.put("acme", BIG.encode())
        assert await blobs.get("acme", digest) == BIG.encode()
    finally:
        await blobs.close()


OPERATIONS = (one_commit, one_claim, claim_and_settle, one_release, one_forget, one_blob)


async def refusal_of(call: Awaitable[None]) -> str:
    """What an unavailable store says; nothing when it got through."""
    try:
        await call
    except Unavailable as unavailable:
        return str(unavailable) or "nothing was said"
    return ""


async def prepared(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    await store.commit(
        [Commit(stream=run("old"), expected=0, records=(b"kept",), rows=(row("old"),), jobs=(job("o"),))]
    )
    return store


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.__name__))
@pytest.mark.parametrize("error", [disk_full, write_failed], ids=["full", "broken"])
async def test_the_disk_fails_at_every_write(
    quick_path: Path, operation: Callable[[SqliteStore], Awaitable[None]], error: Callable[[], Exception]
) -> None:
    for at in range(1, WRITES_MAX):
        with installed() as disk:
            store = await prepared(quick_path / f"{at}.db")
            fault = disk.fault = failing("write|truncate|sync", "", error, at=at)
            said = await refusal_of(operation(store))
            assert not said or str(store.path) in said, "it does not say which disk"
            assert not said or error is not disk_full or "full" in said
            disk.fault = None
            await still_fine(store)
            if fault.fired:
                await again(lambda: repeated(operation, store))  # noqa: B023
            await store.close()
        if not fault.fired:
            break
    assert not fault.fired, "it never got through"
    assert at > 2, "nothing was ever written"


async def repeated(operation: Callable[[SqliteStore], Awaitable[None]], store: SqliteStore) -> None:
    """Do it in the same process, as far as it was not done, or done in part."""
    (tail,) = await store.load({run("old"): 0})
    (new,) = await store.load({run("new"): 0})
    views = await store.jobs(run("old"))
    if operation is one_claim and not views[0].token:
        await one_claim(store)
    if operation is one_commit and not new.version:
        await one_commit(store)
    if operation is one_forget and tail.version:
        await one_forget(store)
    if operation is one_blob:
        await one_blob(store)
    (result,) = await store.commit([Commit(stream=run("after"), expected=None, rows=(row("after"),))])
    assert isinstance(result, Committed)


async def still_fine(store: SqliteStore) -> None:
    """What was acknowledged is there, all of it, or a later operation has taken it away as a whole."""
    (tail,) = await store.load({run("old"): 0})
    assert tail.records[:1] == (b"kept",) or (tail.version == 0 and not await store.jobs(run("old")))
    assert not tail.damage
    assert sql(store.path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_disk_that_is_full_while_a_store_is_made(quick_path: Path) -> None:
    for at in range(1, 200):
        with installed() as disk:
            path = quick_path / f"{at}.db"
            fault = disk.fault = failing("write|sync", "", disk_full, at=at)
            store = SqliteStore(path)
            said = await refusal_of(store.open())
            assert not said or ("is full" in said and fault.fired)
            disk.fault = None
            await store.open()
            await one_commit(store)
            await store.close()
        if not fault.fired:
            return
    raise AssertionError("it never got through")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of a few megabytes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No room is left on a disk."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def limited(path: Path) -> Iterator[None]:
    """No file of this process may grow beyond what the log has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal_of(path).stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def may_mount(folder: Path) -> bool:
    try:
        with small_disk(folder):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        folder.rmdir()


class Counting(RecordingStore):
    """Counts how often it is asked for work."""

    claims = 0

    async def claim(self, request: Claim) -> Any:
        self.claims += 1
        return await super().claim(request)


async def starting(engine: Engine) -> None:
    for number in range(500):
        await engine.start("chain", {"pad": number}, key=f"during-{number}")
        await asyncio.sleep(0)


async def through_the_drought(path: Path, drought: Callable[[], Any]) -> dict[str, Any]:
    """Runs begin, there is no room for a while, there is room again: answers how the same process finishes them."""
    store = Counting(path)
    engine = await engine_on(store, lease_ms=1_000).open()
    try:
        runs = await begin(engine)
        await engine.start("fan", key="in-time")
        with drought():
            acked = list(store.acked)
            said = await refusal_of(starting(engine))
            before = store.claims
            await asyncio.sleep(1.2)
            assert store.claims - before < 30, "the worker spins"
            assert engine.worker is not None and not engine.worker.draining
        assert str(path) in said, "nothing ran out"
        await again(lambda: engine.start("chain", key="afterwards"))
        ends = await finish(engine)
        assert {"in-time", "afterwards"} <= ends.keys()
        assert all(status == "COMPLETED" for status, _ in ends.values())
        tails = {tail.stream: tail for tail in await store.load({each.stream: 0 for each in acked})}
        assert all(tails[each.stream].version >= each.version for each in acked)
        await eventually(lambda: not engine.worker or not engine.worker.held_jobs, "something is held for ever")
    finally:
        await engine.close()
    await examined(path)
    return {run: ends[run] for run in runs}


async def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert await through_the_drought(path, lambda: limited(path)) == ENDS


async def test_a_small_disk(tmp_path: Path, quick_path: Path) -> None:
    """Where nothing may be mounted, the limit stands in for it with a larger log."""
    folder = quick_path / "disk"
    if not may_mount(quick_path / "try"):
        assert await through_the_drought(quick_path / "a.db", lambda: limited(quick_path / "a.db")) == ENDS
        return
    with small_disk(folder):
        assert await through_the_drought(folder / "a.db", lambda: filled(folder)) == ENDS


def test_the_command_line_says_so(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{quick_path}/a.db"
    with installed() as disk:
        with tidemill.open(url) as mill:
            mill.publish(chain())
        fault = disk.fault = failing("write", "", disk_full, times=1_000_000)
        capsys.readouterr()
        code = call(["start", "chain", "--store", url])
    said = capsys.readouterr()
    assert fault.fired
    assert (code, said.out) == (main.REFUSED, "")
    assert len(said.err.splitlines()) == 1
    assert "is full; free some space" in said.err
    assert "Traceback" not in said.err


def test_a_disk_that_was_full_before_the_file_was_opened(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even a reader finds its place then, and SQLite calls that an I/O error."""
    folder = quick_path / "disk"
    if not may_mount(quick_path / "try"):
        # The limit on the size of files, below, stands in for it.
        return
    with small_disk(folder):
        url = f"sqlite:///{folder}/a.db"
        with tidemill.open(url, work=False) as mill:
            mill.publish(chain())
        with filled(folder):
            capsys.readouterr()
            assert call(["runs", "list", "--store", url]) == main.REFUSED
            assert f"the disk of {folder}/a.db is full; free some space" in capsys.readouterr().err
            assert call(["start", "chain", "--json", "--store", url]) == main.REFUSED
            said = capsys.readouterr()
    (problem,) = json.loads(said.out)["problems"]
    assert (problem["code"], said.err) == ("disk_full", "")
    assert problem["message"].endswith("is full; free some space")


def test_a_limit_on_the_size_of_files_is_told_with_what_to_do(quick_path: Path) -> None:
    url, limit = f"sqlite:///{quick_path}/a.db", 16_384
    with tidemill.open(url, work=False) as mill:
        mill.publish(chain())
    said = subprocess.run(
        [*COMMAND, "start", "chain", "--store", url],
        capture_output=True,
        text=True,
        # Python would write bytecode that the limit cuts, and fail to import it from then on.
        env=environment({"PYTHONDONTWRITEBYTECODE": "1"}),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert said.returncode == main.REFUSED
    assert f"a.db cannot grow: files of this process end at {limit:,} bytes; raise that (ulimit -f)" in said.stderr


def test_a_read_that_fails_has_nothing_to_do_with_room(quick_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    (quick_path / "a.db").write_bytes(bytes(8_192))
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, limits[1]))
    try:
        read, written = (_meant(quick_path, code) for code in (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_WRITE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not isinstance(read, DiskFull) and isinstance(written, DiskFull)
    assert "check that the disk is healthy and has space" in str(_meant(quick_path, apsw.SQLITE_IOERR_WRITE))


def _meant(folder: Path, code: int) -> Exception:
    error = apsw.exception_for(code)
    assert isinstance(error, apsw.Error)
    return translate_error(error, folder / "a.db")


def test_a_disk_that_is_not_installed_any_more_fails_nobody(quick_path: Path) -> None:
    with installed() as disk:
        disk.fault = failing("write", "", disk_full, times=1_000_000)
    sql(quick_path / "a.db", "CREATE TABLE a (b)")
    assert not disk.steps
