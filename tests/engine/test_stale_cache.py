"""A process that knows an old state may not answer from it."""

from __future__ import annotations

import asyncio

from tests.engine.kit import Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import chain, document, node


@simulated
async def test_an_acknowledged_resume_happened(mill: Mill) -> None:
    """For the first process the run was never paused: it has to ask the store before it says that all is well."""
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    await second.engine.pause(run)
    await first.engine.resume(run)
    assert (await mill.state(run)).status == "RUNNING"


@simulated
async def test_an_acknowledged_pause_happened(mill: Mill) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    await first.engine.pause(run)
    await second.engine.resume(run)
    await first.engine.pause(run)
    assert (await mill.state(run)).status == "PAUSED"


@simulated
async def test_outputs_are_rendered_from_the_run_as_it_ended(mill: Mill) -> None:
    """The worker that is given the last step ran the first node and knows nothing of the second."""
    ledger = Ledger()
    old = await mill.process("old", functions={"work": ledger.work}, queues=("first",))
    run_id = await old.start(
        document(
            call("a", queue="first"),
            call("b", "a", queue="second", args={"seconds": 3, "value": 5}),
            outputs={"x": "{{ b.output }}"},
        )
    )
    await mill.until(lambda: ledger.count("a") == 1)
    await asyncio.sleep(1)
    other = mill.build("other", functions={"work": ledger.work}, queues=("second",), audit_every_ms=10**9)
    assert other.engine.worker is not None
    other.engine.worker._queues = frozenset({"second"})  # It leaves the last step to the first.
    await other.open()
    run = await old.end(run_id)
    assert (run.status, run.outputs) == ("COMPLETED", {"x": 5}), run.error


@simulated
async def test_a_row_is_written_over_that_of_another_process(mill: Mill) -> None:
    """The first process wrote RUNNING, the second FAILED; when the first reopens the run, its row must say so."""
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a", type="fail"), node("b", "a")))
    worker = await mill.process("worker")
    assert (await worker.end(run_id)).status == "FAILED"
    await worker.stop()
    assert (await mill.row(run_id)).status == "FAILED"
    await client.engine.retry(run_id)
    assert (await mill.row(run_id)).status == "RUNNING"
