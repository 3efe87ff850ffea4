"""Two versions of the product on one store: worker processes of this one and of a newer build, which is killed.

The newer build (`tests/fixtures/newer_build.py`) has an added event field and an added job kind.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.command_line import environment
from tests.fixtures.newer_build import KIND, VERSION, build
from tests.fixtures.servers.postgres_server import running
from tests.fixtures.worker_processes import SECONDS_MAX, Place, opened, until
from tidemill.storage_urls import open_storage
from tidemill.stores.contract import Stream

LEASE = ("--heartbeat", "0.5", "--dead-after", "2")
FEW = 6


def flow(name: str, **first: Any) -> dict[str, Any]:
    """a → b, without a timer: only workers of the queue touch it."""
    second = {"id": "b", "type": "value", "dependencies": ["a"], "config": "{{ a.output }}", **first}
    return {"name": name, "nodes": [{"id": "a", "type": "value", "config": 7, **first}, second]}


OURS, THEIRS, MIXED = flow("ours", queue="ours"), flow("theirs", queue="theirs"), flow("mixed")
LONG: dict[str, Any] = {
    "name": "long",
    "nodes": [
        {"id": "a", "type": "value", "config": 7, "queue": "theirs"},
        {"id": "s", "type": "sleep", "config": {"seconds": 3}, "dependencies": ["a"], "queue": "theirs"},
        {"id": "b", "type": "value", "config": "{{ a.output }}", "dependencies": ["s"]},
    ],
}


class Upgrade:
    """A store, a client of this version, and whatever is of the newer one."""

    def __init__(self, place: Place, mill: tidemill.Tidemill) -> None:
        self.place, self.mill = place, mill
        self._path = {"PYTHONPATH": str(build(place.folder / "newer"))}

    def older(self) -> Any:
        return self.place.worker(*LEASE, "--queues", "ours,default")

    def newer(self) -> Any:
        return self.place.worker(*LEASE, "--queues", "theirs,default", env=self._path)

    def newer_client(self, code: str) -> Any:
        """What a client of the newer version answers."""
        lines = ["import json, tidemill, tidemill.version", f"assert tidemill.version.__version__ == {VERSION!r}"]
        lines += [f"with tidemill.open({self.place.url!r}, work=False) as mill:", f"    print(json.dumps({code}))"]
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            cwd=self.place.folder,
            env=environment(self._path),
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def start_newer(self, name: str) -> list[str]:
        return list(self.newer_client(f"[mill.start({name!r}) for _ in range({FEW})]"))

    def ends_of(self, runs: list[str]) -> set[str]:
        """How runs end, as the newer version sees it."""
        return set(self.newer_client(f"[mill.result(run, timeout_s=60).status for run in {runs!r}]"))

    def lengths(self, runs: list[str]) -> list[int]:
        """How many events each run has, whoever wrote them."""

        async def ask() -> list[int]:
            store = open_storage(self.place.url).store
            await store.open()
            try:
                streams = {Stream("default", "run", run): 0 for run in runs}
                return [tail.version for tail in await store.load(streams, snapshots=False)]
            finally:
                await store.close()

        return asyncio.run(ask())

    def jobs(self, runs: list[str]) -> set[str]:
        """The kinds of the jobs of these runs."""

        async def ask() -> set[str]:
            store = open_storage(self.place.url).store
            await store.open()
            try:
                found = [await store.jobs(Stream("default", "run", run)) for run in runs]
                return {view.job.key.partition("/")[0] for views in found for view in views}
            finally:
                await store.close()

        return asyncio.run(ask())


@pytest.fixture(params=["sqlite", "postgres"])
def upgrade(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgrade]:
    if request.param == "sqlite":
        with opened(tmp_path) as (place, mill):
            yield Upgrade(place, mill)
        return
    with running() as server, opened(tmp_path, server.new_store()) as (place, mill):
        yield Upgrade(place, mill)


def test_an_older_worker_goes_on_beside_a_newer_one_and_without_it(upgrade: Upgrade) -> None:
    mill = upgrade.mill
    older, newer = upgrade.older(), upgrade.newer()
    for each in (OURS, THEIRS, MIXED, LONG):
        mill.publish(each)

    # Both at once.
    ours = [mill.start("ours") for _ in range(FEW)]
    mixed = [mill.start("mixed") for _ in range(FEW)] + upgrade.start_newer("mixed")
    theirs = upgrade.start_newer("theirs")
    assert {mill.result(run, timeout_s=60).status for run in ours} == {"COMPLETED"}
    assert upgrade.ends_of([*mixed, *theirs]) == {"COMPLETED"}
    until(lambda: not upgrade.jobs(theirs), "the newer worker has not done its own kind of job")

    # The newer one is lost in the middle of its runs.
    long = upgrade.start_newer("long")
    until(lambda: len(mill.find(["waiting", "workflow:long"])[0]) == FEW, "they do not sleep")
    newer.tell(signal.SIGKILL)
    newer.end()
    before = upgrade.lengths(long)
    left = upgrade.start_newer("ours")
    until(lambda: set(upgrade.lengths(left)) == set(upgrade.lengths(ours)), "the older one does not do what it can")
    assert upgrade.jobs(left) == {KIND}
    due = time.monotonic() + 5
    until(lambda: time.monotonic() > due, "")
    again = [mill.start("ours") for _ in range(FEW)]
    assert {mill.result(run, timeout_s=60).status for run in again} == {"COMPLETED"}
    assert (upgrade.lengths(long), upgrade.jobs(long), upgrade.jobs(left)) == (before, {"wake"}, {KIND})
    for run in long:
        why = mill.why(run)
        assert "NodeCompleted was written by a newer version" in why.newer
        assert why.headline.endswith(f"it waits for a worker of version ≥ {VERSION}")
    assert f"a job of kind {KIND} was written by a newer version" in mill.why(left[0]).newer
    rows, _ = mill.find(limit=1_000)
    assert not [row for row in rows if row.stuck or row.suspect or row.stuck_reason]
    verdict = mill.verify_log()
    assert verdict.clean and verdict.newer >= FEW

    # It comes back.
    upgrade.newer()
    assert upgrade.ends_of(long) == {"COMPLETED"}
    everything = [*ours, *mixed, *theirs, *long, *left, *again]
    until(lambda: not upgrade.jobs(everything), "jobs are left")
    findings = upgrade.newer_client("[(each.run, each.code, each.message) for each in mill.verify_log().findings]")
    assert findings == []
    older.tell()
    assert older.end() == 0
    said = older.err.decode() + "\n".join(each["message"] for each in older.said if each["event"] == "log")
    assert said.count("NodeCompleted was written by a newer version") == 1
    assert said.count(f"a job of kind {KIND} was written by a newer version") == 1
    assert "stuck" not in said and "Traceback" not in said
