"""Large values: loaded once per process, bounded, and never changed by those who share them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.engine.kit import Mill, simulated
from tests.kernel.authoring import document, node
from tidemill.blobs.memory import MemoryBlobs
from tidemill.engine.attempts.rendering import Values, shared_value, text_of
from tidemill.errors import Unavailable
from tidemill.kernel.events import BlobRef, NodeFailed
from tidemill.kernel.explain.blockers import Worker

TENANT = "acme"


class SlowBlobs(MemoryBlobs):
    """Counts reads, and takes a moment for each."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    async def get(self, tenant: str, digest: str) -> bytes:
        self.reads[digest] += 1
        await asyncio.sleep(0)
        return await super().get(tenant, digest)


async def test_a_value_is_loaded_once() -> None:
    blobs = SlowBlobs()
    digest = await blobs.put(TENANT, b"[1,2]")
    values = Values(blobs)
    assert values.known(TENANT, [digest]) is None
    first = await values.fetch(TENANT, [digest])
    second = await values.fetch(TENANT, [digest])
    known = values.known(TENANT, [digest])
    assert known is not None
    assert first[digest].text == second[digest].text == known[digest].text == b"[1,2]"
    assert blobs.reads[digest] == 1
    ref = BlobRef(digest, 5)
    assert text_of(ref, first) == b"[1,2]"
    assert shared_value(ref, first) == [1, 2]
    assert shared_value(ref, first) is shared_value(ref, known)


def test_an_inline_value_needs_nothing() -> None:
    assert text_of(b"3", {}) == b"3"
    assert shared_value(b'{"a":1}', {}) == {"a": 1}


async def test_what_is_held_is_bounded() -> None:
    blobs = SlowBlobs()
    digests = [await blobs.put(TENANT, bytes([65 + i]) * 100) for i in range(10)]
    values = Values(blobs, bytes_max=350)
    for digest in digests:
        fetched = await values.fetch(TENANT, [digest])
        assert fetched[digest].text
        assert sum(len(held.text) for held in values._held.values()) == values._bytes <= 350
    assert values.known(TENANT, digests[-3:]) is not None
    assert values.known(TENANT, digests[:1]) is None


async def test_what_is_used_stays_longest() -> None:
    blobs = SlowBlobs()
    digests = [await blobs.put(TENANT, bytes([65 + i]) * 100) for i in range(4)]
    values = Values(blobs, bytes_max=300)
    await values.fetch(TENANT, digests[:3])
    assert values.known(TENANT, digests[:1]) is not None
    await values.fetch(TENANT, digests[3:])
    assert values.known(TENANT, digests[:1]) is not None
    assert values.known(TENANT, digests[1:2]) is None


async def test_many_that_load_one_value_at_once_count_it_once() -> None:
    blobs = SlowBlobs()
    digest = await blobs.put(TENANT, b"x" * 100)
    values = Values(blobs, bytes_max=1_000)
    for _ in range(5):
        await asyncio.gather(*(values.fetch(TENANT, [digest]) for _ in range(8)))
    assert values._bytes == 100 == sum(len(held.text) for held in values._held.values())


async def test_a_value_larger_than_all_room_is_still_given() -> None:
    blobs = SlowBlobs()
    digest = await blobs.put(TENANT, b"x" * 1_000)
    values = Values(blobs, bytes_max=10)
    fetched = await values.fetch(TENANT, [digest])
    assert len(fetched[digest].text) == 1_000
    assert values._bytes == 0


async def test_tenants_are_kept_apart() -> None:
    blobs = SlowBlobs()
    digest = await blobs.put(TENANT, b"1")
    values = Values(blobs)
    await values.fetch(TENANT, [digest])
    assert values.known("rival", [digest]) is None
    with pytest.raises(Unavailable):
        await values.fetch("rival", [digest])


@simulated
async def test_the_items_of_a_map_share_what_they_read(mill: Mill) -> None:
    """Two hundred items over one large input: it is read from the blob store once."""
    reads: Counter[str] = Counter()
    get = mill.blobs.get

    async def counted(tenant: str, digest: str) -> bytes:
        reads[digest] += 1
        return await get(tenant, digest)

    mill.blobs.get = counted  # type: ignore[method-assign]
    worker = await mill.process()
    run = await worker.run(
        document(node("m", config="{{ inputs.text | length + item }}", map={"over": list(range(200))})),
        {"text": "x" * 70_000},
    )
    assert run.outputs == {"m": [70_000 + i for i in range(200)]}
    inputs = [
        digest for digest, body in ((d, b) for (_, d), b in mill.blobs._held.items()) if body.startswith(b'{"text"')
    ]
    assert [reads[digest] for digest in inputs] == [1]


@simulated
async def test_a_missing_blob_is_told_once_and_what_needs_it_goes_on_when_it_is_back(
    mill: Mill, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("a", config="{{ inputs.text | length }}")), {"text": "x" * 70_000})
    place = next(place for place, body in mill.blobs._held.items() if body.startswith(b'{"text"'))
    body = mill.blobs._held.pop(place)
    other = await worker.run(document(node("b", config=1), name="other"))
    assert other.status == "COMPLETED", "other work goes on"
    await asyncio.sleep(20)
    said = "put the same bytes back, or restore it from a backup; what needs it waits until then"
    told = [record.getMessage() for record in caplog.records if place[1] in record.getMessage()]
    assert told == [f"blob {place[1]} is missing; {said}"]
    (found,) = (await worker.engine.why(run_id)).blockers
    assert isinstance(found, Worker) and found.lacking is not None
    assert (found.need, found.lacking.code) == ("value", "blob_missing")
    assert found.words == f"a is queued: a value that it needs cannot be had: blob {place[1]} is missing"
    assert found.unblock == "put the same bytes back, or restore it from a backup"
    mill.blobs._held[place] = body
    assert (await worker.end(run_id)).outputs == {"a": 70_000}


@simulated
async def test_a_blob_that_cannot_be_read_now_fails_nothing(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    run = await client.start(document(node("a", config="{{ inputs.x }}")), {"x": "x" * 70_000})
    (stored,) = [key for key, body in mill.blobs._held.items() if len(body) > 70_000]
    body = mill.blobs._held.pop(stored)
    await mill.process("w")
    await asyncio.sleep(5)
    mill.blobs._held[stored] = body
    assert (await client.end(run)).status == "COMPLETED"
    assert await mill.of(run, NodeFailed) == []
