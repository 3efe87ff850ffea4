"""What a commit carries beside its events: the run's row, dead letters, snapshots."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.engine.door import following, refuse
from tests.engine.kit import TENANT, Mill, simulated
from tests.engine.scripts import Ledger, call
from tests.kernel.authoring import chain, document, node
from tidemill.engine.index_rows import DEAD_LETTER, read_dead_letter_row
from tidemill.engine.turn import SNAPSHOT_TAIL_MIN
from tidemill.kernel.events import DeadLettered


@simulated
async def test_a_row_is_written_with_the_start_and_with_the_end(mill: Mill) -> None:
    client = await mill.process("client", work=False)
    run_id = await client.start(chain("a", "b"))
    assert (await mill.row(run_id)).status == "RUNNING"
    assert [row.run_id for row in await mill.rows("live")] == [run_id]
    await mill.process()
    await client.end(run_id)
    row = await mill.row(run_id)
    assert (row.status, row.events) == ("COMPLETED", len(await mill.events(run_id)))
    assert await mill.rows("live") == []


@simulated
async def test_a_busy_run_does_not_pay_for_a_row_at_every_step(mill: Mill) -> None:
    worker = await mill.process()
    run = await worker.run(chain(*(f"n{i}" for i in range(100))))
    written = [commit for commit in worker.door.commits if commit.rows]
    assert run.status == "COMPLETED"
    assert len(worker.door.commits) > 50
    assert len(written) <= 3


@simulated
async def test_a_lagging_row_says_how_far_it_is_and_the_keeper_brings_it_up_to_date(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(node("a"), node("b", "a"), call("c", "b", args={"seconds": 100})))
    await mill.until(lambda: ledger.running == 1)
    row, known = await mill.row(run_id), len(await mill.events(run_id))
    assert row.events < known
    await asyncio.sleep(21)
    assert (await mill.row(run_id)).events == len(await mill.events(run_id)) >= known


@simulated
async def test_a_run_that_goes_on_for_long_writes_its_row_about_every_second(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000_000)
    steps = [call(f"n{i}", *([f"n{i - 1}"] if i else []), args={"seconds": 0.1}) for i in range(100)]
    run_id = await worker.start(document(*steps))
    await mill.until(lambda: ledger.count("n60") == 1)
    lag = len(await mill.events(run_id)) - (await mill.row(run_id)).events
    assert 0 <= lag <= 40
    await worker.end(run_id)
    written = [commit for commit in worker.door.commits if commit.rows]
    assert 9 <= len(written) <= 14


@pytest.mark.parametrize("trouble", ["none", "conflict", "outage"])
@simulated
async def test_a_row_shows_a_new_status_at_once(mill: Mill, trouble: str) -> None:
    """Also when the first commit that would have written it came to nothing."""
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000_000)
    run_id = await worker.start(document(call("a", args={"seconds": 50}), call("b", args={"seconds": 3})))
    await mill.until(lambda: ledger.running == 2)
    client = await mill.process("client", work=False)
    await client.engine.show(run_id)
    match trouble:
        case "conflict":
            await asyncio.sleep(2.8)
            client.door.next("commit", following(lambda: asyncio.sleep(0.3)))
        case "outage":
            client.door.next("commit", refuse)
    await client.engine.pause(run_id)
    assert client.engine.turns.races == (trouble == "conflict")
    assert [row.status for row in await mill.rows("status:PAUSED")] == ["PAUSED"]
    await client.engine.resume(run_id)
    assert [row.status for row in await mill.rows("status:RUNNING")] == ["RUNNING"]
    assert await mill.rows("status:PAUSED") == []


@simulated
async def test_a_row_is_written_when_nothing_is_in_flight(mill: Mill) -> None:
    worker = await mill.process(audit_every_ms=1_000_000)
    run_id = await worker.start(document(node("a", type="sleep", config={"seconds": 500})))
    await asyncio.sleep(0.5)
    row = await mill.row(run_id)
    assert row.events == len(await mill.events(run_id)) == 4
    assert row.counter == 1


@simulated
async def test_a_dead_letter_gets_its_row_although_the_run_s_own_may_lag(mill: Mill) -> None:
    ledger = Ledger()
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000_000)
    run_id = await worker.start(
        document(
            node("a", type="fail", config={"kind": "broken", "message": "for good"}, on_error="continue"),
            call("b", args={"seconds": 30}),
        )
    )
    await mill.until(lambda: ledger.running == 1)
    assert len(await mill.of(run_id, DeadLettered)) == 1
    page = await mill.store.find(TENANT, DEAD_LETTER, [f"run:{run_id}"])
    (letter,) = [read_dead_letter_row(row) for row in page.rows]
    assert (letter.node, letter.visit, letter.index, letter.attempts) == ("a", 1, -1, 1)
    assert (letter.code, letter.message, letter.status) == ("broken", "for good", "open")
    for term in ("status:open", "workflow:test", "node:test/a", "code:broken"):
        assert (await mill.store.count(TENANT, DEAD_LETTER, [term])) == 1
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    row = await mill.row(run_id)
    assert (row.dead_letters, row.tolerated) == (1, 1)


@simulated
async def test_a_snapshot_is_written_when_the_tail_has_grown_long(mill: Mill) -> None:
    worker = await mill.process()
    run = await worker.run(chain(*(f"n{i}" for i in range(400))))
    shots = [commit.snapshot for commit in worker.door.commits if commit.snapshot is not None]
    assert run.events > 1_000
    assert len(shots) == run.events // (SNAPSHOT_TAIL_MIN + 3)
    for earlier, later in pairwise([0, *(shot.version for shot in shots)]):
        assert later - earlier > SNAPSHOT_TAIL_MIN
    # The kit folds every run from its snapshot and from its log, and compares.
    (tail,) = await mill.store.load({mill.stream(run.run_id): 0})
    assert tail.snapshot is not None and tail.after == shots[-1].version


@simulated
async def test_a_large_state_is_stored_less_often(mill: Mill) -> None:
    """A quarter of the nodes touched is more than the fixed minimum here."""
    width = 3_000
    worker = await mill.process(concurrency=1_000)
    wide = [node(f"n{i}", "a") for i in range(width)]
    run = await worker.run(document(node("a"), *wide))
    shots = [commit.snapshot.version for commit in worker.door.commits if commit.snapshot is not None]
    assert run.status == "COMPLETED"
    assert shots
    for earlier, later in pairwise(shots):
        assert later - earlier > width // 4


@simulated
async def test_a_snapshot_that_did_not_arrive_is_written_by_the_next_commit(mill: Mill) -> None:
    worker = await mill.process()
    worker.door.veto = lambda commit: commit.snapshot is not None
    run = await worker.run(chain(*(f"n{i}" for i in range(250))))
    assert worker.door.fired["veto"] == 1
    (tail,) = await mill.store.load({mill.stream(run.run_id): 0})
    assert tail.snapshot is not None
    assert SNAPSHOT_TAIL_MIN < tail.after < SNAPSHOT_TAIL_MIN + 20


@simulated
async def test_another_process_goes_on_from_the_snapshot(mill: Mill) -> None:
    ledger = Ledger()
    first = await mill.process("w1", functions={"work": ledger.work})
    names = [f"n{i}" for i in range(200)]
    quick = [node(name, *names[:number][-1:]) for number, name in enumerate(names)]
    run_id = await first.start(document(*quick, call("z", names[-1], args={"seconds": 20})))
    await mill.until(lambda: ledger.running == 1)
    (tail,) = await mill.store.load({mill.stream(run_id): 0})
    assert tail.snapshot is not None
    first.kill()
    second = await mill.process("w2", functions={"work": ledger.work})
    await mill.until(lambda: ledger.count("z") == 2)
    loaded = second.door.records_loaded
    run = await second.end(run_id)
    assert run.status == "COMPLETED"
    assert 0 < loaded < run.events / 4
