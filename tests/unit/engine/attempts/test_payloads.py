"""Values on their way through an attempt: inline or by content, and what is not JSON at all."""

from __future__ import annotations

import asyncio
import datetime
import math
from collections import Counter
from typing import Any

import pytest

from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.blobs.contract import digest_of
from tidemill.blobs.memory import MemoryBlobs
from tidemill.bootstrap import engine_at
from tidemill.engine.attempts import attempt, rendering
from tidemill.engine.attempts.rendering import Held, Values, check_memory, shared_value, text_of
from tidemill.errors import Unavailable
from tidemill.expressions.errors import ExpressionError
from tidemill.kernel.events import (
    INLINE_BYTES_MAX,
    BlobRef,
    NodeCheckpointed,
    NodeCompleted,
    NodeExpanded,
    NodeScheduled,
    NodeStarted,
    RunCompleted,
    RunCreated,
)
from tidemill.kernel.explain.blockers import Worker
from tidemill.settings import Limits, Settings
from tidemill.testing.faulty_store import after_s

BIG = "x" * 70_000


@pytest.mark.parametrize(("length", "inline"), [(INLINE_BYTES_MAX - 2, True), (INLINE_BYTES_MAX - 1, False)])
@simulated
async def test_an_output_over_64_kib_becomes_a_blob(mill: Cluster, length: int, inline: bool) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config="y" * length)))
    (completed,) = await mill.of(run.run_id, NodeCompleted)
    assert isinstance(completed.output, bytes) is inline
    assert run.outputs == {"a": "y" * length}
    if isinstance(completed.output, BlobRef):
        body = await mill.blobs.get(TENANT, completed.output.digest)
        assert (len(body), digest_of(body)) == (length + 2, completed.output.digest)
        assert completed.output.size == completed.size == length + 2


@simulated
async def test_a_run_with_much_output_keeps_only_short_values_in_its_state(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "STATE_BYTES_MAX", 1_000)
    worker = await mill.process()
    chain = document(
        node("a", config="y" * 2_000),
        node("b", config="{{ a.output }}", dependencies=["a"]),
        node("c", config="{{ b.output | length }}", dependencies=["b"]),
        node("m", config="{{ b.output }}", dependencies=["c"], map={"over": [1, 2]}),
    )
    run = await worker.run(chain)
    assert run.outputs == {"m": ["y" * 2_000] * 2}
    kept = {event.node: type(event.output) for event in await mill.of(run.run_id, NodeCompleted) if event.index < 0}
    assert kept == {"a": bytes, "b": BlobRef, "c": bytes, "m": BlobRef}


@simulated
async def test_templates_conditions_and_handlers_read_through_blobs(mill: Cluster, ledger: Ledger) -> None:

    def look(context: Any) -> dict[str, Any]:
        return {"parents": sorted(context.upstream), "size": len(context.upstream["a"]["text"])}

    worker = await mill.process(functions={"work": ledger.quick, "look": look})
    run = await worker.run(
        document(
            node("a", config={"text": BIG, "n": 7}),
            node("t", "a", config="{{ a.output.text | length }}"),
            node("c", "a", when="size(ctx.a.output.text) > 10", config="{{ a.n }}"),
            call("h", "a", function="look"),
            call("b", "a", branch={"rules": [{"condition": "ctx.a.output.n == 7", "next_nodes": ["z"]}]}),
            node("z"),
            outputs={"t": "{{ t.output }}", "c": "{{ c.output }}", "h": "{{ h.output }}", "n": "{{ a.output.n }}"},
        )
    )
    assert run.outputs == {"t": 70_000, "c": 7, "h": {"parents": ["a"], "size": 70_000}, "n": 7}
    assert run.nodes["z"]["status"] == "COMPLETED"


@simulated
async def test_big_inputs_are_a_blob(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(node("a", config="{{ inputs.text | length }}", when="inputs.go")), {"text": BIG, "go": True}
    )
    (created,) = await mill.of(run.run_id, RunCreated)
    assert isinstance(created.inputs, BlobRef)
    assert run.outputs == {"a": 70_000}


@simulated
async def test_big_outputs_of_a_run_are_a_blob(mill: Cluster) -> None:
    """Values over 64 KiB never travel in records, those that a run returns included."""
    worker = await mill.process()
    run = await worker.run(document(node("a", config=BIG), outputs={"twice": "{{ a.output }}{{ a.output }}"}))
    assert run.outputs == {"twice": BIG * 2}
    (completed,) = await mill.of(run.run_id, RunCompleted)
    assert isinstance(completed.outputs, BlobRef)


@simulated
async def test_outputs_that_name_a_node_by_a_computed_name_see_blobs_too(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(
        document(
            node("a", config=BIG), node("b", config=1), outputs={"x": "{{ nodes[inputs.which].output | length }}"}
        ),
        {"which": "a"},
    )
    assert run.outputs == {"x": 70_000}


@simulated
async def test_a_big_map_list_and_big_items(mill: Cluster) -> None:
    worker = await mill.process()
    items = [f"{i}-" + "z" * 30_000 for i in range(4)]
    run = await worker.run(
        document(
            node("m", config="{{ item ~ item ~ item }}", map={"over": "{{ inputs.items }}"}),
            node("n", "m", config="{{ m.output[2] | length }}"),
        ),
        {"items": items},
    )
    (expanded,) = await mill.of(run.run_id, NodeExpanded)
    assert isinstance(expanded.items, BlobRef)
    parts = [event.output for event in await mill.of(run.run_id, NodeCompleted, "m")]
    assert len(parts) == 5 and all(isinstance(part, BlobRef) for part in parts)
    assert run.nodes["m"]["output"] == [item * 3 for item in items]
    assert run.outputs == {"n": 3 * len(items[2])}


@simulated
async def test_a_big_checkpoint_is_a_blob(mill: Cluster) -> None:
    async def far(context: Any) -> str:
        await context.checkpoint({"seen": BIG})
        return "done"

    worker = await mill.process(functions={"work": far})
    run = await worker.run(document(call("a")))
    (checkpointed,) = await mill.of(run.run_id, NodeCheckpointed)
    assert run.status == "COMPLETED" and isinstance(checkpointed.value, BlobRef)


class Strange:
    pass


def _selfish() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


NOT_JSON: dict[str, Any] = {
    "nan": lambda: {"x": [1.0, math.nan]},
    "inf": lambda: math.inf,
    "minus inf": lambda: {"deep": {"er": -math.inf}},
    "object": lambda: Strange(),
    "class": lambda: Strange,
    "function": lambda: print,
    "lone surrogate": lambda: {"text": "\ud800"},
    "surrogate key": lambda: {"\udfff": 1},
    "complex": lambda: 1j,
    "self": _selfish,
    "deep": _deep,
    "iterator": lambda: iter(range(3)),
    "key": lambda: {(1, 2): 3},
    "exception": lambda: ValueError("returned, not raised"),
}


@pytest.mark.parametrize("what", NOT_JSON)
@simulated
async def test_an_output_that_is_not_json_fails_the_node(mill: Cluster, what: str) -> None:
    worker = await mill.process(functions={"work": NOT_JSON[what]})
    run = await worker.run(document(call("a", retry={"max_attempts": 5}), node("b", "a")))
    assert run.status == "FAILED"
    assert run.nodes["a"]["error"]["code"] == "output_not_json"
    # The same code would return the same thing again.
    assert run.nodes["a"]["attempts"] == 1
    assert len(run.nodes["a"]["error"]["message"]) < 3_000


JSON: dict[str, tuple[Any, Any]] = {
    "big integer": (2**200, 2**200),
    "float": (0.1, 0.1),
    "null": (None, None),
    "text": ("null NaN \u2028 \U0001f600", "null NaN \u2028 \U0001f600"),
    "tuple": ((1, 2), [1, 2]),
    "date": (datetime.date(2026, 1, 2), "2026-01-02"),
    "nested null": ({"a": [None, {"b": None}]}, {"a": [None, {"b": None}]}),
}


@pytest.mark.parametrize("what", JSON)
@simulated
async def test_an_output_that_is_json_arrives_as_it_is(mill: Cluster, what: str) -> None:
    given, expected = JSON[what]
    worker = await mill.process(functions={"work": lambda: given})
    run = await worker.run(document(call("a"), node("b", "a", config=["{{ a.output }}"])))
    assert run.outputs == {"b": [expected]}


@simulated
async def test_a_blob_that_cannot_be_read_is_waited_for(mill: Cluster) -> None:
    """A missing blob is the environment's fault: no attempt is spent on it, and nobody spins."""
    worker = await mill.process()
    client = await mill.process("client", work=False)
    run_id = await client.start(
        document(
            node("a", config=BIG),
            node("s", "a", type="sleep", config={"seconds": 5}),
            node("b", "s", config="{{ a.output | length }}"),
        )
    )
    await asyncio.sleep(2)
    (completed,) = await mill.of(run_id, NodeCompleted, "a")
    assert isinstance(completed.output, BlobRef)
    worker.kill()
    hidden = mill.blobs._held.pop((TENANT, completed.output.digest))
    second = await mill.process("w2")
    await asyncio.sleep(60)
    assert (await mill.state(run_id)).status == "RUNNING"
    assert second.faulty_store.calls["release"] <= 70
    mill.blobs._held[(TENANT, completed.output.digest)] = hidden
    run = await second.end(run_id)
    assert (run.status, run.outputs, run.nodes["b"]["attempts"]) == ("COMPLETED", {"b": 70_000}, 1)


@simulated
async def test_outputs_wait_for_a_missing_blob_too(mill: Cluster) -> None:
    worker = await mill.process()
    client = await mill.process("client", work=False)
    run_id = await client.start(
        document(
            node("a", config=BIG),
            node("s", "a", type="sleep", config={"seconds": 5}),
            outputs={"n": "{{ a.output | length }}"},
        )
    )
    await asyncio.sleep(2)
    (completed,) = await mill.of(run_id, NodeCompleted, "a")
    assert isinstance(completed.output, BlobRef)
    worker.kill()
    hidden = mill.blobs._held.pop((TENANT, completed.output.digest))
    second = await mill.process("w2")
    await asyncio.sleep(60)
    shown = (await second.engine.show(run_id)).nodes["a"]
    assert (shown["status"], shown["output"], "is missing" in shown["output_missing"]) == ("COMPLETED", None, True)
    mill.blobs._held[(TENANT, completed.output.digest)] = hidden
    run = await second.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"n": 70_000})


@simulated
async def test_a_value_stored_before_its_fact(mill: Cluster) -> None:
    """At every moment every reference in the log leads to a blob."""
    worker = await mill.process()
    missing: list[str] = []
    commit = mill.store.commit

    async def checked(commits: Any) -> Any:
        results = await commit(commits)
        events = await mill.events(run_id) if commits[0].stream.kind == "run" else []
        values = [getattr(event, name) for event in events for name in event.__struct_fields__]
        refs = [value.digest for value in values if isinstance(value, BlobRef)]
        missing.extend(digest for digest in refs if (TENANT, digest) not in mill.blobs._held)
        return results

    run_id = "watched"
    mill.store.commit = checked  # type: ignore[method-assign]
    run = await worker.run(
        document(node("a", config=BIG), node("b", "a", config="{{ a.output }}2")), {"x": BIG}, key=run_id
    )
    assert run.status == "COMPLETED" and missing == []
    assert (await mill.state(run_id)).blobs == 3


@simulated
async def test_an_attempt_may_be_made_by_a_worker_that_saw_nothing_before(mill: Cluster) -> None:
    """A new process for every step: each has to load and fetch everything anew."""
    client = await mill.process("client", work=False)
    run_id = await client.start(
        document(
            node("a", config={"big": BIG}),
            node("m", "a", config="{{ a.big ~ item }}", map={"over": [1, 2]}),
            node("b", "m", config="{{ m.output[1] | length }}"),
        )
    )
    for number in range(6):
        worker = mill.build(f"w{number}", concurrency=1)
        worker.faulty_store.always("commit", after_s(0.2))
        await worker.open()
        await asyncio.sleep(0.1)
        await worker.stop()
    run = await client.end(run_id)
    assert run.outputs == {"b": 70_001}
    workers = [event.worker for event in await mill.of(run_id, NodeStarted)]
    assert len(workers) == len(set(workers)) == 4
    assert {event.node for event in await mill.of(run_id, NodeScheduled)} == {"a", "m", "b"}


# Large values: loaded once per process, bounded, and never changed by those who share them


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
    values = Values(blobs, bytes_max=700)
    for digest in digests:
        fetched = await values.fetch(TENANT, [digest])
        assert fetched[digest].text
        assert sum(held.memory for held in values._held.values()) == values._bytes <= 700
    assert values.known(TENANT, digests[-3:]) is not None
    assert values.known(TENANT, digests[:1]) is None


async def test_what_is_used_stays_longest() -> None:
    blobs = SlowBlobs()
    digests = [await blobs.put(TENANT, bytes([65 + i]) * 100) for i in range(4)]
    values = Values(blobs, bytes_max=600)
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
    assert values._bytes == 200 == sum(held.memory for held in values._held.values())


async def test_a_value_larger_than_all_room_is_given_and_held_until_the_next() -> None:
    blobs = SlowBlobs()
    digest, other = await blobs.put(TENANT, b"x" * 1_000), await blobs.put(TENANT, b"x" * 10)
    values = Values(blobs, bytes_max=30)
    fetched = await values.fetch(TENANT, [digest])
    assert len(fetched[digest].text) == 1_000
    assert values.known(TENANT, [digest]) is not None
    await values.fetch(TENANT, [other])
    assert values._bytes == 20


async def test_what_is_held_counts_as_what_it_becomes() -> None:
    """A list of a million empty lists has three megabytes of text, and takes sixty."""
    blobs = SlowBlobs()
    short = await blobs.put(TENANT, b"[" + b"[]," * 1_000 + b"[]]")
    values = Values(blobs, bytes_max=100_000)
    fetched = await values.fetch(TENANT, [short, await blobs.put(TENANT, b"1")])
    assert fetched[short].memory > 200_000
    assert values.known(TENANT, [short]) is None


def test_values_that_become_too_large_are_refused() -> None:
    fetched = {"a": Held(b"[" + b"[]," * 1_000_000 + b"[]]")}
    assert check_memory(fetched) is fetched
    with pytest.raises(ExpressionError) as refused:
        check_memory({**fetched, "b": fetched["a"], "c": fetched["a"]})
    assert refused.value.code == "values_too_large"


async def test_values_wait_until_others_are_read() -> None:
    blobs = SlowBlobs()
    needed = [{await blobs.put(TENANT, b"%d" % number * 1_000): 1_000} for number in range(4)]
    values = Values(blobs, memory_max=5_000)
    (_, first), (_, second) = [await values.read(TENANT, each) for each in needed[:2]]
    assert (first, second) == (2_000, 2_000), "they count as what they become"
    third, fourth = (asyncio.create_task(values.read(TENANT, each)) for each in needed[2:])
    await asyncio.sleep(0.01)
    assert not third.done() and not fourth.done()
    third.cancel()
    values.release(first)
    _, last = await fourth
    with pytest.raises(asyncio.CancelledError):
        await third
    values.release(second)
    values.release(last)
    assert values._free == 5_000 and not values._turns


async def test_what_is_larger_than_all_room_is_read_alone() -> None:
    blobs = SlowBlobs()
    large, small = [{await blobs.put(TENANT, b"1" * size): size} for size in (9_000, 100)]
    values = Values(blobs, memory_max=5_000)
    _, taken = await values.read(TENANT, large)
    beside = asyncio.create_task(values.read(TENANT, small))
    await asyncio.sleep(0.01)
    assert taken == 5_000 and not beside.done()
    values.release(taken)
    assert (await beside)[1] == 200


async def test_a_job_whose_values_have_no_room_for_long_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "TURN_SECONDS", 0.01)
    blobs = SlowBlobs()
    values = Values(blobs, memory_max=3_000)
    needed = {await blobs.put(TENANT, b"1" * 1_000): 1_000}
    _, taken = await values.read(TENANT, needed)
    with pytest.raises(Unavailable):
        await values.read(TENANT, needed)
    values.release(taken)
    assert (await values.read(TENANT, needed))[1] == taken


async def test_nodes_of_a_worker_take_turns_with_large_values() -> None:
    running = peak = 0

    async def look(value: list[int]) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.02)
        running -= 1
        return len(value)

    names = [f"n{number}" for number in range(6)]
    config = {"function": "look", "args": {"value": "{{ nodes.big }}"}}
    readers = [{"id": name, "type": "python", "dependencies": ["big"], "config": config} for name in names]
    big = {"id": "big", "type": "python", "config": {"function": "made"}}
    functions = {"look": look, "made": lambda: list(range(100_000))}
    limited = Settings(limits=Limits(value_memory=10_000_000))
    async with engine_at("memory://", functions=functions, settings=limited) as engine:
        run = await engine.run({"name": "flow", "nodes": [big, *readers]})
    assert run.status == "COMPLETED" and peak == 1
    assert [run.nodes[name]["output"] for name in names] == [100_000] * 6


async def test_tenants_are_kept_apart() -> None:
    blobs = SlowBlobs()
    digest = await blobs.put(TENANT, b"1")
    values = Values(blobs)
    await values.fetch(TENANT, [digest])
    assert values.known("rival", [digest]) is None
    with pytest.raises(Unavailable):
        await values.fetch("rival", [digest])


@simulated
async def test_the_items_of_a_map_share_what_they_read(mill: Cluster) -> None:
    """Two hundred items over one large input: it is read once for all of them, and once for the view of the run."""
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
    assert [reads[digest] for digest in inputs] == [2]


@simulated
async def test_a_missing_blob_is_told_once_and_what_needs_it_goes_on_when_it_is_back(
    mill: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("a", config="{{ inputs.text | length }}")), {"text": "x" * 70_000})
    place = next(place for place, body in mill.blobs._held.items() if body.startswith(b'{"text"'))
    body = mill.blobs._held.pop(place)
    other = await worker.run(document(node("b", config=1), name="other"))
    assert other.status == "COMPLETED", "other work goes on"
    await asyncio.sleep(20)
    said = "put the same bytes back, or restore it from a backup; the node waits until it can be read"
    told = [record.getMessage() for record in caplog.records if place[1] in record.getMessage()]
    assert told == [f"blob {place[1]} is missing; {said}"]
    (found,) = (await worker.engine.why(run_id)).blockers
    assert isinstance(found, Worker) and found.lacking is not None
    assert (found.need, found.lacking.code) == ("value", "blob_missing")
    assert found.words == f"a is queued: a value that it needs is not available: blob {place[1]} is missing"
    assert found.unblock == "put the same bytes back, or restore it from a backup"
    mill.blobs._held[place] = body
    assert (await worker.end(run_id)).outputs == {"a": 70_000}
