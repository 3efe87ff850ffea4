"""The tool `delegate_to_agent`: gives a task to another agent and returns its result.

The author lists the agents by name: a workflow (a child run with a slice of this run's budget), the built-in
`code_interpreter` and `researcher`, or an agent of another system over HTTP. The model chooses one by its name; it can
name no workflow, address or budget of its own. Requests to other systems are signed (Standard Webhooks), go to one
origin and are not redirected; the answer comes at once, is polled for, or arrives as a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tidemill.agents.budget import CHILD_AMOUNTS
from tidemill.agents.interpreter import CodeInterpreter
from tidemill.agents.tools import (
    Allowance,
    Effect,
    Ended,
    Pending,
    Tool,
    ToolContext,
    ToolResult,
    ToolSource,
    error_result,
    tool_names,
)
from tidemill.ambient import wall_clock_ms
from tidemill.errors import Problem, Rejected
from tidemill.expressions.errors import listing, shorten
from tidemill.handlers.contract import ChildRun, Fail, NodeContext, Wait, object_schema
from tidemill.handlers.data.steps import holds_template
from tidemill.handlers.http.exchange import failure, retry_after_ms
from tidemill.net.egress import CallFailed
from tidemill.net.http_client import Answer, Call, Fetcher, same_origin
from tidemill.security.signing import signed_headers

DELEGATIONS_MAX = 20
ANSWER_BYTES_MAX = 5_000_000
POLL_SECONDS = 10.0
POLL_MS_MAX = 300_000
"""The longest pause after polls that failed."""
WAIT_SECONDS = 3_600.0
RESEARCHER = "agent-researcher"
FAILURE = "$child_failed"

_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 10**12}
_AMOUNT = {"type": "number", "exclusiveMinimum": 0, "maximum": 10**9}
_BUDGET = object_schema((), tokens=_COUNT, money=_AMOUNT, calls=_COUNT)
_TOOLS = {"type": "array", "items": _TEXT}
_WORKFLOW = object_schema(("workflow",), workflow=_TEXT, description=_TEXT, budget=_BUDGET, tools=_TOOLS)
_INTERPRETER = object_schema(
    ("builtin",),
    builtin={"const": "code_interpreter"},
    description=_TEXT,
    packages={"type": "array", "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}},
    time_seconds={"type": "number", "exclusiveMinimum": 0, "maximum": 300},
    memory_mb={"type": "integer", "minimum": 128, "maximum": 8_192},
)
_RESEARCHER = object_schema(
    ("builtin", "model", "origins"),
    builtin={"const": "researcher"},
    description=_TEXT,
    provider=_TEXT,
    model=_TEXT,
    base_url=_TEXT,
    api_key_secret={"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
    origins={"type": "array", "items": _TEXT, "minItems": 1},
    max_turns={"type": "integer", "minimum": 1, "maximum": 50},
    answers={"type": "array"},
    budget=object_schema((), tokens=_COUNT, money=_AMOUNT, calls=_COUNT, seconds=_AMOUNT),
)
_EXTERNAL = object_schema(
    ("url", "keys"),
    url=_TEXT,
    keys={"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 2},
    description=_TEXT,
    poll_seconds={"type": "number", "minimum": 0.1, "maximum": 3_600},
    timeout_seconds={"type": "number", "exclusiveMinimum": 0, "maximum": 366 * 86_400},
)
SETTINGS_SCHEMA = object_schema(
    ("agents",),
    agents={
        "type": "object",
        "minProperties": 1,
        "maxProperties": 32,
        "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"},
        "additionalProperties": {"anyOf": [_WORKFLOW, _INTERPRETER, _RESEARCHER, _EXTERNAL]},
    },
)
DESCRIPTION = (
    "Gives a task to another agent and waits for its result. `inputs` are its inputs; for a code interpreter they are "
    "`code`, Python with a function `main(data)`, and `data`."
)


def delegate_source(
    fetcher: Fetcher, interpreter: CodeInterpreter, now_ms: Callable[[], int] = wall_clock_ms
) -> ToolSource:
    async def make(allowance: Allowance, context: NodeContext) -> tuple[Tool, ...]:
        return (_Delegation(allowance, fetcher, interpreter, now_ms).tool(),)

    return ToolSource("delegate_to_agent", make, SETTINGS_SCHEMA, _problems, templated=("agents",))


def _problems(settings: dict[str, Any], path: str) -> Iterator[Problem]:
    """Only the keys of signatures may be templates: they are secrets; the rest is what the author grants."""
    agents = settings["agents"] if isinstance(settings["agents"], dict) else {}
    fields = [(name, field, value) for name, agent in agents.items() for field, value in agent.items()]
    wrong = [
        (f"{field} of an agent", f"/{name}/{field}")
        for name, field, value in fields
        if field != "keys" and holds_template(value)
    ]
    for what, place in wrong if agents else [("the list of agents", "")]:
        message = f"{what} is a constant: data must not choose who gets a task"
        yield Problem(code="tool_not_constant", message=message, path=f"{path}/agents{place}")


class _Delegation:
    """The tool of one node."""

    def __init__(
        self, allowance: Allowance, fetcher: Fetcher, interpreter: CodeInterpreter, now_ms: Callable[[], int]
    ) -> None:
        self._agents: dict[str, dict[str, Any]] = allowance.settings["agents"]
        self._fetcher, self._interpreter, self._now_ms = fetcher, interpreter, now_ms

    def tool(self) -> Tool:
        about = {name: agent.get("description") for name, agent in self._agents.items()}
        described = [f"{name}: {text}" for name, text in about.items() if text]
        fields = {"agent": {"enum": list(self._agents)}, "task": _TEXT | {"maxLength": 20_000}}
        parameters = object_schema(("agent", "task"), **fields, inputs={"type": "object"})
        return Tool(
            name="delegate_to_agent",
            description="\n".join([DESCRIPTION, *described]),
            parameters=parameters,
            call=self.call,
            resume=self.resume,
            # A child run and a signed request are known by their key, and code runs without effects.
            effect=Effect(idempotent=True, open_world=True),
            max_calls=DELEGATIONS_MAX,
        )

    async def call(self, context: ToolContext, arguments: dict[str, Any]) -> Ended:
        agent = self._agents[arguments["agent"]]
        task, inputs = arguments["task"], arguments.get("inputs", {})
        await context.port.check_files(inputs)
        if agent.get("builtin") == "code_interpreter":
            return await self._interpret(agent, context, inputs)
        if agent.get("builtin") == "researcher":
            reference = await context.port.publish_built_in(researcher_document(agent))
            return _child(context, reference, {"task": task, "inputs": inputs}, agent)
        if "workflow" in agent:
            info = await context.port.workflow(agent["workflow"])
            granted = tool_names(context.node.config["tools"]).union(agent.get("tools", ()))
            if beyond := sorted(info.tools - granted):
                message = f"{info.reference} has agents with tools that this agent does not have: {listing(beyond)}"
                return error_result("tool_not_granted", message, hint="the author grants them by `tools` of the agent")
            declares = isinstance(info.inputs, dict) and "task" in info.inputs.get("properties", {})
            given = {"task": task, **inputs} if declares else inputs
            return _child(context, info.reference, given, agent)
        return await self._send(agent, context, task, inputs)

    async def resume(self, context: ToolContext, arguments: dict[str, Any], state: Any, resumed: Any) -> Ended:
        agent = self._agents[arguments["agent"]]
        match state["how"]:
            case "child":
                return _child_result(state, resumed)
            case "signal" if resumed is not None:
                return ToolResult(content={"result": resumed})
            case "signal":
                return self._called_back(context, state)
            case _:
                return await self._poll(agent, context, state)

    async def _interpret(self, agent: Mapping[str, Any], context: ToolContext, inputs: Mapping[str, Any]) -> Ended:
        code, data = inputs.get("code"), inputs.get("data")
        if not isinstance(code, str):
            return error_result("arguments_invalid", "a code interpreter needs `inputs.code`")
        if isinstance(data, dict) and "$blob" in data:
            data = await context.port.read_blob(data)
        result = await self._interpreter.run(
            code,
            data,
            packages=tuple(agent.get("packages", ())),
            time_seconds=agent.get("time_seconds"),
            memory_mb=agent.get("memory_mb"),
        )
        return ToolResult(content=result)

    # Agents of other systems

    async def _send(self, agent: Mapping[str, Any], context: ToolContext, task: str, inputs: Any) -> Ended:
        body = {
            "id": context.key,
            "task": task,
            "inputs": inputs,
            "callback": {"run_id": context.node.run_id, "signal": _signal_name(context)},
        }
        answer = await self._request(agent, context, "POST", agent["url"], msgspec.json.encode(body))
        until = self._now_ms() + round(agent.get("timeout_seconds", WAIT_SECONDS) * 1_000)
        return self._ended(agent, answer, {"how": "poll", "until_ms": until}, context)

    async def _poll(self, agent: Mapping[str, Any], context: ToolContext, state: dict[str, Any]) -> Ended:
        """Ask for the result. A poll changes nothing, so one that fails for a while is made again, later and later."""
        if self._now_ms() >= state["until_ms"]:
            return _late(state.get("failed", ""))
        try:
            answer = await self._request(agent, context, "GET", state["url"], b"")
        except Fail as failed:
            if not failed.retryable:
                raise
            tries = state.get("tries", 0) + 1
            asked = max(_poll_ms(agent) * 2 ** min(tries, 20), failed.retry_after_ms or 0)
            pause = max(1, min(state["until_ms"] - self._now_ms(), max(POLL_MS_MAX, _poll_ms(agent)), asked))
            state = {**state, "tries": tries, "failed": shorten(failed.message, 500)}
            return Pending(wait=Wait("timer", for_ms=pause, resume=True), state=state)
        answered = {name: value for name, value in state.items() if name not in ("tries", "failed")}
        return self._ended(agent, answer, answered, context)

    def _called_back(self, context: ToolContext, state: dict[str, Any]) -> Ended:
        """Wait for the signal, within the time of the delegation; the node's own limit must not end the wait first."""
        left = state["until_ms"] - self._now_ms()
        if left <= 0:
            return _late()
        limit = context.node.timeout_ms
        pause = max(1, left if limit is None else min(left, limit * 9 // 10))
        wait = Wait("signal", name=_signal_name(context), for_ms=pause, resume=True)
        return Pending(wait=wait, state={**state, "how": "signal"})

    def _ended(self, agent: Mapping[str, Any], answer: Answer, state: dict[str, Any], context: ToolContext) -> Ended:
        """The result in an answer, or the wait for it."""
        try:
            said = msgspec.json.decode(answer.body) if answer.body else {}
        except (msgspec.DecodeError, RecursionError):
            return error_result("agent_answer_invalid", "the agent's answer is not JSON")
        if not isinstance(said, dict):
            return error_result("agent_answer_invalid", "the agent's answer is not an object")
        if answer.status != 202:
            failed = "error" in said
            content = {"error": {"code": "agent_failed", "message": said["error"]}} if failed else said
            return ToolResult(content=content, error="agent_failed" if failed else "")
        if said.get("callback") is True:
            return self._called_back(context, state)
        url = said.get("status_url", state.get("url"))
        if not isinstance(url, str) or not same_origin(url, agent["url"]):
            return error_result("agent_answer_invalid", "the agent names no status at its own origin")
        pause = max(1, min(state["until_ms"] - self._now_ms(), _poll_ms(agent)))
        return Pending(wait=Wait("timer", for_ms=pause, resume=True), state={**state, "how": "poll", "url": url})

    async def _request(
        self, agent: Mapping[str, Any], context: ToolContext, method: str, url: str, body: bytes
    ) -> Answer:
        try:
            signed = signed_headers(agent["keys"], context.key, self._now_ms(), body)
            call = Call(
                url=url,
                method=method,
                headers={"content-type": "application/json", **signed},
                body=body,
                # The receiver knows a repeated request by its id.
                repeatable=True,
                bytes_max=ANSWER_BYTES_MAX,
                redirects_max=0,
                forbidden_at=context.node.forbidden_at,
            )
            answer = await self._fetcher.fetch(call)
        except CallFailed as error:
            raise failure(error) from error
        except Rejected as refusal:
            first = refusal.problems[0]
            raise Fail(first.code, first.message, hint=first.hint) from None
        if answer.status >= 300:
            raise Fail(
                "agent_failed",
                f"the agent answered with status {answer.status}",
                retryable=answer.status in (408, 425, 429) or answer.status >= 500,
                retry_after_ms=retry_after_ms(answer.header("retry-after"), self._now_ms()),
            )
        return answer


def _poll_ms(agent: Mapping[str, Any]) -> int:
    return round(float(agent.get("poll_seconds", POLL_SECONDS)) * 1_000)


def _late(failed: str = "") -> ToolResult:
    message = "the agent has not answered in time" + (f"; the last try: {failed}" if failed else "")
    return error_result("agent_late", message, unknown_outcome=True)


def _signal_name(context: ToolContext) -> str:
    return f"agent.{context.node.node}.{context.node.visit}.{context.place}"


# Child runs.


def child_key(place: str) -> str:
    """The key of the child run of the call at `turn.position`: a letter first, and no dots."""
    return "c" + place.replace(".", "-")


def _child(context: ToolContext, reference: str, inputs: Any, agent: Mapping[str, Any]) -> Pending:
    budget = {name: amount for name, amount in agent.get("budget", {}).items() if name in CHILD_AMOUNTS}
    key = child_key(context.place)
    child = ChildRun(workflow=reference, inputs=inputs, budget=budget, key=key, failure="return")
    return Pending(wait=Wait("child", resume=True, child=child), state={"how": "child", "workflow": reference})


def _child_result(state: Mapping[str, Any], resumed: Any) -> ToolResult:
    failed = resumed.get(FAILURE) if isinstance(resumed, dict) and len(resumed) == 1 else None
    if isinstance(failed, dict):
        code = "delegation_failed"
        words = {"code": code, "message": shorten(str(failed.get("message", "")), 1_000)}
        error = {**words, "cause": failed.get("code"), "hint": failed.get("hint")}
        run_id = str(failed.get("child", ""))
        return ToolResult(content={"error": error, "run_id": run_id}, error=code, run_id=run_id)
    return ToolResult(content={"result": resumed, "workflow": state["workflow"]})


def researcher_document(agent: Mapping[str, Any]) -> dict[str, Any]:
    """The workflow of the built-in researcher: an agent that only reads, from the origins of the author.

    Its key is named, not written: the document is stored, and a rendered secret must never be.
    """
    config: dict[str, Any] = {
        "instructions": (
            "You research a question. Fetch and combine data with execute_pipeline, and answer with what the data "
            "says and the addresses that it came from. Say so if the data does not answer the question."
        ),
        "prompt": "{{ inputs.task }}\n\n{{ inputs.inputs }}",
        "model": agent["model"],
        "max_turns": agent.get("max_turns", 12),
        "tools": [{"name": "execute_pipeline", "origins": list(agent["origins"]), "methods": ["GET"]}],
    }
    config |= {name: agent[name] for name in ("provider", "base_url", "answers") if name in agent}
    if "api_key_secret" in agent:
        config["api_key"] = f"{{{{ secrets.{agent['api_key_secret']} }}}}"
    if "budget" in agent:
        config["budget"] = dict(agent["budget"])
    return {
        "name": RESEARCHER,
        "description": "Researches a question: the built-in agent of delegate_to_agent.",
        "inputs": {
            "type": "object",
            "properties": {"task": {"type": "string"}, "inputs": {"type": "object"}},
            "required": ["task"],
        },
        "nodes": [{"id": "research", "type": "agent", "config": config}],
    }
