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


class StoreFile:
    """A store in a file with some ended runs, the command line, and a clock that can be moved on."""

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
def cli(inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreFile:
    monkeypatch.delenv("TIDEMILL_ARCHIVE", raising=False)
    return StoreFile(f"sqlite:///{tmp_path}/mill.db", inside, monkeypatch)


def test_findings_are_lines_and_exit_code_one(cli: StoreFile, tmp_path: Path) -> None:
    import apsw

    db = apsw.Connection(str(tmp_path / "mill.db"))
    tables = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
    (rows,) = [name for name in tables if name in ("rows", "row")]
    db.execute(f"delete from {rows} where kind = 'run' and key = 'n2'")
    db.close()
    shown, told = cli("verify-log"), cli("verify-log", "--json")
    assert (shown.code, told.code) == (main.FAILED, main.FAILED)
    assert [(each["run"], each["code"]) for each in told.json["findings"]] == [
        ("the lists", "places_stray"),
        ("n2", "row_missing"),
    ]
    assert "✗ n2: run n2 in the lists [row_missing]" in shown.out
    assert "tidemill reindex" in shown.out
    preview = cli("reindex", "--dry-run")
    assert (preview.code, "places would be repaired; nothing was done" in preview.out) == (main.OK, True)
    assert "; 1 row and " in preview.out
    told = cli("reindex", "--json")
    assert (told.json["missing"], told.json["different"], told.json["surplus"]) == (1, 0, 0)
    assert cli("verify-log").code == main.OK
    assert "all lists match the logs" in cli("reindex").out


def test_an_archive_elsewhere(cli: StoreFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.days_later(40)
    assert cli("archive", "sweep", "--archive", str(tmp_path / "attic")).code == main.OK
    assert cli("archive", "list").out == "the archive is empty\n"
    shown = cli("archive", "show", "n1", "--archive", str(tmp_path / "attic"))
    assert f"tidemill archive restore n1 --archive {tmp_path}/attic --store" in shown.out
    monkeypatch.setenv("TIDEMILL_ARCHIVE", str(tmp_path / "attic"))
    assert len(cli("archive", "list", "--json").json["runs"]) == 3
    assert "tidemill archive restore n1 --store" in cli("archive", "show", "n1").out
    monkeypatch.setenv("TIDEMILL_ARCHIVE", "none")
    assert cli("archive", "list", "--json").json["problems"][0]["code"] == "archive_unknown"


def test_how_long_runs_stay_is_asked_of_a_sweep_too(cli: StoreFile) -> None:
    cli.days_later(9)
    assert cli("archive", "sweep", "--dry-run").out.startswith("○ 0 runs")
    assert cli("archive", "sweep", "--dry-run", "--retention-days", "7").out.startswith("○ 3 runs")
    cli.days_later(40)
    assert cli("archive", "sweep", "--keep-runs").out.startswith("✓ 0 runs archived\n→ no run is due")


def test_what_is_no_archive_is_refused(cli: StoreFile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    cli.days_later(40)
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
            ended = cli("archive", *verb, "--archive", named, "--json")
            assert (ended.code, ended.json["problems"][0]["code"]) == (main.REFUSED, code), (verb, place)
            assert "archive" in ended.json["problems"][0]["message"]
    assert cli("verify-log", "--json").json["runs"] == 3


def test_a_damaged_entry_hides_no_other(cli: StoreFile, tmp_path: Path) -> None:
    cli.days_later(40)
    cli("archive", "sweep")
    (damaged,) = (tmp_path / "mill.db-archive").rglob("n1.*")
    name = str(damaged.relative_to(tmp_path / "mill.db-archive"))
    body = bytearray(damaged.read_bytes())
    body[len(body) // 2] ^= 1
    damaged.write_bytes(body)
    shown, told = cli("archive", "list"), cli("archive", "list", "--json")
    assert (shown.code, told.code) == (main.FAILED, main.FAILED)
    assert [run["run_id"] for run in told.json["runs"]] == ["n2", "f1"]
    assert told.json["damaged"] == [name]
    assert f"✗ {name} cannot be read" in shown.out
    for verb in ("show", "restore"):
        ended = cli("archive", verb, "n1", "--json")
        assert (ended.code, ended.json["problems"][0]["code"]) == (main.REFUSED, "archive_damaged")
    assert cli("archive", "show", "n2").code == main.OK


def test_a_run_that_cannot_be_archived_holds_up_no_other(cli: StoreFile) -> None:
    lost = [each for each in cli("blobs", "list", "--json").json["blobs"] if each["size"] > 300_000]
    assert lost
    cli.days_later(40)
    _lose(cli, [each["digest"] for each in lost])
    swept = cli("archive", "sweep")
    assert swept.code == main.FAILED
    assert "✓ 1 run archived" in swept.out
    for run in ("n1", "n2"):
        assert f"✗ {run} stays: blob sha256:" in swept.out
    again = cli("archive", "sweep", "--json")
    assert (again.code, again.json["retired"], sorted(again.json["failed"])) == (main.FAILED, [], ["n1", "n2"])


def _lose(cli: StoreFile, digests: list[str]) -> None:
    import apsw

    db = apsw.Connection(cli.url.removeprefix("sqlite:///"))
    for digest in digests:
        db.execute("delete from blobs where digest = ?", (digest,))
    assert db.totalchanges() >= len(digests)
    db.close()


def test_a_key_that_was_used_again(cli: StoreFile) -> None:
    for day, config in ((1, "first"), (2, "second")):
        with tidemill.open(cli.url, archive="none") as mill:
            nodes = [{"id": f"a{each}", "type": "value", "config": config} for each in range(3 - day)]
            mill.publish({"name": "daily", "retention": {"days": 0}, "nodes": nodes})
            mill.result(mill.start("daily", key="d1"))
        cli.days_later(2)
        assert cli("archive", "sweep").out.startswith("✓ 1 run archived")
    told = cli("archive", "show", "d1", "--json", "--events").json
    assert "second" in str(told["events"])
    (older,) = told["others"]
    for said in (cli("archive", "show", "d1").out, cli("archive", "list").out):
        assert older in said
    assert "the newest of 2 entries of this id" in cli("archive", "restore", "d1").out
    assert "first" in str(cli("archive", "show", older, "--json", "--events").json["events"])
