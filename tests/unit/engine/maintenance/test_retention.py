"""Retention: what is due leaves the store and is in the archive first, wherever a sweep is interrupted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.operator import FAILS, LARGE, history, operator, pass_days, shown, stored
from tests.fixtures.scripted_functions import Ledger
from tidemill.blobs.archive import Archive, MemoryArchive
from tidemill.blobs.contract import digest_of
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import DAY_MS, RUN, retention_term
from tidemill.engine.maintenance.archive import blob_name, decode_archived, decode_header, encode_archived
from tidemill.engine.maintenance.reindex import owner_of
from tidemill.engine.maintenance.retention import RetentionSweep
from tidemill.engine.worker.worker import WorkerOptions
from tidemill.errors import Rejected, Unavailable
from tidemill.kernel.model import Retention
from tidemill.node_types import built_in_handlers
from tidemill.stores.contract import Commit, Job, Row, Stream
from tidemill.testing.simulated_loop import SimAmbient


async def archived(engine: Engine) -> list[str]:
    """The runs that are in the archive, as often as they are."""
    return sorted(header.run_id for header in (await engine.archive_list(limit=1_000)).runs)


@simulated
async def test_a_run_is_kept_for_its_days_and_then_leaves(mill: Cluster) -> None:
    worker = await mill.process()
    default, short, long, kept = [
        (await worker.run(document(node("a"), name=name, **more))).run_id
        for name, more in (
            ("default", {}),
            ("short", {"retention": {"days": 2}}),
            ("long", {"retention": {"days": 90}}),
            ("kept", {"retention": {"keep": True}}),
        )
    ]
    await worker.stop()
    engine = operator(mill)
    everything = {default, short, long, kept}
    for days, left in ((2, everything), (2, {default, long, kept}), (26, everything - {short}), (2, {long, kept})):
        pass_days(mill, days)
        await engine.archive_sweep()
        assert await stored(mill) == left, days
    pass_days(mill, 4_000)
    await engine.archive_sweep()
    assert await stored(mill) == {kept}
    assert await archived(engine) == sorted({default, short, long})
    assert {key for kind, key in await shown(mill) if kind == RUN} == {kept}


@simulated
async def test_how_long_is_a_setting(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    await worker.stop()
    pass_days(mill, 400)
    assert (await operator(mill, retention_days=None).archive_sweep()).retired == ()
    assert (await operator(mill, retention_days=500).archive_sweep()).retired == ()
    assert (await operator(mill, retention_days=300).archive_sweep()).retired == (run.run_id,)


@simulated
async def test_no_run_leaves_within_the_hour(mill: Cluster) -> None:
    """Whoever knew the run still takes its name for it."""
    worker = await mill.process()
    await worker.stop()
    late = DAY_MS - 1_000_000 - 60_000
    pass_days(mill, late / DAY_MS)
    worker = await mill.process()
    run = await worker.run(document(node("a"), retention={"days": 0}))
    await worker.stop()
    engine = operator(mill)
    pass_days(mill, 50 / (24 * 60))
    assert mill.store.now_ms() // DAY_MS == 1
    assert (await engine.archive_sweep()).retired == ()
    pass_days(mill, 20 / (24 * 60))
    assert (await engine.archive_sweep()).retired == (run.run_id,)


@simulated
async def test_what_is_not_over_stays(mill: Cluster) -> None:
    worker = await mill.process()
    kid = document(node("a"), name="kid", retention={"days": 0})
    await worker.publish(kid)
    parent = document(
        node("c", type="workflow", config={"workflow": "kid"}), node("s", "c", type="signal"), retention={"days": 0}
    )
    waiting = await worker.start(parent)
    await worker.ambient.sleep(2_000)
    (child,) = await stored(mill) - {waiting}
    pass_days(mill, 40)
    engine = operator(mill)
    swept = await engine.archive_sweep()
    assert (swept.retired, [run for run, _ in swept.left]) == ((), [child])
    assert waiting in swept.left[0][1]
    await worker.engine.signal(waiting, "s", 1)
    await worker.end(waiting)
    await worker.stop()
    pass_days(mill, 40)
    assert set((await engine.archive_sweep()).retired) == {waiting, child}


@simulated
async def test_a_rollback_under_way_is_not_over(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    undo = {"type": "python", "config": {"function": "work", "args": {"seconds": 100}, "isolation": "inline"}}
    flow = document(node("a", compensator=undo), FAILS, on_failure={"compensate": "automatic"}, retention={"days": 0})
    run_id = await worker.start(flow)
    await worker.ambient.sleep(2_000)
    state = await mill.state(run_id)
    assert (state.status, state.rollback) == ("FAILED", "running")
    assert not any(term.startswith("retire") for row in (await shown(mill)).values() for term in row.terms)
    await worker.end(run_id)
    await worker.stop()
    pass_days(mill, 2)
    assert (await operator(mill).archive_sweep()).retired == (run_id,)


@simulated
async def test_messages_are_delivered_before_a_run_leaves(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    await worker.stop()
    pass_days(mill, 40)
    await mill.meddle(run.run_id, jobs=(Job(key="report", queue="system", body=b""),))
    swept = await operator(mill).archive_sweep()
    assert swept.left == ((run.run_id, "it still has messages to deliver"),)
    await mill.meddle(run.run_id, drop=("report",))


@simulated
async def test_restoring_brings_back_every_byte(mill: Cluster) -> None:
    worker = await mill.process()
    runs = set(await history(worker))
    large = await worker.run(document(node("a", config={"text": LARGE}), name="large"))
    runs.add(large.run_id)
    await worker.stop()
    waiting = {key for kind, key in await shown(mill) if kind == RUN and key in runs} - {
        row.run_id for row in await mill.rows() if row.status not in ("RUNNING", "PAUSED")
    }
    before, logs = await shown(mill), {run: mill.store._logs[mill.stream(run)].records for run in runs}
    pass_days(mill, 40)
    archive = MemoryArchive()
    engine = operator(mill, archive=archive)
    swept = await engine.archive_sweep()
    assert set(swept.retired) == runs - waiting
    assert await stored(mill) == waiting
    digest = digest_of(b'{"text":"' + LARGE.encode() + b'"}')
    await mill.blobs.quarantine(TENANT, digest)
    assert await mill.blobs.delete(TENANT, digest, before_ms=2**60)
    for run in swept.retired:
        header, events = await engine.archive_show(run)
        assert (header.run_id, header.seq, len(events)) == (run, len(logs[run]), len(logs[run]))
        assert await engine.archive_restore(run) == header
        with pytest.raises(Rejected, match="in the store already"):
            await engine.archive_restore(run)
    assert {run: mill.store._logs[mill.stream(run)].records for run in runs} == logs
    assert await shown(mill) == before
    assert (await engine.verify_log()).findings == ()
    assert (await mill.state(large.run_id)).status == "COMPLETED"


@simulated
async def test_what_was_brought_back_is_kept_as_long_again(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    await worker.stop()
    pass_days(mill, 40)
    engine = operator(mill)
    await engine.archive_sweep()
    await engine.archive_restore(run.run_id)
    await engine.reindex()
    swept = await engine.archive_sweep()
    assert (swept.retired, swept.left) == ((), ((run.run_id, "it was restored from the archive"),))
    pass_days(mill, 29)
    assert (await engine.archive_sweep()).retired == ()
    pass_days(mill, 3)
    assert (await engine.archive_sweep()).retired == (run.run_id,)
    assert await archived(engine) == [run.run_id]
    assert not (await mill.store.find(TENANT, "restored")).rows


@simulated
async def test_a_run_that_went_on_after_it_was_brought_back_is_archived_again(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), FAILS))
    pass_days(mill, 40)
    engine = operator(mill)
    await engine.archive_sweep()
    await engine.archive_restore(run.run_id)
    await worker.engine.retry(run.run_id)
    await worker.end(run.run_id)
    await worker.stop()
    pass_days(mill, 40)
    await engine.archive_sweep()
    assert await archived(engine) == [run.run_id, run.run_id]
    header, _ = await engine.archive_show(run.run_id)
    assert header.seq == max(each.seq for each in (await engine.archive_list()).runs)
    assert await stored(mill) == set()


@simulated
async def test_the_key_of_a_retired_run_begins_a_new_one(mill: Cluster) -> None:
    """Also in a process that knew the old run while it was at work, and never heard of its end."""
    worker, other = await mill.process(), await mill.process("other", work=False)
    flow = document(node("a"), node("s", "a", type="signal"), name="keyed")
    reference = await worker.publish(flow)
    await other.engine.start(reference, {"n": 1}, key="daily")
    await worker.ambient.sleep(1_000)
    await other.engine.show("daily")
    assert other.cached("daily") is not None
    await worker.engine.signal("daily", "s", "old")
    assert (await worker.end("daily")).outputs == {"s": "old"}
    pass_days(mill, 40)
    engine = operator(mill)
    assert (await engine.archive_sweep()).retired == ("daily",)
    with pytest.raises(Rejected, match="there is no run"):
        await other.engine.show("daily")
    assert await other.engine.start(reference, {"n": 2}, key="daily") == "daily"
    await worker.ambient.sleep(1_000)
    view = await other.engine.show("daily")
    assert (view.status, view.outputs) == ("RUNNING", None)
    await other.engine.signal("daily", "s", "new")
    assert (await other.end("daily")).outputs == {"s": "new"}
    with pytest.raises(Rejected, match="in the store already"):
        await engine.archive_restore("daily")


@simulated
async def test_a_process_that_slept_does_not_take_a_new_run_for_the_one_it_knew(mill: Cluster) -> None:
    worker, other = await mill.process(), await mill.process("other", work=False)
    reference = await worker.publish(document(node("a"), node("s", "a", type="signal"), name="keyed"))
    await other.engine.start(reference, key="daily")
    await worker.ambient.sleep(1_000)
    await other.engine.show("daily")
    await worker.engine.signal("daily", "s", "old")
    await worker.end("daily")
    pass_days(mill, 40)
    await operator(mill).archive_sweep()
    # The new run is further on than the old one was when it was last seen here.
    flow = document(node("a"), node("b", "a"), node("c", "b"), node("s", "c", type="signal"), name="keyed")
    await worker.engine.start(await worker.publish(flow), key="daily")
    await worker.ambient.sleep(1_000)
    view = await other.engine.show("daily")
    assert {name: shown["status"] for name, shown in view.nodes.items()} == {
        "a": "COMPLETED",
        "b": "COMPLETED",
        "c": "COMPLETED",
        "s": "WAITING",
    }


class Killed(Exception):
    """The process is gone."""


class Countdown:
    """Stands before a store and an archive, and dies at the n-th call that changes or reads anything."""

    def __init__(self, inner: Any, left: list[int]) -> None:
        self._inner, self._left = inner, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("now_ms", "find", "names"):
            # Only asking; a death there is one before the next call that does something.
            return found

        async def call(*args: Any, **options: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] == 0:
                raise Killed
            answer = await found(*args, **options)
            self._left[0] -= 1
            if self._left[0] == 0:
                # It happened, and nobody learns of it.
                raise Killed
            return answer

        return call


@simulated
async def test_a_sweep_may_die_anywhere(mill: Cluster) -> None:
    worker = await mill.process()
    ended = []
    for number in range(3):
        flow = document(node("a", config={"text": LARGE, "n": number}), FAILS, name="large")
        ended.append((await worker.run(flow)).run_id)
    await worker.stop()
    pass_days(mill, 40)
    deaths, moment = 0, 0
    logs = dict(mill.store._logs)
    tables = {name: dict(table._rows) for name, table in mill.store._tables.items()}
    while True:
        moment += 1
        mill.store._logs = dict(logs)
        rows = tuple(row for table in tables.values() for row in table.values())
        await mill.store.commit([Commit(stream=Stream(TENANT, "test", "rows"), expected=None, rows=rows)])
        archive: Archive = MemoryArchive()
        left = [moment]
        try:
            dying = operator(mill, archive=Countdown(archive, left), store=Countdown(mill.store, left))
            await dying.archive_sweep()
        except Killed:
            deaths += 1
        engine = operator(mill, archive=archive)
        in_store, in_archive = await stored(mill), await archived(engine)
        assert in_store | set(in_archive) == set(ended), moment
        swept = await engine.archive_sweep()
        assert set(swept.retired) == in_store
        assert await stored(mill) == set()
        assert await archived(engine) == sorted(ended)
        assert {owner_of(TENANT, *name).kind for name in await shown(mill)} == {"workflow"}, "no row of a run is left"
        if left[0] > 0:
            break
    assert deaths > 30


@simulated
async def test_two_sweeps_at_once_do_no_harm(mill: Cluster) -> None:
    worker = await mill.process()
    reference = await worker.publish(document(node("a")))
    runs = [await worker.engine.start(reference, key=f"r{n}") for n in range(30)]
    await worker.ambient.sleep(5_000)
    await worker.stop()
    pass_days(mill, 40)
    archive = MemoryArchive()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            async def call(*args: Any, **options: Any) -> Any:
                await asyncio.sleep(random.random() / 100)
                return await getattr(archive, name)(*args, **options)

            return call

    engines = [operator(mill, archive=Slow()) for _ in range(3)]
    swept = await asyncio.gather(*(engine.archive_sweep() for engine in engines))
    assert sorted(run for each in swept for run in each.retired) == sorted(runs)
    assert await archived(engines[0]) == sorted(runs)
    assert await stored(mill) == set()


@simulated
async def test_a_blob_that_is_gone_keeps_its_run_and_no_other(mill: Cluster) -> None:
    worker = await mill.process()
    broken = await worker.run(document(node("a", config={"text": LARGE}), name="large"))
    fine = [(await worker.run(document(node("a")))).run_id for _ in range(3)]
    await worker.stop()
    pass_days(mill, 40)
    digest = digest_of(b'{"text":"' + LARGE.encode() + b'"}')
    await mill.blobs.quarantine(TENANT, digest)
    assert await mill.blobs.delete(TENANT, digest, before_ms=2**60)
    engine = operator(mill)
    swept = await engine.archive_sweep()
    assert (set(swept.retired), swept.failed) == (set(fine), (broken.run_id,))
    assert [(run, digest in why) for run, why in swept.left] == [(broken.run_id, True)]
    assert await stored(mill) == {broken.run_id}
    assert await archived(engine) == sorted(fine)


class Refusing(MemoryArchive):
    """An archive that does not take one run."""

    refused = 0

    async def put(self, name: str, body: bytes) -> bool:
        if "/never/" in name:
            self.refused += 1
            raise Unavailable("the archive cannot be written")
        return await super().put(name, body)


@simulated
async def test_an_archive_that_does_not_answer_is_asked_again_before_the_run_is_passed_over(mill: Cluster) -> None:
    worker = await mill.process()
    never = await worker.run(document(node("a"), name="never"))
    fine = await worker.run(document(node("a")))
    await worker.stop()
    pass_days(mill, 40)
    archive = Refusing()
    sweep = operator(mill, archive=archive).maintenance.retention_sweep()
    with pytest.raises(Unavailable):
        await sweep.sweep()
    assert [run for run, _ in await _swept(sweep)] == [never.run_id]
    assert (archive.refused, await stored(mill)) == (2, {never.run_id})
    assert [fine.run_id in name for name in await archive.names("runs/")] == [True]


async def _swept(sweep: RetentionSweep) -> list[tuple[str, str]]:
    left: list[tuple[str, str]] = []
    while True:
        swept = await sweep.sweep()
        left += swept.left
        if not swept.more:
            return left


@simulated
async def test_a_preview_changes_nothing(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    await worker.stop()
    pass_days(mill, 40)
    engine = operator(mill)
    preview = await engine.archive_sweep(dry_run=True)
    assert (preview.retired, preview.dry_run) == ((run.run_id,), True)
    assert await stored(mill) == {run.run_id}
    assert await archived(engine) == []


@simulated
async def test_a_worker_sweeps_by_itself(mill: Cluster) -> None:
    assert operator(mill).schedule is None
    worker = await mill.process("w2")
    run = await worker.run(document(node("a")))
    pass_days(mill, 40)
    sweeping = await _with_archive(mill)
    await worker.ambient.sleep(200_000)
    assert await stored(mill) == set()
    assert await archived(sweeping) == [run.run_id]
    await sweeping.close()


async def _with_archive(mill: Cluster) -> Engine:
    engine = Engine(
        store=mill.build("w3").faulty_store,
        blobs=mill.blobs,
        ambient=SimAmbient(mill.loop, random.Random(3), "w3"),
        handlers=built_in_handlers(),
        worker=WorkerOptions(name="w3", heart_thread=False),
        archive=MemoryArchive(),
    )
    return await engine.open()


def test_what_a_run_is_found_by_when_it_is_due() -> None:
    assert retention_term(10, Retention()) == "ended:10"
    assert retention_term(10, Retention(keep=True)) == "kept"
    assert retention_term(10, Retention(days=0.0)) == "retire:11"
    assert retention_term(10, Retention(days=1.5)) == "retire:13"


@simulated
async def test_a_row_that_is_wrong_costs_no_run(mill: Cluster) -> None:
    """What a row says is only where to look; the log decides."""
    worker = await mill.process()
    run_id = await worker.start(document(node("a"), node("s", "a", type="signal")))
    await worker.ambient.sleep(1_000)
    pass_days(mill, 40)
    row = (await shown(mill))[RUN, run_id]
    wrong = msgspec.structs.replace(row, terms=("status:COMPLETED", "ended:0"))
    await mill.store.commit([Commit(stream=mill.stream(run_id), expected=None, rows=(wrong,))])
    swept = await operator(mill).archive_sweep()
    assert swept.left == ((run_id, "it has not ended"),)
    assert await stored(mill) == {run_id}
    await worker.engine.signal(run_id, "s", 1)
    await worker.end(run_id)


@simulated
async def test_a_run_whose_values_the_archive_has_lost_is_not_brought_back(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config={"text": LARGE}), name="large"))
    await worker.stop()
    pass_days(mill, 40)
    archive = MemoryArchive()
    engine = operator(mill, archive=archive)
    await engine.archive_sweep()
    name = blob_name(TENANT, digest_of(b'{"text":"' + LARGE.encode() + b'"}'))
    assert name in await archive.names("blobs/")
    archive._held[name] = b"something else"
    with pytest.raises(Rejected, match="has lost"):
        await engine.archive_restore(run.run_id)
    del archive._held[name]
    with pytest.raises(Rejected, match="has lost"):
        await engine.archive_restore(run.run_id)
    assert await stored(mill) == set()


@simulated
async def test_a_run_that_was_forgotten_is_not_remembered(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("a"), node("s", "a", type="signal")))
    await worker.ambient.sleep(1_000)
    assert worker.cached(run_id) is not None
    await mill.store.forget(mill.stream(run_id), rows=[Row(kind=RUN, key=run_id, sort=0, deleted=True)])
    with pytest.raises(Rejected, match="there is no run"):
        await worker.engine.show(run_id)


@simulated
async def test_a_run_that_ended_elsewhere_is_not_remembered(mill: Cluster) -> None:
    """Somebody who asks again and again would take a later run of the same name for it."""
    worker, other = await mill.process(), await mill.process("other", work=False)
    run_id = await worker.start(document(node("a"), node("s", "a", type="signal")))
    await worker.ambient.sleep(1_000)
    await other.engine.show(run_id)
    assert other.cached(run_id) is not None
    await worker.engine.signal(run_id, "s", 1)
    await worker.end(run_id)
    assert (await other.engine.show(run_id)).status == "COMPLETED"
    assert other.cached(run_id) is None


@simulated
async def test_a_large_run_is_packed_in_a_thread(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs of a worker wait for its loop, which packing a run of 100,000 items would block for seconds."""
    in_threads: list[Any] = []
    to_thread = asyncio.to_thread

    async def noted(work: Any, *given: Any) -> Any:
        in_threads.append(work)
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    worker = await mill.process()
    noise = random.Random(7).randbytes(30_000).hex()
    run = await worker.run(document(*(node(f"n{number}", config=f"{number}{noise}") for number in range(5))))
    await worker.stop()
    engine = operator(mill)
    pass_days(mill, 40)
    assert (await engine.archive_sweep()).retired == (run.run_id,)
    assert {encode_archived, decode_archived} <= set(in_threads)
    assert await archived(engine) == [run.run_id]
    assert decode_header in in_threads
