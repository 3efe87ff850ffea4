"""Functions in processes of their own: what they are given and may say, what ends them, and what is left of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures import sample_node_types as crafts
from tests.fixtures.grants import give_secrets
from tests.fixtures.handler_engine import ONCE, document, error, in_process, output
from tests.fixtures.handler_harness import called
from tests.fixtures.worker_processes import alive, until
from tidemill.handlers.contract import CapabilityMissing, Fail
from tidemill.handlers.python.node import python_handler
from tidemill.handlers.python.pool import PythonProcesses


@pytest.fixture(scope="module")
def mill() -> Iterator[tidemill.Tidemill]:
    with tidemill.open("memory://") as opened:
        yield opened


def test_a_function_runs_elsewhere_and_the_process_stays_warm(mill: tidemill.Tidemill) -> None:
    pids = {output(in_process(mill, "number")) for _ in range(5)}
    assert len(pids) == 1 and pids != {os.getpid()}


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("add", {"a": 2}, 3),
        ("add_later", {"a": 2}, 3),
        ("words", {}, "one two three"),
        ("numbers", {}, [0, 1, 2]),
        ("counted", {}, "the end"),
        ("naps", {}, None),
    ],
)
def test_any_kind_of_function(mill: tidemill.Tidemill, name: str, args: dict[str, Any], expected: Any) -> None:
    assert output(in_process(mill, name, args=args)) == expected


def test_files_may_be_parts_of_a_result(mill: tidemill.Tidemill) -> None:
    first, second = output(in_process(mill, "file_parts"))
    assert (first["name"], first["size"], second["file"]["name"]) == ("1.txt", 3, "2.txt")


def test_an_outcome_that_is_no_value(mill: tidemill.Tidemill) -> None:
    view = in_process(mill, "skips")
    assert view.nodes["a"]["status"] == "SKIPPED"


def test_what_the_context_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    give_secrets(monkeypatch, CRAFT="0123456789")
    config = {"function": "tests.fixtures.sample_node_types:look", "isolation": "process"}
    before = {"id": "before", "type": "value", "config": {"x": 1}}
    flow = {
        "name": "two",
        "nodes": [before, {"id": "a", "type": "python", "dependencies": ["before"], "config": config}],
    }
    with tidemill.open("memory://") as mill:
        view = mill.run(flow, {"who": "Ada"}, timeout_s=20)
    assert output(view) == {
        "node": "a",
        "key": f"{view.run_id}/a/1/-1",
        "attempt": 1,
        "inputs": {"who": "Ada"},
        "upstream": {"before": {"x": 1}},
        "absent": None,
        "secret": 10,
    }


@pytest.mark.parametrize(
    ("name", "expected"), [("page_by_page", [{"page": 1}, 2]), ("kept_without_await", {"kept": 1})]
)
def test_a_checkpoint_crosses_the_line(mill: tidemill.Tidemill, name: str, expected: Any) -> None:
    assert output(in_process(mill, name, {"retry": {"backoff_seconds": 0}})) == expected


def test_what_it_says_is_kept_with_the_attempt() -> None:
    with tidemill.open("memory://") as own:
        view = in_process(own, "speak")
        assert output(view) == "spoken"
        heard = {(line.source, line.text.strip()) for line in own.logs(view.run_id)}
    expected = {("stdout", "printed here"), ("stderr", "complained"), ("warning", "warned 1"), ("info", "noted")}
    assert expected <= heard


def test_files_cross_the_line(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    found = output(in_process(mill, "files", args={"path": str(tmp_path / "drawing.svg")}))
    assert (found["bytes"]["size"], found["bytes"]["media_type"], found["bytes"]["name"]) == (
        10,
        "text/plain",
        "some.txt",
    )
    assert [each["size"] for each in found["more"]] == [11, 10] and found["more"][0]["name"] == "drawing.svg"
    assert found["plain"] == {"$sent-blob": 17}


def test_failures_keep_their_causes(mill: tidemill.Tidemill) -> None:
    failed = error(in_process(mill, "fails", args={"code": "odd"}))
    assert (failed["code"], failed["message"], failed["hint"]) == ("odd", "it did not work", "try less")
    assert failed["causes"] == ["ValueError: deep down"]
    view = in_process(mill, "raises", ONCE)
    raised = error(view)
    assert (raised["code"], raised["type"], raised["message"]) == ("exception", "ValueError", "outer")
    assert raised["causes"] == ["KeyError: 'inner'"]
    (failure,) = [event for event in mill.events(view.run_id) if event["type"] == "NodeFailed"]
    assert "in raises" in failure["error"]["traceback"]


def test_a_time_limit_can_be_noticed_and_what_there_is_returned(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    began = time.monotonic()
    view = in_process(mill, "notices", args={"ledger": str(ledger)}, limits={"time_seconds": 0.2})
    assert (output(view), ledger.read_text()) == ("a part of it", "noticed")
    assert time.monotonic() - began < 50


def test_an_async_function_is_cancelled_at_its_time_limit(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    limits = {"time_seconds": 0.2}
    failed = error(in_process(mill, "notices_later", ONCE, args={"ledger": str(ledger)}, limits=limits))
    assert (failed["code"], ledger.read_text()) == ("timeout", "noticed")


def test_who_does_not_listen_is_killed(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    began = time.monotonic()
    failed = error(in_process(mill, "deaf", ONCE, args={"ledger": str(ledger)}, limits={"time_seconds": 0.2}))
    assert failed["code"] == "timeout" and 2 <= time.monotonic() - began < 50
    until(lambda: not alive(int(ledger.read_text())), "it lives", 5)


def test_the_attempts_own_time_out_ends_it_too(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert output(in_process(mill, "number")), "a process is warm"
    failed = error(in_process(mill, "deaf", {**ONCE, "timeout_seconds": 1}, args={"ledger": str(ledger)}))
    assert failed["code"] == "timeout"
    until(lambda: not alive(int(ledger.read_text())), "it lives", 5)


def test_a_cancelled_run_ends_its_process_and_what_that_has_started(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    mill.publish(
        document("tests.fixtures.sample_node_types:starts_another", isolation="process", args={"ledger": str(ledger)})
    )
    run = mill.start("one")
    until(lambda: ledger.exists() and ledger.read_text() != "", "it did not begin")
    mill.cancel(run, reason="enough")
    until(lambda: not alive(int(ledger.read_text())), "it lives", 15)
    assert mill.show(run).status == "CANCELLED"


def test_memory_is_bounded(mill: tidemill.Tidemill) -> None:
    failed = error(in_process(mill, "bomb", ONCE, limits={"memory_mb": 200}))
    assert failed["code"] == "out_of_memory" and "200 MB" in failed["message"]
    assert output(in_process(mill, "add", args={"a": 1})) == 2


def test_out_of_memory_is_tried_again_twice_at_most(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    node = {"retry": {"max_attempts": 9, "backoff_seconds": 0}}
    failed = error(in_process(mill, "late_bomb", node, args={"ledger": str(ledger)}, limits={"memory_mb": 200}))
    assert failed["code"] == "out_of_memory"
    assert ledger.read_text().split() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("name", "args", "how"),
    [
        ("leaves", {"status": 3}, "status 3"),
        ("leaves", {"status": 0}, "status 0"),
        ("killed", {"number": int(signal.SIGSEGV)}, "SIGSEGV"),
        ("killed", {"number": int(signal.SIGKILL)}, "SIGKILL"),
    ],
)
def test_a_process_that_dies_is_an_attempt_that_failed(
    mill: tidemill.Tidemill, name: str, args: dict[str, Any], how: str
) -> None:
    view = in_process(mill, name, {"retry": {"max_attempts": 2, "backoff_seconds": 0}}, args=args)
    failed = error(view)
    assert failed["code"] == "process_died" and how in failed["message"]
    assert view.nodes["a"]["attempts"] == 2


def test_a_process_that_died_while_idle_is_replaced(mill: tidemill.Tidemill) -> None:
    pid = output(in_process(mill, "number"))
    os.kill(pid, signal.SIGKILL)
    until(lambda: _is_dead(pid), "it lives", 5)
    view = in_process(mill, "number")
    assert output(view) != pid and view.nodes["a"]["attempts"] == 1


def _is_dead(pid: int) -> bool:
    """Whether it has ended; its parent may not have noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_process_that_has_grown_is_replaced(mill: tidemill.Tidemill) -> None:
    in_process(mill, "number")
    grown = output(in_process(mill, "grows"))
    assert output(in_process(mill, "number")) != grown


def test_no_process_outlives_its_worker() -> None:
    with tidemill.open("memory://") as own:
        pid = output(in_process(own, "number"))
        assert alive(pid)
    until(lambda: not alive(pid), "it lives", 5)


def test_a_registered_function_that_can_be_imported() -> None:
    with tidemill.open("memory://", functions={"plus": crafts.add}) as own:
        assert output(own.run(document("plus", isolation="process", args={"a": 1}), timeout_s=20)) == 2


async def test_a_function_that_another_process_cannot_find() -> None:
    handler = python_handler({"here": lambda: 1})
    with pytest.raises(Fail) as failed:
        await called(handler, {"function": "here", "isolation": "process"})
    assert failed.value.code == "function_not_importable" and "module" in failed.value.hint


async def test_a_function_that_is_not_there_is_lacking() -> None:
    processes = PythonProcesses()
    config = {"function": "tests.fixtures.sample_node_types:nobody", "isolation": "process"}
    try:
        with pytest.raises(CapabilityMissing) as lacking:
            await called(python_handler({}, processes=processes), config)
        assert lacking.value.code == "function_unknown"
    finally:
        await processes.close()


def test_many_at_a_time_each_get_their_own_answer(mill: tidemill.Tidemill) -> None:
    config = {"function": "tests.fixtures.sample_node_types:add", "isolation": "process", "args": {"a": "{{ item }}"}}
    node = {"id": "a", "type": "python", "config": config, "map": {"over": list(range(50))}}
    assert output(mill.run({"name": "many", "nodes": [node]}, timeout_s=40)) == list(range(1, 51))


def test_threads_of_this_process_are_not_used_up(mill: tidemill.Tidemill) -> None:
    before = threading.active_count()
    for _ in range(10):
        in_process(mill, "number")
    assert threading.active_count() <= before + 2
