"""The loop of an agent: turns, tools, answers; what a crash, a retry, a fork and a wait leave of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fixtures.agents import Model, Tools, agent, at_work, of_agent, records, tags
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.killed_agents import run_with_kills
from tidemill.agents.conversation import restored
from tidemill.agents.tools import ToolResult
from tidemill.handlers.contract import Fail
from tidemill.handlers.llm.provider import OnText, Question, Reply
from tidemill.kernel.events import CompensationFailed, NodeAppended, NodeFailed
from tidemill.testing.cluster import Boundary, CrashPlan

ADD = {"add": {"a": 2, "b": 3}}
TURNS = 12


@simulated
async def test_an_agent_calls_tools_until_it_answers(mill: Cluster) -> None:
    model, tools = Model(ADD, {"add": {"a": 1}, "pay": {"amount": 7}}, "It is 5."), Tools()
    worker = await at_work(mill, model, tools)
    run = await worker.run(of_agent(instructions="Count."))
    assert run.status == "COMPLETED", run.error
    output = run.outputs["a"]
    assert (output["value"], output["text"], output["turns"], output["stopped"]) == ("It is 5.", "It is 5.", 3, "")
    assert output["preview"] == {"type": "string", "row_count": 1, "sample": "It is 5."}
    assert [call["name"] for call in output["tool_calls"]] == ["add", "add", "pay"]
    assert output["usage"] == {"input_tokens": 300, "output_tokens": 60, "cached_tokens": 180, "total_tokens": 360}
    assert (output["model"], output["cost"]) == ("tiny", None)
    assert model.asked == [0, 1, 2]
    assert await tags(mill, run.run_id) == "begin reply tool reply tool start tool reply"
    last = model.questions[-1].messages
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "tool"]
    assert [message["role"] for message in last] == roles


@simulated
async def test_the_prefix_has_the_same_bytes_in_all_turns_and_runs(mill: Cluster) -> None:
    model = Model(ADD, ADD, "done")
    worker = await at_work(mill, model)
    config: dict[str, Any] = {
        "instructions": "Count well.",
        "prompt": "Add {{ inputs.n }}",
        "examples": [{"prompt": "1 + 1", "answer": "2"}],
    }
    for n in (1, 2):
        await worker.run(of_agent(**config), {"n": n})
    prefixes = {msgspec.json.encode([question.messages[:3], question.tools]) for question in model.questions}
    assert len(model.questions) == 6 and len(prefixes) == 1
    assert {question.cache_key for question in model.questions} == {model.questions[0].cache_key}
    assert [question.messages[3]["content"] for question in model.questions[::3]] == ["Add 1", "Add 2"]


@simulated
async def test_results_of_earlier_nodes_come_as_previews(mill: Cluster) -> None:
    model = Model("ok")
    worker = await at_work(mill, model)
    rows = [{"n": n} for n in range(50)]
    await worker.run(document(node("rows", config=rows), agent("a", "rows")))
    prompt = model.questions[0].messages[-1]["content"]
    assert '"rows":{"row_count":50,"sample":[{"n":0},{"n":1},{"n":2}],"type":"table"}' in prompt


@simulated
async def test_a_wrong_call_comes_back_to_the_model(mill: Cluster) -> None:
    model = Model({"steal": {}}, {"add": {"a": "two"}}, {"add": "{not json"}, "I give up.")
    tools = Tools()
    worker = await at_work(mill, model, tools)
    run = await worker.run(of_agent(tools=["add"]))
    errors = [record.get("error") for record in await records(mill, run.run_id) if record["t"] == "tool"]
    assert errors == ["tool_not_allowed", "arguments_invalid", "arguments_invalid"]
    assert (run.status, tools.calls.total()) == ("COMPLETED", 0)


@simulated
async def test_tokens_are_streamed_and_only_the_text_is_stored(mill: Cluster) -> None:
    model = Model("one two three")
    worker = await at_work(mill, model)
    run_id = await worker.start(of_agent(stream=True))
    run = await worker.end(run_id)
    assert run.outputs["a"]["text"] == "one two three"
    assert model.questions[0].stream


# Long conversations


def wordy(count: int) -> list[dict[str, Any]]:
    """Calls whose arguments are long."""
    return [{"add": {"a": number, "b": 10**1_000 + number}} for number in range(count)]


def whole(model: Model) -> None:
    """Every question has the prompt, and every result belongs to a call in it."""
    for question in model.questions:
        messages = list(question.messages)
        assert messages[0]["role"] == "user" and messages[0]["content"].startswith("Go.")
        called = {call["id"] for message in messages for call in message.get("tool_calls", ())}
        assert {message["tool_call_id"] for message in messages if message["role"] == "tool"} == called


@simulated
async def test_the_oldest_turns_of_a_long_conversation_become_a_summary(mill: Cluster) -> None:
    model = Model(*wordy(30), "done")
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(prompt="Go.", max_turns=50, context_tokens=3_000))
    assert (run.status, run.outputs["a"]["turns"]) == ("COMPLETED", 31), run.error
    compactions = [record for record in await records(mill, run.run_id) if record["t"] == "compact"]
    assert 2 <= len(compactions) < 30
    assert all(len(record["text"]) < 9_000 for record in compactions)
    assert max(len(question.messages) for question in model.questions) < 20
    assert "call: add" in compactions[-1]["text"]
    assert (await mill.state(run.run_id)).spent.calls == 31, "no call is lost by it"
    shown = await worker.engine.transcript(run.run_id, "a")
    assert len(shown.turns) == 31 and any(
        "replaced by a summary" in note for turn in shown.turns for note in turn.notes
    )
    whole(model)


@simulated
async def test_a_model_that_finds_the_conversation_too_long_is_asked_a_shorter_one(mill: Cluster) -> None:
    class Narrow(Model):
        async def ask(self, question: Question, on_text: OnText) -> Reply:
            if len(question.messages) > 10:
                raise Fail("context_too_long", "at most 10 messages")
            return await super().ask(question, on_text)

    model = Narrow(*wordy(12), "done")
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(prompt="Go.", max_turns=50))
    assert (run.status, run.outputs["a"]["turns"]) == ("COMPLETED", 13), run.error
    assert len(model.asked) == 13
    whole(model)


@simulated
async def test_a_first_question_that_is_too_long_fails(mill: Cluster) -> None:
    worker = await at_work(mill, Model(Fail("context_too_long", "no")))
    run = await worker.run(of_agent(prompt="Go.", context_tokens=1_000))
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "context_too_long")


@simulated
async def test_every_part_of_a_compacted_log_can_be_continued(mill: Cluster) -> None:
    model = Model(*wordy(30), "done")
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(prompt="Go.", max_turns=50, context_tokens=3_000))
    log = tuple(await records(mill, run.run_id))
    for end in range(1, len(log)):
        # Whatever part of the log a crash leaves, it folds to a conversation that can be continued.
        messages = restored(log[:end]).messages
        called = {call["id"] for message in messages for call in message.get("tool_calls", ())}
        assert {message["tool_call_id"] for message in messages if message["role"] == "tool"} <= called


# Crashes


def _kills_after_every_call(model: Model, tools: Tools) -> CrashPlan:
    """The process dies when the first record after a call of the model or of a tool is committed."""
    seen = [0]

    def dies(boundary: Boundary) -> bool:
        calls = len(model.asked) + tools.calls.total()
        if boundary.when != "after" or "NodeAppended" not in boundary.about or calls == seen[0]:
            return False
        seen[0] = calls
        return True

    return CrashPlan(dies)


@simulated
async def test_killed_after_every_call_it_repeats_none(mill: Cluster) -> None:
    model, tools = Model(*[ADD, {"pay": {"amount": 1}}] * (TURNS // 2), "done"), Tools()
    plan = _kills_after_every_call(model, tools)
    worker, run_id = await run_with_kills(mill, model, tools, plan, of_agent(budget={"identical_calls": 50}))
    run = await worker.end(run_id)
    assert (run.status, run.outputs["a"]["value"]) == ("COMPLETED", "done")
    assert len(plan.crashes) >= 2 * TURNS
    assert model.asked == list(range(TURNS + 1)), "no call whose reply is in the log is made again"
    assert set(tools.calls.values()) == {1} and tools.calls.total() == TURNS


@simulated
async def test_a_call_that_is_lost_with_its_worker_is_made_again_and_counts(mill: Cluster) -> None:
    model = Model(ADD, "done", takes_s=1.0)
    first = await at_work(mill, model)
    run_id = await first.start(of_agent())
    await mill.until(lambda: model.flying == 1)
    first.kill()
    second = await at_work(mill, model, name="w2")
    run = await second.end(run_id)
    assert (run.status, model.asked) == ("COMPLETED", [0, 0, 1])
    assert await tags(mill, run_id) == "begin again reply tool reply"
    transcript = await second.engine.transcript(run_id, "a")
    assert (transcript.lost_calls, transcript.calls, len(transcript.turns)) == (1, 3, 2)
    assert (await mill.state(run_id)).spent.calls == 3


@simulated
async def test_a_tool_that_must_not_be_called_twice_is_not(mill: Cluster) -> None:
    model, tools = Model({"pay": {"amount": 7}}, "I do not know whether it was paid."), Tools()
    first = await at_work(mill, model, tools)
    run_id = await first.start(of_agent())
    await mill.until(lambda: tools.calls.total() == 1)
    first.kill()
    second = await at_work(mill, model, tools, name="w2")
    run = await second.end(run_id)
    assert (run.status, tools.calls.total()) == ("COMPLETED", 1)
    (result,) = [record for record in await records(mill, run_id) if record["t"] == "tool"]
    assert (result["error"], result["unknown"]) == ("unknown_outcome", True)
    assert "may have happened" in model.questions[-1].messages[-1]["content"]


@simulated
async def test_a_drained_worker_leaves_the_rest_to_one_that_knew_the_run_before(mill: Cluster) -> None:
    """The second worker has seen the run without its later records: it must not go on from what it knows."""
    model, tools = Model(ADD, ADD, ADD, "done", takes_s=2.0), Tools()
    first = await at_work(mill, model, tools, grace_ms=0)
    run_id = await first.start(document(node("early"), agent("a", "early")))
    second = await at_work(mill, model, tools, name="w2")
    await second.engine.show(run_id)
    await mill.until(lambda: len(model.asked) == 3)
    await first.stop()
    run = await second.end(run_id)
    assert run.status == "COMPLETED"
    assert sorted(set(model.asked)) == [0, 1, 2, 3] and model.asked.count(0) == model.asked.count(1) == 1


# Failures, retries, forks


@simulated
async def test_a_retry_goes_on_behind_what_is_in_the_log(mill: Cluster) -> None:
    model = Model(ADD, ADD, Fail("auth_failed", "the key is wrong"))
    worker = await at_work(mill, model)
    run_id = await worker.start(of_agent())
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "auth_failed")
    model.script = (ADD, ADD, "done")
    await worker.engine.retry(run_id)
    run = await worker.end(run_id)
    assert (run.status, model.asked) == ("COMPLETED", [0, 1, 2, 2])
    assert "failed again reply" in await tags(mill, run_id)


@simulated
async def test_a_call_that_may_succeed_later_is_made_again_within_the_attempt(mill: Cluster) -> None:
    busy = Fail("rate_limited", "too many requests", retryable=True, retry_after_ms=3_000)
    model = Model(busy, "done")
    worker = await at_work(mill, model)
    run_id = await worker.start(of_agent())
    await mill.until(lambda: len(model.asked) == 1)
    model.script = ("done",)
    run = await worker.end(run_id)
    assert (run.status, model.asked) == ("COMPLETED", [0, 0])
    assert await tags(mill, run_id) == "begin failed again reply"
    assert await mill.of(run_id, NodeFailed) == []
    (turn,) = (await worker.engine.transcript(run_id, "a")).turns
    assert [failed.code for failed in turn.failed] == ["rate_limited"]


@simulated
async def test_a_fork_shares_the_turns_before_it(mill: Cluster) -> None:
    model = Model(ADD, ADD, ADD, "done")
    worker = await at_work(mill, model)
    run_id = await worker.start(of_agent())
    await worker.end(run_id)
    second_reply = [event for event in await mill.events(run_id) if isinstance(event, NodeAppended)][3]
    at = (await mill.events(run_id)).index(second_reply) + 1
    model.asked.clear()
    fork_id = await worker.engine.fork(run_id, at=at)
    fork = await worker.end(fork_id)
    assert (fork.status, model.asked) == ("COMPLETED", [2, 3])
    shown = await worker.engine.transcript(fork_id, "a")
    assert [turn.number for turn in shown.turns] == [1, 2, 3, 4]


@simulated
async def test_showing_and_replaying_a_run_asks_no_model(mill: Cluster) -> None:
    model = Model(ADD, "done")
    worker = await at_work(mill, model)
    run = await worker.run(of_agent())
    model.asked.clear()
    await worker.engine.show(run.run_id, at=5)
    await worker.engine.transcript(run.run_id, "a")
    await worker.engine.fork(run.run_id, node="a", at=3, key="again")
    await worker.end("again")
    assert model.asked == [0, 1], "only a node that runs again asks"


# Waits


@simulated
async def test_a_tool_that_waits_for_a_person_goes_on_with_the_decision(mill: Cluster) -> None:
    model, tools = Model({"ask": {}}, "thanks"), Tools()
    first = await at_work(mill, model, tools)
    run_id = await first.start(of_agent())
    await mill.until(lambda: tools.calls.total() == 1)
    await asyncio.sleep(1)
    first.kill()
    second = await at_work(mill, model, tools, name="w2")
    await second.engine.decide(run_id, "a", "approve", actor="ann", comments="go on")
    run = await second.end(run_id)
    assert (run.status, model.asked) == ("COMPLETED", [0, 1])
    assert await tags(mill, run_id) == "begin reply wait tool reply"
    assert '"comments":"go on"' in model.questions[-1].messages[-1]["content"]
    assert sorted(key.partition(" ")[0] for key in tools.calls) == ["answered", "ask"]


@simulated
async def test_several_children_of_one_visit_and_one_that_fails(mill: Cluster) -> None:
    model, tools = Model({"delegate": {}}, {"delegate": {}}, "both are back"), Tools()
    worker = await at_work(mill, model, tools)
    await worker.publish({"name": "kid", "nodes": [{"id": "k", "type": "value", "config": {"n": 1}}]})
    run_id = await worker.start(of_agent())
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    assert {row.run_id for row in await mill.rows()} == {run_id, f"{run_id}.a.1.c1-0", f"{run_id}.a.1.c2-0"}
    await worker.publish({"name": "kid", "nodes": [{"id": "k", "type": "fail", "config": {"message": "no"}}]})
    run = await worker.run(of_agent())
    assert run.status == "COMPLETED"
    assert "$child_failed" in model.questions[-1].messages[-1]["content"]


# The end


@simulated
async def test_an_answer_that_does_not_suit_the_schema_is_asked_for_again(mill: Cluster) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    model = Model('{"n": "one"}', '```json\n{"n": 1}\n```')
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(output_schema=schema))
    assert (run.outputs["a"]["value"], model.asked) == ({"n": 1}, [0, 1])
    model.script = ("never",)
    run = await worker.run(of_agent(output_schema=schema))
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "output_invalid")


@pytest.mark.parametrize("schema", [None, {"type": "object"}])
@simulated
async def test_an_answer_that_was_cut_short_says_so(mill: Cluster, schema: Any) -> None:
    class Cut(Model):
        async def ask(self, question: Question, on_text: OnText) -> Reply:
            return msgspec.structs.replace(await super().ask(question, on_text), finish_reason="length")

    model = Cut('{"depth": 4')
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(**({} if schema is None else {"output_schema": schema})))
    assert len(model.asked) == 1, "another answer would be cut, too"
    if schema is None:
        assert (run.status, run.outputs["a"]["stopped"]) == ("COMPLETED", "max_tokens")
    else:
        error = run.nodes["a"]["error"]
        assert (error["code"], "max_tokens" in error["hint"]) == ("output_invalid", True)


@simulated
async def test_turns_and_time_are_limited(mill: Cluster) -> None:
    model = Model(*({"add": {"a": n}} for n in range(50)), takes_s=10.0)
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(max_turns=4))
    assert (run.nodes["a"]["error"]["code"], len(model.asked)) == ("max_turns_exceeded", 4)
    run = await worker.run(of_agent(timeout_sec=35))
    assert (run.nodes["a"]["error"]["code"], len(model.asked)) == ("agent_timeout", 4 + 4)


@simulated
async def test_calls_at_the_same_time_take_as_long_as_the_longest(mill: Cluster) -> None:
    """Or an agent that has waited for a person would find its time used up."""
    tools = Tools()

    async def slow(context: Any, arguments: dict[str, Any]) -> ToolResult:
        await asyncio.sleep(10 + arguments.get("a", 0))
        return ToolResult(content=arguments)

    tools._add = slow  # type: ignore[method-assign]
    model = Model([("add", {"a": number}) for number in range(10)], {"ask": {}}, "done")
    worker = await at_work(mill, model, tools)
    run_id = await worker.start(of_agent(timeout_seconds=60))
    await mill.until(lambda: worker.cached(run_id) is not None and worker.cached(run_id).peek("a").status == "WAITING")
    await worker.engine.decide(run_id, "a", "approve", actor="ann")
    assert (await worker.end(run_id)).status == "COMPLETED"
    shown = await worker.engine.transcript(run_id, "a")
    assert 19_000 <= shown.duration_ms < 20_000
    assert [call.duration_ms for call in shown.turns[0].calls] == [1_000 * (10 + number) for number in range(10)]


@simulated
async def test_the_same_call_again_and_again_is_refused_and_then_ends_the_agent(mill: Cluster) -> None:
    model, tools = Model(ADD), Tools()
    worker = await at_work(mill, model, tools)
    run = await worker.run(of_agent(budget={"identical_calls": 2}))
    assert (run.nodes["a"]["error"]["code"], tools.calls.total()) == ("identical_calls_exceeded", 2)
    assert len(model.asked) == 5


# Routes

BRANCH = {"type": "agent_driven", "available_next_nodes": ["x", "y"], "default": ["z"]}


@simulated
async def test_calls_at_the_same_time_count_like_others(mill: Cluster) -> None:
    model, tools = Model([("add", {"a": 1})] * 5, [("add", {"a": n}) for n in range(9)], "Done."), Tools()
    worker = await at_work(mill, model, tools)
    run = await worker.run(of_agent(tools=[{"name": "add", "max_calls": 8}]))
    errors = [call.get("error") for call in run.outputs["a"]["tool_calls"]]
    same, exhausted = ["identical_call"] * 2, ["tool_calls_exhausted"] * 6
    assert errors == [None] * 3 + same + [None] * 3 + exhausted
    assert tools.calls.total() == 6


@simulated
async def test_a_reply_with_very_many_calls_is_refused(mill: Cluster) -> None:
    model, tools = Model([("add", {"a": n}) for n in range(257)]), Tools()
    worker = await at_work(mill, model, tools)
    run = await worker.run(of_agent())
    assert (run.status, run.error["code"], tools.calls.total()) == ("FAILED", "too_many_calls", 0)
    assert await tags(mill, run.run_id) == "begin failed"
    assert len(model.asked) == 1, "it is not retried: that would spend again"


def routed(**config: Any) -> Any:
    return document(agent(_branch=BRANCH, **config), *(node(name, "a") for name in "xyz"))


@pytest.mark.parametrize(
    ("script", "taken"),
    [
        (({"choose_next_nodes": {"next_nodes": ["x", "y"], "reason": "both fit"}}, "done"), ["x", "y"]),
        (('{"next_nodes": ["y"], "reasoning": "it fits"}',), ["y"]),
        (("nothing fits",), ["z"]),
    ],
)
@simulated
async def test_the_model_chooses_among_the_edges(mill: Cluster, script: Any, taken: list[str]) -> None:
    model = Model(*script)
    worker = await at_work(mill, model)
    run = await worker.run(routed())
    assert run.status == "COMPLETED", run.error
    assert [name for name in "xyz" if run.nodes[name]["status"] == "COMPLETED"] == taken
    (tool,) = [tool for tool in model.questions[0].tools if tool.name == "choose_next_nodes"]
    assert tool.parameters["properties"]["next_nodes"]["items"] == {"enum": ["x", "y"]}
    if taken == ["x", "y"]:
        (step,) = [step for step in await worker.engine.path(run.run_id) if step["node"] == "a"]
        assert "both fit" in step["why"]


@pytest.mark.parametrize(
    "answer", [{"choose_next_nodes": {"next_nodes": ["z"], "reason": "?"}}, '{"next_nodes": ["admin"]}']
)
@simulated
async def test_a_route_that_is_not_offered_fails_the_node(mill: Cluster, answer: Any) -> None:
    model = Model(answer, "done")
    worker = await at_work(mill, model)
    run = await worker.run(routed())
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "route_not_allowed")
    assert all(run.nodes[name]["status"] != "COMPLETED" for name in "xyz")


# What it writes


@simulated
async def test_200_turns_write_at_most_three_times_the_transcript(mill: Cluster) -> None:
    model = Model(*({"add": {"a": n, "b": 1}} for n in range(200)), "done")
    worker = await at_work(mill, model)
    run = await worker.run(of_agent())
    assert run.outputs["a"]["turns"] == 201
    (tail,) = await mill.store.load({mill.stream(run.run_id): 0}, snapshots=False)
    written = sum(map(len, tail.records))
    transcript = await worker.engine.transcript(run.run_id, "a")
    assert written <= 3 * len(msgspec.json.encode(transcript))
    assert transcript.tool_calls == 200


@simulated
async def test_an_agent_is_no_compensator(mill: Cluster) -> None:
    model = Model("undone")
    worker = await at_work(mill, model)
    undo = {"type": "agent", "config": agent()["config"]}
    flow = document(node("a", type="value", compensator=undo), node("b", "a", type="fail", config={"kind": "boom"}))
    run = await worker.run(flow | {"on_failure": {"compensate": "automatic"}})
    await asyncio.sleep(60)
    (failed,) = await mill.of(run.run_id, CompensationFailed, "a")
    assert failed.error.code == "answer_invalid" and failed.retry_at_ms is None and model.asked == []


@simulated
async def test_other_spellings_of_the_settings_are_read(mill: Cluster) -> None:
    model = Model(ADD, "done")
    worker = await at_work(mill, model)
    config = {"provider": "scripted", "answers": ["-"]}
    config |= {"available_tools": ["add"], "timeout_sec": 60, "session_id": "s"}
    run = await worker.run(document(node("a", type="agent", agent_config=config)))
    assert (run.status, model.asked) == ("COMPLETED", [0, 1])


@simulated
async def test_an_agent_of_a_paused_run_asks_no_model_until_it_goes_on(mill: Cluster) -> None:
    model = Model(*[{"add": {"a": number}} for number in range(8)], "done", takes_s=1.0)
    worker = await at_work(mill, model)
    run_id = await worker.start(of_agent())
    await mill.until(lambda: len(model.asked) == 3)
    await worker.engine.pause(run_id)
    await asyncio.sleep(120)
    assert (model.asked, (await worker.engine.show(run_id)).status) == ([0, 1, 2], "PAUSED")
    await worker.engine.resume(run_id)
    run = await worker.end(run_id)
    assert (run.status, model.asked) == ("COMPLETED", list(range(9)))
    assert (run.spent["calls"], (await mill.state(run_id)).reserved.calls) == (9, 0), "nothing was lost"
    assert (await worker.engine.transcript(run_id, "a")).lost_calls == 0


@simulated
async def test_an_agent_paused_while_a_call_fails_makes_it_again_later(mill: Cluster) -> None:
    model = Model(Fail("rate_limited", "busy", retryable=True, retry_after_ms=2_000), takes_s=1.0)
    worker = await at_work(mill, model)
    run_id = await worker.start(of_agent())
    await mill.until(lambda: model.flying == 1)
    await worker.engine.pause(run_id)
    await asyncio.sleep(60)
    assert model.asked == [0]
    model.script = ("done",)
    await worker.engine.resume(run_id)
    run = await worker.end(run_id)
    assert (run.status, model.asked, run.spent["calls"]) == ("COMPLETED", [0, 0], 2)
