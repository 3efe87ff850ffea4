"""Nobody decides: what happens then, when it happens, and that it happens also if no worker was there at the time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.door import following
from tests.engine.kit import Mill, Process, simulated
from tests.engine.people import code_of, human, waits
from tests.kernel.authoring import document, node
from tidemill.kernel.events import ApprovalDecided, ApprovalEscalated, ApprovalExpired, RunRepaired

NODES = (node("no", "ok"), node("yes", "ok"))


def _document(**config: Any) -> dict[str, Any]:
    return document(human("ok", rejection_path=["no"], **config), *NODES)


async def _asked(mill: Mill, process: Process, **config: Any) -> str:
    run_id = await process.start(_document(**config))
    await waits(mill, run_id, "ok")
    return run_id


async def _row(process: Process, run_id: str) -> Any:
    (row,) = (await process.engine.approvals.find([f"run:{run_id}"]))[0]
    return row


@pytest.mark.parametrize(("verb", "way"), [("approve", "yes"), ("reject", "no")])
@simulated
async def test_time_decides(mill: Mill, verb: str, way: str) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, timeout_hours=0.5, on_timeout=verb)
    run = await worker.end(run_id)
    assert mill.loop.now - 1_000 == pytest.approx(1_800, abs=2)
    assert (run.status, set(run.outputs)) == ("COMPLETED", {way})
    assert run.nodes["ok"]["output"]["decided_by"] == "system"
    (decided,) = await mill.of(run_id, ApprovalDecided)
    assert (decided.decision, decided.by) == (verb, "system")
    row = await _row(worker, run_id)
    assert (row.status, row.decided_by) == ("decided", "system")
    assert await code_of(worker.engine.decide(run_id, "ok", "changes", actor="ada")) in (
        "decision_conflict",
        "changes_not_possible",
    )


@simulated
async def test_without_another_word_time_fails_the_node(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, timeout_seconds=30)
    run = await worker.end(run_id)
    assert run.error is not None and (run.status, run.error["code"]) == ("FAILED", "approval_expired")
    assert len(await mill.of(run_id, ApprovalExpired)) == 1
    assert (await _row(worker, run_id)).status == "expired"
    assert run.nodes["ok"]["attempts"] == 1


@simulated
async def test_a_fresh_time_begins_when_the_node_is_retried(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, timeout_seconds=30)
    await worker.end(run_id)
    await asyncio.sleep(500)
    await worker.engine.retry(run_id)
    await waits(mill, run_id, "ok")
    row = await _row(worker, run_id)
    assert row.status == "pending" and row.expires_ms == pytest.approx(mill.now_ms() + 30_000, abs=500)
    await worker.engine.decide(run_id, "ok", "approve", actor="ada")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_others_are_asked_who_have_as_much_time(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await _asked(
        mill,
        worker,
        approvers=["user:ada"],
        timeout_seconds=60,
        on_timeout="escalate",
        escalate_to=["user:boss"],
    )
    await asyncio.sleep(61)
    (escalated,) = await mill.of(run_id, ApprovalEscalated)
    row = await _row(worker, run_id)
    assert (row.status, row.approvers, row.escalated) == ("pending", ("user:boss",), True)
    assert row.expires_ms == escalated.at_ms + 60_000
    find = worker.engine.approvals.find
    assert (await find(["status:pending", "approver:user:boss"]))[0] == [row]
    assert (await find(["status:pending", "approver:user:ada"]))[0] == []
    assert await code_of(worker.engine.decide(run_id, "ok", "approve", actor="ada")) == "approver_not_allowed"
    await worker.engine.decide(run_id, "ok", "approve", actor="boss")
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_when_the_others_do_not_decide_either_it_is_over(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await _asked(mill, worker, timeout_seconds=60, on_timeout="escalate", escalate_to=["user:boss"])
    run = await worker.end(run_id)
    assert run.error is not None and run.error["code"] == "approval_expired"
    assert mill.loop.now - 1_000 == pytest.approx(120, abs=3)
    assert len(await mill.of(run_id, ApprovalEscalated)) == len(await mill.of(run_id, ApprovalExpired)) == 1


@pytest.mark.parametrize("on_timeout", ["approve", "reject", "fail", "escalate"])
@simulated
async def test_the_time_passes_also_when_no_worker_is_there(mill: Mill, on_timeout: str) -> None:
    client = await mill.process("client", work=False)
    worker = await mill.process()
    to = {"escalate_to": ["user:boss"]} if on_timeout == "escalate" else {}
    run_id = await _asked(mill, worker, timeout_seconds=60, on_timeout=on_timeout, **to)
    worker.kill()
    await asyncio.sleep(1_000)
    assert (await _row(client, run_id)).status == "pending"
    late = await mill.process("late")
    await asyncio.sleep(5)
    row = await _row(client, run_id)
    if on_timeout == "escalate":
        assert (row.status, row.escalated) == ("pending", True)
        assert row.expires_ms == pytest.approx(mill.now_ms() + 60_000, abs=6_000)
        assert (await late.end(run_id)).status == "FAILED"
    else:
        expected = "expired" if on_timeout == "fail" else "decided"
        assert row.status == expected
        assert (await late.end(run_id)).status == ("FAILED" if on_timeout == "fail" else "COMPLETED")


@simulated
async def test_whoever_decides_before_the_timer_is_taken_is_in_time(mill: Mill) -> None:
    """No worker was there when the time was over, so nothing is in the log: the first word in it wins."""
    client = await mill.process("client", work=False)
    worker = await mill.process()
    run_id = await _asked(mill, worker, timeout_seconds=60)
    worker.kill()
    await asyncio.sleep(1_000)
    await client.engine.decide(run_id, "ok", "approve", actor="ada")
    assert await mill.jobs(run_id) and all(view.job.key.startswith("run/") for view in await mill.jobs(run_id))
    late = await mill.process("late")
    assert (await late.end(run_id)).status == "COMPLETED"
    assert await mill.of(run_id, ApprovalExpired) == []


@pytest.mark.parametrize("first", ["decision", "timer"])
@simulated
async def test_decision_and_expiry_exclude_each_other(mill: Mill, first: str) -> None:
    """Both are on their way at the same moment; one commits just before the other."""
    client = await mill.process("client", work=False)
    worker = await mill.process()
    run_id = await _asked(mill, worker, timeout_seconds=60)

    async def decide() -> None:
        await client.engine.decide(run_id, "ok", "approve", actor="ada")

    if first == "decision":
        worker.door.next("commit", following(decide))
        assert (await worker.end(run_id)).status == "COMPLETED"
        assert worker.door.fired["commit"] == 1
        assert (await _row(client, run_id)).status == "decided"
        return

    async def expire() -> None:
        await asyncio.sleep(70)

    client.door.next("commit", following(expire))
    assert await code_of(decide()) == "approval_expired"
    assert client.door.fired["commit"] == 1
    assert (await _row(client, run_id)).status == "expired"


@simulated
async def test_a_decision_takes_its_timer_with_it(mill: Mill) -> None:
    worker = await mill.process(queues=("other",))
    run_id = await worker.start(
        document(human("ok", node={"queue": "other"}, timeout_hours=1), node("z", "ok", queue="nobody"))
    )
    await waits(mill, run_id, "ok")
    assert [view.job.key for view in await mill.jobs(run_id)] == ["expire/ok/1/-1"]
    await worker.engine.decide(run_id, "ok", "approve", actor="ada")
    assert [view.job.key for view in await mill.jobs(run_id)] == ["run/z/1/-1"]
    assert await mill.of(run_id, RunRepaired) == []


@simulated
async def test_a_node_with_a_time_out_of_its_own_uses_it_when_its_config_has_none(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(human("ok", node={"timeout_seconds": 20}), defaults={"timeout_seconds": 5, "retry": {}})
    )
    run = await worker.end(run_id)
    assert run.error is not None and run.error["code"] == "approval_expired"
    assert mill.loop.now - 1_000 == pytest.approx(20, abs=2)


@simulated
async def test_a_paused_run_still_takes_decisions_and_time_goes_on(mill: Mill) -> None:
    worker = await mill.process()
    decided = await _asked(mill, worker, timeout_seconds=60)
    expiring = await _asked(mill, worker, timeout_seconds=60)
    for run_id in (decided, expiring):
        await worker.engine.pause(run_id)
    await worker.engine.decide(decided, "ok", "approve", actor="ada")
    assert [view.job.key for view in await mill.jobs(decided)] == []
    await asyncio.sleep(100)
    assert (await mill.state(expiring)).status == "FAILED"
    assert (await mill.state(decided)).status == "PAUSED"
    await worker.engine.resume(decided)
    assert (await worker.end(decided)).status == "COMPLETED"
