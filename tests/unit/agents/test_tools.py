"""Tools: the allow-list, the check of a call, errors for the model, confirmation, large results, functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

import tidemill
from tests.fixtures.agent_tools import code, content, workbench
from tests.fixtures.handler_harness import context
from tests.fixtures.servers.web import json_reply, web
from tidemill.agents.builtin import lanes_text, parameters_of
from tidemill.agents.tools import (
    ARGUMENTS_BYTES_MAX,
    RESULT_BYTES_MAX,
    Allowance,
    Effect,
    Ended,
    Pending,
    Tool,
    ToolContext,
    ToolRegistry,
    ToolResult,
    ToolSource,
    allowances,
    preview_of,
)
from tidemill.engine.agents.agent_port import EngineAgentPort
from tidemill.errors import Rejected, Unavailable
from tidemill.handlers.contract import Cancelled, Fail, NodeContext
from tidemill.security.masking import NO_MASK, Mask

POLICY = {"policy": {"node_types": ["value"]}}


def source(name: str, call: Any = None, *, settings: Any = True, templated: tuple[str, ...] = (), **more: Any) -> Any:
    async def gives(context: ToolContext, arguments: dict[str, Any]) -> Ended:
        return ToolResult(content=arguments)

    async def make(allowance: Allowance, context: NodeContext) -> tuple[Tool, ...]:
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        given: dict[str, Any] = {"description": name, "parameters": parameters, "call": call or gives}
        return (Tool(name=name, **(given | more)),)

    return ToolSource(name, make, settings, templated=templated)


async def opened(*sources: Any, tools: list[Any] | None = None) -> Any:
    registry = ToolRegistry(sources)
    listed = [each.name for each in sources] if tools is None else tools
    return await registry.open(listed, context({"tools": listed}))


class PlainPort:
    """A port of an attempt that has read no secrets, and where nothing is recorded."""

    async def begin(self) -> None: ...

    def masked(self, value: Any) -> Any:
        return value


def call_context() -> ToolContext:
    port: Any = PlainPort()
    return ToolContext(node=context(), port=port, call_id="c", key="r/n/1/-1/1.0", begin=port.begin)


def prepared(toolbox: Any, name: str, text: str, used: int = 0) -> Any:
    return toolbox.prepare(name, text, used)


async def test_only_what_is_listed_exists() -> None:
    toolbox = await opened(source("one"), source("two"), tools=["two"])
    assert [tool.name for tool in toolbox.tools] == ["two"]
    refused = prepared(toolbox, "one", '{"n": 1}')
    assert refused.error == "tool_not_allowed"
    assert prepared(toolbox, "nonsense", "{}").content["error"]["hint"] == refused.content["error"]["hint"]
    assert (await opened(tools=[])).prepare("one", "{}").error == "tool_not_allowed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "a list"),
        ('"n"', "a string"),
        ('{"n": "x"}', "do not fit"),
        ("{}", "do not fit"),
        ("", "do not fit"),
        ("[" * 100_000, "not JSON"),
        ('{"n": 1, "x": "\ud800"}', ""),
        (" " * (ARGUMENTS_BYTES_MAX + 1), "more than"),
    ],
    ids=range(9),
)
async def test_arguments_that_do_not_fit_come_back(text: str, said: str) -> None:
    refused = prepared(await opened(source("one")), "one", text)
    if said:
        assert refused.error == "arguments_invalid"
        assert said in msgspec.json.encode(refused.content).decode()


async def test_a_number_of_calls() -> None:
    toolbox = await opened(source("one", max_calls=3), source("two"), tools=["one", {"name": "two", "max_calls": 1}])
    assert prepared(toolbox, "one", '{"n": 1}', used=2).tool.name == "one"
    assert prepared(toolbox, "one", '{"n": 1}', used=3).error == "tool_calls_exhausted"
    assert prepared(toolbox, "two", '{"n": 1}', used=1).error == "tool_calls_exhausted"


@pytest.mark.parametrize(
    ("tools", "found"),
    [
        (["one", "not-a-name"], "tool_unknown"),
        (["one", "sett"], "tool_unknown"),
        (["one", "one"], "tool_twice"),
        ([{"name": "set", "x": 1}], "config_invalid"),
        ([{"name": "set", "y": "{{ inputs.y }}"}], "tool_not_constant"),
        ([{"name": "{{ inputs.tool }}"}], "tool_not_constant"),
        ("{{ inputs.tools }}", "tool_not_constant"),
        ([{"name": "one", "approvers": ["{{ inputs.who }}"]}], "tool_not_constant"),
        ([{"name": "one", "confirm": "{{ inputs.sure }}"}], "tool_not_constant"),
    ],
)
def test_problems_of_an_allow_list(tools: Any, found: str) -> None:
    settings = {"type": "object", "properties": {"y": {"type": "string"}}, "additionalProperties": False}
    registry = ToolRegistry([source("one"), source("set", settings=settings)])
    assert [each.code for each in registry.problems(tools)] == [found]


async def test_a_templated_setting_is_allowed_where_the_tool_says_so() -> None:
    registry = ToolRegistry([source("one", templated=("key",))])
    assert registry.problems([{"name": "one", "key": "{{ secrets.KEY }}"}]) == []


@pytest.mark.parametrize(
    ("raised", "error", "unknown"),
    [
        (Fail("no", "it is not there", hint="look elsewhere"), "no", False),
        (Fail("late", "cut", unknown_outcome=True), "late", True),
        (ValueError("foreign"), "tool_failed", True),
        (tidemill.Rejected([tidemill.Problem(code="bad", message="no")]), "bad", False),
    ],
)
async def test_what_a_tool_raises_comes_back(raised: Exception, error: str, unknown: bool) -> None:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> Ended:
        raise raised

    toolbox = await opened(source("one", call))
    ended = await toolbox.call(prepared(toolbox, "one", '{"n": 1}'), call_context())
    assert (ended.error, ended.unknown_outcome) == (error, unknown)
    assert "error" in msgspec.json.decode(ended.text)


@pytest.mark.parametrize("raised", [Unavailable("no store"), Cancelled("over")])
async def test_an_outage_ends_the_attempt(raised: Exception) -> None:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> Ended:
        raise raised

    toolbox = await opened(source("one", call))
    with pytest.raises(type(raised)):
        await toolbox.call(prepared(toolbox, "one", '{"n": 1}'), call_context())


async def test_a_destructive_call_is_confirmed_by_a_person() -> None:
    toolbox = await opened(source("drop", effect=Effect(destructive=True)))
    call = prepared(toolbox, "drop", '{"n": 1}')
    asked = await toolbox.call(call, call_context())
    assert isinstance(asked, Pending) and asked.wait.approval is not None
    assert '"n":1' in asked.wait.approval.description
    refused = await toolbox.resume(call, call_context(), asked.state, {"decision": "reject", "comments": "never"})
    assert refused.error == "not_confirmed" and "never" in refused.text
    done = await toolbox.resume(call, call_context(), asked.state, {"decision": "approve", "comments": ""})
    assert done.content == {"n": 1}


async def test_a_person_reads_the_whole_call_or_is_not_asked() -> None:
    """What lies behind the end of the text that a person reads could be anything."""
    drop = source("drop", effect=Effect(destructive=True), parameters={"type": "object"})
    toolbox = await opened(drop)
    for length, is_asked in ((15_000, True), (17_000, False)):
        text = msgspec.json.encode({"a": "x" * length, "z": "everything"}).decode()
        ended = await toolbox.call(prepared(toolbox, "drop", text), call_context())
        assert isinstance(ended, Pending) is is_asked
        if is_asked:
            assert "everything" in ended.wait.approval.description
        else:
            assert ended.error == "arguments_invalid" and "a person has to read" in ended.text


async def test_an_author_decides_on_confirmation() -> None:
    sources = source("drop", effect=Effect(destructive=True)), source("read")
    tools = [{"name": "drop", "confirm": False}, {"name": "read", "confirm": True, "approvers": ["role:boss"]}]
    toolbox = await opened(*sources, tools=tools)
    assert isinstance(await toolbox.call(prepared(toolbox, "drop", '{"n": 1}'), call_context()), ToolResult)
    asked = await toolbox.call(prepared(toolbox, "read", '{"n": 1}'), call_context())
    assert asked.wait.approval.approvers == ("role:boss",)


async def test_a_blob_of_too_many_values_is_not_decoded() -> None:
    """Four megabytes of text, which would be hundreds of megabytes of lists."""
    async with workbench("execute_pipeline") as bench:
        stored = await bench.engine.blobs.put(b"[" + b"[]," * 1_200_000 + b"[]]", media_type="application/json")
        port = EngineAgentPort(
            bench.engine.for_tenant(bench.engine.context.tenant, audited=True),
            bench.node.run_id,
            "agent",
            lambda: NO_MASK,
            partial(bench.engine.context.blobs.get, bench.engine.context.tenant),
        )
        with pytest.raises(Rejected, match="so many values"):
            await port.read_blob(stored)


async def test_a_large_result_is_a_reference_with_a_preview() -> None:
    rows = [{"city": "Rome", "text": "x" * 100}] * 500
    async with workbench("execute_pipeline") as bench:
        pipeline = [{"step": "top_k", "k": 500}]
        shown = content(await bench.call("execute_pipeline", pipeline=pipeline, rows=rows))
        assert shown["preview"]["row_count"] == 500 and "rows" not in shown
        assert await bench.port.read_blob(shown["reference"]) == rows
        two = [{"step": "top_k", "k": 2}]
        again = content(await bench.call("execute_pipeline", pipeline=two, rows=shown["reference"]))
        assert again["rows"] == rows[:2]


async def test_any_large_result_becomes_a_blob() -> None:
    @tidemill.tool(read_only=True)
    def long() -> str:
        return "x" * (RESULT_BYTES_MAX + 1)

    async with workbench("long", functions=[long]) as bench:
        ended = await bench.call("long")
        assert isinstance(ended, ToolResult) and ended.reference is not None
        assert ended.content["preview"]["type"] == "string"
        assert len(ended.text) < 2_000


def test_previews() -> None:
    assert preview_of([{"a": 1}] * 9) == {"type": "table", "row_count": 9, "sample": [{"a": 1}] * 3}
    assert preview_of([1, 2]) == {"type": "array", "row_count": 2, "sample": [1, 2]}
    assert preview_of(True)["type"] == "boolean"
    assert len(msgspec.json.encode(preview_of([{"a": "x" * 10**6, "b": ["y" * 10**6]}]))) < 3_000


async def test_functions_are_tools() -> None:
    @tidemill.tool("weigh", idempotent=True)
    async def weigh_it(city: str, factor: float = 2.0) -> float:
        """Weigh a city."""
        return len(city) * factor

    async with workbench("weigh", functions=[weigh_it]) as bench:
        (tool,) = bench.toolbox.tools
        assert (tool.description, tool.effect.repeatable) == ("Weigh a city.", True)
        assert content(await bench.call("weigh", city="Rome")) == 8.0
        assert code(await bench.call("weigh", town="Rome")) == "arguments_invalid"
        assert code(await bench.call("weigh", city=1)) == "arguments_invalid"


@pytest.mark.parametrize("name", ["shop.stock", "two words", "größe", "x" * 65])
def test_a_name_that_providers_refuse_is_refused_at_once(name: str) -> None:
    with pytest.raises(TypeError, match="cannot be the name of a tool"):
        tidemill.tool(name)(lambda: None)
    with pytest.raises(TypeError, match="<lambda>"):
        tidemill.tool(lambda: None)


def test_parameters_follow_from_type_hints() -> None:
    def search(words: list[str], limit: int = 3, context: Any = None, **rest: Any) -> None: ...

    schema = parameters_of(search)
    assert schema["required"] == ["words"]
    words = {"type": "array", "items": {"type": "string"}}
    assert schema["properties"] == {"words": words, "limit": {"type": "integer"}}


async def test_the_text_of_the_lanes_is_the_same_every_time() -> None:
    tools = ("execute_pipeline", {"name": "patch_workflow", **POLICY}, "ask_human")
    async with workbench(*tools) as one, workbench(*tools) as two:
        texts = [lanes_text(bench.toolbox.tools).encode() for bench in (one, two)]
        assert texts[0] == texts[1]
        assert b"execute_pipeline" in texts[0] and b"patch_workflow" in texts[0]
        shown = [[(tool.name, tool.description, tool.parameters) for tool in each.toolbox.tools] for each in (one, two)]
        assert msgspec.json.encode(shown[0]) == msgspec.json.encode(shown[1])
    assert lanes_text(()) == ""


def test_allowances_of_words_and_objects() -> None:
    plain, full = allowances(["a", {"name": "b", "confirm": True, "max_calls": 2, "x": 1}])
    assert plain == Allowance(name="a")
    assert full == Allowance(name="b", confirm=True, max_calls=2, settings={"x": 1})


async def test_a_person_is_asked() -> None:
    async with workbench({"name": "ask_human", "approvers": ["user:ann"]}) as bench:
        question = {"question": "Which?", "options": ["a", "b"]}
        pending = await bench.call("ask_human", question)
        assert isinstance(pending, Pending) and pending.wait.approval is not None
        assert pending.wait.approval.approvers == ("user:ann",)
        resumed = {"decision": "approve", "comments": "", "decided_by": "user:ann", "form": {"answer": "b"}}
        answered = content(await bench.resume("ask_human", question, pending, resumed))
        assert answered == {"decision": "approve", "answer": "b"}


async def test_a_workflow_is_started_once() -> None:
    async with workbench({"name": "start_workflow", "workflows": ["other"]}) as bench:
        first = content(await bench.call("start_workflow", workflow="other", inputs={"n": 1}))
        again = content(await bench.again("start_workflow", workflow="other", inputs={"n": 1}))
        assert first == again
        assert (await bench.engine.result(first["run_id"], timeout=30)).status == "COMPLETED"
        assert code(await bench.call("start_workflow", workflow="bench")) == "workflow_not_allowed"
        assert code(await bench.call("start_workflow", workflow="other@1")) == "workflow_not_allowed"
        assert code(await bench.call("start_workflow", workflow="other", inputs={"n": "x"})) == "inputs_invalid"


async def test_search_respects_the_allow_list() -> None:
    tools = ["search_tools", {"name": "start_workflow", "workflows": ["other"]}]
    async with workbench(*tools) as bench:
        found = content(await bench.call("search_tools", query="send invoices"))["found"]
        assert [(each["kind"], each["name"]) for each in found] == [("workflow", "other")]
        assert found[0]["parameters"]["properties"] == {"n": {"type": "integer"}}
        assert content(await bench.call("search_tools", query="bench"))["found"] == []
    async with workbench("search_tools") as bench:
        assert content(await bench.call("search_tools", query="send invoices"))["found"] == []


async def test_search_names_each_tool_of_a_server() -> None:
    """An entry of the allow-list such as `mcp` stands for tools that the model calls by other names."""
    sources = [source("desk-ticket", description="Open a ticket."), source("desk-report", description="Send a report.")]

    async def make(allowance: Allowance, context: NodeContext) -> list[Tool]:
        return [tool for each in sources for tool in await each.make(allowance, context)]

    async with workbench("search_tools") as bench:
        bench.registry.add(ToolSource("desk", make))
        bench.toolbox = await bench.registry.open(["search_tools", "desk"], bench.node)
        found = content(await bench.call("search_tools", query="ticket"))["found"]
        assert [(each["kind"], each["name"]) for each in found] == [("function", "desk-ticket")]


async def test_agents_cannot_start_runs_of_runs_for_ever() -> None:
    """Started runs have no parent, so no limit of descendants counts them."""
    async with workbench({"name": "start_workflow", "workflows": ["other"]}) as bench:
        for depth in range(1, 6):
            ended = await bench.call("start_workflow", workflow="other", inputs={"n": depth})
            if depth == 5:
                assert code(ended) == "child_too_deep"
                break
            run_id = content(ended)["run_id"]
            services = bench.engine.for_tenant(bench.engine.context.tenant, audited=True)
            bench.port = EngineAgentPort(services, run_id, "agent", lambda: NO_MASK)


async def test_a_result_that_is_not_json_comes_back_as_an_error() -> None:
    @tidemill.tool
    def odd() -> object:
        return object()

    async with workbench("odd", functions=[odd]) as bench:
        assert code(await bench.call("odd")) == "output_not_json"


async def test_a_secret_that_a_service_repeats_does_not_reach_the_model() -> None:
    async with web({"/me": json_reply([{"you": "Bearer t0ken-secret"}])}) as served:
        auth = {served.url(""): {"bearer": "t0ken-secret"}}
        tool = {"name": "execute_pipeline", "origins": [served.url("")], "auth": auth}
        async with workbench(tool) as bench:
            bench.port._mask = lambda: Mask(["t0ken-secret"])
            ended = await bench.call("execute_pipeline", pipeline=[{"step": "http_request", "url": served.url("/me")}])
            assert served.asked[0].headers["authorization"] == "Bearer t0ken-secret"
            assert content(ended)["rows"] == [{"you": "Bearer ***"}]
            assert await bench.port.read_blob(content(ended)["reference"]) == [{"you": "Bearer ***"}]


@pytest.mark.parametrize("tool", ["start_workflow", "delegate_to_agent"])
async def test_a_blob_of_others_cannot_be_passed_on(tool: str) -> None:
    tools = [
        {"name": "start_workflow", "workflows": ["other"]},
        {"name": "delegate_to_agent", "agents": {"clerk": {"workflow": "other"}}},
    ]
    async with workbench(*tools) as bench:
        foreign = await bench.engine.put_blob(b"[1]", media_type="application/json")
        more = {"workflow": "other"} if tool == "start_workflow" else {"agent": "clerk", "task": "read it"}
        assert code(await bench.call(tool, {**more, "inputs": {"file": foreign}})) == "blob_unknown"
        own = await bench.port.put_blob([2])
        ended = await bench.call(tool, {**more, "inputs": {"file": own.reference}})
        assert isinstance(ended, Pending) or not code(ended)
