"""What commands say of a store that has lost something: what is wrong, what is intact, and a true exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

import tidemill
from tests.fixtures.command_line import Ended, InProcessCli
from tidemill.cli import main
from tidemill.cli.commands.worker import StatusLines
from tidemill.cli.main import guarded
from tidemill.errors import DiskFull, Unavailable, rejected

FLOW: dict[str, Any] = {
    "name": "flow",
    "nodes": [{"id": "large", "type": "value", "config": {"text": "x" * 100_000}}, {"id": "small", "type": "value"}],
}


class StoreFile:
    """A store in a file with three runs, of which two are as good as any."""

    def __init__(self, path: Path, inside: InProcessCli) -> None:
        self.path, self._inside = path, inside
        with tidemill.open(f"sqlite:///{path}") as mill:
            mill.publish(FLOW)
            for key in ("r1", "r2", "r3"):
                mill.result(mill.start("flow", key=key))

    def __call__(self, *arguments: str) -> Ended:
        return self._inside(*arguments, "--store", f"sqlite:///{self.path}")

    def change(self, statement: str) -> int:
        db = apsw.Connection(str(self.path))
        db.execute(statement)
        changed = db.changes()
        db.close()
        return changed


@pytest.fixture
def cli(inside: InProcessCli, tmp_path: Path) -> StoreFile:
    return StoreFile(tmp_path / "mill.db", inside)


def test_a_run_with_a_missing_value_is_shown_all_the_same(cli: StoreFile) -> None:
    assert cli.change("DELETE FROM blobs WHERE size BETWEEN 100000 AND 100100 AND id = (SELECT max(id) FROM blobs)")
    shown, told = cli("runs", "show", "r1"), cli("runs", "show", "r1", "--json")
    assert (shown.code, told.code) == (main.OK, main.OK)
    assert "output missing: blob sha256:" in shown.out and "small" in shown.out
    assert told.json["nodes"]["large"]["output"] is None
    assert "put the same bytes back" in told.json["nodes"]["large"]["output_missing"]
    assert told.json["outputs_missing"].startswith("large: blob sha256:")
    assert "output_missing" not in told.json["nodes"]["small"]


def test_logs_that_cannot_be_read_are_told_by_reindex(cli: StoreFile) -> None:
    assert cli.change("UPDATE records SET body = x'00' WHERE stream IN (SELECT id FROM streams WHERE key = 'r2')")
    found, told = cli("reindex"), cli("reindex", "--json")
    assert (found.code, told.code, told.json["unreadable"]) == (main.FAILED, main.FAILED, ["r2"])
    assert "✗ 1 of 4 logs cannot be read; their rows are left" in found.out
    assert "7 rows of 3 logs: these lists match their logs" in found.out
    assert "finding" in (said := cli("verify-log").out.splitlines()[-1]) and " in 1 of 4 logs: 3 runs" in said


def test_a_collection_counts_what_something_refers_to(cli: StoreFile) -> None:
    with tidemill.open(f"sqlite:///{cli.path}", work=False) as mill:
        mill.put_blob(b"nothing refers to this")
        told = mill.collect_blobs(dry_run=True)
        there = len(mill.blobs()[0])
    assert (told.scanned, told.young) == (there, there)
    assert told.reachable == there - 1


def test_a_full_disk_is_not_waited_for_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise DiskFull("the disk of a.db is full; free some space")

    assert guarded(command) == main.REFUSED
    said = capsys.readouterr().err
    assert "repeat the command: it was not executed" in said and "by itself" not in said


def test_a_worker_says_why_the_store_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    held, full = Unavailable("a.db is held"), DiskFull("the disk of a.db is full; free some space")
    with StatusLines(as_json=False) as status_lines:
        for trouble in (held, held, full, None, None):
            status_lines.reach(trouble)
    assert capsys.readouterr().out.splitlines() == [
        "! the store does not answer: a.db is held; the worker keeps trying",
        "! the disk of a.db is full; free some space; the worker then continues by itself",
        "! the store is reachable again",
    ]


@pytest.mark.parametrize(
    ("error", "code", "ends"),
    [
        (DiskFull("the disk of a.db is full"), "disk_full", main.REFUSED),
        (Unavailable("a.db is held"), "store_unavailable", main.FAILED),
        (rejected("no_such", "nothing there"), "no_such", main.REFUSED),
    ],
)
def test_a_program_is_told_in_json_why_nothing_was_done(
    capsys: pytest.CaptureFixture[str], error: Exception, code: str, ends: int
) -> None:
    def command() -> int:
        raise error

    assert guarded(command, as_json=True) == ends
    said = capsys.readouterr()
    (problem,) = json.loads(said.out)["problems"]
    assert (problem["code"], problem["path"], said.err) == (code, "", "")
