"""Old news, undone results and used ids: what must not count is refused or ignored, and says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.approvers import child, code_of, ended, human, waits
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.kernel.commands import ChildEnded
from tidemill.kernel.events import ApprovalRequested, Error

UNDO: dict[str, Any] = {"compensator": {"type": "value", "config": "{{ output }}"}}


@simulated
async def test_results_that_were_undone_are_not_shared(mill: Cluster) -> None:
    worker = await mill.process()
    steps = [node("a", config=1, **UNDO), node("b", "a", config=2), node("f", "b", type="fail")]
    run = await worker.run(document(*steps, on_failure={"compensate": "automatic"}))
    await asyncio.sleep(5)
    assert (await worker.engine.show(run.run_id)).rollback["status"] == "done"
    assert await code_of(worker.engine.fork(run.run_id)) == "results_undone"
    assert await code_of(worker.engine.fork(run.run_id, node="b")) == "results_undone"
    assert (await worker.engine.show(await worker.engine.fork(run.run_id, node="a"))).forked_from is not None


@simulated
async def test_people_are_asked_anew_in_a_fork(mill: Cluster) -> None:
    """They decide on what they were shown, and a fork may have other inputs."""
    worker = await mill.process()
    steps = document(human("ok", title="Pay {{ inputs.to }}?"), node("z", "ok"))
    run_id = await worker.start(steps, {"to": "ACME"})
    await waits(mill, run_id, "ok")
    fork = await worker.engine.fork(run_id, inputs={"to": "Mallory"})
    await waits(mill, fork, "ok")
    assert (await worker.engine.approval(fork, "ok")).approval.title == "Pay Mallory?"
    assert len(await mill.of(fork, ApprovalRequested)) == 2
    rows, _ = await worker.engine.approvals.find(["status:pending", f"run:{fork}"])
    assert [row.title for row in rows] == ["Pay Mallory?"]


@simulated
async def test_a_fork_is_as_old_as_itself(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), node("b", "a")))
    await asyncio.sleep(100)
    fork = await worker.end(await worker.engine.fork(run.run_id, node="b"))
    assert fork.created_ms >= run.created_ms + 100_000


@simulated
async def test_how_a_child_ended_for_an_earlier_attempt_says_nothing(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(human("ok"), name="kid"))
    run_id = await worker.start(document({**child("c", "kid"), "timeout_seconds": 5, "retry": 3}), key="mum")
    await mill.until(lambda: (mill_state := worker.cached(run_id)) is not None and mill_state.peek("c").attempt == 2)
    await asyncio.sleep(1)
    old = ChildEnded(
        node="c", visit=1, child="mum.c.1", status="CANCELLED", error=Error("child_cancelled", "old"), attempt=1
    )
    await worker.engine.turns.command(mill.stream(run_id), old)
    assert (await mill.state(run_id)).peek("c").status == "WAITING"
    assert (await mill.state("mum.c.1")).live


@simulated
async def test_a_child_that_is_asked_again_is_not_closed_for_an_earlier_attempt(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(human("ok"), name="kid"))
    steps = {**child("c", "kid"), "timeout_seconds": 5, "retry": {"max_attempts": 3, "backoff_seconds": 0}}
    run_id = await worker.start(document(steps), key="mum")
    await asyncio.sleep(7)
    assert (await mill.state(run_id)).peek("c").attempt == 2
    assert (await mill.state("mum.c.1")).live
    await worker.engine.decide("mum.c.1", "ok", "approve", actor="ada")
    assert await ended(mill, run_id) == "COMPLETED"


@simulated
async def test_a_child_that_nobody_waits_for_is_not_reopened(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("f", type="fail"), name="kid"))
    run = await worker.run(document(child("c", "kid")), key="mum")
    assert run.status == "FAILED"
    assert await code_of(worker.engine.retry("mum.c.1")) == "parent_over"
    patch = [{"op": "replace", "path": "/nodes/f/type", "value": "value"}]
    assert await code_of(worker.engine.patch("mum.c.1", patch, retry=True)) == "parent_over"
    found = await worker.engine.why("mum.c.1")
    assert found.headline.endswith("; its parent run mum has failed")
    assert found.unblock.startswith("fix the cause, then retry the parent run mum, which continues this run")
    assert found.command == "tidemill runs retry mum"


@pytest.mark.parametrize(
    ("close", "act", "told", "command"),
    [
        ("cancel", "cancel", "its parent run mum was cancelled", "tidemill runs retry mum"),
        ("cancel", "override", "its parent run mum continues without it: c was settled", "tidemill runs rewind mum c"),
        ("abandon", "cancel", "its parent run mum was cancelled; it goes on alone, and no run takes its result", ""),
    ],
)
@simulated
async def test_a_child_says_what_became_of_its_parent(
    mill: Cluster, close: str, act: str, told: str, command: str
) -> None:
    worker = await mill.process()
    engine = worker.engine
    await worker.publish(document(human("ok"), name="kid"))
    run_id = await worker.start(document(child("c", "kid", close=close), human("other")), key="mum")
    await asyncio.sleep(1)
    assert "parent" not in (await engine.why("mum.c.1")).headline
    await (engine.cancel(run_id) if act == "cancel" else engine.override(run_id, "c", value=1))
    await asyncio.sleep(5)
    found = await engine.why("mum.c.1")
    assert told in found.headline
    assert found.command == command


@simulated
async def test_a_rewind_asks_about_what_is_under_way_at_most_once(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    steps = document(node("a"), call("pay", "a", args={"seconds": 30}, delivery="at_most_once"))
    run_id = await worker.start(steps)
    await mill.until(lambda: ledger.running == 1)
    await asyncio.sleep(1)
    assert await code_of(worker.engine.rewind(run_id, "a")) == "outcome_unknown"
    await worker.engine.rewind(run_id, "a", did_not_happen=["pay"])
    assert (await mill.state(run_id)).peek("a").visit == 2


@simulated
async def test_a_command_id_is_for_one_thing(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(human("ok"), human("sure")))
    await waits(mill, run_id, "ok")
    await waits(mill, run_id, "sure")
    engine = worker.engine
    await engine.override(run_id, "ok", value=1, command_id="o")
    await engine.override(run_id, "ok", value=1, command_id="o")
    assert await code_of(engine.override(run_id, "sure", value=1, command_id="o")) == "command_id_reused"
    await engine.relabel(run_id, {"a": "1"}, command_id="l")
    await engine.relabel(run_id, {"a": "1"}, command_id="l")
    assert await code_of(engine.relabel(run_id, {"b": "2"}, command_id="l")) == "command_id_reused"
    await engine.decide(run_id, "sure", "approve", actor="ada", command_id="o")
    assert await ended(mill, run_id) == "COMPLETED"


@simulated
async def test_a_published_patch_knows_where_it_comes_from(mill: Cluster) -> None:
    worker = await mill.process()
    first = document(node("a"), node("f", "a", type="fail"), name="flow")
    run = await worker.run(first)
    await worker.publish(document(node("other"), name="flow"))
    patch = [{"op": "replace", "path": "/nodes/f/type", "value": "value"}]
    outcome = await worker.engine.patch(run.run_id, patch, retry=True, publish=True)
    assert outcome.published is not None
    version = (await worker.engine.versions("flow"))[-1]
    assert (version.version, version.parent) == (3, 1)
    assert await worker.engine.catalog.patch_of("default", version) == patch
