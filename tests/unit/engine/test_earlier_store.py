"""A store file of an earlier version is opened and worked off by the present one; nothing in it is dropped."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tidemill.errors import Rejected
from tidemill.kernel.codec import SNAPSHOT_FORMAT
from tidemill.stores.sqlite.database import CHECKSUM_BYTES

DATA = Path(__file__).parent / "data" / "waiting_runs.db.gz"
"""Made by the script beside it."""
SECONDS_MAX = 60


def work(block: bool = False, fail: bool = False, value: Any = None) -> Any:
    """What nodes do now: all of them end well."""
    return value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tidemill.db"
    path.write_bytes(gzip.decompress(DATA.read_bytes()))
    return path


@pytest.fixture
def mill(path: Path) -> Iterator[tidemill.Tidemill]:
    with tidemill.open(f"sqlite:///{path}", functions={"work": work}, retention_days=None) as mill:
        yield mill


def _end(mill: tidemill.Tidemill, run_id: str) -> None:
    run = mill.result(run_id, timeout_s=SECONDS_MAX)
    assert (run.status, run.outputs) == ("COMPLETED", {"last": "the beginning and the end"}), run_id


def test_the_file_holds_a_snapshot_without_a_format(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        bodies = [sealed[CHECKSUM_BYTES:] for (sealed,) in connection.execute("SELECT body FROM snapshots")]
    connection.close()
    assert bodies and all(body[0] == 0xDC != SNAPSHOT_FORMAT for body in bodies)


def test_every_run_of_an_earlier_store_goes_on(mill: tidemill.Tidemill) -> None:
    assert mill.show("failed").status == "FAILED"
    assert [letter.run_id for letter in mill.dead_letters(["status:open"])[0]] == ["failed"]
    assert [row.run_id for row in mill.approvals(["status:pending"])[0]] == ["approval"]
    assert mill.show("paused").status == "PAUSED"
    assert len(mill.events("snapshot")) > 500 and mill.show("snapshot").labels == {"seen": "yes"}
    mill.decide("approval", "sign", "approve", actor="ada")
    for run_id in ("signal", "snapshot", "parent.c.1"):
        mill.signal(run_id, "go", {"from": "today"})
    mill.resume("paused")
    mill.retry("failed")
    for run_id in ("approval", "signal", "timer", "killed", "mapped", "parent", "failed", "paused", "snapshot"):
        _end(mill, run_id)
    assert mill.show("parent.c.1").status == "COMPLETED"
    assert mill.show("mapped").nodes["each"]["output"] == [1, 2, 3, 4]
    # Those attempts were under way when their worker was killed.
    assert [event["type"] for event in mill.events("killed")].count("NodeCompleted") == 3
    verdict = mill.verify_log()
    assert verdict.clean, verdict.findings
    with pytest.raises(Rejected, match="there is no run"):
        mill.show("unknown")
