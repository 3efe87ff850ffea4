"""Due schedules: each due time starts at most one run and none is lost, whatever dies in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.fixtures.cluster import TENANT, Cluster, Process, dying_after, dying_before, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.unit.triggers.test_service import FLOW, served
from tidemill.engine.index_rows import SCHEDULE
from tidemill.errors import Rejected
from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX
from tidemill.stores.contract import Commit, Row
from tidemill.testing.faulty_store import lose_reply, refuse
from tidemill.triggers.scheduler import CATCH_UP_MAX, serve_schedules
from tidemill.triggers.schedules import Schedule, job_key, stream_of
from tidemill.triggers.service import SCHEDULED_AT
from tidemill.triggers.times import utc_text

LEASE_S = 16
SLOW = document(node("a", type="sleep", config={"seconds": 400}), name="slow")


async def started(mill: Cluster, name: str = "often") -> list[str]:
    """The due times of all runs of a schedule, in order."""
    return sorted(row.labels[SCHEDULED_AT] for row in await mill.rows(f"label:{SCHEDULE}={name}"))


def expected(made: Schedule, until_ms: int) -> list[str]:
    """Every due time of an interval up to a moment."""
    first, step = made.anchor_ms + made.every_ms, made.every_ms
    return [utc_text(at_ms) for at_ms in range(first, until_ms + 1, step)]


async def passed(mill: Cluster, seconds: float) -> None:
    """Let time pass, and runs that have started be recorded."""
    await asyncio.sleep(seconds)


@simulated
async def test_who_set_up_a_schedule_may_not_approve_its_runs_under_four_eyes(mill: Cluster) -> None:
    process, schedules = await served(mill)
    asks = {"title": "pay?", "four_eyes": True}
    await process.publish(document(node("ask", type="human", config=asks), name="paid"))
    await schedules.create("often", "paid", every="1m", end_at=None, actor="ann")
    await passed(mill, 65)
    await schedules.update("often", description="changed", actor="bob")
    await passed(mill, 60)
    rows = sorted(await mill.rows(f"label:{SCHEDULE}=often"), key=lambda row: row.labels[SCHEDULED_AT])
    assert [row.submitted_by for row in rows] == ["ann", "bob"]
    for row, starter, other in zip(rows, ("ann", "bob"), ("bob", "ann"), strict=True):
        with pytest.raises(Rejected) as refused:
            await process.engine.decide(row.run_id, "ask", "approve", actor=starter)
        assert refused.value.code == "four_eyes"
        await process.engine.decide(row.run_id, "ask", "approve", actor=other)


@simulated
async def test_every_due_time_starts_one_run_with_its_labels_and_inputs(mill: Cluster) -> None:
    timed = {"type": "object", "properties": {"scheduled_at": {"type": "string"}, "n": {"type": "integer"}}}
    process, schedules = await served(mill)
    await process.publish(document(node("a", config="{{ inputs.scheduled_at }}"), name="timed", inputs=timed))
    made = await schedules.create("often", "timed", every="1m", inputs={"n": 3}, labels={"team": "a"})
    await passed(mill, 305)
    assert await started(mill) == expected(made, mill.now_ms())
    rows = await mill.rows(f"label:{SCHEDULE}=often")
    assert len(rows) == 5
    for row in rows:
        run = await process.end(row.run_id)
        assert run.output == row.labels[SCHEDULED_AT]
        assert (row.labels["team"], row.submitted_by) == ("a", "schedule:often")
    shown = await schedules.show("often")
    assert (shown.runs, shown.skipped, shown.last_error) == (5, 0, None)
    assert utc_text(shown.last_due_ms or 0) == (await started(mill))[-1]


@simulated
async def test_a_fleet_starts_each_run_once(mill: Cluster) -> None:
    process, schedules = await served(mill)
    for number in range(2, 5):
        await served(mill, f"w{number}")
    await process.publish(FLOW)
    made = [await schedules.create(f"s{number}", "report", every="30s") for number in range(5)]
    await passed(mill, 310)
    for each in made:
        assert await started(mill, each.name) == expected(each, mill.now_ms())


@pytest.mark.parametrize("trouble", [dying_before, dying_after])
@pytest.mark.parametrize("which", [0, 1, 2])
@simulated
async def test_a_worker_that_dies_at_any_commit_of_a_fire_neither_loses_nor_repeats_it(
    mill: Cluster, trouble: Any, which: int
) -> None:
    """The commits: of the run's start, of its end, of the schedule's record; each before and after."""
    client, schedules = await served(mill, "client", work=False)
    await client.publish(FLOW)
    victim, _ = await served(mill, "victim")
    made = await schedules.create("often", "report", every="5m", catch_up="all")
    await passed(mill, 299)
    seen = 0

    async def around(verb: str, given: Any, call: Any) -> Any:
        nonlocal seen
        if verb == "commit" and any(commit.stream.kind in ("run", SCHEDULE) for commit in given):
            seen += 1
            if seen == which + 1:
                return await trouble(victim)(call)
        return await call()

    victim.faulty_store.around = around
    await passed(mill, 4)
    await served(mill, "heir")
    await passed(mill, LEASE_S + 330)
    assert await started(mill) == expected(made, mill.now_ms())
    assert (await schedules.show("often")).runs == 2
    assert victim.name not in mill.processes or seen <= which


@pytest.mark.parametrize("trouble", [refuse, lose_reply])
@simulated
async def test_a_store_that_does_not_answer_delays_a_fire(mill: Cluster, trouble: Any) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    made = await schedules.create("often", "report", every="1m", catch_up="all")
    await passed(mill, 55)
    process.faulty_store.always("commit", trouble)
    await passed(mill, 20)
    process.faulty_store.always("commit", None)
    await passed(mill, 170)
    assert await started(mill) == expected(made, mill.now_ms())


@simulated
async def test_an_outage_is_caught_up_with_as_the_policy_says(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    made = {policy: await schedules.create(policy, "report", every="10m", catch_up=policy) for policy in _POLICIES}
    await process.stop()
    await passed(mill, 3_000 + 120)
    _, schedules = await served(mill, "heir")
    await passed(mill, 5)
    missed = expected(made["all"], mill.now_ms())
    assert len(missed) == 5
    assert await started(mill, "all") == missed
    assert await started(mill, "skip") == missed[-1:]
    assert await started(mill, "none") == []
    skipped = {policy: (await schedules.show(policy)).skipped for policy in _POLICIES}
    assert skipped == {"all": 0, "skip": 4, "none": 5}
    await passed(mill, 600)
    assert [len(await started(mill, policy)) for policy in _POLICIES] == [6, 2, 1]


_POLICIES: Any = ("all", "skip", "none")


@simulated
async def test_catching_up_is_bounded(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    made = await schedules.create("often", "report", every="10s", catch_up="all")
    await process.stop()
    await passed(mill, 3_000)
    await served(mill, "heir")
    await passed(mill, 1)
    runs = await started(mill)
    assert runs == expected(made, mill.now_ms())[-CATCH_UP_MAX:]


@simulated
async def test_overlap_skip_starts_nothing_while_a_run_is_live(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(SLOW)
    made = await schedules.create("often", "slow", every="3m", overlap="skip")
    await passed(mill, 1_500)
    # A run takes 400 s, so that two of three times fall into it.
    assert await started(mill) == expected(made, mill.now_ms())[::3]
    shown = await schedules.show("often")
    assert shown.runs + shown.skipped == len(expected(made, mill.now_ms()))


@simulated
async def test_overlap_skip_does_not_mistake_its_own_run_for_another(mill: Cluster) -> None:
    """The worker dies after the start; the next one finds that run live, and records it."""
    client, schedules = await served(mill, "client", work=False)
    await client.publish(SLOW)
    victim, _ = await served(mill, "victim")
    await schedules.create("often", "slow", every="5m", overlap="skip", catch_up="all")
    await passed(mill, 290)
    victim.faulty_store.around = _kill_at_schedule(victim)
    await passed(mill, 12)
    assert "victim" not in mill.processes
    await served(mill, "heir")
    await passed(mill, LEASE_S + 20)
    shown = await schedules.show("often")
    assert (shown.runs, shown.skipped, len(await started(mill))) == (1, 0, 1)


def _kill_at_schedule(victim: Process) -> Any:
    async def around(verb: str, given: Any, call: Any) -> Any:
        if verb == "commit" and any(commit.stream.kind == SCHEDULE for commit in given):
            return await dying_before(victim)(call)
        return await call()

    return around


@simulated
async def test_an_end_ends_it_and_a_start_begins_it(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    start, end = mill.now_ms() + 600_000, mill.now_ms() + 900_000
    made = await schedules.create(
        "often", "report", every="2m", start_at=utc_text(start), end_at=utc_text(end), description="for a while"
    )
    assert made.next_ms == start - start % 1_000
    await passed(mill, 1_500)
    assert await started(mill) == [utc_text(start + number * 120_000) for number in range(3)]
    shown = await schedules.show("often")
    assert (shown.status, shown.next_ms, shown.next_times) == ("ended", None, ())
    assert await mill.store.jobs(stream_of(TENANT, "often")) == []


@simulated
async def test_a_refused_start_is_recorded_and_does_not_stop_the_schedule(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    await schedules.create("often", "report", every="1m", inputs={"region": "south"})
    number = {"type": "object", "properties": {"region": {"type": "integer"}}}
    await process.publish(document(node("a", config=1), name="report", inputs=number))
    await passed(mill, 62)
    failing, _ = await schedules.find("failing")
    assert [(each.name, each.status, each.runs) for each in failing] == [("often", "active", 0)]
    assert failing[0].last_error is not None
    assert (failing[0].last_error.code, failing[0].last_error.path) == ("inputs_invalid", "/inputs/region")
    findings = {each.code: each for each in (await process.engine.diagnose()).findings}
    assert "often" in findings["failing_schedules"].message
    await process.publish(FLOW | {"description": "as before"})
    await passed(mill, 60)
    shown = await schedules.show("often")
    assert (shown.last_error, shown.runs) == (None, 1)


@simulated
async def test_a_pause_or_a_change_during_a_fire_wins_and_repeats_nothing(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    await schedules.create("often", "report", every="1m")
    other = mill.build("other", work=False)
    serve_schedules(other.engine)
    await other.open()
    others = type(schedules)(other.engine.context)
    paused = False

    async def around(verb: str, given: Any, call: Any) -> Any:
        nonlocal paused
        if not paused and verb == "commit" and any(commit.stream.kind == SCHEDULE for commit in given):
            paused = True
            await others.pause("often")
        return await call()

    process.faulty_store.around = around
    await passed(mill, 200)
    assert paused
    assert len(await started(mill)) == 1
    assert (await schedules.show("often")).status == "paused"


@simulated
async def test_a_trigger_during_a_fire_is_recorded_beside_it_and_delays_nothing(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    made = await schedules.create("often", "report", every="1m", actor="ada")
    other, others = await served(mill, "other", work=False)
    triggered: list[str] = []

    async def around(verb: str, given: Any, call: Any) -> Any:
        if not triggered and verb == "commit" and any(commit.stream.kind == SCHEDULE for commit in given):
            triggered.append("")
            triggered[0] = await others.trigger("often", actor="ada")
        return await call()

    process.faulty_store.around = around
    await passed(mill, 63)
    shown = await schedules.show("often")
    assert (shown.runs, shown.next_ms) == (2, made.anchor_ms + 120_000), "not after a lease has expired"
    assert (await other.end(triggered[0])).labels[SCHEDULE] == "often"


@simulated
async def test_a_lost_job_is_restored(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    made = await schedules.create("often", "report", every="5m")
    await mill.store.commit([Commit(stream_of(TENANT, "often"), None, drop=(job_key("often"),))])
    await passed(mill, 320)
    assert await started(mill) == expected(made, mill.now_ms())


@simulated
async def test_jitter_delays_by_a_fixed_part_and_changes_no_due_time(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    made = [await schedules.create(f"s{number}", "report", every="10m", jitter="5m") for number in range(8)]
    await passed(mill, 601 + 300)
    delays = Counter[int]()
    for each in made:
        assert await started(mill, each.name) == expected(each, mill.now_ms())[:1]
        (row,) = await mill.rows(f"label:{SCHEDULE}={each.name}")
        assert each.next_ms is not None
        delays[(row.created_ms - each.next_ms) // 1_000] += 1
    assert len(delays) > 4
    assert all(0 <= delay <= 301 for delay in delays)


@simulated
async def test_schedules_of_other_tenants_are_served_too(mill: Cluster) -> None:
    await served(mill)
    client, schedules = await served(mill, "client", work=False, tenant="acme")
    await client.engine.publish(FLOW)
    await schedules.create("often", "report", every="1m")
    await passed(mill, 130)
    assert (await schedules.show("often")).runs == 2
    assert await mill.store.count("acme", "run", [f"label:{SCHEDULE}=often"]) == 2
    assert await mill.store.count(TENANT, "run", [f"label:{SCHEDULE}=often"]) == 0


@simulated
async def test_a_fire_with_which_many_workers_were_lost_is_told_and_not_repeated_for_ever(mill: Cluster) -> None:
    client, schedules = await served(mill, "client", work=False)
    await client.publish(FLOW)
    await schedules.create("often", "report", every="30m")
    await passed(mill, 1_800)
    for number in range(LOST_IN_A_ROW_MAX + 1):
        victim = mill.build(f"victim{number}")
        serve_schedules(victim.engine)
        victim.faulty_store.around = _kill_at_schedule(victim)
        victim.faulty_store.always("load", dying_before(victim))
        await victim.open()
        await passed(mill, LEASE_S + 5)
        assert victim.name not in mill.processes
    await served(mill, "heir")
    await passed(mill, LEASE_S + 5)
    shown = await schedules.show("often")
    assert shown.last_error is not None and shown.last_error.code == "worker_killer"
    await passed(mill, 1_800)
    assert (await schedules.show("often")).last_error is None


@simulated
async def test_a_worker_without_the_handler_leaves_the_job_alone(mill: Cluster) -> None:
    """As one of an earlier version does."""
    client, schedules = await served(mill, "client", work=False)
    await client.publish(FLOW)
    made = await schedules.create("often", "report", every="1m", catch_up="all")
    await mill.process("old")
    await passed(mill, 90)
    assert await started(mill) == []
    await served(mill, "new")
    await passed(mill, 120)
    assert await started(mill) == expected(made, mill.now_ms())


@simulated
async def test_a_row_is_not_what_decides(mill: Cluster) -> None:
    process, schedules = await served(mill)
    await process.publish(FLOW)
    made = await schedules.create("often", "report", every="1m")
    await mill.store.commit(
        [Commit(stream_of(TENANT, "often"), None, rows=(Row(kind=SCHEDULE, key="often", sort=0, deleted=True),))]
    )
    await passed(mill, 65)
    assert await started(mill) == expected(made, mill.now_ms())
    assert [each.name for each in (await schedules.find())[0]] == ["often"]
