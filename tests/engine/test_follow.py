"""Following a run: from any event, while it runs and after its end, never for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.kit import Mill, Process, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import chain, document, node
from tidemill.errors import Rejected
from tidemill.kernel.events import ResultDiscarded


async def _followed(process: Process, run_id: str, after: int = 0) -> list[dict[str, Any]]:
    async with asyncio.timeout(300):
        return [event async for event in process.engine.follow(run_id, after)]


@simulated
async def test_a_follower_sees_every_event_once_and_in_order_and_ends_with_the_run(mill: Mill) -> None:
    ledger = Ledger()
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a"), call("b", "a", args={"seconds": 3}), node("c", "b")))
    early = asyncio.ensure_future(_followed(client, run_id))
    await mill.process("w1", functions={"work": ledger.work})
    events = await early
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events] == await mill.kinds(run_id)
    assert events[-1]["type"] == "RunCompleted"


@simulated
async def test_following_from_a_seq(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(node("a"), call("b", "a", args={"seconds": 3})))
    await mill.until(lambda: ledger.running == 1)
    whole = await _followed(worker, run_id)
    for after in range(len(whole) + 1):
        assert [event["seq"] for event in await _followed(worker, run_id, after)] == list(
            range(after + 1, len(whole) + 1)
        )


@simulated
async def test_following_what_has_ended_ends(mill: Mill) -> None:
    worker = await mill.process()
    run = await worker.run(chain("a"))
    assert await _followed(worker, run.run_id, run.events) == []
    for after in (-1, run.events + 1, 10_000):
        with pytest.raises(Rejected) as refused:
            await _followed(worker, run.run_id, after)
        assert refused.value.code == "cursor_invalid"


@simulated
async def test_following_past_the_end_ends_also_behind_a_late_result(mill: Mill) -> None:
    """A discarded result is written after the terminal event; whoever asks from there must not wait for ever."""
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 4})))
    await asyncio.sleep(3)
    await worker.engine.cancel(run_id)
    terminal = len(await mill.events(run_id))
    await asyncio.sleep(60)
    assert len(await mill.of(run_id, ResultDiscarded)) == 1
    assert [event["type"] for event in await _followed(worker, run_id, terminal)] == ["ResultDiscarded"]
    assert [event["type"] for event in await _followed(worker, run_id)][-2:] == ["RunCancelled", "ResultDiscarded"]
    assert (await worker.engine.result(run_id, timeout_s=10)).status == "CANCELLED"


@simulated
async def test_following_nobody_is_refused(mill: Mill) -> None:
    client = await mill.process(work=False)
    with pytest.raises(Rejected) as refused:
        await _followed(client, "nobody")
    assert refused.value.code == "run_unknown"


@simulated
async def test_many_followers_of_many_runs(mill: Mill) -> None:
    worker = await mill.process()
    reference = await worker.publish(chain("a", "b", "c"))
    runs = [await worker.start(reference) for _ in range(20)]
    logs = await asyncio.gather(*(_followed(worker, run_id) for run_id in runs for _ in range(3)))
    assert {len(log) for log in logs} == {11}


@simulated
async def test_a_follower_that_leaves_early_leaves_nothing_behind(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 9})))
    events = worker.engine.follow(run_id)
    assert (await anext(events))["type"] == "RunCreated"
    await events.aclose()  # type: ignore[attr-defined]
    assert mill.store._live == {}
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_events_are_readable(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(node("a", config={"x": 1})), {"who": "ada"}, submitted_by="ada", labels={"k": "v"}
    )
    created, *_, completed, _ = await _followed(worker, run_id)
    assert (created["workflow"], created["labels"], created["submitted_by"]) == ("test", {"k": "v"}, "ada")
    assert (completed["type"], completed["node"], completed["attempt"]) == ("NodeCompleted", "a", 1)
    assert completed["output"] == {"x": 1}
    assert created["at_ms"] == 1_000_000


@simulated
async def test_whoever_reads_a_log_from_the_start_reads_past_an_end_that_was_not_the_last(mill: Mill) -> None:
    worker = await mill.process()
    run_id = (await worker.run(document(node("f", type="fail")))).run_id
    await worker.engine.retry(run_id)
    await worker.end(run_id)
    seen = [event["type"] async for event in worker.engine.follow(run_id)]
    assert (seen.count("RunFailed"), seen) == (2, await mill.kinds(run_id))
