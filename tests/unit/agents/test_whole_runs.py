"""Whole runs of agents with the built-in tools and a scripted model, on an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tests.fixtures.agent_tools import BENCH, OTHER
from tests.fixtures.servers.web import json_reply, redirect, web
from tests.unit.agents.test_hostile_model import CALLED, CORPUS, add, not_listed, patch, tools, wipe, with_url
from tidemill.agents.loop import TURN_BREAK
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.errors import Rejected
from tidemill.net.egress import Egress
from tidemill.security.grants import SecretGrant
from tidemill.settings import Settings

ROWS = [{"city": "Rome", "price": 120}, {"city": "Oslo", "price": 310}, {"city": "Bonn", "price": 90}]


def turn(*calls: tuple[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def with_agent(answers: list[Any], listed: list[Any], **config: Any) -> dict[str, Any]:
    """The workflow `bench` with an agent in it."""
    fields = {"provider": "scripted", "model": "m", "prompt": "Go.", "answers": answers, "tools": listed, **config}
    nodes = [{**node} for node in BENCH["nodes"]]
    nodes[1] = {"id": "agent", "type": "agent", "config": fields}
    return {**BENCH, "nodes": nodes}


@asynccontextmanager
async def engine(functions: Iterable[Callable[..., Any]] = ()) -> AsyncIterator[Engine]:
    settings = Settings(egress=Egress(allow=("127.0.0.1:*",)))
    async with engine_at("memory://", functions=list(functions), settings=settings) as made:
        await made.publish(OTHER)
        yield made


async def until(made: Engine, run_id: str, node: str, *statuses: str) -> Any:
    """Wait until a node has one of these statuses, or the run has ended; return the run."""
    for _ in range(3_000):
        state = (await made.context.entry(run_id)).state
        if state.peek(node).status in statuses or not state.live:
            break
        await asyncio.sleep(0.01)
    return await made.show(run_id)


async def test_a_hostile_model_in_a_whole_run() -> None:
    """Every action of the corpus, turn after turn: the agent ends, and nothing has happened."""
    CALLED.clear()
    async with web({"/open/redirect": redirect("/admin")}) as served, engine([wipe, not_listed]) as made:
        worst = [
            call
            for name, call in CORPUS.items()
            if call[0] != "wipe" and "secret" not in name and "{{" not in repr(call)
        ]
        answers = [turn((name, with_url(given, served.url("")))) for name, given in worst]
        document = with_agent([*answers, "I give up."], tools(served.url("")), max_turns=len(answers) + 5)
        await made.publish(document)
        run_id = await made.start("bench")
        view = await until(made, run_id, "agent", "COMPLETED", "FAILED")
        assert view.nodes["agent"]["status"] == "COMPLETED", view.nodes["agent"]["error"]
        output = view.nodes["agent"]["output"]
        assert output["text"] == "I give up."
        assert all(call.get("error") for call in output["tool_calls"])
        assert CALLED == []
        assert [asked.path for asked in served.asked if asked.path != "/open/redirect"] == []
        assert len(await made.versions("bench")) == 1
        assert (await made.document(run_id)).revision == 0
        rows, _ = await made.find()
        assert [row.run_id for row in rows] == [run_id]


async def test_an_agent_works_in_both_lanes() -> None:
    steps = [{"step": "table_filter", "condition": {"type": "cel", "expression": "output.price < 200"}}]
    policy = {"node_types": ["value"], "countersign": "never"}
    listed = ["execute_pipeline", {"name": "patch_workflow", "policy": policy}]
    answers = [
        turn(("execute_pipeline", {"pipeline": steps, "rows": {"$node": "start"}})),
        turn(patch(add("extra", config="more"))),
        "Done.",
    ]
    async with engine() as made:
        await made.publish(with_agent(answers, listed))
        run_id = await made.start("bench")
        view = await until(made, run_id, "extra", "COMPLETED", "FAILED")
        assert view.nodes["extra"]["output"] == "more"
        assert not any(call.get("error") for call in view.nodes["agent"]["output"]["tool_calls"])


async def test_a_patch_that_is_countersigned() -> None:
    policy = {"node_types": ["value"], "countersign": "always", "approvers": ["role:boss"]}
    answers = [turn(patch(add("extra", config="more"))), "Done."]
    async with engine() as made:
        await made.publish(with_agent(answers, [{"name": "patch_workflow", "policy": policy}]))
        run_id = await made.start("bench")
        await until(made, run_id, "agent", "WAITING")
        (asked,), _ = await made.approvals.find(["status:pending"])
        assert asked.node == "agent"
        shown = await made.approvals.show(run_id, "agent")
        assert "extra" in shown.to_dict()["description"]
        await made.decide(run_id, "agent", "approve", actor="ann", roles=["boss"])
        view = await until(made, run_id, "extra", "COMPLETED", "FAILED")
        assert view.nodes["extra"]["output"] == "more"


async def test_the_one_who_started_the_run_does_not_countersign_under_four_eyes() -> None:
    policy = {"node_types": ["value"], "countersign": "always", "four_eyes": True}
    async with engine() as made:
        answers = [turn(patch(add("extra", config="more"))), "Done."]
        await made.publish(with_agent(answers, [{"name": "patch_workflow", "policy": policy}]))
        run_id = await made.start("bench", submitted_by="ann")
        await until(made, run_id, "agent", "WAITING")
        with pytest.raises(Rejected) as refused:
            await made.decide(run_id, "agent", "approve", actor="ann")
        assert refused.value.code == "four_eyes"
        await made.decide(run_id, "agent", "approve", actor="bob")
        assert (await until(made, run_id, "extra", "COMPLETED", "FAILED")).nodes["extra"]["output"] == "more"


async def test_an_agent_publishes_so_many_versions_and_no_more() -> None:
    policy = {"node_types": ["value"], "scopes": ["workflow"], "countersign": "never", "max_versions_per_run": 2}
    answers = [turn(patch(add(f"extra{number}"), scope="workflow")) for number in range(4)]
    async with engine() as made:
        await made.publish(with_agent([*answers, "Done."], [{"name": "patch_workflow", "policy": policy}]))
        run_id = await made.start("bench")
        output = (await until(made, run_id, "agent", "COMPLETED", "FAILED")).nodes["agent"]["output"]
        errors = [call.get("error") for call in output["tool_calls"]]
        assert errors == [None, None, "versions_exhausted", "versions_exhausted"]
        assert len(await made.versions("bench")) == 3


async def test_a_person_who_agrees_has_to_choose_one_of_the_options() -> None:
    ask = turn(("ask_human", {"question": "Where to?", "options": ["Rome", "Oslo"]}))
    async with engine() as made:
        await made.publish(with_agent([ask, "Done."], [{"name": "ask_human", "four_eyes": True}]))
        run_id = await made.start("bench", submitted_by="ann")
        await until(made, run_id, "agent", "WAITING")
        for form in (None, {}, {"answer": "Bonn"}, {"answer": None}):
            with pytest.raises(Rejected) as refused:
                await made.decide(run_id, "agent", "approve", actor="bob", form=form)
            assert refused.value.code == "form_invalid"
            assert '"Rome" or "Oslo"' in refused.value.problems[0].message + refused.value.problems[0].hint
        with pytest.raises(Rejected) as refused:
            await made.decide(run_id, "agent", "approve", actor="ann", form={"answer": "Oslo"})
        assert refused.value.code == "four_eyes"
        await made.decide(run_id, "agent", "approve", actor="bob", form={"answer": "Oslo"})
        view = await until(made, run_id, "agent", "COMPLETED", "FAILED")
        assert view.nodes["agent"]["output"]["text"] == "Done."


async def test_the_texts_of_two_turns_are_parted_in_the_stream() -> None:
    search = {**turn(("search_tools", {"query": "invoices"})), "text": "I look."}
    async with engine() as made:
        await made.publish(with_agent([search, "Nothing there."], ["search_tools"], stream=True))
        async with aclosing(made.follow("one", live=True, awaited=True)) as events:
            # It is followed before it starts: no part is missed.
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            await made.start("bench", key="one")
            event, parts = await first, []
            while (event["type"], event.get("node")) != ("NodeCompleted", "agent"):
                event = await anext(events)
                parts += [event["value"]] if event["type"] == "NodeStreamed" else []
        assert "".join(parts) == f"I look.{TURN_BREAK}Nothing there."


async def test_an_agent_of_another_system_that_never_calls_back_is_a_result_for_the_model() -> None:
    async with web({"/far": json_reply({"callback": True}, 202)}) as served, engine() as made:
        keys = ["whsec_" + "a" * 44]
        far = {"far": {"url": served.url("/far"), "keys": keys, "timeout_seconds": 0.05}}
        listed = [{"name": "delegate_to_agent", "agents": far}]
        ask = turn(("delegate_to_agent", {"agent": "far", "task": "count"}))
        await made.publish(with_agent([ask, "I go on alone."], listed))
        run_id = await made.start("bench")
        output = (await until(made, run_id, "agent", "COMPLETED", "FAILED")).nodes["agent"]["output"]
        assert output["text"] == "I go on alone."
        assert output["tool_calls"] == [{"name": "delegate_to_agent", "error": "agent_late"}]


@pytest.mark.parametrize("workflow", ["other", "broken"])
async def test_an_agent_delegates_twice(workflow: str) -> None:
    ask = ("delegate_to_agent", {"agent": "clerk", "task": "count", "inputs": {"n": 3}})
    listed = [{"name": "delegate_to_agent", "agents": {"clerk": {"workflow": workflow}}}]
    async with engine() as made:
        await made.publish({"name": "broken", "nodes": [{"id": "f", "type": "fail", "config": {"message": "no"}}]})
        await made.publish(with_agent([turn(ask), turn(ask), "Done."], listed))
        run_id = await made.start("bench")
        view = await until(made, run_id, "agent", "COMPLETED", "FAILED")
        errors = [call.get("error", "") for call in view.nodes["agent"]["output"]["tool_calls"]]
        assert errors == (["", ""] if workflow == "other" else ["delegation_failed"] * 2)
        rows, _ = await made.find()
        children = {row.run_id for row in rows if row.parent == run_id}
        shown = await made.transcript(run_id, "agent")
        assert len(children) == 2 and {call.child for each in shown.turns for call in each.calls} == children


async def test_the_second_use_of_a_pipeline_makes_a_tool() -> None:
    def cheap(price: int) -> tuple[str, Any]:
        expression = f"output.price < {price}"
        steps = [{"step": "table_filter", "condition": {"type": "cel", "expression": expression}}]
        return "execute_pipeline", {"pipeline": steps, "rows": ROWS}

    answers = [turn(cheap(200)), turn(cheap(100)), "Done."]
    async with engine() as made:
        await made.publish(with_agent(answers, ["execute_pipeline"]))
        await until(made, await made.start("bench"), "agent", "COMPLETED", "FAILED")
        (tool,) = await made.tools.find()
        assert tool.parameters["properties"]["value"]["default"] == 200


async def test_a_researcher_is_a_child_run() -> None:
    async with web({"/facts": json_reply([{"n": 1}])}) as served, engine() as made:
        fetched = turn(("execute_pipeline", {"pipeline": [{"step": "http_request", "url": served.url("/facts")}]}))
        agent = {
            "builtin": "researcher",
            "provider": "scripted",
            "model": "m",
            "origins": [served.url("")],
            "answers": [fetched, "It is 1."],
        }
        listed = [{"name": "delegate_to_agent", "agents": {"research": agent}}]
        ask = ("delegate_to_agent", {"agent": "research", "task": "What is n?"})
        await made.publish(with_agent([turn(ask), "Thanks."], listed))
        run_id = await made.start("bench")
        view = await until(made, run_id, "agent", "COMPLETED", "FAILED")
        assert view.nodes["agent"]["output"]["tool_calls"] == [{"name": "delegate_to_agent"}]
        assert [asked.path for asked in served.asked] == ["/facts"]


async def test_a_session_remembers_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SECRET_MODEL", "the-key-of-the-model")
    settings = Settings(secrets={"MODEL": SecretGrant(("https://api.example.com",), ("*",))})
    answers = ["Your key is the-key-of-the-model."]
    config = {"provider": "scripted", "prompt": "Go.", "answers": answers, "session": "ann"}
    async with engine_at("memory://", settings=settings) as made:
        for more in ({"api_key": "{{ secrets.MODEL }}"}, {}):
            flow = {"name": "talk", "nodes": [{"id": "a", "type": "agent", "config": config | more}]}
            run = await made.run(flow)
            assert run.status == "COMPLETED", run.error
        memory = (await made.transcript(run.run_id, "a")).memory
    assert memory == [["user", "Go."], ["assistant", "Your key is ***."]]
