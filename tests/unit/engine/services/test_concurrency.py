"""Concurrency limits of the fleet: per queue, type, workflow and value of a label, over all workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.services.concurrency import LIMITS_MAX, ConcurrencyLimit
from tidemill.errors import Rejected


def _wide(count: int = 12, **more: Any) -> Any:
    return document(*(call(f"n{number}", args={"seconds": 10}, **more) for number in range(count)), name="wide")


async def _fleet(mill: Cluster, ledger: Ledger, limits: dict[str, int], size: int = 3) -> Any:
    client = await mill.process("client", work=False)
    for name, limit in limits.items():
        await client.engine.limit_concurrency(name, limit)
    for number in range(size):
        await mill.process(f"w{number}", functions={"work": ledger.work})
    await asyncio.sleep(6)
    return client


@pytest.mark.parametrize("name", ["queue:gpu", "type:python", "workflow:wide"])
@simulated
async def test_at_most_so_many_nodes_run_in_the_whole_fleet(mill: Cluster, ledger: Ledger, name: str) -> None:
    client = await _fleet(mill, ledger, {name: 3, "queue:other": 1})
    run = await client.run(_wide(queue="gpu"))
    assert run.status == "COMPLETED"
    assert (len(ledger.calls), ledger.most) == (12, 3)


@simulated
async def test_several_limits_hold_together(mill: Cluster, ledger: Ledger) -> None:
    client = await _fleet(mill, ledger, {"queue:gpu": 5, "workflow:wide": 2})
    await client.run(_wide(queue="gpu"))
    assert ledger.most == 2


@simulated
async def test_each_value_of_a_label_has_its_own_places(mill: Cluster, ledger: Ledger) -> None:
    client = await _fleet(mill, ledger, {"label:customer": 2}, size=0)
    reference = await client.publish(_wide())
    most: dict[str, int] = {}
    running: dict[str, int] = {}
    ids: dict[str, str] = {}

    async def counted(context: Any, **given: Any) -> None:
        customer = ids[context.effect_key.split("/")[0]]
        running[customer] = running.get(customer, 0) + 1
        most[customer] = max(most.get(customer, 0), running[customer])
        await asyncio.sleep(10)
        running[customer] -= 1

    await mill.process("w9", functions={"work": counted})
    for customer in ("acme", "globex", ""):
        labels = {"customer": customer} if customer else {}
        run_id = await client.engine.start(reference, labels=labels)
        ids[run_id] = customer
    for run_id in ids:
        assert (await client.end(run_id)).status == "COMPLETED"
    assert (most["acme"], most["globex"], most[""]) == (2, 2, 12)


@simulated
async def test_a_dead_worker_frees_its_places(mill: Cluster, ledger: Ledger) -> None:
    client = await _fleet(mill, ledger, {"queue:gpu": 2}, size=2)
    run_id = await client.start(_wide(4, queue="gpu"))
    await mill.until(lambda: ledger.running == 2)
    mill.processes["w0"].kill()
    assert (await client.end(run_id)).status == "COMPLETED"


@simulated
async def test_a_limit_of_nothing_holds_back_until_it_is_lifted(mill: Cluster, ledger: Ledger) -> None:
    client = await _fleet(mill, ledger, {"queue:gpu": 0})
    held = await client.start(document(call("a", queue="gpu"), name="held"))
    await asyncio.sleep(100)
    assert ledger.calls == []
    (blocker,) = (await client.engine.why(held)).blockers
    assert blocker.need == "limited" and blocker.command == "tidemill concurrency"  # type: ignore[attr-defined]
    await client.engine.unlimit_concurrency("queue:gpu")
    assert (await client.run(document(call("b", queue="gpu"), name="later"))).status == "COMPLETED"
    assert (await client.engine.result(held)).status == "COMPLETED"
    assert await client.engine.concurrency_limits() == []


@simulated
async def test_a_changed_limit_holds_for_nodes_that_are_queued_already(mill: Cluster, ledger: Ledger) -> None:
    client = await _fleet(mill, ledger, {"queue:gpu": 0})
    run = await client.start(_wide(queue="gpu"))
    await asyncio.sleep(30)
    await client.engine.limit_concurrency("queue:gpu", 2)
    assert (await client.engine.result(run)).status == "COMPLETED"
    assert (len(ledger.calls), ledger.most) == (12, 2)


@simulated
async def test_limits_are_listed_changed_and_checked(mill: Cluster) -> None:
    client = (await mill.process("client", work=False)).engine
    await client.limit_concurrency("queue:b", 4)
    await client.limit_concurrency("queue:a", 1)
    await client.limit_concurrency("queue:b", 5)
    found = [ConcurrencyLimit(name="queue:a", limit=1), ConcurrencyLimit(name="queue:b", limit=5)]
    assert await client.concurrency_limits() == found
    for name in ("gpu", "queue:", ":x", "tenant:acme", "queue:" + "x" * 200):
        with pytest.raises(Rejected, match="limit_name_invalid"):
            await client.limit_concurrency(name, 1)
    for limit in (-1, 10**7, True):
        with pytest.raises(Rejected, match="limit_invalid"):
            await client.limit_concurrency("queue:a", limit)
    with pytest.raises(Rejected, match="limit_unknown"):
        await client.unlimit_concurrency("queue:c")
    assert await client.concurrency_limits() == found
    assert LIMITS_MAX >= 100
