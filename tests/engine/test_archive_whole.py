"""What goes along with a run that leaves: every file it refers to, bit by bit, and the lines its handlers have said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.engine.door import Call, Door, refuse
from tests.engine.kit import TENANT, Mill, simulated
from tests.engine.test_journals import CHATTY
from tests.engine.upkeep import FAILS, operator, pass_days, stored
from tests.kernel.authoring import document, node
from tidemill.blobs.archive import MemoryArchive, at_once
from tidemill.blobs.contract import PIECE_BYTES, digest_of
from tidemill.engine.attempts.log_store import JOURNAL
from tidemill.engine.maintenance.archive import INLINE_BYTES_MAX, blob_name
from tidemill.engine.maintenance.blob_gc import referring_texts
from tidemill.engine.maintenance.retention import LOGGED
from tidemill.errors import Unavailable


async def _let_go(mill: Mill, digest: str) -> None:
    await mill.blobs.quarantine(TENANT, digest)
    assert await mill.blobs.delete(TENANT, digest, before_ms=2**60)


@simulated
async def test_a_file_that_is_referred_to_by_its_digest_alone_goes_along(mill: Mill) -> None:
    """In the log, in a value that is too large for it, in a file. An address there of nothing holds nobody up."""
    worker = await mill.process()
    deep, nothing = await mill.blobs.put(TENANT, b"deep"), digest_of(b"nowhere")
    near = await mill.blobs.put(TENANT, msgspec.json.encode([deep, {"$blob": nothing}]))
    far = await mill.blobs.put(TENANT, b"far")
    within = {"text": "x" * 70_000, "file": far}
    run = await worker.run(document(node("a"), node("b", "a", config=within)), {"files": [near, nothing]})
    await worker.stop()
    pass_days(mill, 40)
    engine = operator(mill)
    assert (await engine.archive_sweep()).retired == (run.run_id,)
    for digest in (near, far, deep):
        await _let_go(mill, digest)
    await engine.archive_restore(run.run_id)
    for digest in (near, far, deep):
        assert digest_of(await mill.blobs.get(TENANT, digest)) == digest


async def _cut(text: bytes, length: int) -> AsyncIterator[bytes]:
    for place in range(0, len(text), length):
        yield text[place : place + length]


async def test_no_address_is_overlooked_that_is_cut_in_two() -> None:
    described = b'"$blob":"' + digest_of(b"x").encode() + b'"'
    for length in (1, 7, 50, 80, 100):
        texts = [text async for text in referring_texts(_cut(b"[{" + b" " * 60 + described + b"}]", length))]
        assert any(described in text for text in texts), length
    assert [text async for text in referring_texts(at_once(b"\x89PNG " + described))] == []


class Piecemeal(MemoryArchive):
    """An archive that gives and takes large bodies bit by bit only."""

    streamed = 0

    async def put(self, name: str, body: bytes) -> bool:
        assert len(body) <= INLINE_BYTES_MAX
        return await super().put(name, body)

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        if name in self._held:
            return False
        self.streamed += 1
        return await super().put(name, b"".join([chunk async for chunk in chunks]))

    async def get(self, name: str) -> bytes | None:
        body = await super().get(name)
        assert body is None or len(body) <= INLINE_BYTES_MAX
        return body


@simulated
async def test_a_large_file_is_never_whole_in_memory(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await mill.process()
    body = b"\x00file" * PIECE_BYTES
    digest = await mill.blobs.put(TENANT, body)
    described = {"$blob": digest, "size": len(body), "media_type": "", "name": ""}
    runs = [(await worker.run(document(node("a", config=described), name=name))).run_id for name in ("one", "two")]
    await worker.stop()
    pass_days(mill, 40)
    get, put = mill.blobs.get, mill.blobs.put

    async def small_only(tenant: str, asked: str) -> bytes:
        assert asked != digest, "all of it was asked for at once"
        return await get(tenant, asked)

    async def pieces(tenant: str, asked: str) -> AsyncIterator[bytes]:
        async for piece in _cut(await get(tenant, asked), PIECE_BYTES):
            yield piece

    archive = Piecemeal()
    engine = operator(mill, archive=archive)
    with monkeypatch.context() as patch:
        patch.setattr(mill.blobs, "get", small_only)
        patch.setattr(mill.blobs, "read", pieces)
        assert set((await engine.archive_sweep()).retired) == set(runs)
    assert (archive.streamed, archive._held[blob_name(TENANT, digest)]) == (1, body)
    await _let_go(mill, digest)
    streamed: list[int] = []

    async def put_stream(tenant: str, chunks: AsyncIterator[bytes], **options: Any) -> tuple[str, int]:
        taken = b"".join([chunk async for chunk in chunks])
        streamed.append(len(taken))
        return await put(tenant, taken), len(taken)

    monkeypatch.setattr(mill.blobs, "put_stream", put_stream)
    await engine.archive_restore(runs[0])
    assert len(body) in streamed
    assert await get(TENANT, digest) == body


@simulated
async def test_a_sweep_comes_to_what_is_due_however_far_back_it_looks(mill: Mill) -> None:
    """A process that is restarted often has no second one."""
    worker = await mill.process()
    old = await worker.run(document(node("a"), name="old"))
    pass_days(mill, 3_900)
    young = await worker.run(document(node("a"), name="young"))
    await worker.stop()
    pass_days(mill, 40)
    swept = await operator(mill).maintenance.retention_sweep().sweep()
    assert (swept.retired, swept.more) == ((old.run_id, young.run_id), False)


# Lines


@simulated
async def test_a_run_that_stays_keeps_its_lines(mill: Mill) -> None:
    worker = await mill.process(more=[CHATTY])
    run = await worker.run(document(node("a", type="chatty", config={}), FAILS))
    pass_days(mill, 40)
    said = len(await worker.engine.logs(run.run_id))
    assert said
    door, moved = Door(mill.store), list[str]()

    async def retry_first(call: Call) -> Any:
        moved.append(run.run_id)
        await worker.engine.retry(run.run_id)
        await worker.end(run.run_id)
        return await call()

    door.next("forget", retry_first)
    swept = await operator(mill, store=door).archive_sweep()
    assert (moved, swept.left) == ([run.run_id], ((run.run_id, "it has moved on"),))
    assert len(await worker.engine.logs(run.run_id)) == said
    assert not (await mill.store.find(TENANT, LOGGED)).rows
    await worker.stop()


@simulated
async def test_lines_whose_run_is_gone_are_let_go_of_by_the_next_sweep(mill: Mill) -> None:
    """Whoever forgot the run died before it came to them; those of a later run of the same name stay."""
    worker = await mill.process(more=[CHATTY])
    reference = await worker.publish(document(node("a", type="chatty", config={}), name="keyed"))
    await worker.engine.start(reference, key="daily")
    await worker.end("daily")
    pass_days(mill, 40)
    (old,) = await mill.store.streams(JOURNAL)
    door = Door(mill.store)

    async def forgotten(call: Call) -> Any:
        door.next("forget", refuse)
        return await call()

    door.next("forget", forgotten)
    with pytest.raises(Unavailable, match="does not answer"):
        await operator(mill, store=door).archive_sweep()
    assert (await stored(mill), await mill.store.streams(JOURNAL)) == (set(), [old])
    await worker.engine.start(reference, key="daily")
    await worker.end("daily")
    await worker.stop()
    engine = operator(mill)
    assert (await engine.archive_sweep(dry_run=True)).retired == ()
    assert old in await mill.store.streams(JOURNAL)
    assert (await engine.archive_sweep()).retired == ()
    (left,) = await mill.store.streams(JOURNAL)
    assert left != old
    assert not (await mill.store.find(TENANT, LOGGED)).rows
