"""What a handler came to is kept while it cannot be stored: the handler is not called again for that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.door import refuse
from tests.engine.kit import Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import document
from tidemill.errors import Unavailable
from tidemill.handlers.contract import Blob

LONG = "x" * 100_000


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@simulated
async def test_a_store_that_is_out_of_reach_for_long(mill: Mill, delivery: str) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    node = call("a", args={"seconds": 1}, retry={"max_attempts": 1}, delivery=delivery)
    run_id = await worker.start(document(node))
    await mill.until(lambda: ledger.count("a") == 1)
    before = worker.door.fired["commit"]
    for _ in range(20):
        worker.door.next("commit", refuse)
    run = await worker.end(run_id)
    assert worker.door.fired["commit"] - before == 20, "the store was not out of reach"
    assert (run.status, ledger.count("a"), run.nodes["a"]["attempts"]) == ("COMPLETED", 1, 1)


@pytest.mark.parametrize("output", [LONG, Blob(LONG.encode())], ids=["a long value", "a file"])
@simulated
async def test_a_place_for_blobs_that_is_out_of_reach(
    mill: Mill, output: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def work() -> Any:
        calls.append(1)
        return output

    worker = await mill.process(functions={"work": work})
    reference = await worker.publish(document(call("a", retry={"max_attempts": 1})))
    put, refused = mill.blobs.put, list[int]()

    async def out_of_reach(*given: Any, **options: Any) -> str:
        if len(refused) < 12:
            refused.append(1)
            raise Unavailable("no room")
        return await put(*given, **options)

    monkeypatch.setattr(mill.blobs, "put", out_of_reach)
    run_id = await worker.engine.start(reference)
    run = await worker.end(run_id)
    assert (run.status, len(calls), len(refused)) == ("COMPLETED", 1, 12)
    assert [record.getMessage() for record in caplog.records if "is kept" in record.getMessage()] == [
        "a result is kept until it can be stored: no room"
    ]


@simulated
async def test_bytes_that_were_given_only_once_fail_the_attempt(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot be stored again, so this is an attempt that failed, on record, and tried again by the rules."""
    calls: list[int] = []

    def work() -> Blob:
        calls.append(1)
        return Blob(iter([b"a", b"b"]))

    worker = await mill.process(functions={"work": work})
    reference = await worker.publish(document(call("a", retry={"max_attempts": 3, "backoff_seconds": 1})))
    stream, refused = mill.blobs.put_stream, list[int]()

    async def out_of_reach(*given: Any, **options: Any) -> tuple[str, int]:
        if not refused:
            refused.append(1)
            raise Unavailable("no room")
        return await stream(*given, **options)

    monkeypatch.setattr(mill.blobs, "put_stream", out_of_reach)
    run = await worker.end(await worker.engine.start(reference))
    assert (run.status, len(calls), run.nodes["a"]["attempts"]) == ("COMPLETED", 2, 2)
    await asyncio.sleep(0)


@simulated
async def test_a_result_that_waits_long_for_the_place_of_blobs_is_visible(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await mill.process(functions={"work": lambda: LONG})
    reference = await worker.publish(document(call("a", retry={"max_attempts": 1})))
    put = mill.blobs.put

    async def out_of_reach(*given: Any, **options: Any) -> str:
        raise Unavailable("no room")

    monkeypatch.setattr(mill.blobs, "put", out_of_reach)
    run_id = await worker.engine.start(reference)
    await asyncio.sleep(50)
    assert not (await mill.row(run_id)).stuck
    await asyncio.sleep(100)
    row = await mill.row(run_id)
    assert (row.stuck, row.stuck_reason) == (True, "a result cannot be stored: no room")
    assert "a result cannot be stored" in (await worker.engine.why(run_id)).headline
    monkeypatch.setattr(mill.blobs, "put", put)
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 1)
    assert not (await mill.row(run_id)).stuck


@simulated
async def test_a_result_that_waits_long_for_the_store_is_visible(mill: Mill) -> None:
    """As far as the store lets the mark be written: here it refuses records alone."""
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 1}, retry={"max_attempts": 1})))
    commit = mill.store.commit

    async def no_records(commits: Any) -> Any:
        if any(each.records for each in commits):
            raise Unavailable("no records today")
        return await commit(commits)

    mill.store.commit = no_records  # type: ignore[method-assign]
    await asyncio.sleep(1_200)
    row = await mill.row(run_id)
    assert (row.stuck, row.stuck_reason) == (True, "a result of a cannot be stored: no records today")
    mill.store.commit = commit  # type: ignore[method-assign]
    run = await worker.end(run_id)
    assert (run.status, ledger.count("a"), run.nodes["a"]["attempts"]) == ("COMPLETED", 1, 1)
