"""Files that are no stores of ours, or not now: one clear line, exit code 2, and not a byte of them changed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

import tidemill
from tests.durability.harness import (
    BIG,
    ENDS,
    FAN,
    TENANT,
    begin,
    chain,
    eventually,
    examined,
    finish,
    mill,
    sql,
    wal_of,
)
from tests.fixtures.command_line import COMMAND, Ended, environment, process
from tidemill.cli import main
from tidemill.errors import Rejected, Unavailable
from tidemill.stores.sql_files import migrations
from tidemill.stores.sqlite.database import APPLICATION_ID, check_place, file_system
from tidemill.stores.sqlite.store import SqliteStore

NOBODY = 65534
PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452") + bytes(200)
LOOKING = ("runs", "list")
SECONDS_MAX = 120


def ours(path: Path) -> None:
    """A store with a run in it, and nothing in its log."""
    with tidemill.open(f"sqlite:///{path}") as mill:
        mill.publish(chain())
        mill.result(mill.start("chain"))
    assert not wal_of(path).exists()


def foreign(path: Path) -> None:
    sql(path, "CREATE TABLE customers (name)")


def newer(path: Path) -> None:
    ours(path)
    sql(path, "INSERT INTO migrations VALUES (9999, 'from_the_future', 'x', 0)")


def other_checksum(path: Path) -> None:
    ours(path)
    sql(path, "UPDATE migrations SET checksum = 'x' WHERE number = 1")


def bad_header(path: Path) -> None:
    ours(path)
    damage(path, 20, b"\xff\xff\xff\xff")


def bad_page(path: Path) -> None:
    """The page that the search for runs begins at."""
    ours(path)
    for name in ("terms", "rows"):
        ((page,),) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,))
        damage(path, (page - 1) * 4096, os.urandom(256))


def truncated(path: Path) -> None:
    ours(path)
    os.truncate(path, path.stat().st_size // 2)


def damage(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


class Case(NamedTuple):
    prepare: Callable[[Path], Any]
    code: str
    words: str


CASES = {
    "a text": Case(lambda path: path.write_text("hello, I am no database\n" * 100), "store_foreign", "not a SQLite"),
    "a picture": Case(lambda path: path.write_bytes(PNG), "store_foreign", "not a SQLite"),
    "another program's": Case(foreign, "store_foreign", "of another program"),
    "newer": Case(newer, "store_newer", "a.db has schema 9999"),
    "another checksum": Case(other_checksum, "store_schema_unknown", "migration 1"),
    "a pipe": Case(os.mkfifo, "store_unusable", "a pipe"),
    "a link to a device": Case(lambda path: path.symlink_to("/dev/null"), "store_unusable", "a device"),
    "a directory": Case(lambda path: path.mkdir(), "store_unusable", "is a directory"),
    "a damaged header": Case(bad_header, "store_damaged", "damaged"),
    "a damaged page": Case(bad_page, "store_damaged", "damaged"),
    "half a file": Case(truncated, "store_damaged", "damaged"),
}


def digests(folder: Path) -> dict[str, str]:
    """What is in a folder; locks and the log of a look at it come and go."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(ended: Ended, code: str, words: str) -> bool:
    """True for a command that was refused as it must be; the assertion that fails says what is wrong."""
    assert ended.code == main.REFUSED, ended
    assert ended.out == ""
    first, *hints = ended.err.splitlines()
    assert code in first
    assert words in ended.err
    assert len(hints) == 1 and hints[0].strip().startswith("→"), "what to do is not said in one line"
    assert "Traceback" not in ended.err
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_file_that_cannot_be_a_store(tmp_path: Path, name: str) -> None:
    case, path = CASES[name], tmp_path / "a.db"
    case.prepare(path)
    before = digests(tmp_path)
    refused(process(*LOOKING, "--store", f"sqlite:///{path}"), case.code, case.words)
    assert digests(tmp_path) == before, "a file that was refused was changed"
    with pytest.raises(Rejected) as refusal, tidemill.open(f"sqlite:///{path}", work=False) as mill:
        mill.find()
    assert refusal.value.problems[0].code.startswith(case.code)


@pytest.mark.parametrize("name", ["a text", "newer"])
def test_a_refusal_as_json(tmp_path: Path, name: str) -> None:
    case, path = CASES[name], tmp_path / "a.db"
    case.prepare(path)
    told = process(*LOOKING, "--store", f"sqlite:///{path}", "--json")
    assert told.json["problems"][0]["code"].startswith(case.code)
    assert told.json["problems"][0]["hint"]


URLS = {
    "sqlite:tidemill.db": ("store_unknown", "sqlite:///tidemill.db"),
    "sqlite:/abs/x.db": ("store_unknown", "sqlite:////abs/x.db"),
    "sqlite:///a.db#1": ("store_unknown", "%23"),
    "sqlite:///a\tb.db": ("store_unknown", "%09"),
    "sqlite:///a.db?durability=relaxed&durability=full": ("store_option_unknown", "once"),
    "sqlite:///a%00b.db": ("store_unusable", "name of a file"),
    "sqlite:///" + "x" * 300: ("store_unusable", "name of a file"),
    "sqlite:///:memory:": ("store_unusable", "memory://"),
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_would_name_another_file(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, words = URLS[url]
    monkeypatch.chdir(tmp_path)
    if url in ("sqlite:tidemill.db", "sqlite:///:memory:"):
        refused(process(*LOOKING, "--store", url), code, words)
    with pytest.raises(Rejected) as refusal, tidemill.open(url):
        pass
    assert refusal.value.problems[0].code == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["newer"])
def test_workers_and_writers_are_refused_like_everybody(tmp_path: Path, name: str) -> None:
    case, path = CASES[name], tmp_path / "a.db"
    case.prepare(path)
    before = digests(tmp_path)
    (tmp_path / "flow.yaml").write_text("name: flow\nnodes: [{id: a, type: value}]\n")
    flow = digests(tmp_path)["flow.yaml"]
    for command in (["worker"], ["publish", str(tmp_path / "flow.yaml")], ["migrate"], ["migrate", "--dry-run"]):
        refused(process(*command, "--store", f"sqlite:///{path}"), case.code, case.words)
    assert digests(tmp_path) == {**before, "flow.yaml": flow}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    ended = process("migrate", "--store", f"sqlite:///{tmp_path}/none/a.db")
    refused(ended, "store_unusable", "there is no directory")
    assert not (tmp_path / "none").exists()


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    ours(path)
    assert sql(path, "PRAGMA application_id") == [(APPLICATION_ID,)]


def test_an_older_store_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first, *rest = migrations("sqlite")
    assert rest
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("CREATE TABLE migrations (number INTEGER PRIMARY KEY, name, checksum, applied_ms)")
    connection.execute(first.sql)
    connection.execute("INSERT INTO migrations VALUES (?, ?, ?, 1)", (first.number, first.name, first.checksum))
    connection.execute(f"PRAGMA user_version = {first.number}")
    connection.close()
    told = process("migrate", "--dry-run", "--json", "--store", f"sqlite:///{path}").json
    assert told["pending"] == [step.number for step in rest]
    ours(path)
    assert process("migrate", "--json", "--store", f"sqlite:///{path}").json["pending"] == []
    assert sql(path, "PRAGMA user_version") == [(rest[-1].number,)]


MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /srv/shared rw - {kind} server:/export rw
31 30 8:2 / /srv/shared/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /srv/with\\040space rw - {kind} server:/other rw
33 22 0:42 / /srv/b\u00fccher\u00a0\u2028\\134 rw - {kind} server:/more rw
"""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "virtiofs", "fuse", "fuse.sshfs", "fuse.juicefs"])
def test_network_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda path: "." not in path.name)
    names = ("/srv/shared/a.db", "/srv/shared/deep/a.db", "/srv/with space/a.db", "/srv/b\u00fccher\u00a0\u2028\\/a.db")
    for place in names:
        with pytest.raises(Rejected, match=kind.replace(".", r"\.")) as refusal:
            check_place(Path(place), MOUNTS.format(kind=kind))
        assert refusal.value.problems[0].code == "store_on_network"
    for place in ("/srv/a.db", "/srv/shared/local/a.db"):
        check_place(Path(place), MOUNTS.format(kind=kind))


@pytest.mark.parametrize("kind", ["fuseblk", "fuse.fuse-overlayfs", "fuse.gocryptfs"])
def test_programs_that_are_local_file_systems(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda path: "." not in path.name)
    mounts = MOUNTS.format(kind=kind)
    assert file_system(Path("/srv/shared"), mounts) == kind
    check_place(Path("/srv/shared/a.db"), mounts)


def test_the_log_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """Whoever closes a database last moves its log into it."""
    (tmp_path / "running").mkdir()
    running = apsw.Connection(str(tmp_path / "running" / "a.db"))
    running.execute("PRAGMA journal_mode = WAL").fetchall()
    running.execute("CREATE TABLE customers (name)")
    for name in ("a.db", "a.db-wal"):
        # As it is left by a process that was killed.
        shutil.copy(tmp_path / "running" / name, tmp_path / name)
    running.close()
    before = [(tmp_path / name).read_bytes() for name in ("a.db", "a.db-wal")]
    refused(process(*LOOKING, "--store", f"sqlite:///{tmp_path}/a.db"), "store_foreign", "of another program")
    assert [(tmp_path / name).read_bytes() for name in ("a.db", "a.db-wal")] == before


# Permissions: they do not bind the superuser, so somebody else is asked.


AS_NOBODY = f"""
import contextlib, io, os, sys
from tidemill.cli.main import call
from tidemill.cli.render.terminal import leave
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    call(["migrate", "--store", "sqlite:///" + sys.argv[1] + "/warm.db"])
    call([*sys.argv[2:], "--store", "sqlite:///" + sys.argv[1] + "/warm.db"])
    call([*sys.argv[2:], "--store", "sqlite:///" + sys.argv[1] + "/none/warm.db"])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
leave(call([*sys.argv[2:], "--store", os.environ["MEANT"]]))
"""
"""Somebody who owns nothing may not even read the interpreter's files, so everything is imported before."""


def as_nobody(folder: Path, path: Path, *arguments: str) -> Ended:
    """Run the command as a user who owns nothing here."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(folder), *arguments],
        capture_output=True,
        env=environment({"MEANT": f"sqlite:///{path}"}),
        timeout=SECONDS_MAX,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def reachable(quick_path: Path) -> Path:
    """A folder that anybody may enter."""
    quick_path.chmod(0o755)
    folder = quick_path / "open"
    folder.mkdir(mode=0o755)
    return folder


def test_a_file_that_may_not_be_written_to(reachable: Path, tmp_path: Path) -> None:
    path = reachable / "a.db"
    ours(path)
    path.chmod(0o444)
    before = digests(reachable)
    (tmp_path / "flow.yaml").write_text("name: flow\nnodes: [{id: a, type: value}]\n")
    for command in (("start", "chain"), ("publish", str(tmp_path / "flow.yaml"))):
        refused(as_nobody(tmp_path, path, *command), "store_", "cannot be")
    assert digests(reachable) == before


def without_privileges() -> None:
    """What permissions say holds for the administrator too, in the process that follows."""
    import ctypes

    drop_from_bounding_set, override_permissions = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, override_permissions, 0, 0, 0)


def test_a_worker_that_may_not_write_does_not_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    ours(path)
    path.chmod(0o444)
    assert refused(bound("worker", "--store", f"sqlite:///{path}"), "store_read_only", "cannot be")


def bound(*arguments: str) -> Ended:
    """Run a command that permissions bind."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        env=environment(),
        timeout=SECONDS_MAX,
        preexec_fn=without_privileges,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def test_what_a_look_has_left_beside_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    ours(path)
    path.chmod(0o444)
    assert bound(*LOOKING, "--store", f"sqlite:///{path}").code == main.OK
    path.chmod(0o644)
    left = tmp_path / "a.db-shm"
    assert left.exists(), "there is nothing left to be named"
    start = ("start", "chain", "--store", f"sqlite:///{path}")
    refused(bound(*start), "store_read_only", "a.db-shm beside it cannot be written to")
    for each in tmp_path.glob("a.db-*"):
        each.chmod(0o644)
    assert bound(*start).code == main.OK


def test_a_backup_is_looked_at_as_it_is(tmp_path: Path) -> None:
    origin, path = tmp_path / "a.db", tmp_path / "kept" / "backup.db"
    ours(origin)
    path.parent.mkdir()
    sql(origin, "VACUUM INTO ?", (str(path),))
    before = path.read_bytes()
    path.chmod(0o444)
    assert bound("verify-log", "--store", f"sqlite:///{path}").code == main.OK
    path.chmod(0o644)
    assert process(*LOOKING, "--store", f"sqlite:///{path}").code == main.OK
    assert path.read_bytes() == before, "to look at it has changed it"
    assert os.listdir(path.parent) == ["backup.db"]
    assert process("start", "chain", "--store", f"sqlite:///{path}").code == main.OK
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_file_that_may_not_be_read(reachable: Path, tmp_path: Path) -> None:
    path = reachable / "a.db"
    ours(path)
    path.chmod(0o000)
    assert refused(as_nobody(tmp_path, path, *LOOKING), "store_unusable", "cannot be opened")


def test_a_directory_that_may_not_be_written_to(reachable: Path, tmp_path: Path) -> None:
    ended = as_nobody(tmp_path, reachable / "a.db", "migrate")
    refused(ended, "store_unusable", "nothing can be created")
    assert not list(reachable.iterdir())


def migrated_by_a_newer_version(path: Path) -> None:
    sql(path, "INSERT INTO migrations VALUES (9999, 'from_the_future', 'x', 0)")
    sql(path, "PRAGMA user_version = 9999")


async def test_a_process_notices_that_the_store_was_migrated(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with mill(path, lease_ms=300) as engine:
        runs = await begin(engine)
        assert await finish(engine, runs) == ENDS
        migrated_by_a_newer_version(path)
        before = sql(path, "SELECT count(*) FROM records")
        with pytest.raises(Rejected, match="9999") as refusal:
            await engine.start("chain")
        assert refusal.value.problems[0].code == "store_newer"
        with pytest.raises(Rejected, match="9999"):
            await asyncio.to_thread(asyncio.run, engine._store.renew([], 1))
        with pytest.raises(Rejected, match="store_newer"):
            await engine.show(runs[0])
        assert sql(path, "SELECT count(*) FROM records") == before


def test_a_worker_ends_when_the_store_was_migrated(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    ours(path)
    worker = subprocess.Popen(
        [*COMMAND, "worker", "--store", f"sqlite:///{path}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert worker.stdout is not None and b"is ready" in worker.stdout.readline()
        assert b"grants: " in worker.stdout.readline()
        migrated_by_a_newer_version(path)
        told, said = worker.communicate(timeout=SECONDS_MAX)
    finally:
        worker.kill()
    assert worker.returncode == main.REFUSED
    assert b"[store_newer]" in said
    assert b"Traceback" not in said
    assert (told, len(said.splitlines())) == (b"", 2), "it says something else besides"


def test_a_store_in_use_is_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    ours(path)
    worker = subprocess.Popen(
        [*COMMAND, "worker", "--store", f"sqlite:///{path}"], stdout=subprocess.PIPE, env=environment()
    )
    try:
        assert worker.stdout is not None and b"is ready" in worker.stdout.readline()
        until = time.monotonic() + SECONDS_MAX
        while not sql(path, "SELECT count(*) FROM holders")[0][0]:
            assert time.monotonic() < until
            time.sleep(0.05)
        # As if this worker were of a version that does not know the last migration.
        last = migrations("sqlite")[-1]
        sql(path, "DELETE FROM migrations WHERE number = ?", (last.number,))
        refused(process("migrate", "--store", f"sqlite:///{path}"), "store_in_use", f"/{worker.pid}")
        assert sql(path, "SELECT max(number) FROM migrations") == [(last.number - 1,)]
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    # Nobody is there any more, however they went: what keeps it from being applied is that it exists already.
    ended = process("migrate", "--store", f"sqlite:///{path}")
    assert "[store_in_use]" not in ended.err


async def test_a_missing_blob(tmp_path: Path) -> None:
    """Whoever needs it says what is missing, others go on, and so does it once the bytes are back."""
    path = tmp_path / "a.db"
    document = {
        "name": "needy",
        "nodes": [
            {"id": "big", "type": "python", "config": {"function": "big"}},
            {"id": "go", "type": "signal", "dependencies": ["big"]},
            {
                "id": "size",
                "type": "python",
                "dependencies": ["go"],
                "config": {"function": "size", "args": {"of": "{{ big.output }}"}},
            },
        ],
        "outputs": {"size": "{{ size.output }}"},
    }
    async with mill(path) as engine:
        (run,) = await begin(engine, [document])
        await eventually_waiting(engine, run, "go")
    digest = sql(path, "SELECT digest FROM blobs WHERE size > 60000")[0][0]
    kept = sql(path, "SELECT * FROM blobs WHERE digest = ?", (digest,))[0]
    sql(path, "DELETE FROM blobs WHERE digest = ?", (digest,))
    async with mill(path) as engine:
        await engine.signal(run, "go")
        # Others must not bring the same bytes back.
        others = await finish(engine, await begin(engine, [chain(), FAN]))
        assert others == {each: ENDS[each] for each in others}
        with pytest.raises(Unavailable, match=digest):
            await engine._blobs.get(TENANT, digest)
        verdict = await engine.verify_log([run])
        assert [finding.code for finding in verdict.findings] == ["blob_missing"]
        assert digest in verdict.findings[0].message
        going, _ = await engine.find(["status:RUNNING"])
        assert [row.run_id for row in going] == [run]
        sql(path, f"INSERT INTO blobs VALUES ({', '.join('?' * len(kept))})", kept)
        view = await engine.result(run, timeout_s=SECONDS_MAX)
        assert (view.status, view.outputs) == ("COMPLETED", {"size": len(BIG)})
    await examined(path)


async def eventually_waiting(engine: Any, run: str, node: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while (await engine.show(run)).nodes[node]["status"] != "WAITING":  # noqa: ASYNC110 - nobody rings for it
            await asyncio.sleep(0.02)


async def test_a_store_that_was_opened_twice_is_one(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.streams("run")
    await eventually(lambda: not list(tmp_path.glob("*-live")), "locks are left")
