"""`tidemill verify-log`, `reindex` and `archive`, on a real file and in one process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.command_line import Ended, InProcessCli
from tidemill.cli import main
from tidemill.engine.index_rows import DAY_MS

FLOW: dict[str, Any] = {
    "name": "nightly",
    "nodes": [{"id": "a", "type": "value", "config": {"text": "x" * 300_000}}, {"id": "b", "type": "value"}],
}
FAILING: dict[str, Any] = {"name": "failing", "nodes": [{"id": "a", "type": "fail", "config": {"message": "no"}}]}


class Waiters:
    """A store in a file with some ended runs, the command line, and a calendar that can be turned on."""

    def __init__(self, url: str, inside: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self._inside, self._monkeypatch = url, inside, monkeypatch
        with tidemill.open(url) as mill:
            mill.publish(FLOW)
            mill.publish(FAILING)
            for key in ("n1", "n2"):
                mill.result(mill.start("nightly", key=key, labels={"team": "ops"}))
            mill.result(mill.start("failing", key="f1"))

    def __call__(self, *arguments: str) -> Ended:
        return self._inside(*arguments, "--store", self.url)

    def days_later(self, days: int) -> None:
        real = time.time_ns
        self._monkeypatch.setattr("time.time_ns", lambda: real() + days * DAY_MS * 1_000_000)


@pytest.fixture
def yard(inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiters:
    monkeypatch.delenv("TIDEMILL_ARCHIVE", raising=False)
    return Waiters(f"sqlite:///{tmp_path}/mill.db", inside, monkeypatch)


def test_findings_are_lines_and_exit_code_one(yard: Waiters, tmp_path: Path) -> None:
    import apsw

    db = apsw.Connection(str(tmp_path / "mill.db"))
    tables = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
    (rows,) = [name for name in tables if name in ("rows", "row")]
    db.execute(f"delete from {rows} where kind = 'run' and key = 'n2'")
    db.close()
    shown, told = yard("verify-log"), yard("verify-log", "--json")
    assert (shown.code, told.code) == (main.FAILED, main.FAILED)
    assert [(each["run"], each["code"]) for each in told.json["findings"]] == [
        ("the lists", "places_stray"),
        ("n2", "row_missing"),
    ]
    assert "✗ n2: run n2 in the lists [row_missing]" in shown.out
    assert "tidemill reindex" in shown.out
    preview = yard("reindex", "--dry-run")
    assert (preview.code, "places would be put right; nothing was done" in preview.out) == (main.OK, True)
    assert "; 1 row and " in preview.out
    told = yard("reindex", "--json")
    assert (told.json["missing"], told.json["different"], told.json["surplus"]) == (1, 0, 0)
    assert yard("verify-log").code == main.OK
    assert "all lists say what the logs say" in yard("reindex").out


def test_old_runs_leave_and_come_back(yard: Waiters, tmp_path: Path) -> None:
    before = yard("runs", "show", "n1", "--json").json
    assert yard("archive", "list").out == "the archive is empty\n"
    assert yard("archive", "list", "--workflow", "x").out == "the archive has no run of workflow x\n"
    assert yard("archive", "sweep").out == "✓ 0 runs archived\n"
    yard.days_later(40)
    preview = yard("archive", "sweep", "--dry-run")
    assert "3 runs would be archived; nothing was done" in preview.out
    swept = yard("archive", "sweep", "--json").json
    assert sorted(swept["retired"]) == ["f1", "n1", "n2"]
    assert yard("runs", "show", "n1").code == main.REFUSED
    assert (tmp_path / "mill.db-archive" / "runs" / "default").is_dir()
    assert [run["run_id"] for run in yard("archive", "list", "--workflow", "nightly", "--json").json["runs"]] == [
        "n1",
        "n2",
    ]
    assert "there are more" in yard("archive", "list", "--limit", "1").out
    shown = yard("archive", "show", "n1", "--events")
    assert "team=ops" in shown.out
    assert "NodeCompleted" in shown.out
    assert "tidemill archive restore n1" in shown.out
    assert yard("archive", "show", "n1", "--json").json["status"] == "COMPLETED"
    assert len(yard("archive", "show", "n1", "--events", "--json").json["events"]) == before["events"]
    restored = yard("archive", "restore", "n1")
    assert restored.out == f"✓ run n1 is back, with {before['events']} events\n"
    assert yard("runs", "show", "n1", "--json").json == before
    assert yard("verify-log").code == main.OK
    for refused, code in ((("restore", "n1"), "run_exists"), (("show", "zz"), "archived_run_unknown")):
        ended = yard("archive", *refused, "--json")
        assert (ended.code, ended.json["problems"][0]["code"]) == (main.REFUSED, code)


def test_an_archive_elsewhere(yard: Waiters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.days_later(40)
    assert yard("archive", "sweep", "--archive", str(tmp_path / "attic")).code == main.OK
    assert yard("archive", "list").out == "the archive is empty\n"
    shown = yard("archive", "show", "n1", "--archive", str(tmp_path / "attic"))
    assert f"tidemill archive restore n1 --archive {tmp_path}/attic --store" in shown.out
    monkeypatch.setenv("TIDEMILL_ARCHIVE", str(tmp_path / "attic"))
    assert len(yard("archive", "list", "--json").json["runs"]) == 3
    assert "tidemill archive restore n1 --store" in yard("archive", "show", "n1").out
    monkeypatch.setenv("TIDEMILL_ARCHIVE", "none")
    assert yard("archive", "list", "--json").json["problems"][0]["code"] == "archive_unknown"


def test_how_long_runs_stay_is_asked_of_a_sweep_too(yard: Waiters) -> None:
    yard.days_later(9)
    assert yard("archive", "sweep", "--dry-run").out.startswith("○ 0 runs")
    assert yard("archive", "sweep", "--dry-run", "--retention-days", "7").out.startswith("○ 3 runs")
    yard.days_later(40)
    assert yard("archive", "sweep", "--keep-runs").out == "✓ 0 runs archived\n"


def test_what_is_no_archive_is_refused(yard: Waiters, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    yard.days_later(40)
    for verb in (("list",), ("show", "n1"), ("restore", "n1"), ("sweep",)):
        for place, code in (
            ("file", "archive_unusable"),
            ("absent", "archive_unusable"),
            ("ftp://x", "archive_unknown"),
        ):
            if (verb, place) == (("sweep",), "absent"):
                # The first run that leaves makes the folder.
                continue
            named = place if "://" in place else str(tmp_path / place)
            ended = yard("archive", *verb, "--archive", named, "--json")
            assert (ended.code, ended.json["problems"][0]["code"]) == (main.REFUSED, code), (verb, place)
            assert "archive" in ended.json["problems"][0]["message"]
    assert yard("verify-log", "--json").json["runs"] == 3


def test_a_damaged_entry_hides_no_other(yard: Waiters, tmp_path: Path) -> None:
    yard.days_later(40)
    yard("archive", "sweep")
    (damaged,) = (tmp_path / "mill.db-archive").rglob("n1.*")
    name = str(damaged.relative_to(tmp_path / "mill.db-archive"))
    body = bytearray(damaged.read_bytes())
    body[len(body) // 2] ^= 1
    damaged.write_bytes(body)
    shown, told = yard("archive", "list"), yard("archive", "list", "--json")
    assert (shown.code, told.code) == (main.FAILED, main.FAILED)
    assert [run["run_id"] for run in told.json["runs"]] == ["n2", "f1"]
    assert told.json["damaged"] == [name]
    assert f"✗ {name} cannot be read" in shown.out
    for verb in ("show", "restore"):
        ended = yard("archive", verb, "n1", "--json")
        assert (ended.code, ended.json["problems"][0]["code"]) == (main.REFUSED, "archive_damaged")
    assert yard("archive", "show", "n2").code == main.OK


def test_a_run_that_cannot_be_archived_holds_up_no_other(yard: Waiters) -> None:
    lost = [each for each in yard("blobs", "list", "--json").json["blobs"] if each["size"] > 300_000]
    assert lost
    yard.days_later(40)
    _lose(yard, [each["digest"] for each in lost])
    swept = yard("archive", "sweep")
    assert swept.code == main.FAILED
    assert "✓ 1 run archived" in swept.out
    for run in ("n1", "n2"):
        assert f"✗ {run} stays: blob sha256:" in swept.out
    again = yard("archive", "sweep", "--json")
    assert (again.code, again.json["retired"], sorted(again.json["failed"])) == (main.FAILED, [], ["n1", "n2"])


def _lose(yard: Waiters, digests: list[str]) -> None:
    import apsw

    db = apsw.Connection(yard.url.removeprefix("sqlite:///"))
    for digest in digests:
        db.execute("delete from blobs where digest = ?", (digest,))
    assert db.totalchanges() >= len(digests)
    db.close()


def test_a_key_that_was_used_again(yard: Waiters) -> None:
    for day, config in ((1, "first"), (2, "second")):
        with tidemill.open(yard.url, archive="none") as mill:
            nodes = [{"id": f"a{each}", "type": "value", "config": config} for each in range(3 - day)]
            mill.publish({"name": "daily", "retention": {"days": 0}, "nodes": nodes})
            mill.result(mill.start("daily", key="d1"))
        yard.days_later(2)
        assert yard("archive", "sweep").out.startswith("✓ 1 run archived")
    told = yard("archive", "show", "d1", "--json", "--events").json
    assert "second" in str(told["events"])
    (older,) = told["others"]
    for said in (yard("archive", "show", "d1").out, yard("archive", "list").out):
        assert older in said
    assert "the newest of 2 entries of this id" in yard("archive", "restore", "d1").out
    assert "first" in str(yard("archive", "show", older, "--json", "--events").json["events"])


def test_without_an_archive_nothing_leaves(inside: InProcessCli) -> None:
    ended = inside("archive", "sweep", "--store", "memory://nothing", "--json")
    assert (ended.code, ended.json["problems"][0]["code"]) == (main.REFUSED, "archive_unknown")
