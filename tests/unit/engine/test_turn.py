"""The turn's economy: what is loaded, how many commits there are, and what they share."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.turn import OUTAGES_MAX, RACES_MAX
from tidemill.errors import Unavailable
from tidemill.kernel.commands import Cancel
from tidemill.kernel.events import DeadLettered, NodeCompleted, NodeExpanded, NodeFailed, NodeStarted, ResultDiscarded
from tidemill.stores.contract import Claim
from tidemill.testing.faulty_store import Call, after_s, following, lose_reply, refuse

WHO = ContextVar("who", default="nobody")


@simulated
async def test_a_run_that_is_known_is_never_loaded(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(chain(*(f"n{i}" for i in range(50))))
    await mill.until(lambda: worker.cached(run_id) is None)
    assert [load for load in worker.faulty_store.loads if mill.stream(run_id) in load] == []
    assert (await mill.row(run_id)).status == "COMPLETED"


@simulated
async def test_a_run_of_somebody_else_is_loaded_once(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain(*(f"n{i}" for i in range(50))))
    worker = await mill.process()
    await client.end(run_id)
    assert [load for load in worker.faulty_store.loads if mill.stream(run_id) in load] == [{mill.stream(run_id): 0}]


@simulated
async def test_after_a_conflict_only_the_tail_is_loaded(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a"), call("b", "a", args={"seconds": 9})))
    cached = client.cached(run_id)
    assert cached is not None
    known = cached.seq
    await mill.process(functions={"work": ledger.work})
    await mill.until(lambda: ledger.running == 1)
    grown = len(await mill.events(run_id))
    assert grown > known
    client.faulty_store.loads.clear()
    client.faulty_store.records_loaded = 0
    await client.engine.pause(run_id)
    assert client.engine.turns.races == 1
    assert client.faulty_store.loads == [{mill.stream(run_id): known}]
    assert client.faulty_store.records_loaded == grown - known


@simulated
async def test_items_of_a_map_that_end_together_are_committed_together(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(
        document(call("a", args={"seconds": 1, "value": "{{ item }}"}, map={"over": list(range(50))}))
    )
    await mill.until(lambda: ledger.running == 50)
    before = len(worker.faulty_store.commits)
    run = await worker.end(run_id)
    assert run.outputs == {"a": list(range(50))}
    assert len(await mill.of(run_id, NodeCompleted, "a")) == 51
    assert len(worker.faulty_store.commits) - before <= 4


@simulated
async def test_instant_items_share_commits_too(mill: Cluster) -> None:
    worker = await mill.process(concurrency=64)
    run_id = await worker.start(document(node("a", config="{{ item }}", map={"over": list(range(500))})))
    run = await worker.end(run_id)
    assert run.outputs == {"a": list(range(500))}
    assert len(await mill.of(run_id, NodeExpanded)) == 1
    assert len(worker.faulty_store.commits) <= 60


@simulated
async def test_commits_of_many_runs_share_one_call(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    reference = await worker.publish(document(call("a", args={"seconds": 0.3})))
    runs = [await worker.start(reference) for _ in range(20)]
    await mill.until(lambda: ledger.running == 20)
    calls, commits = worker.faulty_store.calls["commit"], len(worker.faulty_store.commits)
    await asyncio.gather(*(worker.end(run_id) for run_id in runs))
    assert len(worker.faulty_store.commits) - commits == 20
    assert worker.faulty_store.calls["commit"] - calls <= 2


@simulated
async def test_starts_that_gather_share_one_call(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    reference = await client.publish(chain("a"))
    calls = client.faulty_store.calls["commit"]
    runs = await asyncio.gather(*(client.start(reference) for _ in range(30)))
    assert len(set(runs)) == 30
    # The first finds an idle engine and does not wait for the others.
    assert client.faulty_store.calls["commit"] - calls <= 3


@simulated
async def test_a_start_on_an_idle_engine_is_committed_at_once(mill: Cluster) -> None:
    """Without another step of the loop; what it begins does not see the variables of the caller."""
    seen: list[str] = []
    worker = await mill.process(functions={"work": lambda: seen.append(WHO.get())})
    reference = await worker.publish(document(call("a", args={})))
    await asyncio.sleep(1)
    WHO.set("caller")
    starting = worker.engine.start(reference)
    with pytest.raises(StopIteration) as started:
        starting.send(None)
    assert (await worker.end(started.value.value)).status == "COMPLETED" and seen == ["nobody"]


@simulated
async def test_a_start_whose_caller_leaves_during_the_commit_goes_on(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(chain("a", "b"))
    await asyncio.sleep(1)
    worker.faulty_store.next("commit", after_s(2))
    starting = asyncio.ensure_future(worker.engine.start(reference, key="k"))
    await asyncio.sleep(1)
    starting.cancel()
    other = await worker.start(reference)
    assert (await worker.end("k")).status == "COMPLETED"
    assert (await worker.end(other)).status == "COMPLETED"


@simulated
@pytest.mark.parametrize("trouble", [refuse, lose_reply, "conflict"])
async def test_a_start_at_once_survives_what_others_do(mill: Cluster, trouble: Any) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    reference = await worker.publish(chain("a", "b"))
    await asyncio.sleep(1)
    first = following(partial(client.engine.start, reference, key="k")) if trouble == "conflict" else trouble
    worker.faulty_store.next("commit", first)
    assert await worker.start(reference, key="k") == "k"
    assert (await worker.end("k")).status == "COMPLETED"
    assert (await mill.kinds("k")).count("RunCreated") == 1


@simulated
async def test_an_engine_that_closes_during_a_start_answers_it(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(chain("a"))
    await asyncio.sleep(1)
    worker.faulty_store.next("commit", after_s(5))
    starting = asyncio.ensure_future(worker.engine.start(reference))
    await asyncio.sleep(1)
    await worker.stop()
    with pytest.raises(Unavailable):
        await starting


@simulated
async def test_a_chain_is_handed_over_without_claims(mill: Cluster) -> None:
    worker = await mill.process(claim_wait_ms=60_000)
    run = await worker.run(chain(*(f"n{i}" for i in range(100))))
    assert run.status == "COMPLETED"
    assert worker.faulty_store.claimed <= 2


@simulated
async def test_a_worker_keeps_one_successor_and_leaves_the_others_to_all(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(concurrency=1, functions={"work": ledger.work})
    other = await mill.process("w2", concurrency=1, functions={"work": ledger.work})
    run = await worker.run(
        document(call("a"), call("b", "a", args={"seconds": 5}), call("c", "a", args={"seconds": 5}))
    )
    assert run.status == "COMPLETED"
    assert ledger.most == 2
    workers = {event.node: event.worker for event in await mill.of(run.run_id, NodeCompleted)}
    assert {workers["b"], workers["c"]} == {worker.name, other.name}


@simulated
async def test_a_worker_that_is_alone_keeps_what_it_has_room_for(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(concurrency=4, claim_wait_ms=60_000, functions={"work": ledger.work})
    await asyncio.sleep(1)
    wide = [call(f"n{number}", "a", args={"seconds": 1}) for number in range(3)]
    assert (await worker.run(document(node("a"), *wide))).status == "COMPLETED"
    assert (ledger.most, worker.faulty_store.claimed) == (3, 0)
    assert await worker.run(document(node("a"), *wide, *(call(f"m{n}", "a", args={"seconds": 1}) for n in range(9))))
    assert ledger.most == 4
    assert 0 < worker.faulty_store.claimed <= 8


@simulated
async def test_a_worker_that_is_not_alone_leaves_room_to_others(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(concurrency=64, functions={"work": ledger.work})
    other = await mill.process("w2", concurrency=64, functions={"work": ledger.work})
    await asyncio.sleep(6)
    wide = [call(f"n{number}", "a", args={"seconds": 1}) for number in range(20)]
    run = await worker.run(document(node("a"), *wide))
    assert run.status == "COMPLETED"
    assert max(len(commit.keep) for commit in worker.faulty_store.commits + other.faulty_store.commits) == 1


@simulated
async def test_workers_among_others_keep_what_takes_less_than_a_claim(mill: Cluster) -> None:
    """Once it is known that the arms of the diamond end at once, a run stays with the worker that has it."""
    workers = [await mill.process(name) for name in ("w1", "w2")]
    client = await mill.process("client", work=False)
    await asyncio.sleep(6)
    diamond = document(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"))
    for _ in range(8):
        await client.end(await client.start(diamond))
    claimed = sum(worker.faulty_store.claimed for worker in workers)
    run_ids = [await client.start(diamond) for _ in range(8)]
    assert {(await client.end(run_id)).status for run_id in run_ids} == {"COMPLETED"}
    # Of each run only the first job is claimed.
    assert sum(worker.faulty_store.claimed for worker in workers) - claimed == 8
    for run_id in run_ids:
        assert len({event.worker for event in await mill.of(run_id, NodeCompleted)}) == 1


@simulated
async def test_what_is_claimed_while_a_commit_keeps_the_last_place_is_given_back(mill: Cluster, ledger: Ledger) -> None:
    client = await mill.process("client", work=False, functions={"work": ledger.work})
    first = await client.start(document(call("a", args={"seconds": 1})))
    worker = mill.build(concurrency=1, functions={"work": ledger.work})
    second: list[str] = []

    async def claimed_while_another_starts(claim: Call) -> Any:
        leases = await claim()
        assert leases and worker.engine.worker is not None
        worker.engine.worker.handover.is_only_worker = True
        second.append(await worker.start(document(call("b", args={"seconds": 1}))))
        return leases

    worker.faulty_store.next("claim", claimed_while_another_starts)
    await worker.open()
    await mill.until(lambda: bool(second))
    assert [(await client.end(run)).status for run in (first, *second)] == ["COMPLETED", "COMPLETED"]
    assert (ledger.most, worker.faulty_store.fired["claim"]) == (1, 1)
    assert worker.faulty_store.calls["release"] == 1


@simulated
async def test_whoever_starts_a_run_hears_of_it_before_its_first_node_begins(mill: Cluster) -> None:
    order: list[str] = []
    worker = await mill.process(functions={"work": lambda: order.append("node")})
    await asyncio.sleep(1)
    await worker.start(document(call("a")))
    order.append("started")
    await mill.until(lambda: len(order) == 2)
    assert (order, worker.faulty_store.claimed) == (["started", "node"], 0)


@simulated
async def test_commands_on_one_run_are_decided_in_order_and_committed_once(mill: Cluster, ledger: Ledger) -> None:
    """The pause comes first, then the cancel of a paused run; a second cancel finds it cancelled and says nothing."""
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 60})))
    await mill.until(lambda: ledger.running == 1)
    commits = len(worker.faulty_store.commits)
    await asyncio.gather(
        worker.engine.pause(run_id), worker.engine.cancel(run_id, reason="no"), worker.engine.cancel(run_id)
    )
    assert len(worker.faulty_store.commits) == commits + 1
    assert (await mill.kinds(run_id))[-3:] == ["RunPaused", "NodeCancelled", "RunCancelled"]


@simulated
async def test_a_repeated_command_id_is_answered_and_writes_nothing(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 60})))
    command = Cancel(id="c-1", reason="enough")
    for _ in range(3):
        answer = await worker.engine.turns.command(mill.stream(run_id), command)
        assert answer.problem is None
    assert (await mill.kinds(run_id)).count("RunCancelled") == 1


# The turn under trouble: lost races, lost leases, lost replies, and a store that does not answer


async def _worker_in_a_handler(mill: Cluster, ledger: Ledger, name: str = "w1", **options: Any) -> tuple[Process, str]:
    worker = await mill.process(name, functions={"work": ledger.work}, **options)
    run_id = await worker.start(document(call("a", args={"seconds": 4, "value": 1})))
    await mill.until(lambda: ledger.running == 1)
    return worker, run_id


@simulated
async def test_a_conflict_is_decided_again_without_a_second_call(mill: Cluster, ledger: Ledger) -> None:
    worker, run_id = await _worker_in_a_handler(mill, ledger)
    client = await mill.process("client", work=False)
    worker.faulty_store.next("commit", following(lambda: client.engine.pause(run_id, reason="rival")))
    assert (await client.end(run_id)).status == "COMPLETED"
    assert (await mill.kinds(run_id))[2:] == ["RunPaused", "NodeStarted", "NodeCompleted", "RunCompleted"]
    assert worker.engine.turns.races >= 1
    assert ledger.count("a") == 1
    assert await mill.of(run_id, ResultDiscarded) == []


@simulated
async def test_deciding_again_is_bounded(mill: Cluster, ledger: Ledger) -> None:
    """A rival that is always faster: the asker is told that the store is unavailable, and nothing of it is written."""
    _, run_id = await _worker_in_a_handler(mill, ledger)
    client = await mill.process("client", work=False)
    rival = await mill.process("rival", work=False)

    async def toggle() -> None:
        state = await mill.state(run_id)
        await (rival.engine.resume if state.status == "PAUSED" else rival.engine.pause)(run_id)

    client.faulty_store.always("commit", following(toggle))
    with pytest.raises(Unavailable, match="races"):
        await client.engine.cancel(run_id)
    assert client.faulty_store.fired["commit"] == RACES_MAX + 1
    assert (await mill.state(run_id)).live
    client.faulty_store.always("commit", None)
    await client.engine.cancel(run_id)
    assert (await mill.state(run_id)).status == "CANCELLED"


@simulated
async def test_a_lost_reply_leaves_one_result(mill: Cluster, ledger: Ledger) -> None:
    worker, run_id = await _worker_in_a_handler(mill, ledger)
    await asyncio.sleep(1)  # The start is recorded: the next commit is that of the result.
    worker.faulty_store.next("commit", lose_reply)
    run = await worker.end(run_id)
    await asyncio.sleep(60)
    assert worker.faulty_store.fired["commit"] == 1
    assert (run.status, run.outputs) == ("COMPLETED", {"a": 1})
    assert len(await mill.of(run_id, NodeCompleted)) == 1
    assert await mill.of(run_id, ResultDiscarded) == []
    assert ledger.count("a") == 1


@simulated
async def test_a_lost_reply_in_the_middle_of_a_run_leaves_one_result_each(mill: Cluster, ledger: Ledger) -> None:
    """The successors that the commit kept for the worker were leased to it without its knowing: they expire."""
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 2}), call("b", "a"), call("c", "a")))
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(1)
    worker.faulty_store.next("commit", lose_reply)
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    assert {event.node for event in await mill.of(run_id, NodeCompleted)} == {"a", "b", "c"}
    assert len(await mill.of(run_id, NodeCompleted)) == 3
    assert await mill.of(run_id, ResultDiscarded) == []
    assert (ledger.count("a"), ledger.count("b"), ledger.count("c")) == (1, 1, 1)


@simulated
async def test_a_request_that_never_arrived_is_sent_again(mill: Cluster, ledger: Ledger) -> None:
    worker, run_id = await _worker_in_a_handler(mill, ledger)
    worker.faulty_store.next("commit", refuse, refuse, refuse)
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert worker.faulty_store.fired["commit"] == 3
    assert ledger.count("a") == 1


@simulated
async def test_a_start_whose_reply_was_lost_starts_one_run(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    reference = await client.publish(chain("a"))
    client.faulty_store.next("commit", lose_reply, lose_reply)
    run_id = await client.start(reference, key="order-7")
    assert client.faulty_store.fired["commit"] >= 1
    assert (await mill.kinds(run_id)) == ["RunCreated", "NodeScheduled"]
    assert [row.run_id for row in await mill.rows()] == ["order-7"]


@simulated
async def test_a_result_outlasts_a_long_outage(mill: Cluster, ledger: Ledger) -> None:
    worker, run_id = await _worker_in_a_handler(mill, ledger, lease_ms=60_000)
    worker.faulty_store.always("commit", refuse)
    await mill.until(lambda: worker.faulty_store.fired["commit"] > 3 * OUTAGES_MAX)
    (view,) = await mill.jobs(run_id)
    assert view.token, "the job is still in hand"
    worker.faulty_store.always("commit", None)
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"], ledger.count("a")) == ("COMPLETED", 1, 1)
    assert len(await mill.of(run_id, NodeStarted)) == 1


@simulated
async def test_a_client_learns_of_a_long_outage(mill: Cluster, ledger: Ledger) -> None:
    _, run_id = await _worker_in_a_handler(mill, ledger)
    client = await mill.process("client", work=False)
    client.faulty_store.always("commit", refuse)
    with pytest.raises(Unavailable):
        await client.engine.cancel(run_id)
    assert client.faulty_store.fired["commit"] == OUTAGES_MAX + 1
    assert "RunCancelled" not in await mill.kinds(run_id)


@simulated
async def test_an_outage_while_loading_is_an_outage_too(mill: Cluster, ledger: Ledger) -> None:
    _, run_id = await _worker_in_a_handler(mill, ledger)
    client = await mill.process("client", work=False)
    client.faulty_store.next("load", refuse, refuse)
    await client.engine.pause(run_id)
    assert client.faulty_store.fired["load"] == 2
    assert (await mill.state(run_id)).status == "PAUSED"


@pytest.mark.parametrize("lease_ms", [15_000, 60_000])
@simulated
async def test_the_result_of_a_lost_lease_is_discarded(mill: Cluster, lease_ms: int) -> None:
    """The first worker cannot renew; the second takes over; what the first one finds out comes too late.

    It does not matter whether a heartbeat has already told the log of the first attempt.
    """
    slow, fast = Ledger(), Ledger()
    lease_s = lease_ms / 1000
    slowly = {"work": partial(slow.work, seconds=lease_s + 2, value="old")}
    first = await mill.process("w1", functions=slowly, concurrency=1, lease_ms=lease_ms)
    first.faulty_store.always("renew", refuse)
    run_id = await first.start(document(call("a")))
    await mill.until(lambda: slow.running == 1)
    await mill.process("w2", functions={"work": partial(fast.work, seconds=5, value="new")})
    run = await first.end(run_id)
    await asyncio.sleep(30)
    assert first.faulty_store.fired["renew"] > 0
    assert run.outputs == {"a": "new"}
    (discarded,) = await mill.of(run_id, ResultDiscarded)
    assert (discarded.worker, discarded.outcome) == ("w1", "Done")
    assert discarded.reason in ("lease_lost", "stale")
    (completed,) = await mill.of(run_id, NodeCompleted)
    assert completed.worker == "w2" and discarded.token < completed.token
    assert [event.error.code for event in await mill.of(run_id, NodeFailed)] == ["worker_lost"]
    assert (await mill.row(run_id)).late_results == 1


@simulated
async def test_a_late_result_does_not_disturb_others_in_its_commit(mill: Cluster, ledger: Ledger) -> None:
    """One of two results that gathered has lost its lease: the other one counts all the same."""
    worker = await mill.process(functions={"work": ledger.work}, concurrency=2)
    run_id = await worker.start(
        document(call("a", args={"seconds": 3, "value": "a"}), call("b", args={"seconds": 3, "value": "b"}))
    )
    await mill.until(lambda: ledger.running == 2)
    (taken,) = [view for view in await mill.jobs(run_id) if view.job.key.startswith("run/a/")]
    await mill.meddle(run_id, drop=(taken.job.key,))
    await mill.meddle(run_id, jobs=(taken.job,))
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    assert [event.node for event in await mill.of(run_id, ResultDiscarded)] == ["a"]
    assert sorted(event.node for event in await mill.of(run_id, NodeCompleted)) == ["a", "b"]
    assert (ledger.count("a"), ledger.count("b")) == (2, 1)


@simulated
async def test_beginning_under_a_lost_lease_is_refused(mill: Cluster) -> None:
    """An at-most-once handler is not called by a worker that no longer holds the job."""
    early, late = Ledger(), Ledger()
    first = await mill.process("w1", functions={"work": early.work}, concurrency=1)
    reference = await first.publish(document(call("a", delivery="at_most_once")))
    # The worker has inserted the maintenance tasks.
    await asyncio.sleep(1)
    first.faulty_store.always("renew", refuse)
    # The second commit is the one that announces the attempt.
    first.faulty_store.next("commit", lambda call: call(), after_s(20))
    run_id = await first.start(reference)
    await mill.until(lambda: first.faulty_store.fired["commit"] == 2)
    second = await mill.process("w2", functions={"work": late.work})
    run = await second.end(run_id)
    await asyncio.sleep(60)
    assert run.status == "COMPLETED"
    assert (early.count("a"), late.count("a")) == (0, 1)
    assert [event.worker for event in await mill.of(run_id, NodeStarted)] == ["w2"]
    assert await mill.of(run_id, DeadLettered) == []


@simulated
async def test_two_processes_at_one_run_lose_nothing(mill: Cluster, ledger: Ledger) -> None:
    """A wide graph, two workers, every commit a race: each result is committed once."""
    functions = {"work": ledger.work}
    first = await mill.process("w1", functions=functions, concurrency=4)
    second = await mill.process("w2", functions=functions, concurrency=4)
    wide = [call(f"n{i}", "a", args={"seconds": 0.5 + i % 3}) for i in range(24)]
    run = await first.run(document(node("a"), *wide, node("z", *(n["id"] for n in wide))))
    assert run.status == "COMPLETED"
    assert first.engine.turns.races + second.engine.turns.races > 0
    assert len(await mill.of(run.run_id, NodeCompleted)) == 26
    assert len(ledger.calls) == 24


@simulated
async def test_a_claim_that_nobody_heard_of_expires(mill: Cluster, ledger: Ledger) -> None:
    """The jobs of a lost claim reply are leased to nobody: they come back after the lease, as a lost worker's."""
    client = await mill.process("client", work=False)
    run_id = await client.start(document(call("a")))
    await mill.store.claim(Claim(queues=("default",), limit=9, lease_ms=15_000, owner="ghost"))
    worker = await mill.process(functions={"work": ledger.work})
    began = mill.loop.now
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    assert 15 <= mill.loop.now - began <= 17
    assert [event.error.code for event in await mill.of(run_id, NodeFailed)] == ["worker_lost"]
    assert ledger.calls == [(f"{run_id}/a/1/-1", 2)]
