"""Two worker processes on one Redis server: one is killed, and the server is killed and started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.servers.redis_server import PrivateServer, running
from tests.fixtures.worker_processes import Place, calls, opened, until

Here = tuple[Place, tidemill.Tidemill, PrivateServer]
LEASE = ("--heartbeat", "0.5", "--dead-after", "2")


@pytest.fixture(params=[1, 3], ids=["one partition", "three partitions"])
def here(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Here]:
    with (
        running("appendfsync always") as server,
        opened(tmp_path, server.new_store(partitions=request.param)) as (place, mill),
    ):
        yield place, mill, server


def test_a_killed_workers_attempts_start_elsewhere(here: Here) -> None:
    place, mill, _ = here
    workers = {worker.pid: worker for worker in (place.worker(*LEASE), place.worker(*LEASE))}
    mill.publish(calls("work", seconds=3))
    runs = [mill.start("work") for _ in range(8)]
    until(lambda: len(place.notes("begin")) == 8, "they did not begin")
    victim = place.notes("begin")[0][0]
    held = sum(1 for pid, _ in place.notes("begin") if pid == victim)
    workers[victim].tell(signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: len(place.notes("begin")) == 8 + held, "nobody took over")
    last = max(at for _, at in place.notes("begin"))
    # The lease and 5 s; ten times as much on a machine that is busy.
    assert last - killed < 10 * (2 + 5)
    ended = [mill.result(run_id, timeout_s=60) for run_id in runs]
    assert {run.status for run in ended} == {"COMPLETED"}
    assert len(place.notes("end")) == 8


def test_a_killed_server_costs_time_and_nothing_else(here: Here) -> None:
    place, mill, server = here
    for _ in range(2):
        place.worker("--heartbeat", "0.5", "--dead-after", "30")
    nodes = [
        {
            "id": f"n{number}",
            "type": "python",
            "config": {"function": "work", "args": {"seconds": 0.05}},
            "dependencies": [f"n{number - 1}"] if number else [],
        }
        for number in range(30)
    ]
    mill.publish({"name": "long", "nodes": nodes})
    runs = [mill.start("long") for _ in range(10)]
    until(lambda: len(place.notes("end")) > 60, "they did not begin")
    server.stop(signal.SIGKILL)
    before = len(place.notes("end"))
    server.start()
    until(lambda: len(place.notes("end")) > before + 40, "nothing goes on")
    ended = [mill.result(run_id, timeout_s=100) for run_id in runs]
    assert {run.status for run in ended} == {"COMPLETED"}
    # No handler was called again: results that were on their way are committed when the server is back.
    assert len(place.notes("end")) == 300
    assert mill.verify_log(runs).clean
