"""The names of functions: how they are given, collected, and turned into import paths; threads for their calls."""

from __future__ import annotations

import asyncio
import threading
from code import InteractiveInterpreter
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tidemill
from tests.fixtures import sample_node_types as crafts
from tests.fixtures.handler_harness import context
from tidemill.ambient import RealAmbient
from tidemill.blobs.memory import MemoryBlobs
from tidemill.bootstrap import engine_at
from tidemill.cli.user_code import load_apps
from tidemill.engine.attempts.attempt import Attempt
from tidemill.engine.attempts.invocation import LEASE_LOST, bounded
from tidemill.engine.engine import Engine
from tidemill.engine.worker.leases import WorkerOptions
from tidemill.engine.worker.worker import LOST_APART
from tidemill.handlers.contract import Cancelled, CapabilityMissing, Done, Fail, PendingOutcome
from tidemill.handlers.python.functions import (
    CallThreads,
    add_functions,
    decorated_functions,
    function_registry,
    imported,
    path_of,
)
from tidemill.node_types import built_in_handlers
from tidemill.stores.contract import Claim
from tidemill.stores.memory import MemoryStore


@tidemill.function("loud")
def shout(text: str) -> str:
    return text.upper()


def test_a_mark_changes_nothing_about_a_function() -> None:
    assert shout("a") == "A" and shout.__name__ == "shout"


@tidemill.function
def bare(n: int) -> int:
    return n + 1


@tidemill.function()
def called(n: int) -> int:
    return n + 2


def test_a_mark_without_a_name_takes_the_name_of_the_function() -> None:
    assert (bare(1), called(1)) == (2, 3)
    assert function_registry([bare, called]) == {"bare": bare, "called": called}
    flow = {"name": "f", "nodes": [{"id": "a", "type": "python", "config": {"function": "bare", "args": {"n": 1}}}]}
    with tidemill.open("memory://", functions=[bare]) as mill:
        assert mill.run(flow).outputs == {"a": 2}


@pytest.mark.parametrize("given", [3, "", [], b"x"])
def test_a_mark_takes_a_name_or_a_function(given: Any) -> None:
    for mark in (tidemill.function, tidemill.node_type):
        with pytest.raises(TypeError, match=f"^tidemill.{mark.__name__} takes the name of "):
            mark(given)
        with pytest.raises(TypeError, match="is not a function with a name"):
            mark()(given)
        with pytest.raises(TypeError, match="is not a function with a name"):
            mark(partial(crafts.add, 1))


def test_a_node_type_without_a_name_takes_that_of_the_function() -> None:
    @tidemill.node_type
    def shout(context: tidemill.NodeContext) -> str:
        return str(context.config).upper()

    @tidemill.node_type(title="Softly")
    def whisper(context: tidemill.NodeContext) -> str:
        return str(context.config).lower()

    assert (whisper.type.name, whisper.type.title) == ("whisper", "Softly")
    nodes = [{"id": each, "type": each, "config": "Abc"} for each in ("shout", "whisper")]
    with tidemill.open("memory://", handlers=[shout, whisper]) as mill:
        assert mill.run({"name": "f", "nodes": nodes}).outputs == {"shout": "ABC", "whisper": "abc"}


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([3, "x"], "`functions` holds 3, which is not a function"),
        ({"a": 3}, "`functions` holds 3, which is not a function"),
        ({1: crafts.add}, "without a name"),
        ([[]], "which is not a function"),
        ([partial(crafts.add, 1)], "without a name: write a mapping"),
        ("crafts", "`functions` is a list of functions, or a mapping"),
        (crafts.add, "`functions` is a list of functions, or a mapping"),
    ],
)
def test_what_is_no_function_is_refused(functions: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tidemill.open("memory://", functions=functions)


def test_functions_by_name() -> None:
    assert function_registry(None) == {}
    assert function_registry({"x": shout}) == {"x": shout}
    assert function_registry([shout, crafts.add]) == {"loud": shout, "add": crafts.add}


def test_a_module_offers_what_is_marked() -> None:
    module = ModuleType("offering")
    module.__dict__.update(a=shout, b=crafts.add, c=3)
    assert decorated_functions(module) == {"loud": shout}


def test_two_functions_of_one_name_are_refused_with_their_places() -> None:
    def add(a: int) -> int:
        return a

    both = r"two functions are called add: .*sample_node_types:add \(sample_node_types.py:\d+\) and .*<locals>.add"
    with pytest.raises(tidemill.Rejected, match=both):
        function_registry([crafts.add, add])
    assert function_registry([add, add]) == {"add": add}
    module = ModuleType("offering")
    module.__dict__.update(a=tidemill.task(crafts.add), b=tidemill.task(add))
    with pytest.raises(tidemill.Rejected, match="task_name_taken"):
        decorated_functions(module)


@pytest.mark.parametrize("value", [1, "a", (1, 2), None, crafts.add])
def test_functions_of_one_code_and_equal_values_are_the_same(value: Any) -> None:
    def define(value: Any, default: Any = None) -> Any:
        def inner(n: int = default) -> Any:
            return value

        return inner

    first = {"f": define(value)}
    add_functions(first, {"f": define(value)})
    for other in (define([]), define(1.0), define(value, 3), lambda: value):
        with pytest.raises(tidemill.Rejected, match="task_name_taken"):
            add_functions(first, {"f": other}, again=True)
    mutable = {"f": define(given := [])}
    add_functions(mutable, {"f": define(given)})
    with pytest.raises(tidemill.Rejected, match="task_name_taken"):
        add_functions(mutable, {"f": define([])})


def test_a_function_that_was_defined_again_replaces_the_old_one() -> None:
    olds: dict[str, Any] = {"__name__": "cells"}
    news: dict[str, Any] = {"__name__": "cells"}
    for number, names in enumerate((olds, news)):
        InteractiveInterpreter(names).runsource(f"def f():\n    return {number}", symbol="exec")
    found = {"f": olds["f"]}
    with pytest.raises(tidemill.Rejected, match="task_name_taken"):
        add_functions(found, {"f": news["f"]})
    add_functions(found, {"f": news["f"]}, again=True)
    assert found["f"]() == 1


class Holder:
    @staticmethod
    def still() -> int:
        return 1


def test_the_import_path_of_a_function() -> None:
    assert path_of("x", crafts.add) == "tests.fixtures.sample_node_types:add"
    assert path_of("x", shout) == "tests.unit.handlers.python.test_functions:shout"
    assert path_of("x", Holder.still) == "tests.unit.handlers.python.test_functions:Holder.still"


@pytest.mark.parametrize("function", [lambda: 1, partial(crafts.add, a=1), dict[str, int]])
def test_what_has_no_import_path(function: object) -> None:
    assert callable(function)
    with pytest.raises(Fail) as refused:
        path_of("x", function)
    assert refused.value.code == "function_not_importable"


APP = """
import tidemill

@tidemill.function("loud")
def shout(text):
    return text.upper()

def plain():
    return 1
"""


@pytest.mark.parametrize(
    ("more", "names"),
    [("", {"loud"}), ("functions = [plain]", {"loud", "plain"}), ("functions = {'p': plain}", {"loud", "p"})],
)
def test_an_app_offers_what_is_marked_and_what_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, names: set[str]
) -> None:
    name = f"app_of_{len(more)}"
    (tmp_path / f"{name}.py").write_text(APP + more + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(load_apps([name]).functions) == names


SENDS = """
import tidemill

@tidemill.task
def send(n: int) -> str:
    return "NAME"

@tidemill.workflow
def NAME(n: int) -> str:
    return send(n)
"""


def test_apps_with_two_tasks_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("billing", "shipping"):
        (tmp_path / f"{name}_tasks.py").write_text(SENDS.replace("NAME", name))
    both = "from billing_tasks import billing\nfrom shipping_tasks import shipping\n"
    (tmp_path / "both_flows.py").write_text(both)
    (tmp_path / "listed_flows.py").write_text(both.splitlines()[0] + "\nfunctions = {'send': print}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(load_apps(["billing_tasks", "billing_tasks"]).functions) == {"send"}
    for names in (["both_flows"], ["listed_flows"], ["billing_tasks", "shipping_tasks"]):
        with pytest.raises(tidemill.Rejected, match="task_name_taken"):
            load_apps(names)


# Threads


async def _idents(threads: CallThreads, count: int) -> list[int]:
    found = []
    for _ in range(count):
        done = await threads.call("f", lambda _: threading.get_ident(), context())
        assert isinstance(done, Done)
        found.append(done.value)
    return found


async def test_quick_calls_share_a_thread() -> None:
    threads = CallThreads()
    idents = await _idents(threads, 50)
    # A call that the machine delays may get a thread of its own.
    assert len(set(idents)) < 25 and threading.get_ident() not in idents
    await threads.close()


async def test_calls_do_not_wait_behind_one_that_blocks() -> None:
    threads, release = CallThreads(), threading.Event()
    stuck = [asyncio.ensure_future(threads.call("stuck", lambda _: release.wait(), context())) for _ in range(3)]
    together = await asyncio.gather(*(threads.call("f", lambda _: 1, context()) for _ in range(20)))
    assert together == [Done(1)] * 20 and not any(task.done() for task in stuck)
    release.set()
    assert await asyncio.gather(*stuck) == [Done(True)] * 3
    await threads.close()


async def test_the_thread_ends_with_the_handler() -> None:
    threads = CallThreads()
    await _idents(threads, 1)
    thread = threads._thread
    assert thread is not None and thread.daemon
    await threads.close()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
    # What still comes is called all the same.
    assert len(await _idents(threads, 2)) == 2


async def test_every_outcome_reaches_its_caller() -> None:
    threads = CallThreads()

    def fails(number: int) -> int:
        if number % 3 == 0:
            raise ValueError(number)
        return number

    calls = [threads.call("f", lambda _, n=n: fails(n), context()) for n in range(300)]
    for number, outcome in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
        if number % 3:
            assert outcome == Done(number)
        else:
            assert isinstance(outcome, ValueError) and outcome.args == (number,)
    await threads.close()


@pytest.mark.parametrize("bound", [{}, {"timeout_seconds": 60}])
async def test_a_call_whose_run_is_cancelled_gives_its_slot_back(bound: dict[str, int]) -> None:
    """The function learns of it at its next heartbeat or checkpoint; until then it occupies only its thread."""
    begun, go, learnt = threading.Event(), threading.Event(), []

    def endless(context: tidemill.NodeContext) -> None:
        begun.set()
        assert go.wait(60)
        for act in (context.heartbeat, lambda: context.checkpoint(1)):  # type: ignore[misc]
            with pytest.raises(Cancelled):
                act()
            learnt.append(act)

    call = {"id": "a", "type": "python", "config": {"function": "endless"}, **bound}
    async with engine_at("memory://", functions={"endless": endless}, concurrency=1, beat_ms=200) as engine:
        await engine.publish({"name": "endless", "nodes": [call]})
        await engine.publish({"name": "next", "nodes": [{"id": "a", "type": "value", "config": {"value": 1}}]})
        run = await engine.start("endless")
        await asyncio.to_thread(begun.wait, 60)
        await engine.cancel(run)
        assert (await engine.result(await engine.start("next"))).status == "COMPLETED"
        assert (await engine.result(run)).status == "CANCELLED"
        go.set()
        while len(learnt) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_a_function_returns_may_be_awaited() -> None:
    threads = CallThreads()

    async def later(error: str) -> str:
        await asyncio.sleep(0)
        if error:
            raise ValueError(error)
        return "done"

    assert await threads.call("f", lambda _: later(""), context()) == Done("done")
    with pytest.raises(ValueError, match="no"):
        await threads.call("f", lambda _: later("no"), context())
    waiting = asyncio.Event()
    call = threads.call("f", lambda _: waiting.wait(), context())
    while call.outcome is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await threads.close()


class Proxy:
    """As the proxies of web frameworks: its class is that of a value of the context in which the call runs."""

    CURRENT: ContextVar[dict[str, int]] = ContextVar("current")

    @property
    def __class__(self) -> type:
        return type(self.CURRENT.get())

    @__class__.setter
    def __class__(self, given: type) -> None: ...


async def test_a_value_is_looked_at_in_the_context_of_its_call() -> None:
    threads = CallThreads()

    def proxy(given: Any) -> Proxy:
        Proxy.CURRENT.set({"a": 1})
        return Proxy()

    first, second = threads.call("f", proxy, context()), threads.call("g", lambda _: 1, context())
    assert type((await first).value) is Proxy  # type: ignore[union-attr]
    with pytest.raises(LookupError):
        await threads.call("h", lambda _: Proxy(), context())
    assert await second == Done(1)
    await threads.close()


async def lose_workers(store: MemoryStore, times: int) -> None:
    for _ in range(times):
        (lease,) = await store.claim(Claim(queues=("default",), limit=1, lease_ms=20, owner="lost"))
        while store.now_ms() < lease.expires_at_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("bound", [{}, {"timeout_seconds": 60}])
async def test_a_function_whose_workers_were_lost_is_called_again(bound: dict[str, int]) -> None:
    """Such an attempt runs apart, in a task from its beginning."""
    store, blobs, called = MemoryStore(), MemoryBlobs(), []

    def work(context: tidemill.NodeContext) -> str:
        called.append(context.attempt)
        return "done"

    handlers = built_in_handlers({"work": work})
    call = {"id": "a", "type": "python", "config": {"function": "work"}, **bound}
    async with Engine(store=store, blobs=blobs, ambient=RealAmbient(), handlers=handlers) as client:
        await client.publish({"name": "t", "nodes": [call]})
        run = await client.start("t")
        await lose_workers(store, LOST_APART)
        options = WorkerOptions(name="w")
        async with Engine(store=store, blobs=blobs, ambient=RealAmbient(), handlers=handlers, worker=options) as worker:
            assert (await worker.result(run)).status == "COMPLETED"
    assert called == [LOST_APART + 1]


async def test_an_exit_in_the_moment_in_which_the_lease_is_lost_does_not_reach_the_loop() -> None:
    pending = PendingOutcome()
    waiting = asyncio.create_task(bounded(pending, 5_000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pending.set_exception(SystemExit(9))
    waiting.cancel(LEASE_LOST)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_job_that_is_cancelled_before_its_task_begins_cancels_its_call() -> None:
    pending = PendingOutcome()
    entering = Attempt.__new__(Attempt)._enter_task(pending)
    entering.send(None)
    with pytest.raises(asyncio.CancelledError):
        entering.throw(asyncio.CancelledError)
    assert pending.cancelled()


# Imports that fail


def test_what_cannot_be_imported_says_where_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "with_a_slip.py").write_text("x = 1\ndef f(:\n")
    for name, message, hint in (
        ("with_a_slip:f", "with_a_slip.py:2: invalid syntax", "correct that line"),
        ("not_there_at_all:f", "No module named 'not_there_at_all'", "beside the document"),
        ("colorsys:f", "has no attribute 'f'", "colorsys.py: rename yours"),
        ("json.dumps", "no function json.dumps is registered", "write json:dumps"),
        ("score", "no function score is registered", "write module:function"),
    ):
        with pytest.raises(CapabilityMissing) as refused:
            imported(name)
        assert message in str(refused.value) and hint in refused.value.hint
