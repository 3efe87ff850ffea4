"""The turn's economy: what is loaded, how many commits there are, and what they share."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.engine.door import Call
from tests.engine.kit import Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import chain, document, node
from tidemill.kernel.commands import Cancel
from tidemill.kernel.events import NodeCompleted, NodeExpanded


@simulated
async def test_a_run_that_is_known_is_never_loaded(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await worker.start(chain(*(f"n{i}" for i in range(50))))
    await mill.until(lambda: worker.cached(run_id) is None)
    assert [load for load in worker.door.loads if mill.stream(run_id) in load] == []
    assert (await mill.row(run_id)).status == "COMPLETED"


@simulated
async def test_a_run_of_somebody_else_is_loaded_once(mill: Mill) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain(*(f"n{i}" for i in range(50))))
    worker = await mill.process()
    await client.end(run_id)
    assert [load for load in worker.door.loads if mill.stream(run_id) in load] == [{mill.stream(run_id): 0}]


@simulated
async def test_after_a_conflict_only_the_tail_is_loaded(mill: Mill) -> None:
    ledger = Ledger()
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a"), call("b", "a", args={"seconds": 9})))
    cached = client.cached(run_id)
    assert cached is not None
    known = cached.seq
    await mill.process(functions={"work": ledger.work})
    await mill.until(lambda: ledger.running == 1)
    grown = len(await mill.events(run_id))
    assert grown > known
    client.door.loads.clear()
    client.door.records_loaded = 0
    await client.engine.pause(run_id)
    assert client.engine.turns.races == 1
    assert client.door.loads == [{mill.stream(run_id): known}]
    assert client.door.records_loaded == grown - known


@simulated
async def test_items_of_a_map_that_end_together_are_committed_together(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(
        document(call("a", args={"seconds": 1, "value": "{{ item }}"}, map={"over": list(range(50))}))
    )
    await mill.until(lambda: ledger.running == 50)
    before = len(worker.door.commits)
    run = await worker.end(run_id)
    assert run.outputs == {"a": list(range(50))}
    assert len(await mill.of(run_id, NodeCompleted, "a")) == 51
    assert len(worker.door.commits) - before <= 4
    assert worker.engine.turns.gathered >= 45


@simulated
async def test_instant_items_share_commits_too(mill: Mill) -> None:
    worker = await mill.process(concurrency=64)
    run_id = await worker.start(document(node("a", config="{{ item }}", map={"over": list(range(500))})))
    run = await worker.end(run_id)
    assert run.outputs == {"a": list(range(500))}
    assert len(await mill.of(run_id, NodeExpanded)) == 1
    assert len(worker.door.commits) <= 60


@simulated
async def test_commits_of_many_runs_share_one_call(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    reference = await worker.publish(document(call("a", args={"seconds": 4})))
    runs = [await worker.start(reference) for _ in range(20)]
    await mill.until(lambda: ledger.running == 20)
    calls, commits = worker.door.calls["commit"], len(worker.door.commits)
    await asyncio.gather(*(worker.end(run_id) for run_id in runs))
    assert len(worker.door.commits) - commits == 20
    assert worker.door.calls["commit"] - calls <= 2


@simulated
async def test_starts_that_gather_share_one_call(mill: Mill) -> None:
    client = await mill.process("client", work=False)
    reference = await client.publish(chain("a"))
    calls = client.door.calls["commit"]
    runs = await asyncio.gather(*(client.start(reference) for _ in range(30)))
    assert len(set(runs)) == 30
    assert client.door.calls["commit"] - calls <= 2


@simulated
async def test_a_chain_is_handed_over_without_claims(mill: Mill) -> None:
    worker = await mill.process(claim_wait_ms=60_000)
    run = await worker.run(chain(*(f"n{i}" for i in range(100))))
    assert run.status == "COMPLETED"
    assert worker.door.claimed <= 2


@simulated
async def test_a_worker_keeps_one_successor_and_leaves_the_others_to_all(mill: Mill) -> None:
    ledger = Ledger()
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
async def test_a_worker_that_is_alone_keeps_what_it_has_room_for(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(concurrency=4, claim_wait_ms=60_000, functions={"work": ledger.work})
    await asyncio.sleep(1)
    wide = [call(f"n{number}", "a", args={"seconds": 1}) for number in range(3)]
    assert (await worker.run(document(node("a"), *wide))).status == "COMPLETED"
    assert (ledger.most, worker.door.claimed) == (3, 0)
    assert await worker.run(document(node("a"), *wide, *(call(f"m{n}", "a", args={"seconds": 1}) for n in range(9))))
    assert ledger.most == 4
    assert 0 < worker.door.claimed <= 8


@simulated
async def test_a_worker_that_is_not_alone_leaves_room_to_others(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(concurrency=64, functions={"work": ledger.work})
    other = await mill.process("w2", concurrency=64, functions={"work": ledger.work})
    await asyncio.sleep(6)
    wide = [call(f"n{number}", "a", args={"seconds": 1}) for number in range(20)]
    run = await worker.run(document(node("a"), *wide))
    assert run.status == "COMPLETED"
    assert max(len(commit.keep) for commit in worker.door.commits + other.door.commits) == 1


@simulated
async def test_what_is_claimed_while_a_commit_keeps_the_last_place_is_given_back(mill: Mill) -> None:
    ledger = Ledger()
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

    worker.door.next("claim", claimed_while_another_starts)
    await worker.open()
    await mill.until(lambda: bool(second))
    assert [(await client.end(run)).status for run in (first, *second)] == ["COMPLETED", "COMPLETED"]
    assert (ledger.most, worker.door.fired["claim"]) == (1, 1)
    assert worker.door.calls["release"] == 1


@simulated
async def test_whoever_starts_a_run_hears_of_it_before_its_first_node_begins(mill: Mill) -> None:
    order: list[str] = []
    worker = await mill.process(functions={"work": lambda: order.append("node")})
    await asyncio.sleep(1)
    await worker.start(document(call("a")))
    order.append("started")
    await mill.until(lambda: len(order) == 2)
    assert (order, worker.door.claimed) == (["started", "node"], 0)


@simulated
async def test_ended_runs_leave_the_cache(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await worker.start(chain("a"))
    await mill.until(lambda: worker.engine.worker is not None and worker.engine.worker.finished == 1)
    assert worker.cached(run_id) is None


@simulated
async def test_commands_on_one_run_are_decided_in_order_and_committed_once(mill: Mill) -> None:
    """The pause comes first, then the cancel of a paused run; a second cancel finds it cancelled and says nothing."""
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 60})))
    await mill.until(lambda: ledger.running == 1)
    commits = len(worker.door.commits)
    await asyncio.gather(
        worker.engine.pause(run_id), worker.engine.cancel(run_id, reason="no"), worker.engine.cancel(run_id)
    )
    assert len(worker.door.commits) == commits + 1
    assert (await mill.kinds(run_id))[-3:] == ["RunPaused", "NodeCancelled", "RunCancelled"]


@simulated
async def test_a_repeated_command_id_is_answered_and_writes_nothing(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 60})))
    command = Cancel(id="c-1", reason="enough")
    for _ in range(3):
        answer = await worker.engine.turns.command(mill.stream(run_id), command)
        assert answer.problem is None
    assert (await mill.kinds(run_id)).count("RunCancelled") == 1
