"""Pipelines that become tools: the shape of a pipeline, its constants as parameters, and the tool's records.

Two pipelines have the same shape if they differ only in constants: addresses and their parameters, the values that
rows are compared with, the number of rows, the other table of a join. The second use of a shape promotes it. The tool
gets another version when a later use shows that a parameter takes another type; a pinned tool keeps its version.
A pipeline with headers or credentials is never promoted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from tidemill.agents.port import CompositeTool
from tidemill.expressions.schema import compile_schema
from tidemill.handlers.contract import Fail, object_schema

PARAMETER = "$parameter"
TEXT = "$text"
DEFAULT_BYTES_MAX = 500
PIPELINE_BYTES_MAX = 32_768
RECORD_FORMAT = 1

Step = dict[str, Any]

_STRING = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_LITERAL = re.compile(rf"(?P<key>\[\s*{_STRING}\s*\])|{_STRING}|(?<![\w.])\d+(?:\.\d+)?(?![\w.])")
"""Strings and numbers of an expression; a string in brackets is the name of a field and stays."""
_ENCODER = msgspec.json.Encoder(order="sorted")
_SHORT = {
    "http_request": "fetch",
    "table_sort": "sort",
    "table_filter": "filter",
    "table_select": "select",
    "top_k": "top",
    "groupby": "group",
    "join": "join",
    "jq_transform": "jq",
    "regex_extract": "extract",
    "parse_date": "dates",
}


_COMPARED = re.compile(r"\b[A-Za-z_][\w.]{0,39}\s*(?:[=!<>]=|<|>)\s*$")
"""What a literal is compared with; nothing else of an expression becomes words, because other models read them."""


class Lifted(NamedTuple):
    """A pipeline whose constants are parameters."""

    pipeline: list[Step]
    constants: dict[str, Any]
    """By the name of the parameter, in the order of the steps."""
    places: dict[str, str]
    """What each parameter is, for people: `step 2 (top_k): k`."""

    @property
    def shape(self) -> str:
        return sha256(_ENCODER.encode(self.pipeline)).hexdigest()


class _Lifter:
    """Replaces constants and names their parameters."""

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.step = ""

    def lift(self, value: Any, name: str, about: str = "") -> Any:
        word = re.sub(r"[^a-z0-9]+", "_", name.lower())[:40].strip("_") or "value"
        unique, number = word, 1
        while unique in self.constants:
            number += 1
            unique = f"{word}_{number}"
        # A reference to a blob is an example at best: a tool must not keep the blob.
        self.constants[unique] = {} if isinstance(value, dict) else value
        self.places[unique] = f"{self.step}: {about or name}"
        return {PARAMETER: unique}

    def leaves(self, value: Any, name: str) -> Any:
        """Lift every scalar; keys and nesting stay part of the shape."""
        if isinstance(value, dict):
            return {key: self.leaves(each, str(key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.leaves(each, name) for each in value]
        return self.lift(value, name)

    def text(self, expression: str) -> Any:
        """Lift the literals of an expression."""
        parts: list[Any] = []
        end = 0
        for found in _LITERAL.finditer(expression):
            if found["key"]:
                continue
            before = expression[end : found.start()]
            compared = _COMPARED.search(before)
            about = f"{compared[0].strip()} …" if compared else ""
            parts += [before, self.lift(_literal(found.group()), "value", about)]
            end = found.end()
        return {TEXT: [*parts, expression[end:]]} if parts else expression

    def condition(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self.condition(each) for each in given]
        if not isinstance(given, dict):
            return given
        lifted: dict[str, Any] = {}
        for key, value in given.items():
            if key == "expression" and isinstance(value, str):
                lifted[key] = self.text(value)
            elif key == "value" and not isinstance(value, dict | list):
                lifted[key] = self.lift(value, "value")
            else:
                lifted[key] = self.condition(value)
        return lifted


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text[1:-1]


_LIFTS: Mapping[str, Mapping[str, Callable[[_Lifter, Any, str], Any]]] = {
    "http_request": {
        "url": lambda lifter, value, name: lifter.lift(value, name),
        **dict.fromkeys(("params", "query", "body"), lambda lifter, value, name: lifter.leaves(value, name)),
    },
    "table_filter": {
        "condition": lambda lifter, value, _: lifter.text(value) if isinstance(value, str) else lifter.condition(value)
    },
    "top_k": {"k": lambda lifter, value, name: lifter.lift(value, name)},
    "join": {"with": lambda lifter, value, _: lifter.lift(value, "other_table")},
}


def lifted(pipeline: list[Step]) -> Lifted | None:
    """A pipeline with its constants lifted; None if it cannot become a tool."""
    if any("headers" in step or "auth" in step for step in pipeline):
        return None
    lifter, steps = _Lifter(), []
    for number, step in enumerate(pipeline, 1):
        name = str(step["step"])
        lifter.step = f"step {number} ({name})"
        lifts = _LIFTS.get(name, {})
        steps.append({key: lifts[key](lifter, value, key) if key in lifts else value for key, value in step.items()})
    if len(_ENCODER.encode(steps)) > PIPELINE_BYTES_MAX:
        return None
    return Lifted(steps, lifter.constants, lifter.places)


# Call a tool.


def filled(tool: CompositeTool, parameters: dict[str, Any]) -> list[Step]:
    """The pipeline with these parameters, and defaults for the others. Raises `Fail`."""
    for problem in compile_schema(tool.parameters).problems(parameters, "/parameters"):
        raise Fail("arguments_invalid", f"the parameters do not fit {tool.name}: {problem.sentence}", hint=problem.hint)
    schemas = tool.parameters["properties"]
    values = {name: parameters.get(name, schema.get("default")) for name, schema in schemas.items()}
    return [_filled(step, values) for step in tool.pipeline]


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {PARAMETER}:
        return values[value[PARAMETER]]
    if value.keys() == {TEXT}:
        # A parameter is written as a literal, so it cannot become a part of the expression.
        parts = (each if isinstance(each, str) else _as_literal(values[each[PARAMETER]]) for each in value[TEXT])
        return "".join(parts)
    return {key: _filled(each, values) for key, each in value.items()}


def _as_literal(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Records.


class PipelineUsed(msgspec.Struct, frozen=True, kw_only=True, tag="pipeline_used"):
    """The first use of a shape."""

    key: str
    pipeline: list[Step]
    constants: dict[str, Any]
    places: dict[str, str]
    at_ms: int
    v: int = RECORD_FORMAT


class ToolVersion(msgspec.Struct, frozen=True, kw_only=True, tag="tool_version"):
    """The shape was promoted, or its parameters take more types now."""

    key: str
    version: int
    parameters: dict[str, Any]
    at_ms: int
    v: int = RECORD_FORMAT


class ToolChanged(msgspec.Struct, frozen=True, kw_only=True, tag="tool_changed"):
    """A person has renamed, pinned or retired the tool."""

    actor: str
    at_ms: int
    name: str | None = None
    description: str | None = None
    pinned: bool | None = None
    retired: bool | None = None
    v: int = RECORD_FORMAT


ToolRecord = PipelineUsed | ToolVersion | ToolChanged


class ToolHistory(msgspec.Struct, kw_only=True):
    """The fold of a shape's records."""

    shape: str
    first: PipelineUsed | None = None
    versions: list[ToolVersion] = []
    name: str = ""
    description: str = ""
    pinned: bool = False
    retired: bool = False
    updated_ms: int = 0

    def add(self, record: ToolRecord) -> None:
        self.updated_ms = record.at_ms
        match record:
            case PipelineUsed():
                self.first = record
                self.name, self.description = default_name(record.pipeline, self.shape), default_description(record)
            case ToolVersion():
                self.versions = [*self.versions, record]
            case ToolChanged(name=name, description=description, pinned=pinned, retired=retired):
                self.name = self.name if name is None else name
                self.description = self.description if description is None else description
                self.pinned = self.pinned if pinned is None else pinned
                self.retired = self.retired if retired is None else retired

    def used(self, use: Lifted, key: str, now_ms: int) -> ToolRecord | None:
        """The record that a use of the shape calls for; None if nothing changes."""
        if self.first is None:
            return PipelineUsed(
                key=key, pipeline=use.pipeline, constants=use.constants, places=use.places, at_ms=now_ms
            )
        if self.retired or key in (self.first.key, *(each.key for each in self.versions)):
            return None
        parameters: dict[str, Any] | None = None
        if not self.versions:
            parameters = parameters_of(self.first, [self.first.constants, use.constants])
        elif not self.pinned:
            parameters = widened(self.versions[-1].parameters, use.constants)
        if parameters is None:
            return None
        return ToolVersion(key=key, version=len(self.versions) + 1, parameters=parameters, at_ms=now_ms)

    def tool(self, version: int | None = None) -> CompositeTool | None:
        """The tool at a version, by default the newest; None if it is not promoted."""
        number = len(self.versions) if version is None else version
        if self.first is None or not 0 < number <= len(self.versions):
            return None
        return CompositeTool(
            name=self.name,
            version=number,
            shape=self.shape,
            description=self.description,
            parameters=self.versions[number - 1].parameters,
            pipeline=self.first.pipeline,
            pinned=self.pinned,
            retired=self.retired,
        )


def default_name(pipeline: list[Step], shape: str) -> str:
    """A name such as `fetch-filter-top-3fa2b1`; the shape makes it unique."""
    words = dict.fromkeys(_SHORT.get(str(step["step"]), "step") for step in pipeline)
    return "-".join([*list(words)[:5], shape[:6]])


def default_description(first: PipelineUsed) -> str:
    steps = " → ".join(str(step["step"]) for step in first.pipeline)
    parameters = f" Parameters: {', '.join(first.constants)}." if first.constants else ""
    return f"Leads a table through {steps}.{parameters}"


def parameters_of(first: PipelineUsed, uses: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON Schema of the parameters; the constants of the first use are the defaults."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, constant in first.constants.items():
        kinds = sorted({_kind(use[name]) for use in uses})
        schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds, "description": first.places[name]}
        if not isinstance(constant, dict) and len(_ENCODER.encode(constant)) <= DEFAULT_BYTES_MAX:
            schema["default"] = constant
        else:
            required.append(name)
        properties[name] = schema
    return object_schema(tuple(required)) | {"properties": properties}


def widened(parameters: dict[str, Any], constants: dict[str, Any]) -> dict[str, Any] | None:
    """The schema that also takes these constants; None if it does already."""
    properties = dict(parameters["properties"])
    for name, constant in constants.items():
        known = properties[name]["type"]
        kinds = {known} if isinstance(known, str) else set(known)
        if _kind(constant) not in kinds:
            properties[name] = {**properties[name], "type": sorted({*kinds, _kind(constant)})}
    return None if properties == parameters["properties"] else {**parameters, "properties": properties}


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
    return kinds.get(type(value), "array" if isinstance(value, list) else "object")


def parts_of(tool: CompositeTool) -> Iterator[str]:
    """The words by which a tool is found."""
    yield from (tool.name, tool.description, *tool.parameters["properties"])
