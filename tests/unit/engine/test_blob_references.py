"""Rows of blob references: written with the records that refer, gone with their run, rebuilt for earlier versions."""

from __future__ import annotations

import gzip
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tidemill
from tests.fixtures.approvers import waits
from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.kernel.sample_events import SAMPLES
from tests.fixtures.operator import LARGE, operator, pass_days
from tidemill.blobs.archive import MemoryArchive
from tidemill.blobs.contract import digest_of
from tidemill.blobs.payloads import encode_value
from tidemill.engine.blob_references import BLOB_REFERENCE, Completeness, parts_of, read_completeness
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN
from tidemill.engine.maintenance.blob_gc import HOUR_MS, GcReport, collect
from tidemill.engine.maintenance.reindex import all_rows
from tidemill.errors import Rejected
from tidemill.handlers.contract import Blob
from tidemill.kernel.events import BlobRef
from tidemill.kernel.queries import payloads_in
from tidemill.stores.contract import Commit, Row, Stream

EARLIER = Path(__file__).parent / "data" / "referring_runs.db.gz"
"""Made by the script beside it."""
GARBAGE = digest_of(b"nothing refers to this")


async def needed(mill: Cluster, key: str, kind: str = RUN) -> set[str]:
    rows = [row async for row in all_rows(mill.store, TENANT, BLOB_REFERENCE, [f"{kind}:{key}"])]
    assert all(parts_of(row.key)[:2] == (kind, key) and parts_of(row.key)[2] in row.terms for row in rows)
    return {parts_of(row.key)[2] for row in rows}


def large(text: str) -> str:
    return digest_of(encode_value(text))


# What is written


def _walked(value: Any) -> Iterator[Any]:
    if isinstance(value, (bytes, BlobRef)):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _walked(getattr(value, name))
    elif isinstance(value, (tuple, list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _walked(inner)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_no_value_of_an_event_is_overlooked(event: Any) -> None:
    """A payload within another struct would not be seen: only fields of the event itself are looked at."""
    assert payloads_in(event) == list(_walked(event))


def draw() -> Any:
    return {"picture": Blob(b"\x89PNG" * 100)}


@simulated
async def test_a_run_refers_to_its_values_and_its_workflow_to_its_content(mill: Cluster) -> None:
    worker = await mill.process(functions={"draw": draw})
    flow = document(
        node("a", config="{{ inputs.big }}"),
        node("p", type="python", config={"function": "draw"}),
        node("c", "a", when="ctx.a.output != ''"),
        inputs={"type": "object"},
    )
    run = await worker.run(flow, {"big": LARGE})
    picture = digest_of(b"\x89PNG" * 100)
    assert await needed(mill, run.run_id) == {large(LARGE), digest_of(encode_value({"big": LARGE})), picture}
    (version,) = await worker.engine.versions(run.workflow)
    assert await needed(mill, run.workflow, "workflow") == {version.digest, version.document}
    plain = await worker.run(document(node("a", config={"text": "costs $5", "see": picture}), name="plain"))
    assert await needed(mill, plain.run_id) == set(), "an address alone gives nobody the bytes"
    assert await mill.store.count(TENANT, BLOB_REFERENCE, [picture]) == 1


@simulated
async def test_a_fork_refers_to_what_it_shares_and_a_patch_to_its_graph(mill: Cluster) -> None:
    worker = await mill.process()
    flow = document(node("a", config=LARGE + "1"), node("go", "a", type="signal"), node("z", "go"))
    run_id = await worker.start(flow)
    await waits(mill, run_id, "go")
    await worker.engine.patch(run_id, [{"op": "add", "path": "/nodes/z/config", "value": LARGE + "2"}])
    fork = await worker.engine.fork(run_id)
    await worker.engine.signal(run_id, "go", None)
    await worker.engine.signal(fork, "go", None)
    for each in (run_id, fork):
        await worker.end(each)
    patched = (await mill.state(run_id)).digest
    assert {patched, large(LARGE + "1")} <= await needed(mill, run_id) <= await needed(mill, fork)
    first = (await worker.engine.versions((await worker.engine.show(run_id)).workflow))[0].digest
    assert await needed(mill, fork) - await needed(mill, run_id) == {first}


# What goes with its run


@simulated
async def test_rows_leave_with_their_run_and_come_back_with_it(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config=LARGE), name="leaving"))
    before = await needed(mill, run.run_id)
    assert before == {large(LARGE)}
    await worker.stop()
    pass_days(mill, 40)
    engine = operator(mill)
    assert (await engine.archive_sweep()).retired == (run.run_id,)
    assert await needed(mill, run.run_id) == set()
    assert await mill.store.count(TENANT, BLOB_REFERENCE, [large(LARGE)]) == 0
    await engine.archive_restore(run.run_id)
    assert await needed(mill, run.run_id) == before
    assert (await engine.verify_log()).clean


@simulated
async def test_a_run_restored_without_its_workflow_refers_to_its_graph(mill: Cluster) -> None:
    """Nothing else does: no version of that content is published there."""
    worker = await mill.process()
    archive = MemoryArchive()
    run = await worker.run(document(node("a", config=LARGE), name="moving"))
    await worker.stop()
    pass_days(mill, 40)
    await operator(mill, archive=archive).archive_sweep()
    for stream in [each for kind in ("workflow", "store") for each in await mill.store.streams(kind)]:
        rows = [row async for row in all_rows(mill.store, TENANT, BLOB_REFERENCE)]
        await mill.store.forget(stream, rows=[msgspec.structs.replace(row, deleted=True) for row in rows])
    gone = [row async for row in all_rows(mill.store, TENANT, "workflow")]
    await mill.store.forget(
        Stream(TENANT, "workflow", "x"), rows=[msgspec.structs.replace(row, deleted=True) for row in gone]
    )
    engine = operator(mill, archive=archive)
    await engine.archive_restore(run.run_id)
    digest = (await mill.state(run.run_id)).digest
    assert await needed(mill, run.run_id) == {large(LARGE), digest}
    for hours in (100, 200):
        now_ms = mill.now_ms() + hours * HOUR_MS
        await collect(mill.store, mill.blobs, TENANT, now_ms=now_ms)
    assert (await mill.blobs.stat(TENANT, digest)) is not None
    assert (await engine.verify_log()).clean


# Audit and repair


@simulated
async def test_missing_and_surplus_references_are_found_and_repaired(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config=LARGE), name="audited"))
    await worker.stop()
    engine = operator(mill)
    lost, stray = f"run/{run.run_id}/{large(LARGE)}", f"run/{run.run_id}/{GARBAGE}"
    before = [row async for row in all_rows(mill.store, TENANT, BLOB_REFERENCE)]
    rows = (
        Row(kind=BLOB_REFERENCE, key=lost, sort=0, deleted=True),
        Row(kind=BLOB_REFERENCE, key=stray, sort=0, terms=(GARBAGE, f"run:{run.run_id}")),
    )
    await mill.store.commit([Commit(mill.stream(run.run_id), None, rows=rows)])
    found = (await engine.verify_log()).findings
    assert {(finding.run, finding.code) for finding in found} == {
        (run.run_id, "row_missing"),
        (run.run_id, "row_surplus"),
    }
    done = await engine.reindex()
    assert (done.missing, done.surplus, done.references_unknown) == (1, 1, ())
    assert [row async for row in all_rows(mill.store, TENANT, BLOB_REFERENCE)] == before
    assert (await engine.verify_log()).clean


@simulated
async def test_a_new_tenant_is_complete_from_its_first_publication(mill: Cluster) -> None:
    assert await read_completeness(mill.store, TENANT) == Completeness()
    worker = await mill.process()
    await worker.publish(document(node("a"), name="first"))
    marks = await mill.store.streams("store")
    assert [stream.tenant for stream in marks] == [TENANT]
    await worker.publish(document(node("a"), name="second"))
    (tail,) = await mill.store.load({marks[0]: 0})
    assert tail.version == 1, "once is enough"


# Stores of earlier versions


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    path = tmp_path / "tidemill.db"
    path.write_bytes(gzip.decompress(EARLIER.read_bytes()))
    return path


def opened(path: Path) -> tidemill.Tidemill:
    return tidemill.open(f"sqlite:///{path}", functions={"draw": draw}, retention_days=None, work=False)


def collected(mill: tidemill.Tidemill, **options: Any) -> GcReport:
    """Collect, and again two days later; answers the second report."""
    engine: Engine = mill._engine

    async def twice() -> GcReport:
        store, blobs = engine.context.store, engine.context.blobs
        now_ms = store.now_ms()
        await collect(store, blobs, "default", now_ms=now_ms, **options)
        return await collect(store, blobs, "default", now_ms=now_ms + 48 * HOUR_MS, **options)

    return mill._wait(twice())


def code(act: Callable[[], Any]) -> str:
    with pytest.raises(Rejected) as refused:
        act()
    return refused.value.code


def test_a_store_of_an_earlier_version_is_collected_once_it_is_indexed(earlier: Path) -> None:
    with opened(earlier) as mill:
        shown = {name: mill.show(name).to_dict() for name in ("large", "drawn", "patched", "lost", "forked")}
        documents = {name: mill.document(name).document for name in shown}
        assert mill.verify_log().clean, "that it has no references is no damage"
        assert code(mill.collect_blobs) == "blob_references_missing"
        mill.publish({"name": "newer", "nodes": [{"id": "a", "type": "value", "config": 1}]})
        assert code(mill.collect_blobs) == "blob_references_missing", "what is new does not make the rest complete"
        assert mill.reindex(dry_run=True).missing > 0
        assert code(mill.collect_blobs) == "blob_references_missing"
        done = mill.reindex()
        assert (done.unreadable, done.references_unknown) == ((), ())
        assert done.missing >= 12
        assert (mill.reindex().missing, mill.verify_log().clean) == (0, True)
        report = collected(mill)
        # The garbage, and the document of the patched run, which is made from the patch when somebody asks.
        assert (report.deleted, report.unreadable) == (2, ())
    with opened(earlier) as mill:
        assert {name: mill.show(name).to_dict() for name in shown} == shown
        assert {name: mill.document(name).document for name in shown} == documents
        assert mill.verify_log().clean


def flip(path: Path, key: str) -> None:
    """Flip a bit in the last record of a run; done twice, it is as before."""
    query = (
        "SELECT body FROM records JOIN streams ON streams.id = records.stream"
        " WHERE kind = 'run' AND key = ? ORDER BY records.version DESC LIMIT 1"
    )
    with closing(sqlite3.connect(path)) as connection:
        ((body,),) = connection.execute(query, (key,)).fetchall()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[content.find(body) + len(body) // 2] ^= 1
    path.write_bytes(content)


def test_a_run_of_an_earlier_version_that_cannot_be_read_is_excluded_or_repaired(earlier: Path) -> None:
    flip(earlier, "lost")
    with opened(earlier) as mill:
        done = mill.reindex()
        assert done.unreadable == done.references_unknown == ("lost",)
        with pytest.raises(Rejected, match="lost") as refused:
            mill.collect_blobs()
        assert (refused.value.code, "--exclude 'lost'" in str(refused.value)) == ("blobs_gc_unsafe", True)
        assert mill.collect_blobs(dry_run=True, exclude=["lost"]).retired == 4, "the garbage, and what only it needs"
        assert mill.reindex().references_unknown == ("lost",), "it is not known by being asked again"
    flip(earlier, "lost")
    with opened(earlier) as mill:
        assert mill.reindex().references_unknown == ()
        assert collected(mill).deleted == 2
        assert mill.show("lost").status == "COMPLETED"


def test_damage_after_the_references_were_written_blocks_nothing(earlier: Path) -> None:
    with opened(earlier) as mill:
        mill.reindex()
    flip(earlier, "lost")
    with opened(earlier) as mill:
        done = mill.reindex()
        assert (done.unreadable, done.references_unknown) == (("lost",), ())
        assert collected(mill).deleted == 2
    flip(earlier, "lost")
    with opened(earlier) as mill:
        assert mill.show("lost").outputs == "lost" + "x" * 70_000 + " and less"
        assert mill.verify_log().clean


def test_nothing_is_collected_by_a_damaged_index(earlier: Path) -> None:
    with opened(earlier) as mill:
        mill.reindex()
    with closing(sqlite3.connect(earlier)) as connection:
        connection.execute("DELETE FROM terms WHERE key LIKE 'run/large/%'")
        connection.commit()
    with opened(earlier) as mill:
        assert code(mill.collect_blobs) == "blobs_gc_unsafe"
        assert mill.reindex().misplaced > 0
        assert collected(mill).deleted == 2
        assert mill.show("large").outputs == "large" + "x" * 70_000 + " and more"


# Killed

DYING = """
import asyncio, os, signal, sys
from tidemill.bootstrap import engine_at

async def main():
    async with engine_at(sys.argv[1], work=sys.argv[2] == "run") as engine:
        left, store = [int(sys.argv[3])], engine.context.store
        commit = store.commit
        async def counted(commits):
            for moment in (0, 1):
                left[0] -= 1
                if left[0] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                answer = answer if moment else await commit(commits)
            return answer
        store.commit = counted
        if sys.argv[2] == "reindex":
            await engine.reindex()
        else:
            await engine.publish({"name": "dying", "nodes": [
                {"id": f"n{i}", "type": "value", "config": f"{i}" + "x" * 70_000} for i in range(3)]})
            await engine.result(await engine.start("dying", key="dying"))
asyncio.run(main())
"""


def killed(url: str, verb: str, moment: int) -> None:
    died = subprocess.run(
        [sys.executable, "-c", DYING, url, verb, str(moment)], capture_output=True, timeout=60, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()


@pytest.mark.parametrize("moment", [2, 7])
def test_a_reindex_that_is_killed_marks_nothing(earlier: Path, moment: int) -> None:
    killed(f"sqlite:///{earlier}", "reindex", moment)
    with opened(earlier) as mill:
        assert code(mill.collect_blobs) == "blob_references_missing"
        mill.reindex()
        assert collected(mill).deleted == 2


@pytest.mark.parametrize("moment", [3, 5, 8])
def test_a_worker_that_is_killed_leaves_rows_and_records_alike(tmp_path: Path, moment: int) -> None:
    url = f"sqlite:///{tmp_path}/mill.db"
    killed(url, "run", moment)
    with tidemill.open(url) as mill:
        assert mill.verify_log().clean
        if any(row.run_id == "dying" for row in mill.find()[0]):
            run = mill.result("dying", timeout_s=60)
            assert run.status == "COMPLETED"
        collected(mill)
        assert mill.verify_log().clean, "nothing that is needed was collected"
