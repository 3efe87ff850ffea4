"""What a rollback says about steps that were not recorded when the run ended: unknown only if a worker had them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import waits
from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.compensations import Compensations, undo_with, undoing_process
from tests.fixtures.kernel.authoring import document
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.kernel.events import NodeCancelled, NodeStarted, ResultDiscarded, RollbackStarted
from tidemill.stores.contract import Claim
from tidemill.testing.faulty_store import Call, after_s, following, refuse

STEP = "run/b/1/-1"


def two_steps(**more: Any) -> dict[str, Any]:
    """`a`, which completes, then `b`; both can be undone."""
    step = {"args": {"seconds": 60}, "compensator": undo_with(), **more}
    return document(call("a", compensator=undo_with()), call("b", "a", **step))


async def outcome(mill: Cluster, process: Process, run_id: str) -> tuple[str, list[str]]:
    """How the rollback of a run ended, and what it has left."""
    run = await process.end(run_id)
    assert run.status == "CANCELLED"
    (began,) = await mill.of(run_id, RollbackStarted)
    assert list(began.unknown) == run.rollback["left"]
    return run.rollback["status"], run.rollback["left"]


async def reach_b(mill: Cluster, worker: Process, workflow: dict[str, Any]) -> str:
    """Start a run, and let `a` complete."""
    run_id = await worker.start(workflow)

    def is_there() -> bool:
        state = worker.cached(run_id)
        return state is not None and state.peek("b").status == "QUEUED"

    await mill.until(is_there)
    return run_id


@simulated
async def test_a_step_that_no_worker_could_take_is_not_named(mill: Cluster) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer, queues=("default",))
    client = await mill.process("client", work=False)
    run_id = await reach_b(mill, worker, two_steps(queue="elsewhere"))
    await asyncio.sleep(30)
    await client.engine.cancel(run_id, compensate=True)
    assert await outcome(mill, worker, run_id) == ("done", [])
    assert undoer.nodes() == ["a"]
    assert (await client.engine.why(run_id)).left.count == 0


@simulated
async def test_a_step_whose_function_no_worker_has_is_not_named(mill: Cluster) -> None:
    """Workers have claimed it, time and again, and given it back."""
    undoer = Compensations()
    worker = await undoing_process(mill, undoer, standing=True)
    client = await mill.process("client", work=False)
    run_id = await reach_b(mill, worker, two_steps(function="elsewhere"))
    await asyncio.sleep(30)
    claimed = worker.faulty_store.claimed
    await asyncio.sleep(30)
    assert worker.faulty_store.claimed > claimed, "it was claimed in vain"
    await client.engine.cancel(run_id, compensate=True)
    assert await outcome(mill, worker, run_id) == ("done", [])


@simulated
async def test_items_that_nobody_has_begun_are_not_named(mill: Cluster, ledger: Ledger) -> None:
    undoer = Compensations()
    worker = await undoing_process(mill, undoer, concurrency=2, functions={"work": ledger.work})
    client = await mill.process("client", work=False)
    each = call("m", args={"seconds": "{{ item }}"}, map={"over": [0, 0, 9, 9, 9, 9]}, compensator=undo_with())
    run_id = await worker.start(document(each))
    await mill.until(lambda: ledger.running == 2)
    await client.engine.cancel(run_id, compensate=True)
    assert await outcome(mill, worker, run_id) == ("partial", ["m/1/2", "m/1/3"])
    assert sorted(undoer.nodes()) == ["m", "m"]


@pytest.mark.parametrize("recorded", [True, False])
@simulated
async def test_a_step_in_the_middle_of_its_call_is_named(mill: Cluster, ledger: Ledger, recorded: bool) -> None:
    worker = await undoing_process(mill, Compensations(), functions={"work": ledger.work})
    client = await mill.process("client", work=False)
    run_id = await reach_b(mill, worker, two_steps())
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(2 if recorded else 0.1)
    await client.engine.cancel(run_id, compensate=True)
    assert await outcome(mill, worker, run_id) == ("partial", ["b/1/-1"])
    assert len(await mill.of(run_id, NodeStarted, "b")) == recorded
    # The first decision took the job for idle.
    assert client.engine.turns.races == (not recorded)


@simulated
async def test_a_job_that_is_claimed_between_decision_and_commit(mill: Cluster) -> None:
    worker = await undoing_process(mill, Compensations(), queues=("default",))
    client = await mill.process("client", work=False)
    run_id = await reach_b(mill, worker, two_steps(queue="elsewhere"))

    claim = Claim(queues=("elsewhere",), limit=1, lease_ms=60_000)
    client.faulty_store.next("commit", following(lambda: mill.store.claim(claim)))
    await client.engine.cancel(run_id, compensate=True)
    assert client.engine.turns.races == 1
    assert await outcome(mill, worker, run_id) == ("partial", ["b/1/-1"])
    (cancelled,) = await mill.of(run_id, NodeCancelled, "b")
    assert cancelled.unknown


@simulated
async def test_jobs_that_are_claimed_one_after_the_other_add_up(mill: Cluster) -> None:
    """What was in hand at one decision counts for the next, also if it was given back since."""
    worker = await undoing_process(mill, Compensations(), queues=("default",))
    client = await mill.process("client", work=False)
    nodes = [call(name, queue="elsewhere", compensator=undo_with()) for name in "abc"]
    run_id = await worker.start(document(*nodes))
    await mill.until(lambda: worker.cached(run_id) is not None)

    async def claim_another(commit: Call) -> object:
        leases = await mill.store.claim(Claim(queues=("elsewhere",), limit=1, lease_ms=60_000))
        client.faulty_store.next("commit", claim_another if client.faulty_store.fired["commit"] < 2 else None)
        answer = await commit()
        await mill.store.release(leases, delay_ms=600_000)
        return answer

    client.faulty_store.next("commit", claim_another)
    await client.engine.cancel(run_id, compensate=True)
    assert await outcome(mill, worker, run_id) == ("partial", ["a/1/-1", "b/1/-1"])


@pytest.mark.parametrize("recorded", [True, False])
@simulated
async def test_a_call_that_a_drain_has_cut_off_is_named(mill: Cluster, ledger: Ledger, recorded: bool) -> None:
    """The drain records its start; if it cannot, it gives no job back that looks as if nobody had begun it."""
    worker = await undoing_process(mill, Compensations(), functions={"work": ledger.work}, grace_ms=0)
    client = await mill.process("client", work=False)
    run_id = await reach_b(mill, worker, two_steps())
    await mill.until(lambda: ledger.running == 1)
    if not recorded:
        worker.faulty_store.always("commit", refuse)
    await worker.stop()
    assert len(await mill.of(run_id, NodeStarted, "b")) == recorded
    assert [view.token == 0 for view in await mill.jobs(run_id)] == [recorded]
    await client.engine.cancel(run_id, compensate=True)
    other = await undoing_process(mill, Compensations(), "w2")
    assert await outcome(mill, other, run_id) == ("partial", ["b/1/-1"])


@pytest.mark.parametrize("seen", [False, True])
@simulated
async def test_a_call_whose_worker_was_killed_is_named(mill: Cluster, ledger: Ledger, seen: bool) -> None:
    """Before another worker has taken the job over, and after it has recorded the loss."""
    worker = await undoing_process(mill, Compensations(), functions={"work": ledger.work}, lease_ms=3_000)
    client = await mill.process("client", work=False)
    run_id = await reach_b(mill, worker, two_steps())
    await mill.until(lambda: ledger.running == 1)
    worker.kill()
    other = None
    if seen:
        functions = {"undo": Compensations().undo}
        other = await mill.process("w2", functions=functions, standing=True)
        await asyncio.sleep(30)
        assert (await mill.state(run_id)).peek("b").lost == 1
        (view,) = await mill.jobs(run_id)
        assert (view.token, view.expired) == (0, 0)
    await client.engine.cancel(run_id, compensate=True)
    other = other or await undoing_process(mill, Compensations(), "w2")
    assert await outcome(mill, other, run_id) == ("partial", ["b/1/-1"])


@pytest.mark.parametrize("attempt", [1, 2])
@simulated
async def test_between_two_attempts_nobody_is_at_it(mill: Cluster, attempt: int) -> None:
    """The first has failed, so there is nothing to undo; during the second there may be."""
    calls = 0

    async def moody() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("not now")
        await asyncio.sleep(0.3)

    worker = await undoing_process(mill, Compensations(), functions={"moody": moody})
    client = await mill.process("client", work=False)
    retry = {"max_attempts": 3, "backoff_seconds": 20, "jitter": 0}
    run_id = await reach_b(mill, worker, two_steps(function="moody", args={}, retry=retry))
    await mill.until(lambda: calls == attempt)
    await asyncio.sleep(0.1)
    await client.engine.cancel(run_id, compensate=True)
    assert await outcome(mill, worker, run_id) == (("done", []) if attempt == 1 else ("partial", ["b/1/-1"]))


@simulated
async def test_a_result_that_shares_the_commit_of_the_cancel_has_happened(mill: Cluster, ledger: Ledger) -> None:
    """The worker itself cancels the run; the result comes after it, and is discarded."""
    worker = await undoing_process(mill, Compensations(), functions={"work": ledger.work})
    run_id = await reach_b(mill, worker, two_steps(args={"seconds": 0.3}))
    await mill.until(lambda: ledger.running == 1)

    worker.faulty_store.next("commit", after_s(1))
    relabelled = asyncio.create_task(worker.engine.relabel(run_id, {"k": "v"}))
    await asyncio.sleep(0.1)
    cancelled = asyncio.create_task(worker.engine.cancel(run_id, compensate=True))
    await asyncio.gather(relabelled, cancelled)
    assert await outcome(mill, worker, run_id) == ("partial", ["b/1/-1"])
    assert len(await mill.of(run_id, ResultDiscarded, "b")) == 1
    assert worker.engine.turns.races == 0


@simulated
async def test_what_was_cut_off_once_stays_unknown_until_an_attempt_completes(mill: Cluster, ledger: Ledger) -> None:
    """A second cancel comes before any worker has taken the step up again."""
    worker = await undoing_process(mill, Compensations(), functions={"work": ledger.work})
    client = await mill.process("client", work=False)
    run_id = await reach_b(mill, worker, two_steps())
    await mill.until(lambda: ledger.running == 1)
    await client.engine.cancel(run_id)
    await worker.stop()
    await client.engine.retry(run_id)
    await client.engine.cancel(run_id, compensate=True)
    other = await undoing_process(mill, Compensations(), "w2")
    assert await outcome(mill, other, run_id) == ("partial", ["b/1/-1"])
    cancelled = await mill.of(run_id, NodeCancelled, "b")
    assert [event.unknown for event in cancelled] == [True, False]


@simulated
async def test_a_run_that_waits_has_nothing_under_way(mill: Cluster) -> None:
    worker = await undoing_process(mill, Compensations())
    asks = {"id": "b", "type": "signal", "config": {"name": "go"}, "dependencies": ["a"], "compensator": undo_with()}
    run_id = await worker.start(document(call("a", compensator=undo_with()), asks))
    await waits(mill, run_id, "b")
    await worker.engine.cancel(run_id, compensate=True)
    assert await outcome(mill, worker, run_id) == ("done", [])
