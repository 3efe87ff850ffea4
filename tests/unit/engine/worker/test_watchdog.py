"""Something blocks the worker's loop: it is seen while it happens, and told by the event of who did it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tidemill
from tests.fixtures.kernel.authoring import document, node
from tidemill.ambient import RealAmbient
from tidemill.cli.render.events import EventPrinter
from tidemill.engine.attempts.runtime import BLOCKED_MS
from tidemill.engine.worker.watchdog import BEAT_MS, LoopWatchdog
from tidemill.handlers.contract import NodeContext
from tidemill.security.masking import Mask

SECONDS_MAX = 60
BLOCKS_S = 2.5
"""Longer than the bound and two looks of the thread."""


async def block(seconds: float = BLOCKS_S) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - this is what it is about
    return "ok"


async def patient() -> str:
    await asyncio.sleep(BLOCKS_S + 1)
    return "ok"


async def block_and_fail() -> None:
    time.sleep(BLOCKS_S)  # noqa: ASYNC251
    raise ValueError("no")


FUNCTIONS = {"block": block, "patient": patient, "fails": block_and_fail}


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[tidemill.Tidemill]:
    with tidemill.open(f"sqlite:///{tmp_path}/t.db", functions=FUNCTIONS) as mill:
        yield mill


def call(id_: str, function: str, *after: str, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "type": "python", "dependencies": list(after), "config": {"function": function, **fields}}


def run(mill: tidemill.Tidemill, *nodes: Any) -> tuple[str, dict[str, Any]]:
    """Run a document; answers how each node's last attempt ended."""
    published = mill.publish(document(*nodes))
    run_id = mill.start(f"{published.name}@{published.version}")
    mill.result(run_id, timeout_s=SECONDS_MAX)
    ended = [event for event in mill.events(run_id) if event["type"] in ("NodeCompleted", "NodeFailed")]
    return run_id, {event["node"]: event for event in ended}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name.endswith("watchdog")]


def test_who_blocks_the_loop_is_named_and_others_are_not(
    mill: tidemill.Tidemill, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run_id, ended = run(mill, call("p", "patient"), call("a", "block"), node("z", "a"))
    assert ended["a"]["blocked_ms"] >= BLOCKED_MS
    assert all("blocked_ms" not in ended[name] for name in ("p", "z"))
    # A machine that stands still may cause further warnings, which name nobody.
    (said,) = [each for each in warnings(caplog) if "node" in each.partition("\n")[0]]
    assert f"node a (visit 1) of run {run_id}" in said and "time.sleep(seconds)" in said
    (worker,) = mill.workers()
    assert worker.blocked is not None and worker.blocked.node in ("a", "")


def test_a_failed_attempt_says_so_too(mill: tidemill.Tidemill, capsys: pytest.CaptureFixture[str]) -> None:
    failing = {**call("a", "fails"), "retry": {"max_attempts": 1}}
    run_id, ended = run(mill, failing)
    assert ended["a"]["type"] == "NodeFailed" and ended["a"]["blocked_ms"] >= BLOCKED_MS
    printer = EventPrinter()
    for event in mill.events(run_id):
        printer.print(event)
    assert "blocked its worker's loop for" in capsys.readouterr().out


async def test_a_loop_that_runs_is_never_reported(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog(RealAmbient())
    watchdog.start()
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(4 * BEAT_MS / 1000)
        watchdog.stop()
    assert watchdog.blocked_ms(("r", "a", 1, -1)) == 0
    assert watchdog.last is None or watchdog.last.node == ""


async def test_what_is_logged_holds_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    voice: Any = SimpleNamespace(mask=Mask(["s3cr3t-value"]))
    context = NodeContext("r", "a", 1, -1, 1, config=None, upstream={}, voice=voice)
    watchdog = LoopWatchdog(RealAmbient())
    watchdog.start()
    with caplog.at_level(logging.WARNING):
        time.sleep(BLOCKS_S)  # noqa: ASYNC251 - s3cr3t-value
        await asyncio.sleep(2 * BEAT_MS / 1000)
    watchdog.stop()
    said = "\n".join(warnings(caplog))
    assert "node a" in said and "***" in said and "s3cr3t-value" not in said
    assert watchdog.blocked_ms((context.run_id, "a", 1, -1)) >= BLOCKED_MS


async def test_what_is_logged_holds_no_control_characters(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A file name, or a line of code, may hold anything."""
    path = tmp_path / "evil\x1b[2J.py"
    path.write_text(f"time.sleep({BLOCKS_S})  # \x1b[31m\n")
    watchdog = LoopWatchdog(RealAmbient())
    watchdog.start()
    with caplog.at_level(logging.WARNING):
        exec(compile(path.read_text(), str(path), "exec"), {"time": time})  # noqa: S102
        await asyncio.sleep(2 * BEAT_MS / 1000)
    watchdog.stop()
    said = "\n".join(warnings(caplog))
    assert "\\x1b[2J.py" in said and "\x1b" not in said
