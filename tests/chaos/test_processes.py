"""One file, several processes: what one leaves behind when it is killed or stopped, and that nobody is in the way."""

from __future__ import annotations

import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import tidemill
from tests.chaos.effects import Entry, read_ledger
from tests.chaos.flows import KINDS, plan
from tests.chaos.worker_fleet import Process, WorkerProcess, ended_at_last, until

TIDEMILL = str(Path(sys.executable).with_name("tidemill"))
HELD_LEASE_MS = 60_000
AT_ONCE_S = 10.0
TYPICALLY_S = 0.4
"""Half of the time in which a worker that waits for work asks anew by itself, and less."""
SHARING_S = 3.0


class Place:
    """A store in a folder, a client, and the processes that work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"sqlite:///{folder / 'chaos.db'}"
        self.processes: list[Process] = []
        self.mill = tidemill.open(self.url, work=False)

    def worker(self, *, lease_ms: int) -> WorkerProcess:
        worker = WorkerProcess(self.folder, f"worker-{len(self.processes)}", self.url, lease_ms=lease_ms)
        self.processes.append(worker)
        until(lambda: worker.ready, 20, "the worker is ready")
        return worker

    def stop(self, worker: WorkerProcess) -> None:
        """Stop a worker that is not amid a transaction: nobody could go on before it does."""
        worker.stop()
        while self._is_locked():
            worker.go_on()
            time.sleep(0.01)
            worker.stop()

    def _is_locked(self) -> bool:
        with closing(apsw.Connection(str(self.folder / "chaos.db"))) as connection:
            connection.set_busy_timeout(100)
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except apsw.BusyError:
                return True
        return False

    def command(self, name: str, *words: str) -> Process:
        process = Process(self.folder, name, [TIDEMILL, *words, "--store", self.url])
        self.processes.append(process)
        return process

    def start(self, function: str, **more: object) -> str:
        node = {"id": "a", "type": "python", "config": {"function": function, "args": more}}
        self.mill.publish({"name": "one", "nodes": [node]})
        return self.mill.start("one")

    def calls(self, run: str, what: str = "begin") -> list[Entry]:
        entries = read_ledger(self.folder / "effects.jsonl")
        return [entry for entry in entries if entry.what == what and entry.key.startswith(run)]

    def said(self) -> str:
        """What the processes complained about; that a loop was blocked is the machine's doing."""
        lines = [line for process in self.processes for line in process.err.read_text().splitlines()]
        return "\n".join(line for line in lines if "the event loop was blocked" not in line)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    with ended_at_last(place.processes), place.mill:
        yield place


def _events(place: Place, run: str, kind: str) -> list[dict[str, object]]:
    return [event for event in place.mill.events(run) if event["type"] == kind]


def test_leases_of_a_killed_process_are_void_at_once(place: Place) -> None:
    """Nobody waits for the minute that they would last: the system says that their holder is gone."""
    rng, took, begun = random.Random(1), [], []
    workers = [place.worker(lease_ms=HELD_LEASE_MS) for _ in range(2)]
    for _ in range(3):
        run = place.start("effect", ms=60_000)
        begun.append(until(lambda run=run: bool(place.calls(run)), 30, "somebody has begun"))  # type: ignore[misc]
        time.sleep(rng.uniform(0, 1))
        (first,) = place.calls(run)
        victim = next(worker for worker in workers if worker.pid == first.pid)
        victim.kill()
        took.append(until(lambda run=run: len(place.calls(run)) == 2, 30, "another one has begun"))  # type: ignore[misc]
        assert place.calls(run)[1].pid != victim.pid
        (lost,) = _events(place, run, "NodeFailed")
        assert lost["lost"]
        place.mill.cancel(run)
        workers.remove(victim)
        workers.append(place.worker(lease_ms=HELD_LEASE_MS))
    print("seconds until another process goes on:", ", ".join(f"{seconds:.2f}" for seconds in took))
    # To begin with a new run takes as long as the machine is busy, and going on with this one hardly longer.
    typically = TYPICALLY_S + 3 * statistics.median(begun)
    assert max(took) < AT_ONCE_S and statistics.median(took) < typically, (took, begun)
    assert place.said() == ""


def test_a_stopped_process_loses_its_leases_and_what_it_does_afterwards_does_not_count(place: Place) -> None:
    first = place.worker(lease_ms=1_000)
    run = place.start("blocking", ms=1_500)
    until(lambda: bool(place.calls(run)), 10, "the first has begun")
    place.stop(first)
    second = place.worker(lease_ms=1_000)
    until(lambda: len(place.calls(run)) == 2, 10, "the second has begun")
    assert [entry.pid for entry in place.calls(run)] == [first.pid, second.pid]
    first.go_on()
    view = place.mill.result(run, timeout_s=20)
    ends = {entry.pid: entry.nonce for entry in place.calls(run, "end")}
    assert view.status == "COMPLETED" and view.outputs["a"]["nonce"] == ends[second.pid]
    # The thread of the first one could not be cut off: it has really done it, in vain.
    until(lambda: len(place.calls(run, "end")) == 2, 10, "both have ended")
    assert [event["attempt"] for event in _events(place, run, "NodeCompleted")] == [2]
    assert view.nodes["a"]["attempts"] == 2
    assert place.said() == ""


def test_a_drained_process_gives_its_jobs_to_others_without_a_trace(place: Place) -> None:
    first = place.worker(lease_ms=HELD_LEASE_MS)
    run = place.start("effect", ms=800)
    until(lambda: bool(place.calls(run)), 10, "the first has begun")
    place.worker(lease_ms=HELD_LEASE_MS)
    first.send(signal.SIGTERM)
    assert first.wait(10) == 0
    view = place.mill.result(run, timeout_s=10)
    assert (view.status, len(place.calls(run)), view.nodes["a"]["attempts"]) == ("COMPLETED", 1, 1)


@pytest.mark.timeout(600)
def test_three_processes_and_the_command_line_share_a_file(place: Place) -> None:
    """Everybody writes at once, and nobody hears that the file is locked."""
    app = place.folder / "sharing.py"
    ledger = place.folder / "effects.jsonl"
    app.write_text(
        "from pathlib import Path\n"
        "from tests.chaos.effects import Ledger, functions as made\n"
        f"functions = made(Ledger(Path({str(ledger)!r})))\n"
    )
    for number in range(3):
        place.command(f"worker-{number}", "worker", "--app", str(app), "--concurrency", "8", "--json")
    for kind in KINDS.values():
        place.mill.publish(kind.document)
    runs, asked, ends = [], 0, time.monotonic() + SHARING_S
    waiting = (each for each in plan(1, 10_000) if not KINDS[each.kind].act)
    commands = (["runs", "list"], ["workflows", "list"], ["approvals", "list"], ["workers"], ["dlq", "list"])
    under_way: list[Process] = []
    while time.monotonic() < ends or asked < len(commands):
        planned = next(waiting)
        runs.append(place.mill.start(planned.kind, {"n": planned.number}, key=planned.key))
        if not under_way or not under_way[-1].alive:
            words = commands[asked % len(commands)]
            under_way.append(place.command(f"command-{asked}", *words, "--json"))
            asked += 1
        time.sleep(0.01)
    statuses = {place.mill.result(run, timeout_s=60).status for run in runs}
    assert statuses == {"COMPLETED", "FAILED"} and len(runs) > 100
    assert [process.wait(20) for process in under_way] == [0] * asked
    for worker in place.processes[:3]:
        worker.send(signal.SIGTERM)
        assert worker.wait(20) == 0
        assert '"finished": 0' not in worker.out.read_text(), "it did nothing"
    assert place.said() == ""
    assert "is locked" not in "".join(process.out.read_text() for process in place.processes)
