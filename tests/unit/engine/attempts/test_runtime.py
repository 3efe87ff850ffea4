"""A node type with more than a call: opened once per process, prepared and cleaned up around each attempt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.bootstrap import engine_at
from tidemill.handlers.contract import Blob, Done, Fail, Handler, HandlerOutcome, NodeContext, handler_of
from tidemill.kernel.events import NodeStarted
from tidemill.kernel.model import Capabilities, NodeType
from tidemill.observability.capture import OUTPUT_SINK


class Diary:
    """A node type that writes down what is done with it. `call` does what the config says."""

    type = NodeType(name="diary")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refusals = 0
        self.open_s = 0.0
        self.heard_while_opening: Any = "nobody asked"

    async def open(self) -> None:
        self.lines.append("open")
        self.heard_while_opening = OUTPUT_SINK.get()
        await asyncio.sleep(self.open_s)
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("not there yet")

    async def close(self) -> None:
        self.lines.append("close")

    async def prepare(self, context: NodeContext) -> None:
        self.lines.append(f"prepare {context.node}")
        if context.config.get("unprepared"):
            raise Fail("unprepared", "it could not be prepared for")

    async def call(self, context: NodeContext) -> Any:
        self.lines.append(f"call {context.node}")
        await asyncio.sleep(context.config.get("seconds", 0))
        if context.config.get("fails"):
            raise Fail("asked_to", "as asked")
        return context.node

    async def finish(self, context: NodeContext) -> None:
        self.lines.append(f"finish {context.node}")


def diary(name: str, **fields: Any) -> dict[str, Any]:
    return node(name, type="diary", **fields)


@simulated
async def test_it_is_opened_once_and_closed_at_the_end(mill: Cluster) -> None:
    kept = Diary()
    kept.open_s = 2
    worker = await mill.process(more=[handler_of(kept)])
    run = await worker.run(
        document(diary("a", config={}), diary("b", config={}), node("c", "a", "b", type="diary", config={}))
    )
    assert (run.status, run.nodes["c"]["output"]) == ("COMPLETED", "c")
    await worker.stop()
    assert kept.lines.count("open") == 1
    assert (kept.lines[0], kept.lines[-1]) == ("open", "close")
    for name in "abc":
        steps = [line.split()[0] for line in kept.lines if line.endswith(f" {name}")]
        assert steps == ["prepare", "call", "finish"]
    assert kept.heard_while_opening is None, "what an open connection says later is nobody's line"


@simulated
async def test_one_that_was_not_used_is_neither_opened_nor_closed(mill: Cluster) -> None:
    kept = Diary()
    worker = await mill.process(more=[handler_of(kept)])
    await worker.run(document(node("a")))
    await worker.stop()
    assert kept.lines == []


@simulated
async def test_an_opening_that_fails_is_tried_again(mill: Cluster) -> None:
    kept = Diary()
    kept.refusals = 2
    worker = await mill.process(more=[handler_of(kept)])
    run = await worker.run(document(diary("a", config={}, retry={"max_attempts": 5, "backoff_seconds": 1})))
    assert run.status == "COMPLETED"
    assert kept.lines == ["open", "open", "open", "prepare a", "call a", "finish a"]
    assert run.nodes["a"]["attempts"] == 3


@simulated
async def test_an_opening_that_takes_longer_than_an_attempt_goes_on(mill: Cluster) -> None:
    """The attempt that began it runs out of time, the next one finds it done."""
    kept = Diary()
    kept.open_s = 5
    worker = await mill.process(more=[handler_of(kept)])
    retry = {"max_attempts": 5, "backoff_seconds": 2}
    run = await worker.run(document(diary("a", config={}, timeout_seconds=3, retry=retry)))
    assert run.status == "COMPLETED"
    assert kept.lines == ["open", "prepare a", "call a", "finish a"]


@simulated
async def test_finish_is_called_whatever_happens(mill: Cluster) -> None:
    kept = Diary()
    worker = await mill.process(more=[handler_of(kept)])
    once = {"max_attempts": 1}
    run = await worker.run(
        document(
            diary("fails", config={"fails": True}, retry=once, on_error="continue"),
            diary("unprepared", config={"unprepared": True}, retry=once, on_error="continue"),
            diary("late", config={"seconds": 60}, timeout_seconds=1, retry=once, on_error="continue"),
        )
    )
    assert [run.nodes[name]["error"]["code"] for name in ("fails", "unprepared", "late")] == [
        "asked_to", "unprepared", "timeout",
    ]  # fmt: skip
    assert "call unprepared" not in kept.lines
    for name in ("fails", "unprepared", "late"):
        assert kept.lines.count(f"finish {name}") == 1


@simulated
async def test_finish_is_called_when_the_run_is_cancelled(mill: Cluster) -> None:
    kept = Diary()
    worker = await mill.process(more=[handler_of(kept)])
    run_id = await worker.start(document(diary("long", config={"seconds": 1_000})))
    await mill.until(lambda: "call long" in kept.lines)
    await worker.engine.cancel(run_id)
    await mill.until(lambda: "finish long" in kept.lines)
    assert kept.lines.count("finish long") == 1


@simulated
async def test_one_that_cannot_be_closed_does_not_keep_the_others(mill: Cluster) -> None:
    closed: list[str] = []

    async def closing(name: str) -> None:
        closed.append(name)
        if name == "second":
            raise OSError("it is stuck")

    def one(name: str) -> Handler:
        return Handler(NodeType(name=name), lambda context: Done(None), close=lambda: closing(name))

    worker = await mill.process(more=[one("first"), one("second")])
    await worker.run(document(node("a", type="first"), node("b", "a", type="second")))
    await worker.stop()
    assert closed == ["second", "first"]


@simulated
async def test_steps_need_not_be_async(mill: Cluster) -> None:
    steps: list[str] = []

    class Plain:
        type = NodeType(name="plain")

        def open(self) -> None:
            steps.append("open")

        def prepare(self, context: NodeContext) -> None:
            steps.append("prepare")

        def call(self, context: NodeContext) -> int:
            return 7

        def finish(self, context: NodeContext) -> None:
            steps.append("finish")

        def close(self) -> None:
            steps.append("close")

    worker = await mill.process(more=[handler_of(Plain())])
    run = await worker.run(document(node("a", type="plain")))
    await worker.stop()
    assert run.nodes["a"]["output"] == 7
    assert steps == ["open", "prepare", "finish", "close"]


def promising(result: Any, **schemas: Any) -> Handler:
    return Handler(NodeType(name="diary", **schemas), lambda _: Done(result))


NUMBERED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@simulated
async def test_a_result_that_is_not_what_the_type_promises_is_a_failure(mill: Cluster) -> None:
    worker = await mill.process(more=[promising("a text", output_schema=NUMBERED)])
    run = await worker.run(document(diary("a", retry={"max_attempts": 3})))
    error = run.nodes["a"]["error"]
    assert (run.status, error["code"], error.get("retryable", False)) == ("FAILED", "output_invalid", False)
    assert error["message"] == 'the result is not what diary@1 promises: "a text" is not of type "object"'
    assert run.nodes["a"]["attempts"] == 1


@simulated
async def test_a_promise_is_checked_on_what_is_stored(mill: Cluster) -> None:
    described = {"type": "object", "required": ["$blob", "size"]}
    kept = promising(Blob(b"bytes"), output_schema=described)
    broken = promising({"of": Blob(b"bytes")}, output_schema=described, major=2)
    worker = await mill.process(more=[kept, broken])
    run = await worker.run(document(node("a", type="diary@1"), node("b", "a", type="diary@2")))
    assert run.nodes["a"]["output"]["size"] == 5
    assert run.nodes["b"]["error"]["code"] == "output_invalid"


@simulated
async def test_a_type_is_not_called_with_what_it_does_not_expect(mill: Cluster) -> None:
    expects = {"type": "object", "additionalProperties": NUMBERED}
    handler = promising("called", input_schema=expects)
    worker = await mill.process(more=[handler])
    good = node("a", type="value", config={"n": 1})
    run = await worker.run(document(good, node("b", "a", type="diary")))
    assert (run.status, run.nodes["b"]["output"]) == ("COMPLETED", "called")
    bad = node("a", type="value", config={"n": "one"})
    run = await worker.run(document(bad, node("b", "a", type="diary")))
    error = run.nodes["b"]["error"]
    assert (run.status, error["code"], error.get("retryable", False)) == ("FAILED", "input_invalid", False)
    said = 'the upstream outputs do not match what diary@1 expects: /a/n: "one" is not of type "integer"'
    assert error["message"] == said


@simulated
async def test_a_config_that_does_not_suit_once_rendered_has_one_code_and_a_hint(mill: Cluster) -> None:
    worker = await mill.process(more=[promising("called", config_schema={"enum": ["GET", "POST"]})])
    method = node("a", type="value", config="get")
    run = await worker.run(document(method, node("b", "a", type="diary", config="{{ a.output }}")))
    error = run.nodes["b"]["error"]
    assert (error["code"], error["hint"]) == ("config_invalid", 'did you mean "GET"?')
    assert error["message"] == '"get" is not one of "GET" or "POST"'


# What a node type says it can do: how that becomes the default of its nodes, and a bound over all workers


def failing(**capabilities: Any) -> Handler:
    def call(context: NodeContext) -> HandlerOutcome:
        raise Fail("broken", "as always", retryable=True)

    return Handler(NodeType(name="failing", capabilities=Capabilities(**capabilities)), call)


@pytest.mark.parametrize(
    ("capabilities", "fields", "attempts"),
    [({}, {}, 3), ({"retryable": False}, {}, 1), ({"retryable": False}, {"retry": {"max_attempts": 2}}, 2)],
    ids=["by default", "not retryable", "a node may know better"],
)
@simulated
async def test_how_often_a_type_is_tried(
    mill: Cluster, capabilities: dict[str, Any], fields: dict[str, Any], attempts: int
) -> None:
    worker = await mill.process(more=[failing(**capabilities)])
    run = await worker.run(document(node("a", type="failing", **fields)))
    assert run.nodes["a"]["attempts"] == attempts


@simulated
async def test_at_most_once_is_the_default_of_types_that_say_so(mill: Cluster) -> None:
    """The log says that it has begun before anything is done, and a lost worker's attempt is not made again."""
    calls: list[int] = []

    async def once(context: NodeContext) -> HandlerOutcome:
        calls.append(context.attempt)
        await asyncio.sleep(1_000)
        return Done(None)

    handler = Handler(NodeType(name="once", capabilities=Capabilities(at_most_once=True)), once)
    first = await mill.process("first", more=[handler])
    run_id = await first.start(document(node("a", type="once")))
    await mill.until(lambda: bool(calls))
    assert len(await mill.of(run_id, NodeStarted)) == 1
    first.kill()
    second = await mill.process("second", more=[handler])
    done = await second.end(run_id)
    assert (done.status, calls) == ("FAILED", [1])
    assert done.nodes["a"]["error"]["code"] == "unknown_outcome"


async def test_a_cap_holds_over_two_workers_on_one_file(tmp_path: Path) -> None:
    """Each of them would take more by itself; together they never have more than allowed."""
    cap, running, most, total = 3, 0, 0, 0

    async def narrow(context: NodeContext) -> HandlerOutcome:
        nonlocal running, most, total
        running += 1
        most, total = max(most, running), total + 1
        await asyncio.sleep(0.02)
        running -= 1
        return Done(None)

    handler = Handler(NodeType(name="narrow", capabilities=Capabilities(concurrency=cap)), narrow)
    url = f"sqlite:///{tmp_path / 'mill.db'}"
    one, other = engine_at(url, handlers=[handler]), engine_at(url, handlers=[handler])
    async with one, other:
        flow = document(node("a", type="narrow", map={"over": list(range(20))}), node("b", type="narrow"))
        published = await one.publish(flow)
        reference = f"{published.name}@{published.version}"
        runs = [await engine.start(reference) for engine in (one, other)]
        done = [await one.result(run_id, timeout_s=40) for run_id in runs]
    assert [each.status for each in done] == ["COMPLETED"] * 2
    assert total == 42
    assert 2 <= most <= cap, most
