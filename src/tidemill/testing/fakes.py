"""What nodes do in a simulation: real handlers, fakes that a test gives, or values made from schemas and from reads.

Nodes that only wait, branch or compute are real. A call of any other node is an effect: it is noted, and it is a
boundary at which its process may die.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from tidemill.authoring.decorators import Task
from tidemill.authoring.decorators import Workflow as Authored
from tidemill.errors import offered, rejected
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.schema import compile_schema
from tidemill.handlers.contract import Fail, Handler, HandlerOutcome, NodeContext, ended
from tidemill.handlers.python.functions import FunctionSignature
from tidemill.handlers.python.hint_schemas import schemas_of
from tidemill.kernel.model import Compensator, Json, Node, NodeType, Workflow
from tidemill.testing.cluster import UNDO, Kind, When
from tidemill.testing.simulated_loop import SimLoop, SimulatedFunctions

COMPUTING = frozenset(
    ["value", "fail", "sleep", "human", "signal", "workflow", "wait_until", "input", "output", "search", "transform"]
)
"""Node types that touch nothing outside the run: they are real unless they are faked, and no effects."""
USER_CODE = "python"
CHILD = "workflow"
MODEL_TYPES = ("llm", "classify", "agent")
EVERY = "*"
REAL = object()
"""No fake: None is one."""

Reach = Callable[[When, Kind, tuple[str, ...], str], Awaitable[None]]
Faked = str | Task[..., Any] | Authored[..., Any]
"""What a fake is for: a node, compensator, node type, all that calls a task, or all that starts a workflow."""


def name_of(faked: object) -> str:
    """The name of a node or node type, or of what nodes call: those have a space in it. Raises TypeError."""
    if isinstance(faked, Task):
        return f"task {faked.name}"
    if isinstance(faked, Authored):
        return f"workflow {faked.name}"
    if isinstance(faked, str):
        return faked
    kinds = "a node, `workflow.node`, `node/undo`, a node type, a task or a workflow"
    raise TypeError(f"name {kinds}, not {faked!r}")


def called_by(type_: str, config: Json) -> str:
    """The same name of what a node calls; empty if that is nothing of one's own."""
    name, config = type_.partition("@")[0], config if isinstance(config, dict) else {}
    if name == USER_CODE:
        return f"task {config.get('function')}"
    return f"workflow {str(config.get('workflow')).partition('@')[0]}" if name == CHILD else ""


def place_of(context: NodeContext) -> str:
    return f"{context.node}{UNDO}" if context.undoing else context.node


def places_of(workflow: Workflow) -> dict[str, Node | Compensator]:
    """The nodes of a workflow, and their compensators."""
    undoing = {f"{node.id}{UNDO}": node.compensator for node in workflow.nodes if node.compensator is not None}
    return {**workflow.by_id, **undoing}


def names_of(workflow: str, place: str, type_: str, config: Json) -> tuple[str, ...]:
    """The names of a node or compensator, the most exact one first."""
    return f"{workflow}.{place}", place, called_by(type_, config)


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
    """A node, or `node/undo` for its compensator."""
    key: str
    """The effect key: equal for every attempt of a visit."""
    attempt: int
    workflow: str
    outcome: Literal["began", "returned", "failed"] = "began"


class Fakes:
    """The handlers of one simulation, and what they did.

    `given` are fakes by node (`charge`, `billing.charge`), compensator (`charge/undo`), task, workflow or node type
    (`http`). A fake is a JSON value, a function, an exception or `in_turn(...)`. The function takes what the real one
    takes, if the node is a `python` node, and the context otherwise. `real` names what is called for real, `*` all.
    Without either, `real_code` says whether functions and node types of your own are called, and everything else
    returns a value that its schema allows. A compensator undoes what its node did: if that was no real call, it
    returns None, unless `given` or `real` names it. `functions` are the real ones.
    """

    def __init__(
        self,
        loop: SimLoop,
        given: Mapping[Any, Any],
        *,
        functions: SimulatedFunctions,
        real: Collection[Faked] = (),
        real_code: bool = True,
        own_types: Collection[str] = (),
    ) -> None:
        self._loop, self._real_code, self._own_types = loop, real_code, own_types
        self._real = frozenset(map(name_of, real))
        self._functions = functions
        self.given: dict[str, Any] = {}
        self.children: dict[str, Callable[..., Any]] = {}
        """The functions of workflows that are written in Python, by name."""
        self.shapes: dict[str, Json] = {}
        """What the workflow reads of each node's output."""
        self.nodes: set[str] = set()
        """Nodes and compensators of the published workflows, also with the workflow's name, and what they call."""
        self.callers: dict[str, set[str]] = {}
        """Nodes and compensators by what they call."""
        self._steps: dict[str, Node] = {}
        self.effects: list[Effect] = []
        for faked, fake in given.items():
            self.give(faked, fake)

    def give(self, faked: Faked, fake: Any) -> None:
        """Have a fake for what is named."""
        self.given[name_of(faked)] = fake
        if isinstance(faked, Authored):
            self.children[faked.name] = faked.function

    def learn(self, workflow: Workflow) -> None:
        """Know the nodes of a workflow that was published."""
        self.shapes |= read_shapes(workflow)
        self._steps |= {f"{workflow.name}.{node.id}": node for node in workflow.nodes}
        for place, called in places_of(workflow).items():
            names = names_of(workflow.name, place, called.type, called.config)
            self.nodes.update(filter(None, names))
            self.callers.setdefault(names[-1], set()).add(place)

    def ids_of(self, faked: Faked | None) -> Collection[str] | None:
        """The nodes and compensators that are meant; None for any."""
        if faked is None or isinstance(faked, str):
            return None if faked is None else (faked,)
        return self.callers.get(name_of(faked), ())

    def effects_of(self, faked: Faked | None) -> list[Effect]:
        """The effects of what is named, or all. Raises ValueError for a name that no published node has."""
        if isinstance(faked, str) and (hint := self.hint_for(faked)):
            raise ValueError(hint.removeprefix("; "))
        named = [({each.node, f"{each.workflow}.{each.node}"}, each) for each in self.effects]
        wanted = self.ids_of(faked)
        return [each for names, each in named if wanted is None or not names.isdisjoint(wanted)]

    def hint_for(self, name: str | None) -> str:
        """What to write instead of a name that no published node has."""
        is_known = not name or not self.nodes or name in self.nodes
        return "" if is_known else f"; there is no node {name}: {offered(str(name), sorted(self.nodes))}"

    def complaint(self, types: Collection[str]) -> str:
        """What is wrong with a fake that nothing uses, which would leave the real function in place; else empty."""
        wanted = dict.fromkeys(self._real - {EVERY}, "call") | dict.fromkeys(self.given, "fake")
        unknown = sorted(wanted.keys() - self.nodes - set(types))
        if not self.nodes or not unknown:
            return ""
        name, verb = unknown[0], wanted[unknown[0]]
        is_called, said = " " in name, f"there is no node {name} to {verb}"
        if is_called:
            said = f"no node calls the {name}, which is {'faked' if verb == 'fake' else 'real'}"
        callers = sorted(self.callers.get(f"task {name}", self.callers.get(f"workflow {name}", ())))
        if callers:
            return f"{said}: give the task itself, or the node that calls it, `{callers[0]}`"
        if name.endswith(UNDO) and name.removesuffix(UNDO) in self.nodes:
            return f"{said}: {name.removesuffix(UNDO)} has no compensator"
        return f"{said}: {offered(name, sorted(each for each in self.nodes if (' ' in each) is is_called))}"

    def handlers(self, handlers: Sequence[Handler], reach: Reach) -> list[Handler]:
        """The handlers of one process; `reach` is called at the boundaries of their effects."""
        return [self._fakeable(each) if each.type.name in COMPUTING else self._noted(each, reach) for each in handlers]

    def _fakeable(self, handler: Handler) -> Handler:
        def call(context: NodeContext) -> HandlerOutcome | Awaitable[HandlerOutcome]:
            fake = self._fake_for(handler, context)
            return handler.call(context) if fake is REAL else self._played(fake, handler, context)

        return replace(handler, call=call)

    def _fake_for(self, handler: Handler, context: NodeContext) -> Any:
        """The fake that was given for a call, or REAL."""
        type_ = handler.type.name
        names = names_of(context.workflow, place_of(context), type_, context.config)
        # Fakes of a type are for what its nodes do, not for undoing it.
        names = names if context.undoing else (*names, type_)
        return next((self.given[name] for name in names if name in self.given), REAL)

    def _noted(self, handler: Handler, reach: Reach) -> Handler:
        async def call(context: NodeContext) -> HandlerOutcome:
            about, place = context.effect_key, place_of(context)
            await reach("before", "effect", (place,), about)
            effect = Effect(place, context.effect_key, context.attempt, context.workflow)
            self.effects.append(effect)
            try:
                outcome = await self._outcome(handler, context)
            except BaseException:
                effect.outcome = "failed"
                raise
            effect.outcome = "returned"
            await reach("after", "effect", (place,), about)
            return outcome

        if not self._real and not self._is_code(handler.type.name):
            return Handler(handler.type, call)
        return replace(handler, call=call)

    def _is_code(self, type_: str) -> bool:
        return type_ == USER_CODE or type_ in self._own_types

    async def _outcome(self, handler: Handler, context: NodeContext) -> HandlerOutcome:
        fake = self._fake_for(handler, context)
        if fake is not REAL:
            return await self._played(fake, handler, context)
        if context.undoing:
            return await self._called(handler, context) if self._is_undone(handler, context) else ended(None)
        if self._is_called(context.workflow, context.node, handler.type.name, context.config):
            return await self._called(handler, context)
        return ended(self._made(handler.type, context))

    def _is_called(self, workflow: str, node: str, type_: str, config: Json) -> bool:
        """Whether a node is called for real, if no fake is given for it."""
        if not self._real.isdisjoint((*names_of(workflow, node, type_, config), EVERY)):
            return True
        # A pipeline without requests only computes, and a scripted model answers from its config.
        if type_ in MODEL_TYPES[:2]:
            return isinstance(config, Mapping) and config.get("provider") == "scripted"
        return (self._real_code and self._is_code(type_)) or (type_ == "pipeline" and "http_request" not in str(config))

    def _is_undone(self, handler: Handler, context: NodeContext) -> bool:
        """Whether a compensator is called for real, if no fake is given for it."""
        type_, flow, node = handler.type.name, context.workflow, context.node
        if not self._real.isdisjoint(names_of(flow, place_of(context), type_, context.config)):
            return True
        step = self._steps[f"{flow}.{node}"]
        did, names = step.type.partition("@")[0], names_of(flow, node, step.type, step.config)
        if type_ in self.given or not self.given.keys().isdisjoint((*names, did)):
            return False
        was_real = did in COMPUTING or self._is_called(flow, node, did, step.config)
        return was_real and (not self._real.isdisjoint((*names, EVERY)) or (self._real_code and self._is_code(type_)))

    async def _called(self, handler: Handler, context: NodeContext) -> HandlerOutcome:
        if handler.type.name == USER_CODE:
            # A child process has a clock of its own; the function runs in a thread instead.
            config = {key: value for key, value in context.config.items() if key not in ("isolation", "limits")}
            context = msgspec.structs.replace(context, config=config)
        with self._loop.call(place_of(context)):
            outcome = handler.call(context)
            return await outcome if inspect.isawaitable(outcome) else outcome

    async def _played(self, fake: Any, handler: Handler, context: NodeContext) -> HandlerOutcome:
        """What a fake comes up with for one call. Raises Fail for a result that the real function may not return."""
        if isinstance(fake, InTurn):
            fake = fake.next()
        if isinstance(fake, BaseException) or (isinstance(fake, type) and issubclass(fake, BaseException)):
            raise fake
        is_python, real = handler.type.name == USER_CODE, self._real_of(handler.type.name, context)
        if callable(fake):
            try:
                is_called = is_python or real is not None
                fake = fake(**_arguments(FunctionSignature.of(fake), real, context)) if is_called else fake(context)
            except Fail as misfit:
                if misfit.code != "arguments_invalid":
                    raise
                raise Fail(
                    misfit.code, f"the fake of {place_of(context)}: {misfit.message}", hint=misfit.hint
                ) from None
            if inspect.isawaitable(fake):
                fake = await fake
        try:
            return ended(fake if real is None else real.checked(fake))
        except Fail as misfit:
            raise Fail(misfit.code, f"the fake of {misfit.message}", hint="give it a value of that type") from None

    def _real_of(self, type_: str, context: NodeContext) -> FunctionSignature | None:
        """The function that a node calls, or that describes the workflow which it starts, if it is known."""
        if type_ == USER_CODE:
            name = context.config["function"]
            return FunctionSignature.of(self._functions[name]) if name in self._functions else None
        child = self.children.get(str(context.config.get("workflow")).partition("@")[0]) if type_ == CHILD else None
        return None if child is None else FunctionSignature.of(child)

    def _made(self, type_: NodeType, context: NodeContext) -> Json:
        shape = self.shapes.get(f"{context.workflow}.{context.node}")
        if type_.name == "http":
            body = shape.get("body") if isinstance(shape, dict) else None
            return {"status": 200, "headers": {}, "url": str(context.config.get("url", "")), "body": body}
        schema = self._returned(str(context.config.get("function"))) if type_.name == USER_CODE else None
        made = fake_value(schema or type_.output_schema, shape)
        if type_.name in MODEL_TYPES and isinstance(made, dict):
            made |= _answer(type_, context.config, shape.get("value") if isinstance(shape, dict) else None)
        return made

    def _returned(self, name: str) -> Json:
        """The schema of what a function returns, as its type hint says; None where it says nothing."""
        function = self._functions.known(name)
        signature = None if function is None else FunctionSignature.of(function)
        hint = None if signature is None or signature.check is None else signature.hints.get("return")
        if hint in (None, type(None)):
            return None
        schemas, shared = schemas_of([hint])
        return {**schemas[0], "$defs": shared}


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
    given = dict(context.config.get("args") or context.config.get("inputs") or {})
    if real is None or real.signature is None or fake.signature is None:
        return fake.arguments({"args": given}, context)
    if fake.names == {"context"} and "context" not in given:
        return {"context": context}
    left = fake.names - given.keys() - {"context"}
    parameters = [each for name, each in real.signature.parameters.items() if name in fake.required & left]
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    converters = {name: each for name, each in real.converters.items() if name in fake.names - fake.hints.keys()}
    converters = {name: each for name, each in {**converters, **fake.converters}.items() if name not in defaults}
    both = fake._replace(converters=converters, hints={**real.hints, **fake.hints})
    return both.arguments({"args": {**defaults, **given}}, context)


# Made values

DEPTH_MAX = 8
_STRINGS = {
    "date-time": "2030-01-01T00:00:00Z",
    "date": "2030-01-01",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "duration": "PT1H",
    "decimal": "1",
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
        case "array" if "prefixItems" in schema:
            return [fake_value(each, None, root, depth + 1) for each in schema["prefixItems"]]
        case "array":
            inner = shape[0] if isinstance(shape, list) and shape else shape
            size = max(int(schema.get("minItems", 0)), min(1, int(schema.get("maxItems", 1))))
            return [fake_value(schema.get("items", True), inner, root, depth + 1)] * size
        case "string":
            return _made_text(schema)
        case "integer" | "number":
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return min(least, schema["maximum"]) if "maximum" in schema else least
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return shape


def _made_text(schema: Mapping[str, Any]) -> str:
    """A text of a schema's format and length; if its pattern or bounds refuse that, another usual one that fits."""
    text = _STRINGS.get(str(schema.get("format")), "fake")
    text += "e" * (int(schema.get("minLength", 0)) - len(text))
    text = text[: int(schema["maxLength"])] if "maxLength" in schema else text
    bounds = [str(schema[key]) for key in ("formatMinimum", "formatMaximum") if key in schema]
    if not bounds and "pattern" not in schema:
        return text
    try:
        accepts = compile_schema({key: each for key, each in schema.items() if key != "type"}).accepts
    except ExpressionError:
        return text
    return next((each for each in (text, *bounds, *_STRINGS.values()) if accepts(each)), text)


# What the workflow reads

_LISTED = re.compile(r"\s*\|\s*(?:length|count|join|sum|map|first|last|sort|list|unique|min|max|batch|select\w*)\b")
_ATTRIBUTE = re.compile(r"""\s*\|\s*(?:map|sum|groupby|sort|unique|min|max)\(\s*attribute\s*=\s*["'](\w+)["']""")
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
        is_item = node.map is not None and isinstance(shape, list)
        shapes[f"{workflow.name}.{node.id}"] = shape[0] if is_item else shape
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
        of_items = _ATTRIBUTE.match(text, found.end())
        items = [{of_items[1]: 1}, {of_items[1]: 2}] if of_items else [1, 2]
        shape = _merged(shape, path, items if is_list else leaf)
    return shape


def _merged(shape: Json, path: list[str], leaf: Json) -> Json:
    """A shape that also has a leaf at a path; what is known in more detail stays."""
    if not path and isinstance(shape, list) and isinstance(shape[0], dict) and isinstance(leaf, list) and leaf[0] != 1:
        return [{**known, **more} for known, more in zip(shape, leaf, strict=True)]
    if not path:
        return leaf if (shape in (None, 1, [1, 2]) and leaf != 1) or shape is None else shape
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


# The file of fakes


class FakesFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What `--fakes FILE` may hold."""

    inputs: dict[str, Any] = {}
    nodes: dict[str, Any] = {}
    """What nodes return; `{$fail: {code, message, retryable}}` is a failure."""
    approvals: dict[str, dict[str, Any]] = {}
    """`{decision, form, comments}` by node; everything else is approved."""
    signals: dict[str, Any] = {}
    """Payloads by name."""
    repeatable: list[str] = []
    """Nodes whose effect may happen twice without harm."""
    expect: Literal["", "completed", "failed"] = ""
    """How every run is to end; a run that is to fail is rolled back."""


def read_fakes(raw: Json) -> FakesFile:
    """Read a file of fakes. Raises Rejected."""
    try:
        return msgspec.convert(raw, FakesFile)
    except msgspec.ValidationError as error:
        hint = "its keys are inputs, nodes, approvals, signals, repeatable and expect (completed or failed)"
        raise rejected("fakes_invalid", f"the file of fakes cannot be used: {error}", hint=hint) from None


def given_fakes(given: Mapping[Any, Any]) -> FakesFile:
    """The fakes that a caller gives: the parts of a file, or what nodes return. Tasks may stand for nodes."""
    parts = FakesFile.__struct_fields__
    others = [key for key in given if key not in parts]
    if len(others) == len(given):
        return FakesFile(nodes=dict(given))
    if others:
        message = f"`fakes` holds {others[0]!r} beside {next(key for key in given if key in parts)!r}"
        hint = f"put it under `nodes`, or leave out {', '.join(parts)}: then every key is a node or task"
        raise rejected("fakes_invalid", message, hint=hint)
    nodes = given.get("nodes", {})
    is_mapping = isinstance(nodes, Mapping)
    found = read_fakes({**given, "nodes": {} if is_mapping else nodes})
    return msgspec.structs.replace(found, nodes=dict(nodes))


def described(given: Json) -> Any:
    """The fake that a file describes: a value, or the failure `{$fail: {code, message, retryable}}`."""
    fail = given.get("$fail") if isinstance(given, dict) and len(given) == 1 else None
    if not isinstance(fail, dict):
        return given
    code, message = str(fail.get("code", "failed")), str(fail.get("message", "a fake failure"))
    return Fail(code, message, retryable=bool(fail.get("retryable", False)))
