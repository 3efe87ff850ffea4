"""Bugs that others shipped (background/pains.md, section 1), each by its name, each impossible here.

Every test crashes or races at exactly the moment at which the named engine lost or doubled work.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.cluster import Cluster, dying_after, dying_before, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.errors import Unavailable
from tidemill.handlers.contract import NodeContext
from tidemill.kernel.commands import Cancel, Pause, Resume
from tidemill.kernel.events import (
    BlobRef,
    LoopContinued,
    NodeCompleted,
    NodeFailed,
    NodeScheduled,
)
from tidemill.stores.contract import Claim, Commit
from tidemill.testing.faulty_store import lose_reply, refuse

KILLS = {"right before": dying_before, "right after": dying_after}


@simulated
async def test_retry_after_guard(mill: Cluster) -> None:
    """A guard that the first attempt set made every later attempt return an empty success. Here it runs again."""
    calls: list[int] = []

    def flaky(context: NodeContext) -> dict[str, int]:
        calls.append(context.attempt)
        if context.attempt < 3:
            raise ConnectionError("not yet")
        return {"by_attempt": context.attempt}

    worker = await mill.process(functions={"work": flaky})
    run = await worker.run(document(call("a"), node("b", "a", config="{{ a.by_attempt }}")))
    assert calls == [1, 2, 3]
    assert (run.outputs, run.nodes["a"]["attempts"]) == ({"b": 3}, 3)


@pytest.mark.parametrize("kill", KILLS)
@simulated
async def test_guard_before_effect(mill: Cluster, kill: str, ledger: Ledger) -> None:
    """A completion guard set before the rest of the completion left runs stuck for ever when the process died between
    the two. Here the result, the edges, the successors and their jobs are one commit: all of it or nothing."""
    first = await mill.process("w1", functions={"work": ledger.work})
    run_id = await first.start(
        document(call("a", args={"seconds": 1}), call("b", "a"), call("c", "a"), call("d", "b", "c"))
    )
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(0.8)  # The start is recorded.
    first.faulty_store.next("commit", KILLS[kill](first))
    await asyncio.sleep(2)
    assert first.faulty_store.dead
    committed = len(await mill.of(run_id, NodeCompleted, "a"))
    assert committed == (kill == "right after")
    assert len(await mill.of(run_id, NodeScheduled)) == (3 if committed else 1)
    assert len(await mill.jobs(run_id)) == (2 if committed else 1)
    second = await mill.process("w2", functions={"work": ledger.work})
    run = await second.end(run_id)
    assert run.status == "COMPLETED"
    assert ledger.count("a") == (1 if committed else 2)
    assert len(await mill.of(run_id, NodeCompleted)) == 4


@pytest.mark.parametrize("first_done", ["b", "c"])
@simulated
async def test_join_twice(mill: Cluster, first_done: str, ledger: Ledger) -> None:
    """The join ran once per arriving branch. Here it fires once, whoever comes first, also with two workers at once
    and a reply that was lost."""
    workers = [await mill.process(f"w{i}", functions={"work": ledger.work}, concurrency=1) for i in range(2)]
    seconds = {"b": 1, "c": 1, first_done: 0.5}
    run_id = await workers[0].start(
        document(
            node("a"),
            call("b", "a", args={"seconds": seconds["b"]}),
            call("c", "a", args={"seconds": seconds["c"]}),
            call("join", "b", "c"),
            call("z", "join"),
        )
    )
    await mill.until(lambda: ledger.running == 2)
    for worker in workers:
        worker.faulty_store.next("commit", lose_reply)
    run = await workers[0].end(run_id)
    assert run.status == "COMPLETED"
    assert (ledger.count("join"), ledger.count("z"), run.nodes["join"]["visits"]) == (1, 1, 1)
    assert len(await mill.of(run_id, NodeScheduled, "join")) == 1


@simulated
async def test_loop_consume_key(mill: Cluster, ledger: Ledger) -> None:
    """Tokens were consumed under a key without the pass, so the second pass counted as a duplicate and the run never
    ended. Here every pass has its own visit, and the counter comes to zero."""
    worker = await mill.process(functions={"work": ledger.quick})
    run = await worker.run(
        document(
            node("start"),
            call("body", "start"),
            call("side", "body"),
            call(
                "end", "body", "side", loop={"condition": "iteration < 4", "max_iterations": 9, "loop_back_to": "body"}
            ),
            node("out", "end", config="{{ iteration }}"),
        )
    )
    assert (run.status, run.counter) == ("COMPLETED", 0)
    for name in ("body", "side", "end"):
        assert run.nodes[name]["visits"] == 5
        keys = [key for key, _ in ledger.calls if f"/{name}/" in key]
        assert keys == [f"{run.run_id}/{name}/{visit}/-1" for visit in range(1, 6)]
    assert [event.iteration for event in await mill.of(run.run_id, LoopContinued)] == [1, 2, 3, 4]
    counters = [event.counter for event in await mill.of(run.run_id, NodeCompleted)]
    assert all(counter > 0 for counter in counters[:-1]) and counters[-1] == 0


@simulated
async def test_lost_signal(mill: Cluster) -> None:
    """A completion that was popped from a list died with its consumer. Here a job is only ever leased: whoever claims
    the timer and dies leaves it behind for the next."""
    worker = await mill.process("w1")
    run_id = await worker.start(document(node("s", type="sleep", config={"seconds": 10}), node("b", "s")))
    await asyncio.sleep(1)
    worker.kill()
    await asyncio.sleep(10)
    for _ in range(3):
        leases = await mill.store.claim(Claim(queues=("system",), limit=9, lease_ms=2_000, owner="dies"))
        assert [lease.key for lease in leases] == ["wake/s/1/-1"]
        await asyncio.sleep(2)
    second = await mill.process("w2")
    run = await second.end(run_id)
    assert run.status == "COMPLETED"
    assert len(await mill.of(run_id, NodeCompleted, "s")) == 1


@simulated
async def test_blob_overwrite(mill: Cluster, ledger: Ledger) -> None:
    """Two results at once loaded the whole run, edited it and wrote it back, one over the other. Here each is an event
    against a version; the loser decides again and both are there. Large values lie under their content, so the
    second one cannot overwrite the first."""
    big = {"b": "B" * 70_000, "c": "C" * 70_000}
    workers = [await mill.process(f"w{i}", functions={"work": ledger.work}, concurrency=1) for i in range(2)]
    run = await workers[0].run(
        document(
            node("a"),
            *(call(name, "a", args={"seconds": 1, "value": value}) for name, value in big.items()),
            node("z", "b", "c", config=["{{ b.output | length }}", "{{ c.output | first }}"]),
        )
    )
    assert run.outputs == {"z": [70_000, "C"]}
    assert {name: run.nodes[name]["output"] for name in big} == big
    assert sum(worker.engine.turns.races for worker in workers) > 0
    refs = [event.output for event in await mill.of(run.run_id, NodeCompleted) if event.node in big]
    assert len({ref.digest for ref in refs if isinstance(ref, BlobRef)}) == 2


@pytest.mark.parametrize("kill", KILLS)
@simulated
async def test_ack_before_requeue(mill: Cluster, kill: str, ledger: Ledger) -> None:
    """A retry acknowledged the message and published it again afterwards; a crash in between lost the task. Here the
    acknowledgement, the failure and the job of the next attempt are one commit."""

    async def flaky(context: NodeContext) -> str:
        ledger.quick(context)
        await asyncio.sleep(1)
        if context.attempt < 2:
            raise ConnectionError("try again")
        return "done"

    first = await mill.process("w1", functions={"work": flaky})
    run_id = await first.start(document(call("a", retry={"max_attempts": 2, "backoff_seconds": 5})))
    await mill.until(lambda: ledger.count("a") == 1)
    await asyncio.sleep(0.8)  # The start is recorded.
    first.faulty_store.next("commit", KILLS[kill](first))
    await asyncio.sleep(2)
    assert first.faulty_store.dead
    (view,) = await mill.jobs(run_id)
    assert view.job.key == "run/a/1/-1"
    recorded = await mill.of(run_id, NodeFailed)
    if kill == "right after":
        assert (len(recorded), view.token) == (1, 0) and view.job.ready_at_ms > 1_000_000 + 4_000
    else:
        assert recorded == [] and view.token > 0
    second = await mill.process("w2", functions={"work": flaky})
    run = await second.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"a": "done"})
    commits = [commit for faulty_store in (first.faulty_store, second.faulty_store) for commit in faulty_store.commits]
    acked = [commit for commit in commits if commit.acks and not any(_ends(commit))]
    assert all(commit.jobs or commit.records for commit in acked)


def _ends(commit: Commit) -> list[bool]:
    return [b"RunCompleted" in record for record in commit.records]


@simulated
async def test_lease_released_early(mill: Cluster, ledger: Ledger) -> None:
    """A resume released the lease before anything ran again. Here the lease ends in the very commit that records the
    outcome, never before: at every moment of the attempt the job is there and held."""
    worker = await mill.process(functions={"work": ledger.work}, lease_ms=6_000)
    run_id = await worker.start(document(call("a", args={"seconds": 30}), call("b", "a", args={"seconds": 3})))
    await mill.until(lambda: ledger.running == 1)
    for _ in range(29):
        await asyncio.sleep(1)
        (view,) = await mill.jobs(run_id)
        assert view.lease_expires_at_ms is not None and view.lease_expires_at_ms > mill.now_ms()
    assert worker.faulty_store.calls["release"] == 0
    run = await worker.end(run_id)
    assert (run.status, len(ledger.calls)) == ("COMPLETED", 2)
    acks = [(commit, key) for commit in worker.faulty_store.commits for key, _ in commit.acks]
    for commit, key in acks:
        assert any(b"NodeCompleted" in record for record in commit.records), key


@pytest.mark.parametrize("trouble", ["none", "refused", "reply lost"])
@simulated
async def test_log_drop(mill: Cluster, trouble: str, ledger: Ledger) -> None:
    """Events that could not be flushed were dropped on purpose. Here whatever was acknowledged is in the log, and what
    was not acknowledged is there at most once."""
    worker = await mill.process(functions={"work": ledger.work})
    client = await mill.process("client", work=False)
    acknowledged: list[str] = []
    asked: list[str] = []
    troubles = {"none": [], "refused": [refuse, refuse], "reply lost": [lose_reply]}[trouble]
    run_id = await client.start(document(call("a", args={"seconds": 100})), key="logged")
    acknowledged.append("start:logged")
    await mill.until(lambda: ledger.running == 1)
    for number in range(12):
        command = Pause(id=f"p{number}") if number % 2 == 0 else Resume(id=f"p{number}")
        client.faulty_store.next("commit", *troubles)
        asked.append(f"p{number}")
        try:
            answer = await client.engine.turns.command(mill.stream(run_id), command)
        except Unavailable:
            continue
        assert answer.problem is None
        acknowledged.append(f"p{number}")
    client.faulty_store.always("commit", refuse)
    with pytest.raises(Unavailable):
        await client.engine.turns.command(mill.stream(run_id), Cancel(id="never"))
    commands = [event.command for event in await mill.events(run_id) if event.command]
    assert len(commands) == len(set(commands))
    assert set(acknowledged) <= set(commands) <= {*asked, "start:logged"}
    assert client.faulty_store.fired["commit"] >= len(troubles) * 12
    assert (await worker.end(run_id)).status == "COMPLETED"
