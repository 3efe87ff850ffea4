"""One bad thing hurts nobody else: damaged logs, jobs nobody can read, runs nobody knows, words nobody can store."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.worker.leases import STEP_MS
from tidemill.errors import Rejected, Unavailable
from tidemill.handlers.contract import Done, Handler
from tidemill.kernel.codec import SNAPSHOT_FORMAT, encode_event, encode_state
from tidemill.kernel.events import DeadLetterClosed, NodeFailed, RunPaused, RunRepaired
from tidemill.kernel.jobs import JOB_FORMAT, JobBody
from tidemill.kernel.model import NodeType
from tidemill.kernel.state import State
from tidemill.stores.contract import Commit, Job, Snapshot


async def _append(mill: Cluster, run_id: str, record: bytes) -> None:
    seq = len(await mill.events(run_id))
    mill.unjudged.add(run_id)
    await mill.store.commit([Commit(stream=mill.stream(run_id), expected=seq, records=(record,))])


def _newer() -> bytes:
    return msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_event(RunPaused()))[:1], 99, 0, 0, None, None, "new"])


RECORDS = {"newer": _newer(), "garbage": b"\xc1\xff not msgpack", "unknown": msgspec.msgpack.encode(["Nonsense", 1])}


async def _poisoned(mill: Cluster, record: bytes) -> tuple[Process, str]:
    """A worker beside a run with a ready job and a record that cannot be read."""
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", "b", name="poisoned"))
    await _append(mill, run_id, record)
    return await mill.process("w1"), run_id


@pytest.mark.parametrize("kind", RECORDS)
@simulated
async def test_a_log_that_cannot_be_read_stops_only_its_own_run(mill: Cluster, kind: str) -> None:
    worker, run_id = await _poisoned(mill, RECORDS[kind])
    for number in range(5):
        run = await worker.run(chain("a", "b", "c", name=f"fine-{number}"))
        assert run.status == "COMPLETED"
        await asyncio.sleep(10)
    # The job is tried now and then, in case somebody mends the log, and never in a hurry.
    assert worker.faulty_store.calls["release"] <= 50_000 / STEP_MS + 5
    (view,) = await mill.jobs(run_id)
    assert view.job.key == "run/a/1/-1"
    for act in (worker.engine.show, worker.engine.cancel, worker.engine.pause):
        with pytest.raises(Rejected) as refused:
            await act(run_id)
        assert refused.value.code in ("event_newer", "event_unreadable")


@simulated
async def test_the_keeper_goes_on_after_a_log_it_cannot_read(mill: Cluster, ledger: Ledger) -> None:
    worker, _ = await _poisoned(mill, RECORDS["newer"])
    other = await mill.process("w2", functions={"work": ledger.work}, queues=("other",))
    run_id = await other.start(document(call("x", queue="later"), name="mended"))
    await mill.meddle(run_id, drop=("run/x/1/-1",))
    await asyncio.sleep(40)
    (repaired,) = await mill.of(run_id, RunRepaired)
    assert repaired.restored == ("run/x/1/-1",)
    reconcilers = [process.engine.reconciler for process in (worker, other)]
    assert any(reconciler is not None and reconciler.audited > 0 for reconciler in reconcilers)


@simulated
async def test_a_missing_workflow_stops_only_its_own_runs(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", name="lost"))
    digest = (await mill.row(run_id)).digest
    hidden = mill.blobs._held.pop((TENANT, digest))
    worker = await mill.process("w1")
    assert (await worker.run(chain("a", name="fine"))).status == "COMPLETED"
    await asyncio.sleep(30)
    with pytest.raises(Unavailable):
        await worker.engine.show(run_id)
    mill.blobs._held[(TENANT, digest)] = hidden
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 1)
    assert await mill.of(run_id, NodeFailed) == []


STRANGE_JOBS: dict[str, bytes] = {
    "newer format": msgspec.msgpack.encode(JobBody("run", "a", 1, -1, JOB_FORMAT + 1)),
    "newer kind": msgspec.msgpack.encode(["signal", "a", 1, -1, JOB_FORMAT + 1, "more"]),
    "unknown kind": msgspec.msgpack.encode(["signal", "a", 1, -1, JOB_FORMAT]),
    "garbage": b"\xc1",
    "empty": b"",
}


@pytest.mark.parametrize("kind", STRANGE_JOBS)
@simulated
async def test_a_job_that_a_worker_cannot_read_is_left_alone(mill: Cluster, kind: str, ledger: Ledger) -> None:
    """An older worker leaves a newer job where it is; so does its keeper."""
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 120}), name="strange"))
    await mill.meddle(run_id, jobs=(Job(key="signal/a/1/-1", queue="default", body=STRANGE_JOBS[kind]),))
    for number in range(6):
        assert (await worker.run(chain("a", "b", name=f"fine-{number}"))).status == "COMPLETED"
        await asyncio.sleep(10)
    assert "signal/a/1/-1" in [view.job.key for view in await mill.jobs(run_id)]
    assert worker.faulty_store.calls["release"] <= 60_000 / STEP_MS + 5
    assert await mill.of(run_id, RunRepaired) == []
    await mill.meddle(run_id, drop=("signal/a/1/-1",))
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_a_job_of_a_run_that_nobody_knows_is_not_tried_in_a_hurry(mill: Cluster) -> None:
    worker = await mill.process()
    body = msgspec.msgpack.encode(JobBody("run", "a", 1))
    await mill.meddle("nobody", jobs=(Job(key="run/a/1/-1", queue="default", body=body),))
    assert (await worker.run(chain("a", name="fine"))).status == "COMPLETED"
    await asyncio.sleep(60)
    assert worker.faulty_store.calls["claim"] <= 200
    assert worker.faulty_store.calls["release"] <= 70


@pytest.mark.parametrize(
    "task", [JobBody("run", "zzz", 1), JobBody("run", "a", 7), JobBody("wake", "a", 1), JobBody("outputs")]
)
@simulated
async def test_a_job_that_its_run_does_not_call_for_is_removed(mill: Cluster, task: JobBody, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000_000)
    run_id = await worker.start(document(call("a", args={"seconds": 30}), name="surplus"))
    await mill.meddle(run_id, jobs=(Job(key=task.key, queue="default", body=msgspec.msgpack.encode(task)),))
    await asyncio.sleep(5)
    assert [view.job.key for view in await mill.jobs(run_id)] == ["run/a/1/-1"]
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert ledger.count("a") == 1


BAD_WORDS: dict[str, dict[str, Any]] = {
    "label is a number": {"labels": {"a": 1}},
    "label is none": {"labels": {"a": None}},
    "label key is a number": {"labels": {1: "a"}},
    "label with half a pair": {"labels": {"a": "\ud800"}},
    "label key with half a pair": {"labels": {"\udfff": "a"}},
    "novel of a label": {"labels": {"a": "x" * 1_000_000}},
    "too many labels": {"labels": {str(i): "x" for i in range(10_000)}},
    "submitted by half a pair": {"submitted_by": "\ud800"},
    "submitted by a number": {"submitted_by": 7},
    "correlated with half a pair": {"correlation_id": "\ud800"},
    "correlated with a novel": {"correlation_id": "x" * 1_000_000},
}


@pytest.mark.parametrize("what", BAD_WORDS)
@simulated
async def test_words_that_cannot_be_stored_are_refused_at_the_door(mill: Cluster, what: str) -> None:
    worker = await mill.process()
    reference = await worker.publish(chain("a"))
    others = [worker.start(reference) for _ in range(5)]
    refused, *started = await asyncio.gather(
        worker.start(reference, **BAD_WORDS[what]), *others, return_exceptions=True
    )
    assert isinstance(refused, Rejected), refused
    for run_id in started:
        assert isinstance(run_id, str) and (await worker.end(run_id)).status == "COMPLETED"
    assert len(await mill.rows()) == 5


@simulated
async def test_a_worker_whose_own_type_is_broken_fails_the_node_and_goes_on(mill: Cluster) -> None:
    """Its schema is not a schema: that shows when a config is rendered, and must not end the worker's claims."""
    fine = Handler(NodeType(name="odd"), lambda context: Done(1))
    broken = Handler(NodeType(name="odd", config_schema={"type": 5}), lambda context: Done(1))
    client = await mill.process("client", work=False, more=[fine])
    run_id = await client.start(document(node("a", type="odd", config="{{ inputs.x }}"), name="odd"), {"x": 1})
    worker = await mill.process("w1", more=[broken])
    run = await client.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("FAILED", 0)
    assert run.nodes["a"]["error"]["code"]
    assert (await worker.run(chain("a", name="fine"))).status == "COMPLETED"


SNAPSHOTS = {
    "earlier version": encode_state(State())[1:],
    "newer version": bytes([SNAPSHOT_FORMAT + 1]) + b"\xc0",
    "empty": b"",
    "garbage": bytes([SNAPSHOT_FORMAT]) + b"\xc1\xff not msgpack",
    "other fields": bytes([SNAPSHOT_FORMAT]) + msgspec.msgpack.encode(["x", 1, {}]),
}


@pytest.mark.parametrize("kind", SNAPSHOTS)
@simulated
async def test_a_snapshot_that_cannot_be_used_stops_no_run(mill: Cluster, kind: str) -> None:
    """Its run is folded from the first event, and the runs that are loaded by the same call do not notice."""
    client = await mill.process("client", work=False)
    run_ids = [await client.start(chain("a", "b", name=f"run-{number}")) for number in range(3)]
    log = mill.store._logs[mill.stream(run_ids[0])]
    log.snapshot = Snapshot(version=1, body=SNAPSHOTS[kind])
    mill.unjudged.add(run_ids[0])
    other = await mill.process("other", work=False)
    found = await other.engine.run_cache.refresh([mill.stream(run_id) for run_id in run_ids])
    assert [found[mill.stream(run_id)].state.seq for run_id in run_ids] == [2, 2, 2]
    worker = await mill.process("w1")
    for run_id in run_ids:
        assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_a_cached_state_that_does_not_fold_on_is_folded_from_the_log(
    mill: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    client = await mill.process("client", work=False)
    run_ids = [await client.start(chain("a", "b", name=f"run-{number}")) for number in range(2)]
    entry = client.engine.run_cache.get(mill.stream(run_ids[0]))
    assert entry is not None
    entry.state.cells = None  # type: ignore[assignment]
    worker = await mill.process("w1")
    for run_id in run_ids:
        assert (await worker.end(run_id)).status == "COMPLETED"
    assert [(await client.engine.show(run_id)).status for run_id in run_ids] == ["COMPLETED", "COMPLETED"]
    assert [record.levelname for record in caplog.records if "is folded from its first event" in record.message]


@simulated
async def test_a_log_that_does_not_fold_is_reported_as_damaged(mill: Cluster) -> None:
    """Every record can be read, and together they make no sense."""
    worker, run_id = await _poisoned(mill, encode_event(DeadLetterClosed(node="a", visit=1, status="discarded")))
    with pytest.raises(Rejected, match="cannot be folded") as refused:
        await worker.engine.show(run_id)
    assert refused.value.code == "event_unreadable"
    assert (await worker.run(chain("a", name="fine"))).status == "COMPLETED"


@simulated
async def test_a_newer_job_is_left_alone(mill: Cluster) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(chain("a"))
    newer = Job(key="run/a/1/-1", queue="default", body=msgspec.msgpack.encode(["run", "a", 1, -1, 99]))
    await mill.meddle(run, drop=(newer.key,))
    await mill.meddle(run, jobs=(newer,))
    await mill.process("w")
    await asyncio.sleep(8)
    assert await mill.kinds(run) == ["RunCreated", "NodeScheduled"]
    assert [view.job.body for view in await mill.jobs(run)] == [newer.body]
