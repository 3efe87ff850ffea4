"""What attempts show while they run: parts of results, folded at the end, and progress, which leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.grants import give_secrets
from tests.fixtures.kernel.authoring import document, node
from tidemill.bootstrap import engine_at
from tidemill.engine.attempts.streaming import PARTS_BYTES_MAX
from tidemill.handlers.contract import Cancelled, Done, Fail, Handler, HandlerOutcome, NodeContext, NullSink
from tidemill.kernel.model import NodeType

FEW_EVENTS = 3


def streamer(function: Any) -> Handler:
    return Handler(NodeType(name="streamer"), function)


@asynccontextmanager
async def followed(process: Process, run_id: str) -> AsyncIterator[list[dict[str, Any]]]:
    """Everything that a follower sees, until the run ends."""
    seen: list[dict[str, Any]] = []

    async def follow() -> None:
        seen.extend([event async for event in process.engine.follow(run_id, live=True)])

    task = asyncio.create_task(follow())
    yield seen
    await task


async def run(mill: Cluster, function: Any, **fields: Any) -> tuple[Process, str, list[dict[str, Any]]]:
    process = await mill.process(more=[streamer(function)])
    run_id = await process.start(document(node("a", type="streamer", **fields)))
    async with followed(process, run_id) as seen:
        await process.end(run_id)
    return process, run_id, seen


def parts(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in seen if event["type"] == "NodeStreamed"]


@simulated
async def test_parts_reach_followers_in_order_and_leave_no_events(mill: Cluster) -> None:
    async def speak(context: NodeContext) -> HandlerOutcome:
        await asyncio.sleep(0.1)
        for number in range(5_000):
            context.stream(f"{number} ")
            if not number % 100:
                await asyncio.sleep(0.01)
        return Done(context.voice.folded())

    process, run_id, seen = await run(mill, speak)
    assert [part["number"] for part in parts(seen)] == list(range(1, 5_001))
    assert [part["value"] for part in parts(seen)] == [f"{number} " for number in range(5_000)]
    first = parts(seen)[0]
    assert (first["live"], first["node"], first["visit"], first["attempt"]) == (True, "a", 1, 1)
    assert "seq" not in first
    view = await process.engine.show(run_id)
    assert view.nodes["a"]["output"] == "".join(f"{number} " for number in range(5_000))
    of_the_node = [kind for kind in await mill.kinds(run_id) if kind.startswith("Node")]
    assert len(of_the_node) <= FEW_EVENTS, of_the_node
    kinds = [event["type"] for event in seen]
    assert kinds.index("NodeScheduled") < kinds.index("NodeStreamed")
    assert len(kinds) - 1 - kinds[::-1].index("NodeStreamed") < kinds.index("NodeCompleted")


@simulated
async def test_whoever_does_not_ask_sees_events_only(mill: Cluster) -> None:
    async def speak(context: NodeContext) -> HandlerOutcome:
        for number in range(10):
            context.stream(number)
            await asyncio.sleep(0.1)
        return Done(None)

    process = await mill.process(more=[streamer(speak)])
    run_id = await process.start(document(node("a", type="streamer")))
    seen = [event async for event in process.engine.follow(run_id)]
    assert all("seq" in event for event in seen)
    assert [event["type"] for event in seen] == await mill.kinds(run_id)


@pytest.mark.parametrize(
    ("said", "folded"),
    [
        (["a", "b"], "ab"),
        (["a", 1], ["a", 1]),
        ([{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 2}]),
        ([(1, 2)], [[1, 2]]),
        ([], []),
    ],
)
def test_parts_are_folded_into_one_value(said: list[Any], folded: Any) -> None:
    @simulated
    async def story(mill: Cluster) -> None:
        def speak(context: NodeContext) -> HandlerOutcome:
            for part in said:
                context.stream(part)
            return Done(context.voice.folded())

        process = await mill.process(more=[streamer(speak)])
        done = await process.run(document(node("a", type="streamer")))
        assert done.nodes["a"]["output"] == folded

    story()


@simulated
async def test_progress_is_shown_and_never_kept(mill: Cluster) -> None:
    async def work(context: NodeContext) -> HandlerOutcome:
        await asyncio.sleep(0.1)
        for fraction, message in ((0.25, "begun"), (7, "too far"), (-1, ""), (None, "x" * 5_000), (float("nan"), "")):
            context.progress(fraction, message)
            await asyncio.sleep(0.1)
        return Done(None)

    _, run_id, seen = await run(mill, work)
    told = [(event["fraction"], event["message"]) for event in seen if event["type"] == "NodeProgressed"]
    assert told == [(0.25, "begun"), (1.0, "too far"), (0.0, ""), (None, "x" * 1_000), (0.0, "")]
    assert not any("Progress" in kind for kind in await mill.kinds(run_id))


@simulated
async def test_a_part_that_is_not_json_fails_the_attempt(mill: Cluster) -> None:
    def speak(context: NodeContext) -> HandlerOutcome:
        context.stream(object())
        return Done(None)

    process = await mill.process(more=[streamer(speak)])
    done = await process.run(document(node("a", type="streamer", retry={"max_attempts": 1})))
    assert done.nodes["a"]["error"]["code"] == "output_not_json"


@simulated
async def test_parts_have_an_end(mill: Cluster) -> None:
    codes: list[str] = []

    def speak(context: NodeContext) -> HandlerOutcome:
        chunk = "x" * 8_000_000
        try:
            for _ in range(1 + PARTS_BYTES_MAX // len(chunk)):
                context.stream(chunk)
        except Fail as error:
            codes.append(error.code)
            raise
        return Done(None)

    process = await mill.process(more=[streamer(speak)])
    done = await process.run(document(node("a", type="streamer", retry={"max_attempts": 1})))
    assert (done.nodes["a"]["error"]["code"], codes) == ("output_too_large", ["output_too_large"])


@simulated
async def test_a_second_attempt_begins_to_count_anew(mill: Cluster) -> None:
    async def speak(context: NodeContext) -> HandlerOutcome:
        await asyncio.sleep(0.1)
        context.stream(f"{context.attempt}a")
        context.stream(f"{context.attempt}b")
        if context.attempt == 1:
            raise Fail("cut", "the stream was cut", retryable=True)
        return Done(context.voice.folded())

    process, run_id, seen = await run(mill, speak, retry={"backoff_seconds": 1})
    assert [(part["attempt"], part["number"], part["value"]) for part in parts(seen)] == [
        (1, 1, "1a"), (1, 2, "1b"), (2, 1, "2a"), (2, 2, "2b"),
    ]  # fmt: skip
    view = await process.engine.show(run_id)
    assert view.nodes["a"]["output"] == "2a2b", "what a failed attempt has shown is no part of the result"


@simulated
async def test_code_in_a_thread_learns_that_nobody_waits(mill: Cluster) -> None:
    """The loop here has no threads; what counts is that `heartbeat` raises once the time is up."""
    ended: list[str] = []

    async def ignore(context: NodeContext) -> HandlerOutcome:
        context.heartbeat()
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        try:
            context.heartbeat()
        except Cancelled:
            ended.append("cancelled")
        return Done(None)

    process = await mill.process(more=[streamer(ignore)])
    done = await process.run(
        document(node("a", type="streamer", timeout_seconds=1, retry={"max_attempts": 1}), name="late")
    )
    assert done.nodes["a"]["error"]["code"] == "timeout"
    await mill.until(lambda: bool(ended))


async def test_an_end_that_may_begin_a_secret_is_kept_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    give_secrets(monkeypatch, TOKEN="tok-77a1b2c3")

    def speak(context: NodeContext) -> HandlerOutcome:
        assert context.secrets["TOKEN"]
        print("printed tok", end="")
        print("-77a1", end="")
        print("b2c3 and tok", end="")
        return Done(1)

    async with engine_at("memory://", handlers=[streamer(speak)]) as engine:
        await engine.publish(document(node("a", type="streamer"), name="held"))
        run_id = await engine.start("held")
        await engine.result(run_id)
        assert [line.text for line in await engine.logs(run_id, "a")] == ["printed *** and tok"]


def test_a_context_without_an_engine_is_mute() -> None:
    context = NodeContext(run_id="r", node="a", visit=1, index=-1, attempt=1, config=None, upstream={})
    context.stream("nobody")
    context.progress(0.5, "hears")
    context.heartbeat()
    assert NullSink().folded() == []
    assert context.inputs == {}
