"""`python -m tests.chaos.client`: starts the planned runs and tells them what they wait for, after every death anew."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from tests.chaos.flows import KINDS, Planned, plan
from tests.chaos.stores import storage
from tidemill.ambient import RealAmbient
from tidemill.engine.engine import Engine
from tidemill.errors import Rejected, Unavailable
from tidemill.node_types import built_in_handlers

AGAIN_S = 0.1
ASKED_AT_ONCE = 24
DONE = "done"
NOT_YET = {"approval_unknown", "run_ended"}
"""Refusals that mean that the question was not asked yet, or that nobody waits any more."""
OVER = ("COMPLETED", "FAILED", "CANCELLED")


class Acks:
    """What was acknowledged."""

    def __init__(self, path: Path) -> None:
        self.known = read_acks(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, act: str, key: str) -> None:
        os.write(self._file, f"{act} {key}\n".encode())
        os.fsync(self._file)
        self.known.add((act, key))


def read_acks(path: Path) -> set[tuple[str, str]]:
    """(act, run) of everything that was acknowledged."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(act, key) for act, _, key in (line.partition(" ") for line in lines)}


class Client:
    """Asks for everything in the plan that is not acknowledged yet."""

    def __init__(self, engine: Engine, acks: Acks) -> None:
        self._engine, self._acks = engine, acks
        self._turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def serve(self, planned: Planned, at: float) -> None:
        """See one run through, beginning at its moment."""
        await asyncio.sleep(max(0.0, at - time.time()))
        engine, key, kind = self._engine, planned.key, planned.kind
        await self._ask("start", key, lambda: engine.start(kind, {"n": planned.number}, key=key))
        later = planned.number % 5 / 10
        match KINDS[kind].act:
            case "signal":
                await asyncio.sleep(later)
                payload = {"n": planned.number}
                await self._ask("signal", key, lambda: engine.signal(key, "go", payload, signal_id=f"go-{key}"))
            case "decide":
                await asyncio.sleep(later)
                await self._ask("decide", key, lambda: engine.decide(key, "ask", planned.verb, actor="ada"))
            case "cancel":
                await asyncio.sleep(later)
                compensate = planned.number % 2 == 0
                await self._ask("cancel", key, lambda: engine.cancel(key, compensate=compensate, command_id="stop"))
            case "pause":
                await self._ask("pause", key, lambda: engine.pause(key, command_id="hold"))
                await asyncio.sleep(later)
                await self._ask("resume", key, lambda: engine.resume(key, command_id="go on"))

    async def _ask(self, act: str, key: str, ask: Callable[[], Awaitable[object]]) -> None:
        while (act, key) not in self._acks.known:
            try:
                async with self._turn:
                    await ask()
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
            except Rejected as refusal:
                if refusal.problems[0].code not in NOT_YET:
                    raise
                with suppress(Unavailable):
                    if (await self._engine.show(key)).status in OVER:
                        # Whether it may have ended before it was asked is for the judge to say.
                        return
                await asyncio.sleep(AGAIN_S)
            else:
                self._acks.add(act, key)


def engine_of(options: argparse.Namespace) -> Engine:
    """An engine that does no work, by the clock that everybody on the machine has."""
    opened = storage(options.store, options.clock)
    return Engine(
        store=opened.store,
        blobs=opened.blobs,
        ambient=RealAmbient(),
        handlers=built_in_handlers(),
    )


async def ask_all(options: argparse.Namespace) -> None:
    acks = Acks(options.acks)
    while (DONE, "") not in acks.known:
        # The store may be out of reach when it is opened.
        with suppress(Unavailable):
            await ask(options, acks)
        await asyncio.sleep(AGAIN_S)


async def ask(options: argparse.Namespace, acks: Acks) -> None:
    async with engine_of(options) as engine:
        for kind in KINDS.values():
            await engine.publish(kind.document)
        client = Client(engine, acks)
        planned = plan(options.seed, options.runs)
        moments = [options.begin + each.number * options.seconds / options.runs for each in planned]
        async with asyncio.TaskGroup() as group:
            for each, at in zip(planned, moments, strict=True):
                group.create_task(client.serve(each, at))
    acks.add(DONE, "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--acks", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--begin", type=float, required=True, help="when the first run is started, as seconds")
    parser.add_argument("--seconds", type=float, required=True, help="from the first start to the last")
    asyncio.run(ask_all(parser.parse_args()))


if __name__ == "__main__":
    main()
