"""`python -m tests.chaos.worker`: a worker process that can be watched from outside, on short leases."""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import signal
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.clock import Clock
from tests.chaos.effects import Ledger, functions
from tidemill.ambient import RealAmbient
from tidemill.bootstrap import built_in_handlers, open_storage
from tidemill.engine.engine import Engine
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.stores.contract import Claim, Commit, CommitResult, Lease
from tidemill.stores.sqlite.store import SqliteStore

SIGNS = struct.Struct("<4Q")


class Signs:
    """What others may know of a process, also after its death."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIGNS.size)

    def raise_(self, number: int) -> None:
        """Count something."""
        values = list(SIGNS.unpack(self._memory[:]))
        values[number] += 1
        self._memory[:] = SIGNS.pack(*values)


READY, COMMITS_BEGUN, COMMITS_ENDED, CLAIMED = range(4)


class WatchedStore(SqliteStore):
    """The real store, which says when a commit begins and when it is over."""

    signs: Signs

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        self.signs.raise_(COMMITS_BEGUN)
        try:
            return await super().commit(commits)
        finally:
            self.signs.raise_(COMMITS_ENDED)

    async def claim(self, request: Claim) -> list[Lease]:
        leases = await super().claim(request)
        if leases:
            self.signs.raise_(CLAIMED)
        return leases


def engine_of(options: argparse.Namespace) -> Engine:
    store = WatchedStore(options.store, clock=Clock(options.clock))
    store.signs = Signs(options.signs)
    worker = WorkerOptions(
        name=f"{options.name}/{os.getpid()}",
        concurrency=options.concurrency,
        lease_ms=options.lease_ms,
        grace_ms=10_000,
        beat_ms=1_000,
        dead_after_ms=3_000,
        pid=os.getpid(),
    )
    return Engine(
        store=store,
        blobs=open_storage(f"sqlite:///{options.store}").blobs,
        ambient=RealAmbient(),
        handlers=built_in_handlers(functions(Ledger(options.ledger))),
        worker=worker,
        audit_every_ms=2_000,
    )


async def work(options: argparse.Namespace) -> None:
    """Work until SIGTERM, then drain."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engine = engine_of(options)
    async with engine:
        Signs(options.signs).raise_(READY)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--signs", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--lease-ms", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=16)
    asyncio.run(work(parser.parse_args()))


if __name__ == "__main__":
    main()
