"""An operator of a mill: an engine without a worker that looks after the store, and everything that the store lists."""

from __future__ import annotations

import random
from typing import Any

from tests.engine.kit import TENANT, Mill, Process
from tests.kernel.authoring import document, node
from tests.sim.loop import SimAmbient
from tidemill.blobs.archive import Archive, MemoryArchive
from tidemill.bootstrap import built_in_handlers
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import APPROVAL, DAY_MS, DEAD_LETTER, RUN
from tidemill.engine.maintenance.reindex import all_rows
from tidemill.engine.versions import WORKFLOW
from tidemill.stores.contract import Row, Store

KINDS = (RUN, APPROVAL, DEAD_LETTER, WORKFLOW)
FAILS = node("b", "a", type="fail", config={"message": "no"})
LARGE = "x" * 300_000
ASKS = node("b", "a", type="human", config={"title": "Go on?", "approvers": ["user:ada"]})


def operator(mill: Mill, *, archive: Archive | None = None, store: Store | None = None, **options: Any) -> Engine:
    """An engine that only looks after the store."""
    return Engine(
        store=store or mill.store,
        blobs=mill.blobs,
        ambient=SimAmbient(mill.loop, random.Random("operator"), "operator"),
        handlers=built_in_handlers(),
        archive=archive or MemoryArchive(),
        **options,
    )


async def shown(mill: Mill) -> dict[tuple[str, str], Row]:
    """Every row of the kinds that follow from logs."""
    return {(kind, row.key): row for kind in KINDS async for row in all_rows(mill.store, TENANT, kind)}


async def stored(mill: Mill) -> set[str]:
    """The runs that are in the store."""
    return {stream.key for stream in await mill.store.streams(RUN)}


async def listed(mill: Mill, terms: set[str]) -> dict[str, list[str]]:
    """What is found by every term, in order."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        for term in sorted(terms):
            page = await mill.store.find(TENANT, kind, [term], limit=10_000)
            found[f"{kind} {term}"] = [row.key for row in page.rows]
            assert len(page.rows) == await mill.store.count(TENANT, kind, [term])
    return found


async def history(worker: Process) -> list[str]:
    """A few runs of every sort: completed, failed, waiting for somebody, decided, forked."""
    fine = await worker.run(document(node("a")))
    failed = await worker.run(document(node("a"), FAILS))
    asking = await worker.start(document(node("a"), ASKS))
    decided = await worker.start(document(node("a"), ASKS), labels={"team": "x"})
    await worker.ambient.sleep(1_000)
    await worker.engine.decide(decided, "b", "approve", actor="ada")
    await worker.end(decided)
    fork = await worker.engine.fork(failed.run_id)
    await worker.end(fork)
    await worker.engine.discard(failed.run_id, "b", reason="known")
    return [fine.run_id, failed.run_id, asking, decided, fork]


def pass_days(mill: Mill, days: float) -> None:
    """Let days go by on the store's clock, which is the one that counts."""
    before = mill.store._clock
    mill.store._clock = lambda: before() + int(days * DAY_MS)
