"""The node type `pipeline`: its steps one after the other, with real child processes and a real server."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.child_processes import deciders
from tests.fixtures.handler_harness import called
from tests.fixtures.servers.web import json_reply, web
from tests.pace import allowed
from tidemill.errors import Rejected
from tidemill.expressions.sandbox.pool import NoSandbox, SandboxPool
from tidemill.expressions.sandbox.tasks import CHECKED_MAX, PROGRAM_MAX, FilterRows, SandboxTask
from tidemill.handlers.contract import CapabilityMissing, Done, Fail, Handler
from tidemill.handlers.data import tables
from tidemill.handlers.data.meter import LOOP_BYTES, Meter, TableError, metered
from tidemill.handlers.data.pipeline import BYTES_MAX_MAX, LOOP_ITEMS, PORTION, ROWS_MAX_MAX, pipeline_handler
from tidemill.handlers.data.steps import SCHEMAS, call_config
from tidemill.handlers.http.node import http_handler
from tidemill.kernel.compile.compiler import compile_document
from tidemill.net.egress import Egress
from tidemill.net.http_client import Fetcher

BIG = 2**60 + 1
ROWS: list[dict[str, Any]] = [
    {"id": 1, "airline": "Delta", "price": 299, "out": "01.07.2026"},
    {"id": 2, "airline": "KLM", "price": 189.5, "out": "02.07.2026"},
    {"id": 3, "airline": "Delta", "price": 410, "out": "03.07.2026"},
]
SANDBOX = {"type": "python_sandbox", "code": "def evaluate(output, context):\n    return output['price'] > 200"}


@dataclass
class Counting:
    """Real processes that are asked through somebody who takes notes."""

    processes: SandboxPool
    chores: list[SandboxTask] = field(default_factory=list)

    async def execute(self, chore: SandboxTask) -> Any:
        self.chores.append(chore)
        return await self.processes.execute(chore)


@pytest.fixture
async def carrier() -> AsyncIterator[Counting]:
    processes = SandboxPool()
    yield Counting(processes)
    await processes.close()
    assert deciders() == []


def pipeline(carrier: Any = None, fetcher: Fetcher | None = None) -> Handler:
    return pipeline_handler(http_handler(fetcher or Fetcher(Egress())), carrier or NoSandbox())


async def piped(*steps: dict[str, Any], rows: Any = ROWS, carrier: Any = None, **config: Any) -> Any:
    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",)))
    try:
        ended = await called(pipeline(carrier, fetcher), {"rows": rows, "pipeline": list(steps), **config})
    finally:
        await fetcher.close()
    assert isinstance(ended, Done)
    return ended.value


async def failing(*steps: dict[str, Any], rows: Any = ROWS, carrier: Any = None, **config: Any) -> Fail:
    with pytest.raises(Fail) as failed:
        await piped(*steps, rows=rows, carrier=carrier, **config)
    return failed.value


def publish(*steps: Any, **config: Any) -> list[tuple[str, str]]:
    types = {"pipeline": [pipeline().type]}
    node = {"id": "p", "type": "pipeline", "config": {"pipeline": list(steps), **config}}
    try:
        compile_document({"name": "x", "nodes": [node]}, types)
    except Rejected as refusal:
        return [(each.path.removeprefix("/nodes/0/config"), each.message + each.hint) for each in refusal.problems]
    return []


BY_PATH = {"type": "jsonpath", "query": "$.airline", "operator": "==", "value": "KLM"}
BY_SCHEMA = {"type": "schema_validation", "schema": {"properties": {"price": {"type": "integer"}}}}
STEPS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"step": "table_sort", "field": "price"}, [2, 1, 3]),
    ({"step": "table_sort", "field": "price", "order": "desc"}, [3, 1, 2]),
    ({"step": "table_sort", "field": ["airline", {"field": "price", "order": "desc"}]}, [3, 1, 2]),
    ({"step": "table_filter", "condition": "output.price > 200"}, [1, 3]),
    ({"step": "table_filter", "condition": BY_PATH}, [2]),
    ({"step": "table_filter", "condition": BY_SCHEMA}, [1, 3]),
    ({"step": "top_k", "k": 2}, [1, 2]),
    ({"step": "top_k", "k": 1, "field": "price"}, [3]),
    ({"step": "top_k", "k": 1, "field": "price", "order": "asc"}, [2]),
    ({"step": "join", "with": [{"id": 3}, {"id": 1}], "on": "id"}, [1, 3]),
    ({"step": "join", "with": [{"no": 3}], "left_on": "id", "right_on": "no", "how": "left"}, [1, 2, 3]),
]  # fmt: skip


@pytest.mark.parametrize(("step", "ids"), STEPS)
async def test_which_rows_a_step_gives(step: dict[str, Any], ids: list[Any]) -> None:
    assert [row["id"] for row in await piped(step)] == ids


async def test_steps_follow_one_another() -> None:
    rows = await piped(
        {"step": "parse_date", "field": "out", "format": "%d.%m.%Y", "output": "date"},
        {"step": "regex_extract", "field": "out", "pattern": "(?P<month>[0-9]+)-(?P<day>[0-9]+)$"},
        {"step": "table_filter", "condition": "output.day != '02'"},
        {"step": "table_select", "fields": {"from": "airline", "day": "day", "price": "price"}},
        {
            "step": "groupby",
            "by": "from",
            "aggregations": {"n": "count", "total": {"sum": "price"}, "days": {"list": "day"}},
        },
    )
    assert rows == [{"from": "Delta", "n": 2, "total": 709, "days": ["01", "03"]}]
    assert await piped({"step": "groupby", "by": "airline"}) == [
        {"airline": "Delta", "count": 2},
        {"airline": "KLM", "count": 1},
    ]
    assert await piped({"step": "table_select", "drop": ["out", "price"]}, {"step": "top_k", "k": 1}) == [
        {"id": 1, "airline": "Delta"}
    ]


async def test_a_report_says_what_each_step_did() -> None:
    value = await piped({"step": "top_k", "k": 2}, {"step": "table_sort", "field": "id"}, report=True)
    assert (value["count"], len(value["rows"])) == (2, 2)
    assert [(each["step"], each["rows_in"], each["rows_out"]) for each in value["steps"]] == [
        ("top_k", 3, 2),
        ("table_sort", 2, 2),
    ]
    assert all(each["ms"] >= 0 for each in value["steps"])


async def test_where_the_rows_come_from() -> None:
    step = {"pipeline": [{"step": "top_k", "k": 1}]}
    assert await called(pipeline(), step, upstream={"a": ROWS}) == Done(ROWS[:1])
    assert await called(pipeline(), {"items": "body.data", **step}, upstream={"a": {"body": {"data": ROWS}}}) == Done(
        ROWS[:1]
    )
    assert await called(pipeline(), step) == Done([])
    with pytest.raises(Fail) as failed:
        await called(pipeline(), step, upstream={"a": ROWS, "b": ROWS})
    assert failed.value.code == "rows_invalid" and "a, b" in failed.value.message


@pytest.mark.parametrize(
    ("rows", "config", "words"),
    [
        ({"a": 1}, {}, "this is an object"),
        ([{}, "x"], {}, "the rows, row 1: a row is an object, and this is a string"),
        ({"a": 1}, {"items": "b"}, "there is nothing under b"),
    ],
)
async def test_what_is_no_table_is_refused(rows: Any, config: dict[str, Any], words: str) -> None:
    failed = await failing({"step": "top_k", "k": 1}, rows=rows, **config)
    assert failed.code == "rows_invalid" and words in failed.message and not failed.retryable


async def test_a_failure_names_step_field_and_row() -> None:
    failed = await failing({"step": "top_k", "k": 3}, {"step": "table_sort", "field": "v"}, rows=[{"v": 1}, {"v": "1"}])
    assert failed.code == "step_failed" and not failed.retryable
    assert failed.message.startswith("step 2 (table_sort), field v, row 1: a string cannot be compared with a number")
    failed = await failing({"step": "table_filter", "condition": "output.v > 1"}, rows=[{"v": 1}, {}])
    assert failed.message.startswith("step 1 (table_filter), field condition, row 1: output has no key")


async def test_types_are_kept(carrier: Counting) -> None:
    rows = [{"n": BIG, "f": 1.0, "b": True, "z": None, "h": 10**30}]
    steps: list[dict[str, Any]] = [
        {"step": "table_sort", "field": "n"},
        {"step": "table_filter", "condition": {**SANDBOX, "code": SANDBOX["code"].replace("price'] > 200", "n'] > 2")}},
        {"step": "jq_transform", "program": "map(.)"},
        {"step": "join", "with": [{"n": BIG, "x": BIG}, {"n": BIG - 1, "x": 0}], "on": "n"},
        {"step": "groupby", "by": ["n", "b"], "aggregations": {each: {"max": each} for each in ("f", "h", "x")}},
    ]
    (row,) = await piped(*steps, rows=rows, carrier=carrier)
    assert row == {"n": BIG, "b": True, "f": 1.0, "h": 10**30, "x": BIG}
    assert [type(value) for value in row.values()] == [int, bool, float, int, int]


async def test_rows_that_need_another_process_travel_together(carrier: Counting) -> None:
    rows = [{"price": number} for number in range(PORTION + 300)]
    kept = await piped({"step": "table_filter", "condition": SANDBOX}, rows=rows, carrier=carrier)
    assert kept == rows[201:]
    sizes = [len(chore.rows) for chore in carrier.chores if isinstance(chore, FilterRows)]
    assert sum(sizes) == len(rows) and len(sizes) == -(-len(rows) // PORTION)


async def test_parts_of_a_composite_condition_are_asked_as_far_as_needed(carrier: Counting) -> None:
    both = {"type": "composite", "operator": "AND", "conditions": ["output.id < 3", SANDBOX]}
    assert [row["id"] for row in await piped({"step": "table_filter", "condition": both}, carrier=carrier)] == [1]
    assert [len(chore.rows) for chore in carrier.chores if isinstance(chore, FilterRows)] == [2]


async def test_a_row_without_an_answer_is_named_by_its_own_number(carrier: Counting) -> None:
    rows = [{"price": 1}] * (PORTION + 7) + [{"cost": 1}]
    failed = await failing({"step": "table_filter", "condition": SANDBOX}, rows=rows, carrier=carrier)
    assert f"row {PORTION + 7}: evaluate failed" in failed.message


async def test_a_condition_sees_inputs_and_the_nodes_before() -> None:
    config = {
        "rows": ROWS,
        "pipeline": [
            {"step": "table_filter", "condition": "output.price < inputs.most && output.airline in ctx.a.output"}
        ],
    }
    ended = await called(pipeline(), config, upstream={"a": ["KLM", "Delta"]}, given=lambda: {"most": 300})
    assert isinstance(ended, Done) and [row["id"] for row in ended.value] == [1, 2]


async def test_a_long_filter_lets_others_have_their_turn() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await piped({"step": "table_filter", "condition": "output.n > 5"}, rows=[{"n": n} for n in range(10 * PORTION)])
    task.cancel()
    assert turns >= 10


JQ: list[tuple[dict[str, Any], Any]] = [
    ({"program": "map({id, p: (.price * 2)})"}, [{"id": 1, "p": 598}, {"id": 2, "p": 379}, {"id": 3, "p": 820}]),
    ({"program": ".[] | select(.id == 2) | {id}"}, [{"id": 2}]),
    ({"program": "{total: (map(.price) | add)} # a comment"}, [{"total": 898.5}]),
    ({"program": "{id}", "each": True}, [{"id": 1}, {"id": 2}, {"id": 3}]),
    ({"program": "select(.id > 9)", "each": True}, []),
    ({"program": "empty"}, []),
    ({"program": "{e: env, E: $ENV, f: input_filename}"}, [{"e": {}, "E": {}, "f": None}]),
]


@pytest.mark.parametrize(("step", "rows"), JQ)
async def test_jq(step: dict[str, Any], rows: Any, carrier: Counting) -> None:
    assert await piped({"step": "jq_transform", **step}, carrier=carrier) == rows


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("map(", "cannot be used: syntax error"),
        ("\n  nope", "nope/0 is not defined (line 2, column 3)"),
        ("nope", "nope/0 is not defined (line 1, column 1)"),
        ('error("boom")', "the program failed: boom"),
        ("1e999 | tojson | fromjson", "is not JSON"),
        ("[1, 2]", "row 0: a row is an object, and this is a number"),
    ],
)
async def test_programs_that_fail(program: str, words: str, carrier: Counting) -> None:
    failed = await failing({"step": "jq_transform", "program": program}, carrier=carrier)
    assert failed.code == "step_failed" and words in failed.message and "step 1 (jq_transform)" in failed.message


async def test_a_program_that_never_ends_is_killed(carrier: Counting) -> None:
    step = {"step": "jq_transform", "program": "last(range(1e15))", "timeout_seconds": 0.3}
    assert "took longer than 300 ms" in (await failing(step, carrier=carrier)).message
    assert await piped({"step": "jq_transform", "program": "."}, carrier=carrier) == ROWS


@pytest.mark.parametrize(
    "program",
    [
        pytest.param('import "FILE" as $d; $d', id="data"),
        pytest.param('import "FILE" as d; {x: d::f}', id="module"),
        pytest.param('include "FILE"; {x: f}', id="include"),
        pytest.param('{x: ("FILE" | modulemeta)}', id="meta"),
    ],
)
async def test_a_program_reads_no_files(program: str, tmp_path: Path, carrier: Counting) -> None:
    (tmp_path / "canary.json").write_text('{"secret": "tweet"}')
    (tmp_path / "canary.jq").write_text('module {"secret": "tweet"}; def f: "tweet";')
    step = {"step": "jq_transform", "program": program.replace("FILE", str(tmp_path / "canary"))}
    try:
        result = str(await piped(step, carrier=carrier))
    except Fail as failed:
        result = failed.message + failed.hint
    assert "tweet" not in result


async def test_without_other_processes_a_program_is_refused() -> None:
    assert "needs another process" in (await failing({"step": "jq_transform", "program": "."})).message


async def test_without_its_package_jq_is_left_to_other_workers(
    carrier: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jq", None)
    step = {"step": "jq_transform", "program": "."}
    failed = await failing(step, carrier=carrier)
    assert isinstance(failed, CapabilityMissing) and (failed.code, failed.hint) == (
        "jq_missing",
        'pip install "tidemill[jq]"',
    )
    ((path, said),) = publish(step)
    assert path == "/pipeline/0/program" and "not installed" in said


async def test_fetching() -> None:
    async with web() as server:
        server.routes["/search"] = json_reply({"data": {"flights": ROWS}})
        server.routes["/one"] = json_reply({"id": 9})
        server.routes["/list"] = json_reply(ROWS)
        rows = await piped(
            {
                "step": "http_request",
                "url": server.url("/search"),
                "params": {"origin": "NYC"},
                "items": "data.flights",
            },
            {"step": "table_sort", "field": "price", "order": "asc"},
            {"step": "top_k", "k": 1},
            rows=[],
        )
        assert rows == [ROWS[1]]
        assert [(each.method, each.target) for each in server.asked] == [("GET", "/search?origin=NYC")]
        assert await piped({"step": "http_request", "url": server.url("/one")}) == [{"id": 9}]
        assert await piped({"step": "http_request", "url": server.url("/list")}) == ROWS


async def test_each_call_has_an_effect_key_of_its_own() -> None:
    async with web({"/a": json_reply({})}) as server:
        step = {"step": "http_request", "url": server.url("/a"), "method": "POST", "body": {"json": 1}}
        await piped(step, step)
        keys = [each.headers["idempotency-key"] for each in server.asked]
    assert len(keys) == 2 and all(keys) and keys[0] != keys[1]


async def test_a_call_that_fails_keeps_its_code() -> None:
    routes = {"/down": json_reply({}, 503), "/text": json_reply("hello"), "/wrong": json_reply({"x": 1})}
    async with web(routes) as server:
        failed = await failing({"step": "http_request", "url": server.url("/down")})
        assert failed.retryable and failed.message.startswith("step 1 (http_request): ")
        failed = await failing({"step": "http_request", "url": server.url("/text")})
        assert (failed.code, failed.retryable) == ("step_failed", False) and "a string" in failed.message
        failed = await failing({"step": "http_request", "url": server.url("/wrong"), "items": "data"})
        assert "there is nothing under data" in failed.message


async def test_an_address_without_a_scheme_is_called_over_tls() -> None:
    assert call_config({"step": "http_request", "url": "api.flights.example/search", "params": {"q": 1}}) == {
        "url": "https://api.flights.example/search",
        "query": {"q": 1},
    }
    assert call_config({"step": "http_request", "url": "http://x.example"}) == {"url": "http://x.example"}


async def test_limits() -> None:
    many = [{"n": number} for number in range(20)]
    failed = await failing({"step": "top_k", "k": 1}, rows=many, max_rows=19)
    assert failed.code == "rows_too_many" and "20 rows, and 19 are allowed" in failed.message
    failed = await failing({"step": "top_k", "k": 1}, rows=many, max_bytes=100)
    assert failed.code == "rows_too_large"
    step = {"step": "join", "with": [{"k": 1, "b": 1}] * 5, "on": "k"}
    failed = await failing(step, rows=[{"k": 1, "a": 1}] * 5, max_rows=24)
    assert failed.code == "step_failed" and "more than 24 rows" in failed.message
    assert len(await piped(step, rows=[{"k": 1, "a": 1}] * 5, max_rows=25)) == 25


async def test_what_would_only_be_large_once_it_is_stored_is_refused_in_time() -> None:
    """The rows share one text in memory; written down they would be gigabytes."""
    rows = [{"k": 1, "n": number} for number in range(LOOP_ITEMS + 1)]
    failed = await failing({"step": "join", "with": [{"k": 1, "text": "x" * 2_000_000}], "on": "k"}, rows=rows)
    assert failed.code == "rows_too_large" and failed.message.startswith("step 1 (join): its result")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that functions over tables were called in, by name."""
    seen: list[str] = []
    for name in ("sort_rows", "join_rows", "group_rows"):
        real = getattr(tables, name)

        def noted(*given: Any, real: Any = real) -> Any:
            seen.append(threading.current_thread().name.partition("_")[0])
            return real(*given)

        monkeypatch.setattr(tables, name, noted)
    return seen


HERE, THERE = threading.main_thread().name, "tidemill-tables"


async def test_a_large_table_is_worked_on_in_a_thread(threads: list[str]) -> None:
    rows = [{"n": -number} for number in range(LOOP_ITEMS + 1)]
    assert (await piped({"step": "table_sort", "field": "n"}, rows=rows))[0] == rows[-1]
    assert threads.pop() == THERE
    threads.clear()
    await piped({"step": "table_sort", "field": "n"}, rows=rows[:1000])
    # Few rows may have many bytes.
    await piped({"step": "table_sort", "field": "n"}, rows=[{"n": 1, "text": "x" * LOOP_BYTES}])
    assert threads == [HERE, THERE]


async def test_small_tables_whose_join_is_large_leave_the_event_loop(threads: list[str]) -> None:
    rows = [{"k": 1, "n": number} for number in range(250)]
    step = {"step": "join", "with": [{"k": 1, "m": number} for number in range(250)], "on": "k"}
    assert len(await piped(step, rows=rows)) == 62_500
    assert threads == [HERE, THERE]


def wide(prefix: str) -> list[dict[str, Any]]:
    return [{"k": 1} | {f"{prefix}{field}": number for field in range(400)} for number in range(316)]


async def test_a_join_is_refused_while_it_grows() -> None:
    """As rows the result would take gigabytes."""
    made = 0

    class Counted(Meter):
        def row(self, row: Any, size: int | None = None) -> None:
            nonlocal made
            made += 1
            super().row(row, size)

    meter = Counted(2_500_000)
    with pytest.raises(TableError, match="more than 2500000 bytes") as refused:
        tables.join_rows(wide("a"), wide("b"), tables.Join(["k"], ["k"]), 100_000, meter)
    assert refused.value.code == "rows_too_large"
    # A row has about 8,000 bytes.
    assert made < 400
    failed = await failing({"step": "join", "with": wide("b"), "on": "k"}, rows=wide("a"))
    assert failed.code == "rows_too_large" and failed.message.startswith("step 1 (join): its result: it takes more")


@pytest.mark.parametrize(
    "step",
    [
        {"step": "table_select", "fields": {f"copy{number}": "text" for number in range(1000)}},
        {"step": "table_select", "fields": {f"copy{number}": "k" for number in range(1000)}},
        {"step": "groupby", "by": "k", "aggregations": {f"copy{number}": {"list": "text"} for number in range(1000)}},
        {"step": "groupby", "by": "k", "aggregations": {f"copy{number}": {"first": "text"} for number in range(1000)}},
        {"step": "groupby", "by": [f"f{number}" for number in range(500)] + ["k"]},
        {"step": "regex_extract", "field": "text", "all": True, "pattern": "".join(f"(?P<g{n}>" for n in range(60))
         + "x*" + ")" * 60},
    ],
)  # fmt: skip
async def test_steps_that_multiply_values_are_refused_while_they_grow(
    step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.handlers.data.meter.MEMORY_MAX", 4_000_000)
    rows = [{"k": number, "text": "x" * 60} for number in range(200)]
    rows[0] |= {f"f{field}": 0 for field in range(500)}
    assert (await failing(step, rows=rows, max_bytes=200_000)).code == "rows_too_large"


async def test_work_that_nobody_waits_for_ends() -> None:
    began, ended = threading.Event(), threading.Event()

    def work(meter: Meter) -> None:
        began.set()
        try:
            while True:
                meter.work(1000)
        finally:
            ended.set()

    task = asyncio.create_task(metered(work, small=False))
    await asyncio.to_thread(began.wait)
    task.cancel()
    assert await asyncio.to_thread(ended.wait, 60)


async def test_work_has_a_limit_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.handlers.data.meter.SECONDS_MAX", 0.001)
    rows = [{"k": number % 2, "n": number} for number in range(LOOP_ITEMS)]
    failed = await failing({"step": "groupby", "by": "k", "aggregations": {"a": {"sum": "n"}}}, rows=rows)
    assert failed.code == "step_too_long"


WRONG: list[tuple[Any, str, str]] = [
    ({"step": "table_srt"}, "/pipeline/0/step", "is not one of"),
    ({"step": "table_sort", "field": "x", "ordr": "asc"}, "/pipeline/0/ordr", 'did you mean "order"?'),
    ({"step": "table_sort", "field": "x", "order": "up"}, "/pipeline/0/order", "asc"),
    ({"step": "top_k", "k": "many"}, "/pipeline/0/k", "integer"),
    ({"step": "top_k"}, "/pipeline/0", '"k" is missing'),
    ({"step": "table_filter", "condition": "output.n <"}, "/pipeline/0/condition", "ends too early"),
    ({"step": "table_filter", "condition": {"type": "cell"}}, "/pipeline/0/condition/type", "unknown condition type"),
    ({"step": "groupby", "by": "a", "aggregations": {"n": {"summ": "x"}}}, "/pipeline/0/aggregations/n", '"sum"'),
    ({"step": "groupby", "by": "a", "aggregations": {"n": "sum"}}, "/pipeline/0/aggregations/n", "needs a field"),
    ({"step": "groupby", "by": "a", "aggregations": {"a": "count"}}, "/pipeline/0/aggregations/a", "another name"),
    ({"step": "join", "with": [], "left_on": "a", "right_on": ["a", "b"]}, "/pipeline/0/right_on", "pair them up"),
    ({"step": "join", "with": "orders", "on": "a"}, "/pipeline/0/with", "list of rows"),
    ({"step": "join", "with": []}, "/pipeline/0", '"left_on" with "right_on" is missing'),
    ({"step": "regex_extract", "field": "a", "pattern": "("}, "/pipeline/0/pattern", "missing )"),
    ({"step": "regex_extract", "field": "a", "pattern": "(?=x)"}, "/pipeline/0/pattern", "look-around"),
    ({"step": "parse_date", "field": "a", "format": "%Q"}, "/pipeline/0/format", "no directive %Q"),
    ({"step": "parse_date", "field": "a", "zone": "Mars"}, "/pipeline/0/zone", "no time zone"),
    ({"step": "parse_date", "field": "a", "output": "isoo"}, "/pipeline/0/output", "neither a format"),
    ({"step": "http_request"}, "/pipeline/0", '"url" is missing'),
    ({"step": "http_request", "url": "ftp://x.example"}, "/pipeline/0/url", "not a scheme"),
    ({"step": "http_request", "url": "x.example", "params": 3}, "/pipeline/0/params", "object"),
    ({"step": "http_request", "url": "x.example", "headers": {"Host": "y"}}, "/pipeline/0/headers/Host", "connection"),
    ({"step": "jq_transform", "program": 3}, "/pipeline/0/program", "string"),
    ({"step": "table_select"}, "/pipeline/0", '"fields" or "drop" is missing'),
]  # fmt: skip


@pytest.mark.parametrize(("step", "path", "words"), WRONG)
def test_wrong_steps_are_refused_when_they_are_published(step: Any, path: str, words: str) -> None:
    problems = publish(step, rows="{{ inputs.rows }}")
    assert [place for place, _ in problems] == [path]
    assert words in problems[0][1]


@pytest.mark.parametrize(("step", "path", "words"), [each for each in WRONG if each[0]["step"] in SCHEMAS])
async def test_wrong_steps_are_refused_when_they_are_rendered(step: Any, path: str, words: str) -> None:
    failed = await failing(step)
    assert failed.code == "config_invalid" and failed.message.startswith(f"{path}: ")


@pytest.mark.parametrize("program", ["map(.a", ".a |", "nothing(1)", 'import "a" as a; .', "def f: f"])
def test_a_program_that_cannot_be_compiled_is_refused_when_it_is_published(program: str) -> None:
    steps = [{"step": "top_k", "k": 1}, {"step": "jq_transform", "program": program}]
    ((path, said),) = publish(*steps)
    assert path == "/pipeline/1/program" and "step 2 (jq_transform): the program cannot be used" in said


def test_a_long_program_is_not_compiled_in_this_process() -> None:
    began = time.thread_time()
    assert publish({"step": "jq_transform", "program": "." + "?" * (PROGRAM_MAX - 1)}) == []
    assert publish({"step": "jq_transform", "program": "." + "?" * (CHECKED_MAX - 1)}) == []
    assert time.thread_time() - began < allowed(0.3)


def test_a_condition_that_does_not_know_what_its_row_is_called() -> None:
    (problem,) = publish({"step": "table_filter", "condition": "row.n > 1"})
    assert 'there is no name "row"' in problem[1] and "the row is called output" in problem[1]


async def test_a_condition_that_looks_further_than_the_nodes_before() -> None:
    step = {"step": "table_filter", "condition": "output.n == ctx.far.output"}
    with pytest.raises(Fail) as failed:
        await called(pipeline(), {"rows": [{"n": 1}], "pipeline": [step]}, upstream={"near": 1})
    assert '"far" is not in reach' in failed.value.message
    assert failed.value.hint.endswith("direct upstream nodes: near")


def test_what_hangs_on_a_template_is_left_for_later() -> None:
    steps = [
        {"step": "table_sort", "field": "{{ inputs.field }}", "order": "{{ inputs.order }}"},
        {"step": "top_k", "k": "{{ inputs.k }}"},
        {"step": "table_filter", "condition": {"type": "jsonpath", "query": "{{ inputs.q }}", "operator": "exists"}},
        {"step": "groupby", "by": "{{ inputs.by }}", "aggregations": "{{ inputs.a }}"},
        {"step": "join", "with": "{{ inputs.rows }}", "on": "{{ inputs.by }}"},
        {"step": "parse_date", "field": "a", "format": "{{ inputs.f }}", "zone": "{{ inputs.z }}"},
        {"step": "http_request", "url": "{{ inputs.url }}", "params": {"q": "{{ inputs.q }}"}},
    ]
    assert publish(*steps, rows="{{ inputs.rows }}") == []
    assert publish("{{ inputs.step }}", {"step": "{{ inputs.name }}", "k": 1}) == []


def test_steps_that_were_only_known_at_run_time() -> None:
    document = {
        "name": "asked",
        "nodes": [{"id": "p", "type": "pipeline", "config": {"rows": ROWS, "pipeline": "{{ inputs.steps }}"}}],
    }
    with tidemill.open("memory://") as mill:
        done = mill.run(document, {"steps": [{"step": "top_k", "k": 1}]})
        assert done.outputs == {"p": ROWS[:1]}
        wrong = mill.run(document, {"steps": [{"step": "top_k"}]})
        assert wrong.status == "FAILED" and wrong.error is not None and wrong.error["code"] == "config_invalid"


def test_a_step_without_a_known_name_hides_no_other_problem() -> None:
    steps = [{"step": "table_srot"}, {"field": "a"}, {"step": "top_k"}, {"step": "jq_transform", "program": ".["}]
    problems = publish(*steps)
    assert [path.removeprefix("/pipeline/") for path, _ in problems] == ["0/step", "1", "2", "3/program"]


def test_secrets_are_for_calls_only() -> None:
    headers = {"Authorization": "Bearer {{ secrets.TOKEN }}"}
    assert publish({"step": "http_request", "url": "x.example", "headers": headers}) == []
    problems = publish({"step": "regex_extract", "field": "a", "pattern": "{{ secrets.TOKEN }}"})
    assert [path for path, _ in problems] == ["/pipeline/0/pattern"]


def test_limits_have_limits() -> None:
    assert publish({"step": "top_k", "k": 1}, max_rows=ROWS_MAX_MAX, max_bytes=BYTES_MAX_MAX) == []
    assert publish({"step": "top_k", "k": 1}, max_rows=ROWS_MAX_MAX + 1) != []
    assert publish({"step": "top_k", "k": 1}, max_bytes=BYTES_MAX_MAX + 1) != []
