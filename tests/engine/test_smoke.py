from __future__ import annotations
from tests.engine.kit import Mill, simulated
from tests.kernel.authoring import chain, document, node

@simulated
async def test_chain(mill: Mill) -> None:
    worker = await mill.process()
    run = await worker.run(chain("a","b","c"))
    assert run.status == "COMPLETED"
    assert worker.door.calls["claim"] <= 2
    print(worker.door.calls, await mill.kinds(run.run_id))
