"""A worker does a job only with what it calls for: older knowledge is brought up to date first."""

from __future__ import annotations

import asyncio

from tests.engine.kit import Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import document
from tidemill.handlers.contract import Fail, NodeContext


@simulated
async def test_a_patched_config_reaches_a_worker_that_knew_the_run_before(mill: Mill) -> None:
    seen: list[str] = []

    async def table(name: str) -> str:
        seen.append(name)
        if name != "sales":
            await asyncio.sleep(1)
            raise Fail("no_table", name)
        return name

    first = await mill.process("first", functions={"table": table}, queues=("a",))
    second = await mill.process("second", functions={"table": table}, queues=("b",))
    run_id = await first.start(
        document(
            call("p", function="table", args={"name": "sales"}, queue="b"),
            call("x", function="table", args={"name": "salse"}, queue="a", retry=1),
        )
    )
    await asyncio.sleep(5)
    await first.stop()
    assert second.engine.worker is not None
    second.engine.worker._queues = frozenset({"a", "b", "system"})
    patch = [{"op": "replace", "path": "/nodes/x/config/args/name", "value": "sales"}]
    client = await mill.process("client", work=False)
    await client.engine.patch(run_id, patch, retry=True)
    run = await client.end(run_id)
    assert (run.status, seen[-1]) == ("COMPLETED", "sales"), seen


@simulated
async def test_a_checkpoint_reaches_a_worker_that_knew_the_run_before(mill: Mill) -> None:
    seen: list[tuple[int, object]] = []
    ledger = Ledger()

    async def work(context: NodeContext) -> str:
        seen.append((context.attempt, context.last_checkpoint))
        assert context.checkpoint is not None
        if context.attempt == 1:
            await asyncio.sleep(1)
            await context.checkpoint({"rows": 500})
            raise Fail("flaky", "again", retryable=True)
        return "done"

    functions = {"work": work, "quick": ledger.work}
    first = await mill.process("first", functions=functions, queues=("a",))
    second = await mill.process("second", functions=functions, queues=("b",))
    run_id = await first.start(
        document(
            call("p", function="quick", queue="b"),
            call("x", function="work", queue="a", retry={"max_attempts": 3, "backoff_seconds": 6, "jitter": 0}),
        )
    )
    await asyncio.sleep(5)
    await first.stop()
    assert second.engine.worker is not None
    second.engine.worker._queues = frozenset({"a", "b", "system"})
    run = await (await mill.process("client", work=False)).end(run_id)
    assert (run.status, seen) == ("COMPLETED", [(1, None), (2, {"rows": 500})])
