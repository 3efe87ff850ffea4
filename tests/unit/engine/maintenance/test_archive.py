"""Entries of the archive: read back before a run leaves, told apart, and refused in plain words when damaged."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.operator import FAILS, LARGE, operator, pass_days, stored
from tests.unit.engine.attempts.test_log_store import CHATTY
from tidemill.blobs.archive import MemoryArchive, at_once
from tidemill.blobs.contract import PIECE_BYTES, digest_of
from tidemill.engine.attempts.log_store import JOURNAL
from tidemill.engine.maintenance.archive import (
    INLINE_BYTES_MAX,
    Header,
    blob_name,
    decode_archived,
    decode_header,
    encode_archived,
    header_of,
    name_of,
)
from tidemill.engine.maintenance.blob_gc import referring_texts
from tidemill.engine.maintenance.retention import LOGGED
from tidemill.errors import Rejected, Unavailable
from tidemill.testing.faulty_store import Call, FaultyStore, refuse


@simulated
async def test_an_entry_of_another_content_is_kept_and_written_beside(mill: Cluster) -> None:
    """What has the place of a run is something damaged, then another run, which has left already."""
    worker = await mill.process()
    other = await worker.run(document(node("b"), name="other", retention={"days": 0}))
    run = await worker.run(document(node("a")))
    await worker.stop()
    archive = MemoryArchive()
    engine = operator(mill, archive=archive)
    pass_days(mill, 2)
    await engine.archive_sweep()
    (valid,) = [archive._held[name] for name in await archive.names("runs/")]
    header = header_of(TENANT, run.run_id, await mill.state(run.run_id))
    taken = {name_of(header): valid[:40] + bytes([valid[40] ^ 1]) + valid[41:], name_of(header, 1): valid}
    for name, body in taken.items():
        assert await archive.put(name, body)
    pass_days(mill, 40)
    swept = await engine.archive_sweep()
    assert (swept.retired, swept.left) == ((run.run_id,), ())
    assert {name: archive._held[name] for name in taken} == taken
    assert (await engine.archive_show(name_of(header, 2)))[0].run_id == run.run_id
    await engine.archive_restore(name_of(header, 2))
    assert await stored(mill) == {run.run_id}
    assert (await engine.archive_show(name_of(header, 1)))[0].run_id == other.run_id


class Forgetful(MemoryArchive):
    """An archive that gives back something else than was put there."""

    reads = 0

    async def get(self, name: str) -> bytes | None:
        self.reads += 1
        body = await super().get(name)
        return body and body[:-9]


@simulated
async def test_no_run_leaves_before_its_entry_was_read_back(mill: Cluster) -> None:
    worker = await mill.process()
    runs = {(await worker.run(document(node("a")))).run_id for _ in range(2)}
    await worker.stop()
    pass_days(mill, 40)
    archive = Forgetful()
    swept = await operator(mill, archive=archive).archive_sweep()
    assert archive.reads
    assert (swept.retired, set(swept.failed)) == ((), runs)
    assert "does not return" in swept.left[0][1]
    assert await stored(mill) == runs


@simulated
async def test_a_large_value_that_is_damaged_in_the_archive_is_archived_with_its_run(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config={"text": LARGE}), name="large"))
    await worker.stop()
    pass_days(mill, 40)
    archive, digest = MemoryArchive(), digest_of(b'{"text":"' + LARGE.encode() + b'"}')
    await archive.put(blob_name(TENANT, digest), b"something else")
    engine = operator(mill, archive=archive)
    assert (await engine.archive_sweep()).retired == (run.run_id,)
    await mill.blobs.quarantine(TENANT, digest)
    assert await mill.blobs.delete(TENANT, digest, before_ms=2**60)
    await engine.archive_restore(run.run_id)
    assert (await engine.verify_log()).findings == ()


@simulated
async def test_runs_of_one_key_are_told_apart(mill: Cluster) -> None:
    """Of the same month and length; then of the same month, and the newest is the shorter one."""
    worker = await mill.process()
    engine = operator(mill, archive=MemoryArchive())
    for count, text in ((1, "first"), (1, "second"), (2, "third"), (1, "fourth")):
        nodes = [node(f"n{each}", config=text) for each in range(count)]
        reference = await worker.publish(document(*nodes, name="keyed", retention={"days": 0}))
        await worker.engine.start(reference, key="daily")
        assert (await worker.end("daily")).status == "COMPLETED"
        pass_days(mill, 2)
        assert (await engine.archive_sweep()).retired == ("daily",), text
    await worker.stop()
    newest, events = await engine.archive_show("daily")
    assert "fourth" in str(events)
    assert len(newest.others) == 3
    texts = [str((await engine.archive_show(name))[1]) for name in newest.others]
    assert [word in text for word, text in zip(("third", "second", "first"), texts, strict=True)] == [True] * 3
    entries = [run.entry for run in (await engine.archive_list()).runs]
    assert sorted(entries) == sorted((newest.entry, *newest.others))
    back = await engine.archive_restore(newest.others[1])
    assert (back.run_id, back.entry, await stored(mill)) == ("daily", newest.others[1], {"daily"})
    for nowhere in (newest.entry.replace("daily.", "../keyed/daily."), newest.entry.replace("daily.", "weekly.")):
        with pytest.raises(Rejected, match="is not archived"):
            await engine.archive_show(nowhere)


@simulated
async def test_a_stray_file_hides_no_entry(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    await worker.stop()
    pass_days(mill, 40)
    archive = MemoryArchive()
    engine = operator(mill, archive=archive)
    await engine.archive_sweep()
    (name,) = await archive.names("runs/")
    for folder in (name.rpartition("/")[0], name.rsplit("/", 2)[0], name.rsplit("/", 3)[0]):
        for stray in ("!.txt", "~.txt", "!.jsonl.gz/x", "!/deep/er"):
            await archive.put(f"{folder}/{stray}", b"x")
    await archive.put(f"{name.rsplit('/', 2)[0]}/!.jsonl.gz", b"x")
    page = await engine.archive_list()
    assert ([listed.entry for listed in page.runs], page.damaged) == ([name], ())
    assert (await engine.archive_restore(run.run_id)).run_id == run.run_id


@simulated
async def test_entries_without_the_moment_of_the_start_are_read(mill: Cluster) -> None:
    """So they were called once; the newest of them is the one with most events."""
    worker = await mill.process()
    run = await worker.run(document(node("a"), FAILS))
    pass_days(mill, 40)
    archive = MemoryArchive()
    engine = operator(mill, archive=archive)
    await engine.archive_sweep()
    await engine.archive_restore(run.run_id)
    await worker.engine.retry(run.run_id)
    await worker.end(run.run_id)
    await worker.stop()
    pass_days(mill, 40)
    await engine.archive_sweep()
    old = MemoryArchive()
    for listed in (await engine.archive_list()).runs:
        body = await archive.get(listed.entry)
        assert body
        await old.put(listed.entry.replace(f".{listed.created_ms}.", "."), body)
    engine = operator(mill, archive=old)
    newest, _ = await engine.archive_show(run.run_id)
    assert newest.seq == max(each.seq for each in (await engine.archive_list()).runs)
    # What is older does not stand in for it, unless somebody names it.
    old._held[newest.entry] = b""
    with pytest.raises(Rejected, match=r"it is empty.*an older one can be read") as refused:
        await engine.archive_restore(run.run_id)
    assert newest.others[0] in refused.value.problems[0].hint
    await engine.archive_restore(newest.others[0])


@simulated
async def test_a_damaged_entry_is_not_brought_back(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a")))
    await worker.stop()
    pass_days(mill, 40)
    archive = MemoryArchive()
    engine = operator(mill, archive=archive)
    await engine.archive_sweep()
    (name,) = await archive.names("runs/")
    whole = archive._held[name]
    text = gzip.decompress(whole)
    await archive.put(name.replace(run.run_id, "other"), whole)
    forged = text.replace(b"COMPLETED", b"FAILED", 1)
    middle = len(whole) // 2
    for damaged, why in (
        (whole[:-20], "its end is missing"),
        (b"", "it is empty"),
        (gzip.compress(forged), "the checksum does not match"),
        (gzip.compress(b""), "it is not an archived run"),
        (gzip.compress(b"{}"), "it is not an archived run"),
        (gzip.compress(b"\xff\n[]\n"), "it is not an archived run"),
        (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], "its bytes have changed"),
        (b"x" + whole[1:], "its bytes have changed"),
    ):
        archive._held[name] = damaged
        with pytest.raises(Rejected, match=f"cannot be read: .*{why}"):
            await engine.archive_restore(run.run_id)
        assert await stored(mill) == set()
        page = await engine.archive_list()
        if why != "the checksum does not match":
            assert ([run.entry for run in page.runs], page.damaged) == ([name.replace(run.run_id, "other")], (name,))


def test_every_changed_byte_of_an_entry_is_a_refusal() -> None:
    header = Header(
        tenant=TENANT, run_id="r", workflow="w", version=1, digest="", status="", seq=0, created_ms=1, ended_ms=2
    )
    body = encode_archived(header, (), {})
    assert decode_archived("e", body).header == header
    changed = 0
    for place in range(len(body)):
        damaged = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]
        try:
            # A few bytes of the frame (its date, its system) mean nothing.
            assert decode_archived("e", damaged).header == decode_header("e", damaged) == header
        except Rejected:
            changed += 1
    assert changed > len(body) - 10


# What goes along with a run that leaves: every file it refers to, bit by bit, and the lines its handlers have said


async def _let_go(mill: Cluster, digest: str) -> None:
    await mill.blobs.quarantine(TENANT, digest)
    assert await mill.blobs.delete(TENANT, digest, before_ms=2**60)


@simulated
async def test_a_file_that_is_referred_to_by_its_digest_alone_goes_along(mill: Cluster) -> None:
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
async def test_a_large_file_is_never_whole_in_memory(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_a_sweep_comes_to_what_is_due_however_far_back_it_looks(mill: Cluster) -> None:
    """A process that is restarted often has no second one."""
    worker = await mill.process()
    old = await worker.run(document(node("a"), name="old"))
    pass_days(mill, 3_900)
    young = await worker.run(document(node("a"), name="young"))
    await worker.stop()
    pass_days(mill, 40)
    swept = await operator(mill).maintenance.retention_sweep().sweep()
    assert (swept.retired, swept.more) == ((old.run_id, young.run_id), False)


@simulated
async def test_a_run_that_stays_keeps_its_lines(mill: Cluster) -> None:
    worker = await mill.process(more=[CHATTY])
    run = await worker.run(document(node("a", type="chatty", config={}), FAILS))
    pass_days(mill, 40)
    said = len(await worker.engine.logs(run.run_id))
    assert said
    faulty_store, moved = FaultyStore(mill.store), list[str]()

    async def retry_first(call: Call) -> Any:
        moved.append(run.run_id)
        await worker.engine.retry(run.run_id)
        await worker.end(run.run_id)
        return await call()

    faulty_store.next("forget", retry_first)
    swept = await operator(mill, store=faulty_store).archive_sweep()
    assert (moved, swept.left) == ([run.run_id], ((run.run_id, "it has changed since"),))
    assert len(await worker.engine.logs(run.run_id)) == said
    assert not (await mill.store.find(TENANT, LOGGED)).rows
    await worker.stop()


@simulated
async def test_lines_whose_run_is_gone_are_let_go_of_by_the_next_sweep(mill: Cluster) -> None:
    """Whoever forgot the run died before it came to them; those of a later run of the same name stay."""
    worker = await mill.process(more=[CHATTY])
    reference = await worker.publish(document(node("a", type="chatty", config={}), name="keyed"))
    await worker.engine.start(reference, key="daily")
    await worker.end("daily")
    pass_days(mill, 40)
    (old,) = await mill.store.streams(JOURNAL)
    faulty_store = FaultyStore(mill.store)

    async def forgotten(call: Call) -> Any:
        faulty_store.next("forget", refuse)
        return await call()

    faulty_store.next("forget", forgotten)
    with pytest.raises(Unavailable, match="does not answer"):
        await operator(mill, store=faulty_store).archive_sweep()
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
