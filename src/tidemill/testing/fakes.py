"""What nodes do in a simulation: real handlers, fakes that a test gives, or values made from schemas and from reads.

Nodes that only wait, branch or compute are real. A call of any other node is an effect: it is noted, and it is a
boundary at which its process may die. Blocking functions run in threads that the simulated loop controls.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal

import msgspec

from tidemill.authoring.decorators import Task
from tidemill.authoring.decorators import Workflow as Authored
from tidemill.handlers.contract import Fail, Handler, HandlerOutcome, NodeContext, ended
from tidemill.handlers.python.functions import Function, FunctionSignature, Ready, imported
from tidemill.kernel.model import Json, NodeType, Workflow
from tidemill.testing.cluster import Kind, When
from tidemill.testing.simulated_loop import Ask, SimLoop

COMPUTING = frozenset(
    ["value", "fail", "sleep", "human", "signal", "workflow", "wait_until", "input", "output", "search", "transform"]
)
"""Node types that touch nothing outside the run: they are real unless they are faked, and no effects."""
USER_CODE = "python"
CHILD = "workflow"
MODEL_TYPES = ("llm", "classify", "agent")
EVERY = "*"

Reach = Callable[[When, Kind, tuple[str, ...], str], Awaitable[None]]
Faked = str | Task[..., Any] | Authored[..., Any]
"""What a fake is for: a node, a node type, every node that calls a task, or every node that starts a workflow."""


def name_of(faked: object) -> str:
    """The name of a node or node type, or of what nodes call: those have a space in it. Raises TypeError."""
    if isinstance(faked, Task):
        return f"task {faked.name}"
    if isinstance(faked, Authored):
        return f"workflow {faked.name}"
    if isinstance(faked, str):
        return faked
    kinds = "a node, `workflow.node`, a node type, a task or a workflow"
    raise TypeError(f"name {kinds}, not {faked!r}")


def called_by(type_: str, config: Json) -> str:
    """The same name of what a node calls; empty if that is nothing of one's own."""
    name, config = type_.partition("@")[0], config if isinstance(config, dict) else {}
    if name == USER_CODE:
        return f"task {config.get('function')}"
    return f"workflow {str(config.get('workflow')).partition('@')[0]}" if name == CHILD else ""


class InTurn:
    """Fakes for one call after another; the last one also for all further calls."""

    def __init__(self, fakes: Sequence[Any]) -> None:
        if not fakes:
            raise ValueError("in_turn needs at least one fake")
        self._fakes, self._calls = tuple(fakes), 0

    def next(self) -> Any:
        fake = self._fakes[min(self._calls, len(self._fakes) - 1)]
        self._calls += 1
        return fake


def in_turn(*fakes: Any) -> InTurn:
    """Fakes for the first call, the second and so on: `in_turn(Fail("busy", "later", retryable=True), {"id": 7})`."""
    return InTurn(fakes)


@dataclass(slots=True)
class Effect:
    """One call of a node that touches the world."""

    node: str
    key: str
    """The effect key: equal for every attempt of a visit."""
    attempt: int
    workflow: str
    outcome: Literal["began", "returned", "failed"] = "began"


class Fakes:
    """The handlers of one simulation, and what they did.

    `given` are fakes by node (`charge`, `billing.charge`), task, workflow or node type (`http`). A fake is a JSON
    value, a function, an exception or `in_turn(...)`. The function takes what the real one takes, if the node is a
    `python` node, and the context otherwise. `real` names nodes that are called for real, `*` all. Without either,
    `real_code` says whether functions and node types of your own are called, and everything else returns a value that
    its schema allows. `functions` are the real ones.
    """

    def __init__(
        self,
        loop: SimLoop,
        given: Mapping[Any, Any],
        *,
        functions: Mapping[str, Function],
        real: Collection[str] = (),
        real_code: bool = True,
        own_types: Collection[str] = (),
    ) -> None:
        self._loop, self._real, self._real_code, self._own_types = loop, frozenset(real), real_code, own_types
        self._functions = functions
        self.given = {name_of(faked): fake for faked, fake in given.items()}
        self.shapes: dict[str, Json] = {}
        """What the workflow reads of each node's output."""
        self.nodes: set[str] = set()
        """The nodes of the workflows that were published, also with the name of their workflow, and what they call."""
        self.callers: dict[str, set[str]] = {}
        """Nodes by what they call."""
        self.effects: list[Effect] = []

    def learn(self, workflow: Workflow) -> None:
        """Know the nodes of a workflow that was published."""
        self.shapes |= read_shapes(workflow)
        for node in workflow.nodes:
            self.nodes |= {node.id, f"{workflow.name}.{node.id}"}
            if called := called_by(node.type, node.config):
                self.nodes.add(called)
                self.callers.setdefault(called, set()).add(node.id)

    def ids_of(self, faked: Faked | None) -> Collection[str] | None:
        """The nodes that are meant; None for any."""
        if faked is None or isinstance(faked, str):
            return None if faked is None else (faked,)
        return self.callers.get(name_of(faked), ())

    def unknown(self, types: Collection[str]) -> list[str]:
        """Fakes that are for no node and no node type: misspelt, they would leave the real function in place."""
        return sorted(self.given.keys() - self.nodes - set(types)) if self.nodes else []

    def handlers(self, handlers: Sequence[Handler], reach: Reach) -> list[Handler]:
        """The handlers of one process; `reach` is called at the boundaries of their effects."""
        return [self._fakeable(each) if each.type.name in COMPUTING else self._noted(each, reach) for each in handlers]

    def _fakeable(self, handler: Handler) -> Handler:
        def call(context: NodeContext) -> HandlerOutcome | Awaitable[HandlerOutcome]:
            name = self._fake_for(handler, context)
            return handler.call(context) if name is None else self._played(self.given[name], handler, context)

        return replace(handler, call=call)

    def _fake_for(self, handler: Handler, context: NodeContext) -> str | None:
        """The name under which a fake for a call was given."""
        type_ = handler.type.name
        names = (f"{context.workflow}.{context.node}", context.node, called_by(type_, context.config), type_)
        return next((name for name in names if name in self.given and not context.undoing), None)

    def _noted(self, handler: Handler, reach: Reach) -> Handler:
        async def call(context: NodeContext) -> HandlerOutcome:
            about = context.effect_key
            await reach("before", "effect", (context.node,), about)
            effect = Effect(context.node, context.effect_key, context.attempt, context.workflow)
            self.effects.append(effect)
            try:
                outcome = await self._outcome(handler, context)
            except BaseException:
                effect.outcome = "failed"
                raise
            effect.outcome = "returned"
            await reach("after", "effect", (context.node,), about)
            return outcome

        if not self._real and not self._is_code(handler):
            return Handler(handler.type, call)
        return replace(handler, call=call)

    def _is_code(self, handler: Handler) -> bool:
        return handler.type.name == USER_CODE or handler.type.name in self._own_types

    async def _outcome(self, handler: Handler, context: NodeContext) -> HandlerOutcome:
        name = self._fake_for(handler, context)
        if name is not None:
            return await self._played(self.given[name], handler, context)
        if self._is_called(handler, context):
            return await self._called(handler, context)
        if context.undoing:
            return ended(None)
        return ended(self._made(handler.type, context))

    def _is_called(self, handler: Handler, context: NodeContext) -> bool:
        if not self._real.isdisjoint((context.node, EVERY)) or (self._real_code and self._is_code(handler)):
            return True
        # A pipeline without requests only computes.
        return handler.type.name == "pipeline" and "http_request" not in str(context.config)

    async def _called(self, handler: Handler, context: NodeContext) -> HandlerOutcome:
        if handler.type.name == USER_CODE:
            # A child process has a clock of its own; the function runs in a thread instead.
            config = {key: value for key, value in context.config.items() if key not in ("isolation", "limits")}
            context = msgspec.structs.replace(context, config=config)
        self._loop.calls += 1
        try:
            outcome = handler.call(context)
            return await outcome if inspect.isawaitable(outcome) else outcome
        finally:
            self._loop.calls -= 1

    async def _played(self, fake: Any, handler: Handler, context: NodeContext) -> HandlerOutcome:
        """What a fake comes up with for one call. Raises Fail for a result that the real function may not return."""
        if isinstance(fake, InTurn):
            fake = fake.next()
        if isinstance(fake, BaseException) or (isinstance(fake, type) and issubclass(fake, BaseException)):
            raise fake
        is_python = handler.type.name == USER_CODE
        name = context.config["function"] if is_python else ""
        real = FunctionSignature.of(self._functions[name]) if name in self._functions else None
        if callable(fake):
            fake = fake(**_arguments(FunctionSignature.of(fake), real, context)) if is_python else fake(context)
            if inspect.isawaitable(fake):
                fake = await fake
        try:
            return ended(fake if real is None else real.checked(fake))
        except Fail as misfit:
            raise Fail(misfit.code, f"the fake of {misfit.message}", hint="give it a value of that type") from None

    def _made(self, type_: NodeType, context: NodeContext) -> Json:
        shape = self.shapes.get(f"{context.workflow}.{context.node}")
        if type_.name == "http":
            body = shape.get("body") if isinstance(shape, dict) else None
            return {"status": 200, "headers": {}, "url": str(context.config.get("url", "")), "body": body}
        made = fake_value(type_.output_schema, shape)
        if type_.name in MODEL_TYPES and isinstance(made, dict):
            made |= _answer(type_, context.config, shape.get("value") if isinstance(shape, dict) else None)
        return made


def _answer(type_: NodeType, config: Mapping[str, Any], shape: Json) -> dict[str, Json]:
    """What a model answers, as far as the config says it: a value of its schema, or the first of the labels."""
    for key in type_.schemas:
        if isinstance(config.get(key), dict):
            value = fake_value(config[key], shape)
            return {"value": value, "text": msgspec.json.encode(value).decode()}
    labels = list(config.get("labels") or ())[:1]
    return {"label": labels[0], "labels": labels, "confidences": dict.fromkeys(labels, 1.0)} if labels else {}


def _arguments(fake: FunctionSignature, real: FunctionSignature | None, context: NodeContext) -> dict[str, Any]:
    """The arguments of a fake: as its own type hints and defaults say, else as those of the real function do."""
    if real is None or real.signature is None or fake.signature is None:
        return fake.arguments(context.config, context)
    given = dict(context.config.get("args") or {})
    left = fake.names - given.keys() - {"context"}
    parameters = [each for name, each in real.signature.parameters.items() if name in fake.required & left]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    converters = {name: each for name, each in real.converters.items() if name in fake.names - fake.hints.keys()}
    converters = {name: each for name, each in {**converters, **fake.converters}.items() if name not in defaults}
    both = fake._replace(converters=converters, hints={**real.hints, **fake.hints})
    return both.arguments({"args": {**defaults, **given}}, context)


# Functions


class SimulatedFunctions(dict[str, Function]):
    """Functions by name, and those of import paths; each is made to run under simulated time."""

    def __bool__(self) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        return _under_simulation(self[name] if name in self else imported(name))


def _under_simulation(function: Function) -> Function:
    """An async function that calls a blocking one in a thread of the simulated loop."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function

    @wraps(function)
    async def call(**arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)

        def in_thread(ask: Ask) -> Any:
            context = arguments.get("context")
            if isinstance(context, NodeContext) and context.checkpoint is not None:
                arguments["context"] = msgspec.structs.replace(context, checkpoint=_blocking(context, ask))
            return function(**arguments)

        return await loop.run_in_thread(in_thread)

    return call


def _blocking(context: NodeContext, ask: Ask) -> Any:
    async def write(value: Any) -> None:
        assert context.checkpoint is not None
        await context.checkpoint(value)

    return lambda value: Ready(ask(write(value)))


# Made values

DEPTH_MAX = 8
_STRINGS = {
    "date-time": "2030-01-01T00:00:00Z",
    "date": "2030-01-01",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def fake_value(schema: Json, shape: Json = None, root: Json = None, depth: int = 0) -> Json:
    """A small value that a JSON Schema allows; `shape` is what the workflow reads of it, where the schema is silent."""
    root = schema if root is None else root
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        return shape
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        found = root
        for step in reference[2:].split("/"):
            found = found.get(step, {}) if isinstance(found, Mapping) else {}
        return fake_value(found, shape, root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key) and "type" not in schema:
            return fake_value(schema[key][0], shape, root, depth + 1)
    kinds = schema.get("type", "object" if "properties" in schema else "")
    kind = next((each for each in kinds if each != "null"), "null") if isinstance(kinds, list) else kinds
    return _made_of(kind, schema, shape, root, depth)


def _made_of(kind: str, schema: Mapping[str, Any], shape: Json, root: Json, depth: int) -> Json:
    match kind:
        case "object":
            read = shape if isinstance(shape, dict) else {}
            known: Mapping[str, Any] = schema.get("properties") or {}
            made = {key: fake_value(each, read.get(key), root, depth + 1) for key, each in known.items()}
            if not schema.get("additionalProperties", True):
                return made
            return {**read, **made}
        case "array":
            inner = shape[0] if isinstance(shape, list) and shape else shape
            size = max(int(schema.get("minItems", 0)), min(1, int(schema.get("maxItems", 1))))
            return [fake_value(schema.get("items", True), inner, root, depth + 1)] * size
        case "string":
            text = _STRINGS.get(str(schema.get("format")), "fake")
            text += "e" * (int(schema.get("minLength", 0)) - len(text))
            return text[: int(schema["maxLength"])] if "maxLength" in schema else text
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return min(least, schema["maximum"]) if "maximum" in schema else least
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return shape


# What the workflow reads

_LISTED = re.compile(r"\s*\|\s*(?:length|count|join|sum|map|first|last|sort|list|unique|min|max|batch|select\w*)\b")
_ITERATED = re.compile(r"\bin\s+$")


def read_shapes(workflow: Workflow) -> dict[str, Json]:
    """What templates and conditions of a workflow read of each node, as values that have these parts."""
    shapes: dict[str, Json] = {}
    for node in workflow.nodes:
        name = re.escape(node.id)
        reads = re.compile(
            rf"""(?<![\w.-])(?:(?:ctx|nodes)\.)?(?:{name}|(?:ctx|nodes)\[["']{name}["']\])((?:\.[A-Za-z_]\w*)*)"""
        )
        own = re.compile(r"(?<![\w.])output((?:\.[A-Za-z_]\w*)+)")
        shape: Json = None
        for reader in workflow.nodes:
            over = {} if reader.map is None else {"over": reader.map.over}
            parts = {"config": reader.config, "when": reader.when, "branch": reader.branch, "loop": reader.loop}
            for text in _texts(msgspec.to_builtins(parts)):
                shape = _with_reads(shape, reads, text)
                if reader.id == node.id:
                    shape = _with_reads(shape, own, text, is_own=True)
            for text in _texts(msgspec.to_builtins(over)):
                shape = _with_reads(shape, reads, text, leaf=[1, 2])
        for text in _texts(workflow.outputs):
            shape = _with_reads(shape, reads, text)
        shapes[f"{workflow.name}.{node.id}"] = shape
    return shapes


def _texts(value: Json) -> Iterator[str]:
    """The strings in a value, keys left out."""
    match value:
        case str():
            yield value
        case list() | tuple():
            for each in value:
                yield from _texts(each)
        case dict():
            for each in value.values():
                yield from _texts(each)


def _with_reads(shape: Json, reads: re.Pattern[str], text: str, *, leaf: Json = 1, is_own: bool = False) -> Json:
    for found in reads.finditer(text):
        path = found[1].split(".")[1:]
        if path[:1] == ["meta"] or not (path or "{" in text):
            continue
        path = path[1:] if path[:1] == ["output"] and not is_own else path
        is_list = _LISTED.match(text, found.end()) or _ITERATED.search(text, 0, found.start())
        shape = _merged(shape, path, [1, 2] if is_list else leaf)
    return shape


def _merged(shape: Json, path: list[str], leaf: Json) -> Json:
    """A shape that also has a leaf at a path; what is known in more detail stays."""
    if not path:
        return leaf if shape is None or (shape == 1 and leaf != 1) else shape
    inner = shape if isinstance(shape, dict) else {}
    return {**inner, path[0]: _merged(inner.get(path[0]), path[1:], leaf)}


def made_inputs(schema: Json) -> dict[str, Any]:
    """Values for the inputs that a schema requires."""
    if not isinstance(schema, dict):
        return {}
    required = set(schema.get("required", ()))
    known = {key: each for key, each in (schema.get("properties") or {}).items() if key in required}
    made = fake_value({**schema, "type": "object", "properties": known})
    return made if isinstance(made, dict) else {}


def made_payloads(workflow: Workflow) -> dict[str, Json]:
    """Payloads of signals, by name, with the parts that the workflow reads."""
    shapes = read_shapes(workflow)
    waiting = [node for node in workflow.nodes if node.type.partition("@")[0] == "signal"]
    names = {node.id: (node.config or {}).get("name", node.id) for node in waiting}
    return {name: shapes[f"{workflow.name}.{node}"] for node, name in names.items()}


class FakeSecrets:
    """A value for every secret, so that workflows that need them can be simulated."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def get(self, name: str) -> str | None:
        return self._given.get(name, f"secret-{name}")


def failing(described: Mapping[str, Any]) -> Fail:
    """The failure that a file of fakes describes: `{code, message, retryable}`."""
    code, message = str(described.get("code", "failed")), str(described.get("message", "a fake failure"))
    return Fail(code, message, retryable=bool(described.get("retryable", False)))
