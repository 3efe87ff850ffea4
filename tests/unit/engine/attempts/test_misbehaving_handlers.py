"""Handlers that misbehave: they fail, and nothing else does."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import tidemill
from tidemill.engine.views import RunView
from tidemill.event_loop import run_until


def run(function: Callable[..., Any], node: dict[str, Any] | None = None, **options: Any) -> RunView:
    """Run one `python` node to its end, from a plain program."""
    document = {"name": "one", "nodes": [{"id": "a", "type": "python", "config": {"function": "f"}, **(node or {})}]}
    with tidemill.open("memory://", functions={"f": function}, **options) as mill:
        return mill.run(document, timeout_s=20)


def interrupted_in_thread() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_in_the_loop_is_a_failure_too() -> None:
    node = {"config": {"function": "f", "isolation": "inline"}, "retry": {"max_attempts": 1}}
    view = run(interrupted_in_thread, node)
    assert (view.status, view.nodes["a"]["error"]["code"]) == ("FAILED", "exception")


def leave(*_: Any) -> None:
    sys.exit(7)


async def leave_later(*_: Any) -> None:
    sys.exit(7)


@pytest.mark.parametrize("how", [leave, leave_later])
@pytest.mark.parametrize(
    ("step", "ends"), [("open", "FAILED"), ("prepare", "FAILED"), ("finish", "COMPLETED"), ("close", "COMPLETED")]
)
def test_a_step_around_the_call_that_would_stop_the_program(step: str, ends: str, how: Callable[..., Any]) -> None:
    steps: dict[str, Any] = {"open": lambda: None, step: how}
    leaver = tidemill.Handler(tidemill.NodeType(name="leaver"), lambda context: tidemill.Done(1), **steps)
    node = {"id": "a", "type": "leaver", "retry": {"max_attempts": 1}}
    with tidemill.open("memory://", handlers=[leaver]) as mill:
        view = mill.run({"name": "one", "nodes": [node]}, timeout_s=20)
    assert view.status == ends
    if ends == "FAILED":
        assert view.nodes["a"]["error"]["type"] == "SystemExit"


def test_opening_counts_within_the_time_of_the_attempt() -> None:
    async def dawdle() -> None:
        await asyncio.sleep(30)

    slow = tidemill.Handler(tidemill.NodeType(name="slow"), lambda context: tidemill.Done(1), open=dawdle)
    node = {"id": "a", "type": "slow", "timeout_seconds": 0.1, "retry": {"max_attempts": 1}}
    with tidemill.open("memory://", handlers=[slow]) as mill:
        view = mill.run({"name": "one", "nodes": [node]}, timeout_s=20)
    assert (view.status, view.nodes["a"]["error"]["code"]) == ("FAILED", "timeout")


async def leaves_a_task_that_leaves() -> str:
    task = asyncio.create_task(leave_later())
    await asyncio.wait({task})
    return "here"


async def leaves_a_callback_that_leaves() -> str:
    asyncio.get_running_loop().call_soon(leave)
    await asyncio.sleep(0.05)
    return "here"


async def stops_the_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return "here"


@pytest.mark.parametrize("function", [leaves_a_task_that_leaves, leaves_a_callback_that_leaves, stops_the_loop])
def test_what_it_leaves_in_the_loop_does_not_end_the_loop(
    function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    view = run(function)
    assert (view.status, view.nodes["a"]["output"]) == ("COMPLETED", "here")
    assert "the engine continues" in caplog.text


def test_a_loop_that_was_stopped_goes_on() -> None:
    loop, ended = asyncio.new_event_loop(), threading.Event()
    loop.call_soon(loop.stop)
    loop.call_later(0.01, ended.set)
    loop.call_later(0.02, loop.stop)
    run_until(loop, ended.is_set)
    loop.close()
    assert ended.is_set()


STUBBORN_S = 30.0
LET_GO = threading.Event()
"""How long a handler goes on that ignores its cancellation; the engine stops waiting for it much earlier."""


async def shrugs_off_a_cancellation() -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "late"
    return "never"


async def never_gives_up() -> None:
    ends = time.monotonic() + STUBBORN_S
    while time.monotonic() < ends and not LET_GO.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("function", [shrugs_off_a_cancellation, never_gives_up])
def test_a_time_out_holds_whatever_the_handler_does_with_it(function: Callable[..., Any]) -> None:
    started = time.monotonic()
    document = {
        "name": "one",
        "nodes": [
            {
                "id": "a",
                "type": "python",
                "config": {"function": "f"},
                "timeout_seconds": 0.1,
                "retry": {"max_attempts": 1},
            }
        ],
    }
    with tidemill.open("memory://", functions={"f": function}) as mill:
        view = mill.run(document, timeout_s=20)
        assert (view.status, view.nodes["a"]["error"]["code"]) == ("FAILED", "timeout")
        assert time.monotonic() - started < STUBBORN_S
        # The abandoned handler ends by itself before its loop does.
        LET_GO.set()
        time.sleep(0.5)
    LET_GO.clear()


def test_functions_that_hang_in_their_threads_cost_nobody_else_a_place() -> None:
    """They used to fill a pool: an innocent node timed out while it waited for a thread, without being called."""
    hold = threading.Event()
    called: list[str] = []
    items = {"id": "h", "type": "python", "config": {"function": "hang"}, "map": {"over": [1, 2], "tolerate": 2}}
    bound = {"timeout_seconds": 0.2, "retry": {"max_attempts": 3, "backoff_seconds": 0}}
    innocent = {"id": "z", "type": "python", "config": {"function": "work"}, "delivery": "at_most_once"}
    document = {
        "name": "crowd",
        "nodes": [{**items, **bound}, {**innocent, "dependencies": ["h"], "timeout_seconds": 2}],
    }
    functions = {"hang": lambda: hold.wait(30), "work": lambda: called.append("work")}
    try:
        with tidemill.open("memory://", functions=functions, concurrency=4) as mill:
            view = mill.run(document, timeout_s=20)
    finally:
        hold.set()
    assert (view.status, view.nodes["z"]["status"], called) == ("COMPLETED", "COMPLETED", ["work"])


def test_a_handler_cannot_wait_for_what_only_the_engine_waits_for() -> None:
    view = run(lambda: tidemill.Wait(on="loop"))
    assert (view.status, view.nodes["a"]["error"]["code"]) == ("FAILED", "answer_invalid")


def keeps(context: tidemill.NodeContext) -> None:
    assert context.checkpoint is not None
    context.checkpoint(1)


async def keeps_async(context: tidemill.NodeContext) -> None:
    assert context.checkpoint is not None
    await context.checkpoint(1)


@pytest.mark.parametrize(
    ("function", "isolation"), [("keeps", "thread"), ("keeps", "inline"), ("keeps", "process"), ("later", "thread")]
)
def test_a_compensator_has_no_checkpoints_and_is_told_so(function: str, isolation: str) -> None:
    config = {"function": function, **({} if isolation == "thread" else {"isolation": isolation})}
    nodes = [
        {"id": "a", "type": "value", "config": 1, "compensator": {"type": "python", "config": config}},
        {"id": "b", "type": "fail", "dependencies": ["a"]},
    ]
    document = {"name": "one", "nodes": nodes, "on_failure": {"compensate": "automatic"}}
    with tidemill.open("memory://", functions={"keeps": keeps, "later": keeps_async}) as mill:
        run_id = mill.run(document, timeout_s=20).run_id
        told = [event for event in mill.follow(run_id) if event["type"] == "CompensationFailed"]
    assert [event["error"]["code"] for event in told] == ["checkpoint_not_kept"]
