"""The query language of runs: what it means, and what it refuses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import tidemill
from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.engine.index_rows import RUN, WAITS, waiting_terms
from tidemill.engine.run_query import CONDITIONS_MAX, QUERY_LENGTH_MAX, RunQuery, checked_terms, read_query
from tidemill.engine.views import RunStatus
from tidemill.errors import Problem, Rejected
from tidemill.remote.runs import query_text
from tidemill.stores.contract import Commit

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
MARCH_MS = 1_772_323_200_000
"""2026-03-01, in UTC."""


def query(text: Any = "", **more: Any) -> RunQuery:
    return read_query(text, now_ms=NOW_MS, **more)


def problems(text: Any = "", **more: Any) -> list[Problem]:
    with pytest.raises(Rejected) as refused:
        query(text, **more)
    return list(refused.value.problems)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("   ", ()),
        ("status:failed", ("status:FAILED",)),
        ("status=Failed", ("status:FAILED",)),
        ("status:failed workflow:billing", ("status:FAILED", "workflow:billing")),
        ("workflow:billing@3", ("version:billing@3",)),
        ("version:billing@3", ("version:billing@3",)),
        ("label.customer=acme", ("label:customer=acme",)),
        ("label:customer=acme", ("label:customer=acme",)),
        ("label.customer:acme", ("label:customer=acme",)),
        ("label.a=b=c", ("label:a=b=c",)),
        ('label.customer="acme corp" live', ("label:customer=acme corp", "live")),
        ('"label.two words=x"', ("label:two words=x",)),
        (r'label.a="a \"b\" \\ \n"', (r'label:a=a "b" \ \n',)),
        ("label.empty=", ("label:empty=",)),
        ("waiting:approval waiting:human waiting", ("waiting:approval", "waiting")),
        ("waiting:timer waiting:signal", ("waiting:timer", "waiting:signal")),
        ("by:ada parent:r1 root:r0 forked_from:r2", ("by:ada", "parent:r1", "root:r0", "forked_from:r2")),
        ("rollback:PARTIAL", ("rollback:partial",)),
        ("stuck idle suspect active kept live", ("stuck", "idle", "suspect", "active", "kept", "live")),
        ("live live status:failed status:FAILED", ("live", "status:FAILED")),
        ("by:größe", ("by:größe",)),
    ],
)
def test_what_conditions_mean(text: str, terms: tuple[str, ...]) -> None:
    assert query(text) == RunQuery(terms=terms)


@pytest.mark.parametrize(
    ("text", "since", "before"),
    [
        ("started>-2h", NOW_MS - 2 * HOUR_MS + 1, None),
        ("started>=-2h", NOW_MS - 2 * HOUR_MS, None),
        ("started<-90m", None, NOW_MS - HOUR_MS * 3 // 2),
        ("started<=-0.5d", None, NOW_MS - 12 * HOUR_MS + 1),
        ("started>-1w started<-30s", NOW_MS - 168 * HOUR_MS + 1, NOW_MS - 30_000),
        ("started>=2026-03-01", MARCH_MS, None),
        ("started>=2026-03-01T08:30Z", MARCH_MS + 17 * HOUR_MS // 2, None),
        ("started>=2026-03-01T08:30", MARCH_MS + 17 * HOUR_MS // 2, None),
        ("started>=2026-03-01T08:30+02:00", MARCH_MS + 13 * HOUR_MS // 2, None),
        ('started>="2026-03-01 08:30"', MARCH_MS + 17 * HOUR_MS // 2, None),
        ("started>=-2h started>=-1h", NOW_MS - HOUR_MS, None),
        ("started<-2h started<-1h", None, NOW_MS - 2 * HOUR_MS),
        ("started>=-999999999w", 0, None),
        ("started<1900-01-01", None, 0),
    ],
)
def test_bounds_of_the_start(text: str, since: int | None, before: int | None) -> None:
    assert query(text) == RunQuery(since_ms=since, before_ms=before)


def test_other_lists_refuse_names_that_no_workflow_has() -> None:
    assert checked_terms("workflow:my-flow workflow:billing@3", ("workflow",)) == [
        "workflow:my-flow",
        "workflow:billing@3",
    ]
    with pytest.raises(Rejected) as refused:
        checked_terms("workflow:my_flow", ("workflow",))
    (problem,) = refused.value.problems
    assert (problem.path, problem.hint) == ("/terms/0", "did you mean `my-flow`?")


def test_labels_are_text_or_a_mapping() -> None:
    (problem,) = problems(label=["env=prod"])
    assert (problem.path, problem.hint) == ("/label", 'write label={"env": "prod"}')
    assert query(label={"env": "'=prod'"}).terms == ("label:env='=prod'",), "a mapping takes any value"


def test_a_workflow_in_python_stands_for_its_name() -> None:
    @tidemill.workflow
    def my_flow() -> None: ...

    assert query(named={"workflow": my_flow}).terms == ("workflow:my-flow",)
    assert query_text(workflow=my_flow) == "workflow:my-flow"  # type: ignore[arg-type]


def test_conditions_are_quoted_for_a_server() -> None:
    label = {"a": 'x "y" \\', "b": "two words", "c": "plain\\"}
    assert query(query_text(label=label)) == query(label=label)


def test_everything_can_be_given_by_name() -> None:
    named = {"status": "failed", "workflow": "billing"}
    found = query("live", terms=["by:ada"], named=named, label={"a": "1", "b": "x y"}, since="2h", until="-1h")
    assert found == RunQuery(
        terms=("live", "by:ada", "status:FAILED", "workflow:billing", "label:a=1", "label:b=x y"),
        since_ms=NOW_MS - 2 * HOUR_MS,
        before_ms=NOW_MS - HOUR_MS,
    )
    assert query(named={"status": RunStatus.FAILED}, label="a=1") == query("status:failed label.a=1")
    assert query(since=timedelta(hours=2)) == query(since=timedelta(hours=-2)) == query("started>=-2h")
    assert query(since=datetime(2026, 3, 1, tzinfo=UTC)) == query(since="2026-03-01") == query("started>=2026-03-01")
    assert query(["status:failed", "label.customer=acme corp"]).terms == ("status:FAILED", "label:customer=acme corp")


@pytest.mark.parametrize(
    ("text", "code", "path", "words"),
    [
        ("statuss:failed", "query_term_unknown", "/query:1", "did you mean `status`?"),
        ("live  stauts:failed", "query_term_unknown", "/query:7", "did you mean `status`?"),
        ("status:faild", "query_value_invalid", "/query:1", "did you mean `failed`?"),
        ("status:succeeded", "query_value_invalid", "/query:1", "known: running, paused, completed"),
        ("status:", "query_value_invalid", "/query:1", "status:VALUE"),
        ("state:failed", "query_term_unknown", "/query:1", "write status:failed"),
        ("FAILED", "query_term_unknown", "/query:1", "write status:failed"),
        ("name:billing", "query_term_unknown", "/query:1", "write workflow:billing"),
        ("customer=acme", "query_term_unknown", "/query:1", "label.customer=acme"),
        ("parent:@last", "query_value_invalid", "/query:1", "the id of a run"),
        ("version:3", "query_value_invalid", "/query:1", "version:billing@3"),
        ("waiting:nothing", "query_value_invalid", "/query:1", "known: approval"),
        ("stuk", "query_term_unknown", "/query:1", "did you mean `stuck`?"),
        ("workflow", "query_term_unknown", "/query:1", "did you mean `workflow:`?"),
        ("label.customer", "query_value_invalid", "/query:1", "write label.customer=VALUE"),
        ("label.env!=prod", "query_term_unknown", "/query:1", "label.env=VALUE"),
        ("live status!=failed", "query_term_unknown", "/query:6", "status=VALUE"),
        ("label.env==prod", "query_value_invalid", "/query:1", "write label.env=prod"),
        ("label.env='prod'", "query_value_invalid", "/query:1", "write label.env=prod"),
        ("by:'ada'", "query_value_invalid", "/query:1", "write by:ada"),
        ("workflow:my_flow", "query_value_invalid", "/query:1", "did you mean `my-flow`?"),
        ("error:exception", "query_term_unknown", "/query:1", "tidemill runs failures"),
        ("label.=x", "query_value_invalid", "/query:1", "write label.KEY=VALUE"),
        ("started>2h", "query_value_invalid", "/query:1", "write -2h"),
        ("started>yesterday", "query_value_invalid", "/query:1", "write -2h"),
        ("started>", "query_value_invalid", "/query:1", "write -2h"),
        ("started:-2h", "query_term_unknown", "/query:1", "compare it: started>-2h"),
        ("started", "query_term_unknown", "/query:1", "without spaces"),
        ("ended>-2h", "query_term_unknown", "/query:1", "started>-2h"),
        ("since:2h", "query_term_unknown", "/query:1", "write started>-2h"),
        ("workflow:billing@", "query_value_invalid", "/query:1", "version:billing@3"),
        ('live label.a="x', "query_invalid", "/query:14", "two words"),
        ("status:failed status:cancelled", "query_invalid", "/query:15", "run one query for each"),
        ("label.a=1 label.a=2", "query_invalid", "/query:11", "run one query for each"),
        ("by:\ud800", "query_value_invalid", "/query:1", ""),
        ("x" * (QUERY_LENGTH_MAX + 1), "query_invalid", "/query", ""),
        (" ".join(f"label.k{number}=1" for number in range(CONDITIONS_MAX + 1)), "query_invalid", "/query", ""),
        (["live", "statuss:FAILED"], "query_term_unknown", "/terms/1", "did you mean `status`?"),
        ([7], "query_invalid", "/terms/0", "status:failed"),
        (b"status:failed", "query_invalid", "/query", ""),
        (7, "query_invalid", "/query", ""),
    ],
)
def test_what_is_refused_says_where_and_what_to_write(text: Any, code: str, path: str, words: str) -> None:
    (problem,) = problems(text)
    assert (problem.code, problem.path) == (code, path)
    assert words in problem.hint


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"named": {"status": "faild"}}, "/status"),
        ({"named": {"workflow": 7}}, "/workflow"),
        ({"label": {"a": 7}}, "/label"),
        ({"label": "a"}, "/label"),
        ({"since": "soon"}, "/since"),
        ({"since": 7}, "/since"),
        ({"until": "later"}, "/until"),
        ({"terms": ["statuss:x"]}, "/terms/0"),
    ],
)
def test_what_is_refused_by_name(given: dict[str, Any], path: str) -> None:
    assert [problem.path for problem in problems(**given)] == [path]


def test_every_problem_is_told_at_once() -> None:
    found = problems("statuss:failed status:faild", since="soon")
    assert [problem.path for problem in found] == ["/query:1", "/query:16", "/since"]


# Runs that are found


@simulated
async def test_a_query_finds_runs_by_what_they_are_and_when_they_began(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("a"), name="good"))
    await worker.publish(document(node("a", type="fail"), name="bad"))
    for number in range(12):
        await worker.engine.start(("good", "bad")[number % 2], key=f"r{number:02}", labels={"n": str(number % 3)})
        await asyncio.sleep(1)

    async def found(query: str = "", **more: Any) -> list[int]:
        rows, after = await worker.engine.find(query, **more)
        assert after is None
        assert await worker.engine.count(query, **more) == len(rows)
        assert [row.run_id async for row in worker.engine.runs.iterate(query, **more)] == [row.run_id for row in rows]
        return [int(row.run_id[1:]) for row in rows]

    assert await found("status:failed") == [11, 9, 7, 5, 3, 1]
    assert await found("status:failed label.n=0") == await found(status="failed", label={"n": "0"}) == [9, 3]
    assert await found("started>-2.5s") == await found(since="2.5s") == [11, 10]
    assert await found("started<-9.5s") == await found(until="9.5s") == [2, 1, 0]
    assert await found("started>-6.5s started<-3.5s workflow:bad") == [7]
    assert await found("started>-2.5s started<-3.5s") == []
    assert await found("workflow:nothing started>-1h") == []


@simulated
async def test_bounds_hold_from_page_to_page(mill: Cluster) -> None:
    worker = await mill.process(work=False)
    reference = await worker.publish(document(node("a")))
    began = mill.now_ms()
    for number in range(20):
        await worker.start(reference, key=f"r{number:02}")
        await asyncio.sleep(1)
    since, until = began / 1000 + 4.5, began / 1000 + 14.5
    bounds = {"since": datetime.fromtimestamp(since, UTC), "until": datetime.fromtimestamp(until, UTC)}
    seen: list[str] = []
    after: str | None = None
    pages = 0
    while True:
        rows, after = await worker.engine.find("live", after=after, limit=4, **bounds)
        seen += [row.run_id for row in rows]
        pages += 1
        if after is None:
            break
    assert seen == [f"r{number:02}" for number in reversed(range(5, 15))]
    assert pages == 3
    assert await worker.engine.count("live", **bounds) == 10
    assert await worker.engine.count("live", at_most=7, **bounds) == 7
    assert await worker.engine.count("live", at_most=7) == 7
    # A cursor from before the bounds does not reach beyond them.
    rows, _ = await worker.engine.find("live", after=f"{began + 18_000}:r18", limit=1, **bounds)
    assert [row.run_id for row in rows] == ["r14"]
    with pytest.raises(Rejected, match="bad_cursor"):
        await worker.engine.find(after="nonsense", until="1h")
    with pytest.raises(Rejected, match="limit_invalid"):
        await worker.engine.count(at_most=0)


@simulated
async def test_runs_are_found_by_what_they_wait_for(mill: Cluster) -> None:
    worker = await mill.process()
    flows = {
        "approval": node("a", type="human"),
        "timer": node("a", type="sleep", config={"seconds": 10_000}),
        "signal": node("a", type="signal"),
        "retry": node("a", type="fail", config={"attempts": 5, "retryable": True}, retry={"backoff_seconds": 60}),
    }
    for name, flow in flows.items():
        await worker.start(document(flow, name=name), key=name)
    # The reconciler finds what a run waits for that has a job.
    await asyncio.sleep(30)
    for name in flows:
        rows, _ = await worker.engine.find(f"waiting:{name}")
        assert [row.run_id for row in rows] == [name]
    await worker.engine.decide("approval", "a", "approve", actor="ada")
    await worker.end("approval")
    assert await worker.engine.count("waiting:approval") == 0
    assert (await worker.engine.verify_log()).findings == ()


@simulated
async def test_a_row_without_what_its_run_waits_for_is_completed(mill: Cluster) -> None:
    """As an older version has written it."""
    worker = await mill.process()
    run_id = await worker.start(document(node("a", type="human")))
    await asyncio.sleep(1)
    (row,) = (await mill.store.find(TENANT, RUN, ["waiting:approval"])).rows
    older = msgspec.structs.replace(row, terms=tuple(term for term in row.terms if term != "waiting:approval"))
    await mill.store.commit([Commit(stream=mill.stream(run_id), expected=None, rows=(older,))])
    assert await worker.engine.count("waiting:approval") == 0
    assert (await worker.engine.verify_log()).findings == ()
    await asyncio.sleep(60)
    (again,) = (await mill.store.find(TENANT, RUN, ["waiting:approval"])).rows
    assert set(again.terms) == set(row.terms)


def test_the_terms_of_waits() -> None:
    assert waiting_terms(()) == ()
    assert waiting_terms(("human (a)", "timer (b)", "human (c)")) == ("waiting:approval", "waiting:timer")
    assert waiting_terms(("resume (the run is paused)", "a worker on queue x")) == ()
    assert set(WAITS.values()) == {"approval", "timer", "signal", "child", "retry", "limit"}
