"""`diagnose`: every fault is really made, and found with what to do about it; what is checked stays as it was."""

from __future__ import annotations

import gzip
import os
import re
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.command_line import COMMAND, ROOT, environment, eventually
from tests.unit.engine.test_earlier_store import DATA
from tidemill.ambient import RealAmbient
from tidemill.engine.maintenance import doctor
from tidemill.engine.maintenance.doctor import Diagnosis, refusal
from tidemill.errors import DiskFull, InternalError, Problem, StoreUnusable, Unavailable, rejected
from tidemill.stores.contract import JobView, Stream
from tidemill.stores.optional import Finding
from tidemill.stores.postgres.database import UNSAFE_SETTINGS
from tidemill.stores.sqlite.database import WAL_BYTES_MAX

HELLO = {"name": "hello", "nodes": [{"id": "a", "type": "value", "config": 1}]}
LARGE = {"name": "large", "nodes": [{"id": "a", "type": "value", "config": "x" * 100_000}]}
FAILING = {"name": "failing", "nodes": [{"id": "a", "type": "fail", "config": {"message": "no"}}]}
RENDER = {"name": "render", "nodes": [{"id": "a", "type": "value", "queue": "gpu"}]}
SLEEPING = {"name": "sleeping", "nodes": [{"id": "a", "type": "sleep", "config": {"seconds": 9_000}}]}
SPECIAL = {"name": "special", "nodes": [{"id": "a", "type": "special"}]}
CALLING = {"name": "calling", "nodes": [{"id": "a", "type": "python", "config": {"function": "work"}}]}


class StoreFile:
    """A store in a file in which one run has ended, without a worker."""

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, f"sqlite:///{path}"
        with tidemill.open(self.url) as mill:
            mill.run(HELLO)

    def start(self, *documents: dict[str, Any], **more: Any) -> None:
        with tidemill.open(self.url, work=False, **more) as mill:
            for document in documents:
                mill.publish(document)
                mill.start(document["name"], key=document["name"])

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(statement)
        connection.close()

    def lose_jobs(self, run: str) -> None:
        self.sql(f"DELETE FROM jobs WHERE stream IN (SELECT id FROM streams WHERE key = '{run}')")

    def files(self) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in self.path.parent.iterdir() if each.is_file()}

    def says(self, code: str, words: str) -> bool:
        return any(each.code == code and words in each.message for each in tidemill.diagnose(self.url).findings)

    def found(self, code: str, *, url: str = "") -> Finding:
        return one(tidemill.diagnose(url or self.url), code)


def one(diagnosis: Diagnosis, code: str) -> Finding:
    (finding,) = [each for each in diagnosis.findings if each.code == code]
    assert finding.severity in ("ok", "info") or finding.hint, finding
    return finding


@pytest.fixture
def file(tmp_path: Path) -> StoreFile:
    return StoreFile(tmp_path / "mill.db")


def test_a_healthy_store_has_nothing_above_info_and_stays_as_it_was(file: StoreFile) -> None:
    before = file.files()
    found = tidemill.diagnose(file.url)
    assert {each.code for each in found.findings if each.severity != "ok"} == {"workers"}
    assert found.severity == "info"
    assert {each.group for each in found.findings} == {"store", "workers", "work", "blobs"}
    assert file.files() == before and list(before) == ["mill.db"]


def test_the_wal_of_a_killed_process_stays_as_it_was(file: StoreFile, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    with tidemill.open(file.url) as mill:
        mill.run(LARGE)
        for name in ("mill.db", "mill.db-wal"):
            (copied / name).write_bytes((tmp_path / name).read_bytes())
    before = {name: (copied / name).read_bytes() for name in ("mill.db", "mill.db-wal")}
    assert one(tidemill.diagnose(f"sqlite:///{copied}/mill.db"), "stuck_runs").severity == "ok"
    assert {name: (copied / name).read_bytes() for name in before} == before


def test_an_extra_is_installed_when_all_of_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"mcp", "server"} <= set(doctor.installed_extras())
    installed = doctor.metadata.version

    def version(name: str) -> str:
        if name == "limits":
            raise doctor.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = doctor.installed_extras()
    assert "mcp" in found and "server" not in found


def test_a_missing_file_is_one_finding_and_is_not_made(tmp_path: Path) -> None:
    found = tidemill.diagnose(f"sqlite:///{tmp_path}/nope.db")
    assert found.severity == "error"
    assert [each.code for each in found.findings] == ["versions", "store_missing"]
    assert list(tmp_path.iterdir()) == []


def test_a_pending_migration_is_told_and_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "mill.db"
    path.write_bytes(gzip.decompress(DATA.read_bytes()))
    before = path.read_bytes()
    found = tidemill.diagnose(f"sqlite:///{path}")
    pending = one(found, "migrations")
    assert pending.severity == "warning" and "tidemill migrate" in pending.hint
    assert "stuck_runs" not in {each.code for each in found.findings}, "the rest cannot be read"
    assert path.read_bytes() == before


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "note.db").write_text("this is no database, whatever its name says" * 20)
    found = tidemill.diagnose(f"sqlite:///{tmp_path}/note.db")
    assert one(found, "store_foreign").severity == found.severity == "error"


@pytest.mark.parametrize(("mode", "severity"), [(0o640, "ok"), (0o644, "warning"), (0o666, "error")])
def test_a_file_that_every_user_can_use(file: StoreFile, mode: int, severity: str) -> None:
    file.path.chmod(mode)
    found = file.found("file_mode")
    assert found.severity == severity
    assert (found.hint == f"chmod o-rwx {file.path}") == (severity != "ok")


def test_relaxed_durability_is_a_warning(file: StoreFile) -> None:
    assert file.found("durability", url=f"{file.url}?durability=relaxed").severity == "warning"
    assert file.found("durability").severity == "ok"


def test_a_wal_that_does_not_restart(file: StoreFile) -> None:
    with Path(f"{file.path}-wal").open("wb") as log:
        log.truncate(WAL_BYTES_MAX + 1)
    found = file.found("wal_size")
    assert found.severity == "warning" and "512 MiB" in found.message


@pytest.mark.parametrize(("free", "severity"), [(2 << 30, "ok"), (500 << 20, "warning"), (50 << 20, "error")])
def test_a_disk_that_fills(file: StoreFile, monkeypatch: pytest.MonkeyPatch, free: int, severity: str) -> None:
    real = os.statvfs

    def statvfs(path: Any) -> os.statvfs_result:
        fields = list(real(path))
        fields[1], fields[4] = 1, free
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert file.found("disk_space").severity == severity


@pytest.mark.parametrize(("ahead_ms", "words"), [(60_000, "60 s ahead of"), (-60_000, "60 s behind"), (0, "agree")])
def test_clocks_that_differ(file: StoreFile, ahead_ms: int, words: str) -> None:
    class Ambient(RealAmbient):
        def now_ms(self) -> int:
            return super().now_ms() + ahead_ms

    with tidemill.open(file.url, work=False) as mill:
        mill._engine.context.ambient = Ambient()
        found = one(mill.diagnose(), "clock_skew")
    assert words in found.message and found.severity == ("warning" if ahead_ms else "ok")


def test_a_run_without_its_job_is_stuck(file: StoreFile) -> None:
    file.start(SLEEPING, RENDER)
    assert file.found("stuck_runs").severity == "ok"
    file.lose_jobs("sleeping")
    found = file.found("stuck_runs")
    assert found.severity == "error" and "1 run stuck: sleeping" in found.message
    assert "tidemill why sleeping" in found.hint


def test_a_job_that_comes_while_it_is_looked_for_is_not_missing(
    file: StoreFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.start(RENDER)
    with tidemill.open(file.url, work=False) as mill:
        store, stale = mill._engine.context.store, [list[JobView]()]
        real = store.jobs

        async def jobs(stream: Stream) -> list[JobView]:
            return stale.pop() if stale else await real(stream)

        monkeypatch.setattr(store, "jobs", jobs)
        assert one(mill.diagnose(), "stuck_runs").severity == "ok"
        assert not stale


def test_runs_that_move_on_meanwhile_are_not_stuck(file: StoreFile) -> None:
    chain = [{"id": f"n{number}", "type": "value", "dependencies": [f"n{number - 1}"]} for number in range(1, 30)]
    with tidemill.open(file.url) as mill:
        mill.publish({"name": "busy", "nodes": [{"id": "n0", "type": "value"}, *chain]})
        runs = [mill.start("busy") for _ in range(30)]
        verdicts = [file.found("stuck_runs")]
        while mill.show(runs[-1]).status == "RUNNING":
            verdicts.append(file.found("stuck_runs"))
    assert {each.severity for each in verdicts} == {"ok"}


def test_a_run_that_the_reconciler_marked_is_stuck(file: StoreFile) -> None:
    file.start(RENDER)
    with tidemill.open(file.url, work=False) as mill:
        stream = mill._engine.context.stream("render")
        mill._wait(mill._engine.turns.mark_stuck(stream, "it is of no use"))
    assert "render" in file.found("stuck_runs").message


def test_a_run_that_cannot_be_read_hides_no_other(file: StoreFile) -> None:
    file.start(SLEEPING, RENDER)
    file.sql("UPDATE records SET body = x'00' WHERE stream IN (SELECT id FROM streams WHERE key = 'sleeping')")
    file.lose_jobs("render")
    found = tidemill.diagnose(file.url)
    assert "sleeping" in one(found, "unreadable_runs").message
    assert "render" in one(found, "stuck_runs").message


def test_a_queue_without_a_worker(file: StoreFile) -> None:
    file.start(RENDER)
    found = file.found("unserved_queues")
    assert found.severity == "error" and "queue gpu: 1 job ready" in found.message
    assert "tidemill worker --queues gpu" in found.hint
    with tidemill.open(file.url, queues=["default"]) as mill:
        assert "gpu" in one(mill.diagnose(), "unserved_queues").message
    with tidemill.open(file.url, queues=["gpu"]) as mill:
        mill.result("render", timeout_s=60)
        assert one(mill.diagnose(), "unserved_queues").severity == "ok"


def test_timers_without_a_worker_are_a_warning(file: StoreFile) -> None:
    file.start(SLEEPING)
    with tidemill.open(file.url) as mill:
        eventually(lambda: bool(mill.find(["waiting"])[0]), "the run does not sleep")
        assert one(mill.diagnose(), "unserved_queues").severity == "ok"
    found = file.found("unserved_queues")
    assert found.severity == "warning" and "1 timer set" in found.message


def test_a_node_type_that_no_live_worker_has(file: StoreFile) -> None:
    special = tidemill.Handler(tidemill.NodeType(name="special"), lambda context: tidemill.Done(1))
    file.start(SPECIAL, handlers=[special])
    with tidemill.open(file.url) as mill:
        words = "none on queue default has node type special@1"
        eventually(lambda: file.says("unrunnable_jobs", words), "a worker holds what it cannot run")
    with tidemill.open(file.url, handlers=[special]) as mill:
        mill.result("special", timeout_s=60)
        assert one(mill.diagnose(), "unrunnable_jobs").severity == "ok"


Starter = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def worker(file: StoreFile) -> Iterator[Starter]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        command = [*COMMAND, "worker", "--store", file.url, *options]
        quiet = subprocess.DEVNULL
        started.append(subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment()))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_a_function_that_all_live_workers_lack(file: StoreFile, worker: Starter) -> None:
    file.start(CALLING)
    worker()
    eventually(lambda: file.says("unrunnable_jobs", "no function work"), "no worker says what it lacks")
    assert file.found("unrunnable_jobs").severity != "ok"


def test_a_killed_worker(file: StoreFile, worker: Starter) -> None:
    process = worker("--name", "alpha")
    eventually(lambda: file.says("workers", "1 worker alive"), "the worker does not register")
    assert file.found("dead_workers").severity == "ok"
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = file.found("dead_workers")
    assert found.severity == "warning" and f" (pid {process.pid} on " in found.message
    assert file.found("workers").severity == "info"


def test_workers_of_another_version(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with tidemill.open(file.url) as mill:
        assert not [each for each in mill.diagnose().findings if each.code == "worker_versions"]
        monkeypatch.setattr(doctor, "__version__", "9.9.9")
        found = one(mill.diagnose(), "worker_versions")
    assert found.severity == "info" and f"version {tidemill.__version__}; this is 9.9.9" in found.message


def test_an_overdue_job(file: StoreFile) -> None:
    go_on, started = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait(60)

    with tidemill.open(file.url, functions={"work": work}, concurrency=1) as mill:
        mill.publish(CALLING)
        runs = [mill.start("calling"), mill.start("calling")]
        assert started.wait(60)
        assert one(mill.diagnose(), "overdue_jobs").severity == "ok"
        file.sql("UPDATE jobs SET ready_at_ms = ready_at_ms - 600000 WHERE token = 0")
        found = one(mill.diagnose(), "overdue_jobs")
        go_on.set()
        for run in runs:
            mill.result(run, timeout_s=60)
    assert found.severity == "warning" and "1 ready job in queue default has waited for 10 min" in found.message


def test_dead_letters(file: StoreFile) -> None:
    with tidemill.open(file.url) as mill:
        mill.run(FAILING)
    found = file.found("dead_letters")
    assert found.severity == "warning" and found.message.startswith("1 dead letter open")


def test_orphan_and_missing_blobs(file: StoreFile) -> None:
    with tidemill.open(file.url) as mill:
        mill.put_blob(b'{"lonely": true}')
        mill.run(LARGE)
    assert file.found("orphan_blobs").severity == "ok", "a young blob may be about to be needed"
    file.sql("UPDATE blobs SET since_ms = since_ms - 7200000")
    found = file.found("orphan_blobs")
    assert found.severity == "info" and "nothing refers to 1 blob" in found.message
    file.sql("DELETE FROM blobs WHERE size > 90000")
    assert file.found("missing_blobs").severity == "error"


def test_a_part_is_told_as_a_part(file: StoreFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with tidemill.open(file.url, work=False) as mill:
        mill.publish(RENDER)
        for number in range(6):
            mill.start("render", key=f"r{number}")
    file.lose_jobs("r0")
    monkeypatch.setattr(doctor, "RUNS_MAX", 4)
    monkeypatch.setattr(doctor, "RUNS_AT_A_TIME", 3)
    monkeypatch.setattr(doctor, "BLOBS_MAX", 1)
    stuck, orphans = file.found("stuck_runs"), file.found("orphan_blobs")
    assert stuck.partial and stuck.message == "no unfinished run is stuck (of the first 4 unfinished runs)", (
        "the newest come first"
    )
    assert orphans.partial and orphans.severity == "info"
    monkeypatch.setattr(doctor, "RUNS_MAX", 6)
    stuck = file.found("stuck_runs")
    assert not stuck.partial and "r0" in stuck.message


def test_a_place_for_blobs_is_neither_made_nor_claimed(file: StoreFile, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    url = f"sqlite:///{tmp_path}/new.db?blobs=dir:///{place}"
    assert file.found("missing_blobs", url=f"{file.url}?blobs=dir:///{place}").severity == "error"
    assert not place.exists()
    place.mkdir()
    assert file.found("blobs_elsewhere", url=f"{file.url}?blobs=dir:///{place}").severity == "error"
    assert list(place.iterdir()) == []
    with tidemill.open(url) as mill:
        mill.run(LARGE)
    assert tidemill.diagnose(url).severity == "info"


def test_every_finding_is_on_the_page() -> None:
    page = (ROOT / "docs/how-to/check-a-deployment.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    made = re.findall(r'\b(?:Finding|judged)\(\s*"(\w+)"', sources)
    codes = {*made, *UNSAFE_SETTINGS, "role", "appendonly", "appendfsync", "maxmemory_policy"}
    codes |= {"cluster_slots", "memory"}
    told = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert codes == told and len(codes) > 25


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (rejected("some_code", "no"), "some_code"),
        (StoreUnusable(Problem(code="other_code", message="no")), "other_code"),
        (DiskFull("full"), "disk_full"),
        (Unavailable("gone"), "blobs_unavailable"),
        (InternalError("x", "y"), "check_failed"),
    ],
)
def test_every_error_is_a_finding(error: tidemill.TidemillError, code: str) -> None:
    found = refusal(error, "blobs")
    assert (found.code, found.severity, found.group) == (code, "error", "blobs")
