"""What is said while a watched run waits for a worker in vain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fixtures.command_line import eventually
from tests.unit.cli.render.test_board import chain, graph_of
from tidemill.cli.render import why as rendering
from tidemill.cli.render.board import RunProgress
from tidemill.cli.render.why import IdleReport
from tidemill.cli.session import StoreSession
from tidemill.client import Tidemill
from tidemill.errors import Unavailable
from tidemill.kernel.explain.blockers import Failure, Need, Worker


def waiting(need: Need, cause: str = "", node: str = "a") -> Worker:
    lacking = Failure(code="function_unknown", message=cause) if cause else None
    words, command = f"{node} is queued: {need} {cause}".strip(), "tidemill worker"
    return Worker(
        node=node, queue="default", type="python@1", need=need, lost="", alive=(), able_elsewhere=(),
        lacking=lacking, words=words, command=command,
    )  # fmt: skip


def test_what_no_worker_can_run_is_said_once_while_the_run_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "LOOK_SECONDS", 0.01)
    blockers: list[Worker] = [waiting("busy")]
    said: list[str] = []
    asked: list[str] = []

    def why(run_id: str) -> Any:
        asked.append(run_id)
        if len(asked) == 3:
            raise Unavailable("for a moment")
        return SimpleNamespace(blockers=tuple(blockers))

    mill = cast(Tidemill, SimpleNamespace(why=why))
    board = RunProgress(graph_of(chain(2)), "r")
    with IdleReport(mill, StoreSession("sqlite:///x.db"), board, said.append):
        eventually(lambda: len(asked) > 3, "it does not look")
        assert said == []
        blockers[:] = [waiting("lacking", "no module slow"), waiting("lacking", "no module slow", "b")]
        eventually(lambda: said, "it does not say it")
        looked = len(asked)
        eventually(lambda: len(asked) > looked + 2, "it does not look again")
    assert said == ["◷ a is queued: lacking no module slow · tidemill worker --store sqlite:///x.db"]
