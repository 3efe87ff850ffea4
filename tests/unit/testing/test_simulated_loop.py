"""The loop whose clock moves only when nothing else can happen."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tidemill.testing.simulated_loop import SimLoop

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    loop.end()


def test_a_day_passes_when_nothing_else_can_happen(loop: SimLoop) -> None:
    began, real = loop.now, time.monotonic()
    loop.run_until_complete(asyncio.sleep(86_400))
    assert loop.now - began == pytest.approx(86_400)
    assert time.monotonic() - real < 60


def test_timers_are_due_after_a_thousand_years(loop: SimLoop) -> None:
    loop.now = 3.2e10
    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(0.5), 2))
    assert loop.now < 3.2e10 + 1


def test_waiting_for_nothing_is_a_deadlock(loop: SimLoop) -> None:
    with pytest.raises(RuntimeError, match="deadlock"):
        loop.run_until_complete(asyncio.Event().wait())


def test_blocking_functions_run_one_at_a_time_and_in_order(loop: SimLoop) -> None:
    seen: list[str] = []

    def slow(name: str) -> str:
        seen.append(f"{name} begins")
        time.sleep(0.01)
        seen.append(f"{name} ends")
        return name

    async def both() -> list[str]:
        calls = [loop.run_in_thread(lambda ask, name=name: slow(name)) for name in ("a", "b")]
        return await asyncio.gather(*calls)

    began = loop.now
    assert loop.run_until_complete(both()) == ["a", "b"]
    assert seen == ["a begins", "a ends", "b begins", "b ends"]
    assert loop.now == began


def test_a_function_in_a_thread_asks_the_loop(loop: SimLoop) -> None:
    async def answer() -> str:
        await asyncio.sleep(5)
        return threading.current_thread().name

    def ask_twice(ask: Any) -> list[str]:
        return [ask(answer()), ask(answer()), threading.current_thread().name]

    async def call() -> Any:
        return await loop.run_in_thread(ask_twice)

    began, here = loop.now, threading.current_thread().name
    assert loop.run_until_complete(call()) == [here, here, "tidemill-simulated"]
    assert loop.now - began == pytest.approx(10)


@pytest.mark.parametrize("raised", [ValueError("no"), StopIteration(3), SystemExit(3)])
def test_what_a_function_raises_reaches_its_caller(loop: SimLoop, raised: BaseException) -> None:
    def fails(ask: Any) -> None:
        raise raised

    async def call() -> str:
        try:
            await loop.run_in_thread(fails)
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
        return ""

    assert str(raised) in loop.run_until_complete(call())


def test_sockets_are_real_while_a_handler_waits_for_them(loop: SimLoop) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    sender = threading.Timer(0.05, lambda: there.send(b"hello"))

    async def receive() -> bytes:
        sender.start()
        with loop.call("a"):
            async with asyncio.timeout(3_600):
                return await loop.sock_recv(here, 10)

    began = loop.now
    with here, there:
        assert loop.run_until_complete(receive()) == b"hello"
    assert loop.now - began < 3_000
