"""A loop in a thread, calls into it, and coroutines that begin without a task."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from tidemill.event_loop import LoopThread, begin_at_once

WHO = ContextVar("who", default="nobody")
WAIT_S = 60.0


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@pytest.fixture(params=["eventfd", "pipe"] if hasattr(os, "eventfd") else ["pipe"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    opened = LoopThread()
    yield opened
    opened.stop()


def test_calls_of_many_threads_are_answered(loop: LoopThread) -> None:
    found: list[int] = []

    def ask(number: int) -> None:
        found.extend(loop.call(answer(number * 1_000 + turn)) for turn in range(200))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    assert sorted(found) == [number * 1_000 + turn for number in range(8) for turn in range(200)]


def test_a_call_sees_the_variables_of_its_caller(loop: LoopThread) -> None:
    async def who() -> str:
        return WHO.get()

    WHO.set("ada")
    assert loop.call(who()) == "ada"
    assert copy_context().run(lambda: (WHO.set("bob"), loop.call(who()))[1]) == "bob"


def test_an_error_reaches_the_caller(loop: LoopThread) -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        loop.call(fail())


def test_a_call_after_the_end_is_refused(loop: LoopThread) -> None:
    loop.stop()
    with pytest.raises(RuntimeError, match="has ended"):
        loop.call(answer(1))
    loop.stop = lambda: None  # type: ignore[method-assign]


def test_calls_that_meet_the_end_are_answered_or_refused() -> None:
    """None of them hangs, whenever the loop ends."""
    for _ in range(30):
        opened, outcomes = LoopThread(), list[str]()

        def ask(opened: LoopThread = opened, outcomes: list[str] = outcomes) -> None:
            try:
                while True:
                    opened.call(answer(1))
            except BaseException as error:
                outcomes.append(type(error).__name__)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for each in threads:
            each.start()
        opened.stop()
        for each in threads:
            each.join(WAIT_S)
        assert len(outcomes) == 4 and set(outcomes) <= {"RuntimeError", "CancelledError"}


def test_a_call_whose_caller_has_left_is_not_begun(loop: LoopThread) -> None:
    begun: list[str] = []
    blocked, left = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        left.wait(WAIT_S)

    async def begin() -> None:
        begun.append("begun")

    first = threading.Thread(target=lambda: loop.call(block()))
    first.start()
    assert blocked.wait(WAIT_S)

    def leave() -> None:
        with pytest.raises(CancelledError):
            loop.call(begin())

    second = threading.Thread(target=leave)
    second.start()
    while not loop._queue:
        pass
    # What Ctrl-C in the caller's thread does.
    loop._queue[0].cancel()
    left.set()
    first.join(WAIT_S)
    second.join(WAIT_S)
    assert loop.call(answer(2)) == 2 and begun == []


def test_a_loop_leaves_no_file_open() -> None:
    def once() -> None:
        opened = LoopThread()
        assert opened.call(answer(1)) == 1
        opened.stop()

    once()
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        once()
    assert len(os.listdir("/dev/fd")) <= before


# Coroutines begun at once


async def test_what_never_suspends_needs_no_task() -> None:
    done: list[int] = []
    ready = asyncio.get_running_loop().create_future()
    ready.set_result(1)

    async def work() -> None:
        done.append(await ready)

    assert begin_at_once(work(), copy_context(), "work") is None
    assert done == [1]


async def test_what_suspends_goes_on_in_a_task_of_its_own() -> None:
    future = asyncio.get_running_loop().create_future()
    done: list[Any] = []

    async def work() -> None:
        done.append((await future, WHO.get()))
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await asyncio.sleep(0.001)
        done.append("end")

    context = copy_context()
    context.run(WHO.set, "engine")
    task = begin_at_once(work(), context, "work")
    assert task is not None and done == []
    future.set_result("later")
    await task
    assert done == [("later", "engine"), "end"]


async def test_errors_and_cancellations_reach_the_coroutine() -> None:
    future, seen = asyncio.get_running_loop().create_future(), []

    async def work() -> None:
        try:
            await future
        except ValueError as error:
            seen.append(str(error))
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            seen.append("closed")

    task = begin_at_once(work(), copy_context(), "work")
    assert task is not None
    future.set_exception(ValueError("refused"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["refused", "closed"]


async def test_an_error_before_the_first_wait_is_raised_at_once() -> None:
    async def work() -> None:
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        begin_at_once(work(), copy_context(), "work")
