"""Whether the defaults in a schema fit the schema itself: those of inputs are checked when a workflow is published.

Else a run that leaves an input out would be refused for a value that its caller has not written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.errors import ExpressionError, pointer
from tidemill.expressions.schema import compile_schema
from tidemill.expressions.scope import Json

DEFAULTS_CHECKED_MAX = 200
"""Each costs compiling a schema."""
HINT = "runs without this input would be refused: write a default that the schema allows"


def check_defaults(schema: Json, path: str) -> list[Problem]:
    """Refuse defaults that their own part of a valid schema does not allow; one that others complete is not checked."""
    found: list[Problem] = []
    waiting, checked = [(schema, path)], 0
    shared = {"$defs": schema["$defs"]} if isinstance(schema, dict) and "$defs" in schema else {}
    while waiting and checked < DEFAULTS_CHECKED_MAX:
        part, at = waiting.pop()
        if not isinstance(part, dict):
            continue
        waiting += reversed(list(_inner_schemas(part, at)))
        rest = {key: each for key, each in part.items() if key != "default"}
        if "default" in part and b'"default"' not in msgspec.json.encode(rest):
            checked += 1
            with suppress(ExpressionError):  # It refers to something outside of `$defs`.
                found += compile_schema({**shared, **rest}).problems(part["default"], f"{at}/default")
    return [msgspec.structs.replace(each, code="schema_invalid", hint=each.hint or HINT) for each in found]


def _inner_schemas(schema: dict[str, Json], path: str) -> Iterator[tuple[Json, str]]:
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield schema[key], f"{path}/{key}"
    for key in ("properties", "$defs", "allOf", "anyOf", "oneOf", "prefixItems"):
        inner = schema.get(key, ())
        for name, each in inner.items() if isinstance(inner, dict) else enumerate(inner):
            yield each, pointer(f"{path}/{key}", name)
