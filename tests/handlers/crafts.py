"""Functions that tests have called in processes of their own, where they are imported from here."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import tidemill


def add(a: int, b: int = 1) -> int:
    return a + b


async def add_later(a: int) -> int:
    await asyncio.sleep(0)
    return a + 1


def number() -> int:
    return os.getpid()


def look(context: tidemill.NodeContext) -> dict[str, Any]:
    return {
        "node": context.node,
        "key": context.effect_key,
        "attempt": context.attempt,
        "inputs": context.inputs,
        "upstream": dict(context.upstream),
        "absent": context.upstream.get("nobody"),
        "secret": len(context.secrets["CRAFT"]) if "CRAFT" in context.secrets else None,
    }


async def page_by_page(context: tidemill.NodeContext) -> list[Any]:
    began = context.last_checkpoint
    assert context.checkpoint is not None
    await context.checkpoint({"page": context.attempt})
    if context.attempt == 1:
        raise ConnectionError("the line went dead")
    return [began, context.attempt]


def kept_without_await(context: tidemill.NodeContext) -> Any:
    assert context.checkpoint is not None
    context.checkpoint({"kept": context.attempt})
    if context.attempt == 1:
        raise ConnectionError("the line went dead")
    return context.last_checkpoint


def speak(context: tidemill.NodeContext) -> str:
    print("printed", "here")
    print("complained", file=sys.stderr)
    logging.getLogger("crafts").warning("warned %d", 1)
    context.log.info("noted")
    context.progress(0.5, "half")
    return "spoken"


def words() -> Iterator[str]:
    yield from ("one ", "two ", "three")


def slow_words() -> Iterator[str]:
    """Slow enough to be followed."""
    time.sleep(0.3)
    for word in words():
        yield word
        time.sleep(0.1)


async def slow_words_later() -> AsyncIterator[str]:
    await asyncio.sleep(0.3)
    for word in words():
        yield word
        await asyncio.sleep(0.1)


def file_parts() -> Iterator[Any]:
    yield tidemill.Blob(b"one", "text/plain", "1.txt")
    yield {"file": tidemill.Blob(b"two", "text/plain", "2.txt")}


async def numbers() -> AsyncIterator[int]:
    for each in range(3):
        await asyncio.sleep(0)
        yield each


def counted() -> Generator[int, None, str]:
    yield 1
    yield 2
    return "the end"


def fails(code: str) -> None:
    try:
        raise ValueError("deep down")
    except ValueError as error:
        raise tidemill.Fail(code, "it did not work", hint="try less", retryable=False) from error


def raises() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


def skips() -> tidemill.Skip:
    return tidemill.Skip("not needed")


def naps() -> tidemill.Pause:
    return tidemill.Pause("timer", for_ms=1)


def sleeps(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def notices(ledger: str) -> str:
    """Its time is up while it sleeps; it cleans up and returns what it has."""
    try:
        time.sleep(30)
    except tidemill.Cancelled:
        Path(ledger).write_text("noticed")
        return "a part of it"
    return "all of it"


async def notices_later(ledger: str) -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.to_thread(Path(ledger).write_text, "noticed")
        raise
    return "all of it"


def deaf(ledger: str) -> str:
    """Nobody reaches it but the kernel."""
    Path(ledger).write_text(str(os.getpid()))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(30)
    return "never"


def starts_another(ledger: str) -> None:
    """A program that it has started is ended with it."""
    child = subprocess.Popen(["sleep", "60"])
    Path(ledger).write_text(str(child.pid))
    time.sleep(30)


def bomb() -> int:
    """It stops where a machine would begin to suffer."""
    return len([bytearray(1 << 20) for _ in range(700)])


def late_bomb(context: tidemill.NodeContext, ledger: str) -> None:
    with open(ledger, "a") as file:
        file.write(f"{context.attempt}\n")
    bomb()


def leaves(status: int) -> None:
    os._exit(status)


def exits() -> None:
    sys.exit("enough")


def killed(number: int) -> None:
    os.kill(os.getpid(), number)


def recurses(depth: int = 0) -> int:
    return recurses(depth + 1)


def large(megabytes: int) -> str:
    return "x" * (megabytes << 20)


def prints(megabytes: int) -> str:
    for _ in range(megabytes << 6):
        print("y" * (1 << 14))
    return "printed"


def forks(ledger: str) -> str:
    """Both copies come back; only one of them is listened to."""
    child = os.fork()
    if child == 0:
        print("from the copy")
        with open(ledger, "a") as file:
            file.write(f"copy {os.getpid()}\n")
        return "copy"
    os.waitpid(child, 0)
    return "original"


def dies_with_a_copy_alive() -> None:
    """The copy lives on, and must not keep the line to the worker open."""
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os._exit(4)


def leaks() -> int:
    hold = threading.Event()
    threading.Thread(target=hold.wait, args=(5,), daemon=True).start()
    return threading.active_count()


def speaks_late(context: tidemill.NodeContext, ledger: str) -> str:
    """A thread that it leaves behind goes on showing parts of a result."""

    def go_on() -> None:
        try:
            while True:
                time.sleep(0.01)
                context.stream("late")
        except BaseException as error:
            Path(ledger).write_text(type(error).__name__)

    threading.Thread(target=go_on, daemon=True).start()
    return "ended"


def files(path: str) -> dict[str, Any]:
    Path(path).write_bytes(b"from a file")
    return {
        "bytes": tidemill.Blob(b"some bytes", "text/plain", "some.txt"),
        "more": [tidemill.Blob(Path(path)), tidemill.Blob(iter([b"bit ", b"by bit"]))],
        "plain": {"$sent-blob": 17},
    }


def not_json() -> object:
    return object()


def grows() -> int:
    """What it keeps is never let go of."""
    logging.getLogger("crafts").__dict__["hoard"] = bytearray(b"z" * (400 << 20))
    return os.getpid()
