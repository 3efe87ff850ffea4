"""The audit of logs: clean stores are clean, every kind of damage is found and named, and none hides another."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from tests.engine.kit import TENANT, Mill, simulated
from tests.engine.upkeep import FAILS, history, operator
from tests.kernel.authoring import document, node
from tidemill.blobs.contract import digest_of
from tidemill.engine.index_rows import DEAD_LETTER, RUN
from tidemill.engine.maintenance.reconciler import AUDITS_MAX
from tidemill.engine.maintenance.reindex import all_rows
from tidemill.engine.maintenance.verify import AuditReport
from tidemill.errors import Rejected
from tidemill.kernel.codec import decode_event, encode_event
from tidemill.kernel.events import NodeCompleted
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.state import SNAPSHOT_FORMAT, State, encode_state
from tidemill.stores.contract import Commit, Job, Row, Snapshot, Stream

LARGE = "x" * 100_000


@simulated
async def test_a_store_that_nothing_happened_to_is_clean(mill: Mill) -> None:
    worker = await mill.process()
    runs = await history(worker)
    large = await worker.run(document(node("a", config={"text": LARGE})))
    seen: list[tuple[int, int]] = []
    verdict = await operator(mill).verify_log(on_progress=lambda *so_far: seen.append(so_far))
    assert verdict.findings == ()
    assert verdict.clean
    assert (verdict.runs, verdict.workflows) == (len(runs) + 1, 1)
    assert verdict.events >= sum([len(await mill.events(run)) for run in (*runs, large.run_id)])
    assert seen[-1] == (verdict.runs, verdict.events)


def _records(mill: Mill, run_id: str) -> list[bytes]:
    return mill.store._logs[mill.stream(run_id)].records


def _unreadable(mill: Mill, run_id: str) -> None:
    _records(mill, run_id)[2] = b"\xc1"


def _headless(mill: Mill, run_id: str) -> None:
    del _records(mill, run_id)[0]


def _repeated(mill: Mill, run_id: str) -> None:
    records = _records(mill, run_id)
    done = next(at for at, record in enumerate(records) if isinstance(decode_event(record), NodeCompleted))
    records.insert(done, records[done])


def _miscounted(mill: Mill, run_id: str) -> None:
    records = _records(mill, run_id)
    for at, record in enumerate(records):
        event = decode_event(record)
        if isinstance(event, NodeCompleted):
            records[at] = encode_event(msgspec.structs.replace(event, counter=7))


def _other_snapshot(mill: Mill, run_id: str) -> None:
    body = encode_state(State(seq=3, status="RUNNING", workflow="other"))
    mill.store._logs[mill.stream(run_id)].snapshot = Snapshot(version=3, body=body)


def _bad_snapshot(mill: Mill, run_id: str) -> None:
    mill.store._logs[mill.stream(run_id)].snapshot = Snapshot(version=3, body=bytes([SNAPSHOT_FORMAT]) + b"\xc1")


DAMAGES: list[tuple[str, Callable[[Mill, str], None]]] = [
    ("log_unreadable", _unreadable),
    ("log_headless", _headless),
    ("counter", _miscounted),
    ("snapshot_differs", _other_snapshot),
    ("snapshot_unreadable", _bad_snapshot),
]


@pytest.mark.parametrize(("code", "damage"), DAMAGES)
@simulated
async def test_damage_is_found_and_hides_no_other(mill: Mill, code: str, damage: Callable[[Mill, str], None]) -> None:
    worker = await mill.process()
    runs = [(await worker.run(document(node("a"), node("b", "a")))).run_id for _ in range(3)]
    for run_id in runs[:2]:
        damage(mill, run_id)
        mill.unjudged.add(run_id)
    verdict = await operator(mill).verify_log()
    assert verdict.runs == 3
    assert {finding.run for finding in verdict.findings} == set(runs[:2])
    for run_id in runs[:2]:
        assert code in {finding.code for finding in verdict.findings if finding.run == run_id}
    alone = await operator(mill).verify_log([runs[0]])
    assert {finding.run for finding in alone.findings} == {runs[0]}


@simulated
async def test_a_result_that_was_written_twice_is_found(mill: Mill) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), node("b", "a")))
    _repeated(mill, run.run_id)
    mill.unjudged.add(run.run_id)
    verdict = await operator(mill).verify_log()
    assert verdict.findings


@simulated
async def test_a_missing_blob_is_found_with_the_event_that_refers_to_it(mill: Mill) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config={"text": LARGE})))
    gone = digest_of(b'{"text":"' + LARGE.encode() + b'"}')
    await mill.blobs.quarantine(TENANT, gone)
    assert await mill.blobs.delete(TENANT, gone, before_ms=2**60)
    verdict = await operator(mill).verify_log()
    (finding,) = verdict.findings
    assert (finding.run, finding.code) == (run.run_id, "blob_missing")
    assert isinstance((await mill.events(run.run_id))[finding.seq - 1], NodeCompleted)


@simulated
async def test_a_missing_workflow_is_found_in_the_run_and_in_the_catalog(mill: Mill) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    digest = (await mill.state(run.run_id)).digest
    await mill.blobs.quarantine(TENANT, digest)
    assert await mill.blobs.delete(TENANT, digest, before_ms=2**60)
    verdict = await operator(mill).verify_log()
    assert [finding.code for finding in verdict.findings] == ["workflow_unreadable", "workflow_missing"]
    mill.unjudged.add(run.run_id)


@simulated
async def test_jobs_and_rows_are_compared(mill: Mill) -> None:
    worker = await mill.process(audit_every_ms=10_000_000)
    asking, failed, fine = [
        await worker.start(document(node("a"), *more))
        for more in ([node("s", "a", type="sleep", config={"seconds": 9_999})], [FAILS], [])
    ]
    await worker.ambient.sleep(1_000)
    await worker.stop()
    timers = [view.job.key for view in await mill.jobs(asking)]
    task = JobBody(kind="run", node="zzz", visit=1, index=-1)
    await mill.meddle(asking, drop=tuple(timers))
    await mill.meddle(fine, jobs=(Job(key=task.key, queue="q", body=msgspec.msgpack.encode(task)),))
    (letter,) = [row async for row in all_rows(mill.store, TENANT, DEAD_LETTER)]
    ghost = msgspec.structs.replace(letter, key=f"{failed}/zzz/1/-1")
    rows = {row.key: row async for row in all_rows(mill.store, TENANT, RUN)}
    wrong: tuple[Row, ...] = (
        msgspec.structs.replace(rows[fine], deleted=True),
        msgspec.structs.replace(letter, body=b"\x80"),
        ghost,
    )
    await mill.store.commit([Commit(stream=Stream(TENANT, RUN, "x"), expected=None, rows=wrong)])
    verdict = await operator(mill).verify_log()
    found = sorted((finding.run, finding.code) for finding in verdict.findings)
    assert found == sorted(
        [
            (asking, "job_missing"),
            (fine, "job_surplus"),
            (fine, "row_missing"),
            (failed, "row_differs"),
            (failed, "row_surplus"),
        ]
    )
    await operator(mill).reindex()
    codes = {finding.code for finding in (await operator(mill).verify_log()).findings}
    assert codes == {"job_missing", "job_surplus"}
    await mill.meddle(fine, drop=(task.key,))
    await (await mill.process("w2")).engine.cancel(asking)


@simulated
async def test_a_run_that_moves_on_is_not_accused(mill: Mill) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("a"), node("b", "a", type="sleep", config={"seconds": 9_999})))
    await worker.ambient.sleep(1_000)
    client = mill.build("client", work=False)
    moved: list[str] = []

    async def cancel_first(call: Callable[[], object]) -> object:
        moved.append(run_id)
        await worker.engine.cancel(run_id)
        await worker.end(run_id)
        return await call()  # type: ignore[misc]

    client.door.next("jobs", cancel_first)
    verdict = await client.engine.verify_log()
    assert moved
    assert (verdict.findings, verdict.moved) == ((), 1)


@simulated
async def test_a_sample_is_a_part_of_the_runs(mill: Mill) -> None:
    worker = await mill.process()
    reference = await worker.publish(document(node("a")))
    for number in range(200):
        await worker.engine.start(reference, key=f"r{number}")
    await worker.ambient.sleep(20_000)
    engine = operator(mill)
    assert 5 <= (await engine.verify_log(sample=10)).runs <= 40
    assert (await engine.verify_log()).runs == 200
    for wrong in (0, -1, 101):
        with pytest.raises(Rejected, match="sample"):
            await engine.verify_log(sample=wrong)
    with pytest.raises(Rejected, match="there is no run"):
        await engine.verify_log(["nobody"])


def test_a_verdict_with_findings_is_not_clean() -> None:
    assert AuditReport().clean


# The keeper's sample


@simulated
async def test_the_keeper_reads_every_failed_run_and_some_of_the_others(mill: Mill) -> None:
    worker = await mill.process(audit_every_ms=1_000)
    failing = await worker.publish(document(node("a"), FAILS, name="failing"))
    fine = await worker.publish(document(node("a"), name="fine"))
    failed = [await worker.engine.start(failing, key=f"f{number}") for number in range(2 * AUDITS_MAX + 3)]
    for number in range(300):
        await worker.engine.start(fine, key=f"c{number}")
    read: list[str] = []
    assert worker.engine.reconciler is not None
    sampler = worker.engine.reconciler._sampling
    original = sampler._auditor.run  # type: ignore[attr-defined]

    async def noted(stream: Stream, **options: object) -> object:
        read.append(stream.key)
        return await original(stream, **options)

    sampler._auditor.run = noted  # type: ignore[attr-defined]
    await worker.ambient.sleep(30_000)
    assert set(failed) <= set(read)
    assert len({key for key in read if key.startswith("c")}) >= 3
    assert worker.engine.reconciler.findings == 0


@simulated
async def test_a_finding_is_called_out_once_and_listed(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    worker = await mill.process(audit_every_ms=1_000)
    run = await worker.run(document(node("a"), FAILS))
    other = await worker.run(document(node("a"), FAILS))
    _unreadable(mill, run.run_id)
    mill.unjudged.add(run.run_id)
    with caplog.at_level(logging.ERROR):
        await worker.ambient.sleep(30_000)
    (said,) = [record for record in caplog.records if run.run_id in record.getMessage()]
    assert "verify-log" in said.getMessage()
    assert worker.engine.reconciler is not None
    assert worker.engine.reconciler.findings == 1
    rows, _ = await worker.engine.find(["suspect"])
    assert [(row.run_id, row.suspect) for row in rows] == [(run.run_id, "log_unreadable")]
    assert (await mill.row(other.run_id)).suspect == ""


@simulated
async def test_the_sample_rests_a_hundred_times_as_long_as_it_took(mill: Mill) -> None:
    worker = await mill.process(audit_every_ms=1_000)
    await worker.run(document(node("a"), FAILS))
    assert worker.engine.reconciler is not None
    sampler = worker.engine.reconciler._sampling
    original = sampler._auditor.run  # type: ignore[attr-defined]

    async def slow(stream: Stream, **options: object) -> object:
        await worker.ambient.sleep(500)
        return await original(stream, **options)

    sampler._auditor.run = slow  # type: ignore[attr-defined]
    before = sampler.audited  # type: ignore[attr-defined]
    await worker.ambient.sleep(105_000)
    assert sampler.audited - before <= 3  # type: ignore[attr-defined]
