"""JSON Schemas of Python types, by the type hints of functions.

Dataclasses and structs are described by msgspec, Pydantic models by themselves. A schema accepts what `conversion`
makes a value of: datetimes with or without a zone, durations with a sign and fractions, decimals in strings within the
bounds of their field.
"""

from __future__ import annotations

import datetime
import importlib
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import PurePath
from typing import Any

import msgspec

from tidemill.handlers.python.conversion import (
    DATETIME,
    DATETIME_WORDS,
    DAY,
    DURATION,
    DURATION_WORDS,
    HOUR,
    ZONE,
    fields_of,
    is_model,
    kinds_in,
    members_of,
    to_json,
    unwrapped,
    with_stand_ins,
)

_DURATION = {"pattern": f"^[+-]?P{DURATION}$", "description": DURATION_WORDS}
_DURATION_OF_MODELS = {**_DURATION, "pattern": r"^[+-]?PT?\d[\d.YMWDTHS]*$"}
"""Pydantic writes years, too, takes months and weeks, and checks the rest itself."""


def schemas_of(hints: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """JSON Schemas of types, and the definitions that they share; a type that has none gets one that allows all.

    Dataclasses and structs have no other keys than their fields; models and typed dictionaries say so themselves.
    """
    models: dict[str, Any] = {}
    hook, hints = partial(_schema, models), [with_stand_ins(each, dates=True) for each in hints]
    try:
        schemas, shared = msgspec.json.schema_components(hints, schema_hook=hook, ref_template="#/$defs/{name}")
    except (TypeError, NotImplementedError, NameError):
        if len(hints) == 1:
            members, shared = schemas_of(members_of(hints[0])) if members_of(hints[0]) else ([], {})
            return [{"anyOf": members} if members else {}], shared
        found = [schemas_of([hint]) for hint in hints]
        return [schemas[0] for schemas, _ in found], {name: each for _, more in found for name, each in more.items()}
    schemas, shared = _with_durations(to_json(list(schemas))), _with_durations(to_json(shared))
    for field in {field for hint in hints for field, kind in kinds_in(hint) if kind is datetime.datetime}:
        _add_datetime(shared, *field.rpartition(".")[::2])
    extended: set[str] = set()
    for hint in hints:
        _add_typed_dicts(hint, extended, set())
    closed = {
        name: each
        if each.get("title") in extended or "properties" not in each
        else {"additionalProperties": False, **each}
        for name, each in shared.items()
    }
    return list(schemas), {**models, **closed}


def _add_typed_dicts(hint: Any, found: set[str], seen: set[int]) -> None:
    """Add the names of all typed dictionaries in a hint."""
    hint = unwrapped(hint)
    if id(hint) in seen:
        return
    seen.add(id(hint))
    if typing.is_typeddict(hint):
        found.add(hint.__name__)
    for each in (*typing.get_args(hint), *(fields_of(hint) or {}).values()):
        _add_typed_dicts(each, found, seen)


def _add_datetime(shared: dict[str, Any], title: str, name: str) -> None:
    """Let the field of a class take datetimes only."""
    for schema in shared.values():
        found = schema.get("properties", {}).get(name, {}) if schema.get("title") == title else {}
        for each in (found, *found.get("anyOf", ())):
            if each.get("type") == "string":
                each |= DATETIME.extra_json_schema or {}


def parameters_schema(parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an object with the arguments of a function, by their type hints and defaults."""
    schemas, shared = schemas_of([hints.get(each.name, Any) for each in parameters])
    properties: dict[str, Any] = {}
    for each, schema in zip(parameters, schemas, strict=True):
        properties[each.name] = schema
        if each.default is not each.empty:
            # By way of text, so that tuples are lists.
            default = msgspec.json.decode(msgspec.json.encode(to_json(each.default)))
            properties[each.name] = {**schema, "default": default}
    required = [each.name for each in parameters if each.default is each.empty]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
        **({"$defs": shared} if shared else {}),
    }


def _schema(models: dict[str, Any], kind: type) -> dict[str, Any]:
    """The schema of a foreign type; what the schema of a model refers to is added to `models`."""
    if not is_model(kind):
        return {"type": "string"} if issubclass(kind, PurePath) else {}
    name = re.sub(r"[^A-Za-z0-9_-]", "_", kind.__name__)  # Of a generic model it has brackets, which no reference may.
    try:
        given = {"ref_template": f"#/$defs/{name}.{{model}}", "schema_generator": _schema_generator()}
        schema: dict[str, Any] = kind.model_json_schema(**given)  # type: ignore[attr-defined]
    except Exception:  # It has fields of types that Pydantic has no schema for.
        return {"type": "object", "title": kind.__name__}
    schema = _without_zones(schema)
    models |= {f"{name}.{inner}": each for inner, each in schema.pop("$defs", {}).items()}
    return schema


@cache
def _schema_generator() -> Any:
    """Pydantic's, which also checks decimals in strings, and takes datetimes without a zone, as its models do."""

    class Generator(importlib.import_module("pydantic.json_schema").GenerateJsonSchema):  # type: ignore[misc]
        def decimal_schema(self, schema: Any) -> Any:
            found = super().decimal_schema(schema)
            names = {"ge": "formatMinimum", "le": "formatMaximum"}
            names |= {"gt": "formatExclusiveMinimum", "lt": "formatExclusiveMaximum"}
            bounds = {words: str(schema[name]) for name, words in names.items() if name in schema}
            texts = [each for each in found.get("anyOf", [found]) if each.get("type") == "string"]
            for each in texts:
                each |= {"format": "decimal", **bounds}
            return found

        def datetime_schema(self, schema: Any) -> Any:
            pattern = rf"^{DAY}([Tt _]{HOUR}(:[0-5]\d(\.\d+)?)?{ZONE})?$"
            return {"type": "string", "pattern": pattern, "description": DATETIME_WORDS}

        def timedelta_schema(self, schema: Any) -> Any:
            is_number = self._config.ser_json_timedelta == "float"
            return {"type": ["string", "number"] if is_number else "string", **_DURATION_OF_MODELS}

    return Generator


def _with_durations(schema: Any) -> Any:
    """A schema of msgspec that takes every duration that msgspec takes and writes."""
    if isinstance(schema, (list, tuple)):
        return [_with_durations(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_durations(each) for key, each in schema.items()}
    if found.get("type") == "string" and found.get("format") == "duration":
        del found["format"]
        return {**_DURATION, **found}
    return found


def _without_zones(schema: Any) -> Any:
    """A schema of Pydantic that allows times without a zone, as its models do."""
    if isinstance(schema, list):
        return [_without_zones(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_time = schema.get("type") == "string" and schema.get("format") in ("date-time", "time")
    return {key: _without_zones(each) for key, each in schema.items() if not (is_time and key == "format")}
