"""What events point to, and what lists point to: files in every value, damage told from absence, logs that are gone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.door import Door, following
from tests.engine.kit import TENANT, Mill, Process, simulated
from tests.engine.upkeep import FAILS, operator
from tests.kernel.authoring import document, node
from tidemill.blobs.contract import PIECE_BYTES, digest_of
from tidemill.blobs.directory import DirectoryBlobs
from tidemill.engine.index_rows import DEAD_LETTER, RUN
from tidemill.engine.maintenance.reindex import all_rows
from tidemill.engine.maintenance.verify import BlobAuditor, orphan_rows
from tidemill.engine.versions import WORKFLOW
from tidemill.errors import Unavailable
from tidemill.kernel.events import BlobRef, NodeCompleted, RunPatched
from tidemill.stores.contract import Commit, Stream

BYTES = b"%PDF"
FILE = {"$blob": digest_of(BYTES), "size": len(BYTES), "media_type": "application/pdf", "name": "r.pdf"}
LARGE = "x" * 100_000
ASKS_FOR_ONE = node("b", "a", type="signal", config={"name": "go"})


def _break(mill: Mill, digest: str, how: str) -> None:
    if how == "missing":
        del mill.blobs._held[TENANT, digest]
    else:
        mill.blobs._held[TENANT, digest] = b"other"


async def _as_input(worker: Process) -> str:
    return await worker.start(document(node("a"), inputs={"file": {"type": "object"}}), {"file": FILE})


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
async def test_a_file_is_looked_for_wherever_it_is_described(mill: Mill, given: Callable[..., Any], how: str) -> None:
    worker = await mill.process(audit_every_ms=10_000_000)
    await mill.blobs.put(TENANT, BYTES)
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


# The keeper's sample


@simulated
async def test_the_keeper_tells_damage_and_takes_its_mark_back(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
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
async def test_an_outage_of_the_blobs_neither_makes_nor_clears_a_suspect(mill: Mill) -> None:
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


# Lists without logs


@simulated
async def test_a_log_that_is_gone_is_missed_by_whoever_lists_it(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
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
            ("workflow fine", "row_missing"),
            (lost.run_id, "log_missing"),
            (lost.run_id, "row_surplus"),
        ]
    )
    assert any(letter.key in finding.message for finding in verdict.findings)
    assert (verdict.runs, verdict.workflows) == (1, 1)
    assert worker.engine.reconciler is not None
    with caplog.at_level(logging.ERROR):
        await worker.engine.reconciler._sampling.audit_next()
    (said,) = [record.getMessage() for record in caplog.records if lost.run_id in record.getMessage()]
    assert "log_missing" in said
    await operator(mill).reindex()
    assert (await operator(mill).verify_log()).clean
    assert (await mill.row(fine.run_id)).suspect == ""


@simulated
async def test_a_run_that_is_retired_meanwhile_is_not_missed(mill: Mill) -> None:
    worker = await mill.process(audit_every_ms=10_000_000)
    run = await worker.run(document(node("a")))
    (row,) = [row async for row in all_rows(mill.store, TENANT, RUN)]
    door, retired = Door(mill.store), list[bool]()

    async def workflows_first(call: Callable[[], Any]) -> Any:
        return await call()

    async def retire() -> None:
        rows = (msgspec.structs.replace(row, deleted=True),)
        retired.append(await mill.store.forget(mill.stream(run.run_id), rows=rows))

    door.next("load", workflows_first)
    door.next("load", following(retire))
    assert [row async for row in orphan_rows(door, TENANT)] == []
    assert retired == [True]


# A workflow that is gone


@simulated
async def test_a_worker_says_once_which_workflow_its_jobs_wait_for(
    mill: Mill, caplog: pytest.LogCaptureFixture
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
