"""What a node type says it can do: how that becomes the default of its nodes, and a bound over all workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.engine.kit import Mill, simulated
from tests.kernel.authoring import document, node
from tidemill.bootstrap import engine_at
from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext, Return
from tidemill.kernel.events import NodeStarted
from tidemill.kernel.model import Capabilities, NodeType


def failing(**capabilities: Any) -> Handler:
    def call(context: NodeContext) -> Ended:
        raise Fail("broken", "as always", retryable=True)

    return Handler(NodeType(name="failing", capabilities=Capabilities(**capabilities)), call)


async def attempts(mill: Mill, handler: Handler, **fields: Any) -> int:
    worker = await mill.process(more=[handler])
    run = await worker.run(document(node("a", type="failing", **fields)))
    return int(run.nodes["a"]["attempts"])


@simulated
async def test_a_type_is_retried_by_default(mill: Mill) -> None:
    assert await attempts(mill, failing()) == 3


@simulated
async def test_what_cannot_be_retried_has_one_attempt(mill: Mill) -> None:
    assert await attempts(mill, failing(retryable=False)) == 1


@simulated
async def test_a_node_may_know_better(mill: Mill) -> None:
    assert await attempts(mill, failing(retryable=False), retry={"max_attempts": 2}) == 2


@simulated
async def test_at_most_once_is_the_default_of_types_that_say_so(mill: Mill) -> None:
    """The log says that it has begun before anything is done, and a lost worker's attempt is not made again."""
    calls: list[int] = []

    async def once(context: NodeContext) -> Ended:
        calls.append(context.attempt)
        await asyncio.sleep(1_000)
        return Return(None)

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

    async def narrow(context: NodeContext) -> Ended:
        nonlocal running, most, total
        running += 1
        most, total = max(most, running), total + 1
        await asyncio.sleep(0.02)
        running -= 1
        return Return(None)

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
