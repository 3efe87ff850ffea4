"""Control node types: value, fail, sleep, wait_until, input, output, human, signal, workflow.

None of them has an effect, and none occupies a worker while it waits: the handler returns what to wait for, and the
kernel decides who may end the wait. `input` and `output` give a node id and a schema to the run's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.tasks import find_all
from tidemill.expressions.schema import check_schema, compile_schema, holds_wildcard
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import ApprovalRequest, ChildRun, Done, Fail, Handler, HandlerOutcome, NodeContext, Wait
from tidemill.kernel.model import ConfigProblem, NodeType

# Input and output.


def check_query(query: str, path: str, *, single: bool = False) -> Iterator[ConfigProblem]:
    """Check a JSONPath query that is not a template; `single` requires one that can find only one value."""
    from tidemill.expressions.jsonpath.parser import QueryFault, read_query

    if is_template(query):
        return
    try:
        found = read_query(query)
    except QueryFault as fault:
        yield ConfigProblem(path, fault.message, fault.hint)
        return
    if single and found.keys is None:
        yield ConfigProblem(
            path, "the query can find several values, but exactly one is needed", "such as $.customer.name"
        )


OBJECT_OR_NULL = ["object", "null"]


def _fields(kind: str | list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": kind, "properties": properties, "additionalProperties": False}


def _check_input(config: Any) -> Iterator[ConfigProblem]:
    if config is not None and "path" in config:
        yield from check_query(config["path"], "/path", single=True)


INPUT = NodeType(
    name="input",
    title="Input",
    icon="log-in",
    description="Returns the run's inputs, or a part of them, and validates them.",
    schemas=("schema",),
    check=_check_input,
    config_schema=_fields(
        OBJECT_OR_NULL,
        path={"type": "string", "minLength": 1, "default": "$"},
        default=True,
        schema={"type": ["object", "boolean"]},
    ),
)

OUTPUT = NodeType(
    name="output",
    title="Output",
    icon="log-out",
    description="Sets the outputs of the run and validates them.",
    schemas=("schema",),
    config_schema=_fields(OBJECT_OR_NULL, value=True, schema={"type": ["object", "boolean"]}),
)


def read_input(context: NodeContext) -> HandlerOutcome:
    config: dict[str, Any] = context.config or {}
    path = config.get("path", "$")
    try:
        found = find_all(path, context.inputs)
    except ExpressionError as failure:
        raise Fail("config_invalid", f"/path: {failure.message}", hint=failure.hint) from None
    if not found and "default" not in config:
        raise Fail("nothing_found", f"the inputs have nothing at {path}", hint="give it a default")
    value = found[0] if found else config["default"]
    check_value(value, config.get("schema"), "the input")
    return Done(value)


def write_output(context: NodeContext) -> HandlerOutcome:
    config: dict[str, Any] = context.config or {}
    value = config["value"] if "value" in config else value_before(context)
    check_value(value, config.get("schema"), "the output")
    return Done(value)


def value_before(context: NodeContext) -> Any:
    """The output of the only parent; of several parents, an object of outputs by node id."""
    outputs = dict(context.upstream)
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def check_value(value: Any, schema: Any, what: str) -> None:
    if schema is None:
        return
    try:
        problems = compile_schema(schema).problems(value)
    except ExpressionError as failure:
        raise Fail("config_invalid", f"/schema{failure.path}: {failure.message}", hint=failure.hint) from None
    if problems:
        details = "; ".join(f"{each.path or '/'}: {each.message}" for each in problems[:5])
        raise Fail("schema_mismatch", f"{what} does not match its schema: {details}", hint=problems[0].hint)


BORDERS = (Handler(INPUT, read_input), Handler(OUTPUT, write_output))


# Value, fail and sleep.

VALUE = NodeType(name="value", description="Returns its rendered config.")

FAIL = NodeType(
    name="fail",
    description="Fails, or fails the first attempts and then returns a value.",
    config_schema=_fields(
        OBJECT_OR_NULL,
        message={"type": "string"},
        kind={"type": "string", "pattern": "^[a-z][a-z0-9_]*$", "maxLength": 64, "default": "failed"},
        retryable={"type": "boolean", "default": False},
        attempts={"type": "integer", "minimum": 0},
        value=True,
    ),
)

SLEEP = NodeType(
    name="sleep",
    waits=True,
    description="Waits on a durable timer; outputs null.",
    config_schema=_fields(
        "object",
        seconds={"type": "number", "minimum": 0, "maximum": 3_155_760_000},
        ms={"type": "integer", "minimum": 0, "maximum": 3_155_760_000_000},
    )
    | {"minProperties": 1, "maxProperties": 1},
)


def value(context: NodeContext) -> HandlerOutcome:
    return Done(context.config)


def fail(context: NodeContext) -> HandlerOutcome:
    """Fail with the configured kind; after `attempts` failures of this visit or item, return `value`."""
    config: dict[str, Any] = context.config or {}
    failing = config.get("attempts")
    if failing is not None and context.attempt > failing:
        return Done(config.get("value"))
    kind, message = config.get("kind", "failed"), config.get("message", "the node is configured to fail")
    raise Fail(kind, message, retryable=config.get("retryable", False))


def sleep(context: NodeContext) -> HandlerOutcome:
    config: dict[str, Any] = context.config
    ms = config["ms"] if "ms" in config else round(config["seconds"] * 1000)
    return Wait(on="timer", for_ms=ms)


PLAIN = tuple(Handler(kind, call, captured=False) for kind, call in ((VALUE, value), (FAIL, fail), (SLEEP, sleep)))


# Nodes that wait for approvals, signals, child runs and times.

HOURS_MAX = 876_600
"""A hundred years, as for the node type `sleep`."""
MOMENT_MS_MAX = 253_402_300_800_000
"""The end of the year 9999."""
_PRINCIPAL = {"type": "string", "pattern": "^(user|role):.+", "description": "user:NAME or role:NAME"}
_PRINCIPALS = {"type": "array", "items": _PRINCIPAL, "maxItems": 1_000}
_NODE_IDS = {"type": "array", "items": {"type": "string"}}


_ASKED = ("approvers", "escalate_to")


def _too_few(config: Mapping[str, Any], key: str, quorum: int) -> Iterator[ConfigProblem]:
    """Report a quorum that exceeds the number of people in a list; a role may have any number of members."""
    asked = config.get(key, ())
    if not isinstance(asked, list) or any(map(is_template, asked)):
        return
    people = set(asked)
    if 0 < len(people) < quorum and all(name.startswith("user:") for name in people):
        message = f"{quorum} people have to agree, but `{key}` names only {len(people)}"
        yield ConfigProblem("/quorum", message, f"lower the quorum, or name a role in `{key}`")


def _check_approval(config: Any) -> Iterator[ConfigProblem]:
    if config.get("on_timeout", "fail") != "fail" and not {"timeout_seconds", "timeout_hours"} & config.keys():
        hint = "write timeout_seconds, or leave out on_timeout"
        yield ConfigProblem("/on_timeout", "the approval has no time-out, so this never happens", hint)
    form = config.get("form")
    if form is not None and not holds_wildcard(form, is_template) and not check_schema(form):
        # Imported here: only documents that are compiled have forms to check.
        from tidemill.kernel.compile.compiler import check_defaults

        for problem in check_defaults(form, "/form"):
            hint = "who leaves this field out would be refused: write a default that the schema allows"
            yield ConfigProblem(problem.path, problem.message, hint, problem.code)
    quorum = config.get("quorum", 1)
    for key in _ASKED if isinstance(quorum, int) else ():
        yield from _too_few(config, key, quorum)


def _check_time(config: Any) -> Iterator[ConfigProblem]:
    at = config.get("at")
    if isinstance(at, str) and not is_template(at):
        try:
            _moment_ms(at)
        except Fail as failure:
            yield ConfigProblem("/at", failure.message, failure.hint)


HUMAN = NodeType(
    name="human",
    waits=True,
    exits=("rejection_path", "changes_path"),
    schemas=("form",),
    check=_check_approval,
    description="Asks people to approve, reject or request changes.",
    output_schema=_fields(
        "object",
        decision={"enum": ["approve", "reject", "changes"]},
        comments=True,
        decided_by=True,
        decided_at=True,
        form=True,
    ),
    output_keys=lambda config: {"form": config["form"]} if "form" in config else {},
    config_schema=_fields(
        OBJECT_OR_NULL,
        title={"type": "string", "maxLength": 500},
        description={"type": "string", "maxLength": 20_000},
        form={"type": "object"},
        approvers=_PRINCIPALS,
        quorum={"type": "integer", "minimum": 1, "default": 1},
        four_eyes={"type": "boolean", "default": False},
        timeout_seconds={"type": "number", "exclusiveMinimum": 0, "maximum": HOURS_MAX * 3_600},
        timeout_hours={"type": "number", "exclusiveMinimum": 0, "maximum": HOURS_MAX},
        on_timeout={"enum": ["approve", "reject", "escalate", "fail"], "default": "fail"},
        escalate_to={**_PRINCIPALS, "minItems": 1},
        rejection_path=_NODE_IDS,
        changes_path=_NODE_IDS,
        approval_url={"type": "string", "maxLength": 2_000},
    )
    | {
        "not": {"required": ["timeout_seconds", "timeout_hours"]},
        "if": {"properties": {"on_timeout": {"const": "escalate"}}, "required": ["on_timeout"]},
        "then": {"required": ["escalate_to"]},
    },
)

SIGNAL = NodeType(
    name="signal",
    waits=True,
    description="Waits for a signal; outputs its payload.",
    config_schema=_fields(OBJECT_OR_NULL, name={"type": "string", "minLength": 1, "maxLength": 200}),
)

WORKFLOW = NodeType(
    name="workflow",
    waits=True,
    description="Runs another workflow as a child; outputs what it returns.",
    config_schema={
        "type": "object",
        "properties": {
            "workflow": {"type": "string", "minLength": 1, "maxLength": 300},
            "inputs": True,
            "close": {"enum": ["cancel", "abandon"], "default": "cancel"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "budget": {
                "type": "object",
                "properties": {
                    "calls": {"type": "integer", "minimum": 1},
                    "tokens": {"type": "integer", "minimum": 1},
                    "money": {"type": "number", "exclusiveMinimum": 0},
                },
                "additionalProperties": False,
            },
        },
        "required": ["workflow"],
        "additionalProperties": False,
    },
)

WAIT_UNTIL = NodeType(
    name="wait_until",
    waits=True,
    check=_check_time,
    description="Waits until a timestamp; outputs null. A timestamp in the past does not wait.",
    config_schema=_fields(
        "object", at={"type": "string"}, at_ms={"type": "integer", "minimum": 0, "maximum": MOMENT_MS_MAX}
    )
    | {"minProperties": 1, "maxProperties": 1},
)


def human(context: NodeContext) -> HandlerOutcome:
    config: dict[str, Any] = context.config or {}
    approvers, quorum = tuple(config.get("approvers", ())), int(config.get("quorum", 1))
    for key in _ASKED:
        for problem in _too_few(config, key, quorum):
            raise Fail("config_invalid", problem.message, hint=problem.hint)
    seconds = config["timeout_hours"] * 3_600 if "timeout_hours" in config else config.get("timeout_seconds")
    return Wait(
        on="human",
        approval=ApprovalRequest(
            title=config.get("title") or context.node,
            description=config.get("description", ""),
            form=config.get("form"),
            approvers=approvers,
            quorum=quorum,
            four_eyes=config.get("four_eyes", False),
            timeout_ms=None if seconds is None else max(1, round(float(seconds) * 1_000)),
            on_timeout=config.get("on_timeout", "fail"),
            escalate_to=tuple(config.get("escalate_to", ())),
            url=config.get("approval_url", ""),
        ),
    )


def signal(context: NodeContext) -> HandlerOutcome:
    """Wait for a signal, by default one with the node's id as its name."""
    return Wait(on="signal", name=(context.config or {}).get("name", context.node))


def workflow(context: NodeContext) -> HandlerOutcome:
    return Wait(on="child", child=ChildRun(**{"inputs": {}} | context.config))


def wait_until(context: NodeContext) -> HandlerOutcome:
    config: dict[str, Any] = context.config
    return Wait(on="timer", until_ms=int(config["at_ms"]) if "at_ms" in config else _moment_ms(config["at"]))


def _moment_ms(text: str) -> int:
    """Parse an ISO 8601 time; without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0, round(moment.timestamp() * 1_000))
    except (ValueError, OverflowError):
        hint = "for example 2030-01-31T09:00:00+01:00"
        raise Fail("config_invalid", f"{text!r} is not a timestamp", hint=hint) from None


WAITING = (Handler(HUMAN, human), Handler(SIGNAL, signal), Handler(WORKFLOW, workflow), Handler(WAIT_UNTIL, wait_until))
