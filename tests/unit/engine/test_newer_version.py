"""A process of this version beside what a newer one has written: it leaves that alone, says so, and harms nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.index_rows import ROW_FORMAT, RUN, RunRow, marked_stuck, marked_suspect, read_run_row
from tidemill.engine.maintenance.reindex import all_rows
from tidemill.engine.worker.registry import WORKER, WorkerRow
from tidemill.errors import Rejected
from tidemill.kernel.codec import encode_event
from tidemill.kernel.events import RunLabelled, RunRepaired
from tidemill.kernel.jobs import JOB_FORMAT, task_of
from tidemill.kernel.model import IR_FORMAT, decode_workflow, encode_workflow
from tidemill.stores.contract import Commit, Job, Row, Stream

HOUR = 3_600.0


def _longer(event: Any) -> bytes:
    """An event as a version writes it that has added a field to its type."""
    return msgspec.msgpack.encode([*msgspec.msgpack.decode(encode_event(event)), "added"])


RECORDS = {
    "an unknown type": msgspec.msgpack.encode(["RunSuspended", 1, 5, 0, None, None]),
    "an added field": _longer(RunLabelled(labels={"a": "b"})),
}


async def _append(mill: Cluster, run_id: str, record: bytes) -> None:
    mill.unjudged.add(run_id)
    (tail,) = await mill.store.load({mill.stream(run_id): 0}, snapshots=False)
    await mill.store.commit([Commit(stream=mill.stream(run_id), expected=tail.version, records=(record,))])


async def _worker_of(mill: Cluster, version: str) -> None:
    """The row of a worker of another version that was here a moment ago."""
    row = WorkerRow(
        name="newer/1/x", host="h", pid=0, version=version, started_ms=1, beat_ms=1, dead_after_ms=15_000, queues=(),
        types=(), concurrency=1,
    )  # fmt: skip
    stream = Stream(TENANT, WORKER, row.name)
    rows = (Row(kind=WORKER, key=row.name, sort=1, body=msgspec.msgpack.encode(row)),)
    await mill.store.commit([Commit(stream=stream, expected=None, rows=rows)])


async def _tail(mill: Cluster, run_id: str) -> int:
    (tail,) = await mill.store.load({mill.stream(run_id): 0}, snapshots=False)
    return tail.version


@pytest.mark.parametrize("kind", RECORDS)
@simulated
async def test_a_run_that_a_newer_version_has_gone_on_with_is_left_to_it(
    mill: Cluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await mill.process("client", work=False)
    run_ids = [await client.start(chain("a", "b", name=f"theirs-{number}")) for number in range(3)]
    for run_id in run_ids:
        await _append(mill, run_id, RECORDS[kind])
    worker = await mill.process("w1")
    assert (await worker.run(chain("a", "b", name="ours"))).status == "COMPLETED"
    await asyncio.sleep(600)
    for run_id in run_ids:
        assert await _tail(mill, run_id) == 3
        (view,) = await mill.jobs(run_id)
        assert (view.job.key, view.expired, view.lease_expires_at_ms) == ("run/a/1/-1", 0, None)
        row = await mill.row(run_id)
        assert not row.stuck and not row.suspect and not row.stuck_reason
    said = [record.message for record in caplog.records if "newer version" in record.message]
    assert len(said) == 1, "it says so once"


@simulated
async def test_why_says_which_workers_go_on_with_a_run(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", name="theirs"))
    await _append(mill, run_id, RECORDS["an unknown type"])
    why = await client.engine.why(run_id)
    assert why.status == "RUNNING"
    assert "RunSuspended was written by a newer version" in why.headline
    assert "it waits for one newer than " in why.newer
    await _worker_of(mill, "97.5.10")
    await _worker_of(mill, "97.5.9")
    await _worker_of(mill, "97.5.10")
    assert (await client.engine.why(run_id)).newer.endswith("it waits for a worker of version ≥ 97.5.10")
    with pytest.raises(Rejected, match="event_newer"):
        await client.engine.show(run_id)


@simulated
async def test_a_result_in_hand_is_given_up_when_a_newer_version_has_moved_the_run_on(
    mill: Cluster, ledger: Ledger
) -> None:
    """Its job is released and not settled: the newer worker does it again, under the promise of at-least-once."""
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 5}), name="raced"))
    await asyncio.sleep(1)
    await _append(mill, run_id, RECORDS["an added field"])
    await asyncio.sleep(60)
    (view,) = await mill.jobs(run_id)
    assert (view.job.key, view.lease_expires_at_ms) == ("run/a/1/-1", None)
    (tail,) = await mill.store.load({mill.stream(run_id): 0}, snapshots=False)
    assert tail.records[-1] == RECORDS["an added field"]
    assert not (await mill.row(run_id)).stuck
    assert (await worker.run(chain("x", name="ours"))).status == "COMPLETED"


NEWER_JOBS = {
    "an unknown kind": msgspec.msgpack.encode(["notice", "a", 1, -1, JOB_FORMAT]),
    "a newer format": msgspec.msgpack.encode(["run", "a", 1, -1, JOB_FORMAT + 1]),
    "an added field": msgspec.msgpack.encode(["run", "a", 1, -1, JOB_FORMAT, 2, 0, "", "added"]),
}


@pytest.mark.parametrize("kind", NEWER_JOBS)
@simulated
async def test_a_newer_job_keeps_its_run_from_being_repaired_or_stuck(mill: Cluster, kind: str) -> None:
    assert task_of(NEWER_JOBS[kind]).v > JOB_FORMAT
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", name="theirs"))
    await mill.meddle(run_id, drop=("run/a/1/-1",))
    await mill.meddle(run_id, jobs=(Job(key="notice/a/1/-1", queue="default", body=NEWER_JOBS[kind]),))
    worker = await mill.process("w1")
    await asyncio.sleep(600)
    assert [(view.job.key, view.job.body) for view in await mill.jobs(run_id)] == [("notice/a/1/-1", NEWER_JOBS[kind])]
    assert await mill.of(run_id, RunRepaired) == []
    row = await mill.row(run_id)
    assert not row.stuck and row.waiting_for == ("a worker of a newer version",)
    why = await worker.engine.why(run_id)
    assert why.newer.startswith("a job of kind notice was written by a newer version; it waits for one newer than ")
    assert (await worker.engine.verify_log([run_id])).clean
    await mill.meddle(run_id, drop=("notice/a/1/-1",))
    assert (await worker.end(run_id)).status == "COMPLETED", "then it is an ordinary repair"


@simulated
async def test_an_audit_does_not_judge_what_a_newer_version_has_written(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", type="fail"), name="theirs"))
    assert run.status == "FAILED"
    await _append(mill, run.run_id, RECORDS["an unknown type"])
    verdict = await worker.engine.verify_log()
    assert (verdict.clean, verdict.newer) == (True, 1)
    await asyncio.sleep(HOUR)
    assert worker.engine.reconciler is not None and worker.engine.reconciler.findings == 0
    assert not (await mill.row(run.run_id)).suspect


def _row(**more: Any) -> Row:
    body = RunRow(
        run_id="r", workflow="w", version=1, digest="d", status="RUNNING", created_ms=1, last_event_ms=1, counter=1,
        events=2, **more,
    )  # fmt: skip
    return Row(kind=RUN, key="r", sort=1, body=msgspec.msgpack.encode(body))


def test_marking_a_row_keeps_the_fields_of_a_newer_version() -> None:
    fields = msgspec.msgpack.decode(_row().body)
    row = msgspec.structs.replace(_row(), body=msgspec.msgpack.encode([*fields, "added", 7]))
    for marked in (marked_suspect(row, "code"), marked_stuck(row, "why")):
        assert msgspec.msgpack.decode(marked.body)[len(fields) :] == ["added", 7]
    shown = read_run_row(marked_stuck(marked_suspect(row, "code"), "why"))
    assert shown is not None and (shown.suspect, shown.stuck, shown.stuck_reason) == ("code", True, "why")


def test_a_row_of_a_newer_format_is_not_read() -> None:
    assert read_run_row(_row(v=ROW_FORMAT)) is not None
    assert read_run_row(_row(v=ROW_FORMAT + 1)) is None
    fields = [*msgspec.msgpack.decode(_row(v=ROW_FORMAT + 1).body)]
    assert read_run_row(Row(kind=RUN, key="r", sort=1, body=msgspec.msgpack.encode([{}, *fields[1:]]))) is None


@simulated
async def test_a_row_of_a_newer_format_is_not_written_over(mill: Cluster) -> None:
    """Neither by `reindex` nor by the reconciler, which goes on with the other runs."""
    client = await mill.process("client", work=False)
    run_ids = [await client.start(document(node("s", type="signal"), name=f"run-{number}")) for number in range(2)]
    (row,) = [row async for row in all_rows(mill.store, TENANT, RUN) if row.key == run_ids[0]]
    fields = [*msgspec.msgpack.decode(row.body), "added"]
    fields[RunRow.__struct_fields__.index("v")] = ROW_FORMAT + 1
    newer = msgspec.structs.replace(row, body=msgspec.msgpack.encode(fields))
    await mill.store.commit([Commit(stream=mill.stream(run_ids[0]), expected=None, rows=(newer,))])
    mill.unjudged.add(run_ids[0])
    assert (await client.engine.reindex()).different == 0
    assert (await client.engine.verify_log()).clean
    found, _ = await client.engine.find()
    assert [each.run_id for each in found] == [run_ids[1]]
    reconciling = await mill.process("w1", queues=("other",))
    await mill.meddle(run_ids[1], drop=("run/s/1/-1",))
    await asyncio.sleep(60)
    assert reconciling.engine.reconciler is not None and reconciling.engine.reconciler.repairs == 1
    (row,) = [row async for row in all_rows(mill.store, TENANT, RUN) if row.key == run_ids[0]]
    assert row.body == newer.body


@simulated
async def test_a_workflow_of_a_newer_version_is_refused_and_its_runs_are_left_alone(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    reference = await client.publish(chain("a", name="theirs"))
    flow = await client.engine.workflow(reference)
    theirs = msgspec.json.decode(encode_workflow(flow))
    for changed in ({**theirs, "ir": IR_FORMAT + 1}, {**theirs, "nodes": [{**theirs["nodes"][0], "weight": 3}]}):
        with pytest.raises(Rejected, match="workflow_newer"):
            decode_workflow(msgspec.json.encode(changed))
    assert decode_workflow(msgspec.json.encode(theirs)) == flow


@pytest.mark.parametrize("record", [{"type": "frozen", "v": 1}, {"type": "version", "v": 99, "shape": "other"}])
@simulated
async def test_a_workflow_with_a_newer_record_is_not_called_damaged(mill: Cluster, record: Any) -> None:
    client: Process = await mill.process("client", work=False)
    await client.publish(chain("a", name="theirs"))
    raw = msgspec.msgpack.encode(record)
    stream = Stream(TENANT, "workflow", "theirs")
    await mill.store.commit([Commit(stream=stream, expected=1, records=(raw,))])
    other = await mill.process("other", work=False)
    with pytest.raises(Rejected, match="event_newer"):
        await other.engine.start("theirs")
    verdict = await other.engine.verify_log()
    assert (verdict.clean, verdict.newer) == (True, 1)


PARENT = document(node("c", type="workflow", config={"workflow": "child"}), name="parent")


async def _with_child(mill: Cluster) -> tuple[Process, str, str]:
    """A worker, a run that waits for its child, and the child, which waits for a signal."""
    worker = await mill.process()
    await worker.publish(document(node("s", type="signal"), name="child"))
    parent = await worker.start(PARENT)
    await asyncio.sleep(5)
    (child,) = [row.run_id for row in await mill.rows("workflow:child")]
    return worker, parent, child


@simulated
async def test_a_message_to_a_run_of_a_newer_version_is_left_to_its_workers(mill: Cluster) -> None:
    worker, parent, child = await _with_child(mill)
    await _append(mill, child, RECORDS["an unknown type"])
    await worker.engine.cancel(parent)
    await asyncio.sleep(120)
    mill.unjudged.add(parent)
    assert [view.job.key.partition("/")[0] for view in await mill.jobs(parent)] == ["close"]
    assert (await worker.run(chain("a", name="ours"))).status == "COMPLETED"


@simulated
async def test_a_report_to_a_parent_of_a_newer_version_is_left_to_its_workers(mill: Cluster) -> None:
    worker, parent, child = await _with_child(mill)
    await _append(mill, parent, RECORDS["an unknown type"])
    await worker.engine.signal(child, "s", {"x": 1})
    await asyncio.sleep(120)
    mill.unjudged.add(child)
    assert [view.job.key.partition("/")[0] for view in await mill.jobs(child)] == ["report"]
    assert await _tail(mill, parent) == (await mill.row(parent)).events + 1


@simulated
async def test_blobs_and_old_runs_of_a_newer_version_stay(mill: Cluster) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", name="theirs"))
    await _append(mill, run_id, RECORDS["an added field"])
    # The rows of its references are there, so nothing of the log is read.
    assert (await client.engine.collect_blobs()).retired == 0
