"""Real workers that are killed while schedules are due: each due time starts one run, and none is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.servers import redis_server
from tests.fixtures.servers.postgres_server import running
from tests.fixtures.worker_processes import Place, opened, until

LEASE = ("--heartbeat", "0.2", "--dead-after", "1")
KILLED = 4
TICK = {"name": "tick", "nodes": [{"id": "a", "type": "value", "config": 1}]}

Here = tuple[Place, tidemill.Tidemill]


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here]:
    if request.param == "sqlite":
        with opened(tmp_path) as found:
            yield found
    elif request.param == "redis":
        with redis_server.running() as server, opened(tmp_path, server.new_store()) as found:
            yield found
    else:
        with running("fsync=off") as server, opened(tmp_path, server.new_store()) as found:
            yield found


def test_killed_workers_neither_lose_nor_repeat_a_due_time(store: Here) -> None:
    place, mill = store
    mill.publish(TICK)
    made = mill.create_schedule("often", "tick", every=1, catch_up="all")
    workers = [place.worker(*LEASE), place.worker(*LEASE)]
    for number in range(KILLED):
        before = mill.count(label={"schedule": "often"})
        until(lambda before=before: mill.count(label={"schedule": "often"}) > before + 1, "nothing starts")  # type: ignore[misc]
        workers[number % 2].tell(signal.SIGKILL)
        workers[number % 2] = place.worker(*LEASE)
    before = mill.count(label={"schedule": "often"})
    until(lambda: mill.count(label={"schedule": "often"}) > before + 1, "nothing starts any more")
    paused = mill.pause_schedule("often")
    runs = list(mill.runs(label={"schedule": "often"}))
    due = sorted(int(datetime.fromisoformat(run.labels["scheduled_at"]).timestamp()) for run in runs)
    first = made.anchor_ms // 1_000 + 1
    assert due == list(range(first, first + len(due)))
    assert paused.runs <= len(due) <= paused.runs + 1, "a run may have started without its record when it was paused"
    until(lambda: not mill.count("live"), "runs do not end")
    assert {run.status for run in mill.runs(label={"schedule": "often"})} == {"COMPLETED"}
    assert mill.verify_log().clean


def test_a_schedule_from_creation_to_deletion(store: Here) -> None:
    _, mill = store
    mill.publish(TICK)
    made = mill.create_schedule("nightly", "tick", cron="0 2 * * *", timezone="Europe/Berlin", labels={"team": "a"})
    assert (
        mill.create_schedule("nightly", "tick", cron="0 2 * * *", timezone="Europe/Berlin", labels={"team": "a"})
        == made
    )
    with pytest.raises(tidemill.Rejected) as refused:
        mill.create_schedule("nightly", "tick", every="1h")
    assert refused.value.code == "schedule_exists"
    changed = mill.update_schedule("nightly", every="15m", description="quarterly")
    assert (changed.every_ms, changed.cron, changed.labels) == (900_000, "", {"team": "a"})
    first, *later = mill.schedule("nightly").next_times
    assert [each - first for each in later] == [900_000 * number for number in range(1, 5)]
    assert mill.pause_schedule("nightly", reason="holiday").status == "paused"
    assert mill.schedule_times("nightly") == []
    run_ids = {mill.trigger_schedule("nightly", key="now") for _ in range(2)}
    assert [run.run_id for run in mill.runs(label={"schedule": "nightly"})] == [*run_ids]
    assert mill.resume_schedule("nightly").status == "active"
    assert [each.name for each in mill.schedules("status:active")[0]] == ["nightly"]
    mill.delete_schedule("nightly")
    assert mill.schedules()[0] == []
    assert mill.verify_log().clean
