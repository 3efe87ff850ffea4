"""The collector: what anything needs stays, the rest leaves a day later, and nobody who writes meanwhile is hurt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fixtures.approvers import LARGE, child, human, signal, waits
from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.blobs.contract import Blobs, digest_of
from tidemill.blobs.directory import DirectoryBlobs
from tidemill.blobs.memory import MemoryBlobs
from tidemill.blobs.payloads import encode_value
from tidemill.engine.blob_references import BLOB_REFERENCE, KINDS, mark_new_tenant, reference_rows, version_references
from tidemill.engine.maintenance.blob_gc import HOUR_MS, GcReport, collect
from tidemill.engine.maintenance.reindex import rows_beside
from tidemill.engine.versions import WORKFLOW, Version, encode_record
from tidemill.errors import Unavailable
from tidemill.handlers.contract import Blob
from tidemill.stores.contract import Commit, Committed, Row, Stream
from tidemill.stores.memory import MemoryStore

GARBAGE = (b"nothing refers to this", b"\x00\xff" * 50_000, b'{"neither": "to this"}')


async def gc(mill: Cluster, hours: float = 2, **options: Any) -> GcReport:
    """Collect as if so much time had passed."""
    now_ms = mill.now_ms() + int(hours * HOUR_MS)
    return await collect(mill.store, mill.blobs, TENANT, now_ms=now_ms, **options)


async def gone_for_good(mill: Cluster) -> GcReport:
    """Collect now and after the grace period; answers what the second time did."""
    await gc(mill, 2)
    return await gc(mill, 40)


async def here(mill: Cluster, digest: str) -> str:
    info = await mill.blobs.stat(TENANT, digest)
    return "gone" if info is None else info.state


def timed(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A story whose blobs are dated by its own clock."""

    async def told(mill: Cluster) -> None:
        mill.blobs._clock = mill.now_ms
        await story(mill)

    told.__name__, told.__qualname__, told.__module__ = story.__name__, story.__qualname__, story.__module__
    return simulated(told)


async def everything(mill: Cluster, worker: Process) -> list[str]:
    """Runs of every sort, some of which go on; all of them hold large values."""
    engine = worker.engine
    config = await mill.blobs.put(TENANT, encode_value({"text": "y" * 80_000}), keep=True)
    await worker.publish(document(node("in", config="{{ inputs.big }}"), name="inner"))
    simple = document(node("a", config=LARGE + "1"), node("z", "a", config="{{ a.output }}"), name="simple")
    loop = {"condition": "iteration < 3", "max_iterations": 5}
    runs = [
        await worker.start(simple, {"big": LARGE + "2"}),
        await worker.start(document(node("l", config=LARGE + "{{ iteration }}", loop=loop), name="loops")),
        await worker.start(document(node("m", config=LARGE + "{{ item }}", map={"over": [1, 2, 3]}), name="maps")),
        await worker.start(document(child("c", "inner", inputs={"big": LARGE + "3"}), name="parents")),
        await worker.start(document({"id": "r", "type": "value", "config_ref": config}, name="by-reference")),
        await worker.start(document(node("p", type="python", config={"function": "draw"}), name="pictures")),
        await worker.start(document(node("a", config=LARGE + "4"), human("h", "a", title="Sure?"), name="asking")),
        await worker.start(document(node("a", config=LARGE + "5"), signal("go", "a"), node("z", "go"), name="patched")),
        await worker.start(document(node("f", type="fail", config={"message": "no"}), name="failing"), LARGE + "6"),
    ]
    for run_id, name in ((runs[6], "h"), (runs[7], "go")):
        await waits(mill, run_id, name)
    await engine.patch(runs[7], [{"op": "add", "path": "/nodes/z/config", "value": LARGE + "7"}])
    await engine.signal(runs[7], "go", LARGE + "8")
    for run_id in (*runs[:6], runs[7], runs[8]):
        await worker.end(run_id)
    runs.append(await engine.fork(runs[0], at=len(await mill.events(runs[0])) - 2))
    await worker.end(runs[-1])
    # The document of a patched run is made from the patch when somebody asks, so nothing refers to the stored one.
    assert (await gone_for_good(mill)).deleted == 1
    return runs


def draw() -> Any:
    return {"text": LARGE + "9", "picture": Blob(b"\x89PNG" * 30_000)}


@timed
async def test_what_any_run_needs_stays_and_the_rest_leaves(mill: Cluster) -> None:
    worker = await mill.process(functions={"draw": draw})
    runs = await everything(mill, worker)
    before = dict(mill.blobs._held)
    garbage = [await mill.blobs.put(TENANT, body) for body in GARBAGE]
    shown = {run_id: (await worker.engine.show(run_id)).to_dict() for run_id in runs}
    first = await gc(mill)
    assert (first.retired, first.deleted, first.restored, first.unreadable) == (len(GARBAGE), 0, 0, ())
    assert [await here(mill, digest) for digest in garbage] == ["grace"] * 3
    second = await gc(mill, 40)
    assert (second.retired, second.deleted, second.bytes_freed) == (0, 3, sum(map(len, GARBAGE)))
    assert mill.blobs._held == before, "exactly what was needed is left"
    worker.kill()
    other = await mill.process("w2", functions={"draw": draw})
    assert {run_id: (await other.engine.show(run_id)).to_dict() for run_id in runs} == shown
    await other.engine.decide(runs[6], "h", "approve", actor="ada")
    assert (await other.end(runs[6])).status == "COMPLETED"
    again = await other.engine.fork(runs[5], at=1)
    assert (await other.end(again)).outputs == shown[runs[5]]["outputs"]
    await other.engine.retry(runs[8])
    assert (await other.end(runs[8])).status == "FAILED", "it was tried again, with its inputs"


@timed
async def test_what_only_forgotten_runs_needed_leaves(mill: Cluster) -> None:
    worker = await mill.process(functions={"draw": draw})
    runs = await everything(mill, worker)
    for run_id in (runs[0], runs[5]):
        gone = [
            Row(kind=kind, key=key, sort=0, deleted=True)
            for kind, key in await rows_beside(mill.store, mill.stream(run_id))
        ]
        assert await mill.store.forget(mill.stream(run_id), rows=gone)
    mill.unjudged |= {runs[0], runs[5]}
    before = dict(mill.blobs._held)
    await gone_for_good(mill)
    picture, shared = digest_of(b"\x89PNG" * 30_000), digest_of(encode_value(LARGE + "1"))
    assert await here(mill, picture) == "gone"
    assert await here(mill, shared) == "active", "the fork of a forgotten run has its outputs"
    assert len(before) - len(mill.blobs._held) == 2
    assert (await worker.engine.show(runs[-1])).outputs is not None


@timed
async def test_every_kind_of_stream_is_read(mill: Cluster) -> None:
    worker = await mill.process(functions={"draw": draw})
    await everything(mill, worker)
    written = {stream.kind for stream, log in mill.store._logs.items() if log.records}
    assert written == {*KINDS, "store"}, "the records of a new kind of stream may refer to blobs"


@timed
async def test_a_dry_run_tells_and_changes_nothing(mill: Cluster) -> None:
    for body in GARBAGE:
        await mill.blobs.put(TENANT, body)
    told = await gc(mill, dry_run=True)
    assert (told.scanned, told.retired, told.dry_run) == (3, 3, True)
    assert {info.state for info in await mill.blobs.list(TENANT)} == {"active"}
    await gc(mill)
    told = await gc(mill, 40, dry_run=True)
    assert (told.deleted, told.bytes_freed) == (3, sum(map(len, GARBAGE)))
    assert len(await mill.blobs.list(TENANT)) == 3


@timed
async def test_a_young_blob_is_left_alone(mill: Cluster) -> None:
    digest = await mill.blobs.put(TENANT, GARBAGE[0])
    told = await gc(mill, 0.9)
    assert (told.young, told.retired) == (1, 0)
    assert await here(mill, digest) == "active"
    assert (await gc(mill, 1.1)).retired == 1


@timed
async def test_a_kept_blob_stays_with_what_it_refers_to(mill: Cluster) -> None:
    inner = await mill.blobs.put(TENANT, b"inner")
    kept = await mill.blobs.put(TENANT, encode_value({"see": inner}), keep=True)
    late = await mill.blobs.put(TENANT, b"late")
    await gc(mill)
    assert [await here(mill, digest) for digest in (inner, kept, late)] == ["active", "active", "grace"]
    mill.blobs._kept.add((TENANT, late))
    assert (await gc(mill, 40)).restored == 1
    assert [await here(mill, digest) for digest in (inner, kept, late)] == ["active"] * 3


@timed
async def test_nothing_is_deleted_before_its_time(mill: Cluster) -> None:
    digest = await mill.blobs.put(TENANT, GARBAGE[0])
    await gc(mill)
    told = await gc(mill, 23.9)
    assert (told.waiting, told.deleted) == (1, 0)
    assert await here(mill, digest) == "grace"
    assert (await gc(mill, 24.1)).deleted == 1
    assert await here(mill, digest) == "gone"


@timed
async def test_what_is_needed_again_comes_back_from_grace(mill: Cluster) -> None:
    worker = await mill.process()
    digest = await mill.blobs.put(TENANT, encode_value(LARGE))
    await gc(mill)
    assert await here(mill, digest) == "grace"
    # Referred to by its address alone, without being put again.
    await worker.run(document(node("a", config=digest)))
    assert (await gc(mill, 40)).restored == 1
    assert await here(mill, digest) == "active"


@timed
async def test_an_address_across_two_chunks_is_found(mill: Cluster) -> None:
    worker = await mill.process()
    target = await mill.blobs.put(TENANT, GARBAGE[0])
    worker_run = await worker.run(document(node("a", config={"pad": "x" * 70_000, "see": target})))
    read = mill.blobs.read

    async def in_small_chunks(tenant: str, digest: str) -> AsyncIterator[bytes]:
        async for chunk in read(tenant, digest):
            for start in range(0, len(chunk), 40):
                yield chunk[start : start + 40]

    mill.blobs.read = in_small_chunks  # type: ignore[method-assign]
    await gone_for_good(mill)
    assert await here(mill, target) == "active"
    assert worker_run.status == "COMPLETED"


@timed
async def test_other_tenants_are_another_matter(mill: Cluster) -> None:
    theirs = await mill.blobs.put("rival", GARBAGE[0])
    mine = await mill.blobs.put(TENANT, GARBAGE[0])
    await worker_of_rival(mill, theirs)
    await gone_for_good(mill)
    assert await here(mill, mine) == "gone", "what a rival refers to does not keep mine"
    assert await mill.blobs.get("rival", theirs) == GARBAGE[0]


async def worker_of_rival(mill: Cluster, digest: str) -> None:
    await commit_fact(mill.store, digest, tenant="rival")


@timed
async def test_a_log_that_cannot_be_read_blocks_nothing_and_keeps_its_blobs(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config="{{ inputs.big }}")), {"big": LARGE})
    garbage = await mill.blobs.put(TENANT, GARBAGE[0])
    before = dict(mill.blobs._held)
    for number in range(len(mill.store._logs[mill.stream(run.run_id)].records)):
        mill.store._logs[mill.stream(run.run_id)].records[number] = b"\xc1 damaged"
    mill.unjudged.add(run.run_id)
    done = await gone_for_good(mill)
    assert (await here(mill, garbage), done.deleted) == ("gone", 1)
    assert len(before) - len(mill.blobs._held) == 1, "what the damaged run needs is there for its repair"


@timed
async def test_no_history_is_read(mill: Cluster) -> None:
    worker = await mill.process(functions={"draw": draw})
    await everything(mill, worker)
    loaded, load = list[str](), mill.store.load

    async def counted(after: Any, **options: Any) -> Any:
        loaded.extend(stream.kind for stream in after)
        return await load(after, **options)

    mill.store.load = counted  # type: ignore[method-assign]
    assert (await gc(mill)).reachable
    assert loaded == ["store"], "nothing but the marker"


@timed
async def test_a_reference_that_lists_leave_out_still_counts(mill: Cluster) -> None:
    """A store leaves a damaged row out of lists; the index still knows its terms."""
    worker = await mill.process()
    await worker.run(document(node("a", config=LARGE)))
    held, find = dict(mill.blobs._held), mill.store.find

    async def damaged(tenant: str, kind: str, *args: Any, **options: Any) -> Any:
        page = await find(tenant, kind, *args, **options)
        return msgspec.structs.replace(page, rows=()) if kind == BLOB_REFERENCE else page

    mill.store.find = damaged  # type: ignore[method-assign]
    assert (await gone_for_good(mill)).deleted == 0
    assert mill.blobs._held == held


@timed
async def test_a_missing_blob_is_told_and_harms_nothing(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.run(document(node("a", config=LARGE)))
    missing = digest_of(encode_value(LARGE))
    body = mill.blobs._held.pop((TENANT, missing))
    garbage = await mill.blobs.put(TENANT, GARBAGE[0])
    told = await gc(mill)
    assert (told.unreadable, told.retired) == ((missing,), 1)
    assert await here(mill, garbage) == "grace"
    mill.blobs._held[TENANT, missing] = body


@timed
async def test_a_place_that_does_not_answer_stops_everything(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.run(document(node("a", config=LARGE)))
    garbage = await mill.blobs.put(TENANT, GARBAGE[0])

    async def broken(tenant: str, digest: str) -> AsyncIterator[bytes]:
        raise Unavailable("the bucket does not answer")
        yield b""

    mill.blobs.read = broken  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="does not answer"):
        await gc(mill)
    assert await here(mill, garbage) == "active"


BODY = b"put by a run"
DIGEST = digest_of(BODY)


async def commit_fact(store: MemoryStore, digest: str, tenant: str = TENANT) -> None:
    """Something that refers to a blob becomes durable."""
    record = Version(name="w", version=1, digest=digest, document=digest, at_ms=0)
    stream = Stream(tenant, WORKFLOW, "w")
    await mark_new_tenant(store, tenant)
    rows = reference_rows(stream, version_references(record))
    (result,) = await store.commit([Commit(stream=stream, expected=0, records=(encode_record(record),), rows=rows)])
    assert isinstance(result, Committed)


class Steps:
    """Stands before a store and blobs, and lets something happen before chosen calls."""

    def __init__(self, *inner: Any, before: dict[int, Callable[[], Awaitable[Any]]]) -> None:
        self.count = 0
        self._before = before
        self.doors = [_Door(each, self) for each in inner]

    async def step(self) -> None:
        number, self.count = self.count, self.count + 1
        if number in self._before:
            await self._before.pop(number)()


class _Door:
    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)
        if name == "read":

            async def read(*args: Any) -> AsyncIterator[bytes]:
                await self._steps.step()
                async for chunk in verb(*args):
                    yield chunk

            return read

        async def call(*args: Any, **options: Any) -> Any:
            await self._steps.step()
            return await verb(*args, **options)

        return call


PREPARED = ("absent", "active", "grace")


async def prepare(blobs: Blobs, state: str) -> None:
    await blobs.put(TENANT, b"other garbage")
    if state != "absent":
        await blobs.put(TENANT, BODY)
    if state == "grace":
        await blobs.quarantine(TENANT, DIGEST)


async def raced(make: Callable[[], Awaitable[Blobs]], state: str, put_at: int, fact_at: int) -> int:
    """A run puts a blob and commits what refers to it, each before some step of a collection; answers its steps."""
    store, blobs = MemoryStore(), await make()
    await prepare(blobs, state)
    now_ms = store.now_ms()
    todo: dict[int, Callable[[], Awaitable[Any]]] = {}

    async def both() -> None:
        await blobs.put(TENANT, BODY)
        await commit_fact(store, DIGEST)

    if put_at == fact_at:
        todo[put_at] = both
    else:
        todo = {put_at: lambda: blobs.put(TENANT, BODY), fact_at: lambda: commit_fact(store, DIGEST)}
    steps = Steps(store, blobs, before=todo)
    doors: Any = steps.doors
    await collect(doors[0], doors[1], TENANT, now_ms=now_ms + 30 * HOUR_MS)
    count = steps.count
    for number in sorted(todo):
        await todo.pop(number)()
    assert await blobs.get(TENANT, DIGEST) == BODY, (state, put_at, fact_at)
    for hours in (60, 90):
        await collect(store, blobs, TENANT, now_ms=now_ms + hours * HOUR_MS)
        assert await blobs.get(TENANT, DIGEST) == BODY, (state, put_at, fact_at, hours)
    info = await blobs.stat(TENANT, DIGEST)
    assert info is not None and info.state == "active"
    await blobs.close()
    return count


@pytest.mark.parametrize("state", PREPARED)
@pytest.mark.parametrize("place", ["memory", "directory"])
async def test_a_put_at_any_moment_of_a_collection_is_safe(place: str, state: str, tmp_path: Path) -> None:
    numbers = iter(range(100_000))

    async def make() -> Blobs:
        blobs: Blobs = MemoryBlobs() if place == "memory" else DirectoryBlobs(tmp_path / str(next(numbers)))
        await blobs.open()
        return blobs

    steps = await raced(make, state, 1_000, 1_000)
    assert steps >= 5
    for put_at in range(steps + 2):
        # Files take their time, so there the fact comes at every third moment only.
        for fact_at in range(put_at, steps + 2, 1 if place == "memory" else 3):
            await raced(make, state, put_at, fact_at)


async def test_what_is_put_while_references_are_read_is_no_candidate() -> None:
    """Even by clocks that make everything look old: the references were read before its fact was there."""
    store, blobs = MemoryStore(), MemoryBlobs()
    await blobs.put(TENANT, b"other garbage")
    find, told = store.find, list[str]()

    async def overtaken(tenant: str, kind: str, *args: Any, **options: Any) -> Any:
        found = await find(tenant, kind, *args, **options)
        if kind == BLOB_REFERENCE and not told:
            told.append(await blobs.put(TENANT, BODY))
        return found

    store.find = overtaken  # type: ignore[method-assign]
    done = await collect(store, blobs, TENANT, now_ms=store.now_ms() + 30 * HOUR_MS)
    assert (told, done.scanned, done.retired) == ([DIGEST], 1, 1)
    info = await blobs.stat(TENANT, DIGEST)
    assert info is not None and info.state == "active"


@pytest.mark.parametrize("state", PREPARED)
async def test_two_collections_at_once_do_no_harm(state: str) -> None:
    """The second one runs as a whole before some step of the first."""
    for at in range(12):
        store, blobs = MemoryStore(), MemoryBlobs()
        await prepare(blobs, state)
        await blobs.put(TENANT, BODY)
        await commit_fact(store, DIGEST)
        later = store.now_ms() + 30 * HOUR_MS
        steps = Steps(store, blobs, before={at: lambda s=store, b=blobs, t=later: collect(s, b, TENANT, now_ms=t)})  # type: ignore[misc]
        doors: Any = steps.doors
        await collect(doors[0], doors[1], TENANT, now_ms=later)
        assert await blobs.get(TENANT, DIGEST) == BODY
        assert [info.digest for info in await blobs.list(TENANT) if info.state == "active"] == [DIGEST]


@timed
async def test_what_a_decision_has_read_is_no_missing_blob(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config=1), node("b", "a", when="ctx.a.output == 1")))
    assert run.status == "COMPLETED"
    assert (await gc(mill)).unreadable == ()
