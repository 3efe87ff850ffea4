"""Leases: kept alive while work goes on, and what happens when they are not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.handlers.contract import Done, Handler, NodeContext
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX, SET_ASIDE
from tidemill.kernel.events import DeadLettered, NodeCompleted, NodeFailed, NodeStarted, ResultDiscarded
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Claim
from tidemill.testing.faulty_store import FaultyStore, bug, refuse


async def _codes(mill: Cluster, run_id: str) -> list[str]:
    return [event.error.code for event in await mill.of(run_id, NodeFailed)]


@simulated
async def test_a_lease_is_renewed_three_times_in_its_life(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, lease_ms=15_000)
    run_id = await worker.start(document(call("a", args={"seconds": 100})))
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"], ledger.count("a")) == ("COMPLETED", 1, 1)
    assert 18 <= worker.faulty_store.calls["renew"] <= 21


@pytest.mark.parametrize(("lease_ms", "beat_ms", "every_ms"), [(3_000, 5_000, 1_000), (600_000, 5_000, 5_000)])
@simulated
async def test_renewals_follow_from_the_lease_and_come_with_every_beat(
    mill: Cluster, lease_ms: int, beat_ms: int, every_ms: int, ledger: Ledger
) -> None:
    """A short lease is renewed often enough to last; a long one makes nobody wait who has to learn that it is lost."""
    worker = await mill.process(functions={"work": ledger.work}, lease_ms=lease_ms, beat_ms=beat_ms)
    await worker.end(await worker.start(document(call("a", args={"seconds": 100}))))
    assert ledger.count("a") == 1
    assert worker.faulty_store.calls["renew"] == pytest.approx(100_000 / every_ms, abs=2)


@simulated
async def test_nothing_in_hand_nothing_renewed(mill: Cluster) -> None:
    worker = await mill.process()
    await asyncio.sleep(100)
    assert worker.faulty_store.calls["renew"] == 0


@simulated
async def test_a_killed_worker_s_job_is_an_attempt_that_was_lost_and_done_elsewhere(
    mill: Cluster, ledger: Ledger
) -> None:
    first = await mill.process("w1", functions={"work": ledger.work}, lease_ms=15_000)
    run_id = await first.start(document(call("a", args={"seconds": 8, "value": 1}, retry={"max_attempts": 1})))
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(1)
    first.kill()
    killed = mill.loop.now
    second = await mill.process("w2", functions={"work": ledger.work})
    await mill.until(lambda: ledger.running == 1)
    assert mill.loop.now - killed <= 15 + 1
    run = await second.end(run_id)
    # It does not use up `max_attempts`.
    assert (run.status, run.outputs, run.nodes["a"]["attempts"]) == ("COMPLETED", {"a": 1}, 2)
    (lost,) = await mill.of(run_id, NodeFailed)
    assert (lost.error.code, lost.attempt, lost.counter) == ("worker_lost", 1, 1)
    assert lost.retry_at_ms is not None
    assert ledger.calls == [(f"{run_id}/a/1/-1", 1), (f"{run_id}/a/1/-1", 2)]
    assert await mill.of(run_id, DeadLettered) == []


@simulated
async def test_a_worker_that_is_lost_while_its_run_is_paused_is_an_attempt_too(mill: Cluster, ledger: Ledger) -> None:
    """Its job is not to be done now, but what it may have done must not be forgotten with the job."""
    first = await mill.process("w1", functions={"work": ledger.work}, lease_ms=6_000)
    run_id = await first.start(document(call("a", args={"seconds": 50})))
    await mill.until(lambda: ledger.running == 1)
    await first.engine.pause(run_id)
    first.kill()
    second = await mill.process("w2", functions={"work": ledger.work})
    await asyncio.sleep(10)
    assert await _codes(mill, run_id) == ["worker_lost"]
    assert ledger.count("a") == 1
    await second.engine.resume(run_id)
    run = await second.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 2)
    assert ledger.calls == [(f"{run_id}/a/1/-1", 1), (f"{run_id}/a/1/-1", 2)]


@simulated
async def test_a_node_that_kills_its_worker_five_times_is_given_up(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a", args={"seconds": 100}), node("b", "a")))
    for number in range(LOST_IN_A_ROW_MAX):
        victim = await mill.process(f"w{number}", functions={"work": ledger.work}, lease_ms=6_000)
        await mill.until(lambda: ledger.running == 1)
        victim.kill()
        await asyncio.sleep(0.1)
    last = await mill.process("last", functions={"work": ledger.work}, lease_ms=6_000)
    run = await last.end(run_id)
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "worker_killer"
    assert (run.nodes["a"]["attempts"], ledger.count("a")) == (LOST_IN_A_ROW_MAX, LOST_IN_A_ROW_MAX)
    assert await _codes(mill, run_id) == ["worker_lost"] * 4 + ["worker_killer", "upstream_failed"]
    assert (await mill.row(run_id)).dead_letters == 1


@simulated
async def test_a_node_that_kills_its_workers_takes_no_other_along(mill: Cluster) -> None:
    """Both run on the same workers, and both are lost with the first two; then they run one at a time."""
    workers: list[Process] = []

    async def work(context: NodeContext) -> str:
        if context.node == "killer":
            workers[-1].kill()
            await asyncio.sleep(1_000)
        await asyncio.sleep(30)
        return "ok"

    client = await mill.process("client", work=False)
    long = [await client.start(document(call(f"long{number}"))) for number in range(3)]
    killer = await client.start(document(call("killer")))
    for number in range(40):
        workers.append(await mill.process(f"w{number}", functions={"work": work}, lease_ms=3_000))
        for _ in range(2_000):
            await asyncio.sleep(0.1)
            over = not any([await _busy(mill, run_id) for run_id in (*long, killer)])
            if workers[-1].faulty_store.dead or over:
                break
        if over:
            break
    assert [(await mill.state(run_id)).status for run_id in long] == ["COMPLETED"] * 3
    assert (await mill.state(killer)).status == "FAILED"
    assert (await _codes(mill, killer))[-1] == "worker_killer"


async def _busy(mill: Cluster, run_id: str) -> bool:
    return (await mill.state(run_id)).busy


@simulated
async def test_a_run_that_not_even_its_loss_can_be_recorded_of_is_left_alone(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a")))
    for _ in range(LOST_IN_A_ROW_MAX + 1):
        assert await mill.store.claim(Claim(queues=(), limit=1, lease_ms=1))
        await asyncio.sleep(0.01)
    worker = await mill.process("w1", functions={"work": ledger.work})
    await asyncio.sleep(60)
    stream = mill.stream(run_id)
    assert not any(stream in load for load in worker.faulty_store.loads), "loading it may end the process"
    assert worker.faulty_store.calls["release"] == 1
    row = await mill.row(run_id)
    assert (row.stuck, row.stuck_reason) == (True, SET_ASIDE)
    why = await client.engine.why(run_id)
    assert SET_ASIDE in why.headline and "pause and resume" in why.blockers[0].unblock
    # The operator has found out why.
    await client.engine.pause(run_id)
    await client.engine.resume(run_id)
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert not (await mill.row(run_id)).stuck


@simulated
async def test_a_result_in_between_forgives_the_lost_ones(mill: Cluster) -> None:
    """Only five in a row count: an attempt that ended by itself starts the count anew."""
    calls = 0

    async def moody(context: NodeContext) -> str:
        nonlocal calls
        calls += 1
        if calls in (4, 8):
            raise ConnectionError("just a failure")
        if calls < 12:
            await asyncio.sleep(1_000)
        return "ok"

    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a", retry={"max_attempts": 3, "backoff_seconds": 1})))
    for number in range(12):
        worker = await mill.process(f"w{number}", functions={"work": moody}, lease_ms=3_000)
        await mill.until(lambda number=number: calls > number)  # type: ignore[misc]
        if calls >= 12:
            break
        await asyncio.sleep(0.5)
        worker.kill()
    run = await client.end(run_id)
    assert run.status == "COMPLETED"
    assert (await _codes(mill, run_id)).count("worker_lost") == 9


@simulated
async def test_an_at_most_once_node_whose_worker_is_lost_has_an_unknown_outcome(mill: Cluster, ledger: Ledger) -> None:
    first = await mill.process("w1", functions={"work": ledger.work})
    run_id = await first.start(document(call("a", args={"seconds": 50}, delivery="at_most_once"), node("b", "a")))
    await mill.until(lambda: ledger.running == 1)
    # The log knew before the handler was called.
    (started,) = await mill.of(run_id, NodeStarted)
    assert started.worker == "w1"
    first.kill()
    second = await mill.process("w2", functions={"work": ledger.work})
    run = await second.end(run_id)
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "unknown_outcome")
    assert (ledger.count("a"), run.nodes["a"]["attempts"]) == (1, 1)
    assert (await mill.row(run_id)).dead_letters == 1


@simulated
async def test_an_at_most_once_node_that_was_never_begun_may_be(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a", delivery="at_most_once")))
    assert await mill.store.claim(Claim(queues=("default",), limit=1, lease_ms=1_000, owner="dead"))
    worker = await mill.process(functions={"work": ledger.work})
    run = await worker.end(run_id)
    assert (run.status, ledger.count("a")) == ("COMPLETED", 1)


@simulated
async def test_a_worker_that_lost_a_lease_stops_working_on_it(mill: Cluster, ledger: Ledger) -> None:
    first = await mill.process("w1", functions={"work": partial(ledger.work, seconds=200)}, concurrency=1)
    run_id = await first.start(document(call("a")))
    await mill.until(lambda: ledger.running == 1)
    first.faulty_store.always("renew", refuse)
    await mill.process("w2", functions={"work": partial(ledger.work, seconds=60)})
    await mill.until(lambda: ledger.running == 2)
    first.faulty_store.always("renew", None)
    assert await mill.until(lambda: bool(ledger.cancelled)) <= 5.1
    run = await first.end(run_id)
    assert run.status == "COMPLETED"
    assert [event.worker for event in await mill.of(run_id, NodeCompleted)] == ["w2"]
    assert await mill.of(run_id, ResultDiscarded) == []


class Stubborn:
    """A node that takes its cancellation for advice, and answers some time after it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.began: list[float] = []
        self.ended: list[float] = []
        self.handler = Handler(NodeType(name="stubborn"), self._work)

    async def _work(self, context: NodeContext) -> Done:
        now = asyncio.get_running_loop().time
        self.began.append(now())
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            await asyncio.sleep(self._seconds)
        self.ended.append(now())
        return Done("late")


@simulated
async def test_what_comes_after_the_cancellation_is_on_record_and_kept_its_place(mill: Cluster) -> None:
    stubborn = Stubborn(seconds=2)
    worker = await mill.process(more=[stubborn.handler], concurrency=1)
    run_id = await worker.start(document(node("a", type="stubborn")))
    await mill.until(lambda: len(stubborn.began) == 1)
    await worker.engine.cancel(run_id)
    other = await worker.start(document(node("a", type="stubborn")))
    assert (await worker.end(other)).status == "COMPLETED"
    assert len(stubborn.ended) == 2
    assert stubborn.began[1] >= stubborn.ended[0]
    (discarded,) = await mill.of(run_id, ResultDiscarded)
    assert (discarded.node, discarded.outcome, discarded.worker) == ("a", "Done", "w1")
    assert (await worker.engine.show(run_id)).status == "CANCELLED"


@simulated
async def test_what_a_drain_cut_short_is_no_result(mill: Cluster) -> None:
    stubborn = Stubborn(seconds=0)
    worker = await mill.process(more=[stubborn.handler], grace_ms=0)
    run_id = await worker.start(document(node("a", type="stubborn")))
    await mill.until(lambda: len(stubborn.began) == 1)
    await worker.stop()
    await mill.until(lambda: len(stubborn.ended) == 1)
    await asyncio.sleep(10)
    kinds = await mill.kinds(run_id)
    assert not {"NodeCompleted", "ResultDiscarded"} & set(kinds), kinds


@simulated
async def test_a_worker_that_gets_its_own_lost_job_again_runs_it_once_at_a_time(mill: Cluster, ledger: Ledger) -> None:
    """Its renewals were lost, the lease expired, and its own claim took the job over: the first call is void."""
    worker = await mill.process(functions={"work": partial(ledger.work, seconds=40)}, lease_ms=6_000)
    run_id = await worker.start(document(call("a")))
    await mill.until(lambda: ledger.running == 1)
    worker.faulty_store.always("renew", refuse)
    await mill.until(lambda: len(ledger.calls) == 2)
    worker.faulty_store.always("renew", None)
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 2)
    assert await _codes(mill, run_id) == ["worker_lost"]
    assert (ledger.most, len(ledger.calls), len(ledger.cancelled)) == (1, 2, 1)


@pytest.mark.parametrize("answer", ["fails", "returns", "takes its time"])
@simulated
async def test_what_a_cancelled_handler_does_is_nobody_s_trouble(mill: Cluster, answer: str) -> None:
    """It may fail, return or linger while it is told to stop: the run is over, and so is the worker's interest."""
    ended: list[str] = []

    async def stubborn(context: NodeContext) -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            if answer == "takes its time":
                await asyncio.sleep(20)
            ended.append(context.node)
            if answer == "fails":
                raise ValueError("the clean-up failed") from None
        return "too late"

    worker = await mill.process(functions={"work": stubborn})
    run_id = await worker.start(document(call("a")))
    await asyncio.sleep(2)
    await worker.engine.cancel(run_id)
    await asyncio.sleep(60)
    assert ended == ["a"]
    assert (await worker.engine.show(run_id)).status == "CANCELLED"
    assert (await worker.run(document(node("b")))).status == "COMPLETED"


@simulated
async def test_an_expired_lease_that_nobody_took_over_still_commits(mill: Cluster, ledger: Ledger) -> None:
    """Good work is not thrown away because a heartbeat was late: the token is the fence, not the clock."""
    worker = await mill.process(functions={"work": ledger.work}, lease_ms=6_000, concurrency=1)
    run_id = await worker.start(document(call("a", args={"seconds": 60, "value": "kept"})))
    worker.faulty_store.always("renew", refuse)
    run = await worker.end(run_id)
    assert worker.faulty_store.fired["renew"] > 5
    assert (run.outputs, run.nodes["a"]["attempts"], ledger.count("a")) == ({"a": "kept"}, 1, 1)


@simulated
async def test_rendering_outputs_is_a_job_with_a_lease_too(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a", config=1), outputs={"x": "{{ a.output }}"}))
    first = await mill.process("w1")
    await mill.until(lambda: first.faulty_store.claimed >= 1)
    first.kill()
    second = await mill.process("w2")
    run = await second.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"x": 1})


@simulated
async def test_outputs_that_kill_five_workers_fail_the_run(mill: Cluster) -> None:
    """The job waits for a blob that is gone until its worker is dead; then ghosts claim it and die, one by one."""
    big = "x" * 70_000
    worker = await mill.process("w1")
    run_id = await worker.start(
        document(
            node("a", config=big),
            node("s", "a", type="sleep", config={"seconds": 5}),
            outputs="{{ a.output | length }}",
        )
    )
    await asyncio.sleep(1)
    worker.kill()
    (place,) = [place for place, body in mill.blobs._held.items() if body == b'"' + big.encode() + b'"']
    hidden = mill.blobs._held.pop(place)
    second = await mill.process("w2")
    await asyncio.sleep(20)
    second.kill()
    mill.blobs._held[place] = hidden
    for _ in range(LOST_IN_A_ROW_MAX):
        await asyncio.sleep(1)
        (lease,) = await mill.store.claim(Claim(queues=("system",), limit=5, lease_ms=500, owner="ghost"))
        assert lease.key.startswith("outputs")
    await asyncio.sleep(1)
    last = await mill.process("w3")
    run = await last.end(run_id)
    assert (run.status, run.outputs) == ("FAILED", None)
    assert run.error is not None and run.error["code"] == "outputs_failed"
    assert "workers in a row" in run.error["message"]


def _renewals(process: Process) -> int:
    faulty_store: FaultyStore = process.faulty_store
    return faulty_store.calls["renew"]


@pytest.mark.parametrize("seconds", [4, 9])
@simulated
async def test_renewals_go_on_through_a_drain(mill: Cluster, seconds: int, ledger: Ledger) -> None:
    functions: dict[str, Any] = {"work": partial(ledger.work, seconds=seconds)}
    first = await mill.process("w1", functions=functions, lease_ms=3_000, grace_ms=60_000)
    run_id = await first.start(document(call("a")))
    await mill.until(lambda: ledger.running == 1)
    await mill.process("w2", functions=functions, lease_ms=3_000)
    before = _renewals(first)
    await first.stop()
    assert _renewals(first) > before
    assert (await mill.state(run_id)).status == "COMPLETED"
    assert len(ledger.calls) == 1


LEASE_MS = 3_000


@simulated
async def test_a_missed_beat_loses_nothing(mill: Cluster, ledger: Ledger) -> None:
    workers = [await mill.process(f"w{i}", functions={"work": ledger.work}, lease_ms=LEASE_MS) for i in range(2)]
    for worker in workers:
        worker.faulty_store.next("renew", refuse, lambda call: call(), bug)
    assert (await workers[0].run(document(call("a", args={"seconds": 30})))).status == "COMPLETED"
    assert sum(worker.faulty_store.fired["renew"] for worker in workers) == 3
    assert ledger.count("a") == 1
