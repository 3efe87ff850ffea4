"""Node types at the borders of a workflow: `input` shows what a run was given, `output` what it comes to.

Neither changes anything. They give a place in the graph, a name and a schema to what otherwise stands only at the head
and at the foot of a document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemill.expressions.chores import find_all
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.schema import compile_schema
from tidemill.expressions.templates import is_template
from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext, Return
from tidemill.kernel.model import Flaw, NodeType


def query_flaw(query: str, path: str, *, single: bool = False) -> Iterator[Flaw]:
    """Report what is wrong with a JSONPath query that is no template; `single` wants one that finds one value."""
    from tidemill.expressions.jsonpath_syntax import QueryFault, read_query

    if is_template(query):
        return
    try:
        found = read_query(query)
    except QueryFault as fault:
        yield Flaw(path, fault.message, fault.hint)
        return
    if single and found.keys is None:
        yield Flaw(path, "the query can find several values, and one is wanted", "such as $.customer.name")


def _part_flaw(config: Any) -> Iterator[Flaw]:
    if config is not None and "path" in config:
        yield from query_flaw(config["path"], "/path", single=True)


INPUT = NodeType(
    name="input",
    title="Input",
    icon="log-in",
    description="Shows what the run was given, or a part of it, and checks it.",
    schemas=("schema",),
    check=_part_flaw,
    config_schema={
        "type": ["object", "null"],
        "properties": {
            "path": {"type": "string", "minLength": 1, "default": "$"},
            "default": True,
            "schema": {"type": ["object", "boolean"]},
        },
        "additionalProperties": False,
    },
)

OUTPUT = NodeType(
    name="output",
    title="Output",
    icon="log-out",
    description="Names what the run comes to, and checks it.",
    schemas=("schema",),
    config_schema={
        "type": ["object", "null"],
        "properties": {"value": True, "schema": {"type": ["object", "boolean"]}},
        "additionalProperties": False,
    },
)


def shown_input(context: NodeContext) -> Ended:
    """Give the inputs of the run, or the part that is named, or its default."""
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
    return Return(value)


def shown_output(context: NodeContext) -> Ended:
    """Give the value that is named, or what came from before."""
    config: dict[str, Any] = context.config or {}
    value = config["value"] if "value" in config else value_before(context)
    check_value(value, config.get("schema"), "the output")
    return Return(value)


def value_before(context: NodeContext) -> Any:
    """Give the output of the node before this one; of several, an object of them by their ids."""
    outputs = dict(context.upstream)
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def check_value(value: Any, schema: Any, what: str) -> None:
    """Fail if a value does not match a schema."""
    if schema is None:
        return
    try:
        problems = compile_schema(schema).problems(value)
    except ExpressionError as failure:
        raise Fail("config_invalid", f"/schema{failure.path}: {failure.message}", hint=failure.hint) from None
    if problems:
        said = "; ".join(f"{each.path or '/'}: {each.message}" for each in problems[:5])
        raise Fail("schema_mismatch", f"{what} does not match its schema: {said}", hint=problems[0].hint)


BORDERS = (Handler(INPUT, shown_input), Handler(OUTPUT, shown_output))
