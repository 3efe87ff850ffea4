"""Following a run: from any event, while it runs and after its end, never for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import LARGE, human, signal, waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.compensations import Compensations, undo_with, undoing_process
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.maintenance import reconciler as keeping
from tidemill.engine.maintenance.reconciler import Reconciler
from tidemill.errors import Rejected
from tidemill.kernel.events import CompensationCompleted, ResultDiscarded


async def _followed(process: Process, run_id: str, after: int = 0) -> list[dict[str, Any]]:
    async with asyncio.timeout(900):
        return [event async for event in process.engine.follow(run_id, after)]


async def _kinds_followed(process: Process, run_id: str, after: int = 0) -> list[str]:
    return [event["type"] for event in await _followed(process, run_id, after)]


@simulated
async def test_a_follower_sees_every_event_once_and_in_order_and_ends_with_the_run(
    mill: Cluster, ledger: Ledger
) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a"), call("b", "a", args={"seconds": 3}), node("c", "b")))
    early = asyncio.ensure_future(_followed(client, run_id))
    await mill.process("w1", functions={"work": ledger.work})
    events = await early
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events] == await mill.kinds(run_id)
    assert events[-1]["type"] == "RunCompleted"


@simulated
async def test_following_from_a_seq(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(node("a"), call("b", "a", args={"seconds": 3})))
    await mill.until(lambda: ledger.running == 1)
    whole = await _followed(worker, run_id)
    for after in range(len(whole) + 1):
        assert [event["seq"] for event in await _followed(worker, run_id, after)] == list(
            range(after + 1, len(whole) + 1)
        )


@simulated
async def test_following_what_has_ended_ends(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(chain("a"))
    assert await _followed(worker, run.run_id, run.events) == []
    for after in (-1, run.events + 1, 10_000):
        with pytest.raises(Rejected) as refused:
            await _followed(worker, run.run_id, after)
        assert refused.value.code == "cursor_invalid"


@simulated
async def test_following_past_the_end_ends_also_behind_a_late_result(mill: Cluster, ledger: Ledger) -> None:
    """A discarded result is written after the terminal event; whoever asks from there must not wait for ever."""
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 4})))
    await asyncio.sleep(3)
    await worker.engine.cancel(run_id)
    terminal = len(await mill.events(run_id))
    await asyncio.sleep(60)
    assert len(await mill.of(run_id, ResultDiscarded)) == 1
    assert await _kinds_followed(worker, run_id, terminal) == ["ResultDiscarded"]
    assert (await _kinds_followed(worker, run_id))[-2:] == ["RunCancelled", "ResultDiscarded"]
    assert (await worker.engine.result(run_id, timeout_s=10)).status == "CANCELLED"


@simulated
async def test_following_nobody_is_refused(mill: Cluster) -> None:
    client = await mill.process(work=False)
    with pytest.raises(Rejected) as refused:
        await _followed(client, "nobody")
    assert refused.value.code == "run_unknown"


@simulated
async def test_many_followers_of_many_runs(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(chain("a", "b", "c"))
    runs = [await worker.start(reference) for _ in range(20)]
    logs = await asyncio.gather(*(_followed(worker, run_id) for run_id in runs for _ in range(3)))
    assert {len(log) for log in logs} == {11}


@simulated
async def test_a_follower_that_leaves_early_leaves_nothing_behind(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 9})))
    events = worker.engine.follow(run_id)
    assert (await anext(events))["type"] == "RunCreated"
    await events.aclose()  # type: ignore[attr-defined]
    assert mill.store._live == {}
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_whoever_reads_a_log_from_the_start_reads_past_an_end_that_was_not_the_last(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = (await worker.run(document(node("f", type="fail")))).run_id
    await worker.engine.retry(run_id)
    await worker.end(run_id)
    seen = [event["type"] async for event in worker.engine.follow(run_id)]
    assert (seen.count("RunFailed"), seen) == (2, await mill.kinds(run_id))


# Following a run that ends more than once, and the keeper's look at runs that only wait or are being undone


def _keeper(process: Process) -> Reconciler:
    assert process.engine.reconciler is not None
    return process.engine.reconciler


@simulated
async def test_a_follower_who_comes_after_a_retry_stays_until_the_second_end(mill: Cluster) -> None:
    works = {"now": False}

    async def flaky() -> None:
        await asyncio.sleep(5)
        if not works["now"]:
            raise RuntimeError("no")

    worker = await mill.process(functions={"flaky": flaky})
    run_id = await worker.start(document(call("f", function="flaky", retry={"max_attempts": 1}), node("z", "f")))
    assert (await worker.end(run_id)).status == "FAILED"
    failed = len(await mill.events(run_id))
    works["now"] = True
    await worker.engine.retry(run_id)
    whole, tail, run = await asyncio.gather(
        _kinds_followed(worker, run_id),
        _kinds_followed(worker, run_id, failed),
        worker.engine.result(run_id, timeout_s=60),
    )
    assert run.status == "COMPLETED"
    assert whole == await mill.kinds(run_id) and whole[-1] == "RunCompleted" and whole.count("RunFailed") == 1
    assert tail == whole[failed:]
    assert await _kinds_followed(worker, run_id) == whole
    for after in range(len(whole) + 1):
        assert await _kinds_followed(worker, run_id, after) == whole[after:]


@simulated
async def test_a_follower_who_was_there_leaves_with_the_first_end(mill: Cluster) -> None:
    """The run is reopened later, when nobody could know."""
    worker = await mill.process()
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("s", type="sleep", config={"seconds": 5}), node("f", "s", type="fail")))
    early = asyncio.ensure_future(_kinds_followed(client, run_id))
    assert (await client.end(run_id)).status == "FAILED"
    assert (await early)[-1] == "RunFailed"
    await worker.engine.override(run_id, "f", value=1)
    assert (await client.end(run_id)).status == "COMPLETED"
    assert (await _kinds_followed(client, run_id))[-1] == "RunCompleted"


@pytest.mark.parametrize("how", ["automatic", "by hand"])
@simulated
async def test_a_run_that_is_being_rolled_back_is_not_over(mill: Cluster, how: str) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    top = {"on_failure": {"compensate": "automatic"}} if how == "automatic" else {}
    run_id = await worker.start(
        document(call("a", compensator=undo_with(seconds=40)), node("f", "a", type="fail"), **top)
    )
    if how == "by hand":
        assert (await worker.end(run_id)).status == "FAILED"
        await worker.engine.rollback(run_id)
    followed, run = await asyncio.gather(_kinds_followed(worker, run_id), worker.engine.result(run_id, timeout_s=600))
    assert mill.loop.now - 1_000 >= 40
    assert followed == await mill.kinds(run_id) and followed[-1] == "RollbackFinished"
    assert (run.status, run.rollback["status"]) == ("FAILED", "done")


@simulated
async def test_following_what_was_said_behind_the_end_ends(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    await worker.engine.relabel(run.run_id, {"k": "v"})
    assert await _kinds_followed(worker, run.run_id, run.events) == ["RunLabelled"]
    assert (await _kinds_followed(worker, run.run_id))[-2:] == ["RunCompleted", "RunLabelled"]
    assert (await worker.engine.result(run.run_id, timeout_s=5)).labels == {"k": "v"}


async def _waiting_runs(mill: Cluster, process: Process, count: int) -> list[str]:
    reference = await process.publish(document(human("ok"), name="asking"))
    runs = [await process.start(reference) for _ in range(count)]
    for run_id in runs:
        await waits(mill, run_id, "ok")
    return runs


@simulated
async def test_runs_that_only_wait_are_looked_at_in_turn(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "WAITING_PER_SWEEP", 10)
    worker = await mill.process("w1", audit_every_ms=10**9)
    runs = await _waiting_runs(mill, worker, 35)
    busy = await worker.start(document(node("q", queue="nobody"), name="busy"))
    worker.kill()
    second = await mill.process("w2", queues=("default",), audit_every_ms=10**9)
    looked: list[set[str]] = []
    original = second.faulty_store.jobs

    async def jobs(stream: Any) -> Any:
        looked[-1].add(stream.key)
        return await original(stream)

    second.faulty_store.jobs = jobs  # type: ignore[method-assign]
    cursor: dict[str, Any] = {}
    for _ in range(4):
        looked.append(set())
        cursor = await _keeper(second).sweep(cursor=cursor)
        assert busy in looked[-1] and len(looked[-1] - {busy}) <= 10
    assert set().union(*looked) == {*runs, busy}
    # And from the beginning again.
    looked.append(set())
    await _keeper(second).sweep(cursor=cursor)
    assert len(looked[-1] - {busy}) == 10


@simulated
async def test_a_run_is_active_or_waiting(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(signal("go"), call("w", "go", args={"seconds": 20}), signal("end", "w")))

    async def terms() -> list[str]:
        return [term for term in ("live", "active", "waiting") if await mill.rows(term)]

    await waits(mill, run_id, "go")
    assert await terms() == ["live", "waiting"]
    await worker.engine.signal(run_id, "go")
    await mill.until(lambda: ledger.running == 1)
    assert await terms() == ["live", "active"]
    await waits(mill, run_id, "end")
    assert await terms() == ["live", "waiting"]
    await worker.engine.signal(run_id, "end")
    await worker.end(run_id)
    assert await terms() == []


# Runs that are being undone


@simulated
async def test_a_lost_undo_job_comes_back(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer)
    run = await worker.run(document(call("a", compensator=undo_with(LARGE[:10])), call("b", "a")))
    worker.kill()
    client = await mill.process("client", work=False)
    await client.engine.rollback(run.run_id)
    (view,) = await mill.jobs(run.run_id)
    assert view.job.key == "undo/a/1/-1"
    assert [row.run_id for row in await mill.rows("rollback:running")] == [run.run_id]
    await mill.meddle(run.run_id, drop=(view.job.key,))
    second = await undoing_process(mill, undoer, "w2")
    began = mill.loop.now
    after = await second.end(run.run_id)
    assert after.rollback["status"] == "done"
    assert mill.loop.now - began <= 12
    assert (len(undoer.calls), len(await mill.of(run.run_id, CompensationCompleted))) == (1, 1)
    assert _keeper(second).repairs == 1


@simulated
async def test_a_back_off_of_an_undo_job_is_left_alone(mill: Cluster) -> None:
    undoer = Compensations()
    undoer.failing = {"a": 1}
    worker = await undoing_process(mill, undoer)
    slow = {**undo_with(), "retry": {"max_attempts": 2, "backoff_seconds": 55, "jitter": 0}}
    run = await worker.run(document(call("a", compensator=slow)))
    await worker.engine.rollback(run.run_id)
    began = mill.loop.now
    assert (await worker.end(run.run_id)).rollback["status"] == "done"
    assert mill.loop.now - began == pytest.approx(55, abs=2)
    assert (_keeper(worker).repairs, len(undoer.calls)) == (0, 2)
    assert _keeper(worker).audited >= 4
