"""What a function in a process of its own cannot do: outgrow its memory, leave anything running, write unheard."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.grants import give_secrets
from tests.fixtures.handler_engine import ONCE, document, error, output
from tests.fixtures.handler_harness import context
from tests.fixtures.worker_processes import alive, until
from tidemill.engine.views import RunView
from tidemill.handlers.contract import Done
from tidemill.handlers.python.pool import Limits, PythonProcesses

LIMITS = {"memory_mb": 200}
GONE_SECONDS = 30


@pytest.fixture(scope="module")
def mill() -> Iterator[tidemill.Tidemill]:
    with tidemill.open("memory://") as opened:
        yield opened


def escaping(mill: tidemill.Tidemill, name: str, node: dict[str, Any] | None = None, **config: Any) -> RunView:
    path = f"tests.fixtures.sandbox_escapes:{name}"
    return mill.run(document(path, {**ONCE, **(node or {})}, isolation="process", **config), timeout_s=40)


def pids_in(file: Path) -> list[int]:
    until(lambda: file.exists() and file.read_text() != "", "it did not begin")
    return [int(pid) for pid in file.read_text().split()]


def test_a_function_is_told_before_it_is_killed(mill: tidemill.Tidemill) -> None:
    failed = error(escaping(mill, "takes_a_little_more", args={"megabytes": 225}, limits=LIMITS))
    assert failed["code"] == "out_of_memory" and failed["causes"][0].startswith("MemoryError")


@pytest.mark.parametrize("name", ["lifts_its_limit", "shares_memory"])
def test_memory_that_no_limit_of_the_process_counts(mill: tidemill.Tidemill, name: str) -> None:
    began = time.monotonic()
    failed = error(escaping(mill, name, limits=LIMITS))
    assert failed["code"] == "out_of_memory" and "200 MB" in failed["message"]
    assert time.monotonic() - began < 40


def test_the_hard_limit_cannot_be_lifted() -> None:
    with tidemill.open("memory://") as own:
        assert output(escaping(own, "lifts_it_without_rights", limits=LIMITS)) == "refused"


def test_memory_of_all_that_it_has_started_is_counted_together(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert error(escaping(mill, "divides_it", args={"ledger": str(ledger)}, limits=LIMITS))["code"] == "out_of_memory"
    assert not any(map(alive, pids_in(ledger)))


def test_memory_that_several_share_is_counted_once(mill: tidemill.Tidemill) -> None:
    assert output(escaping(mill, "copies_itself", limits=LIMITS)) == "copied"


async def test_a_limit_is_that_of_its_process_for_life() -> None:
    """So a node with another limit gets another process, and that takes the place of the first."""
    processes = PythonProcesses(size=1)
    try:
        pids = []
        for memory_mb in (200, 200, 201):
            ended = await processes.call("posix:getpid", context({}), Limits(memory_mb=memory_mb))
            assert isinstance(ended, Done)
            pids.append(ended.value)
        assert pids[0] == pids[1] != pids[2]
        assert not alive(pids[0]) and alive(pids[2])
    finally:
        await processes.close()


@pytest.mark.parametrize(
    ("then", "ends"),
    [("returns", None), ("fails", "odd"), ("dies", "process_died"), ("stays", "timeout")],
)
def test_a_daemon_ends_with_its_call(mill: tidemill.Tidemill, then: str, ends: str | None, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    limits = {"time_seconds": 1} if then == "stays" else {}
    view = escaping(mill, "leaves_a_daemon", args={"ledger": str(ledger), "then": then}, limits=limits)
    assert (output(view) == "left") if ends is None else (error(view)["code"] == ends)
    assert not any(map(alive, pids_in(ledger)))


def test_a_daemon_ends_with_a_killed_worker(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    config = {"args": {"ledger": str(ledger), "then": "stays"}}
    flow = document("tests.fixtures.sandbox_escapes:leaves_a_daemon", isolation="process", **config)
    script = f"import tidemill\nwith tidemill.open('memory://') as mill: mill.run({flow!r})"
    root = Path(__file__).resolve().parents[4]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root) as worker:
        (pid,) = pids_in(ledger)
        assert alive(pid)
        worker.kill()
    until(lambda: not alive(pid), "the daemon lives", GONE_SECONDS)


# What is written to the file descriptors


def test_what_is_written_past_python_is_kept_in_order_and_masked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    give_secrets(monkeypatch, CRAFT="swordfish")
    with tidemill.open("memory://") as own:
        view = escaping(own, "writes_past_python")
        lines = [(line.source, line.text.strip()) for line in own.logs(view.run_id)]
    assert output(view) == "written"
    said = [text for source, text in lines if source != "stderr"]
    printed = ["1 printed", "3 printed", "5 logged", "7 printed", "9 printed"]
    written = ["2 written ***", "4 a program ***", "6 from C", "8 a copy"]
    assert [text for text in said if text in printed] == printed
    assert [text for text in said if text in written] == written
    assert len(said) == len(printed) + len(written)
    assert ("stderr", "aside ***, unfinished") in lines
    shown = capfd.readouterr()
    assert "4 a program ***" in shown.out and "swordfish" not in shown.out + shown.err


def test_a_flood_past_python_neither_blocks_nor_fills_memory() -> None:
    with tidemill.open("memory://") as own:
        view = escaping(own, "floods", args={"megabytes": 8}, limits={"time_seconds": 20})
        kept = sum(len(line.text) for line in own.logs(view.run_id))
    assert output(view) == "flooded 8" and 1 << 18 < kept <= 3 << 20


def test_what_a_thread_writes_after_its_call_is_not_heard_in_the_next(mill: tidemill.Tidemill) -> None:
    with tidemill.open("memory://") as own:
        pid = output(escaping(own, "writes_late"))
        time.sleep(0.1)
        view = own.run(document("posix:getpid", isolation="process"), timeout_s=20)
        late = [line.text for line in own.logs(view.run_id)]
    assert output(view) == pid != os.getpid()
    assert len(late) <= 3, "only what was written during the call"


async def test_the_current_folder_does_not_come_before_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "socket.py").write_text("raise SystemExit('a trap')\n")
    monkeypatch.chdir(tmp_path)
    processes = PythonProcesses(size=1)
    try:
        ended = await processes.call("posix:getpid", context({}), Limits())
        assert isinstance(ended, Done) and ended.value != os.getpid()
    finally:
        await processes.close()


def test_a_module_may_turn_the_collector_off(mill: tidemill.Tidemill) -> None:
    for module, collects in (("sample_node_types", True), ("without_collector", False)):
        path = f"tests.fixtures.{module}:collects"
        assert output(mill.run(document(path, isolation="process"), timeout_s=40)) is collects
