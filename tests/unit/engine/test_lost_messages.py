"""Messages between runs that are late, lost or delivered by somebody who knows too little: each arrives, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fixtures.approvers import child, ended, signal, waits
from tests.fixtures.cluster import Cluster, Process, dying_after, dying_before, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.kernel.events import ChildFinished, ChildStarted, RunCreated
from tidemill.stores.contract import Commit
from tidemill.testing.faulty_store import following, lose_reply


async def _publish(process: Process, *nodes: Any, **top: Any) -> None:
    await process.publish(document(*nodes, name="kid", **top))


def _on_commit(process: Process, run_id: str, trouble: Any, *, number: int = 1) -> None:
    """The process's nth commit to a run goes wrong."""
    inner, seen = process.faulty_store.commit, {"count": 0, "armed": True}

    async def commit(commits: Sequence[Commit]) -> Any:
        changes = any(each.stream.key == run_id and (each.records or each.acks) for each in commits)
        seen["count"] += changes
        if changes and seen["armed"] and seen["count"] == number:
            seen["armed"] = False
            process.faulty_store.fired["chosen"] += 1
            return await trouble(lambda: inner(commits))
        return await inner(commits)

    process.faulty_store.commit = commit  # type: ignore[method-assign]


async def _job(mill: Cluster, run_id: str, kind: str) -> str:
    """The key of the run's job of a kind, as soon as there is one."""
    for _ in range(2_000):
        for view in await mill.jobs(run_id):
            if view.job.key.startswith(f"{kind}/"):
                return view.job.key
        await asyncio.sleep(0.005)
    raise AssertionError(f"{run_id} has no job {kind}")


@pytest.mark.parametrize("moment", ["before the child", "after the child", "before it is noted", "after it is noted"])
@simulated
async def test_a_worker_that_dies_while_it_starts_a_child(mill: Cluster, moment: str) -> None:
    client = await mill.process("client", work=False)
    await _publish(client, node("a", config="{{ inputs }}"), node("b", "a"), outputs="{{ a.output }}")
    await client.start(document(child("c", "kid", inputs=7)), key="r")
    worker = mill.build("w1")
    when, of = moment.split(" ", 1)
    dying = dying_before(worker) if when == "before" else dying_after(worker)
    # The parent's first commit by a worker says that it waits, the second that its child exists.
    _on_commit(worker, "r.c.1" if of == "the child" else "r", dying, number=1 if of == "the child" else 2)
    await worker.open()
    await mill.until(lambda: worker.faulty_store.dead, within_s=60)
    assert bool(await mill.events("r.c.1")) is (moment != "before the child")
    survivor = await mill.process("w2")
    run = await survivor.end("r")
    assert (run.status, run.outputs) == ("COMPLETED", {"c": 7})
    assert len(await mill.of("r.c.1", RunCreated)) == 1
    assert len(await mill.of("r", ChildStarted)) == len(await mill.of("r", ChildFinished)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
@simulated
async def test_a_worker_that_dies_while_it_reports_an_end(mill: Cluster, when: str) -> None:
    """The report is delivered again, which changes nothing."""
    client = await mill.process("client", work=False)
    worker = await mill.process("w1")
    await _publish(worker, signal("go"))
    await worker.start(document(child("c", "kid"), signal("later", "c")), key="r")
    await waits(mill, "r.c.1", "go")
    _on_commit(worker, "r", dying_before(worker) if when == "before" else dying_after(worker))
    await client.engine.signal("r.c.1", "go", 1)
    await mill.until(lambda: worker.faulty_store.dead, within_s=60)
    survivor = await mill.process("w2")
    await waits(mill, "r", "later")
    await asyncio.sleep(30)
    assert len(await mill.of("r", ChildFinished)) == 1
    assert await mill.jobs("r.c.1") == []
    await client.engine.signal("r", "later", 1)
    assert (await survivor.end("r")).status == "COMPLETED"


@simulated
async def test_a_worker_that_dies_while_it_closes_a_child(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process("w1")
    await _publish(worker, signal("go"))
    await worker.start(document(child("c", "kid")), key="r")
    await waits(mill, "r.c.1", "go")
    _on_commit(worker, "r.c.1", dying_before(worker))
    await client.engine.cancel("r")
    await mill.until(lambda: worker.faulty_store.dead, within_s=60)
    await mill.process("w2")
    assert await ended(mill, "r.c.1", within_s=60) == "CANCELLED"


@simulated
async def test_whoever_never_learns_that_the_child_was_started_does_not_start_another(mill: Cluster) -> None:
    worker = mill.build("w1")
    _on_commit(worker, "r.c.1", lose_reply)
    await worker.open()
    await _publish(worker, node("a", config=1))
    run = await worker.run(document(child("c", "kid")), key="r")
    assert worker.faulty_store.fired["chosen"] == 1
    assert run.outputs == {"c": {"a": 1}}
    assert len(await mill.of("r.c.1", RunCreated)) == 1


@simulated
async def test_a_parent_that_is_cancelled_while_its_child_is_started_does_not_leave_it_behind(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = mill.build("w1")
    _on_commit(worker, "r.c.1", following(lambda: client.engine.cancel("r")))
    await _publish(client, signal("go"))
    await client.start(document(child("c", "kid")), key="r")
    await worker.open()
    assert await ended(mill, "r.c.1", within_s=5) == "CANCELLED"
    assert worker.faulty_store.fired["chosen"] == 1


@simulated
async def test_a_wish_that_was_in_hand_when_the_parent_was_paused_is_kept_for_later(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = mill.build("w1", lease_ms=3_000)
    _on_commit(worker, "r.c.1", dying_before(worker))
    await _publish(client, node("a", config=1))
    await client.start(document(child("c", "kid")), key="r")
    await worker.open()
    await mill.until(lambda: worker.faulty_store.dead, within_s=60)
    await client.engine.pause("r")
    assert await _job(mill, "r", "child"), "a dead worker still holds it"
    survivor = await mill.process("w2")
    await asyncio.sleep(60)
    assert await mill.events("r.c.1") == []
    await client.engine.resume("r")
    assert (await survivor.end("r")).outputs == {"c": {"a": 1}}


@simulated
async def test_a_run_that_only_has_the_childs_name_is_not_closed_with_the_parent(mill: Cluster) -> None:
    """The parent is cancelled before anybody could tell it that the name is taken."""
    client = await mill.process("client", work=False)
    worker = mill.build("w1")
    _on_commit(worker, "r", dying_before(worker), number=2)
    await _publish(client, signal("go"))
    await client.start("kid", key="r.c.1")
    await client.start(document(child("c", "kid")), key="r")
    await worker.open()
    await mill.until(lambda: worker.faulty_store.dead, within_s=60)
    await client.engine.cancel("r")
    assert await _job(mill, "r", "close")
    await mill.process("w2")
    await asyncio.sleep(60)
    assert await mill.jobs("r") == []
    assert (await mill.state("r.c.1")).live


@simulated
async def test_a_lost_report_is_noticed_by_the_keeper_of_the_parent(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process("w1")
    await _publish(worker, signal("go"))
    await worker.start(document(child("c", "kid")), key="r")
    await waits(mill, "r.c.1", "go")
    worker.kill()
    await client.engine.signal("r.c.1", "go", 5)
    await mill.meddle("r.c.1", drop=(await _job(mill, "r.c.1", "report"),))
    assert (await mill.state("r")).peek("c").status == "WAITING"
    survivor = await mill.process("w2")
    began = mill.loop.now
    assert (await survivor.end("r")).outputs == {"c": {"go": 5}}
    assert mill.loop.now - began <= 25
    assert len(await mill.of("r", ChildFinished)) == 1


@simulated
async def test_a_lost_report_about_an_item_is_noticed_too(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process("w1")
    await _publish(worker, signal("go"))
    await worker.start(document(child("m", "kid", map={"over": [1, 2]})), key="r")
    for index in (0, 1):
        await waits(mill, f"r.m.1.{index}", "go")
    worker.kill()
    for index in (0, 1):
        await client.engine.signal(f"r.m.1.{index}", "go", index)
        await mill.meddle(f"r.m.1.{index}", drop=(await _job(mill, f"r.m.1.{index}", "report"),))
    survivor = await mill.process("w2")
    assert (await survivor.end("r")).outputs == {"m": [{"go": 0}, {"go": 1}]}


@simulated
async def test_a_lost_close_is_noticed_by_the_keeper_of_the_child(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process("w1")
    await _publish(worker, signal("go"))
    await worker.start(document(child("c", "kid"), child("d", "kid", close="abandon")), key="r")
    for name in ("r.c.1", "r.d.1"):
        await waits(mill, name, "go")
    worker.kill()
    await client.engine.cancel("r")
    await mill.meddle("r", drop=(await _job(mill, "r", "close"),))
    assert await mill.jobs("r") == []
    await mill.process("w2")
    assert await ended(mill, "r.c.1", within_s=60) == "CANCELLED"
    await asyncio.sleep(60)
    assert (await mill.state("r.d.1")).live


@simulated
async def test_a_lost_wish_for_a_child_comes_back(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = mill.build("w1")
    _on_commit(worker, "r.c.1", dying_before(worker))
    await _publish(client, node("a", config=1))
    await client.start(document(child("c", "kid")), key="r")
    await worker.open()
    await mill.until(lambda: worker.faulty_store.dead, within_s=60)
    await mill.meddle("r", drop=(await _job(mill, "r", "child"),))
    survivor = await mill.process("w2")
    assert (await survivor.end("r")).outputs == {"c": {"a": 1}}


# Delivered by somebody who knows too little


@simulated
async def test_a_worker_with_an_old_picture_of_the_child_still_reports_its_end(mill: Cluster, ledger: Ledger) -> None:
    """It ran the child's first node and knows nothing of the rest, which another worker ran."""
    old = await mill.process("old", functions={"work": ledger.work}, queues=("first",))
    await _publish(old, call("a", queue="first"), call("b", "a", queue="second", args={"seconds": 3}))
    await old.start(document(child("c", "kid", queue="first"), node("z", "c", queue="first")), key="r")
    await mill.until(lambda: ledger.count("a") == 1)
    await asyncio.sleep(1)
    known = old.cached("r.c.1")
    assert known is not None and known.live
    # The other one does nodes of the second queue, and nothing else: it leaves every message to the first.
    other = mill.build("other", functions={"work": ledger.work}, queues=("second",), audit_every_ms=10**9)
    _serve_only(other, "second")
    await other.open()
    began = mill.loop.now
    assert (await old.end("r")).status == "COMPLETED"
    assert mill.loop.now - began <= 6, "only the keeper noticed"


@simulated
async def test_a_worker_with_an_old_picture_of_the_parent_still_closes_its_child(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process("w1", audit_every_ms=10**9)
    await _publish(worker, signal("go"))
    await worker.start(document(child("c", "kid")), key="r")
    await waits(mill, "r.c.1", "go")
    assert (known := worker.cached("r")) is not None and known.peek("c").wait is not None
    await client.engine.cancel("r")
    assert await ended(mill, "r.c.1", within_s=10) == "CANCELLED"


def _serve_only(process: Process, queue: str) -> None:
    """Let a worker claim from one queue, without the system's, which every worker serves."""
    assert process.engine.worker is not None
    process.engine.worker._queues = frozenset({queue})
