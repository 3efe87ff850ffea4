"""What a JSON Schema promises of the values below it: which kinds they are, and which keys cannot be there.

Only what is certain is told. A schema that leaves something open, or refers to another place than itself, promises
nothing. Kinds have the names that conditions have for them: a number is an `int` or a `double`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.expressions.scope import Json

Kinds = frozenset[str]

REFS_MAX = 20
"""References that are followed from one schema to the next, so that a circle of them ends."""

_TYPES: dict[str, Kinds] = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"bool"}),
    "integer": frozenset({"int"}),
    "number": frozenset({"int", "double"}),
    "string": frozenset({"string"}),
    "array": frozenset({"list"}),
    "object": frozenset({"map"}),
}
_PYTHON = {type(None): "null", bool: "bool", int: "int", float: "double", str: "string", list: "list", dict: "map"}
_OPENING = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "patternProperties")
"""Keywords beside which `additionalProperties: false` is not taken at its word."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """The key at this place of a chain can never be there."""

    at: int
    kinds: Kinds
    """What the value is that has no such key."""
    known: tuple[str, ...] = ()
    """The keys that it can have, if it is an object."""


def expected(schema: Json, keys: Sequence[str]) -> Kinds | Lacking | None:
    """Follow keys into a schema: the kinds that the value can be, where the chain ends early, or nothing certain."""
    here = _followed(schema, schema)
    for at, key in enumerate(keys):
        if here is None:
            return None
        kinds = _kinds(here)
        if kinds is not None and "map" not in kinds:
            return Lacking(at, kinds)
        properties = here.get("properties", {})
        if not isinstance(properties, dict):
            return None
        if key in properties:
            here = _followed(schema, properties[key])
        elif here.get("additionalProperties") is False and not any(word in here for word in _OPENING):
            return Lacking(at, _TYPES["object"], tuple(properties))
        else:
            return None
    return None if here is None else _kinds(here)


def _followed(root: Json, schema: Json) -> dict[str, Json] | None:
    """Give the schema that a place stands for, references within the document followed."""
    for _ in range(REFS_MAX):
        if not isinstance(schema, dict) or ("$id" in schema and schema is not root):
            return None
        reference = schema.get("$ref")
        if reference is None:
            return schema
        schema = _pointed(root, reference)
    return None


def _pointed(root: Json, reference: Json) -> Json:
    if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference:
        return None
    for step in reference[2:].split("/"):
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _kinds(schema: dict[str, Json]) -> Kinds | None:
    given = schema.get("type")
    if given is not None:
        names = given if isinstance(given, list) else [given]
        found = [_TYPES.get(name) if isinstance(name, str) else None for name in names]
        return None if None in found else frozenset().union(*(kinds for kinds in found if kinds))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return frozenset(map(kind_named, values))


def kind_named(value: Json) -> str:
    """Name the kind of a value; a whole number is an integer to a schema, however it is written."""
    return "int" if isinstance(value, float) and value.is_integer() else _PYTHON[type(value)]
