"""Node type `transform`: builds a value from templates and JSONPath queries.

The worker renders the templates before the handler is called. The handler evaluates the queries: here if the cost is
bounded, otherwise in a sandbox process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tidemill.expressions.conditions import is_small
from tidemill.expressions.errors import ExpressionError, kind_of, pointer
from tidemill.expressions.sandbox.pool import SandboxExecutor
from tidemill.expressions.sandbox.tasks import RunQuery
from tidemill.expressions.templates.syntax import is_template
from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext, Return
from tidemill.handlers.control import check_query, value_before
from tidemill.kernel.model import ConfigProblem, NodeType

QUERY_MAX = 8192
EXTRACTS_MAX = 200

_QUERY = {"type": "string", "minLength": 1, "maxLength": QUERY_MAX}


class Extract(NamedTuple):
    """A query, the value it is applied to, and a default."""

    path: str
    source: Any
    has_default: bool = False
    default: Any = None


def _check(config: Any) -> Iterator[ConfigProblem]:
    if is_template(config.get("extract")):
        return
    for name, given in config.get("extract", {}).items():
        where = pointer("/extract", name)
        if isinstance(given, dict):
            yield from check_query(given["path"], f"{where}/path")
        else:
            yield from check_query(given, where)
        value = config.get("value")
        if isinstance(value, dict) and name in value:
            yield ConfigProblem(where, f"value has a {name} as well", "leave one of them out")


TRANSFORM = NodeType(
    name="transform",
    title="Transform",
    icon="shuffle",
    description="Gives a value a new shape, by templates and JSONPath queries.",
    check=_check,
    config_schema={
        "type": "object",
        "properties": {
            "value": True,
            "from": True,
            "extract": {
                "type": "object",
                "maxProperties": EXTRACTS_MAX,
                "minProperties": 1,
                "additionalProperties": {
                    "anyOf": [
                        _QUERY,
                        {
                            "type": "object",
                            "properties": {"path": _QUERY, "from": True, "default": True},
                            "required": ["path"],
                            "additionalProperties": False,
                        },
                    ]
                },
            },
        },
        "anyOf": [{"required": ["value"]}, {"required": ["extract"]}],
        "additionalProperties": False,
    },
)


def transform_handler(carrier: SandboxExecutor) -> Handler:
    async def call(context: NodeContext) -> Ended:
        for problem in _check(context.config):
            raise Fail("config_invalid", f"{problem.path}: {problem.message}", hint=problem.hint)
        config: dict[str, Any] = context.config
        if "extract" not in config:
            return Return(config["value"])
        source = config["from"] if "from" in config else value_before(context)
        found = {name: await _find(name, _extract(given, source), carrier) for name, given in config["extract"].items()}
        if "value" not in config:
            return Return(found)
        value = config["value"]
        if not isinstance(value, dict):
            hint = "write value as an object, or leave it out"
            raise Fail("config_invalid", f"what is extracted cannot be added to {kind_of(value)}", hint=hint)
        return Return(value | found)

    return Handler(TRANSFORM, call)


def _extract(given: Any, source: Any) -> Extract:
    if isinstance(given, str):
        return Extract(given, source)
    return Extract(given["path"], given.get("from", source), "default" in given, given.get("default"))


async def _find(name: str, extract: Extract, carrier: SandboxExecutor) -> Any:
    """The value of a query that can find only one, or the list of all values that a query finds."""
    from tidemill.expressions.jsonpath.parser import read_query
    from tidemill.expressions.jsonpath.query import is_cheap

    query = read_query(extract.path)
    if query.keys is not None or (is_cheap(query, extract.path) and is_small(extract.source)):
        values = list(query.find(extract.source, extract.source))
    else:
        values = await _find_in_sandbox(name, extract, carrier)
    if query.keys is None:
        return values
    if not values and not extract.has_default:
        message = f"{name}: there is nothing at {extract.path} of {kind_of(extract.source)}"
        raise Fail("nothing_found", message, hint="give it a default")
    return values[0] if values else extract.default


async def _find_in_sandbox(name: str, extract: Extract, carrier: SandboxExecutor) -> list[Any]:
    try:
        values: list[Any] = await carrier.execute(
            RunQuery(query=extract.path, value=msgspec.Raw(msgspec.json.encode(extract.source)))
        )
    except ExpressionError as failure:
        raise Fail("query_failed", f"{name}: {failure.message}", hint=failure.hint) from None
    return values
