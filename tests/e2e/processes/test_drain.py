"""Worker processes that are told to stop: what they finish, what they give back, and how soon others begin with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import apsw
import pytest

import tidemill
from tests.fixtures.command_line import COMMAND, environment
from tests.fixtures.worker_processes import Place, calls, until
from tidemill.cli import main

Here = tuple[Place, tidemill.Tidemill]


def start(mill: tidemill.Tidemill, document: dict[str, object]) -> str:
    published = mill.publish(document)
    return mill.start(f"{published.name}@{published.version}")


def test_what_does_not_finish_starts_elsewhere_within_a_second(here: Here) -> None:
    place, mill = here
    both = {worker.pid: worker for worker in (place.worker("--grace", "1"), place.worker("--grace", "1"))}
    run_id = start(mill, calls("work", seconds=4))
    until(lambda: len(place.notes("begin")) == 1, "nobody began")
    ((first, _),) = place.notes("begin")
    both[first].tell()
    told = time.monotonic()
    drained = both[first].hears("drained")
    assert both[first].end() == main.OK and drained["returned"] == 1
    until(lambda: len(place.notes("begin")) == 2, "nobody took over")
    ((cancelled_by, cancelled_at),) = place.notes("cancelled")
    second, began_at = place.notes("begin")[1]
    assert cancelled_by == first and second in both and second != first
    assert cancelled_at - told >= 0.9 and began_at - cancelled_at <= 10, "nobody waits for the lease"
    run = mill.result(run_id, timeout_s=20)
    assert (run.status, run.nodes["a"]["attempts"], run.nodes["a"]["output"]) == ("COMPLETED", 1, second)
    assert not [event for event in mill.events(run_id) if event["type"] in ("NodeFailed", "ResultDiscarded")]


def test_what_finishes_within_the_grace_period_is_finished(here: Here) -> None:
    place, mill = here
    worker = place.worker("--grace", "20")
    run_id = start(mill, calls("work", seconds=1.5))
    until(lambda: len(place.notes("begin")) == 1, "it did not begin")
    worker.tell()
    draining, drained = worker.hears("draining"), worker.hears("drained")
    assert worker.end() == main.OK
    assert (draining["holding"], draining["grace_ms"], drained["returned"]) == (1, 20_000, 0)
    assert place.notes("cancelled") == [] and len(place.notes("end")) == 1
    assert mill.show(run_id).nodes["a"]["output"] == worker.pid


def test_nothing_is_begun_after_the_signal(here: Here) -> None:
    place, mill = here
    worker = place.worker("--grace", "20")
    run_id = start(mill, calls("work", seconds=1.5))
    until(lambda: len(place.notes("begin")) == 1, "it did not begin")
    worker.tell()
    worker.hears("draining")
    late = start(mill, calls("work", seconds=0))
    assert worker.end() == main.OK
    assert len(place.notes("begin")) == 1
    assert (mill.show(run_id).status, mill.show(late).nodes["a"]["status"]) == ("COMPLETED", "QUEUED")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait(here: Here, number: int) -> None:
    place, mill = here
    worker = place.worker("--grace", "60")
    run_id = start(mill, calls("work", seconds=50))
    until(lambda: len(place.notes("begin")) == 1, "it did not begin")
    worker.tell(number)
    worker.hears("draining")
    time.sleep(0.3)
    assert place.notes("cancelled") == []
    told = time.monotonic()
    worker.tell(number)
    assert worker.hears("drained")["returned"] == 1
    assert worker.end() == main.OK and time.monotonic() - told <= 30
    # The drain has recorded its start, and whoever takes the job goes on with this attempt.
    assert mill.show(run_id).nodes["a"]["attempts"] == 1


def test_an_idle_worker_leaves_at_once(here: Here) -> None:
    place, mill = here
    worker = place.worker()
    time.sleep(0.5)
    assert [each.name for each in mill.workers()] == [worker.hears("ready")["worker"]]
    worker.tell()
    drained = worker.hears("drained")
    assert worker.end() == main.OK
    assert drained["at_ms"] - worker.hears("draining")["at_ms"] <= 300
    assert mill.workers() == [] and worker.err == b""


@pytest.mark.parametrize("document", [calls("block", seconds=60), calls("stubborn")], ids=["blocks", "does not listen"])
def test_a_function_that_cannot_be_stopped_keeps_no_process_alive(here: Here, document: dict[str, object]) -> None:
    place, mill = here
    worker = place.worker("--grace", "0.2")
    start(mill, document)
    until(lambda: len(place.notes("begin")) == 1, "it did not begin")
    worker.tell()
    assert worker.hears("drained")["returned"] == 1
    assert worker.end(10) == main.OK
    assert b"Traceback" not in worker.err and b"destroyed" not in worker.err


def test_what_functions_print_is_json_too(here: Here) -> None:
    place, mill = here
    worker = place.worker()
    assert mill.result(start(mill, calls("chatter")), timeout_s=20).status == "COMPLETED"
    worker.tell()
    assert worker.end() == main.OK
    assert [each["event"] for each in worker.said] == ["ready", "printed", "node_completed", "draining", "drained"]
    printed, told, run_id = *worker.said[1:3], mill.find()[0][0].run_id
    assert (printed["stream"], printed["by"], printed["message"]) == ("stdout", f"{run_id} a", "a function prints")
    assert (told["run"], told["node"], told["attempt"], told["level"]) == (run_id, "a", 1, "info")
    assert told["duration_ms"] >= 0 and told["error"] is None


def test_the_lines_of_a_worker_for_people(here: Here) -> None:
    place, mill = here
    once = {"max_attempts": 1}
    bad = {"id": "a", "type": "python", "config": {"function": "json:loads", "args": {"s": "{"}}, "retry": once}
    runs = [start(mill, calls("chatter")), start(mill, {"name": "bad", "nodes": [bad]})]
    shown: dict[str, str] = {}
    for level in ("info", "error"):
        command = [*COMMAND, "worker", "--store", place.url, "--app", "shop_code.py", "--log-level", level]
        command += ["--allow-import", "json"]
        child = subprocess.Popen(
            command, cwd=place.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for run_id in runs:
            mill.result(run_id, timeout_s=60)
        child.send_signal(signal.SIGTERM)
        shown[level], _ = child.communicate(timeout=60)
        assert child.returncode == main.OK
        runs = [start(mill, calls("chatter")), start(mill, {"name": "bad", "nodes": [bad]})]
    chatter = r"^✓ \S+ a  .*completed$"
    failed = r"^✗ \S+ a  attempt 1 · .*JSONDecodeError: .* \[exception\]$"
    assert [bool(re.search(chatter, shown[level], re.MULTILINE)) for level in ("info", "error")] == [True, False]
    for text in shown.values():
        assert re.search(failed, text, re.MULTILINE) and "  Traceback (most recent call last):" in text
        assert re.search(r"^\[\S+ a\] a function prints$", text, re.MULTILINE)


def test_a_worker_reports_what_a_rollback_undoes(here: Here) -> None:
    place, mill = here
    undoing = [
        {"id": "kept", "type": "value", "compensator": {"type": "fail", "config": {"message": "closed"}}},
        {"id": "gone", "type": "value", "dependencies": ["kept"], "compensator": {"type": "value"}},
        {"id": "last", "type": "fail", "dependencies": ["gone"]},
    ]
    worker = place.worker()
    run_id = start(mill, {"name": "trip", "on_failure": {"compensate": "automatic"}, "nodes": undoing})
    undone, failed = worker.hears("undo_completed"), worker.hears("undo_failed")
    assert (undone["run"], undone["node"], undone["attempt"], undone["error"]) == (run_id, "gone", 1, None)
    assert (failed["node"], failed["level"], failed["error"]["message"]) == ("kept", "error", "closed")
    worker.tell()
    assert worker.end() == main.OK


def test_what_a_worker_has_handed_back_is_queued(here: Here) -> None:
    place, mill = here
    worker = place.worker("--grace", "0.1")
    run_id = start(mill, calls("work", seconds=50))
    until(lambda: mill.show(run_id).nodes["a"]["status"] == "RUNNING", "its start is not recorded")
    worker.tell()
    assert worker.hears("drained")["returned"] == 1 and worker.end() == main.OK
    node = mill.show(run_id).nodes["a"]
    assert (node["status"], node["waiting_for"], "since_ms" in node) == ("QUEUED", "a worker", False)
    assert node["begun_ms"] >= mill.show(run_id).created_ms
    assert mill.why(run_id).blockers[0].status == "RUNNING", "the log says so"
    last = mill.show(run_id).events
    assert mill.show(run_id, at=last).nodes["a"]["status"] == "RUNNING", "at that event it was"


def test_a_worker_reports_what_no_handler_ended(here: Here) -> None:
    place, mill = here
    ask = {"id": "ask", "type": "human", "config": {"title": "?", "timeout_seconds": 0.2}}
    sleep = {"id": "z", "type": "sleep", "config": {"seconds": 60}}
    worker = place.worker("--log-level", "error")
    expired = start(mill, {"name": "asking", "nodes": [ask]})
    told = worker.hears("node_failed")
    assert (told["run"], told["node"], told["level"]) == (expired, "ask", "error")
    assert told["error"]["code"] == "approval_expired"
    late = start(mill, {"name": "late", "limits": {"deadline_seconds": 0.2}, "nodes": [sleep]})
    told = worker.hears("run_failed")
    assert (told["run"], told["node"], told["error"]["code"]) == (late, "", "deadline_exceeded")
    worker.tell()
    assert worker.end() == main.OK


def test_a_store_that_does_not_answer_is_told_once_and_waited_for(here: Here) -> None:
    place, mill = here
    worker = place.worker("--heartbeat", "0.3", "--dead-after", "1")
    other = apsw.Connection(place.file)
    other.set_busy_timeout(5_000)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert worker.hears("store_lost")["message"] == "it has sent no heartbeat for 1 s"
        # Its process is there, so nobody calls it dead, however long it has been silent.
        until(lambda: [each.state for each in mill.workers()] == ["silent"], "it is not silent", 5)
    finally:
        other.execute("ROLLBACK")
        other.close()
    worker.hears("store_back")
    assert mill.result(start(mill, calls("work")), timeout_s=20).status == "COMPLETED"
    worker.tell()
    assert worker.end() == main.OK
    assert [each["event"] for each in worker.said] == [
        *("ready", "store_lost", "store_back", "node_completed", "draining", "drained"),
    ]


def test_a_worker_whose_file_is_removed_ends(here: Here) -> None:
    """What it would go on to write is lost, and no waiting brings the file back."""
    place, _ = here
    worker = place.worker("--heartbeat", "0.3", "--dead-after", "1")
    os.unlink(place.file)
    assert worker.end(20) == main.REFUSED
    assert b"store_gone" in worker.err or any("store_gone" in str(said) for said in worker.said)
    assert "store_lost" not in [each.get("event") for each in worker.said], "it does not wait for it"


def test_a_killed_worker_is_dead_at_once(here: Here) -> None:
    """Long before it has been silent for too long, and before its lease is over: the system knows that it is gone."""
    place, mill = here
    worker = place.worker("--heartbeat", "60", "--dead-after", "120", "--name", "victim")
    run_id = start(mill, calls("work", seconds=50))
    until(lambda: [each.holding for each in mill.workers()] == [1], "it does not say what it holds", 6)
    (found,) = mill.workers()
    assert (found.state, found.pid, found.held[0].node) == ("alive", worker.pid, "a")
    assert found.name.startswith("victim/") and str(worker.pid) not in found.name.split("/")
    worker.tell(signal.SIGKILL)
    worker.end()
    assert [each.state for each in mill.workers()] == ["dead"]
    assert mill.why(run_id).headline == "a is queued: no worker is running"
    other = place.worker()
    until(lambda: other.pid in [pid for pid, _ in place.notes("begin")], "nobody took over")
    (lost,) = [event for event in mill.events(run_id) if event["type"] == "NodeFailed"]
    assert (lost["error"]["code"], lost["error"]["message"]) == ("worker_lost", "the worker was lost")


def test_the_work_of_one_that_stands_still_is_taken_over_when_it_is_taken_for_dead(here: Here) -> None:
    """Its process is there, so only time tells: --dead-after is how long its leases last, too."""
    place, mill = here
    frozen = place.worker("--heartbeat", "0.5", "--dead-after", "2")
    start(mill, calls("work", seconds=50))
    until(lambda: len(place.notes("begin")) == 1, "it did not begin")
    other = place.worker("--heartbeat", "0.5", "--dead-after", "2")
    frozen.tell(signal.SIGSTOP)
    try:
        until(lambda: len(place.notes("begin")) == 2, "nobody took over", 8)
    finally:
        frozen.tell(signal.SIGCONT)
    assert [pid for pid, _ in place.notes("begin")] == [frozen.pid, other.pid]


def test_a_type_that_only_one_of_them_knows(here: Here) -> None:
    place, mill = here
    special = tidemill.Handler(tidemill.NodeType(name="special"), lambda context: tidemill.Done(0))
    plain = place.worker()
    with tidemill.open(place.url, handlers=[special], work=False) as client:
        run_id = start(client, {"name": "odd", "nodes": [{"id": "b", "type": "special"}]})
    time.sleep(1.5)
    # Now and then the worker has it in hand for a moment, to find that it cannot run it.
    until(lambda: _need(mill, run_id) == "no_type", "why does not say that nobody knows the type")
    assert [each.name for each in mill.workers()] == [plain.hears("ready")["worker"]]
    knowing = place.worker(app="shop_code.py:special")
    began = time.monotonic()
    run = mill.result(run_id, timeout_s=20)
    assert (run.status, run.outputs) == ("COMPLETED", {"b": knowing.pid}) and time.monotonic() - began <= 15


def _need(mill: tidemill.Tidemill, run_id: str) -> str:
    (found,) = mill.why(run_id).blockers
    return str(getattr(found, "need", ""))


def test_one_whose_tasks_a_handler_has_cancelled_says_so_and_ends(here: Here) -> None:
    place, mill = here
    worker = place.worker()
    start(mill, calls("sweep"))
    assert worker.end() == main.BUG and b"a handler cancelled the engine's own tasks" in worker.err
