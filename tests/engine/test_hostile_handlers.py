"""Handlers that misbehave: they fail, and nothing else does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import tidemill
from tidemill.engine.views import RunView


def run(function: Callable[..., Any], node: dict[str, Any] | None = None, **options: Any) -> RunView:
    """Run one `python` node to its end, from a plain program."""
    document = {"name": "one", "nodes": [{"id": "a", "type": "python", "config": {"function": "f"}, **(node or {})}]}
    with tidemill.open("memory://", functions={"f": function}, **options) as mill:
        return mill.run(document, timeout_s=20)


async def interrupted() -> None:
    raise KeyboardInterrupt


def interrupted_in_thread() -> None:
    raise KeyboardInterrupt


async def leaves() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("function", [interrupted, interrupted_in_thread, leaves])
def test_what_would_stop_a_program_stops_only_the_node(function: Callable[..., Any]) -> None:
    view = run(function, {"retry": {"max_attempts": 1}})
    assert (view.status, view.nodes["a"]["error"]["code"]) == ("FAILED", "exception")


def test_an_interrupt_in_the_loop_is_a_failure_too() -> None:
    node = {"config": {"function": "f", "isolation": "inline"}, "retry": {"max_attempts": 1}}
    view = run(interrupted_in_thread, node)
    assert (view.status, view.nodes["a"]["error"]["code"]) == ("FAILED", "exception")


STUBBORN_S = 2.5
"""How long a handler goes on that ignores its cancellation; the engine stops waiting for it much earlier."""


async def shrugs_off_a_cancellation() -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "late"
    return "never"


async def never_gives_up() -> None:
    ends = time.monotonic() + STUBBORN_S
    while time.monotonic() < ends:
        try:
            await asyncio.sleep(max(0.01, ends - time.monotonic()))
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
        time.sleep(max(0.0, started + STUBBORN_S + 0.3 - time.monotonic()))


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
    view = run(lambda: tidemill.Pause(on="loop"))
    assert (view.status, view.nodes["a"]["error"]["code"]) == ("FAILED", "answer_invalid")


def test_a_config_that_a_handler_changes_is_its_own() -> None:
    """Every attempt and every run starts from what the document says."""

    def greedy(names: list[str]) -> list[str]:
        names.append("more")
        return names

    node = {"config": {"function": "f", "args": {"names": ["a"]}}}
    document = {"name": "one", "nodes": [{"id": "a", "type": "python", **node}]}
    with tidemill.open("memory://", functions={"f": greedy}) as mill:
        assert [mill.run(document).outputs["a"] for _ in range(3)] == [["a", "more"]] * 3
