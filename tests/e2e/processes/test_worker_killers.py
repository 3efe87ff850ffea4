"""A document during which worker processes are killed ends, whatever kills them: it cannot walk through a fleet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.kernel.authoring import document, node
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX, SET_ASIDE
from tidemill.security.grants import StoreSqlGrants
from tidemill.settings import Settings

SECONDS_MAX = 120
RETRY = {"max_attempts": 50, "backoff_seconds": 0.01}
CHILD = {"id": "c", "type": "workflow", "config": {"workflow": "kid"}}
KID = document(node("a", config=1), name="kid")
UNDO = {"type": "python", "config": {"function": "ok"}}


def call(function: str, **fields: Any) -> dict[str, Any]:
    return {"id": "a", "type": "python", "config": {"function": function}, "retry": RETRY, **fields}


def lose_workers(tmp_path: Path, given: dict[str, Any], point: str) -> tuple[int, tidemill.Tidemill, str]:
    """Let workers die at one point; answers how many did, and a client without a worker."""
    url = f"sqlite:///{tmp_path}/t.db"
    settings = Settings(sql=StoreSqlGrants(enabled=True))
    mill = tidemill.open(url, work=False, functions={"die": print, "ok": print, "fail": print}, settings=settings)
    mill.publish(KID)
    published = mill.publish(given)
    run_id = mill.start(f"{published.name}@{published.version}")
    command = [sys.executable, "-m", "tests.e2e.processes.dying_workers", url, run_id, point]
    environment = {**os.environ, "TIDEMILL_SQL_STORE": "on"}
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=True, env=environment)
    return int(done.stdout), mill, run_id


@pytest.mark.parametrize(
    ("point", "given", "codes"),
    [
        ("function", call("die"), ["worker_killer"]),
        ("compile", call("ok", config={"function": "ok", "args": {}}), ["worker_killer"]),
        ("template", node("a", config="{{ run.id }}"), ["worker_killer"]),
        ("when", node("a", when="run.id != ''"), ["worker_killer"]),
        (
            "branch",
            node("a", branch={"rules": [{"condition": "output == 1", "next_nodes": ["b"]}], "default": ["b"]}),
            [],
        ),
        ("child", CHILD, ["child_failed", "worker_killer"]),
        ("report", CHILD, ["child_failed", "worker_killer"]),
    ],
)
def test_five_lost_workers_are_enough(tmp_path: Path, point: str, given: dict[str, Any], codes: list[str]) -> None:
    nodes = [given, *([node("b", "a")] if point == "branch" else [])]
    lost, mill, run_id = lose_workers(tmp_path, document(*nodes), point)
    with mill:
        run = mill.show(run_id)
        assert (lost, run.status) == (LOST_IN_A_ROW_MAX, "FAILED")
        assert run.error is not None
        found = [run.error["code"], *run.error.get("causes", [])]
        assert found == (codes or ["worker_killer"])
        assert "5 workers in a row were lost" in run.error["message"]
        assert "5 workers in a row were lost" in mill.why(run_id).headline


def test_outputs(tmp_path: Path) -> None:
    lost, mill, run_id = lose_workers(tmp_path, document(node("a"), outputs="{{ run.id }}"), "outputs")
    with mill:
        run = mill.show(run_id)
        assert (lost, run.status) == (LOST_IN_A_ROW_MAX, "FAILED")
        assert run.error is not None and run.error["causes"] == ["worker_killer"]


def test_a_compensator(tmp_path: Path) -> None:
    given = document(
        {**call("ok"), "compensator": UNDO},
        {"id": "b", "type": "fail", "dependencies": ["a"]},
        on_failure={"compensate": "automatic"},
    )
    lost, mill, run_id = lose_workers(tmp_path, given, "undo")
    with mill:
        assert (lost, mill.show(run_id).rollback["status"]) == (LOST_IN_A_ROW_MAX, "partial")
        failed = [each for each in mill.events(run_id) if each["type"] == "CompensationFailed"]
        assert failed[-1]["error"]["code"] == "worker_killer"


def test_a_statement_on_the_store_is_not_tried_again(tmp_path: Path) -> None:
    given = {"id": "a", "type": "sql", "config": {"statement": "SELECT instr('a', 'b') AS n"}, "retry": RETRY}
    lost, mill, run_id = lose_workers(tmp_path, document(given), "statement")
    with mill:
        run = mill.show(run_id)
        assert (lost, run.status) == (1, "FAILED")
        assert run.error is not None and run.error["code"] == "statement_killed_worker"
        assert not list(tmp_path.glob("t.db-live/*.running"))


def test_a_run_that_no_worker_can_load_is_set_aside(tmp_path: Path) -> None:
    """Five are lost, and the one that should have recorded it."""
    lost, mill, run_id = lose_workers(tmp_path, document(call("ok")), "load")
    with mill:
        assert lost == LOST_IN_A_ROW_MAX + 1
        assert mill.show(run_id).status == "RUNNING"
        assert SET_ASIDE in mill.why(run_id).headline
