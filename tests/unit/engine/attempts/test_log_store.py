"""What handlers print and log: kept per attempt, bounded, read in order, forgotten with the run."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.operator import operator, pass_days
from tidemill.engine.attempts.log_store import (
    JOURNAL,
    KEPT_BYTES,
    SEGMENT_BYTES,
    SEGMENTS_KEPT,
    AttemptId,
    AttemptLogWriter,
    StoredLine,
    forget_journals,
    read_logs,
    segments_of,
)
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Commit, Stream
from tidemill.stores.memory import MemoryStore

PLACE = AttemptId("a", 1, -1, 1)


def journal(token: int = 1, place: AttemptId = PLACE) -> AttemptLogWriter:
    return AttemptLogWriter(TENANT, "r", place, token)


def line(text: str, at_ms: int = 0, source: str = "stdout") -> StoredLine:
    return StoredLine(at_ms, source, text)


async def kept(store: MemoryStore, run_id: str = "r") -> list[str]:
    return [spoken.line.text for spoken in await read_logs(store, TENANT, run_id, {})]


async def test_what_is_written_is_read_in_order() -> None:
    store, book = MemoryStore(), journal()
    book.add(line("one\n"))
    book.add(line("two\n", source="stderr"))
    await book.write(store)
    book.add(line("three\n"))
    await book.write(store)
    await book.write(store)
    assert await kept(store) == ["one\n", "two\n", "three\n"]


async def test_pieces_of_a_line_are_put_together() -> None:
    """`print("a", 1)` writes four pieces."""
    store, book = MemoryStore(), journal()
    for piece in ("a", " ", "1", "\n", "next"):
        book.add(line(piece))
    book.add(line("other", source="stderr"))
    await book.write(store)
    assert await kept(store) == ["a 1\n", "next", "other"]


async def test_about_the_last_megabyte_is_kept() -> None:
    store, book = MemoryStore(), journal()
    for number in range(800):
        book.add(line(f"{number:05d} " + "x" * 9_993 + "\n"))
        if number % 10 == 9:
            await book.write(store)
    texts = await kept(store)
    assert texts[-1].startswith("00799")
    assert [int(text[:5]) for text in texts] == list(range(800 - len(texts), 800)), "the latest, without a gap"
    size = sum(map(len, texts))
    assert KEPT_BYTES <= size <= (SEGMENTS_KEPT + 1) * SEGMENT_BYTES
    assert len([segment async for segment in segments_of(store, TENANT, "r")]) <= SEGMENTS_KEPT


async def test_more_than_can_be_written_does_not_fill_the_memory() -> None:
    """A store that does not answer: what would not be kept anyway is dropped before it is written."""
    store, book = MemoryStore(), journal()
    for number in range(300_000):
        book.add(line(f"{number}\n"))
    book.add(line("y" * 3 * KEPT_BYTES))
    book.add(line("\nlast\n"))
    await book.write(store)
    texts = await kept(store)
    assert texts[-1] == "\nlast\n"
    assert sum(map(len, texts)) <= KEPT_BYTES + 10


async def test_lines_from_many_threads_all_arrive() -> None:
    store, book = MemoryStore(), journal()

    def talk(name: int) -> None:
        for number in range(500):
            book.add(line(f"{name}:{number}\n"))

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await book.write(store)
        await asyncio.sleep(0)
    await book.write(store)
    said = (await kept(store)) and "".join(await kept(store)).split()
    assert sorted(said) == sorted(f"{name}:{number}" for name in range(4) for number in range(500))


async def test_who_waits_for_a_write_finds_it_done() -> None:
    """A writer that comes second does not return before the first one's lines are there."""

    class Slow(MemoryStore):
        async def commit(self, commits: Any) -> Any:
            await asyncio.sleep(0.05)
            return await super().commit(commits)

    store, book = Slow(), journal()
    book.add(line("slowly\n"))
    first = asyncio.create_task(book.write(store))
    await asyncio.sleep(0)
    await book.write(store)
    assert await kept(store) == ["slowly\n"]
    await first


async def test_two_workers_with_one_attempt_number_do_not_mix() -> None:
    """The first was lost, the second does it again: what it says comes behind, however far the first had come."""
    store, lost, second = MemoryStore(), journal(9), journal(10)
    for number in range(250):
        lost.add(line(f"lost {number} " + "x" * 9_990 + "\n"))
        await lost.write(store)
    second.add(line("second\n"))
    await second.write(store)
    lost.add(line("a zombie\n"))
    await lost.write(store)
    texts = await kept(store)
    assert texts[-1] == "second\n"
    assert texts[-2] == "a zombie\n"


async def test_runs_whose_names_begin_alike_are_apart() -> None:
    store = MemoryStore()
    for run_id in ("r", "r/a/1/-1/1", "rr", "r.child"):
        book = AttemptLogWriter(TENANT, run_id, PLACE, 1)
        book.add(line(f"{run_id}\n"))
        await book.write(store)
    other = AttemptLogWriter("other", "r", PLACE, 1)
    other.add(line("another tenant\n"))
    await other.write(store)
    assert await kept(store) == ["r\n"]
    await forget_journals(store, TENANT, "r", up_to=9)
    assert await kept(store) == []
    assert await kept(store, "r/a/1/-1/1") == ["r/a/1/-1/1\n"]
    assert await kept(store, "rr") == ["rr\n"]


@simulated
async def test_a_line_is_kept_at_any_level(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)

    def details(context: NodeContext) -> HandlerOutcome:
        context.log.debug("in detail")
        return Done(None)

    worker = await mill.process(more=[Handler(NodeType(name="details"), details)])
    run = await worker.run(document(node("a", type="details")))
    assert [(each.source, each.text) for each in await worker.engine.logs(run.run_id)] == [("debug", "in detail")]


def chatty(context: NodeContext) -> HandlerOutcome:
    print("attempt", context.attempt, "of", context.node)
    context.log.info("visit %d", context.visit)
    logging.getLogger("somebody.else").warning("careful")
    if context.config and context.attempt < context.config.get("until", 0):
        raise Fail("again", "not yet", retryable=True)
    return Done(None)


CHATTY = Handler(NodeType(name="chatty"), chatty)


@simulated
async def test_lines_are_read_by_run_node_and_attempt(mill: Cluster) -> None:
    worker = await mill.process(more=[CHATTY])
    flow = document(
        node("a", type="chatty", config={"until": 2}, retry={"backoff_seconds": 1}),
        node("b", "a", type="chatty", config={}),
        node("m", "b", type="chatty", config={}, map={"over": [1, 2]}),
        node("quiet", "m"),
    )
    run = await worker.run(flow)
    engine = worker.engine
    every = await engine.logs(run.run_id)
    assert len(every) == 15
    assert [each.at_ms for each in every] == sorted(each.at_ms for each in every)
    assert [(each.source, each.text) for each in await engine.logs(run.run_id, "b")] == [
        ("stdout", "attempt 1 of b"), ("info", "visit 1"), ("warning", "careful"),
    ]  # fmt: skip
    assert (await engine.logs(run.run_id, "a", attempt=2))[0].text == "attempt 2 of a"
    assert {each.index for each in await engine.logs(run.run_id, "m")} == {0, 1}
    assert {each.index for each in await engine.logs(run.run_id, index=1)} == {1}
    with pytest.raises(Rejected, match="attempt_unknown"):
        await engine.logs(run.run_id, "a", visit=2)
    assert await engine.logs(run.run_id, "quiet") == []
    with pytest.raises(Rejected, match="run_unknown"):
        await engine.logs("nobody")
    with pytest.raises(Rejected, match="node_unknown"):
        await engine.logs(run.run_id, "quite")
    with pytest.raises(Rejected, match="node_unknown"):
        await anext(aiter(engine.follow_logs(run.run_id, "quite")))


@simulated
async def test_lines_are_followed_to_the_end_of_the_run(mill: Cluster) -> None:
    async def slow(context: NodeContext) -> HandlerOutcome:
        for number in range(4):
            print("step", number)
            await asyncio.sleep(2)
        print("no end of line", end="")
        return Done(None)

    worker = await mill.process(more=[Handler(NodeType(name="slow"), slow)])
    reader = await mill.process("reader", work=False)
    run_id = await worker.start(document(node("a", type="slow"), node("b", "a", type="sleep", config={"seconds": 60})))
    heard = [(each.text, mill.loop.now) async for each in reader.engine.follow_logs(run_id)]
    began = heard[0][1]
    assert [text for text, _ in heard] == ["step 0", "step 1", "step 2", "step 3", "no end of line"]
    assert [round(at - began) for _, at in heard[:4]] == [0, 2, 4, 6], "as they were said, not at the end"
    assert heard[-1][1] - began > 60
    again = [each.text async for each in reader.engine.follow_logs(run_id)]
    assert again == [text for text, _ in heard]


@simulated
async def test_a_killed_worker_leaves_its_lines(mill: Cluster) -> None:
    async def stuck(context: NodeContext) -> HandlerOutcome:
        print("by", context.config["who"] if context.config else "somebody", flush=True)
        if not spoken:
            spoken.append("once")
            await asyncio.sleep(10_000)
        return Done(None)

    spoken: list[str] = []
    first = await mill.process("first", more=[Handler(NodeType(name="stuck"), stuck)])
    run_id = await first.start(document(node("a", type="stuck")))
    await mill.until(lambda: bool(spoken))
    await asyncio.sleep(2)
    first.kill()
    second = await mill.process("second", more=[Handler(NodeType(name="stuck"), stuck)])
    await second.end(run_id)
    lines = await second.engine.logs(run_id)
    assert [each.text for each in lines] == ["by somebody"] * 2


@simulated
async def test_lines_are_there_when_the_result_is(mill: Cluster) -> None:
    """Whoever sees the end of a run and looks for its lines at once finds all of them."""
    worker = await mill.process(more=[CHATTY])
    reader = await mill.process("reader", work=False)
    run_id = await worker.start(document(node("a", type="chatty", config={})))
    await worker.engine.result(run_id)
    assert (await reader.engine.logs(run_id))[0].text == "attempt 1 of a"


@simulated
async def test_upkeep_does_not_stumble_over_journals(mill: Cluster) -> None:
    worker = await mill.process(more=[CHATTY])
    run = await worker.run(document(node("a", type="chatty", config={})))
    assert await mill.store.streams(JOURNAL)
    # What a handler says is no log: an address in it keeps nothing, bytes that are none of ours stop nothing.
    strange = Stream(TENANT, JOURNAL, "somebody/else's/key")
    await mill.store.commit([Commit(stream=strange, expected=0, records=(b"\xff not lines",))])
    engine = worker.engine
    assert (await engine.verify_log()).clean
    await engine.reindex()
    await engine.collect_blobs()
    assert await engine.logs(run.run_id)


@simulated
async def test_lines_leave_with_their_run(mill: Cluster) -> None:
    worker = await mill.process(more=[CHATTY])
    gone = await worker.run(document(node("a", type="chatty", config={}), name="gone", retention={"days": 0}))
    stays = await worker.run(document(node("a", type="chatty", config={}), name="stays"))
    await worker.stop()
    pass_days(mill, 3)
    engine = operator(mill)
    assert (await engine.archive_sweep(dry_run=True)).retired == (gone.run_id,)
    assert len(await mill.store.streams(JOURNAL)) == 2
    assert (await engine.archive_sweep()).retired == (gone.run_id,)
    (left,) = await mill.store.streams(JOURNAL)
    assert left.key.startswith(f"{stays.run_id}/")
