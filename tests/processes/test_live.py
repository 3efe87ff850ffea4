"""What a node shows while it runs in a worker is seen by whoever follows the run in another process."""

from __future__ import annotations

import json
import subprocess

from tests.cli.kit import COMMAND, environment
from tests.processes.workers import Place, calls, until
from tidemill import Tidemill

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
