"""`python -m tests.chaos.worker`: a worker process that can be watched from outside, on short leases."""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import signal
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.effects import Ledger, functions
from tests.chaos.stores import storage
from tidemill.ambient import RealAmbient
from tidemill.engine.engine import Engine
from tidemill.engine.worker.leases import WorkerOptions
from tidemill.errors import Unavailable
from tidemill.node_types import built_in_handlers
from tidemill.stores.contract import Claim, Commit, CommitResult, Lease

SIGNS = struct.Struct("<5Q")
AGAIN_S = 0.2


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


READY, COMMITS_BEGUN, COMMITS_ENDED, CLAIMED, COMMITTED = range(5)


def watch(store: Any, signs: Signs) -> None:
    """Let the real store say when a commit begins and when it is over."""
    commit, claim = store.commit, store.claim

    async def watched_commit(commits: Sequence[Commit]) -> list[CommitResult]:
        signs.raise_(COMMITS_BEGUN)
        try:
            results: list[CommitResult] = await commit(commits)
        finally:
            signs.raise_(COMMITS_ENDED)
        signs.raise_(COMMITTED)
        return results

    async def watched_claim(request: Claim) -> list[Lease]:
        leases: list[Lease] = await claim(request)
        if leases:
            signs.raise_(CLAIMED)
        return leases

    store.commit, store.claim = watched_commit, watched_claim


def engine_of(options: argparse.Namespace) -> Engine:
    opened = storage(options.store, options.clock)
    watch(opened.store, Signs(options.signs))
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
        store=opened.store,
        blobs=opened.blobs,
        ambient=RealAmbient(),
        handlers=built_in_handlers(functions(Ledger(options.ledger))),
        worker=worker,
        audit_every_ms=2_000,
    )


async def work(options: argparse.Namespace) -> None:
    """Work until SIGTERM, then drain."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    while not stop.is_set():
        # As the supervisor of a fleet does: a worker that finds no server ends, and is started again.
        with suppress(Unavailable):
            async with engine_of(options):
                Signs(options.signs).raise_(READY)
                await stop.wait()
            return
        await asyncio.sleep(AGAIN_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--signs", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--lease-ms", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=16)
    asyncio.run(work(parser.parse_args()))


if __name__ == "__main__":
    main()
