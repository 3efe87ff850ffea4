"""What callers can ask of schedules; every change is one commit, and everything wrong is told at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import tidemill
from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.engine.index_rows import SCHEDULE
from tidemill.errors import Rejected
from tidemill.stores.contract import Commit, Row
from tidemill.triggers.scheduler import serve_schedules
from tidemill.triggers.schedules import load_schedule, stream_of
from tidemill.triggers.service import ScheduleService

FLOW = document(
    node("a", config="{{ inputs.region }}"),
    name="report",
    inputs={"type": "object", "properties": {"region": {"type": "string", "default": "north"}}},
)


async def served(mill: Cluster, name: str = "w1", **options: Any) -> tuple[Process, ScheduleService]:
    process = mill.build(name, **options)
    serve_schedules(process.engine)
    await process.open()
    return process, ScheduleService(process.engine.context)


def codes(refusal: pytest.ExceptionInfo[Rejected]) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in refusal.value.problems]


@simulated
async def test_a_schedule_from_its_creation_to_its_end(mill: Cluster) -> None:
    process, schedules = await served(mill, work=False)
    await process.publish(FLOW)
    made = await schedules.create("nightly", "report", every="15m", labels={"team": "a"}, actor="ada")
    assert (made.status, made.next_ms, made.created_by) == ("active", made.anchor_ms + 900_000, "ada")
    assert await schedules.create("nightly", "report", every=900, labels={"team": "a"}) == made, "nothing has changed"
    with pytest.raises(Rejected) as refusal:
        await schedules.create("nightly", "report", every="20m")
    assert codes(refusal) == [("schedule_exists", "/name")]
    shown = await schedules.show("nightly")
    assert shown.next_times == tuple(made.anchor_ms + number * 900_000 for number in range(1, 6)) == made.next_times
    assert await schedules.times("nightly", 2) == list(shown.next_times[:2])
    assert [view.job.ready_at_ms for view in await mill.store.jobs(stream_of(TENANT, "nightly"))] == [made.next_ms]

    paused = await schedules.pause("nightly", actor="bob", reason="quarter end")
    assert (paused.status, paused.next_ms) == ("paused", None)
    assert await mill.store.jobs(stream_of(TENANT, "nightly")) == []
    assert (await schedules.show("nightly")).next_times == ()
    await asyncio.sleep(3_600)
    resumed = await schedules.resume("nightly")
    assert resumed.status == "active"
    assert resumed.next_ms is not None and 0 < resumed.next_ms - mill.now_ms() <= 900_000
    assert (resumed.next_ms - made.anchor_ms) % 900_000 == 0

    changed = await schedules.update("nightly", cron="0 6 * * *", inputs={"region": "south"})
    assert (changed.cron, changed.every_ms, changed.labels, changed.inputs["region"]) == (
        *("0 6 * * *", 0, {"team": "a"}),
        "south",
    )
    assert [row.name for row in (await schedules.find("status:active workflow:report"))[0]] == ["nightly"]
    await schedules.delete("nightly")
    assert (await schedules.find())[0] == []
    assert await mill.store.jobs(stream_of(TENANT, "nightly")) == []
    with pytest.raises(Rejected) as refusal:
        await schedules.show("nightly")
    assert codes(refusal) == [("schedule_unknown", "/name")]
    again = await schedules.create("nightly", "report", every="1h")
    assert (again.every_ms, again.runs, again.labels) == (3_600_000, 0, {})


@simulated
async def test_every_problem_is_told_at_once(mill: Cluster) -> None:
    process, schedules = await served(mill, work=False)
    await process.publish(FLOW)
    with pytest.raises(Rejected) as refusal:
        await schedules.create(
            "No Name",
            "report",
            cron="* * * * * *",
            every="soon",
            timezone="Europe/Berln",
            inputs={"region": 5},
            labels={"schedule": "x"},
            start_at="never",
            end_at="2020",
            jitter="long",
            catch_up="maybe",  # type: ignore[arg-type]
            overlap="no",  # type: ignore[arg-type]
            description="a\nb",
        )
    assert sorted(path for _, path in codes(refusal)) == sorted(
        (
            *("/name", "/cron", "/cron", "/every", "/timezone", "/inputs/region", "/labels", "/start_at", "/end_at"),
            *("/jitter", "/catch_up", "/overlap", "/description"),
        )
    )
    assert (await schedules.find())[0] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("schedule_invalid", "/cron")),
        ({"cron": "@daily", "every": "5m"}, ("schedule_invalid", "/cron")),
        ({"workflow": "repotr", "every": "5m"}, ("workflow_unknown", "/workflow")),
        ({"workflow": "report@9", "every": "5m"}, ("version_unknown", "/workflow")),
        ({"every": "5m", "inputs": {"region": 1}}, ("inputs_invalid", "/inputs/region")),
        ({"every": "5m", "inputs": {"x": {1, object()}}}, ("inputs_not_json", "/inputs")),
        ({"every": "5m", "inputs": {"x": 2**70}}, ("inputs_not_json", "/inputs")),
        ({"every": "5m", "inputs": {"x": "y" * 70_000}}, ("inputs_too_large", "/inputs")),
        ({"every": "5m", "end_at": "1970-01-01T00:17"}, ("schedule_invalid", "/end_at")),
    ],
)
@simulated
async def test_what_is_refused(mill: Cluster, given: dict[str, Any], expected: tuple[str, str]) -> None:
    process, schedules = await served(mill, work=False)
    await process.publish(FLOW)
    with pytest.raises(Rejected) as refusal:
        await schedules.create("nightly", **{"workflow": "report", **given})
    assert codes(refusal) == [expected]
    assert (await load_schedule(mill.store, stream_of(TENANT, "nightly")))[0] == 0


@simulated
async def test_unknown_names_are_refused_with_the_nearest(mill: Cluster) -> None:
    process, schedules = await served(mill, work=False)
    await process.publish(FLOW)
    await schedules.create("nightly", "report", every="5m")
    for ask in (schedules.show, schedules.pause, schedules.resume, schedules.delete, schedules.trigger):
        with pytest.raises(Rejected) as refusal:
            await ask("nightyl")
        assert codes(refusal) == [("schedule_unknown", "/name")]
        assert "nightly" in refusal.value.problems[0].hint
    with pytest.raises(Rejected, match="query_term_unknown"):
        await schedules.find("state:active")
    with pytest.raises(Rejected, match="limit_invalid"):
        await schedules.times("nightly", 0)


@simulated
async def test_changes_from_two_sides_are_both_kept(mill: Cluster) -> None:
    process, schedules = await served(mill, work=False)
    await process.publish(FLOW)
    await schedules.create("nightly", "report", every="5m")
    pausing = [schedules.pause("nightly"), *(schedules.trigger("nightly") for _ in range(5))]
    await asyncio.gather(*pausing)
    shown = await schedules.show("nightly")
    assert (shown.status, shown.runs) == ("paused", 5)


@simulated
async def test_reindex_and_verify_log_know_schedules(mill: Cluster) -> None:
    process, schedules = await served(mill, work=False)
    await process.publish(FLOW)
    made = await schedules.create("nightly", "report", every="5m")
    await schedules.create("gone", "report", every="5m")
    await schedules.delete("gone")
    stream = stream_of(TENANT, "nightly")
    assert (await process.engine.verify_log()).clean
    stray = Row(kind=SCHEDULE, key="never", sort=0, terms=("status:active",))
    gone = Row(kind=SCHEDULE, key="nightly", sort=0, deleted=True)
    await mill.store.commit([Commit(stream, None, rows=(stray, gone))])
    found = {(each.run, each.code) for each in (await process.engine.verify_log()).findings}
    assert found == {("schedule nightly", "row_missing"), ("schedule never", "log_missing")}
    done = await process.engine.reindex()
    assert (done.missing, done.surplus, done.unreadable) == (1, 1, ())
    assert (await schedules.find())[0] == [msgspec.structs.replace(made, next_times=())]
    assert (await process.engine.verify_log()).clean


@simulated
async def test_a_file_among_the_inputs_is_kept_until_the_schedule_goes(mill: Cluster) -> None:
    process, schedules = await served(mill, work=False)
    await process.publish(document(node("a", config=1), name="plain"))
    file = await process.engine.put_blob(b"many bytes")
    await schedules.create("nightly", "plain", every="5m", inputs={"file": file})

    async def referred() -> int:
        return await mill.store.count(TENANT, "blob_reference", [f"{SCHEDULE}:nightly"])

    assert await referred() == 1
    await process.engine.reindex()
    assert await referred() == 1
    await schedules.update("nightly", inputs={})
    assert await referred() == 0


@simulated
async def test_a_trigger_with_a_key_starts_one_run_at_whatever_time_it_is_repeated(mill: Cluster) -> None:
    process, schedules = await served(mill, work=False)
    timed = {"type": "object", "properties": {"scheduled_at": {"type": "string"}}}
    await process.publish(document(node("a", config="{{ inputs.scheduled_at }}"), name="timed", inputs=timed))
    await schedules.create("nightly", "timed", every="1h")
    await schedules.create("other", "timed", every="1h")
    assert await schedules.trigger("nightly", key="once") == "once"
    await asyncio.sleep(100)
    assert await schedules.trigger("nightly", key="once") == "once"
    assert (await schedules.show("nightly")).runs == 1
    with pytest.raises(Rejected, match="key_reused"):
        await schedules.trigger("other", key="once")


def test_both_clients_offer_them(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    with tidemill.open(url, work=False) as mill:
        mill.publish(FLOW)
        assert mill.create_schedule("nightly", "report", cron="@daily", timezone="Europe/Berlin").status == "active"
        run_id = mill.trigger_schedule("nightly", key="once")
        assert (run_id, mill.trigger_schedule("nightly", key="once")) == ("once", "once")
        assert mill.show(run_id).labels["schedule"] == "nightly"
        assert (mill.schedule("nightly").runs, mill.schedule("nightly").last_run_id) == (1, "once")
    with tidemill.open(url, work=False) as mill:
        (found,), _ = mill.schedules()
        assert (found.name, found.timezone, len(mill.schedule_times("nightly"))) == ("nightly", "Europe/Berlin", 5)
        assert "failing_schedules" not in {each.code for each in mill.diagnose().findings}


@simulated
async def test_changes_are_audited_and_need_an_actor(mill: Cluster) -> None:
    process, _ = await served(mill, work=False)
    await process.publish(FLOW)
    services = process.engine.for_tenant(TENANT, audited=True)
    schedules = ScheduleService(services.context)
    await schedules.create("nightly", "report", every="5m", actor="ada")
    await schedules.update("nightly", every="10m", actor="bob")
    await schedules.update("nightly", every="10m", actor="bob")
    await schedules.pause("nightly", reason="lunch", actor="ada")
    await schedules.resume("nightly", actor="ada")
    run_id = await schedules.trigger("nightly", actor="cleo")
    await schedules.delete("nightly", actor="ada")
    entries, _ = await services.audit.find(subject="nightly")
    assert [(each.actor, each.action, each.detail) for each in reversed(entries)] == [
        ("ada", "schedules.create", ""),
        ("bob", "schedules.update", ""),
        ("ada", "schedules.pause", "lunch"),
        ("ada", "schedules.resume", ""),
        ("cleo", "schedules.trigger", ""),
        ("ada", "schedules.delete", ""),
    ]
    started, _ = await services.audit.find(subject=run_id)
    assert [(each.actor, each.action) for each in started] == [("cleo", "runs.start")]
    with pytest.raises(Rejected, match="actor"):
        await schedules.create("nightly", "report", every="5m")
    await schedules.create("nightly", "report", every="5m", actor="ada")
    before = await mill.store.count(TENANT, "run")
    with pytest.raises(Rejected, match="actor"):
        await schedules.trigger("nightly")
    assert await mill.store.count(TENANT, "run") == before
