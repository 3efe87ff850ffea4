"""A long node whose worker is killed: the next one goes on where the last checkpoint was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.command_line import COMMAND, environment
from tests.fixtures.worker_processes import Place, alive, calls, until
from tidemill import Tidemill

WORKER = """
import asyncio, os, sys
from tidemill.ambient import RealAmbient
from tidemill.node_types import built_in_handlers
from tidemill.storage_urls import open_storage
from tidemill.engine.engine import Engine
from tidemill.engine.worker.worker import WorkerOptions

async def main():
    shelf = open_storage(sys.argv[1])
    options = WorkerOptions(name=f"w/{os.getpid()}", lease_ms=1_000)
    parts = {"store": shelf.store, "blobs": shelf.blobs, "ambient": RealAmbient(), "worker": options}
    engine = Engine(**parts, handlers=built_in_handlers())
    async with engine:
        await asyncio.Event().wait()

asyncio.run(main())
"""

PAGES = """
import os, time

PAGES = 6

def note(page):
    with open(os.environ["LEDGER"], "a") as file:
        file.write(f"{page} {os.getpid()}\\n")

async def pages(context):
    for page in range(context.last_checkpoint or 0, PAGES):
        note(page)
        time.sleep(0.3)
        await context.checkpoint(page + 1)
    return f"attempt {context.attempt}"

def plain_pages(context):
    for page in range(context.last_checkpoint or 0, PAGES):
        note(page)
        time.sleep(0.3)
        context.checkpoint(page + 1)
    return f"attempt {context.attempt}"
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    here = environment({"LEDGER": str(folder / "ledger"), "PYTHONPATH": str(folder)})
    return subprocess.Popen([sys.executable, "-c", WORKER, f"sqlite:///{folder}/mill.db"], env=here)


@pytest.mark.parametrize(
    ("function", "isolation"), [("pages", "inline"), ("plain_pages", "thread"), ("plain_pages", "process")]
)
def test_a_killed_worker_costs_no_more_than_the_page_it_was_at(tmp_path: Path, function: str, isolation: str) -> None:
    (tmp_path / "page_code.py").write_text(PAGES)
    ledger = tmp_path / "ledger"
    config = {"function": f"page_code:{function}", "isolation": isolation}
    first = start(tmp_path)
    second = None
    try:
        with tidemill.open(f"sqlite:///{tmp_path}/mill.db", work=False) as mill:
            mill.publish({"name": "book", "nodes": [{"id": "a", "type": "python", "config": config}]})
            run_id = mill.start("book")
            until(lambda: ledger.exists() and len(ledger.read_text().splitlines()) >= 3, "it does not get on")
            os.kill(first.pid, signal.SIGKILL)
            first.wait(10)
            began = [line.split() for line in ledger.read_text().splitlines()]
            # What the killed worker had started is gone with it.
            until(lambda: not alive(int(began[-1][1])), "the function goes on", 5)
            second = start(tmp_path)
            view = mill.result(run_id, timeout_s=25)
    finally:
        for worker in (first, second):
            if worker is not None:
                worker.kill()
                worker.wait(10)
    assert view.status == "COMPLETED" and view.nodes["a"]["output"] == "attempt 2"
    turned = [int(line.split()[0]) for line in ledger.read_text().splitlines()]
    assert sorted(set(turned)) == list(range(6)), turned
    # One page at most was turned twice: the one after the last checkpoint.
    assert len(turned) <= 7 and turned[len(began)] >= int(began[-1][0]) >= 2


# What a node shows while it runs in a worker is seen by whoever follows the run in another process


PARTS = 10_000


def listeners(place: Place) -> int:
    folder = place.folder / "mill.db-ears"
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_parts_reach_followers_in_other_processes(here: tuple[Place, Tidemill]) -> None:
    place, mill = here
    mill.publish(calls("speak", parts=PARTS, wait_for=str(place.folder / "begin")))
    run = mill.start("speak")
    place.worker()
    command = [*COMMAND, "runs", "events", run, "--live", "--json", "--store", place.url]
    elsewhere = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE)
    events = mill.follow(run, live=True)
    seen = [next(events)]
    until(lambda: listeners(place) == 2, "not everybody listens")
    (place.folder / "begin").touch()
    seen += events
    told, _ = elsewhere.communicate(timeout=25)
    for each in (seen, [json.loads(line) for line in told.splitlines()]):
        parts = [event for event in each if event["type"] == "NodeStreamed"]
        assert [part["number"] for part in parts] == list(range(1, PARTS + 1))
        assert parts[-1]["value"] == f"{PARTS} "
        assert "NodeProgressed" in {event["type"] for event in each}
        kinds = [event["type"] for event in each if "seq" in event]
        assert sum(kind.startswith("Node") for kind in kinds) <= 3, kinds
        assert each.index(parts[-1]) < [event["type"] for event in each].index("NodeCompleted")
    assert listeners(place) == 0
