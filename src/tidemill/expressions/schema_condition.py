"""The condition `schema_validation`: the output matches a JSON Schema, or does not."""

from __future__ import annotations

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.conditions import DEADLINE_MS, Raw, is_small, no_other_keys, shape
from tidemill.expressions.errors import NO_OUTPUT, condition_failed, kind_of, shorten
from tidemill.expressions.limits import DEPTH_MAX, deeper_than
from tidemill.expressions.schema import Schema, check_schema, compile_schema
from tidemill.expressions.scope import Json, References, Scope

EXPLAINED_BYTES_MAX, EXPLAINED_ITEMS_MAX = 1 << 11, 30
EXPLAINED_TEXT_MAX = 1 << 10
"""Size of a schema, and items and characters of an output, for which a mismatch is explained."""

_OUTPUT = References(roots=frozenset({"output"}))
_KEYS = ("type", "schema", "schema_ref", "invert")
_EXAMPLE = 'such as {"type": "schema_validation", "schema": {"type": "object", "required": ["id"]}}'


class Matching(msgspec.Struct, frozen=True):
    """A compiled schema that the output must match, or must not if `invert`."""

    schema: Schema
    invert: bool = False
    references: References = _OUTPUT
    deadline_ms: int = DEADLINE_MS
    is_short: bool = False
    """The schema is short enough to validate a second time, for the reason of a mismatch."""

    @property
    def light(self) -> bool:
        return self.schema.light

    def normal(self) -> Json:
        return {"type": "schema_validation", "schema": self.schema.source, "invert": self.invert}

    def bind(self, scope: Scope) -> Json:
        if not scope.has_output:
            raise condition_failed("output is not available here", NO_OUTPUT)
        return scope.output

    def holds(self, data: Json, scope: Scope) -> bool:
        """Match; raise `ExpressionError` if the output is too deep or not JSON."""
        if deeper_than(data):
            hint = "match a part of it in a node of its own"
            raise condition_failed(f"the output is nested more than {DEPTH_MAX} levels deep", hint)
        try:
            return self.schema.matches(data) is not self.invert
        except ValueError as error:
            raise condition_failed(f"the output is not JSON: {shorten(str(error))}") from None

    def because(self, scope: Scope) -> str:
        """Say what in the output does not match; empty if it matches, or if finding out could take long."""
        if not self.is_short or not is_small(scope.output, EXPLAINED_ITEMS_MAX, EXPLAINED_TEXT_MAX):
            return ""
        mismatch = self.schema.mismatch(scope.output)
        return f", since {mismatch}" if mismatch else ""

    def told(self) -> str:
        source = self.schema.source
        title = source.get("title") if isinstance(source, dict) else None
        name = f'the schema "{shorten(title, 60)}"' if isinstance(title, str) and title else "the schema"
        return f"the output's {'mismatch' if self.invert else 'match'} with {name}"


def parse_matching(raw: Raw, path: str, problems: list[Problem]) -> Matching | None:
    known = len(problems)
    no_other_keys(raw, _KEYS, path, problems)
    invert = raw.get("invert", False)
    if not isinstance(invert, bool):
        problems.append(shape(f"invert is true or false, not {kind_of(invert)}", f"{path}/invert"))
    if "schema" in raw:
        if "schema_ref" in raw:
            problems.append(shape("there is a schema and a schema_ref", f"{path}/schema_ref", "write one of them"))
        problems += check_schema(raw["schema"], f"{path}/schema")
    elif "schema_ref" in raw:
        hint = "write the schema itself, or publish the document where the blob is stored"
        problems.append(shape("schema_ref has not been replaced by the schema", f"{path}/schema_ref", hint))
    else:
        problems.append(shape("a schema_validation condition needs a schema", path, _EXAMPLE))
    if len(problems) > known:
        return None
    schema = compile_schema(raw["schema"])
    is_short = schema.light and len(msgspec.json.encode(schema.source)) <= EXPLAINED_BYTES_MAX
    return Matching(schema, invert is True, is_short=is_short)
