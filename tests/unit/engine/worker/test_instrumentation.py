"""What an engine counts at its seams, the store behind its clock, and gauges that are read when a scraper asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cluster import TENANT, Cluster, InlineIsolation, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.operator import pass_days
from tests.fixtures.scripted_functions import Ledger, call
from tests.unit.observability.test_metrics import samples
from tidemill.ambient import RealAmbient
from tidemill.blobs.memory import MemoryBlobs
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.engine.worker import instrumentation
from tidemill.engine.worker.instrumentation import OutcomeReport, measured
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.kernel.commands import Done, Result
from tidemill.node_types import built_in_handlers
from tidemill.observability.metrics import QUEUES_MAX, Metrics
from tidemill.storage_urls import open_storage
from tidemill.stores.contract import Commit, Job, Stream
from tidemill.stores.memory import MemoryStore
from tidemill.stores.optional import ProcessLiveness, RepairableIndex, SelfDiagnosis
from tidemill.testing.faulty_store import FaultyStore, refuse
from tidemill.testing.simulated_loop import SimAmbient


async def measuring(mill: Cluster, name: str = "w", functions: Any = None, **options: Any) -> Process:
    """A process with metrics."""

    def engine(store: FaultyStore, ambient: SimAmbient) -> Engine:
        return Engine(
            store=store,
            blobs=mill.blobs,
            ambient=ambient,
            handlers=built_in_handlers(functions),
            worker=WorkerOptions(name=name, heart_thread=False, **options),
            tenant=TENANT,
            isolation=InlineIsolation(),
            metrics=Metrics(),
        )

    process = mill.add(name, engine)
    await process.open()
    assert isinstance(process, Process)
    return process


async def scraped(process: Process) -> dict[str, float]:
    assert process.engine.metrics is not None
    return samples(await process.engine.metrics.text())


@simulated
async def test_runs_nodes_tokens_and_retries_are_counted(mill: Cluster) -> None:
    worker = await measuring(mill)
    await worker.run(document(node("a"), node("b", "a"), node("c", "a", when="false"), node("d", "b", "c", join="any")))
    again = node("a", type="fail", config={"attempts": 1, "retryable": True}, retry={"max_attempts": 2})
    await worker.run(document(again, name="flaky"))
    await worker.run(document(node("a", type="fail"), node("b", "a"), name="broken"))
    tolerated = await worker.run(document(node("a", type="fail", on_error="continue"), name="tolerant"))
    await worker.engine.delete_workflow("tolerant")
    found = await scraped(worker)
    assert tolerated.status == "COMPLETED"
    assert found["tidemill_runs_started_total"] == 4
    assert found["tidemill_runs_ended_total status=COMPLETED"] == 3
    assert found["tidemill_runs_ended_total status=FAILED"] == 1
    assert found["tidemill_nodes_total outcome=completed"] == 4
    assert found["tidemill_nodes_total outcome=skipped"] >= 1
    assert found["tidemill_nodes_total outcome=retrying"] == found["tidemill_retries_total kind=error"] == 1
    assert (found["tidemill_nodes_total outcome=failed"], found["tidemill_nodes_total outcome=tolerated"]) == (1, 1)
    assert found["tidemill_tokens_emitted_total"] == found["tidemill_tokens_consumed_total"] > 0, "all runs have ended"
    assert found["tidemill_dead_letters_open"] == 1


@simulated
async def test_whoever_ends_a_visit_there_is_one_report_of_it(mill: Cluster) -> None:
    """A handler, a time-out, a child run, a person, a deadline."""
    worker = await mill.process("w")
    told: list[tuple[str, ...]] = []

    def listener(report: OutcomeReport) -> None:
        error = "" if report.error is None else report.error.code
        place = report.node if report.index < 0 else f"{report.node}[{report.index}]"
        told.append((place, report.outcome, error, "handled" * report.tolerated))

    worker.engine.turns.listener = listener

    async def ends(*nodes: dict[str, Any], **rest: Any) -> list[tuple[str, ...]]:
        told.clear()
        await worker.run(document(*nodes, **rest))
        return told.copy()

    ask = node("ask", type="human", config={"title": "?", "timeout_seconds": 1})
    assert await ends(ask) == [("ask", "waiting", "", ""), ("ask", "failed", "approval_expired", "")]
    handled = ask | {"on_error": "continue"}
    assert (await ends(handled, name="handled"))[-1] == ("ask", "failed", "approval_expired", "handled")
    signal = node("s", type="signal", timeout_seconds=1, retry={"max_attempts": 1})
    assert (await ends(signal, name="signal"))[-1] == ("s", "failed", "timeout", "")
    sleeping = node("z", type="sleep", config={"seconds": 60})
    late = await ends(sleeping, name="late", limits={"deadline_seconds": 1})
    assert late[-1] == ("", "failed", "deadline_exceeded", "")
    pacing = node("a", loop={"condition": "true", "max_iterations": 9})
    assert (await ends(pacing, name="pacing", limits={"max_visits": 2}))[-1] == (
        "a",
        "failed",
        "max_visits_exceeded",
        "",
    )
    await worker.engine.publish(document(node("b", type="fail", config={"kind": "broken"}), name="sub"))
    parent = await ends(node("p", type="workflow", config={"workflow": "sub"}), name="parent")
    assert parent == [("p", "waiting", "", ""), ("b", "failed", "broken", ""), ("p", "failed", "child_failed", "")]
    items = node("m", type="fail", map={"over": [1]}, on_error="continue")
    assert await ends(items, name="items") == [
        ("m[0]", "failed", "failed", "handled"),
        ("m", "failed", "failed", "handled"),
    ]
    told.clear()
    run_id = await worker.start(document(node("ask", type="human", config={"title": "?"}), name="asks"))
    await asyncio.sleep(1)
    await worker.engine.decide(run_id, "ask", "approve", actor="user:ada")
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert told == [("ask", "waiting", "", ""), ("ask", "completed", "", "")]


@simulated
async def test_a_fork_counts_its_own_events_only(mill: Cluster) -> None:
    worker = await measuring(mill)
    run = await worker.run(chain("a", "b"))
    before = await scraped(worker)
    forked = await worker.engine.fork(run.run_id, at=run.events - 1)
    await worker.end(forked if isinstance(forked, str) else forked.run_id)
    await asyncio.sleep(10)
    after = await scraped(worker)
    assert after["tidemill_runs_started_total"] == before["tidemill_runs_started_total"] + 1
    more = after["tidemill_nodes_total outcome=completed"] - before["tidemill_nodes_total outcome=completed"]
    assert more <= 1


@simulated
async def test_hops_are_measured_by_claim_and_by_handover(mill: Cluster) -> None:
    worker = await measuring(mill)
    client = await mill.process("c", work=False)
    run_id = await client.start(chain("a", "b", "c"))
    await worker.end(run_id)
    found = await scraped(worker)
    assert found["tidemill_hop_seconds_count path=claim"] == 1
    assert found["tidemill_hop_seconds_count path=handover"] == 2


@simulated
async def test_late_results_and_fence_rejections_are_counted(mill: Cluster, ledger: Ledger) -> None:
    worker = await measuring(mill, functions={"work": ledger.work}, lease_ms=15_000)
    run_id = await worker.start(document(call("a", args={"seconds": 14})))
    # It ends after the cancel, and before a heartbeat could tell it.
    await asyncio.sleep(12)
    await worker.engine.cancel(run_id)
    await asyncio.sleep(60)
    found = await scraped(worker)
    assert found["tidemill_late_results_total"] == 1
    assert found["tidemill_runs_ended_total status=CANCELLED"] == 1
    assert found["tidemill_fence_rejections_total at=commit"] + found["tidemill_fence_rejections_total at=renewal"] >= 1


@simulated
async def test_a_worker_that_was_taken_over_is_counted(mill: Cluster, ledger: Ledger) -> None:
    """Its leases expire while it cannot renew them, and another worker takes its job."""
    slow = await measuring(mill, "slow", functions={"work": ledger.work})
    run_id = await slow.start(document(call("a", args={"seconds": 60}, retry={"max_attempts": 5})))
    await mill.until(lambda: bool(ledger.calls))
    for verb in ("renew", "claim"):
        slow.faulty_store.always(verb, refuse)
    other = await measuring(mill, "other", functions={"work": ledger.work})
    await other.end(run_id)
    for verb in ("renew", "claim"):
        slow.faulty_store.always(verb, None)
    await asyncio.sleep(30)
    assert (await scraped(other))["tidemill_retries_total kind=worker_lost"] == 1
    found = await scraped(slow)
    assert found["tidemill_fence_rejections_total at=commit"] + found["tidemill_fence_rejections_total at=renewal"] >= 1


@simulated
async def test_gauges_are_read_when_they_are_asked_for_and_kept_for_some_seconds(mill: Cluster, ledger: Ledger) -> None:
    worker = await measuring(mill, functions={"work": ledger.work})
    await worker.publish(document(node("h", type="human", config={"title": "?"}), name="ask"))
    for _ in range(3):
        await worker.engine.start("ask")
    run_id = await worker.start(document(call("s", args={"seconds": 1_000}, queue="gpu")))
    await asyncio.sleep(10)
    found = await scraped(worker)
    assert found["tidemill_approvals_waiting"] == 3
    assert found["tidemill_runs_live status=RUNNING"] == 4
    assert (found["tidemill_runs_stuck"], found["tidemill_dead_letters_open"]) == (0, 0)
    assert found["tidemill_queue_jobs queue=gpu state=leased"] == 1
    assert found["tidemill_queue_oldest_seconds queue=gpu"] >= 0
    await worker.engine.start("ask")
    assert (await scraped(worker))["tidemill_approvals_waiting"] == 3, "cached"
    await asyncio.sleep(10)
    assert (await scraped(worker))["tidemill_approvals_waiting"] == 4
    await worker.engine.cancel(run_id)


@simulated
async def test_a_store_that_does_not_answer_costs_gauges_and_not_counters(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await measuring(mill)
    await worker.run(chain("a"))
    before = await scraped(worker)
    assert worker.engine.metrics is not None

    async def never() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(worker.faulty_store, "backlog", never)
    await asyncio.sleep(30)
    began = mill.loop.now
    after = await scraped(worker)
    assert mill.loop.now - began <= instrumentation.READ_SECONDS_MAX + 1
    assert after["tidemill_runs_started_total"] == before["tidemill_runs_started_total"] == 1
    assert after["tidemill_runs_live status=RUNNING"] == 0
    # It would wait for ever.
    await worker.engine.metrics.close()


@simulated
async def test_the_number_of_queues_is_bounded(mill: Cluster) -> None:
    worker = await measuring(mill)
    jobs = tuple(Job(f"j{n}", f"q{n}", b"", ready_at_ms=10**12) for n in range(QUEUES_MAX + 20))
    await mill.store.commit([Commit(Stream(TENANT, "other", "x"), None, jobs=jobs)])
    found = await scraped(worker)
    queues = {name for name in found if name.startswith("tidemill_queue_oldest_seconds")}
    assert len(queues) == QUEUES_MAX + 1 and "tidemill_queue_oldest_seconds queue=other" in queues
    later = [value for name, value in found.items() if name.startswith("tidemill_queue_jobs") and "later" in name]
    assert sum(later) >= len(jobs), "none is lost"


@simulated
async def test_a_counter_that_differs_from_its_log_is_counted(mill: Cluster) -> None:
    worker = await measuring(mill)
    assert worker.engine.metrics is not None and worker.engine.reconciler is not None
    found = worker.engine.reconciler.sampling.on_finding
    assert found is not None
    for code in ("counter", "counter-end", "token-lost"):
        found(code)
    after = await scraped(worker)
    assert (after["tidemill_counter_divergence_total"], after["tidemill_audit_findings_total"]) == (2, 3)


@simulated
async def test_work_of_other_tenants_counts_too(mill: Cluster) -> None:
    worker = await measuring(mill)
    other = await mill.process("o", work=False, tenant="acme")
    await other.engine.publish(document(node("h", type="human", config={"title": "?"})))
    await other.engine.start("test")
    await asyncio.sleep(30)
    pass_days(mill, 0.001)
    assert (await scraped(worker))["tidemill_approvals_waiting"] == 1


def test_a_measured_store_offers_what_the_store_offers(tmp_path: Path) -> None:
    file = open_storage(f"sqlite:///{tmp_path}/a.db").store
    for store in (file, MemoryStore()):
        wrapped: object = measured(store, Metrics(), RealAmbient())
        for capability in (ProcessLiveness, RepairableIndex, SelfDiagnosis):
            assert isinstance(wrapped, capability) == isinstance(store, capability), capability


async def test_a_measured_file_store_works_and_its_calls_are_timed(tmp_path: Path) -> None:
    engine = engine_at(f"sqlite:///{tmp_path}/a.db", metrics=True)
    async with engine:
        run = await engine.run({"name": "w", "nodes": [{"id": "a", "type": "value", "config": 7}]})
        assert run.outputs == {"a": 7}
        assert (await engine.diagnose()).findings
        assert (await engine.reindex()).missing == 0
        assert engine.metrics is not None
        found = samples(await engine.metrics.text())
    for verb in ("commit", "load", "find", "count", "backlog"):
        assert found[f"tidemill_store_seconds_count verb={verb}"] >= 1, verb
    assert "tidemill_store_seconds_count verb=claim" not in found, "it waits for work"


async def test_without_metrics_nothing_is_measured() -> None:
    store = MemoryStore()
    engine = Engine(store=store, blobs=MemoryBlobs(), ambient=RealAmbient(), handlers=built_in_handlers())
    assert engine.metrics is engine.turns.metrics is None
    assert engine.context.store is store
    assert Result(node="a", visit=1, token=1, outcome=Done(output=b"1")).node == "a"
