"""A run's row: every field, and finding runs by what can be said of them."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.kit import TENANT, Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import document, node
from tidemill.engine.index_rows import RUN, RunRow, read_run_row, run_row, run_terms
from tidemill.errors import Rejected
from tidemill.kernel.commands import Start
from tidemill.kernel.state import State
from tidemill.stores.contract import Stream


@simulated
async def test_every_field_of_a_row(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    published = await worker.engine.publish(
        document(
            call("a", args={"seconds": 5}),
            node("b", "a", type="fail", config={"kind": "meh"}, on_error="continue"),
            node("c", "b", type="fail", config={"kind": "broken"}),
        )
    )
    run_id = await worker.engine.start(
        "test",
        {"x": 1},
        key="order-1",
        labels={"customer": "acme", "tier": "gold"},
        submitted_by="ada",
        correlation_id="req-9",
    )
    created = await mill.row(run_id)
    assert (created.status, created.counter, created.events, created.created_ms) == ("RUNNING", 1, 2, 1_000_000)
    assert (created.started_ms, created.ended_ms) == (None, None)
    await worker.end(run_id)
    row = await mill.row(run_id)
    assert (row.run_id, row.workflow, row.version, row.tag_used) == ("order-1", "test", 1, "test")
    assert (row.digest, row.status) == (published.digest, "FAILED")
    assert (row.submitted_by, row.correlation_id) == ("ada", "req-9")
    assert row.labels == {"customer": "acme", "tier": "gold"}
    assert (row.created_ms, row.started_ms, row.ended_ms) == (1_000_000, 1_000_000, 1_005_000)
    assert (row.last_event_ms, row.events, row.counter) == (1_005_000, len(await mill.events(run_id)), 0)
    assert (row.tolerated, row.dead_letters, row.late_results) == (1, 2, 0)
    assert (row.failed_node, row.error_code) == ("c", "broken")
    assert (row.parent, row.forked_from, row.stuck, row.idle, row.waiting_for) == ("", "", False, False, ())


@simulated
async def test_late_results_are_counted(mill: Mill) -> None:
    """They end after the cancel and before a heartbeat could tell them; a heartbeat has announced one of them."""
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(
        document(
            call("a", args={"seconds": 14}),
            node("s", type="sleep", config={"seconds": 11}),
            call("b", "s", args={"seconds": 3}),
        )
    )
    await asyncio.sleep(12)
    await worker.engine.cancel(run_id)
    await asyncio.sleep(60)
    assert (await mill.row(run_id)).late_results == 2
    assert (await mill.row(run_id)).status == "CANCELLED"


@simulated
async def test_a_row_knows_its_parent(mill: Mill) -> None:
    client = await mill.process("client", work=False)
    published = await client.engine.publish(document(node("a")))
    flow = await client.engine.catalog.flow(TENANT, published.digest)
    start = Start(version=1, digest=published.digest, inputs=b"{}", parent=("mother", "n", 1, -1))
    answer = await client.engine.turns.command(mill.stream("child"), start, start=flow)
    assert answer.problem is None
    assert (await mill.row("child")).parent == "mother"


def test_a_row_can_be_written_and_read_in_every_field() -> None:
    state = State(
        seq=7,
        status="PAUSED",
        counter=2,
        workflow="w",
        version=3,
        digest="sha256:1",
        submitted_by="ada",
        labels={"k": "v"},
        correlation_id="c",
        tag_used="w:stable",
        parent=("p", "n", 1, 0),
        forked_from=("f", 9),
        created_ms=1,
        started_ms=2,
        ended_ms=4,
        last_ms=3,
        tolerated=5,
        dead_letters=6,
        discarded=8,
        failed_node="n",
    )
    stream = Stream(TENANT, RUN, "r")
    row = run_row(stream, state, run_terms(state), waiting_for=("timer (s)",), stuck=True, idle=True)
    assert (row.kind, row.key, row.sort) == (RUN, "r", 1)
    assert read_run_row(row) == RunRow(
        run_id="r",
        workflow="w",
        version=3,
        digest="sha256:1",
        status="PAUSED",
        created_ms=1,
        last_event_ms=3,
        counter=2,
        events=7,
        tag_used="w:stable",
        submitted_by="ada",
        labels={"k": "v"},
        correlation_id="c",
        started_ms=2,
        ended_ms=4,
        tolerated=5,
        dead_letters=6,
        late_results=8,
        waiting_for=("timer (s)",),
        parent="p",
        forked_from="f",
        stuck=True,
        idle=True,
        failed_node="n",
    )


def test_what_a_run_can_be_found_by() -> None:
    state = State(status="RUNNING", workflow="w", version=2, labels={"a": "b=c"}, submitted_by="ada")
    terms = run_terms(state, stuck=True, idle=True)
    assert set(terms) == {
        "status:RUNNING",
        "workflow:w",
        "version:w@2",
        "label:a=b=c",
        "waiting",
        "by:ada",
        "live",
        "stuck",
        "idle",
    }
    ended = run_terms(State(status="FAILED", workflow="w", version=2))
    assert set(ended) == {"status:FAILED", "workflow:w", "version:w@2", "ended:0"}


@simulated
async def test_finding_runs(mill: Mill) -> None:
    worker = await mill.process()
    await worker.publish(document(node("a"), name="good"))
    await worker.publish(document(node("a", type="fail"), name="bad"))
    await worker.publish(document(node("a", queue="x", type="sleep", config={"seconds": 10_000}), name="slow"))
    for number in range(12):
        name = ("good", "bad", "slow")[number % 3]
        await worker.engine.start(
            name, key=f"{name}-{number}", labels={"n": str(number % 2)}, submitted_by=f"u{number % 4}"
        )
        await asyncio.sleep(1)
    find = worker.engine.find
    everything, more = await find(limit=50)
    assert more is None
    assert [row.run_id for row in everything] == [f"{('good', 'bad', 'slow')[n % 3]}-{n}" for n in reversed(range(12))]
    for terms, expected in [
        (["status:FAILED"], ["bad-10", "bad-7", "bad-4", "bad-1"]),
        (["status:COMPLETED", "label:n=0"], ["good-6", "good-0"]),
        (["live"], ["slow-11", "slow-8", "slow-5", "slow-2"]),
        (["workflow:slow", "by:u3"], ["slow-11"]),
        (["version:good@1", "label:n=1"], ["good-9", "good-3"]),
        (["workflow:nobody"], []),
    ]:
        rows, _ = await find(terms)
        assert [row.run_id for row in rows] == expected, terms


@simulated
async def test_finding_runs_page_by_page(mill: Mill) -> None:
    client = await mill.process(work=False)
    reference = await client.publish(document(node("a")))
    for number in range(25):
        await client.start(reference, key=f"r{number:02}")
    seen: list[str] = []
    after: str | None = None
    while True:
        rows, after = await client.engine.find(["live"], after=after, limit=7)
        seen += [row.run_id for row in rows]
        if after is None:
            break
    assert sorted(seen) == [f"r{number:02}" for number in range(25)] and len(seen) == 25
    with pytest.raises(Rejected) as refused:
        await client.engine.find(after="nonsense")
    assert refused.value.code == "bad_cursor"
