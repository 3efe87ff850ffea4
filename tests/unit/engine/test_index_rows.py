"""A run's row: every field, and finding runs by what can be said of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.index_rows import DEAD_LETTER, read_dead_letter_row, run_terms
from tidemill.engine.turn import SNAPSHOT_TAIL_MIN
from tidemill.errors import Rejected
from tidemill.kernel.events import DeadLettered
from tidemill.kernel.state import State
from tidemill.testing.faulty_store import following, refuse


@simulated
async def test_every_field_of_a_row(mill: Cluster, ledger: Ledger) -> None:
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
    assert (row.tolerated, row.dead_letters, row.late_results) == (1, 1, 0)
    assert (row.failed_node, row.error_code) == ("c", "broken")
    assert (row.parent, row.forked_from, row.stuck, row.idle, row.waiting_for) == ("", "", False, False, ())


@simulated
async def test_late_results_are_counted(mill: Cluster, ledger: Ledger) -> None:
    """They end after the cancel and before a heartbeat could tell them; a heartbeat has announced one of them."""
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
async def test_finding_runs(mill: Cluster) -> None:
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
async def test_finding_runs_page_by_page(mill: Cluster) -> None:
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


# What a commit carries beside its events: the run's row, dead letters, snapshots


@simulated
async def test_a_busy_run_does_not_pay_for_a_row_at_every_step(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(chain(*(f"n{i}" for i in range(100))))
    written = [commit for commit in worker.faulty_store.commits if commit.rows]
    assert run.status == "COMPLETED"
    assert len(worker.faulty_store.commits) > 50
    assert len(written) <= 3


@simulated
async def test_a_lagging_row_says_how_far_it_is_and_the_keeper_brings_it_up_to_date(
    mill: Cluster, ledger: Ledger
) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(node("a"), node("b", "a"), call("c", "b", args={"seconds": 100})))
    await mill.until(lambda: ledger.running == 1)
    row, known = await mill.row(run_id), len(await mill.events(run_id))
    assert row.events < known
    await asyncio.sleep(21)
    assert (await mill.row(run_id)).events == len(await mill.events(run_id)) >= known


@simulated
async def test_a_run_that_goes_on_for_long_writes_its_row_about_every_second(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000_000)
    steps = [call(f"n{i}", *([f"n{i - 1}"] if i else []), args={"seconds": 0.1}) for i in range(100)]
    run_id = await worker.start(document(*steps))
    await mill.until(lambda: ledger.count("n60") == 1)
    lag = len(await mill.events(run_id)) - (await mill.row(run_id)).events
    assert 0 <= lag <= 40
    await worker.end(run_id)
    written = [commit for commit in worker.faulty_store.commits if commit.rows]
    assert 9 <= len(written) <= 14


@pytest.mark.parametrize("trouble", ["none", "conflict", "outage"])
@simulated
async def test_a_row_shows_a_new_status_at_once(mill: Cluster, trouble: str, ledger: Ledger) -> None:
    """Also when the first commit that would have written it came to nothing."""
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000_000)
    run_id = await worker.start(document(call("a", args={"seconds": 50}), call("b", args={"seconds": 3})))
    await mill.until(lambda: ledger.running == 2)
    client = await mill.process("client", work=False)
    await client.engine.show(run_id)
    match trouble:
        case "conflict":
            await asyncio.sleep(2.8)
            client.faulty_store.next("commit", following(lambda: asyncio.sleep(0.3)))
        case "outage":
            client.faulty_store.next("commit", refuse)
    await client.engine.pause(run_id)
    assert client.engine.turns.races == (trouble == "conflict")
    assert [row.status for row in await mill.rows("status:PAUSED")] == ["PAUSED"]
    await client.engine.resume(run_id)
    assert [row.status for row in await mill.rows("status:RUNNING")] == ["RUNNING"]
    assert await mill.rows("status:PAUSED") == []


@simulated
async def test_a_row_is_written_when_nothing_is_in_flight(mill: Cluster) -> None:
    worker = await mill.process(audit_every_ms=1_000_000)
    run_id = await worker.start(document(node("a", type="sleep", config={"seconds": 500})))
    await asyncio.sleep(0.5)
    row = await mill.row(run_id)
    assert row.events == len(await mill.events(run_id)) == 4
    assert row.counter == 1


@simulated
async def test_a_run_that_only_waits_for_a_retry_is_found_by_it_at_once(mill: Cluster) -> None:
    worker = await mill.process(queues=("default",))
    fails = node("f", type="fail", config={"attempts": 1, "retryable": True}, retry={"backoff_seconds": 5})
    run_id = await worker.start(document(node("a"), fails | {"dependencies": ["a"]}))
    await asyncio.sleep(0.5)
    (row,) = await mill.rows("waiting:retry")
    assert (row.run_id, row.waiting_for) == (run_id, ("retry (f)",))
    assert (await worker.end(run_id)).status == "COMPLETED"
    assert await mill.rows("waiting:retry") == []


@simulated
async def test_a_dead_letter_gets_its_row_although_the_run_s_own_may_lag(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work}, audit_every_ms=1_000_000)
    fails = node("a", type="fail", config={"kind": "broken", "message": "for good"}, map={"over": [1]})
    run = await worker.run(document(fails, call("b", "a", args={"seconds": 30})), key="r")
    assert ((await mill.row("r")).dead_letters, len(await mill.of("r", DeadLettered))) == (1, 1)
    page = await mill.store.find(TENANT, DEAD_LETTER, ["run:r"])
    letter = next(row for row in map(read_dead_letter_row, page.rows) if row.index == 0)
    assert (letter.node, letter.visit, letter.attempts) == ("a", 1, 1)
    assert (letter.code, letter.message, letter.status) == ("broken", "for good", "open")
    for term in ("status:open", "workflow:test", "node:test/a", "code:broken"):
        assert (await mill.store.count(TENANT, DEAD_LETTER, [term])) == 1
    await worker.engine.patch("r", [{"op": "replace", "path": "/nodes/a/type", "value": "value"}], retry=True)
    await mill.until(lambda: ledger.running == 1)
    assert (await mill.store.count(TENANT, DEAD_LETTER, ["status:reprocessed"])) == 1
    run = await worker.end("r")
    assert (run.status, (await mill.row("r")).dead_letters) == ("COMPLETED", 0)


@simulated
async def test_a_snapshot_is_written_when_the_tail_has_grown_long(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(chain(*(f"n{i}" for i in range(400))))
    shots = [commit.snapshot for commit in worker.faulty_store.commits if commit.snapshot is not None]
    assert run.events > 1_000
    assert len(shots) == run.events // (SNAPSHOT_TAIL_MIN + 3)
    for earlier, later in pairwise([0, *(shot.version for shot in shots)]):
        assert later - earlier > SNAPSHOT_TAIL_MIN
    # The kit folds every run from its snapshot and from its log, and compares.
    (tail,) = await mill.store.load({mill.stream(run.run_id): 0})
    assert tail.snapshot is not None and tail.after == shots[-1].version


@simulated
async def test_a_large_state_is_stored_less_often(mill: Cluster) -> None:
    """A quarter of the nodes touched is more than the fixed minimum here."""
    width = 3_000
    worker = await mill.process(concurrency=1_000)
    wide = [node(f"n{i}", "a") for i in range(width)]
    run = await worker.run(document(node("a"), *wide))
    shots = [commit.snapshot.version for commit in worker.faulty_store.commits if commit.snapshot is not None]
    assert run.status == "COMPLETED"
    assert shots
    for earlier, later in pairwise(shots):
        assert later - earlier > width // 4


@simulated
async def test_a_snapshot_that_did_not_arrive_is_written_by_the_next_commit(mill: Cluster) -> None:
    worker = await mill.process()
    worker.faulty_store.veto = lambda commit: commit.snapshot is not None
    run = await worker.run(chain(*(f"n{i}" for i in range(250))))
    assert worker.faulty_store.fired["veto"] == 1
    (tail,) = await mill.store.load({mill.stream(run.run_id): 0})
    assert tail.snapshot is not None
    assert SNAPSHOT_TAIL_MIN < tail.after < SNAPSHOT_TAIL_MIN + 20


@simulated
async def test_another_process_goes_on_from_the_snapshot(mill: Cluster, ledger: Ledger) -> None:
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
    loaded = second.faulty_store.records_loaded
    run = await second.end(run_id)
    assert run.status == "COMPLETED"
    assert 0 < loaded < run.events / 4
