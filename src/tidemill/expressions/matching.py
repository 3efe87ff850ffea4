"""The condition `schema_validation`: the node's output matches a schema, or, inverted, does not."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.bounds import DEPTH_MAX, deeper_than
from tidemill.expressions.failure import NO_OUTPUT, condition_failed
from tidemill.expressions.leaf import DEADLINE_MS, is_small
from tidemill.expressions.references import References
from tidemill.expressions.schema import Schema, check_schema, compile_schema
from tidemill.expressions.scope import Json, Scope
from tidemill.expressions.shapes import Raw, no_other_keys, shape
from tidemill.expressions.wording import kind_of, shorten

EXPLAINED_BYTES_MAX = 1 << 11
EXPLAINED_ITEMS_MAX = 30
EXPLAINED_TEXT_MAX = 1 << 10
"""Size of a schema, and items and characters of an output, for which a mismatch is explained."""

_OUTPUT = References(roots=frozenset({"output"}))
_KEYS = ("type", "schema", "schema_ref", "invert")
_EXAMPLE = 'such as {"type": "schema_validation", "schema": {"type": "object", "required": ["id"]}}'


@dataclass(frozen=True, slots=True)
class Matching:
    """A schema, compiled, and what is expected of the output."""

    schema: Schema
    invert: bool = False
    references: References = _OUTPUT
    deadline_ms: int = DEADLINE_MS
    is_short: bool = False
    """The schema is short enough to be asked a second time, for the reason of a mismatch."""

    @property
    def light(self) -> bool:
        """Without references, a schema takes no more steps than it has parts."""
        return self.schema.light

    def normal(self) -> Json:
        """Write it in the one form in which it is stored."""
        return {"type": "schema_validation", "schema": self.schema.source, "invert": self.invert}

    def bind(self, scope: Scope) -> Json:
        """Give the output."""
        if not scope.has_output:
            raise condition_failed("output is not available here", NO_OUTPUT)
        return scope.output

    def holds(self, data: Json, scope: Scope) -> bool:
        """Match; raise `ExpressionError` if the output is not something that a schema can be asked about."""
        if deeper_than(data):
            hint = "match a part of it in a node of its own"
            raise condition_failed(f"the output is nested more than {DEPTH_MAX} levels deep", hint)
        try:
            return self.schema.matches(data) is not self.invert
        except ValueError as error:
            raise condition_failed(f"the output is not JSON: {shorten(str(error))}") from None

    def because(self, scope: Scope) -> str:
        """Say what in the output does not match; empty if all of it does, or if finding out could take long."""
        if not self.is_short or not is_small(scope.output, EXPLAINED_ITEMS_MAX, EXPLAINED_TEXT_MAX):
            return ""
        mismatch = self.schema.mismatch(scope.output)
        return f", since {mismatch}" if mismatch else ""

    def told(self) -> str:
        """Name it in a sentence."""
        source = self.schema.source
        title = source.get("title") if isinstance(source, dict) else None
        name = f'the schema "{shorten(title, 60)}"' if isinstance(title, str) and title else "the schema"
        return f"the output's {'mismatch' if self.invert else 'match'} with {name}"


def parse_matching(raw: Raw, path: str, problems: list[Problem]) -> Matching | None:
    """Compile the schema, or report every problem with it and with what is written around it."""
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
