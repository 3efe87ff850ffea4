"""A process that knows an old state may not answer from it."""

from __future__ import annotations

from tests.engine.kit import Mill, simulated
from tests.kernel.authoring import chain


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
