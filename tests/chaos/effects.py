"""What handlers really did, written down outside the engine: one line per beginning and end of an effect."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tidemill.handlers.contract import Fail, NodeContext


class Entry(NamedTuple):
    """A line of the ledger."""

    at_ns: int
    """By the machine's clock, also in processes whose store has another one."""
    pid: int
    what: str
    """`begin` or `end`."""
    key: str
    attempt: int
    nonce: str
    """Which call it was."""


class Ledger:
    """The file, as handlers write it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def begin(self, context: NodeContext) -> str:
        """Something is about to happen; answers the name of this call."""
        nonce = uuid.uuid4().hex
        self._write("begin", context, nonce)
        return nonce

    def end(self, context: NodeContext, nonce: str) -> None:
        """It has happened."""
        self._write("end", context, nonce)

    def _write(self, what: str, context: NodeContext, nonce: str) -> None:
        entry = Entry(time.time_ns(), os.getpid(), what, context.effect_key, context.attempt, nonce)
        os.write(self._file, json.dumps(entry).encode() + b"\n")


def read_ledger(path: Path) -> list[Entry]:
    """Every line, in the order of writing."""
    return [Entry(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def begun(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Calls by effect key."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.what == "begin":
            found[entry.key].append(entry)
    return found


def functions(ledger: Ledger) -> dict[str, Callable[..., Any]]:
    """What nodes of type `python` call."""

    async def effect(context: NodeContext, value: Any = None, ms: float = 0, weight: int = 0) -> dict[str, Any]:
        """Do something that takes a while, and tell which call did it."""
        nonce = ledger.begin(context)
        await asyncio.sleep(ms / 1000)
        ledger.end(context, nonce)
        return {"nonce": nonce, "value": value, **({"weight": "x" * weight} if weight else {})}

    def blocking(context: NodeContext, value: Any = None, ms: float = 0) -> dict[str, Any]:
        """The same in a thread, which nobody can interrupt."""
        nonce = ledger.begin(context)
        time.sleep(ms / 1000)
        ledger.end(context, nonce)
        return {"nonce": nonce, "value": value}

    async def flaky(context: NodeContext, failures: int, value: Any = None) -> dict[str, Any]:
        """Fail the first attempts, after having done something."""
        nonce = ledger.begin(context)
        if context.attempt <= failures:
            raise Fail("flaky", f"attempt {context.attempt} fails", retryable=True)
        ledger.end(context, nonce)
        return {"nonce": nonce, "value": value}

    async def steps(context: NodeContext, count: int, ms: float = 0) -> dict[str, Any]:
        """Go on where the last attempt left off."""
        nonce = ledger.begin(context)
        assert context.checkpoint is not None
        for done in range(context.last_checkpoint or 0, count):
            await asyncio.sleep(ms / 1000)
            await context.checkpoint(done + 1)
        ledger.end(context, nonce)
        return {"nonce": nonce, "value": count}

    return {"effect": effect, "blocking": blocking, "flaky": flaky, "steps": steps}
