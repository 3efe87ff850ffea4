"""`tidemill.connect` and `tidemill.aconnect`: one table of all verbs, asked of an engine and of a server."""

from __future__ import annotations

import asyncio
import inspect
import io
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tidemill
from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.servers.tcp_proxy import Fault, proxied
from tidemill.api.auth import Access
from tidemill.async_client import AsyncTidemill
from tidemill.blobs.contract import BlobDamaged
from tidemill.engine.views import plain
from tidemill.errors import Rejected, Unavailable
from tidemill.remote import requests, runs

DOUBLE = """
name: double
inputs: {type: object, properties: {n: {type: integer, default: 1}}}
outputs: {n: "{{ nodes.b }}"}
nodes:
  - {id: a, type: value, config: "{{ inputs.n * 2 }}", dependents: [b]}
  - {id: b, type: value, config: "{{ nodes.a }}"}
"""
FAULTY = "name: faulty\nnodes: [{id: a, type: python, config: {function: fails}, retry: {max_attempts: 1}}]\n"
ASKS = """
name: asks
nodes:
  - {id: may, type: human, config: {title: May we?, approvers: ["user:local", "user:bob"]}, dependents: [then]}
  - {id: then, type: value, config: "done"}
"""
LISTENS = "name: listens\nnodes: [{id: a, type: signal, config: {name: paid}}]\n"
SAYS = "name: says\nnodes: [{id: a, type: python, config: {function: says}}]\n"
SLEEPS = "name: sleeps\nnodes: [{id: a, type: sleep, config: {seconds: 600}}]\n"
KEY = "00000000-0000-7000-8000-000000000001"
LOG = logging.getLogger("flow")

NOT_REMOTE = {
    "collect_blobs": {},
    "diagnose": {},
    "verify_log": {},
    "reindex": {},
    "archive_sweep": {},
    "archive_list": {},
    "archive_show": {"run_id": "x"},
    "archive_restore": {"run_id": "x"},
}


def fails() -> None:
    raise ValueError("no luck")


def says() -> int:
    LOG.warning("hello")
    return 1


AGENT: dict[str, Any] = {
    "name": "agent",
    "nodes": [
        {
            "id": "a",
            "type": "agent",
            "config": {
                "provider": "scripted",
                "model": "m",
                "prompt": "Which is best?",
                "tools": ["execute_pipeline"],
                "answers": [
                    *(
                        {
                            "tool_calls": [
                                {
                                    "name": "execute_pipeline",
                                    "arguments": {
                                        "rows": [{"n": 1}, {"n": 2}],
                                        "pipeline": [{"step": "top_k", "k": k}],
                                    },
                                }
                            ]
                        }
                        for k in (1, 2)
                    ),
                    "The first.",
                ],
            },
        }
    ],
}
"""Its pipeline becomes a composite tool, because it is used twice."""

Notes = dict[str, Any]
"""What a step keeps for later ones: ids of runs, digests."""
Step = Callable[[AsyncTidemill, Notes], Awaitable[Any]]


def keep(name: str, ask: Step) -> Step:
    async def step(mill: AsyncTidemill, notes: Notes) -> Any:
        notes[name] = await ask(mill, notes)
        return notes[name]

    return step


async def listed(items: Any) -> list[Any]:
    return [item async for item in items]


async def waited(mill: AsyncTidemill, notes: Notes) -> Any:
    """An approval, once it is asked for."""
    run_id = notes["asks"] = await mill.start("asks")
    async for event in mill.follow(run_id):
        if event["type"] == "ApprovalRequested":
            break
    return await mill.approval(run_id, "may")


async def patched(mill: AsyncTidemill, notes: Notes) -> Any:
    operations = [{"op": "replace", "path": "/nodes/a/config", "value": {"function": "says"}}]
    document = await mill.document(notes["failed"])
    return await mill.patch(
        notes["failed"], operations, base_digest=document.digest, retry=True, actor="local", message="repaired"
    )


async def saved(mill: AsyncTidemill, notes: Notes) -> Any:
    file = io.BytesIO()
    return await mill.save_blob(notes["blob"]["$blob"], file), file.getvalue()


def on(name: str, verb: str, *args: Any, **given: Any) -> Step:
    """Call a verb for the run that was kept under a name."""
    return lambda mill, notes: getattr(mill, verb)(notes[name], *args, **given)


AS = {"actor": "local"}
STEPS: list[tuple[str, Step]] = [
    *[("publish", lambda m, n, d=d: m.publish(d, author="local", message="first")) for d in (DOUBLE, FAULTY, ASKS)],
    *[("publish", lambda m, n, d=d: m.publish(d, author="local")) for d in (LISTENS, SAYS, SLEEPS)],
    ("publish", lambda m, n: m.publish({"name": "broken", "nodes": [{"id": "a", "type": "nothing"}]})),
    ("publish", lambda m, n: m.publish("name: broken\nnodes: [{id: a, type: nothing}]\n")),
    ("run", keep("run", lambda m, n: m.run("double", {"n": 4}, labels={"team": "a b"}, timeout=30))),
    (
        "start",
        keep(
            "double",
            lambda m, n: m.start("double", {"n": 2}, key=KEY, correlation_id="c"),
        ),
    ),
    ("start", lambda m, n: m.start("double", {"n": 3}, key=KEY)),
    ("start", lambda m, n: m.start("double", {"n": "x"})),
    ("start", lambda m, n: m.start("says", {"n": object()})),
    ("start", lambda m, n: m.start("nothing")),
    ("start_many", keep("many", lambda m, n: m.start_many("double", [{"n": i} for i in range(3)]))),
    ("start_many", lambda m, n: m.start_many("double", [{}, {}], keys=["a"])),
    ("start_many", lambda m, n: m.start_many("double", [{"n": 1}, {"n": "x"}])),
    ("result", on("double", "result", timeout=30)),
    ("show", on("double", "show")),
    ("show", on("double", "show", at=3)),
    ("show", lambda m, n: m.show("nothing")),
    ("events", on("double", "events")),
    ("events", on("double", "events", after=2, limit=2)),
    ("follow", lambda m, n: listed(m.follow(n["double"]))),
    ("follow", lambda m, n: listed(m.follow(n["double"], 3))),
    ("follow", lambda m, n: listed(m.follow("nothing"))),
    ("path", on("double", "path")),
    ("tokens", on("double", "tokens")),
    ("why", on("double", "why")),
    ("why_node", on("double", "why_node", "a")),
    ("start", keep("failed", lambda m, n: m.start("faulty", labels={"team": "b"}))),
    ("result", on("failed", "result", timeout=30)),
    ("why", on("failed", "why")),
    ("dead_letters", lambda m, n: m.dead_letters("status:open")),
    ("dead_letters", lambda m, n: m.dead_letters("colour:red")),
    ("dead_letter", on("failed", "dead_letter", "a")),
    ("dead_letter", lambda m, n: m.dead_letter(n["double"], "a")),
    ("reprocess", lambda m, n: m.reprocess(workflow="faulty", dry_run=True)),
    ("discard", on("failed", "discard", "a", reason="known", **AS)),
    ("document", on("failed", "document")),
    ("patch", patched),
    ("result", on("failed", "result", timeout=30)),
    ("fork", keep("fork", on("failed", "fork", node="a", reason="what if", **AS))),
    ("result", on("fork", "result", timeout=30)),
    ("compare", lambda m, n: m.compare(n["failed"], n["fork"])),
    ("start", keep("says", lambda m, n: m.start("says"))),
    ("follow_logs", lambda m, n: listed(m.follow_logs(n["says"]))),
    ("logs", on("says", "logs")),
    ("approval", waited),
    ("approvals", lambda m, n: m.approvals(["status:pending"])),
    ("why", on("asks", "why")),
    ("delegate", on("asks", "delegate", "may", "carol", comments="away", **AS)),
    ("decide", on("asks", "decide", "nobody", "approve", **AS)),
    ("decide", on("asks", "decide", "may", "maybe", **AS)),
    ("decide", lambda m, n: m.decide("nothing", "may", "approve", actor="local")),
    ("start", keep("listens", lambda m, n: m.start("listens"))),
    ("pause", on("listens", "pause", reason="wait", **AS)),
    ("show", on("listens", "show")),
    ("resume", on("listens", "resume", **AS)),
    ("relabel", on("listens", "relabel", {"team": "c"}, **AS)),
    ("signal", on("listens", "signal", "paid", {"sum": 3}, signal_id="s1", **AS)),
    ("signal", on("listens", "signal", "paid", {"sum": float("nan")}, **AS)),
    ("result", on("listens", "result", timeout=30)),
    ("rollback", on("listens", "rollback", **AS)),
    ("start", keep("sleeps", lambda m, n: m.start("sleeps", deadline_seconds=500))),
    ("result", on("sleeps", "result", timeout=0.1)),
    ("rewind", on("sleeps", "rewind", "a", reason="again", **AS)),
    ("override", on("sleeps", "override", "a", value={"by": "hand"}, reason="now", **AS)),
    ("override", on("sleeps", "override", "a", **AS)),
    ("start", keep("asleep", lambda m, n: m.start("sleeps"))),
    ("cancel", on("asleep", "cancel", reason="enough", **AS)),
    ("retry", on("asleep", "retry", reason="still", **AS)),
    ("bulk", lambda m, n: m.bulk("cancel", "workflow:sleeps status:running", reason="all", **AS)),
    ("find", lambda m, n: m.find("status:completed", workflow="double", limit=2)),
    ("find", lambda m, n: m.find(label={"team": "a b"}, since="1h", until=timedelta(seconds=0))),
    ("find", lambda m, n: m.find(terms=["status:nothing", "colour:red"])),
    ("find", lambda m, n: m.find(after="nonsense")),
    ("runs", lambda m, n: listed(m.runs(workflow="double"))),
    ("count", lambda m, n: m.count("workflow:double", at_most=3)),
    ("count", lambda m, n: m.count(since=timedelta(hours=1))),
    ("summary", lambda m, n: m.summary("workflow:double", buckets=5)),
    ("facets", lambda m, n: m.facets()),
    ("histogram", lambda m, n: m.histogram(buckets=2)),
    ("histogram", lambda m, n: m.histogram(buckets=0)),
    ("failure_groups", lambda m, n: m.failure_groups()),
    ("resolve", lambda m, n: m.resolve("nothing")),
    ("workflow", lambda m, n: m.workflow("double")),
    ("workflows", lambda m, n: m.workflows(limit=2)),
    ("workflow_document", lambda m, n: m.workflow_document("double@1")),
    (
        "patch_workflow",
        lambda m, n: m.patch_workflow(
            "double", [{"op": "add", "path": "/description", "value": "new"}], author="local", message="more"
        ),
    ),
    ("versions", lambda m, n: m.versions("double")),
    ("tag", lambda m, n: m.tag("double", "stable", 1, **AS)),
    ("tag", lambda m, n: m.tag("double", "stable", 2, weight=10, **AS)),
    ("tag", lambda m, n: m.tag("double", "stable", {1: 30, 2: 70}, message="more", **AS)),
    ("rollback_tag", lambda m, n: m.rollback_tag("double", "stable", **AS)),
    ("tags", lambda m, n: m.tags("double")),
    ("tag_history", lambda m, n: m.tag_history("double", "stable")),
    ("untag", lambda m, n: m.untag("double", "stable", **AS)),
    ("diff", lambda m, n: m.diff("double@1", "double@2")),
    ("delete_workflow", lambda m, n: m.delete_workflow("says", **AS)),
    ("delete_workflow", lambda m, n: m.delete_workflow("asks", **AS)),
    ("put_blob", keep("blob", lambda m, n: m.put_blob(b"12345", media_type="text/plain", name="a.txt", keep=True))),
    ("put_blob", lambda m, n: m.put_blob(Path("/nothing/here"))),
    ("blob", lambda m, n: m.blob(n["blob"]["$blob"])),
    ("blobs", lambda m, n: m.blobs()),
    ("save_blob", saved),
    ("workers", lambda m, n: m.workers()),
    ("publish", lambda m, n: m.publish(AGENT)),
    ("start", keep("agent", lambda m, n: m.start("agent"))),
    ("result", on("agent", "result", timeout=30)),
    ("transcript", lambda m, n: m.transcript(n["agent"], "a")),
    ("transcript", lambda m, n: m.transcript(n["agent"], "b")),
    ("tools", keep("tools", lambda m, n: m.tools())),
    ("tool", lambda m, n: m.tool(n["tools"][0].name)),
    ("rename_tool", lambda m, n: m.rename_tool(n["tools"][0].name, "best", description="The best.")),
    ("pin_tool", lambda m, n: m.pin_tool("best")),
    ("retire_tool", lambda m, n: m.retire_tool("best")),
    ("tool", lambda m, n: m.tool("best@7")),
    ("rename_tool", lambda m, n: m.rename_tool("missing", "other", description="It sorts.")),
    ("pin_tool", lambda m, n: m.pin_tool("missing")),
    ("retire_tool", lambda m, n: m.retire_tool("missing", retired=False)),
    ("queues", lambda m, n: m.queues()),
    ("usage", lambda m, n: m.usage(workflow="double")),
    ("usage", lambda m, n: m.usage(since="yesterday")),
    ("node_types", lambda m, n: m.node_types()),
    ("limit_concurrency", lambda m, n: m.limit_concurrency("workflow:double", 3)),
    ("concurrency_limits", lambda m, n: m.concurrency_limits()),
    ("unlimit_concurrency", lambda m, n: m.unlimit_concurrency("workflow:double")),
    ("unlimit_concurrency", lambda m, n: m.unlimit_concurrency("workflow:double")),
    ("create_schedule", lambda m, n: m.create_schedule("daily", "double", cron="0 2 * * *", **AS)),
    ("create_schedule", lambda m, n: m.create_schedule("x y", "double", cron="0 2 * *", every="1m", **AS)),
    ("update_schedule", lambda m, n: m.update_schedule("daily", cron=None, every=timedelta(hours=2), **AS)),
    ("schedules", lambda m, n: m.schedules("status:active")),
    ("schedule", lambda m, n: m.schedule("daily")),
    ("schedule_times", lambda m, n: m.schedule_times("daily", 2)),
    ("pause_schedule", lambda m, n: m.pause_schedule("daily", **AS)),
    ("resume_schedule", lambda m, n: m.resume_schedule("daily", **AS)),
    ("trigger_schedule", lambda m, n: m.trigger_schedule("daily", **AS)),
    ("delete_schedule", lambda m, n: m.delete_schedule("daily", **AS)),
    ("create_key", keep("key", lambda m, n: m.create_key("ci", roles=["viewer"], expires_days=None, **AS))),
    ("create_key", lambda m, n: m.create_key("ci", roles=["nobody"], **AS)),
    ("keys", lambda m, n: m.keys()),
    ("revoke_key", lambda m, n: m.revoke_key(n["key"].view.id, **AS)),
    ("create_tenant", lambda m, n: m.create_tenant("acme", **AS)),
    ("tenants", lambda m, n: m.tenants()),
    ("disable_tenant", lambda m, n: m.disable_tenant("acme", **AS)),
    ("enable_tenant", lambda m, n: m.enable_tenant("acme", **AS)),
    ("audit", lambda m, n: m.audit(actor="nobody")),
    ("verify_audit", lambda m, n: m.verify_audit("0" * 64)),
]
"""Verbs in an order in which each finds what it needs; some of them are refused."""

VARIES = re.compile(
    r"(_ms|_id|_at|_times|^since|^seconds|^(run_id|version|digest|left|right|host|pid|name|beat|head|prev|hash|key|created_by"
    r"|traceback|next|parent|forked_from|token|job|at|day|bytes|events|counter|worker|started|times|message|queue|id|submitted_by|requester|actor|command|entries|broken_seq))$"
)
"""Fields that differ between two stores, or by time."""

OPTIONAL = {"duration_ms", "waited_ms", "check", "checks_anything", "capped", "output_keys", "blocked"}
"""A duration is left out where it is 0; code does not travel; a busy machine blocks one loop and not the other."""


def shape(value: Any, field: str = "") -> Any:
    """A value with types in place of what differs between two stores."""
    if isinstance(value, (msgspec.Struct, tidemill.RunView, tidemill.ApprovalView)):
        return type(value).__name__, shape(plain(value))
    if isinstance(value, dict):
        shown = {key: each for key, each in value.items() if key not in OPTIONAL}
        return {"id" if _is_id(key) else key: shape(each, str(key)) for key, each in shown.items()}
    if isinstance(value, (list, tuple)):
        # JSON has no tuples inside values.
        return [shape(each, field) for each in value]
    varies = (VARIES.search(field) and not isinstance(value, bool)) or (isinstance(value, str) and _is_id(value))
    return type(value).__name__ if varies else value


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Where two shapes differ."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return [each for key in left for each in differences(left[key], right[key], f"{path}/{key}")]
    if isinstance(left, (list, tuple)) and type(left) is type(right) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return [each for at, (mine, theirs) in pairs for each in differences(mine, theirs, f"{path}/{at}")]
    return [] if left == right else [f"{path}: {left!r} and {right!r}"]


def _is_id(text: Any) -> bool:
    return (
        isinstance(text, str)
        and re.search(r"[0-9a-f]{8}-[0-9a-f]{4}|key-[0-9a-f]{40}|[0-9a-f]{32}|[0-9]{13}:", text) is not None
    )


async def answered(mill: AsyncTidemill, notes: Notes, step: Step) -> Any:
    try:
        found = await step(mill, notes)
        return type(found).__name__, shape(found)
    except Rejected as refusal:
        return "refused", [(problem.code, problem.path) for problem in refusal.problems]
    except TimeoutError:
        return "timed out"
    except KeyError as missing:
        return "an earlier step failed", missing.args


async def test_every_verb_answers_the_same_from_a_server(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    found: list[str] = []
    async with (
        api_server(sqlite_url(tmp_path / "there"), functions=[fails, says]) as server,
        tidemill.aopen(sqlite_url(tmp_path / "here"), functions=[fails, says]) as embedded,
        tidemill.aconnect(server.url) as remote,
    ):
        here: Notes = {}
        there: Notes = {}
        for number, (verb, step) in enumerate(STEPS):
            mine, theirs = await answered(embedded, here, step), await answered(remote, there, step)
            found += [f"step {number}, {verb}{each}" for each in differences(mine, theirs)]
    assert not found, "\n".join(found)


def test_the_table_has_every_verb() -> None:
    verbs = {
        name for name, verb in vars(AsyncTidemill).items() if not name.startswith("_") and inspect.isfunction(verb)
    }
    assert verbs - {"close", "register"} == {verb for verb, _ in STEPS} | set(NOT_REMOTE)


async def test_what_needs_the_store_itself_is_refused(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path)) as server, tidemill.aconnect(server.url) as remote:
        for verb, given in NOT_REMOTE.items():
            with pytest.raises(Rejected) as refused:
                await getattr(remote, verb)(**given)
            assert refused.value.code == "not_remote", verb
        with pytest.raises(Rejected, match="not_remote"):
            remote.register(fails)


async def test_a_workflow_in_python_is_published_and_run(tmp_path: Path) -> None:
    @tidemill.task
    def shout(word: str) -> str:
        return word.upper()

    @tidemill.workflow
    def greeting(word: str) -> Any:
        return shout(word)

    functions = dict.fromkeys(greeting.functions, shout.function)
    async with (
        api_server(sqlite_url(tmp_path), functions=functions) as server,
        tidemill.aconnect(server.url) as remote,
    ):
        run = await remote.run(greeting, word="hello", timeout=30)
        assert run.output == "HELLO"


async def test_the_blocking_client(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path)) as server:

        def use() -> tuple[Any, list[str]]:
            with tidemill.connect(server.url) as mill:
                mill.publish(DOUBLE)
                run = mill.run("double", {"n": 5}, timeout=30)
                return run.output, [event["type"] for event in mill.follow(run.run_id)]

        output, types = await asyncio.to_thread(use)
        assert output == {"n": 10}
        assert types[0] == "RunCreated" and types[-1] == "RunCompleted"


async def test_values_with_separators_of_lines_are_followed(tmp_path: Path) -> None:
    """JSON leaves them as they are, and they end no line of an event stream."""
    async with api_server(sqlite_url(tmp_path)) as server, tidemill.aconnect(server.url) as remote:
        await server.publish("name: echo\nnodes: [{id: a, type: value, config: '{{ inputs.text }}'}]\n")
        run = await remote.run("echo", {"text": "one\u2028two\u2029three\x85four\x1ffive"}, timeout=30)
        assert await listed(remote.follow(run.run_id)) == await server.events(run.run_id)


async def test_a_picture_can_be_drawn_of_a_run(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path)) as server, tidemill.aconnect(server.url) as remote:
        await remote.publish(DOUBLE)
        run = await remote.run("double", timeout=30)
        assert "<svg" in (await remote.show(run.run_id))._repr_html_()


@pytest.mark.parametrize("url", ["127.0.0.1:8321", "sqlite:///x.db", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Rejected) as refused:
        tidemill.connect(url)
    assert refused.value.code == "server_unknown"


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9 does not answer"):
        tidemill.connect("http://127.0.0.1:9")


async def test_a_server_that_is_not_ours_is_told(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path)) as server:
        with pytest.raises((Unavailable, Rejected)):
            await tidemill.aconnect(f"{server.url}/elsewhere")


async def test_the_key_says_who_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with api_server(sqlite_url(tmp_path), access=Access) as server:
        created = await server.engine.create_key("ci", roles=["author", "operator"], actor="test")
        with pytest.raises(Rejected) as refused:
            await tidemill.aconnect(server.url)
        assert refused.value.code == "unauthenticated"
        with pytest.raises(Rejected) as refused:
            await tidemill.aconnect(server.url, "tm_wrong")
        assert refused.value.code == "credential_invalid"
        monkeypatch.setenv("TIDEMILL_KEY", created.key)
        monkeypatch.setenv("TIDEMILL_SERVER", server.url)
        async with tidemill.aconnect() as remote:
            await remote.publish(DOUBLE, author="somebody else")
            run = await remote.run("double", timeout=30)
            assert run.submitted_by == "key:ci"
            with pytest.raises(Rejected) as refused:
                await remote.create_key("more", roles=["admin"], actor="key:ci")
            assert refused.value.code == "not_allowed"


# Failures on the way


async def _runs(server: ApiServer) -> int:
    return await server.engine.count()


FAULTS: tuple[Fault, ...] = ("request", "reply", "late")


async def test_many_starts_are_all_or_none_also_over_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "BATCH", 3)
    async with (
        api_server(sqlite_url(tmp_path), work=False) as server,
        tidemill.aconnect(f"http://127.0.0.1:{server.port}") as remote,
    ):
        await server.publish(DOUBLE)
        with pytest.raises(Rejected) as refused:
            await remote.start_many("double", [*({"n": n} for n in range(7)), {"n": "x"}])
        assert [each.path for each in refused.value.problems] == ["/inputs/7/n"]
        assert await server.engine.count() == 0
        assert len(set(await remote.start_many("double", [{"n": n} for n in range(7)]))) == 7
        large = [{"n": n, "text": "x" * 250_000} for n in range(10)]
        assert len(await remote.start_many("double", large)) == 10, "together they are too large for one request"
        assert await server.engine.count() == 17


async def test_a_page_may_be_longer_than_a_server_answers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAGE", 3)
    async with api_server(sqlite_url(tmp_path), work=False) as server, tidemill.aconnect(server.url) as remote:
        await remote.publish(DOUBLE)
        await remote.start_many("double", [{"n": n} for n in range(8)])
        for limit in (2, 3, 7, 8, 501):
            assert await remote.find(limit=limit) == await server.engine.runs.find(limit=limit)
        started = await remote.audit(action="runs.start", limit=7)
        assert started == await server.engine.audit.find(action="runs.start", limit=7) and len(started[0]) == 7
        assert (await remote.bulk("cancel", "workflow:double", limit=5)).done == 5


async def test_an_action_on_more_runs_than_one_request_takes_is_that_of_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RUNS_MAX", 3)
    async with api_server(sqlite_url(tmp_path), work=False) as server, tidemill.aconnect(server.url) as remote:
        await remote.publish(DOUBLE)
        run_ids = await remote.start_many("double", [{"n": n} for n in range(8)])
        query, local = "workflow:double", server.engine
        for limit in (2, 3, 4, 7, 8, 5_000):
            given: dict[str, Any] = {"limit": limit, "dry_run": True}
            assert await remote.bulk("cancel", query, **given) == await local.bulk("cancel", query, **given)
            row = (await remote.find(limit=1))[0][0]
            named = [*run_ids, row, "unknown"]
            mine, theirs = [await each.bulk("pause", run_ids=named, **given) for each in (remote, local)]
            assert mine == theirs
        assert (await remote.bulk("cancel", "workflow:none", limit=5_000)).runs == ()
        for each in (remote, local):
            with pytest.raises(Rejected):
                await each.bulk("cancel", query, limit=0)
        outcome = await remote.bulk("cancel", query, limit=5_000)
        assert (outcome.done, outcome.more) == (8, False)


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_is_cut_off_happens_once(tmp_path: Path, fault: Fault) -> None:
    async with (
        api_server(sqlite_url(tmp_path), functions=[fails, says]) as server,
        proxied(server.port) as proxy,
        tidemill.aconnect(f"http://127.0.0.1:{proxy.port}") as remote,
    ):
        for document in (DOUBLE, FAULTY, ASKS, LISTENS):
            await server.publish(document)

        proxy.arm(fault, b"POST /api/v1/runs ")
        double = await remote.start("double", {"n": 3})
        assert await _runs(server) == 1
        proxy.arm(fault, b"POST /api/v1/runs/batch ")
        assert len(set(await remote.start_many("double", [{"n": n} for n in range(20)]))) == 20
        assert await _runs(server) == 21

        asks = await remote.start("asks")
        async for event in server.engine.follow(asks):
            if event["type"] == "ApprovalRequested":
                break
        proxy.arm(fault, b"/decide ")
        assert (await remote.decide(asks, "may", "approve", actor="local")).approval.decision == "approve"
        assert (await remote.result(asks, timeout=30)).ok
        decided = [event for event in await remote.events(asks) if event["type"] == "ApprovalDecided"]
        assert len(decided) == 1

        listens = await remote.start("listens")
        proxy.arm(fault, b"/signal ")
        await remote.signal(listens, "paid", 1)
        assert (await remote.result(listens, timeout=30)).ok
        assert [event["type"] for event in await remote.events(listens)].count("SignalReceived") == 1

        failed = await remote.start("faulty")
        await remote.result(failed, timeout=30)
        repair = [{"op": "replace", "path": "/nodes/a/config", "value": {"function": "says"}}]
        proxy.arm(fault, f"/runs/{failed}/patch ".encode())
        await remote.patch(failed, repair, retry=True)
        assert (await remote.result(failed, timeout=30)).revision == 1
        proxy.arm(fault, f"/runs/{failed}/fork ".encode())
        before = await _runs(server)
        await remote.fork(failed, node="a")
        assert await _runs(server) == before + 1

        proxy.arm(fault, b"/result")
        assert (await remote.result(double, timeout=30)).output == {"n": 6}
        assert proxy.fired == 7


async def test_what_cannot_be_repeated_is_not(tmp_path: Path) -> None:
    async with (
        api_server(sqlite_url(tmp_path)) as server,
        proxied(server.port) as proxy,
        tidemill.aconnect(f"http://127.0.0.1:{proxy.port}") as remote,
    ):
        await remote.publish(DOUBLE)
        await remote.patch_workflow("double", [{"op": "add", "path": "/description", "value": "new"}])
        await remote.tag("double", "stable", 1)
        await remote.tag("double", "stable", 2)
        proxy.arm("reply", b"/rollback ")
        with pytest.raises(Unavailable):
            await remote.rollback_tag("double", "stable")
        assert (await remote.tags("double"))["stable"] == 1


async def test_many_waits_do_not_hold_up_other_requests(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), work=False) as server, tidemill.aconnect(server.url) as remote:
        await remote.publish(SLEEPS)
        run_ids = await remote.start_many("sleeps", [{}] * 150)
        waiting = [asyncio.create_task(remote.result(run_id)) for run_id in run_ids]
        await asyncio.sleep(0.1)
        # As long as the server lets one of them wait, but for a moment.
        async with asyncio.timeout(runs.WAIT_S - 5):
            assert (await remote.show(run_ids[0])).status == "RUNNING"
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_result_and_follow_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    port = 0
    async with api_server(sqlite_url(tmp_path)) as server:
        port = server.port
        remote = await tidemill.aconnect(server.url)
        await server.publish(LISTENS)
        run_id = await remote.start("listens")
        seen: list[dict[str, Any]] = []
        waiting = asyncio.Event()

        async def follow() -> None:
            async for event in remote.follow(run_id):
                seen.append(event)
                if event["type"] == "NodeWaiting":
                    waiting.set()

        following, ending = asyncio.create_task(follow()), asyncio.create_task(remote.result(run_id))
        await waiting.wait()
    async with api_server(sqlite_url(tmp_path), port=port) as server:
        await server.engine.signal(run_id, "paid", 1)
        async with asyncio.timeout(60):
            assert (await ending).ok
            await following
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1]["type"] == "RunCompleted"
    await remote.close()


async def test_the_end_of_a_blob_is_sent_without_its_beginning_and_a_saved_blob_is_verified(tmp_path: Path) -> None:
    body = bytes(range(250)) * 12_000
    async with api_server(sqlite_url(tmp_path)) as server, tidemill.aconnect(server.url) as remote:
        digest = (await remote.put_blob(body))["$blob"]
        with sqlite3.connect(tmp_path / "store.db") as beside:
            beside.execute("UPDATE blob_pieces SET body = zeroblob(length(body)) WHERE number = 0")
        beside.close()
        part = await server.http.get(f"/blobs/{digest}", headers={"Range": "bytes=-3"})
        assert (part.status_code, part.content) == (206, body[-3:])
        with pytest.raises(BlobDamaged):
            await remote.save_blob(digest, io.BytesIO())
