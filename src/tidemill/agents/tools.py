"""Tools: what a model may call, the allow-list of a node, and the way from a call to its result.

    toolbox = await registry.open(context.config["tools"], context)
    prepared = toolbox.prepare(name, arguments_text, used)      # `Prepared`, or a `ToolResult` with an error
    ended = await toolbox.call(prepared, tool_context)          # `ToolResult`, or `Pending`
    ended = await toolbox.resume(prepared, tool_context, pending_state, context.resumed)

Nothing here has state of its own: the loop records every result and every `Pending.state`, and the same call with the
same records ends alike. What a model does wrong comes back to it as a result with an error; only a store that is not
reachable, a cancellation and a broken configuration end the attempt.
A tool that is not `repeatable` must not be called again when its result is missing from the log: the loop answers the
model with `unknown_outcome` instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from tidemill.agents.port import AgentPort
from tidemill.errors import Problem, Rejected, Unavailable, offered
from tidemill.expressions.errors import ExpressionError, kind_of, shorten
from tidemill.expressions.schema import check_schema, compile_schema
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import (
    ApprovalRequest,
    Cancelled,
    CapabilityMissing,
    Done,
    Fail,
    Handler,
    NodeContext,
    Wait,
    describe_exception,
    truncate,
)
from tidemill.handlers.data.steps import holds_template

ARGUMENTS_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 16 * 1024
"""A larger result is stored as a blob; the model sees its reference and preview."""
SAMPLE_ROWS = 3
SAMPLE_TEXT_MAX = 500
PROBLEMS_MAX = 8
CALLS_MAX = 1_000
TOOL_SECRET_FIELDS = ("tools.*.auth", "tools.*.agents.*.keys")
"""Fields of the config of an agent, below its tools, that may hold secrets."""
CONFIRM_MS = 7 * 86_400_000
"""How long a person has time to confirm a call; after that it is refused."""
PERSON_READS_MAX = 16_000
"""Characters that a person is asked to agree to; what is longer is refused, because nothing may hide behind its end."""

_ENCODER = msgspec.json.Encoder(order="sorted")


class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call does to the world, as its author states it; the defaults are the most careful ones."""

    read_only: bool = False
    destructive: bool = False
    """A person must confirm each call, unless the node's config says otherwise."""
    idempotent: bool = False
    """A second call with the same key has no second effect."""
    open_world: bool = False
    """Results hold text of strangers."""

    @property
    def repeatable(self) -> bool:
        return self.read_only or self.idempotent


CAREFUL = Effect()
"""Of a tool whose author says nothing."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """One call: the attempt, the port and what identifies the call."""

    node: NodeContext
    port: AgentPort
    call_id: str
    """The model's id of the call."""
    key: str
    """Equal for every try of this call, and for no other: `<effect key>/<place>`, which is `<turn>.<position>`."""
    begin: Callable[[], Awaitable[None]]
    """Records that a tool begins which must not be called twice."""
    tools: tuple[Tool, ...] = ()
    """All tools of the node."""

    @property
    def place(self) -> str:
        return self.key.rpartition("/")[2]


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call has given. `error` is a code; then `content` is its description for the model."""

    content: Any = None
    error: str = ""
    reference: dict[str, Any] | None = None
    """The whole value, if it is stored as a blob."""
    preview: dict[str, Any] | None = None
    unknown_outcome: bool = False
    """The effect may have happened."""
    run_id: str = ""
    """The child run that gave this result."""

    @property
    def text(self) -> str:
        """What the model reads."""
        return _ENCODER.encode(self.content).decode()


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """The call continues after a wait. The loop records `state`, ends the attempt with `wait`, and calls `resume`."""

    wait: Wait
    state: Any = None


Ended = ToolResult | Pending
CallTool = Callable[[ToolContext, dict[str, Any]], Awaitable[Ended]]
ResumeTool = Callable[[ToolContext, dict[str, Any], Any, Any], Awaitable[Ended]]
"""Arguments: the call, its arguments, `Pending.state`, and what the wait gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as one node has it. Name, description and parameters are part of the stable prefix."""

    name: str
    description: str
    parameters: dict[str, Any]
    call: CallTool
    effect: Effect = CAREFUL
    resume: ResumeTool | None = None
    lane: str = ""
    """`fast` for work that leaves nothing behind, `patch` for lasting change, empty for neither."""
    max_calls: int = CALLS_MAX
    destroys: Callable[[ToolContext, dict[str, Any]], Awaitable[bool]] | None = None
    """Whether a call is destructive, where only some calls of the tool are."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a node's allow-list."""

    name: str
    settings: dict[str, Any] = {}
    confirm: bool | None = None
    """Whether a person confirms each call; None leaves it to the tool's effect."""
    approvers: tuple[str, ...] = ()
    four_eyes: bool = False
    """A person who submitted or patched the run does not decide."""
    max_calls: int | None = None
    """Calls in one visit; None leaves it to the tool."""


class ToolSource(NamedTuple):
    """What an entry of an allow-list may name: one tool, or several as of an MCP server."""

    name: str
    make: Callable[[Allowance, NodeContext], Awaitable[Sequence[Tool]]]
    settings_schema: Any = True
    check: Callable[[dict[str, Any], str], Iterable[Problem]] = lambda settings, path: ()
    """Problems of settings beyond the schema, at a path."""
    templated: tuple[str, ...] = ()
    """Settings that may hold templates; all others are constants, so that no data widens what an agent may do."""


_ENTRY_KEYS = ("name", "confirm", "approvers", "four_eyes", "max_calls")
ALLOW_LIST_SCHEMA: dict[str, Any] = {
    "type": "array",
    "maxItems": 64,
    "default": [],
    "items": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "confirm": {"type": "boolean"},
                    "approvers": {"type": "array", "items": {"type": "string", "minLength": 1}},
                    "four_eyes": {"type": "boolean"},
                    "max_calls": {"type": "integer", "minimum": 1, "maximum": CALLS_MAX},
                },
                "required": ["name"],
            },
        ]
    },
}
"""JSON Schema of `tools`; the other keys of an entry are settings of its source."""


def allowances(tools: Iterable[Any]) -> tuple[Allowance, ...]:
    """The allow-list of a valid config."""
    made = []
    for entry in tools:
        given: dict[str, Any] = {"name": entry} if isinstance(entry, str) else dict(entry)
        settings = {key: value for key, value in given.items() if key not in _ENTRY_KEYS}
        made.append(
            Allowance(
                name=given["name"],
                settings=settings,
                confirm=given.get("confirm"),
                approvers=tuple(given.get("approvers", ())),
                four_eyes=given.get("four_eyes", False),
                max_calls=given.get("max_calls"),
            )
        )
    return tuple(made)


def tool_names(tools: Iterable[Any]) -> set[str]:
    """What an allow-list allows; the tools of an MCP server by its name."""
    return {f"mcp {each.settings['server']}" if each.name == "mcp" else each.name for each in allowances(tools)}


class ToolRegistry:
    """The tool sources of a process, by name."""

    def __init__(
        self, sources: Iterable[ToolSource] = (), late: Callable[[str], ToolSource | None] | None = None
    ) -> None:
        self._sources: dict[str, ToolSource] = {}
        self._late = late
        """Finds sources that may be added at any time, such as registered functions."""
        for source in sources:
            self.add(source)

    def add(self, source: ToolSource) -> None:
        if source.name in self._sources:
            raise ValueError(f"there are two tools with the name {source.name}")
        self._sources[source.name] = source

    def names(self) -> list[str]:
        return sorted(self._sources)

    def get(self, name: str) -> ToolSource | None:
        found = self._sources.get(name)
        return self._late(name) if found is None and self._late is not None else found

    def problems(self, tools: Any, path: str = "/tools", *, here: bool = False) -> list[Problem]:
        """Problems of an allow-list: templates, unknown and repeated names, wrong settings.

        A name that is not known and resembles none may be a function of another process, unless the tools must be
        `here`.
        """
        if not isinstance(tools, list):
            return [_not_constant("the list of tools", path)]
        if found := list(_templates_of_entries(tools, path)):
            return found
        if not compile_schema(ALLOW_LIST_SCHEMA).accepts(tools):
            # The schema of the node type reports what is wrong.
            return []
        seen: set[str] = set()
        for number, allowance in enumerate(allowances(tools)):
            place = f"{path}/{number}"
            source = self.get(allowance.name)
            if source is None:
                hint = offered(allowance.name, self._sources)
                if here and allowance.name.isidentifier():
                    hint = f"a function of yours has the mark @tidemill.tool, and this process knows it (--app); {hint}"
                if here or hint.startswith("did you mean") or not allowance.name.isidentifier():
                    message = f"there is no tool {shorten(allowance.name, 80)}"
                    found.append(Problem(code="tool_unknown", message=message, path=place, hint=hint))
                continue
            key = _ENCODER.encode([allowance.name, allowance.settings]).decode()
            if key in seen:
                message = f"the tool {allowance.name} is listed twice"
                found.append(Problem(code="tool_twice", message=message, path=place))
            seen.add(key)
            fixed = ((key, value) for key, value in allowance.settings.items() if key not in source.templated)
            constant = [_not_constant(key, f"{place}/{key}") for key, value in fixed if holds_template(value)]
            found += constant
            schema = compile_schema(source.settings_schema)
            wrong = [
                msgspec.structs.replace(each, code="config_invalid", path=place + each.path)
                for each in schema.problems(allowance.settings, wildcard=is_template)
            ]
            found += wrong
            if not constant and not wrong:
                found += source.check(allowance.settings, place)
        return found

    async def open(self, tools: Iterable[Any], context: NodeContext) -> Toolbox:
        """The toolbox of an attempt. Raises `Fail` for an allow-list that cannot be used."""
        known: dict[str, tuple[Tool, Allowance]] = {}
        listed = list(tools)
        for problem in self.problems(listed, here=True):
            kind = CapabilityMissing if problem.code == "tool_unknown" else Fail
            raise kind(problem.code, f"{problem.path}: {problem.message}", hint=problem.hint)
        for allowance in allowances(listed):
            source = self.get(allowance.name)
            assert source is not None, "there were no problems"
            for tool in await source.make(allowance, context):
                if tool.name in known:
                    message = f"two entries of the allow-list give a tool {tool.name}"
                    raise Fail("tool_twice", message, hint="leave one out, or give it another name")
                if problems := check_schema(tool.parameters):
                    message = f"the parameters of the tool {tool.name} are no JSON Schema: {problems[0].sentence}"
                    raise Fail("tool_invalid", message, hint=problems[0].hint)
                known[tool.name] = (tool, allowance)
        return Toolbox(known)


def _templates_of_entries(tools: list[Any], path: str) -> Iterator[Problem]:
    for number, entry in enumerate(tools):
        given = entry if isinstance(entry, dict) else {"name": entry}
        for key in _ENTRY_KEYS:
            if holds_template(given.get(key)):
                yield _not_constant(key, f"{path}/{number}")


def _not_constant(what: str, path: str) -> Problem:
    message = f"{what} is a constant: data must not choose what an agent may do"
    return Problem(code="tool_not_constant", message=message, path=path)


class Prepared(NamedTuple):
    """A call that is allowed and whose arguments fit."""

    tool: Tool
    allowance: Allowance
    arguments: dict[str, Any]


_CONFIRM, _TOOL = "confirm", "tool"
"""Stages of a pending call: a person is asked whether it may begin, or the tool waits itself."""


class Toolbox:
    """The tools of one node; no other exists for its model."""

    def __init__(self, tools: Mapping[str, tuple[Tool, Allowance]]) -> None:
        self._tools = dict(tools)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """In the order of the allow-list, so that the prefix has the same bytes every time."""
        return tuple(tool for tool, _ in self._tools.values())

    def prepare(self, name: str, arguments_text: str, used: int = 0) -> Prepared | ToolResult:
        """Check a call of the model. `used` counts the calls of the tool in this visit before this one."""
        known = self._tools.get(name)
        if known is None:
            hint = f"you have {', '.join(self._tools)}" if self._tools else "you have no tools"
            return error_result("tool_not_allowed", f"there is no tool {shorten(name, 80)} for you", hint=hint)
        tool, allowance = known
        most = tool.max_calls if allowance.max_calls is None else allowance.max_calls
        if used >= most:
            message = f"{name} may be called {most} times, and has been"
            return error_result("tool_calls_exhausted", message, hint="finish with what you have")
        arguments = _decoded(arguments_text)
        if isinstance(arguments, ToolResult):
            return arguments
        problems = compile_schema(tool.parameters).problems(arguments)
        if problems:
            return problems_result("arguments_invalid", f"the arguments do not fit {name}", problems)
        return Prepared(tool, allowance, arguments)

    async def call(self, prepared: Prepared, context: ToolContext) -> Ended:
        """Call a tool, after a person has confirmed it where that is needed."""
        tool, allowance, arguments = prepared
        if not await _needs_person(tool, allowance, context, arguments):
            return await self._begin(prepared, context)
        shown = _ENCODER.encode(arguments).decode()
        if len(shown) > PERSON_READS_MAX:
            message = f"a person has to read the arguments, and they have more than {PERSON_READS_MAX:,} characters"
            return error_result("arguments_invalid", message, hint="pass less, or large values as references")
        title = f"{context.node.node} wants to call {tool.name}"
        asked = ask_person(title, shown, allowance.approvers, allowance.four_eyes)
        return Pending(wait=asked, state=[_CONFIRM, None])

    async def resume(self, prepared: Prepared, context: ToolContext, state: Any, resumed: Any) -> Ended:
        """Continue a pending call with what its wait gave."""
        tool, _, arguments = prepared
        stage, own = state
        if stage == _CONFIRM:
            if not is_approved(resumed):
                message = f"the call was refused{remark_of(resumed)}"
                return error_result("not_confirmed", message, hint="do not repeat it")
            return await self._begin(prepared, context)
        if tool.resume is None:
            raise Fail("tool_invalid", f"the tool {tool.name} waits and cannot be continued")
        return await self._ended(tool.resume(context, arguments, own, resumed), context)

    async def _begin(self, prepared: Prepared, context: ToolContext) -> Ended:
        if not prepared.tool.effect.repeatable:
            await context.begin()
        return await self._ended(prepared.tool.call(context, prepared.arguments), context)

    async def _ended(self, pending: Awaitable[Ended], context: ToolContext) -> Ended:
        ended = await self._outcome(pending)
        if isinstance(ended, Pending):
            return msgspec.structs.replace(ended, state=[_TOOL, ended.state])
        # A service may repeat a secret that it was sent; the model must not see it.
        shown = msgspec.structs.replace(ended, content=context.port.masked(ended.content))
        return await stored_if_large(shown, context)

    async def _outcome(self, pending: Awaitable[Ended]) -> Ended:
        """What a tool ends with; what it raises is a result, too."""
        try:
            return _checked(await pending)
        except (Unavailable, Cancelled):
            raise
        except Fail as failed:
            return error_result(
                failed.code, failed.message, hint=failed.hint, unknown_outcome=bool(failed.unknown_outcome)
            )
        except Rejected as refused:
            return problems_result(refused.code, "the engine refuses this", refused.problems)
        except ExpressionError as error:
            return error_result(error.code, error.message, hint=error.hint)
        except Exception as error:
            described = describe_exception(error)
            return error_result("tool_failed", f"{described.kind}: {described.message}", unknown_outcome=True)


async def _needs_person(tool: Tool, allowance: Allowance, context: ToolContext, arguments: dict[str, Any]) -> bool:
    if allowance.confirm is not None:
        return allowance.confirm
    return tool.effect.destructive if tool.destroys is None else await tool.destroys(context, arguments)


def _checked(ended: Ended) -> Ended:
    """Refuse a result that is not JSON; code of others has made it."""
    if isinstance(ended, ToolResult):
        try:
            _ENCODER.encode(ended.content)
        except (TypeError, ValueError, RecursionError) as error:
            message = f"the result is not JSON: {shorten(str(error), 200)}"
            return error_result("output_not_json", message, unknown_outcome=True)
    return ended


async def stored_if_large(result: ToolResult, context: ToolContext) -> ToolResult:
    """Replace a large result by its reference and preview."""
    if result.error or result.reference is not None or len(_ENCODER.encode(result.content)) <= RESULT_BYTES_MAX:
        return result
    stored = await context.port.put_blob(result.content)
    content = {"reference": stored.reference, "preview": stored.preview}
    return msgspec.structs.replace(result, content=content, reference=stored.reference, preview=stored.preview)


def error_result(code: str, message: str, *, hint: str = "", unknown_outcome: bool = False) -> ToolResult:
    """A result that tells the model what was wrong."""
    error = {"code": code, "message": truncate(message)}
    if hint:
        error["hint"] = truncate(hint)
    content: dict[str, Any] = {"error": error}
    if unknown_outcome:
        content["unknown_outcome"] = "the effect may have happened; do not simply repeat the call"
    return ToolResult(content=content, error=code, unknown_outcome=unknown_outcome)


def problems_result(code: str, message: str, problems: Sequence[Problem]) -> ToolResult:
    """A result that tells the model every reason of a refusal."""
    shown = [each.to_dict() for each in problems[:PROBLEMS_MAX]]
    error: dict[str, Any] = {"code": code, "message": message, "problems": shown}
    if len(problems) > PROBLEMS_MAX:
        error["more"] = len(problems) - PROBLEMS_MAX
    return ToolResult(content={"error": error}, error=code)


def _decoded(text: str) -> dict[str, Any] | ToolResult:
    """The arguments that a model wrote; an empty text stands for none."""
    if len(text) > ARGUMENTS_BYTES_MAX:
        message = f"the arguments have more than {ARGUMENTS_BYTES_MAX} characters"
        return error_result("arguments_invalid", message, hint="pass large values as references")
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace")) if text.strip() else {}
    except (msgspec.DecodeError, RecursionError) as error:
        return error_result("arguments_invalid", f"the arguments are not JSON: {error}")
    if not isinstance(value, dict):
        return error_result("arguments_invalid", f"the arguments are {kind_of(value)}, not an object")
    return value


def ask_person(
    title: str,
    description: str,
    approvers: tuple[str, ...],
    four_eyes: bool,
    *,
    form: Any = None,
    timeout_ms: int = CONFIRM_MS,
) -> Wait:
    """The wait for the decision of a person; without one in time the answer is no."""
    asked = ApprovalRequest(
        title=title,
        description=description,
        form=form,
        approvers=approvers,
        four_eyes=four_eyes,
        timeout_ms=timeout_ms,
        on_timeout="reject",
    )
    return Wait("human", resume=True, approval=asked)


def is_approved(resumed: Any) -> bool:
    """Whether the wait for an approval ended with consent."""
    return isinstance(resumed, dict) and resumed.get("decision") == "approve"


def remark_of(resumed: Any) -> str:
    """What the person who decided has said, after a colon."""
    comment = resumed.get("comments") if isinstance(resumed, dict) else None
    return f": {shorten(comment, 500)}" if isinstance(comment, str) and comment else ""


async def call_handler(handler: Handler, context: ToolContext, config: dict[str, Any]) -> Any:
    """Call a node type's handler for one call of a tool; its effect key is that of the call. Raises `Fail`."""
    node = f"{context.node.node}.{context.place}"
    outcome = handler.call(msgspec.structs.replace(context.node, config=config, node=node))
    ended = await outcome if isinstance(outcome, Awaitable) else outcome
    if not isinstance(ended, Done):
        raise Fail("tool_failed", "a tool gives a value: it can neither wait nor skip")
    return ended.value


def preview_of(value: Any) -> dict[str, Any]:
    """`type`, `row_count` and `sample` of a value, small enough for a prompt."""
    if isinstance(value, list):
        sample = [_short(each) for each in value[:SAMPLE_ROWS]]
        kind = "table" if value and all(isinstance(each, dict) for each in value[:SAMPLE_ROWS]) else "array"
        return {"type": kind, "row_count": len(value), "sample": sample}
    kinds = {dict: "object", str: "string", bool: "boolean", type(None): "null", int: "number", float: "number"}
    return {"type": kinds.get(type(value), "object"), "row_count": 1, "sample": _short(value)}


def _short(value: Any) -> Any:
    text = _ENCODER.encode(value).decode()
    if len(text) <= SAMPLE_TEXT_MAX:
        return value
    if isinstance(value, str):
        return shorten(value, SAMPLE_TEXT_MAX)
    if isinstance(value, dict):
        share = max(40, SAMPLE_TEXT_MAX // (len(value) or 1))
        fields = list(value.items())[:12]
        return {shorten(str(key), 60): shorten(_ENCODER.encode(each).decode(), share) for key, each in fields}
    return shorten(text, SAMPLE_TEXT_MAX)
