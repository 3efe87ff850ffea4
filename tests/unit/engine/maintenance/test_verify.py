"""The audit of logs: clean stores are clean, every kind of damage is found and named, and none hides another."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.operator import FAILS, history, operator
from tidemill.blobs.contract import PIECE_BYTES, digest_of
from tidemill.blobs.directory import DirectoryBlobs
from tidemill.bootstrap import engine_at
from tidemill.engine.index_rows import DEAD_LETTER, RUN
from tidemill.engine.maintenance.reconciler import AUDITS_MAX
from tidemill.engine.maintenance.reindex import all_rows
from tidemill.engine.maintenance.verify import BlobAuditor, orphan_rows
from tidemill.engine.versions import WORKFLOW
from tidemill.errors import Rejected, Unavailable
from tidemill.kernel.codec import SNAPSHOT_FORMAT, decode_event, encode_event, encode_state
from tidemill.kernel.events import BlobRef, NodeCompleted, RunPatched
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.state import State
from tidemill.stores.contract import Commit, Job, Page, Row, Snapshot, Stream
from tidemill.testing.faulty_store import FaultyStore, following

LARGE = "x" * 100_000


@simulated
async def test_a_store_that_nothing_happened_to_is_clean(mill: Cluster) -> None:
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


async def test_a_run_among_many_is_found_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists are not walked from their beginning for every run."""
    async with engine_at("memory://") as engine:
        await engine.publish(document(node("a"), name="many"))
        runs = await engine.start_many("many", [None] * 40)
        for run in runs:
            await engine.result(run)
        asked: list[int] = []

        async def find(*given: Any, find: Any = engine._store.find, **options: Any) -> Page:
            page: Page = await find(*given, **options)
            # Maintenance asks for one term.
            asked.extend([len(page.rows)] if given[1] == RUN and len((*given, ())[2]) > 1 else [])
            return page

        monkeypatch.setattr(engine._store, "find", find)
        verdict = await engine.verify_log(runs)
        assert verdict.clean and verdict.runs == len(runs)
        assert asked == [1] * len(runs)


def _records(mill: Cluster, run_id: str) -> list[bytes]:
    return mill.store._logs[mill.stream(run_id)].records


def _unreadable(mill: Cluster, run_id: str) -> None:
    _records(mill, run_id)[2] = b"\xc1"


def _headless(mill: Cluster, run_id: str) -> None:
    del _records(mill, run_id)[0]


def _repeated(mill: Cluster, run_id: str) -> None:
    records = _records(mill, run_id)
    done = next(at for at, record in enumerate(records) if isinstance(decode_event(record), NodeCompleted))
    records.insert(done, records[done])


def _miscounted(mill: Cluster, run_id: str) -> None:
    records = _records(mill, run_id)
    for at, record in enumerate(records):
        event = decode_event(record)
        if isinstance(event, NodeCompleted):
            records[at] = encode_event(msgspec.structs.replace(event, counter=7))


def _other_snapshot(mill: Cluster, run_id: str) -> None:
    body = encode_state(State(seq=3, status="RUNNING", workflow="other"))
    mill.store._logs[mill.stream(run_id)].snapshot = Snapshot(version=3, body=body)


def _bad_snapshot(mill: Cluster, run_id: str) -> None:
    mill.store._logs[mill.stream(run_id)].snapshot = Snapshot(version=3, body=bytes([SNAPSHOT_FORMAT]) + b"\xc1")


DAMAGES: list[tuple[str, Callable[[Cluster, str], None]]] = [
    ("log_unreadable", _unreadable),
    ("log_headless", _headless),
    ("counter", _miscounted),
    ("snapshot_differs", _other_snapshot),
    ("snapshot_unreadable", _bad_snapshot),
]


@pytest.mark.parametrize(("code", "damage"), DAMAGES)
@simulated
async def test_damage_is_found_and_hides_no_other(
    mill: Cluster, code: str, damage: Callable[[Cluster, str], None]
) -> None:
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
async def test_a_result_that_was_written_twice_is_found(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), node("b", "a")))
    _repeated(mill, run.run_id)
    mill.unjudged.add(run.run_id)
    verdict = await operator(mill).verify_log()
    assert verdict.findings


@simulated
async def test_a_missing_blob_is_found_with_the_event_that_refers_to_it(mill: Cluster) -> None:
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
async def test_a_missing_workflow_is_found_in_the_run_and_in_the_catalog(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    digest = (await mill.state(run.run_id)).digest
    await mill.blobs.quarantine(TENANT, digest)
    assert await mill.blobs.delete(TENANT, digest, before_ms=2**60)
    verdict = await operator(mill).verify_log()
    assert [finding.code for finding in verdict.findings] == ["workflow_unreadable", "workflow_missing"]
    mill.unjudged.add(run.run_id)


@simulated
async def test_jobs_and_rows_are_compared(mill: Cluster) -> None:
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
async def test_a_run_that_moves_on_is_not_accused(mill: Cluster) -> None:
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

    client.faulty_store.next("jobs", cancel_first)
    verdict = await client.engine.verify_log()
    assert moved
    assert (verdict.findings, verdict.moved) == ((), 1)


@simulated
async def test_a_sample_is_a_part_of_the_runs(mill: Cluster) -> None:
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


@simulated
async def test_the_keeper_reads_every_failed_run_and_some_of_the_others(mill: Cluster) -> None:
    worker = await mill.process(audit_every_ms=1_000)
    failing = await worker.publish(document(node("a"), FAILS, name="failing"))
    fine = await worker.publish(document(node("a"), name="fine"))
    failed = [await worker.engine.start(failing, key=f"f{number}") for number in range(2 * AUDITS_MAX + 3)]
    for number in range(300):
        await worker.engine.start(fine, key=f"c{number}")
    read: list[str] = []
    assert worker.engine.reconciler is not None
    sampler = worker.engine.reconciler.sampling
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
async def test_a_finding_is_called_out_once_and_listed(mill: Cluster, caplog: pytest.LogCaptureFixture) -> None:
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
async def test_the_sample_rests_a_hundred_times_as_long_as_it_took(mill: Cluster) -> None:
    worker = await mill.process(audit_every_ms=1_000)
    await worker.run(document(node("a"), FAILS))
    assert worker.engine.reconciler is not None
    sampler = worker.engine.reconciler.sampling
    original = sampler._auditor.run  # type: ignore[attr-defined]

    async def slow(stream: Stream, **options: object) -> object:
        await worker.ambient.sleep(500)
        return await original(stream, **options)

    sampler._auditor.run = slow  # type: ignore[attr-defined]
    before = sampler.audited  # type: ignore[attr-defined]
    await worker.ambient.sleep(105_000)
    assert sampler.audited - before <= 3  # type: ignore[attr-defined]


# What events point to, and what lists point to: files in every value, damage told from absence, logs that are gone


BYTES = b"%PDF"
FILE = {"$blob": digest_of(BYTES), "size": len(BYTES), "media_type": "application/pdf", "name": "r.pdf"}
ASKS_FOR_ONE = node("b", "a", type="signal", config={"name": "go"})


def _break(mill: Cluster, digest: str, how: str) -> None:
    if how == "missing":
        del mill.blobs._held[TENANT, digest]
    else:
        mill.blobs._held[TENANT, digest] = b"other"


async def _as_input(worker: Process) -> str:
    return await worker.start(document(node("a"), inputs={"properties": {"file": {"type": "object"}}}), {"file": FILE})


async def _in_a_large_output(worker: Process) -> str:
    return await worker.start(document(node("a", config={"text": LARGE, "file": FILE})))


async def _in_a_signal(worker: Process) -> str:
    run_id = await worker.start(document(node("a"), ASKS_FOR_ONE))
    await worker.ambient.sleep(1_000)
    await worker.engine.signal(run_id, "go", {"file": FILE})
    return run_id


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("given", [_as_input, _in_a_large_output, _in_a_signal])
@simulated
async def test_a_file_is_looked_for_wherever_it_is_described(
    mill: Cluster, given: Callable[..., Any], how: str
) -> None:
    worker = await mill.process(audit_every_ms=10_000_000)
    await mill.blobs.put(TENANT, BYTES, keep=True)
    run_id = await given(worker)
    await worker.end(run_id)
    assert (await operator(mill).verify_log()).clean
    _break(mill, FILE["$blob"], how)  # type: ignore[arg-type]
    findings = (await operator(mill).verify_log()).findings
    assert {(finding.run, finding.code) for finding in findings} == {(run_id, f"blob_{how}")}
    assert len(findings) == 1, "a blob is looked at once"
    assert str(FILE["$blob"]) in findings[0].message


async def test_a_blob_is_read_in_pieces_and_a_description_may_lie_across_two(tmp_path: Path) -> None:
    class Streamed(DirectoryBlobs):
        async def get(self, tenant: str, digest: str) -> bytes:
            raise AssertionError("a file of any size would be held in memory")

    blobs = Streamed(tmp_path)
    await blobs.open()
    described = b'"$blob":"%s"' % str(FILE["$blob"]).encode()
    for cut in (1, len(described) // 2, len(described) - 1):
        text = b'{"text":"'.ljust(PIECE_BYTES - cut - 2, b"x") + b'",' + described + b"}"
        assert text.index(described) == PIECE_BYTES - cut
        event = NodeCompleted(
            at_ms=1,
            node="a",
            visit=1,
            attempt=1,
            token=1,
            output=BlobRef(digest=await blobs.put(TENANT, text), size=len(text)),
        )
        (fault,) = await BlobAuditor(blobs, TENANT).faults(event)
        assert (fault.code, str(FILE["$blob"]) in fault.message) == ("blob_missing", True)


async def test_a_patch_may_speak_of_files_that_nobody_has_brought(tmp_path: Path) -> None:
    patch = msgspec.json.encode([{"op": "add", "path": "/nodes/0/config", "value": FILE}])
    event = RunPatched(at_ms=1, base="sha256:" + "1" * 64, digest="sha256:" + "0" * 64, revision=1, patch=patch)
    assert await BlobAuditor(DirectoryBlobs(tmp_path), TENANT).faults(event) == []


@simulated
async def test_the_keeper_tells_damage_and_takes_its_mark_back(mill: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    worker = await mill.process(audit_every_ms=1_000)
    run = await worker.run(document(node("a", config={"text": LARGE}), FAILS))
    digest = digest_of(b'{"text":"' + LARGE.encode() + b'"}')
    sound = mill.blobs._held[TENANT, digest]
    assert worker.engine.reconciler is not None
    for times in (1, 2):
        _break(mill, digest, "damaged")
        with caplog.at_level(logging.ERROR):
            await worker.ambient.sleep(30_000)
        rows, _ = await worker.engine.find(["suspect"])
        assert [(row.run_id, row.suspect) for row in rows] == [(run.run_id, "blob_damaged")]
        assert worker.engine.reconciler.findings == times
        assert len([record for record in caplog.records if run.run_id in record.getMessage()]) == times
        mill.blobs._held[TENANT, digest] = sound
        await worker.ambient.sleep(30_000)
        assert await worker.engine.find(["suspect"]) == ([], None)
        assert (await mill.row(run.run_id)).suspect == ""
    assert (await operator(mill).verify_log()).clean


@simulated
async def test_an_outage_of_the_blobs_neither_makes_nor_clears_a_suspect(mill: Cluster) -> None:
    worker = await mill.process(audit_every_ms=1_000)
    run = await worker.run(document(node("a", config={"text": LARGE}), FAILS))
    digest = digest_of(b'{"text":"' + LARGE.encode() + b'"}')
    _break(mill, digest, "damaged")
    await worker.ambient.sleep(30_000)
    assert (await mill.row(run.run_id)).suspect == "blob_damaged"
    original = mill.blobs.read
    asked: list[str] = []

    async def silent(tenant: str, digest: str) -> AsyncIterator[bytes]:
        asked.append(digest)
        if asked:
            raise Unavailable("the bucket does not answer")
        yield b""

    mill.blobs.read = silent  # type: ignore[method-assign]
    await worker.ambient.sleep(30_000)
    assert asked
    assert (await mill.row(run.run_id)).suspect == "blob_damaged"
    mill.blobs.read = original  # type: ignore[method-assign]


@simulated
async def test_a_log_that_is_gone_is_missed_by_whoever_lists_it(
    mill: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await mill.process(audit_every_ms=10_000_000)
    lost = await worker.run(document(node("a"), FAILS, name="failing"))
    fine = await worker.run(document(node("a"), name="fine"))
    del mill.store._logs[mill.stream(lost.run_id)]
    del mill.store._logs[Stream(TENANT, WORKFLOW, "failing")]
    mill.unjudged.add(lost.run_id)
    (row,) = [row async for row in all_rows(mill.store, TENANT, WORKFLOW) if row.key == "fine"]
    gone = msgspec.structs.replace(row, deleted=True)
    await mill.store.commit([Commit(stream=Stream(TENANT, WORKFLOW, "fine"), expected=None, rows=(gone,))])
    (letter,) = [row async for row in all_rows(mill.store, TENANT, DEAD_LETTER)]
    verdict = await operator(mill).verify_log()
    assert sorted((finding.run, finding.code) for finding in verdict.findings) == sorted(
        [
            ("workflow failing", "log_missing"),
            *[("workflow failing", "row_surplus")] * 2,
            ("workflow fine", "row_missing"),
            (lost.run_id, "log_missing"),
            (lost.run_id, "row_surplus"),
        ]
    )
    assert any(letter.key in finding.message for finding in verdict.findings)
    assert (verdict.runs, verdict.workflows) == (1, 1)
    assert worker.engine.reconciler is not None
    with caplog.at_level(logging.ERROR):
        await worker.engine.reconciler.sampling.audit_next()
    (said,) = [record.getMessage() for record in caplog.records if lost.run_id in record.getMessage()]
    assert "log_missing" in said
    await operator(mill).reindex()
    assert (await operator(mill).verify_log()).clean
    assert (await mill.row(fine.run_id)).suspect == ""


@simulated
async def test_a_run_that_is_retired_meanwhile_is_not_missed(mill: Cluster) -> None:
    worker = await mill.process(audit_every_ms=10_000_000)
    run = await worker.run(document(node("a")))
    (row,) = [row async for row in all_rows(mill.store, TENANT, RUN)]
    faulty_store, retired = FaultyStore(mill.store), list[bool]()

    async def workflows_first(call: Callable[[], Any]) -> Any:
        return await call()

    async def retire() -> None:
        rows = (msgspec.structs.replace(row, deleted=True),)
        retired.append(await mill.store.forget(mill.stream(run.run_id), rows=rows))

    faulty_store.next("load", workflows_first)
    faulty_store.next("load", following(retire))
    assert [row async for row in orphan_rows(faulty_store, TENANT)] == []
    assert retired == [True]


# A workflow that is gone


@simulated
async def test_a_worker_says_once_which_workflow_its_jobs_wait_for(
    mill: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    first = await mill.process()
    flow = document(node("a"), node("b", "a", type="sleep", config={"seconds": 2}), node("c", "b"))
    runs = [await first.start(flow) for _ in range(3)]
    await first.ambient.sleep(1_000)
    await first.stop()
    digest = (await mill.state(runs[0])).digest
    body = mill.blobs._held.pop((TENANT, digest))
    second = await mill.process("w2")
    with caplog.at_level(logging.WARNING):
        await second.ambient.sleep(20_000)
    said = [record.getMessage() for record in caplog.records if digest in record.getMessage()]
    assert len(said) == 1, said
    assert "is missing; put the same bytes back" in said[0]
    mill.blobs._held[TENANT, digest] = body
    for run_id in runs:
        assert (await second.end(run_id)).status == "COMPLETED"
