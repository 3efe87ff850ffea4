"""Node type `agent`: a model that works in turns, with the tools and within the limits that its config grants.

The config has the fields of every node type over models, and those of the loop. Instructions, tools, schema, examples
and the text about routes and lanes are the stable prefix: the same config gives the same bytes in all turns and runs,
so that the provider can cache them. The prompt, the session and the results of earlier nodes come behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from tidemill.agents.budget import BUDGET_SCHEMA
from tidemill.agents.loop import ROUTE_TOOL, AgentConfig, AgentLoop, Prefix
from tidemill.agents.memory import check_session_name
from tidemill.agents.tools import ALLOW_LIST_SCHEMA, TOOL_SECRET_FIELDS, Tool, Toolbox, ToolRegistry
from tidemill.handlers.contract import Fail, Handler, HandlerOutcome, NodeContext, object_schema
from tidemill.handlers.http import exchange
from tidemill.handlers.llm.fallback import ask_in_order
from tidemill.handlers.llm.node import SECRET_FIELDS, check_model, check_prices, model_schema
from tidemill.handlers.llm.provider import Message, Providers, Settings, ToolSpec
from tidemill.handlers.llm.structured_output import instructed
from tidemill.kernel.model import Capabilities, ConfigProblem, NodeType

_TEXT = {"type": "string"}
_EXAMPLE = object_schema(("prompt", "answer"), prompt=_TEXT, answer=_TEXT)
TURNS_MAX = 1_000
CALL_SECONDS = 120.0
AGENT_SECONDS = 300.0


def agent_type(providers: Providers, registry: ToolRegistry) -> NodeType:
    schema = model_schema(
        providers,
        (),
        instructions=_TEXT,
        prompt=_TEXT,
        tools=ALLOW_LIST_SCHEMA,
        max_turns={"type": "integer", "minimum": 1, "maximum": TURNS_MAX, "default": 20},
        call_timeout_seconds=exchange.TIMEOUT_SCHEMA | {"default": CALL_SECONDS},
        first_token_seconds=exchange.TIMEOUT_SCHEMA,
        context_tokens={"type": "integer", "minimum": 1_000, "maximum": 100_000_000, "default": 150_000},
        budget=BUDGET_SCHEMA,
        output_schema={"type": ["object", "boolean"]},
        session={"type": "string", "minLength": 1, "maxLength": 200},
        session_turns={"type": "integer", "minimum": 0, "maximum": 40, "default": 20},
        context={"type": "boolean", "default": True},
        examples={"type": "array", "maxItems": 20, "items": _EXAMPLE},
        stream={"type": "boolean", "default": False},
    )
    schema["properties"]["timeout_seconds"] = exchange.TIMEOUT_SCHEMA | {"default": AGENT_SECONDS}

    def check(config: Any) -> Iterator[ConfigProblem]:
        yield from check_model(config)
        budget = config.get("budget")
        yield from check_prices(config) if isinstance(budget, dict) and "money" in budget else ()
        for problem in registry.problems(config.get("tools", [])):
            yield ConfigProblem(problem.path, problem.message, problem.hint, problem.code)
        session = config.get("session")
        if session is not None and "{{" not in str(session) and (wrong := check_session_name(session)):
            yield ConfigProblem("/session", wrong, "use for example the id of the customer")

    return NodeType(
        name="agent",
        title="Agent",
        icon="robot",
        description="A model that works in turns: it calls the tools that its config grants, until it answers.",
        capabilities=Capabilities(streaming=True, checkpointing=True),
        secret_fields=(*SECRET_FIELDS, *TOOL_SECRET_FIELDS),
        schemas=("output_schema",),
        check=check,
        config_schema=schema,
        output_schema=_OUTPUT_SCHEMA,
        output_keys=lambda config: {"value": config["output_schema"]} if "output_schema" in config else {},
        waits=True,
    )


_COUNT = {"type": "integer"}
_OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "value": True,
        "text": _TEXT,
        "preview": {"type": "object"},
        "turns": _COUNT,
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
        "model": _TEXT,
        "cost": {"type": ["number", "null"]},
        "stopped": _TEXT,
        "route": {"type": "object"},
    },
    "additionalProperties": False,
}


def agent_handler(
    providers: Providers,
    registry: ToolRegistry,
    explain: Callable[[Iterable[Tool]], str] = lambda tools: "",
    close: Callable[[], Awaitable[None]] | None = None,
) -> Handler:
    """The handler of agents; `explain` says in the prefix how the tools are to be used."""
    ask = ask_in_order(providers)

    async def work(context: NodeContext) -> HandlerOutcome:
        if context.undoing:
            hint = "let a node of type python undo it, or a workflow that a person starts"
            raise Fail(
                "answer_invalid", "an agent cannot be a compensator: its turns are not recorded there", hint=hint
            )
        config = msgspec.convert(context.config, AgentConfig)
        # In the settings of a model the time-out is that of one call.
        seconds = context.config.get("call_timeout_seconds", min(CALL_SECONDS, config.timeout_seconds))
        settings = msgspec.convert(context.config | {"timeout_seconds": seconds}, Settings)
        toolbox = await registry.open(context.config.get("tools", ()), context)
        prefix = prefix_of(config, toolbox, context.routes, explain(toolbox.tools))
        return await AgentLoop(context, config, settings, toolbox, prefix, ask).run()

    return Handler(agent_type(providers, registry), work, close=close, agent=True)


def prefix_of(config: AgentConfig, toolbox: Toolbox, routes: tuple[str, ...], lanes: str) -> Prefix:
    """The stable prefix. It depends on the config, the tools and the routes, and on nothing else."""
    tools = [
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in toolbox.tools
    ]
    parts = [config.instructions, lanes]
    if routes:
        if any(tool.name == ROUTE_TOOL for tool in tools):
            message = f"a tool is called {ROUTE_TOOL}, which is the name of the choice of a route"
            raise Fail("tool_twice", message, hint="give it another name")
        tools.append(_route_tool(routes))
        parts.append(
            f"Before you answer, choose with the tool {ROUTE_TOOL} which of these nodes the workflow goes on with, and "
            f"say why: {', '.join(routes)}. If you choose none, the workflow takes its default."
        )
    examples: list[Message] = []
    for example in config.examples:
        examples.append({"role": "user", "content": example["prompt"]})
        examples.append({"role": "assistant", "content": example["answer"]})
    system = "\n\n".join(part for part in parts if part)
    messages = instructed(system, examples, config.output_schema)
    text = msgspec.json.encode([messages, tools], order="sorted")
    return Prefix(messages, tuple(tools), "sha256:" + hashlib.sha256(text).hexdigest(), len(text))


def _route_tool(routes: tuple[str, ...]) -> ToolSpec:
    return ToolSpec(
        name=ROUTE_TOOL,
        description="Choose the nodes that the workflow goes on with. The last choice counts.",
        parameters={
            "type": "object",
            "properties": {
                "next_nodes": {"type": "array", "items": {"enum": list(routes)}, "minItems": 1},
                "reason": {"type": "string", "description": "Why, in a sentence."},
            },
            "required": ["next_nodes", "reason"],
            "additionalProperties": False,
        },
    )
