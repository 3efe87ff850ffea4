"""Agents in real worker processes that are killed: the server of the model tells which calls were made."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import tidemill
from tests.e2e.processes.test_checkpoints import WORKER
from tests.fixtures.command_line import environment
from tests.fixtures.model_protocols import Called, Says
from tests.fixtures.model_servers import ModelServer, by_conversation, model_server_thread
from tests.fixtures.worker_processes import until

TURNS, KILLS = 12, 20
SCRIPT = [Says(calls=(Called("search_tools", {"query": f"tide {turn}"}),)) for turn in range(TURNS)]


def start(folder: Path, server: ModelServer) -> subprocess.Popen[bytes]:
    here = environment({"TIDEMILL_EGRESS_ALLOW": urlsplit(server.url).netloc})
    return subprocess.Popen([sys.executable, "-c", WORKER, f"sqlite:///{folder}/mill.db"], env=here)


def flow(server: ModelServer) -> dict[str, object]:
    config = {**server.config("openai"), "prompt": "How high is the tide?", "tools": ["search_tools"], "max_turns": 50}
    return {"name": "tides", "nodes": [{"id": "a", "type": "agent", "config": config}]}


@pytest.mark.parametrize("seed", range(2))
def test_killed_workers_repeat_no_call_that_is_in_the_log(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    turns = by_conversation(*SCRIPT, Says("4.2 m"))
    url = f"sqlite:///{tmp_path}/mill.db"
    with model_server_thread(choose=turns) as server, tidemill.open(url, work=False) as mill:
        mill.publish(flow(server))
        run_id = mill.start("tides")
        worker = start(tmp_path, server)
        try:
            for _ in range(KILLS // 2):
                seen = len(server.requests)
                until(lambda seen=seen: len(server.requests) > seen or _ended(mill, run_id), "it does not go on")
                if _ended(mill, run_id):
                    break
                time.sleep(rng.random() * 0.05)
                worker.send_signal(signal.SIGKILL)
                worker.wait(10)
                worker = start(tmp_path, server)
            view = mill.result(run_id, timeout_s=60)
        finally:
            worker.kill()
            worker.wait(10)
        assert view.status == "COMPLETED" and view.outputs["a"]["text"] == "4.2 m"
        shown = mill.transcript(run_id, "a")
        asked = Counter(request.replies for request in server.requests)
        assert server.complaints == []
        assert (len(shown.turns), shown.tool_calls) == (TURNS + 1, TURNS)
        assert sorted(asked) == list(range(TURNS + 1))
        # A call is made again only after it was announced again, and each such call counts.
        assert len(server.requests) <= TURNS + 1 + shown.lost_calls


def _ended(mill: tidemill.Tidemill, run_id: str) -> bool:
    return mill.show(run_id).status == "COMPLETED"
