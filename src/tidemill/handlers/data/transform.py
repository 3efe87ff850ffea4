"""Node type `transform`: builds a value from templates and JSONPath queries.

The worker renders the templates before the handler is called. The handler evaluates the queries: here if the cost is
bounded, otherwise in a sandbox process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemill.expressions.errors import ExpressionError, kind_of, pointer
from tidemill.expressions.sandbox.pool import SandboxExecutor, run_query
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext, object_schema
from tidemill.handlers.control import check_query, value_before
from tidemill.kernel.model import ConfigProblem, NodeType

_QUERY = {"type": "string", "minLength": 1, "maxLength": 8192}


def _check(config: Any) -> Iterator[ConfigProblem]:
    if is_template(config.get("extract")):
        return
    for name, given in config.get("extract", {}).items():
        where = pointer("/extract", name)
        query, at = (given["path"], f"{where}/path") if isinstance(given, dict) else (given, where)
        yield from check_query(query, at)
        value = config.get("value")
        if isinstance(value, dict) and name in value:
            yield ConfigProblem(where, f"value has a {name} as well", "leave one of them out")


TRANSFORM = NodeType(
    name="transform",
    title="Transform",
    icon="shuffle",
    description="Reshapes a value with templates and JSONPath queries.",
    check=_check,
    config_schema={
        "type": "object",
        "properties": {
            "value": True,
            "from": True,
            "extract": {
                "type": "object",
                "maxProperties": 200,
                "minProperties": 1,
                "additionalProperties": {
                    "anyOf": [_QUERY, object_schema(("path",), **{"path": _QUERY, "from": True, "default": True})]
                },
            },
        },
        "anyOf": [{"required": ["value"]}, {"required": ["extract"]}],
        "additionalProperties": False,
    },
)


def transform_handler(carrier: SandboxExecutor) -> Handler:
    async def call(context: NodeContext) -> HandlerOutcome:
        for problem in _check(context.config):
            raise Fail("config_invalid", f"{problem.path}: {problem.message}", hint=problem.hint)
        config: dict[str, Any] = context.config
        if "extract" not in config:
            return Done(config["value"])
        source = config["from"] if "from" in config else value_before(context)
        found = {name: await _find(name, given, source, carrier) for name, given in config["extract"].items()}
        if "value" not in config:
            return Done(found)
        value = config["value"]
        if not isinstance(value, dict):
            hint = "write value as an object, or leave it out"
            raise Fail("config_invalid", f"what is extracted cannot be added to {kind_of(value)}", hint=hint)
        return Done(value | found)

    return Handler(TRANSFORM, call)


async def _find(name: str, given: Any, source: Any, carrier: SandboxExecutor) -> Any:
    """The value of a query that can find only one, or the list of all values that a query finds."""
    from tidemill.expressions.jsonpath.parser import read_query

    options: dict[str, Any] = {"path": given} if isinstance(given, str) else given
    path, source = options["path"], options.get("from", source)
    try:
        values = await run_query(path, source, carrier)
    except ExpressionError as failure:
        raise Fail("query_failed", f"{name}: {failure.message}", hint=failure.hint) from None
    if read_query(path).keys is None:
        return values
    if not values and "default" not in options:
        message = f"{name}: there is nothing at {path} of {kind_of(source)}"
        raise Fail("nothing_found", message, hint="give it a default")
    return values[0] if values else options["default"]
