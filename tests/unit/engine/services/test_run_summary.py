"""Search over runs: facets, a histogram, and failures grouped by their fingerprint, all of them over bounded scans."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.fixtures.approvers import code_of
from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.engine import run_query
from tidemill.engine.index_rows import AT_END, RUN, SPENDING, RunRow, fingerprint, read_run_row
from tidemill.stores.contract import Commit, Row


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 of customer 9 is unknown", "order 4711 of customer 12 is unknown"),
        ("no file '/tmp/a b.csv'", 'no file "/data/z.csv"'),
        ("run 0198c2d4-aa10-7cc1-b8f0-4a5f6d7e8a9b failed", "run 0198c2d5-0000-7000-8000-000000000000 failed"),
        ("digest deadbeefcafe differs", "digest abcdefabcdef differs"),
        ("timed out at 2026-03-01T08:30:00Z", "timed  out at 2027-11-16T18:00:00Z"),
        ("key `a` is missing, don't retry", "key `the other` is missing, don't retry"),
    ],
)
def test_the_same_failure_has_the_same_fingerprint(one: str, other: str) -> None:
    assert fingerprint("exception", "a", one) == fingerprint("exception", "a", other)


@pytest.mark.parametrize(
    "other", [("timeout", "a", "it is gone"), ("exception", "b", "it is gone"), ("exception", "a", "it is there")]
)
def test_other_failures_have_other_fingerprints(other: tuple[str, str, str]) -> None:
    known = fingerprint("exception", "a", "it is gone")
    assert fingerprint(*other) != known
    assert len(known) == 12 and set(known) <= set("0123456789abcdef")


def test_a_hostile_message_has_a_fingerprint() -> None:
    for message in ("'" * 100_000, "a-" * 50_000, "\udc80 \x00", ""):
        assert len(fingerprint("exception", "a", message)) == 12


async def some_runs(mill: Cluster, failing: int = 3, good: int = 2) -> None:
    worker = await mill.process()
    broken = node("a", type="fail", config={"kind": "no_account", "message": "account {{ inputs.n }} is unknown"})
    await worker.publish(document(broken, name="bad"))
    await worker.publish(document(node("a"), name="good"))
    for number in range(failing):
        await worker.run("bad", {"n": number}, key=f"bad-{number}", labels={"customer": f"c{number % 2}"})
        await asyncio.sleep(10)
    for number in range(good):
        await worker.run("good", key=f"good-{number}", labels={"customer": "c0", "team": "blue"})
        await asyncio.sleep(10)


@simulated
async def test_one_scan_gives_facets_a_histogram_and_groups_of_failures(mill: Cluster) -> None:
    await some_runs(mill)
    client = await mill.process("c", work=False)
    found = await client.engine.summary("", buckets=5)
    assert (found.counted, found.complete) == (5, True)
    assert found.facets.status == {"FAILED": 3, "COMPLETED": 2}
    assert found.facets.workflow == {"bad": 3, "good": 2}
    assert found.facets.version == {"bad@1": 3, "good@1": 2}
    assert found.facets.labels == {"customer": {"c0": 4, "c1": 1}, "team": {"blue": 2}}
    assert sum(bucket.count for bucket in found.histogram.buckets) == 5
    assert len(found.histogram.buckets) <= 5
    assert found.histogram.buckets[0].status == {"FAILED": 1}
    ends = [(bucket.since_ms, bucket.until_ms) for bucket in found.histogram.buckets]
    assert all(until == since for (_, until), (since, _) in pairwise(ends))
    (group,) = found.failures.groups
    assert (group.count, group.code, group.node, group.example) == (3, "no_account", "a", "bad-2")
    assert (group.message, group.last_ms - group.first_ms) == ("account 2 is unknown", 20_000)
    assert (await client.engine.facets("workflow:good")).status == {"COMPLETED": 2}
    assert (await client.engine.histogram("workflow:good", 1)).buckets[0].count == 2
    assert (await client.engine.failure_groups("label.customer=c0")).groups[0].count == 2


@simulated
async def test_the_runs_of_a_group_are_found_by_its_fingerprint(mill: Cluster) -> None:
    await some_runs(mill)
    client = await mill.process("c", work=False)
    (group,) = (await client.engine.failure_groups()).groups
    page = await client.engine.find(f"failure:{group.failure}")
    assert [row.run_id for row in page.rows] == ["bad-2", "bad-1", "bad-0"]
    assert await client.engine.count("failure:000000000000") == 0
    assert await code_of(client.engine.find("failure:no_account")) == "query_value_invalid"


@simulated
async def test_a_run_that_goes_on_loses_its_failure(mill: Cluster) -> None:
    worker = await mill.process()
    flaky = node("a", type="fail", config={"attempts": 1, "value": "fine"})
    run = await worker.run(document(flaky))
    assert run.status == "FAILED" and (await mill.row(run.run_id)).failure
    await worker.engine.retry(run.run_id)
    await worker.end(run.run_id)
    row = await mill.row(run.run_id)
    assert (row.status, row.failure, row.error_message) == ("COMPLETED", "", "")
    assert (await worker.engine.failure_groups()).groups == ()


@simulated
async def test_more_matches_than_are_read_give_lower_bounds(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await some_runs(mill, failing=4, good=0)
    monkeypatch.setattr("tidemill.engine.services.runs.SUMMARISED_MAX", 3)
    client = await mill.process("c", work=False)
    found = await client.engine.summary()
    assert (found.counted, found.complete) == (3, False)
    assert not found.facets.complete and not found.histogram.complete and not found.failures.complete
    assert found.failures.groups[0].example == "bad-3", "the newest are read"
    assert (await client.engine.summary("workflow:none")).histogram.buckets == ()


@simulated
async def test_only_a_few_summaries_are_made_at_once(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each blocks the others, and requests that read little, for the rows that it reads between two breaths."""
    await some_runs(mill)
    process = await mill.process(work=False)
    context = process.engine.context
    under_way: list[int] = []
    monkeypatch.setattr("tidemill.engine.services.runs.COUNTED_PAGE", 1)
    page, busy = type(context).page, 0

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal busy
        busy += 1
        under_way.append(busy)
        await asyncio.sleep(0.01)
        busy -= 1
        return await page(*given, **more)

    monkeypatch.setattr(type(context), "page", counted)
    summaries = await asyncio.gather(*(process.engine.runs.summary() for _ in range(6)))
    assert {each.counted for each in summaries} == {5}
    assert len(under_way) == 6 * 5 and max(under_way) == 2


@simulated
async def test_a_histogram_has_a_sensible_number_of_buckets(mill: Cluster) -> None:
    client = await mill.process("c", work=False)
    for buckets in (0, -1, run_query.BUCKETS_MAX + 1, True):
        assert await code_of(client.engine.histogram("", buckets)) == "limit_invalid"


async def as_earlier_versions_wrote(mill: Cluster) -> None:
    """Cut from every row what this version has added to it."""
    page = await mill.store.find(TENANT, RUN, limit=100)
    for row in page.rows:
        shown = read_run_row(row)
        assert shown is not None
        fields = [getattr(shown, name) for name in RunRow.__struct_fields__ if name not in (*AT_END, *SPENDING)]
        terms = tuple(term for term in row.terms if not term.startswith("failure:"))
        old = Row(kind=RUN, key=row.key, sort=row.sort, terms=terms, body=msgspec.msgpack.encode(fields))
        await mill.store.commit([Commit(stream=mill.stream(row.key), expected=None, rows=(old,))])


@simulated
async def test_rows_of_an_earlier_version_are_read_and_reindex_completes_them(mill: Cluster) -> None:
    await some_runs(mill)
    await as_earlier_versions_wrote(mill)
    client = await mill.process("c", work=False)
    assert [row.failure for row in (await client.engine.find("status:failed")).rows] == [""] * 3
    (group,) = (await client.engine.failure_groups()).groups
    assert (group.failure, group.count, group.code, group.message) == ("", 3, "no_account", "")
    assert (await client.engine.verify_log()).clean, "a row that lacks what came later is no damage"
    assert (await client.engine.reindex()).different == 5
    (group,) = (await client.engine.failure_groups()).groups
    assert (len(group.failure), group.count) == (12, 3)
    assert await client.engine.count(f"failure:{group.failure}") == 3
    assert (await client.engine.reindex()).different == 0
