"""Handlers that misbehave, each in a real engine: the visit ends with a clear word, and everybody else goes on."""

from __future__ import annotations

import asyncio
import importlib
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures import sample_node_types as crafts
from tests.fixtures.handler_engine import ONCE, document, error, in_process, output
from tests.fixtures.worker_processes import until
from tidemill.engine.views import RunView
from tidemill.handlers.contract import CHANGED, describe_exception


def run(function: Callable[..., Any], node: dict[str, Any] | None = None, **config: Any) -> RunView:
    """Run it, and see that the same engine still works afterwards."""
    with tidemill.open("memory://", functions={"f": function, "well": lambda: "well"}) as mill:
        view = mill.run(document("f", node, **config), timeout_s=30)
        assert output(mill.run(document("well"), timeout_s=20)) == "well"
        return view


@pytest.fixture(scope="module")
def mill() -> Iterator[tidemill.Tidemill]:
    with tidemill.open("memory://") as opened:
        yield opened


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


class Nameless(BaseException):
    """Not even an `Exception`."""


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "unspeakable": (Unspeakable, "cannot be shown"),
    "base": (lambda: Nameless("nameless"), "nameless"),
    "interrupt": (lambda: KeyboardInterrupt("stop"), "stop"),
    "exit": (lambda: SystemExit("leaving"), "leaving"),
    "generator exit": (lambda: GeneratorExit("closed"), "closed"),
    "stop iteration": (lambda: StopIteration("over"), "over"),
}


def raising(make: Callable[[], BaseException], kind: str) -> Callable[..., Any]:
    def plainly() -> None:
        raise make()

    async def later() -> None:
        await asyncio.sleep(0)
        raise make()

    def bit_by_bit() -> Iterator[int]:
        yield 1
        raise make()

    return {"plain": plainly, "async": later, "generator": bit_by_bit}[kind]


@pytest.mark.parametrize("kind", ["plain", "async", "generator"])
@pytest.mark.parametrize("what", RAISED)
def test_whatever_it_raises_is_a_failure_that_can_be_stored(what: str, kind: str) -> None:
    make, said = RAISED[what]
    found = error(run(raising(make, kind), ONCE))
    # Python itself turns some of them into a RuntimeError, with the cause kept.
    assert found["code"] == "exception" and any(said in each for each in (found["message"], *found.get("causes", ())))
    assert len(found["message"]) <= 2_000 and len(found.get("causes", ())) <= 8


@pytest.mark.parametrize("isolation", ["inline", "thread"])
def test_endless_recursion_is_an_exception(isolation: str) -> None:
    found = error(run(crafts.recurses, ONCE, isolation=isolation))
    assert found["type"] == "RecursionError"


def test_endless_recursion_in_a_process(mill: tidemill.Tidemill) -> None:
    assert error(in_process(mill, "recurses", ONCE))["type"] == "RecursionError"


def test_leaving_the_program_from_a_process(mill: tidemill.Tidemill) -> None:
    assert error(in_process(mill, "exits", ONCE))["type"] == "SystemExit"
    assert "status 9" in error(in_process(mill, "leaves", ONCE, args={"status": 9}))["message"]
    assert output(in_process(mill, "add", args={"a": 1})) == 2


def test_what_is_not_json_is_refused_in_a_process(mill: tidemill.Tidemill) -> None:
    assert error(in_process(mill, "not_json", ONCE))["code"] == "output_not_json"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_many_megabytes_are_stored_and_memory_is_given_back(isolation: str, tmp_path: Path) -> None:
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as own:
        flow = document("tests.fixtures.sample_node_types:large", ONCE, isolation=isolation, args={"megabytes": 40})
        own.publish(flow)
        view = own.result(own.start("one"), timeout_s=60)
        assert view.status == "COMPLETED"
        (completed,) = [event for event in own.events(view.run_id) if event["type"] == "NodeCompleted"]
        assert completed["size"] == (40 << 20) + 2
        assert (tmp_path / "mill.db").stat().st_size < 80 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_500_000, "kilobytes"


def test_more_than_a_process_may_return(mill: tidemill.Tidemill) -> None:
    assert error(in_process(mill, "large", ONCE, args={"megabytes": 300}))["code"] == "output_too_large"


# What it does to others


def test_threads_that_it_leaves_behind_in_a_process(mill: tidemill.Tidemill) -> None:
    assert [output(in_process(mill, "leaks")) for _ in range(3)] == sorted([2, 3, 4])


def test_a_thread_that_outlives_its_call_is_not_heard_in_the_next_one(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert output(in_process(mill, "speaks_late", args={"ledger": str(ledger)})) == "ended"
    assert output(in_process(mill, "slow_words")) == "one two three"
    until(lambda: ledger.exists() and ledger.read_text() == "Cancelled", "it was not told", 5)


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
def test_megabytes_that_it_prints_are_cut_to_the_last(isolation: str) -> None:
    with tidemill.open("memory://") as own:
        flow = document("tests.fixtures.sample_node_types:prints", isolation=isolation, args={"megabytes": 8})
        view = own.run(flow, timeout_s=30)
        kept = sum(len(line.text) for line in own.logs(view.run_id))
    assert output(view) == "printed" and 1 << 18 < kept <= 3 << 20


def test_a_copy_that_outlives_its_process_does_not_hide_its_death(mill: tidemill.Tidemill) -> None:
    began = time.monotonic()
    assert "status 4" in error(in_process(mill, "dies_with_a_copy_alive", ONCE))["message"]
    assert time.monotonic() - began < 50


def test_a_copy_that_it_makes_of_its_own_process(mill: tidemill.Tidemill, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert output(in_process(mill, "forks", args={"ledger": str(ledger)})) == "original"
    copy = int(ledger.read_text().split()[1])
    until(lambda: not Path(f"/proc/{copy}").exists(), "the copy lives", 5)
    assert output(in_process(mill, "add", args={"a": 1})) == 2


def test_a_traceback_shows_no_lines_that_came_after_the_code_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "steps_that_change.py"
    old = "def outer():\n    inner()\n\n\ndef inner():\n    raise KeyError('old')\n"
    file.write_text(old)
    monkeypatch.syspath_prepend(tmp_path)
    steps = importlib.import_module(file.stem)

    def shown() -> str:
        try:
            steps.outer()
        except KeyError as error:
            return describe_exception(error).traceback
        raise AssertionError

    assert "raise KeyError('old')" in shown() and CHANGED not in shown()
    file.write_text(old.replace("old", "new one"))
    text = shown()
    assert "new one" not in text and "    inner()\n" in text, "the caller is the same as before"
    assert f"line 6, in inner\n    {CHANGED}\n" in text
    file.write_text("def outer(:\n")
    assert shown().count(CHANGED) == 2
    file.unlink()
    assert CHANGED not in shown(), "nothing is shown that could mislead"
