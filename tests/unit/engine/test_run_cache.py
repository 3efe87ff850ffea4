"""A process that knows an old state may not answer from it."""

from __future__ import annotations

import asyncio

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.ambient import RealAmbient
from tidemill.blobs.memory import MemoryBlobs
from tidemill.engine.engine import Engine
from tidemill.engine.run_cache import KNOWN_FOR_MS
from tidemill.engine.worker.leases import WorkerOptions
from tidemill.handlers.contract import Fail, NodeContext
from tidemill.node_types import built_in_handlers
from tidemill.stores.contract import Claim
from tidemill.stores.memory import MemoryStore


@simulated
async def test_an_acknowledged_resume_happened(mill: Cluster) -> None:
    """For the first process the run was never paused: it has to ask the store before it says that all is well."""
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    await second.engine.pause(run)
    await first.engine.resume(run)
    assert (await mill.state(run)).status == "RUNNING"


@simulated
async def test_an_acknowledged_pause_happened(mill: Cluster) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    run = await first.start(chain("a"))
    await first.engine.pause(run)
    await second.engine.resume(run)
    await first.engine.pause(run)
    assert (await mill.state(run)).status == "PAUSED"


@simulated
async def test_outputs_are_rendered_from_the_run_as_it_ended(mill: Cluster, ledger: Ledger) -> None:
    """The worker that is given the last step ran the first node and knows nothing of the second."""
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
async def test_a_row_is_written_over_that_of_another_process(mill: Cluster) -> None:
    """The first process wrote RUNNING, the second FAILED; when the first reopens the run, its row must say so."""
    client = await mill.process("client", work=False)
    run_id = await client.start(document(node("a", type="fail"), node("b", "a")))
    worker = await mill.process("worker")
    assert (await worker.end(run_id)).status == "FAILED"
    await worker.stop()
    assert (await mill.row(run_id)).status == "FAILED"
    await client.engine.retry(run_id)
    assert (await mill.row(run_id)).status == "RUNNING"


class SetClock:
    """A clock that somebody sets forward after it was looked at a number of times."""

    def __init__(self) -> None:
        self.now_ms = self.looks = 0

    def __call__(self) -> int:
        self.looks -= 1
        self.now_ms += 2 * KNOWN_FOR_MS if self.looks == 0 else 0
        return self.now_ms


def _engine(clock: SetClock) -> Engine:
    store, handlers = MemoryStore(clock=clock), built_in_handlers()
    return Engine(
        store=store, blobs=MemoryBlobs(), ambient=RealAmbient(), handlers=handlers, worker=WorkerOptions(name="w")
    )


@pytest.mark.parametrize("looks", range(1, 12))
async def test_a_clock_that_is_set_amid_a_turn_makes_no_run_unknown(looks: int) -> None:
    """What was known too long ago is forgotten; between two looks at it there must be no moment for that."""
    clock = SetClock()
    engine = _engine(clock)
    engine.turns.open()
    await engine.publish(chain("a"))
    known, loaded = [await engine.start(chain("a")["name"]) for _ in range(2)]
    engine.run_cache._entries.pop(engine.context.stream(loaded))
    clock.looks = looks
    # Decided in one turn: while one of them is loaded, the other one may be forgotten.
    await asyncio.gather(engine.pause(known), engine.pause(loaded))
    assert [(await engine.show(run_id)).status for run_id in (known, loaded)] == ["PAUSED", "PAUSED"]
    await engine.turns.close()


@pytest.mark.parametrize("looks", range(1, 8))
async def test_a_clock_that_is_set_while_a_job_is_taken_over_hides_no_lost_worker(looks: int) -> None:
    """The run would seem unknown, its job be put back as if it were new, and nobody learn of the first attempt."""
    clock = SetClock()
    engine = _engine(clock)
    engine.turns.open()
    await engine.publish(chain("a"))
    known, loaded = [await engine.start(chain("a")["name"]) for _ in range(2)]
    assert engine.worker is not None
    claim = Claim(queues=(), limit=2, lease_ms=1)
    assert len(await engine._store.claim(claim)) == 2
    clock.now_ms += 10
    leases = await engine._store.claim(claim)
    assert [lease.expired for lease in leases] == [1, 1]
    engine.run_cache._entries.pop(engine.context.stream(loaded))
    clock.looks = looks
    await engine.worker._accept(leases)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not engine.worker.held_jobs
    for run_id in (known, loaded):
        assert "worker_lost" in [event["error"]["code"] for event in await engine.events(run_id) if "error" in event]
    await engine.turns.close()


# A worker does a job only with what it calls for: older knowledge is brought up to date first


@simulated
async def test_a_patched_config_reaches_a_worker_that_knew_the_run_before(mill: Cluster) -> None:
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
async def test_a_checkpoint_reaches_a_worker_that_knew_the_run_before(mill: Cluster, ledger: Ledger) -> None:
    seen: list[tuple[int, object]] = []

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
